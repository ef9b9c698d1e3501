/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of blocks: what an importer gets, and when it learns that it has it no more. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <tenuto/blockset.h>

#include "tn_test.h"

#define BLOCKS 8u
#define PER_BLOCK 2u
#define BYTES 4096u

struct world {
	struct tn_geometry g;
	struct tn_pool_share share;
	struct tn_pool_range range;
	uint64_t base[4], words[BLOCKS];
	struct tn_blockset *set;
};

static void up(struct world *w)
{
	const struct tn_pool_shape shape = {TN_POOL_PLANES_PAGES, 0, 32};

	memset(w, 0, sizeof(*w));
	w->g = (struct tn_geometry){.layers = 2, .page_tokens = 16, .pages_per_block = PER_BLOCK, .page_order = TN_PAGE_NHD, .nplanes = 2,
				    .planes = {{TN_PLANE_K, 2, 32, 16}, {TN_PLANE_V, 2, 32, 16}}};
	w->range = (struct tn_pool_range){0x100000, 1 << 20};
	w->share = (struct tn_pool_share){.geometry = w->g, .rank = {1, 0, 2}, .nranges = 1, .range = &w->range};
	assert_int_equal(tn_layout_fill(&w->g, &shape, NULL, w->base, &w->share.layout), 0);
	assert_int_equal(tn_blockset_create(&w->share, w->words, BLOCKS, &w->set), 0);
}

static struct tn_key key_of(uint32_t i)
{
	return (struct tn_key){{i + 1, 7}};
}

/* Block i, in pages 2i and 2i + 1. */
static uint64_t registered(struct world *w, uint32_t i)
{
	const uint32_t pages[PER_BLOCK] = {2 * i, 2 * i + 1};
	const struct tn_key key = key_of(i), before = key_of(i - 1);
	uint64_t handle;

	assert_in_range(tn_blockset_register(w->set, &key, i ? &before : NULL, pages, &handle), 0, 1);
	return handle;
}

static size_t exported(struct world *w, unsigned char *bytes)
{
	int64_t n = tn_blockset_export(w->set, bytes, BYTES);

	assert_in_range(n, 1, BYTES);
	assert_int_equal(tn_blockset_export(w->set, NULL, 0), n);
	return (size_t)n;
}

static struct tn_blockset_view *imported(struct world *w)
{
	unsigned char bytes[BYTES];
	size_t n = exported(w, bytes);
	struct tn_blockset_view *view;

	assert_int_equal(tn_blockset_import(bytes, n, &view), 0);
	return view;
}

static void what_was_registered_is_found_with_its_pages_and_its_word(void **state)
{
	struct tn_blockset_block found[BLOCKS];
	struct tn_blockset_view *view;
	struct tn_key keys[4];
	struct world w;

	up(&w);
	for (uint32_t i = 0; i < 4; i++)
		keys[i] = key_of(i);
	for (uint32_t i = 0; i < 3; i++)
		registered(&w, i);
	view = imported(&w);
	assert_int_equal(tn_blockset_find(view, keys, 4, found), 3);
	for (uint32_t i = 0; i < 3; i++) {
		uint64_t word = (found[i].word - (uintptr_t)w.words) / sizeof(uint64_t);

		assert_int_equal(found[i].pages[1], 2 * i + 1);
		assert_true(word < BLOCKS);
		assert_int_equal(tn_blockset_check(&found[i], w.words[word]), 0);
	}
	assert_int_equal(tn_blockset_view_share(view)->layout.npages, 32);
	assert_int_equal(tn_blockset_view_share(view)->range[0].address, 0x100000);
	tn_blockset_view_destroy(view);
	tn_blockset_destroy(w.set);
}

static void the_last_handle_makes_the_block_void_and_is_told(void **state)
{
	struct tn_block_event events[8];
	struct tn_blockset_block found;
	struct tn_key key = key_of(0);
	struct tn_blockset_view *view;
	struct world w;
	uint64_t first, second, cursor, word;

	up(&w);
	first = registered(&w, 0);
	second = registered(&w, 0); /* a duplicate: one more handle */
	view = imported(&w);
	cursor = tn_blockset_view_cursor(view);
	assert_int_equal(tn_blockset_find(view, &key, 1, &found), 1);
	word = (found.word - (uintptr_t)w.words) / sizeof(uint64_t);
	assert_int_equal(tn_blockset_drop(w.set, first), 0);
	assert_int_equal(tn_blockset_check(&found, w.words[word]), 0);
	assert_int_equal(tn_blockset_drop(w.set, second), 1);
	assert_int_equal(tn_blockset_check(&found, w.words[word]), -ESTALE);
	assert_int_equal(tn_blockset_events(w.set, &cursor, events, 8), 1);
	assert_int_equal(events[0].kind, TN_EVENT_REMOVED);
	assert_int_equal(tn_blockset_find(view, &key, 1, &found), 1); /* nobody has told the view */
	assert_int_equal(tn_blockset_forget(view, events, 1), 1);
	assert_int_equal(tn_blockset_find(view, &key, 1, &found), 0);
	assert_int_equal(tn_blockset_drop(w.set, second), -EINVAL);
	registered(&w, 0); /* the same word, and another value */
	assert_int_equal(tn_blockset_check(&found, w.words[word]), -ESTALE);
	assert_int_equal(tn_blockset_drop(w.set, second), -EINVAL);
	tn_blockset_view_destroy(view);
	tn_blockset_destroy(w.set);
	assert_int_equal(w.words[word] & 1, 0);
}

static void a_set_is_bounded_and_names_what_does_not_fit(void **state)
{
	const uint32_t outside[PER_BLOCK] = {0, 32};
	struct tn_key key = key_of(20);
	uint64_t handle;
	struct world w;

	up(&w);
	assert_int_equal(tn_blockset_register(w.set, &key, NULL, outside, &handle), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "page 32"));
	for (uint32_t i = 0; i < BLOCKS; i++)
		registered(&w, i);
	assert_int_equal(tn_blockset_register(w.set, &key, NULL, (const uint32_t[]){0, 1}, &handle), -ENOSPC);
	tn_blockset_destroy(w.set);
	assert_int_equal(tn_blockset_create(&w.share, w.words, TN_BLOCKSET_BLOCKS_MAX + 1, &w.set), -EINVAL);
}

/* Each byte, and each length: the checksum holds what the fields do not; with a checksum of its own the fields hold. */
static void damaged_bytes_are_refused(void **state)
{
	unsigned char bytes[BYTES];
	struct tn_blockset_view *view;
	struct world w;
	size_t n;

	up(&w);
	registered(&w, 0);
	n = exported(&w, bytes);
	for (size_t i = 0; i < n; i++) {
		bytes[i] ^= 0x10;
		assert_true(tn_blockset_import(bytes, n, &view) < 0);
		bytes[i] ^= 0x10;
		assert_true(tn_blockset_import(bytes, i, &view) < 0);
	}
	assert_int_equal(tn_blockset_import(bytes, n, &view), 0);
	tn_blockset_view_destroy(view);
	tn_blockset_destroy(w.set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_registered_is_found_with_its_pages_and_its_word),
		cmocka_unit_test(the_last_handle_makes_the_block_void_and_is_told),
		cmocka_unit_test(a_set_is_bounded_and_names_what_does_not_fit),
		cmocka_unit_test(damaged_bytes_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
