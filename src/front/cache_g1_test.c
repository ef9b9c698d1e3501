/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device tier: blocks that lie in memory of a soft device, which kills whoever touches it (device/soft_rig.h), and come to pages there by copies
 * within it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cache_rig.h"
#include "core/budget.h"
#include "core/core.h"
#include "device/soft_rig.h"
#include "ioengine/faulty_rig.h"
#include "tier/slab.h"

#define HOST (64u << 20)
#define DISK (64u << 20)
#define BLOCKS 12u
#define NPAGES 256u
#define LOADS 40u /* that stand */

struct form {
	uint32_t head_dim; /* 64: a block of 4 layers is one chunk; 512: 4 chunks */
	uint64_t disk_bytes, host_bytes;
};

struct world {
	struct rig r;
	struct tn_soft_device *device;
	struct tn_soft_device_stats before;
	uint32_t device_blocks; /* of the device tier; 0: all that a test has */
	uint32_t executors;
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
	w->r.o.cache.executors = w->executors;
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

/* A space with a pool in host memory; seed 0: the same space. */
static void open_host(struct world *w, uint64_t seed, struct rig_space *host)
{
	w->r.o.device = false;
	w->r.o.soft_device = NULL;
	assert_int_equal(rig_space_open(&w->r, &(struct rig_space_opts){.seed = seed}, host), 0);
	w->r.o.device = true;
	w->r.o.soft_device = w->device;
}

static void close_host(struct world *w, struct rig_space *host)
{
	w->r.o.device = false;
	rig_space_close(host);
	w->r.o.device = true;
}

/* Saved from host memory: nothing comes to the device tier. */
static void save_from_host(struct world *w, uint64_t first, uint32_t n)
{
	struct tn_save_result saved;
	struct rig_space host;

	open_host(w, 0, &host);
	saved = rig_save(&host, first, n, 0);
	assert_int_equal(saved.stored + saved.host_only, n);
	close_host(w, &host);
}

static void blocks_loaded_from_below_are_loaded_within_the_device_next_time(void **state)
{
	struct world w = {0};

	up(&w, state);
	save_from_host(&w, 1, BLOCKS);
	assert_int_equal(device_blocks(&w), 0);
	count(&w);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(went(&w, TN_DEVICE_FROM_HOST), BLOCKS * block_bytes(&w));
	assert_int_equal(device_blocks(&w), BLOCKS);
	loads_within(&w, 1, BLOCKS);
	loads_within(&w, 1, BLOCKS);
	down(&w);
}

/* Bytes are verified on their way from the disk, or where they landed; what was damaged does not come in. */
static void what_fails_its_check_does_not_come_in(void **state)
{
	static const struct tn_fault damage = {.kind = TN_FAULT_CORRUPT, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 20};
	const struct tn_io_faulty_opts faults = {.seed = tn_test_seed()};
	struct world w = {0};
	uint64_t there;

	up(&w, state);
	assert_int_equal(rig_close(&w.r), 0);
	w.r.o.faulty = true;
	w.r.o.faults = &faults;
	rig_must_open(&w.r);
	for (uint64_t b = 1; b <= 2 * BLOCKS; b++)
		save_from_host(&w, b, 1);
	rig_fault(&w.r, &damage, 1);
	for (uint64_t b = 1; b <= 2 * BLOCKS; b++)
		rig_load(w.r.s, b, 1);
	rig_calm(&w.r);
	there = device_blocks(&w);
	assert_true(there < 2 * BLOCKS && rig_stats(&w.r).corrupt_objects > 0);
	poison(&w);
	count(&w);
	for (uint64_t b = 1; b <= 2 * BLOCKS; b++)
		rig_load(w.r.s, b, 1); /* checks the bytes */
	assert_int_equal(went(&w, TN_DEVICE_WITHIN) / block_bytes(&w), rig_stats(&w.r).tier_blocks[TN_TIER_DEVICE]);
	down(&w);
}

/* Pages of one block at the ends of the load are not asked for. */
static void part_of_the_pages_comes_from_the_device_tier(void **state)
{
	struct world w = {0};
	struct tn_load_opts o;
	struct tn_load *load;
	uint32_t first_page = NPAGES / 2, skip = RIG_PAGES + 1, end = 3 * RIG_PAGES - 1;

	up(&w, state);
	rig_save(w.r.s, 1, BLOCKS, 0);
	poison(&w);
	tn_load_opts_init(&o);
	o.first_page = skip;
	o.npages = end - skip;
	count(&w);
	load = rig_load_begin(w.r.s, 1, BLOCKS, first_page, &o);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(rig_load_wait(w.r.s, load, l), BLOCKS);
	rig_load_end(w.r.s, load);
	for (uint32_t p = 0; p < BLOCKS * RIG_PAGES; p++)
		for (uint32_t l = 0; l < RIG_LAYERS && p >= skip && p < end; l++)
			assert_true(rig_holds(w.r.s, 1 + p / RIG_PAGES, l, p % RIG_PAGES, first_page + p));
	assert_true(rig_poisoned(w.r.s, first_page + skip - 1) && rig_poisoned(w.r.s, first_page + end));
	assert_int_equal(went(&w, TN_DEVICE_WITHIN), block_bytes(&w) / RIG_PAGES * (end - skip));
	assert_int_equal(went(&w, TN_DEVICE_FROM_HOST), 0);
	down(&w);
}

/* ---- leaving ----------------------------------------------------------------------------------------------------- */

static void a_scan_does_not_drive_out_what_is_loaded_often(void **state)
{
	struct world w = {.device_blocks = 20};
	uint64_t within;

	up(&w, state);
	save_from_host(&w, 1, 8);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(rig_load(w.r.s, 1, 8), 8);
	for (uint64_t first = 100; first < 100 + 8 * 32; first += 32) { /* 8 prompts that come once */
		save_from_host(&w, first, 32);
		assert_int_equal(rig_load(w.r.s, first, 32), 32);
	}
	assert_true(device_blocks(&w) <= 20 && rig_stats(&w.r).evicted_blocks[TN_TIER_DEVICE] > 0);
	count(&w);
	assert_int_equal(rig_load(w.r.s, 1, 8), 8);
	within = went(&w, TN_DEVICE_WITHIN);
	assert_true(within >= 6 * block_bytes(&w));
	down(&w);
}

/* Host memory holds fewer blocks than the device tier: the others lie there alone, and come from there to pages elsewhere, too. */
static void a_block_that_lies_there_alone_is_found_and_loaded_to_any_pages(void **state)
{
	struct world w = {0};
	struct rig_space host;

	up(&w, state);
	rig_close(&w.r);
	w.r.o.cache.host_bytes = 3u << 20; /* not all of 8 blocks */
	rig_must_open(&w.r);
	for (uint64_t b = 1; b <= 8; b++)
		assert_int_equal(rig_save(w.r.s, b, 1, 0).host_only, 1);
	assert_true(rig_count_host(w.r.s, 1, 8) < 8);
	assert_int_equal(rig_match(w.r.s, 1, 8), 8);
	loads_within(&w, 1, 8);
	open_host(&w, 0, &host);
	assert_int_equal(rig_load(&host, 1, 8), 8);
	close_host(&w, &host);
	down(&w);
}

static void a_dropped_block_leaves_when_nobody_holds_it(void **state)
{
	struct world w = {0};
	struct tn_key keys[BLOCKS];
	uint64_t pin;

	up(&w, state);
	rig_save(w.r.s, 1, BLOCKS, 0);
	rig_keys(1, BLOCKS, keys);
	pin = rig_pin(w.r.s, 1, 4);
	assert_int_equal(tn_drop(w.r.s->space, keys, BLOCKS), BLOCKS);
	assert_int_equal(rig_match(w.r.s, 1, BLOCKS), 0);
	rig_until(&w.r, device_blocks(&w) == 4);
	rig_unpin(w.r.s, pin);
	rig_until(&w.r, device_blocks(&w) == 0);
	rig_save(w.r.s, 1, BLOCKS, 0);
	loads_within(&w, 1, BLOCKS);
	assert_int_equal(tn_space_drop(w.r.s->space, rig_deadline(&w.r)), 0);
	rig_until(&w.r, device_blocks(&w) == 0);
	assert_int_equal(rig_match(w.r.s, 1, 1), 0);
	down(&w);
}

static void nothing_of_it_is_there_after_the_cache_was_closed(void **state)
{
	struct world w = {0};

	up(&w, state);
	rig_save(w.r.s, 1, BLOCKS, 0);
	rig_reopen(&w.r);
	assert_int_equal(device_blocks(&w), 0);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), ((const struct form *)*state)->disk_bytes ? BLOCKS : 0);
	down(&w);
}

