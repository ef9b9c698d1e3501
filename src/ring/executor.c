/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor: lanes that share a ring's queues, each on a transport of its own. The owner steps the only lane, or each has a thread, and
 * whoever is awake takes IOCBs. An issue wakes all threads by their transports, which lose no wake. What the requests took is told to the owner
 * in a step.
 *
 * A transport belongs to the thread of its lane. So what the owner wants of a lane that has a thread, the thread does between two steps.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "ring/lane.h"
#include "ring/seen.h"

struct worker {
	struct tn_executor *x;
	struct tn_lane *lane;
	struct tn_lane_transport *transport;
	pthread_t thread;
	bool leaves; /* the thread's */
	int (*call)(struct tn_lane *lane, void *arg); /* shared: what the owner waits for; NULL: nothing */
	void *arg;
};

struct tn_executor {
	struct tn_executor_opts o;
	const struct tn_lane_transport_ops *ops;
	const void *places; /* until all lanes are made */
	struct tn_lane_intake intake;
	struct tn_seen seen; /* with threads */
	pthread_mutex_t lock;
	pthread_cond_t answered;
	int status; /* under lock: of the last call, ... */
	struct tn_error error; /* ... and what is wrong */
	uint32_t n;
	struct worker worker[TN_EXECUTOR_THREADS_MAX];
};

/* ---- a lane ---------------------------------------------------------------------------------------------- */

static void observed(void *arg, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status)
{
	struct tn_executor *x = arg;

	if (tn_seen_add(&x->seen, device, op, bytes, latency_ns, status) && x->o.wake)
		x->o.wake(x->o.wake_arg);
}

static int set_up(struct worker *w)
{
	struct tn_executor *x = w->x;
	struct tn_lane_opts lo = {.intake = &x->intake, .ndevices = x->o.ndevices, .depth = x->o.depth,
				  .backlog = x->o.threads > 1 ? TN_LANE_BACKLOG : UINT32_MAX, .alloc = x->o.alloc, .clock = x->o.clock, .pins = x->o.pins, .direct = x->o.direct,
				  .observe = x->o.observe, .observe_arg = x->o.observe_arg};
	int err = x->ops->make(&x->o, x->places, (uint32_t)(w - x->worker), &w->transport);

	if (err)
		return err;
	w->transport->ops = x->ops;
	lo.transport = w->transport;
	if (x->o.threads == 0) {
		lo.exec = x->o.exec;
		return tn_lane_create(&lo, &w->lane);
	}
	lo.wake = x->o.wake;
	lo.wake_arg = x->o.wake_arg;
	if (x->o.observe) {
		lo.observe = observed;
		lo.observe_arg = x;
	}
	return tn_lane_create(&lo, &w->lane);
}

static void tear_down(struct worker *w)
{
	tn_lane_destroy(w->lane);
	if (w->transport)
		w->x->ops->unmake(w->transport);
}

/* ---- a thread ------------------------------------------------------------------------------------------- */

/* The owner's first call of a thread, and the last. */
static int arrive(struct tn_lane *none, void *arg)
{
	struct worker *w = arg;
	int err = set_up(w);

	w->leaves = err != 0;
	return err;
}

static int leave(struct tn_lane *lane, void *arg)
{
	((struct worker *)arg)->leaves = true;
	return 0;
}

static void answer(struct worker *w)
{
	struct tn_executor *x = w->x;
	int status = w->call(w->lane, w->arg);

	pthread_mutex_lock(&x->lock);
	x->status = status;
	x->error = *tn_error_last();
	__atomic_store_n(&w->call, NULL, __ATOMIC_RELAXED);
	pthread_cond_signal(&x->answered);
	pthread_mutex_unlock(&x->lock);
}

static void *thread_main(void *arg)
{
	struct worker *w = arg;
	struct tn_executor *x = w->x;
	bool any;

	pthread_setname_np(pthread_self(), "tenuto-ring");
	answer(w);
	while (!w->leaves) {
		any = tn_lane_go(w->lane);
		x->ops->poll(w->transport, any ? 0 : tn_lane_due(w->lane, 0));
		if (__atomic_load_n(&w->call, __ATOMIC_ACQUIRE))
			answer(w);
	}
	tear_down(w);
	return NULL;
}

static void kick(void *arg)
{
	struct tn_executor *x = arg;

	for (uint32_t i = 0; i < x->n; i++)
		x->ops->wake(x->worker[i].transport);
}

/* ---- the owner ------------------------------------------------------------------------------------------- */

/* Under lock: the call has its answer. */
static int await(struct worker *w)
{
	struct tn_executor *x = w->x;

	while (__atomic_load_n(&w->call, __ATOMIC_RELAXED))
		pthread_cond_wait(&x->answered, &x->lock);
	return x->status ? tn_fail_at(x->error.where, "", x->status, "%s", x->error.text) : 0;
}

/* The lock is kept until the thread is awaited: one that leaves takes its transport with it, which must not be woken any more then. */
static int ask(struct worker *w, int (*call)(struct tn_lane *lane, void *arg), void *arg)
{
	struct tn_executor *x = w->x;
	int err;

	if (x->o.threads == 0)
		return call(w->lane, arg);
	pthread_mutex_lock(&x->lock);
	w->arg = arg;
	__atomic_store_n(&w->call, call, __ATOMIC_RELEASE);
	x->ops->wake(w->transport);
	err = await(w);
	pthread_mutex_unlock(&x->lock);
	return err;
}

int tn_executor_ask(struct tn_executor *x, int (*call)(struct tn_lane *lane, void *arg), void *arg)
{
	int err = 0;

	for (uint32_t i = 0; i < x->n && !err; i++)
		err = ask(&x->worker[i], call, arg);
	return err;
}

