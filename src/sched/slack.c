/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slack tables: cells, interpolation, and the correction of given ones from what was observed. How much an observation
 * counts is in slack_gain.c; tables that begin empty learn in slack_learn.c.
 *
 * All arithmetic is on doubles between 1 and TN_SLACK_WINDOW_MAX (3.6e12), far from where they lose whole
 * nanoseconds; lengths go up to TN_SLACK_TOKENS_MAX (2^40). Nothing overflows, nothing divides by zero.
 */
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/alloc.h"
#include "base/error.h"
#include "sched/slack_internal.h"

/* The lengths of a table that begins empty: powers of two, 1 to 128K and 512 to 1M. */
#define EMPTY_INPUTS 18
#define EMPTY_PREFIXES 13
#define EMPTY_TOKEN_NS 1000 /* what it says as long as it knows nothing, for those who print it */
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

const char *tn_slack_how_name(uint32_t how)
{
	static const char *const names[] = {"profiled", "analytic", "synthetic", "learned"};

	return how < COUNT(names) ? names[how] : "unknown";
}

void tn_slack_desc_init_sized(struct tn_slack_desc *desc, size_t size)
{
	static const struct tn_slack_desc defaults = {.size = sizeof(defaults), .model = "-", .gpu = "-", .engine = "-", .when = "-"};

	tn_abi_init(desc, size, &defaults, sizeof(defaults));
}

/* ---- create ------------------------------------------------------------------------------------ */

static int copy_name(char *to, const char *from, const char *what)
{
	size_t len = from ? strlen(from) : 0;

	if (len == 0 || len >= TN_SLACK_NAME)
		return tn_fail(-EINVAL, "slack table: %s of %zu bytes; give 1 to %u", what, len, TN_SLACK_NAME - 1);
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)from[i] < ' ' || from[i] == 0x7f)
			return tn_fail(-EINVAL, "slack table: %s has a control character at byte %zu", what, i);
	if (from[0] == ' ' || from[len - 1] == ' ')
		return tn_fail(-EINVAL, "slack table: %s begins or ends with a blank", what);
	memcpy(to, from, len + 1);
	return 0;
}

static int copy_lengths(uint64_t *to, const uint64_t *from, uint32_t n, uint64_t least, const char *what)
{
	if (!from || n == 0 || n > TN_SLACK_LENGTHS_MAX)
		return tn_fail(-EINVAL, "slack table: %u %s lengths; give 1 to %u", n, what, TN_SLACK_LENGTHS_MAX);
	for (uint32_t i = 0; i < n; i++) {
		if (from[i] < least || from[i] > TN_SLACK_TOKENS_MAX)
			return tn_fail(-EINVAL, "slack table: %s length %llu is out of range", what,
				       (unsigned long long)from[i]);
		if (i && from[i] <= from[i - 1])
			return tn_fail(-EINVAL, "slack table: %s length %llu after %llu; lengths must rise", what,
				       (unsigned long long)from[i], (unsigned long long)from[i - 1]);
		to[i] = from[i];
	}
	return 0;
}

static size_t cell_count(const struct tn_slack *t)
{
	return (size_t)t->rows * t->nprefixes * t->ninputs;
}

static int fill_desc(struct tn_slack *t, const struct tn_slack_desc *d)
{
	int rc;

	if (d->layers == 0 || d->layers > TN_LAYERS_MAX)
		return tn_fail(-EINVAL, "slack table: %u layers; give 1 to %u", d->layers, TN_LAYERS_MAX);
	if (d->how > TN_SLACK_LEARNED)
		return tn_fail(-EINVAL, "slack table: unknown source %u", d->how);
	t->how = d->how;
	t->layers = d->layers;
	t->per_layer = d->per_layer;
	t->rows = d->per_layer ? d->layers : 1;
	t->ninputs = d->ninputs;
	t->nprefixes = d->nprefixes;
	t->common = 1;
	rc = copy_name(t->model, d->model, "model");
	if (rc == 0)
		rc = copy_name(t->gpu, d->gpu, "gpu");
	if (rc == 0)
		rc = copy_name(t->engine, d->engine, "engine");
	if (rc == 0)
		rc = copy_name(t->when, d->when, "when");
	if (rc == 0)
		rc = copy_lengths(t->inputs, d->inputs, d->ninputs, 1, "input");
	return rc ? rc : copy_lengths(t->prefixes, d->prefixes, d->nprefixes, 0, "prefix");
}

