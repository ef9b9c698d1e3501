/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/request.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/abi.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/trace.h"
#include "xfer/backends.h"
#include "xfer/choice.h"
#include "xfer/pieces.h"
#include "xfer/shared.h"

#define NOTIFICATION_DEFAULT 256u
#define WHY_BYTES 416u
#define RETRY_NS 1000000u /* a notification that found no place is tried again as often, besides when one is known to be free */

struct tn_xfer_request {
	struct tn_xfer_job job;
	struct tn_xfer_agent *agent;
	struct tn_xfer_peer *peer; /* NULL: the agent itself */
	struct tn_list active;
	uint32_t backend;
	uint32_t word; /* atomic: enum tn_xfer_state; waiters sleep on it */
	int32_t status;
	bool posting; /* the backend's post has not returned */
	bool moved; /* all is there, but the notification waits */
	uint64_t deadline_ns, begin_ns, post_ns, time_ns, estimate_ns;
	struct tn_xfer_pieces pieces;
	struct tn_xfer_job *current; /* job, or again */
	struct tn_xfer_job again; /* descriptors that have failed together, alone */
	bool prepared; /* again is */
	struct tn_xfer_pieces alone; /* of again; none: nothing has failed so */
	struct tn_xfer_sec **sec; /* of both sides, each once */
	uint32_t nsec, sec_capacity;
	uint32_t notification_max, notification_bytes;
	unsigned char *notification;
	char explain[TN_XFER_EXPLAIN_BYTES];
};

static const struct tn_xfer_request_opts defaults = {.size = sizeof(defaults), .notification_bytes = NOTIFICATION_DEFAULT};

void tn_xfer_request_opts_init_sized(struct tn_xfer_request_opts *opts, size_t size)
{
	tn_abi_init(opts, size, &defaults, sizeof(defaults));
}

static uint32_t state_of(const struct tn_xfer_request *r)
{
	return __atomic_load_n(&r->word, __ATOMIC_ACQUIRE);
}

static struct tn_xfer_backend *backend_of(const struct tn_xfer_request *r)
{
	return &r->agent->backend[r->backend];
}

/* ---- the end of a request ---------------------------------------------------------------------------------------------- */

static void count(struct tn_xfer_request *r)
{
	uint64_t *stat = r->agent->stat;
	bool write = r->job.op == TN_XFER_WRITE;

	stat[TN_XFER_STAT_TIME_NS] += r->time_ns;
	if (!r->status) {
		stat[write ? TN_XFER_STAT_TX_BYTES : TN_XFER_STAT_RX_BYTES] += r->job.bytes;
		stat[write ? TN_XFER_STAT_TX_REQUESTS : TN_XFER_STAT_RX_REQUESTS]++;
		return;
	}
	stat[TN_XFER_STAT_FAILED]++;
	stat[r->status == -ECANCELED	? TN_XFER_STAT_CANCELLED
	     : r->status == -ETIMEDOUT	? TN_XFER_STAT_TIMED_OUT
	     : r->status == -ECONNRESET ? TN_XFER_STAT_DISCONNECTED
	     : r->status == -ESTALE	? TN_XFER_STAT_STALE
					: TN_XFER_STAT_BACKEND_FAILED]++;
}

/* The last access of whoever ends it: the waiter may release it at once. */
static void end(struct tn_xfer_request *r)
{
	struct tn_xfer_agent *a = r->agent;

	r->time_ns = tn_now_ns(&tn_clock_system) - r->begin_ns;
	TN_TRACE3(xfer_end, r, r->status, r->time_ns);
	count(r);
	tn_list_del(&r->active);
	if (r->peer) {
		if (r->current->cut && r->peer->conn)
			tn_xfer_conn_close(&a->control, r->peer->conn); /* before anything is confirmed on it */
		if (!--r->peer->jobs && r->peer->held) {
			tn_xfer_conn_let_go(&a->control, r->peer->held);
			r->peer->held = NULL;
		}
		tn_xfer_requests_confirm(a, r->peer);
	}
	__atomic_store_n(&r->word, TN_XFER_ENDED, __ATOMIC_RELEASE);
	tn_futex_wake(&r->word);
	pthread_cond_broadcast(&a->changed);
	tn_xfer_raise(a);
}

