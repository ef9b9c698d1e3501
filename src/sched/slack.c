/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slack tables: cells, interpolation, and the correction of given ones from what was observed. How much an observation
 * counts, and how tables that begin empty learn, is in slack_learn.c.
 *
 * All arithmetic is on doubles between 1 and TN_SLACK_WINDOW_MAX (3.6e12), far from where they lose whole
 * nanoseconds; lengths go up to TN_SLACK_TOKENS_MAX (2^40). Nothing overflows, nothing divides by zero.
 */
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/alloc.h"
#include "base/error.h"
#include "sched/slack.h"

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

void tn_slack_cell_init_sized(struct tn_slack_cell *cell, size_t size)
{
	static const struct tn_slack_cell defaults = {.size = sizeof(defaults)};

	tn_abi_init(cell, size, &defaults, sizeof(defaults));
}

/* ---- create ------------------------------------------------------------------------------------ */

int tn_slack_put_name(struct tn_slack *t, enum tn_slack_names which, const char *from, size_t len)
{
	static const char *const names[] = {"model", "gpu", "engine", "when"};

	if (len == 0 || len >= TN_SLACK_NAME)
		return tn_fail(-EINVAL, "slack table: %s of %zu bytes; give 1 to %u", names[which], len, TN_SLACK_NAME - 1);
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)from[i] < ' ' || from[i] == 0x7f)
			return tn_fail(-EINVAL, "slack table: %s has a control character at byte %zu", names[which], i);
	if (from[0] == ' ' || from[len - 1] == ' ')
		return tn_fail(-EINVAL, "slack table: %s begins or ends with a blank", names[which]);
	memcpy(t->names[which], from, len);
	t->names[which][len] = '\0';
	return 0;
}

int tn_slack_put_lengths(struct tn_slack *t, bool inputs, const uint64_t *from, uint32_t n)
{
	const char *what = inputs ? "input" : "prefix";

	if (!from || n == 0 || n > TN_SLACK_LENGTHS_MAX)
		return tn_fail(-EINVAL, "slack table: %u %s lengths; give 1 to %u", n, what, TN_SLACK_LENGTHS_MAX);
	for (uint32_t i = 0; i < n; i++) {
		if ((inputs && from[i] == 0) || from[i] > TN_SLACK_TOKENS_MAX)
			return tn_fail(-EINVAL, "slack table: %s length %llu is out of range", what,
				       (unsigned long long)from[i]);
		if (i && from[i] <= from[i - 1])
			return tn_fail(-EINVAL, "slack table: %s length %llu after %llu; lengths must rise", what,
				       (unsigned long long)from[i], (unsigned long long)from[i - 1]);
	}
	memcpy(inputs ? t->inputs : t->prefixes, from, n * sizeof(*from));
	*(inputs ? &t->d.ninputs : &t->d.nprefixes) = n;
	return 0;
}

static size_t cell_count(const struct tn_slack *t)
{
	return (size_t)t->rows * t->d.nprefixes * t->d.ninputs;
}

/* Points the description into its own table, and says how many rows the table has. */
static void settle(struct tn_slack *t)
{
	t->d.model = t->names[TN_SLACK_MODEL];
	t->d.gpu = t->names[TN_SLACK_GPU];
	t->d.engine = t->names[TN_SLACK_ENGINE];
	t->d.when = t->names[TN_SLACK_WHEN];
	t->d.inputs = t->inputs;
	t->d.prefixes = t->prefixes;
	t->rows = t->d.per_layer ? t->d.layers : 1;
}

/* A table that is as @like but for its cells, which are zero. */
static int create(const struct tn_slack *like, struct tn_slack **out)
{
	struct tn_slack *t = tn_get(&tn_alloc_system, sizeof(*t));
	struct tn_slack_entry *cells = tn_get(&tn_alloc_system, tn_array_bytes(cell_count(like), sizeof(*cells)));

	if (!t || !cells) {
		tn_put(&tn_alloc_system, t, sizeof(*t));
		tn_put(&tn_alloc_system, cells, tn_array_bytes(cell_count(like), sizeof(*cells)));
		return tn_fail(-ENOMEM, "slack table: no memory for %zu cells", cell_count(like));
	}
	*t = *like;
	t->cells = cells;
	settle(t);
	*out = t;
	return 0;
}

