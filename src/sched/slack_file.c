/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of a slack table: `key value` lines, parsed strictly.
 *
 *	tenuto-slack 1
 *	model llama3-8b
 *	gpu h100
 *	engine -
 *	when 2026-03-01
 *	how analytic
 *	layers 32
 *	cells shared
 *	inputs 1 1024 8192
 *	prefixes 0 65536
 *	cell 1 0 * 12000 0 0
 *	...
 *
 * The first line comes first; each other key once, all before the first cell. `cells` is "shared" (one cell for
 * all layers, whose layer is written "*") or "layered" (one per layer). A cell is: input tokens, prefix tokens, layer,
 * window in ns, SM budget, most IOCBs. Empty lines and lines that begin with '#' say nothing.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "sched/slack_internal.h"

#define WORDS_MAX (TN_SLACK_LENGTHS_MAX + 2)

enum key { KEY_MODEL, KEY_GPU, KEY_ENGINE, KEY_WHEN, KEY_HOW, KEY_LAYERS, KEY_CELLS, KEY_INPUTS, KEY_PREFIXES, KEYS };

static const char *const key_names[KEYS] = {"model",  "gpu",   "engine", "when",    "how",
					    "layers", "cells", "inputs", "prefixes"};

struct word {
	const char *at;
	size_t len;
};

struct parser {
	const char *text, *end;
	unsigned line;
	bool version_seen;
	unsigned keys; /* bit by enum key */
	char names[4][TN_SLACK_NAME];
	uint64_t lengths[2][TN_SLACK_LENGTHS_MAX];
	struct tn_slack_desc desc;
	struct tn_slack *table;
};

static bool is(struct word w, const char *s)
{
	return w.len == strlen(s) && memcmp(w.at, s, w.len) == 0;
}

static int shown(struct word w)
{
	return w.len < 40 ? (int)w.len : 40;
}

static int wrong(const struct parser *p, struct word w, const char *what)
{
	return tn_fail(-EINVAL, "line %u: \"%.*s\": %s", p->line, shown(w), w.at, what);
}

/* Digits only, no sign, no leading zeros but for 0 itself. */
static bool number(struct word w, uint64_t max, uint64_t *out)
{
	uint64_t n = 0;

	if (w.len == 0 || w.len > 19 || (w.len > 1 && w.at[0] == '0'))
		return false;
	for (size_t i = 0; i < w.len; i++) {
		if (w.at[i] < '0' || w.at[i] > '9')
			return false;
		n = n * 10 + (uint64_t)(w.at[i] - '0');
	}
	*out = n;
	return n <= max;
}

/* Words between single blanks. Returns their number, or -1 if there are too many or blanks in the wrong place. */
static int split(struct word line, struct word *words, int max)
{
	int n = 0;
	size_t at = 0;

	while (at < line.len) {
		size_t from = at;

		while (at < line.len && line.at[at] != ' ')
			at++;
		if (n == max || at == from || at + 1 == line.len)
			return -1;
		words[n++] = (struct word){line.at + from, at - from};
		at++;
	}
	return n;
}

/* ---- keys --------------------------------------------------------------------------------------- */

static int parse_name(struct parser *p, enum key k, struct word value)
{
	const char **field[4] = {&p->desc.model, &p->desc.gpu, &p->desc.engine, &p->desc.when};

	if (value.len == 0 || value.len >= TN_SLACK_NAME)
		return wrong(p, value, "a name of 1 to 63 bytes is wanted");
	if (memchr(value.at, 0, value.len))
		return wrong(p, value, "a NUL byte");
	memcpy(p->names[k], value.at, value.len);
	p->names[k][value.len] = 0;
	*field[k] = p->names[k];
	return 0;
}

static int parse_lengths(struct parser *p, enum key k, struct word value)
{
	uint64_t *to = p->lengths[k - KEY_INPUTS];
	struct word w[WORDS_MAX];
	int n = split(value, w, TN_SLACK_LENGTHS_MAX);

	if (n < 1)
		return wrong(p, value, "1 to 32 lengths between single blanks are wanted");
	for (int i = 0; i < n; i++) {
		if (!number(w[i], TN_SLACK_TOKENS_MAX, &to[i]) || (k == KEY_INPUTS && to[i] == 0))
			return wrong(p, w[i], "no length in tokens");
		if (i && to[i] <= to[i - 1])
			return wrong(p, w[i], "lengths must rise, each given once");
	}
	if (k == KEY_INPUTS) {
		p->desc.inputs = to;
		p->desc.ninputs = (uint32_t)n;
	} else {
		p->desc.prefixes = to;
		p->desc.nprefixes = (uint32_t)n;
	}
	return 0;
}

