/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: pieces as put and get operations, and their end. */
#include "ucx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 128u		    /* operations of a job in flight: a job that is stopped waits for no more */
#define WINDOW_BYTES (16u << 20)
/*
 * Gets of a peer in flight, of all jobs. UCX over shared memory has a queue of 64 messages to each peer. UCX 1.13 ends the gets of a closed endpoint when the queue has
 * space: if gets fill that of a stopped peer, they never end.
 */
#define GETS 32u
#define TURN_BYTES (1u << 20)	    /* issued of a job before another one has its turn; some transports copy meanwhile */
#define GRACE_NS 500000000u	    /* that a peer takes nothing of a stopped job before its connection is given up */

int ucx_prepare(void *backend, struct tn_xfer_job *job)
{
	struct ucx_work *w = calloc(1, sizeof(*w) + job->npieces * sizeof(*w->operation));

	if (!w)
		return ucx_fail(-ENOMEM, "backend ucx: no memory for %u operations", job->npieces);
	w->ucx = backend;
	w->job = job;
	for (uint32_t i = 0; i < job->npieces; i++)
		w->operation[i].work = w;
	job->work = w;
	return 0;
}

void ucx_forget(void *backend, struct tn_xfer_job *job)
{
	free(job->work);
}

void ucx_ready(struct ucx_work *w)
{
	if (w->ready)
		return;
	w->ready = true;
	w->ready_next = w->ucx->ready;
	w->ucx->ready = w;
}

/* ---- operations -------------------------------------------------------------------------------------------------------- */

/* The agent names the first descriptor that has failed, so the reason is that of the first piece. */
static void piece_failed(struct ucx_work *w, uint32_t i, int code, enum ucx_reason reason, ucs_status_t status)
{
	uint64_t why = ((uint64_t)i + 1) << 32 | (uint64_t)reason << 16 | (uint16_t)-status;

	if (!w->why || i + 1 < w->why >> 32)
		__atomic_store_n(&w->why, why, __ATOMIC_RELEASE);
	tn_xfer_piece_end(&w->job->piece[i], 0, code);
}

size_t ucx_why(void *backend, const struct tn_xfer_job *job, char *out, size_t bytes)
{
	static const char *const words[] = {
		[UCX_OPERATION_FAILED] = "UCX: ",
		[UCX_KEY_REFUSED] = "the peer's key of this memory cannot be used: UCX: ",
		[UCX_FLUSH_FAILED] = "nobody knows what has arrived, as the flush has failed: UCX: ",
		[UCX_ENDPOINT_FAILED] = "the connection of UCX has failed, look whether the peer lives: UCX: ",
		[UCX_PEER_SLOW] = "the peer took nothing for 0.5 s after a transfer was stopped, and its connection was closed: ",
	};
	const struct ucx_work *w = job->work;
	uint64_t why = __atomic_load_n(&w->why, __ATOMIC_ACQUIRE);
	size_t n = why ? (size_t)snprintf(out, bytes, "%s%s", words[why >> 16 & 0xffff], ucx_status((ucs_status_t)-(int)(why & 0xffff))) + 1 : 0;

	return n < bytes ? n : bytes;
}

static void operation_ended(struct ucx_operation *o, ucs_status_t status)
{
	struct ucx_work *w = o->work;
	uint32_t i = (uint32_t)(o - w->operation);
	struct tn_xfer_piece *piece = &w->job->piece[i];

	w->in_flight--;
	w->in_flight_bytes -= piece->bytes;
	if (w->job->op == TN_XFER_READ) {
		w->peer->gets--;
		if (w->peer->crowded)
			ucx_peer_ready(w->peer);
		w->peer->crowded = false;
	}
	if (status == UCS_OK) {
		w->peer->moved_ns = ucx_now();
		tn_xfer_piece_end(piece, piece->bytes, 0);
		return;
	}
	if (w->peer->failed)
		piece_failed(w, i, w->peer->code, w->peer->reason, w->peer->status);
	else
		piece_failed(w, i, ucx_errno(status), o->rkey ? UCX_OPERATION_FAILED : UCX_KEY_REFUSED, status);
}

