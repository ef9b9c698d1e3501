/* SPDX-License-Identifier: Apache-2.0 */
/* Per-layer timings as a connector writes them: CSV or JSON, every value checked, errors with file and line or item. */
#include "profile.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <tenuto/slack.h>

#include "cli.h"

#define LINE_BYTES 4096
#define COLUMNS_MAX 32
#define FIELDS 6
#define FIELDS_NEEDED 4 /* the first ones; the others are 0 if they are missing */

static const char *const field_names[FIELDS] = {"input", "prefix", "layer", "ns", "sms", "iocbs"};
static const uint64_t field_min[FIELDS] = {1, 0, 0, 1, 0, 0};
static const uint64_t field_max[FIELDS] = {TN_SLACK_TOKENS_MAX, TN_SLACK_TOKENS_MAX, TN_LAYERS_MAX - 1,
					   TN_SLACK_WINDOW_MAX, TN_SLACK_BOUND_MAX, TN_SLACK_BOUND_MAX};

struct reader {
	const char *name;
	unsigned long line; /* in a JSON array 0: item counts then */
	size_t item;	    /* of a JSON array, counted from 1 */
	char *error;
	size_t error_bytes;
	int column[FIELDS]; /* CSV: where each field is; -1 before the first line */
	int columns;
};

static int fail(struct reader *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct reader *r, int code, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (r->item)
		n = snprintf(r->error, r->error_bytes, "%.200s: item %zu: ", r->name, r->item);
	else if (r->line)
		n = snprintf(r->error, r->error_bytes, "%.200s:%lu: ", r->name, r->line);
	else
		n = snprintf(r->error, r->error_bytes, "%.200s: ", r->name);
	va_start(ap, fmt);
	vsnprintf(r->error + n, r->error_bytes - (size_t)n, fmt, ap);
	va_end(ap);
	return code;
}

