/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See faulty_rig.h. Each request taken travels through the inner engine as a shadow of its own, so nothing is assumed
 * about the engine words. The wrapper keeps the contract of io/io.h, whatever it is told to break.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/list.h"
#include "base/rng.h"
#include "ioengine/faulty_rig.h"

#define FAULTS_MAX 16u
#define SHADOWS 4096u /* most requests that any engine has in flight */
#define OPS TN_IO_OPS
#define NO_FAULT UINT32_MAX

enum state { FREE, WITH_INNER, HELD, READY };

struct shadow {
	struct tn_io_req req; /* what the inner engine sees */
	struct tn_io_req *outer;
	struct iovec part;
	uint64_t due_ns; /* HELD: given back then; UINT64_MAX: not by time */
	uint8_t state;
	bool cancelled;
	uint32_t kind; /* enum tn_fault_kind, or NO_FAULT */
	uint64_t delay_ns;
};

struct faulty {
	struct tn_io io;
	struct tn_io *inner;
	const struct tn_clock *clock;
	struct tn_rng rng;
	bool reorder;
	uint32_t submit_eagain_percent;
	uint32_t woken; /* shared: a wake that no poll has answered yet */
	bool refused; /* submit took nothing on purpose: the next poll must not wait, because perhaps nothing is in flight */
	struct tn_fault faults[FAULTS_MAX];
	uint32_t nfaults;
	uint64_t seen[OPS]; /* requests per op since the faults were set */
	/* The shadows in use, by state; free ones on a stack. */
	uint32_t nfree, nready, nheld;
	uint16_t free[SHADOWS];
	uint16_t ready[SHADOWS];
	uint16_t held[SHADOWS];
	struct shadow shadows[SHADOWS];
};

static void make_ready(struct faulty *f, struct shadow *s, int status)
{
	s->state = READY;
	s->req.status = status;
	f->ready[f->nready++] = (uint16_t)(s - f->shadows);
}

static void hold(struct faulty *f, struct shadow *s, uint64_t due_ns)
{
	s->state = HELD;
	s->due_ns = due_ns;
	f->held[f->nheld++] = (uint16_t)(s - f->shadows);
}

static const struct tn_fault *choose_fault(struct faulty *f, const struct tn_io_req *req)
{
	for (uint32_t i = 0; req->op < OPS && i < f->nfaults; i++) {
		const struct tn_fault *t = &f->faults[i];
		uint64_t nth = f->seen[req->op];

		if (t->op != req->op || nth < t->from || nth - t->from >= t->count)
			continue;
		if (t->kind == TN_FAULT_ENOSPC && req->op != TN_IO_WRITE)
			continue;
		if (t->percent && t->percent < 100 && tn_rng_below(&f->rng, 100) >= t->percent)
			continue;
		return t;
	}
	return NULL;
}

/* Cuts the shadow to about half its length; false: no bytes are left to transfer. */
static bool shorten(struct faulty *f, struct shadow *s)
{
	struct tn_io_req *r = &s->req;
	struct tn_io_stat st;
	uint32_t left = 0;

	if ((r->op != TN_IO_READ && r->op != TN_IO_WRITE) || r->iov_count == 0 || f->inner->ops->stat(f->inner, r->file, &st))
		return false;
	if (r->iov_count == 1) {
		left = r->length / 2 - r->length / 2 % st.offset_align;
		s->part = (struct iovec){r->iov[0].iov_base, left};
		r->iov = &s->part;
	} else {
		r->iov_count /= 2;
		for (uint32_t i = 0; i < r->iov_count; i++)
			left += (uint32_t)r->iov[i].iov_len;
	}
	r->length = left;
	return left > 0;
}

/* Starts one request with the fault that was chosen; false: the inner engine is full, nothing has changed. */
static bool take(struct faulty *f, struct tn_io_req *req, const struct tn_fault *t)
{
	struct shadow *s = &f->shadows[f->free[f->nfree - 1]];
	uint32_t kind = t ? t->kind : NO_FAULT;
	struct tn_io_req *inner_req = &s->req;

	s->req = *req;
	s->req.transferred = 0;
	s->req.issue_ns = tn_now_ns(f->clock);
	s->outer = req;
	s->cancelled = false;
	s->kind = kind;
	s->delay_ns = t ? t->delay_ns : 0;
	s->state = WITH_INNER;
	if (kind == TN_FAULT_EIO || kind == TN_FAULT_ENOSPC || (kind == TN_FAULT_SHORT && !shorten(f, s)))
		make_ready(f, s, kind == TN_FAULT_ENOSPC ? -ENOSPC : -EIO);
	else if (tn_io_submit(f->inner, &inner_req, 1) == 0)
		return false;
	f->nfree--;
	req->engine[0] = (uintptr_t)f;
	req->engine[1] = (uint64_t)(s - f->shadows);
	return true;
}

