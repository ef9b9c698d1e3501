/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry's table: create, insert, remove, and the look-ups that any thread may make.
 * The life cycle of blocks and their chains are in block.c; the data structures in registry.h.
 *
 * Ordering. Publishing a block: key and meta are written, then refs = 0 with release, then the table
 * entry, index before tag, the tag with release. A reader's pin is a compare-and-swap with acquire that
 * fails on REFS_DEAD. Once the pin holds, key and meta of this incarnation are visible and cannot change, so
 * comparing them after the pin decides. Forgetting is the owner's compare-and-swap 0 -> REFS_DEAD.
 */
#include "block/registry.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"

#define LANES_LOW 0x0001000100010001u
#define LANES_HIGH 0x8000800080008000u
#define LAST_WORD_TAGS 0x00000000ffffffffu

/* How far ahead of the key in hand a look-up touches memory: the bucket first, the record later. */
#define AHEAD_BUCKET 20u
#define AHEAD_RECORD 10u
#define AHEAD_RING 32u

static size_t records_bytes(uint32_t n)
{
	return tn_array_bytes(n, sizeof(struct tn_record));
}

static size_t chains_bytes(uint32_t n)
{
	return tn_array_bytes(n, sizeof(struct tn_chain));
}

static size_t device_slots_bytes(uint32_t n)
{
	return tn_array_bytes(n, sizeof(uint32_t));
}

static size_t buckets_bytes(uint32_t n)
{
	return tn_array_bytes(n, sizeof(struct tn_bucket));
}

int tn_registry_create(const struct tn_registry_opts *opts, struct tn_registry **out)
{
	const struct tn_alloc *alloc = opts->alloc;
	struct tn_registry *reg;

	if (opts->max_blocks == 0 || opts->max_blocks > 1u << 31)
		return tn_fail(-EINVAL, "max_blocks %u: must be 1 to 2^31", opts->max_blocks);
	reg = tn_get(alloc, sizeof(*reg));
	if (!reg)
		return tn_fail(-ENOMEM, "no memory for a registry");
	reg->alloc = alloc;
	reg->max_blocks = opts->max_blocks;
	reg->nbuckets = (uint32_t)((uint64_t)opts->max_blocks * 100 / (TABLE_WAYS * TABLE_LOAD_PERCENT)) + 1;
	reg->free = TN_BLOCK_NONE;
	reg->records = tn_get(alloc, records_bytes(reg->max_blocks));
	reg->chains = tn_get(alloc, chains_bytes(reg->max_blocks));
	reg->buckets = tn_get(alloc, buckets_bytes(reg->nbuckets));
	if (opts->device_slots)
		reg->device_slot = tn_get(alloc, device_slots_bytes(reg->max_blocks));
	if (!reg->records || !reg->chains || !reg->buckets || (opts->device_slots && !reg->device_slot)) {
		tn_registry_destroy(reg);
		return tn_fail(-ENOMEM, "no memory for an index of %u blocks: lower max_blocks", opts->max_blocks);
	}
	*out = reg;
	return 0;
}

void tn_registry_destroy(struct tn_registry *reg)
{
	const struct tn_alloc *alloc;

	if (!reg)
		return;
	alloc = reg->alloc;
	tn_put(alloc, reg->records, records_bytes(reg->max_blocks));
	tn_put(alloc, reg->chains, chains_bytes(reg->max_blocks));
	tn_put(alloc, reg->buckets, buckets_bytes(reg->nbuckets));
	tn_put(alloc, reg->device_slot, device_slots_bytes(reg->max_blocks));
	tn_put(alloc, reg, sizeof(*reg));
}

uint32_t tn_registry_count(const struct tn_registry *reg)
{
	return __atomic_load_n(&reg->count, __ATOMIC_RELAXED);
}

uint64_t tn_registry_bytes(const struct tn_registry *reg)
{
	return sizeof(*reg) + records_bytes(reg->max_blocks) + chains_bytes(reg->max_blocks) +
	       buckets_bytes(reg->nbuckets) + (reg->device_slot ? device_slots_bytes(reg->max_blocks) : 0);
}