/* A table that is as @like but for its cells, which are zero. */
static int create(const struct tn_slack *like, struct tn_slack **out)
{
	struct tn_slack *t = tn_get(&tn_alloc_system, sizeof(*t));

	if (!t)
		return tn_fail(-ENOMEM, "slack table: no memory");
	*t = *like;
	t->cells = tn_get(&tn_alloc_system, tn_array_bytes(cell_count(t), sizeof(*t->cells)));
	if (!t->cells) {
		tn_put(&tn_alloc_system, t, sizeof(*t));
		return tn_fail(-ENOMEM, "slack table: no memory for %zu cells", cell_count(like));
	}
	*out = t;
	return 0;
}

int tn_slack_create(const struct tn_slack_desc *desc, struct tn_slack **out)
{
	struct tn_slack t = {0};
	struct tn_slack_desc d;
	int rc;

	if (!desc || !out)
		return tn_fail(-EINVAL, "tn_slack_create: no description, or nowhere to return the table");
	tn_slack_desc_init(&d);
	rc = tn_abi_in(TN_ABI(tn_slack_desc, nprefixes), &d, desc);
	if (rc == 0)
		rc = fill_desc(&t, &d);
	if (rc == 0)
		rc = create(&t, out);
	for (size_t i = 0; rc == 0 && i < cell_count(&t); i++)
		(*out)->cells[i].factor = 1;
	return rc;
}

int tn_slack_create_empty(uint32_t layers, struct tn_slack **out)
{
	uint64_t inputs[EMPTY_INPUTS], prefixes[EMPTY_PREFIXES] = {0};
	struct tn_slack_desc d;
	int rc;

	for (uint32_t i = 0; i < EMPTY_INPUTS; i++)
		inputs[i] = UINT64_C(1) << i;
	for (uint32_t p = 1; p < EMPTY_PREFIXES; p++)
		prefixes[p] = UINT64_C(256) << p;
	tn_slack_desc_init(&d);
	d.how = TN_SLACK_LEARNED;
	d.layers = layers;
	d.inputs = inputs;
	d.ninputs = EMPTY_INPUTS;
	d.prefixes = prefixes;
	d.nprefixes = EMPTY_PREFIXES;
	rc = tn_slack_create(&d, out);
	if (rc)
		return rc;
	(*out)->compute.a = EMPTY_TOKEN_NS;
	(*out)->compute.b = EMPTY_TOKEN_NS;
	(*out)->learns = true;
	(*out)->unknown = true;
	return 0;
}

int tn_slack_clone(const struct tn_slack *table, struct tn_slack **out)
{
	int rc;

	if (!table || !out)
		return tn_fail(-EINVAL, "tn_slack_clone: no table");
	rc = create(table, out);
	if (rc == 0)
		memcpy((*out)->cells, table->cells, cell_count(table) * sizeof(*table->cells));
	return rc;
}

void tn_slack_renew(struct tn_slack *clone, const struct tn_slack *original)
{
	struct tn_slack_entry *cells = clone->cells;

	if (clone->rows != original->rows || clone->ninputs != original->ninputs ||
	    clone->nprefixes != original->nprefixes)
		return;
	memcpy(cells, original->cells, cell_count(original) * sizeof(*cells));
	*clone = *original;
	clone->cells = cells;
}

void tn_slack_destroy(struct tn_slack *table)
{
	if (!table)
		return;
	tn_put(&tn_alloc_system, table->cells, tn_array_bytes(cell_count(table), sizeof(*table->cells)));
	tn_put(&tn_alloc_system, table, sizeof(*table));
}

