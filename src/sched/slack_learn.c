/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much an observation counts; and tables that begin empty: a shape fitted to what was seen, and cells that remember
 * where it was and what it was.
 *
 * The shape is a roofline: max(floor(prefix), compute(input, prefix)). Few tokens take as long as the weights and the
 * prefix take to be read, which is learned from small inputs; others take a per token and b per pair of
 * tokens that attend to each other. Each of the two is a least-squares fit of two coefficients, both >= 0, to relative
 * errors. A prior holds their ratio where what was seen cannot tell them apart.
 *
 * A cell keeps what was seen as a time at a place, not as a factor: when the shape moves, what was seen stays as it is.
 * Between cells, the ratios of what was seen to the shape are interpolated. Observations go through the cells, which
 * hold back outliers (tn_slack_gain), to the fits.
 *
 * Ranges: inputs and prefixes are at most 2^40, times 1 to 3.6e12 ns, so the sums stay between 1e-24 and 1e45, and the
 * prior keeps the determinant at least PRIOR of its largest term.
 */
#include "sched/slack.h"

/* docs/model.md */
#define DEAD_BAND 0.03    /* a deviation below is noise */
#define CLIP 2.0	  /* most that one observation may claim: twice or half */
#define GAIN 0.15	  /* part of a deviation confirmed once that a cell, and all cells together, make up */
#define GAIN_MIXED 0.08	  /* of a deviation that follows one in the other direction */
#define STREAK_MOVES 2	  /* deviations in a row before anything moves */
#define STREAK_LONG 4	  /* deviations in a row before it moves faster ... */
#define GAIN_LONG 0.35	  /* ... by this part */

#define SMALL TN_SLACK_SMALL_INPUT
#define RIDGE 128.0	    /* tokens whose compute takes as long as the floor, as long as only one of them is known */
#define PAIRS_PER 32768.0   /* prior: so long a prefix takes as much compute as the weights */
#define PREFIX_PER 131072.0 /* prior: so long a prefix takes as long to read as the weights */
#define PRIOR 0.003	    /* weight of a prior, of all that was seen */
#define FORGET (1 / 64.0)
#define FLOOR_BOUND 1.15 /* up to so many times the floor, a time says nothing about compute */
#define FIT_CLIP 4.0	 /* what one row may claim of a fit that knows something */
#define FIT_OFF 2.0	 /* a fit off by more, again and again, begins anew */
#define CORNERS_APART 4.0 /* ratios of corners that are further apart are not mixed */
#define WHOLE 1e9	 /* a gain at which every corner takes over what was seen */
#define PULL 0.02	 /* weight of the shape beside what cells know */

/* ---- gains --------------------------------------------------------------------------------------- */

double tn_slack_gain(struct tn_slack_run *run, double ratio)
{
	bool up = ratio > 1;

	if (ratio < 1 + DEAD_BAND && ratio > 1 / (1 + DEAD_BAND)) {
		*run = (struct tn_slack_run){0, 0};
		return 0;
	}
	run->any += run->any < STREAK_MOVES;
	if ((run->same > 0) != up || run->same == 0)
		run->same = up ? 1 : -1;
	else if (run->same < STREAK_LONG && run->same > -STREAK_LONG)
		run->same = (int8_t)(run->same + (up ? 1 : -1));
	if (run->any < STREAK_MOVES)
		return 0;
	if (run->same == STREAK_LONG || run->same == -STREAK_LONG)
		return GAIN_LONG;
	return run->same >= STREAK_MOVES || run->same <= -STREAK_MOVES ? GAIN : GAIN_MIXED;
}

double tn_slack_step(double ratio, double gain)
{
	if (ratio > CLIP)
		ratio = CLIP;
	if (ratio < 1 / CLIP)
		ratio = 1 / CLIP;
	return ratio >= 1 ? 1 + gain * (ratio - 1) : 1 / (1 + gain * (1 / ratio - 1));
}

/* ---- the shape ----------------------------------------------------------------------------------- */

