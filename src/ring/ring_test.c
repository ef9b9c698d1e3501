/* SPDX-License-Identifier: Apache-2.0 */
/* The life of IOCBs: getting, issuing, taking, finishing, cancelling, waiting; alone and by many threads. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "ring/ring_internal.h"
#include "tn_test.h"

static struct tn_ring *make(uint32_t depth, uint32_t ioctxs, uint64_t start)
{
	struct tn_ring_opts o;
	struct tn_ring *ring;

	tn_ring_opts_init(&o);
	o.depth = depth;
	o.ioctxs = ioctxs;
	o.start = start;
	assert_int_equal(tn_ring_create(&o, &ring), 0);
	return ring;
}

static uint32_t get(struct tn_ring *ring, uint32_t n)
{
	uint32_t id;

	assert_int_equal(tn_ring_get_iocb(ring, n, NULL, &id), 0);
	return id;
}

static void finish(struct tn_ring *ring, uint32_t id, int status)
{
	struct tn_iocb *cb = tn_ring_iocb(ring, id);

	cb->status = status;
	cb->failed = status ? 0 : TN_RING_NO_INDEX;
	cb->failures = status ? 1 : 0;
	tn_ring_finish(tn_ring_memory(ring), id);
	tn_ring_notify(ring);
}

static void a_bad_option_is_refused_with_its_value(void **state)
{
	struct tn_ring *ring = NULL;
	struct tn_ring_opts o;

	tn_ring_opts_init(&o);
	o.depth = 48;
	assert_int_equal(tn_ring_create(&o, &ring), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "48"));
	tn_ring_opts_init(&o);
	o.ioctxs = 2049;
	assert_int_equal(tn_ring_create(&o, &ring), -EINVAL);
	tn_ring_opts_init(&o);
	o.size--;
	assert_int_equal(tn_ring_create(&o, &ring), -EINVAL);
	assert_null(ring);
	tn_ring_destroy(NULL);
}

static void a_ring_without_memory_gives_everything_back(void **state)
{
	struct tn_alloc_counter a;
	struct tn_ring_opts o;
	struct tn_ring *ring;

	tn_ring_opts_init(&o);
	for (size_t n = 0;; n++) {
		tn_alloc_counter_init(&a);
		a.fail_after = n;
		if (tn_ring_make(&o, &a.alloc, &ring) == 0)
			break;
		assert_int_equal(a.live_bytes, 0);
	}
	tn_ring_destroy(ring);
	assert_int_equal(a.live_bytes, 0);
}

static void an_iocb_goes_round_many_times_over_the_wrap(void **state)
{
	struct tn_ring *ring = make(2, 3, UINT64_MAX - 5);
	struct tn_ring_shared *s = tn_ring_memory(ring);
	struct tn_ring_completion c[2];
	uint32_t id, taken, more;

	for (uint32_t round = 0; round < 40; round++) {
		id = get(ring, 1 + round % 3);
		assert_int_equal(tn_ring_iocb(ring, id)->count, 1 + round % 3);
		assert_int_equal(tn_ring_take(s, &taken), 0);
		tn_ring_ioctx(ring, id)[round % 3] = (struct tn_ioctx){tn_ioctx_disk(round, round * 7ull), 4096, round};
		assert_int_equal(tn_ring_issue(ring, &id, 1), 0);
		assert_int_equal(tn_ring_issue(ring, &id, 1), -EINVAL);
		assert_int_equal(tn_ring_put(ring, &id, 1), -EBUSY);
		assert_int_equal(tn_ring_result(ring, id, c), -EAGAIN);
		assert_int_equal(tn_ring_take(s, &taken), 1);
		assert_int_equal(taken, id);
		assert_int_equal(tn_ioctx_device(tn_ring_ioctx(ring, id)[round % 3].place), round);
		assert_int_equal(tn_ioctx_page(tn_ring_ioctx(ring, id)[round % 3].place), round * 7);
		assert_int_equal(tn_ring_poll(ring, c, 2), 0);
		finish(ring, id, round % 5 ? 0 : -EIO);
		assert_int_equal(tn_ring_poll(ring, c, 2), 1);
		assert_int_equal(c[0].id, id);
		assert_int_equal(c[0].status, round % 5 ? 0 : -EIO);
		assert_int_equal(tn_ring_put(ring, &id, 1), 0);
		assert_int_equal(tn_ring_put(ring, &id, 1), -EBUSY);
	}
	id = get(ring, 1);
	more = get(ring, 3);
	assert_int_not_equal(id, more);
	assert_int_equal(tn_ring_get_iocb(ring, 1, NULL, &taken), -EAGAIN);
	assert_int_equal(tn_ring_put(ring, &more, 1), 0);
	assert_int_equal(tn_ring_get_iocb(ring, 4, NULL, &taken), -EINVAL);
	assert_int_equal(tn_ring_get_iocb(ring, 0, NULL, &taken), -EINVAL);
	assert_int_equal(tn_ring_get_iocb(ring, 1, NULL, &taken), 0);
	tn_ring_destroy(ring);
}

static void an_iocb_waits_for_its_event(void **state)
{
	struct tn_ring *ring = make(4, 1, 0);
	struct tn_ring_after after = {3, 10};
	uint32_t id, taken;

	assert_int_equal(tn_ring_get_iocb(ring, 1, &(struct tn_ring_after){64, 0}, &id), -EINVAL);
	assert_int_equal(tn_ring_get_iocb(ring, 1, &after, &id), 0);
	assert_int_equal(tn_ring_issue(ring, &id, 1), 0);
	assert_int_equal(tn_ring_take(tn_ring_memory(ring), &taken), 1);
	assert_false(tn_ring_may_start(tn_ring_memory(ring), tn_ring_iocb(ring, id)));
	assert_int_equal(tn_ring_signal(ring, 3, 9), 0);
	assert_false(tn_ring_may_start(tn_ring_memory(ring), tn_ring_iocb(ring, id)));
	assert_int_equal(tn_ring_signal(ring, 3, 11), 0);
	assert_int_equal(tn_ring_signal(ring, 3, 2), 0);
	assert_true(tn_ring_may_start(tn_ring_memory(ring), tn_ring_iocb(ring, id)));
	assert_int_equal(tn_ring_signal(ring, 64, 1), -EINVAL);
	tn_ring_destroy(ring);
}

static void cancel_finishes_what_nobody_has_taken_and_stops_the_rest(void **state)
{
	struct tn_ring *ring = make(4, 1, 0);
	struct tn_ring_shared *s = tn_ring_memory(ring);
	struct tn_ring_completion c[4];
	uint32_t ids[4], taken, more;

	for (uint32_t i = 0; i < 4; i++)
		ids[i] = get(ring, 1);
	tn_ring_iocb(ring, ids[3])->flags |= TN_IOCB_QUIET;
	assert_int_equal(tn_ring_issue(ring, ids, 4), 0);
	assert_int_equal(tn_ring_take(s, &taken), 1);
	assert_int_equal(taken, ids[0]);
	assert_int_equal(tn_ring_cancel(ring, ids, 4), 3);
	assert_int_equal(tn_ring_cancel(ring, ids, 4), 0);
	assert_int_equal(tn_ring_iocb(ring, ids[0])->cancel, 1);
	assert_int_equal(tn_ring_wait(ring, ids + 1, 3, UINT64_MAX), 0);
	assert_int_equal(tn_ring_poll(ring, c, 4), 2);
	assert_int_equal(c[0].status, -ECANCELED);
	assert_int_equal(c[1].failures, 1);
	assert_int_equal(tn_ring_result(ring, ids[3], c), 0);
	assert_int_equal(c[0].status, -ECANCELED);
	/* The queue still names them: they are free when it has come to them. */
	assert_int_equal(tn_ring_put(ring, ids + 1, 2), 0);
	assert_int_equal(tn_ring_get_iocb(ring, 1, NULL, &more), -EAGAIN);
	assert_int_equal(tn_ring_take(s, &taken), 0);
	assert_int_equal(tn_ring_put(ring, ids + 3, 1), 0);
	for (uint32_t i = 0; i < 3; i++)
		get(ring, 1);
	assert_int_equal(tn_ring_get_iocb(ring, 1, NULL, &more), -EAGAIN);
	tn_ring_destroy(ring);
}