static int loads_move(struct tn_cache *cache, void *arg)
{
	(void)arg;
	return tn_loads_move(cache);
}

/* Such blocks wait for the device although their pages do not lie there: what host memory alone needs goes on, also if the device stands still. */
static void loads_of_it_to_host_memory_that_stand_keep_no_others_waiting(void **state)
{
	struct tn_load *load[LOADS];
	struct rig_space host, other;
	struct world w = {0};

	up(&w, state);
	rig_close(&w.r);
	w.r.o.cache.host_bytes = 8u << 20; /* not half of the blocks */
	w.r.o.cache.max_ops = 2 * LOADS;
	rig_must_open(&w.r);
	for (uint64_t b = 1; b <= LOADS; b++)
		assert_int_equal(rig_save(w.r.s, b, 1, 0).host_only, 1);
	open_host(&w, 0, &host);
	open_host(&w, 7, &other);
	tn_soft_device_hold(w.device, true);
	for (uint32_t i = 0; i < LOADS; i++)
		load[i] = rig_load_begin(&host, 1 + i, 1, i * RIG_PAGES, NULL);
	rig_until(&w.r, tn_soft_device_stats(w.device).under_way > 0);
	usleep(2 * TN_COPIER_STANDS_NS / 1000);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(rig_save(&other, 1000 * (i + 1), 1, 0).host_only, 1);
		assert_int_equal(rig_load(&other, 1000 * (i + 1), 1), 1);
	}
	assert_int_equal(tn_owner_call(w.r.cache, loads_move, NULL), false);
	tn_soft_device_hold(w.device, false);
	for (uint32_t i = 0; i < LOADS; i++) {
		assert_int_equal(rig_load_wait(&host, load[i], RIG_LAYERS - 1), 1);
		rig_load_end(&host, load[i]);
	}
	close_host(&w, &other);
	close_host(&w, &host);
	down(&w);
}

