/* SPDX-License-Identifier: Apache-2.0 */
/* See store_rig.h. */
#include "store/store_rig.h"

#include <errno.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"

/* ---- callbacks ---------------------------------------------------------------------------------------------- */

static uint32_t rig_recovered(void *arg, tn_slot slot, const struct tn_index_entry *e)
{
	struct rig *r = arg;

	for (uint32_t i = 0; i < RIG_BLOCKS_MAX; i++)
		if (r->block[i].live) /* the store's promise: one slot a key */
			assert_false(tn_key_eq(&r->block[i].entry.key, &e->key));
	if (r->recovered >= r->refuse_above)
		return UINT32_MAX;
	for (uint32_t i = 0; i < RIG_BLOCKS_MAX; i++) {
		if (!r->block[i].live) {
			r->block[i] = (struct rig_block){*e, slot, true};
			r->recovered++;
			return i;
		}
	}
	return UINT32_MAX;
}

static void rig_describe(void *arg, tn_slot slot, uint32_t cookie, struct tn_index_entry *e)
{
	struct rig *r = arg;

	assert_true(cookie < RIG_BLOCKS_MAX && r->block[cookie].live && r->block[cookie].slot == slot);
	*e = r->block[cookie].entry;
}

static void rig_evict(void *arg, tn_slot slot, uint32_t cookie)
{
	struct rig *r = arg;

	assert_true(r->block[cookie].live && r->block[cookie].slot == slot);
	r->evict_calls++;
	if (r->evict_removes) {
		r->block[cookie].live = false;
		tn_store_remove(r->store, slot);
	}
}

static bool rig_vacate(void *arg, tn_slot first, uint32_t n)
{
	struct rig *r = arg;

	r->vacate_calls++;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t cookie = tn_store_cookie(r->store, first + i);

		if (cookie != UINT32_MAX && r->block[cookie].held)
			return false;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint32_t cookie = tn_store_cookie(r->store, first + i);

		if (cookie == UINT32_MAX)
			continue;
		assert_true(r->block[cookie].live && r->block[cookie].slot == first + i);
		r->block[cookie].live = false;
		tn_store_remove(r->store, first + i);
		r->vacated++;
	}
	return true;
}

static bool rig_passes(void *arg, tn_slot first, uint32_t n)
{
	return ((struct rig *)arg)->passes - first < n;
}

static void rig_health(void *arg, uint32_t device, enum tn_health health)
{
	((struct rig *)arg)->health = health;
}

