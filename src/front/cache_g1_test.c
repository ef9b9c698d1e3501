/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device tier: blocks that lie in memory of a soft device, which kills whoever touches it (device/soft_rig.h), and come to pages there by copies
 * within it.
 */
#include <errno.h>
#include <string.h>

#include "cache_rig.h"
#include "core/core.h"
#include "device/soft_rig.h"

#define HOST (64u << 20)
#define DISK (64u << 20)
#define BLOCKS 12u
#define NPAGES 256u

struct form {
	uint32_t head_dim; /* 64: a block of 4 layers is one chunk; 512: 4 chunks */
	uint64_t disk_bytes, host_bytes;
};

struct world {
	struct rig r;
	struct tn_soft_device *device;
	struct tn_soft_device_stats before;
	uint32_t device_blocks; /* of the device tier; 0: all that a test has */
};

static uint64_t block_bytes(const struct world *w)
{
	const struct tn_geometry g = rig_geometry(&w->r);

	return tn_geometry_block_bytes(&g);
}

static void up(struct world *w, void **state)
{
	const struct tn_soft_device_opts o = {.late_ns = 20 * RIG_US, .seed = tn_test_seed()};
	const struct form *form = *state;

	assert_int_equal(tn_soft_device_create(&o, &w->device), 0);
	rig_init(&w->r, form->disk_bytes, form->host_bytes, form->head_dim);
	w->r.o.attached = false;
	w->r.o.npages = NPAGES;
	w->r.o.device = true;
	w->r.o.soft_device = w->device;
	w->r.o.cache.device_tier.driver = tn_soft_device_driver(w->device);
	w->r.o.cache.device_tier.bytes = (w->device_blocks ? w->device_blocks : 4 * BLOCKS) * block_bytes(w);
	rig_must_open(&w->r);
}

static void down(struct world *w)
{
	rig_tear_down(&w->r);
	tn_soft_device_destroy(w->device); /* it counts what is allocated, registered, pinned and under way */
}

static void poison(struct world *w)
{
	for (uint32_t p = 0; p < NPAGES; p++)
		rig_poison(w->r.s, p);
}

static uint64_t device_blocks(struct world *w)
{
	return rig_stats(&w->r).tier_blocks[TN_TIER_DEVICE];
}

/* From here on. */
static void count(struct world *w)
{
	w->before = tn_soft_device_stats(w->device);
}

static uint64_t went(struct world *w, enum tn_device_way way)
{
	return tn_soft_device_stats(w->device).way_bytes[way] - w->before.way_bytes[way];
}

/* All of the blocks come from the device tier: no byte of them passes the host. */
static void loads_within(struct world *w, uint64_t first, uint32_t n)
{
	uint64_t loaded = rig_stats(&w->r).loaded_bytes[TN_TIER_DEVICE];

	poison(w);
	count(w);
	assert_int_equal(rig_load(w->r.s, first, n), n);
	assert_int_equal(went(w, TN_DEVICE_TO_HOST) + went(w, TN_DEVICE_FROM_HOST), 0);
	assert_int_equal(went(w, TN_DEVICE_WITHIN), n * block_bytes(w));
	assert_int_equal(rig_stats(&w->r).loaded_bytes[TN_TIER_DEVICE], loaded + n * block_bytes(w));
}

static void saved_blocks_are_loaded_within_the_device(void **state)
{
	struct world w = {0};
	struct tn_save_result saved;

	up(&w, state);
	saved = rig_save(w.r.s, 1, BLOCKS, 0);
	assert_int_equal(saved.stored + saved.host_only, BLOCKS);
	assert_int_equal(device_blocks(&w), BLOCKS);
	assert_int_equal(rig_stats(&w.r).promoted_device_blocks, BLOCKS);
	loads_within(&w, 1, BLOCKS);
	down(&w);
}

int main(int argc, char **argv)
{
	static struct form form[] = {{64, DISK, 0}, {512, 0, HOST}, {512, DISK, HOST}};
#define ALL(f) {#f " (disk)", (f), NULL, NULL, &form[0]}, {#f " (host)", (f), NULL, NULL, &form[1]}, {#f " (both)", (f), NULL, NULL, &form[2]}
	const struct CMUnitTest tests[] = {
		ALL(saved_blocks_are_loaded_within_the_device),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
