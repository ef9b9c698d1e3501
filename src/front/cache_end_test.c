/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a load while its reads hang: it waits until its deadline, asleep, and names the pages that are still written to. */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "core/core.h"
#include "cache_rig.h"
#include "ioengine/faulty_rig.h"

#define BLOCKS 3u /* of which only the first is there */
#define SHORT_NS (RIG_SECOND / 10)

struct stuck {
	struct rig r;
	struct tn_load *load;
};

static int nothing(struct tn_cache *cache, void *arg)
{
	return 0;
}

/* 1: no load is left. */
static int no_load_left(struct tn_cache *cache, void *arg)
{
	return tn_list_empty(&cache->loads);
}

static void begin(struct stuck *s)
{
	const struct tn_fault hang = {.kind = TN_FAULT_HANG, .op = TN_IO_READ, .count = UINT64_MAX};

	rig_fault(&s->r, &hang, 1);
	s->load = rig_load_begin(s->r.s, 1, BLOCKS, 0, NULL);
	/* The second call is answered a turn of the owner after the first: the reads are in flight by then. */
	for (int i = 0; i < 2; i++)
		assert_int_equal(tn_owner_call(rig_core(&s->r), nothing, NULL), 0);
}

/* Again and again, for what was not held yet. */
static void let_reads_go(struct stuck *s)
{
	rig_until(&s->r, (rig_calm(&s->r), tn_owner_call(rig_core(&s->r), no_load_left, NULL) == 1));
}

static void set_up_as(struct stuck *s, bool staged)
{
	rig_init(&s->r, 64u << 20, 0, 64);
	s->r.o.faulty = true;
	if (staged)
		s->r.o.attached = s->r.o.staged = true;
	rig_must_open(&s->r);
	rig_save(s->r.s, 1, 1, 0);
	assert_int_equal(rig_flush(&s->r), 0);
	rig_reopen(&s->r); /* the headers leave memory */
	begin(s);
}

static void set_up(struct stuck *s)
{
	set_up_as(s, false);
}

static void a_deadline_that_is_over_only_asks_and_the_busy_pages_are_named(void **state)
{
	const uint64_t over[] = {0, 1, tn_test_now()};
	struct stuck s;
	uint8_t busy;

	set_up(&s);
	for (uint32_t i = 0; i < 3; i++) {
		busy = 0xff;
		assert_int_equal(tn_load_end(s.load, over[i], &busy), -EBUSY);
		assert_int_equal(busy, 1);
		assert_int_equal(tn_load_end(s.load, over[i], NULL), -EBUSY);
	}
	let_reads_go(&s);
	busy = 0xff;
	assert_int_equal(tn_load_end(s.load, tn_test_deadline(), &busy), 0);
	assert_int_equal(busy, 0xff); /* set with -EBUSY only */
	assert_int_equal(tn_load_end(s.load, tn_test_deadline(), &busy), -EINVAL);
	rig_tear_down(&s.r);
}

static void a_deadline_before_the_drain_is_kept_and_the_handle_lives_on(void **state)
{
	uint64_t until;
	struct stuck s;
	uint8_t busy;

	set_up(&s);
	for (int i = 0; i < 2; i++) {
		busy = 0;
		until = tn_test_now() + SHORT_NS;
		assert_int_equal(tn_load_end(s.load, until, &busy), -EBUSY);
		assert_true(tn_test_now() >= until);
		assert_int_equal(busy, 1);
	}
	/* The pool, and with it the cache, cannot go meanwhile. */
	assert_int_equal(tn_pool_destroy(s.r.s->pool), -EBUSY);
	/* The end has cancelled the load: no wait is left over. */
	assert_int_equal(tn_load_wait(s.load, RIG_LAYERS - 1, tn_test_deadline()), 0);
	let_reads_go(&s);
	assert_int_equal(tn_load_end(s.load, tn_test_deadline(), &busy), 0);
	rig_tear_down(&s.r);
}

