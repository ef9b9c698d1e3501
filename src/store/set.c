/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the devices of a store find together: creation, devices that are lost, and devices that come back.
 *
 * A lost device costs its own blocks, never the store. One whose directory is there and empty is made anew; one that
 * cannot be opened, or whose directory was not given, is absent: offline for this session. Every superblock counts the
 * lives of all devices (super.life). A session that goes without a device, or makes it anew, raises its count on all
 * others, so that a device that missed a session is known by its own lower count. Such a device is made anew, too: what
 * it holds may have been dropped or replaced meanwhile.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "store/store_internal.h"

#define RACES_MAX 16u /* openers that create the same files at the same time */

struct set {
	struct tn_store *s;
	const struct tn_store_opts *o;
	struct tn_disk_super best; /* of the device that was in the newest session */
	void *pages; /* for superblocks, and for a space table */
};

/* ---- creation ------------------------------------------------------------------------------------------- */

/* salt: two devices that are made with the same seed are not the same device. */
static int random_words(const struct tn_store_opts *o, uint64_t salt, uint64_t *word, unsigned n)
{
	struct tn_rng rng;

	if (o->entropy[0] == 0 && o->entropy[1] == 0)
		return tn_rng_entropy(word, n * sizeof(*word));
	tn_rng_seed(&rng, (o->entropy[0] ^ o->entropy[1] << 1) + salt * 0x9e3779b97f4a7c15ull);
	for (unsigned i = 0; i < n; i++)
		word[i] = tn_rng_next(&rng);
	return 0;
}

/* A drive without a file system says beforehand how much it has: it will not have more later. */
static int check_most(const struct tn_store_device *d, const struct tn_disk_super *plan)
{
	uint64_t need = plan->segments_offset + plan->segment_bytes * plan->segment_count;
	struct tn_io_stat st;
	int rc = tn_io_stat(d->store->io, d->file, &st);

	if (rc || st.most_bytes == 0 || need <= st.most_bytes)
		return rc;
	return tn_fail(-ENOSPC, "%s: %u segments of %llu bytes and an index of %llu need %llu; there are %llu: give less capacity", d->path,
		       plan->segment_count, (unsigned long long)plan->segment_bytes, (unsigned long long)plan->segments_offset,
		       (unsigned long long)need, (unsigned long long)st.most_bytes);
}

static int create_device(struct tn_store_device *d, const struct tn_disk_super *plan, const uint64_t uuid[2], void *page)
{
	int rc = check_most(d, plan);

	if (rc)
		return rc;
	rc = tn_io_allocate(d->store->io, d->file, 0, plan->segments_offset);
	if (rc)
		return tn_fail_cause(rc, "%s: no free disk space for the index (%llu bytes)", d->path,
				     (unsigned long long)plan->segments_offset);
	d->super = *plan;
	d->super.device_index = d->index;
	memcpy(d->super.device_uuid, uuid, sizeof(d->super.device_uuid));
	rc = tn_store_super_write(d, TN_DISK_CREATING, page);
	if (rc == 0)
		rc = tn_store_spaces_format(d, page);
	if (rc == 0)
		rc = tn_store_ckpt_format(d);
	return rc;
}

/* Takes back what this open made of a file: a creation that failed leaves none. */
static void unmake(struct tn_store_device *d)
{
	bool made = d->made && d->open;

	if (made && tn_io_unlink(d->store->io, d->path))
		tn_log(d->store->log, TN_LOG_WARN, "%s", tn_error_last()->text);
	tn_store_device_close(d);
	d->made = false;
}

/* All devices are complete, then each is declared so: whatever a crash leaves is told apart at open. */
static int create_set(struct set *t)
{
	struct tn_store *s = t->s;
	uint64_t word[4 + 2 * TN_DEVICES_MAX];
	struct tn_disk_super plan;
	int rc;

	memset(&plan, 0, sizeof(plan));
	rc = tn_disk_plan_sizes(t->o, &plan);
	if (rc == 0)
		rc = random_words(t->o, 0, word, 4 + 2 * s->ndevices);
	if (rc)
		return rc;
	memcpy(plan.store_uuid, word, 16);
	memcpy(plan.secret, word + 2, 16);
	plan.device_count = s->ndevices;
	plan.created_wall_ns = tn_wall_ns(s->clock);
	plan.epoch = 1;
	plan.log_epoch = 0;
	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++)
		rc = create_device(&s->dev[i], &plan, word + 4 + 2 * i, t->pages);
	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++)
		rc = tn_store_super_write(&s->dev[i], TN_DISK_CLEAN, t->pages);
	if (rc == 0)
		tn_log(s->log, TN_LOG_INFO, "created a store of %u x %u segments of %llu bytes", s->ndevices,
		       plan.segment_count, (unsigned long long)plan.segment_bytes);
	return rc;
}

