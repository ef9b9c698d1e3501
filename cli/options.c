/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsing, --help, and the nearest name to a mistyped one, all from one table per verb.
 *
 * Options and operands may come in any order; "--" ends the options; "--name=value" equals "--name value".
 */
#include "cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 64
#define HELP_INDENT 28
#define ALIGNMENT 4096u /* of direct I/O, at most */

/* How many edits (insert, delete, replace, swap of neighbours) lead from a to b; names are short. */
static unsigned edit_distance(const char *a, const char *b)
{
	unsigned row[3][64];
	size_t n = strlen(a), m = strlen(b);

	if (n > 62 || m > 62)
		return 64;
	for (size_t j = 0; j <= m; j++)
		row[1][j] = (unsigned)j;
	for (size_t i = 1; i <= n; i++) {
		row[2][0] = (unsigned)i;
		for (size_t j = 1; j <= m; j++) {
			unsigned d = row[1][j - 1] + (a[i - 1] != b[j - 1]);

			if (row[1][j] + 1 < d)
				d = row[1][j] + 1;
			if (row[2][j - 1] + 1 < d)
				d = row[2][j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && row[0][j - 2] + 1 < d)
				d = row[0][j - 2] + 1;
			row[2][j] = d;
		}
		memcpy(row[0], row[1], sizeof(row[0]));
		memcpy(row[1], row[2], sizeof(row[1]));
	}
	return row[1][m];
}

const char *cli_nearest(const char *s, const char *const *names, size_t n)
{
	const char *best = NULL;
	unsigned limit = (unsigned)strlen(s) / 3 + 1;

	for (size_t i = 0; i < n; i++) {
		size_t len = strlen(s);
		/* A name that was cut off counts as one edit. */
		unsigned d = len >= 2 && !strncmp(s, names[i], len) ? 1 : edit_distance(s, names[i]);

		if (d <= limit) {
			best = names[i];
			limit = d ? d - 1 : 0;
		}
	}
	return best;
}

static void help_opt(const char *name, const char *arg, const char *help, const char *dflt)
{
	char left[64], text[256];

	snprintf(left, sizeof(left), "--%s%s%s", name, arg ? " " : "", arg ? arg : "");
	snprintf(text, sizeof(text), "%s%s%s%s", help, dflt ? " (default: " : "", dflt ? dflt : "", dflt ? ")" : "");
	printf("  %-*s ", HELP_INDENT - 3, left);
	cli_wrap(stdout, HELP_INDENT, text);
}

static int help(const struct cli_verb *v)
{
	printf("usage: %s%s%s [options]%s%s\n\n", cli_program, *v->name ? " " : "", v->name, v->operands ? " " : "", v->operands ? v->operands : "");
	cli_wrap(stdout, 0, v->about);
	puts("\noptions:");
	for (const struct cli_opt *o = v->opts; o->name; o++)
		help_opt(o->name, o->arg, o->help, o->dflt);
	help_opt("help", NULL, "print this", NULL);
	putchar('\n');
	cli_wrap(stdout, 0, "exit codes: 0 done, 1 found a problem, 2 usage or a path that is not there, 3 environment or interrupted");
	return cli_finish(CLI_OK);
}

static int store_geometry(const struct cli_opt *o, const char *value, struct cli_geometry *g, char *why)
{
	int rc = cli_parse_geometry(value, g, why);

	if (!rc && g->object_bytes % ALIGNMENT)
		cli_error(CLI_OK, "warning: --%s %s: objects that are no multiple of %u bytes go to disk and back through a copy",
			  o->name, value, ALIGNMENT);
	return rc;
}

static int store_value(const struct cli_opt *o, const char *value, void *args, char *why)
{
	void *to = (char *)args + o->offset;

	switch (o->type) {
	case CLI_FLAG:
		*(bool *)to = true;
		return 0;
	case CLI_STRING:
		if (!*value) {
			snprintf(why, CLI_WHY, "must not be empty");
			return -1;
		}
		*(const char **)to = value;
		return 0;
	case CLI_STRINGS: {
		struct cli_strings *list = to;

		if (!*value || list->n == CLI_STRINGS_MAX) {
			snprintf(why, CLI_WHY, *value ? "given more than %d times" : "must not be empty",
				 CLI_STRINGS_MAX);
			return -1;
		}
		list->item[list->n++] = value;
		return 0;
	}
	case CLI_COUNT:
		return cli_count(value, o->min, o->max, to, why);
	case CLI_SIZE:
		return cli_size(value, o->min, o->max, to, why);
	case CLI_RATE:
		return cli_rate(value, to, why);
	case CLI_GEOMETRY:
		return store_geometry(o, value, to, why);
	}
	return -1;
}

