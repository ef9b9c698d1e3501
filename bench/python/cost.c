/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C side of cost.py: the calls that cost.py makes in Python, on a store of its own. Prints two medians in ns: a look-up of 512 keys, and a load of 64
 * blocks from tn_load_begin to tn_load_end. Anything that fails ends the program with the library's text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tenuto/tenuto.h>

#define MATCHED 512u
#define LOADED 64u
#define LAYERS 8u
#define OBJECT 65536u

static void ok(long rc)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "%s\n", tn_error_last()->text);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static uint64_t median(uint64_t *times, size_t n)
{
	qsort(times, n, sizeof(*times), by_value);
	return times[n / 2];
}

/* A space of raw blocks with n of them saved, from the pages 0 to n - 1. */
static struct tn_space *filled(struct tn_cache *cache, const char *model, uint32_t layers, uint64_t object, uint32_t n, struct tn_key *keys,
			       struct tn_memory **memory, struct tn_pool **pool)
{
	const struct tn_pool_shape order = {.order = TN_POOL_CROSS_LAYER, .npages = n};
	struct tn_memory_range range = {.bytes = n * layers * object};
	uint32_t *pages = calloc(n, sizeof(*pages));
	struct tn_pool_layout layout;
	struct tn_memory_desc desc;
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_geometry g;
	struct tn_space *space;
	uint64_t base[LAYERS];
	struct tn_save *save;

	tn_identity_init(&id);
	tn_shard_init(&shard);
	tn_memory_desc_init(&desc);
	id.model = model;
	ok(tn_geometry_raw(layers, object, &g));
	ok(tn_space_open(cache, &id, &shard, &g, NULL, &space));
	ok(tn_memory_alloc(range.bytes, NULL, &range.address));
	desc.ranges = &range;
	desc.nranges = 1;
	ok(tn_memory_register(cache, &desc, memory));
	ok(tn_layout_fill(&g, &order, NULL, base, &layout));
	ok(tn_pool_create(*memory, &g, &layout, pool));
	for (uint32_t i = 0; i < n; i++)
		pages[i] = i;
	ok(tn_keys_from_tokens(space, pages, n, NULL, 0, keys, n));
	ok(tn_save_begin(space, *pool, keys, n, pages, NULL, &save));
	for (uint32_t layer = 0; layer < layers; layer++)
		ok(tn_save_layer(save, layer, NULL, 0));
	ok(tn_save_commit(save));
	ok(tn_save_end(save, TN_FOREVER, NULL));
	free(pages);
	return space;
}

static uint64_t time_matches(struct tn_space *space, const struct tn_key *keys, size_t rounds, uint64_t *times)
{
	for (size_t i = 0; i < rounds; i++) {
		struct tn_match found = {.size = sizeof(found)};
		uint64_t begun = now();

		ok(tn_match(space, keys, MATCHED, NULL, &found, 0));
		times[i] = now() - begun;
		if (found.blocks != MATCHED)
			exit((fprintf(stderr, "%u blocks found\n", found.blocks), 1));
	}
	return median(times, rounds);
}

static uint64_t time_loads(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t rounds, uint64_t *times)
{
	uint32_t pages[LOADED];
	struct tn_load *load;

	for (uint32_t i = 0; i < LOADED; i++)
		pages[i] = i;
	for (size_t i = 0; i < rounds; i++) {
		uint64_t begun = now();
		int good;

		ok(tn_load_begin(space, pool, keys, LOADED, pages, NULL, &load));
		good = tn_load_wait(load, LAYERS - 1, TN_FOREVER);
		ok(tn_load_end(load, TN_FOREVER, NULL));
		times[i] = now() - begun;
		if (good != (int)LOADED)
			exit((fprintf(stderr, "%d blocks loaded\n", good), 1));
	}
	return median(times, rounds);
}

int main(int argc, char **argv)
{
	struct tn_memory *small_memory, *large_memory;
	struct tn_pool *small_pool, *large_pool;
	struct tn_space *small, *large;
	struct tn_key keys[MATCHED];
	struct tn_cache_opts opts;
	struct tn_cache *cache;
	const char *dir = argv[1];
	size_t matches, loads;
	uint64_t *times;

	if (argc != 4 || !sscanf(argv[2], "%zu", &matches) || !sscanf(argv[3], "%zu", &loads))
		return fprintf(stderr, "%s DIR MATCHES LOADS\n", argv[0]), 2;
	times = calloc(matches + loads, sizeof(*times));
	tn_cache_opts_init(&opts);
	opts.dirs = &dir;
	opts.ndirs = 1;
	opts.instance = "c";
	opts.policy = "lru";
	opts.disk_bytes = 256u << 20;
	ok(tn_cache_open(&opts, &cache));
	small = filled(cache, "match", 1, 4096, MATCHED, keys, &small_memory, &small_pool);
	printf("%llu ", (unsigned long long)time_matches(small, keys, matches, times));
	large = filled(cache, "load", LAYERS, OBJECT, LOADED, keys, &large_memory, &large_pool);
	printf("%llu\n", (unsigned long long)time_loads(large, large_pool, keys, loads, times));
	ok(tn_pool_destroy(small_pool));
	ok(tn_pool_destroy(large_pool));
	ok(tn_memory_unregister(small_memory));
	ok(tn_memory_unregister(large_memory));
	ok(tn_cache_close(cache));
	free(times);
	return 0;
}