/* No device holds a store. -EAGAIN: somebody else is creating one at this moment. */
static int create(struct set *t)
{
	struct tn_store *s = t->s;
	struct tn_error error;
	int rc = 0;

	for (uint32_t i = 0; i < s->ndevices; i++)
		if (s->dev[i].found == TN_FOUND_ABSENT)
			return tn_fail_at(s->dev[i].why.where, "", s->dev[i].why.code, "%s", s->dev[i].why.text);
	if (s->read_only)
		return tn_fail(-ENOENT,
			       "%s is no finished store: it is empty, or its creation was interrupted; remove it, or open a cache there, "
			       "which makes it anew",
			       s->dev[0].path);
	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++)
		if (!s->dev[i].open)
			rc = tn_store_device_open(&s->dev[i], t->o, true, t->pages);
	if (rc == -EEXIST || rc == -EBUSY)
		return -EAGAIN;
	if (rc == 0)
		rc = create_set(t);
	if (rc == 0)
		return 0;
	error = *tn_error_last();
	for (uint32_t i = 0; i < s->ndevices; i++)
		unmake(&s->dev[i]);
	return tn_fail_at(error.where, "", rc, "%s", error.text);
}

/* ---- the devices of a store ------------------------------------------------------------------------------- */

static bool of_store(const struct tn_store_device *d)
{
	return d->found == TN_FOUND_CREATING || d->found == TN_FOUND_STORE || d->found == TN_FOUND_STALE;
}

/* All are of one store, with the same sizes, each with a number of its own. */
static int check_set(struct set *t)
{
	const struct tn_disk_super *first = &t->best;
	const struct tn_store_device *has[TN_DEVICES_MAX] = {NULL};
	struct tn_store *s = t->s;

	tn_store_each(d, s) {
		if (of_store(d) && memcmp(d->super.store_uuid, first->store_uuid, 16) != 0)
			return tn_fail(-EXDEV, "%s belongs to another store (%016llx, not %016llx)", d->path,
				       (unsigned long long)d->super.store_uuid[0], (unsigned long long)first->store_uuid[0]);
	}
	if (s->ndevices > first->device_count)
		return tn_fail(-ENODEV, "%u directories were given, but they belong to a store of %u devices, which cannot grow", s->ndevices,
			       first->device_count);
	tn_store_each(d, s) {
		if (!of_store(d))
			continue;
		if (d->super.device_count != first->device_count || d->super.segment_bytes != first->segment_bytes ||
		    d->super.segment_count != first->segment_count || d->super.segment_pages != first->segment_pages ||
		    d->super.log_bytes != first->log_bytes)
			return tn_fail(-EUCLEAN, "%s has other sizes than the rest of its store: put the right file back, or remove all of them",
				       d->path);
		if (has[d->super.device_index])
			return tn_fail(-EXDEV, "%s and %s are both device %u of their store", d->path,
				       has[d->super.device_index]->path, d->super.device_index);
		has[d->super.device_index] = d;
	}
	return 0;
}

/*
 * From the newest session's device down: a device that a newer one knows to have missed a session is stale. (Two
 * devices that were used apart say so of each other: the device with more sessions is believed.)
 */