/* 0; -EAGAIN: no place yet; -ECONNRESET. */
static int send_notification(struct tn_xfer_request *r)
{
	struct tn_xfer_agent *a = r->agent;
	int rc;

	if (r->notification_bytes == TN_XFER_NO_NOTIFICATION)
		return 0;
	if (!r->peer)
		return tn_xfer_enqueue(a, a->name, r->notification, r->notification_bytes, false);
	if (!r->peer->conn)
		return -ECONNRESET;
	rc = tn_xfer_conn_send(&a->control, r->peer->conn, TN_XFER_NOTIFY, r->notification, r->notification_bytes, 0);
	a->stat[TN_XFER_STAT_NOTIFIED] += rc == 0;
	return rc;
}

static void try_to_end(struct tn_xfer_request *r)
{
	int rc = send_notification(r);

	if (rc == -EAGAIN) {
		r->moved = true;
		tn_xfer_control_wake(&r->agent->control);
		return;
	}
	r->status = rc;
	end(r);
}

/* Every piece has ended; rc: how. */
static void finish(struct tn_xfer_request *r, int rc)
{
	struct tn_xfer_agent *a = r->agent;

	pthread_mutex_lock(&a->lock);
	if (state_of(r) == TN_XFER_ENDING) {
		end(r);
	} else if (rc) {
		r->status = rc;
		end(r);
	} else {
		try_to_end(r);
	}
	pthread_mutex_unlock(&a->lock);
}

static void again_ended(struct tn_xfer_job *job)
{
	struct tn_xfer_request *r = tn_container_of(job, struct tn_xfer_request, again);
	uint64_t bytes = 0;
	int rc = tn_xfer_pieces_sum(&r->pieces, &bytes), alone = tn_xfer_pieces_sum(&r->alone, &bytes);

	finish(r, rc ? rc : alone);
}

/* The descriptors that were to be tried alone will not be: each keeps the status that it has failed with. */
static void give_up_alone(struct tn_xfer_request *r)
{
	for (uint32_t i = 0, k = 0; i < r->alone.npieces; i++) {
		while (r->pieces.piece[k].first + r->pieces.piece[k].bytes <= r->alone.piece[i].first)
			k++;
		tn_xfer_piece_end(&r->alone.piece[i], 0, r->pieces.piece[k].status);
	}
}

/* An object that is replaced whole is not written by a part of its descriptors. */
static bool writes_whole(const struct tn_xfer_request *r)
{
	uint32_t to = r->job.op == TN_XFER_WRITE ? r->job.remote_segment : r->job.local_segment;

	return backend_of(r)->ops->flags & TN_XFER_WHOLE && to == TN_XFER_OBJECT;
}

/*
 * Neighbours move together, and so they fail together. Each of those that have failed is tried again, alone, so that its status is its own. Only a failure takes
 * memory for that: without it the neighbours keep one status. False: there is nothing to try.
 */
static bool try_alone(struct tn_xfer_request *r)
{
	const struct tn_xfer_backend *b = backend_of(r);
	int rc;

	if (tn_xfer_job_stopped(&r->job) || r->job.cut || writes_whole(r))
		return false;
	pthread_mutex_lock(&r->agent->lock);
	tn_xfer_pieces_split(&r->pieces, &r->alone);
	r->again = r->job;
	pthread_mutex_unlock(&r->agent->lock);
	if (!r->alone.npieces)
		return false;
	r->again.stop = 0;
	r->again.next = NULL;
	r->again.work = NULL;
	r->again.piece = r->alone.piece;
	r->again.npieces = r->alone.npieces;
	r->again.bytes = 0;
	for (uint32_t i = 0; i < r->alone.npieces; i++)
		r->again.bytes += r->alone.piece[i].bytes;
	r->again.alone = 1;
	r->again.ended = again_ended;
	memset(r->again.word, 0, sizeof(r->again.word));
	rc = b->ops->prepare ? b->ops->prepare(b->self, &r->again) : 0;
	r->prepared = rc == 0;
	pthread_mutex_lock(&r->agent->lock);
	if (rc == 0 && state_of(r) != TN_XFER_ACTIVE)
		rc = -ECANCELED;
	if (rc)
		give_up_alone(r);
	else
		r->current = &r->again;
	pthread_mutex_unlock(&r->agent->lock);
	if (rc == 0)
		b->ops->post(b->self, &r->again);
	return rc == 0;
}

