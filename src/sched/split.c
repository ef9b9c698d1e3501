/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of a prefix to restore when a fast engine outruns a slow disk (docs/model.md).
 *
 * With compute C(k) and reading k * b per layer, the time is T1 = first layer's load + layers * C(k) while reading
 * hides behind compute, and T2 = all loads + C(k) once it does not. C is concave in k (attention grows with what lies
 * before a token), so T1 and T2 are, too, and each is least at an end of its range: at 0, at the crossing, or at all
 * blocks. A run of blocks that lie in host memory costs no reading: once the blocks before it are restored, it is, to
 * its end. Runs make the time a saw, so the best found is looked at more closely.
 */
#include "sched/split.h"

#include <errno.h>
#include <stdbool.h>

#include "base/error.h"

#define EVERY_ONE 64 /* so many blocks are simply all tried */
#define GRID 16
#define END_MAX 9e18 /* ns that still fit 63 bits */

static int check(const struct tn_split *s)
{
	uint64_t n;

	if (!s->layers || s->layers > TN_LAYERS_MAX || !s->compute || !s->scratch)
		return tn_fail(-EINVAL, "%u layers: must be 1 to %u, with a compute function and scratch", s->layers,
			       TN_LAYERS_MAX);
	if (s->host_blocks > s->blocks)
		return tn_fail(-EINVAL, "%llu blocks in host memory, of %llu", (unsigned long long)s->host_blocks,
			       (unsigned long long)s->blocks);
	if (s->blocks && (!s->block_tokens || !s->object_bytes))
		return tn_fail(-EINVAL, "blocks of %llu tokens and %llu bytes per layer: neither may be 0",
			       (unsigned long long)s->block_tokens, (unsigned long long)s->object_bytes);
	if (!s->blocks && !s->input_tokens)
		return tn_fail(-EINVAL, "neither a block nor a token: there is nothing to compute");
	if (__builtin_mul_overflow(s->blocks, s->block_tokens, &n) || __builtin_add_overflow(n, s->input_tokens, &n) ||
	    __builtin_mul_overflow(s->object_bytes, s->layers, &n) || __builtin_add_overflow(n, s->header_bytes, &n) ||
	    __builtin_mul_overflow(s->blocks, n, &n) || n > TN_SPLIT_BYTES_MAX)
		return tn_fail(-EOVERFLOW, "%llu blocks of %llu tokens, %llu bytes per layer: more than can be counted",
			       (unsigned long long)s->blocks, (unsigned long long)s->block_tokens,
			       (unsigned long long)s->object_bytes);
	return 0;
}

static int check_device(const struct tn_split *s)
{
	if (!(s->read_bps > 0 && s->read_bps <= TN_READ_BPS_MAX))
		return tn_fail(-EINVAL, "read_bps %g: must be above 0, at most %g", s->read_bps, TN_READ_BPS_MAX);
	if (!s->window || s->latency_ns > TN_LAYER_NS_MAX)
		return tn_fail(-EINVAL, "window %u, latency of %llu ns: must be above 0, and at most %llu", s->window,
			       (unsigned long long)s->latency_ns, (unsigned long long)TN_LAYER_NS_MAX);
	return 0;
}

/* A split, and how many of its first @at blocks are read: candidates are near each other, so little is counted anew. */
struct search {
	const struct tn_split *s;
	uint64_t at, reads;
};

