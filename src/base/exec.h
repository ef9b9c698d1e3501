/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam through which the owner of bytes hands checksums and copies to someone else.
 *
 * The owner thread posts jobs; run() may execute on any thread, done() is called on the owner
 * thread from collect(). The cache's workers implement it with threads, simulations run jobs in collect().
 */
#ifndef TN_BASE_EXEC_H
#define TN_BASE_EXEC_H

#include <stddef.h>

struct tn_job {
	struct tn_job *next;
	void (*run)(struct tn_job *job);
	void (*done)(struct tn_job *job);
};

struct tn_exec {
	void (*post)(struct tn_exec *exec, struct tn_job *job);
	/* Calls done() of finished jobs; returns how many. */
	unsigned (*collect)(struct tn_exec *exec);
};

#endif