/* The backend's call: from its own thread, or from within post. */
static void job_ended(struct tn_xfer_job *job)
{
	struct tn_xfer_request *r = tn_container_of(job, struct tn_xfer_request, job);
	uint64_t bytes = 0;
	int rc = tn_xfer_pieces_sum(&r->pieces, &bytes);

	if (!rc || !try_alone(r))
		finish(r, rc);
}

/* With the lock, or when nobody else has the request: what was tried alone is no part of the request any more. */
static struct tn_xfer_pieces take_alone(struct tn_xfer_request *r)
{
	struct tn_xfer_pieces alone = r->alone;

	r->alone = (struct tn_xfer_pieces){0};
	return alone;
}

/* Without the lock, while nobody else can post or release the request. */
static void forget_alone(struct tn_xfer_request *r, struct tn_xfer_pieces *alone)
{
	const struct tn_xfer_backend *b = backend_of(r);

	if (r->prepared && b->ops->forget)
		b->ops->forget(b->self, &r->again);
	r->prepared = false;
	tn_xfer_pieces_free(alone);
}

/* The request fails now, whatever its backend still does. */
static void verdict(struct tn_xfer_request *r, int code)
{
	const struct tn_xfer_backend *b = backend_of(r);

	if (state_of(r) != TN_XFER_ACTIVE)
		return;
	r->status = code;
	if (r->moved) {
		end(r);
		return;
	}
	__atomic_store_n(&r->word, TN_XFER_ENDING, __ATOMIC_RELEASE);
	__atomic_store_n(&r->current->stop, 1, __ATOMIC_RELEASE);
	if (b->ops->cancel)
		b->ops->cancel(b->self, r->current);
	tn_futex_wake(&r->word);
	tn_xfer_raise(r->agent);
}

void tn_xfer_requests_fail(struct tn_xfer_agent *a, const struct tn_xfer_peer *p, int code)
{
	struct tn_list *pos, *tmp;

	tn_list_for_each_safe(pos, tmp, &a->active) {
		struct tn_xfer_request *r = tn_container_of(pos, struct tn_xfer_request, active);

		if (r->peer == p)
			verdict(r, code);
	}
}

uint64_t tn_xfer_requests_overdue(struct tn_xfer_agent *a, uint64_t now_ns)
{
	uint64_t next = TN_FOREVER;
	struct tn_list *pos, *tmp;

	for (pos = a->peers.next; pos != &a->peers; pos = pos->next)
		tn_xfer_requests_confirm(a, tn_container_of(pos, struct tn_xfer_peer, link));
	tn_list_for_each_safe(pos, tmp, &a->active) {
		struct tn_xfer_request *r = tn_container_of(pos, struct tn_xfer_request, active);
		uint64_t deadline_ns = r->deadline_ns;

		if (now_ns >= deadline_ns)
			verdict(r, -ETIMEDOUT);
		else if (r->moved) {
			int rc = send_notification(r);

			if (rc == -EAGAIN) {
				deadline_ns = deadline_ns < now_ns + RETRY_NS ? deadline_ns : now_ns + RETRY_NS;
				next = deadline_ns < next ? deadline_ns : next;
				continue;
			}
			r->status = rc;
			end(r);
		} else if (deadline_ns < next && state_of(r) == TN_XFER_ACTIVE) {
			next = deadline_ns;
		}
	}
	return next;
}

static bool uses_revoked(const struct tn_xfer_request *r)
{
	for (uint32_t i = 0; i < r->nsec; i++)
		if (r->sec[i]->revoked)
			return true;
	return false;
}

