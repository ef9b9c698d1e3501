/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life tables; see policy_life.h, and docs/policy.md for why each constant is what it is.
 *
 * Background: life tables with censoring (Kaplan and Meier, 1958), Gittins' index (1979), hit density (Beckmann et
 * al., LHD, NSDI'18), fixed-size sampling by hash (Waldspurger et al., SHARDS, FAST'15). Only + - * / on doubles
 * and no contraction (meson.build): the same decisions on every CPU.
 */
#include <errno.h>

#include "base/error.h"
#include "policy/policy_life.h"

#define WAYS 8u
#define SAMPLES 65536u
#define SAMPLE_SETS (SAMPLES / WAYS)
#define SAMPLE_COVER 8u /* the sample remembers at least this many capacities */
#define HORIZON 8.0 /* longest stay considered when admitting, in capacities */
#define RECOMPUTE_MIN 1024u
#define RECOMPUTE_MAX 16384u
#define STALE (UINT32_C(1) << 30) /* samples of this age go, before the clock wraps */

/* Forgetting, in ticks. */
#define HALF_LIFE_MIN 262144.0
#define HALF_LIFE_CAPACITIES 16.0
#define LN_2 0.6931

/*
 * Weak priors, in events: they weigh as much as a handful of references, then the data decide. Before any data the
 * hazard falls with age as 0.2 / (age + 64): a heavy tail, which makes the policy act like LRU.
 */
#define PRIOR_HAZARD 0.2
#define PRIOR_AGE 64.0
#define PRIOR_POOL 5.0
#define PRIOR_KIND 5.0
#define PRIOR_SHAPE 5.0
#define PRIOR_LEVEL 20.0
#define PRIOR_LEVEL_SHAPE 5.0
static const double kind_risk[TN_LIFE_KINDS] = {1, 2, 3, 4, 5, 6, 7, 8, .25, 1}; /* relative to all blocks */

struct tn_life_sample {
	uint32_t tag;
	uint32_t last;
	uint8_t class;
	uint8_t used;
};

/* ---- classes -------------------------------------------------------------------------------------------- */

static uint32_t log2_floor(uint32_t x)
{
	return x ? 31u - (uint32_t)__builtin_clz(x) : 0;
}

uint32_t tn_life_count_kind(uint32_t count)
{
	if (count <= 3)
		return count - 1;
	if (count <= 5)
		return 3;
	if (count <= 8)
		return 4;
	return count <= 15 ? 5 : count <= 31 ? 6 : 7;
}

uint32_t tn_life_interval_level(uint32_t interval)
{
	uint32_t octave = log2_floor(interval), level = octave < 10 ? 0 : (octave - 10) / 4 + 1;

	return level < TN_LIFE_LEVELS ? level : TN_LIFE_LEVELS - 1;
}

uint32_t tn_life_depth_level(uint32_t depth)
{
	if (depth < 4)
		return 0;
	return depth >= 64 ? TN_LIFE_LEVELS - 1 : log2_floor(depth) - 1;
}

/* ---- observing ------------------------------------------------------------------------------------------ */

/* Adds the time that a sampled block spent at each age between the last count and `to`. */
static void add_exposure(struct tn_life *life, const struct tn_life_sample *s, uint32_t to)
{
	uint32_t since = (int32_t)(life->counted_to - s->last) > 0 ? life->counted_to : s->last;
	double from_age = since - s->last, to_age = to - s->last;

	for (uint32_t b = tn_life_bucket(since - s->last); b < TN_LIFE_BUCKETS && life->edge[b] < to_age; b++) {
		double lo = life->edge[b] > from_age ? life->edge[b] : from_age;
		double hi = life->edge[b + 1] < to_age ? life->edge[b + 1] : to_age;

		if (hi > lo)
			life->exposure[s->class][b] += hi - lo;
	}
}

/*
 * From hazards to values: value(age) = the maximum over stays T of E[hits within T] / E[time spent within T]. The
 * time in a bucket that not all blocks survive is counted by the trapezium rule.
 */
