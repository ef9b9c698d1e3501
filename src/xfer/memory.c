/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory backend: copies between addresses of this process, and between this process and another one of the machine: by memcpy where the agent has mapped the
 * peer's memfd, else by process_vm_readv and process_vm_writev (CMA).
 *
 * A small job is copied within post, a large one by threads, which share its pieces. A copy is made in steps of STEP_BYTES: a job that is stopped ends after the step
 * that runs. Nobody but the thread that copies moves bytes, so what has ended cannot move any more, also if the other process is stopped.
 *
 * Another process is known by a random mark at an address in it: both are in the identity. The mark is read anew before each step, so that a process that got the number
 * of one that died is not written to. The kernel allows CMA to processes of the same user, unless Yama (ptrace_scope) or a container's seccomp rules forbid it.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/proc.h"
#include "base/rng.h"
#include "base/thread.h"
#include "xfer/backends.h"
#include "xfer/codec.h"

#define STEP_BYTES (1u << 20)
#define STEP_PIECES 256u
#define INLINE_DEFAULT (128u << 10) /* waking a thread costs about as much as copying this, and the copy takes no CPU more */
#define THREADS_MAX 16u
#define MEASURE_BYTES (4u << 20) /* more than a CPU's own caches hold */
#define MARK_BYTES 16u
#define CMA_LATENCY_NS 2000u

struct process {
	pid_t pid; /* 0: nothing proves which; only what is mapped is reached */
	uint64_t mark_at;
	unsigned char mark[MARK_BYTES];
};

struct memory {
	unsigned char mark[MARK_BYTES];
	uint64_t inline_bytes;
	uint64_t bytes_per_s;
	uint32_t nthreads;
	pthread_t thread[THREADS_MAX];
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct tn_xfer_job *first, **last;
	bool stop;
};

/* What a job keeps in its words. */
enum { NEXT_PIECE, THREADS_IN };

/* ---- copying ----------------------------------------------------------------------------------------------------------- */

static void copy_piece(const struct tn_xfer_job *job, struct tn_xfer_piece *p)
{
	char *local = (char *)(uintptr_t)p->local, *remote = p->mapped ? (char *)p->mapped : (char *)(uintptr_t)p->remote;

	for (uint64_t at = 0; at < p->bytes; at += STEP_BYTES) {
		size_t n = p->bytes - at < STEP_BYTES ? (size_t)(p->bytes - at) : STEP_BYTES;

		if (tn_xfer_job_stopped(job)) {
			tn_xfer_piece_end(p, at, -ECANCELED);
			return;
		}
		if (job->op == TN_XFER_READ)
			memmove(local + at, remote + at, n);
		else
			memmove(remote + at, local + at, n);
	}
	tn_xfer_piece_end(p, p->bytes, 0);
}

static bool is_process(const struct process *who)
{
	unsigned char mark[MARK_BYTES];
	struct iovec to = {mark, sizeof(mark)}, from = {(void *)(uintptr_t)who->mark_at, sizeof(mark)};

	return who->pid && process_vm_readv(who->pid, &to, 1, &from, 1, 0) == (ssize_t)sizeof(mark) && !memcmp(mark, who->mark, sizeof(mark));
}

/* The next pieces, or parts of them, that one system call moves: from byte `at` of the first one on. */
static uint32_t gather(struct tn_xfer_piece *p, uint32_t n, uint64_t at, struct iovec *local, struct iovec *remote)
{
	uint64_t left = STEP_BYTES;
	uint32_t i;

	for (i = 0; i < n && i < STEP_PIECES && left; i++, at = 0) {
		uint64_t bytes = p[i].bytes - at < left ? p[i].bytes - at : left;

		local[i] = (struct iovec){(void *)(uintptr_t)(p[i].local + at), bytes};
		remote[i] = (struct iovec){(void *)(uintptr_t)(p[i].remote + at), bytes};
		left -= bytes;
	}
	return i;
}