void tn_xfer_requests_confirm(struct tn_xfer_agent *a, struct tn_xfer_peer *p)
{
	struct tn_list *pos;

	if (!p->conn || !p->conn->revoking)
		return;
	for (pos = a->active.next; pos != &a->active; pos = pos->next) {
		const struct tn_xfer_request *r = tn_container_of(pos, struct tn_xfer_request, active);

		if (r->peer == p && uses_revoked(r))
			return;
	}
	/* Notifications may fill the buffer, but not the part behind TN_XFER_OUT_BYTES. */
	if (tn_xfer_conn_send(&a->control, p->conn, TN_XFER_REVOKED, &p->conn->revoking, sizeof(p->conn->revoking), 2 * TN_XFER_OUT_BYTES) == 0)
		p->conn->revoking = 0;
}

/* ---- create ------------------------------------------------------------------------------------------------------------ */

/* Notes the section in the request, once; -ESTALE: it is gone; -ENOMEM. */
static int use_section(struct tn_xfer_request *r, struct tn_xfer_sec *sec, uint64_t serial)
{
	if (sec->seen == serial)
		return 0;
	if (sec->revoked)
		return tn_fail(-ESTALE, "the section at %#llx was deregistered since the list was made", (unsigned long long)sec->address);
	if (r->nsec == r->sec_capacity) {
		uint32_t capacity = r->sec_capacity ? r->sec_capacity * 2 : 8;
		struct tn_xfer_sec **grown = tn_get(&tn_alloc_system, capacity * sizeof(void *));

		if (!grown)
			return -ENOMEM;
		if (r->nsec)
			memcpy(grown, r->sec, r->nsec * sizeof(void *));
		tn_put(&tn_alloc_system, r->sec, r->sec_capacity * sizeof(void *));
		r->sec = grown;
		r->sec_capacity = capacity;
	}
	r->sec[r->nsec++] = sec;
	sec->seen = serial;
	sec->users++;
	sec->refs++;
	return 0;
}

/* Counts the request at its sections. The masks are of the backends that have all of them, and reach the remote ones. */
static int use_sections(struct tn_xfer_request *r, uint32_t *local, uint32_t *remote)
{
	uint64_t serial = ++r->agent->last_serial;
	uint32_t mapped_only = r->peer ? r->peer->mapped_only : 0;
	int rc = 0;

	*local = *remote = UINT32_MAX;
	for (uint32_t i = 0; i < r->pieces.npieces && rc == 0; i++) {
		struct tn_xfer_sec *l = r->pieces.piece[i].local_section, *m = r->pieces.piece[i].remote_section;

		rc = use_section(r, l, serial);
		if (rc == 0)
			rc = use_section(r, m, serial);
		*local &= l->backends;
		*remote &= m->backends & ~(m->mapped.base ? 0 : mapped_only);
	}
	return rc;
}

static void put_all(struct tn_xfer_request *r)
{
	struct tn_xfer_agent *a = r->agent;

	for (uint32_t i = 0; i < r->nsec; i++) {
		r->sec[i]->users--;
		tn_xfer_sec_put(r->sec[i]);
	}
	r->nsec = 0;
	if (r->peer)
		tn_xfer_peer_put(a, r->peer);
	a->nrequests--;
}

static void free_request(struct tn_xfer_request *r)
{
	tn_xfer_pieces_free(&r->pieces);
	tn_put(&tn_alloc_system, r->sec, r->sec_capacity * sizeof(void *));
	tn_put(&tn_alloc_system, r->notification, r->notification_max + 1);
	tn_put(&tn_alloc_system, r, sizeof(*r));
}

/* With the lock: connects, counts, chooses. */
static int enter(struct tn_xfer_request *r, const struct tn_xfer_list *local, const struct tn_xfer_list *remote, const struct tn_xfer_request_opts *opts)
{
	struct tn_xfer_agent *a = r->agent;
	struct tn_xfer_wish wish = {r->job.op, local->segment, remote->segment, r->peer, 0, 0, r->job.bytes, opts};
	uint64_t until_ns = tn_now_ns(&tn_clock_system) + a->connect_ns;
	int rc = r->peer ? tn_xfer_peer_connect(a, r->peer, until_ns) : 0;

	if (rc == 0 && r->peer)
		tn_xfer_peer_map(a, r->peer, &r->pieces, until_ns);
	if (rc == 0)
		rc = use_sections(r, &wish.local_backends, &wish.remote_backends);
	if (rc == 0)
		rc = tn_xfer_choose(a, &wish, &r->backend, &r->estimate_ns, r->explain);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < r->pieces.npieces; i++) {
		struct tn_xfer_piece *p = &r->pieces.piece[i];
		const struct tn_xfer_sec *l = p->local_section, *m = p->remote_section;

		p->mapped = m->mapped.base ? m->mapped.at + (p->remote - m->address) : NULL;
		p->local_section = l->handle[r->backend];
		p->remote_section = r->peer ? (void *)m->key[r->backend] : m->handle[r->backend];
	}
	return 0;
}

