/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls: what a front of another process asks of a thread in the owner's process, which answers without the core where it can: look-ups,
 * spaces, pools, statistics, flushes. A call is a place in two tables, one that the front writes and one that the owner's process
 * writes, each with some bytes. A thread of the front has a place for as long as its call takes.
 *
 * The front writes what it asks, then the turn, then rings (struct tn_region_front: rung). The other side copies it once, and
 * writes the answer, then the same turn. Both sleep on words of the other's.
 */
#ifndef TN_REGION_CALL_H
#define TN_REGION_CALL_H

#include "region/region.h"

#define TN_CALL_TEXT 256u

struct tn_call_asked {
	_Alignas(64) uint32_t turn; /* rises with each call of the place; written last */
	uint32_t kind;
	uint32_t bytes; /* of what is asked */
};

struct tn_call_told {
	_Alignas(64) uint32_t turn; /* the front's, once it is answered: futex word; written last */
	int32_t status;
	uint32_t bytes;		  /* of the answer */
	char text[TN_CALL_TEXT];  /* of an error */
};

static inline struct tn_call_asked *tn_call_asked(const struct tn_region *r, uint32_t call)
{
	return (struct tn_call_asked *)tn_region_table(r, TN_REGION_CALLS) + call;
}

static inline struct tn_call_told *tn_call_told(const struct tn_region *r, uint32_t call)
{
	return (struct tn_call_told *)tn_region_table(r, TN_REGION_ANSWERS) + call;
}

static inline unsigned char *tn_call_asked_bytes(const struct tn_region *r, uint32_t call)
{
	return (unsigned char *)tn_region_table(r, TN_REGION_CALL_BYTES) + (uint64_t)call * r->counts.call_bytes;
}

static inline unsigned char *tn_call_told_bytes(const struct tn_region *r, uint32_t call)
{
	return (unsigned char *)tn_region_table(r, TN_REGION_ANSWER_BYTES) + (uint64_t)call * r->counts.call_bytes;
}

/* ---- the front -------------------------------------------------------------------------------------- */

/* Asks what lies in the place's bytes. The caller rings afterwards. Returns the turn, to be waited for. */
uint32_t tn_call_ask(const struct tn_region *r, uint32_t call, uint32_t kind, uint32_t bytes);
/* Sleeps until the turn is answered. 0; -ESHUTDOWN: nobody will answer; -ETIMEDOUT: the place is the other side's until it does. */
int tn_call_wait(const struct tn_region *r, uint32_t call, uint32_t turn, uint64_t deadline_ns);
/* Whoever serves the region wakes up. Any thread. */
void tn_region_ring(const struct tn_region *r);
/* So does the core, if it sleeps: it looks at what the front has written. Any thread. */
void tn_region_wake(const struct tn_region *r);

/* ---- the owner's process ------------------------------------------------------------------------------ */

/* Whether the place has another call than the one of the turn that was taken last; what is told of it are copies, bytes at most counts.call_bytes. */
bool tn_call_is_open(const struct tn_region *r, uint32_t call, uint32_t last, uint32_t *kind, uint32_t *bytes, uint32_t *turn);
/* The answer, of which the bytes are written. text: NULL if there is no error. */
void tn_call_answer(const struct tn_region *r, uint32_t call, uint32_t turn, int status, uint32_t bytes, const char *text);
/* There are completions; wakes who listens (struct tn_region_front). */
void tn_region_tell_completed(const struct tn_region *r);
/* Sleeps until somebody rings; seen: rung, as it was before the last look. */
uint32_t tn_region_rung(const struct tn_region *r);
void tn_region_wait_ring(const struct tn_region *r, uint32_t seen);

#endif
