/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/remote.h>
#include <tenuto/status.h>

#include "cli.h"

enum type { COUNTER, GAUGE, HISTOGRAM };

static const char *const type_name[] = {"counter", "gauge", "histogram"};

#define NS 1e-9 /* of a statistic in ns, whose metric is in seconds */
#define SECONDS_PER_DAY 86400.0
#define STATS_MAX 256u
#define REMOTES_MAX 8u

/*
 * A statistic of the library (docs/statistics.md) as a metric. Neighbours of one name are one metric with several labels, and the first has
 * its help. @scale: 0 is 1.
 */
struct statistic {
	const char *stat;
	const char *name;
	const char *labels; /* NULL: none */
	enum type type;
	double scale;
	const char *help;
};

static const struct statistic statistics[] = {
	{"blocks", "tenuto_blocks", NULL, GAUGE, 0, "Blocks that are known, in any tier"},
	{"device_blocks", "tenuto_tier_blocks", "tier=\"device\"", GAUGE, 0, "Blocks in a tier"},
	{"host_blocks", "tenuto_tier_blocks", "tier=\"host\"", GAUGE, 0, NULL},
	{"disk_blocks", "tenuto_tier_blocks", "tier=\"disk\"", GAUGE, 0, NULL},
	{"remote_blocks", "tenuto_tier_blocks", "tier=\"remote\"", GAUGE, 0, NULL},
	{"capacity_blocks", "tenuto_capacity_blocks", NULL, GAUGE, 0, "Most blocks that the disks hold"},
	{"lookups", "tenuto_lookups_total", NULL, COUNTER, 0, "Look-ups"},
	{"lookup_blocks", "tenuto_lookup_blocks_total", NULL, COUNTER, 0, "Blocks that look-ups asked for"},
	{"hit_blocks", "tenuto_hit_blocks_total", NULL, COUNTER, 0, "Blocks that look-ups found, as part of a prefix"},
	{"loads", "tenuto_loads_total", NULL, COUNTER, 0, "Loads that began"},
	{"load_blocks", "tenuto_load_blocks_total", NULL, COUNTER, 0, "Blocks of loads that arrived"},
	{"load_failed_blocks", "tenuto_load_failed_blocks_total", NULL, COUNTER, 0, "Blocks of loads that did not arrive"},
	{"joined_blocks", "tenuto_joined_blocks_total", NULL, COUNTER, 0, "Blocks of loads that another load was reading already"},
	{"saves", "tenuto_saves_total", NULL, COUNTER, 0, "Saves that began"},
	{"saved_blocks", "tenuto_saved_blocks_total", NULL, COUNTER, 0, "Blocks of saves that were admitted to disk"},
	{"existing_blocks", "tenuto_existing_blocks_total", NULL, COUNTER, 0, "Blocks of saves that were there already"},
	{"host_only_blocks", "tenuto_host_only_blocks_total", NULL, COUNTER, 0, "Blocks of saves that stayed in host memory alone"},
	{"admission_rejected_blocks", "tenuto_admission_rejected_blocks_total", NULL, COUNTER, 0, "Blocks of saves that were not admitted"},
	{"rejected_policy_blocks", "tenuto_rejected_blocks_total", "cause=\"policy\"", COUNTER, 0, "Of these, by cause"},
	{"rejected_held_blocks", "tenuto_rejected_blocks_total", "cause=\"held\"", COUNTER, 0, NULL},
	{"rejected_share_blocks", "tenuto_rejected_blocks_total", "cause=\"share\"", COUNTER, 0, NULL},
	{"rejected_budget_blocks", "tenuto_rejected_blocks_total", "cause=\"budget\"", COUNTER, 0, NULL},
	{"rejected_quota_blocks", "tenuto_rejected_blocks_total", "cause=\"quota\"", COUNTER, 0, NULL},
	{"rejected_devices_blocks", "tenuto_rejected_blocks_total", "cause=\"devices\"", COUNTER, 0, NULL},
	{"rejected_parent_blocks", "tenuto_rejected_blocks_total", "cause=\"parent\"", COUNTER, 0, NULL},
	{"save_failed_blocks", "tenuto_save_failed_blocks_total", NULL, COUNTER, 0, "Blocks of saves that failed"},
	{"evicted_device_blocks", "tenuto_evicted_blocks_total", "tier=\"device\"", COUNTER, 0, "Blocks that left a tier for others"},
	{"evicted_host_blocks", "tenuto_evicted_blocks_total", "tier=\"host\"", COUNTER, 0, NULL},
	{"evicted_disk_blocks", "tenuto_evicted_blocks_total", "tier=\"disk\"", COUNTER, 0, NULL},
	{"evicted_remote_blocks", "tenuto_evicted_blocks_total", "tier=\"remote\"", COUNTER, 0, NULL},
	{"dropped_blocks", "tenuto_dropped_blocks_total", NULL, COUNTER, 0, "Blocks that were dropped, or whose time was over"},
	{"offloaded_blocks", "tenuto_offloaded_blocks_total", NULL, COUNTER, 0, "Blocks that went from host memory to disk"},
	{"promoted_blocks", "tenuto_promoted_blocks_total", NULL, COUNTER, 0, "Blocks that loads left in host memory"},
	{"promoted_device_blocks", "tenuto_promoted_device_blocks_total", NULL, COUNTER, 0, "Blocks that loads and saves left in the device tier"},
	{"prefetched_blocks", "tenuto_prefetched_blocks_total", NULL, COUNTER, 0, "Blocks that prefetches brought to host memory"},
	{"offload_waiting_blocks", "tenuto_offload_waiting_blocks", NULL, GAUGE, 0,
	 "Blocks in host memory that are admitted to disk and not written yet"},
	{"offload_waiting_bytes", "tenuto_offload_waiting_bytes", NULL, GAUGE, 0, "Bytes of the blocks that wait to be written to disk"},
	{"offload_oldest_ns", "tenuto_offload_oldest_seconds", NULL, GAUGE, NS, "How long the first of them has waited"},
	{"offload_failed_blocks", "tenuto_offload_failed_blocks", NULL, GAUGE, 0,
	 "Blocks in host memory that could not be written to disk and are tried again"},
	{"offload_lost_blocks", "tenuto_offload_lost_blocks_total", NULL, COUNTER, 0,
	 "Blocks that were evicted from host memory before they could be written"},
	{"bytes_read", "tenuto_read_bytes_total", NULL, COUNTER, 0, "Bytes of blocks read from the disks"},
	{"bytes_written", "tenuto_written_bytes_total", NULL, COUNTER, 0, "Bytes of blocks written to the disks"},
	{"blocks_read_back", "tenuto_read_back_blocks_total", NULL, COUNTER, 0,
	 "Blocks written since the start that were loaded at least once"},
	{"verified_objects", "tenuto_verified_objects_total", NULL, COUNTER, 0, "Objects whose checksum was compared"},
	{"corrupt_objects", "tenuto_corrupt_objects_total", NULL, COUNTER, 0, "Objects whose checksum was wrong"},
	{"io_errors", "tenuto_io_errors_total", NULL, COUNTER, 0, "Requests to the disks that failed"},
	{"bounced_objects", "tenuto_bounced_objects_total", NULL, COUNTER, 0,
	 "Objects that went through a bounce buffer because of their alignment"},
	{"direct_bytes", "tenuto_direct_bytes_total", NULL, COUNTER, 0, "Bytes that went straight between files and memory of devices"},
	{"staged_bytes", "tenuto_staged_bytes_total", NULL, COUNTER, 0,
	 "Bytes that were copied to and from pages in device memory, or, by attached processes, in memory that cannot be mapped"},
	{"recovered_blocks", "tenuto_recovered_blocks", NULL, GAUGE, 0, "Blocks that the disks held at the start"},
	{"recovery_ns", "tenuto_recovery_seconds", NULL, GAUGE, NS, "How long the opening of the stores took"},
	{"header_cache_hits", "tenuto_header_cache_hits_total", NULL, COUNTER, 0, "Headers of blocks found in memory"},
	{"header_reads", "tenuto_header_reads_total", NULL, COUNTER, 0, "Headers of blocks read from the disks"},
	{"unobserved_requests", "tenuto_unobserved_requests_total", NULL, COUNTER, 0,
	 "Reads that the health of a device was not told of, because there were too many at once"},
	{"resolve_ns", "tenuto_resolve_seconds_total", NULL, COUNTER, NS, "Time of the owner thread to find the blocks of loads"},
	{"submit_ns", "tenuto_submit_seconds_total", NULL, COUNTER, NS, "Time of the owner thread to hand reads over"},
	{"submit_layers", "tenuto_submit_layers_total", NULL, COUNTER, 0, "Layers whose reads were handed over"},
	{"vigils", "tenuto_vigils_total", NULL, COUNTER, 0, "Times that the owner thread stayed awake after an operation, for the next one"},
	{"vigils_used", "tenuto_vigils_used_total", NULL, COUNTER, 0, "Of these, times that an operation was begun meanwhile"},
	{"index_bytes", "tenuto_index_bytes", NULL, GAUGE, 0, "Memory of the index"},
	{"loaded_device_bytes", "tenuto_loaded_bytes_total", "tier=\"device\"", COUNTER, 0, "Bytes of loads, by the tier that they came from"},
	{"loaded_host_bytes", "tenuto_loaded_bytes_total", "tier=\"host\"", COUNTER, 0, NULL},
	{"loaded_disk_bytes", "tenuto_loaded_bytes_total", "tier=\"disk\"", COUNTER, 0, NULL},
	{"loaded_remote_bytes", "tenuto_loaded_bytes_total", "tier=\"remote\"", COUNTER, 0, NULL},
	{"saved_bytes", "tenuto_saved_bytes_total", NULL, COUNTER, 0, "Bytes of saves that a tier took"},
};

