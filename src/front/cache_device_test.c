/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads and saves of pages on a soft device, whose memory kills whoever touches it (device/soft_rig.h): in a cache of the process, and in an attached
 * one, with all layers in one chunk, and with a chunk for each.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache_rig.h"
#include "core/core.h"
#include "device/soft_rig.h"
#include "enginepool.h"
#include "front/stage.h"

#define HOST (64u << 20)
#define DISK (64u << 20)
#define BLOCKS 12u
#define NPAGES 256u

struct form {
	bool attached;
	uint32_t head_dim, chunks; /* of 4 layers */
};

struct world {
	struct rig r;
	struct tn_soft_device *device;
	uint32_t layers;  /* 0: RIG_LAYERS */
	uint64_t copy_ns; /* that each call of the driver takes at least */
};

/* *state: the form. stage_blocks: session memory, 0: enough for all. */
static void up(struct world *w, void **state, uint64_t disk_bytes, uint64_t host_bytes, uint32_t stage_blocks)
{
	const struct tn_soft_device_opts o = {.late_ns = 100 * RIG_US, .copy_ns = w->copy_ns, .seed = tn_test_seed()};
	const struct form *form = *state;

	assert_int_equal(tn_soft_device_create(&o, &w->device), 0);
	rig_init(&w->r, disk_bytes, host_bytes, form->head_dim);
	w->r.o.attached = form->attached;
	w->r.o.layers = w->layers ? w->layers : RIG_LAYERS;
	w->r.o.npages = NPAGES;
	w->r.o.device = true;
	w->r.o.soft_device = w->device;
	w->r.o.stage_blocks = stage_blocks;
	rig_must_open(&w->r);
	assert_true((w->r.s->pool->stage != NULL) == w->r.o.attached);
	assert_true(w->layers || rig_core_space(w->r.s)->shape.chunks == form->chunks);
}

static void down(struct world *w)
{
	rig_tear_down(&w->r);
	tn_soft_device_destroy(w->device);
}

static void poison(struct world *w)
{
	for (uint32_t p = 0; p < NPAGES; p++)
		rig_poison(w->r.s, p);
}

/* Waits for all layers of a load: the good prefix. */
static int wait_for_all(struct world *w, struct tn_load *load)
{
	int good = 0;

	for (uint32_t l = 0; l < w->r.o.layers; l++)
		good = rig_load_wait(w->r.s, load, l);
	return good;
}

static uint64_t copied(struct world *w)
{
	return tn_soft_device_stats(w->device).copied_bytes;
}

/* Fills, saves, poisons and loads pages as the device sees them: a word that rose before the driver's copy would show other bytes. */
static void saves_and_loads(void **state, uint64_t disk_bytes, uint64_t host_bytes, uint32_t stage_blocks)
{
	struct tn_save_result saved;
	struct world w = {0};
	uint64_t bytes;

	up(&w, state, disk_bytes, host_bytes, stage_blocks);
	bytes = BLOCKS * tn_geometry_block_bytes(&w.r.s->g);
	saved = rig_save(w.r.s, 1, BLOCKS, 0);
	assert_int_equal(saved.stored + saved.host_only, BLOCKS);
	assert_int_equal(copied(&w), bytes);
	poison(&w);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(copied(&w), 2 * bytes);
	assert_int_equal(rig_stats(&w.r).staged_bytes, w.r.o.attached ? 2 * bytes : 0);
	down(&w);
}

static void blocks_go_from_device_memory_to_the_disk_and_back(void **state)
{
	saves_and_loads(state, DISK, 0, 0);
}

static void blocks_go_from_device_memory_to_host_memory_and_back(void **state)
{
	saves_and_loads(state, 0, HOST, 0);
}

static void what_session_memory_does_not_hold_goes_in_batches(void **state)
{
	saves_and_loads(state, DISK, HOST, 5);
}

/* ---- late streams -------------------------------------------------------------------------------------------------- */

static bool all_copies_begun(struct world *w, uint64_t copies)
{
	return tn_soft_device_stats(w->device).copies >= copies;
}