static void a_wait_ends_at_its_deadline(void **state)
{
	struct tn_ring *ring = make(2, 1, 0);
	uint32_t id = get(ring, 1);
	uint64_t start = tn_now_ns(&tn_clock_system);

	assert_int_equal(tn_ring_wait(ring, &id, 1, 0), -EINVAL);
	assert_int_equal(tn_ring_issue(ring, &id, 1), 0);
	assert_int_equal(tn_ring_wait(ring, &id, 1, 0), -ETIMEDOUT);
	assert_int_equal(tn_ring_wait(ring, &id, 1, start + 20000000), -ETIMEDOUT);
	assert_true(tn_now_ns(&tn_clock_system) >= start + 20000000);
	tn_ring_destroy(ring);
}

/* ---- many threads ------------------------------------------------------------------------------------ */

#define ROUNDS (tn_test_soak() ? 200000u : 10000u)

struct crowd {
	struct tn_ring *ring;
	uint32_t stop;
	uint64_t taken, cancelled, collected;
	uint64_t seed;
};

static void *executor(void *arg)
{
	struct crowd *c = arg;
	uint32_t id;

	while (!__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE)) {
		if (!tn_ring_take(tn_ring_memory(c->ring), &id)) {
			sched_yield();
			continue;
		}
		/* What the submitter wrote has come with it; what we write goes back. */
		for (uint32_t i = 0; i < tn_ring_iocb(c->ring, id)->count; i++) {
			struct tn_ioctx *x = &tn_ring_ioctx(c->ring, id)[i];

			assert_true(x->place == tn_ioctx_disk(x->entry % 256, x->length));
			x->length = ~x->length;
		}
		__atomic_add_fetch(&c->taken, 1, __ATOMIC_RELAXED);
		finish(c->ring, id, 0);
	}
	return NULL;
}