/* ---- copies that fail --------------------------------------------------------------------------------------------- */

/* Whether a load got each block from the device tier. A block counts there before its copy into the tier has ended. */
static bool load_comes_from_there(struct world *w)
{
	uint64_t before = rig_stats(&w->r).loaded_bytes[TN_TIER_DEVICE];

	return rig_load(w->r.s, 1, BLOCKS) == BLOCKS && rig_stats(&w->r).loaded_bytes[TN_TIER_DEVICE] == before + BLOCKS * block_bytes(w);
}

/* A block that leaves for a copy that failed comes in again once nobody holds it. */
static void comes_again(struct world *w)
{
	tn_soft_device_fail(w->device, TN_DEVICE_WITHIN, 0, 0);
	poison(w);
	rig_until(&w->r, load_comes_from_there(w));
	loads_within(w, 1, BLOCKS);
}

/* A save whose copies to the device tier fail is as good as another one. */
static void a_copy_to_the_tier_that_fails_costs_nobody_anything(void **state)
{
	struct world w = {0};
	struct tn_save_result saved;

	up(&w, state);
	tn_soft_device_fail(w.device, TN_DEVICE_WITHIN, 0, -EIO);
	saved = rig_save(w.r.s, 1, BLOCKS, 0);
	assert_int_equal(saved.stored + saved.host_only, BLOCKS);
	assert_true(device_blocks(&w) < BLOCKS);
	poison(&w);
	tn_soft_device_fail(w.device, TN_DEVICE_WITHIN, device_blocks(&w) ? 1 : 0, -EIO);
	rig_load(w.r.s, 1, BLOCKS);
	comes_again(&w);
	down(&w);
}