static void find_stale(struct set *t)
{
	struct tn_disk_super *sb[TN_DEVICES_MAX] = {NULL}, *swap;
	uint32_t life[TN_DEVICES_MAX] = {0}, n = 0;

	for (uint32_t i = 0; i < t->s->ndevices; i++)
		if (t->s->dev[i].found == TN_FOUND_STORE)
			sb[n++] = &t->s->dev[i].super;
	for (uint32_t i = 1; i < n; i++)
		for (uint32_t k = i; k > 0 && sb[k]->epoch > sb[k - 1]->epoch; k--) {
			swap = sb[k];
			sb[k] = sb[k - 1];
			sb[k - 1] = swap;
		}
	t->best = *sb[0];
	for (uint32_t i = 0; i < n; i++) {
		struct tn_store_device *d = tn_container_of(sb[i], struct tn_store_device, super);

		if (sb[i]->life[sb[i]->device_index] < life[sb[i]->device_index]) {
			d->found = TN_FOUND_STALE;
			continue;
		}
		for (uint32_t k = 0; k < TN_DEVICES_MAX; k++)
			life[k] = life[k] > sb[i]->life[k] ? life[k] : sb[i]->life[k];
	}
	memcpy(t->best.life, life, sizeof(life));
}

/* Puts the devices into the order of their numbers; those without one take the numbers that are left, in their order. */
static int place_devices(struct set *t)
{
	struct tn_store *s = t->s;
	size_t bytes = s->ndevices * sizeof(*s->dev);
	struct tn_store_device *old = tn_get(s->alloc, bytes);
	uint32_t n = s->ndevices, next = 0;

	if (!old)
		return tn_fail(-ENOMEM, "no memory for %u devices", n);
	memcpy(old, s->dev, bytes);
	s->ndevices = t->best.device_count;
	memset(s->dev, 0, TN_DEVICES_MAX * sizeof(*s->dev));
	for (uint32_t i = 0; i < s->ndevices; i++) {
		s->dev[i].found = TN_FOUND_ABSENT;
		s->dev[i].why = (struct tn_error){.text = "its directory was not given"};
		snprintf(s->dev[i].path, sizeof(s->dev[i].path), "(device %u)", i + 1);
	}
	for (int pass = 0; pass < 3; pass++)
		for (uint32_t i = 0; i < n; i++) {
			uint32_t to = old[i].super.device_index;

			if (pass != (of_store(&old[i]) ? 0 : old[i].found == TN_FOUND_NOTHING ? 1 : 2))
				continue;
			if (pass > 0) {
				while (s->dev[next].store)
					next++;
				to = next;
			}
			s->dev[to] = old[i];
		}
	for (uint32_t i = 0; i < s->ndevices; i++) {
		s->dev[i].store = s;
		s->dev[i].index = i;
	}
	tn_put(s->alloc, old, bytes);
	return 0;
}

/* ---- lost devices ------------------------------------------------------------------------------------------ */

/* A directory or medium that is not there or lets nobody in. Anything else is an error of the open. */
static bool gone(int rc)
{
	static const int codes[] = {ENOENT, ENOTDIR, EACCES, EPERM, EIO,    ENODEV,  ENXIO,
				    ENOMEDIUM, ESTALE,  ELOOP,  EROFS, ENOTCONN, ENOSPC, EDQUOT};

	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		if (rc == -codes[i])
			return true;
	return false;
}

static void go_without(struct set *t, struct tn_store_device *d)
{
	unmake(d);
	d->absent = true;
	d->super = t->best;
	d->super.device_index = d->index;
	memset(d->super.device_uuid, 0, sizeof(d->super.device_uuid));
	tn_log(d->store->log, TN_LOG_WARN,
	       "%s: going on without device %u of %u (%s): its blocks are misses%s", d->path, d->index + 1, d->store->ndevices,
	       d->why.text, d->store->read_only ? "" : ", and it is made anew when it comes back");
}

/* An empty, unfinished or stale one becomes an empty device of the store, under a new identity. */
static int make_anew(struct set *t, struct tn_store_device *d)
{
	static const char *const why[] = {
		[TN_FOUND_NOTHING] = "its directory is empty",
		[TN_FOUND_CREATING] = "its creation was interrupted",
		[TN_FOUND_STALE] = "the store was used without it",
	};
	struct tn_disk_super plan = t->best;
	uint64_t uuid[2];
	int rc = d->open ? 0 : tn_store_device_open(d, t->o, true, t->pages);

	if (rc == 0)
		rc = random_words(t->o, ((uint64_t)plan.life[d->index] << 8) + d->index + 1, uuid, 2);
	plan.generation = d->found == TN_FOUND_NOTHING ? 0 : d->super.generation;
	plan.created_wall_ns = tn_wall_ns(t->s->clock);
	plan.log_epoch = 0;
	if (rc == 0)
		rc = create_device(d, &plan, uuid, t->pages);
	if (rc == 0)
		rc = tn_store_super_write(d, TN_DISK_CLEAN, t->pages);
	if (rc == 0)
		tn_log(t->s->log, TN_LOG_WARN, "%s: device %u of %u is made anew (%s): the blocks that it held are gone", d->path,
		       d->index + 1, t->s->ndevices, why[d->found]);
	return rc;
}