/* Where a time is a row of a fit: its two terms for a coefficient of 1 each. */
struct terms {
	double first, second;
};

static struct terms compute_terms(double input, double prefix)
{
	return (struct terms){input, input * (prefix + input / 2) / PAIRS_PER};
}

static struct terms floor_terms(double prefix)
{
	return (struct terms){1, prefix / PREFIX_PER};
}

static double value(const struct tn_slack_fit *f, struct terms x)
{
	return f->a * x.first + f->b * x.second;
}

static bool known(const struct tn_slack_fit *f)
{
	return f->s11 > 0;
}

/* Of what is unknown, a guess from what is known. */
static double floor_ns(const struct tn_slack *t, double prefix)
{
	return known(&t->floor) ? value(&t->floor, floor_terms(prefix)) : t->compute.a * SMALL;
}

static double shape_ns(const struct tn_slack *t, double input, double prefix)
{
	struct terms x = compute_terms(input, prefix);
	double floor = floor_ns(t, prefix), compute = value(&t->compute, x);

	if (!known(&t->compute) && known(&t->floor))
		compute = t->floor.a / RIDGE * (x.first + x.second);
	return tn_slack_clamp_ns(compute > floor ? compute : floor);
}

/* ---- the fits ------------------------------------------------------------------------------------ */

/* Both coefficients, or the one that is left when the other would be negative. */
static void solve(struct tn_slack_fit *f)
{
	double prior = PRIOR * f->s11;
	double n11 = f->s11 + prior, n12 = f->s12 - prior, n22 = f->s22 + prior;
	double det = f->s11 * f->s22 - f->s12 * f->s12 + prior * (f->s11 + f->s22 + 2 * f->s12);
	double a = f->t1 * n22 - f->t2 * n12, b = f->t2 * n11 - f->t1 * n12;

	if (a > 0 && b > 0 && det > 0) {
		f->a = a / det;
		f->b = b / det;
	} else if (a > 0) {
		f->a = f->t1 / n11;
		f->b = 0;
	} else {
		f->a = 0;
		f->b = f->t2 / n22;
	}
}

/* Rows of weight 0 to 1 forget that much of the older ones. */
static void add_row(struct tn_slack_fit *f, struct terms x, double ns, double weight)
{
	double at = tn_slack_clamp_ns(value(f, x)), keep = 1 - FORGET * weight, first, second;

	if (known(f) && ns < at * FIT_OFF && ns * FIT_OFF > at)
		f->run = (struct tn_slack_run){0, 0};
	else if (known(f) && tn_slack_gain(&f->run, ns / at) >= GAIN_LONG)
		*f = (struct tn_slack_fit){.a = f->a, .b = f->b};
	if (known(f) && ns > at * FIT_CLIP)
		ns = at * FIT_CLIP;
	if (known(f) && ns < at / FIT_CLIP)
		ns = at / FIT_CLIP;
	first = x.first / ns;
	second = x.second / ns;
	f->s11 = f->s11 * keep + weight * first * first;
	f->s12 = f->s12 * keep + weight * first * second;
	f->s22 = f->s22 * keep + weight * second * second;
	f->t1 = f->t1 * keep + weight * first;
	f->t2 = f->t2 * keep + weight * second;
	solve(f);
}

static void fit(struct tn_slack *t, double input, double prefix, double ns)
{
	double large = input / (input + 4 * SMALL);

	/* Nothing takes less than the floor. */
	if (input < SMALL || (known(&t->floor) && ns * FIT_OFF < floor_ns(t, prefix)))
		add_row(&t->floor, floor_terms(prefix), ns, 1);
	else if (!known(&t->floor) || ns > FLOOR_BOUND * floor_ns(t, prefix))
		add_row(&t->compute, compute_terms(input, prefix), ns, large * large);
}

/* ---- the cells ----------------------------------------------------------------------------------- */

