/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker threads for checksums and copies. The owner puts jobs into a ring, from which all workers take, and the owner, too, when it has nothing
 * else to do: a device may answer many requests at once, and then the caller waits for nothing but these jobs. Finished jobs come back in a stack.
 * Nobody waits for a lock. (Concurrency Kit has such queues, but its inline assembly hides the hand-over from ThreadSanitizer.)
 */
#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/thread.h"
#include "core/core.h"
#include "core/workers.h"

#define WAKE_EVERY_NS 50000u /* the owner, while there are more jobs */
#define HELP_BYTES (2ull << 20) /* the owner does nothing larger: a quarter of a millisecond */

struct worker {
	struct tn_workers *workers;
	pthread_t thread;
	uint32_t work; /* shared: futex word; odd while asleep */
};

struct tn_workers {
	struct tn_exec exec;
	const struct tn_alloc *alloc;
	uint32_t wanted, n; /* threads that there is memory for, that run */
	uint32_t stop;
	struct tn_job **ring; /* shared: [begun, posted) wait */
	uint32_t jobs;	      /* as many as may be under way: the ring is never full; a power of 2 */
	uint64_t posted;      /* shared, the owner's */
	uint64_t begun;	      /* shared: who raises it has the job */
	struct tn_job *finished; /* shared: newest first */
	struct tn_job *taken;	 /* the owner's: of those finished, oldest first */
	struct tn_io *io;	 /* that the owner sleeps in */
	struct worker worker[];
};

static struct tn_job *take_all(struct tn_job **head)
{
	struct tn_job *list = __atomic_exchange_n(head, NULL, __ATOMIC_ACQUIRE), *out = NULL;

	while (list) { /* newest first -> oldest first */
		struct tn_job *next = list->next;

		list->next = out;
		out = list;
		list = next;
	}
	return out;
}

