/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the owner stays awake with nothing to do. To wake a thread that sleeps costs the waker several microseconds, on a virtual
 * machine more than all else that tn_load_begin does. A caller that begins an operation straight after the end of the one before
 * finds the owner awake.
 *
 * A vigil begins when the owner would sleep after the end of an operation, and lasts TN_VIGIL_NS at most. The owner keeps one only if
 * the operation after the last end was begun within TN_VIGIL_SOON_NS. So each operation costs at most one vigil, a vigil in vain is
 * the last one until operations follow each other soon again, and a cache that nobody uses keeps none.
 *
 * Pure: time is an argument. One thread makes all calls.
 */
#ifndef TN_CORE_VIGIL_H
#define TN_CORE_VIGIL_H

#include <stdbool.h>
#include <stdint.h>

#define TN_VIGIL_NS 100000u /* until a caller that slept until the end has woken up, and begun the next operation */
#define TN_VIGIL_SOON_NS (2 * TN_VIGIL_NS) /* likewise, and until the owner has woken up, who slept as well */

struct tn_vigil {
	bool able;	   /* another CPU can run the caller meanwhile */
	bool ended;	   /* an operation has ended, and none was begun since */
	bool idle;	   /* and the owner has had nothing to do since then: */
	uint64_t since_ns; /* from this time on */
	bool soon;	   /* the operation after the last end was begun soon */
	bool kept;	   /* a vigil is being kept */
	uint64_t vigils;   /* ever */
	uint64_t used;	   /* of these, those in which an operation was begun */
};

/* An operation ended, or was begun. */
void tn_vigil_ended(struct tn_vigil *v);
void tn_vigil_begun(struct tn_vigil *v, uint64_t now_ns);

/* The owner has nothing to do. True: it does not sleep yet. */
bool tn_vigil_keep(struct tn_vigil *v, uint64_t now_ns);

#endif
