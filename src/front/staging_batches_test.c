/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staged operations with more blocks than there is session memory for (stage.h): they go to the owner in batches, and their callers notice nothing
 * of that: which pages are written, when words rise, the good prefix, what became of each block, cancels, aborts, and what is free afterwards.
 */
#include <pthread.h>
#include <unistd.h>

#include "front/stage.h"
#include "ioengine/faulty_rig.h"
#include "session_rig.h"

#define ROUNDS tn_test_cases(120)
#define THREADS 4u
#define MOST 40u /* blocks of an operation */

static void set_up_staged(uint32_t stage_blocks, struct rig *r, struct rig *mine)
{
	set_up(r);
	attach_staged(r->dir, stage_blocks, mine);
	assert_int_equal(mine->s->pool->stage->nslots, stage_blocks);
}

static void tear_down_staged(struct rig *r, struct rig *mine)
{
	const struct tn_stage_pool *s = mine->s->pool->stage;

	assert_int_equal(s->nfree, s->nslots);
	detach(mine);
	rig_tear_down(r);
}

/* Bytes of saves that were admitted and not given back. */
static uint64_t admitted(const struct rig *mine)
{
	const struct tn_region *region = &mine->cache->region;

	return __atomic_load_n(&tn_region_front(region)->admitted_bytes, __ATOMIC_RELAXED) -
	       __atomic_load_n(&tn_region_core(region)->given_back_bytes, __ATOMIC_RELAXED);
}

static void nothing_is_left(struct rig *mine)
{
	const struct tn_stage_pool *s = mine->s->pool->stage;

	assert_int_equal(s->nfree, s->nslots);
	rig_until(mine, admitted(mine) == 0);
}

static void check_pages(const struct rig_space *s, uint64_t first, uint64_t from, uint64_t end, uint64_t all)
{
	for (uint32_t p = 0; p < all; p++) {
		if (p < from || p >= end)
			assert_true(rig_poisoned(s, p));
		else
			for (uint32_t l = 0; l < RIG_LAYERS; l++)
				assert_true(rig_holds(s, first + p / RIG_PAGES, l, p % RIG_PAGES, p));
	}
}

/* Any number of blocks, through session memory for any number, of which any pages are wanted. */
static void every_wanted_page_arrives_and_no_other(void **state)
{
	uint64_t next = 1000;
	struct rig r, mine;
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t stage_blocks = 1; stage_blocks < 10; stage_blocks += 1 + (uint32_t)tn_rng_below(&rng, 3)) {
		set_up_staged(stage_blocks, &r, &mine);
		for (uint32_t i = 0; i < ROUNDS / 8; i++) {
			uint32_t n = 1 + (uint32_t)tn_rng_below(&rng, MOST), all = n * RIG_PAGES;
			struct tn_load_opts o;
			struct tn_load *load;

			assert_int_equal(rig_save(mine.s, next, n, 0).stored, n);
			assert_int_equal(rig_load(r.s, next, n), n);
			tn_load_opts_init(&o);
			o.first_page = tn_rng_below(&rng, all);
			o.npages = 1 + tn_rng_below(&rng, all - o.first_page);
			for (uint32_t p = 0; p < all; p++)
				rig_poison(mine.s, p);
			load = rig_load_begin(mine.s, next, n, 0, &o);
			assert_int_equal(rig_load_wait(mine.s, load, RIG_LAYERS - 1), n);
			rig_load_end(mine.s, load);
			check_pages(mine.s, next, o.first_page, o.first_page + o.npages, all);
			assert_int_equal(rig_load(mine.s, next, n), n);
			next += n;
			nothing_is_left(&mine);
		}
		tear_down_staged(&r, &mine);
	}
}

/* Whoever looks at a word alone finds the layer of all blocks. */
static void a_word_rises_after_the_last_batch(void **state)
{
	struct rig r, mine;

	set_up_staged(3, &r, &mine);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		const uint64_t *word;
		uint64_t value;
		struct tn_load *load;

		for (uint32_t p = 0; p < BLOCKS * RIG_PAGES; p++)
			rig_poison(mine.s, p);
		load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
		for (uint32_t l = 0; l < RIG_LAYERS; l++) {
			assert_int_equal(tn_load_event(load, l, &word, &value), 0);
			while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value)
				sched_yield();
			for (uint32_t p = 0; p < BLOCKS * RIG_PAGES; p++)
				assert_true(rig_holds(mine.s, 1 + p / RIG_PAGES, l, p % RIG_PAGES, p));
			assert_int_equal(tn_load_poll(load, l), BLOCKS);
		}
		rig_load_end(mine.s, load);
	}
	tear_down_staged(&r, &mine);
}