/* What was seen at a cell, over the shape there. */
static double ratio_at(const struct tn_slack *t, const struct tn_slack_entry *e)
{
	return e->seen_ns / shape_ns(t, e->seen_input, e->seen_prefix);
}

/*
 * Between the cells that know something; *weight: how much they do. A corner that says something else altogether than
 * the one that weighs most is left out: a mean would give in to the largest.
 */
static double cells_ratio(const struct tn_slack *t, const struct tn_slack_corners *c, double *weight)
{
	double w[4], ratio[4], sum = 0;
	unsigned most = 0;

	*weight = 0;
	for (unsigned k = 0; k < 4; k++) {
		w[k] = c->weight[k] * (c->at[k]->seen < 1 ? (double)c->at[k]->seen : 1);
		ratio[k] = w[k] > 0 ? ratio_at(t, c->at[k]) : 1;
		most = w[k] > w[most] ? k : most;
	}
	for (unsigned k = 0; k < 4; k++) {
		if (ratio[k] > ratio[most] * CORNERS_APART || ratio[k] < ratio[most] / CORNERS_APART)
			w[k] = 0;
		sum += w[k] * ratio[k];
		*weight += w[k];
	}
	return *weight > 0 ? sum / *weight : 1;
}

double tn_slack_learned_ns(const struct tn_slack *t, const struct tn_slack_corners *c)
{
	double weight, ratio = cells_ratio(t, c, &weight);

	/* The nearer to where nothing was seen, the nearer the result is to the shape; as much from above as from below. */
	ratio = ratio > 1 ? (weight * ratio + PULL) / (weight + PULL) : (weight + PULL) / (weight / ratio + PULL);
	return tn_slack_clamp_ns(shape_ns(t, c->input_tokens, c->prefix_tokens) * ratio);
}

/* One corner: a new one takes over what was seen, another one moves towards it in place and in time. */
static void move_cell(const struct tn_slack *t, const struct tn_slack_corners *c, struct tn_slack_entry *e, double seen,
		      double part)
{
	double ratio = seen;

	if (e->seen <= 0 || part > 1)
		part = 1;
	if (part < 1) {
		ratio = ratio_at(t, e);
		ratio *= tn_slack_step(seen / ratio, part);
	}
	e->seen_input += part * (c->input_tokens - e->seen_input);
	e->seen_prefix += part * (c->prefix_tokens - e->seen_prefix);
	e->seen_ns = tn_slack_clamp_ns(ratio * shape_ns(t, e->seen_input, e->seen_prefix));
}

/* What part of a deviation counts: the first few of a cell are averaged, except that a first outlier is dropped. */
static double gain_at(struct tn_slack_entry *nearest, double ratio)
{
	if (nearest->seen >= TN_SLACK_SEEN_ENOUGH)
		return tn_slack_gain(&nearest->run, ratio);
	return ratio < 0.5 ? WHOLE : 1 / (1 + (double)nearest->seen);
}

bool tn_slack_learn(struct tn_slack *t, const struct tn_slack_corners *c, double ns)
{
	double shape = shape_ns(t, c->input_tokens, c->prefix_tokens), weight, squares = 0;
	double ratio = ns / shape / cells_ratio(t, c, &weight), gain = 0;
	bool moved = false;

	if (weight > 0)
		gain = gain_at(c->nearest, ratio);
	for (unsigned k = 0; k < 4; k++)
		squares += c->weight[k] * c->weight[k];
	for (unsigned k = 0; k < 4; k++) {
		struct tn_slack_entry *e = c->at[k];

		if (c->weight[k] <= 0 || (gain <= 0 && e->seen > 0))
			continue;
		move_cell(t, c, e, ns / shape, gain * c->weight[k] / squares);
		e->seen += e->seen < TN_SLACK_SEEN_ENOUGH ? (float)c->weight[k] : 0;
		moved = true;
	}
	if (moved)
		fit(t, c->input_tokens, c->prefix_tokens, tn_slack_clamp_ns(shape * cells_ratio(t, c, &weight)));
	t->unknown = false;
	return moved;
}