static int make_bounces(struct tn_lane *lane, void *arg)
{
	return tn_lane_make_bounces(lane, *(uint32_t *)arg);
}

int tn_executor_make_bounces(struct tn_executor *x, uint32_t padded_bytes)
{
	return tn_executor_ask(x, make_bounces, &padded_bytes);
}

static int map(struct tn_lane *lane, void *arg)
{
	const struct iovec *memory = arg;

	return lane->o.transport->ops->map(lane->o.transport, memory->iov_base, memory->iov_len);
}

static int unmap(struct tn_lane *lane, void *arg)
{
	const struct iovec *memory = arg;

	lane->o.transport->ops->unmap(lane->o.transport, memory->iov_base, memory->iov_len);
	return 0;
}

bool tn_executor_maps(const struct tn_executor *x)
{
	return x->worker[0].transport->maps;
}

int tn_executor_map(struct tn_executor *x, void *memory, uint64_t bytes)
{
	struct iovec one = {memory, bytes};
	uint32_t n = 0;
	int err = 0;

	while (tn_executor_maps(x) && n < x->n && !err) {
		err = ask(&x->worker[n], map, &one);
		n += !err;
	}
	while (err && n > 0)
		ask(&x->worker[--n], unmap, &one);
	return err;
}

void tn_executor_unmap(struct tn_executor *x, void *memory, uint64_t bytes)
{
	struct iovec one = {memory, bytes};

	if (tn_executor_maps(x))
		tn_executor_ask(x, unmap, &one);
}

bool tn_executor_step(struct tn_executor *x)
{
	bool any;

	if (x->o.threads) {
		tn_seen_tell(&x->seen, x->o.observe, x->o.observe_arg);
		return false; /* what it is told asks for nothing else */
	}
	any = x->ops->poll(x->worker[0].transport, 0);
	return tn_lane_go(x->worker[0].lane) || any;
}

uint64_t tn_executor_due(const struct tn_executor *x, uint64_t now_ns)
{
	if (x->o.threads)
		return TN_FOREVER; /* the threads look after themselves */
	return x->ops->busy(x->worker[0].transport) ? now_ns : tn_lane_due(x->worker[0].lane, now_ns);
}

void tn_executor_stats(struct tn_executor *x, struct tn_executor_stats *stats)
{
	memset(stats, 0, sizeof(*stats));
	for (uint32_t i = 0; i < x->n; i++)
		tn_lane_stats_add(x->worker[i].lane, stats);
	stats->unobserved = x->o.threads ? tn_seen_lost(&x->seen) : 0;
}

/* ---- made and unmade -------------------------------------------------------------------------------------- */

void tn_executor_destroy(struct tn_executor *x)
{
	if (!x)
		return;
	if (x->o.threads)
		tn_ring_attach(x->o.ring, NULL, NULL);
	for (uint32_t i = 0; i < x->n; i++) {
		struct worker *w = &x->worker[i];

		if (x->o.threads) {
			ask(w, leave, w);
			pthread_join(w->thread, NULL);
		} else {
			tear_down(w);
		}
	}
	tn_lane_intake_fini(&x->intake, x->o.alloc);
	pthread_cond_destroy(&x->answered);
	pthread_mutex_destroy(&x->lock);
	tn_seen_fini(&x->seen);
	tn_put(x->o.alloc, x, sizeof(*x));
}

/* One after another, so that a first failure is the one that is told. */
static int start(struct worker *w)
{
	struct tn_executor *x = w->x;
	int err;

	if (x->o.threads == 0) {
		x->n++;
		return set_up(w);
	}
	w->call = arrive;
	w->arg = w;
	err = tn_thread_start(&w->thread, thread_main, w);
	if (err)
		return tn_fail(-err, "cannot start an executor's thread: %s", strerror(err));
	pthread_mutex_lock(&x->lock);
	err = await(w);
	pthread_mutex_unlock(&x->lock);
	if (err)
		pthread_join(w->thread, NULL);
	else
		x->n++;
	return err;
}

static int start_all(struct tn_executor *x)
{
	int err = tn_lane_intake_init(&x->intake, x->o.ring, x->o.alloc);

	if (!err && x->o.threads)
		err = tn_seen_init(&x->seen, x->o.alloc);
	for (uint32_t i = 0; i < (x->o.threads ? x->o.threads : 1) && !err; i++) {
		x->worker[i].x = x;
		err = start(&x->worker[i]);
	}
	if (!err && x->o.threads)
		tn_ring_attach(x->o.ring, kick, x);
	return err;
}

int tn_executor_create(const struct tn_executor_opts *o, const struct tn_lane_transport_ops *ops, const void *places,
		       struct tn_executor **out)
{
	struct tn_executor *x;
	int err;

	if (o->depth == 0 || o->threads > TN_EXECUTOR_THREADS_MAX || o->ndevices > TN_RING_DEVICES_MAX)
		return tn_fail(-EINVAL, "executor: depth %u, %u threads, %u devices: at least 1, at most %u, and at most %u", o->depth, o->threads,
			       o->ndevices, TN_EXECUTOR_THREADS_MAX, TN_RING_DEVICES_MAX);
	x = tn_get(o->alloc, sizeof(*x));
	if (!x)
		return tn_fail(-ENOMEM, "executor: no memory");
	x->o = *o;
	x->ops = ops;
	x->places = places;
	pthread_mutex_init(&x->lock, NULL);
	pthread_cond_init(&x->answered, NULL);
	err = start_all(x);
	if (err) {
		struct tn_error cause = *tn_error_last();

		tn_executor_destroy(x);
		return tn_fail_at(cause.where, "", err, "%s", cause.text);
	}
	*out = x;
	return 0;
}