/* A stream that asks once the first batch is under way learns after a while that it has nothing to wait for. */
static void a_stream_that_waits_for_a_batch_that_hangs_goes_on(void **state)
{
	const struct tn_fault hang = {.kind = TN_FAULT_HANG, .op = TN_IO_READ, .count = UINT64_MAX};
	const uint64_t *word;
	struct tn_load *load;
	struct rig r, mine;
	uint64_t value;
	char path[PATH];

	rig_init(&r, 64u << 20, 0, 64);
	r.o.faulty = true;
	rig_must_open(&r);
	socket_path(&r, path);
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	assert_int_equal(rig_save(r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&r), 0);
	attach_staged(r.dir, 2, &mine);
	rig_fault(&r, &hang, 1);
	__atomic_store_n(&r.cache->save_idle_ns, 100 * RIG_MS, __ATOMIC_SEQ_CST);
	load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
	usleep(20000); /* the first batch is asked for */
	assert_int_equal(tn_load_event(load, RIG_LAYERS - 1, &word, &value), 0);
	rig_until(&mine, __atomic_load_n(word, __ATOMIC_ACQUIRE) >= value);
	assert_true(tn_load_poll(load, RIG_LAYERS - 1) < (int)BLOCKS);
	rig_calm(&r);
	rig_load_end(mine.s, load);
	tear_down_staged(&r, &mine);
}

/* In whichever batch it is: the prefix ends before it, and is whole. */
static void a_block_that_is_missing_ends_the_prefix(void **state)
{
	struct rig r, mine;

	set_up_staged(5, &r, &mine);
	for (uint32_t lost = 0; lost < 20; lost++) {
		uint64_t first = 1000 + 100 * lost;
		struct tn_key key = rig_key(first + lost);

		assert_int_equal(rig_save(mine.s, first, 20, 0).stored, 20);
		assert_int_equal(tn_drop(mine.s->space, &key, 1), 1);
		rig_until(&mine, rig_load(mine.s, first, 20) == (int)lost);
		nothing_is_left(&mine);
	}
	tear_down_staged(&r, &mine);
}

/* What is used least recently of a prefix is its end, whether it was saved in batches or loaded, and also for the next owner. */
static void a_prefix_loses_its_end_first(void **state)
{
	for (int loads = 0; loads < 2; loads++) {
		struct rig r, mine;

		set_up_staged(4, &r, &mine);
		assert_int_equal(rig_save(loads ? r.s : mine.s, 1000, MOST, 0).stored, MOST);
		if (loads) {
			assert_int_equal(rig_save(r.s, 2000, MOST, 0).stored, MOST);
			assert_int_equal(rig_load(mine.s, 1000, MOST), MOST);
		}
		detach(&mine);
		assert_int_equal(rig_close(&r), 0);
		r.o.cache.disk_blocks = 25;
		assert_int_equal(rig_open(&r), 0);
		assert_int_equal(rig_load(r.s, 1000, MOST), 25);
		rig_tear_down(&r);
	}
}

/* Each block is told as it is, wherever the save is aborted, and what is told to be stored is found. */
static void outcomes_are_those_of_all_batches(void **state)
{
	uint64_t next = 1000;
	struct rig r, mine;
	struct tn_rng rng;

	set_up_staged(4, &r, &mine);
	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct tn_save_result res = {.size = sizeof(res)};
		uint32_t n = 5 + (uint32_t)tn_rng_below(&rng, MOST - 5), known = (uint32_t)tn_rng_below(&rng, n), layers, stored = 0;
		uint8_t outcome[MOST];
		struct tn_save_opts o;
		struct tn_save *save;
		bool aborts = tn_rng_below(&rng, 2), commits = tn_rng_below(&rng, 3) > 0;

		if (known > 0)
			assert_int_equal(rig_save(r.s, next, known, 0).stored, known);
		tn_save_opts_init(&o);
		o.outcome = outcome;
		save = rig_save_begin(mine.s, next, n, 0, &o);
		layers = commits || !aborts ? RIG_LAYERS : (uint32_t)tn_rng_below(&rng, RIG_LAYERS);
		rig_fill_blocks(mine.s, next, n, 0);
		for (uint32_t l = 0; l < layers; l++)
			assert_int_equal(tn_save_layer(save, l, NULL, 0), 0);
		if (layers == RIG_LAYERS)
			assert_int_equal(tn_save_commit(save), 0);
		if (aborts) {
			if (tn_rng_below(&rng, 2))
				usleep(tn_rng_below(&rng, 3000));
			assert_int_equal(tn_save_abort(save), 0);
		}
		assert_int_equal(tn_save_end(save, tn_test_deadline(), &res), 0);
		for (uint32_t b = 0; b < n; b++) {
			stored += outcome[b] == TN_SAVED_STORED;
			if (!aborts)
				assert_int_equal(outcome[b], b < known ? TN_SAVED_EXISTING : TN_SAVED_STORED);
			else
				assert_true(outcome[b] == TN_SAVED_NOT || outcome[b] == TN_SAVED_STORED || outcome[b] == TN_SAVED_EXISTING);
			if (outcome[b] == TN_SAVED_STORED)
				assert_int_equal(rig_load(mine.s, next + b, 1), 1);
		}
		assert_int_equal(res.stored, stored);
		assert_int_equal(res.failed, 0);
		if (!aborts)
			assert_int_equal(rig_load(mine.s, next, n), n);
		nothing_is_left(&mine);
		next += n;
	}
	tear_down_staged(&r, &mine);
}