static int usage(const struct cli_verb *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int usage(const struct cli_verb *v, const char *fmt, ...)
{
	char text[CLI_WHY + 160];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return cli_error(CLI_USAGE, "%s\ntry '%s%s%s --help'", text, cli_program, *v->name ? " " : "", v->name);
}

static const struct cli_opt *find_opt(const struct cli_verb *v, const char *name, size_t len)
{
	for (const struct cli_opt *o = v->opts; o->name; o++)
		if (strlen(o->name) == len && !strncmp(o->name, name, len))
			return o;
	return NULL;
}

static int unknown_opt(const struct cli_verb *v, const char *given)
{
	const char *names[NAMES_MAX] = {"help"};
	size_t n = 1;
	char name[64];
	const char *near;

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(given, "="), given);
	for (const struct cli_opt *o = v->opts; o->name && n < NAMES_MAX; o++)
		names[n++] = o->name;
	near = cli_nearest(name, names, n);
	if (near)
		return usage(v, "no option --%s; did you mean --%s?", name, near);
	return usage(v, "no option --%s", name);
}

/* One option at argv[*i]; CLI_GO or the exit code. */
static int parse_opt(const struct cli_verb *v, int argc, char **argv, int *i, void *args)
{
	const char *name = argv[*i] + 2;
	size_t len = strcspn(name, "=");
	const struct cli_opt *o = find_opt(v, name, len);
	const char *value = name[len] ? name + len + 1 : NULL;
	char why[CLI_WHY];

	if (!o)
		return unknown_opt(v, name);
	if (o->type == CLI_FLAG) {
		if (value)
			return usage(v, "--%s takes no argument", o->name);
	} else if (!value) {
		if (*i + 1 >= argc)
			return usage(v, "--%s needs an argument (%s)", o->name, o->arg);
		value = argv[++*i];
	}
	if (store_value(o, value, args, why))
		return usage(v, "--%s: %s", o->name, why);
	return CLI_GO;
}

int cli_parse(const struct cli_verb *v, int argc, char **argv, void *args, int *noperands)
{
	bool only_operands = false;
	int n = 0;

	cli_speak_as(v->name);
	for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return help(v);
	for (int i = 1; i < argc; i++) {
		if (only_operands || argv[i][0] != '-' || !argv[i][1]) {
			argv[1 + n++] = argv[i];
			continue;
		}
		if (!strcmp(argv[i], "--")) {
			only_operands = true;
			continue;
		}
		if (argv[i][1] != '-')
			return usage(v, "no option %s", argv[i]);
		int rc = parse_opt(v, argc, argv, &i, args);

		if (rc != CLI_GO)
			return rc;
	}
	if (n < v->min_operands)
		return usage(v, "missing %s", v->operands);
	if (n > v->max_operands)
		return usage(v, "unexpected '%s'", argv[1 + v->max_operands]);
	*noperands = n;
	return CLI_GO;
}

int cli_dispatch(const char *program, const char *about, const struct cli_command *commands, int argc, char **argv)
{
	const char *names[NAMES_MAX];
	const char *near;
	size_t n = 0;
	bool asked = argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"));

	if (argc < 2 || (asked && argc == 2)) {
		FILE *out = asked ? stdout : stderr;

		fprintf(out, "usage: %s VERB [options]\n\n", program);
		cli_wrap(out, 0, about);
		fputc('\n', out);
		for (const struct cli_command *c = commands; c->name; c++) {
			fprintf(out, "  %-10s ", c->name);
			cli_wrap(out, 13, c->summary);
		}
		fprintf(out, "\n'%s VERB --help' tells more about one.\n", program);
		return asked ? cli_finish(CLI_OK) : CLI_USAGE;
	}
	if (asked) { /* tenuto help VERB */
		char dashes[] = "--help";
		char *args[] = {argv[0], argv[2], dashes, NULL};

		return cli_dispatch(program, about, commands, 3, args);
	}
	for (const struct cli_command *c = commands; c->name; c++) {
		if (!strcmp(c->name, argv[1]))
			return c->run(argc - 1, argv + 1);
		if (n < NAMES_MAX)
			names[n++] = c->name;
	}
	near = cli_nearest(argv[1], names, n);
	if (near)
		fprintf(stderr, "%s: no verb '%s'; did you mean '%s'?\n", program, argv[1], near);
	else
		fprintf(stderr, "%s: no verb '%s'\n", program, argv[1]);
	fprintf(stderr, "try '%s --help'\n", program);
	return CLI_USAGE;
}