static void rig_log(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	struct rig *r = arg;
	size_t n = strlen(r->logs);

	snprintf(r->logs + n, sizeof(r->logs) - n, "%s\n", text);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static void *rig_get(void *arg, size_t bytes)
{
	struct rig *r = arg;

	if (r->allocs_left == 0)
		return NULL;
	r->allocs_left -= r->allocs_left != UINT32_MAX;
	for (unsigned i = 0; i < RIG_ALLOCS; i++) {
		if (r->given[i].p)
			continue;
		r->given[i].p = tn_get(&tn_alloc_system, bytes);
		r->given[i].bytes = bytes;
		return r->given[i].p;
	}
	fail_msg("more than %u allocations", RIG_ALLOCS);
	return NULL;
}

static void rig_put(void *arg, void *p, size_t bytes)
{
	struct rig *r = arg;

	for (unsigned i = 0; p && i < RIG_ALLOCS; i++) {
		if (r->given[i].p != p)
			continue;
		assert_int_equal(r->given[i].bytes, bytes);
		tn_put(&tn_alloc_system, p, bytes);
		r->given[i].p = NULL;
		return;
	}
	assert_null(p);
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

struct rig *rig_new_on(struct tn_io *io, const struct tn_clock *clock, const char *dir)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->io = io;
	r->clock = clock;
	r->log = (struct tn_log){rig_log, r, TN_LOG_INFO};
	r->alloc = (struct tn_alloc){.get = rig_get, .put = rig_put, .arg = r};
	r->dirs[0] = dir;
	r->space_id = (struct tn_key){{11, 22}};
	r->object_bytes[0] = 9000;
	r->object_bytes[1] = 4096;
	r->object_bytes[2] = 100;
	r->evict_removes = true;
	r->allocs_left = UINT32_MAX;
	r->refuse_above = UINT32_MAX;
	r->passes = TN_SLOT_NONE;
	r->opts = (struct tn_store_opts){
		.io = io,
		.alloc = &r->alloc,
		.clock = clock,
		.log = &r->log,
		.dirs = r->dirs,
		.ndirs = 1,
		.capacity_bytes = 2 << 20,
		.segment_bytes = 256 << 10,
		.log_bytes = 64 << 10,
		.max_slots = 512,
		.entropy = {1, 2},
		.cb = {rig_recovered, rig_describe, rig_evict, rig_health, r, .vacate = rig_vacate, .passes = rig_passes},
	};
	return r;
}

struct rig *rig_new(uint64_t seed)
{
	struct tn_simdisk_opts o = {.seed = seed};
	struct tn_simdisk *disk;
	struct rig *r;

	assert_int_equal(tn_simdisk_create(&o, &disk), 0);
	r = rig_new_on(tn_simdisk_io(disk), tn_simdisk_clock(disk), "a");
	r->disk = disk;
	return r;
}

void rig_abandon(struct rig *r)
{
	r->store = NULL;
	memset(r->block, 0, sizeof(r->block));
	for (unsigned i = 0; i < RIG_ALLOCS; i++)
		if (r->given[i].p)
			rig_put(r, r->given[i].p, r->given[i].bytes);
}

void rig_free(struct rig *r)
{
	rig_close(r);
	for (unsigned i = 0; i < RIG_ALLOCS; i++)
		assert_null(r->given[i].p);
	tn_simdisk_destroy(r->disk);
	free(r);
}

int rig_open(struct rig *r)
{
	int rc;

	memset(r->block, 0, sizeof(r->block));
	r->recovered = 0;
	if (r->disk)
		r->opts.boot[0] = tn_simdisk_boot(r->disk);
	rc = tn_store_open(&r->opts, &r->store);
	if (rc)
		return rc;
	rig_grown(r);
	assert_int_equal(tn_store_space(r->store, &r->space_id, &r->space), 0);
	return tn_store_class(r->store, RIG_OBJECTS, r->object_bytes, &r->cls);
}

int rig_close(struct rig *r)
{
	int rc = tn_store_close(r->store);

	r->store = NULL;
	return rc;
}

void rig_crash(struct rig *r, enum tn_simdisk_crash mode, uint64_t seed)
{
	tn_simdisk_crash(r->disk, mode, seed);
	rig_abandon(r);
	if (rig_open(r))
		fail_msg("does not open: %s", tn_error_last()->text);
}

/* ---- transfers -------------------------------------------------------------------------------------------------- */

static void rig_done(struct tn_io_req *req)
{
	*(bool *)req->owner = true;
}

static void rig_poll(struct rig *r, uint64_t timeout_ns)
{
	struct tn_io_req *done[16];
	unsigned n = tn_io_poll(r->io, done, 16, timeout_ns);

	for (unsigned i = 0; i < n; i++)
		if (!r->store || !tn_store_complete(r->store, done[i]))
			done[i]->done(done[i]);
}

bool rig_grown(struct rig *r)
{
	bool any = false;

	for (uint32_t i = 0; i < r->store->ndevices; i++)
		for (; r->store->dev[i].alloc.req.busy; any = true)
			rig_poll(r, 1000000000);
	return any;
}

uint32_t rig_reserve(struct rig *r, uint32_t cls, uint32_t n, tn_slot *slots)
{
	uint32_t got = tn_store_reserve(r->store, cls, n, slots);

	while (got < n && rig_grown(r))
		got += tn_store_reserve(r->store, cls, n - got, slots + got);
	return got;
}

int rig_io(struct rig *r, enum tn_io_op op, uint32_t file, uint64_t offset, void *buf, uint32_t len)
{
	bool ended = false;
	struct iovec iov = {buf, len};
	struct tn_io_req req = {.op = (uint8_t)op,
				.file = file,
				.offset = offset,
				.length = len,
				.iov = &iov,
				.iov_count = op == TN_IO_SYNC ? 0 : 1,
				.done = rig_done,
				.owner = &ended};
	struct tn_io_req *p = &req;

	while (tn_io_submit(r->io, &p, 1) == 0)
		rig_poll(r, 1000000);
	while (!ended)
		rig_poll(r, 1000000000);
	return req.status;
}

static void rig_flushed(void *arg, int status)
{
	*(int *)arg = status;
}

int rig_flush(struct rig *r)
{
	int status = 1;

	tn_store_flush(r->store, rig_flushed, &status);
	while (status == 1) {
		tn_store_step(r->store, tn_now_ns(r->clock));
		if (status == 1)
			rig_poll(r, 1000000);
	}
	return status;
}

void rig_step(struct rig *r, unsigned rounds)
{
	for (unsigned i = 0; i < rounds; i++) {
		tn_store_step(r->store, tn_now_ns(r->clock));
		rig_poll(r, 10000000);
	}
}

/* ---- blocks ------------------------------------------------------------------------------------------------------- */

struct tn_key rig_key(uint64_t n)
{
	return (struct tn_key){{n * 0x9e3779b97f4a7c15ull + 1, n}};
}

static void rig_content(const struct tn_key *key, uint64_t sequence, uint32_t object, unsigned char *buf, uint32_t len)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, key->word[0] ^ sequence << 20 ^ object);
	for (uint32_t i = 0; i < len; i += 8) {
		uint64_t w = tn_rng_next(&rng);

		memcpy(buf + i, &w, len - i < 8 ? len - i : 8);
	}
}

struct rig_block *rig_find(struct rig *r, uint64_t n)
{
	struct tn_key key = rig_key(n);