static void *poller(void *arg)
{
	struct crowd *c = arg;
	struct tn_ring_completion done[4];
	uint32_t n;

	while (!__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE)) {
		n = tn_ring_poll(c->ring, done, 4);
		for (uint32_t i = 0; i < n; i++) {
			if (done[i].status == 0)
				assert_true(tn_ring_ioctx(c->ring, done[i].id)->length > UINT32_MAX / 2);
			assert_int_equal(tn_ring_put(c->ring, &done[i].id, 1), 0);
		}
		__atomic_add_fetch(&c->collected, n, __ATOMIC_RELAXED);
		if (n == 0)
			sched_yield();
	}
	return NULL;
}

static void *submitter(void *arg)
{
	struct crowd *c = arg;
	struct tn_ring_completion done;
	struct tn_rng rng;

	tn_rng_seed(&rng, __atomic_add_fetch(&c->seed, 1, __ATOMIC_RELAXED));
	for (uint32_t round = 0; round < ROUNDS;) {
		uint32_t id, n = 1 + tn_rng_below(&rng, 4);
		int quiet = tn_rng_below(&rng, 2);

		if (tn_ring_get_iocb(c->ring, n, NULL, &id)) {
			sched_yield();
			continue;
		}
		round++;
		for (uint32_t i = 0; i < n; i++)
			tn_ring_ioctx(c->ring, id)[i] = (struct tn_ioctx){tn_ioctx_disk((round + i) % 256, round), round, round + i};
		tn_ring_iocb(c->ring, id)->flags |= quiet ? TN_IOCB_QUIET : 0;
		assert_int_equal(tn_ring_issue(c->ring, &id, 1), 0);
		if (!quiet)
			continue; /* the pollers' */
		if (tn_rng_below(&rng, 3) == 0)
			__atomic_add_fetch(&c->cancelled, tn_ring_cancel(c->ring, &id, 1), __ATOMIC_RELAXED);
		assert_int_equal(tn_test_ended(tn_ring_wait(c->ring, &id, 1, tn_test_deadline())), 0);
		assert_int_equal(tn_ring_result(c->ring, id, &done), 0);
		assert_int_equal(tn_ring_put(c->ring, &id, 1), 0);
		__atomic_add_fetch(&c->collected, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void many_submitters_executors_and_pollers_lose_nothing(void **state)
{
	enum { EACH = 3 };
	struct crowd c = {.ring = make(8, 4, UINT64_MAX - 1000), .seed = tn_test_seed()};
	pthread_t submit[EACH], other[2 * EACH];

	for (int i = 0; i < EACH; i++) {
		assert_int_equal(pthread_create(&other[i], NULL, executor, &c), 0);
		assert_int_equal(pthread_create(&other[EACH + i], NULL, poller, &c), 0);
	}
	for (int i = 0; i < EACH; i++)
		assert_int_equal(pthread_create(&submit[i], NULL, submitter, &c), 0);
	for (int i = 0; i < EACH; i++)
		pthread_join(submit[i], NULL);
	while (__atomic_load_n(&c.collected, __ATOMIC_RELAXED) < EACH * (uint64_t)ROUNDS)
		sched_yield();
	__atomic_store_n(&c.stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2 * EACH; i++)
		pthread_join(other[i], NULL);
	assert_int_equal(c.taken + c.cancelled, EACH * (uint64_t)ROUNDS);
	/* A cancelled one that was put back becomes free when the queue that still names it is emptied. */
	assert_false(tn_ring_take(tn_ring_memory(c.ring), &(uint32_t){0}));
	for (uint32_t i = 0; i < 8; i++) /* all are back, none is there twice */
		get(c.ring, 1);
	assert_int_equal(tn_ring_get_iocb(c.ring, 1, NULL, &(uint32_t){0}), -EAGAIN);
	tn_ring_destroy(c.ring);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_bad_option_is_refused_with_its_value),
		cmocka_unit_test(a_ring_without_memory_gives_everything_back),
		cmocka_unit_test(an_iocb_goes_round_many_times_over_the_wrap),
		cmocka_unit_test(an_iocb_waits_for_its_event),
		cmocka_unit_test(cancel_finishes_what_nobody_has_taken_and_stops_the_rest),
		cmocka_unit_test(a_wait_ends_at_its_deadline),
		cmocka_unit_test(many_submitters_executors_and_pollers_lose_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
