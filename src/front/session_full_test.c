/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an attached process can have too much of: operations, memories, calls at once, events. Each says how many there can be and what to do, nothing
 * that was begun is lost, and the next call works once there is a place. Leases, look-ups, pools and spaces are session_fair_test.c's.
 */
#include "base/error.h"
#include "front/serve.h"
#include "session_rig.h"

#define OPS 16u /* max_ops of rig_init */

static void says(const char *what)
{
	if (!strstr(tn_error_last()->text, what))
		fail_msg("\"%s\" does not say \"%s\"", tn_error_last()->text, what);
}

/* ---- operations --------------------------------------------------------------------------------------------------- */

/* A save that goes on until its layers are given. */
static int begin_save(struct rig *r, uint32_t i, struct tn_save **save)
{
	uint32_t pages[RIG_PAGES];
	struct tn_key key = rig_key(1000 + i);

	rig_pages(r->s, i * RIG_PAGES, 1, pages);
	return tn_save_begin(r->s->space, r->s->pool, &key, 1, pages, NULL, save);
}

static void end_save(struct rig *r, struct tn_save *save)
{
	struct tn_save_result res = {.size = sizeof(res)};

	rig_save_give(r->s, save);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), &res), 0);
	assert_int_equal(res.stored + res.host_only, 1);
}

static void a_process_with_all_operations_under_way_is_told_so_and_the_others_go_on(void **state)
{
	struct rig r, mine, other;
	struct tn_save *save[OPS + 1];
	struct tn_load *load;
	uint32_t pages[RIG_PAGES];
	struct tn_key key = rig_key(1);

	set_up(&r);
	attach(r.dir, &mine);
	attach(r.dir, &other);
	assert_int_equal(mine.cache->region.counts.ops, OPS);
	rig_pages(mine.s, 40, 1, pages);
	rig_fill_blocks(mine.s, 1000, OPS + 1, 0);
	for (int round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < OPS; i++)
			assert_int_equal(begin_save(&mine, i, &save[i]), 0);
		assert_int_equal(begin_save(&mine, OPS, &save[OPS]), -EAGAIN);
		says("all 16 operations are under way; end some or raise max_ops");
		assert_int_equal(tn_load_begin(mine.s->space, mine.s->pool, &key, 1, pages, NULL, &load), -EAGAIN);
		assert_int_equal(tn_prefetch(mine.s->space, &key, 1, tn_test_deadline()), -EAGAIN);
		/* Neither the owner nor another process notices. */
		assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
		assert_int_equal(rig_load(other.s, 1, BLOCKS), BLOCKS);
		/* One that ends makes way for another one. */
		end_save(&mine, save[3]);
		assert_int_equal(begin_save(&mine, OPS, &save[3]), 0);
		for (uint32_t i = 0; i < OPS; i++)
			end_save(&mine, save[i]);
		assert_int_equal(rig_load(mine.s, 1000, OPS + 1), OPS + 1); /* with the right bytes */
		assert_int_equal(rig_flush(&mine), 0);
		assert_int_equal(tn_space_drop(mine.s->space, tn_test_deadline()), 0);
		rig_until(&r, rig_match(r.s, 1, 1) == 0);
		rig_save(r.s, 1, BLOCKS, 0);
		rig_fill_blocks(mine.s, 1000, OPS + 1, 0);
	}
	detach(&mine);
	detach(&other);
	rig_tear_down(&r);
}

/* ---- memories ------------------------------------------------------------------------------------------------------ */

#define PAGE 4096u

static int register_page(struct rig *r, unsigned char *page, struct tn_memory **out)
{
	struct tn_memory_range range = {.address = page, .bytes = PAGE};
	struct tn_memory_desc d;

	tn_memory_desc_init(&d);
	d.nranges = 1;
	d.ranges = &range;
	return tn_memory_register(r->cache, &d, out);
}

static void a_memory_too_many_is_refused_and_another_one_can_be_registered_instead(void **state)
{
	struct tn_memory *memory[TN_WIRE_MEMORIES];
	unsigned char *pages;
	struct rig r, mine;
	uint32_t n = 0;
	void *got;

	set_up(&r);
	attach(r.dir, &mine);
	assert_int_equal(tn_memory_alloc(TN_WIRE_MEMORIES * PAGE, NULL, &got), 0);
	pages = got;
	while (n < TN_WIRE_MEMORIES - 1) { /* the rig has one */
		assert_int_equal(register_page(&mine, pages + n * PAGE, &memory[n]), 0);
		n++;
	}
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(register_page(&mine, pages + n * PAGE, &memory[n]), -ENOSPC);
		says("has 64 memories; unregister some");
		assert_int_equal(tn_memory_unregister(memory[i]), 0);
		assert_int_equal(register_page(&mine, pages + i * PAGE, &memory[i]), 0);
	}
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
	while (n > 0)
		assert_int_equal(tn_memory_unregister(memory[--n]), 0);
	assert_int_equal(tn_memory_free(got), 0);
	detach(&mine);
	rig_tear_down(&r);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

