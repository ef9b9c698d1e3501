/* SPDX-License-Identifier: Apache-2.0 */
/* Events: in order, none twice, none torn, and whoever missed some is told. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "base/alloc_rig.h"
#include "block/events.h"
#include "tn_test.h"

static struct tn_events *ring(uint32_t capacity)
{
	struct tn_events *ev = NULL;

	assert_int_equal(tn_events_create(capacity, &tn_alloc_system, &ev), 0);
	return ev;
}

/* All fields follow from i, so that a torn event shows. */
static struct tn_block_event event(uint64_t i)
{
	return (struct tn_block_event){.time_ns = i * 3,
				       .key = {{i * 5, i * 7}},
				       .parent = {{i * 11, i * 13}},
				       .bytes = i * 17,
				       .depth = (uint32_t)i,
				       .space = (uint16_t)i,
				       .kind = i % 2,
				       .tier = TN_TIER_DISK};
}

static int is_event(const struct tn_block_event *e, uint64_t i)
{
	return e->sequence == i && e->time_ns == i * 3 && e->key.word[0] == i * 5 && e->key.word[1] == i * 7 &&
	       e->parent.word[0] == i * 11 && e->parent.word[1] == i * 13 && e->bytes == i * 17 &&
	       e->depth == (uint32_t)i && e->space == (uint16_t)i && e->kind == i % 2 && e->tier == TN_TIER_DISK;
}

static void raise_up_to(struct tn_events *ev, uint64_t last)
{
	while (tn_events_next(ev) <= last) {
		struct tn_block_event e = event(tn_events_next(ev));

		tn_events_raise(ev, &e);
	}
}

static void a_reader_gets_all_events_in_order(void **state)
{
	struct tn_events *ev = ring(8);
	struct tn_block_event out[8];
	uint64_t cursor = tn_events_next(ev), seen = 0;

	assert_int_equal(tn_events_read(ev, &cursor, out, 8), 0);
	for (uint64_t last = 5; last <= 50; last += 5) {
		long n;

		raise_up_to(ev, last);
		while ((n = tn_events_read(ev, &cursor, out, 3)) > 0)
			for (long i = 0; i < n; i++)
				assert_true(is_event(&out[i], ++seen));
		assert_int_equal(n, 0);
		assert_int_equal(seen, last);
	}
	tn_events_destroy(ev);
}

static void a_reader_that_was_away_too_long_is_told_once(void **state)
{
	struct tn_events *ev = ring(5); /* 8 */
	struct tn_block_event out[20];
	uint64_t cursor = tn_events_next(ev), late = cursor;

	raise_up_to(ev, 8);
	assert_int_equal(tn_events_read(ev, &cursor, out, 20), 8);
	assert_true(is_event(&out[0], 1));
	raise_up_to(ev, 9);
	assert_int_equal(tn_events_read(ev, &late, out, 20), -ESTALE);
	assert_int_equal(tn_error_last()->code, -ESTALE);
	assert_int_equal(late, 10);
	assert_int_equal(tn_events_read(ev, &late, out, 20), 0);
	raise_up_to(ev, 10);
	assert_int_equal(tn_events_read(ev, &late, out, 20), 1);
	assert_true(is_event(&out[0], 10));
	assert_int_equal(tn_events_read(ev, &cursor, out, 20), 2);
	tn_events_destroy(ev);
}

static void a_cursor_from_nowhere_is_refused(void **state)
{
	struct tn_events *ev = ring(4);
	struct tn_block_event out[4];
	uint64_t cursor = 0;

	assert_int_equal(tn_events_read(ev, &cursor, out, 4), -EINVAL);
	cursor = 2;
	assert_int_equal(tn_events_read(ev, &cursor, out, 4), -EINVAL);
	tn_events_destroy(ev);
	tn_events_destroy(NULL);
	assert_int_equal(tn_events_create(0, &tn_alloc_system, &ev), -EINVAL);
	assert_int_equal(tn_events_create((1u << 24) + 1, &tn_alloc_system, &ev), -EINVAL);
}

struct shared {
	struct tn_events *ev;
	uint64_t last;
	uint64_t wrong, seen, missed;
};

static void *reader(void *arg)
{
	struct shared *s = arg;
	struct tn_block_event out[16];
	uint64_t cursor = 1, expected = 1;

	while (cursor <= s->last) {
		long n = tn_events_read(s->ev, &cursor, out, 16);

		if (n == -ESTALE) {
			s->missed++;
			s->wrong += cursor <= expected;
			expected = cursor;
			continue;
		}
		for (long i = 0; i < n; i++)
			s->wrong += !is_event(&out[i], expected++);
		s->seen += (uint64_t)(n > 0 ? n : 0);
	}
	return NULL;
}

static void readers_on_other_threads_see_no_torn_event(void **state)
{
	struct shared s[2];
	pthread_t threads[2];
	struct tn_events *ev = ring(64);

	for (int i = 0; i < 2; i++) {
		s[i] = (struct shared){.ev = ev, .last = 200000};
		assert_int_equal(pthread_create(&threads[i], NULL, reader, &s[i]), 0);
	}
	/* Bursts that overrun the ring, and pauses in which readers catch up. */
	for (uint64_t last = 40; last <= 200000; last += 40)
		if (last % 1000)
			raise_up_to(ev, last);
		else
			sched_yield();
	raise_up_to(ev, 200000);
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(s[i].wrong, 0);
		assert_true(s[i].seen > 0 || s[i].missed > 0);
		print_message("# a reader saw %llu events and was told %llu times that it missed some\n",
			      (unsigned long long)s[i].seen, (unsigned long long)s[i].missed);
	}
	tn_events_destroy(ev);
}

static void create_fails_cleanly_at_every_allocation(void **state)
{
	struct tn_alloc_counter c;
	struct tn_events *ev = NULL;

	tn_alloc_counter_init(&c);
	for (size_t n = 0;; n++) {
		c.fail_after = n;
		if (tn_events_create(100, &c.alloc, &ev) == 0)
			break;
		assert_null(ev);
		assert_int_equal(c.live_bytes, 0);
	}
	tn_events_destroy(ev);
	assert_int_equal(c.live_bytes, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reader_gets_all_events_in_order),
		cmocka_unit_test(a_reader_that_was_away_too_long_is_told_once),
		cmocka_unit_test(a_cursor_from_nowhere_is_refused),
		cmocka_unit_test(readers_on_other_threads_see_no_torn_event),
		cmocka_unit_test(create_fails_cleanly_at_every_allocation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
