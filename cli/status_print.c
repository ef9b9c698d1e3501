/* SPDX-License-Identifier: Apache-2.0 */
/* The screen of `tenuto status`. The titles of its rows are those of the panels of share/grafana/tenuto.json. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli.h"
#include "metrics.h"
#include "status.h"

#define GB 1e-9
#define LABELS 600u /* bytes: an escaped path and a little more */
#define KEY 800u

static const char *const healths[] = {"healthy", "slow", "read_only", "offline"};

static void row(FILE *out, const char *title, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void row(FILE *out, const char *title, const char *fmt, ...)
{
	va_list ap;

	fprintf(out, "%-42s", title);
	va_start(ap, fmt);
	vfprintf(out, fmt, ap);
	va_end(ap);
	putc('\n', out);
}

/* A share of look-ups' blocks; false: there were none. */
static bool hits(const struct status *s, const struct status *before, double *share)
{
	double asked = status_rate(s, before, "tenuto_lookup_blocks_total");

	*share = asked > 0 ? 100 * status_rate(s, before, "tenuto_hit_blocks_total") / asked : 0;
	return asked > 0;
}

static char *latency_text(char *buf, double seconds)
{
	if (seconds < 0)
		snprintf(buf, 32, "-");
	else if (seconds < 1e-3)
		snprintf(buf, 32, "%.1f us", seconds * 1e6);
	else if (seconds < 1)
		snprintf(buf, 32, "%.1f ms", seconds * 1e3);
	else
		snprintf(buf, 32, "%.1f s", seconds);
	return buf;
}

/* Whether anything has come to it since the cache was opened. */
static bool has_device_tier(const struct status *s)
{
	return status_value(s, "tenuto_promoted_device_blocks_total") > 0;
}

static void print_traffic(const struct status *s, const struct status *before, FILE *out)
{
	double now, all;
	bool any = hits(s, before, &now);
	char a[32], b[32], c[32];

	hits(s, NULL, &all);
	if (any && before)
		row(out, "Blocks found by look-ups", "%.1f %%, since the start %.1f %%", now, all);
	else if (hits(s, NULL, &all))
		row(out, "Blocks found by look-ups", "%.1f %% since the start", all);
	else
		row(out, "Blocks found by look-ups", "no look-ups");
	row(out, "Look-ups, loads and saves per second", "%.1f, %.1f, %.1f", status_rate(s, before, "tenuto_lookups_total"),
	    status_rate(s, before, "tenuto_loads_total"), status_rate(s, before, "tenuto_saves_total"));
	row(out, "Loads by tier", "host %.2f GB/s, disk %.2f GB/s", GB * status_rate(s, before, "tenuto_loaded_bytes_total{tier=\"host\"}"),
	    GB * status_rate(s, before, "tenuto_loaded_bytes_total{tier=\"disk\"}"));
	if (has_device_tier(s))
		row(out, "Device tier", "%s blocks, loads %.2f GB/s, leaving %.1f per second", cli_number(a, (uint64_t)status_value(s, "tenuto_tier_blocks{tier=\"device\"}")),
		    GB * status_rate(s, before, "tenuto_loaded_bytes_total{tier=\"device\"}"), status_rate(s, before, "tenuto_evicted_blocks_total{tier=\"device\"}"));
	row(out, "Bytes of saves", "%.2f GB/s", GB * status_rate(s, before, "tenuto_saved_bytes_total"));
	row(out, "Disks, all together", "read %.2f GB/s, written %.2f GB/s", GB * status_rate(s, before, "tenuto_read_bytes_total"),
	    GB * status_rate(s, before, "tenuto_written_bytes_total"));
	/* How many fit is known when there are some: until then nothing says how large they will be. */
	cli_number(a, (uint64_t)status_value(s, "tenuto_tier_blocks{tier=\"host\"}"));
	cli_number(b, (uint64_t)status_value(s, "tenuto_tier_blocks{tier=\"disk\"}"));
	if (status_value(s, "tenuto_tier_blocks{tier=\"disk\"}") > 0)
		row(out, "Blocks by tier", "host %s, disk %s of %s", a, b, cli_number(c, (uint64_t)status_value(s, "tenuto_capacity_blocks")));
	else
		row(out, "Blocks by tier", "host %s, disk %s", a, b);
	row(out, "Leaving tiers", "host %.1f per second, disk %.1f per second",
	    status_rate(s, before, "tenuto_evicted_blocks_total{tier=\"host\"}"),
	    status_rate(s, before, "tenuto_evicted_blocks_total{tier=\"disk\"}"));
	row(out, "Blocks of saves", "stored %.1f per second, rejected %.1f, failed %.1f", status_rate(s, before, "tenuto_saved_blocks_total"),
	    status_rate(s, before, "tenuto_admission_rejected_blocks_total"), status_rate(s, before, "tenuto_save_failed_blocks_total"));
	row(out, "Waiting to be written to disk", "%s, the first for %.1f s",
	    cli_bytes(a, status_value(s, "tenuto_offload_waiting_bytes")), status_value(s, "tenuto_offload_oldest_seconds"));
}

static void print_endurance(const struct status *s, FILE *out)
{
	const char *title = "Written over a day, and the budget";
	double per_day = status_written_per_day(s), budget = (double)s->owner.write_bytes_per_day;
	char a[32], b[32];

	if (per_day >= 0 && budget > 0)
		row(out, title, "%s per day of %s (%.1f %%)", cli_bytes(a, per_day), cli_bytes(b, budget), 100 * per_day / budget);
	else if (per_day >= 0)
		row(out, title, "%s per day; rating of the drives unknown (write_bytes_per_day)", cli_bytes(a, per_day));
	else if (budget > 0)
		row(out, title, "%s so far, of %s per day", cli_bytes(a, status_written(s)), cli_bytes(b, budget));
	else
		row(out, title, "%s so far; rating of the drives unknown (write_bytes_per_day)", cli_bytes(a, status_written(s)));
}

static void print_latencies(const struct status *s, const struct status *before, FILE *out)
{
	char a[32], b[32], n[32];

	fprintf(out, "\n%-42s%10s%12s%14s\n", "Latencies", "p50", "p99", "calls");
	for (uint32_t i = 0; i < STATUS_LATENCIES; i++)
		fprintf(out, "%-42s%10s%12s%14s\n", status_latencies[i].title, latency_text(a, status_quantile(s, before, i, 0.5)),
			latency_text(b, status_quantile(s, before, i, 0.99)), cli_number(n, s->latency[i].count));
}

/* ---- devices and sessions -------------------------------------------------------------------------- */

/* The sample of one device or session: those of a metric have the same labels in the same order. */
static double of(const struct status *s, const char *name, const char *labels)
{
	char key[KEY];

	snprintf(key, sizeof(key), "%s{%s}", name, labels);
	return status_value(s, key);
}

static double of_more(const struct status *s, const char *name, const char *labels, const char *more)
{
	char both[LABELS + 64];

	snprintf(both, sizeof(both), "%s,%s", labels, more);
	return of(s, name, both);
}

static double of_rate(const struct status *s, const struct status *before, const char *name, const char *labels)
{
	char key[KEY];

	snprintf(key, sizeof(key), "%s{%s}", name, labels);
	return status_rate(s, before, key);
}

/* The labels of a sample of that name; false: it is another one. */
static bool labels_of(const struct status_sample *sample, const char *name, char labels[LABELS])
{
	size_t bytes = strlen(name);

	if (strncmp(sample->key, name, bytes) != 0 || sample->key[bytes] != '{')
		return false;
	snprintf(labels, LABELS, "%s", sample->key + bytes + 1);
	labels[strlen(labels) - 1] = '\0';
	return true;
}

static const char *health_of(const struct status *s, const char *labels)
{
	char more[64];

	for (size_t i = 0; i < sizeof(healths) / sizeof(healths[0]); i++) {
		snprintf(more, sizeof(more), "health=\"%s\"", healths[i]);
		if (of_more(s, "tenuto_device_health", labels, more) > 0)
			return healths[i];
	}
	return "unknown";
}

static void print_devices(const struct status *s, const struct status *before, FILE *out)
{
	static const bool left[] = {true, true, false, false, false, false, true};
	char labels[LABELS], a[32], b[32];
	struct cli_table t;

	cli_table_init(&t, 7, left);
	for (size_t i = 0; i < 7; i++)
		cli_table_cell(&t, "%s", ((const char *const[]){"Device", "health", "used", "read", "written", "errors", "path"})[i]);
	for (size_t i = 0; i < s->n; i++) {
		const char *path;

		if (!labels_of(&s->samples[i], "tenuto_device_capacity_bytes", labels))
			continue;
		path = strstr(labels, "path=\"");
		cli_table_cell(&t, "%.*s", (int)strcspn(labels + 8, "\""), labels + 8);
		cli_table_cell(&t, "%s", health_of(s, labels));
		cli_table_cell(&t, "%s of %s", cli_bytes(a, of(s, "tenuto_device_used_bytes", labels)), cli_bytes(b, s->samples[i].value));
		cli_table_cell(&t, "%.2f GB/s", GB * of_rate(s, before, "tenuto_device_read_bytes_total", labels));
		cli_table_cell(&t, "%.2f GB/s", GB * (of_rate(s, before, "tenuto_device_written_bytes_total", labels) +
						      of_rate(s, before, "tenuto_device_meta_written_bytes_total", labels)));
		cli_table_cell(&t, "%.0f", of(s, "tenuto_device_read_errors_total", labels) + of(s, "tenuto_device_write_errors_total", labels));
		cli_table_cell(&t, "%.*s", path ? (int)strlen(path) - 7 : 0, path ? path + 6 : "");
	}
	putc('\n', out);
	if (t.cells > 7)
		cli_table_print(&t, out, true);
	else
		fputs("No devices: the cache is in host memory alone.\n", out);
}

static const char *state_of(const struct status *s, const char *labels)
{
	static const char *const states[] = {"serves", "tried", "alone", "spent"};
	char more[64];

	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
		snprintf(more, sizeof(more), "state=\"%s\"", states[i]);
		if (of_more(s, "tenuto_remote_state", labels, more) > 0)
			return states[i];
	}
	return "unknown";
}