static unsigned faulty_submit(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	struct faulty *f = (struct faulty *)io;
	unsigned k;

	if (n && f->submit_eagain_percent && tn_rng_below(&f->rng, 100) < f->submit_eagain_percent) {
		f->refused = true;
		return 0;
	}
	for (k = 0; k < n && f->nfree; k++) {
		if (!take(f, reqs[k], choose_fault(f, reqs[k])))
			break;
		if (reqs[k]->op < OPS)
			f->seen[reqs[k]->op]++;
	}
	return k;
}

static void corrupt(struct faulty *f, const struct tn_io_req *req)
{
	const struct iovec *v = &req->iov[tn_rng_below(&f->rng, req->iov_count)];

	((uint8_t *)v->iov_base)[tn_rng_below(&f->rng, (uint32_t)v->iov_len)] ^= 0x10;
}

/* Applies the fault to a request that the inner engine has completed. */
static void completed(struct faulty *f, struct shadow *s, uint64_t now)
{
	int status = s->req.status;

	if (s->kind == TN_FAULT_LATE) {
		hold(f, s, now + s->delay_ns);
		return;
	}
	if (s->kind == TN_FAULT_HANG && !s->cancelled) {
		hold(f, s, UINT64_MAX);
		return;
	}
	if (s->kind == TN_FAULT_HANG)
		status = -ECANCELED; /* as if it had hung already: the status must not depend on the disk's speed */
	if (s->kind == TN_FAULT_CORRUPT && status == 0 && s->req.op == TN_IO_READ)
		corrupt(f, &s->req);
	if (s->kind == TN_FAULT_SHORT && status == 0)
		status = -EIO;
	make_ready(f, s, status);
}

/* Makes held requests whose time has come ready; returns the earliest due time of the others. */
static uint64_t release_due(struct faulty *f, uint64_t now)
{
	uint64_t next = UINT64_MAX;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < f->nheld; i++) {
		struct shadow *s = &f->shadows[f->held[i]];

		if (s->due_ns <= now) {
			make_ready(f, s, s->req.status);
			continue;
		}
		if (s->due_ns < next)
			next = s->due_ns;
		f->held[kept++] = f->held[i];
	}
	f->nheld = kept;
	return next;
}

static unsigned take_ready(struct faulty *f, struct tn_io_req **done, unsigned max)
{
	unsigned n = 0;

	while (n < max && f->nready) {
		uint32_t at = f->reorder ? tn_rng_below(&f->rng, f->nready) : 0;
		struct shadow *s = &f->shadows[f->ready[at]];

		memmove(&f->ready[at], &f->ready[at + 1], (f->nready - at - 1) * sizeof(f->ready[0]));
		f->nready--;
		s->outer->status = s->req.status;
		s->outer->transferred = s->req.transferred;
		s->outer->issue_ns = s->req.issue_ns;
		s->outer->engine[0] = 0;
		s->state = FREE;
		f->free[f->nfree++] = (uint16_t)(s - f->shadows);
		done[n++] = s->outer;
	}
	return n;
}

static unsigned poll_inner(struct faulty *f, uint64_t timeout_ns)
{
	struct tn_io_req *done[64];
	unsigned n = tn_io_poll(f->inner, done, 64, timeout_ns);
	uint64_t now = tn_now_ns(f->clock);

	for (unsigned i = 0; i < n; i++)
		completed(f, tn_container_of(done[i], struct shadow, req), now);
	return n;
}

/* Whether there was a wake. A poll of the inner engine may have consumed it; f->woken remembers it. */
static bool take_wake(struct faulty *f)
{
	return __atomic_exchange_n(&f->woken, 0, __ATOMIC_SEQ_CST) != 0;
}

static unsigned faulty_poll(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	struct faulty *f = (struct faulty *)io;
	uint64_t deadline, now = tn_now_ns(f->clock);

	if (__builtin_add_overflow(now, timeout_ns, &deadline))
		deadline = UINT64_MAX;
	while (poll_inner(f, 0) == 64) /* all there is, so that reordering has something to choose from */
		;
	for (;;) {
		uint64_t next = release_due(f, now), until = next < deadline ? next : deadline;

		if (f->nready || now >= deadline || f->refused || max == 0 || take_wake(f))
			break;
		poll_inner(f, until == UINT64_MAX ? UINT64_MAX : until - now);
		now = tn_now_ns(f->clock);
	}
	f->refused = false;
	return take_ready(f, done, max);
}

static int faulty_cancel(struct tn_io *io, struct tn_io_req *req)
{
	struct faulty *f = (struct faulty *)io;
	struct shadow *s;

	if (req->engine[0] != (uintptr_t)f)
		return tn_fail(-ENOENT, "the request is not in flight");
	s = &f->shadows[req->engine[1]];
	s->cancelled = true;
	if (s->state == WITH_INNER)
		return tn_io_cancel(f->inner, &s->req);
	if (s->state == HELD && s->due_ns == UINT64_MAX) {
		s->due_ns = 0;
		s->req.status = -ECANCELED;
	}
	return 0;
}