/* UCX's call, from within progress. */
static void completed(void *request, ucs_status_t status, void *arg)
{
	struct ucx_operation *o = arg;

	o->work->ucx->api->ucp_request_free(request);
	operation_ended(o, status);
	ucx_ready(o->work);
}

static void begin_operation(struct ucx_work *w, uint32_t i)
{
	const struct ucx_api *api = w->ucx->api;
	struct ucx_operation *o = &w->operation[i];
	const struct tn_xfer_piece *piece = &w->job->piece[i];
	const struct ucx_section *section = piece->local_section;
	void *local = (void *)(uintptr_t)piece->local, *request;
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH,
		.cb.send = completed,
		.user_data = o,
		.memh = section->memh,
	};

	w->in_flight++;
	w->in_flight_bytes += piece->bytes;
	w->peer->gets += w->job->op == TN_XFER_READ;
	if (!o->rkey) {
		operation_ended(o, UCS_ERR_INVALID_PARAM);
		return;
	}
	request = w->job->op == TN_XFER_WRITE ? api->ucp_put_nbx(w->peer->ep, local, piece->bytes, piece->remote, o->rkey, &param)
					      : api->ucp_get_nbx(w->peer->ep, local, piece->bytes, piece->remote, o->rkey, &param);
	if (!UCS_PTR_IS_PTR(request))
		operation_ended(o, UCS_PTR_STATUS(request));
}

static void issue(struct ucx_work *w)
{
	uint64_t bytes = 0;

	while (w->issued < w->job->npieces && w->in_flight < WINDOW && w->in_flight_bytes < WINDOW_BYTES) {
		if (bytes >= TURN_BYTES) {
			ucx_ready(w);
			return;
		}
		if (w->job->op == TN_XFER_READ && w->peer->gets >= GETS) {
			w->peer->crowded = true;
			return;
		}
		bytes += w->job->piece[w->issued].bytes;
		begin_operation(w, w->issued++);
	}
}

/* ---- the end of a job -------------------------------------------------------------------------------------------------- */

static void flush_ended(struct ucx_work *w, ucs_status_t status)
{
	w->in_flight--;
	w->flushed = true;
	if (status != UCS_OK)
		ucx_peer_fail(w->peer, UCX_FLUSH_FAILED, status);
}

static void flush_completed(void *request, ucs_status_t status, void *arg)
{
	struct ucx_work *w = arg;

	w->ucx->api->ucp_request_free(request);
	flush_ended(w, status);
	ucx_ready(w);
}

/* Ends when all bytes are in the peer's memory. */
static void flush(struct ucx_work *w)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = flush_completed, .user_data = w};
	void *request;

	w->in_flight++;
	request = w->ucx->api->ucp_ep_flush_nbx(w->peer->ep, &param);
	if (!UCS_PTR_IS_PTR(request))
		flush_ended(w, UCS_PTR_STATUS(request));
}

/* Those that were not begun. */
static void cancel_rest(struct ucx_work *w)
{
	for (; w->issued < w->job->npieces; w->issued++)
		tn_xfer_piece_end(&w->job->piece[w->issued], 0, -ECANCELED);
}

static void lose_rest(struct ucx_work *w)
{
	for (; w->issued < w->job->npieces; w->issued++)
		piece_failed(w, w->issued, w->peer->code, w->peer->reason, w->peer->status);
}

/*
 * Writes to a peer that has failed: nobody knows what has arrived. A flush does not tell: if its endpoint is closed, UCX ends it with UCS_OK where puts are messages
 * that the peer has to confirm.
 */
static void fail_writes(struct ucx_work *w)
{
	for (uint32_t i = 0; i < w->job->npieces; i++)
		if (!w->job->piece[i].status)
			piece_failed(w, i, w->peer->code, w->peer->reason, w->peer->status);
}

/* True: it has ended. */
static bool advance(struct ucx_work *w)
{
	struct ucx_peer *p = w->peer;

	if (tn_xfer_job_stopped(w->job))
		cancel_rest(w);
	if (p->failed)
		lose_rest(w);
	if (w->issued < w->job->npieces)
		issue(w);
	if (w->in_flight || w->issued < w->job->npieces)
		return false;
	if (!p->failed && !w->flushed && w->job->op == TN_XFER_WRITE)
		flush(w);
	if (w->in_flight || (p->failed && !p->closed))
		return false;
	if (p->failed && w->job->op == TN_XFER_WRITE)
		fail_writes(w);
	w->job->cut = p->failed;
	return true;
}

