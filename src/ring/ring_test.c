/* SPDX-License-Identifier: Apache-2.0 */
/* The life of IOCBs: getting, issuing, taking, finishing, cancelling; alone, and by a host and an executor on two threads. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/alloc_rig.h"
#include "base/error.h"
#include "base/rng.h"
#include "ring/ring.h"
#include "tn_test.h"

static struct tn_ring *make(uint32_t depth, uint32_t ioctxs, uint64_t start)
{
	struct tn_ring_opts o = {{.depth = depth, .ioctxs = ioctxs, .events = 64, .start = start}, .lists = 1};
	struct tn_ring *ring;

	assert_int_equal(tn_ring_create(&o, &tn_alloc_system, &ring), 0);
	return ring;
}

static uint32_t get(struct tn_ring *ring, uint32_t n)
{
	uint32_t id;

	assert_int_equal(tn_ring_get_iocb(ring, n, NULL, &id), 0);
	return id;
}

static void finish(const struct tn_ring_view *v, uint32_t id, int status)
{
	struct tn_iocb_result *res = tn_ring_result_of(v, id);

	res->status = status;
	res->failed = status ? 0 : TN_RING_NO_INDEX;
	res->failures = status ? 1 : 0;
	tn_ring_finish(v, id);
}

static void begin(const struct tn_ring_view *v, uint32_t id)
{
	tn_ring_begin(v, id, tn_ring_iocb_of(v, id)->count, tn_ring_iocb_of(v, id)->sequence);
}

static void a_bad_option_is_refused_with_its_value(void **state)
{
	struct tn_ring_opts o = tn_ring_opts_default();
	struct tn_ring *ring = NULL;

	o.memory.depth = 48;
	assert_int_equal(tn_ring_create(&o, &tn_alloc_system, &ring), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "48"));
	o = tn_ring_opts_default();
	o.memory.ioctxs = 2049;
	assert_int_equal(tn_ring_create(&o, &tn_alloc_system, &ring), -EINVAL);
	o = tn_ring_opts_default();
	o.lists = 0;
	assert_int_equal(tn_ring_create(&o, &tn_alloc_system, &ring), -EINVAL);
	assert_null(ring);
	tn_ring_destroy(NULL);
}

static void a_ring_without_memory_gives_everything_back(void **state)
{
	struct tn_ring_opts o = tn_ring_opts_default();
	struct tn_alloc_counter a;
	struct tn_ring *ring;

	for (size_t n = 0;; n++) {
		tn_alloc_counter_init(&a);
		a.fail_after = n;
		if (tn_ring_create(&o, &a.alloc, &ring) == 0)
			break;
		assert_int_equal(a.live_bytes, 0);
	}
	tn_ring_destroy(ring);
	assert_int_equal(a.live_bytes, 0);
}

static void an_iocb_goes_round_many_times_over_the_wrap(void **state)
{
	struct tn_ring *ring = make(2, 3, UINT64_MAX - 5);
	const struct tn_ring_view *v = &ring->view;
	struct tn_ring_completion c[2];
	uint32_t id, taken, more;

	for (uint32_t round = 0; round < 40; round++) {
		id = get(ring, 1 + round % 3);
		assert_int_equal(tn_ring_iocb(ring, id)->count, 1 + round % 3);
		assert_int_equal(tn_ring_take(v, &taken), 0);
		tn_ring_ioctx(ring, id)[round % 3] = (struct tn_ioctx){tn_ioctx_disk(round, round * 7ull), 4096, round};
		assert_int_equal(tn_ring_result(ring, id, c), -EINVAL);
		assert_int_equal(tn_ring_issue(ring, &id, 1), 0);
		assert_int_equal(tn_ring_issue(ring, &id, 1), -EINVAL);
		assert_int_equal(tn_ring_put(ring, &id, 1), -EBUSY);
		assert_int_equal(tn_ring_result(ring, id, c), -EAGAIN);
		assert_null(tn_ring_statuses(ring, id)); /* those of the round before are not taken for this one's */
		assert_int_equal(tn_ring_ended(ring, id), 0);
		assert_int_equal(tn_ring_take(v, &taken), 1);
		assert_int_equal(taken, id);
		begin(v, id);
		assert_int_equal(tn_ring_statuses(ring, id)[round % 3], TN_RING_PENDING);
		tn_ring_statuses_of(v, id)[round % 3] = 0;
		tn_ring_result_of(v, id)->ended = 1;
		assert_int_equal(tn_ring_ended(ring, id), 1);
		assert_int_equal(tn_ioctx_device(tn_ring_ioctx(ring, id)[round % 3].place), round);
		assert_int_equal(tn_ioctx_page(tn_ring_ioctx(ring, id)[round % 3].place), round * 7);
		assert_int_equal(tn_ring_poll(ring, c, 2), 0);
		finish(v, id, round % 5 ? 0 : -EIO);
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
	assert_int_equal(tn_ring_take(&ring->view, &taken), 1);
	assert_false(tn_ring_may_start(&ring->view, 3, 10));
	assert_int_equal(tn_ring_signal(ring, 3, 9), 0);
	assert_false(tn_ring_may_start(&ring->view, 3, 10));
	assert_int_equal(tn_ring_signal(ring, 3, 11), 0);
	assert_int_equal(tn_ring_signal(ring, 3, 2), 0);
	assert_true(tn_ring_may_start(&ring->view, 3, 10));
	assert_int_equal(tn_ring_signal(ring, 64, 1), -EINVAL);
	tn_ring_destroy(ring);
}