int profile_rows_add(struct profile_rows *rows, const struct profile_row *row)
{
	if (rows->n == rows->capacity) {
		size_t capacity = rows->capacity ? rows->capacity * 2 : 1024;
		struct profile_row *grown = reallocarray(rows->row, capacity, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		rows->row = grown;
		rows->capacity = capacity;
	}
	rows->row[rows->n++] = *row;
	return 0;
}

void profile_rows_free(struct profile_rows *rows)
{
	free(rows->row);
	*rows = (struct profile_rows){0};
}

static int add(struct reader *r, struct profile_rows *rows, const uint64_t *v)
{
	struct profile_row row = {v[0], v[1], (uint32_t)v[2], v[3], (uint32_t)v[4], (uint32_t)v[5]};

	return profile_rows_add(rows, &row) ? fail(r, -ENOMEM, "out of memory") : 0;
}

/* ---- CSV ---------------------------------------------------------------------------------------- */

/*
 * Splits a line at its commas, in place, and drops blanks around a cell. The number of cells, or -1 if there are too
 * many.
 */
static int split_cells(char *line, char **cell)
{
	int n = 0;

	for (;;) {
		char *end = strchr(line, ',');

		if (n == COLUMNS_MAX)
			return -1;
		if (end)
			*end = 0;
		line += strspn(line, " \t");
		for (size_t len = strlen(line); len && strchr(" \t", line[len - 1]); len--)
			line[len - 1] = 0;
		cell[n++] = line;
		if (!end)
			return n;
		line = end + 1;
	}
}

static int csv_head(struct reader *r, char **cell, int n)
{
	for (int f = 0; f < FIELDS; f++) {
		for (int i = 0; i < n; i++) {
			if (strcmp(cell[i], field_names[f]) != 0)
				continue;
			if (r->column[f] >= 0)
				return fail(r, -EINVAL, "column \"%s\" is there twice", field_names[f]);
			r->column[f] = i;
		}
		if (r->column[f] < 0 && f < FIELDS_NEEDED)
			return fail(r, -EINVAL, "no column \"%s\" (the first line names them: input,prefix,layer,ns)",
				    field_names[f]);
	}
	r->columns = n;
	return 0;
}

static int csv_line(struct reader *r, char *line, struct profile_rows *rows)
{
	char *cell[COLUMNS_MAX], why[CLI_WHY];
	uint64_t v[FIELDS] = {0};
	int n = split_cells(line, cell);

	if (n < 0)
		return fail(r, -EINVAL, "more than %d columns", COLUMNS_MAX);
	if (r->columns == 0)
		return csv_head(r, cell, n);
	if (n != r->columns)
		return fail(r, -EINVAL, "%d cells, but %d columns", n, r->columns);
	for (int f = 0; f < FIELDS; f++)
		if (r->column[f] >= 0 && cli_count(cell[r->column[f]], field_min[f], field_max[f], &v[f], why))
			return fail(r, -EINVAL, "%s: %s", field_names[f], why);
	return add(r, rows, v);
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static int json_row(struct reader *r, const json_t *o, struct profile_rows *rows)
{
	uint64_t v[FIELDS] = {0};
	int rc = 0;

	if (!json_is_object(o))
		return fail(r, -EINVAL, "not a JSON object");
	for (int f = 0; f < FIELDS && rc == 0; f++) {
		const json_t *j = json_object_get(o, field_names[f]);

		if (!j && f >= FIELDS_NEEDED)
			continue;
		if (!json_is_integer(j))
			rc = fail(r, -EINVAL, j ? "%s must be a whole number" : "no %s", field_names[f]);
		else if (json_integer_value(j) < (json_int_t)field_min[f] ||
			 json_integer_value(j) > (json_int_t)field_max[f])
			rc = fail(r, -EINVAL, "%s %lld is out of range (%llu to %llu)", field_names[f],
				  (long long)json_integer_value(j), (unsigned long long)field_min[f],
				  (unsigned long long)field_max[f]);
		else
			v[f] = (uint64_t)json_integer_value(j);
	}
	return rc ? rc : add(r, rows, v);
}

static int json_line(struct reader *r, const char *line, struct profile_rows *rows)
{
	json_error_t e;
	json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, &e);
	int rc = o ? json_row(r, o, rows) : fail(r, -EINVAL, "not valid JSON at column %d: %.120s", e.column, e.text);

	json_decref(o);
	return rc;
}

static int read_array(struct reader *r, FILE *file, struct profile_rows *rows)
{
	unsigned long before = r->line;
	json_error_t e;
	json_t *array = json_loadf(file, JSON_REJECT_DUPLICATES, &e);
	int rc = 0;

	if (!array) {
		r->line = before + (unsigned long)(e.line > 0 ? e.line : 0);
		return fail(r, -EINVAL, "not valid JSON at column %d: %.120s", e.column, e.text);
	}
	for (r->item = 1; rc == 0 && r->item <= json_array_size(array); r->item++)
		rc = json_row(r, json_array_get(array, r->item - 1), rows);
	r->item = 0;
	json_decref(array);
	return rc;
}

/* ---- lines -------------------------------------------------------------------------------------- */

static int read_lines(struct reader *r, FILE *file, bool json, struct profile_rows *rows)
{
	char line[LINE_BYTES];
	int rc = 0;

	while (rc == 0 && fgets(line, sizeof(line), file)) {
		size_t len = strlen(line);

		r->line++;
		if (len == sizeof(line) - 1 && line[len - 1] != '\n')
			return fail(r, -EINVAL, "line is longer than %d bytes", LINE_BYTES - 2);
		while (len && strchr("\r\n", line[len - 1]))
			line[--len] = 0;
		if (line[strspn(line, " \t")])
			rc = json ? json_line(r, line, rows) : csv_line(r, line, rows);
	}
	return rc;
}

/* The first character that is not blank: it tells the kinds of files apart. It is not consumed. */
static int peek(struct reader *r, FILE *file)
{
	int c = getc(file);

	while (c != EOF && strchr(" \t\r\n", c)) {
		r->line += c == '\n';
		c = getc(file);
	}
	return ungetc(c, file);
}

int profile_rows_read(const char *name, struct profile_rows *rows, char *error, size_t error_bytes)
{
	struct reader r = {.name = name, .error = error, .error_bytes = error_bytes, .column = {-1, -1, -1, -1, -1, -1}};
	FILE *file = fopen(name, "re");
	int rc, first;

	if (!file)
		return fail(&r, -errno, "cannot be opened: %s", strerror(errno));
	first = peek(&r, file);
	rc = first == '[' ? read_array(&r, file, rows) : read_lines(&r, file, first == '{', rows);
	if (rc == 0 && ferror(file))
		rc = fail(&r, -errno, "cannot be read: %s", strerror(errno));
	fclose(file);
	if (rc == 0 && rows->n == 0) {
		r.line = 0;
		rc = fail(&r, -EINVAL, "holds no timing");
	}
	return rc;
}