static double errors_of(const struct status *s, const char *labels)
{
	static const char *const causes[] = {"late", "denied", "full", "connection", "other"};
	char more[64];
	double n = 0;

	for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++) {
		snprintf(more, sizeof(more), "cause=\"%s\"", causes[i]);
		n += of_more(s, "tenuto_remote_errors_total", labels, more);
	}
	return n;
}

static void print_remotes(const struct status *s, const struct status *before, FILE *out)
{
	static const bool left[] = {true, true, false, false, false, false, false, false};
	char labels[LABELS], kind[LABELS + 32];
	struct cli_table t;

	cli_table_init(&t, 8, left);
	for (size_t i = 0; i < 8; i++)
		cli_table_cell(&t, "%s", ((const char *const[]){"Remote", "state", "hits", "read", "written", "read p50", "errors", "corrupt"})[i]);
	for (size_t i = 0; i < s->n; i++) {
		if (!labels_of(&s->samples[i], "tenuto_remote_hit_blocks_total", labels))
			continue;
		cli_table_cell(&t, "%.*s", (int)strcspn(labels + 8, "\""), labels + 8);
		cli_table_cell(&t, "%s", state_of(s, labels));
		cli_table_cell(&t, "%.0f", s->samples[i].value);
		snprintf(kind, sizeof(kind), "%s,kind=\"read\"", labels);
		cli_table_cell(&t, "%.2f GB/s", GB * of_rate(s, before, "tenuto_remote_bytes_total", kind));
		snprintf(kind, sizeof(kind), "%s,kind=\"write\"", labels);
		cli_table_cell(&t, "%.2f GB/s", GB * of_rate(s, before, "tenuto_remote_bytes_total", kind));
		cli_table_cell(&t, "%.1f ms", 1e3 * of_more(s, "tenuto_remote_p50_seconds", labels, "kind=\"read\""));
		cli_table_cell(&t, "%.0f", errors_of(s, labels));
		cli_table_cell(&t, "%.0f", of(s, "tenuto_remote_corrupt_objects_total", labels));
	}
	if (t.cells == 8)
		return;
	putc('\n', out);
	cli_table_print(&t, out, true);
}

