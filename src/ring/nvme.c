/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See nvme.h. Each worker is a lane on pairs of its own, of whom the owner steps the only one, or a thread each. Workers share the ring's
 * queues: whoever is awake takes IOCBs, and an issue wakes them all. The owner's calls have a worker's lane and pairs to themselves by its lock.
 */
#include "ring/nvme.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/futex.h"
#include "base/thread.h"
#include "nvme/pair.h"
#include "ring/commands.h"
#include "ring/lane.h"
#include "ring/seen.h"


struct executor;

struct worker {
	struct executor *x;
	struct tn_lane_commands *commands;
	struct tn_lane *lane;
	uint64_t told; /* IOCBs that had ended when the owner was woken last */
	pthread_t thread;
	bool started;
	pthread_mutex_t lock; /* of lane and commands while the thread has its turn */
	uint32_t visitors;    /* shared: calls of the owner's that want the lock */
};

struct executor {
	struct tn_executor ex;
	struct tn_executor_nvme_opts o;
	struct tn_lane_intake intake;
	struct tn_seen seen; /* with threads */
	uint32_t wakes;	     /* shared */
	bool stop;	     /* shared */
	uint32_t n;
	struct worker worker[];
};

static struct executor *of(struct tn_executor *ex)
{
	return (struct executor *)ex;
}

/* The owner has the worker for himself, until leave. */
static void enter(struct worker *w)
{
	__atomic_fetch_add(&w->visitors, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&w->lock);
	__atomic_fetch_sub(&w->visitors, 1, __ATOMIC_RELAXED);
}

static void leave(struct worker *w)
{
	pthread_mutex_unlock(&w->lock);
}

/* ---- a thread --------------------------------------------------------------------------------------------------------- */

static void kick(void *arg)
{
	struct executor *x = arg;

	__atomic_fetch_add(&x->wakes, 1, __ATOMIC_RELEASE);
	tn_futex_wake(&x->wakes);
}

static void observed(void *arg, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status)
{
	struct executor *x = arg;

	if (tn_seen_add(&x->seen, device, op, bytes, latency_ns, status) && x->o.wake)
		x->o.wake(x->o.wake_arg);
}

/* At once: behind the IOCB that ended there may be much to verify. */
static void tell_ended(struct worker *w)
{
	if (w->lane->stats.iocbs != w->told && w->x->o.wake)
		w->x->o.wake(w->x->o.wake_arg);
	w->told = w->lane->stats.iocbs;
}

static void *thread_main(void *arg)
{
	struct worker *w = arg;
	struct executor *x = w->x;

	pthread_setname_np(pthread_self(), "tenuto-nvme");
	for (;;) {
		uint32_t wakes = __atomic_load_n(&x->wakes, __ATOMIC_ACQUIRE); /* first: a kick from now on is no sleep's loss */
		bool any, busy;
		uint64_t due;

		if (__atomic_load_n(&x->stop, __ATOMIC_ACQUIRE))
			return NULL;
		pthread_mutex_lock(&w->lock);
		any = tn_lane_commands_turn(w->commands);
		tell_ended(w);
		any |= tn_lane_go(w->lane);
		tell_ended(w);
		busy = tn_lane_commands_busy(w->commands);
		due = tn_lane_due(w->lane, tn_now_ns(x->o.clock));
		pthread_mutex_unlock(&w->lock);
		if (!any && !busy)
			tn_futex_wait(&x->wakes, wakes, due);
		else if (!any || __atomic_load_n(&w->visitors, __ATOMIC_RELAXED))
			tn_lane_commands_pause(w->commands);
	}
}

/* ---- the owner -------------------------------------------------------------------------------------------------------- */

static int nvme_make_bounces(struct tn_executor *ex, uint32_t padded_bytes)
{
	struct executor *x = of(ex);
	int err = 0;

	for (uint32_t i = 0; i < x->n && !err; i++) {
		enter(&x->worker[i]);
		err = tn_lane_make_bounces(x->worker[i].lane, padded_bytes);
		leave(&x->worker[i]);
	}
	return err;
}