/* ---- the table ------------------------------------------------------------------------------- */

static inline uint32_t home_of(const struct tn_registry *reg, uint64_t hash)
{
	return (uint32_t)(((hash >> 32) * reg->nbuckets) >> 32);
}

static inline uint32_t bucket_after(const struct tn_registry *reg, uint32_t bucket)
{
	return bucket + 1 == reg->nbuckets ? 0 : bucket + 1;
}

static inline uint64_t tag_of(uint64_t hash)
{
	uint64_t tag = hash & 0xffff;

	return tag ? tag : 1; /* 0 is the empty lane */
}

/*
 * Sets the high bit of each 16-bit lane of a bucket's w-th word that is a tag and equal to this one. Lanes above an equal
 * one may be set wrongly.
 */
static inline uint64_t lanes_equal(uint64_t word, uint32_t w, uint64_t tag)
{
	uint64_t x = word ^ (tag * LANES_LOW);

	return (x - LANES_LOW) & ~x & (w == 2 ? LANES_HIGH & LAST_WORD_TAGS : LANES_HIGH);
}

static inline uint32_t way_of_lane(uint32_t w, uint64_t lanes)
{
	return w * 4 + (uint32_t)__builtin_ctzll(lanes) / 16;
}

static inline uint64_t word_load(const struct tn_bucket *b, uint32_t w)
{
	return __atomic_load_n(&b->words[w], __ATOMIC_ACQUIRE);
}

static void overflow_add(struct tn_bucket *b, int delta)
{
	uint64_t word = b->words[2] + ((uint64_t)(int64_t)delta << 32);

	__atomic_store_n(&b->words[2], word, __ATOMIC_RELEASE);
}

static void tag_set(struct tn_bucket *b, uint32_t way, uint64_t tag)
{
	uint32_t shift = way % 4 * 16;
	uint64_t word = (b->words[way / 4] & ~((uint64_t)0xffff << shift)) | tag << shift;

	__atomic_store_n(&b->words[way / 4], word, __ATOMIC_RELEASE);
}

/* The way with this tag and block; with tag 0, a free way, whatever block it had. TABLE_WAYS if there is none. Owner only. */
static uint32_t way_of(const struct tn_bucket *bucket, uint64_t tag, tn_block b)
{
	for (uint32_t way = 0; way < TABLE_WAYS; way++)
		if ((bucket->words[way / 4] >> way % 4 * 16 & 0xffff) == tag && (!tag || bucket->index[way] == b))
			return way;
	return TABLE_WAYS;
}

void tn_registry_insert(struct tn_registry *reg, tn_block b)
{
	uint64_t hash = tn_registry_hash_of(reg, b);
	uint32_t i = home_of(reg, hash);
	struct tn_bucket *bucket = &reg->buckets[i];
	uint32_t way;

	/* The search ends, because there are more ways than records. Counts go up before the entry can be found. */
	while ((way = way_of(bucket, 0, TN_BLOCK_NONE)) == TABLE_WAYS) {
		overflow_add(bucket, 1);
		i = bucket_after(reg, i);
		bucket = &reg->buckets[i];
	}
	__atomic_store_n(&bucket->index[way], b, __ATOMIC_RELAXED);
	tag_set(bucket, way, tag_of(hash));
	__atomic_store_n(&reg->count, reg->count + 1, __ATOMIC_RELAXED);
}

void tn_registry_remove(struct tn_registry *reg, tn_block b)
{
	uint64_t hash = tn_registry_hash_of(reg, b);
	uint32_t home = home_of(reg, hash), end = home;
	uint32_t way;

	while ((way = way_of(&reg->buckets[end], tag_of(hash), b)) == TABLE_WAYS) {
		assert(reg->buckets[end].words[2] >> 32); /* a registered block is in the table */
		end = bucket_after(reg, end);
	}
	tag_set(&reg->buckets[end], way, 0);
	for (uint32_t i = home; i != end; i = bucket_after(reg, i))
		overflow_add(&reg->buckets[i], -1);
	__atomic_store_n(&reg->count, reg->count - 1, __ATOMIC_RELAXED);
}