/* Layers that become final after the save was committed: all batches wait for the first one's. */
static void layers_whose_events_come_late_are_saved_in_all_batches(void **state)
{
	struct tn_event *event;
	struct rig r, mine;

	set_up_staged(3, &r, &mine);
	assert_int_equal(tn_event_create(mine.cache, &event), 0);
	for (uint64_t i = 0; i < 20; i++) {
		struct tn_save *save = rig_save_begin(mine.s, 1000 + 100 * i, 10, 0, NULL);

		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			assert_int_equal(tn_save_layer(save, l, event, 1 + i * RIG_LAYERS + l), 0);
		assert_int_equal(tn_save_commit(save), 0);
		rig_fill_blocks(mine.s, 1000 + 100 * i, 10, 0);
		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			assert_int_equal(tn_event_raise(event, 1 + i * RIG_LAYERS + l), 0);
		assert_int_equal(rig_save_end(mine.s, save).stored, 10);
		assert_int_equal(rig_load(mine.s, 1000 + 100 * i, 10), 10);
	}
	tn_event_destroy(event);
	tear_down_staged(&r, &mine);
}

/*
 * Later batches take for granted that all layers are final: none follows one that was given up because they were not, also if the blocks before it
 * are there.
 */
static void no_batch_follows_one_that_was_given_up(void **state)
{
	struct tn_event *event;
	struct rig r, mine;

	set_up_staged(3, &r, &mine);
	assert_int_equal(tn_event_create(mine.cache, &event), 0);
	for (uint64_t i = 0; i < 4; i++) {
		uint32_t known = i % 2 ? 2 : 0; /* the first batch has nothing to be saved */
		struct tn_save_result res;
		struct tn_save *save;

		if (known)
			assert_int_equal(rig_save(r.s, 1000 + 100 * i, known, 0).stored, known);
		save = rig_save_begin(mine.s, 1000 + 100 * i, 10, 0, NULL);
		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			assert_int_equal(tn_save_layer(save, l, event, 1 + i), 0);
		assert_int_equal(tn_save_commit(save), 0);
		__atomic_store_n(&r.cache->save_idle_ns, RIG_MS, __ATOMIC_SEQ_CST);
		rig_save(r.s, 1, 1, 0); /* the owner looks at the new time */
		res = rig_save_end(mine.s, save);
		assert_int_equal(res.existing, known);
		assert_int_equal(res.failed, 10 - known);
		assert_int_equal(res.error, -ECANCELED);
		__atomic_store_n(&r.cache->save_idle_ns, TN_SAVE_IDLE_NS, __ATOMIC_SEQ_CST);
		assert_int_equal(tn_event_raise(event, 1 + i), 0);
		assert_int_equal(rig_match(mine.s, 1000 + 100 * i, 10), known);
		nothing_is_left(&mine);
	}
	tn_event_destroy(event);
	tear_down_staged(&r, &mine);
}

