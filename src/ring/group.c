/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of an executor's core (core.h): gathering neighbours, their requests, bounce buffers, and when their jobs are done.
 */
#include <assert.h>
#include <errno.h>

#include "base/list.h"
#include "ring/core.h"

/* Most bytes that one job copies or checks, so that several threads share the work. */
#define COPY_BYTES (256u << 10)

static const struct tn_shape *shape_of(const struct tn_core_member *m)
{
	return m->run->list->shape;
}

static void push(struct tn_core_groups *q, struct tn_core_group *g)
{
	g->next = NULL;
	if (q->first)
		q->last->next = g;
	else
		q->first = g;
	q->last = g;
}

static struct tn_core_group *pop(struct tn_core_groups *q)
{
	struct tn_core_group *g = q->first;

	if (g)
		q->first = g->next;
	return g;
}

/* ---- bounce buffers ------------------------------------------------------------------------------------- */

static bool take_bounce(struct tn_core *core, struct tn_core_group *g, uint64_t bytes)
{
	for (uint32_t i = 0; i < core->nbounces; i++) {
		struct tn_core_bounces *b = &core->bounces[i];

		if (b->bytes_each >= bytes && b->nfree > 0) {
			g->bounce = b->memory + b->bytes_each * b->free[--b->nfree];
			g->bounce_class = i;
			return true;
		}
	}
	return false;
}

static bool any_bounce(const struct tn_core *core, uint64_t bytes)
{
	for (uint32_t i = 0; i < core->nbounces; i++)
		if (core->bounces[i].bytes_each >= bytes)
			return true;
	return false;
}

static void give_bounce(struct tn_core *core, struct tn_core_group *g)
{
	struct tn_core_bounces *b = &core->bounces[g->bounce_class];

	b->free[b->nfree++] = (uint32_t)((size_t)(g->bounce - b->memory) / b->bytes_each);
	g->bounce = NULL;
}

/* ---- gathering ------------------------------------------------------------------------------------------ */

static void add_member(struct tn_core *core, struct tn_core_group *g, struct tn_core_run *run, uint32_t at)
{
	g->member[g->members++] = (struct tn_core_member){.run = run, .at = at};
	g->bytes += run->list->shape->padded_bytes;
	g->iovs += run->list->layout ? run->list->shape->object_iovs : 1;
	run->order[at].taken = true;
	run->waiting--;
	core->waiting--;
}

/* Whether the IOCTX, which lies behind the group's last, can go with it. */
static bool fits(struct tn_core *core, const struct tn_core_group *g, struct tn_core_run *run, uint32_t at,
		 uint64_t most_bytes)
{
	uint32_t iovs = run->list->layout ? run->list->shape->object_iovs : 1;

	if (run->order[at].alone || g->members == TN_CORE_MEMBERS_MAX || g->bytes + run->list->shape->padded_bytes > most_bytes)
		return false;
	if (!g->bounce && g->iovs + iovs > TN_CORE_IOVS_MERGED)
		return false;
	return tn_core_check(core, run, at) == 0 && tn_core_is_direct(core, run, at, g->scratch) == !g->bounce;
}

/* Whether neighbours of both runs may go together. A read of the same list is a later layer, which must not hold up this one. */
static bool may_join(const struct tn_core_run *run, const struct tn_core_run *other)
{
	return other != run && other->used && other->started && other->waiting && other->cb.op == run->cb.op &&
	       (run->cb.op == TN_IOCB_WRITE || other->cb.list != run->cb.list);
}