/* ---- look-up --------------------------------------------------------------------------------- */

struct wanted {
	uint64_t key[2];
	uint64_t hash;
	uint32_t space;
};

static inline bool is_registered(uint32_t meta)
{
	return (meta & META_STATE_MASK) == (uint32_t)TN_BLOCK_REGISTERED << META_STATE_SHIFT;
}

static inline bool record_is(const struct tn_registry *reg, tn_block b, const struct wanted *w)
{
	const struct tn_record *r = &reg->records[b];
	uint32_t meta = __atomic_load_n(&r->meta, __ATOMIC_RELAXED);

	return __atomic_load_n(&r->key[0], __ATOMIC_RELAXED) == w->key[0] &&
	       __atomic_load_n(&r->key[1], __ATOMIC_RELAXED) == w->key[1] && (meta & 0xffff) == w->space &&
	       is_registered(meta);
}

static inline bool hash_is(const struct tn_registry *reg, tn_block b, const struct wanted *w)
{
	return tn_registry_hash_of(reg, b) == w->hash && is_registered(tn_registry_meta(reg, b));
}

/* The block that the table has for w, at this moment, by either of these two. */
static inline tn_block search(const struct tn_registry *reg, const struct wanted *w,
			      bool (*is)(const struct tn_registry *reg, tn_block b, const struct wanted *w))
{
	uint32_t i = home_of(reg, w->hash);
	uint64_t tag = tag_of(w->hash);

	for (uint32_t probes = 0; probes < reg->nbuckets; probes++) {
		const struct tn_bucket *bucket = &reg->buckets[i];
		uint64_t last = word_load(bucket, 2);

		for (uint32_t word = 0; word < 3; word++) {
			uint64_t lanes = lanes_equal(word == 2 ? last : word_load(bucket, word), word, tag);

			for (; lanes; lanes &= lanes - 1) {
				tn_block b = __atomic_load_n(&bucket->index[way_of_lane(word, lanes)], __ATOMIC_RELAXED);

				if (is(reg, b, w))
					return b;
			}
		}
		if (!(last >> 32))
			break;
		i = bucket_after(reg, i);
	}
	return TN_BLOCK_NONE;
}

tn_block tn_registry_by_hash(const struct tn_registry *reg, uint64_t hash)
{
	const struct wanted w = {.hash = hash};

	return search(reg, &w, hash_is);
}

