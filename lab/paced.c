/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See paced.h. Each request travels through the inner engine as a shadow of its own, and at the same time through the
 * model of its drive. The request is given back when it has come out of both.
 */
#include "lab/paced.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/list.h"
#include "lab/drive.h"

#define DRIVES_MAX 16u
#define NO_DRIVE UINT8_MAX
#define CPU_BPS 950000000.0 /* bytes per second that one CPU copies and checks, with all overhead: about 1.8 GB/s on two CPUs */

struct tn_paced {
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const char *const *dirs;
	uint32_t ndirs, ndrives;
	pthread_mutex_t lock; /* over the drives, and all jobs that are in them */
	struct tn_drive drive[DRIVES_MAX];
};

struct shadow {
	struct tn_io_req req; /* what the inner engine sees */
	struct tn_io_req *outer;
	struct tn_list link; /* in flight, in the order of submission */
	struct tn_drive_job job;
	uint8_t drive; /* or NO_DRIVE: no time passes */
	bool sent; /* to the inner engine */
	bool moved; /* back from the inner engine */
};

struct paced {
	struct tn_io io;
	struct tn_io *inner;
	struct tn_paced *shared;
	uint32_t woken; /* any thread */
	uint32_t depth, nfree, nunsent;
	uint64_t next_ns; /* no request can be given back before this time */
	struct tn_list inflight;
	uint8_t drive_of[TN_IO_FILES_MAX];
	uint16_t *free;
	struct tn_io_req **batch; /* requests of one submit */
	struct shadow shadows[];
};

static size_t paced_bytes(uint32_t depth)
{
	return sizeof(struct paced) + depth * (sizeof(struct shadow) + sizeof(struct tn_io_req *) + sizeof(uint16_t));
}

static struct shadow *shadow_of(struct tn_list *link)
{
	return tn_container_of(link, struct shadow, link);
}

/* ---- submitting ------------------------------------------------------------------------------------------------- */

static struct shadow *take(struct paced *p, struct tn_io_req *outer, uint64_t now)
{
	struct shadow *s = &p->shadows[p->free[--p->nfree]];

	s->req = *outer;
	s->req.transferred = 0;
	s->outer = outer;
	s->sent = s->moved = false;
	s->drive = outer->file < TN_IO_FILES_MAX ? p->drive_of[outer->file] : NO_DRIVE;
	outer->issue_ns = now;
	outer->engine[0] = (uintptr_t)p;
	outer->engine[1] = (uint64_t)(s - p->shadows);
	tn_list_push(&p->inflight, &s->link);
	return s;
}

/* Hands the inner engine the requests that it has not taken yet. */
static void send(struct paced *p)
{
	struct tn_list *at, *tmp;
	unsigned n = 0, taken;

	tn_list_for_each_safe(at, tmp, &p->inflight)
		if (!shadow_of(at)->sent)
			p->batch[n++] = &shadow_of(at)->req;
	taken = tn_io_submit(p->inner, p->batch, n);
	for (unsigned i = 0; i < taken; i++)
		tn_container_of(p->batch[i], struct shadow, req)->sent = true;
	p->nunsent = n - taken;
}

static unsigned paced_submit(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	struct paced *p = (struct paced *)io;
	struct tn_paced *sh = p->shared;
	uint64_t now = tn_now_ns(sh->clock);
	struct shadow *s;

	if (n > p->nfree)
		n = p->nfree;
	if (n == 0)
		return 0;
	pthread_mutex_lock(&sh->lock);
	for (unsigned i = 0; i < n; i++) {
		s = take(p, reqs[i], now);
		if (s->req.op == TN_IO_ALLOCATE || s->req.op == TN_IO_STAT)
			s->drive = NO_DRIVE;
		if (s->drive == NO_DRIVE)
			continue;
		tn_drive_advance(&sh->drive[s->drive], now);
		/* A sync queues with the writes: it ends when the writes before it have ended. */
		tn_drive_enter(&sh->drive[s->drive], &s->job, s->req.op != TN_IO_READ,
			       s->req.op == TN_IO_SYNC ? 0 : s->req.length);
	}
	pthread_mutex_unlock(&sh->lock);
	/* Time passes in the model while the inner engine copies. */
	send(p);
	p->next_ns = 0;
	return n;
}

