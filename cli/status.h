/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto status`: what is known of a cache at one time, under the names of its metrics (metrics.h), and what two such times say together:
 * rates and quantiles.
 */
#ifndef TENUTO_CLI_STATUS_H
#define TENUTO_CLI_STATUS_H

#include <stdbool.h>
#include <stdio.h>

#include <tenuto/status.h>

/* A sample: its name with its labels, as /metrics has it. */
struct status_sample {
	const char *key;
	double value;
};

/* What is shown of latencies: calls of one kind and tier. */
struct status_latency {
	const char *title; /* of the row; up to a colon, that of a panel of share/grafana/tenuto.json */
	const char *key;   /* name and labels of the metric */
	enum tn_latency_kind kind;
	enum tn_tier tier;
};

#define STATUS_LATENCIES 6u
extern const struct status_latency status_latencies[STATUS_LATENCIES];

struct status {
	uint64_t at_ns;
	char *text; /* holds the keys */
	struct status_sample *samples;
	size_t n;
	bool partial;	   /* the owner lets this process see statistics alone, no owner and no latencies; and devices, unless ... */
	bool tenants_only; /* ... the statistics are of some tenants */
	struct tn_owner_stats owner;
	struct tn_latency latency[STATUS_LATENCIES];
};

/* What the cache says now, as far as it lets this process see it: 0, or -errno of the library. status_free either way. */
int status_take(struct tn_cache *cache, struct status *s);
void status_free(struct status *s);

/* A sample's value; 0: there is none. */
double status_value(const struct status *s, const char *key);
/* Of all samples of that name, whatever their labels. */
double status_sum(const struct status *s, const char *name);
/* Per second since before, or since the cache was opened if before is NULL or was of another owner. */
double status_rate(const struct status *s, const struct status *before, const char *key);
double status_sum_rate(const struct status *s, const struct status *before, const char *name);
/* In seconds, of the calls since before or, likewise, of all; at most 12.5 % too high. Negative: there were none. */
double status_quantile(const struct status *s, const struct status *before, uint32_t latency, double q);
/* Bytes to all devices since the cache was opened, the index included. */
double status_written(const struct status *s);
/* Per day, at the rate since then; negative: the cache has not been open for long enough, an hour, to say. */
double status_written_per_day(const struct status *s);

/* The screen, as plain lines. */
void status_print(const struct status *s, const struct status *before, const char *socket, FILE *out);
/* One line of the most important numbers. */
void status_print_line(const struct status *s, const struct status *before, FILE *out);

#endif