static void after_a_copy_from_the_tier_that_fails_the_block_comes_from_below(void **state)
{
	struct world w = {0};

	up(&w, state);
	rig_save(w.r.s, 1, BLOCKS, 0);
	assert_int_equal(device_blocks(&w), BLOCKS);
	poison(&w);
	tn_soft_device_fail(w.device, TN_DEVICE_WITHIN, 0, -EIO);
	assert_true(rig_load(w.r.s, 1, BLOCKS) < (int)BLOCKS);
	rig_until(&w.r, device_blocks(&w) < BLOCKS);
	assert_int_equal(rig_match(w.r.s, 1, BLOCKS), BLOCKS);
	comes_again(&w);
	down(&w);
}

/* ---- a lost device ------------------------------------------------------------------------------------------------- */

static char told[300]; /* by the log, of the lost device */

static void listen(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	if (level == TN_LOG_ERROR && strstr(text, "device tier"))
		snprintf(told, sizeof(told), "%s", text);
}

static void with_its_device_the_tier_is_gone_and_the_cache_lives_on(void **state)
{
	struct world w = {0};
	struct rig_space host;
	uint64_t pin;

	up(&w, state);
	rig_close(&w.r);
	w.r.o.cache.log = listen;
	rig_must_open(&w.r);
	told[0] = '\0';
	rig_save(w.r.s, 1, BLOCKS, 0);
	assert_int_equal(device_blocks(&w), BLOCKS);
	pin = rig_pin(w.r.s, 1, 4);
	tn_soft_device_lose(w.device);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), 0);
	rig_until(&w.r, device_blocks(&w) == 4); /* a lease keeps those */
	rig_unpin(w.r.s, pin);
	rig_until(&w.r, device_blocks(&w) == 0);
	open_host(&w, 0, &host);
	assert_int_equal(rig_load(&host, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_save(&host, 100, BLOCKS, 0).failed, 0);
	assert_int_equal(rig_load(&host, 100, BLOCKS), BLOCKS);
	close_host(&w, &host);
	assert_int_equal(device_blocks(&w), 0);
	down(&w);
	assert_non_null(strstr(told, "has lost device 0"));
}

/* ---- shapes and options ------------------------------------------------------------------------------------------- */

static void spaces_of_several_shapes_share_it(void **state)
{
	struct world w = {0};
	struct rig_space small, large;
	uint32_t dim = ((const struct form *)*state)->head_dim;

	up(&w, state);
	rig_open_second(&w.r, dim / 2, &small);
	rig_save(w.r.s, 1, BLOCKS, 0);
	rig_save(&small, 1, BLOCKS, 0);
	assert_int_equal(device_blocks(&w), 2 * BLOCKS);
	loads_within(&w, 1, BLOCKS);
	count(&w);
	assert_int_equal(rig_load(&small, 1, BLOCKS), BLOCKS);
	assert_int_equal(went(&w, TN_DEVICE_FROM_HOST), 0);
	assert_int_equal(went(&w, TN_DEVICE_WITHIN), BLOCKS * block_bytes(&w) / 2);
	rig_open_second(&w.r, dim * 2, &large); /* it is cut for smaller ones: these are loaded from below */
	if (((const struct form *)*state)->disk_bytes) {
		rig_save(&large, 1, 4, 0);
		assert_int_equal(rig_load(&large, 1, 4), 4);
	}
	assert_int_equal(device_blocks(&w), 2 * BLOCKS);
	rig_space_close(&large);
	rig_space_close(&small);
	down(&w);
}

static void a_quota_holds_there_too(void **state)
{
	struct world w = {0};
	struct rig_space second;
	struct tn_quota q;

	up(&w, state);
	tn_quota_init(&q);
	q.bytes[TN_TIER_DEVICE] = 5 * block_bytes(&w);
	assert_int_equal(rig_space_open(&w.r, &(struct rig_space_opts){.seed = 7, .quota = &q}, &second), 0);
	rig_save(&second, 1, BLOCKS, 0);
	assert_int_equal(rig_load(&second, 1, BLOCKS), BLOCKS);
	assert_true(device_blocks(&w) > 0 && device_blocks(&w) <= 5);
	rig_space_close(&second);
	down(&w);
}

static void refused(struct world *w, int error, const char *why)
{
	assert_int_equal(rig_open(&w->r), error);
	assert_non_null(strstr(tn_error_last()->text, why));
}

