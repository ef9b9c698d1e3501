/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that wait for the file system, so that the owner of an io_uring does not. Each file has its own, because a file
 * system that hangs must not hold up the files of another. Each file has two: one reserves space, which may take long; the
 * other asks for the file's state, as every commit of a log does. The first request that needs a thread starts it; the file's
 * close ends it.
 *
 * They are threads, not IORING_OP_FALLOCATE and IORING_OP_STATX, because an allocation also truncates (after -ENOSPC, and to grow
 * a file where no space can be reserved), and io_uring can do that only since Linux 6.9.
 */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/error.h"
#include "ioengine/engine.h"

static void *work(void *arg)
{
	struct tn_filework *w = arg;
	struct tn_fileworks *all = w->all;

	pthread_setname_np(pthread_self(), "tenuto-file");
	pthread_mutex_lock(&w->lock);
	for (;;) {
		struct tn_io_req *req = tn_ioqueue_pop(&w->todo), *old;

		if (!req) {
			if (w->stop)
				break;
			pthread_cond_wait(&w->news, &w->lock);
			continue;
		}
		pthread_mutex_unlock(&w->lock);
		req->status = tn_iofiles_do(all->files, req);
		old = __atomic_load_n(&all->done, __ATOMIC_RELAXED);
		do
			tn_ioxfer_of(req)->next = old;
		while (!__atomic_compare_exchange_n(&all->done, &old, req, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
		all->wake(all->arg);
		pthread_mutex_lock(&w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* The thread takes no signals: signals are the application's. */
static int start(struct tn_fileworks *all, struct tn_filework *w)
{
	sigset_t every, old;
	int err;

	w->all = all;
	w->stop = false;
	tn_ioqueue_init(&w->todo);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->news, NULL);
	sigfillset(&every);
	pthread_sigmask(SIG_SETMASK, &every, &old);
	err = pthread_create(&w->thread, NULL, work, w);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	w->started = err == 0;
	if (err) {
		pthread_mutex_destroy(&w->lock);
		pthread_cond_destroy(&w->news);
		return tn_fail(-err, "cannot start a thread: %s", strerror(err));
	}
	return 0;
}

void tn_fileworks_init(struct tn_fileworks *all, struct tn_iofiles *files, void (*wake)(void *arg), void *arg)
{
	*all = (struct tn_fileworks){.files = files, .wake = wake, .arg = arg};
}

int tn_fileworks_post(struct tn_fileworks *all, struct tn_io_req *req)
{
	struct tn_filework *of = all->of[req->file], *w = &of[req->op == TN_IO_ALLOCATE];
	int err = 0;

	/* Starts all threads of the file at once, while the store opens: starting a thread may take long, too. */
	for (uint32_t i = 0; i < TN_FILEWORKS_EACH && !err; i++)
		err = of[i].started ? 0 : start(all, &of[i]);
	if (err)
		return err;
	all->out++;
	pthread_mutex_lock(&w->lock);
	tn_ioqueue_push(&w->todo, req);
	pthread_cond_signal(&w->news);
	pthread_mutex_unlock(&w->lock);
	return 0;
}

struct tn_io_req *tn_fileworks_take(struct tn_fileworks *all)
{
	struct tn_io_req *list = __atomic_exchange_n(&all->done, NULL, __ATOMIC_ACQUIRE);

	for (struct tn_io_req *r = list; r; r = tn_ioxfer_of(r)->next)
		all->out--;
	return list;
}

static void stop(struct tn_filework *w)
{
	if (!w->started)
		return;
	pthread_mutex_lock(&w->lock);
	assert(!w->todo.head); /* a file is closed when nothing of it is in flight */
	w->stop = true;
	pthread_cond_signal(&w->news);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->news);
	w->started = false;
}

void tn_fileworks_stop(struct tn_fileworks *all, uint32_t file)
{
	for (uint32_t i = 0; i < TN_FILEWORKS_EACH; i++)
		stop(&all->of[file][i]);
}

void tn_fileworks_fini(struct tn_fileworks *all)
{
	for (uint32_t i = 0; i < TN_IO_FILES_MAX; i++)
		tn_fileworks_stop(all, i);
}