/* A prompt in two parts, of which the first goes to the owner in batches, or in one whose copy takes longer than that of the second. */
static void save_in_two_parts(struct rig *mine, uint64_t begins)
{
	struct tn_key parent = rig_key(begins + MOST - 1);
	struct tn_save *first, *second;
	struct tn_save_opts o;

	rig_fill_blocks(mine->s, begins, MOST + 1, 0);
	tn_save_opts_init(&o);
	o.parent = &parent;
	first = rig_save_begin(mine->s, begins, MOST, 0, NULL);
	second = rig_save_begin(mine->s, begins + MOST, 1, MOST * RIG_PAGES, &o);
	rig_save_give(mine->s, first);
	rig_save_give(mine->s, second);
	assert_int_equal(rig_save_end(mine->s, second).stored, 1);
	assert_int_equal(rig_save_end(mine->s, first).stored, MOST);
	assert_int_equal(rig_load(mine->s, begins, MOST + 1), MOST + 1);
	nothing_is_left(mine);
}

static void a_part_behind_one_that_is_under_way_is_stored(void **state)
{
	for (uint32_t stage_blocks = 4; stage_blocks <= 64; stage_blocks *= 16) {
		struct rig r, mine;

		set_up_staged(stage_blocks, &r, &mine);
		for (uint64_t i = 0; i < 20; i++)
			save_in_two_parts(&mine, 1000 + 100 * i);
		tear_down_staged(&r, &mine);
	}
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

struct worker {
	struct rig *r;
	uint32_t number;
	struct tn_rng rng;
	pthread_t thread;
};

/* Pages of its own: half for saves, half for loads. */
static uint32_t pages_of(const struct worker *w, bool second)
{
	return (2 * w->number + second) * (RIG_POOL_PAGES / THREADS / 2);
}

static bool save_some(struct worker *w, uint64_t id, uint32_t n)
{
	struct rig_space *s = w->r->s;
	uint32_t pages[MOST * RIG_PAGES];
	struct tn_key keys[MOST];
	struct tn_save *save;
	int rc;

	rig_keys(id, n, keys);
	rig_pages(s, pages_of(w, false), n, pages);
	rc = tn_save_begin(s->space, s->pool, keys, n, pages, NULL, &save);
	if (rc == -EAGAIN)
		return false;
	assert_int_equal(rc, 0);
	rig_fill_blocks(s, id, n, pages_of(w, false));
	rig_save_give(s, save);
	assert_int_equal(rig_save_end(s, save).stored, n);
	return true;
}

static void load_some(struct worker *w, uint64_t id, uint32_t n)
{
	struct rig_space *s = w->r->s;
	uint32_t pages[MOST * RIG_PAGES], first = pages_of(w, true);
	struct tn_key keys[MOST];
	struct tn_load *load;
	int rc, good;

	rig_keys(id, n, keys);
	rig_pages(s, first, n, pages);
	rc = tn_load_begin(s->space, s->pool, keys, n, pages, NULL, &load);
	if (rc == -EAGAIN)
		return;
	assert_int_equal(rc, 0);
	if (tn_rng_below(&w->rng, 2)) {
		usleep(tn_rng_below(&w->rng, 500));
		assert_int_equal(tn_load_cancel(load), 0);
	}
	good = tn_load_wait(load, RIG_LAYERS - 1, tn_test_deadline());
	assert_true(good >= 0 && good <= (int)n);
	rig_check_blocks(s, id, (uint32_t)good, first);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	for (uint32_t p = 0; p < n * RIG_PAGES; p++)
		rig_poison(s, first + p);
	usleep(tn_rng_below(&w->rng, 200));
	for (uint32_t p = 0; p < n * RIG_PAGES; p++)
		assert_true(rig_poisoned(s, first + p)); /* nothing writes to them after the end */
}

static void *work(void *arg)
{
	struct worker *w = arg;
	uint64_t next = 100000ull * (1 + w->number);

	for (uint32_t i = 0; i < ROUNDS / 3; i++) {
		uint32_t n = 1 + (uint32_t)tn_rng_below(&w->rng, RIG_POOL_PAGES / THREADS / 2 / RIG_PAGES);

		if (save_some(w, next, n))
			load_some(w, next, n);
		next += n;
	}
	return NULL;
}

static void threads_share_what_session_memory_there_is(void **state)
{
	struct worker w[THREADS];
	struct rig r, mine;

	set_up_staged(12, &r, &mine);
	for (uint32_t i = 0; i < THREADS; i++) {
		w[i] = (struct worker){.r = &mine, .number = i};
		tn_rng_seed(&w[i].rng, tn_test_seed() + i);
		assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(w[i].thread, NULL), 0);
	nothing_is_left(&mine);
	tear_down_staged(&r, &mine);
}

/* ---- what the owner makes of batches -------------------------------------------------------------------------- */

static void a_load_of_no_page_is_refused(void **state)
{
	uint32_t pages[4 * RIG_PAGES];
	struct tn_key keys[4];
	struct tn_load_opts o;
	struct tn_load *load;
	struct rig r, mine;

	set_up_staged(2, &r, &mine);
	rig_keys(1, 4, keys);
	rig_pages(mine.s, 0, 4, pages);
	tn_load_opts_init(&o);
	o.first_page = 4 * RIG_PAGES;
	assert_int_equal(tn_load_begin(mine.s->space, mine.s->pool, keys, 4, pages, &o, &load), -EINVAL);
	assert_int_equal(tn_load_begin(r.s->space, r.s->pool, keys, 4, pages, &o, &load), -EINVAL);
	nothing_is_left(&mine);
	tear_down_staged(&r, &mine);
}

static void operations_in_batches_are_counted_once(void **state)
{
	struct tn_stats before, after;
	struct tn_load *load;
	struct rig r, mine;

	set_up_staged(3, &r, &mine);
	before = rig_stats(&r);
	assert_int_equal(rig_save(mine.s, 1000, MOST, 0).stored, MOST);
	load = rig_load_begin(mine.s, 1000, MOST, 0, NULL);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_load_wait(load, l, tn_test_deadline()), MOST);
	rig_load_end(mine.s, load);
	assert_int_equal(mine.s->space->last_wait, TN_WAIT_LAYERS); /* as its caller waited, not as its batches came */
	after = rig_stats(&r);
	assert_int_equal(after.saves - before.saves, 1);
	assert_int_equal(after.loads - before.loads, 1);
	tear_down_staged(&r, &mine);
}