	for (uint32_t i = 0; i < RIG_BLOCKS_MAX; i++)
		if (r->block[i].live && tn_key_eq(&r->block[i].entry.key, &key))
			return &r->block[i];
	return NULL;
}

uint32_t rig_live(struct rig *r)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < RIG_BLOCKS_MAX; i++)
		n += r->block[i].live;
	return n;
}

/* Where object i lies within a slot: objects begin at multiples of 4 KiB (docs/format.md). */
static uint64_t object_offset(const uint32_t *bytes, uint32_t i)
{
	uint64_t at = 0;

	for (uint32_t k = 0; k < i; k++)
		at += tn_round_up(bytes[k], TN_PLACE_ALIGN);
	return at;
}

static int write_block(struct rig *r, tn_slot slot, const struct tn_index_entry *e, uint32_t cls, const uint32_t *bytes,
		       uint32_t nobjects)
{
	struct tn_store_place place;
	uint64_t *sums = calloc(nobjects, sizeof(*sums)), uuid[2], total = object_offset(bytes, nobjects);
	unsigned char *buf = aligned_alloc(4096, total), *page = aligned_alloc(4096, tn_store_header_size(nobjects));
	struct tn_store_header h = {.entry = *e, .nobjects = nobjects, .object_bytes = bytes, .object_checksum = sums};
	int rc;

	tn_store_locate(r->store, slot, &place);
	assert_true(total <= place.slot_bytes);
	memset(buf, 0, total);
	for (uint32_t i = 0; i < nobjects; i++) {
		unsigned char *at = buf + object_offset(bytes, i);

		rig_content(&e->key, e->sequence, i, at, bytes[i]);
		sums[i] = tn_checksum(at, bytes[i]);
	}
	rc = rig_io(r, TN_IO_WRITE, place.file, place.data_offset, buf, (uint32_t)total);
	assert_int_equal(tn_store_space_info(r->store, e->space, &h.space_id, &h.space_epoch), 0);
	tn_store_uuid(r->store, slot, uuid);
	tn_store_header_encode(&h, uuid, slot, page);
	if (rc == 0)
		rc = rig_io(r, TN_IO_WRITE, place.file, place.header_offset, page, place.header_bytes);
	free(buf);
	free(page);
	free(sums);
	return rc;
}

int rig_save_in(struct rig *r, uint64_t n, uint32_t cls, const uint32_t *bytes, uint32_t nobjects)
{
	struct tn_index_entry e = {.key = rig_key(n), .space = r->space, .recency = (uint32_t)n, .flags = (uint8_t)n};
	uint32_t cookie = 0;
	tn_slot slot;

	if (rig_reserve(r, cls, 1, &slot) == 0)
		return -1;
	e.parent = rig_key(n + 1000000);
	e.sequence = tn_store_next_sequence(r->store);
	if (write_block(r, slot, &e, cls, bytes, nobjects)) {
		tn_store_unreserve(r->store, slot);
		return -1;
	}
	while (r->block[cookie].live)
		cookie++;
	r->block[cookie] = (struct rig_block){e, slot, true};
	tn_store_publish(r->store, slot, cookie, &e);
	return (int)cookie;
}

int rig_save(struct rig *r, uint64_t n)
{
	return rig_save_in(r, n, r->cls, r->object_bytes, RIG_OBJECTS);
}

void rig_remove(struct rig *r, uint64_t n)
{
	struct rig_block *b = rig_find(r, n);

	assert_non_null(b);
	b->live = false;
	tn_store_remove(r->store, b->slot);
}

int rig_read(struct rig *r, uint64_t n)
{
	struct rig_block *b = rig_find(r, n);
	struct tn_store_place place;
	struct tn_store_header h;
	unsigned char *page, *data, *want;
	uint64_t uuid[2], at = 0;
	int miss;

	assert_non_null(b);
	tn_store_locate(r->store, b->slot, &place);
	page = aligned_alloc(4096, place.header_bytes);
	data = aligned_alloc(4096, place.slot_bytes);
	want = malloc(place.slot_bytes);
	tn_store_uuid(r->store, b->slot, uuid);
	miss = rig_io(r, TN_IO_READ, place.file, place.header_offset, page, place.header_bytes) ||
	       tn_store_header_decode(page, place.header_bytes, uuid, b->slot, &h) ||
	       !tn_key_eq(&h.entry.key, &b->entry.key) || h.entry.sequence != b->entry.sequence ||
	       rig_io(r, TN_IO_READ, place.file, place.data_offset, data, (uint32_t)place.slot_bytes);
	for (uint32_t i = 0; !miss && i < h.nobjects; i++) {
		if (tn_checksum(data + at, h.object_bytes[i]) != h.object_checksum[i]) {
			miss = 1;
			break;
		}
		rig_content(&b->entry.key, b->entry.sequence, i, want, h.object_bytes[i]);
		assert_memory_equal(data + at, want, h.object_bytes[i]);
		at += tn_round_up(h.object_bytes[i], TN_PLACE_ALIGN);
	}
	free(page);
	free(data);
	free(want);
	return miss ? 1 : 0;
}