static void a_cancel_is_a_wish_that_ends_with_the_iocb(void **state)
{
	struct tn_ring *ring = make(2, 1, 0);
	struct tn_ring_completion c;
	uint32_t ids[2], taken = 0;

	for (uint32_t i = 0; i < 2; i++)
		ids[i] = get(ring, 1);
	tn_ring_cancel(ring, ids, 2); /* not issued */
	assert_int_equal(tn_ring_iocb(ring, ids[0])->cancel, 0);
	assert_int_equal(tn_ring_issue(ring, ids, 1), 0);
	tn_ring_cancel(ring, ids, 2);
	assert_int_equal(tn_ring_iocb(ring, ids[0])->cancel, 1);
	assert_int_equal(tn_ring_result(ring, ids[0], &c), -EAGAIN);
	assert_int_equal(tn_ring_take(&ring->view, &taken), 1);
	begin(&ring->view, taken);
	finish(&ring->view, taken, -ECANCELED);
	assert_int_equal(tn_ring_poll(ring, &c, 1), 1);
	assert_int_equal(c.status, -ECANCELED);
	assert_int_equal(tn_ring_put(ring, ids, 1), 0);
	assert_int_equal(get(ring, 1), ids[0]);
	assert_int_equal(tn_ring_iocb(ring, ids[0])->cancel, 0);
	tn_ring_destroy(ring);
}

/* Ids come from the other side of the shared memory. */
static void ids_of_a_broken_executor_are_passed_by(void **state)
{
	struct tn_ring *ring = make(4, 1, 0);
	const struct tn_ring_view *v = &ring->view;
	uint32_t id = get(ring, 1), held = get(ring, 1);
	struct tn_ring_completion c[4];

	assert_int_equal(tn_ring_issue(ring, &id, 1), 0);
	tn_ring_finish(v, UINT32_MAX);
	tn_ring_finish(v, held);
	tn_ring_finish(v, id);
	tn_ring_finish(v, id); /* twice */
	assert_int_equal(tn_ring_poll(ring, c, 4), 1);
	assert_int_equal(c[0].id, id);
	assert_int_equal(tn_ring_poll(ring, c, 4), 0);
	*v->finished += UINT64_C(1) << 60; /* as if there were so many */
	assert_int_equal(tn_ring_poll(ring, c, 4), 0);
	assert_int_equal(tn_ring_put(ring, &held, 1), 0);
	tn_ring_destroy(ring);
}

/* What it had finished is reported; what it had only begun begins again, in the order of issue, and nothing it said of that counts. */
static void the_next_executor_gets_what_a_dead_one_left(void **state)
{
	struct tn_ring *ring = make(4, 1, UINT64_MAX - 1);
	const struct tn_ring_view *v = &ring->view;
	struct tn_ring_completion c;
	uint32_t ids[3], taken = 0;

	for (uint32_t i = 0; i < 3; i++)
		ids[i] = get(ring, 1);
	assert_int_equal(tn_ring_issue(ring, (uint32_t[]){ids[2], ids[0], ids[1]}, 3), 0);
	for (uint32_t i = 0; i < 2; i++) { /* takes ids[2] and ids[0], and finishes the latter */
		assert_int_equal(tn_ring_take(v, &taken), 1);
		begin(v, taken);
		tn_ring_statuses_of(v, taken)[0] = 0;
	}
	finish(v, taken, 0);
	assert_int_equal(tn_ring_poll(ring, &c, 1), 1);
	assert_int_equal(c.id, ids[0]);
	tn_ring_cancel(ring, &ids[1], 1);
	assert_int_equal(tn_ring_statuses(ring, ids[2])[0], 0);
	assert_int_equal(tn_ring_repeat(ring), 2);
	assert_null(tn_ring_statuses(ring, ids[2]));
	for (uint32_t i = 2; i > 0; i--) {
		assert_int_equal(tn_ring_take(v, &taken), 1);
		assert_int_equal(taken, ids[i]);
		assert_int_equal(tn_ring_iocb_of(v, taken)->cancel, i == 1); /* a wish outlives the executor */
		begin(v, taken);
		finish(v, taken, 0);
	}
	assert_int_equal(tn_ring_take(v, &taken), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(tn_ring_poll(ring, &c, 1), 1);
	assert_int_equal(tn_ring_poll(ring, &c, 1), 0);
	tn_ring_destroy(ring);
}

/* ---- two threads -------------------------------------------------------------------------------------- */

#define ROUNDS (tn_test_soak() ? 2000000u : 40000u)

struct pair {
	struct tn_ring *ring;
	uint32_t stop;
	uint64_t taken, cancelled;
	uint64_t seed;
};

/* Ends its IOCBs in any order, and those that were cancelled as such. */
static void *executor(void *arg)
{
	struct pair *p = arg;
	const struct tn_ring_view *v = &p->ring->view;
	uint32_t held[8], n = 0, id;
	struct tn_rng rng;

	tn_rng_seed(&rng, p->seed);
	while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE) || n) {
		if (n < 8 && tn_ring_take(v, &id)) {
			begin(v, id);
			held[n++] = id;
			p->taken++;
			continue;
		}
		if (n == 0) {
			sched_yield();
			continue;
		}
		id = tn_rng_below(&rng, n);
		n--;
		if (tn_ring_load32(&tn_ring_iocb_of(v, held[id])->cancel)) {
			p->cancelled++;
			finish(v, held[id], -ECANCELED);
		} else {
			/* What the host wrote has come with the id; what we write goes back. */
			for (uint32_t i = 0; i < tn_ring_iocb_of(v, held[id])->count; i++) {
				struct tn_ioctx x = tn_ring_ioctx_of(v, held[id])[i];

				assert_true(x.place == tn_ioctx_disk(x.entry % 256, x.length));
				tn_ring_sums_of(v, held[id])[i] = ~x.place;
			}
			finish(v, held[id], 0);
		}
		held[id] = held[n];
	}
	return NULL;
}

