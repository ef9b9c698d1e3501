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

#include <stdio.h>

#include <tenuto/cache.h>

#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/**
 * metrics_print - all metrics of a cache, of all processes that use it
 * @cache: opened, or attached to
 *
 * Any thread. Waits until the cache's owner thread has answered. Return: 0, or the error of a call on the cache, with part of the text
 * printed.
 */
int metrics_print(struct tn_cache *cache, FILE *out);

#endif
