/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text in columns: aligned tables, and text that is broken at blanks where a line ends.
 *
 * On a terminal a table is made as narrow as the terminal. Elsewhere each row is one line, so that grep finds it.
 */
#include "cli.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define NARROWEST 12 /* narrowest column that is broken into lines */
#define HELP_COLUMNS 80

/* Columns on the screen: code points, not bytes. */
static int width_of(const char *s, size_t bytes)
{
	int n = 0;

	for (size_t i = 0; i < bytes; i++)
		n += ((unsigned char)s[i] & 0xc0) != 0x80;
	return n;
}

/* Columns of the terminal; 0 if the output is no terminal. */
static int columns_of(FILE *out)
{
	struct winsize w;

	return ioctl(fileno(out), TIOCGWINSZ, &w) ? 0 : w.ws_col;
}

/* Bytes of s that make a line of at most width columns: up to its end, a blank if there is one, else all that fit. */
static size_t line_of(const char *s, int width)
{
	size_t blank = 0, at = 0;

	for (int n = 0; s[at] && s[at] != '\n'; at++) {
		n += ((unsigned char)s[at] & 0xc0) != 0x80;
		if (n > width)
			break;
		if (s[at] == ' ')
			blank = at;
	}
	return !s[at] || s[at] == ' ' || s[at] == '\n' || !blank ? at : blank;
}

void cli_wrap(FILE *out, int indent, const char *text)
{
	int columns = columns_of(out);
	int width = (columns > 0 && columns < HELP_COLUMNS ? columns : HELP_COLUMNS) - indent;

	for (const char *s = text; *s;) {
		size_t n = line_of(s, width < NARROWEST ? NARROWEST : width);

		fprintf(out, "%*s%.*s\n", s == text ? 0 : indent, "", (int)n, s);
		s += n;
		s += strspn(s, " ");
		s += *s == '\n';
	}
}

void cli_table_init(struct cli_table *t, size_t columns, const bool *left)
{
	assert(columns > 0 && columns <= CLI_COLUMNS_MAX);
	memset(t, 0, sizeof(*t));
	t->columns = columns;
	for (size_t i = 0; left && i < columns; i++)
		t->left[i] = left[i];
}

void cli_table_cell(struct cli_table *t, const char *fmt, ...)
{
	va_list ap;
	char *text = NULL;

	if (t->cells == t->capacity) {
		size_t capacity = t->capacity ? t->capacity * 2 : 64;
		char **grown = realloc(t->cell, capacity * sizeof(*grown));

		if (!grown)
			return;
		t->cell = grown;
		t->capacity = capacity;
	}
	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		text = NULL;
	va_end(ap);
	t->cell[t->cells++] = text;
}

/* The width of each column; on a terminal the widest columns of text give way. */
static void measure(const struct cli_table *t, FILE *out, int *width)
{
	int most = columns_of(out), sum = 2 * ((int)t->columns - 1);

	for (size_t c = 0; c < t->columns; c++) {
		width[c] = 0;
		for (size_t i = c; i < t->cells; i += t->columns) {
			int w = t->cell[i] ? width_of(t->cell[i], strlen(t->cell[i])) : 0;

			width[c] = w > width[c] ? w : width[c];
		}
		sum += width[c];
	}
	while (most > 0 && sum > most) {
		size_t widest = t->columns;

		for (size_t c = 0; c < t->columns; c++)
			if (t->left[c] && width[c] > NARROWEST && (widest == t->columns || width[c] > width[widest]))
				widest = c;
		if (widest == t->columns)
			return;
		width[widest]--;
		sum--;
	}
}

/* One row, in as many lines as its longest cell needs; no blanks at the end of a line. */
static void print_row(const struct cli_table *t, FILE *out, const int *width, char *const *cell)
{
	const char *rest[CLI_COLUMNS_MAX];
	bool more = true;

	for (size_t c = 0; c < t->columns; c++)
		rest[c] = cell[c] ? cell[c] : "";
	while (more) {
		int blanks = 0; /* to be printed before the next text */

		more = false;
		for (size_t c = 0; c < t->columns; c++) {
			size_t n = line_of(rest[c], width[c]);
			int pad = width[c] - width_of(rest[c], n);

			if (n)
				fprintf(out, "%*s%.*s", blanks + (t->left[c] ? 0 : pad), "", (int)n, rest[c]);
			blanks = n ? (t->left[c] ? pad : 0) + 2 : blanks + width[c] + 2;
			rest[c] += n;
			rest[c] += strspn(rest[c], " \n");
			more |= *rest[c] != '\0';
		}
		fputc('\n', out);
	}
}

void cli_table_print(struct cli_table *t, FILE *out, bool head)
{
	int width[CLI_COLUMNS_MAX];

	measure(t, out, width);
	for (size_t i = 0; i + t->columns <= t->cells; i += t->columns) {
		print_row(t, out, width, &t->cell[i]);
		for (size_t c = 0; head && !i && c < t->columns; c++) {
			fputs(c ? "  " : "", out);
			for (int j = 0; j < width[c]; j++)
				fputc('-', out);
			if (c + 1 == t->columns)
				fputc('\n', out);
		}
	}
	for (size_t i = 0; i < t->cells; i++)
		free(t->cell[i]);
	free(t->cell);
	memset(t, 0, sizeof(*t));
}