static void unmap_first(struct executor *x, uint32_t n, void *memory, uint64_t bytes)
{
	for (uint32_t i = 0; i < n; i++) {
		enter(&x->worker[i]);
		tn_lane_commands_unmap(x->worker[i].commands, memory, bytes);
		leave(&x->worker[i]);
	}
}

static int nvme_map(struct tn_executor *ex, void *memory, uint64_t bytes)
{
	struct executor *x = of(ex);
	int err = 0;
	uint32_t n;

	for (n = 0; n < x->n && !err; n += !err) {
		enter(&x->worker[n]);
		err = tn_lane_commands_map(x->worker[n].commands, memory, bytes);
		leave(&x->worker[n]);
	}
	if (err)
		unmap_first(x, n, memory, bytes);
	return err;
}

static void nvme_unmap(struct tn_executor *ex, void *memory, uint64_t bytes)
{
	unmap_first(of(ex), of(ex)->n, memory, bytes);
}

static bool nvme_step(struct tn_executor *ex)
{
	struct executor *x = of(ex);
	struct worker *w = &x->worker[0];
	bool any;

	if (x->o.threads) {
		if (x->o.observe)
			tn_seen_tell(&x->seen, x->o.observe, x->o.observe_arg);
		return false; /* what it is told asks for nothing else */
	}
	any = tn_lane_commands_turn(w->commands);
	return tn_lane_go(w->lane) || any;
}

static uint64_t nvme_due(struct tn_executor *ex, uint64_t now_ns)
{
	struct executor *x = of(ex);

	if (x->o.threads)
		return TN_FOREVER;
	return tn_lane_commands_busy(x->worker[0].commands) ? now_ns : tn_lane_due(x->worker[0].lane, now_ns);
}

static void nvme_stats(struct tn_executor *ex, struct tn_executor_stats *stats)
{
	struct executor *x = of(ex);

	memset(stats, 0, sizeof(*stats));
	for (uint32_t i = 0; i < x->n; i++)
		tn_lane_stats_add(x->worker[i].lane, stats);
	stats->unobserved = x->o.threads ? tn_seen_lost(&x->seen) : 0;
}

void tn_executor_nvme_pair_stats(struct tn_executor *ex, uint32_t device, struct tn_nvme_pair_stats *stats)
{
	struct executor *x = of(ex);

	memset(stats, 0, sizeof(*stats));
	for (uint32_t i = 0; i < x->n; i++) {
		struct tn_nvme_pair_stats one;

		enter(&x->worker[i]);
		tn_lane_commands_pair_stats(x->worker[i].commands, device, &one);
		leave(&x->worker[i]);
		stats->commands += one.commands;
		stats->bells += one.bells;
		stats->late += one.late;
		stats->aborted += one.aborted;
		stats->resets += one.resets;
		stats->strange += one.strange;
	}
}

/* ---- the executor ----------------------------------------------------------------------------------------------------- */

static size_t executor_bytes(uint32_t workers)
{
	return sizeof(struct executor) + workers * sizeof(struct worker);
}

static void nvme_destroy(struct tn_executor *ex)
{
	struct executor *x = of(ex);
	const struct tn_alloc *a = x->o.alloc;

	tn_ring_attach(x->o.ring, NULL, NULL);
	__atomic_store_n(&x->stop, true, __ATOMIC_RELEASE);
	kick(x);
	for (uint32_t i = 0; i < x->n; i++)
		if (x->worker[i].started)
			pthread_join(x->worker[i].thread, NULL);
	for (uint32_t i = 0; i < x->n; i++) {
		struct worker *w = &x->worker[i];

		tn_lane_destroy(w->lane);
		tn_lane_commands_destroy(w->commands);
		pthread_mutex_destroy(&w->lock);
	}
	tn_lane_intake_fini(&x->intake, a);
	tn_seen_fini(&x->seen);
	tn_put(a, x, executor_bytes(x->n));
}