static void leave(struct ucx_work *w)
{
	*w->before = w->next;
	if (w->next)
		w->next->before = w->before;
	w->ucx->ending -= w->give_up_ns != 0;
	w->peer->jobs--;
}

struct ucx_work *ucx_go_on(struct ucx *u, struct ucx_work *ended)
{
	struct ucx_work *w = u->ready;

	u->ready = NULL;
	while (w) {
		struct ucx_work *next = w->ready_next;

		w->ready = false;
		if (advance(w)) {
			leave(w);
			w->ready_next = ended;
			ended = w;
		}
		w = next;
	}
	return ended;
}

void ucx_tell_ended(struct ucx_work *ended)
{
	while (ended) {
		struct tn_xfer_job *job = ended->job;

		ended = ended->ready_next;
		job->ended(job);
	}
}

/* ---- post and cancel --------------------------------------------------------------------------------------------------- */

/* Keys of neighbours are nearly always the same. */
static void find_rkeys(struct ucx_work *w)
{
	const struct tn_xfer_section_key *last = NULL;
	ucp_rkey_h rkey = NULL;

	for (uint32_t i = 0; i < w->job->npieces; i++) {
		const struct tn_xfer_section_key *key = w->job->piece[i].remote_section;

		if (key != last)
			rkey = key && !w->peer->failed ? ucx_rkey_of(w->peer, key) : NULL;
		w->operation[i].rkey = rkey;
		last = key;
	}
}

static void enter(struct ucx_work *w)
{
	struct ucx *u = w->ucx;

	w->peer = w->job->peer;
	ucx_rkeys_trim(w->peer);
	if (!w->peer->jobs++) /* a peer that takes nothing is given up, however many jobs come */
		w->peer->moved_ns = ucx_now();
	w->issued = w->in_flight = 0;
	w->in_flight_bytes = w->give_up_ns = 0;
	__atomic_store_n(&w->why, 0, __ATOMIC_RELEASE);
	w->flushed = false;
	w->next = u->works;
	w->before = &u->works;
	if (w->next)
		w->next->before = &w->next;
	u->works = w;
}

void ucx_post(void *backend, struct tn_xfer_job *job)
{
	struct ucx_work *ended, *w = job->work;
	struct ucx *u = backend;
	bool left;

	ucx_lock(u);
	enter(w);
	find_rkeys(w);
	ucx_ready(w);
	/* What ends at once, as copies between processes do, ends here. */
	ended = ucx_go_on(u, NULL);
	while (u->works && u->api->ucp_worker_progress(u->worker)) {
		u->busy_ns = ucx_now();
		if (u->ready)
			break;
	}
	ended = ucx_go_on(u, ended);
	left = u->works != NULL;
	ucx_unlock(u);
	if (left)
		ucx_wake(u);
	ucx_tell_ended(ended);
}

void ucx_cancel(void *backend, struct tn_xfer_job *job)
{
	struct ucx *u = backend;

	__atomic_store_n(&u->stopped, 1, __ATOMIC_RELEASE);
	ucx_wake(u);
}

uint64_t ucx_give_up(struct ucx *u, uint64_t now)
{
	bool changed = __atomic_exchange_n(&u->stopped, 0, __ATOMIC_ACQUIRE);
	uint64_t next_ns = UINT64_MAX;

	if (!changed && !u->ending)
		return next_ns;
	for (struct ucx_work *w = u->works; w; w = w->next) {
		uint64_t due_ns;

		if (!w->give_up_ns && tn_xfer_job_stopped(w->job)) {
			w->give_up_ns = now + GRACE_NS;
			u->ending++;
			ucx_ready(w);
		}
		if (!w->give_up_ns || w->peer->failed)
			continue;
		due_ns = w->peer->moved_ns + GRACE_NS > w->give_up_ns ? w->peer->moved_ns + GRACE_NS : w->give_up_ns;
		if (due_ns <= now)
			ucx_peer_fail(w->peer, UCX_PEER_SLOW, UCS_ERR_TIMED_OUT);
		else if (due_ns < next_ns)
			next_ns = due_ns;
	}
	return next_ns;
}
