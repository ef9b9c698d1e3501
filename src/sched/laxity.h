/* SPDX-License-Identifier: Apache-2.0 */
/* How long the reads of a load may wait without the engine waiting for them. Pure arithmetic. */
#ifndef TN_SCHED_LAXITY_H
#define TN_SCHED_LAXITY_H

#include "sched/sched.h"

/* Of a load whose reads cannot be put off, or of which that is not known: no time is to be taken from the load. */
#define TN_LAXITY_NONE INT64_MIN

/*
 * For how long from now on a device that reads so fast may do something else, if no other load wanted it, and every
 * layer of this load would still be there when it is needed, a quarter of a layer early. *read_ns: the time of reading
 * the rest of the load. Both count on reads that take a quarter longer than that rate says. TN_LAXITY_NONE: no table,
 * or the engine is at the very layer that is next, or may be.
 *
 * The load keeps the result of the look at all layers until its next layer or the rate changes.
 */
int64_t tn_laxity(struct tn_sched_load *load, uint64_t read_bps, uint64_t now_ns, int64_t *read_ns);

#endif