struct dropper {
	const struct rig *r;
	uint32_t go, over; /* shared */
	pthread_t thread;
};

/* As often as it takes: the space is in use. */
static void *drop_space(void *arg)
{
	struct dropper *d = arg;

	while (!__atomic_load_n(&d->go, __ATOMIC_ACQUIRE))
		sched_yield();
	do
		if (tn_space_drop(d->r->s->space, tn_test_deadline()) == 0)
			break;
	while (!__atomic_load_n(&d->over, __ATOMIC_ACQUIRE));
	return NULL;
}

static struct tn_save *begin_committed(struct rig *mine, uint64_t id)
{
	struct tn_save *save = rig_save_begin(mine->s, id, MOST, 0, NULL);

	rig_fill_blocks(mine->s, id, MOST, 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, NULL, 0), 0);
	assert_int_equal(tn_save_commit(save), 0);
	return save;
}

/* Whoever else drops the space while a save is under way finds all of it or nothing. */
static void a_drop_never_finds_a_part_of_a_save(void **state)
{
	struct rig r, mine;

	set_up_staged(2, &r, &mine);
	for (uint32_t i = 0; i < 30; i++) {
		struct dropper d = {.r = &r};
		struct tn_save *save;
		uint32_t found = 0;

		assert_int_equal(pthread_create(&d.thread, NULL, drop_space, &d), 0);
		save = begin_committed(&mine, 1000);
		__atomic_store_n(&d.go, 1, __ATOMIC_RELEASE);
		rig_save_end(mine.s, save);
		__atomic_store_n(&d.over, 1, __ATOMIC_RELEASE);
		assert_int_equal(pthread_join(d.thread, NULL), 0);
		for (uint32_t b = 0; b < MOST; b++)
			found += rig_load(mine.s, 1000 + b, 1) == 1;
		assert_true(found == 0 || found == MOST);
		assert_int_equal(tn_space_drop(r.s->space, tn_test_deadline()), 0);
	}
	tear_down_staged(&r, &mine);
}

/* An operation that ends before its last batch keeps nobody from a drop. */
static void a_space_is_free_after_an_operation_that_ended_early(void **state)
{
	struct rig r, mine;

	set_up_staged(3, &r, &mine);
	for (uint32_t i = 0; i < 40; i++) {
		struct tn_save_result res = {.size = sizeof(res)};
		struct tn_save *save = begin_committed(&mine, 1000);
		struct tn_load *load;
		uint64_t deadline;

		usleep(i * 20);
		assert_int_equal(tn_save_abort(save), 0);
		assert_int_equal(tn_save_end(save, tn_test_deadline(), &res), 0);
		assert_true(res.stored + res.existing <= MOST);
		load = rig_load_begin(mine.s, 1000, MOST, 0, NULL); /* of a prefix */
		usleep(i * 10);
		assert_int_equal(tn_load_cancel(load), 0);
		rig_load_end(mine.s, load);
		deadline = tn_test_deadline();
		while (tn_space_drop(r.s->space, deadline) == -EBUSY) /* until the owner has answered */
			assert_true(tn_test_now() < deadline);
	}
	nothing_is_left(&mine);
	tear_down_staged(&r, &mine);
}

