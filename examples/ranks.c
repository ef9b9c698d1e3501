/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallelism: a scheduler and two workers, three processes on one cache. The scheduler looks up what both ranks have; each worker loads its
 * share of that, computes the rest, and saves it.
 *
 * example-ranks DIR: attaches to the cache that is served at DIR/tenuto.sock, by tenutod say; without one the scheduler opens a cache in DIR and serves it there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tenuto/tenuto.h>
#include <unistd.h>

enum { RANKS = 2, BLOCKS = 4, LAYERS = 8, LAYER_BYTES = 65536, BLOCK_BYTES = LAYERS * LAYER_BYTES };

/* What the scheduler tells a worker: the request's blocks, of which so many can be loaded. The worker answers how many it loaded. */
struct request {
	uint32_t found;
	struct tn_key keys[BLOCKS];
};

static void ok(long rc)
{
	if (rc < 0)
		exit((fprintf(stderr, "%s\n", tn_error_last()->text), 1));
}

static struct tn_space *open_share(struct tn_cache *cache, uint32_t rank, struct tn_geometry *shape)
{
	struct tn_identity model;
	struct tn_shard shard;
	struct tn_space *space;

	tn_identity_init(&model);
	tn_shard_init(&shard);
	model.model = "toy";
	shard.tp_rank = rank, shard.tp_size = RANKS;
	ok(tn_geometry_raw(LAYERS, LAYER_BYTES, shape)); /* of the rank's share of a block */
	ok(tn_space_open(cache, &model, &shard, shape, NULL, &space));
	return space;
}

/* Loads the blocks that were found to pages 0.., "computes" those behind them, saves these. Returns how many came and are right. */
static uint32_t serve(struct tn_space *space, struct tn_pool *pool, char *kv, char content, const struct request *r)
{
	uint32_t pages[BLOCKS] = {0, 1, 2, 3}, n = r->found, right = 0;
	struct tn_save_opts opts;
	struct tn_load *load;
	struct tn_save *save;

	if (r->found > 0) {
		ok(tn_load_begin(space, pool, r->keys, r->found, pages, NULL, &load));
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			int good = tn_load_wait(load, layer, TN_FOREVER); /* then compute this layer, while the next ones come */

			ok(good);
			n = (uint32_t)good;
		}
		ok(tn_load_end(load, TN_FOREVER, NULL));
	}
	while (right < n && kv[right * BLOCK_BYTES] == content)
		right++;
	memset(kv + n * BLOCK_BYTES, content, (BLOCKS - n) * BLOCK_BYTES);
	if (n == BLOCKS)
		return right;
	tn_save_opts_init(&opts);
	opts.parent = n > 0 ? &r->keys[n - 1] : NULL;
	ok(tn_save_begin(space, pool, r->keys + n, BLOCKS - n, pages + n, &opts, &save));
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		ok(tn_save_layer(save, layer, NULL, 0));
	ok(tn_save_commit(save));
	ok(tn_save_end(save, TN_FOREVER, NULL)); /* when all ranks have come here, the scheduler finds the blocks */
	return right;
}

static int work(const char *path, char content)
{
	const struct tn_pool_shape order = {.order = TN_POOL_CROSS_LAYER, .npages = BLOCKS};
	struct tn_memory_range range = {.bytes = BLOCKS * BLOCK_BYTES};
	struct tn_cache *cache;
	struct tn_geometry shape;
	struct tn_space *space;
	struct tn_memory_desc desc;
	struct tn_memory *memory;
	struct tn_pool_layout layout;
	struct tn_pool *pool;
	uint64_t base[LAYERS];
	struct request r;

	ok(tn_cache_attach(path, NULL, &cache));
	space = open_share(cache, (uint32_t)(content - 'a'), &shape);
	ok(tn_memory_alloc(range.bytes, NULL, &range.address)); /* the cache's owner maps it, too */
	tn_memory_desc_init(&desc);
	desc.ranges = &range, desc.nranges = 1;
	ok(tn_memory_register(cache, &desc, &memory));
	ok(tn_layout_fill(&shape, &order, NULL, base, &layout));
	ok(tn_pool_create(memory, &shape, &layout, &pool));
	while (read(STDIN_FILENO, &r, sizeof(r)) == sizeof(r)) {
		uint32_t came = serve(space, pool, range.address, content, &r);

		memset(range.address, 0, range.bytes);
		if (write(STDIN_FILENO, &came, sizeof(came)) < 0)
			break;
	}
	ok(tn_pool_destroy(pool));
	ok(tn_memory_unregister(memory));
	ok(tn_memory_free(range.address));
	tn_space_close(space);
	ok(tn_cache_close(cache));
	return 0;
}

