/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of opening: a small store on the simulated disk with some bytes of its structures changed, and, if
 * the input says so, sealed again so that the change is believed. Opening may fail with an error; it must not
 * crash, and a store that opens must be usable and close.
 *
 * Input: 6 bytes per change: structure, index, offset (2), value, flags (1: seal again; 2: three more zero bytes).
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "simdisk.h"
#include "store/store_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BLOCKS 12u
#define CHANGES 16u
#define PATH "f/tenuto.store"

static struct tn_index_entry entries[64];
static uint32_t known;
static struct tn_simdisk *golden;
static struct tn_disk_super super;

static uint32_t recovered(void *arg, tn_slot slot, const struct tn_index_entry *e)
{
	if (known == 64)
		return UINT32_MAX;
	entries[known] = *e;
	return known++;
}

static void describe(void *arg, tn_slot slot, uint32_t cookie, struct tn_index_entry *e)
{
	*e = entries[cookie];
}

static int open_on(struct tn_simdisk *disk, struct tn_store **s)
{
	static const char *const dirs[1] = {"f"};
	struct tn_store_opts o = {.io = tn_simdisk_io(disk),
				  .alloc = &tn_alloc_system,
				  .clock = tn_simdisk_clock(disk),
				  .dirs = dirs,
				  .ndirs = 1,
				  .capacity_bytes = 512 << 10,
				  .segment_bytes = 128 << 10,
				  .log_bytes = 64 << 10,
				  .max_slots = 100,
				  .entropy = {1, 2},
				  .cb = {.recovered = recovered, .describe = describe}};

	known = 0;
	return tn_store_open(&o, s);
}

static void save(struct tn_store *s, uint32_t n)
{
	const uint64_t sum = 1;
	const uint32_t bytes = 4096;
	struct tn_store_header h = {.nobjects = 1, .object_bytes = &bytes, .object_checksum = &sum};
	struct tn_key id = {{3, 4}};
	struct tn_store_place place;
	unsigned char *page = aligned_alloc(4096, 4096);
	uint64_t uuid[2];
	uint16_t space;
	uint32_t cls;
	tn_slot slot;

	while (s->dev[0].alloc.req.busy)
		tn_store_poll(s, 1000000000);
	if (known < 64 && tn_store_space(s, &id, &space) == 0 && tn_store_class(s, 1, &bytes, &cls) == 0 &&
	    tn_store_reserve(s, cls, 1, &slot) == 1) {
		h.entry = (struct tn_index_entry){.key = {{n, n}}, .space = space, .sequence = tn_store_next_sequence(s)};
		h.space_id = id;
		h.space_epoch = 1;
		tn_store_locate(s, slot, &place);
		tn_store_uuid(s, slot, uuid);
		tn_store_header_encode(&h, uuid, slot, page);
		assert(tn_store_sync_io(&s->dev[place.device], TN_IO_WRITE, place.header_offset, page, 4096) == 0);
		entries[known] = h.entry;
		tn_store_publish(s, slot, known++, &h.entry);
		assert(tn_store_flush_wait(s) == 0);
	}
	free(page);
}

/* Makes blocks in the checkpoint and in the log; the owner is killed. */
static void make_golden(void)
{
	struct tn_simdisk_opts o = {.seed = 1};
	static struct tn_store *s; /* never closed: its owner was killed */

	assert(tn_simdisk_create(&o, &golden) == 0 && open_on(golden, &s) == 0);
	for (uint32_t n = 0; n < BLOCKS; n++) {
		if (n == BLOCKS / 2) {
			assert(tn_store_close(s) == 0);
			assert(open_on(golden, &s) == 0);
		}
		save(s, 100 + n);
	}
	super = s->dev[0].super;
	assert(tn_store_flush_wait(s) == 0);
	tn_simdisk_crash(golden, TN_SIMDISK_DROP, 1);
}

struct place {
	uint64_t offset;
	uint32_t bytes, magic;
};

static struct place place_of(unsigned what, unsigned i)
{
	uint64_t region = super.checkpoint_offset[i & 1], segment = super.segments_offset + i % 4 * super.segment_bytes;

	switch (what % 7) {
	case 0:
		return (struct place){TN_DISK_SUPER_OFFSET(i & 1), TN_DISK_PAGE, TN_DISK_MAGIC_SUPER};
	case 1:
		return (struct place){TN_DISK_SPACES_OFFSET(i & 1), sizeof(struct tn_disk_spaces), TN_DISK_MAGIC_SPACES};
	case 2:
		return (struct place){super.log_offset + i % 16 * TN_DISK_PAGE, TN_DISK_PAGE, TN_DISK_MAGIC_LOG};
	case 3:
		return (struct place){region, sizeof(struct tn_disk_root), TN_DISK_MAGIC_ROOT};
	case 4:
		return (struct place){region + sizeof(struct tn_disk_root) + i / 2 % 5 * TN_DISK_PAGE, TN_DISK_PAGE,
				      TN_DISK_MAGIC_PAGE};
	case 5:
		return (struct place){segment, TN_DISK_PAGE, TN_DISK_MAGIC_SEGMENT};
	default:
		return (struct place){segment + TN_DISK_PAGE * (1 + i / 4 % 13), TN_DISK_PAGE, TN_DISK_MAGIC_BLOCK};
	}
}

static void change(struct tn_simdisk *disk, const uint8_t *op)
{
	static unsigned char buf[sizeof(struct tn_disk_spaces)] __attribute__((aligned(8)));
	struct place p = place_of(op[0], op[1]);
	uint32_t at = ((uint32_t)op[2] | (uint32_t)op[3] << 8) % p.bytes;

	if (tn_simdisk_peek(disk, PATH, p.offset, buf, p.bytes))
		return;
	buf[at] = op[4];
	if (op[5] & 2)
		memset(buf + at, 0, p.bytes - at < 4 ? p.bytes - at : 4);
	if (op[5] & 1)
		tn_disk_seal((struct tn_disk_head *)(void *)buf, p.magic, p.bytes);
	assert(tn_simdisk_poke(disk, PATH, p.offset, buf, p.bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tn_simdisk *disk;
	struct tn_store *s;

	if (!golden)
		make_golden();
	assert(tn_simdisk_clone(golden, 2, &disk) == 0);
	for (size_t i = 0; i + 6 <= size && i < CHANGES * 6; i += 6)
		change(disk, data + i);
	if (open_on(disk, &s) == 0) {
		save(s, 1);
		save(s, 2);
		assert(tn_store_close(s) == 0);
		assert(open_on(disk, &s) == 0);
		assert(tn_store_close(s) == 0);
	}
	tn_simdisk_destroy(disk);
	return 0;
}
