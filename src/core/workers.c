/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker threads for checksums and copies: one lock-free stack of jobs each way and worker, so that the owner
 * never waits for a lock. (Concurrency Kit has such queues, but its inline assembly hides the
 * hand-over from ThreadSanitizer; an exchange of a list head is all that is needed here.)
 */
#include <errno.h>
#include <linux/futex.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/thread.h"
#include "core/core.h"

#define WAKE_EVERY_NS 50000u /* the owner, while there are more jobs */

struct worker {
	struct tn_workers *workers;
	pthread_t thread;
	struct tn_job *inbox; /* shared: newest first */
	uint32_t work;        /* shared: futex word; odd while asleep */
	uint32_t backlog;     /* shared: jobs posted and not finished */
};

struct tn_workers {
	struct tn_exec exec;
	const struct tn_alloc *alloc;
	uint32_t wanted, n; /* threads that there is memory for, that run */
	uint32_t stop;
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

static void sleep_until_work(struct worker *w)
{
	uint32_t word = __atomic_add_fetch(&w->work, 1, __ATOMIC_SEQ_CST); /* odd: asleep */

	if (!__atomic_load_n(&w->inbox, __ATOMIC_SEQ_CST) && !__atomic_load_n(&w->workers->stop, __ATOMIC_SEQ_CST))
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
	uint64_t woken = 0;

	while (!__atomic_load_n(&w->workers->stop, __ATOMIC_ACQUIRE)) {
		struct tn_job *job = take_all(&w->inbox);

		if (!job) {
			sleep_until_work(w);
			continue;
		}
		while (job) {
			struct tn_job *next = job->next;
			uint64_t now;

			job->run(job);
			push(&w->workers->finished, job);
			__atomic_sub_fetch(&w->backlog, 1, __ATOMIC_RELAXED);
			job = next ? next : take_all(&w->inbox);
			now = tn_now_ns(&tn_clock_system);
			if (!job || now - woken >= WAKE_EVERY_NS) {
				tn_io_wake(w->workers->io);
				woken = now;
			}
		}
	}
	return NULL;
}

static void wake_worker(struct worker *w)
{
	uint32_t word = __atomic_load_n(&w->work, __ATOMIC_SEQ_CST);

	if ((word & 1) && __atomic_compare_exchange_n(&w->work, &word, word + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		tn_futex_wake(&w->work);
}

static void post(struct tn_exec *exec, struct tn_job *job)
{
	struct tn_workers *ws = (struct tn_workers *)exec;
	struct worker *best = &ws->worker[0];

	for (uint32_t i = 1; i < ws->n; i++)
		if (__atomic_load_n(&ws->worker[i].backlog, __ATOMIC_RELAXED) <
		    __atomic_load_n(&best->backlog, __ATOMIC_RELAXED))
			best = &ws->worker[i];
	__atomic_add_fetch(&best->backlog, 1, __ATOMIC_RELAXED);
	push(&best->inbox, job);
	wake_worker(best);
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

int tn_workers_create(uint32_t n, const struct tn_alloc *alloc, struct tn_io *io, struct tn_workers **out)
{
	struct tn_workers *ws = tn_get(alloc, sizeof(*ws) + n * sizeof(struct worker));

	if (!ws)
		return tn_fail(-ENOMEM, "no memory for %u workers", n);
	ws->alloc = alloc;
	ws->wanted = n;
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
	tn_put(ws->alloc, ws, sizeof(*ws) + ws->wanted * sizeof(struct worker));
}

struct tn_exec *tn_workers_exec(struct tn_workers *ws)
{
	return &ws->exec;
}