static void fail_from(struct tn_xfer_piece *p, uint32_t n, uint64_t moved, int status)
{
	for (uint32_t i = 0; i < n; i++, moved = 0)
		tn_xfer_piece_end(&p[i], moved, status);
}

/* Pieces of another process. */
static void copy_between(const struct tn_xfer_job *job, struct tn_xfer_piece *p, uint32_t n)
{
	const struct process *who = job->peer;
	struct iovec local[STEP_PIECES], remote[STEP_PIECES];
	uint64_t at = 0; /* moved of the first piece */

	while (n) {
		uint32_t pieces = gather(p, n, at, local, remote);
		ssize_t moved;

		if (tn_xfer_job_stopped(job) || !is_process(who)) {
			fail_from(p, n, at, tn_xfer_job_stopped(job) ? -ECANCELED : -ECONNRESET);
			return;
		}
		moved = job->op == TN_XFER_READ ? process_vm_readv(who->pid, local, pieces, remote, pieces, 0)
						: process_vm_writev(who->pid, local, pieces, remote, pieces, 0);
		if (moved <= 0) {
			/* This piece fails; the others are tried. */
			tn_xfer_piece_end(p, at, moved == 0 ? -EIO : errno == ESRCH ? -ECONNRESET : -errno);
			p++, n--, at = 0;
			continue;
		}
		for (uint64_t left = (uint64_t)moved; left;) {
			uint64_t bytes = p->bytes - at < left ? p->bytes - at : left;

			at += bytes;
			left -= bytes;
			if (at < p->bytes)
				break;
			tn_xfer_piece_end(p, at, 0);
			p++, n--, at = 0;
		}
	}
}

/* ---- threads ----------------------------------------------------------------------------------------------------------- */

/* How many pieces of a job a thread takes at a time: enough for one system call. */
static uint32_t share(const struct tn_xfer_job *job)
{
	uint64_t mean = job->bytes / job->npieces + 1, n = STEP_BYTES / mean + 1;

	return n > STEP_PIECES ? STEP_PIECES : (uint32_t)n;
}

/* Pieces that are mapped are copied, others of another process moved by CMA. */
static void move_some(const struct tn_xfer_job *job, struct tn_xfer_piece *p, uint32_t n)
{
	for (uint32_t i = 0, first; i < n;) {
		for (first = i; i < n && job->peer && !p[i].mapped; i++)
			;
		if (i > first)
			copy_between(job, &p[first], i - first);
		else
			copy_piece(job, &p[i++]);
	}
}

static void move_pieces(struct tn_xfer_job *job)
{
	uint32_t step = share(job);

	for (;;) {
		uint64_t i = __atomic_fetch_add(&job->word[NEXT_PIECE], step, __ATOMIC_RELAXED);
		uint32_t n = i + step < job->npieces ? step : (uint32_t)(job->npieces - (i < job->npieces ? i : job->npieces));

		if (i >= job->npieces)
			return;
		move_some(job, &job->piece[i], n);
	}
}

