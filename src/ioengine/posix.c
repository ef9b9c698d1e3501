/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The POSIX engine: threads that call preadv and pwritev, for kernels that forbid io_uring.
 *
 * It is the fallback, and plain: one mutex, one queue of work, one of completions. It keeps the contract of
 * io/io.h to the letter, and does not try to be fast. It also works for an io_uring engine, on that engine's files: it
 * waits for the file system, or takes over all requests when the kernel does not serve the io_uring any longer.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "ioengine/engine.h"

struct posix {
	struct tn_ioengine e; /* the files are the owner's; workers read only those that they have requests for */
	const struct tn_clock *clock;
	const struct tn_alloc *alloc;
	uint32_t depth;
	uint32_t inflight;
	uint32_t nthreads; /* running */
	struct tn_waker *waker;
	void (*ended)(void *arg); /* tells the parent of the first of several completions */
	void *ended_arg;
	struct tn_iofiles own_files;
	struct tn_waker own_waker;
	/* Under lock: */
	pthread_mutex_t lock;
	pthread_cond_t work; /* todo is not empty, or stop */
	pthread_cond_t news; /* ready is not empty, or a wake */
	struct tn_list todo;
	struct tn_list ready;
	bool stop;
	bool signalled; /* there was a wake for the sleeping owner */
	pthread_t threads[64];
};

static ssize_t transfer(const struct posix *p, struct tn_io_req *req)
{
	int fd = tn_iofiles_fd(p->e.files, req->file);
	uint64_t offset = req->offset + req->transferred;
	const struct iovec *iov;
	struct iovec one;
	uint32_t n;

	iov = tn_ioxfer_next(req, &one, &n);
	return req->op == TN_IO_READ ? preadv(fd, iov, (int)n, (off_t)offset) : pwritev(fd, iov, (int)n, (off_t)offset);
}

static int perform(struct posix *p, struct tn_io_req *req)
{
	int more = 1;

	if (!tn_ioxfer_is(req) && req->op != TN_IO_SYNC)
		return tn_iofiles_do(p->e.files, req);
	while (more > 0) {
		ssize_t res;

		if (tn_ioxfer_is_cancelled(req))
			return -ECANCELED;
		res = req->op == TN_IO_SYNC ? fdatasync(tn_iofiles_fd(p->e.files, req->file)) : transfer(p, req);
		if (res < 0) {
			if (errno == EINTR || errno == EAGAIN)
				continue;
			return tn_ioxfer_failed(p->e.files, req, -errno);
		}
		more = req->op == TN_IO_SYNC ? 0 : tn_ioxfer_advance(p->e.files, req, (uint32_t)res);
	}
	return more;
}

/* Under lock: for the owner that sleeps in poll. */
static void tell_owner(void *arg)
{
	pthread_cond_signal(&((struct posix *)arg)->news);
}