/* Adds what lies right behind the group, of the same IOCB first, then of any IOCB that has started. */
static void extend(struct tn_core *core, struct tn_core_group *g, struct tn_core_run *run)
{
	uint64_t most = TN_RING_IO_BYTES;
	bool more = true;

	while (more && g->bytes < most) {
		uint64_t place = g->place + g->bytes / 4096;
		uint32_t at = tn_core_find(run, place);

		more = at != TN_RING_NO_INDEX && fits(core, g, run, at, most);
		if (more)
			add_member(core, g, run, at);
		for (uint32_t i = 0; !more && i < core->nruns && g->bytes < TN_RING_CROSS_BYTES; i++) {
			struct tn_core_run *other = &core->runs[i];

			if (!may_join(run, other))
				continue;
			at = tn_core_find(other, place);
			more = at != TN_RING_NO_INDEX && fits(core, g, other, at, TN_RING_CROSS_BYTES);
			if (more) {
				add_member(core, g, other, at);
				most = TN_RING_CROSS_BYTES;
			}
		}
	}
}

/* Adds what the same IOCB copies or checks next. */
static void extend_copies(struct tn_core *core, struct tn_core_group *g, struct tn_core_run *run)
{
	for (uint32_t at = run->cursor; at < run->cb.count && g->members < TN_CORE_MEMBERS_MAX && g->bytes < COPY_BYTES; at++) {
		if (run->order[at].taken)
			continue;
		if (tn_core_check(core, run, at))
			return; /* its turn comes */
		add_member(core, g, run, at);
	}
}

static void group_free(struct tn_core *core, struct tn_core_group *g)
{
	if (g->bounce)
		give_bounce(core, g);
	g->next = core->free_groups;
	core->free_groups = g;
	core->busy_groups--;
	core->starved = false;
}

static void issue_pieces(struct tn_core *core, struct tn_core_group *g);
static void post_job(struct tn_core *core, struct tn_core_group *g);

/* Whether the group has work that needs no device. */
static bool needs_job(const struct tn_core_group *g)
{
	bool job = g->bounce || g->op == TN_IOCB_COPY || g->op == TN_IOCB_CHECK;

	for (uint32_t i = 0; i < g->members && !job; i++)
		job = g->member[i].run->cb.flags & (TN_IOCB_VERIFY | TN_IOCB_SUM);
	return job;
}

/* What it takes to transfer the run's next IOCTX: 0; -EAGAIN: something is not free; or what is wrong. */
static int make_ready(struct tn_core *core, struct tn_core_group *g, const struct tn_core_run *run)
{
	uint32_t padded = run->list->shape->padded_bytes;
	uint64_t bytes = padded < TN_RING_IO_BYTES ? TN_RING_IO_BYTES : padded;

	if (!core->free_pieces || core->filled.first)
		return -EAGAIN;
	if (tn_core_is_direct(core, run, run->cursor, g->scratch))
		return 0;
	if (!any_bounce(core, bytes))
		return -ENOBUFS; /* nobody announced objects of that size */
	return take_bounce(core, g, bytes) ? 0 : -EAGAIN;
}

static void transfer(struct tn_core *core, struct tn_core_group *g)
{
	if (g->bounce)
		tn_core_count(&core->stats.bounced, g->members);
	if (g->op == TN_IOCB_READ || !g->bounce)
		issue_pieces(core, g);
	if (g->op == TN_IOCB_WRITE && needs_job(g))
		post_job(core, g);
}