static bool is_read(const struct tn_split *s, uint64_t block)
{
	return s->tiers ? s->tiers[block] > TN_TIER_HOST : block >= s->host_blocks;
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

/* A time is over when its last ns is. */
static uint64_t whole_ns(double ns)
{
	uint64_t n = (uint64_t)ns;

	return n + ((double)n < ns);
}

/* The last of the layers that are read with this one. */
static uint32_t arrives_with(const struct tn_split *s, uint32_t layer)
{
	uint32_t last = layer;

	if (s->together > 0)
		last = layer < s->first_together ? s->first_together - 1 : layer + s->together - 1 - (layer - s->first_together) % s->together;
	return last < s->layers ? last : s->layers - 1;
}

/* When each layer has been computed, from when it was read; 1 if a time does not fit. */
static int compute_layers(const struct tn_split *s, const uint64_t *compute, struct tn_restore *out)
{
	const uint64_t *loaded = s->scratch + s->layers;

	for (uint32_t l = 0; l < s->layers; l++) {
		uint64_t there = loaded[arrives_with(s, l)];

		if (!((double)there + (double)compute[l] + (double)out->ttft_ns < END_MAX))
			return 1;
		out->ttft_ns = (out->ttft_ns > there ? out->ttft_ns : there) + compute[l];
		out->compute_ns += compute[l];
	}
	out->bubble_ns = out->ttft_ns - out->compute_ns;
	return 0;
}

/*
 * The recurrence, when so many blocks are read; 1 if a time does not fit. Layers are read one behind the other, and one
 * that is issued while another moves hides its latency behind that one.
 */
static int run(const struct tn_split *s, const uint64_t *compute, uint64_t reads, struct tn_restore *out)
{
	uint64_t *loaded = s->scratch + s->layers;
	double now = 0;

	*out = (struct tn_restore){.read_bytes = reads * (s->layers * s->object_bytes + s->header_bytes)};
	for (uint32_t l = 0; l < s->layers; l++) {
		uint64_t issued = l >= s->window ? loaded[l - s->window] : 0;

		if (reads) {
			uint64_t bytes = reads * (s->object_bytes + (l ? 0 : s->header_bytes));

			now = now > (double)(issued + s->latency_ns) ? now : (double)(issued + s->latency_ns);
			now += (double)bytes * 1e9 / s->read_bps;
		}
		if (!(now < END_MAX))
			return 1;
		loaded[l] = out->io_ns = whole_ns(now);
	}
	return compute_layers(s, compute, out);
}

/* One evaluation; *hides: every layer's reading takes no longer than its compute. */
static int evaluate(struct search *f, uint64_t restore, struct tn_restore *out, bool *hides)
{
	const struct tn_split *s = f->s;
	uint64_t *compute = s->scratch, reads = reads_of(f, restore);
	uint64_t prefix = restore * s->block_tokens;
	uint64_t input = (s->blocks - restore) * s->block_tokens + s->input_tokens;
	int rc = reads ? check_device(s) : 0;

	if (rc)
		return rc;
	if (!input) {
		input = 1;
		prefix--;
	}
	rc = s->compute(s->compute_arg, input, prefix, compute);
	if (rc < 0)
		return rc;
	*hides = true;
	for (uint32_t l = 0; l < s->layers; l++) {
		if (!compute[l] || compute[l] > TN_LAYER_NS_MAX)
			return tn_fail(-EINVAL, "layer %u computes for %llu ns: must be 1 to %llu", l,
				       (unsigned long long)compute[l], (unsigned long long)TN_LAYER_NS_MAX);
		*hides &= !reads || (double)(reads * s->object_bytes) * 1e9 / s->read_bps <= (double)compute[l];
	}
	if (run(s, compute, reads, out))
		return tn_fail(-EOVERFLOW, "%llu blocks at %g bytes per second: no clock counts how long that takes",
			       (unsigned long long)reads, s->read_bps);
	return 0;
}

/* Keeps the better one; a choice that restores more wins a tie. */
static int consider(struct search *f, uint64_t restore, struct tn_split_choice *best, bool *hides)
{
	struct tn_restore r;
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
	int rc = check(s);

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

/* Whether a prefix of so many blocks is restored as soon as it is computed: 1, 0 or -errno. */
static int pays(struct tn_split *s, uint64_t blocks)
{
	struct search f = {s, 0, 0};
	struct tn_restore all, none;
	bool hides;
	int rc;

	s->blocks = blocks;
	rc = evaluate(&f, blocks, &all, &hides);
	if (rc == 0)
		rc = evaluate(&f, 0, &none, &hides);
	return rc ? rc : all.ttft_ns <= none.ttft_ns;
}

int tn_split_crossover(const struct tn_split *s, uint64_t *blocks)
{
	struct tn_split part = *s;
	uint64_t low = 0, high = 1; /* low does not pay; high does */
	int rc = check(s);

	for (uint64_t n = 1; rc == 0 && n <= s->blocks; n = n < s->blocks && n > s->blocks / 2 ? s->blocks : 2 * n) {
		int paid = pays(&part, n);

		rc = paid < 0 ? paid : 0;
		if (paid == 0) {
			low = n;
			high = n > s->blocks / 2 ? s->blocks : 2 * n;
		}
	}
	while (rc == 0 && low < s->blocks && high - low > 1) {
		uint64_t mid = low + (high - low) / 2;
		int paid = pays(&part, mid);

		rc = paid < 0 ? paid : 0;
		*(paid == 0 ? &low : &high) = mid;
	}
	if (rc == 0)
		*blocks = low < s->blocks ? low + 1 : TN_SPLIT_NEVER;
	return rc;
}