static void value_class(struct tn_life *life, uint32_t class, const double *hazard)
{
	double alive = 1;

	for (uint32_t b = 0; b < TN_LIFE_BUCKETS; b++) {
		double left = 1, hits = 0, time = 0, best = 0;

		for (uint32_t e = b; e < TN_LIFE_BUCKETS && left > 1e-3; e++) {
			double width = life->edge[e + 1] - life->edge[e], stay = 1 / (1 + hazard[e] * width);

			hits += left * (1 - stay);
			time += left * width * (1 + stay) * .5;
			left *= stay;
			if (hits > best * time)
				best = hits / time;
		}
		life->value[class][b] = (float)best;
	}
	for (uint32_t b = 0; b < TN_LIFE_BUCKETS && life->edge[b] < HORIZON * life->capacity; b++) {
		if (life->value[class][b] < life->threshold)
			break;
		alive /= 1 + hazard[b] * (life->edge[b + 1] - life->edge[b]);
	}
	life->reads_per_write[class] = (float)(1 - alive);
}

/* Counts the samples' time up to now, and lets old evidence fade. */
static void take_stock(struct tn_life *life)
{
	double keep = life->half_life / (life->half_life + LN_2 * (double)(life->now - life->counted_to));

	for (uint32_t i = 0; i < SAMPLES; i++) {
		struct tn_life_sample *s = &life->samples[i];

		if (!s->used)
			continue;
		add_exposure(life, s, life->now);
		if (life->now - s->last > STALE)
			s->used = 0;
	}
	for (uint32_t c = 0; c < TN_LIFE_CLASSES; c++)
		for (uint32_t b = 0; b < TN_LIFE_BUCKETS; b++) {
			life->events[c][b] *= keep;
			life->exposure[c][b] *= keep;
		}
	life->counted_to = life->now;
}

/* The classes of one kind: each class is shrunk to the kind, and the kind to all blocks (`pool`). */
static void recompute_kind(struct tn_life *life, uint32_t kind, const double *pool)
{
	double ev[TN_LIFE_BUCKETS] = {0}, ex[TN_LIFE_BUCKETS] = {0}, shape[TN_LIFE_BUCKETS], hazard[TN_LIFE_BUCKETS];
	double seen = 0, expected = 0, risk;
	uint32_t first = kind * TN_LIFE_LEVELS;

	for (uint32_t b = 0; b < TN_LIFE_BUCKETS; b++) {
		for (uint32_t c = first; c < first + TN_LIFE_LEVELS; c++) {
			ev[b] += life->events[c][b];
			ex[b] += life->exposure[c][b];
		}
		seen += ev[b];
		expected += ex[b] * pool[b];
	}
	risk = (seen + PRIOR_KIND * kind_risk[kind]) / (expected + PRIOR_KIND);
	for (uint32_t b = 0; b < TN_LIFE_BUCKETS; b++)
		shape[b] = (ev[b] + PRIOR_SHAPE) / (ex[b] + PRIOR_SHAPE / (risk * pool[b]));
	for (uint32_t c = first; c < first + TN_LIFE_LEVELS; c++) {
		seen = expected = 0;
		for (uint32_t b = 0; b < TN_LIFE_BUCKETS; b++) {
			seen += life->events[c][b];
			expected += life->exposure[c][b] * shape[b];
		}
		risk = (seen + PRIOR_LEVEL) / (expected + PRIOR_LEVEL);
		for (uint32_t b = 0; b < TN_LIFE_BUCKETS; b++)
			hazard[b] = (life->events[c][b] + PRIOR_LEVEL_SHAPE) /
				    (life->exposure[c][b] + PRIOR_LEVEL_SHAPE / (risk * shape[b]));
		value_class(life, c, hazard);
	}
}