void tn_slack_describe_sized(const struct tn_slack *table, struct tn_slack_desc *out, size_t size)
{
	const struct tn_slack_desc desc = {
		.size = sizeof(desc),
		.model = table->model,
		.gpu = table->gpu,
		.engine = table->engine,
		.when = table->when,
		.how = table->how,
		.layers = table->layers,
		.per_layer = table->per_layer,
		.inputs = table->inputs,
		.prefixes = table->prefixes,
		.ninputs = table->ninputs,
		.nprefixes = table->nprefixes,
	};

	tn_abi_init(out, size, &desc, sizeof(desc));
}

/* ---- cells ------------------------------------------------------------------------------------- */

static int check_cell(const struct tn_slack *t, uint32_t input, uint32_t prefix, uint32_t layer)
{
	if (!t || input >= t->ninputs || prefix >= t->nprefixes || (layer != TN_SLACK_ALL_LAYERS && layer >= t->layers))
		return tn_fail(-EINVAL, "slack table: no cell of input %u, prefix %u, layer %u", input, prefix, layer);
	return 0;
}

int tn_slack_set(struct tn_slack *table, uint32_t input, uint32_t prefix, uint32_t layer,
		 const struct tn_slack_cell *cell)
{
	uint32_t first, end;
	int rc = check_cell(table, input, prefix, layer);

	if (rc)
		return rc;
	if (!cell || cell->window_ns == 0 || cell->window_ns > TN_SLACK_WINDOW_MAX)
		return tn_fail(-EINVAL, "slack table: a window of %llu ns; give 1 to %llu",
			       cell ? (unsigned long long)cell->window_ns : 0, (unsigned long long)TN_SLACK_WINDOW_MAX);
	if (table->learns)
		return tn_fail(-EINVAL, "slack table: it began empty and learns; give it tn_slack_observe");
	if (!table->per_layer && layer != TN_SLACK_ALL_LAYERS)
		return tn_fail(-EINVAL, "slack table: its layers share their cells; set all of them");
	first = layer == TN_SLACK_ALL_LAYERS ? 0 : layer;
	end = layer == TN_SLACK_ALL_LAYERS ? table->rows : layer + 1;
	for (uint32_t r = first; r < end; r++)
		*tn_slack_entry(table, input, prefix, r) = (struct tn_slack_entry){
			.window_ns = cell->window_ns,
			.sm_budget = cell->sm_budget,
			.max_iocbs = cell->max_iocbs,
			.factor = 1,
		};
	return 0;
}

static uint32_t row_of(const struct tn_slack *t, uint32_t layer)
{
	return t->rows == 1 || layer == TN_SLACK_ALL_LAYERS ? 0 : layer;
}

int tn_slack_get(const struct tn_slack *table, uint32_t input, uint32_t prefix, uint32_t layer,
		 struct tn_slack_cell *cell)
{
	const struct tn_slack_entry *e;
	int rc = check_cell(table, input, prefix, layer);

	if (rc)
		return rc;
	e = tn_slack_entry(table, input, prefix, row_of(table, layer));
	if (e->window_ns == 0)
		return tn_fail(-ENOENT, "slack table: nothing set for input %llu, prefix %llu, layer %u",
			       (unsigned long long)table->inputs[input], (unsigned long long)table->prefixes[prefix],
			       layer);
	*cell = (struct tn_slack_cell){e->window_ns, e->sm_budget, e->max_iocbs};
	return 0;
}

int tn_slack_check(const struct tn_slack *table)
{
	for (uint32_t r = 0; r < table->rows && !table->learns; r++)
		for (uint32_t p = 0; p < table->nprefixes; p++)
			for (uint32_t i = 0; i < table->ninputs; i++)
				if (tn_slack_entry(table, i, p, r)->window_ns == 0)
					return tn_fail(-ENODATA,
						       "slack table: no cell for input %llu, prefix %llu, layer %u",
						       (unsigned long long)table->inputs[i],
						       (unsigned long long)table->prefixes[p], r);
	return 0;
}