/* Threads do not survive a fork, so a worker is this program started anew; the scheduler's socket is its standard input. */
static int start(const char *path, uint32_t rank)
{
	char letter[2] = {(char)('a' + rank), '\0'};
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		exit(1);
	if (fork() == 0) {
		dup2(pair[1], STDIN_FILENO);
		execl("/proc/self/exe", "example-ranks", path, letter, (char *)NULL);
		_exit(127);
	}
	close(pair[1]);
	return pair[0];
}

static void schedule(struct tn_cache *cache, const int *worker)
{
	uint32_t tokens[BLOCKS] = {101, 102, 103, 104}; /* a token a block: a toy */
	struct tn_match found = {.size = sizeof(found)};
	struct tn_space *spaces[RANKS];
	struct tn_geometry shape;
	struct request r;

	for (uint32_t i = 0; i < RANKS; i++)
		spaces[i] = open_share(cache, i, &shape);
	ok(tn_keys_from_tokens(spaces[0], tokens, BLOCKS, NULL, 0, r.keys, BLOCKS)); /* the same for all ranks */
	for (int request = 1; request <= 2; request++) {
		uint32_t least = BLOCKS, came = 0;

		ok(tn_match_all(spaces, RANKS, r.keys, BLOCKS, NULL, &found, TN_MATCH_PIN));
		r.found = found.blocks;
		for (uint32_t i = 0; i < RANKS; i++)
			ok(write(worker[i], &r, sizeof(r)));
		for (uint32_t i = 0; i < RANKS && read(worker[i], &came, sizeof(came)) == sizeof(came); i++)
			least = came < least ? came : least;
		if (found.pin)
			ok(tn_unpin(spaces[0], found.pin)); /* until here no share of these blocks could go */
		printf("request %d: %u of %d blocks came, right on all ranks\n", request, least, BLOCKS);
	}
	for (uint32_t i = 0; i < RANKS; i++)
		tn_space_close(spaces[i]);
}

int main(int argc, char **argv)
{
	const char *dir = argc > 1 ? argv[1] : ".";
	struct tn_cache_opts opts;
	struct tn_cache *cache;
	int worker[RANKS], status, failed = 0;
	char path[100];

	if (argc == 3)
		return work(argv[1], argv[2][0]);
	snprintf(path, sizeof(path), "%s/tenuto.sock", dir);
	if (tn_cache_attach(path, NULL, &cache) == 0) {
		fprintf(stderr, "attached to the cache that is served at %s\n", path);
	} else {
		tn_cache_opts_init(&opts);
		opts.dirs = &dir, opts.ndirs = 1, opts.disk_bytes = 64 << 20;
		ok(tn_cache_open(&opts, &cache));
		ok(tn_cache_serve(cache, path, NULL));
		fprintf(stderr, "owns the cache in %s, and serves it at %s\n", dir, path);
	}
	for (uint32_t i = 0; i < RANKS; i++)
		worker[i] = start(path, i);
	schedule(cache, worker);
	for (uint32_t i = 0; i < RANKS; i++)
		close(worker[i]);
	while (wait(&status) > 0)
		failed |= status;
	ok(tn_cache_close(cache));
	return failed != 0;
}
