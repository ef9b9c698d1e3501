/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of TP 8 reads blocks of a rank of TP 4 by the set that this has exported, while the owner drops its handles and writes other bytes. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <tenuto/blockset.h>
#include <unistd.h>

#include "xfer/layout_rig.h"

#define BLOCKS 4u
#define ROUNDS 200u

/* The owner: each block is registered with bytes of its own, dropped, and written over, again and again. */
struct owner {
	struct side side;
	struct tn_blockset *set;
	uint64_t words[BLOCKS];
	pthread_mutex_t lock; /* of the set */
	uint32_t dropped; /* how many times */
	bool stop;
};

struct reader {
	struct side side;
	struct tn_xfer_list *word[2];
	uint64_t value;
	uint32_t good, stale;
};

static struct tn_key key_of(uint32_t block)
{
	return (struct tn_key){{block + 1, 1}};
}

/* A page of the pool, all layers and planes, has one byte value. */
static void fill(struct side *s, uint32_t page, unsigned char value)
{
	const struct tn_geometry *g = &s->geometry;

	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t p = 0; p < 2; p++)
			memset(s->bytes + tn_layout_offset(&s->share.layout, g, l, p, page), value, (size_t)g->planes[0].heads * g->page_tokens * DIM_BYTES);
}

static uint64_t add(struct owner *o, uint32_t block)
{
	const struct tn_key key = key_of(block);
	uint64_t handle;

	fill(&o->side, block, (unsigned char)(1 + block));
	pthread_mutex_lock(&o->lock);
	assert_int_equal(tn_blockset_register(o->set, &key, NULL, &block, &handle), 0);
	pthread_mutex_unlock(&o->lock);
	return handle;
}

static void *drop_and_write(void *arg)
{
	struct owner *o = arg;
	uint64_t handle[BLOCKS];

	for (uint32_t b = 0; b < BLOCKS; b++)
		handle[b] = add(o, b);
	for (uint32_t i = 0; !__atomic_load_n(&o->stop, __ATOMIC_ACQUIRE); i++) {
		uint32_t b = i % BLOCKS;

		pthread_mutex_lock(&o->lock);
		assert_int_equal(tn_blockset_drop(o->set, handle[b]), 1);
		pthread_mutex_unlock(&o->lock);
		__atomic_fetch_add(&o->dropped, 1, __ATOMIC_RELAXED);
		fill(&o->side, b, 0xee);
		usleep(100);
		handle[b] = add(o, b);
	}
	return NULL;
}

static void move(struct reader *r, struct tn_xfer_list *local, struct tn_xfer_list *remote)
{
	struct tn_xfer_request *q;

	assert_int_equal(tn_test_ended(tn_xfer_request_create(r->side.agent, TN_XFER_READ, local, NULL, remote, NULL, 0, NULL, &q)), 0);
	assert_int_equal(tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), 0);
	tn_xfer_release(q);
}

static void read_runs(struct reader *r, const struct tn_xfer_run *local, const struct tn_xfer_run *remote, uint32_t n)
{
	struct tn_xfer_list *list[2];

	assert_int_equal(tn_xfer_list_create(r->side.agent, NULL, TN_XFER_DRAM, local, n, &list[0]), 0);
	assert_int_equal(tn_xfer_list_create(r->side.agent, "tp4", TN_XFER_DRAM, remote, n, &list[1]), 0);
	move(r, list[0], list[1]);
	tn_xfer_list_destroy(list[0]);
	tn_xfer_list_destroy(list[1]);
}

static struct tn_blockset_view *view_of(struct owner *o)
{
	unsigned char bytes[8192];
	struct tn_blockset_view *view;
	int64_t n;

	pthread_mutex_lock(&o->lock);
	n = tn_blockset_export(o->set, bytes, sizeof(bytes));
	pthread_mutex_unlock(&o->lock);
	assert_in_range(n, 1, sizeof(bytes));
	assert_int_equal(tn_blockset_import(bytes, (size_t)n, &view), 0);
	return view;
}

/* Reads one block: its bytes, then its word. late: the owner has time to drop it in between. */
static void read_block(struct reader *r, struct owner *o, uint32_t block, bool late)
{
	static const uint32_t mine[] = {0, 1};
	struct tn_xfer_run local[RUNS_MAX], remote[RUNS_MAX];
	const struct tn_key key = key_of(block);
	struct tn_blockset_view *view = view_of(o);
	struct tn_blockset_block found;
	int64_t n;

	if (tn_blockset_find(view, &key, 1, &found) == 1) {
		uint32_t dropped = __atomic_load_n(&o->dropped, __ATOMIC_RELAXED);

		while (late && __atomic_load_n(&o->dropped, __ATOMIC_RELAXED) < dropped + BLOCKS)
			usleep(50);
		n = tn_xfer_layout_map(&r->side.share, tn_blockset_view_share(view), &(struct tn_pool_pages){mine, found.pages, 2, 1, 16}, local, remote, RUNS_MAX);
		assert_in_range(n, 1, RUNS_MAX);
		read_runs(r, local, remote, (uint32_t)n);
		local[0] = (struct tn_xfer_run){.address = (uintptr_t)&r->value, .bytes = 8, .count = 1};
		remote[0] = (struct tn_xfer_run){.address = found.word, .bytes = 8, .count = 1};
		read_runs(r, local, remote, 1);
		if (tn_blockset_check(&found, r->value)) {
			r->stale++;
		} else {
			r->good++;
			for (uint32_t t = 0; t < 16; t++)
				for (uint32_t i = 0; i < DIM_BYTES; i++)
					assert_int_equal(at(&r->side, LAYERS - 1, 1, r->side.share.rank.tp_rank, t)[i], 1 + block);
		}
	}
	tn_blockset_view_destroy(view);
}

static void a_handle_that_is_dropped_in_mid_read_is_a_miss_and_never_other_bytes(void **state)
{
	static const uint32_t pages[] = {0, 1};
	static struct owner o = {.side = {.pages = pages}, .lock = PTHREAD_MUTEX_INITIALIZER};
	static struct reader r = {.side = {.pages = pages}};
	const struct tn_xfer_section words = {.address = (uintptr_t)o.words, .bytes = sizeof(o.words)}, value = {.address = (uintptr_t)&r.value, .bytes = 8};
	pthread_t thread;

	side_new(&o.side, "tp4", 4, 0, 16, TN_POOL_CROSS_LAYER, TN_PAGE_HND);
	side_new(&r.side, "tp8", 8, 1, 8, TN_POOL_PLANES_PAGES, TN_PAGE_NHD);
	assert_int_equal(tn_xfer_register(o.side.agent, TN_XFER_DRAM, &words, 1), 0);
	assert_int_equal(tn_xfer_register(r.side.agent, TN_XFER_DRAM, &value, 1), 0);
	exchange_metadata(&o.side, &r.side);
	assert_int_equal(tn_blockset_create(&o.side.share, o.words, BLOCKS, &o.set), 0);
	assert_int_equal(pthread_create(&thread, NULL, drop_and_write, &o), 0);
	for (uint32_t i = 0; r.good + r.stale < ROUNDS || !r.good || !r.stale; i++)
		read_block(&r, &o, i % BLOCKS, i % 16 == 0);
	__atomic_store_n(&o.stop, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	print_message("# %u reads were good, %u stale\n", r.good, r.stale);
	tn_blockset_destroy(o.set);
	assert_int_equal(tn_xfer_invalidate(r.side.agent, "tp4"), 0);
	side_free(&r.side);
	side_free(&o.side);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(a_handle_that_is_dropped_in_mid_read_is_a_miss_and_never_other_bytes)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