static void print_sessions(const struct status *s, const struct status *before, FILE *out)
{
	static const char *const head[] = {"Process", "attached", "loads", "saves", "under way", "moving", "for a turn", "for it", "calls",
					   "backlog"};
	bool left[10] = {true};
	char labels[LABELS], text[32];
	struct cli_table t;

	cli_table_init(&t, 10, left);
	for (size_t i = 0; i < 10; i++)
		cli_table_cell(&t, "%s", head[i]);
	for (size_t i = 0; i < s->n; i++) {
		const char *states = "tenuto_session_operation_states", *kinds = "tenuto_session_operations";

		if (!labels_of(&s->samples[i], "tenuto_session_attached_seconds", labels))
			continue;
		cli_table_cell(&t, strstr(labels, "session=\"0\"") ? "%.*s (owner)" : "%.*s", (int)strcspn(strstr(labels, "pid=\"") + 5, "\""),
			       strstr(labels, "pid=\"") + 5);
		cli_table_cell(&t, "%s", cli_duration(text, s->samples[i].value));
		cli_table_cell(&t, "%.2f GB/s", GB * of_rate(s, before, "tenuto_session_loaded_bytes_total", labels));
		cli_table_cell(&t, "%.2f GB/s", GB * of_rate(s, before, "tenuto_session_saved_bytes_total", labels));
		cli_table_cell(&t, "%.0f", of_more(s, kinds, labels, "kind=\"load\"") + of_more(s, kinds, labels, "kind=\"save\"") +
						   of_more(s, kinds, labels, "kind=\"prefetch\""));
		cli_table_cell(&t, "%.0f", of_more(s, states, labels, "state=\"moving\""));
		cli_table_cell(&t, "%.0f", of_more(s, states, labels, "state=\"turn\""));
		cli_table_cell(&t, "%.0f", of_more(s, states, labels, "state=\"process\""));
		cli_table_cell(&t, "%.0f", of(s, "tenuto_session_waiting_calls", labels));
		cli_table_cell(&t, "%s", cli_bytes(text, of(s, "tenuto_session_backlog_bytes", labels)));
	}
	putc('\n', out);
	cli_table_print(&t, out, true);
}

