/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of a slack table: `key value` lines, parsed strictly.
 *
 *	tenuto-slack 3
 *	model llama3-8b
 *	gpu h100
 *	engine -
 *	when 2026-03-01
 *	how analytic
 *	layers 32
 *	cells shared
 *	inputs 1 1024 8192
 *	prefixes 0 65536
 *	cell 1 0 * 12000 2 0
 *	...
 *
 * The first line comes first; each other key once, all before the first cell. `cells` is "shared" (one cell for
 * all layers, whose layer is written "*") or "layered" (one per layer). A cell is: input tokens, prefix tokens, layer,
 * window in ns, SM budget (0: unknown), most IOCBs (0: no bound). Cells of version 2 end with the window.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "sched/slack.h"
#include "sched/text.h"

#define VERSION_WITHOUT_BOUNDS 2u
#define CELL_WORDS 6

/* The names come first, as in enum tn_slack_names. */
enum key { KEY_HOW = TN_SLACK_NAMES, KEY_LAYERS, KEY_CELLS, KEY_INPUTS, KEY_PREFIXES, KEYS };

static const char *const keys[KEYS] = {"model",	 "gpu",	  "engine", "when",    "how",
				       "layers", "cells", "inputs", "prefixes"};

struct parser {
	struct tn_text text;
	unsigned seen; /* bit by enum key */
	int cell_words; /* as many as the version of the file has */
	struct tn_slack shape;
	struct tn_slack *table; /* made of it at the first cell */
};

static int wrong(const struct parser *p, struct tn_word w, const char *what)
{
	return tn_text_fail(&p->text, -EINVAL, "\"%.*s\": %s", TN_WORD_SHOWN(w), what);
}

static int at_line(const struct parser *p, int rc)
{
	return rc ? tn_fail_cause(rc, "line %u", p->text.line) : 0;
}

/* Words between single blanks. Returns their number, or -1 if there are too many or blanks in the wrong place. */
static int split(struct tn_word line, struct tn_word *words, int max)
{
	int n = 0;
	size_t at = 0;

	while (at < line.len) {
		size_t from = at;

		while (at < line.len && line.at[at] != ' ')
			at++;
		if (n == max || at == from || at + 1 == line.len)
			return -1;
		words[n++] = (struct tn_word){line.at + from, at - from};
		at++;
	}
	return n;
}

/* ---- keys --------------------------------------------------------------------------------------- */

static int parse_lengths(struct parser *p, bool inputs)
{
	struct tn_word w[TN_SLACK_LENGTHS_MAX];
	uint64_t lengths[TN_SLACK_LENGTHS_MAX];
	int n = split(p->text.value, w, TN_SLACK_LENGTHS_MAX);

	if (n < 1)
		return wrong(p, p->text.value, "1 to 32 lengths between single blanks are wanted");
	for (int i = 0; i < n; i++)
		if (!tn_word_number(w[i], 0, UINT64_MAX, &lengths[i]))
			return wrong(p, w[i], "no length in tokens");
	return at_line(p, tn_slack_put_lengths(&p->shape, inputs, lengths, (uint32_t)n));
}

static int parse_key(struct parser *p)
{
	struct tn_slack_desc *d = &p->shape.d;
	struct tn_word value = p->text.value;
	int k = tn_text_key(&p->text, keys, KEYS, &p->seen); /* all keys come before the first cell: a later one is there twice */
	uint64_t n;

	if (k < 0)
		return k;
	switch (k) {
	case KEY_HOW:
		while (d->how <= TN_SLACK_LEARNED && !tn_word_is(value, tn_slack_how_name(d->how)))
			d->how++;
		if (d->how > TN_SLACK_LEARNED)
			return wrong(p, value, "\"profiled\", \"analytic\", \"synthetic\" or \"learned\" is wanted");
		return 0;
	case KEY_LAYERS:
		if (!tn_word_number(value, 1, TN_LAYERS_MAX, &n))
			return wrong(p, value, "1 to 4096 layers are wanted");
		d->layers = (uint32_t)n;
		return 0;
	case KEY_CELLS:
		d->per_layer = tn_word_is(value, "layered");
		return d->per_layer || tn_word_is(value, "shared") ? 0 : wrong(p, value, "\"shared\" or \"layered\" is wanted");
	case KEY_INPUTS:
	case KEY_PREFIXES:
		return parse_lengths(p, k == KEY_INPUTS);
	default:
		return at_line(p, tn_slack_put_name(&p->shape, (enum tn_slack_names)k, value.at, value.len));
	}
}

/* ---- cells -------------------------------------------------------------------------------------- */

static int begin_cells(struct parser *p)
{
	for (unsigned k = 0; k < KEYS; k++)
		if (!(p->seen & 1u << k))
			return tn_text_fail(&p->text, -EINVAL, "no \"%s\" before the first cell", keys[k]);
	return at_line(p, tn_slack_make(&p->shape, &p->table));
}

static bool index_in(const uint64_t *lengths, uint32_t n, struct tn_word w, uint32_t *index)
{
	uint64_t value;

	if (!tn_word_number(w, 0, UINT64_MAX, &value))
		return false;
	for (*index = 0; *index < n && lengths[*index] != value;)
		++*index;
	return *index < n;
}

