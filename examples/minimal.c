/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest useful program: KV blocks of a prompt are saved, found again by their keys, and loaded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenuto/tenuto.h>

static char kv[4][8 * 65536]; /* the engine's KV memory: 4 pages, 8 layers of 64 KiB each */

static void ok(long rc)
{
	if (rc < 0)
		exit((fprintf(stderr, "%s\n", tn_error_last()->text), 1));
}

int main(int argc, char **argv)
{
	const char *dir = argc > 1 ? argv[1] : ".";
	uint32_t tokens[] = {101, 102}, from[] = {0, 1}, to[] = {2, 3}; /* a token a block: a toy */
	const struct tn_pool_shape order = {.order = TN_POOL_CROSS_LAYER, .npages = 4};
	const struct tn_memory_range range = {.address = kv, .bytes = sizeof(kv)};
	struct tn_cache_opts opts;
	struct tn_identity model;
	struct tn_shard shard;
	struct tn_geometry shape;
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_memory_desc desc;
	struct tn_memory *memory;
	struct tn_pool_layout layout;
	struct tn_pool *pool;
	uint64_t base[8]; /* by layer */
	struct tn_save *save;
	struct tn_load *load;
	struct tn_match found = {.size = sizeof(found)};
	struct tn_key keys[2];
	int good = 0;

	tn_cache_opts_init(&opts);
	tn_identity_init(&model);
	tn_shard_init(&shard);
	opts.dirs = &dir, opts.ndirs = 1, opts.disk_bytes = 64 << 20;
	model.model = "toy";
	ok(tn_geometry_raw(8, 65536, &shape));
	ok(tn_cache_open(&opts, &cache));
	ok(tn_space_open(cache, &model, &shard, &shape, NULL, &space));
	tn_memory_desc_init(&desc); /* the memory, and where the pages lie in it: once */
	desc.ranges = &range, desc.nranges = 1;
	ok(tn_memory_register(cache, &desc, &memory));
	ok(tn_layout_fill(&shape, &order, NULL, base, &layout));
	ok(tn_pool_create(memory, &shape, &layout, &pool));

	memset(kv, 'k', sizeof(kv) / 2); /* "computed" */
	ok(tn_keys_from_tokens(space, tokens, 2, NULL, 0, keys, 2));
	ok(tn_save_begin(space, pool, keys, 2, from, NULL, &save));
	for (uint32_t layer = 0; layer < 8; layer++)
		ok(tn_save_layer(save, layer, NULL, 0));
	ok(tn_save_commit(save));
	ok(tn_save_end(save, TN_FOREVER, NULL));
	ok(tn_flush(cache, TN_FOREVER)); /* from here on no crash loses them */

	ok(tn_match(space, keys, 2, NULL, &found, TN_MATCH_PIN));
	if (found.blocks > 0) {
		ok(tn_load_begin(space, pool, keys, found.blocks, to, NULL, &load));
		for (uint32_t layer = 0; layer < 8; layer++) {
			good = tn_load_wait(load, layer, TN_FOREVER); /* the first so many blocks are there: never more later */
			ok(good); /* then compute this layer, while the next ones come */
		}
		ok(tn_load_end(load, TN_FOREVER, NULL)); /* all pages are ours again: what failed is computed into its pages now */
		ok(tn_unpin(space, found.pin));
	}
	printf("%d blocks came back, %s\n", good, memcmp(kv[0], kv[2], (size_t)good * sizeof(kv[0])) ? "wrong" : "right");

	ok(tn_pool_destroy(pool));
	ok(tn_memory_unregister(memory));
	tn_space_close(space);
	ok(tn_cache_close(cache));
	return 0;
}
