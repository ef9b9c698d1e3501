/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of tn_pool_share_load, and of tn_pool_map over what it takes: a share is refused, or it comes back as the same bytes, and each run of a map of it lies in
 * its memory. Lengths and checksums are made right, so that what lies behind is met.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/layout.h>

#include "base/hash.h"

#define GEOMETRY_AT 24u /* magic, version, nranges, bytes before it */
#define RUNS_MAX 4096u
#define TOKENS_MAX 3u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void make_right(uint8_t *bytes, size_t size)
{
	uint64_t n = size, sum;

	if (size < GEOMETRY_AT + TN_GEOMETRY_BYTES + sizeof(sum))
		return;
	memcpy(bytes + 16, &n, sizeof(n));
	sum = tn_hash64(bytes + GEOMETRY_AT, TN_GEOMETRY_BYTES - sizeof(sum));
	memcpy(bytes + GEOMETRY_AT + TN_GEOMETRY_BYTES - sizeof(sum), &sum, sizeof(sum));
	sum = tn_hash64(bytes, size - sizeof(sum));
	memcpy(bytes + size - sizeof(sum), &sum, sizeof(sum));
}

static void in_memory(const struct tn_pool_share *s, uint64_t address, uint64_t stride, const struct tn_pool_run *run)
{
	uint64_t end = address + (run->count - 1) * stride + run->bytes;
	uint32_t i = 0;

	while (i < s->nranges && (address < s->range[i].address || end > s->range[i].address + s->range[i].bytes))
		i++;
	assert(i < s->nranges);
}

/* The share and itself, with the other order within pages: as it may be of another engine. */
static void map(const struct tn_pool_share *share)
{
	static struct tn_pool_run runs[RUNS_MAX];
	struct tn_pool_share other = *share;
	uint32_t page = (uint32_t)(share->layout.npages - 1), tokens = share->geometry.page_tokens;
	struct tn_pool_pages pages = {&page, &page, 1, 1, tokens < TOKENS_MAX ? tokens : TOKENS_MAX};
	int64_t n;

	for (unsigned i = 0; i < 2; i++) {
		n = tn_pool_map(share, &other, &pages, runs, RUNS_MAX);
		for (int64_t k = 0; k < n && k < RUNS_MAX; k++) {
			in_memory(share, runs[k].mine, runs[k].mine_stride, &runs[k]);
			in_memory(&other, runs[k].theirs, runs[k].theirs_stride, &runs[k]);
		}
		other.geometry.page_order = !other.geometry.page_order;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes = malloc(size ? size : 1), *back = malloc(size ? size : 1);
	struct tn_pool_share share;
	uint64_t *table = NULL;
	int64_t words;

	assert(bytes && back);
	if (size)
		memcpy(bytes, data, size);
	make_right(bytes, size);
	words = tn_pool_share_load(bytes, size, &share, NULL, 0);
	if (words > 0) {
		table = malloc((size_t)words * sizeof(*table));
		assert(table);
		words = tn_pool_share_load(bytes, size, &share, table, (size_t)words);
	}
	if (table && words > 0) {
		assert(tn_pool_share_store(&share, back, size) == (int64_t)size);
		assert(tn_pool_share_load(back, size, &share, table, (size_t)words) == words);
		map(&share);
	}
	free(table);
	free(back);
	free(bytes);
	return 0;
}