void tn_io_faulty_release(struct tn_io *faulty)
{
	struct faulty *f = (struct faulty *)faulty;

	for (uint32_t i = 0; i < f->nheld; i++)
		if (f->shadows[f->held[i]].due_ns == UINT64_MAX)
			f->shadows[f->held[i]].due_ns = 0;
	/* Those that the inner engine still works on were to hang when it is done. One that was cancelled stays cancelled. */
	for (uint32_t i = 0; i < SHADOWS; i++)
		if (f->shadows[i].state == WITH_INNER && f->shadows[i].kind == TN_FAULT_HANG && !f->shadows[i].cancelled)
			f->shadows[i].kind = NO_FAULT;
}

static int faulty_open(struct tn_io *io, const char *path, unsigned flags, uint32_t *file)
{
	return tn_io_open(((struct faulty *)io)->inner, path, flags, file);
}

static int faulty_close(struct tn_io *io, uint32_t file)
{
	struct faulty *f = (struct faulty *)io;

	/* The inner engine does not know of requests that it has given back and this wrapper has not. */
	for (uint32_t i = 0; i < SHADOWS && f->nready + f->nheld; i++)
		if (f->shadows[i].state != FREE && f->shadows[i].req.file == file)
			return tn_fail(-EBUSY, "file %u: requests are in flight; poll them first", file);
	return tn_io_close(f->inner, file);
}

static int faulty_stat(struct tn_io *io, uint32_t file, struct tn_io_stat *st)
{
	return tn_io_stat(((struct faulty *)io)->inner, file, st);
}

static int faulty_allocate(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length)
{
	return tn_io_allocate(((struct faulty *)io)->inner, file, offset, length);
}

static int faulty_unlink(struct tn_io *io, const char *path)
{
	return tn_io_unlink(((struct faulty *)io)->inner, path);
}

static int faulty_lend(struct tn_io *io, uint32_t file, struct tn_io_lent *lent)
{
	return tn_io_lend(((struct faulty *)io)->inner, file, lent);
}

static int faulty_adopt(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file)
{
	return tn_io_adopt(((struct faulty *)io)->inner, lent, file);
}

static void faulty_wake(struct tn_io *io)
{
	struct faulty *f = (struct faulty *)io;

	/* Before the inner wake: the poll that it ends reads this. */
	__atomic_store_n(&f->woken, 1, __ATOMIC_SEQ_CST);
	tn_io_wake(f->inner);
}

static void faulty_destroy(struct tn_io *io)
{
	struct faulty *f = (struct faulty *)io;

	assert(f->nfree == SHADOWS);
	tn_io_destroy(f->inner);
	tn_put(&tn_alloc_system, f, sizeof(*f));
}

static const struct tn_io_ops faulty_ops = {
	.size = sizeof(struct tn_io_ops),
	.abi = TN_IO_ABI,
	.name = "faulty",
	.open = faulty_open,
	.close = faulty_close,
	.stat = faulty_stat,
	.allocate = faulty_allocate,
	.unlink = faulty_unlink,
	.submit = faulty_submit,
	.poll = faulty_poll,
	.cancel = faulty_cancel,
	.lend = faulty_lend,
	.adopt = faulty_adopt,
	.wake = faulty_wake,
	.destroy = faulty_destroy,
};

int tn_io_faulty_set(struct tn_io *faulty, const struct tn_fault *faults, uint32_t fault_count)
{
	struct faulty *f = (struct faulty *)faulty;

	if (fault_count > FAULTS_MAX)
		return tn_fail(-EINVAL, "%u faults: at most %u", fault_count, FAULTS_MAX);
	for (uint32_t i = 0; i < fault_count; i++)
		if (faults[i].kind > TN_FAULT_CORRUPT || faults[i].op >= OPS)
			return tn_fail(-EINVAL, "fault %u: kind %u op %u is unknown", i, faults[i].kind, faults[i].op);
	if (fault_count)
		memcpy(f->faults, faults, fault_count * sizeof(*faults));
	f->nfaults = fault_count;
	memset(f->seen, 0, sizeof(f->seen));
	return 0;
}

int tn_io_faulty_create(struct tn_io *inner, const struct tn_io_faulty_opts *opts, struct tn_io **out)
{
	struct faulty *f = tn_get(&tn_alloc_system, sizeof(*f));
	int err;

	if (!f)
		return tn_fail(-ENOMEM, "no memory for the faulty wrapper (%zu bytes)", sizeof(*f));
	f->io.ops = &faulty_ops;
	f->inner = inner;
	f->clock = opts->clock;
	f->reorder = opts->reorder;
	f->submit_eagain_percent = opts->submit_eagain_percent;
	tn_rng_seed(&f->rng, opts->seed);
	while (f->nfree < SHADOWS) {
		f->free[f->nfree] = (uint16_t)(SHADOWS - 1 - f->nfree);
		f->nfree++;
	}
	err = tn_io_faulty_set(&f->io, opts->faults, opts->fault_count);
	if (err) {
		tn_put(&tn_alloc_system, f, sizeof(*f));
		return err;
	}
	*out = &f->io;
	return 0;
}
