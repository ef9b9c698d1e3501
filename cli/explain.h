/* SPDX-License-Identifier: Apache-2.0 */
/* --explain FILE: every decision of the scheduler as one JSON object a line. */
#ifndef TENUTO_EXPLAIN_H
#define TENUTO_EXPLAIN_H

#include <tenuto/cache.h>

struct explain;

/* CLI_OK and *out (NULL without a name), or the exit code, said on stderr. */
int explain_open(const char *name, struct explain **out);
/*
 * A benchmark's next run begins, which is called so: its lines name it (without quotes) and number it, from 1 on. To be
 * called before the fork of a run's child. NULL is fine.
 */
void explain_run(struct explain *e, const char *name);
/* For tn_cache_opts.explain, with the struct explain as its argument. */
void explain_decision(void *arg, const struct tn_decision *d);
/* After the cache was closed. CLI_OK, or CLI_ENVIRONMENT if not all could be written (said on stderr). NULL is fine. */
int explain_close(struct explain *e);

#endif
