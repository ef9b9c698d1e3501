/* SPDX-License-Identifier: Apache-2.0 */
/* --explain FILE: every decision of the scheduler as one JSON object per line. */
#ifndef TENUTO_EXPLAIN_H
#define TENUTO_EXPLAIN_H

#include <tenuto/cache.h>

struct explain;

/* CLI_OK and *out (NULL without a name), or the exit code after a message on stderr. */
int explain_open(const char *name, struct explain **out);
/*
 * A benchmark's next run begins. Its lines carry this name (which has no quotes) and the run's number, from 1 on. Call it
 * before the run's child is forked. NULL is fine.
 */
void explain_run(struct explain *e, const char *name);
/* For tn_cache_opts.explain, with the struct explain as its argument. */
void explain_decision(void *arg, const struct tn_decision *d);
/* Call it after the cache was closed. CLI_OK, or CLI_ENVIRONMENT after a message if not all was written. NULL is fine. */
int explain_close(struct explain *e);

#endif
