/* SPDX-License-Identifier: Apache-2.0 */
#include "status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "metrics.h"

#define SECONDS_PER_DAY 86400.0
#define RATE_SECONDS 3600.0 /* from which on a rate says something of a day */

const struct status_latency status_latencies[STATUS_LATENCIES] = {
	{"Look-up", "tenuto_match_seconds", TN_LATENCY_MATCH, TN_TIER_NONE},
	{"Wait for a layer", "tenuto_layer_wait_seconds", TN_LATENCY_LAYER_WAIT, TN_TIER_NONE},
	{"Load to its last layer: host", "tenuto_load_seconds{tier=\"host\"}", TN_LATENCY_LOAD, TN_TIER_HOST},
	{"Load to its last layer: disk", "tenuto_load_seconds{tier=\"disk\"}", TN_LATENCY_LOAD, TN_TIER_DISK},
	{"Save", "tenuto_save_seconds", TN_LATENCY_SAVE, TN_TIER_NONE},
	{"Flush", "tenuto_flush_seconds", TN_LATENCY_FLUSH, TN_TIER_NONE},
};

/* ---- one time -------------------------------------------------------------------------------------- */

/* Lines of comments and buckets of histograms are no samples here. */
static int split(struct status *s)
{
	size_t lines = 0;

	for (const char *c = s->text; *c; c++)
		lines += *c == '\n';
	s->samples = calloc(lines + 1, sizeof(*s->samples));
	if (!s->samples)
		return -ENOMEM;
	for (char *line = s->text, *end; *line; line = end + 1) {
		char *blank;

		end = strchr(line, '\n');
		*end = '\0';
		blank = strrchr(line, ' ');
		if (line[0] == '#' || !blank || strstr(line, "_bucket{"))
			continue;
		*blank = '\0';
		s->samples[s->n++] = (struct status_sample){line, strtod(blank + 1, NULL)};
	}
	return 0;
}

static int take_text(struct tn_cache *cache, struct status *s)
{
	size_t bytes = 0;
	FILE *out = open_memstream(&s->text, &bytes);
	int rc;

	if (!out)
		return -ENOMEM;
	rc = s->partial ? metrics_print_part(cache, out, &s->tenants_only) : metrics_print(cache, out);
	return fclose(out) && rc == 0 ? -ENOMEM : rc;
}

int status_take(struct tn_cache *cache, struct status *s)
{
	int rc;

	memset(s, 0, sizeof(*s));
	s->at_ns = cli_now_ns();
	s->owner.size = sizeof(s->owner);
	rc = tn_cache_owner_stats(cache, &s->owner);
	s->partial = rc == -EACCES;
	if (rc == 0 || s->partial)
		rc = take_text(cache, s);
	for (uint32_t i = 0; rc == 0 && !s->partial && i < STATUS_LATENCIES; i++) {
		s->latency[i].size = sizeof(s->latency[i]);
		rc = tn_cache_all_latency(cache, status_latencies[i].kind, status_latencies[i].tier, &s->latency[i]);
	}
	return rc ? rc : split(s);
}

void status_free(struct status *s)
{
	free(s->text);
	free(s->samples);
	memset(s, 0, sizeof(*s));
}

double status_value(const struct status *s, const char *key)
{
	for (size_t i = 0; i < s->n; i++)
		if (strcmp(s->samples[i].key, key) == 0)
			return s->samples[i].value;
	return 0;
}

double status_sum(const struct status *s, const char *name)
{
	size_t bytes = strlen(name);
	double sum = 0;

	for (size_t i = 0; i < s->n; i++)
		if (strncmp(s->samples[i].key, name, bytes) == 0 && (s->samples[i].key[bytes] == '{' || s->samples[i].key[bytes] == '\0'))
			sum += s->samples[i].value;
	return sum;
}

/* ---- two times ------------------------------------------------------------------------------------- */

static double seconds_since(const struct status *s, const struct status *before)
{
	double seconds = (double)(before ? s->at_ns - before->at_ns : s->owner.open_ns) * 1e-9;

	return seconds > 1e-3 ? seconds : 1e-3;
}

static double per_second(const struct status *s, const struct status *before, double now, double then)
{
	return now > then ? (now - then) / seconds_since(s, before) : 0;
}

double status_rate(const struct status *s, const struct status *before, const char *key)
{
	return per_second(s, before, status_value(s, key), before ? status_value(before, key) : 0);
}

double status_sum_rate(const struct status *s, const struct status *before, const char *name)
{
	return per_second(s, before, status_sum(s, name), before ? status_sum(before, name) : 0);
}

double status_quantile(const struct status *s, const struct status *before, uint32_t latency, double q)
{
	const struct tn_latency *l = &s->latency[latency], *b = before ? &before->latency[latency] : NULL;
	uint64_t count = l->count - (b ? b->count : 0), sum = 0;

	for (uint32_t i = 0; count > 0 && i < TN_LATENCY_BUCKETS; i++) {
		sum += l->buckets[i] - (b ? b->buckets[i] : 0);
		if ((double)sum >= q * (double)count)
			return (double)tn_latency_bound_ns(i < TN_LATENCY_BUCKETS - 1 ? i : i - 1) * 1e-9;
	}
	return -1;
}

double status_written(const struct status *s)
{
	return status_sum(s, "tenuto_device_written_bytes_total") + status_sum(s, "tenuto_device_meta_written_bytes_total");
}

double status_written_per_day(const struct status *s)
{
	double seconds = seconds_since(s, NULL);

	return seconds < RATE_SECONDS ? -1 : status_written(s) / seconds * SECONDS_PER_DAY;
}