static int parse_how(struct parser *p, struct word value)
{
	for (uint32_t h = 0; h <= TN_SLACK_LEARNED; h++)
		if (is(value, tn_slack_how_name(h))) {
			p->desc.how = h;
			return 0;
		}
	return wrong(p, value, "\"profiled\", \"analytic\", \"synthetic\" or \"learned\" is wanted");
}

static int parse_layers(struct parser *p, struct word value)
{
	uint64_t n;

	if (!number(value, TN_LAYERS_MAX, &n) || n == 0)
		return wrong(p, value, "1 to 4096 layers are wanted");
	p->desc.layers = (uint32_t)n;
	return 0;
}

static int parse_cells(struct parser *p, struct word value)
{
	if (!is(value, "shared") && !is(value, "layered"))
		return wrong(p, value, "\"shared\" or \"layered\" is wanted");
	p->desc.per_layer = is(value, "layered");
	return 0;
}

static int parse_key(struct parser *p, struct word key, struct word value)
{
	unsigned k = 0;

	while (k < KEYS && !is(key, key_names[k]))
		k++;
	if (k == KEYS)
		return wrong(p, key, "unknown word");
	if (p->table)
		return wrong(p, key, "must come before the first cell");
	if (p->keys & 1u << k)
		return wrong(p, key, "given twice");
	p->keys |= 1u << k;
	switch (k) {
	case KEY_HOW:
		return parse_how(p, value);
	case KEY_LAYERS:
		return parse_layers(p, value);
	case KEY_CELLS:
		return parse_cells(p, value);
	case KEY_INPUTS:
	case KEY_PREFIXES:
		return parse_lengths(p, (enum key)k, value);
	default:
		return parse_name(p, (enum key)k, value);
	}
}

/* ---- cells -------------------------------------------------------------------------------------- */

static int begin_cells(struct parser *p)
{
	for (unsigned k = 0; k < KEYS; k++)
		if (!(p->keys & 1u << k))
			return tn_fail(-EINVAL, "line %u: no \"%s\" before the first cell", p->line, key_names[k]);
	if (tn_slack_create(&p->desc, &p->table))
		return tn_fail_cause(tn_error_last()->code, "line %u", p->line);
	return 0;
}

static bool index_in(const uint64_t *lengths, uint32_t n, uint64_t value, uint32_t *index)
{
	for (*index = 0; *index < n; ++*index)
		if (lengths[*index] == value)
			return true;
	return false;
}

static int parse_cell(struct parser *p, struct word value)
{
	struct word w[6];
	uint64_t n[6] = {0};
	struct tn_slack_entry *e;
	uint32_t input, prefix;
	int rc = p->table ? 0 : begin_cells(p);

	if (rc)
		return rc;
	if (split(value, w, 6) != 6)
		return wrong(p, value, "a cell is: input prefix layer window_ns sm_budget max_iocbs");
	if (!number(w[0], UINT64_MAX, &n[0]) || !index_in(p->table->inputs, p->table->ninputs, n[0], &input))
		return wrong(p, w[0], "not one of the input lengths");
	if (!number(w[1], UINT64_MAX, &n[1]) || !index_in(p->table->prefixes, p->table->nprefixes, n[1], &prefix))
		return wrong(p, w[1], "not one of the prefix lengths");
	if (!p->table->per_layer) {
		if (!is(w[2], "*"))
			return wrong(p, w[2], "\"*\" is wanted: the layers share their cells");
	} else if (!number(w[2], p->table->layers - 1, &n[2])) {
		return wrong(p, w[2], "no such layer");
	}
	if (!number(w[3], TN_SLACK_WINDOW_MAX, &n[3]) || n[3] == 0)
		return wrong(p, w[3], "no window: 1 to 3600000000000 ns");
	if (!number(w[4], UINT32_MAX, &n[4]) || !number(w[5], UINT32_MAX, &n[5]))
		return wrong(p, w[4], "no SM budget and number of IOCBs");
	e = tn_slack_entry(p->table, input, prefix, (uint32_t)n[2]);
	if (e->window_ns)
		return wrong(p, value, "this cell was given before");
	*e = (struct tn_slack_entry){
		.window_ns = n[3], .sm_budget = (uint32_t)n[4], .max_iocbs = (uint32_t)n[5], .factor = 1};
	return 0;
}

