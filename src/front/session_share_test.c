/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one process can hold of a store that others use: of slots, of the write backlog, of what leases keep. A process that stops in the middle of
 * its saves leaves the others their part at once, and all of it when its saves are given up.
 */
#include "base/error.h"
#include "session_rig.h"

#define HOG 1000u  /* its blocks */
#define HOG_SAVES 8u
#define OTHER 5000u /* somebody else's */
#define PART 8u
#define IDLE_NS (300 * RIG_MS) /* saves are given up after that, in tests that wait for it */

/* About 120 slots, no memory: nothing but the disk takes blocks. */
static void serve_small(struct rig *r)
{
	char path[PATH];

	rig_set_up(r, 16u << 20, 0, 64);
	socket_path(r, path);
	assert_int_equal(tn_cache_serve(r->cache, path, NULL), 0);
	assert_true(rig_stats(r).capacity_blocks > 2 * BLOCKS);
	assert_true(rig_stats(r).capacity_blocks < HOG_SAVES * BLOCKS);
}

static struct tn_session_stats session_at(struct rig *r, uint32_t place)
{
	struct tn_session_stats s = {.size = sizeof(s)};

	assert_int_equal(tn_cache_session_stats(r->cache, place, &s), 0);
	return s;
}

/* ---- a process that stops ------------------------------------------------------------------------------------------- */

/* Begins more than the store holds and stops. Going on, it writes other bytes, gives all layers, and is told that it is too late. */
static int begin_and_stop(const char *dir)
{
	struct tn_save *save[HOG_SAVES];
	uint32_t failed = 0, n = 0;
	struct rig r;

	attach(dir, &r);
	rig_fill_blocks(r.s, HOG, BLOCKS, 0);
	for (; n < HOG_SAVES; n++)
		save[n] = rig_save_begin(r.s, HOG + n * BLOCKS, BLOCKS, 0, NULL);
	assert_int_equal(tn_save_layer(save[0], 0, NULL, 0), 0);
	raise(SIGSTOP);
	rig_fill_blocks(r.s, 1, BLOCKS, 0); /* no block of these saves has them */
	while (n-- > 0) {
		struct tn_save_result res = {.size = sizeof(res)};

		for (uint32_t l = n == 0; l < RIG_LAYERS; l++)
			assert_int_equal(tn_save_layer(save[n], l, NULL, 0), 0);
		assert_int_equal(tn_save_commit(save[n]), 0);
		assert_int_equal(tn_save_end(save[n], tn_test_deadline(), &res), 0);
		if (res.failed + res.rejected != BLOCKS || (res.failed > 0 && res.error != -ECANCELED))
			fail_msg("save %u: %u failed, %u rejected, error %d", n, res.failed, res.rejected, res.error);
		failed += res.failed;
	}
	assert_true(failed > 0);
	assert_int_equal(rig_save(r.s, HOG, BLOCKS, 0).stored, BLOCKS); /* it can save as ever */
	rig_fill_blocks(r.s, HOG, BLOCKS, 0);
	assert_int_equal(tn_drop(r.s->space, (struct tn_key[]){rig_key(HOG)}, 1), 1);
	detach(&r);
	return 0;
}

static void a_process_that_stops_in_its_saves_leaves_the_others_their_part_and_is_told_when_it_goes_on(void **state)
{
	struct rig r, other;
	struct held before;
	pid_t pid;

	serve_small(&r);
	before = held_by(&r);
	attach(r.dir, &other);
	pid = start("begin_and_stop", &r);
	assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
	for (uint32_t i = 0; i < 15; i++) { /* more than there are free slots: its own, once they are stored, go for them */
		struct tn_save_result res;

		rig_fill_blocks(other.s, OTHER + i * PART, PART, 0);
		res = rig_save(other.s, i ? OTHER + i * PART : OTHER, PART, 0);
		if (res.stored != PART)
			fail_msg("part %u: %u stored, %u rejected, %u failed, error %d", i, res.stored, res.rejected, res.failed, res.error);
	}
	assert_int_equal(session_at(&r, 2).saves_now, HOG_SAVES);
	/* It loses its slots while it is stopped. */
	__atomic_store_n(&r.cache->save_idle_ns, IDLE_NS, __ATOMIC_SEQ_CST);
	rig_save(other.s, 1, 1, 0); /* the owner looks at the new time */
	rig_until(&r, session_at(&r, 2).saves_now == 0);
	assert_int_equal(session_at(&r, 2).backlog_bytes, 0);
	assert_true(rig_stats(&r).rejected_share_blocks > 0);
	assert_int_equal(rig_stats(&r).rejected_share_blocks + rig_stats(&r).rejected_parent_blocks, rig_stats(&r).admission_rejected_blocks);
	__atomic_store_n(&r.cache->save_idle_ns, TN_SAVE_IDLE_NS, __ATOMIC_SEQ_CST);
	rig_fill_blocks(other.s, OTHER, BLOCKS, 0);
	assert_int_equal(rig_save(other.s, OTHER, BLOCKS, 0).rejected, 0);
	assert_int_equal(rig_load(other.s, OTHER, BLOCKS), BLOCKS);
	assert_int_equal(kill(pid, SIGCONT), 0);
	assert_int_equal(end_of(pid), 0);
	assert_int_equal(rig_match(other.s, HOG + BLOCKS, BLOCKS), 0);
	assert_int_equal(rig_load(other.s, OTHER, BLOCKS), BLOCKS);
	detach(&other);
	all_is_given_back(&r, &before);
	rig_tear_down(&r);
}

