/* SPDX-License-Identifier: Apache-2.0 */
/* Puts into extents that their producer claims by itself, while the master admits the object. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "heap/heap_rig.h"

#define BYTES (2u * HEAP_PAGE)
#define RACES (tn_test_soak() ? 20000u : 400u)

/* Free extents of the size in rank 0's heap. */
static void leave_free(struct tn_heap *heap, uint32_t n)
{
	for (uint64_t k = 1000; k < 1000 + n; k++)
		assert_int_equal(heap_put(heap, k, BYTES, 0, 0), 0);
	for (uint64_t k = 1000; k < 1000 + n; k++)
		assert_int_equal(tn_heap_remove(heap, &k, 8), 0);
}

/* How often a producer of rank 0's heap has told the master of a slot. */
static uint32_t announces(struct tn_heap *heap)
{
	return tn_heap_load32(&((struct tn_heap_ctl *)tn_heap_ptr(heap, 0, 0))->ann_head);
}

/* Rank 1 of a heap that rank 0 has made, with free extents. */
static struct tn_heap *join_with_free(struct tn_heap **master, uint32_t pages, uint32_t free_extents)
{
	struct tn_heap_opts o = heap_opts(pages);

	heap_new_name();
	*master = heap_open(2, 0, &o);
	leave_free(*master, free_extents);
	return heap_open(2, 1, NULL);
}

static void a_put_into_a_free_extent_is_found_when_it_returns(void **state)
{
	struct tn_heap *master, *heap = join_with_free(&master, 16, 4);
	uint32_t before = announces(heap);

	for (uint64_t k = 0; k < 4; k++) {
		assert_int_equal(heap_put(heap, k, BYTES, 0, 0), 0);
		assert_int_equal(heap_get(master, k, BYTES), 0);
		assert_int_equal(heap_put(heap, k, BYTES, 0, 0), -EEXIST);
	}
	assert_int_equal(announces(heap) - before, 4);
	assert_int_equal(heap_stats(heap, 0).ready_count, 4);
	assert_int_equal(heap_stats(heap, 1).bytes_tx, 4 * BYTES);
	tn_heap_destroy(heap);
	tn_heap_destroy(master);
}

static void puts_above_the_watermark_evict(void **state)
{
	struct tn_heap_opts o = heap_opts(40);
	struct tn_heap *master, *heap;
	struct tn_heap_stats st;

	o.water_hi = 90;
	o.water_lo = 50;
	heap_new_name();
	master = heap_open(2, 0, &o);
	leave_free(master, 18);
	assert_int_equal(heap_put(master, 500, 2 * BYTES, 0, TN_HEAP_PIN), 0); /* in the last pages: now there are more free extents than may be used */
	heap = heap_open(2, 1, NULL);
	for (uint64_t k = 0; k < 100; k++) {
		assert_int_equal(heap_put(heap, k, BYTES, 0, 0), 0);
		st = heap_stats(heap, 0);
		assert_true(st.heap_used <= 36 * HEAP_PAGE + BYTES); /* what was claimed at the mark, and is given up */
	}
	assert_true(st.evictions >= 80 && st.evictions + st.ready_count == 101);
	assert_true(announces(heap) > 50);
	tn_heap_destroy(heap);
	tn_heap_destroy(master);
}

/* Shared by the processes of a race. */
struct race {
	_Atomic uint64_t turn, ended[2]; /* keys below may be put; were put by that racer */
	uint64_t won[2];
};

struct racer {
	struct race *race;
	uint32_t i;
};

/* Puts each key when its turn comes, as the other racer does. */
static int run_race(void *arg)
{
	struct racer *r = arg;
	struct tn_heap *heap = heap_open(3, 1 + r->i, NULL);

	for (uint64_t k = 0; k < RACES; k++) {
		int rc;

		while (r->race->turn <= k)
			sched_yield();
		rc = heap_put(heap, k, BYTES, 0, 0);
		assert_true(rc == 0 || rc == -EEXIST);
		r->race->won[r->i] += rc == 0;
		r->race->ended[r->i]++;
	}
	tn_heap_destroy(heap);
	return 0;
}