#define STATISTICS (sizeof(statistics) / sizeof(statistics[0]))

/* A member of struct tn_device_stats as a metric, with the device as its label. */
struct of_device {
	const char *name;
	enum type type;
	size_t at;
	const char *help;
};

#define DEVICE(member) offsetof(struct tn_device_stats, member)

static const struct of_device of_devices[] = {
	{"tenuto_device_capacity_bytes", GAUGE, DEVICE(capacity_bytes), "Capacity of a device"},
	{"tenuto_device_used_bytes", GAUGE, DEVICE(used_bytes), "Bytes of a device that blocks take"},
	{"tenuto_device_blocks", GAUGE, DEVICE(blocks), "Blocks on a device"},
	{"tenuto_device_quarantined_slots", GAUGE, DEVICE(quarantined_slots), "Slots of a device that are not used any more"},
	{"tenuto_device_read_bytes_total", COUNTER, DEVICE(bytes_read), "Bytes read from a device"},
	{"tenuto_device_written_bytes_total", COUNTER, DEVICE(bytes_written), "Bytes of blocks written to a device"},
	{"tenuto_device_meta_written_bytes_total", COUNTER, DEVICE(meta_bytes_written), "Bytes of the index written to a device"},
	{"tenuto_device_read_errors_total", COUNTER, DEVICE(read_errors), "Reads of a device that failed"},
	{"tenuto_device_write_errors_total", COUNTER, DEVICE(write_errors), "Writes to a device that failed"},
	{"tenuto_device_lost_blocks_total", COUNTER, DEVICE(lost_blocks), "Blocks given up because a sync of the device failed"},
};