/* How a space's table came to be, of the value of that label; and from where on a restore pays, for each of a few lengths. */
static void print_spaces(const struct status *s, FILE *out)
{
	bool left[6] = {true, true, true}, unknown = false, never = false;
	char labels[LABELS], more[32];
	struct cli_table t;

	cli_table_init(&t, 3 + METRICS_INPUTS, left);
	for (size_t i = 0; i < 3; i++)
		cli_table_cell(&t, "%s", ((const char *const[]){"Space", "model", "compute times"})[i]);
	for (size_t i = 0; i < METRICS_INPUTS; i++)
		cli_table_cell(&t, "N = %u", metrics_inputs[i]);
	for (size_t i = 0; i < s->n; i++) {
		char *how;

		if (!labels_of(&s->samples[i], "tenuto_space_slack_table", labels))
			continue;
		how = strstr(labels, ",how=\"");
		cli_table_cell(&t, "%.*s", (int)strcspn(labels + 7, "\""), labels + 7);
		cli_table_cell(&t, "%.*s", (int)(how - strstr(labels, "model=\"") - 8), strstr(labels, "model=\"") + 7);
		cli_table_cell(&t, "%.*s", (int)strcspn(how + 6, "\""), how + 6);
		*how = '\0';
		for (size_t k = 0; k < METRICS_INPUTS; k++) {
			double tokens;

			snprintf(more, sizeof(more), "input=\"%u\"", metrics_inputs[k]);
			tokens = of_more(s, "tenuto_space_crossover_tokens", labels, more);
			never |= isinf(tokens);
			unknown |= !(tokens > 0);
			if (isinf(tokens))
				cli_table_cell(&t, "never");
			else if (tokens > 0)
				cli_table_cell(&t, "%.0f", tokens);
			else
				cli_table_cell(&t, "-");
		}
	}
	if (t.cells <= 3 + METRICS_INPUTS)
		return;
	fputs("\nRestoring pays from so many prefix tokens on, if N tokens follow:\n", out);
	cli_table_print(&t, out, true);
	if (unknown)
		fputs("-: not known yet (needs compute times, and a measured disk or larger reads)\n", out);
	if (never)
		fputs("never: no prefix of up to a million tokens is restored sooner than it is computed\n", out);
}

/* What has come of one kind since the owner opened the cache; and per second, if a time before is known. */
static void print_bytes(const struct status *s, const struct status *before, const char *title, const char *key, FILE *out)
{
	char a[32];

	if (before)
		row(out, title, "%s so far, now %.2f GB/s", cli_bytes(a, status_value(s, key)), GB * status_rate(s, before, key));
	else
		row(out, title, "%s so far", cli_bytes(a, status_value(s, key)));
}