static double entry_ns(const struct tn_slack *t, const struct tn_slack_entry *e)
{
	return tn_slack_clamp_ns((double)e->window_ns * t->common * e->factor);
}

/* ---- interpolation ------------------------------------------------------------------------------ */

static struct tn_slack_spot find_spot(const uint64_t *lengths, uint32_t n, uint64_t at, bool proportional)
{
	struct tn_slack_spot s = {0, 0, 0, 1};

	if (at > TN_SLACK_TOKENS_MAX)
		at = TN_SLACK_TOKENS_MAX;
	if (at <= lengths[0]) {
		if (proportional)
			s.scale = (double)at / (double)lengths[0];
		return s;
	}
	if (n == 1)
		return s;
	while (s.low + 2 < n && lengths[s.low + 1] <= at)
		s.low++;
	s.high = s.low + 1;
	s.share = (double)(at - lengths[s.low]) / (double)(lengths[s.high] - lengths[s.low]);
	return s;
}

/* Between two values; beyond the second it goes on with the slope, but never falls. */
static double between(double low, double high, double share)
{
	if (share > 1 && high < low)
		return high;
	return low + (high - low) * share;
}

static void find_corners(const struct tn_slack *t, uint64_t input, uint64_t prefix, uint32_t layer,
			 struct tn_slack_corners *c)
{
	uint32_t row = row_of(t, layer);

	c->input_tokens = (double)(input < TN_SLACK_TOKENS_MAX ? input : TN_SLACK_TOKENS_MAX);
	c->prefix_tokens = (double)(prefix < TN_SLACK_TOKENS_MAX ? prefix : TN_SLACK_TOKENS_MAX);
	c->input = find_spot(t->inputs, t->ninputs, input, true);
	c->prefix = find_spot(t->prefixes, t->nprefixes, prefix, false);
	for (unsigned p = 0; p < 2; p++)
		for (unsigned i = 0; i < 2; i++)
			c->at[p][i] = tn_slack_entry(t, i ? c->input.high : c->input.low,
						     p ? c->prefix.high : c->prefix.low, row);
}

static bool has_gap(const struct tn_slack *t, const struct tn_slack_corners *c)
{
	for (unsigned k = 0; k < 4 && !t->learns; k++)
		if (c->at[k / 2][k % 2]->window_ns == 0)
			return true;
	return false;
}

static double corners_ns(const struct tn_slack *t, const struct tn_slack_corners *c)
{
	double at[2];

	if (t->learns)
		return tn_slack_learned_ns(t, c);
	for (unsigned p = 0; p < 2; p++)
		at[p] = between(entry_ns(t, c->at[p][0]), entry_ns(t, c->at[p][1]), c->input.share);
	return tn_slack_clamp_ns(between(at[0], at[1], c->prefix.share) * c->input.scale);
}

double tn_slack_cell_ns(const struct tn_slack *t, uint32_t input, uint32_t prefix, uint32_t row)
{
	struct tn_slack_corners c;

	if (!t->learns)
		return entry_ns(t, tn_slack_entry(t, input, prefix, row));
	find_corners(t, t->inputs[input], t->prefixes[prefix], row, &c);
	return tn_slack_learned_ns(t, &c);
}

uint64_t tn_slack_window(const struct tn_slack *table, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer)
{
	struct tn_slack_corners c;

	if (!table || table->unknown || layer >= table->layers)
		return 0;
	find_corners(table, input_tokens, prefix_tokens, layer, &c);
	return has_gap(table, &c) ? 0 : (uint64_t)corners_ns(table, &c);
}

int tn_slack_look(const struct tn_slack *table, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer,
		  struct tn_slack_cell *cell)
{
	struct tn_slack_corners c;
	uint32_t sms = UINT32_MAX, iocbs = UINT32_MAX;