/* ---- lines -------------------------------------------------------------------------------------- */

static int parse_version(struct parser *p, struct word key, struct word value)
{
	uint64_t version;

	if (!is(key, "tenuto-slack"))
		return wrong(p, key, "not a slack table, which begins with \"tenuto-slack 1\"");
	if (!number(value, UINT32_MAX, &version))
		return wrong(p, value, "no version");
	if (version != TN_SLACK_VERSION)
		return tn_fail(-EPROTONOSUPPORT, "line %u: a slack table of version %llu; this build knows version %u",
			       p->line, (unsigned long long)version, TN_SLACK_VERSION);
	p->version_seen = true;
	return 0;
}

static int parse_line(struct parser *p, struct word line)
{
	struct word key = line, value = {line.at + line.len, 0};
	const char *blank = memchr(line.at, ' ', line.len);

	if (line.len == 0 || line.at[0] == '#')
		return 0;
	if (blank) {
		key.len = (size_t)(blank - line.at);
		value = (struct word){blank + 1, line.len - key.len - 1};
	}
	if (!p->version_seen)
		return parse_version(p, key, value);
	return is(key, "cell") ? parse_cell(p, value) : parse_key(p, key, value);
}

static int parse_text(struct parser *p)
{
	int rc = 0;

	while (p->text < p->end && rc == 0) {
		const char *end = memchr(p->text, '\n', (size_t)(p->end - p->text));

		p->line++;
		if (!end)
			return tn_fail(-EINVAL, "line %u: does not end; the file is cut off", p->line);
		rc = parse_line(p, (struct word){p->text, (size_t)(end - p->text)});
		p->text = end + 1;
	}
	if (rc == 0 && !p->table)
		return tn_fail(p->version_seen ? -ENODATA : -EINVAL, "line %u: the file ends without a cell", p->line);
	return rc ? rc : tn_slack_check(p->table);
}

int tn_slack_parse(const char *text, size_t len, struct tn_slack **out)
{
	struct parser p = {.text = text, .end = text + len};
	int rc;

	if (!text || !out)
		return tn_fail(-EINVAL, "tn_slack_parse: no text");
	tn_slack_desc_init(&p.desc);
	rc = parse_text(&p);
	if (rc) {
		tn_slack_destroy(p.table);
		return rc;
	}
	*out = p.table;
	return 0;
}

/* ---- print -------------------------------------------------------------------------------------- */

struct printer {
	char *buf;
	size_t room, used;
};

__attribute__((format(printf, 2, 3))) static void put(struct printer *p, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(p->used < p->room ? p->buf + p->used : NULL, p->used < p->room ? p->room - p->used : 0, fmt, args);
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

static void put_cell(struct printer *p, const struct tn_slack *t, uint32_t input, uint32_t prefix, uint32_t row,
		     bool per_layer)
{
	const struct tn_slack_entry *e = tn_slack_entry(t, input, prefix, row);
	char layer[12] = "*";

	if (per_layer)
		snprintf(layer, sizeof(layer), "%u", row);
	put(p, "cell %llu %llu %s %llu %u %u\n", (unsigned long long)t->inputs[input],
	    (unsigned long long)t->prefixes[prefix], layer, (unsigned long long)tn_slack_cell_ns(t, input, prefix, row),
	    e->sm_budget, e->max_iocbs);
}

long tn_slack_print(const struct tn_slack *table, char *buf, size_t room)
{
	struct printer p = {buf, buf ? room : 0, 0};
	int rc;

	if (!table)
		return tn_fail(-EINVAL, "tn_slack_print: no table");
	rc = tn_slack_check(table);
	if (rc)
		return rc;
	put(&p, "tenuto-slack %u\nmodel %s\ngpu %s\nengine %s\nwhen %s\nhow %s\nlayers %u\ncells %s\n", TN_SLACK_VERSION,
	    table->model, table->gpu, table->engine, table->when, tn_slack_how_name(table->how), table->layers,
	    table->per_layer ? "layered" : "shared");
	put_lengths(&p, "inputs", table->inputs, table->ninputs);
	put_lengths(&p, "prefixes", table->prefixes, table->nprefixes);
	for (uint32_t r = 0; r < table->rows; r++)
		for (uint32_t x = 0; x < table->nprefixes; x++)
			for (uint32_t i = 0; i < table->ninputs; i++)
				put_cell(&p, table, i, x, r, table->per_layer);
	return (long)p.used;
}