/* The default policy lets no block in whose parent it has kept out, in whichever batch that was. */
static void no_block_is_stored_behind_one_that_was_rejected(void **state)
{
	uint32_t rejected = 0;
	struct rig r, mine;
	char path[PATH];

	rig_init(&r, 64u << 20, 0, 64);
	r.o.cache.policy = "default";
	r.o.cache.disk_blocks = 60;
	rig_must_open(&r);
	socket_path(&r, path);
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	attach_staged(r.dir, 4, &mine);
	for (uint32_t k = 0; k < 6; k++) {
		rig_save(r.s, 1, 30, 0);
		rig_save(r.s, 100, 30, 0);
		rig_load(r.s, 1, 30);
		rig_load(r.s, 100, 30);
	}
	for (uint32_t k = 0; k < 100; k++) {
		uint8_t outcome[MOST];
		struct tn_save_opts o;
		struct tn_save *save;
		bool gap = false;

		if (k % 3 == 0) {
			rig_load(r.s, 1, 30);
			rig_load(r.s, 100, 20);
		}
		tn_save_opts_init(&o);
		o.outcome = outcome;
		save = rig_save_begin(mine.s, 1000 + 100 * k, MOST, 0, &o);
		rig_fill_blocks(mine.s, 1000 + 100 * k, MOST, 0);
		rig_save_give(mine.s, save);
		rig_save_end(mine.s, save);
		for (uint32_t b = 0; b < MOST; b++) {
			assert_false(gap && outcome[b] == TN_SAVED_STORED);
			gap |= outcome[b] == TN_SAVED_REJECTED;
		}
		rejected += gap;
	}
	assert_true(rejected > 0);
	detach(&mine);
	rig_tear_down(&r);
}

/* Committed, and its event comes never: the owner that ends forgets it, and its caller is not told that all is well. */
static void a_save_that_its_owner_forgets_does_not_end_well(void **state)
{
	for (uint32_t slots = 0; slots <= MOST; slots += 4) {
		struct tn_event *event;
		struct tn_save *save;
		struct rig r, mine;

		set_up(&r);
		if (slots)
			attach_staged(r.dir, slots, &mine);
		else
			attach(r.dir, &mine);
		assert_int_equal(tn_event_create(mine.cache, &event), 0);
		save = rig_save_begin(mine.s, 1000, 20, 0, NULL);
		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			assert_int_equal(tn_save_layer(save, l, event, 1), 0);
		assert_int_equal(tn_save_commit(save), 0);
		if (slots % 8)
			usleep(1000);
		assert_int_equal(rig_close(&r), 0);
		assert_int_equal(tn_save_end(save, tn_test_deadline(), NULL), -ESHUTDOWN);
		detach(&mine);
		rig_tear_down(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_wanted_page_arrives_and_no_other),
		cmocka_unit_test(a_word_rises_after_the_last_batch),
		cmocka_unit_test(a_stream_that_waits_for_a_batch_that_hangs_goes_on),
		cmocka_unit_test(a_block_that_is_missing_ends_the_prefix),
		cmocka_unit_test(a_prefix_loses_its_end_first),
		cmocka_unit_test(outcomes_are_those_of_all_batches),
		cmocka_unit_test(layers_whose_events_come_late_are_saved_in_all_batches),
		cmocka_unit_test(no_batch_follows_one_that_was_given_up),
		cmocka_unit_test(a_part_behind_one_that_is_under_way_is_stored),
		cmocka_unit_test(threads_share_what_session_memory_there_is),
		cmocka_unit_test(a_load_of_no_page_is_refused),
		cmocka_unit_test(operations_in_batches_are_counted_once),
		cmocka_unit_test(a_drop_never_finds_a_part_of_a_save),
		cmocka_unit_test(a_space_is_free_after_an_operation_that_ended_early),
		cmocka_unit_test(no_block_is_stored_behind_one_that_was_rejected),
		cmocka_unit_test(a_save_that_its_owner_forgets_does_not_end_well),
	};

	return tn_test_ran(cmocka_run_group_tests(tests, NULL, NULL));
}
