/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact parsing of numbers from the command line: text that is not understood to its end is refused.
 *
 * strtoull and strtod are too forgiving (signs, blanks, "0x", "nan", silent wrap-around), so digits
 * are read here; only the fraction of a rate is left to strtod, once its characters are known.
 */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BARE_BYTES_MIN 4096u /* a smaller size without a unit is a mistake: the unit was forgotten */

/* Leading digits of *s; -1 if there are none or they exceed 64 bits. */
static int digits(const char **s, uint64_t *out, char *why, const char *whole)
{
	const char *p = *s;
	uint64_t v = 0;

	if (*p < '0' || *p > '9') {
		snprintf(why, CLI_WHY, "'%.60s' is not a non-negative whole number", whole);
		return -1;
	}
	for (; *p >= '0' && *p <= '9'; p++)
		if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v)) {
			snprintf(why, CLI_WHY, "'%.60s' is too large", whole);
			return -1;
		}
	*s = p;
	*out = v;
	return 0;
}

struct unit {
	const char *name; /* NULL ends a list */
	uint64_t factor;
};

/* A bound of sizes with the largest binary unit that it is a multiple of, a bound of counts as it is. */
static const char *bound(char text[32], const struct unit *units, uint64_t v)
{
	const struct unit *best = NULL;

	for (const struct unit *u = units; u->name; u++)
		if (v > 0 && v % u->factor == 0 && strstr(u->name, "iB"))
			best = u;
	snprintf(text, 32, "%" PRIu64 "%s", best ? v / best->factor : v, best ? best->name : "");
	return text;
}

static int out_of_range(const char *s, const struct unit *units, uint64_t min, uint64_t max, char *why)
{
	char a[32], b[32];

	snprintf(why, CLI_WHY, "'%.60s' is out of range (%s to %s)", s, bound(a, units, min), bound(b, units, max));
	return -1;
}

/* Digits behind a point, of a number that is whole once it is multiplied: with v before the point, v * 10^n and 10^n. */
static int fraction(const char **p, uint64_t *v, uint64_t *scale, char *why, const char *whole)
{
	const char *s = *p;

	*scale = 1;
	if (*s != '.')
		return 0;
	for (s++; *s >= '0' && *s <= '9'; s++)
		if (__builtin_mul_overflow(*v, 10u, v) || __builtin_add_overflow(*v, (uint64_t)(*s - '0'), v) ||
		    __builtin_mul_overflow(*scale, 10u, scale)) {
			snprintf(why, CLI_WHY, "'%.60s' has too many digits", whole);
			return -1;
		}
	if (s == *p + 1) {
		snprintf(why, CLI_WHY, "'%.60s' has no digit behind its point", whole);
		return -1;
	}
	*p = s;
	return 0;
}

static int parse_with_unit(const char *s, const struct unit *units, const char *known, uint64_t min, uint64_t max, uint64_t *out,
		     char *why)
{
	uint64_t v, scale, factor;
	const char *p = s;

	if (digits(&p, &v, why, s) || fraction(&p, &v, &scale, why, s))
		return -1;
	for (const struct unit *u = units; u->name; u++) {
		if (strcmp(p, u->name) != 0)
			continue;
		factor = u->factor;
		for (; scale > 1 && factor % 10 == 0; scale /= 10) /* 1.5GB: 15 times 100 MB */
			factor /= 10;
		if (__builtin_mul_overflow(v, factor, &v))
			return out_of_range(s, units, min, max, why);
		if (v % scale != 0) {
			snprintf(why, CLI_WHY, "'%.60s' is not a non-negative whole number", s);
			return -1;
		}
		v /= scale;
		if (v < min || v > max)
			return out_of_range(s, units, min, max, why);
		*out = v;
		return 0;
	}
	snprintf(why, CLI_WHY, "'%.60s': '%.20s' is no unit of a %s", s, p, known);
	return -1;
}

int cli_count(const char *s, uint64_t min, uint64_t max, uint64_t *out, char *why)
{
	static const struct unit units[] = {{"", 1}, {"k", 1000}, {"M", 1000000}, {"G", 1000000000}, {NULL, 0}};

	return parse_with_unit(s, units, "count (k, M or G)", min, max, out, why);
}

static int size(const char *s, uint64_t min, uint64_t max, uint64_t *out, char *why)
{
	static const struct unit units[] = {
		{"", 1},	      {"B", 1},
		{"kB", 1000},	      {"MB", 1000000},
		{"GB", 1000000000},   {"TB", 1000000000000},
		{"KiB", 1024},	      {"MiB", 1ull << 20},
		{"GiB", 1ull << 30},  {"TiB", 1ull << 40},
		{NULL, 0},
	};

	return parse_with_unit(s, units, "size (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)", min, max, out, why);
}

static bool unit_was_forgotten(const char *s, uint64_t bytes)
{
	return bytes > 0 && bytes < BARE_BYTES_MIN && strspn(s, "0123456789") == strlen(s);
}

int cli_size(const char *s, uint64_t min, uint64_t max, uint64_t *out, char *why)
{
	if (size(s, min, max, out, why))
		return -1;
	if (unit_was_forgotten(s, *out)) {
		snprintf(why, CLI_WHY, "'%.20s' is %" PRIu64 " bytes: give a unit, as in %.20sGiB, or %.20sB if that is meant", s, *out, s, s);
		return -1;
	}
	return 0;
}

int cli_rate(const char *s, double *out, char *why)
{
	bool decimals = *s && strspn(s, "0123456789.") == strlen(s);
	char *end;
	double v = strtod(s, &end);

	if (!decimals || *end || !isfinite(v) || v < 1e-9 || v > 1e9) {
		snprintf(why, CLI_WHY, "'%.60s' is not a number from 0.000000001 to 1000000000 in plain decimals, as 0.5 or 20", s);
		return -1;
	}
	*out = v;
	return 0;
}

int cli_parse_geometry(const char *s, struct cli_geometry *out, char *why)
{
	const char *p = s;
	struct cli_geometry g;

	if (*s >= '0' && *s <= '9' && digits(&p, &g.layers, why, s))
		return -1;
	if (p == s || *p != 'x' || p[1] < '0' || p[1] > '9') {
		snprintf(why, CLI_WHY, "'%.60s' is not LAYERSxBYTES, e.g. 8x16KiB", s);
		return -1;
	}
	if (size(p + 1, 1, 1u << 30, &g.object_bytes, why))
		return -1;
	if (unit_was_forgotten(p + 1, g.object_bytes)) {
		snprintf(why, CLI_WHY, "'%.20s' has objects of %" PRIu64 " bytes: give %.20sKiB, or %.20sB if that is meant", s,
			 g.object_bytes, s, s);
		return -1;
	}
	if (g.layers < 1 || g.layers > 4096) {
		snprintf(why, CLI_WHY, "'%.60s': the layers must be 1 to 4096", s);
		return -1;
	}
	*out = g;
	return 0;
}