/* A thread that asks something which the owner does not answer yet. */
static void *ask(void *arg)
{
	struct rig *r = arg;
	struct tn_match m = {.size = sizeof(m), .blocks = 1};
	struct tn_plan p = {.size = sizeof(p)};

	assert_int_equal(tn_plan(r->s->space, &m, NULL, 0, &p), 0);
	return NULL;
}

/* Places of calls that wait for an answer. */
static uint32_t calls_under_way(const struct rig *r)
{
	const struct tn_region *g = &r->cache->region;
	uint32_t n = 0;

	for (uint32_t i = 0; i < TN_WIRE_CALLS; i++)
		n += __atomic_load_n(&tn_call_asked(g, i)->turn, __ATOMIC_ACQUIRE) != __atomic_load_n(&tn_call_told(g, i)->turn, __ATOMIC_ACQUIRE);
	return n;
}

static void a_call_for_which_there_is_no_place_waits_for_one_no_longer_than_for_an_answer(void **state)
{
	pthread_t thread[TN_WIRE_CALLS];
	struct rig r, mine, other;

	set_up(&r);
	attach(r.dir, &mine);
	attach(r.dir, &other);
	tn_attached_answer_within(mine.cache, 600 * RIG_SECOND);
	assert_int_equal(pthread_mutex_lock(&r.s->space->plan_lock), 0);
	for (uint32_t i = 0; i < TN_WIRE_CALLS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, ask, &mine), 0);
	rig_until(&r, calls_under_way(&mine) == TN_WIRE_CALLS);
	tn_attached_answer_within(mine.cache, 5 * RIG_MS);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(rig_match(mine.s, 1, 1), -ETIMEDOUT);
		says("has not answered for 5 ms: is it stopped? Calls go on once it does");
	}
	assert_int_equal(rig_match(other.s, 1, BLOCKS), BLOCKS); /* others have their own places */
	tn_attached_answer_within(mine.cache, 600 * RIG_SECOND);
	assert_int_equal(pthread_mutex_unlock(&r.s->space->plan_lock), 0);
	for (uint32_t i = 0; i < TN_WIRE_CALLS; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	assert_int_equal(rig_match(mine.s, 1, BLOCKS), BLOCKS);
	detach(&mine);
	detach(&other);
	rig_tear_down(&r);
}

/* ---- events ---------------------------------------------------------------------------------------------------------- */

static void each_process_has_its_own_events_up_to_their_number(void **state)
{
	static struct tn_event *event[2][TN_EVENTS];
	struct tn_event *more;
	struct rig r, mine, other;

	set_up(&r);
	attach(r.dir, &mine);
	attach(r.dir, &other);
	for (uint32_t who = 0; who < 2; who++) {
		struct tn_cache *cache = who ? other.cache : mine.cache;

		for (uint32_t i = 0; i < TN_EVENTS; i++)
			assert_int_equal(tn_event_create(cache, &event[who][i]), 0);
		assert_int_equal(tn_event_create(cache, &more), -EAGAIN);
		says("all 1024 events of the cache are in use; destroy some");
		tn_event_destroy(event[who][5]);
		assert_int_equal(tn_event_create(cache, &event[who][5]), 0);
	}
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
	for (uint32_t i = 0; i < TN_EVENTS; i++) {
		tn_event_destroy(event[0][i]);
		tn_event_destroy(event[1][i]);
	}
	detach(&mine);
	detach(&other);
	rig_tear_down(&r);
}

/* ---- caches of a process --------------------------------------------------------------------------------------------- */

#define CACHES 1023u

static void a_cache_too_many_in_a_process_is_refused(void **state)
{
	static struct tn_cache fake[CACHES];
	struct tn_cache *cache;
	uint32_t n = 0;
	struct rig r;
	char path[PATH];

	set_up(&r); /* one */
	socket_path(&r, path);
	for (; n < CACHES - 1; n++) {
		fake[n].alloc = &tn_alloc_system;
		fake[n].o.max_ops = 1;
		assert_int_equal(tn_front_create(&fake[n]), 0);
	}
	assert_int_equal(tn_cache_attach(path, patient(), &cache), -EAGAIN);
	says("1023 caches are open in this process, the most there can be; close some");
	tn_front_destroy(&fake[--n]);
	assert_int_equal(tn_cache_attach(path, patient(), &cache), 0);
	assert_int_equal(tn_cache_close(cache), 0);
	while (n > 0)
		tn_front_destroy(&fake[--n]);
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_process_with_all_operations_under_way_is_told_so_and_the_others_go_on),
		cmocka_unit_test(a_memory_too_many_is_refused_and_another_one_can_be_registered_instead),
		cmocka_unit_test(a_call_for_which_there_is_no_place_waits_for_one_no_longer_than_for_an_answer),
		cmocka_unit_test(each_process_has_its_own_events_up_to_their_number),
		cmocka_unit_test(a_cache_too_many_in_a_process_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
