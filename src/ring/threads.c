/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor with threads: each owns an engine and a lane, adopts the owner's open files, and verifies what it
 * reads. Whoever is awake takes IOCBs; an issue wakes them all through their engines (a wake is never lost, see
 * io/io.h). What the requests took is told to the owner in its step.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "ring/lane.h"
#include "ring/seen.h"

#define POLL_BATCH 64u

struct threads;

struct worker {
	struct threads *all;
	struct tn_lane *lane;
	struct tn_lane_requests requests;
	struct tn_io *io;
	pthread_t thread;
	bool started;
	int status; /* of its start */
	struct tn_error error;
	bool up; /* under lock: its start ended */
	uint32_t bounce_turn; /* under lock: the last request for bounce buffers that it answered, ... */
	int bounce_status;    /* ... and how */
};

struct threads {
	struct tn_executor ex;
	struct tn_executor_opts o;
	struct tn_lane_intake intake;
	struct tn_io_lent *lent;
	uint32_t n;
	uint32_t stop;	    /* shared */
	uint32_t bounce_bytes; /* shared: objects of so many bytes ... */
	uint32_t bounce_turn; /* shared: ... are announced, for the so many-th time */
	uint32_t have_bounces; /* the owner's: all have buffers for objects of so many bytes */
	pthread_mutex_t lock;
	pthread_cond_t news;
	struct tn_seen seen;
	bool leave;	     /* under lock: all were told to stop, engines may go */
	struct worker worker[TN_EXECUTOR_THREADS_MAX];
};

static void kick(void *arg)
{
	struct threads *t = arg;

	for (uint32_t i = 0; i < t->n; i++)
		tn_io_wake(t->worker[i].io);
}

static void observed(void *arg, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status)
{
	struct threads *t = arg;

	if (tn_seen_add(&t->seen, device, op, bytes, latency_ns, status) && t->o.wake)
		t->o.wake(t->o.wake_arg);
}

/* ---- a thread ------------------------------------------------------------------------------------------- */

static int set_up(struct worker *w)
{
	struct threads *t = w->all;
	uint32_t file, align;
	int err = t->o.engine(t->o.engine_arg, &w->io);

	if (err)
		return err;
	w->requests.io = w->io;
	for (uint32_t i = 0; i < t->o.ndevices && !err; i++) {
		file = TN_IO_NO_FILE;
		err = t->o.files[i] == TN_IO_NO_FILE ? 0 : tn_io_adopt(w->io, &t->lent[i], &file);
		if (!err)
			err = tn_lane_requests_add(&w->requests, file, &align);
		if (!err)
			err = tn_lane_device_add(w->lane, align);
	}
	return err;
}

static void make_bounces(struct worker *w)
{
	struct threads *t = w->all;
	uint32_t turn = __atomic_load_n(&t->bounce_turn, __ATOMIC_ACQUIRE);
	int status;

	if (turn == w->bounce_turn)
		return;
	status = tn_lane_make_bounces(w->lane, __atomic_load_n(&t->bounce_bytes, __ATOMIC_RELAXED));
	pthread_mutex_lock(&t->lock);
	w->bounce_turn = turn;
	w->bounce_status = status;
	pthread_cond_broadcast(&t->news);
	pthread_mutex_unlock(&t->lock);
}

/* At once: behind the IOCB that ended there may be much to verify. */
static void tell_ended(struct worker *w, uint64_t *iocbs)
{
	if (w->lane->stats.iocbs != *iocbs && w->all->o.wake)
		w->all->o.wake(w->all->o.wake_arg);
	*iocbs = w->lane->stats.iocbs;
}

static void work(struct worker *w)
{
	struct tn_io_req *done[POLL_BATCH];
	uint64_t iocbs = 0;

	while (!__atomic_load_n(&w->all->stop, __ATOMIC_ACQUIRE)) {
		uint64_t due;
		bool busy;
		unsigned n;

		make_bounces(w);
		busy = tn_lane_go(w->lane);
		tell_ended(w, &iocbs);
		due = tn_lane_due(w->lane, 0); /* from now on */
		n = tn_io_poll(w->io, done, POLL_BATCH, busy ? 0 : due);
		for (unsigned i = 0; i < n; i++) {
			done[i]->done(done[i]);
			tell_ended(w, &iocbs);
		}
	}
}

static void *thread_main(void *arg)
{
	struct worker *w = arg;
	struct threads *t = w->all;

	pthread_setname_np(pthread_self(), "tenuto-ring");
	w->status = set_up(w);
	w->error = *tn_error_last();
	pthread_mutex_lock(&t->lock);
	w->up = true;
	pthread_cond_broadcast(&t->news);
	pthread_mutex_unlock(&t->lock);
	if (w->status == 0)
		work(w);
	/* Whoever told it to stop may still be on his way out of waking its engine. */
	pthread_mutex_lock(&t->lock);
	while (!t->leave)
		pthread_cond_wait(&t->news, &t->lock);
	pthread_mutex_unlock(&t->lock);
	tn_io_destroy(w->io);
	w->requests.io = NULL;
	return NULL;
}

/* ---- the owner ------------------------------------------------------------------------------------------- */

static int threads_make_bounces(struct tn_executor *ex, uint32_t padded_bytes)
{
	struct threads *t = (struct threads *)ex;
	int err = 0;

	if (padded_bytes <= t->have_bounces)
		return 0;
	__atomic_store_n(&t->bounce_bytes, padded_bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&t->bounce_turn, t->bounce_turn + 1, __ATOMIC_RELEASE);
	kick(t);
	pthread_mutex_lock(&t->lock);
	for (uint32_t i = 0; i < t->n; i++) {
		while (t->worker[i].bounce_turn != t->bounce_turn)
			pthread_cond_wait(&t->news, &t->lock);
		if (t->worker[i].bounce_status)
			err = t->worker[i].bounce_status;
	}
	pthread_mutex_unlock(&t->lock);
	if (err)
		return tn_fail(err, "executor: no memory to bounce objects of %u bytes", padded_bytes);
	t->have_bounces = padded_bytes;
	return 0;
}