/* Empirical Bayes in three layers, each shrunk to the layer above: all blocks, kind, class. */
static void recompute(struct tn_life *life)
{
	double pool[TN_LIFE_BUCKETS];
	uint32_t wait = life->now / 8, longest = life->capacity / 16;

	take_stock(life);
	for (uint32_t b = 0; b < TN_LIFE_BUCKETS; b++) {
		double ev = 0, ex = 0;
		double prior = PRIOR_HAZARD / (.5 * (life->edge[b] + life->edge[b + 1]) + PRIOR_AGE);

		for (uint32_t c = 0; c < TN_LIFE_CLASSES; c++) {
			ev += life->events[c][b];
			ex += life->exposure[c][b];
		}
		pool[b] = (ev + PRIOR_POOL) / (ex + PRIOR_POOL / prior);
	}
	for (uint32_t k = 0; k < TN_LIFE_KINDS; k++)
		recompute_kind(life, k, pool);
	/* Often at first, when each hundred references change the picture. */
	if (longest < RECOMPUTE_MAX)
		longest = RECOMPUTE_MAX;
	if (wait < RECOMPUTE_MIN)
		wait = RECOMPUTE_MIN;
	life->next_recompute = life->now + (wait < longest ? wait : longest);
}

/* A reference ends a sampled block's life, and begins another; the life of a block that loses its place is censored. */
static void sample(struct tn_life *life, uint64_t hash, uint32_t class)
{
	uint32_t tag = (uint32_t)(hash >> 32);
	struct tn_life_sample *set = &life->samples[(hash >> 24) % SAMPLE_SETS * WAYS], *s = set;

	for (uint32_t i = 0; i < WAYS; i++) {
		if (!set[i].used || set[i].tag == tag) {
			s = &set[i];
			break;
		}
		if (life->now - set[i].last > life->now - s->last)
			s = &set[i];
	}
	if (s->used) {
		add_exposure(life, s, life->now);
		if (s->tag == tag)
			life->events[s->class][tn_life_bucket(life->now - s->last)] += 1;
	}
	*s = (struct tn_life_sample){tag, life->now, (uint8_t)class, 1};
}

void tn_life_observe(struct tn_life *life, uint64_t hash, uint32_t class)
{
	if (((uint32_t)hash & life->sample_mask) == 0)
		sample(life, hash, class);
	life->now++;
	if ((int32_t)(life->now - life->next_recompute) >= 0)
		recompute(life);
}

void tn_life_note_evicted(struct tn_life *life, float value)
{
	life->threshold += ((double)value - life->threshold) / 256;
}

void tn_life_expect(struct tn_life *life, uint32_t capacity)
{
	life->capacity = capacity;
	if (life->now == 0) /* another mask would make other keys the sample */
		life->sample_mask = 0;
	while (life->now == 0 && (uint64_t)SAMPLES * ((uint64_t)life->sample_mask + 1) < (uint64_t)SAMPLE_COVER * capacity)
		life->sample_mask = life->sample_mask * 2 + 1;
	life->half_life = HALF_LIFE_CAPACITIES * capacity;
	if (life->half_life < HALF_LIFE_MIN)
		life->half_life = HALF_LIFE_MIN;
	recompute(life);
}

int tn_life_init(struct tn_life *life, const struct tn_alloc *alloc, uint32_t capacity)
{
	*life = (struct tn_life){.alloc = alloc};
	life->samples = tn_get(alloc, sizeof(*life->samples) * SAMPLES);
	if (!life->samples)
		return tn_fail(-ENOMEM, "no memory for a sample of %u keys", SAMPLES);
	for (uint32_t b = 1; b <= TN_LIFE_BUCKETS; b++)
		life->edge[b] = (double)(UINT64_C(1) << (TN_LIFE_FIRST_OCTAVE + (b - 1) / 2)) * (b % 2 ? 1 : 1.5);
	tn_life_expect(life, capacity);
	return 0;
}

void tn_life_fini(struct tn_life *life)
{
	tn_put(life->alloc, life->samples, sizeof(*life->samples) * SAMPLES);
}