bool tn_core_group_start(struct tn_core *core, struct tn_core_run *run)
{
	struct tn_core_group *g = core->free_groups;
	bool copies = run->cb.op == TN_IOCB_COPY || run->cb.op == TN_IOCB_CHECK;
	uint32_t at;
	int err;

	while (run->order[run->cursor].taken)
		run->cursor++;
	at = run->cursor;
	if (!g)
		return false;
	g->members = g->iovs = g->ios = 0;
	g->bytes = g->next_byte = 0;
	g->status = 0;
	g->op = (uint8_t)run->cb.op;
	err = tn_core_check(core, run, at);
	if (!err && !copies)
		err = make_ready(core, g, run);
	if (err == -EAGAIN)
		return false;
	if (err) {
		run->order[at].taken = true;
		run->waiting--;
		core->waiting--;
		tn_core_member_done(core, run, at, err);
		return true;
	}
	core->free_groups = g->next;
	core->busy_groups++;
	g->place = run->order[at].place;
	add_member(core, g, run, at);
	if (copies) {
		extend_copies(core, g, run);
		post_job(core, g);
		return true;
	}
	if (!run->order[at].alone)
		extend(core, g, run);
	transfer(core, g);
	return true;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

/* The memory of bytes [from, from + len) of the group, as they lie on disk. */
static uint32_t piece_iov(const struct tn_core_group *g, uint64_t from, uint32_t len, struct iovec *iov)
{
	uint64_t begin = 0; /* offset of the member in the group */
	uint32_t n = 0;

	if (g->bounce) {
		iov[0] = (struct iovec){g->bounce + from, len};
		return 1;
	}
	for (uint32_t i = 0; i < g->members && len > 0; i++) {
		uint32_t padded = shape_of(&g->member[i])->padded_bytes, k;

		if (begin + padded > from) {
			const struct tn_core_run *run = g->member[i].run;

			k = tn_core_object_iov(run->list, run->order[g->member[i].at].entry, g->scratch);
			if (!run->list->layout)
				g->scratch[0].iov_len = padded;
			n += tn_iov_cut(iov + n, g->scratch, k, from > begin ? from - begin : 0, &len);
		}
		begin += padded;
	}
	assert(len == 0);
	return n;
}

static void piece_done(struct tn_io_req *req);

/*
 * Sends as many requests as are free and, of reads, the window takes. One goes at least: the caller has seen to that. The rest
 * follows as requests come back.
 */
static void issue_pieces(struct tn_core *core, struct tn_core_group *g)
{
	struct tn_core_device *d = &core->device[tn_ioctx_device(g->place)];
	uint64_t now = tn_now_ns(core->o.clock), most = TN_RING_IO_BYTES;
	bool read = g->op == TN_IOCB_READ;

	if (read)
		most = tn_window_piece(&d->window);
	if (most > TN_RING_IO_BYTES)
		most = TN_RING_IO_BYTES;
	while (g->next_byte < g->bytes && g->status == 0 && core->free_pieces) {
		struct tn_core_piece *p = core->free_pieces;
		uint64_t len = g->bytes - g->next_byte;

		if (len > most)
			len = most;
		if (read && g->ios > 0 && !tn_window_open(&d->window, len, now))
			return; /* the group goes on when one of its requests is back */
		if (read)
			tn_window_sent(&d->window, len, now);
		core->free_pieces = p->next;
		p->group = g;
		p->req = (struct tn_io_req){
			.op = read ? TN_IO_READ : TN_IO_WRITE,
			.buffer = TN_IO_NO_BUFFER,
			.file = d->file,
			.offset = tn_ioctx_page(g->place) * 4096 + g->next_byte,
			.length = (uint32_t)len,
			.iov_count = piece_iov(g, g->next_byte, (uint32_t)len, p->iov),
			.iov = p->iov,
			.done = piece_done,
			.owner = p,
		};
		g->next_byte += len;
		g->ios++;
		core->inflight++;
		tn_core_count(&core->stats.requests, 1);
		core->queue[(core->queue_head + core->queue_count++) % core->o.depth] = &p->req;
	}
}

void tn_core_groups_send(struct tn_core *core)
{
	while (core->filled.first && core->free_pieces)
		issue_pieces(core, pop(&core->filled));
}

/* ---- jobs, and the end ------------------------------------------------------------------------------------ */

/* A bad sector must not fail the objects beside it: each object is moved again by itself. */
static void move_again(struct tn_core *core, struct tn_core_group *g)
{
	tn_core_count(&core->stats.again, g->members);
	for (uint32_t i = 0; i < g->members; i++) {
		struct tn_core_run *run = g->member[i].run;
		uint32_t at = g->member[i].at;

		run->order[at].taken = false;
		run->order[at].alone = 1;
		run->waiting++;
		core->waiting++;
		if (at < run->cursor)
			run->cursor = at;
	}
	group_free(core, g);
}

/* Requests and job are over: each member has what the requests say, or else what the job said. */
static void group_over(struct tn_core *core, struct tn_core_group *g)
{
	if (g->status && g->status != -ECANCELED && g->members > 1) {
		move_again(core, g);
		return;
	}
	for (uint32_t i = 0; i < g->members; i++) {
		struct tn_core_member *m = &g->member[i];

		tn_core_member_done(core, m->run, m->at, g->status ? g->status : m->status);
	}
	group_free(core, g);
}

static bool requests_are_over(const struct tn_core_group *g)
{
	return g->ios == 0 && (g->next_byte == g->bytes || g->status);
}

static void job_done(struct tn_job *job)
{
	struct tn_core_group *g = tn_container_of(job, struct tn_core_group, job);
	struct tn_core *core = g->core;
	bool bad = false;

	g->working = false;
	for (uint32_t i = 0; i < g->members; i++) {
		if (g->member[i].run->cb.flags & TN_IOCB_VERIFY)
			tn_core_count(&core->stats.verified, 1);
		bad |= g->member[i].status != 0;
	}
	if (g->op != TN_IOCB_WRITE || (!g->bounce && requests_are_over(g))) {
		group_over(core, g);
	} else if (g->bounce && bad) {
		g->status = -EBADMSG; /* nothing of it was written; alone, each object gets its own status */
		group_over(core, g);
	} else if (g->bounce && core->free_pieces && !core->filled.first) {
		issue_pieces(core, g);
	} else if (g->bounce) {
		push(&core->filled, g);
	}
}

static void post_job(struct tn_core *core, struct tn_core_group *g)
{
	g->working = true;
	g->job.run = tn_core_run_job;
	g->job.done = job_done;
	if (core->o.exec) {
		core->o.exec->post(core->o.exec, &g->job);
	} else if (g->op == TN_IOCB_WRITE && !g->bounce) {
		push(&core->summing, g); /* so that the device works meanwhile */
	} else {
		tn_core_run_job(&g->job);
		job_done(&g->job);
	}
}

bool tn_core_groups_sum(struct tn_core *core)
{
	struct tn_core_group *g;
	bool any = false;

	while ((g = pop(&core->summing))) {
		tn_core_run_job(&g->job);
		job_done(&g->job);
		any = true;
	}
	return any;
}

static void requests_over(struct tn_core *core, struct tn_core_group *g)
{
	if (g->working)
		return; /* the job's end is the group's */
	if (g->op == TN_IOCB_WRITE) {
		group_over(core, g);
		return;
	}
	if (g->status == 0 && needs_job(g))
		post_job(core, g);
	else
		group_over(core, g);
}

static void piece_done(struct tn_io_req *req)
{
	struct tn_core_piece *p = req->owner;
	struct tn_core_group *g = p->group;
	struct tn_core *core = g->core;
	uint64_t now = tn_now_ns(core->o.clock);
	uint32_t device = tn_ioctx_device(g->place);

	core->inflight--;
	core->starved = false;
	if (req->op == TN_IO_READ)
		tn_window_ended(&core->device[device].window, req->length, now - req->issue_ns, req->status == 0, now);
	if (core->o.observe)
		core->o.observe(core->o.observe_arg, device, (enum tn_io_op)req->op, req->length, now - req->issue_ns, req->status);
	if (req->status && g->status == 0)
		g->status = req->status;
	if (req->status == 0)
		tn_core_count(req->op == TN_IO_READ ? &core->stats.bytes : &core->stats.bytes_written, req->length);
	p->next = core->free_pieces;
	core->free_pieces = p;
	g->ios--;
	if (g->next_byte < g->bytes && g->status == 0)
		issue_pieces(core, g);
	else if (g->ios == 0)
		requests_over(core, g);
}