static bool threads_step(struct tn_executor *ex)
{
	struct threads *t = (struct threads *)ex;

	tn_seen_tell(&t->seen, t->o.observe, t->o.observe_arg);
	return false; /* what it is told asks for nothing else */
}

static uint64_t threads_due(struct tn_executor *ex, uint64_t now_ns)
{
	return TN_FOREVER; /* the threads look after themselves */
}

static void threads_stats(struct tn_executor *ex, struct tn_executor_stats *stats)
{
	struct threads *t = (struct threads *)ex;

	memset(stats, 0, sizeof(*stats));
	for (uint32_t i = 0; i < t->n; i++)
		tn_lane_stats_add(t->worker[i].lane, stats);
	stats->unobserved = tn_seen_lost(&t->seen);
}

static void threads_destroy(struct tn_executor *ex)
{
	struct threads *t = (struct threads *)ex;
	const struct tn_alloc *a = t->o.alloc;

	tn_ring_attach(t->o.ring, NULL, NULL);
	__atomic_store_n(&t->stop, 1, __ATOMIC_RELEASE);
	kick(t);
	pthread_mutex_lock(&t->lock);
	t->leave = true;
	pthread_cond_broadcast(&t->news);
	pthread_mutex_unlock(&t->lock);
	for (uint32_t i = 0; i < TN_EXECUTOR_THREADS_MAX; i++) {
		struct worker *w = &t->worker[i];

		if (w->started)
			pthread_join(w->thread, NULL);
		tn_lane_destroy(w->lane);
		tn_lane_requests_fini(&w->requests);
	}
	tn_lane_intake_fini(&t->intake, a);
	pthread_cond_destroy(&t->news);
	pthread_mutex_destroy(&t->lock);
	tn_seen_fini(&t->seen);
	tn_put(a, t->lent, tn_array_bytes(t->o.ndevices, sizeof(*t->lent)));
	tn_put(a, t, sizeof(*t));
}

static const struct tn_executor_ops threads_ops = {
	.size = sizeof(struct tn_executor_ops),
	.abi = TN_EXECUTOR_ABI,
	.name = "threads",
	.make_bounces = threads_make_bounces,
	.step = threads_step,
	.due = threads_due,
	.stats = threads_stats,
	.destroy = threads_destroy,
};

/* One after another, so that a first failure is the one that is told. */
static int start(struct threads *t, struct worker *w)
{
	int rc = tn_thread_start(&w->thread, thread_main, w);

	if (rc)
		return tn_fail(-rc, "cannot start an executor's thread: %s", strerror(rc));
	w->started = true;
	pthread_mutex_lock(&t->lock);
	while (!w->up)
		pthread_cond_wait(&t->news, &t->lock);
	pthread_mutex_unlock(&t->lock);
	if (w->status)
		return tn_fail_at(w->error.where, "", w->status, "%s", w->error.text);
	t->n++;
	return 0;
}

static int start_all(struct threads *t)
{
	struct tn_lane_opts co = {.intake = &t->intake, .depth = t->o.depth, .backlog = t->o.threads > 1 ? TN_LANE_BACKLOG : UINT32_MAX,
					.alloc = t->o.alloc, .clock = t->o.clock,
					.observe = t->o.observe ? observed : NULL, .observe_arg = t};
	int err = tn_lane_intake_init(&t->intake, t->o.ring, t->o.alloc);

	for (uint32_t i = 0; i < t->o.ndevices && !err; i++)
		err = t->o.files[i] == TN_IO_NO_FILE ? 0 : tn_io_lend(t->o.io, t->o.files[i], &t->lent[i]);
	for (uint32_t i = 0; i < t->o.threads && !err; i++) {
		struct worker *w = &t->worker[i];

		w->all = t;
		err = tn_lane_requests_init(&w->requests, NULL, t->o.depth, t->o.alloc);
		co.transport = &w->requests.transport;
		if (!err)
			err = tn_lane_create(&co, &w->lane);
		if (!err)
			err = start(t, w);
	}
	if (!err)
		tn_ring_attach(t->o.ring, kick, t);
	return err;
}

int tn_executor_threads_create(const struct tn_executor_opts *o, struct tn_executor **out)
{
	struct threads *t;
	int err;

	if (o->depth == 0 || o->threads == 0 || o->threads > TN_EXECUTOR_THREADS_MAX)
		return tn_fail(-EINVAL, "executor: %u threads of depth %u: 1..%u threads", o->threads, o->depth,
			       TN_EXECUTOR_THREADS_MAX);
	t = tn_get(o->alloc, sizeof(*t));
	if (!t)
		return tn_fail(-ENOMEM, "executor: no memory");
	t->ex.ops = &threads_ops;
	t->o = *o;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->news, NULL);
	t->lent = tn_get(o->alloc, tn_array_bytes(o->ndevices, sizeof(*t->lent)));
	err = tn_seen_init(&t->seen, o->alloc);
	if (!err)
		err = t->lent ? start_all(t) : tn_fail(-ENOMEM, "executor: no memory");
	if (err) {
		struct tn_error cause = *tn_error_last();

		threads_destroy(&t->ex);
		return tn_fail_at(cause.where, "", err, "%s", cause.text);
	}
	*out = &t->ex;
	return 0;
}
