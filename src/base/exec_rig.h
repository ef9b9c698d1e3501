/* SPDX-License-Identifier: Apache-2.0 */
/* An executor of jobs without threads, for tests. */
#ifndef TN_BASE_EXEC_RIG_H
#define TN_BASE_EXEC_RIG_H

#include "base/exec.h"

/* Runs jobs in post; they end in the order of posting. */
struct tn_exec_inline {
	struct tn_exec exec;
	struct tn_job *first, *last;
};

static inline void tn_exec_inline_post(struct tn_exec *exec, struct tn_job *job)
{
	struct tn_exec_inline *e = (struct tn_exec_inline *)exec;

	job->run(job);
	job->next = NULL;
	if (e->last)
		e->last->next = job;
	else
		e->first = job;
	e->last = job;
}

static inline struct tn_job *tn_exec_inline_next(struct tn_exec *exec)
{
	struct tn_exec_inline *e = (struct tn_exec_inline *)exec;
	struct tn_job *job = e->first;

	if (job)
		e->first = job->next;
	if (!e->first)
		e->last = NULL;
	return job;
}

static inline void tn_exec_inline_init(struct tn_exec_inline *e)
{
	e->exec.post = tn_exec_inline_post;
	e->exec.next = tn_exec_inline_next;
	e->first = e->last = NULL;
}

#endif
