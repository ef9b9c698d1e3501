/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store on a namespace of the software controller, which moves bytes by memcpy: saves and loads of whole blocks through the public API, beside
 * memcpy of as many bytes, in objects of the same size, on one thread.
 */
#include "nvme_bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../cli/content.h"
#include "../cli/pool.h"
#include "bench.h"
#include "lab/soft_cache.h"

#define LAYERS 32u
#define CAPACITY 2u /* rounds of blocks that the store has slots for */
#define NAMESPACE_BYTES(stored) (2 * (stored) + (256ull << 20)) /* with segments that are held back, and the index */
#define SPARE_BLOCKS 32u /* an evicted block's slot is not free before the log says so */
#define PATIENCE_NS 60000000000ull

struct nvme_store {
	struct tn_soft_cache *soft;
	struct tn_space *space;
	struct cli_pool pool;
	struct tn_key *keys;
	uint32_t *pages;
	unsigned char *memory, *other; /* other: memcpy's other side */
	uint64_t object_bytes, bytes, rounds;
	uint32_t blocks;
};

static unsigned char *huge_memory(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_HUGEPAGE);
	content_fill(p, bytes, 1, 0, 0);
	return p;
}

static int open_cache(struct nvme_store *s, const struct tn_geometry *g, bool verify)
{
	struct tn_cache_opts o;

	tn_cache_opts_init(&o);
	o.disk_blocks = (uint64_t)s->blocks * CAPACITY + SPARE_BLOCKS;
	o.geometry = g;
	o.policy = "lru";
	o.verify = verify;
	return tn_soft_cache_open(&o, NAMESPACE_BYTES(o.disk_blocks * LAYERS * s->object_bytes), true, &s->soft);
}

static int set_up(struct nvme_store *s, bool verify)
{
	const struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = s->blocks};
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_geometry g;
	int rc = tn_geometry_raw(LAYERS, s->object_bytes, &g);

	s->memory = huge_memory(s->bytes);
	s->other = huge_memory(s->bytes);
	s->keys = calloc(s->blocks, sizeof(*s->keys));
	s->pages = calloc(s->blocks, sizeof(*s->pages));
	if (!s->memory || !s->other || !s->keys || !s->pages)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->blocks; i++)
		s->pages[i] = i;
	if (rc == 0)
		rc = open_cache(s, &g, verify);
	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = "nvme";
	if (rc == 0)
		rc = tn_space_open(tn_soft_cache_of(s->soft), &id, &shard, &g, NULL, &s->space);
	return rc ? rc : cli_pool_open(tn_soft_cache_of(s->soft), &g, &shape, s->memory, &s->pool);
}

/* The round's own keys, so that every block is new. */
static int make_keys(struct nvme_store *s)
{
	uint64_t *hash = calloc(s->blocks, 16);
	long n = -ENOMEM;

	s->rounds++;
	for (uint32_t i = 0; hash && i < s->blocks; i++) {
		hash[2 * i] = s->rounds;
		hash[2 * i + 1] = i;
	}
	if (hash)
		n = tn_keys_from_hashes(s->space, hash, 16, s->blocks, s->keys, s->blocks);
	free(hash);
	return n == (long)s->blocks ? 0 : n < 0 ? (int)n : -EIO;
}

static int save(struct nvme_store *s)
{
	struct tn_save_result r = {.size = sizeof(r)};
	struct tn_save *op;
	int rc = tn_save_begin(s->space, s->pool.pool, s->keys, s->blocks, s->pages, NULL, &op);

	for (uint32_t layer = 0; rc == 0 && layer < LAYERS; layer++)
		rc = tn_save_layer(op, layer, NULL, 0);
	if (rc == 0)
		rc = tn_save_commit(op);
	if (rc == 0)
		rc = tn_save_end(op, cli_now_ns() + PATIENCE_NS, &r);
	if (rc == 0 && r.stored != s->blocks)
		rc = r.error ? r.error : -ENOSPC;
	return rc ? rc : tn_flush(tn_soft_cache_of(s->soft), cli_now_ns() + PATIENCE_NS);
}

static int load(struct nvme_store *s)
{
	uint64_t until = cli_now_ns() + PATIENCE_NS;
	struct tn_load *op;
	int rc = tn_load_begin(s->space, s->pool.pool, s->keys, s->blocks, s->pages, NULL, &op), good;

	if (rc)
		return rc;
	good = tn_load_wait(op, LAYERS - 1, until);
	rc = tn_load_end(op, until, NULL);
	if (rc == 0 && good != (int)s->blocks)
		rc = good < 0 ? good : -EIO;
	return rc;
}

static double copy(struct nvme_store *s, int op)
{
	unsigned char *to = op == NVME_STORE_SAVE ? s->other : s->memory, *from = op == NVME_STORE_SAVE ? s->memory : s->other;
	uint64_t start = cli_now_ns();

	for (uint64_t at = 0; at < s->bytes; at += s->object_bytes)
		memcpy(to + at, from + at, s->object_bytes);
	return (double)(cli_now_ns() - start) / 1e9;
}

int nvme_store_round(struct nvme_store *s, bool memcpy_first, struct nvme_store_figures *f)
{
	int rc = make_keys(s);

	for (int op = 0; op < NVME_STORE_OPS && rc == 0; op++) {
		uint64_t start;

		if (memcpy_first)
			f->memcpy_s[op] = copy(s, op);
		start = cli_now_ns();
		rc = op == NVME_STORE_SAVE ? save(s) : load(s);
		f->store_s[op] = (double)(cli_now_ns() - start) / 1e9;
		if (!memcpy_first)
			f->memcpy_s[op] = copy(s, op);
	}
	return rc;
}

int nvme_store_open(uint64_t object_bytes, uint64_t total, bool verify, struct nvme_store **out)
{
	struct nvme_store *s = calloc(1, sizeof(*s));
	struct nvme_store_figures f;
	int rc;

	if (!s)
		return -ENOMEM;
	s->object_bytes = object_bytes;
	s->blocks = (uint32_t)(total / (object_bytes * LAYERS));
	s->bytes = s->blocks * object_bytes * LAYERS;
	rc = set_up(s, verify);
	/* Until all slots are in use: then the store grows no more, and each save takes the place of old blocks. */
	for (uint32_t i = 0; i < CAPACITY + 1 && rc == 0; i++)
		rc = nvme_store_round(s, false, &f);
	if (rc) {
		nvme_store_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

uint64_t nvme_store_bytes(const struct nvme_store *s)
{
	return s->bytes;
}

int nvme_store_close(struct nvme_store *s)
{
	int rc;

	if (!s)
		return 0;
	cli_pool_close(&s->pool);
	if (s->space)
		tn_space_close(s->space);
	rc = tn_soft_cache_close(s->soft);
	if (rc)
		return rc;
	if (s->memory)
		munmap(s->memory, s->bytes);
	if (s->other)
		munmap(s->other, s->bytes);
	free(s->keys);
	free(s->pages);
	free(s);
	return 0;
}