static int check_lists(struct tn_xfer_agent *agent, enum tn_xfer_op op, const struct tn_xfer_list *local, const uint32_t *local_indices,
		       const struct tn_xfer_list *remote, const uint32_t *remote_indices, struct tn_xfer_match *m, uint32_t n)
{
	if (!agent || !local || !remote || (unsigned)op > TN_XFER_WRITE)
		return tn_fail(-EINVAL, "agent %p, lists %p and %p, operation %d: an agent, two lists, TN_XFER_READ or TN_XFER_WRITE are wanted", (void *)agent,
			       (const void *)local, (const void *)remote, (int)op);
	if (local->agent != agent || remote->agent != agent)
		return tn_fail(-EINVAL, "a list of another agent than %s", agent->name);
	if (local->peer)
		return tn_fail(-EINVAL, "the local list has sections of agent %s: those of the agent itself are wanted", local->peer->head.name);
	*m = (struct tn_xfer_match){local, remote, local_indices, remote_indices, n};
	if (!local_indices && !remote_indices)
		m->n = local->count;
	if ((!local_indices && local->count != m->n) || (!remote_indices && remote->count != m->n))
		return tn_fail(-EINVAL, "%llu local and %llu remote descriptors: as many are wanted",
			       (unsigned long long)(local_indices ? n : local->count), (unsigned long long)(remote_indices ? n : remote->count));
	if (!m->n)
		return tn_fail(-EINVAL, "a transfer of no descriptors: at least one is wanted");
	return 0;
}

static struct tn_xfer_request *request_new(struct tn_xfer_agent *agent, uint32_t notification_bytes)
{
	struct tn_xfer_request *r = tn_get(&tn_alloc_system, sizeof(*r));

	if (!r)
		return NULL;
	r->agent = agent;
	tn_list_init(&r->active);
	r->notification_max = notification_bytes;
	r->notification = tn_get(&tn_alloc_system, notification_bytes + 1);
	if (r->notification)
		return r;
	tn_put(&tn_alloc_system, r, sizeof(*r));
	return NULL;
}

static void set_job(struct tn_xfer_request *r, enum tn_xfer_op op, const struct tn_xfer_match *m)
{
	r->job = (struct tn_xfer_job){
		.op = op,
		.local_segment = m->local->segment,
		.remote_segment = m->remote->segment,
		.piece = r->pieces.piece,
		.npieces = r->pieces.npieces,
		.bytes = r->pieces.before[m->n],
		.ended = job_ended,
	};
}

int tn_xfer_request_create(struct tn_xfer_agent *agent, enum tn_xfer_op op, struct tn_xfer_list *local, const uint32_t *local_indices,
			   struct tn_xfer_list *remote, const uint32_t *remote_indices, uint32_t n, const struct tn_xfer_request_opts *opts,
			   struct tn_xfer_request **out)
{
	struct tn_xfer_request_opts own = defaults;
	struct tn_xfer_request *r;
	struct tn_xfer_match m;
	int rc = opts ? tn_abi_in(TN_ABI(tn_xfer_request_opts, notification_bytes), &own, opts) : 0;

