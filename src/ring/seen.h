/* SPDX-License-Identifier: Apache-2.0 */
/* What requests took, on its way from an executor's threads to the owner, who is told in his step (executor.h). */
#ifndef TN_RING_SEEN_H
#define TN_RING_SEEN_H

#include <pthread.h>

#include "ring/executor.h"

struct tn_seen_one;

struct tn_seen {
	const struct tn_alloc *alloc;
	pthread_mutex_t lock;
	struct tn_seen_one *one;
	uint32_t n;    /* under lock */
	uint64_t lost; /* under lock: requests that are forgotten, because the owner did not ask for too long */
};

/* 0 or -ENOMEM. */
int tn_seen_init(struct tn_seen *s, const struct tn_alloc *alloc);
/* Fine for zeroed memory. */
void tn_seen_fini(struct tn_seen *s);
/* Any thread. True if there is much to tell: of one large IOCB, whose end may be far. */
bool tn_seen_add(struct tn_seen *s, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status);
/* Tells of all. */
void tn_seen_tell(struct tn_seen *s, tn_executor_observe observe, void *arg);
uint64_t tn_seen_lost(struct tn_seen *s);

#endif
