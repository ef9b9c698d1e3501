/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for checksums and copies, for the executor that runs in the owner's. */
#ifndef TN_CORE_WORKERS_H
#define TN_CORE_WORKERS_H

#include "base/alloc.h"
#include "base/exec.h"
#include "io/io.h"

struct tn_workers;

/* jobs: as many as may be posted and not taken back; io: that the owner sleeps in, who takes what they have finished. */
int tn_workers_create(uint32_t n, uint32_t jobs, const struct tn_alloc *alloc, struct tn_io *io, struct tn_workers **out);
/* No job may be under way. */
void tn_workers_destroy(struct tn_workers *w);
/* The owner runs the job that has waited longest, if it is one of 2 MiB at most: a quarter of a millisecond. False: there is no such job. */
bool tn_workers_help(struct tn_workers *w);
struct tn_exec *tn_workers_exec(struct tn_workers *w);

#endif