static const char *const health_name[] = {[TN_HEALTHY] = "healthy", [TN_SLOW] = "slow", [TN_READ_ONLY] = "read_only",
					  [TN_OFFLINE] = "offline"};

static void print_head(FILE *out, const char *name, enum type type, const char *help)
{
	fprintf(out, "# HELP %s %s.\n# TYPE %s %s\n", name, help, name, type_name[type]);
}

/* ---- statistics ------------------------------------------------------------------------------------ */

static void print_statistic(FILE *out, const struct statistic *s, uint64_t value)
{
	if (s->help)
		print_head(out, s->name, s->type, s->help);
	fputs(s->name, out);
	if (s->labels)
		fprintf(out, "{%s}", s->labels);
	if (s->scale > 0)
		fprintf(out, " %.9f\n", (double)value * s->scale);
	else
		fprintf(out, " %" PRIu64 "\n", value);
}

/* Statistics that the library counts by tenant, too: see docs/statistics.md. */
static const char *const of_tenants[] = {
	"blocks", "device_blocks", "host_blocks", "disk_blocks", "remote_blocks", "lookups", "lookup_blocks", "hit_blocks", "loads", "load_blocks",
	"load_failed_blocks", "saves", "saved_blocks", "existing_blocks", "host_only_blocks", "admission_rejected_blocks", "rejected_policy_blocks",
	"rejected_held_blocks", "rejected_share_blocks", "rejected_budget_blocks", "rejected_quota_blocks", "rejected_devices_blocks", "rejected_parent_blocks",
	"save_failed_blocks", "loaded_device_bytes", "loaded_host_bytes", "loaded_disk_bytes", "loaded_remote_bytes", "saved_bytes",
};

static bool is_of_tenants(const char *stat)
{
	for (size_t i = 0; i < sizeof(of_tenants) / sizeof(of_tenants[0]); i++)
		if (strcmp(of_tenants[i], stat) == 0)
			return true;
	return false;
}

