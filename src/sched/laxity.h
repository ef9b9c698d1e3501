/* SPDX-License-Identifier: Apache-2.0 */
/* How long the reads of a load may wait without the engine waiting for them. Pure arithmetic. */
#ifndef TN_SCHED_LAXITY_H
#define TN_SCHED_LAXITY_H

#include "sched/sched.h"

/* Of a load whose reads cannot be put off, or nobody knows: nothing is to be taken from it. */
#define TN_LAXITY_NONE INT64_MIN

/*
 * For how long from now on a device that reads so fast may do something else, if no other load wanted it, and every layer
 * of this one would still be there when it is needed, a quarter of a layer early. *read_ns: what reading the rest of it
 * takes. Both count on reads that take a quarter longer than that rate says. TN_LAXITY_NONE: no table, or the engine
 * is at the very layer that is next, or may be.
 *
 * What it took a look at every layer for is kept in the load until its next layer or the rate is another.
 */
int64_t tn_laxity(struct tn_sched_load *load, uint64_t read_bps, uint64_t now_ns, int64_t *read_ns);

#endif