static const struct tn_executor_ops nvme_ops = {
	.size = sizeof(struct tn_executor_ops),
	.abi = TN_EXECUTOR_ABI,
	.name = "nvme",
	.make_bounces = nvme_make_bounces,
	.map = nvme_map,
	.unmap = nvme_unmap,
	.step = nvme_step,
	.due = nvme_due,
	.stats = nvme_stats,
	.destroy = nvme_destroy,
};

/* The number-th worker: its lane, and a pair of each drive. */
static int make_worker(struct worker *w, uint32_t number)
{
	struct executor *x = w->x;
	const struct tn_executor_nvme_opts *o = &x->o;
	const struct tn_lane_commands_opts co = {.depth = o->depth, .ndrives = o->ndrives, .command_ns = o->command_ns, .alloc = o->alloc,
						 .clock = o->clock, .log = o->log};
	struct tn_lane_opts lo = {.intake = &x->intake, .depth = o->depth, .backlog = o->threads > 1 ? TN_LANE_BACKLOG : UINT32_MAX, .alloc = o->alloc,
				  .clock = o->clock, .exec = o->threads ? NULL : o->exec, .observe = o->observe, .observe_arg = o->observe_arg};
	uint32_t align;
	int err = tn_lane_commands_create(&co, &w->commands);

	if (err)
		return err;
	lo.transport = tn_lane_commands_transport(w->commands);
	if (o->threads && o->observe) {
		lo.observe = observed;
		lo.observe_arg = x;
	}
	err = tn_lane_create(&lo, &w->lane);
	for (uint32_t i = 0; i < o->ndrives && !err; i++) {
		err = tn_lane_commands_add(w->commands, &o->drives[i], o->drives[i].queue + number, &align);
		err = err ? err : tn_lane_device_add(w->lane, align);
	}
	return err;
}

static int start_thread(struct worker *w)
{
	int rc = tn_thread_start(&w->thread, thread_main, w);

	if (rc)
		return tn_fail(-rc, "cannot start an executor's thread: %s", strerror(rc));
	w->started = true;
	return 0;
}

/* Threads begin once all that they share is there. */
static int set_up(struct executor *x)
{
	int err = x->o.threads ? tn_seen_init(&x->seen, x->o.alloc) : 0;

	if (!err)
		err = tn_lane_intake_init(&x->intake, x->o.ring, x->o.alloc);
	for (uint32_t i = 0; i < x->n && !err; i++)
		err = make_worker(&x->worker[i], i);
	for (uint32_t i = 0; i < x->o.threads && !err; i++)
		err = start_thread(&x->worker[i]);
	if (!err && x->o.threads)
		tn_ring_attach(x->o.ring, kick, x);
	return err;
}

int tn_executor_nvme_create(const struct tn_executor_nvme_opts *o, struct tn_executor **out)
{
	uint32_t n = o->threads ? o->threads : 1;
	struct executor *x;
	int err;

	if (o->depth == 0 || o->ndrives == 0 || o->threads > TN_EXECUTOR_THREADS_MAX)
		return tn_fail(-EINVAL, "executor: depth %u, %u drives, %u threads: at most %u", o->depth, o->ndrives, o->threads,
			       TN_EXECUTOR_THREADS_MAX);
	x = tn_get(o->alloc, executor_bytes(n));
	if (!x)
		return tn_fail(-ENOMEM, "executor: no memory");
	x->ex.ops = &nvme_ops;
	x->o = *o;
	x->n = n;
	for (uint32_t i = 0; i < n; i++) {
		x->worker[i].x = x;
		pthread_mutex_init(&x->worker[i].lock, NULL);
	}
	err = set_up(x);
	if (err) {
		struct tn_error cause = *tn_error_last();

		nvme_destroy(&x->ex);
		return tn_fail_at(cause.where, "", err, "%s", cause.text);
	}
	*out = &x->ex;
	return 0;
}
