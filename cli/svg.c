/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page and its charts: fixed size in user units, scaled by the page. Nothing is loaded from elsewhere.
 */
#include "svg.h"

#include <math.h>
#include <string.h>

#include <tenuto/error.h>

#define WIDTH 600.0
#define HEIGHT 290.0
#define LEFT 62.0
#define RIGHT 16.0
#define TOP 12.0
#define BOTTOM 46.0
#define BAR_LEFT 128.0
#define BAR_RIGHT 190.0
#define BAR_STEP 34.0

static const char style[] =
	":root{color-scheme:light dark;--bg:#fff;--card:#f6f7f9;--fg:#1c2128;--dim:#5c6673;--line:#dfe3e8;"
	"--s1:#0067b0;--s2:#d1570a;--s3:#00845c;--s4:#7a7f87;--s5:#9c4f96;--s6:#b58900}\n"
	"@media(prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1d2126;--fg:#e6e9ed;--dim:#98a2ae;"
	"--line:#333a43;--s1:#58a9f0;--s2:#f0914e;--s3:#3ecf9d;--s4:#a7afb9;--s5:#d592cf;--s6:#e3c04a}}\n"
	"body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1180px;"
	"padding:28px 20px}\n"
	"h1{font-size:24px;margin:0}h2{font-size:16px;margin:0}p{margin:2px 0}.note,.sub,footer{color:var(--dim);"
	"font-size:13px}\n"
	".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:22px 0}\n"
	".tile{background:var(--card);border-radius:8px;padding:12px 14px}.tile b{display:block;font-size:22px;"
	"font-weight:600;font-variant-numeric:tabular-nums}.tile span{color:var(--dim);font-size:13px}\n"
	".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:16px;"
	"margin-top:22px}\n"
	".wide{grid-column:1/-1}figure{background:var(--card);border-radius:8px;margin:0;padding:16px}figure>svg{width:100%;height:auto;"
	"display:block}\n"
	".legend{font-size:13px;margin:6px 0}.legend span{margin-right:16px;white-space:nowrap}"
	".legend svg{margin-right:6px}\n"
	".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}"
	"th,td{text-align:right;padding:5px 6px;border-bottom:1px solid var(--line);white-space:nowrap}"
	"th{color:var(--dim);font-weight:500}th:first-child,td:first-child{text-align:left}\n"
	"svg text{fill:var(--dim);font:12px system-ui,sans-serif}svg .label{fill:var(--fg)}\n"
	".grid{stroke:var(--line)}.axis{stroke:var(--dim)}polyline{fill:none;stroke-width:2.2;stroke-linejoin:round}\n"
	"footer{margin-top:22px}\n";

void svg_page_begin(FILE *out, const char *title)
{
	fprintf(out,
		"<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
		"<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>%s</title>\n"
		"<style>\n%s</style></head><body>\n<h1>%s</h1>\n<p class=\"sub\">",
		title, style, title);
}

void svg_page_end(FILE *out)
{
	fprintf(out, "<footer>tenuto %s</footer>\n</body></html>\n", tn_version());
}

void svg_text(FILE *out, const char *s)
{
	for (; *s; s++) {
		if (*s == '<')
			fputs("&lt;", out);
		else if (*s == '>')
			fputs("&gt;", out);
		else if (*s == '&')
			fputs("&amp;", out);
		else if (*s == '"')
			fputs("&quot;", out);
		else if ((unsigned char)*s >= 0x20)
			fputc(*s, out);
	}
}

static void head(FILE *out, const char *title, const char *note)
{
	fputs("<figure>\n<h2>", out);
	svg_text(out, title);
	fputs("</h2>\n", out);
	if (note) {
		fputs("<p class=\"note\">", out);
		svg_text(out, note);
		fputs("</p>\n", out);
	}
	fputs("<p class=\"legend\">", out);
}

