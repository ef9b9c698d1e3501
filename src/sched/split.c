/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of a prefix to restore when a fast engine outruns a slow disk (pipeline.h, docs/model.md).
 *
 * With compute C(k) and reading k * b per layer, the time is T1 = first layer's load + layers * C(k) while reading
 * hides behind compute, and T2 = all loads + C(k) once it does not. C is concave in k (attention grows with what lies
 * before a token), so T1 and T2 are, too, and each is least at an end of its range: at 0, at the crossing, or at all
 * blocks. A run of blocks that lie in host memory costs no reading: once the blocks before it are restored, it is, to
 * its end. Runs make the time a saw, so the best found is looked at more closely.
 */
#include "sched/pipeline.h"

#include <errno.h>
#include <stdbool.h>

#include "base/error.h"

#define EVERY_ONE 64 /* so many blocks are simply all tried */
#define GRID 16

void tn_split_init(struct tn_split *s)
{
	struct tn_pipeline p;

	tn_pipeline_init(&p);
	*s = (struct tn_split){.io = p.io};
}

static int check(const struct tn_split *s, uint64_t restore)
{
	uint64_t n;

	if (!s->layers || s->layers > TN_LAYERS_MAX || !s->compute || !s->scratch)
		return tn_fail(-EINVAL, "%u layers: must be 1 to %u, with a compute function and scratch", s->layers,
			       TN_LAYERS_MAX);
	if (restore > s->blocks || s->host_blocks > s->blocks)
		return tn_fail(-EINVAL, "%llu blocks to restore and %llu in host memory, of %llu",
			       (unsigned long long)restore, (unsigned long long)s->host_blocks,
			       (unsigned long long)s->blocks);
	if (s->blocks && (!s->block_tokens || !s->object_bytes))
		return tn_fail(-EINVAL, "blocks of %llu tokens and %llu bytes a layer: neither may be 0",
			       (unsigned long long)s->block_tokens, (unsigned long long)s->object_bytes);
	if (!s->blocks && !s->input_tokens)
		return tn_fail(-EINVAL, "neither a block nor a token: there is nothing to compute");
	if (__builtin_mul_overflow(s->blocks, s->block_tokens, &n) || __builtin_add_overflow(n, s->input_tokens, &n) ||
	    __builtin_mul_overflow(s->blocks, s->object_bytes, &n) ||
	    __builtin_mul_overflow(s->blocks, s->header_bytes, &n))
		return tn_fail(-EOVERFLOW, "%llu blocks of %llu tokens, %llu bytes a layer: more than can be counted",
			       (unsigned long long)s->blocks, (unsigned long long)s->block_tokens,
			       (unsigned long long)s->object_bytes);
	return 0;
}

/* A split, and how many of its first @at blocks are read: candidates are near each other, so little is counted anew. */
struct search {
	const struct tn_split *s;
	uint64_t at, reads;
};

static bool is_read(const struct tn_split *s, uint64_t block)
{
	return s->tiers ? s->tiers[block] == TN_TIER_DISK : block >= s->host_blocks;
}

static uint64_t reads_of(struct search *f, uint64_t restore)
{
	for (; f->at < restore; f->at++)
		f->reads += is_read(f->s, f->at);
	for (; f->at > restore; f->at--)
		f->reads -= is_read(f->s, f->at - 1);
	return f->reads;
}

/* So many blocks, and those behind them that need no reading. */
static uint64_t reach(const struct tn_split *s, uint64_t restore)
{
	while (restore < s->blocks && !is_read(s, restore))
		restore++;
	return restore;
}

