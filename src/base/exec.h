/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam through which the owner of bytes hands checksums and copies to someone else.
 *
 * The owner thread posts jobs; run() may execute on any thread. The owner takes finished jobs and calls their done(). The cache's workers
 * implement it with threads, simulations run jobs in next().
 */
#ifndef TN_BASE_EXEC_H
#define TN_BASE_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tn_job {
	struct tn_job *next;
	uint64_t bytes; /* that it reads, about; the poster's */
	void (*run)(struct tn_job *job);
	void (*done)(struct tn_job *job);
};

struct tn_exec {
	void (*post)(struct tn_exec *exec, struct tn_job *job);
	/* A finished job, whose done() is still to be called; NULL: there is no more now. */
	struct tn_job *(*next)(struct tn_exec *exec);
};

/* Ends what is finished; whether there was anything. */
static inline bool tn_exec_collect(struct tn_exec *exec)
{
	struct tn_job *job;
	bool any = false;

	while ((job = exec->next(exec)) != NULL) {
		job->done(job);
		any = true;
	}
	return any;
}

#endif