static void no_layer_is_ready_before_its_copy(void **state)
{
	struct world w = {0};
	struct tn_load *load;
	uint64_t before;

	up(&w, state, DISK, HOST, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	poison(&w);
	tn_soft_device_hold(w.device, true);
	before = tn_soft_device_stats(w.device).copies;
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	rig_until(&w.r, all_copies_begun(&w, before + rig_core_space(w.r.s)->shape.chunks)); /* none waits for another one's end */
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_load_poll(load, l), -EAGAIN);
	assert_int_equal(tn_load_end(load, tn_test_now() + 5 * RIG_MS, NULL), -EBUSY);
	tn_soft_device_hold(w.device, false);
	rig_load_end(w.r.s, load);
	down(&w);
}

/* A device whose streams stand still: loads and saves of other pages go on. */
static void a_late_stream_holds_nobody_else_up(void **state)
{
	struct world w = {0};
	struct rig_space other;
	struct tn_save *save;
	struct tn_load *load;

	up(&w, state, DISK, HOST, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	w.r.o.soft_device = NULL; /* that of the process */
	assert_int_equal(rig_space_open(&w.r, &(struct rig_space_opts){.seed = 7}, &other), 0);
	tn_soft_device_hold(w.device, true);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	save = rig_save_begin(w.r.s, 100, BLOCKS, NPAGES / 2, NULL);
	rig_save_give(w.r.s, save);
	assert_int_equal(rig_save(&other, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_load(&other, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_match(w.r.s, 100, BLOCKS), 0);
	tn_soft_device_hold(w.device, false);
	assert_int_equal(rig_save_end(w.r.s, save).stored, BLOCKS);
	assert_int_equal(wait_for_all(&w, load), BLOCKS);
	rig_load_end(w.r.s, load);
	rig_space_close(&other);
	w.r.o.soft_device = w.device;
	down(&w);
}

static void a_layer_is_copied_once_its_event_has_come(void **state)
{
	struct world w = {0};
	struct tn_event *event;
	struct tn_save *save;

	up(&w, state, DISK, 0, 0);
	assert_int_equal(tn_event_create(w.r.cache, &event), 0);
	save = rig_save_begin(w.r.s, 1, BLOCKS, 0, NULL);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, event, l + 1), 0);
	assert_int_equal(tn_save_commit(save), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++) {
		usleep(2000);
		assert_int_equal(copied(&w), l * BLOCKS * (tn_geometry_block_bytes(&w.r.s->g) / RIG_LAYERS));
		assert_int_equal(tn_event_raise(event, l + 1), 0);
		rig_until(&w.r, copied(&w) == (l + 1) * BLOCKS * (tn_geometry_block_bytes(&w.r.s->g) / RIG_LAYERS));
	}
	assert_int_equal(rig_save_end(w.r.s, save).stored, BLOCKS);
	tn_event_destroy(event);
	poison(&w);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	down(&w);
}

static void an_aborted_save_leaves_its_pages_when_no_copy_is_under_way(void **state)
{
	struct tn_save_result res = {.size = sizeof(res)};
	struct world w = {0};
	struct tn_save *save;

	up(&w, state, DISK, 0, 0);
	tn_soft_device_hold(w.device, true);
	save = rig_save_begin(w.r.s, 1, BLOCKS, 0, NULL);
	assert_int_equal(tn_save_layer(save, 0, NULL, 0), 0);
	rig_until(&w.r, all_copies_begun(&w, 1));
	assert_int_equal(tn_save_abort(save), 0);
	assert_int_equal(tn_save_end(save, tn_test_now() + 5 * RIG_MS, &res), -ETIMEDOUT);
	tn_soft_device_hold(w.device, false);
	assert_int_equal(rig_save_end(w.r.s, save).stored, 0);
	assert_int_equal(rig_match(w.r.s, 1, 1), 0);
	down(&w);
}

/* ---- streams of the engine --------------------------------------------------------------------------------------- */

/* A copy on the device of a layer's pages, from one place of the pool to another. */
static void within(struct world *w, void *stream, uint32_t layer, uint32_t from, uint32_t to)
{
	struct tn_device_piece piece[2];
	uint32_t pages = BLOCKS * RIG_PAGES, bytes;
	uint64_t event;

	for (uint32_t p = 0; p < 2; p++) {
		unsigned char *base = rig_plane(w->r.s, 0, 0, 0, &bytes);
		uint64_t source = (uint64_t)(rig_plane(w->r.s, layer, p, from, &bytes) - base);
		uint64_t target = (uint64_t)(rig_plane(w->r.s, layer, p, to, &bytes) - base);

		piece[p] = (struct tn_device_piece){.device = w->r.s->memory + target, .other = w->r.s->memory + source, .bytes = pages * bytes};
	}
	assert_int_equal(tn_soft_device_driver(w->device)->ops->copy(tn_soft_device_driver(w->device), stream, TN_DEVICE_WITHIN, piece, 2, &event), 0);
}

/* The engine's stream computes layer by layer, so to speak: waits for a layer's word, writes pages, raises the event of the save. No thread waits. */
static void a_stream_waits_for_layers_and_raises_the_events_of_saves(void **state)
{
	const struct tn_device_driver *driver;
	struct world w = {0};
	struct tn_event *event;
	struct tn_load *load;
	struct tn_save *save;
	void *stream;

	up(&w, state, DISK, HOST, 0);
	driver = tn_soft_device_driver(w.device);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	poison(&w);
	assert_int_equal(driver->ops->stream_create(driver, 0, &stream), 0);
	assert_int_equal(tn_event_create(w.r.cache, &event), 0);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	save = rig_save_begin(w.r.s, 500, BLOCKS, NPAGES / 2, NULL);
	for (uint32_t l = 0; l < RIG_LAYERS; l++) {
		const uint64_t *word;
		uint64_t value;

		assert_int_equal(tn_load_event(load, l, &word, &value), 0);
		assert_int_equal(driver->ops->word_wait(driver, stream, word, value), 0);
		within(&w, stream, l, 0, NPAGES / 2);
		assert_int_equal(driver->ops->word_write(driver, stream, tn_event_address(event), l + 1), 0);
		assert_int_equal(tn_save_layer(save, l, event, l + 1), 0);
	}
	assert_int_equal(wait_for_all(&w, load), BLOCKS);
	assert_int_equal(tn_save_commit(save), 0);
	rig_load_end(w.r.s, load);
	assert_int_equal(rig_save_end(w.r.s, save).stored, BLOCKS);
	driver->ops->stream_destroy(driver, stream);
	tn_event_destroy(event);
	poison(&w);
	load = rig_load_begin(w.r.s, 500, BLOCKS, 0, NULL);
	assert_int_equal(wait_for_all(&w, load), BLOCKS);
	rig_load_end(w.r.s, load);
	rig_check_blocks(w.r.s, 1, BLOCKS, 0);
	down(&w);
}

/* ---- standing copies ------------------------------------------------------------------------------------------------ */

/* All words of the load rise, although its copies stand. The good prefix. */
static uint32_t words_rise(struct world *w, struct tn_load *load)
{
	const uint64_t *word;
	uint64_t value;
	int good = -1;

	for (uint32_t l = 0; l < w->r.o.layers; l++) {
		assert_int_equal(tn_load_event(load, l, &word, &value), 0);
		good = tn_load_wait(load, l, tn_test_deadline());
		assert_true(good >= 0);
		assert_true(__atomic_load_n(word, __ATOMIC_ACQUIRE) >= value);
	}
	assert_true(tn_soft_device_stats(w->device).under_way > 0);
	return (uint32_t)good;
}

/* The pages of these blocks, and of no others, are busy until the device goes on; then the next load is whole. */
static void busy_until_let_go(struct world *w, struct tn_load *load, uint32_t first, uint32_t end)
{
	uint8_t busy[(BLOCKS + 7) / 8];

	assert_int_equal(tn_load_end(load, tn_test_now() + 20 * RIG_MS, busy), -EBUSY);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_int_equal(busy[i / 8] >> i % 8 & 1, i >= first && i < end);
	tn_soft_device_hold(w->device, false);
	rig_load_end(w->r.s, load);
	poison(w);
	assert_int_equal(rig_load(w->r.s, 1, BLOCKS), BLOCKS);
}

static void a_deadline_ends_the_waits_for_a_copy_that_stands(void **state)
{
	struct world w = {0};
	struct tn_load_opts o;
	struct tn_load *load;

	up(&w, state, DISK, HOST, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	tn_soft_device_hold(w.device, true);
	tn_load_opts_init(&o);
	o.deadline_ns = tn_test_now() + 300 * RIG_MS; /* a copy has to be under way by then, also under a sanitizer */
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, &o);
	rig_until(&w.r, tn_soft_device_stats(w.device).under_way > 0);
	assert_int_equal(words_rise(&w, load), 0);
	assert_true(tn_test_now() >= o.deadline_ns);
	busy_until_let_go(&w, load, 0, BLOCKS);
	down(&w);
}

static void a_cancel_ends_the_waits_for_a_copy_that_stands(void **state)
{
	struct world w = {0};
	struct tn_load *load;

	up(&w, state, DISK, HOST, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	tn_soft_device_hold(w.device, true);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	rig_until(&w.r, tn_soft_device_stats(w.device).under_way > 0);
	assert_int_equal(tn_load_cancel(load), 0);
	assert_int_equal(words_rise(&w, load), 0);
	busy_until_let_go(&w, load, 0, BLOCKS);
	down(&w);
}

/* 5 slots: batches of 3 blocks. Those that came before the device stood still are good, and no copy touches those after the batch under way. */
static void of_batches_the_one_under_a_standing_copy_alone_is_busy(void **state)
{
	struct world w = {.copy_ns = 5 * RIG_MS};
	struct tn_load *load;
	uint32_t good;

	up(&w, state, DISK, HOST, 5);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	rig_until(&w.r, copied(&w) > (BLOCKS + 3) * tn_geometry_block_bytes(&w.r.s->g));
	tn_soft_device_hold(w.device, true);
	rig_until(&w.r, tn_soft_device_stats(w.device).under_way > 0);
	usleep(20000); /* a copy that had begun is over */
	assert_int_equal(tn_load_cancel(load), 0);
	good = words_rise(&w, load);
	assert_true(good % 3 == 0 && good >= 3 && good < BLOCKS);
	rig_check_blocks(w.r.s, 1, good, 0);
	busy_until_let_go(&w, load, good, good + 3);
	down(&w);
}

/* More loads than a stream may have calls for: a driver may refuse more than TN_DEVICE_CALLS. Each piece is a call here. */
static void a_stream_has_no_more_calls_than_a_driver_takes(void **state)
{
	enum { LOADS = 15 }; /* of 128 calls each */
	struct world w = {.layers = 16 * RIG_LAYERS};
	struct tn_load *load[LOADS];
	struct tn_load_opts late;
	struct tn_load *other;

	up(&w, state, 4 * DISK, HOST, 0);
	w.r.s->pool->stage->npieces = 1;
	for (uint32_t i = 0; i < LOADS; i++)
		assert_int_equal(rig_save(w.r.s, 1 + i, 1, 0).stored, 1);
	for (uint32_t p = 0; p < LOADS * RIG_PAGES; p++)
		rig_poison(w.r.s, p);
	tn_soft_device_hold(w.device, true);
	for (uint32_t i = 0; i < LOADS; i++)
		load[i] = rig_load_begin(w.r.s, 1 + i, 1, i * RIG_PAGES, NULL);
	tn_load_opts_init(&late);
	late.deadline_ns = tn_test_now() + 100 * RIG_MS;
	other = rig_load_begin(w.r.s, 1, 1, LOADS * RIG_PAGES, &late);
	assert_int_equal(words_rise(&w, other), 0); /* although none of its copies has begun */
	rig_load_end(w.r.s, other); /* which touches nothing */
	for (uint32_t i = 0; i < LOADS; i++)
		assert_int_equal(tn_load_poll(load[i], 0), -EAGAIN);
	assert_true(tn_soft_device_stats(w.device).under_way <= TN_DEVICE_CALLS);
	tn_soft_device_hold(w.device, false);
	for (uint32_t i = 0; i < LOADS; i++) {
		assert_int_equal(wait_for_all(&w, load[i]), 1);
		rig_load_end(w.r.s, load[i]);
		rig_check_blocks(w.r.s, 1 + i, 1, i * RIG_PAGES);
	}
	down(&w);
}

static void part_of_the_pages_is_loaded(void **state)
{
	const uint32_t first = 2 * RIG_PAGES + 1, n = 3 * RIG_PAGES;
	struct world w = {0};
	struct tn_load_opts o;
	struct tn_load *load;
	uint64_t before;
	uint32_t bytes;

	up(&w, state, DISK, HOST, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	poison(&w);
	tn_load_opts_init(&o);
	o.first_page = first;
	o.npages = n;
	before = copied(&w);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, &o);
	assert_int_equal(wait_for_all(&w, load), BLOCKS);
	rig_load_end(w.r.s, load);
	assert_int_equal(copied(&w) - before, n * (tn_geometry_block_bytes(&w.r.s->g) / RIG_PAGES));
	for (uint32_t i = 0; i < BLOCKS * RIG_PAGES; i++) {
		const unsigned char *page = rig_plane(w.r.s, 0, 0, i, &bytes);
		uint32_t poisoned = 0;

		for (uint32_t k = 0; k < bytes; k++)
			poisoned += page[k] == RIG_POISON;
		assert_int_equal(poisoned == bytes, i < first || i >= first + n);
	}
	rig_check_blocks(w.r.s, 4, 2, 3 * RIG_PAGES);
	down(&w);
}

/* ---- failing copies ------------------------------------------------------------------------------------------------ */

/* The good prefix of a load whose copy after so many others fails. */
static int fails_after(struct world *w, uint32_t copies, int error)
{
	struct tn_load *load;
	int good;

	tn_soft_device_fail(w->device, TN_DEVICE_FROM_HOST, copies, error);
	load = rig_load_begin(w->r.s, 1, BLOCKS, 0, NULL);
	good = wait_for_all(w, load);
	rig_load_end(w->r.s, load);
	tn_soft_device_fail(w->device, TN_DEVICE_FROM_HOST, 0, 0);
	return good;
}

static void a_load_whose_copy_fails_has_no_good_prefix_and_the_next_one_is_whole(void **state)
{
	struct world w = {0};
	uint32_t copies;

	up(&w, state, DISK, HOST, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	/* What is staged is copied chunk by chunk, else some objects at a time. */
	copies = w.r.o.attached ? rig_core_space(w.r.s)->shape.chunks : 1;
	for (uint32_t i = 0; i < copies; i++) {
		int good = fails_after(&w, i, -EIO);

		assert_in_range(good, 0, w.r.o.attached ? 0 : BLOCKS - 1);
		poison(&w);
		assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	}
	assert_int_equal(fails_after(&w, w.r.o.attached ? copies : 1000, -EIO), BLOCKS);
	down(&w);
}

static void a_save_whose_copy_fails_stores_nothing_and_the_next_one_all(void **state)
{
	struct world w = {0};
	struct tn_save_result res;

	up(&w, state, DISK, HOST, 0);
	for (uint32_t i = 0; i < 3; i++) {
		tn_soft_device_fail(w.device, TN_DEVICE_TO_HOST, 0, -EIO);
		res = rig_save(w.r.s, 1 + i * BLOCKS, BLOCKS, 0);
		assert_int_equal(res.error, -EIO);
		assert_in_range(res.stored, 0, w.r.o.attached ? 0 : BLOCKS - 1); /* staged blocks are copied together, others some at a time */
		assert_in_range(rig_count(w.r.s, 1 + i * BLOCKS, BLOCKS), 0, res.stored);
		tn_soft_device_fail(w.device, TN_DEVICE_TO_HOST, 0, 0);
	}
	assert_int_equal(rig_save(w.r.s, 1000, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_load(w.r.s, 1000, BLOCKS), BLOCKS);
	down(&w);
}

/* The driver does not even begin. */
static void a_call_of_copy_that_fails_fails_its_operation_alone(void **state)
{
	struct tn_save_result res;
	struct world w = {0};

	up(&w, state, DISK, HOST, 0);
	tn_soft_device_refuse(w.device, TN_SOFT_COPY, 0, -EIO);
	res = rig_save(w.r.s, 1, BLOCKS, 0);
	assert_int_equal(res.error, -EIO);
	assert_int_equal(res.stored, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	for (uint32_t i = 0; i < rig_core_space(w.r.s)->shape.chunks; i++) {
		tn_soft_device_refuse(w.device, TN_SOFT_COPY, i, -EIO);
		assert_int_equal(rig_load(w.r.s, 1, BLOCKS), 0);
		poison(&w);
		assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	}
	down(&w);
}

/* One copy is several calls of the driver: the ones that were begun are over before the pages are given back. */
static void the_second_call_of_a_copy_fails_and_the_first_is_waited_for(void **state)
{
	struct world w = {0};
	struct tn_load *load;

	up(&w, state, DISK, HOST, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	w.r.s->pool->stage->npieces = 1;
	tn_soft_device_hold(w.device, true);
	tn_soft_device_refuse(w.device, TN_SOFT_COPY, 1, -EIO);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	rig_until(&w.r, tn_soft_device_stats(w.device).under_way > 0);
	assert_int_equal(tn_load_end(load, tn_test_now() + 20 * RIG_MS, NULL), -EBUSY);
	tn_soft_device_hold(w.device, false);
	assert_int_equal(wait_for_all(&w, load), 0);
	rig_load_end(w.r.s, load);
	assert_int_equal(tn_soft_device_stats(w.device).under_way, 0);
	poison(&w);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	down(&w);
}

/* With several chunks the load whose copy fails may ask for the stream itself. */
static void a_stream_that_is_not_made_anew_is_tried_again(void **state)
{
	struct world w = {0};
	int good;

	up(&w, state, DISK, HOST, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	tn_soft_device_refuse(w.device, TN_SOFT_STREAM_CREATE, 0, -ENOMEM);
	assert_int_equal(fails_after(&w, 0, -EIO), 0);
	good = rig_load(w.r.s, 1, BLOCKS);
	assert_true(good == 0 || good == BLOCKS);
	assert_int_equal(tn_soft_device_stats(w.device).refused, 1);
	poison(&w);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	down(&w);
}

/* -EFAULT of the owner says that memory is gone, and no more operations begin on it. That of a driver does not. */
static void a_drivers_efault_is_a_failed_copy_and_no_more(void **state)
{
	struct world w = {0};

	up(&w, state, DISK, 0, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&w.r), 0);
	for (uint32_t i = 0; i < 40; i++) {
		assert_in_range(fails_after(&w, 0, -EFAULT), 0, w.r.o.attached ? 0 : BLOCKS - 1);
		assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	}
	down(&w);
}

/*
 * A step whose loads a stream waited for has computed on pages that never came: the words rise all the same. Its caller looks at the loads before it
 * commits what the step has computed.
 */
static void what_a_step_computed_on_a_load_that_failed_is_not_kept(void **state)
{
	struct world w = {0};
	struct tn_load *load;
	struct tn_save *save;
	struct tn_key parent = rig_key(BLOCKS);
	struct tn_save_opts o;
	const uint64_t *word;
	uint64_t value;
	int good;

	up(&w, state, DISK, HOST, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	tn_save_opts_init(&o);
	o.parent = &parent;
	tn_soft_device_fail(w.device, TN_DEVICE_FROM_HOST, rig_core_space(w.r.s)->shape.chunks - 1, -EIO);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	save = rig_save_begin(w.r.s, BLOCKS + 1, 2, NPAGES / 2, &o);
	for (uint32_t l = 0; l < RIG_LAYERS; l++) {
		assert_int_equal(tn_load_event(load, l, &word, &value), 0);
		rig_until(&w.r, __atomic_load_n(word, __ATOMIC_ACQUIRE) >= value); /* as the stream does */
		assert_int_equal(tn_save_layer(save, l, NULL, 0), 0);
	}
	good = wait_for_all(&w, load);
	rig_load_end(w.r.s, load);
	assert_true(good < (int)BLOCKS);
	assert_int_equal(tn_save_abort(save), 0);
	assert_int_equal(rig_save_end(w.r.s, save).stored, 0);
	assert_int_equal(rig_count(w.r.s, BLOCKS + 1, 2), 0);
	tn_soft_device_fail(w.device, TN_DEVICE_FROM_HOST, 0, 0);
	down(&w);
}

static void a_lost_device_ends_what_is_under_way_and_the_cache_lives_on(void **state)
{
	struct world w = {0};
	struct tn_save_result saved;
	struct rig_space other;
	struct tn_load *load;
	struct tn_save *save;

	up(&w, state, DISK, HOST, 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	tn_soft_device_hold(w.device, true);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	save = rig_save_begin(w.r.s, 100, BLOCKS, NPAGES / 2, NULL);
	rig_save_give(w.r.s, save);
	rig_until(&w.r, all_copies_begun(&w, 3));
	tn_soft_device_lose(w.device);
	assert_int_equal(wait_for_all(&w, load), 0);
	rig_load_end(w.r.s, load);
	assert_int_equal(rig_save_end(w.r.s, save).error, -ENODEV);
	saved = rig_save(w.r.s, 200, 4, 0);
	assert_int_equal(saved.error, -ENODEV);
	assert_int_equal(saved.stored, 0);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), 0);
	w.r.o.soft_device = NULL; /* another device, for the same blocks */
	assert_int_equal(rig_space_open(&w.r, &(struct rig_space_opts){0}, &other), 0);
	assert_int_equal(rig_load(&other, 1, BLOCKS), BLOCKS);
	rig_space_close(&other);
	w.r.o.soft_device = w.device;
	down(&w);
}

/* ---- memories ------------------------------------------------------------------------------------------------------ */

static void whoever_touches_the_memory_dies(void **state)
{
	struct world w = {0};
	int status;
	pid_t pid;

	up(&w, state, DISK, 0, 0);
	pid = fork();
	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		_exit(*(volatile unsigned char *)w.r.s->memory);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	down(&w);
}

static void a_driver_is_checked_before_it_is_called(void **state)
{
	struct tn_memory_range range = {.address = (void *)4096, .bytes = 4096};
	struct tn_device_driver_ops ops;
	struct tn_device_driver driver = {.ops = &ops};
	struct tn_memory_desc d;
	struct tn_memory *memory;
	struct world w = {0};

	up(&w, state, DISK, 0, 0);
	tn_memory_desc_init(&d);
	d.kind = TN_MEMORY_DEVICE;
	d.ranges = &range;
	d.nranges = 1;
	assert_int_equal(tn_memory_register(w.r.cache, &d, &memory), -ENOTSUP);
	d.driver = &driver;
	ops = *tn_soft_device_driver(w.device)->ops;
	ops.abi++;
	assert_int_equal(tn_memory_register(w.r.cache, &d, &memory), -EINVAL);
	ops = *tn_soft_device_driver(w.device)->ops;
	ops.copy = NULL;
	assert_int_equal(tn_memory_register(w.r.cache, &d, &memory), -EINVAL);
	d.driver = tn_soft_device_driver(w.device);
	assert_int_equal(tn_memory_register(w.r.cache, &d, &memory), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "driver soft does not take range 0"));
	down(&w);
}

/* What was pinned, and the streams that were made, are given back: the device says so when it goes. */
static void a_pool_that_the_driver_does_not_serve_is_not_created(void **state)
{
	static const struct {
		enum tn_soft_call call;
		uint32_t calls;
	} row[] = {{TN_SOFT_PIN, 1}, {TN_SOFT_STREAM_CREATE, 2}};
	struct world w = {0};
	struct tn_pool_layout layout;
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = NPAGES};
	struct tn_pool *pool;
	uint64_t bytes, region[RIG_LAYERS], base[2 * RIG_LAYERS];
	uint32_t count;

	up(&w, state, DISK, 0, 0);
	assert_int_equal(tn_layout_regions(&w.r.s->g, &shape, &count, &bytes), 0);
	for (uint32_t i = 0; i < count; i++)
		region[i] = i * bytes;
	assert_int_equal(tn_layout_fill(&w.r.s->g, &shape, region, base, &layout), 0);
	for (uint32_t r = 0; r < 2; r++)
		for (uint32_t i = 0; i < row[r].calls; i++) {
			tn_soft_device_refuse(w.device, row[r].call, i, -ENOMEM);
			assert_int_equal(tn_pool_create(w.r.s->pool->memory, &w.r.s->g, &layout, &pool), -ENOMEM);
			assert_non_null(strstr(tn_error_last()->text, "driver soft"));
		}
	assert_int_equal(tn_pool_create(w.r.s->pool->memory, &w.r.s->g, &layout, &pool), 0);
	assert_int_equal(tn_pool_destroy(pool), 0);
	down(&w);
}

static void ranges_of_two_devices_are_two_memories(void **state)
{
	struct tn_memory_range range[2];
	struct tn_memory_desc d;
	struct tn_memory *memory;
	struct world w = {0};
	unsigned char *more;

	up(&w, state, DISK, 0, 0);
	more = tn_soft_device_memory(w.device, 8192);
	range[0] = (struct tn_memory_range){.address = more, .bytes = 4096};
	range[1] = (struct tn_memory_range){.address = more + 4096, .bytes = 4096, .device = 1};
	tn_memory_desc_init(&d);
	d.kind = TN_MEMORY_DEVICE;
	d.ranges = range;
	d.nranges = 2;
	d.driver = tn_soft_device_driver(w.device);
	assert_int_equal(tn_memory_register(w.r.cache, &d, &memory), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "range 1 is of device 1"));
	d.nranges = 1;
	assert_int_equal(tn_memory_register(w.r.cache, &d, &memory), 0);
	assert_int_equal(tn_memory_unregister(memory), 0);
	assert_int_equal(tn_memory_unregister(w.r.s->pool->memory), -EBUSY);
	tn_soft_device_release(w.device, more);
	down(&w);
}

static void a_pool_that_the_driver_refuses_leaves_nothing_pinned(void **state)
{
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = NPAGES};
	uint64_t base[RIG_LAYERS * TN_PLANES_MAX];
	struct tn_pool_layout layout;
	struct world w = {0};
	struct tn_pool *pool;

	up(&w, state, DISK, 0, 0);
	assert_int_equal(tn_layout_fill(&w.r.s->g, &shape, NULL, base, &layout), 0);
	assert_int_equal(tn_pool_create(w.r.s->pool->memory, &w.r.s->g, &layout, &pool), 0);
	assert_int_equal(tn_pool_destroy(pool), 0);
	tn_soft_device_lose(w.device);
	assert_int_equal(tn_pool_create(w.r.s->pool->memory, &w.r.s->g, &layout, &pool), -ENODEV);
	assert_non_null(strstr(tn_error_last()->text, "driver soft does not pin"));
	down(&w); /* the soft device counts what is registered, pinned and under way */
}

/* Each test in a cache of the process and in an attached one, with one chunk and with 4. */
#define IN_ONE_CHUNK(f) {#f, (f), NULL, NULL, &form[0]}
#define ALL(f) IN_ONE_CHUNK(f), {#f " (4 chunks)", (f), NULL, NULL, &form[1]}, {#f " (attached)", (f), NULL, NULL, &form[2]}, \
	       {#f " (attached, 4 chunks)", (f), NULL, NULL, &form[3]}

/* Tests of staging: pages of an attached cache. */
#define STAGED_IN_ONE_CHUNK(f) {#f " (attached)", (f), NULL, NULL, &form[2]}
#define STAGED(f) STAGED_IN_ONE_CHUNK(f), {#f " (attached, 4 chunks)", (f), NULL, NULL, &form[3]}

int main(int argc, char **argv)
{
	static struct form form[] = {{false, 64, 1}, {false, 512, 4}, {true, 64, 1}, {true, 512, 4}};
	const struct CMUnitTest tests[] = {
		ALL(blocks_go_from_device_memory_to_the_disk_and_back),
		ALL(blocks_go_from_device_memory_to_host_memory_and_back),
		ALL(what_session_memory_does_not_hold_goes_in_batches),
		ALL(no_layer_is_ready_before_its_copy),
		ALL(a_late_stream_holds_nobody_else_up),
		ALL(a_layer_is_copied_once_its_event_has_come),
		ALL(a_stream_waits_for_layers_and_raises_the_events_of_saves),
		ALL(an_aborted_save_leaves_its_pages_when_no_copy_is_under_way),
		STAGED(a_deadline_ends_the_waits_for_a_copy_that_stands),
		STAGED(a_cancel_ends_the_waits_for_a_copy_that_stands),
		STAGED(of_batches_the_one_under_a_standing_copy_alone_is_busy),
		STAGED_IN_ONE_CHUNK(a_stream_has_no_more_calls_than_a_driver_takes),
		ALL(part_of_the_pages_is_loaded),
		ALL(a_load_whose_copy_fails_has_no_good_prefix_and_the_next_one_is_whole),
		ALL(a_save_whose_copy_fails_stores_nothing_and_the_next_one_all),
		STAGED(a_call_of_copy_that_fails_fails_its_operation_alone),
		STAGED(the_second_call_of_a_copy_fails_and_the_first_is_waited_for),
		STAGED(a_stream_that_is_not_made_anew_is_tried_again),
		ALL(a_drivers_efault_is_a_failed_copy_and_no_more),
		ALL(what_a_step_computed_on_a_load_that_failed_is_not_kept),
		ALL(a_lost_device_ends_what_is_under_way_and_the_cache_lives_on),
		ALL(whoever_touches_the_memory_dies),
		ALL(a_driver_is_checked_before_it_is_called),
		STAGED(a_pool_that_the_driver_does_not_serve_is_not_created),
		ALL(ranges_of_two_devices_are_two_memories),
		STAGED(a_pool_that_the_driver_refuses_leaves_nothing_pinned),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