static inline bool pin(struct tn_record *r)
{
	uint32_t refs = __atomic_load_n(&r->refs, __ATOMIC_RELAXED);

	do {
		if (refs == REFS_DEAD)
			return false;
		assert(refs < REFS_DEAD - 1);
	} while (!__atomic_compare_exchange_n(&r->refs, &refs, refs + 1, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* before the residency is read: see tn_block_withdraw */
	return true;
}

void tn_block_unpin(struct tn_registry *reg, tn_block b)
{
	uint32_t before = __atomic_fetch_sub(&reg->records[b].refs, 1, __ATOMIC_RELEASE);

	assert(before > 0 && before != REFS_DEAD);
}

static inline tn_block search_and_pin(struct tn_registry *reg, const struct wanted *w)
{
	for (;;) {
		tn_block b = search(reg, w, record_is);

		if (b == TN_BLOCK_NONE)
			return b;
		if (!pin(&reg->records[b]))
			return TN_BLOCK_NONE; /* the block is being forgotten */
		if (record_is(reg, b, w))
			return b;
		tn_block_unpin(reg, b); /* the record was forgotten and used again between search and pin */
	}
}

tn_block tn_registry_find_one(struct tn_registry *reg, uint16_t space, const struct tn_key *key, bool do_pin)
{
	const struct wanted w = {{key->word[0], key->word[1]}, tn_registry_hash(space, key->word[0], key->word[1]), space};

	return do_pin ? search_and_pin(reg, &w) : search(reg, &w, record_is);
}

/* The best tier that has the block, TN_TIER_NONE if none. */
static inline uint8_t best_tier(uint32_t meta)
{
	for (uint32_t tier = TN_TIER_DEVICE; tier <= TN_TIER_REMOTE; tier++)
		if ((meta >> (META_RESIDENCY_SHIFT + 2 * (tier - 1)) & 3) == TN_PRESENT)
			return (uint8_t)tier;
	return TN_TIER_NONE;
}

void tn_registry_prefetch_record(const struct tn_registry *reg, uint64_t hash)
{
	const struct tn_bucket *bucket = &reg->buckets[home_of(reg, hash)];
	uint64_t tag = tag_of(hash);

	for (uint32_t word = 0; word < 3; word++) {
		uint64_t lanes = lanes_equal(word_load(bucket, word), word, tag);

		if (lanes) {
			tn_block b = __atomic_load_n(&bucket->index[way_of_lane(word, lanes)], __ATOMIC_RELAXED);

			__builtin_prefetch(&reg->records[b], 1);
			return;
		}
	}
	if (word_load(bucket, 2) >> 32)
		__builtin_prefetch(&reg->buckets[bucket_after(reg, home_of(reg, hash))]);
}

/* A walk through keys that begins to load what a key's look-up will touch before its turn comes. */
struct walk {
	struct tn_registry *reg;
	const struct tn_key *keys;
	uint32_t n;
	uint16_t space;
	bool pin;
	uint64_t hashes[AHEAD_RING];
};

static inline void load_ahead(struct walk *w, uint64_t step)
{
	if (step < w->n) {
		uint64_t h = tn_registry_hash(w->space, w->keys[step].word[0], w->keys[step].word[1]);

		w->hashes[step % AHEAD_RING] = h;
		tn_registry_prefetch(w->reg, h);
	}
	if (step >= AHEAD_RECORD && step - AHEAD_RECORD < w->n)
		tn_registry_prefetch_record(w->reg, w->hashes[(step - AHEAD_RECORD) % AHEAD_RING]);
}

static inline void walk_begin(struct walk *w)
{
	for (uint64_t step = 0; step < AHEAD_BUCKET; step++)
		load_ahead(w, step);
}

/* The keys one after the other, each once. */
static inline tn_block walk_to(struct walk *w, uint32_t i)
{
	struct wanted one = {{w->keys[i].word[0], w->keys[i].word[1]}, w->hashes[i % AHEAD_RING], w->space};

	load_ahead(w, (uint64_t)i + AHEAD_BUCKET);
	return w->pin ? search_and_pin(w->reg, &one) : search(w->reg, &one, record_is);
}

uint32_t tn_registry_find(struct tn_registry *reg, uint16_t space, const struct tn_key *keys, uint32_t n, bool do_pin,
			  tn_block *out, uint8_t *tiers)
{
	struct walk w = {.reg = reg, .keys = keys, .n = n, .space = space, .pin = do_pin};

	walk_begin(&w);
	for (uint32_t i = 0; i < n; i++) {
		tn_block b = walk_to(&w, i);
		uint8_t tier;

		if (b == TN_BLOCK_NONE)
			return i;
		tier = best_tier(tn_registry_meta(reg, b));
		if (tier == TN_TIER_NONE) {
			if (do_pin)
				tn_block_unpin(reg, b);
			return i;
		}
		out[i] = b;
		tiers[i] = tier;
	}
	return n;
}

void tn_registry_pin(struct tn_registry *reg, uint16_t space, const struct tn_key *keys, uint32_t n, tn_block *out)
{
	struct walk w = {.reg = reg, .keys = keys, .n = n, .space = space, .pin = true};

	walk_begin(&w);
	for (uint32_t i = 0; i < n; i++)
		out[i] = walk_to(&w, i);
}