static void push(struct tn_job **head, struct tn_job *job)
{
	struct tn_job *old = __atomic_load_n(head, __ATOMIC_RELAXED);

	do
		job->next = old;
	while (!__atomic_compare_exchange_n(head, &old, job, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
}

/* The job that has waited longest; NULL: none waits. Any thread. A slot that is filled again meanwhile belongs to a later number, so the exchange fails. */
static struct tn_job *take(struct tn_workers *ws)
{
	uint64_t at = __atomic_load_n(&ws->begun, __ATOMIC_SEQ_CST);

	while (at != __atomic_load_n(&ws->posted, __ATOMIC_SEQ_CST)) {
		struct tn_job *job = __atomic_load_n(&ws->ring[at % ws->jobs], __ATOMIC_RELAXED);

		if (__atomic_compare_exchange_n(&ws->begun, &at, at + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return job;
	}
	return NULL;
}

static void run(struct tn_workers *ws, struct tn_job *job)
{
	job->run(job);
	push(&ws->finished, job);
}

static void sleep_until_work(struct worker *w)
{
	struct tn_workers *ws = w->workers;
	uint32_t word = __atomic_add_fetch(&w->work, 1, __ATOMIC_SEQ_CST); /* odd: asleep */

	if (__atomic_load_n(&ws->begun, __ATOMIC_SEQ_CST) == __atomic_load_n(&ws->posted, __ATOMIC_SEQ_CST) &&
	    !__atomic_load_n(&ws->stop, __ATOMIC_SEQ_CST))
		tn_futex_wait(&w->work, word, TN_FOREVER);
	/*
	 * Even again, by the one who wakes or, if nobody did, by ourselves: in one step, because a waker between two
	 * would leave it odd while awake, and from then on nobody would ever be woken.
	 */
	__atomic_compare_exchange_n(&w->work, &word, word + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

/*
 * The owner takes all finished jobs whenever it is woken, and on a busy machine each of its turns takes the CPU from the worker. So
 * it is woken for the first job, for the last one, and every WAKE_EVERY_NS between.
 */
static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct tn_workers *ws = w->workers;
	uint64_t woken = 0;

	while (!__atomic_load_n(&ws->stop, __ATOMIC_ACQUIRE)) {
		struct tn_job *job = take(ws);

		if (!job)
			sleep_until_work(w);
		while (job) {
			uint64_t now;

			run(ws, job);
			job = take(ws);
			now = tn_now_ns(&tn_clock_system);
			if (!job || now - woken >= WAKE_EVERY_NS) {
				tn_io_wake(ws->io);
				woken = now;
			}
		}
	}
	return NULL;
}

/* False: it is awake, and looks for a job before it sleeps. */
static bool wake_worker(struct worker *w)
{
	uint32_t word = __atomic_load_n(&w->work, __ATOMIC_SEQ_CST);

	if (!(word & 1) || !__atomic_compare_exchange_n(&w->work, &word, word + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return false;
	tn_futex_wake(&w->work);
	return true;
}

static void post(struct tn_exec *exec, struct tn_job *job)
{
	struct tn_workers *ws = (struct tn_workers *)exec;
	uint64_t at = ws->posted;

	assert(at - __atomic_load_n(&ws->begun, __ATOMIC_SEQ_CST) < ws->jobs);
	__atomic_store_n(&ws->ring[at % ws->jobs], job, __ATOMIC_RELAXED);
	__atomic_store_n(&ws->posted, at + 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < ws->n; i++)
		if (wake_worker(&ws->worker[i]))
			return;
}

bool tn_workers_help(struct tn_workers *ws)
{
	uint64_t at = __atomic_load_n(&ws->begun, __ATOMIC_SEQ_CST);

	while (at != ws->posted) {
		struct tn_job *job = ws->ring[at % ws->jobs]; /* if a worker begins it now, it is there until the owner takes it back */

		if (job->bytes > HELP_BYTES)
			return false;
		if (!__atomic_compare_exchange_n(&ws->begun, &at, at + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			continue;
		run(ws, job);
		return true;
	}
	return false;
}

static struct tn_job *next(struct tn_exec *exec)
{
	struct tn_workers *ws = (struct tn_workers *)exec;
	struct tn_job *job = ws->taken;

	if (!job && __atomic_load_n(&ws->finished, __ATOMIC_RELAXED))
		job = take_all(&ws->finished);
	ws->taken = job ? job->next : NULL;
	return job;
}

int tn_workers_create(uint32_t n, uint32_t jobs, const struct tn_alloc *alloc, struct tn_io *io, struct tn_workers **out)
{
	struct tn_workers *ws = tn_get(alloc, sizeof(*ws) + n * sizeof(struct worker));

	if (!ws)
		return tn_fail(-ENOMEM, "no memory for %u workers", n);
	ws->alloc = alloc;
	ws->wanted = n;
	for (ws->jobs = 1; ws->jobs < jobs;)
		ws->jobs *= 2;
	ws->ring = tn_get(alloc, ws->jobs * sizeof(*ws->ring));
	if (!ws->ring) {
		tn_workers_destroy(ws);
		return tn_fail(-ENOMEM, "no memory for %u jobs of workers", jobs);
	}
	ws->exec.post = post;
	ws->exec.next = next;
	ws->io = io;
	for (ws->n = 0; ws->n < n; ws->n++) {
		struct worker *w = &ws->worker[ws->n];
		int rc;

		w->workers = ws;
		rc = tn_thread_start(&w->thread, worker_main, w);
		if (rc) {
			tn_workers_destroy(ws);
			return tn_fail(-rc, "cannot start worker thread %u (errno %d)", ws->n, rc);
		}
		pthread_setname_np(w->thread, "tenuto-worker");
	}
	*out = ws;
	return 0;
}

void tn_workers_destroy(struct tn_workers *ws)
{
	if (!ws)
		return;
	__atomic_store_n(&ws->stop, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < ws->n; i++) {
		wake_worker(&ws->worker[i]);
		pthread_join(ws->worker[i].thread, NULL);
	}
	assert(ws->begun == ws->posted);
	tn_put(ws->alloc, ws->ring, ws->jobs * sizeof(*ws->ring));
	tn_put(ws->alloc, ws, sizeof(*ws) + ws->wanted * sizeof(struct worker));
}

struct tn_exec *tn_workers_exec(struct tn_workers *ws)
{
	return &ws->exec;
}