/* One evaluation; *hides: every layer's reading takes no longer than its compute. */
static int evaluate(struct search *f, uint64_t restore, struct tn_pipeline_result *out, bool *hides)
{
	const struct tn_split *s = f->s;
	uint64_t *compute = s->scratch, *bytes = compute + s->layers;
	struct tn_pipeline_layer *layer = (struct tn_pipeline_layer *)(bytes + s->layers);
	uint64_t disk = reads_of(f, restore);
	uint64_t prefix = restore * s->block_tokens;
	uint64_t input = (s->blocks - restore) * s->block_tokens + s->input_tokens;
	struct tn_pipeline p;
	int rc;

	if (!input) {
		input = 1;
		prefix--;
	}
	rc = s->compute(s->compute_arg, input, prefix, compute);
	if (rc < 0)
		return rc;
	tn_pipeline_init(&p);
	p.layers = s->layers;
	p.compute_ns = compute;
	p.bytes = disk ? bytes : NULL;
	p.header_bytes = disk * s->header_bytes;
	p.io = s->io;
	for (uint32_t l = 0; l < s->layers; l++)
		bytes[l] = disk * s->object_bytes;
	rc = tn_pipeline_run(&p, TN_STRATEGY_TENUTO, layer, out);
	if (rc)
		return rc;
	*hides = true;
	for (uint32_t l = 0; disk && *hides && l < s->layers; l++)
		*hides = (double)bytes[l] * 1e9 / s->io.read_bps <= (double)compute[l];
	return 0;
}

int tn_split_at(const struct tn_split *s, uint64_t restore, struct tn_pipeline_result *result)
{
	struct search f = {s, 0, 0};
	bool hides;
	int rc = check(s, restore);

	return rc ? rc : evaluate(&f, restore, result, &hides);
}

/* Keeps the better one; a choice that restores more wins a tie. */
static int consider(struct search *f, uint64_t restore, struct tn_split_choice *best, bool *hides)
{
	struct tn_pipeline_result r;
	int rc;

	*hides = false;
	rc = evaluate(f, restore, &r, hides);
	if (rc)
		return rc;
	if (r.ttft_ns < best->chosen.ttft_ns ||
	    (r.ttft_ns == best->chosen.ttft_ns && restore > best->restore_blocks)) {
		best->chosen = r;
		best->restore_blocks = restore;
	}
	return 0;
}

/* All of low..high, or evenly spread ones. */
static int consider_range(struct search *f, uint64_t low, uint64_t high, uint64_t step, struct tn_split_choice *best)
{
	bool hides;

	for (uint64_t k = low; k <= high; k += step) {
		int rc = consider(f, reach(f->s, k), best, &hides);

		if (rc)
			return rc;
		if (high - k < step)
			break;
	}
	return 0;
}

/* The crossing: the most blocks whose reading still hides. */
static int consider_crossing(struct search *f, struct tn_split_choice *best)
{
	uint64_t low = reach(f->s, 0), high = f->s->blocks; /* low hides; high is taken not to */
	int rc = 0;

	while (!rc && high > low && high - low > 1) {
		uint64_t mid = low + (high - low) / 2, end = reach(f->s, mid);
		bool hides;

		rc = consider(f, end, best, &hides);
		if (hides && end < high)
			low = end;
		else
			high = mid;
	}
	return rc ? rc : consider_range(f, low, high, 1, best);
}

/* Runs in host memory make the time a saw: round the best one, finer and finer. */
static int consider_near(struct search *f, uint64_t step, struct tn_split_choice *best)
{
	int rc = 0;

	while (!rc && step > 1) {
		uint64_t at = best->restore_blocks, blocks = f->s->blocks;
		uint64_t low = at > step ? at - step : 0, high = blocks - at > step ? at + step : blocks;

		step = (high - low) / GRID + 1;
		rc = consider_range(f, low, high, step, best);
	}
	return rc;
}

int tn_split_choose(const struct tn_split *s, struct tn_split_choice *out)
{
	struct search f = {s, 0, 0};
	struct tn_split_choice best;
	bool hides;
	int rc = check(s, 0);

	if (rc)
		return rc;
	rc = evaluate(&f, 0, &best.restore_none, &hides);
	if (!rc)
		rc = evaluate(&f, s->blocks, &best.restore_all, &hides);
	if (rc)
		return rc;
	best.restore_blocks = best.restore_all.ttft_ns <= best.restore_none.ttft_ns ? s->blocks : 0;
	best.chosen = best.restore_blocks ? best.restore_all : best.restore_none;
	if (s->blocks <= EVERY_ONE) {
		rc = consider_range(&f, 0, s->blocks, 1, &best);
	} else {
		uint64_t first = reach(s, 0), step = (s->blocks - first) / GRID + 1;

		rc = consider_range(&f, first, s->blocks, step, &best);
		if (!rc)
			rc = consider_crossing(&f, &best);
		if (!rc && s->tiers)
			rc = consider_near(&f, step, &best);
	}
	if (rc)
		return rc;
	*out = best;
	return 0;
}