/* ---- giving back ------------------------------------------------------------------------------------------------- */

/* Takes what the inner engine has completed; waits up to timeout_ns for the first completion. */
static void reap(struct paced *p, uint64_t timeout_ns)
{
	struct tn_io_req *done[64];
	unsigned n;

	if (p->nunsent)
		send(p);
	do {
		n = tn_io_poll(p->inner, done, 64, timeout_ns);
		timeout_ns = 0;
		for (unsigned i = 0; i < n; i++)
			tn_container_of(done[i], struct shadow, req)->moved = true;
		if (n)
			p->next_ns = 0;
	} while (n == 64);
}

static void give_back(struct paced *p, struct shadow *s)
{
	s->outer->status = s->req.status;
	s->outer->transferred = s->req.transferred;
	s->outer->engine[0] = 0;
	tn_list_del(&s->link);
	p->free[p->nfree++] = (uint16_t)(s - p->shadows);
}

static uint64_t round_up(uint64_t ns)
{
	return ns > UINT64_MAX - TN_PACED_QUANTUM_NS
		       ? UINT64_MAX
		       : (ns + TN_PACED_QUANTUM_NS - 1) / TN_PACED_QUANTUM_NS * TN_PACED_QUANTUM_NS;
}

/* Gives back the requests that are due, up to max; sets next_ns, when the next poll is worth it. */
static unsigned release(struct paced *p, struct tn_io_req **done, unsigned max, uint64_t now)
{
	struct tn_paced *sh = p->shared;
	uint64_t next = UINT64_MAX;
	struct tn_list *at, *tmp;
	unsigned n = 0;

	if (now < p->next_ns)
		return 0;
	pthread_mutex_lock(&sh->lock);
	for (uint32_t i = 0; i < sh->ndrives; i++)
		tn_drive_advance(&sh->drive[i], now);
	tn_list_for_each_safe(at, tmp, &p->inflight) {
		struct shadow *s = shadow_of(at);
		uint64_t due = s->drive == NO_DRIVE ? 0 : tn_drive_soonest(&sh->drive[s->drive], &s->job);

		if (!s->moved)
			continue; /* reap sets next_ns when the request has moved */
		if (due <= now && (s->drive == NO_DRIVE || s->job.due_ns)) {
			if (n == max) {
				next = 0;
				break;
			}
			done[n++] = s->outer;
			give_back(p, s);
		} else if (due < next) {
			next = due;
		}
	}
	pthread_mutex_unlock(&sh->lock);
	p->next_ns = next ? round_up(next > now ? next : now + 1) : 0;
	return n;
}

static bool take_wake(struct paced *p)
{
	return __atomic_load_n(&p->woken, __ATOMIC_SEQ_CST) && __atomic_exchange_n(&p->woken, 0, __ATOMIC_SEQ_CST);
}

static unsigned paced_poll(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	struct paced *p = (struct paced *)io;
	uint64_t now = tn_now_ns(p->shared->clock), deadline;

	if (max == 0)
		return 0;
	if (__builtin_add_overflow(now, timeout_ns, &deadline))
		deadline = UINT64_MAX;
	reap(p, 0);
	for (;;) {
		unsigned n = release(p, done, max, now);
		uint64_t until;

		/*
		 * Whether there was a wake. A poll of the inner engine may have consumed the wake; p->woken remembers
		 * it.
		 */
		if (n || now >= deadline || take_wake(p))
			return n;
		until = p->next_ns < deadline ? p->next_ns : deadline;
		reap(p, until == UINT64_MAX ? UINT64_MAX : until > now ? until - now : 0);
		now = tn_now_ns(p->shared->clock);
	}
}