static uint32_t collect(struct tn_ring *ring, uint64_t *cancelled)
{
	struct tn_ring_completion done[4];
	uint32_t n = tn_ring_poll(ring, done, 4);

	for (uint32_t i = 0; i < n; i++) {
		const struct tn_iocb *cb = tn_ring_iocb(ring, done[i].id);

		assert_non_null(tn_ring_statuses(ring, done[i].id));
		*cancelled += done[i].status != 0;
		for (uint32_t k = 0; k < cb->count && done[i].status == 0; k++)
			assert_true(tn_ring_sums(ring, done[i].id)[k] == ~tn_ring_ioctx(ring, done[i].id)[k].place);
		assert_int_equal(tn_ring_put(ring, &done[i].id, 1), 0);
	}
	return n;
}

static void a_host_and_an_executor_lose_nothing(void **state)
{
	struct pair p = {.ring = make(8, 4, UINT64_MAX - 1000), .seed = tn_test_seed()};
	uint64_t cancelled = 0, collected = 0, deadline = tn_test_deadline();
	struct tn_rng rng;
	pthread_t thread;

	tn_rng_seed(&rng, tn_test_seed() + 1);
	assert_int_equal(pthread_create(&thread, NULL, executor, &p), 0);
	for (uint32_t round = 0; round < ROUNDS;) {
		uint32_t id, n = 1 + tn_rng_below(&rng, 4);

		collected += collect(p.ring, &cancelled);
		if (tn_ring_get_iocb(p.ring, n, NULL, &id)) {
			assert_true(tn_test_now() < deadline); /* none came back for a minute */
			sched_yield();
			continue;
		}
		deadline = tn_test_deadline();
		round++;
		for (uint32_t i = 0; i < n; i++)
			tn_ring_ioctx(p.ring, id)[i] = (struct tn_ioctx){tn_ioctx_disk((round + i) % 256, round), round, round + i};
		assert_int_equal(tn_ring_issue(p.ring, &id, 1), 0);
		if (tn_rng_below(&rng, 3) == 0)
			tn_ring_cancel(p.ring, &id, 1);
	}
	while (collected < ROUNDS) {
		assert_true(tn_test_now() < deadline);
		collected += collect(p.ring, &cancelled);
		sched_yield();
	}
	__atomic_store_n(&p.stop, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	assert_int_equal(p.taken, ROUNDS);
	assert_int_equal(p.cancelled, cancelled);
	for (uint32_t i = 0; i < 8; i++) /* all are back, none is there twice */
		get(p.ring, 1);
	assert_int_equal(tn_ring_get_iocb(p.ring, 1, NULL, &(uint32_t){0}), -EAGAIN);
	tn_ring_destroy(p.ring);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_bad_option_is_refused_with_its_value),
		cmocka_unit_test(a_ring_without_memory_gives_everything_back),
		cmocka_unit_test(an_iocb_goes_round_many_times_over_the_wrap),
		cmocka_unit_test(an_iocb_waits_for_its_event),
		cmocka_unit_test(a_cancel_is_a_wish_that_ends_with_the_iocb),
		cmocka_unit_test(ids_of_a_broken_executor_are_passed_by),
		cmocka_unit_test(the_next_executor_gets_what_a_dead_one_left),
		cmocka_unit_test(a_host_and_an_executor_lose_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
