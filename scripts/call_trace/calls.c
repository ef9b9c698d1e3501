/* SPDX-License-Identifier: Apache-2.0 */
/* Two saves, a flush and a load of 16 blocks, for call_trace.py. Arguments: a directory, and the bytes of host memory. */
#include <stdio.h>
#include <stdlib.h>
#include <tenuto/tenuto.h>
#include <time.h>

enum { BLOCKS = 16, LAYERS = 8, OBJECT_BYTES = 128 << 10 };

static char kv[2 * BLOCKS][LAYERS * OBJECT_BYTES];

static void ok(long rc)
{
	if (rc < 0)
		exit((fprintf(stderr, "%s\n", tn_error_last()->text), 1));
}

static void save_all(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, const uint32_t *pages)
{
	struct tn_save *save;

	ok(tn_save_begin(space, pool, keys, BLOCKS, pages, NULL, &save));
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		ok(tn_save_layer(save, layer, NULL, 0));
	ok(tn_save_commit(save));
	ok(tn_save_end(save, TN_FOREVER, NULL));
}

int main(int argc, char **argv)
{
	const char *dir = argv[1];
	const struct tn_pool_shape order = {.order = TN_POOL_CROSS_LAYER, .npages = 2 * BLOCKS};
	const struct tn_memory_range range = {.address = kv, .bytes = sizeof(kv)};
	uint32_t tokens[BLOCKS], from[BLOCKS], to[BLOCKS];
	struct tn_key keys[BLOCKS];
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
	uint64_t base[LAYERS];
	struct tn_load *load;
	const struct timespec quiet = {2, 0}; /* until the store has prepared what it prepares at first */

	for (uint32_t i = 0; i < BLOCKS; i++) {
		tokens[i] = from[i] = i;
		to[i] = BLOCKS + i;
	}
	tn_cache_opts_init(&opts);
	tn_identity_init(&model);
	tn_shard_init(&shard);
	opts.dirs = &dir, opts.ndirs = 1, opts.disk_bytes = 64 << 20, opts.host_bytes = strtoull(argv[2], NULL, 10);
	model.model = "toy";
	ok(tn_geometry_raw(LAYERS, OBJECT_BYTES, &shape));
	ok(tn_cache_open(&opts, &cache));
	ok(tn_space_open(cache, &model, &shard, &shape, NULL, &space));
	tn_memory_desc_init(&desc);
	desc.ranges = &range, desc.nranges = 1;
	ok(tn_memory_register(cache, &desc, &memory));
	ok(tn_layout_fill(&shape, &order, NULL, base, &layout));
	ok(tn_pool_create(memory, &shape, &layout, &pool));
	ok(tn_keys_from_tokens(space, tokens, BLOCKS, NULL, 0, keys, BLOCKS));
	save_all(space, pool, keys, from); /* the store takes a segment */
	ok(tn_flush(cache, TN_FOREVER));
	for (uint32_t i = 0; i < BLOCKS; i++)
		tokens[i] += BLOCKS;
	ok(tn_keys_from_tokens(space, tokens, BLOCKS, NULL, 0, keys, BLOCKS));
	nanosleep(&quiet, NULL);
	save_all(space, pool, keys, from);
	ok(tn_flush(cache, TN_FOREVER));
	ok(tn_load_begin(space, pool, keys, BLOCKS, to, NULL, &load));
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		ok(tn_load_wait(load, layer, TN_FOREVER));
	ok(tn_load_end(load, TN_FOREVER, NULL));
	ok(tn_pool_destroy(pool));
	ok(tn_memory_unregister(memory));
	tn_space_close(space);
	return tn_cache_close(cache) ? 1 : 0;
}
