/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a block is worth, learned from how similar blocks were used: a life table per class of references.
 *
 * Time is one tick per referenced block, found or not. Ages and intervals are in ticks, 32 bits, and may wrap. The
 * table learns from a sample of keys of fixed size. Keys are chosen by their hash, whether or not they are in the
 * tier, so that evicted and rejected blocks are judged by the same evidence as kept blocks. A block's value is the
 * best rate of hits per tick of keeping the block that any length of stay would give from its present age on (Gittins'
 * index).
 *
 * A life table knows no entries and no chains, and of capacities only the one that it was made for; policy_default.c
 * does the rest.
 */
#ifndef TN_POLICY_POLICY_LIFE_H
#define TN_POLICY_POLICY_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"

/*
 * A class is a kind and a level. Kinds: references so far 1, 2, 3, 4-5, 6-8, 9-15, 16-31, 32 and more, and two kinds of
 * blocks referenced once that have their own fate: a prompt's unfinished tail is hardly ever read again; a block that
 * continues a chain whose end had been seen exactly once is a session's next request. Levels: the level of a block seen
 * once is by its depth (below 4, 8, 16, 32, 64, more), of others by the interval since the last reference (below 2^10,
 * 2^14, ...).
 */
#define TN_LIFE_COUNT_MAX 32u /* more references are not told apart */
#define TN_LIFE_PARTIAL 8u
#define TN_LIFE_CONTINUED 9u
#define TN_LIFE_KINDS 10u
#define TN_LIFE_LEVELS 6u
#define TN_LIFE_CLASSES (TN_LIFE_KINDS * TN_LIFE_LEVELS)

/* Ages: one bucket below 32 ticks, then two per octave. */
#define TN_LIFE_FIRST_OCTAVE 5u
#define TN_LIFE_BUCKETS ((32 - TN_LIFE_FIRST_OCTAVE) * 2 + 1)

struct tn_life_sample;

struct tn_life {
	const struct tn_alloc *alloc;
	uint32_t capacity;
	uint32_t now;
	uint32_t counted_to; /* tick up to which exposure is counted */
	uint32_t next_recompute;
	uint32_t sample_mask; /* keys whose hash has none of these bits are sampled */
	double half_life;
	double threshold; /* running mean of the value of evicted blocks */
	struct tn_life_sample *samples;
	double edge[TN_LIFE_BUCKETS + 1]; /* first age of a bucket */
	double events[TN_LIFE_CLASSES][TN_LIFE_BUCKETS]; /* references that came at that age */
	double exposure[TN_LIFE_CLASSES][TN_LIFE_BUCKETS]; /* ticks spent at that age */
	float value[TN_LIFE_CLASSES][TN_LIFE_BUCKETS]; /* hits per tick kept */
	float reads_per_write[TN_LIFE_CLASSES]; /* chance of a read before the block would be given up */
};

int tn_life_init(struct tn_life *life, const struct tn_alloc *alloc, uint32_t capacity);
/* The tier holds so many blocks from now on; best before the first reference. */
void tn_life_expect(struct tn_life *life, uint32_t capacity);
void tn_life_fini(struct tn_life *life);

/* The clock ticks for a reference of the key with this hash (random in all bits), which makes it a block of `class`. */
void tn_life_observe(struct tn_life *life, uint64_t hash, uint32_t class);

/* A block of this value was given up for another block. */
void tn_life_note_evicted(struct tn_life *life, float value);

uint32_t tn_life_interval_level(uint32_t interval);
uint32_t tn_life_depth_level(uint32_t depth);
uint32_t tn_life_count_kind(uint32_t count);

static inline uint32_t tn_life_bucket(uint32_t age)
{
	uint32_t octave;

	if (age < 1u << TN_LIFE_FIRST_OCTAVE)
		return 0;
	octave = 31u - (uint32_t)__builtin_clz(age);
	return (octave - TN_LIFE_FIRST_OCTAVE) * 2 + (age >> (octave - 1) & 1) + 1;
}

static inline float tn_life_value(const struct tn_life *life, uint32_t class, uint32_t last)
{
	return life->value[class][tn_life_bucket(life->now - last)];
}

#endif
