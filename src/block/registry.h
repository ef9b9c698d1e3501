/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the registry, shared by registry.c (table, look-up) and block.c (life cycle, links).
 *
 * Memory: 48 bytes per record, in two arrays: the 32 bytes that a look-up reads (one cache line at
 * most), and the 16 bytes of chain structure that only the owner reads. The table adds 64 bytes for
 * each TABLE_LOAD blocks.
 *
 * Table: buckets of one cache line with TABLE_WAYS entries: 16-bit tags, 32-bit indices, and a count of
 * the entries that wanted this bucket or were probing past it and found it full (as in F14, Bronson and
 * Shi, 2019). A search goes to the next bucket only while that count is not zero. Deleting an entry
 * clears its tag and counts down along its probe path: no tombstones, and no entry ever moves, which is
 * what makes searches on other threads safe without locks or retries.
 */
#ifndef TN_BLOCK_REGISTRY_H
#define TN_BLOCK_REGISTRY_H

#include "block/block.h"

#define TABLE_WAYS 10u
#define TABLE_LOAD_PERCENT 82u /* of TABLE_WAYS, at most */

struct tn_bucket {
	uint64_t words[3]; /* tags 0..3, 4..7, 8..9; the upper half of the last word is the overflow count */
	uint32_t index[TABLE_WAYS];
};
_Static_assert(sizeof(struct tn_bucket) == 64, "a bucket is one cache line");

#define REFS_DEAD UINT32_MAX /* not registered: cannot be pinned */

/* struct tn_record.meta: space, then 2 bits of residency for each of 4 tiers, then: */
#define META_RESIDENCY_SHIFT 16
#define META_STATE_SHIFT 24
#define META_STATE_MASK (3u << META_STATE_SHIFT)
#define META_LINKED (1u << 26) /* chain.parent was registered when this was set */
#define META_WANTED (1u << 27) /* the parent is known by hash only */

/* What look-ups read. Readers on other threads see key, refs and meta, through __atomic builtins only. */
struct tn_record {
	uint64_t key[2];
	uint32_t refs;
	uint32_t meta;
	uint32_t slot[2]; /* HOST, DISK; those in the device tier lie apart; owner only. slot[0] links free records */
};
_Static_assert(sizeof(struct tn_record) == 32, "two records a cache line");

/*
 * A record's place in its chain; owner only. Generations count how often a record was forgotten, modulo
 * 2^31. A link is alive while its parent has the generation that the link was made with.
 */
struct tn_chain {
	union {
		struct {
			uint32_t parent;
			uint32_t parent_generation : 31;
			uint32_t unsettled : 1; /* within tn_registry_relink: depth is to be computed */
		};
		uint64_t wanted; /* META_WANTED: tn_registry_hash of the parent */
	};
	uint32_t generation;
	uint32_t depth;
};
_Static_assert(sizeof(struct tn_chain) == 16, "two words");

#define GENERATION_MASK 0x7fffffffu

struct tn_registry {
	const struct tn_alloc *alloc;
	struct tn_record *records;
	struct tn_chain *chains;
	struct tn_bucket *buckets;
	uint32_t *device_slot; /* by record; owner only. NULL: there is no such tier */
	uint32_t max_blocks;
	uint32_t nbuckets;
	uint32_t unused; /* records from here on were never taken */
	uint32_t free; /* list of records that were given back */
	uint32_t count; /* read by other threads */
};

/* A hash of (space, key) in 64 bits: place and tag in the table. The keys themselves need not be random. */
static inline uint64_t tn_registry_hash(uint16_t space, uint64_t k0, uint64_t k1)
{
	uint64_t h = (k0 ^ space) * 0x9e3779b97f4a7c15u;

	h = (h ^ (h >> 32) ^ k1) * 0xd6e8feb86659fd93u;
	h ^= h >> 32;
	h *= 0xd6e8feb86659fd93u;
	return h ^ (h >> 32);
}

static inline uint32_t tn_registry_meta(const struct tn_registry *reg, tn_block b)
{
	return __atomic_load_n(&reg->records[b].meta, __ATOMIC_RELAXED);
}

static inline uint64_t tn_registry_hash_of(const struct tn_registry *reg, tn_block b)
{
	const struct tn_record *r = &reg->records[b];

	return tn_registry_hash((uint16_t)tn_registry_meta(reg, b), r->key[0], r->key[1]);
}

/* The registered block of this hash; owner only. */
tn_block tn_registry_by_hash(const struct tn_registry *reg, uint64_t hash);
void tn_registry_insert(struct tn_registry *reg, tn_block b);
void tn_registry_remove(struct tn_registry *reg, tn_block b);

/* Starts loading the hash's home bucket. */
static inline void tn_registry_prefetch(const struct tn_registry *reg, uint64_t hash)
{
	__builtin_prefetch(&reg->buckets[((hash >> 32) * reg->nbuckets) >> 32]);
}

/* Starts loading the record that the home bucket, loaded before, most likely has for the hash. */
void tn_registry_prefetch_record(const struct tn_registry *reg, uint64_t hash);

#endif