	if (rc == 0)
		rc = check_lists(agent, op, local, local_indices, remote, remote_indices, &m, n);
	if (rc)
		return rc;
	if (!out || own.notification_bytes > TN_XFER_NOTIFICATION_MAX)
		return tn_fail(-EINVAL, "notification_bytes %u: at most %u", own.notification_bytes, TN_XFER_NOTIFICATION_MAX);
	r = request_new(agent, own.notification_bytes);
	if (!r)
		return tn_fail(-ENOMEM, "no memory for a request");
	rc = tn_xfer_pieces_make(&m, &r->pieces);
	if (rc) {
		free_request(r);
		return rc;
	}
	set_job(r, op, &m);
	pthread_mutex_lock(&agent->lock);
	r->peer = remote->peer;
	if (r->peer)
		r->peer->refs++;
	agent->nrequests++;
	rc = enter(r, local, remote, &own);
	pthread_mutex_unlock(&agent->lock);
	if (rc == 0 && backend_of(r)->ops->prepare)
		rc = tn_xfer_backend_told(backend_of(r)->ops, backend_of(r)->ops->prepare(backend_of(r)->self, &r->job));
	if (rc) {
		pthread_mutex_lock(&agent->lock);
		put_all(r);
		pthread_mutex_unlock(&agent->lock);
		free_request(r);
		return rc;
	}
	*out = r;
	return 0;
}

int tn_xfer_release(struct tn_xfer_request *r)
{
	struct tn_xfer_agent *a;
	struct tn_xfer_backend *b;
	struct tn_xfer_pieces alone;
	bool busy;

	if (!r)
		return 0;
	a = r->agent;
	b = backend_of(r);
	/* With the lock: whoever has ended it is out of it then. */
	pthread_mutex_lock(&a->lock);
	busy = r->posting || state_of(r) == TN_XFER_ACTIVE || state_of(r) == TN_XFER_ENDING;
	pthread_mutex_unlock(&a->lock);
	if (busy)
		return tn_fail(-EBUSY, "the request is under way: cancel it first");
	alone = take_alone(r);
	forget_alone(r, &alone);
	if (b->ops->forget)
		b->ops->forget(b->self, &r->job);
	pthread_mutex_lock(&a->lock);
	put_all(r);
	pthread_mutex_unlock(&a->lock);
	free_request(r);
	return 0;
}

/* ---- post -------------------------------------------------------------------------------------------------------------- */

/* The peer may have connected anew since the request was made, as another process. */
static bool reaches(const struct tn_xfer_request *r)
{
	if (!(r->peer->reachable & 1u << r->backend))
		return false;
	for (uint32_t i = 0; r->peer->mapped_only & 1u << r->backend && i < r->pieces.npieces; i++)
		if (!r->pieces.piece[i].mapped)
			return false;
	return true;
}

static int may_post(const struct tn_xfer_request *r, uint64_t now, uint64_t deadline_ns, uint32_t bytes)
{
	uint32_t state = state_of(r);

	if (r->posting || state == TN_XFER_ACTIVE || state == TN_XFER_ENDING)
		return tn_fail(-EBUSY, "the request was posted and has not ended");
	if (bytes != TN_XFER_NO_NOTIFICATION && bytes > r->notification_max)
		return tn_fail(-EINVAL, "a notification of %u bytes: the request was made for %u (notification_bytes)", bytes, r->notification_max);
	if (now >= deadline_ns)
		return tn_fail(-ETIMEDOUT, "the deadline was over before the post");
	if (r->peer && r->peer->gone)
		return tn_fail(-ESTALE, "agent %s was forgotten, or replaced by a newer one of its name", r->peer->head.name);
	if (r->peer && !r->peer->conn)
		return tn_fail(-ECONNRESET, "agent %s is lost: load its metadata again", r->peer->head.name);
	if (r->peer && !reaches(r))
		return tn_fail(-ECONNRESET, "agent %s: %s", r->peer->head.name, r->peer->why[r->backend]);
	if (uses_revoked(r))
		return tn_fail(-ESTALE, "a section of the request was deregistered");
	return 0;
}