static int print_statistics(FILE *out, struct tn_cache *cache, bool tenants_only)
{
	uint64_t value[STATS_MAX];
	int n = tn_cache_stats(cache, value, STATS_MAX);

	if (n < 0)
		return n;
	for (size_t k = 0; k < STATISTICS; k++)
		for (uint32_t i = 0; i < (uint32_t)n && i < STATS_MAX; i++)
			if (strcmp(tn_stat_name(i), statistics[k].stat) == 0 && (!tenants_only || is_of_tenants(statistics[k].stat)))
				print_statistic(out, &statistics[k], value[i]);
	return 0;
}

/* ---- devices --------------------------------------------------------------------------------------- */

/* The value of a label, in its quotes. */
static void print_label(FILE *out, const char *value)
{
	char text[4 * sizeof(((struct tn_device_stats *)NULL)->path)];

	putc('"', out);
	for (const char *s = cli_utf8(text, sizeof(text), value); *s; s++)
		if (*s == '\n')
			fputs("\\n", out);
		else
			fprintf(out, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
	putc('"', out);
}

static void print_device_labels(FILE *out, uint32_t index, const struct tn_device_stats *d)
{
	fprintf(out, "{device=\"%u\",path=", index);
	print_label(out, d->path);
}

static void print_health(FILE *out, const struct tn_device_stats *devices, uint32_t n)
{
	print_head(out, "tenuto_device_health", GAUGE, "How well a device serves: 1 for its state, 0 for the others");
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t h = 0; h < sizeof(health_name) / sizeof(health_name[0]); h++) {
			fputs("tenuto_device_health", out);
			print_device_labels(out, i, &devices[i]);
			fprintf(out, ",health=\"%s\"} %d\n", health_name[h], devices[i].health == h);
		}
	print_head(out, "tenuto_device_deleted", GAUGE, "1 if the file of a device was deleted while it is in use");
	for (uint32_t i = 0; i < n; i++) {
		fputs("tenuto_device_deleted", out);
		print_device_labels(out, i, &devices[i]);
		fprintf(out, "} %d\n", devices[i].deleted);
	}
}

static int print_devices(FILE *out, struct tn_cache *cache)
{
	struct tn_device_stats devices[TN_DEVICES_MAX];
	uint32_t n = 0;
	int rc = 0;

	for (; n < TN_DEVICES_MAX; n++) {
		devices[n].size = sizeof(devices[n]);
		rc = tn_cache_device_stats(cache, n, &devices[n]);
		if (rc)
			break;
	}
	if (rc && rc != -ENOENT)
		return rc;
	if (n == 0)
		return 0;
	print_health(out, devices, n);
	for (size_t k = 0; k < sizeof(of_devices) / sizeof(of_devices[0]); k++) {
		print_head(out, of_devices[k].name, of_devices[k].type, of_devices[k].help);
		for (uint32_t i = 0; i < n; i++) {
			uint64_t value;

			memcpy(&value, (const char *)&devices[i] + of_devices[k].at, sizeof(value));
			fputs(of_devices[k].name, out);
			print_device_labels(out, i, &devices[i]);
			fprintf(out, "} %" PRIu64 "\n", value);
		}
	}
	return 0;
}

/* ---- remote stores ---------------------------------------------------------------------------------- */

