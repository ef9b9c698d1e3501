/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a cache counts, in Prometheus' text exposition format, version 0.0.4: statistics, devices and sessions from tables that say what each
 * is, and the histograms of latencies. `tenutod` serves it, and `tenuto status` shows it, so both have the same names.
 *
 * https://prometheus.io/docs/instrumenting/exposition_formats/ and /docs/practices/naming/: base units (seconds, bytes), _total behind
 * what only rises.
 */
#ifndef TENUTO_CLI_METRICS_H
#define TENUTO_CLI_METRICS_H

#include <stdbool.h>
#include <stdio.h>

#include <tenuto/cache.h>

#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Tokens behind a prefix for which it is told from where on the prefix is worth restoring. */
#define METRICS_INPUTS 3u
extern const uint32_t metrics_inputs[METRICS_INPUTS];

/**
 * metrics_print - all metrics of a cache, of all processes that use it
 * @cache: opened, or attached to
 *
 * Any thread. Waits until the cache's owner thread has answered. Return: 0, or the error of a call on the cache, with part of the text
 * printed.
 */
int metrics_print(struct tn_cache *cache, FILE *out);

/**
 * metrics_print_part - the metrics that a process may see which the owner lets see not all: of another user, or of some tenants
 * @cache:        attached to
 * @tenants_only: out: it sees statistics of its tenants, and only what is counted by tenant is printed
 *
 * As metrics_print. Return: 0, or the error of a call on the cache.
 */
int metrics_print_part(struct tn_cache *cache, FILE *out, bool *tenants_only);

#endif