static void *run(void *arg)
{
	struct memory *m = arg;

	pthread_mutex_lock(&m->lock);
	for (;;) {
		struct tn_xfer_job *job;
		bool last;

		while (!m->first && !m->stop)
			pthread_cond_wait(&m->work, &m->lock);
		job = m->first;
		if (!job)
			break;
		job->word[THREADS_IN]++;
		pthread_mutex_unlock(&m->lock);
		move_pieces(job);
		pthread_mutex_lock(&m->lock);
		if (m->first == job) {
			/* No piece is left to take: others that are in it finish theirs. */
			m->first = job->next;
			if (!m->first)
				m->last = &m->first;
		}
		last = --job->word[THREADS_IN] == 0;
		pthread_mutex_unlock(&m->lock);
		if (last)
			job->ended(job);
		pthread_mutex_lock(&m->lock);
	}
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

static void memory_post(void *backend, struct tn_xfer_job *job)
{
	struct memory *m = backend;

	if (!job->npieces) {
		job->ended(job);
		return;
	}
	if (job->bytes <= m->inline_bytes) {
		move_pieces(job);
		job->ended(job);
		return;
	}
	pthread_mutex_lock(&m->lock);
	job->next = NULL;
	*m->last = job;
	m->last = &job->next;
	pthread_cond_broadcast(&m->work);
	pthread_mutex_unlock(&m->lock);
}

/* ---- create, destroy --------------------------------------------------------------------------------------------------- */

/* The best of three copies. */
static uint64_t measure(void)
{
	char *a = tn_get(&tn_alloc_system, 2 * (size_t)MEASURE_BYTES);
	uint64_t best = UINT64_MAX;

	for (unsigned i = 0; a && i < 3; i++) {
		uint64_t begin = tn_now_ns(&tn_clock_system), ns;

		memcpy(a, a + MEASURE_BYTES, MEASURE_BYTES);
		__asm__ volatile("" : : "r"(a) : "memory");
		ns = tn_now_ns(&tn_clock_system) - begin + 1;
		if (i && ns < best) /* the first one takes page faults */
			best = ns;
	}
	tn_put(&tn_alloc_system, a, 2 * (size_t)MEASURE_BYTES);
	return a ? MEASURE_BYTES * UINT64_C(1000000000) / best : UINT64_C(1000000000);
}

static void memory_destroy(void *backend)
{
	struct memory *m = backend;

	pthread_mutex_lock(&m->lock);
	assert(!m->first);
	m->stop = true;
	pthread_cond_broadcast(&m->work);
	pthread_mutex_unlock(&m->lock);
	for (uint32_t i = 0; i < m->nthreads; i++)
		pthread_join(m->thread[i], NULL);
	pthread_cond_destroy(&m->work);
	pthread_mutex_destroy(&m->lock);
	tn_put(&tn_alloc_system, m, sizeof(*m));
}

static uint64_t default_threads(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	return cpus < 4 ? 1 : cpus < 16 ? 2 : 4;
}

static int memory_create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	uint64_t threads = default_threads(), inline_bytes = INLINE_DEFAULT;
	struct memory *m;
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++) {
		if (!strcmp(params[i].key, "threads"))
			rc = tn_xfer_param_number("memory", &params[i], 1, THREADS_MAX, &threads);
		else if (!strcmp(params[i].key, "inline_bytes"))
			rc = tn_xfer_param_number("memory", &params[i], 0, UINT32_MAX, &inline_bytes);
		else
			rc = tn_fail(-EINVAL, "backend memory: %s is no parameter of it: threads, inline_bytes", params[i].key);
	}
	m = rc ? NULL : tn_get(&tn_alloc_system, sizeof(*m));
	if (!m)
		return rc ? rc : -ENOMEM;
	m->inline_bytes = inline_bytes;
	m->bytes_per_s = measure();
	m->last = &m->first;
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->work, NULL);
	rc = tn_rng_entropy(m->mark, sizeof(m->mark));
	for (; rc == 0 && m->nthreads < threads; m->nthreads++) {
		rc = -tn_thread_start(&m->thread[m->nthreads], run, m);
		if (rc)
			break;
	}
	if (rc) {
		memory_destroy(m);
		return tn_fail(rc, "backend memory: %s", strerror(-rc));
	}
	*out = m;
	return 0;
}

/* ---- other processes --------------------------------------------------------------------------------------------------- */

static uint64_t pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

static size_t memory_identity(void *backend, unsigned char out[TN_XFER_IDENTITY_MAX])
{
	struct memory *m = backend;
	struct tn_xfer_writer w = {out, 0, TN_XFER_IDENTITY_MAX};
	uint64_t boot[2];

	tn_boot_id(boot);
	tn_xfer_write(&w, boot, sizeof(boot));
	tn_xfer_write_u64(&w, pid_namespace());
	tn_xfer_write_u32(&w, (uint32_t)getpid());
	tn_xfer_write_u64(&w, (uintptr_t)m->mark);
	tn_xfer_write(&w, m->mark, MARK_BYTES);
	return w.bytes;
}

