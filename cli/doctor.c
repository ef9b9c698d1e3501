/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto doctor`: what this machine offers, what it gives, and how to get what is missing. */
#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

struct args {
	bool json;
	bool measure;
	const char *remote;
};

static const struct cli_opt options[] = {
	{"measure", NULL, NULL, "read a temporary file of 256 MiB for some seconds: does it matter where objects begin?", CLI_FLAG,
	 offsetof(struct args, measure), 0, 0},
	{"remote", "SPEC", NULL, "also write and read an object in this remote store, as s3,bucket=kv-cache", CLI_STRING, offsetof(struct args, remote), 0, 0},
	{"json", NULL, NULL, "print JSON", CLI_FLAG, offsetof(struct args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "doctor",
	.operands = "[DIR]",
	.about = "Shows what this machine offers Tenuto, what it is good for, and what to do to get more. DIR is where a "
		 "store would lie (default: the current directory). Nothing is changed there; nothing here is required.",
	.opts = options,
	.max_operands = 1,
};

void doctor_add(struct doctor *d, const char *name, enum doctor_state state, const char *gives, const char *todo,
		const char *value, ...)
{
	struct doctor_finding *f = &d->f[d->n];
	va_list ap;

	if (d->n == DOCTOR_MAX)
		return;
	d->n++;
	f->name = name;
	f->state = state;
	f->gives = gives;
	f->todo = state == DOCTOR_YES ? "" : todo;
	va_start(ap, value);
	vsnprintf(f->value, sizeof(f->value), value, ap);
	va_end(ap);
	/* Names of drives and directories come from outside: JSON takes no broken UTF-8, a terminal no control codes. */
	for (char *c = f->value; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
}

void doctor_read_line(const char *path, char *line, size_t bytes)
{
	FILE *f = fopen(path, "re");
	size_t n;

	line[0] = '\0';
	if (!f)
		return;
	if (!fgets(line, (int)bytes, f))
		line[0] = '\0';
	fclose(f);
	for (n = strlen(line); n && (line[n - 1] == '\n' || line[n - 1] == ' '); n--)
		line[n - 1] = '\0';
}

uint64_t doctor_read_number(const char *path, uint64_t fallback)
{
	char line[64], *end;
	uint64_t v;

	doctor_read_line(path, line, sizeof(line));
	v = strtoull(line, &end, 10);
	return end == line ? fallback : v;
}

static const char *state_name(enum doctor_state s)
{
	static const char *const names[] = {"yes", "partly", "no"};

	return names[s];
}

static void probe_slot_start(struct doctor *d)
{
	struct doctor_measure m;
	const char *gives = "whether sizes of objects matter to this disk";
	const char *why = "";
	int err = doctor_measure(d->dir, &m, &why);
	double ratio;

	if (err) {
		doctor_add(d, "16 KiB starts", DOCTOR_NO, gives, "a directory that you may write to, with 256 MiB free",
			   "not measured: %s: %s", why, strerror(-err));
		return;
	}
	ratio = m.shifted_gbps > 0 ? m.aligned_gbps / m.shifted_gbps : 0;
	doctor_add(d, "16 KiB starts", ratio > 1.05 ? DOCTOR_PARTLY : DOCTOR_YES, gives,
		   "let objects be multiples of 16 KiB (pages_per_block, --geometry 8x16KiB): then each begins at one",
		   "32 KiB reads from multiples of 16 KiB %.2f GB/s, from 4 KiB beside them %.2f: %s", m.aligned_gbps,
		   m.shifted_gbps, ratio > 1.05 ? "it matters where objects begin" : "it does not matter where objects begin");
}

static int print_json(const struct doctor *d)
{
	json_t *list = json_array();

	for (size_t i = 0; i < d->n; i++) {
		const struct doctor_finding *f = &d->f[i];

		json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:s}", "name", f->name, "state", state_name(f->state),
						      "value", f->value, "gives", f->gives, "todo", f->todo));
	}
	return cli_json(json_pack("{s:o}", "findings", list));
}

static void print_table(const struct doctor *d)
{
	static const bool left[] = {true, true, true, true};
	struct cli_table t;
	bool any = false;
	char text[700];

	cli_table_init(&t, 4, left);
	cli_table_cell(&t, "what");
	cli_table_cell(&t, "here");
	cli_table_cell(&t, "found");
	cli_table_cell(&t, "gives");
	for (size_t i = 0; i < d->n; i++) {
		cli_table_cell(&t, "%s", d->f[i].name);
		cli_table_cell(&t, "%s", state_name(d->f[i].state));
		cli_table_cell(&t, "%s", d->f[i].value);
		cli_table_cell(&t, "%s", d->f[i].gives);
	}
	cli_table_print(&t, stdout, true);
	for (size_t i = 0; i < d->n; i++) {
		if (!d->f[i].todo[0])
			continue;
		if (!any)
			puts("\nTo get more (nothing of it is required):");
		any = true;
		snprintf(text, sizeof(text), "%s: %s", d->f[i].name, d->f[i].todo);
		fputs("  ", stdout);
		cli_wrap(stdout, 4, text);
	}
}

int cmd_doctor(int argc, char **argv)
{
	static struct doctor d;
	struct args args = {0};
	int n = 0, rc;

	rc = cli_parse(&verb, argc, argv, &args, &n);
	if (rc != CLI_GO)
		return rc;
	d.dir = n ? argv[1] : ".";
	d.n = 0;
	rc = cli_check_dir("", d.dir);
	if (rc)
		return rc;
	doctor_probe_kernel(&d);
	doctor_probe_disk(&d);
	if (args.measure)
		probe_slot_start(&d);
	doctor_probe_devices(&d);
	doctor_probe_plugins(&d);
	if (args.remote)
		doctor_probe_remotes(&d, args.remote);
	if (args.json)
		return print_json(&d);
	print_table(&d);
	return cli_finish(CLI_OK);
}
