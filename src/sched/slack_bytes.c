/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slack table as bytes, with all that it has learned, for another process that has the same library: a table from an attached process
 * becomes one of the owner's. The reader believes nothing: counts, lengths and names go through the checks of tn_slack_create, every
 * number lies in the range that slack_learn.c keeps. Files are text (slack_file.c).
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "sched/slack.h"

#define NUMBER_MAX 1e60 /* above all sums of slack_learn.c; products of two are finite */
#define FACTOR_MAX 1e9

struct head {
	uint32_t how, layers, per_layer, learns, unknown, ninputs, nprefixes;
	struct tn_slack_run common_run;
	double common;
	struct tn_slack_fit floor, compute;
	char names[TN_SLACK_NAMES][TN_SLACK_NAME];
	uint64_t inputs[TN_SLACK_LENGTHS_MAX], prefixes[TN_SLACK_LENGTHS_MAX];
};

static size_t cells_bytes(const struct tn_slack *t)
{
	return (size_t)t->rows * t->d.nprefixes * t->d.ninputs * sizeof(*t->cells);
}

size_t tn_slack_bytes(const struct tn_slack *t)
{
	return sizeof(struct head) + cells_bytes(t);
}

size_t tn_slack_bytes_max(uint32_t layers)
{
	return sizeof(struct head) + (size_t)layers * TN_SLACK_LENGTHS_MAX * TN_SLACK_LENGTHS_MAX * sizeof(struct tn_slack_entry);
}

void tn_slack_store(const struct tn_slack *t, unsigned char *bytes)
{
	struct head h = {
		.how = t->d.how, .layers = t->d.layers, .per_layer = t->d.per_layer, .learns = t->learns, .unknown = t->unknown,
		.ninputs = t->d.ninputs, .nprefixes = t->d.nprefixes, .common_run = t->common_run, .common = t->common,
		.floor = t->floor, .compute = t->compute};

	memcpy(h.names, t->names, sizeof(h.names));
	memcpy(h.inputs, t->inputs, sizeof(h.inputs));
	memcpy(h.prefixes, t->prefixes, sizeof(h.prefixes));
	memcpy(bytes, &h, sizeof(h));
	memcpy(bytes + sizeof(h), t->cells, cells_bytes(t));
}

/* ---- load ---------------------------------------------------------------------------------------- */

static bool within(double number, double least, double most)
{
	return number >= least && number <= most; /* false for a NaN */
}

static bool fit_is_sound(const struct tn_slack_fit *f)
{
	const double all[] = {f->s11, f->s12, f->s22, f->t1, f->t2, f->a, f->b};

	for (unsigned k = 0; k < sizeof(all) / sizeof(all[0]); k++)
		if (!within(all[k], 0, NUMBER_MAX))
			return false;
	return true;
}

static bool cell_is_sound(const struct tn_slack_entry *e)
{
	return e->window_ns <= TN_SLACK_WINDOW_MAX && within(e->factor, 1 / FACTOR_MAX, FACTOR_MAX) &&
	       within(e->seen_input, 0, NUMBER_MAX) && within(e->seen_prefix, 0, NUMBER_MAX) &&
	       within(e->seen_ns, 0, (double)TN_SLACK_WINDOW_MAX) && within(e->seen, 0, FACTOR_MAX);
}

/* All but the cells. */
static int take_head(const struct head *h, struct tn_slack **out)
{
	struct tn_slack t = {.d = {.how = h->how, .layers = h->layers, .per_layer = h->per_layer != 0}};
	int rc = 0;

	for (unsigned k = 0; rc == 0 && k < TN_SLACK_NAMES; k++)
		rc = tn_slack_put_name(&t, (enum tn_slack_names)k, h->names[k], strnlen(h->names[k], TN_SLACK_NAME));
	if (rc == 0)
		rc = tn_slack_put_lengths(&t, true, h->inputs, h->ninputs);
	if (rc == 0)
		rc = tn_slack_put_lengths(&t, false, h->prefixes, h->nprefixes);
	if (rc == 0 && (!within(h->common, 1 / FACTOR_MAX, FACTOR_MAX) || !fit_is_sound(&h->floor) || !fit_is_sound(&h->compute)))
		rc = tn_fail(-EINVAL, "slack table: what it has learned is out of range");
	return rc ? rc : tn_slack_make(&t, out);
}

static void take_learned(const struct head *h, struct tn_slack *t)
{
	t->learns = h->learns != 0;
	t->unknown = t->learns && h->unknown != 0;
	t->common = h->common;
	t->common_run = h->common_run;
	t->floor = h->floor;
	t->compute = h->compute;
}

int tn_slack_load(const unsigned char *bytes, size_t n, struct tn_slack **out)
{
	struct tn_slack *t;
	struct head h;
	size_t cells;
	int rc;

	if (n < sizeof(h) || n > tn_slack_bytes_max(TN_LAYERS_MAX))
		return tn_fail(-EINVAL, "slack table: %zu bytes are none", n);
	memcpy(&h, bytes, sizeof(h));
	if (h.ninputs > TN_SLACK_LENGTHS_MAX || h.nprefixes > TN_SLACK_LENGTHS_MAX || h.layers > TN_LAYERS_MAX)
		return tn_fail(-EINVAL, "slack table: %u inputs, %u prefixes, %u layers", h.ninputs, h.nprefixes, h.layers);
	/* Before anything is allocated: the cells are there. */
	cells = (size_t)h.ninputs * h.nprefixes * (h.per_layer ? h.layers : 1);
	if (n - sizeof(h) != cells * sizeof(struct tn_slack_entry))
		return tn_fail(-EINVAL, "slack table: %zu bytes, and its %zu cells take %zu", n, cells,
			       sizeof(h) + cells * sizeof(struct tn_slack_entry));
	rc = take_head(&h, &t);
	if (rc)
		return rc;
	take_learned(&h, t);
	memcpy(t->cells, bytes + sizeof(h), cells * sizeof(*t->cells));
	for (size_t k = 0; k < cells; k++)
		if (!cell_is_sound(&t->cells[k])) {
			tn_slack_destroy(t);
			return tn_fail(-EINVAL, "slack table: cell %zu is out of range", k);
		}
	for (size_t k = 0; k < cells; k++)
		t->bounded |= t->cells[k].most_iocbs != 0;
	*out = t;
	return 0;
}