	if (!table || layer >= table->layers)
		return tn_fail(-EINVAL, "slack table: no layer %u", layer);
	find_corners(table, input_tokens, prefix_tokens, layer, &c);
	if (table->unknown || has_gap(table, &c))
		return tn_fail(-ENOENT, "slack table: nothing known for %llu input and %llu prefix tokens",
			       (unsigned long long)input_tokens, (unsigned long long)prefix_tokens);
	for (unsigned k = 0; k < 4; k++) {
		const struct tn_slack_entry *e = c.at[k / 2][k % 2];

		if (e->sm_budget < sms)
			sms = e->sm_budget;
		if (e->max_iocbs && e->max_iocbs < iocbs)
			iocbs = e->max_iocbs;
	}
	*cell = (struct tn_slack_cell){
		.window_ns = (uint64_t)corners_ns(table, &c),
		.sm_budget = sms,
		.max_iocbs = iocbs == UINT32_MAX ? 0 : iocbs,
	};
	return 0;
}

/* ---- correction ---------------------------------------------------------------------------------- */

static double clamp_factor(double f)
{
	const double most = 1e9;

	return f > most ? most : f < 1 / most ? 1 / most : f;
}

/* What the cells there know by themselves, 0 to 1. */
static double confidence(const struct tn_slack_corners *c, const double w[4])
{
	double sum = 0;

	for (unsigned k = 0; k < 4; k++) {
		double seen = c->at[k / 2][k % 2]->seen / TN_SLACK_SEEN_ENOUGH;

		sum += w[k] * (seen < 1 ? seen : 1);
	}
	return sum;
}

/* Moves the corners by their weights, so scaled that the value between them moves by the whole gain. */
static void spread(struct tn_slack_corners *c, const double w[4], double ratio, double gain)
{
	double squares = 0;

	for (unsigned k = 0; k < 4; k++)
		squares += w[k] * w[k];
	for (unsigned k = 0; k < 4; k++) {
		struct tn_slack_entry *e = c->at[k / 2][k % 2];

		if (w[k] > 0 && gain > 0)
			e->factor = clamp_factor(e->factor * tn_slack_step(ratio, gain * w[k] / squares));
		e->seen += e->seen < TN_SLACK_SEEN_ENOUGH ? (float)w[k] : 0;
	}
}

/* A small input says nothing about larger ones: only the column of cells that it is nearest to. */
static void narrow(const struct tn_slack_corners *c, double w[4])
{
	unsigned near = c->input.share > 0.5;

	for (unsigned p = 0; p < 2; p++) {
		w[2 * p + near] += w[2 * p + !near];
		w[2 * p + !near] = 0;
	}
}

bool tn_slack_observe(struct tn_slack *table, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer,
		      int64_t observed_ns)
{
	bool small = input_tokens < TN_SLACK_SMALL_INPUT;
	double ratio, gain, common_gain, w[4];
	struct tn_slack_corners c;

	if (!table || layer >= table->layers || input_tokens == 0 || observed_ns <= 0 ||
	    (uint64_t)observed_ns > TN_SLACK_WINDOW_MAX)
		return false;
	find_corners(table, input_tokens, prefix_tokens, layer, &c);
	if (table->learns)
		return tn_slack_learn(table, &c, (double)observed_ns);
	if (has_gap(table, &c) || (small && c.input.scale < 1))
		return false;
	ratio = (double)observed_ns / corners_ns(table, &c);
	tn_slack_weigh(&c, w);
	if (small)
		narrow(&c, w);
	gain = tn_slack_gain(&tn_slack_nearest(&c)->run, ratio);
	common_gain = small ? 0 : tn_slack_gain(&table->common_run, ratio) * (1 - confidence(&c, w));
	if (common_gain > 0)
		table->common = clamp_factor(table->common * tn_slack_step(ratio, common_gain));
	spread(&c, w, ratio, gain);
	return gain > 0 || common_gain > 0;
}