/* ---- one that holds what it can, and lives --------------------------------------------------------------------------- */

static void hold_slots(struct rig *r, uint64_t first, struct tn_save **save)
{
	for (uint32_t i = 0; i < HOG_SAVES; i++)
		save[i] = rig_save_begin(r->s, first + i * BLOCKS, BLOCKS, 0, NULL);
}

static void abort_all(struct tn_save **save)
{
	for (uint32_t i = 0; i < HOG_SAVES; i++) {
		assert_int_equal(tn_save_abort(save[i]), 0);
		assert_int_equal(tn_save_end(save[i], tn_test_deadline(), NULL), 0);
	}
}

static uint64_t on_their_way(struct rig *r)
{
	return r->cache->held[TN_TIER_DISK]; /* the test has seen the saves begin */
}

static void what_processes_hold_of_the_slots_is_a_part_of_what_they_leave_free(void **state)
{
	struct tn_save *save[3][HOG_SAVES];
	struct rig r, a, b, c;
	uint64_t capacity, held = 0;

	serve_small(&r);
	attach(r.dir, &a);
	attach(r.dir, &b);
	attach(r.dir, &c);
	capacity = rig_stats(&r).capacity_blocks;
	for (uint32_t who = 0; who < 3; who++) {
		struct rig *hog = who == 0 ? &a : who == 1 ? &b : &c;
		uint32_t part;

		rig_fill_blocks(hog->s, HOG, BLOCKS, 0);
		hold_slots(hog, HOG + who * 1000, save[who]);
		rig_until(&r, rig_stats(&r).saves == (who + 1) * HOG_SAVES);
		part = (uint32_t)(on_their_way(&r) - held);
		assert_true(part > 0);
		assert_in_range(part, (capacity - held) / 2 - 1, (capacity - held) / 2 + 1);
		held = on_their_way(&r);
	}
	for (uint32_t who = 0; who < 3; who++)
		abort_all(save[who]);
	assert_int_equal(on_their_way(&r), 0);
	detach(&a);
	detach(&b);
	detach(&c);
	/* Who is alone may have all. */
	rig_until(&r, held_by(&r).sessions == 1);
	hold_slots(&r, HOG, save[0]);
	rig_until(&r, rig_stats(&r).saves == 4 * HOG_SAVES);
	assert_int_equal(on_their_way(&r), capacity);
	abort_all(save[0]);
	rig_tear_down(&r);
}

static void leases_of_a_process_leave_the_others_blocks_that_can_go(void **state)
{
	struct rig r, a, b;
	uint64_t pin[HOG_SAVES], capacity, before;
	uint32_t held = 0, n = 0;

	serve_small(&r);
	attach(r.dir, &a);
	attach(r.dir, &b);
	capacity = rig_stats(&r).capacity_blocks;
	for (; n < 3; n++)
		assert_int_equal(rig_save(r.s, HOG + n * BLOCKS, BLOCKS, 0).stored, BLOCKS);
	before = rig_stats(&r).lookup_blocks;
	for (n = 0; n < 3; n++) {
		struct tn_match m = {.size = sizeof(m)};
		struct tn_key keys[BLOCKS];
		int rc;

		rig_keys(HOG + n * BLOCKS, BLOCKS, keys);
		rc = tn_match(a.s->space, keys, BLOCKS, NULL, &m, TN_MATCH_PIN);
		if (rc == -EAGAIN)
			break;
		assert_true(rc > 0);
		pin[n] = m.pin;
		held += (uint32_t)rc;
	}
	assert_true(n > 0);
	assert_non_null(strstr(tn_error_last()->text, "of the blocks that the store holds"));
	assert_in_range(held, capacity / 2 - 1, capacity / 2);
	assert_true(held < n * BLOCKS);
	assert_int_equal(rig_stats(&r).lookup_blocks - before, n * BLOCKS); /* as many as were asked for */
	assert_int_equal(tn_match(a.s->space, (struct tn_key[]){rig_key(HOG)}, 1, NULL, &(struct tn_match){.size = sizeof(struct tn_match)}, TN_MATCH_PIN), -EAGAIN);
	for (uint32_t i = 0; i < 15; i++)
		assert_int_equal(rig_save(b.s, OTHER + i * PART, PART, 0).stored, PART);
	rig_unpin(a.s, pin[0]);
	pin[0] = rig_pin(a.s, OTHER + 14 * PART, 1); /* what is given back can be had again */
	for (uint32_t i = 0; i < n; i++)
		rig_unpin(a.s, pin[i]);
	detach(&a);
	detach(&b);
	rig_tear_down(&r);
}

