/* SPDX-License-Identifier: Apache-2.0 */
/* Blobs: each is a block of one object, of a head that says how long it is, and its bytes. A volume has one page of memory for the blob on its way. */
#include <errno.h>
#include <string.h>
#include <tenuto/blob.h>
#include <tenuto/shared_memory.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "front/front.h"

#define HEAD_BYTES 16u
#define OBJECT_MULTIPLE 4096u
#define NAP_NS 200000

struct tn_volume {
	struct tn_space *space;
	struct tn_memory *memory;
	struct tn_pool *pool;
	uint64_t blob_bytes;
	unsigned char *page;
	/* What had not ended when its call's time was over, and has the page. */
	struct tn_load *load;
	struct tn_save *save;
	uint8_t outcome; /* of the last save */
};

static int find_volume(const char *dir, const char *name, struct tn_volume_info *out)
{
	struct tn_volume_info *all = tn_get(&tn_alloc_system, TN_VOLUMES_MAX * sizeof(*all));
	long n = all ? tn_volume_list(dir, all, TN_VOLUMES_MAX) : tn_fail(-ENOMEM, "no memory for a catalogue");
	int rc = n < 0 ? (int)n : -ENOENT;

	for (long i = 0; i < n && rc; i++)
		if (!strcmp(all[i].name, name)) {
			*out = all[i];
			rc = 0;
		}
	if (n >= 0 && rc)
		tn_fail(rc, "volume %s is not registered in %s: tenuto volume register", name, dir);
	tn_put(&tn_alloc_system, all, TN_VOLUMES_MAX * sizeof(*all));
	return rc;
}

static int open_space(struct tn_cache *cache, const struct tn_volume_info *info, const struct tn_geometry *g, struct tn_space **out)
{
	struct tn_identity id;
	struct tn_shard shard;

	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.tenant = "tenuto volumes";
	id.model = info->name;
	memcpy(id.reset_revision, info->id, sizeof(id.reset_revision));
	return tn_space_open(cache, &id, &shard, g, NULL, out);
}

static int open_page(struct tn_cache *cache, struct tn_volume *v, const struct tn_geometry *g, uint64_t bytes)
{
	const struct tn_pool_shape shape = {.order = TN_POOL_CROSS_LAYER, .npages = 1};
	struct tn_memory_range range = {.bytes = bytes};
	struct tn_memory_desc desc;
	struct tn_pool_layout layout;
	uint64_t base;
	void *page;
	int rc = tn_memory_alloc(bytes, NULL, &page);

	if (rc)
		return rc;
	v->page = page;
	range.address = page;
	tn_memory_desc_init(&desc);
	desc.ranges = &range;
	desc.nranges = 1;
	rc = tn_memory_register(cache, &desc, &v->memory);
	rc = rc ? rc : tn_layout_fill(g, &shape, NULL, &base, &layout);
	return rc ? rc : tn_pool_create(v->memory, g, &layout, &v->pool);
}

int tn_volume_open(struct tn_cache *cache, const char *dir, const char *name, struct tn_volume **out)
{
	struct tn_volume_info info;
	struct tn_geometry g;
	struct tn_volume *v;
	uint64_t bytes;
	int rc;

	if (!cache || !dir || !name || !out)
		return tn_fail(-EINVAL, "tn_volume_open: a pointer is missing");
	rc = find_volume(dir, name, &info);
	if (rc)
		return rc;
	v = tn_get(&tn_alloc_system, sizeof(*v));
	if (!v)
		return tn_fail(-ENOMEM, "no memory for a volume");
	v->blob_bytes = info.blob_bytes;
	bytes = (HEAD_BYTES + info.blob_bytes + OBJECT_MULTIPLE - 1) / OBJECT_MULTIPLE * OBJECT_MULTIPLE;
	rc = tn_geometry_raw(1, bytes, &g);
	rc = rc ? rc : open_space(cache, &info, &g, &v->space);
	rc = rc ? rc : open_page(cache, v, &g, bytes);
	if (rc)
		tn_volume_close(v);
	else
		*out = v;
	return rc;
}

/* Waits for what has the page. 0, or -ETIMEDOUT. */
static int take_page(struct tn_volume *v, uint64_t deadline_ns)
{
	int rc = v->load ? tn_load_end(v->load, deadline_ns, NULL) : 0;

	if (rc != -EBUSY) {
		v->load = NULL;
		rc = v->save ? tn_save_end(v->save, deadline_ns, NULL) : 0;
	}
	if (rc == -EBUSY || rc == -ETIMEDOUT)
		return tn_fail(-ETIMEDOUT, "a blob before is still on its way from or to a device that does not answer, and has the volume's page; try again later");
	v->save = NULL;
	return 0;
}

void tn_volume_close(struct tn_volume *volume)
{
	if (!volume)
		return;
	take_page(volume, TN_FOREVER);
	if (volume->pool)
		tn_pool_destroy(volume->pool);
	if (volume->memory)
		tn_memory_unregister(volume->memory);
	if (volume->space)
		tn_space_close(volume->space);
	if (volume->page)
		tn_memory_free(volume->page);
	tn_put(&tn_alloc_system, volume, sizeof(*volume));
}