/* A member of struct tn_remote_stats as a metric, with the remote's name as its label. Neighbours as above. */
static const struct of_remote {
	const char *name;
	const char *labels; /* NULL: no more */
	enum type type;
	double scale; /* 0: 1 */
	size_t at;
	const char *help;
} of_remotes[] = {
#define REMOTE(member) offsetof(struct tn_remote_stats, member)
	{"tenuto_remote_requests_total", "kind=\"lookup\"", COUNTER, 0, REMOTE(lookup_requests), "Requests to a remote store, by kind"},
	{"tenuto_remote_requests_total", "kind=\"read\"", COUNTER, 0, REMOTE(read_requests), NULL},
	{"tenuto_remote_requests_total", "kind=\"write\"", COUNTER, 0, REMOTE(write_requests), NULL},
	{"tenuto_remote_unasked_requests_total", NULL, COUNTER, 0, REMOTE(unasked_requests), "Requests that a remote store was spared, because of its state"},
	{"tenuto_remote_hit_blocks_total", NULL, COUNTER, 0, REMOTE(hit_blocks), "Blocks that look-ups found in a remote store"},
	{"tenuto_remote_blocks_total", "kind=\"read\"", COUNTER, 0, REMOTE(read_blocks), "Blocks read from and written to a remote store"},
	{"tenuto_remote_blocks_total", "kind=\"write\"", COUNTER, 0, REMOTE(written_blocks), NULL},
	{"tenuto_remote_bytes_total", "kind=\"read\"", COUNTER, 0, REMOTE(read_bytes), "Bytes of these blocks, with their headers"},
	{"tenuto_remote_bytes_total", "kind=\"write\"", COUNTER, 0, REMOTE(written_bytes), NULL},
	{"tenuto_remote_existing_blocks_total", NULL, COUNTER, 0, REMOTE(existing_blocks), "Blocks that a remote store had already when they were written"},
	{"tenuto_remote_missing_blocks_total", NULL, COUNTER, 0, REMOTE(missing_blocks), "Blocks that had gone from a remote store when they were read"},
	{"tenuto_remote_corrupt_objects_total", NULL, COUNTER, 0, REMOTE(corrupt_objects), "Objects of a remote store that were damaged or another block's"},
	{"tenuto_remote_errors_total", "cause=\"late\"", COUNTER, 0, REMOTE(late_errors), "Requests to a remote store that failed, by cause"},
	{"tenuto_remote_errors_total", "cause=\"denied\"", COUNTER, 0, REMOTE(denied_errors), NULL},
	{"tenuto_remote_errors_total", "cause=\"full\"", COUNTER, 0, REMOTE(full_errors), NULL},
	{"tenuto_remote_errors_total", "cause=\"connection\"", COUNTER, 0, REMOTE(connection_errors), NULL},
	{"tenuto_remote_errors_total", "cause=\"other\"", COUNTER, 0, REMOTE(other_errors), NULL},
	{"tenuto_remote_pauses_total", NULL, COUNTER, 0, REMOTE(pauses), "How often a remote store was left alone for some seconds"},
	{"tenuto_remote_p50_seconds", "kind=\"lookup\"", GAUGE, NS, REMOTE(lookup_p50_ns), "Median of the last 64 answers of a remote store"},
	{"tenuto_remote_p50_seconds", "kind=\"read\"", GAUGE, NS, REMOTE(read_p50_ns), NULL},
	{"tenuto_remote_p50_seconds", "kind=\"write\"", GAUGE, NS, REMOTE(write_p50_ns), NULL},
#undef REMOTE
};

static void print_remote(FILE *out, const struct of_remote *o, const struct tn_remote_stats *remote)
{
	uint64_t value;

	memcpy(&value, (const char *)remote + o->at, sizeof(value));
	fprintf(out, "%s{remote=", o->name);
	print_label(out, remote->name);
	fprintf(out, "%s%s} ", o->labels ? "," : "", o->labels ? o->labels : "");
	if (o->scale > 0)
		fprintf(out, "%.9f\n", (double)value * o->scale);
	else
		fprintf(out, "%" PRIu64 "\n", value);
}

static void print_remote_states(FILE *out, const struct tn_remote_stats *remotes, uint32_t n)
{
	static const char *const state[] = {[TN_REMOTE_SERVES] = "serves", [TN_REMOTE_TRIED] = "tried", [TN_REMOTE_ALONE] = "alone", [TN_REMOTE_SPENT] = "spent"};

	print_head(out, "tenuto_remote_state", GAUGE, "Whether a remote store is asked: 1 for its state, 0 for the others");
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < sizeof(state) / sizeof(state[0]); k++) {
			fputs("tenuto_remote_state{remote=", out);
			print_label(out, remotes[i].name);
			fprintf(out, ",state=\"%s\"} %d\n", state[k], remotes[i].state == k);
		}
}

static int print_remotes(FILE *out, struct tn_cache *cache)
{
	struct tn_remote_stats remotes[REMOTES_MAX];
	uint32_t n = 0;
	int rc = 0;

	for (; n < REMOTES_MAX; n++) {
		remotes[n].size = sizeof(remotes[n]);
		rc = tn_cache_remote_stats(cache, n, &remotes[n]);
		if (rc)
			break;
	}
	if (rc && rc != -ENOENT)
		return rc;
	if (n == 0)
		return 0;
	print_remote_states(out, remotes, n);
	for (size_t k = 0; k < sizeof(of_remotes) / sizeof(of_remotes[0]);) {
		size_t next = k + 1;

		print_head(out, of_remotes[k].name, of_remotes[k].type, of_remotes[k].help);
		while (next < sizeof(of_remotes) / sizeof(of_remotes[0]) && !of_remotes[next].help)
			next++;
		for (; k < next; k++)
			for (uint32_t i = 0; i < n; i++)
				print_remote(out, &of_remotes[k], &remotes[i]);
	}
	return 0;
}