static void legend(FILE *out, const char *name, int color, bool dashed)
{
	fprintf(out,
		"<span><svg width=\"22\" height=\"10\" aria-hidden=\"true\"><line x1=\"1\" x2=\"21\" y1=\"5\" y2=\"5\" "
		"style=\"stroke:var(--s%d)\" stroke-width=\"3\"%s/></svg>",
		color, dashed ? " stroke-dasharray=\"5 3\"" : "");
	svg_text(out, name);
	fputs("</span>", out);
}

/* A step of 1, 2 or 5 times a power of ten that cuts the range into at most n parts. */
static double round_step(double range, int n)
{
	double raw = range / n, base = pow(10, floor(log10(raw)));

	for (int i = 0; i < 4; i++) {
		const double f[] = {1, 2, 5, 10};

		if (f[i] * base >= raw * 0.999)
			return f[i] * base;
	}
	return 10 * base;
}

struct scale {
	double x0, x1, y1;
	double step_x, step_y;
	bool log;
};

static double to_x(const struct scale *s, double x)
{
	double t = s->log ? (log(x) - log(s->x0)) / (log(s->x1) - log(s->x0)) : (x - s->x0) / (s->x1 - s->x0);

	return LEFT + t * (WIDTH - LEFT - RIGHT);
}

static double to_y(const struct scale *s, double y)
{
	return HEIGHT - BOTTOM - (y > s->y1 ? 1 : y / s->y1) * (HEIGHT - TOP - BOTTOM);
}

static struct scale scale_of(const struct svg_chart *c)
{
	struct scale s = {.x0 = INFINITY, .x1 = -INFINITY, .log = c->x_log};

	for (size_t k = 0; k < c->nseries; k++)
		for (size_t i = 0; i < c->series[k].n; i++) {
			s.x0 = fmin(s.x0, c->series[k].x[i]);
			s.x1 = fmax(s.x1, c->series[k].x[i]);
			s.y1 = fmax(s.y1, c->series[k].y[i]);
		}
	if (!(s.x1 > s.x0)) {
		s.x0 = isfinite(s.x0) ? s.x0 : 0;
		s.x1 = s.x0 + 1;
	}
	if (c->y_max > 0)
		s.y1 = c->y_max;
	else if (!(s.y1 > 0))
		s.y1 = 1;
	s.step_y = round_step(s.y1, 5);
	s.y1 = c->y_max > 0 ? s.y1 : ceil(s.y1 / s.step_y - 1e-9) * s.step_y;
	s.step_x = round_step(s.x1 - s.x0, 8);
	return s;
}

static void number(FILE *out, double v)
{
	if (fabs(v) >= 1e6)
		fprintf(out, "%gM", v / 1e6);
	else if (fabs(v) >= 1e4)
		fprintf(out, "%gk", v / 1e3);
	else
		fprintf(out, "%g", fabs(v) < 1e-12 ? 0 : v);
}

static void x_tick(FILE *out, const struct scale *s, double v)
{
	fprintf(out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", to_x(s, v), to_x(s, v), TOP,
		HEIGHT - BOTTOM);
	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", to_x(s, v), HEIGHT - BOTTOM + 16);
	number(out, v);
	fputs("</text>\n", out);
}

static void axes(FILE *out, const struct svg_chart *c, const struct scale *s)
{
	for (double v = 0; v <= s->y1 * 1.0001; v += s->step_y) {
		fprintf(out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT, WIDTH - RIGHT,
			to_y(s, v), to_y(s, v));
		fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 6, to_y(s, v) + 4);
		if (c->y_percent)
			fprintf(out, "%g %%", round(v * 1e4) / 100);
		else
			number(out, v);
		fputs("</text>\n", out);
	}
	if (s->log) {
		for (double p = pow(10, floor(log10(s->x0))); p <= s->x1 * 1.001; p *= 10)
			for (int i = 0; i < 3; i++) {
				const double f[] = {1, 2, 5};

				if (f[i] * p >= s->x0 * 0.999 && f[i] * p <= s->x1 * 1.001)
					x_tick(out, s, f[i] * p);
			}
	} else {
		for (double v = ceil(s->x0 / s->step_x) * s->step_x; v <= s->x1 * 1.0001; v += s->step_x)
			x_tick(out, s, v);
	}
	fprintf(out, "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, WIDTH - RIGHT,
		HEIGHT - BOTTOM, HEIGHT - BOTTOM);
	fprintf(out, "<text class=\"label\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
		(LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8);
	svg_text(out, c->x_label);
	fprintf(out, "</text>\n<text class=\"label\" transform=\"translate(14 %.1f) rotate(-90)\" text-anchor=\"middle\">",
		(TOP + HEIGHT - BOTTOM) / 2);
	svg_text(out, c->y_label);
	fputs("</text>\n", out);
}