/* The devices that are not as the store left them. */
static int mend_set(struct set *t)
{
	struct tn_store *s = t->s;

	for (uint32_t i = 0; i < s->ndevices; i++)
		t->best.life[i] += s->dev[i].found != TN_FOUND_STORE;
	tn_store_each(d, s) {
		int rc;

		if (d->found == TN_FOUND_STORE) {
			memcpy(d->super.life, t->best.life, sizeof(d->super.life));
			continue;
		}
		if (d->found != TN_FOUND_ABSENT && s->read_only) {
			d->why = (struct tn_error){.text = "it is to be made anew, which a read-only open does not do"};
		} else if (d->found != TN_FOUND_ABSENT) {
			rc = make_anew(t, d);
			if (rc == 0)
				continue;
			d->why = *tn_error_last();
			if (!gone(rc)) {
				unmake(d);
				return rc == -EEXIST ? tn_fail(-EBUSY, "%s is being created by another process", d->path) : rc;
			}
		}
		go_without(t, d);
	}
	return 0;
}

/* ---- open ------------------------------------------------------------------------------------------------- */

static int find_device(struct set *t, uint32_t i)
{
	struct tn_store_device *d = &t->s->dev[i];
	int rc = tn_store_set_path(d, t->o->dirs[i]);

	if (rc)
		return rc;
	rc = tn_store_device_open(d, t->o, false, t->pages);
	d->found = TN_FOUND_NOTHING;
	if (rc == -ENOENT)
		return 0;
	if (rc == 0)
		rc = tn_store_identify(d, t->pages);
	if (!gone(rc))
		return rc;
	d->found = TN_FOUND_ABSENT;
	d->why = *tn_error_last();
	tn_store_device_close(d);
	return 0;
}

static int open_once(struct set *t)
{
	struct tn_store *s = t->s;
	bool stores = false;
	int rc = 0;

	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++) {
		rc = find_device(t, i);
		stores |= s->dev[i].found == TN_FOUND_STORE;
	}
	if (rc)
		return rc;
	if (!stores)
		return create(t);
	find_stale(t);
	rc = check_set(t);
	if (rc == 0)
		rc = place_devices(t);
	return rc ? rc : mend_set(t);
}

int tn_store_set_open(struct tn_store *s, const struct tn_store_opts *o)
{
	struct set t = {.s = s, .o = o};
	int rc = -EAGAIN;

	t.pages = tn_store_pages_get(s, sizeof(struct tn_disk_spaces));
	if (!t.pages)
		return tn_fail(-ENOMEM, "no memory for superblocks");
	for (uint32_t races = 0; rc == -EAGAIN && races < RACES_MAX; races++) {
		rc = open_once(&t);
		for (uint32_t i = 0; i < s->ndevices && rc == -EAGAIN; i++)
			tn_store_device_close(&s->dev[i]);
	}
	tn_store_pages_put(s, t.pages, sizeof(struct tn_disk_spaces));
	if (rc == -EAGAIN)
		rc = tn_fail(-EBUSY, "%s is being created by another process", s->dev[0].path);
	if (rc)
		return rc;
	s->segment_bytes = s->dev[0].super.segment_bytes;
	s->segment_count = s->dev[0].super.segment_count;
	s->segment_pages = s->dev[0].super.segment_pages;
	s->slot_pages = s->segment_count * s->segment_pages;
	s->table_pages = (s->segment_count + TN_DISK_RECORDS - 1) / TN_DISK_RECORDS;
	s->device_shift = tn_disk_slot_bits(s->slot_pages);
	if ((uint64_t)s->ndevices << s->device_shift > 1ull << 32)
		return tn_fail(-EUCLEAN, "%s: %u slot pages on %u devices: more than can be numbered; remove the store's files and begin anew",
			       s->dev[0].path, s->slot_pages, s->ndevices);
	return 0;
}