static uint64_t limit_of(const struct rig *r)
{
	return __atomic_load_n(&tn_region_core(&r->cache->region)->limit_bytes, __ATOMIC_RELAXED);
}

/* How many saves of 4 MiB are let in. */
static uint32_t begin_saves(struct rig *r, uint64_t first, struct tn_save **save)
{
	uint32_t pages[BLOCKS * RIG_PAGES], n = 0;
	struct tn_key keys[BLOCKS];

	rig_pages(r->s, 0, BLOCKS, pages);
	for (; n < HOG_SAVES; n++) {
		rig_keys(first + n * BLOCKS, BLOCKS, keys);
		if (tn_save_begin(r->s->space, r->s->pool, keys, BLOCKS, pages, NULL, &save[n]) == -EAGAIN)
			return n;
	}
	return n;
}

static void a_process_has_half_of_the_write_backlog_that_the_others_leave(void **state)
{
	struct tn_save *save[2][HOG_SAVES];
	struct rig r, a, b;
	char path[PATH];

	rig_init(&r, 64u << 20, 0, 64);
	r.o.cache.write_backlog_bytes = 25u << 20;
	rig_must_open(&r);
	socket_path(&r, path);
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	attach(r.dir, &a);
	rig_until(&r, limit_of(&a) == 25u << 20); /* nobody else saves */
	attach(r.dir, &b);
	rig_until(&r, limit_of(&a) == (25u << 20) / 2);
	assert_int_equal(begin_saves(&a, HOG, save[0]), 3);
	rig_until(&r, limit_of(&b) == (13u << 20) / 2);
	assert_int_equal(begin_saves(&b, OTHER, save[1]), 1);
	for (uint32_t i = 0; i < 4; i++) {
		struct tn_save *s = i < 3 ? save[0][i] : save[1][0];

		assert_int_equal(tn_save_abort(s), 0);
		assert_int_equal(tn_save_end(s, tn_test_deadline(), NULL), 0);
	}
	rig_until(&r, limit_of(&b) == (25u << 20) / 2);
	detach(&a);
	detach(&b);
	rig_until(&r, limit_of(&r) == 25u << 20);
	rig_tear_down(&r);
}

/* ---- one that uses the cache alone --------------------------------------------------------------------------------- */

static void a_process_has_all_slots_if_nobody_else_saves(void **state)
{
	struct tn_save *save[HOG_SAVES];
	struct rig r, a;

	serve_small(&r);
	attach(r.dir, &a);
	hold_slots(&a, HOG, save);
	rig_until(&r, rig_stats(&r).saves == HOG_SAVES);
	assert_int_equal(on_their_way(&r), rig_stats(&r).capacity_blocks);
	abort_all(save);
	rig_fill_blocks(r.s, OTHER, PART, 0);
	assert_int_equal(rig_save(r.s, OTHER, PART, 0).stored, PART); /* the owner's process takes part from now on */
	hold_slots(&a, HOG, save);
	rig_until(&r, rig_stats(&r).saves == 2 * HOG_SAVES + 1);
	assert_in_range(on_their_way(&r), rig_stats(&r).capacity_blocks / 2 - 1, rig_stats(&r).capacity_blocks / 2 + 1);
	abort_all(save);
	detach(&a);
	rig_tear_down(&r);
}

/* Nothing but memory, with places for so many blocks. */
static uint64_t serve_memory(struct rig *r)
{
	char path[PATH];

	rig_set_up(r, 0, 4u << 20, 64);
	socket_path(r, path);
	assert_int_equal(tn_cache_serve(r->cache, path, NULL), 0);
	return r->cache->row.memory->ops->capacity(r->cache->row.memory);
}

