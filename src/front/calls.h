/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The places of an attached cache's calls (region/call.h): which are free, and what becomes of a call whose caller has gone.
 *
 * A caller waits for its answer until a deadline. An owner that is stopped (SIGSTOP) answers later: until then the place stays taken, because the
 * owner may be reading it. What the late answer gives - a lease, a query, a space, a pool - is given back by the next call. So is a memory
 * that the owner could not be told of at once: it goes after the pool that may lie over it.
 */
#ifndef TN_FRONT_CALLS_H
#define TN_FRONT_CALLS_H

#include <pthread.h>
#include <semaphore.h>
#include <sys/uio.h>

#include "front/wire.h"
#include "region/call.h"

struct tn_calls {
	const struct tn_region *region;
	uint64_t answer_ns; /* how long calls without a deadline of their own wait */
	sem_t places;	    /* free ones */
	uint64_t free;	    /* shared: tagged stack */
	uint32_t next[TN_WIRE_CALLS];
	uint64_t unwanted;  /* shared: by number, memories that the owner has registered and nobody wants */
	uint32_t nleft, noverdue; /* shared: places of which the caller has gone; those of calls without a deadline of their own */
	pthread_mutex_t lock;	  /* of what follows */
	struct {
		uint32_t turn;
		bool is, overdue;
	} left[TN_WIRE_CALLS];
};

void tn_calls_init(struct tn_calls *c, const struct tn_region *region);
void tn_calls_destroy(struct tn_calls *c);

/*
 * Asks, and waits for the answer. in and out are gathered and scattered; the last of several parts of out may come shorter. deadline_ns: the
 * call's own; 0: answer_ns from now.
 * Any thread.
 *
 * Return: the answer's status, with the owner's detail of an error; -ESHUTDOWN (without detail): the owner is gone; -ETIMEDOUT;
 * -E2BIG; -EPROTO.
 */
int tn_calls_ask(struct tn_calls *c, enum tn_wire_call kind, uint64_t deadline_ns, const struct iovec *in, int nin, const struct iovec *out,
		 int nout);

/* The owner forgets a memory that it has registered: now, or - it does not answer, or a late answer may have made a pool of it - by a later call. */
void tn_calls_forget_memory(struct tn_calls *c, uint32_t number);

#endif