/* With the lock. */
static void begin(struct tn_xfer_request *r, uint64_t now, uint64_t deadline_ns, const void *notification, uint32_t bytes)
{
	struct tn_xfer_agent *a = r->agent;

	r->begin_ns = now;
	r->deadline_ns = deadline_ns;
	r->time_ns = 0;
	r->status = 0;
	r->moved = false;
	r->posting = true;
	r->notification_bytes = bytes;
	if (bytes != TN_XFER_NO_NOTIFICATION && bytes)
		memcpy(r->notification, notification, bytes);
	for (uint32_t i = 0; i < r->job.npieces; i++) {
		r->job.piece[i].shared = 0;
		tn_xfer_piece_end(&r->job.piece[i], 0, -EINPROGRESS);
	}
	r->current = &r->job;
	memset(r->job.word, 0, sizeof(r->job.word));
	r->job.stop = 0;
	r->job.cut = 0;
	r->job.next = NULL;
	r->job.peer = r->peer ? r->peer->handle[r->backend] : NULL;
	if (r->peer)
		r->peer->jobs++;
	tn_list_push(&a->active, &r->active);
	__atomic_store_n(&r->word, TN_XFER_ACTIVE, __ATOMIC_RELEASE);
	if (deadline_ns < a->control.next_ns) {
		a->control.next_ns = deadline_ns;
		tn_xfer_control_wake(&a->control);
	}
}