static void bad_options_are_refused_with_what_to_do(void **state)
{
	struct world w = {0};
	struct tn_device_tier good;
	struct tn_device_driver_ops ops;
	struct tn_device_driver without;

	up(&w, state);
	assert_int_equal(rig_close(&w.r), 0);
	good = w.r.o.cache.device_tier;
	w.r.o.cache.device_tier.driver = NULL;
	refused(&w, -ENOTSUP, "there is no driver");
	w.r.o.cache.device_tier = good;
	w.r.o.cache.device_tier.device = 77;
	refused(&w, -EINVAL, "on device 77");
	w.r.o.cache.device_tier = good;
	w.r.o.cache.device_tier.bytes = UINT64_MAX;
	refused(&w, -EINVAL, "device_tier.bytes");
	ops = *good.driver->ops;
	ops.allocate = NULL;
	without = (struct tn_device_driver){&ops, good.driver->arg};
	w.r.o.cache.device_tier = good;
	w.r.o.cache.device_tier.driver = &without;
	refused(&w, -ENOTSUP, "allocates no memory");
	w.r.o.cache.device_tier = good;
	w.r.o.cache.ndirs = 0;
	w.r.o.cache.host_bytes = 0;
	refused(&w, -EINVAL, "could hold nothing");
	down(&w);
}

/* ---- mixtures ------------------------------------------------------------------------------------------------------ */

#define LANES 4u
#define LANE_BLOCKS (NPAGES / RIG_PAGES / LANES)
#define IDS 48u

/* A load or a save under way, in pages that are its own. */
struct lane {
	struct rig_space *space; /* NULL: none */
	struct tn_load *load;
	struct tn_save *save;
	uint64_t first;
	uint32_t n, page;
};

/* On the owner thread, with nothing under way: each slot is a block's that lies there, or free. */
static int check_slots(struct tn_cache *cache, void *arg)
{
	const struct tn_tier_base *t = cache->row.tier[TN_TIER_DEVICE];
	uint64_t used = 0, coming = 0;

	for (uint32_t slot = 0; slot < t->ops->capacity(t); slot++) {
		tn_block b = t->block_of[slot];

		if (b == TN_BLOCK_NONE)
			continue;
		used++;
		assert_int_equal(tn_block_slot(cache->registry, b, TN_TIER_DEVICE), slot);
		assert_int_not_equal(tn_tier_residency(t, b), TN_ABSENT);
	}
	for (uint32_t i = 0; i < TN_SPACES_MAX; i++)
		coming += t->space_coming[i];
	assert_int_equal(used, t->blocks);
	assert_int_equal(t->entries, t->blocks);
	assert_int_equal(coming, 0);
	*(uint64_t *)arg = tn_slab_at(t)->used;
	return 0;
}

static void check_quiet(struct world *w)
{
	uint64_t used;

	assert_int_equal(tn_owner_call(w->r.cache, check_slots, &used), 0);
	assert_int_equal(used, device_blocks(w));
}

static void lane_ends(struct lane *l)
{
	int good = 0;

	if (!l->space)
		return;
	if (l->load) {
		for (uint32_t k = 0; k < RIG_LAYERS; k++)
			good = rig_load_wait(l->space, l->load, k);
		rig_load_end(l->space, l->load);
		rig_check_blocks(l->space, l->first, (uint32_t)good, l->page);
	} else {
		rig_save_give(l->space, l->save);
		rig_save_end(l->space, l->save);
	}
	*l = (struct lane){NULL};
}

static void lane_begins(struct lane *l, uint32_t number, struct rig_space *space, struct tn_rng *rng)
{
	*l = (struct lane){.space = space, .page = number * LANE_BLOCKS * RIG_PAGES};
	l->n = 1 + tn_rng_below(rng, LANE_BLOCKS);
	l->first = 1 + tn_rng_below(rng, tn_rng_below(rng, 2) ? 4 : IDS);
	if (tn_rng_below(rng, 3))
		l->load = rig_load_begin(space, l->first, l->n, l->page, NULL);
	else
		l->save = rig_save_begin(space, l->first, l->n, l->page, NULL);
}