/* ---- who uses the cache ---------------------------------------------------------------------------- */

/* A member of struct tn_session_stats as a metric, with the session's place and process as labels. Neighbours as above. */
static const struct of_session {
	const char *name;
	const char *label; /* besides; NULL: none */
	enum type type;
	size_t at, bytes;
	double scale;
	const char *help;
} of_sessions[] = {
#define SESSION(member) offsetof(struct tn_session_stats, member), sizeof(((struct tn_session_stats *)NULL)->member)
	{"tenuto_session_attached_seconds", NULL, GAUGE, SESSION(attached_ns), NS, "How long a process has been attached; session 0 is the owner itself"},
	{"tenuto_session_loads_total", NULL, COUNTER, SESSION(loads), 0, "Loads that a process began"},
	{"tenuto_session_saves_total", NULL, COUNTER, SESSION(saves), 0, "Saves that a process began"},
	{"tenuto_session_loaded_bytes_total", NULL, COUNTER, SESSION(loaded_bytes), 0, "Bytes that arrived in a process' pages"},
	{"tenuto_session_saved_bytes_total", NULL, COUNTER, SESSION(saved_bytes), 0, "Bytes of a process' saves that a tier took"},
	{"tenuto_session_operations", "kind=\"load\"", GAUGE, SESSION(loads_now), 0, "Operations of a process that are under way"},
	{"tenuto_session_operations", "kind=\"save\"", GAUGE, SESSION(saves_now), 0, NULL},
	{"tenuto_session_operations", "kind=\"prefetch\"", GAUGE, SESSION(prefetches_now), 0, NULL},
	{"tenuto_session_operation_states", "state=\"moving\"", GAUGE, SESSION(moving), 0,
	 "Operations of a process by what they do: move bytes, wait for their turn or a place, or wait for the process"},
	{"tenuto_session_operation_states", "state=\"turn\"", GAUGE, SESSION(waiting_turn), 0, NULL},
	{"tenuto_session_operation_states", "state=\"process\"", GAUGE, SESSION(waiting_process), 0, NULL},
	{"tenuto_session_waiting_calls", NULL, GAUGE, SESSION(calls), 0, "Calls of a process that wait for the disks, as flushes"},
	{"tenuto_session_backlog_bytes", NULL, GAUGE, SESSION(backlog_bytes), 0, "Bytes of a process' saves that are still to be written"},
};

static uint64_t number_at(const struct tn_session_stats *s, const struct of_session *m)
{
	uint32_t small;
	uint64_t large;

	if (m->bytes == sizeof(small)) {
		memcpy(&small, (const char *)s + m->at, sizeof(small));
		return small;
	}
	memcpy(&large, (const char *)s + m->at, sizeof(large));
	return large;
}

static void print_session(FILE *out, const struct of_session *m, uint32_t place, const struct tn_session_stats *s)
{
	fprintf(out, "%s{session=\"%u\",pid=\"%u\"%s%s} ", m->name, place, s->pid, m->label ? "," : "", m->label ? m->label : "");
	if (m->scale > 0)
		fprintf(out, "%.9f\n", (double)number_at(s, m) * m->scale);
	else
		fprintf(out, "%" PRIu64 "\n", number_at(s, m));
}

static int print_sessions(FILE *out, struct tn_cache *cache)
{
	struct tn_session_stats s[TN_SESSION_PLACES];
	bool there[TN_SESSION_PLACES];

	for (uint32_t i = 0; i < TN_SESSION_PLACES; i++) {
		int rc;

		s[i].size = sizeof(s[i]);
		rc = tn_cache_session_stats(cache, i, &s[i]);
		if (rc && rc != -ENOENT)
			return rc;
		there[i] = rc == 0;
	}
	for (size_t k = 0; k < sizeof(of_sessions) / sizeof(of_sessions[0]); k++) {
		if (!of_sessions[k].help) /* printed with the first of its metric: samples of one metric must be together */
			continue;
		print_head(out, of_sessions[k].name, of_sessions[k].type, of_sessions[k].help);
		for (uint32_t i = 0; i < TN_SESSION_PLACES; i++)
			for (size_t m = k; there[i] && m < sizeof(of_sessions) / sizeof(of_sessions[0]) &&
			     strcmp(of_sessions[m].name, of_sessions[k].name) == 0; m++)
				print_session(out, &of_sessions[m], i, &s[i]);
	}
	return 0;
}

/* ---- what is worth restoring ------------------------------------------------------------------------ */