/* False: it is none of this backend. */
static bool read_identity(const unsigned char *identity, size_t bytes, struct process *who, uint64_t boot[2], uint64_t *namespace)
{
	struct tn_xfer_reader r = {identity, bytes, false};
	const unsigned char *mark;

	boot[0] = tn_xfer_read_u64(&r);
	boot[1] = tn_xfer_read_u64(&r);
	*namespace = tn_xfer_read_u64(&r);
	who->pid = (pid_t)tn_xfer_read_u32(&r);
	who->mark_at = tn_xfer_read_u64(&r);
	mark = tn_xfer_read(&r, MARK_BYTES);
	if (r.broken || r.left || who->pid <= 0)
		return false;
	memcpy(who->mark, mark, MARK_BYTES);
	return true;
}

static uint32_t memory_process(void *backend, const unsigned char *identity, size_t bytes)
{
	uint64_t boot[2], theirs[2], namespace;
	struct process who;

	tn_boot_id(boot);
	/* What peer_add refuses names nobody. */
	if (!read_identity(identity, bytes, &who, theirs, &namespace) || memcmp(boot, theirs, sizeof(boot)) || namespace != pid_namespace())
		return 0;
	return (uint32_t)who.pid;
}

static int memory_peer_add(void *backend, const unsigned char *identity, size_t bytes, void **out)
{
	uint64_t namespace, boot[2], theirs[2];
	struct process who = {0}, *p;

	if (bytes && !read_identity(identity, bytes, &who, theirs, &namespace))
		return tn_fail(-EBADMSG, "backend memory: an identity of %zu bytes is none of it", bytes);
	tn_boot_id(boot);
	if (bytes && memcmp(boot, theirs, sizeof(boot)))
		return tn_fail(-EHOSTUNREACH, "backend memory: the peer runs on another machine");
	p = tn_get(&tn_alloc_system, sizeof(*p));
	if (!p)
		return -ENOMEM;
	*p = who;
	*out = p;
	if (!bytes)
		return 1; /* the caller says why */
	if (namespace != pid_namespace())
		tn_fail(-EPERM, "backend memory: the peer's process is in another PID namespace: share it between the containers");
	else if (!is_process(&who))
		tn_fail(-EPERM, "backend memory: process %d cannot be read (process_vm_readv: %s): it has to be of the same user, and neither Yama "
			"(kernel.yama.ptrace_scope) nor seccomp may forbid it", (int)who.pid, strerror(errno));
	else
		return 0;
	return 1; /* what is mapped can be reached */
}

static void memory_peer_remove(void *backend, void *peer)
{
	tn_put(&tn_alloc_system, peer, sizeof(struct process));
}

static int memory_can(void *backend, enum tn_xfer_op op, enum tn_xfer_segment local, enum tn_xfer_segment remote, bool peer)
{
	if (local != TN_XFER_DRAM || remote != TN_XFER_DRAM)
		return tn_fail(-ENOTSUP, "it moves DRAM to DRAM");
	return 0;
}

static void memory_cost(void *backend, bool peer, struct tn_xfer_cost *out)
{
	*out = (struct tn_xfer_cost){peer ? CMA_LATENCY_NS : 200, ((struct memory *)backend)->bytes_per_s};
}

const struct tn_xfer_backend_ops tn_xfer_memory_ops = {
	.size = sizeof(struct tn_xfer_backend_ops),
	.abi = TN_XFER_BACKEND_ABI,
	.segments = 1u << TN_XFER_DRAM,
	.name = "memory",
	.create = memory_create,
	.destroy = memory_destroy,
	.identity = memory_identity,
	.peer_add = memory_peer_add,
	.peer_remove = memory_peer_remove,
	.can = memory_can,
	.cost = memory_cost,
	.post = memory_post,
	.process = memory_process,
	.flags = TN_XFER_USES_MAPPED,
};