/* What happens besides. */
static void disturb(struct world *w, struct tn_rng *rng, uint64_t *pin)
{
	uint64_t id = 1 + tn_rng_below(rng, IDS);
	struct tn_key key = rig_key(id);

	switch (tn_rng_below(rng, 5)) {
	case 0:
		if (tn_drop(w->r.s->space, &key, 1) == 1)
			assert_int_equal(rig_match(w->r.s, id, 1), 0);
		break;
	case 1:
		tn_soft_device_fail(w->device, tn_rng_below(rng, 3), tn_rng_below(rng, 8), tn_rng_below(rng, 2) ? -EIO : 0);
		break;
	case 2:
		if (*pin)
			rig_unpin(w->r.s, *pin);
		*pin = rig_match(w->r.s, id, 1) == 1 ? rig_pin(w->r.s, id, 1) : 0;
		break;
	default:
		break;
	}
}

static void any_mixture_loads_right_bytes_and_loses_no_slot(void **state)
{
	uint32_t rounds = tn_test_cases(300), lost_at;
	struct world w = {.device_blocks = 14, .executors = ((const struct form *)*state)->host_bytes ? 2 : 0};
	struct rig_space host;
	struct lane lane[LANES] = {{NULL}};
	uint64_t pin = 0;
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	up(&w, state);
	open_host(&w, 0, &host);
	lost_at = rounds * 3 / 4 + tn_rng_below(&rng, rounds / 8);
	for (uint32_t i = 0; i < rounds; i++) {
		uint32_t k = tn_rng_below(&rng, LANES);

		lane_ends(&lane[k]);
		/* Each space has its pages. */
		lane_begins(&lane[k], k, tn_rng_below(&rng, 4) ? w.r.s : &host, &rng);
		disturb(&w, &rng, &pin);
		if (i == lost_at)
			tn_soft_device_lose(w.device);
		if (i % 50 == 0) {
			for (k = 0; k < LANES; k++)
				lane_ends(&lane[k]);
			check_quiet(&w);
		}
	}
	for (uint32_t k = 0; k < LANES; k++)
		lane_ends(&lane[k]);
	if (pin)
		rig_unpin(w.r.s, pin);
	rig_until(&w.r, device_blocks(&w) == 0);
	check_quiet(&w);
	rig_until(&w.r, rig_save(&host, 1, LANE_BLOCKS, 0).failed == 0); /* an offload may hold a block that was dropped for a while */
	assert_int_equal(rig_load(&host, 1, LANE_BLOCKS), LANE_BLOCKS);
	close_host(&w, &host);
	down(&w);
}

int main(int argc, char **argv)
{
	static struct form form[] = {{64, DISK, 0}, {512, 0, HOST}, {512, DISK, HOST}};
#define ONE(f, n) {#f, (f), NULL, NULL, &form[n]}
#define TWO(f) {#f " (disk)", (f), NULL, NULL, &form[0]}, {#f " (both)", (f), NULL, NULL, &form[2]}
#define ALL(f) {#f " (disk)", (f), NULL, NULL, &form[0]}, {#f " (host)", (f), NULL, NULL, &form[1]}, {#f " (both)", (f), NULL, NULL, &form[2]}
	const struct CMUnitTest tests[] = {
		ALL(saved_blocks_are_loaded_within_the_device),
		ALL(blocks_loaded_from_below_are_loaded_within_the_device_next_time),
		ONE(what_fails_its_check_does_not_come_in, 0),
		ONE(part_of_the_pages_comes_from_the_device_tier, 2),
		ONE(a_scan_does_not_drive_out_what_is_loaded_often, 0),
		ONE(a_block_that_lies_there_alone_is_found_and_loaded_to_any_pages, 1),
		ONE(loads_of_it_to_host_memory_that_stand_keep_no_others_waiting, 1),
		ONE(a_dropped_block_leaves_when_nobody_holds_it, 1),
		ONE(nothing_of_it_is_there_after_the_cache_was_closed, 0),
		TWO(a_copy_to_the_tier_that_fails_costs_nobody_anything),
		TWO(after_a_copy_from_the_tier_that_fails_the_block_comes_from_below),
		ONE(with_its_device_the_tier_is_gone_and_the_cache_lives_on, 2),
		TWO(spaces_of_several_shapes_share_it),
		ONE(a_quota_holds_there_too, 1),
		TWO(any_mixture_loads_right_bytes_and_loses_no_slot),
		ONE(bad_options_are_refused_with_what_to_do, 0),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