/* A blob's key takes the place of what tokens do not say; its one token says nothing. */
static int key_of(const struct tn_volume *v, const void *key, size_t bytes, struct tn_key *out)
{
	const uint32_t token = 0;
	long rc;

	if (!v || !key || !bytes || bytes > TN_BLOB_KEY_MAX)
		return tn_fail(-EINVAL, "a key of %zu bytes: a volume, and 1 to %u are wanted", bytes, TN_BLOB_KEY_MAX);
	rc = tn_keys_from_tokens(v->space, &token, 1, key, bytes, out, 1);
	return rc < 0 ? (int)rc : rc == 1 ? 0 : tn_fail(-EINVAL, "no key came of one token");
}

static int end_save(struct tn_volume *v, struct tn_save *save, uint64_t deadline_ns, int rc)
{
	if (rc == 0)
		rc = tn_save_end(save, deadline_ns, NULL);
	if (rc == 0)
		return 0;
	tn_save_abort(save);
	v->save = save;
	take_page(v, deadline_ns);
	return rc == -ETIMEDOUT ? tn_fail(rc, "the blob was not stored by the deadline") : rc;
}

int tn_blob_put(struct tn_volume *volume, const void *key, size_t key_bytes, const void *data, size_t bytes, uint64_t deadline_ns)
{
	const uint64_t length = bytes;
	const uint32_t page = 0;
	struct tn_save_opts opts;
	struct tn_save *save;
	struct tn_key k;
	int rc = key_of(volume, key, key_bytes, &k);

	if (rc)
		return rc;
	if (bytes > volume->blob_bytes || (bytes && !data))
		return tn_fail(-E2BIG, "a blob of %zu bytes: the volume takes %llu", bytes, (unsigned long long)volume->blob_bytes);
	rc = take_page(volume, deadline_ns);
	if (rc)
		return rc;
	memset(volume->page, 0, HEAD_BYTES);
	memcpy(volume->page, &length, sizeof(length));
	if (bytes)
		memcpy(volume->page + HEAD_BYTES, data, bytes);
	tn_save_opts_init(&opts);
	volume->outcome = TN_SAVED_NOT;
	opts.outcome = &volume->outcome;
	rc = tn_save_begin(volume->space, volume->pool, &k, 1, &page, &opts, &save);
	if (rc)
		return rc;
	rc = tn_save_layer(save, 0, NULL, 0);
	rc = rc ? rc : tn_save_commit(save);
	rc = end_save(volume, save, deadline_ns, rc);
	if (rc)
		return rc;
	if (volume->outcome == TN_SAVED_STORED || volume->outcome == TN_SAVED_HOST_ONLY)
		return 0;
	return volume->outcome == TN_SAVED_EXISTING ? 1 : tn_fail(-ENOSPC, "the cache keeps the blob nowhere");
}

/* Asks the tiers that answer later, too: whether the blob is there. */
static int look_up(struct tn_volume *v, const struct tn_key *k, uint64_t deadline_ns)
{
	const struct timespec nap = {0, NAP_NS};
	struct tn_match m = {.size = sizeof(m)};
	uint64_t query;
	int rc = tn_match_begin(&v->space, 1, k, 1, deadline_ns, 0, &query);

	if (rc)
		return rc;
	while ((rc = tn_match_poll(v->space->cache, query, NULL, &m)) == -EAGAIN)
		nanosleep(&nap, NULL);
	if (rc < 0)
		return rc;
	return rc ? 0 : tn_fail(-ENOENT, "there is no such blob");
}

/* How many bytes the blob in the page has. */
static int64_t read_page(const struct tn_volume *v, void *out, size_t max)
{
	uint64_t length;

	memcpy(&length, v->page, sizeof(length));
	if (length > v->blob_bytes)
		return tn_fail(-ENOENT, "a block of the volume is no blob: %llu bytes", (unsigned long long)length);
	if (max)
		memcpy(out, v->page + HEAD_BYTES, length < max ? length : max);
	return (int64_t)length;
}

int64_t tn_blob_get(struct tn_volume *volume, const void *key, size_t key_bytes, void *out, size_t max, uint64_t deadline_ns)
{
	const uint32_t page = 0;
	struct tn_load_opts opts;
	struct tn_load *load;
	struct tn_key k;
	int good, rc = key_of(volume, key, key_bytes, &k);

	if (rc == 0 && max && !out)
		rc = tn_fail(-EINVAL, "tn_blob_get: %zu bytes were announced, and there is no place for them", max);
	rc = rc ? rc : look_up(volume, &k, deadline_ns);
	rc = rc ? rc : take_page(volume, deadline_ns);
	if (rc)
		return rc;
	tn_load_opts_init(&opts);
	opts.deadline_ns = deadline_ns;
	rc = tn_load_begin(volume->space, volume->pool, &k, 1, &page, &opts, &load);
	if (rc)
		return rc;
	good = tn_load_wait(load, 0, deadline_ns);
	volume->load = load;
	take_page(volume, deadline_ns);
	if (good == 1)
		return read_page(volume, out, max);
	if (good == -ETIMEDOUT || (good == 0 && tn_now_ns(&tn_clock_system) >= deadline_ns))
		return tn_fail(-ETIMEDOUT, "the blob was not read by the deadline");
	return good < 0 ? good : tn_fail(-ENOENT, "the blob could not be read: it was evicted, or is damaged");
}
