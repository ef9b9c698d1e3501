/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner of a cache on a described drive (lab/paced_cache.h), for engines that attach to it: what an engine gains from the scheduler shows
 * beside a drive whose reads and writes are slow and hinder each other, and is the same on every machine. Writes the scheduler's decisions.
 *
 *    paced_owner DIR SOCKET MODEL BACKLOG_BYTES EXPLAIN
 *
 * DIR is best on tmpfs. BACKLOG_BYTES: of saves that may wait to be written. It serves until it gets SIGTERM.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <tenuto/decision.h>
#include <tenuto/session.h>
#include <tenuto/tenuto.h>

#include "lab/paced_cache.h"

#define DISK_BYTES (1ull << 30)

static void write_decision(void *arg, const struct tn_decision *d)
{
	fprintf(arg, "{\"time_ns\": %" PRIu64 ", \"load\": %" PRIu64 ", \"layer\": %u, ", d->time_ns, d->load, d->layer);
	if (d->slack_ns != INT64_MAX)
		fprintf(arg, "\"slack_ns\": %" PRId64 ", ", d->slack_ns);
	fprintf(arg, "\"chosen\": \"%s\", \"bytes\": %" PRIu64 ", \"reason\": \"%s\"}\n", tn_chosen_name(d->chosen), d->bytes, tn_reason_name(d->reason));
}

static int fail(const char *what)
{
	fprintf(stderr, "paced_owner: %s: %s\n", what, tn_error_last()->text);
	return 1;
}

int main(int argc, char **argv)
{
	struct tn_paced_drive drive = {.stretch = 1};
	struct tn_cache_opts o;
	struct tn_cache *cache;
	const char *dir;
	sigset_t end;
	FILE *explain;
	int got;

	if (argc != 6) {
		fprintf(stderr, "paced_owner DIR SOCKET MODEL BACKLOG_BYTES EXPLAIN\n");
		return 2;
	}
	dir = argv[1];
	drive.model = argv[3];
	explain = fopen(argv[5], "we");
	if (!explain) {
		perror(argv[5]);
		return 1;
	}
	tn_cache_opts_init(&o);
	o.dirs = &dir;
	o.ndirs = 1;
	o.disk_bytes = DISK_BYTES;
	o.max_ops = 256;
	o.write_backlog_bytes = strtoull(argv[4], NULL, 10);
	o.explain = write_decision;
	o.explain_arg = explain;
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigprocmask(SIG_BLOCK, &end, NULL); /* before the cache has threads */
	if (tn_paced_cache_open(&o, &drive, &cache))
		return fail(dir);
	if (tn_cache_serve(cache, argv[2], NULL))
		return fail(argv[2]);
	sigwait(&end, &got);
	if (tn_cache_close(cache))
		return fail("close");
	return fclose(explain) ? 1 : 0;
}