static int count_held(struct tn_cache *cache, void *arg)
{
	*(uint64_t *)arg = cache->held[TN_TIER_HOST];
	return 0;
}

/* The owner's thread counts, and is the one to look. */
static uint64_t held_in_memory(struct rig *r)
{
	uint64_t held = 0;

	assert_int_equal(tn_owner_call(r->cache, count_held, &held), 0);
	return held;
}

/* Begins saves, of which nothing comes, until they hold what they can. */
static void what_memory_has_no_share_for_is_said_to_be_for_another_time(void **state)
{
	struct tn_save *save[HOG_SAVES];
	struct rig r, a, b;
	uint64_t capacity = serve_memory(&r);
	struct tn_save_result res = {.size = sizeof(res)};
	uint32_t last = HOG_SAVES - 1;

	attach(r.dir, &a);
	hold_slots(&a, HOG, save);
	rig_until(&r, held_in_memory(&r) == capacity); /* it is alone */
	abort_all(save);
	attach(r.dir, &b);
	hold_slots(&a, HOG, save);
	rig_save_give(a.s, save[last]);
	assert_int_equal(tn_save_end(save[last], tn_test_deadline(), &res), 0);
	assert_int_equal(res.rejected, BLOCKS);
	assert_int_equal(res.error, -EAGAIN);
	assert_int_equal(rig_stats(&r).rejected_share_blocks, BLOCKS);
	assert_in_range(held_in_memory(&r), capacity / 2 - 1, capacity / 2 + 1);
	for (uint32_t i = 0; i < last; i++) {
		assert_int_equal(tn_save_abort(save[i]), 0);
		assert_int_equal(tn_save_end(save[i], tn_test_deadline(), NULL), 0);
	}
	detach(&a);
	detach(&b);
	rig_tear_down(&r);
}

/* Its caller keeps it under way: the last layer's event does not come. */
static void nobody_waits_for_a_save_of_another_process_that_is_committed_and_not_written(void **state)
{
	struct tn_key parent = rig_key(HOG + PART - 1);
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save *first, *second;
	struct tn_save_opts o;
	struct tn_event *event;
	struct rig r, a, b;

	serve_small(&r);
	attach(r.dir, &a);
	attach(r.dir, &b);
	rig_fill_blocks(a.s, HOG, PART, 0);
	rig_fill_blocks(b.s, HOG + PART, PART, 0);
	assert_int_equal(tn_event_create(a.cache, &event), 0);
	first = rig_save_begin(a.s, HOG, PART, 0, NULL);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(first, l, event, 1), 0);
	assert_int_equal(tn_save_commit(first), 0);
	rig_until(&r, rig_stats(&r).saves == 1);
	tn_save_opts_init(&o);
	o.parent = &parent;
	second = rig_save_begin(b.s, HOG + PART, PART, 0, &o);
	rig_save_give(b.s, second);
	res = rig_save_end(b.s, second);
	assert_int_equal(res.rejected, PART);
	assert_int_equal(res.error, -ENOENT);
	assert_int_equal(session_at(&r, 1).saves_now, 1); /* it has not ended, nor been given up */
	assert_int_equal(tn_event_raise(event, 1), 0);
	assert_int_equal(rig_save_end(a.s, first).stored, PART);
	tn_event_destroy(event);
	detach(&a);
	detach(&b);
	rig_tear_down(&r);
}

int main(int argc, char **argv)
{
	static const struct body bodies[] = {{"begin_and_stop", begin_and_stop}, {NULL, NULL}};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_process_that_stops_in_its_saves_leaves_the_others_their_part_and_is_told_when_it_goes_on),
		cmocka_unit_test(what_processes_hold_of_the_slots_is_a_part_of_what_they_leave_free),
		cmocka_unit_test(leases_of_a_process_leave_the_others_blocks_that_can_go),
		cmocka_unit_test(a_process_has_half_of_the_write_backlog_that_the_others_leave),
		cmocka_unit_test(a_process_has_all_slots_if_nobody_else_saves),
		cmocka_unit_test(what_memory_has_no_share_for_is_said_to_be_for_another_time),
		cmocka_unit_test(nobody_waits_for_a_save_of_another_process_that_is_committed_and_not_written),
	};
	int rc = run_body(argc, argv, bodies);

	return rc >= 0 ? rc : cmocka_run_group_tests(tests, NULL, NULL);
}