/* Whether the end, which is not waited for, says that the load lives on and no page is busy. */
static bool no_page_is_busy(struct stuck *s)
{
	uint8_t busy = 0xff;

	assert_int_equal(tn_load_end(s->load, 0, &busy), -EBUSY);
	return busy == 0;
}

static void pages_of_a_staged_load_are_the_callers_while_its_reads_hang(void **state)
{
	const uint32_t first = 1;
	struct stuck s;

	set_up_as(&s, true);
	rig_until(&s.r, no_page_is_busy(&s));
	rig_fill_blocks(s.r.s, first + 100, 1, 0); /* the caller computes into them */
	let_reads_go(&s);
	assert_int_equal(tn_load_end(s.load, tn_test_deadline(), NULL), 0);
	rig_check_blocks(s.r.s, first + 100, 1, 0);
	rig_tear_down(&s.r);
}

struct ender {
	pthread_t thread;
	struct tn_load *load;
	int rc;
	uint32_t ended; /* shared */
};

static void *end_main(void *arg)
{
	struct ender *e = arg;

	e->rc = tn_load_end(e->load, tn_test_deadline() + 60 * RIG_SECOND, NULL); /* after the minute of who watches it */
	__atomic_store_n(&e->ended, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* The CPU time that the thread has used. */
static uint64_t cpu_ns(pthread_t thread)
{
	struct timespec cpu;
	clockid_t clock;

	assert_int_equal(pthread_getcpuclockid(thread, &clock), 0);
	assert_int_equal(clock_gettime(clock, &cpu), 0);
	return (uint64_t)cpu.tv_sec * RIG_SECOND + (uint64_t)cpu.tv_nsec;
}

/* Whether the thread used no CPU for a while: one that polls does, however short its naps are. */
static bool sleeps(pthread_t thread)
{
	const struct timespec pause = {0, (long)SHORT_NS};
	uint64_t before = cpu_ns(thread);

	nanosleep(&pause, NULL);
	return before > 0 && cpu_ns(thread) == before;
}

static void the_end_sleeps_until_the_last_transfer_ended_and_one_of_two_threads_gets_the_pages(void **state)
{
	struct ender e[2];
	struct stuck s;

	set_up(&s);
	for (int i = 0; i < 2; i++) {
		e[i] = (struct ender){.load = s.load};
		assert_int_equal(pthread_create(&e[i].thread, NULL, end_main, &e[i]), 0);
	}
	for (int i = 0; i < 2; i++)
		rig_until(&s.r, sleeps(e[i].thread));
	for (int i = 0; i < 2; i++)
		assert_int_equal(__atomic_load_n(&e[i].ended, __ATOMIC_ACQUIRE), 0);
	assert_int_equal(tn_load_cancel(s.load), 0); /* it is already, and the enders sleep on */
	let_reads_go(&s);
	for (int i = 0; i < 2; i++)
		pthread_join(e[i].thread, NULL);
	assert_true(e[0].rc == 0 || e[1].rc == 0);
	assert_int_equal(e[0].rc + e[1].rc, -EINVAL);
	begin(&s); /* the same pages are free again */
	let_reads_go(&s);
	assert_int_equal(tn_load_end(s.load, tn_test_deadline(), NULL), 0);
	rig_tear_down(&s.r);
}

int main(void)
{
	const char *why = rig_namespace ? RIG_FAULTY : rig_staged || rig_on_device ? RIG_STAGED : NULL;
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_deadline_that_is_over_only_asks_and_the_busy_pages_are_named, why),
		RIG_TEST(a_deadline_before_the_drain_is_kept_and_the_handle_lives_on, why),
		RIG_FAULTY_TEST(pages_of_a_staged_load_are_the_callers_while_its_reads_hang),
		RIG_FAULTY_TEST(the_end_sleeps_until_the_last_transfer_ended_and_one_of_two_threads_gets_the_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
