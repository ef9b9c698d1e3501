/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the backend share. One agent's backend has one UCX worker, one lock around it, and one thread.
 *
 * The lock is around every call that touches the worker. Whoever posts issues the operations himself, and goes on with them as long as they end at once. What then
 * is left is the thread's: it sleeps on the worker's event descriptor, armed, and never spins. Ends of jobs are told without the lock.
 *
 * A job's life: its pieces become put or get operations, a window of them at a time; after the last put a flush of the endpoint, which ends when all bytes are in the
 * peer's memory; then its end is told. A job that is stopped issues no more, and waits for what it has issued. If the peer takes nothing for GRACE_NS meanwhile, the
 * endpoint is closed by force. All jobs of the peer end then, when the endpoint is closed, and say so by cut.
 */
#ifndef TN_UCX_H
#define TN_UCX_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <tenuto/xfer_backend.h>

#include "api.h"

struct ucx_work;

/* A remote section's key, unpacked for one endpoint. */
struct ucx_rkey {
	struct ucx_rkey *next; /* of one slot */
	uint64_t section;
	ucp_rkey_h rkey;
};

#define UCX_RKEY_SLOTS 1024u

/* Why something has failed, for the words of ucx_why. */
enum ucx_reason { UCX_OPERATION_FAILED, UCX_KEY_REFUSED, UCX_FLUSH_FAILED, UCX_ENDPOINT_FAILED, UCX_PEER_SLOW };

struct ucx_peer {
	struct ucx *ucx;
	struct ucx_peer *next; /* of all that are not freed */
	ucp_ep_h ep;	       /* NULL: closed */
	void *closing;	       /* request of the close; NULL: none, or it has ended */
	bool closed;	       /* nothing of it can move any more */
	bool failed;	       /* no operation is issued any more */
	bool leaving;	       /* nobody refers to it: freed as soon as it is closed */
	int code;	       /* why it failed: of its pieces, in words, and what UCX said */
	enum ucx_reason reason;
	ucs_status_t status;
	uint64_t moved_ns;     /* when an operation of it ended last */
	uint32_t nrkeys, jobs;
	uint32_t gets; /* in flight */
	bool crowded;  /* a job waits until fewer are */
	struct ucx_rkey *rkey[UCX_RKEY_SLOTS];
};

/* A piece as an operation. */
struct ucx_operation {
	struct ucx_work *work;
	ucp_rkey_h rkey;
};

/* Of a job, made by prepare. */
struct ucx_work {
	struct tn_xfer_job *job;
	struct ucx *ucx;
	struct ucx_peer *peer;
	struct ucx_work *next, **before; /* of those under way */
	struct ucx_work *ready_next;	 /* of those that may go on, or have ended */
	bool ready;
	bool flushed;
	uint32_t issued, in_flight;
	uint64_t in_flight_bytes;
	uint64_t give_up_ns; /* 0: it was not stopped */
	uint64_t why; /* atomic: of the failed piece that comes first: its number plus 1, reason, negative status (32, 16, 16 bits); 0: none has failed */
	struct ucx_operation operation[];
};

struct ucx {
	const struct ucx_api *api;
	ucp_context_h context;
	ucp_worker_h worker;
	int efd, wake;
	pthread_mutex_t lock;
	uint32_t waiting; /* atomic: threads that want the lock: the progress thread lets them have it */
	uint32_t stopped; /* atomic: jobs were cancelled that the thread has not looked at */
	pthread_t thread;
	bool has_thread, stop;
	uint64_t stop_ns; /* how long to wait for endpoints */
	struct ucx_peer *peers;
	struct ucx_work *works, *ready;
	uint32_t ending; /* jobs with give_up_ns */
	uint64_t busy_ns; /* when progress moved something last */
	unsigned char *address;
	uint32_t address_bytes;
};

/* worker.c */
void ucx_lock(struct ucx *u);
void ucx_unlock(struct ucx *u);
/* The thread looks again. Any thread, without the lock, too. */
void ucx_wake(struct ucx *u);
int ucx_thread_start(struct ucx *u);
void ucx_thread_stop(struct ucx *u);
/* Without the lock: takes what peers have sent to this worker so far. */
void ucx_drain(struct ucx *u);
uint64_t ucx_now(void);

/* peer.c: with the lock but for the ops. */
size_t ucx_identity(void *backend, unsigned char out[TN_XFER_IDENTITY_MAX]);
int ucx_peer_add(void *backend, const unsigned char *identity, size_t bytes, void **peer);
void ucx_peer_remove(void *backend, void *peer);
/* Its jobs are looked at anew. */
void ucx_peer_ready(struct ucx_peer *p);
/* No more operations; the endpoint is closed by force. */
void ucx_peer_fail(struct ucx_peer *p, enum ucx_reason reason, ucs_status_t status);
/* Closes what has failed, frees what has left. True: something has not closed yet. */
bool ucx_peers_close(struct ucx *u);
/* Sections come and go: forgets the keys of a peer that has too many and no job. */
void ucx_rkeys_trim(struct ucx_peer *p);
/* A key of the peer's; NULL: it is not one. */
ucp_rkey_h ucx_rkey_of(struct ucx_peer *p, const struct tn_xfer_section_key *key);

/* job.c */
int ucx_prepare(void *backend, struct tn_xfer_job *job);
void ucx_forget(void *backend, struct tn_xfer_job *job);
void ucx_post(void *backend, struct tn_xfer_job *job);
void ucx_cancel(void *backend, struct tn_xfer_job *job);
size_t ucx_why(void *backend, const struct tn_xfer_job *job, char *out, size_t bytes);
/* With the lock: goes on with all that are ready; those that have ended are put before `ended`. */
struct ucx_work *ucx_go_on(struct ucx *u, struct ucx_work *ended);
/* Without the lock. */
void ucx_tell_ended(struct ucx_work *ended);
void ucx_ready(struct ucx_work *w);
/* With the lock: jobs that were stopped; when to look again (UINT64_MAX: nothing waits). */
uint64_t ucx_give_up(struct ucx *u, uint64_t now);

/* A local section. */
struct ucx_section {
	ucp_mem_h memh;
};

#endif