static void line(FILE *out, const struct svg_chart *c, const struct scale *s, const struct svg_series *l)
{
	fprintf(out, "<polyline style=\"stroke:var(--s%d)\"%s points=\"", l->color,
		l->dashed ? " stroke-dasharray=\"6 4\"" : "");
	for (size_t i = 0; i < l->n; i++)
		fprintf(out, "%.1f,%.1f ", to_x(s, l->x[i]), to_y(s, l->y[i]));
	fputs("\"/>\n", out);
	for (size_t i = 0; l->dots && i < l->n; i++) {
		fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" style=\"fill:var(--s%d)\"><title>", to_x(s, l->x[i]),
			to_y(s, l->y[i]), l->color);
		svg_text(out, l->name);
		if (c->y_percent)
			fprintf(out, ", %g: %.2f %%</title></circle>\n", l->x[i], l->y[i] * 100);
		else
			fprintf(out, ", %g: %g</title></circle>\n", l->x[i], l->y[i]);
	}
}

void svg_lines(FILE *out, const struct svg_chart *c)
{
	struct scale s = scale_of(c);

	head(out, c->title, c->note);
	for (size_t k = 0; k < c->nseries; k++)
		legend(out, c->series[k].name, c->series[k].color, c->series[k].dashed);
	fprintf(out, "</p>\n<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
	svg_text(out, c->title);
	fputs("\">\n", out);
	axes(out, c, &s);
	for (size_t k = 0; k < c->nseries; k++)
		line(out, c, &s, &c->series[k]);
	fputs("</svg>\n</figure>\n", out);
}

void svg_bars(FILE *out, const char *title, const char *note, const char *const part_names[2],
	      const struct svg_bar *bars, size_t n)
{
	double max = 0, unit;

	for (size_t i = 0; i < n; i++)
		max = fmax(max, bars[i].part[0] + bars[i].part[1]);
	unit = (WIDTH - BAR_LEFT - BAR_RIGHT) / (max > 0 ? max : 1);
	head(out, title, note);
	legend(out, part_names[0], 1, false);
	legend(out, part_names[1], 2, false);
	fprintf(out, "</p>\n<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"", WIDTH, BAR_STEP * (double)n + 8);
	svg_text(out, title);
	fputs("\">\n", out);
	for (size_t i = 0; i < n; i++) {
		const struct svg_bar *b = &bars[i];
		double y = BAR_STEP * (double)i + 6, w0 = b->part[0] * unit, w1 = b->part[1] * unit;

		fprintf(out, "<text x=\"%g\" y=\"%g\" text-anchor=\"end\">", BAR_LEFT - 8, y + 17);
		svg_text(out, b->name);
		fprintf(out, "</text>\n<rect x=\"%g\" y=\"%g\" width=\"%.1f\" height=\"24\" style=\"fill:var(--s1)\"/>", BAR_LEFT,
			y, w0);
		fprintf(out, "<rect x=\"%.1f\" y=\"%g\" width=\"%.1f\" height=\"24\" style=\"fill:var(--s2)\"/>\n",
			BAR_LEFT + w0, y, w1);
		fprintf(out, "<text x=\"%.1f\" y=\"%g\">", BAR_LEFT + w0 + w1 + 8, y + 17);
		svg_text(out, b->text);
		fputs("</text>\n", out);
	}
	fputs("</svg>\n</figure>\n", out);
}