static int parse_cell(struct parser *p)
{
	uint64_t layer = 0, sms = 0, iocbs = 0;
	struct tn_slack_cell cell = {0};
	struct tn_slack_entry *e;
	uint32_t input, prefix;
	struct tn_word w[CELL_WORDS];
	int rc = p->table ? 0 : begin_cells(p);
	struct tn_slack *t = p->table;

	if (rc)
		return rc;
	if (split(p->text.value, w, CELL_WORDS) != p->cell_words)
		return wrong(p, p->text.value, p->cell_words < CELL_WORDS ? "a cell is: input prefix layer window_ns"
									   : "a cell is: input prefix layer window_ns sm_budget most_iocbs");
	if (!index_in(t->inputs, t->d.ninputs, w[0], &input))
		return wrong(p, w[0], "not one of the input lengths");
	if (!index_in(t->prefixes, t->d.nprefixes, w[1], &prefix))
		return wrong(p, w[1], "not one of the prefix lengths");
	if (!t->d.per_layer && !tn_word_is(w[2], "*"))
		return wrong(p, w[2], "\"*\" is wanted: the layers share their cells");
	if (t->d.per_layer && !tn_word_number(w[2], 0, t->d.layers - 1, &layer))
		return wrong(p, w[2], "no such layer");
	if (!tn_word_number(w[3], 1, TN_SLACK_WINDOW_MAX, &cell.window_ns))
		return tn_text_fail(&p->text, -EINVAL, "\"%.*s\" is not a time from 1 to %llu ns", TN_WORD_SHOWN(w[3]),
				    (unsigned long long)TN_SLACK_WINDOW_MAX);
	if (p->cell_words == CELL_WORDS && !tn_word_number(w[4], 0, TN_SLACK_BOUND_MAX, &sms))
		return wrong(p, w[4], "no SM budget: 0 to 65535");
	if (p->cell_words == CELL_WORDS && !tn_word_number(w[5], 0, TN_SLACK_BOUND_MAX, &iocbs))
		return wrong(p, w[5], "no number of IOCBs: 0 to 65535");
	e = tn_slack_entry(t, input, prefix, (uint32_t)layer);
	if (e->window_ns)
		return wrong(p, p->text.value, "this cell was given before");
	cell.sm_budget = (uint32_t)sms;
	cell.most_iocbs = (uint32_t)iocbs;
	tn_slack_fill(t, e, &cell);
	if (t->d.how == TN_SLACK_LEARNED)
		e->seen = TN_SLACK_SEEN_ENOUGH; /* in an earlier run: what differs elsewhere says nothing of this cell */
	return 0;
}

static int parse(struct parser *p)
{
	int rc = tn_text_version(&p->text, "tenuto-slack", VERSION_WITHOUT_BOUNDS, TN_SLACK_VERSION);

	p->cell_words = rc == VERSION_WITHOUT_BOUNDS ? CELL_WORDS - 2 : CELL_WORDS;
	rc = rc < 0 ? rc : 0;
	while (rc == 0 && (rc = tn_text_next(&p->text)) > 0)
		rc = tn_word_is(p->text.key, "cell") ? parse_cell(p) : parse_key(p);
	if (rc == 0 && !p->table)
		return tn_text_fail(&p->text, -ENODATA, "the file ends without a cell");
	return rc ? rc : tn_slack_check(p->table);
}

int tn_slack_parse(const char *text, size_t len, struct tn_slack **out)
{
	struct parser p = {.text = {.at = text, .end = text + len}};
	int rc;

	if (!text || !out)
		return tn_fail(-EINVAL, "tn_slack_parse: no text");
	tn_slack_desc_init(&p.shape.d);
	rc = parse(&p);
	if (rc)
		tn_slack_destroy(p.table);
	else
		*out = p.table;
	return rc;
}

/* ---- print -------------------------------------------------------------------------------------- */

struct printer {
	char *buf;
	size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void put(struct printer *p, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(p->used < p->size ? p->buf + p->used : NULL, p->used < p->size ? p->size - p->used : 0, fmt, args);
	va_end(args);
	p->used += (size_t)n;
}

static void put_lengths(struct printer *p, const char *key, const uint64_t *lengths, uint32_t n)
{
	put(p, "%s", key);
	for (uint32_t i = 0; i < n; i++)
		put(p, " %llu", (unsigned long long)lengths[i]);
	put(p, "\n");
}

static void put_cell(struct printer *p, const struct tn_slack *t, uint32_t input, uint32_t prefix, uint32_t row)
{
	const struct tn_slack_entry *e = tn_slack_entry(t, input, prefix, row);
	char layer[12] = "*";

	if (t->d.per_layer)
		snprintf(layer, sizeof(layer), "%u", row);
	put(p, "cell %llu %llu %s %llu %u %u\n", (unsigned long long)t->inputs[input], (unsigned long long)t->prefixes[prefix], layer,
	    (unsigned long long)tn_slack_ns(t, t->inputs[input], t->prefixes[prefix], row), e->sm_budget, e->most_iocbs);
}

long tn_slack_print(const struct tn_slack *table, char *buf, size_t size)
{
	struct printer p = {buf, buf ? size : 0, 0};
	int rc;

	if (!table)
		return tn_fail(-EINVAL, "tn_slack_print: no table");
	rc = tn_slack_check(table);
	if (rc)
		return rc;
	put(&p, "tenuto-slack %u\nmodel %s\ngpu %s\nengine %s\nwhen %s\nhow %s\nlayers %u\ncells %s\n", TN_SLACK_VERSION,
	    table->d.model, table->d.gpu, table->d.engine, table->d.when, tn_slack_how_name(table->d.how), table->d.layers,
	    table->d.per_layer ? "layered" : "shared");
	put_lengths(&p, "inputs", table->inputs, table->d.ninputs);
	put_lengths(&p, "prefixes", table->prefixes, table->d.nprefixes);
	for (uint32_t r = 0; r < table->rows; r++)
		for (uint32_t x = 0; x < table->d.nprefixes; x++)
			for (uint32_t i = 0; i < table->d.ninputs; i++)
				put_cell(&p, table, i, x, r);
	return (long)p.used;
}