int tn_xfer_post(struct tn_xfer_request *r, uint64_t deadline_ns, const void *notification, uint32_t notification_bytes)
{
	uint64_t now = tn_now_ns(&tn_clock_system);
	struct tn_xfer_pieces alone = {0};
	struct tn_xfer_agent *a;
	int rc;

	if (!r || (!notification && notification_bytes && notification_bytes != TN_XFER_NO_NOTIFICATION))
		return tn_fail(-EINVAL, "request %p, notification %p of %u bytes", (void *)r, notification, notification_bytes);
	a = r->agent;
	pthread_mutex_lock(&a->lock);
	rc = may_post(r, now, deadline_ns, notification_bytes);
	if (rc == 0) {
		alone = take_alone(r);
		begin(r, now, deadline_ns, notification, notification_bytes);
	}
	pthread_mutex_unlock(&a->lock);
	if (rc)
		return rc;
	forget_alone(r, &alone);
	TN_TRACE3(xfer_post, r, r->job.bytes, r->job.npieces);
	backend_of(r)->ops->post(backend_of(r)->self, &r->job);
	pthread_mutex_lock(&a->lock);
	r->posting = false;
	r->post_ns = tn_now_ns(&tn_clock_system) - now;
	a->stat[TN_XFER_STAT_POST_NS] += r->post_ns;
	pthread_mutex_unlock(&a->lock);
	return 0;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------------- */

/* A deadline that is over fails the request at once, whether or not the agent's thread has come to it. */
static void look_at_clock(struct tn_xfer_request *r)
{
	if (state_of(r) != TN_XFER_ACTIVE || tn_now_ns(&tn_clock_system) < r->deadline_ns)
		return;
	pthread_mutex_lock(&r->agent->lock);
	if (tn_now_ns(&tn_clock_system) >= r->deadline_ns)
		verdict(r, -ETIMEDOUT);
	pthread_mutex_unlock(&r->agent->lock);
}

int tn_xfer_status(struct tn_xfer_request *r, struct tn_xfer_status *out)
{
	struct tn_xfer_status s = {.size = sizeof(s)};
	int rc = r && out ? tn_abi_check(TN_ABI_RESULT(tn_xfer_status, backend), out)
			  : tn_fail(-EINVAL, "request %p, status %p: both are wanted", (void *)r, (void *)out);

	if (rc)
		return rc;
	look_at_clock(r);
	pthread_mutex_lock(&r->agent->lock);
	s.state = state_of(r);
	s.status = s.state == TN_XFER_ENDING || s.state == TN_XFER_ENDED ? r->status : 0;
	s.post_ns = r->post_ns;
	s.time_ns = r->time_ns;
	if (s.state == TN_XFER_ENDED && s.status == 0) {
		s.bytes = r->job.bytes;
	} else if (s.state != TN_XFER_IDLE) {
		tn_xfer_pieces_sum(&r->pieces, &s.bytes);
		tn_xfer_pieces_sum(&r->alone, &s.bytes);
	}
	pthread_mutex_unlock(&r->agent->lock);
	s.estimate_ns = r->estimate_ns;
	s.descriptors = r->pieces.n;
	s.pieces = r->pieces.npieces;
	snprintf(s.backend, sizeof(s.backend), "%s", backend_of(r)->ops->name);
	tn_abi_out(TN_ABI_RESULT(tn_xfer_status, backend), out, &s);
	return 0;
}

/* Sleeps while the state is `state`, until the deadline. False: it is over. */
static bool sleep_on(struct tn_xfer_request *r, uint32_t state, uint64_t deadline_ns)
{
	return tn_futex_wait(&r->word, state, deadline_ns) != -ETIMEDOUT;
}

/* What the backend says of a failure: of the descriptors that were tried again, alone, else of all. */
static void ask_why(const struct tn_xfer_request *r, char *out, size_t bytes)
{
	const struct tn_xfer_backend *b = backend_of(r);
	size_t n = b->ops->why ? b->ops->why(b->self, r->current, out, bytes) : 0;

	if (!n && b->ops->why && r->current != &r->job)
		b->ops->why(b->self, &r->job, out, bytes);
}

/* The status, which descriptor has it first, and what the backend knows. */
static int tell_failure(struct tn_xfer_request *r)
{
	char which[48] = "", why[WHY_BYTES] = "";
	uint64_t descriptor;
	int status;

	pthread_mutex_lock(&r->agent->lock);
	status = r->status;
	if (status) {
		descriptor = tn_xfer_pieces_failed(&r->pieces, &r->alone, status);
		if (descriptor != UINT64_MAX)
			snprintf(which, sizeof(which), ": descriptor %llu", (unsigned long long)descriptor);
		ask_why(r, why, sizeof(why));
	}
	pthread_mutex_unlock(&r->agent->lock);
	return status ? tn_fail(status, "the transfer has failed: %s%s%s%s", strerror(-status), which, *why ? ": " : "", why) : 0;
}

int tn_xfer_wait(struct tn_xfer_request *r, uint64_t deadline_ns)
{
	if (!r)
		return tn_fail(-EINVAL, "no request");
	for (;;) {
		uint32_t state;

		look_at_clock(r);
		state = state_of(r);
		if (state == TN_XFER_IDLE)
			return tn_fail(-EINVAL, "the request was not posted");
		if (state == TN_XFER_ACTIVE) {
			if (tn_now_ns(&tn_clock_system) >= deadline_ns)
				return -EAGAIN;
			sleep_on(r, state, deadline_ns < r->deadline_ns ? deadline_ns : r->deadline_ns);
			continue;
		}
		return tell_failure(r);
	}
}

int tn_xfer_cancel(struct tn_xfer_request *r, uint64_t deadline_ns)
{
	uint32_t state;

	if (!r)
		return tn_fail(-EINVAL, "no request");
	pthread_mutex_lock(&r->agent->lock);
	verdict(r, -ECANCELED);
	pthread_mutex_unlock(&r->agent->lock);
	while ((state = state_of(r)) == TN_XFER_ACTIVE || state == TN_XFER_ENDING)
		if (!sleep_on(r, state, deadline_ns))
			return tn_fail(-EBUSY, "backend %s has not ended the transfer by the deadline: bytes may still move", backend_of(r)->ops->name);
	/* Whoever has ended it is out of it when he gives the lock back. */
	pthread_mutex_lock(&r->agent->lock);
	pthread_mutex_unlock(&r->agent->lock);
	return 0;
}

int tn_xfer_results(struct tn_xfer_request *r, uint64_t first, uint32_t n, struct tn_xfer_result *out)
{
	bool live;

	if (!r || (n && !out) || state_of(r) == TN_XFER_IDLE)
		return tn_fail(-EINVAL, "results of request %p: it was not posted, or there is no array", (void *)r);
	if (first > r->pieces.n || n > r->pieces.n - first)
		return tn_fail(-EINVAL, "descriptors %llu to %llu: the request has %llu", (unsigned long long)first, (unsigned long long)(first + n),
			       (unsigned long long)r->pieces.n);
	/* What is under way may be split meanwhile. */
	live = state_of(r) != TN_XFER_ENDED;
	if (live)
		pthread_mutex_lock(&r->agent->lock);
	for (uint32_t i = 0; i < n; i++)
		tn_xfer_pieces_result(&r->pieces, &r->alone, first + i, &out[i]);
	if (live)
		pthread_mutex_unlock(&r->agent->lock);
	return 0;
}

const char *tn_xfer_explain(const struct tn_xfer_request *r)
{
	return r ? r->explain : "";
}