static void paced_wake(struct tn_io *io)
{
	struct paced *p = (struct paced *)io;

	/* Before the inner wake: the poll that it ends reads this flag. */
	__atomic_store_n(&p->woken, 1, __ATOMIC_SEQ_CST);
	tn_io_wake(p->inner);
}

static int paced_cancel(struct tn_io *io, struct tn_io_req *req)
{
	struct paced *p = (struct paced *)io;
	struct shadow *s;

	if (req->engine[0] != (uintptr_t)p)
		return tn_fail(-ENOENT, "the request is not in flight");
	s = &p->shadows[req->engine[1]];
	if (!s->sent)
		return tn_fail(-EAGAIN, "the request has not reached the engine yet; poll first");
	return s->moved ? 0 : tn_io_cancel(p->inner, &s->req);
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

static uint8_t find_drive(const struct tn_paced *sh, const char *path)
{
	uint8_t best = sh->ndirs ? NO_DRIVE : 0;
	size_t longest = 0;

	for (uint32_t i = 0; i < sh->ndirs; i++) {
		size_t len = strlen(sh->dirs[i]);

		while (len > 1 && sh->dirs[i][len - 1] == '/')
			len--;
		if (len > longest && strncmp(path, sh->dirs[i], len) == 0 && (path[len] == '/' || len == 1)) {
			longest = len;
			best = (uint8_t)i;
		}
	}
	return best;
}

static int paced_open(struct tn_io *io, const char *path, unsigned flags, uint32_t *file)
{
	struct paced *p = (struct paced *)io;
	int err = tn_io_open(p->inner, path, flags, file);

	if (!err)
		p->drive_of[*file] = find_drive(p->shared, path);
	return err;
}

static int paced_close(struct tn_io *io, uint32_t file)
{
	struct paced *p = (struct paced *)io;
	struct tn_list *at, *tmp;

	/* The inner engine does not know of requests that it has given back and this wrapper has not. */
	tn_list_for_each_safe(at, tmp, &p->inflight)
		if (shadow_of(at)->req.file == file)
			return tn_fail(-EBUSY, "file %u: requests are in flight; poll them first", file);
	return tn_io_close(p->inner, file);
}

static int paced_lend(struct tn_io *io, uint32_t file, struct tn_io_lent *lent)
{
	struct paced *p = (struct paced *)io;
	int err = tn_io_lend(p->inner, file, lent);

	if (!err)
		lent->wrapper = p->drive_of[file] == NO_DRIVE ? 0 : p->drive_of[file] + 1u;
	return err;
}

static int paced_adopt(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file)
{
	struct paced *p = (struct paced *)io;
	int err = tn_io_adopt(p->inner, lent, file);

	if (!err)
		p->drive_of[*file] = lent->wrapper && lent->wrapper <= p->shared->ndrives ? (uint8_t)(lent->wrapper - 1) : NO_DRIVE;
	return err;
}

static int paced_stat(struct tn_io *io, uint32_t file, struct tn_io_stat *st)
{
	struct paced *p = (struct paced *)io;
	int err = tn_io_stat(p->inner, file, st);

	if (!err && p->drive_of[file] != NO_DRIVE)
		st->in_memory = false; /* the medium is the described drive */
	return err;
}

static int paced_allocate(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length)
{
	return tn_io_allocate(((struct paced *)io)->inner, file, offset, length);
}

static int paced_unlink(struct tn_io *io, const char *path)
{
	return tn_io_unlink(((struct paced *)io)->inner, path);
}

static void paced_destroy(struct tn_io *io)
{
	struct paced *p = (struct paced *)io;

	assert(p->nfree == p->depth);
	tn_io_destroy(p->inner);
	tn_put(p->shared->alloc, p, paced_bytes(p->depth));
}

static const struct tn_io_ops paced_ops = {
	.size = sizeof(struct tn_io_ops),
	.abi = TN_IO_ABI,
	.name = "paced",
	.open = paced_open,
	.close = paced_close,
	.stat = paced_stat,
	.allocate = paced_allocate,
	.unlink = paced_unlink,
	.submit = paced_submit,
	.poll = paced_poll,
	.cancel = paced_cancel,
	.lend = paced_lend,
	.adopt = paced_adopt,
	.wake = paced_wake,
	.destroy = paced_destroy,
};

/* ---- up and down ------------------------------------------------------------------------------------------------- */

int tn_io_paced_create(struct tn_io *inner, uint32_t depth, struct tn_paced *paced, struct tn_io **out)
{
	struct paced *p;

	if (depth == 0 || depth > 4096)
		return tn_fail(-EINVAL, "depth %u: must be 1..4096", depth);
	p = tn_get(paced->alloc, paced_bytes(depth));
	if (!p)
		return tn_fail(-ENOMEM, "no memory for the paced wrapper (%zu bytes)", paced_bytes(depth));
	p->io.ops = &paced_ops;
	p->inner = inner;
	p->shared = paced;
	p->depth = depth;
	p->batch = (struct tn_io_req **)(void *)&p->shadows[depth];
	p->free = (uint16_t *)(void *)&p->batch[depth];
	for (p->nfree = 0; p->nfree < depth; p->nfree++)
		p->free[p->nfree] = (uint16_t)(depth - 1 - p->nfree);
	tn_list_init(&p->inflight);
	memset(p->drive_of, NO_DRIVE, sizeof(p->drive_of));
	*out = &p->io;
	return 0;
}

/* Paced transfers are real transfers as well: beyond this bandwidth the CPUs set the pace, not the model. */
static void warn_of_too_fast(const struct tn_paced_opts *o)
{
	const struct tn_mix *m = o->mix;
	double bps = (double)(m->read_bps > m->write_bps ? m->read_bps : m->write_bps) / o->stretch;
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if (cpus > 0 && bps > CPU_BPS * (double)cpus)
		tn_log(o->log, TN_LOG_WARN,
		       "device model: %.1f GB/s with stretch %u is more than %ld CPUs can be trusted to move: figures will be those of "
		       "the CPUs; stretch by %.0f or more",
		       bps / 1e9, o->stretch, cpus, bps * o->stretch / (CPU_BPS * (double)cpus) + 0.5);
}

int tn_paced_create(const struct tn_paced_opts *o, struct tn_paced **out)
{
	struct tn_paced *sh;

	if (o->stretch == 0 || o->stretch > TN_PACED_STRETCH_MAX)
		return tn_fail(-EINVAL, "stretch %u: must be 1..%u", o->stretch, TN_PACED_STRETCH_MAX);
	if (o->ndirs > DRIVES_MAX)
		return tn_fail(-EINVAL, "%u directories: at most %u are paced", o->ndirs, DRIVES_MAX);
	sh = tn_get(o->alloc, sizeof(*sh));
	if (!sh)
		return tn_fail(-ENOMEM, "no memory for %u paced drives (%zu bytes)", DRIVES_MAX, sizeof(*sh));
	sh->alloc = o->alloc;
	sh->clock = o->clock;
	sh->dirs = o->dirs;
	sh->ndirs = o->ndirs;
	sh->ndrives = o->ndirs ? o->ndirs : 1;
	for (uint32_t i = 0; i < sh->ndrives; i++)
		tn_drive_init(&sh->drive[i], o->mix, o->stretch);
	pthread_mutex_init(&sh->lock, NULL);
	warn_of_too_fast(o);
	*out = sh;
	return 0;
}

void tn_paced_destroy(struct tn_paced *paced)
{
	if (!paced)
		return;
	pthread_mutex_destroy(&paced->lock);
	tn_put(paced->alloc, paced, sizeof(*paced));
}