static void *worker(void *arg)
{
	struct posix *p = arg;

	pthread_setname_np(pthread_self(), "tenuto-io");
	pthread_mutex_lock(&p->lock);
	for (;;) {
		struct tn_io_req *req = tn_ioqueue_pop(&p->todo);

		if (!req) {
			if (p->stop)
				break;
			pthread_cond_wait(&p->work, &p->lock);
			continue;
		}
		tn_ioxfer_of(req)->queued = false;
		pthread_mutex_unlock(&p->lock);
		req->issue_ns = tn_now_ns(p->clock);
		req->status = perform(p, req);
		pthread_mutex_lock(&p->lock);
		tn_ioqueue_put(&p->ready, req);
		if (tn_ioqueue_first(&p->ready) == req)
			p->ended(p->ended_arg);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static unsigned posix_submit(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	struct posix *p = (struct posix *)io;
	uint64_t now = tn_now_ns(p->clock);

	if (n > p->depth - p->inflight)
		n = p->depth - p->inflight;
	pthread_mutex_lock(&p->lock);
	for (unsigned k = 0; k < n; k++) {
		struct tn_io_req *req = reqs[k];

		req->status = tn_ioxfer_begin(p->e.files, req, p);
		req->issue_ns = now;
		tn_ioxfer_of(req)->queued = req->status == 0;
		tn_ioqueue_put(req->status ? &p->ready : &p->todo, req);
	}
	p->inflight += n;
	if (n == 1)
		pthread_cond_signal(&p->work);
	else if (n)
		pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	return n;
}

void tn_ioengine_posix_take(struct tn_io *io, struct tn_io_req *req)
{
	struct posix *p = (struct posix *)io;

	tn_ioxfer_of(req)->engine = p;
	p->inflight++;
	pthread_mutex_lock(&p->lock);
	tn_ioxfer_of(req)->queued = true;
	tn_ioqueue_put(&p->todo, req);
	pthread_cond_signal(&p->work);
	pthread_mutex_unlock(&p->lock);
}

static unsigned take_ready(struct posix *p, struct tn_io_req **done, unsigned max)
{
	unsigned n = 0;

	pthread_mutex_lock(&p->lock);
	while (n < max && !tn_list_empty(&p->ready))
		done[n++] = tn_ioqueue_pop(&p->ready);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < n; i++)
		tn_ioxfer_end(p->e.files, done[i]);
	p->inflight -= n;
	return n;
}

/* Waits until there is a completion or a wake, or the time is over. */
static void wait_for_news(struct posix *p, uint64_t ns)
{
	uint64_t until = tn_now_ns(&tn_clock_system) + ns;
	int err = 0;

	pthread_mutex_lock(&p->lock);
	while (tn_list_empty(&p->ready) && !p->signalled && !err)
		err = tn_cond_wait(&p->news, &p->lock, until);
	p->signalled = false;
	pthread_mutex_unlock(&p->lock);
}

static unsigned posix_poll(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	const uint64_t longest = 1000000000000u; /* keeps the sums of wait_for_news small; the loop goes on */
	struct posix *p = (struct posix *)io;
	uint64_t now, deadline;
	unsigned n = take_ready(p, done, max);

	if (n || max == 0 || timeout_ns == 0)
		return n;
	now = tn_now_ns(p->clock);
	if (__builtin_add_overflow(now, timeout_ns, &deadline))
		deadline = UINT64_MAX;
	for (; now < deadline; now = tn_now_ns(p->clock)) {
		bool woken = true;

		if (tn_waker_prepare(p->waker)) {
			wait_for_news(p, deadline - now < longest ? deadline - now : longest);
			woken = tn_waker_finish(p->waker);
		}
		n = take_ready(p, done, max);
		if (n || woken)
			return n;
	}
	return 0;
}

static int posix_cancel(struct tn_io *io, struct tn_io_req *req)
{
	struct posix *p = (struct posix *)io;

	if (tn_ioxfer_of(req)->engine != p)
		return tn_fail(-ENOENT, "the request is not in flight");
	pthread_mutex_lock(&p->lock);
	tn_ioxfer_cancel(req);
	if (tn_ioxfer_of(req)->queued) {
		tn_ioxfer_of(req)->queued = false;
		req->status = -ECANCELED;
		tn_ioqueue_put(&p->ready, req);
	}
	pthread_mutex_unlock(&p->lock);
	return 0;
}

void tn_ioengine_posix_signal(struct tn_io *io)
{
	struct posix *p = (struct posix *)io;

	pthread_mutex_lock(&p->lock);
	p->signalled = true;
	pthread_cond_signal(&p->news);
	pthread_mutex_unlock(&p->lock);
}

static void posix_wake(struct tn_io *io)
{
	if (tn_waker_wake(((struct posix *)io)->waker))
		tn_ioengine_posix_signal(io);
}

static void stop_threads(struct posix *p)
{
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	for (uint32_t i = 0; i < p->nthreads; i++)
		pthread_join(p->threads[i], NULL);
}

static void posix_destroy(struct tn_io *io)
{
	struct posix *p = (struct posix *)io;

	assert(p->inflight == 0);
	stop_threads(p);
	if (p->e.files == &p->own_files)
		tn_iofiles_fini(p->e.files);
	pthread_cond_destroy(&p->work);
	pthread_cond_destroy(&p->news);
	pthread_mutex_destroy(&p->lock);
	tn_put(p->alloc, p, sizeof(*p));
}

static const struct tn_io_ops posix_ops = {
	.size = sizeof(struct tn_io_ops),
	.abi = TN_IO_ABI,
	.name = "posix",
	.open = tn_ioengine_open,
	.close = tn_ioengine_close,
	.stat = tn_ioengine_stat,
	.allocate = tn_ioengine_allocate,
	.unlink = tn_ioengine_unlink,
	.submit = posix_submit,
	.poll = posix_poll,
	.cancel = posix_cancel,
	.lend = tn_ioengine_lend,
	.adopt = tn_ioengine_adopt,
	.wake = posix_wake,
	.destroy = posix_destroy,
};

static int start_threads(struct posix *p, uint32_t n)
{
	int err = 0;

	for (; p->nthreads < n && !err; p->nthreads += !err)
		err = tn_thread_start(&p->threads[p->nthreads], worker, p);
	if (err && p->nthreads == 0)
		return tn_fail(-err, "cannot start a thread: %s", strerror(err));
	return 0; /* fewer threads than asked for will do */
}

int tn_ioengine_posix_create_for(const struct tn_ioengine_opts *opts, const struct tn_ioposix_parent *parent,
				 struct tn_io **out)
{
	struct posix *p = tn_get(opts->alloc, sizeof(*p));
	int err;

	if (!p)
		return tn_fail(-ENOMEM, "no memory for the POSIX engine (%zu bytes)", sizeof(*p));
	p->e.io.ops = &posix_ops;
	p->clock = opts->clock;
	p->alloc = opts->alloc;
	p->depth = opts->depth;
	tn_iofiles_init(&p->own_files, opts->log);
	p->e.files = parent ? parent->files : &p->own_files;
	p->waker = parent && parent->waker ? parent->waker : &p->own_waker;
	p->ended = parent && parent->ended ? parent->ended : tell_owner;
	p->ended_arg = parent && parent->ended ? parent->arg : p;
	tn_list_init(&p->todo);
	tn_list_init(&p->ready);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	tn_cond_init(&p->news);
	err = start_threads(p, opts->threads);
	if (err) {
		posix_destroy(&p->e.io);
		return err;
	}
	*out = &p->e.io;
	return 0;
}

int tn_ioengine_posix_create(const struct tn_ioengine_opts *opts, struct tn_io **out)
{
	return tn_ioengine_posix_create_for(opts, NULL, out);
}
