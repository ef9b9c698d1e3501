/* SPDX-License-Identifier: Apache-2.0 */
/* The heap's calls between real processes. */
#include "heap/heap_rig.h"

#define BYTES (3u * HEAP_PAGE + 512u)

static void put(struct tn_heap *heap, uint64_t key, uint64_t bytes, uint32_t owner)
{
	unsigned char *src = malloc(bytes);

	assert_non_null(src);
	heap_fill(src, bytes, key);
	assert_int_equal(tn_heap_put(heap, &key, sizeof(key), src, bytes, owner), 0);
	free(src);
}

static void *plan_ptr(struct tn_heap *heap, const struct tn_heap_plan *plan)
{
	return tn_heap_ptr(heap, plan->dst_rank, plan->payload_base);
}

static const void *meta_ptr(struct tn_heap *heap, const struct tn_heap_meta *meta)
{
	return tn_heap_ptr(heap, meta->owner_rank, meta->payload_off);
}

/* Rank 1: puts object 1 into rank 0's heap, and writes object 2 there in place. */
static int produce(void *arg)
{
	struct tn_heap *heap = heap_open(2, 1, NULL);
	struct tn_heap_plan plan;
	uint64_t key = 2;

	put(heap, 1, BYTES, 0);
	assert_int_equal(tn_heap_open_for_write(heap, &key, sizeof(key), BYTES, 0, 0, &plan), 0);
	assert_int_equal(plan.dst_rank, 0);
	assert_int_equal(plan.n_pages, 4);
	heap_fill(plan_ptr(heap, &plan), BYTES, key);
	assert_int_equal(tn_heap_commit(heap, &plan), 0);
	tn_heap_destroy(heap);
	return 0;
}

static void what_one_process_writes_another_reads_in_place_under_a_lease(void **state)
{
	struct tn_heap_opts o = heap_opts(64);
	unsigned char copy[BYTES];
	struct tn_heap_meta meta;
	struct tn_heap *heap;
	uint64_t key = 1, bytes;
	pid_t producer;

	heap_new_name();
	producer = heap_process(produce, NULL);
	heap = heap_open(2, 0, &o);
	heap_wait_until(tn_heap_get(heap, &key, sizeof(key), copy, sizeof(copy), &bytes) == 0);
	assert_int_equal(bytes, BYTES);
	assert_true(heap_is_filled(copy, bytes, key));
	key = 2;
	heap_wait_until(tn_heap_hold(heap, &key, sizeof(key), &meta) == 0);
	assert_int_equal(heap_join_process(producer), 0);
	assert_int_equal(meta.owner_rank, 0);
	assert_true(heap_is_filled(meta_ptr(heap, &meta), meta.bytes_total, key));
	assert_int_equal(tn_heap_remove(heap, &key, sizeof(key)), 0);
	assert_int_equal(tn_heap_get_location(heap, &key, sizeof(key), &meta), -ENOENT);
	for (uint64_t k = 100; k < 115; k++) /* all the rest of the heap */
		put(heap, k, 4 * HEAP_PAGE, 0);
	assert_true(heap_is_filled(meta_ptr(heap, &meta), meta.bytes_total, key));
	assert_int_equal(heap_stats(heap, 0).leases, 1);
	assert_int_equal(tn_heap_release(heap, &meta), 0);
	assert_int_equal(tn_heap_release(heap, &meta), -EINVAL);
	put(heap, 200, 4 * HEAP_PAGE, 0);
	tn_heap_destroy(heap);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_process_writes_another_reads_in_place_under_a_lease),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