int tn_slack_make(struct tn_slack *like, struct tn_slack **out)
{
	int rc;

	if (like->d.layers == 0 || like->d.layers > TN_LAYERS_MAX)
		return tn_fail(-EINVAL, "slack table: %u layers; give 1 to %u", like->d.layers, TN_LAYERS_MAX);
	if (like->d.how > TN_SLACK_LEARNED)
		return tn_fail(-EINVAL, "slack table: unknown source %u", like->d.how);
	like->common = 1;
	settle(like);
	rc = create(like, out);
	for (size_t i = 0; rc == 0 && i < cell_count(like); i++)
		(*out)->cells[i].factor = 1;
	return rc;
}

int tn_slack_create(const struct tn_slack_desc *desc, struct tn_slack **out)
{
	struct tn_slack t = {0};
	const char **names[] = {&t.d.model, &t.d.gpu, &t.d.engine, &t.d.when};
	int rc;

	if (!desc || !out)
		return tn_fail(-EINVAL, "tn_slack_create: no description, or nowhere to return the table");
	tn_slack_desc_init(&t.d);
	rc = tn_abi_in(TN_ABI(tn_slack_desc, nprefixes), &t.d, desc);
	for (unsigned k = 0; rc == 0 && k < TN_SLACK_NAMES; k++)
		rc = tn_slack_put_name(&t, (enum tn_slack_names)k, *names[k], *names[k] ? strlen(*names[k]) : 0);
	if (rc == 0)
		rc = tn_slack_put_lengths(&t, true, t.d.inputs, t.d.ninputs);
	if (rc == 0)
		rc = tn_slack_put_lengths(&t, false, t.d.prefixes, t.d.nprefixes);
	return rc ? rc : tn_slack_make(&t, out);
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

void tn_slack_destroy(struct tn_slack *table)
{
	if (!table)
		return;
	tn_put(&tn_alloc_system, table->cells, tn_array_bytes(cell_count(table), sizeof(*table->cells)));
	tn_put(&tn_alloc_system, table, sizeof(*table));
}

void tn_slack_describe_sized(const struct tn_slack *table, struct tn_slack_desc *out, size_t size)
{
	tn_abi_init(out, size, &table->d, sizeof(table->d));
}

/* ---- cells ------------------------------------------------------------------------------------- */

void tn_slack_fill(struct tn_slack *t, struct tn_slack_entry *e, const struct tn_slack_cell *cell)
{
	*e = (struct tn_slack_entry){.window_ns = cell->window_ns, .factor = 1, .sm_budget = (uint16_t)cell->sm_budget,
				     .most_iocbs = (uint16_t)cell->most_iocbs};
	t->bounded |= cell->most_iocbs != 0;
}

static int set(struct tn_slack *table, uint32_t input, uint32_t prefix, uint32_t layer, const struct tn_slack_cell *cell)
{
	bool all = layer == TN_SLACK_ALL_LAYERS;

	if (!table || input >= table->d.ninputs || prefix >= table->d.nprefixes || (!all && layer >= table->d.layers))
		return tn_fail(-EINVAL, "slack table: no cell of input %u, prefix %u, layer %u", input, prefix, layer);
	if (cell->window_ns == 0 || cell->window_ns > TN_SLACK_WINDOW_MAX)
		return tn_fail(-EINVAL, "slack table: a window of %llu ns; give 1 to %llu", (unsigned long long)cell->window_ns,
			       (unsigned long long)TN_SLACK_WINDOW_MAX);
	if (cell->sm_budget > TN_SLACK_BOUND_MAX || cell->most_iocbs > TN_SLACK_BOUND_MAX)
		return tn_fail(-EINVAL, "slack table: %u SMs and %u IOCBs; give %u at most", cell->sm_budget, cell->most_iocbs,
			       TN_SLACK_BOUND_MAX);
	if (table->learns)
		return tn_fail(-EINVAL, "slack table: it began empty and learns; give it tn_slack_observe");
	if (!table->d.per_layer && !all)
		return tn_fail(-EINVAL, "slack table: its layers share their cells; set all of them");
	for (uint32_t r = all ? 0 : layer; r < (all ? table->rows : layer + 1); r++)
		tn_slack_fill(table, tn_slack_entry(table, input, prefix, r), cell);
	return 0;
}

int tn_slack_set(struct tn_slack *table, uint32_t input, uint32_t prefix, uint32_t layer, uint64_t window_ns)
{
	return set(table, input, prefix, layer, &(struct tn_slack_cell){.window_ns = window_ns});
}

int tn_slack_set_cell(struct tn_slack *table, uint32_t input, uint32_t prefix, uint32_t layer, const struct tn_slack_cell *cell)
{
	struct tn_slack_cell ours;
	int rc;

	if (!cell)
		return tn_fail(-EINVAL, "tn_slack_set_cell: no cell");
	tn_slack_cell_init(&ours);
	rc = tn_abi_in(TN_ABI(tn_slack_cell, most_iocbs), &ours, cell);
	return rc ? rc : set(table, input, prefix, layer, &ours);
}

int tn_slack_check(const struct tn_slack *table)
{
	const struct tn_slack *t = table;

	for (size_t k = 0; k < cell_count(t) && !t->learns; k++)
		if (t->cells[k].window_ns == 0)
			return tn_fail(-ENODATA, "slack table: no cell for input %llu, prefix %llu, layer %zu",
				       (unsigned long long)t->inputs[k % t->d.ninputs],
				       (unsigned long long)t->prefixes[k / t->d.ninputs % t->d.nprefixes],
				       k / t->d.ninputs / t->d.nprefixes);
	return 0;
}

/* ---- interpolation ------------------------------------------------------------------------------ */

static struct tn_slack_spot find_spot(const uint64_t *lengths, uint32_t n, double at)
{
	struct tn_slack_spot s = {0, 0, 0};

	if (n == 1 || at <= (double)lengths[0])
		return s;
	while (s.low + 2 < n && (double)lengths[s.low + 1] <= at)
		s.low++;
	s.high = s.low + 1;
	s.share = (at - (double)lengths[s.low]) / (double)(lengths[s.high] - lengths[s.low]);
	return s;
}

static void find_corners(const struct tn_slack *t, uint64_t input, uint64_t prefix, uint32_t layer,
			 struct tn_slack_corners *c)
{
	double si, sp;

	c->input_tokens = (double)(input < TN_SLACK_TOKENS_MAX ? input : TN_SLACK_TOKENS_MAX);
	c->prefix_tokens = (double)(prefix < TN_SLACK_TOKENS_MAX ? prefix : TN_SLACK_TOKENS_MAX);
	c->input = find_spot(t->inputs, t->d.ninputs, c->input_tokens);
	c->prefix = find_spot(t->prefixes, t->d.nprefixes, c->prefix_tokens);
	si = c->input.share < 1 ? c->input.share : 1;
	sp = c->prefix.share < 1 ? c->prefix.share : 1;
	for (unsigned k = 0; k < 4; k++) {
		c->at[k] = tn_slack_entry(t, k % 2 ? c->input.high : c->input.low, k / 2 ? c->prefix.high : c->prefix.low,
					  t->rows == 1 ? 0 : layer);
		c->weight[k] = (k / 2 ? sp : 1 - sp) * (k % 2 ? si : 1 - si);
	}
	c->nearest = c->at[2 * (sp > 0.5) + (si > 0.5)];
}

/* Between two values; beyond the second it goes on with the slope, but never falls. */
static double between(double low, double high, double share)
{
	if (share > 1 && high < low)
		return high;
	return low + (high - low) * share;
}

/* 0 if a corner is a gap. */
static double corners_ns(const struct tn_slack *t, const struct tn_slack_corners *c)
{
	double ns[4], least = (double)t->inputs[0];

	if (t->learns)
		return tn_slack_learned_ns(t, c);
	for (unsigned k = 0; k < 4; k++) {
		if (c->at[k]->window_ns == 0)
			return 0;
		ns[k] = tn_slack_clamp_ns((double)c->at[k]->window_ns * t->common * c->at[k]->factor);
	}
	ns[0] = between(between(ns[0], ns[1], c->input.share), between(ns[2], ns[3], c->input.share), c->prefix.share);
	return tn_slack_clamp_ns(c->input_tokens < least ? ns[0] * c->input_tokens / least : ns[0]);
}

uint64_t tn_slack_ns(const struct tn_slack *t, uint64_t input, uint64_t prefix, uint32_t layer)
{
	struct tn_slack_corners c;

	find_corners(t, input, prefix, layer, &c);
	return (uint64_t)corners_ns(t, &c);
}

uint64_t tn_slack_window(const struct tn_slack *table, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer)
{
	if (!table || table->unknown || layer >= table->d.layers)
		return 0;
	return tn_slack_ns(table, input_tokens, prefix_tokens, layer);
}

void tn_slack_at_sized(const struct tn_slack *table, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer,
		       struct tn_slack_cell *out, size_t size)
{
	struct tn_slack_cell cell = {.size = sizeof(cell)};
	struct tn_slack_corners c;

	if (table && !table->unknown && layer < table->d.layers) {
		find_corners(table, input_tokens, prefix_tokens, layer, &c);
		cell.window_ns = (uint64_t)corners_ns(table, &c);
		cell.sm_budget = c.nearest->sm_budget;
		cell.most_iocbs = c.nearest->most_iocbs;
	}
	tn_abi_init(out, size, &cell, sizeof(cell));
}

/* ---- correction ---------------------------------------------------------------------------------- */

static double clamp_factor(double f)
{
	const double most = 1e9;

	return f > most ? most : f < 1 / most ? 1 / most : f;
}

/* What the cells there know by themselves, 0 to 1. */
static double confidence(const struct tn_slack_corners *c)
{
	double sum = 0;

	for (unsigned k = 0; k < 4; k++) {
		double seen = c->at[k]->seen / TN_SLACK_SEEN_ENOUGH;

		sum += c->weight[k] * (seen < 1 ? seen : 1);
	}
	return sum;
}

/* Moves the corners by their weights, so scaled that the value between them moves by the whole gain. */
static void spread(struct tn_slack_corners *c, double ratio, double gain)
{
	double squares = 0;

	for (unsigned k = 0; k < 4; k++)
		squares += c->weight[k] * c->weight[k];
	for (unsigned k = 0; k < 4; k++) {
		struct tn_slack_entry *e = c->at[k];

		if (c->weight[k] > 0 && gain > 0)
			e->factor = clamp_factor(e->factor * tn_slack_step(ratio, gain * c->weight[k] / squares));
		e->seen += e->seen < TN_SLACK_SEEN_ENOUGH ? (float)c->weight[k] : 0;
	}
}

/* A small input says nothing about larger ones: only the column of cells that it is nearest to. */
static void narrow(struct tn_slack_corners *c)
{
	unsigned near = c->input.share > 0.5;

	for (unsigned p = 0; p < 4; p += 2) {
		c->weight[p + near] += c->weight[p + !near];
		c->weight[p + !near] = 0;
	}
}

bool tn_slack_observe(struct tn_slack *table, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer,
		      int64_t observed_ns)
{
	bool small = input_tokens < TN_SLACK_SMALL_INPUT;
	double now, ratio, gain, common_gain;
	struct tn_slack_corners c;

	if (!table || layer >= table->d.layers || input_tokens == 0 || observed_ns <= 0 ||
	    (uint64_t)observed_ns > TN_SLACK_WINDOW_MAX)
		return false;
	find_corners(table, input_tokens, prefix_tokens, layer, &c);
	if (table->learns)
		return tn_slack_learn(table, &c, (double)observed_ns);
	now = corners_ns(table, &c);
	if (now <= 0 || (small && input_tokens < table->inputs[0]))
		return false;
	ratio = (double)observed_ns / now;
	if (small)
		narrow(&c);
	gain = tn_slack_gain(&c.nearest->run, ratio);
	common_gain = small ? 0 : tn_slack_gain(&table->common_run, ratio) * (1 - confidence(&c));
	if (common_gain > 0)
		table->common = clamp_factor(table->common * tn_slack_step(ratio, common_gain));
	spread(&c, ratio, gain);
	return gain > 0 || common_gain > 0;
}