static void of_two_puts_of_a_key_at_once_one_is_refused(void **state)
{
	struct race *race = mmap(NULL, sizeof(*race), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct racer racer[2] = {{race, 0}, {race, 1}};
	struct tn_heap_opts o = heap_opts(64);
	struct tn_heap *heap;
	pid_t pid[2];

	assert_ptr_not_equal(race, MAP_FAILED);
	heap_new_name();
	for (uint32_t i = 0; i < 2; i++)
		pid[i] = heap_process(run_race, &racer[i]);
	heap = heap_open(3, 0, &o);
	leave_free(heap, 8);
	for (uint64_t k = 0; k < RACES; k++) {
		race->turn = k + 1;
		heap_wait_until(heap_get(heap, k, BYTES) == 0);
		heap_wait_until(race->ended[0] > k && race->ended[1] > k);
		assert_int_equal(race->won[0] + race->won[1], k + 1);
		assert_int_equal(heap_get(heap, k, BYTES), 0);
		assert_int_equal(tn_heap_remove(heap, &k, 8), 0);
	}
	assert_int_equal(heap_join_process(pid[0]) + heap_join_process(pid[1]), 0);
	heap_wait_until(heap_stats(heap, 0).heap_used == 0);
	tn_heap_destroy(heap);
	munmap(race, sizeof(*race));
}

/* Rank 0 of three, with two free extents, until it is killed. */
static int lead(void *arg)
{
	struct tn_heap_opts o = heap_opts(16);
	struct tn_heap *heap = heap_open(3, 0, &o);

	leave_free(heap, 3);
	assert_int_equal(heap_put(heap, 500, BYTES, 0, 0), 0);
	pause();
	return 0;
}

/* Joins, as rank 1, a heap whose master is a process of its own. */
static struct tn_heap *join_other(pid_t *master)
{
	struct tn_heap *heap;

	heap_new_name();
	*master = heap_process(lead, NULL);
	heap = heap_open(3, 1, NULL);
	heap_wait_until(heap_get(heap, 500, BYTES) == 0);
	return heap;
}

static void *put_seven(void *heap)
{
	return (void *)(intptr_t)heap_put(heap, 7, BYTES, 0, 0);
}

static void of_two_puts_that_the_master_hears_of_at_once_the_first_counts(void **state)
{
	struct tn_heap *heap[2];
	pthread_t thread[2];
	uint32_t before;
	void *rc[2];
	pid_t master;
	int status;

	heap[0] = join_other(&master);
	heap[1] = heap_open(3, 2, NULL);
	before = announces(heap[0]);
	kill(master, SIGSTOP);
	assert_int_equal(waitpid(master, &status, WUNTRACED), master);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, put_seven, heap[i]), 0);
	heap_wait_until(announces(heap[0]) == before + 2); /* both have found no object of the key */
	kill(master, SIGCONT);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(pthread_join(thread[i], &rc[i]), 0);
	assert_int_equal((intptr_t)rc[0] + (intptr_t)rc[1], -EEXIST);
	assert_int_equal(heap_get(heap[0], 7, BYTES), 0);
	heap_wait_until(heap_stats(heap[0], 0).heap_used == 2 * BYTES);
	assert_int_equal(heap_stats(heap[0], 0).ready_count, 2);
	tn_heap_destroy(heap[1]);
	tn_heap_destroy(heap[0]);
	heap_kill(master);
}

static void a_put_without_a_master_fails_and_leaves_nothing(void **state)
{
	pid_t master;
	struct tn_heap *heap = join_other(&master);

	heap_kill(master);
	assert_int_equal(heap_put(heap, 2, BYTES, 0, 0), -ESHUTDOWN);
	assert_int_equal(heap_get(heap, 2, BYTES), -ENOENT);
	assert_int_equal(tn_heap_take_over(heap), 0);
	heap_wait_until(heap_stats(heap, 0).heap_used == BYTES);
	assert_int_equal(heap_put(heap, 2, BYTES, 0, 0), 0);
	tn_heap_destroy(heap);
}

static void what_is_given_up_is_free_for_the_next_plan(void **state)
{
	struct tn_heap *master, *heap = join_with_free(&master, 8, 4);
	struct tn_heap_plan plan;

	for (uint64_t k = 0; k < 40; k++) {
		assert_int_equal(tn_heap_open_for_write(heap, &k, 8, BYTES, 0, 0, &plan), 0);
		assert_int_equal(tn_heap_abandon(heap, &plan), 0);
	}
	assert_int_equal(heap_stats(heap, 0).evictions, 0);
	tn_heap_destroy(heap);
	tn_heap_destroy(master);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_put_into_a_free_extent_is_found_when_it_returns),
		cmocka_unit_test(puts_above_the_watermark_evict),
		cmocka_unit_test(of_two_puts_of_a_key_at_once_one_is_refused),
		cmocka_unit_test(of_two_puts_that_the_master_hears_of_at_once_the_first_counts),
		cmocka_unit_test(a_put_without_a_master_fails_and_leaves_nothing),
		cmocka_unit_test(what_is_given_up_is_free_for_the_next_plan),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