/* For a process that may not see what others do: when the cache was opened it does not know, so there are no rates without a time before. */
static void print_part(const struct status *s, const struct status *before, const char *socket, FILE *out)
{
	double asked = status_value(s, "tenuto_lookup_blocks_total");
	char a[32], b[32], c[32];

	fprintf(out, "Tenuto %s: the cache at %s, %s\n\n", tn_version(), socket,
		s->tenants_only ? "of the tenants that this user may see" : "without what the owner's user alone may see");
	if (asked > 0)
		row(out, "Blocks found by look-ups", "%.1f %% since the start", 100 * status_value(s, "tenuto_hit_blocks_total") / asked);
	else
		row(out, "Blocks found by look-ups", "no look-ups");
	row(out, "Look-ups, loads and saves", "%s, %s, %s so far", cli_number(a, (uint64_t)status_value(s, "tenuto_lookups_total")),
	    cli_number(b, (uint64_t)status_value(s, "tenuto_loads_total")), cli_number(c, (uint64_t)status_value(s, "tenuto_saves_total")));
	print_bytes(s, before, "Loads from host memory", "tenuto_loaded_bytes_total{tier=\"host\"}", out);
	print_bytes(s, before, "Loads from disk", "tenuto_loaded_bytes_total{tier=\"disk\"}", out);
	print_bytes(s, before, "Bytes of saves", "tenuto_saved_bytes_total", out);
	row(out, "Blocks by tier", "host %s, disk %s", cli_number(a, (uint64_t)status_value(s, "tenuto_tier_blocks{tier=\"host\"}")),
	    cli_number(b, (uint64_t)status_value(s, "tenuto_tier_blocks{tier=\"disk\"}")));
	row(out, "Blocks of saves", "stored %s, rejected %s, failed %s",
	    cli_number(a, (uint64_t)status_value(s, "tenuto_saved_blocks_total")),
	    cli_number(b, (uint64_t)status_value(s, "tenuto_admission_rejected_blocks_total")),
	    cli_number(c, (uint64_t)status_value(s, "tenuto_save_failed_blocks_total")));
	if (!s->tenants_only)
		print_devices(s, before ? before : s, out);
	if (!s->tenants_only)
		print_remotes(s, before ? before : s, out);
}

void status_print(const struct status *s, const struct status *before, const char *socket, FILE *out)
{
	char open[32];

	if (s->partial) {
		print_part(s, before, socket, out);
		return;
	}
	fprintf(out, "Tenuto %s: process %u at %s, open for %s; attached: %u\n\n", tn_version(), s->owner.pid, socket,
		cli_duration(open, (double)s->owner.open_ns * 1e-9), s->owner.sessions);
	print_traffic(s, before, out);
	print_endurance(s, out);
	print_latencies(s, before, out);
	print_devices(s, before, out);
	print_remotes(s, before, out);
	print_sessions(s, before, out);
	print_spaces(s, out);
}

void status_print_line(const struct status *s, const struct status *before, FILE *out)
{
	const struct status *from = s->partial && !before ? s : before; /* when the cache was opened is not known: no rates */
	uint32_t ill = 0;
	double share;
	bool any = hits(s, before, &share);
	char wait[32], backlog[32], labels[LABELS];

	for (size_t i = 0; i < s->n; i++)
		ill += labels_of(&s->samples[i], "tenuto_device_capacity_bytes", labels) && strcmp(health_of(s, labels), "healthy") != 0;
	if (any)
		fprintf(out, "hits %.1f %%", share);
	else
		fputs("hits -", out);
	fprintf(out, ", loads %.2f GB/s (disk %.2f), saves %.2f GB/s", GB * status_sum_rate(s, from, "tenuto_loaded_bytes_total"),
		GB * status_rate(s, from, "tenuto_loaded_bytes_total{tier=\"disk\"}"), GB * status_rate(s, from, "tenuto_saved_bytes_total"));
	if (s->partial) {
		fputs(s->tenants_only ? ", of the tenants that this user may see\n" : "\n", out);
		return;
	}
	fprintf(out, ", layer wait p99 %s, attached %u, backlog %s, devices not healthy %u\n",
		latency_text(wait, status_quantile(s, before, 1, 0.99)), s->owner.sessions,
		cli_bytes(backlog, status_value(s, "tenuto_offload_waiting_bytes")), ill);
}
