/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks between the pools of two agents: layouts travel as bytes, the mapped lists move what both ranks have. */
#include <string.h>

#include "xfer/layout_rig.h"

/* TP 4 with pages of 16 tokens reads what TP 8 has in pages of 8, in another order. */
static void a_rank_of_tp_4_reads_its_heads_from_ranks_of_tp_8(void **state)
{
	static const uint32_t mine[] = {3, 9, 4}, theirs[] = {0, 1, 2, 9, 8, 15};
	struct side me = {.pages = mine, .npages = 3}, them = {.pages = theirs, .npages = 6};
	struct tn_xfer_run local[RUNS_MAX], remote[RUNS_MAX];
	struct tn_xfer_list *list[2];
	struct tn_xfer_request *q;
	unsigned char bytes[4096];
	struct tn_pool_share share;
	uint64_t table[64];
	int64_t n;

	side_new(&me, "tp4", 4, 1, 16, TN_POOL_PLANES_PAGES, TN_PAGE_NHD);
	for (uint32_t rank = 2; rank < 4; rank++) { /* heads 2 and 3 */
		side_new(&them, "tp8", 8, rank, 8, TN_POOL_CROSS_LAYER, TN_PAGE_HND);
		for (uint32_t i = 0; i < POOL_BYTES; i++)
			them.bytes[i] = (unsigned char)(i * 7 + i / 251 + rank);
		exchange_metadata(&them, &me);
		n = tn_pool_share_store(&them.share, bytes, sizeof(bytes));
		assert_in_range(n, 1, sizeof(bytes));
		assert_in_range(tn_pool_share_load(bytes, (size_t)n, &share, table, 64), 1, 64);
		n = tn_xfer_layout_map(&me.share, &share, &(struct tn_pool_pages){mine, theirs, 3, 6, TOKENS}, local, remote, RUNS_MAX);
		tn_test_ended((int)(n < 0 ? n : 0));
		assert_in_range(n, 1, LAYERS * 2 * 6);
		assert_int_equal(tn_xfer_list_create(me.agent, NULL, TN_XFER_DRAM, local, (uint32_t)n, &list[0]), 0);
		assert_int_equal(tn_xfer_list_create(me.agent, "tp8", TN_XFER_DRAM, remote, (uint32_t)n, &list[1]), 0);
		assert_int_equal(tn_test_ended(tn_xfer_request_create(me.agent, TN_XFER_READ, list[0], NULL, list[1], NULL, 0, NULL, &q)), 0);
		assert_int_equal(tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), 0);
		assert_int_equal(tn_xfer_wait(q, tn_test_deadline()), 0);
		for (uint32_t l = 0; l < LAYERS; l++)
			for (uint32_t p = 0; p < 2; p++)
				for (uint32_t t = 0; t < TOKENS; t++)
					assert_memory_equal(at(&me, l, p, rank, t), at(&them, l, p, rank, t), DIM_BYTES);
		tn_xfer_release(q);
		tn_xfer_list_destroy(list[0]);
		tn_xfer_list_destroy(list[1]);
		assert_int_equal(tn_xfer_invalidate(me.agent, "tp8"), 0);
		side_free(&them);
	}
	side_free(&me);
}

static void only_the_number_of_runs_is_told_if_the_arrays_are_short(void **state)
{
	static const uint32_t pages[] = {0, 2};
	struct side me = {.pages = pages, .npages = 2};
	struct tn_pool_pages both = {pages, pages, 2, 2, 32};
	struct tn_xfer_run local = {.bytes = 77}, remote = {.bytes = 77};

	side_new(&me, "one", 1, 0, 16, TN_POOL_PLANES_PAGES, TN_PAGE_NHD);
	assert_int_equal(tn_xfer_layout_map(&me.share, &me.share, &both, NULL, NULL, 0), 2);
	assert_int_equal(tn_xfer_layout_map(&me.share, &me.share, &both, &local, &remote, 1), 2);
	assert_int_equal(local.bytes, 77);
	assert_int_equal(tn_xfer_layout_map(&me.share, &me.share, &both, NULL, &remote, 8), -EINVAL);
	assert_int_equal(tn_xfer_layout_map(&me.share, NULL, &both, NULL, NULL, 0), -EINVAL);
	assert_int_equal(tn_xfer_layout_map(&me.share, &me.share, NULL, NULL, NULL, 0), -EINVAL);
	side_free(&me);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_rank_of_tp_4_reads_its_heads_from_ranks_of_tp_8),
		cmocka_unit_test(only_the_number_of_runs_is_told_if_the_arrays_are_short),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