const uint32_t metrics_inputs[METRICS_INPUTS] = {64, 512, 4096};

struct space {
	struct tn_space_stats s;
	uint64_t crossover[METRICS_INPUTS];
};

/* Spaces, as many as there are: *n of them, or NULL with *rc. */
static struct space *take_spaces(struct tn_cache *cache, uint32_t *n, int *rc)
{
	struct space *spaces = NULL, one = {.s = {.size = sizeof(one.s)}};
	uint32_t at = 0;

	*rc = 0;
	for (*n = 0; *rc == 0; at = one.s.index + 1) {
		struct space *more;

		for (size_t i = 0; *rc == 0 && i < METRICS_INPUTS; i++) {
			*rc = tn_cache_space_stats(cache, i ? one.s.index : at, metrics_inputs[i], &one.s);
			one.crossover[i] = one.s.crossover_tokens;
		}
		more = *rc == 0 ? realloc(spaces, (*n + 1) * sizeof(*spaces)) : NULL;
		if (!more)
			break;
		spaces = more;
		spaces[(*n)++] = one;
	}
	if (*rc != -ENOENT) {
		*rc = *rc ? *rc : -ENOMEM;
		free(spaces);
		return NULL;
	}
	*rc = 0;
	return spaces;
}

static void print_space(FILE *out, const char *name, const struct tn_space_stats *s)
{
	fprintf(out, "%s{space=\"%u\",model=", name, s->index);
	print_label(out, s->model);
}

/* A space that nothing is known of has no crossover; +Inf: nothing is worth it. */
static int print_spaces(FILE *out, struct tn_cache *cache)
{
	const char *table = "tenuto_space_slack_table", *crossover = "tenuto_space_crossover_tokens";
	uint32_t n;
	int rc;
	struct space *spaces = take_spaces(cache, &n, &rc);

	if (rc || n == 0)
		return rc;
	print_head(out, table, GAUGE, "1, with how the compute times of a space's engine are known as a label");
	for (uint32_t k = 0; k < n; k++) {
		print_space(out, table, &spaces[k].s);
		fprintf(out, ",how=\"%s\"} 1\n", tn_slack_how_name(spaces[k].s.how));
	}
	print_head(out, crossover, GAUGE, "From so many prefix tokens on a restore from disk is sooner done than their compute, by tokens behind them");
	for (uint32_t k = 0; k < n; k++)
		for (size_t i = 0; i < METRICS_INPUTS; i++) {
			uint64_t tokens = spaces[k].crossover[i];

			if (tokens == 0)
				continue;
			print_space(out, crossover, &spaces[k].s);
			fprintf(out, ",input=\"%u\"} ", metrics_inputs[i]);
			fprintf(out, tokens == TN_CROSSOVER_NEVER ? "+Inf\n" : "%" PRIu64 "\n", tokens);
		}
	free(spaces);
	return 0;
}

static int print_owner(FILE *out, struct tn_cache *cache)
{
	struct tn_owner_stats o = {.size = sizeof(o)};
	int rc = tn_cache_owner_stats(cache, &o);

	if (rc)
		return rc;
	print_head(out, "tenuto_build_info", GAUGE, "1, with the version of the library as a label");
	fprintf(out, "tenuto_build_info{version=\"%s\"} 1\n", tn_version());
	print_head(out, "tenuto_open_seconds", GAUGE, "How long the cache has been open");
	fprintf(out, "tenuto_open_seconds %.3f\n", (double)o.open_ns * NS);
	print_head(out, "tenuto_sessions", GAUGE, "Processes that are attached");
	fprintf(out, "tenuto_sessions %u\n", o.sessions);
	print_head(out, "tenuto_attached_total", COUNTER, "Processes that have attached");
	fprintf(out, "tenuto_attached_total %" PRIu64 "\n", o.sessions_total);
	if (o.write_bytes_per_day) {
		print_head(out, "tenuto_write_budget_bytes_per_second", GAUGE, "Bytes that may be written to the disks per second, on average");
		fprintf(out, "tenuto_write_budget_bytes_per_second %.3f\n", (double)o.write_bytes_per_day / SECONDS_PER_DAY);
	}
	return 0;
}

/* ---- latencies ------------------------------------------------------------------------------------- */

/*
 * Buckets of Prometheus: bounds of 2^n and 1.5 * 2^n ns, from 1 us to 100 s. Each is a bound of the library's, too, so that nothing is
 * split. The library's own 304 would be 10 times the text.
 */
#define FIRST_POWER 10u
#define LAST_POWER 36u

