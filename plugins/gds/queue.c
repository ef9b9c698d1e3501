/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls.h"
#include "driver.h"

/* Pieces of a transfer that a stream has taken. */
struct task {
	struct tn_device_file_transfer *transfer;
	const struct iovec *piece;
	uint32_t n;
	uint64_t offset; /* in the file */
	int status;
	char detail[sizeof(((struct tn_device_file_transfer *)0)->detail)];
};

struct tn_device_file_queue {
	enum tn_device_file_calls calls;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct tn_device_file_transfer *first, *last; /* with pieces that nobody has taken */
	bool ends;
	uint32_t nthreads, ncallers;
	pthread_t thread[TN_DEVICE_FILE_STREAMS_MAX];
	struct gds_caller *caller[TN_DEVICE_FILE_STREAMS_MAX]; /* by stream; each thread takes the next one */
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- pieces: with the lock -------------------------------------------------------------------------- */

static bool is_taken(const struct tn_device_file_transfer *t)
{
	return t->status || t->queue.begun == t->npieces;
}

/* The next pieces of the first transfer; false: there is none. */
static bool take(struct tn_device_file_queue *q, struct task *task)
{
	struct tn_device_file_transfer *t = q->first;
	uint32_t most = gds_calls_most(q->calls), left = t ? t->npieces - t->queue.begun : 0;

	if (!t)
		return false;
	if (t->queue.begun == 0)
		t->began_ns = now_ns();
	*task = (struct task){.transfer = t, .piece = &t->piece[t->queue.begun], .n = left < most ? left : most, .offset = t->offset + t->queue.moved};
	for (uint32_t i = 0; i < task->n; i++)
		t->queue.moved += task->piece[i].iov_len;
	t->queue.begun += task->n;
	t->queue.under_way++;
	if (is_taken(t))
		q->first = t->queue.next;
	return true;
}

/* Nobody begins pieces of a transfer that has failed. */
static void drop(struct tn_device_file_queue *q, const struct tn_device_file_transfer *t)
{
	struct tn_device_file_transfer **at = &q->first;

	q->last = NULL;
	while (*at) {
		if (*at == t) {
			*at = t->queue.next;
		} else {
			q->last = *at;
			at = &(*at)->queue.next;
		}
	}
}

/* Whether it was the last one of its transfer. */
static bool end(struct tn_device_file_queue *q, const struct task *task)
{
	struct tn_device_file_transfer *t = task->transfer;

	t->queue.under_way--;
	if (task->status && !t->status) {
		if (!is_taken(t))
			drop(q, t);
		t->status = task->status;
		memcpy(t->detail, task->detail, sizeof(t->detail));
	}
	return t->queue.under_way == 0 && is_taken(t);
}

/* ---- a stream --------------------------------------------------------------------------------------- */

static void *run(void *arg)
{
	struct tn_device_file_queue *q = arg;
	struct gds_caller *caller;
	struct task task;
	bool over;

	pthread_mutex_lock(&q->lock);
	caller = q->caller[q->ncallers++];
	while (!q->ends) {
		if (!take(q, &task)) {
			pthread_cond_wait(&q->more, &q->lock);
			continue;
		}
		pthread_mutex_unlock(&q->lock);
		task.status = gds_caller_move(caller, task.transfer->file, task.piece, task.n, task.offset, task.transfer->write != 0, task.detail,
					      sizeof(task.detail));
		pthread_mutex_lock(&q->lock);
		over = end(q, &task);
		if (over) {
			pthread_mutex_unlock(&q->lock);
			task.transfer->done(task.transfer);
			pthread_mutex_lock(&q->lock);
		}
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

/* A thread that takes no signals: they are the program's. */
static int start(struct tn_device_file_queue *q)
{
	sigset_t all, before;
	int rc;

	q->caller[q->nthreads] = gds_caller_create(q->calls);
	if (!q->caller[q->nthreads])
		return -ENOMEM;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&q->thread[q->nthreads], NULL, run, q);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		gds_caller_destroy(q->caller[q->nthreads]);
	else
		q->nthreads++;
	return -rc;
}

/* ---- the calls -------------------------------------------------------------------------------------- */

void gds_queue_destroy(struct tn_device_file_queue *q)
{
	pthread_mutex_lock(&q->lock);
	q->ends = true;
	pthread_cond_broadcast(&q->more);
	pthread_mutex_unlock(&q->lock);
	for (uint32_t i = 0; i < q->nthreads; i++)
		pthread_join(q->thread[i], NULL);
	for (uint32_t i = 0; i < q->nthreads; i++)
		gds_caller_destroy(q->caller[i]);
	pthread_cond_destroy(&q->more);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

int gds_queue_create(enum tn_device_file_calls calls, uint32_t streams, struct tn_device_file_queue **out, char *detail, size_t detail_bytes)
{
	struct tn_device_file_queue *q;
	int rc = 0;

	if (!gds_library())
		return gds_not_started(detail, detail_bytes);
	if (streams == 0 || streams > TN_DEVICE_FILE_STREAMS_MAX) {
		snprintf(detail, detail_bytes, "%u streams of a queue: 1 to %u", streams, TN_DEVICE_FILE_STREAMS_MAX);
		return -EINVAL;
	}
	rc = gds_calls_check(calls, detail, detail_bytes);
	q = rc ? NULL : calloc(1, sizeof(*q));
	if (rc)
		return rc;
	if (!q) {
		snprintf(detail, detail_bytes, "no memory for a queue");
		return -ENOMEM;
	}
	q->calls = calls;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->more, NULL);
	for (uint32_t i = 0; i < streams && !rc; i++)
		rc = start(q);
	if (rc) {
		snprintf(detail, detail_bytes, "no thread or no memory for stream %u of %u: allow this process more", q->nthreads, streams);
		gds_queue_destroy(q);
		return rc;
	}
	*out = q;
	return 0;
}

void gds_queue_submit(struct tn_device_file_queue *q, struct tn_device_file_transfer *t)
{
	t->status = 0;
	t->detail[0] = '\0';
	t->queue.next = NULL;
	t->queue.moved = 0;
	t->queue.begun = t->queue.under_way = 0;
	pthread_mutex_lock(&q->lock);
	if (q->first)
		q->last->queue.next = t;
	else
		q->first = t;
	q->last = t;
	if (t->npieces > 1)
		pthread_cond_broadcast(&q->more);
	else
		pthread_cond_signal(&q->more);
	pthread_mutex_unlock(&q->lock);
}
