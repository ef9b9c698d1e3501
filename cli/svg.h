/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Line and bar charts as inline SVG for the reports: axes with round ticks, units, a legend.
 *
 * Colours are CSS variables of the page (--s1 .. --s6), so a chart follows light and dark. Classes of the page: tiles,
 * charts, note, wide (of all columns of charts), scroll (round a table).
 */
#ifndef TENUTO_CLI_SVG_H
#define TENUTO_CLI_SVG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/*
 * Begins a page, up to the paragraph below its title, which the caller ends; and ends the page. The title must need no
 * escaping.
 */
void svg_page_begin(FILE *out, const char *title);
void svg_page_end(FILE *out);

struct svg_series {
	const char *name;
	int color; /* 1 .. 6 */
	bool dashed;
	bool dots; /* a dot with a tooltip at each point */
	const double *x, *y;
	size_t n;
};

struct svg_chart {
	const char *title;
	const char *note; /* a line below the title, or NULL */
	const char *x_label, *y_label;
	bool x_log;
	bool y_percent; /* y is 0..1, shown as per cent */
	double y_max;	/* 0: from the data */
	const struct svg_series *series;
	size_t nseries;
};

/* A <figure> with title, legend and chart. */
void svg_lines(FILE *out, const struct svg_chart *c);

struct svg_bar {
	const char *name;
	double part[2]; /* stacked */
	char text[96];	/* at the end of the bar */
};

/* Horizontal stacked bars of two parts, named in the legend. */
void svg_bars(FILE *out, const char *title, const char *note, const char *const part_names[2],
	      const struct svg_bar *bars, size_t n);

/* Text with <, >, & and quotes escaped. */
void svg_text(FILE *out, const char *s);

#endif