static void print_bucket(FILE *out, const char *name, const char *tier, const char *le, uint64_t count)
{
	fprintf(out, "%s_bucket{%s%s%sle=\"%s\"} %" PRIu64 "\n", name, tier ? "tier=\"" : "", tier ? tier : "", tier ? "\"," : "", le,
		count);
}

static void print_histogram(FILE *out, const char *name, const char *tier, const struct tn_latency *l)
{
	uint64_t count = 0;
	uint32_t bucket = 0;
	char le[32];

	for (uint32_t half = 2 * FIRST_POWER; half < 2 * LAST_POWER + 2; half++) {
		uint64_t bound_ns = UINT64_C(1) << half / 2;

		bound_ns += half % 2 ? bound_ns / 2 : 0;
		for (; tn_latency_bound_ns(bucket) <= bound_ns; bucket++)
			count += l->buckets[bucket];
		snprintf(le, sizeof(le), "%.12g", (double)bound_ns * NS);
		print_bucket(out, name, tier, le, count);
	}
	print_bucket(out, name, tier, "+Inf", l->count);
	fprintf(out, "%s_sum%s%s%s %.9f\n", name, tier ? "{tier=\"" : "", tier ? tier : "", tier ? "\"}" : "", (double)l->sum_ns * NS);
	fprintf(out, "%s_count%s%s%s %" PRIu64 "\n", name, tier ? "{tier=\"" : "", tier ? tier : "", tier ? "\"}" : "", l->count);
}

static const char *const tier_name[] = {[TN_TIER_NONE] = "none", [TN_TIER_DEVICE] = "device", [TN_TIER_HOST] = "host",
					[TN_TIER_DISK] = "disk", [TN_TIER_REMOTE] = "remote"};

static int print_loads(FILE *out, struct tn_cache *cache)
{
	struct tn_latency l = {.size = sizeof(l)};

	print_head(out, "tenuto_load_seconds", HISTOGRAM,
		   "From the beginning of a load to its last layer, by the lowest tier that it needed (none: nothing was there)");
	for (uint32_t t = 0; t < sizeof(tier_name) / sizeof(tier_name[0]); t++) {
		int rc = tn_cache_all_latency(cache, TN_LATENCY_LOAD, (enum tn_tier)t, &l);

		if (rc)
			return rc;
		/* A tier that this cache does not have has no loads. */
		if (l.count > 0 || t == TN_TIER_HOST || t == TN_TIER_DISK)
			print_histogram(out, "tenuto_load_seconds", tier_name[t], &l);
	}
	return 0;
}

static int print_latencies(FILE *out, struct tn_cache *cache)
{
	static const struct {
		enum tn_latency_kind kind;
		const char *name, *help;
	} kinds[] = {
		{TN_LATENCY_MATCH, "tenuto_match_seconds", "Look-ups"},
		{TN_LATENCY_LAYER_WAIT, "tenuto_layer_wait_seconds", "Waits for a layer of a load, also if it was there at once"},
		{TN_LATENCY_SAVE, "tenuto_save_seconds", "From the beginning of a save to its end"},
		{TN_LATENCY_FLUSH, "tenuto_flush_seconds", "Flushes"},
	};
	struct tn_latency l = {.size = sizeof(l)};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		int rc = tn_cache_all_latency(cache, kinds[i].kind, TN_TIER_NONE, &l);

		if (rc)
			return rc;
		print_head(out, kinds[i].name, HISTOGRAM, kinds[i].help);
		print_histogram(out, kinds[i].name, NULL, &l);
	}
	return print_loads(out, cache);
}

int metrics_print(struct tn_cache *cache, FILE *out)
{
	int rc = print_owner(out, cache);

	if (rc == 0)
		rc = print_statistics(out, cache, false);
	if (rc == 0)
		rc = print_devices(out, cache);
	if (rc == 0)
		rc = print_remotes(out, cache);
	if (rc == 0)
		rc = print_sessions(out, cache);
	if (rc == 0)
		rc = print_spaces(out, cache);
	return rc ? rc : print_latencies(out, cache);
}

int metrics_print_part(struct tn_cache *cache, FILE *out, bool *tenants_only)
{
	struct tn_device_stats d = {.size = sizeof(d)};
	int rc = tn_cache_device_stats(cache, 0, &d);

	*tenants_only = rc == -EACCES;
	rc = print_statistics(out, cache, *tenants_only);
	rc = rc || *tenants_only ? rc : print_devices(out, cache);
	return rc || *tenants_only ? rc : print_remotes(out, cache);
}
