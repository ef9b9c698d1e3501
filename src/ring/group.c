/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of an executor's core (core.h): gathering neighbours, their requests, bounce buffers, and what is done when
 * the bytes are there.
 */
#include <assert.h>
#include <errno.h>

#include "base/checksum.h"
#include "base/list.h"
#include "ring/core.h"

int tn_core_span(const struct tn_ring_list *list, uint32_t entry, struct tn_span *span)
{
	uint32_t block = entry / list->shape->layers, per_block;
	uint64_t first;

	*span = (struct tn_span){0};
	if (block >= list->blocks)
		return -EINVAL;
	if (!list->layout) {
		span->flat = list->flat[block];
		return span->flat ? 0 : -EINVAL;
	}
	per_block = list->layout->geometry.pages_per_block;
	first = (uint64_t)block * per_block;
	if (first + per_block <= list->first_page || first >= list->end_page)
		return -EINVAL;
	span->layout = list->layout;
	span->pages = list->pages + first;
	if (list->first_page > first)
		span->page_first = (uint32_t)(list->first_page - first);
	if (list->end_page < first + per_block)
		span->page_count = (uint32_t)(list->end_page - first) - span->page_first;
	else if (span->page_first)
		span->page_count = per_block - span->page_first;
	return 0;
}

static const struct tn_shape *shape_of(const struct tn_core_member *m)
{
	return m->run->list->shape;
}

static uint32_t layer_of(const struct tn_core_member *m)
{
	return m->run->order[m->at].entry % shape_of(m)->layers;
}

static uint32_t object_iov(const struct tn_core_member *m, struct iovec *iov)
{
	struct tn_span span;
	int err = tn_core_span(m->run->list, m->run->order[m->at].entry, &span);

	assert(err == 0); /* the IOCTX was checked when it was planned */
	return tn_span_object(&span, shape_of(m), layer_of(m), iov);
}

/* Whether an object can be read straight into its place: whole, unpadded, aligned. */
static bool is_direct(struct tn_core *core, const struct tn_core_member *m, struct iovec *scratch)
{
	const struct tn_ring_list *list = m->run->list;
	const struct tn_core_sorted *x = &m->run->order[m->at];
	uint32_t align = core->device[tn_ioctx_device(x->disk)].align, n;
	struct tn_span span;

	if (!list->layout)
		return true; /* flat memory has the padding of the disk */
	if (tn_core_span(list, x->entry, &span) || span.page_count || list->shape->padded_bytes != list->shape->object_bytes)
		return false;
	if (list->align >= align)
		return true;
	n = tn_span_object(&span, list->shape, layer_of(m), scratch);
	for (uint32_t i = 0; i < n; i++)
		if (((uintptr_t)scratch[i].iov_base | scratch[i].iov_len) & (align - 1))
			return false;
	return true;
}

/* What is wrong with an IOCTX, or 0. The IOCTX came from outside: nothing of it is trusted. */
static int check_ctx(const struct tn_core *core, const struct tn_core_run *run, uint32_t at)
{
	const struct tn_core_sorted *x = &run->order[at];
	const struct tn_ring_list *list = run->list;
	uint64_t page = tn_ioctx_page(x->disk);
	struct tn_span span;

	if (tn_ioctx_device(x->disk) >= core->ndevices)
		return -ENODEV;
	if (x->misfit || page > ((uint64_t)INT64_MAX >> 12) - list->shape->padded_bytes / 4096)
		return -EINVAL;
	if ((run->cb.flags & TN_IOCB_VERIFY) && !list->checks)
		return -EINVAL;
	return tn_core_span(list, x->entry, &span);
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

/* Whether the IOCTX, which lies behind the group's last, can be read with it. */
static bool fits(struct tn_core *core, const struct tn_core_group *g, struct tn_core_run *run, uint32_t at,
		 uint64_t most_bytes)
{
	const struct tn_core_member m = {.run = run, .at = at};
	uint32_t iovs = run->list->layout ? run->list->shape->object_iovs : 1;

	if (run->order[at].alone || g->members == TN_CORE_MEMBERS_MAX || g->bytes + run->list->shape->padded_bytes > most_bytes)
		return false;
	if (!g->bounce && g->iovs + iovs > TN_CORE_IOVS_MERGED)
		return false;
	return check_ctx(core, run, at) == 0 && is_direct(core, &m, g->scratch) == !g->bounce;
}

/* Adds what lies right behind the group, of the same IOCB first, then of any IOCB that has started. */
static void extend(struct tn_core *core, struct tn_core_group *g, struct tn_core_run *run)
{
	uint64_t most = TN_RING_IO_BYTES;
	bool more = true;

	while (more && g->bytes < most) {
		uint64_t disk = g->disk + g->bytes / 4096;
		uint32_t at = tn_core_find(run, disk);

		more = at != TN_RING_NO_INDEX && fits(core, g, run, at, most);
		if (more)
			add_member(core, g, run, at);
		for (uint32_t i = 0; !more && i < core->nruns && g->bytes < TN_RING_CROSS_BYTES; i++) {
			struct tn_core_run *other = &core->runs[i];

			/* An IOCB of the same list is a later layer, which must not hold up this one. */
			if (other == run || other->cb.list == run->cb.list || !other->used || !other->started || !other->waiting || other->cb.op != run->cb.op)
				continue;
			at = tn_core_find(other, disk);
			more = at != TN_RING_NO_INDEX && fits(core, g, other, at, TN_RING_CROSS_BYTES);
			if (more) {
				add_member(core, g, other, at);
				most = TN_RING_CROSS_BYTES;
			}
		}
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

bool tn_core_group_start(struct tn_core *core, struct tn_core_run *run)
{
	struct tn_core_group *g = core->free_groups;
	struct tn_core_member first;
	uint64_t bytes;
	int err;

	while (run->order[run->cursor].taken)
		run->cursor++;
	first = (struct tn_core_member){.run = run, .at = run->cursor};
	err = check_ctx(core, run, first.at);
	if (!g || !core->free_pieces)
		return false;
	g->members = g->iovs = g->ios = 0;
	g->bytes = g->next_byte = 0;
	g->status = 0;
	if (!err && !is_direct(core, &first, g->scratch)) {
		bytes = run->list->shape->padded_bytes < TN_RING_IO_BYTES ? TN_RING_IO_BYTES : run->list->shape->padded_bytes;
		if (!any_bounce(core, bytes))
			err = -ENOBUFS; /* nobody announced objects of that size */
		else if (!take_bounce(core, g, bytes))
			return false;
	}
	if (err) {
		run->order[first.at].taken = true;
		run->waiting--;
		core->waiting--;
		tn_core_member_done(core, run, first.at, err);
		return true;
	}
	core->free_groups = g->next;
	core->busy_groups++;
	g->disk = run->order[first.at].disk;
	add_member(core, g, run, first.at);
	if (!run->order[first.at].alone)
		extend(core, g, run);
	if (g->bounce)
		tn_core_count(&core->stats.bounced, g->members);
	issue_pieces(core, g);
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
			k = object_iov(&g->member[i], g->scratch);
			if (!g->member[i].run->list->layout)
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
 * Sends as many requests as are free and the window takes. One goes at least: the caller has seen to that. The rest
 * follows as requests come back.
 */
static void issue_pieces(struct tn_core *core, struct tn_core_group *g)
{
	struct tn_core_device *d = &core->device[tn_ioctx_device(g->disk)];
	uint64_t now = tn_now_ns(core->o.clock), most = tn_window_piece(&d->window);

	if (most > TN_RING_IO_BYTES)
		most = TN_RING_IO_BYTES;
	while (g->next_byte < g->bytes && g->status == 0 && core->free_pieces) {
		struct tn_core_piece *p = core->free_pieces;
		uint64_t len = g->bytes - g->next_byte;

		if (len > most)
			len = most;
		if (g->ios > 0 && !tn_window_open(&d->window, len, now))
			return; /* the group goes on when one of its requests is back */
		tn_window_sent(&d->window, len, now);
		core->free_pieces = p->next;
		p->group = g;
		p->req = (struct tn_io_req){
			.op = TN_IO_READ,
			.buffer = TN_IO_NO_BUFFER,
			.file = d->file,
			.offset = tn_ioctx_page(g->disk) * 4096 + g->next_byte,
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

/* ---- when the bytes are there ---------------------------------------------------------------------------- */

static int finish_object(struct tn_core_group *g, struct tn_core_member *m, const unsigned char *bounced)
{
	const struct tn_ring_list *list = m->run->list;
	uint32_t bytes = list->shape->object_bytes, n = 1, entry = m->run->order[m->at].entry;
	struct tn_span span;

	if (m->run->cb.flags & TN_IOCB_VERIFY) {
		if (bounced)
			g->scratch[0] = (struct iovec){(void *)(uintptr_t)bounced, bytes};
		else
			n = object_iov(m, g->scratch);
		if (tn_checksum_iov(g->scratch, n, 0, bytes) != list->checks[entry])
			return -EBADMSG;
	}
	if (bounced) {
		tn_core_span(list, entry, &span);
		tn_span_store(&span, list->shape, entry % list->shape->layers, bounced, g->scratch);
	}
	return 0;
}

/* On any thread: verifies each object, and copies what was read into a bounce buffer to its destination. */
static void run_job(struct tn_job *job)
{
	struct tn_core_group *g = tn_container_of(job, struct tn_core_group, job);
	const unsigned char *at = g->bounce;

	for (uint32_t i = 0; i < g->members; i++) {
		g->member[i].status = finish_object(g, &g->member[i], at);
		if (at)
			at += shape_of(&g->member[i])->padded_bytes;
	}
}

static void job_done(struct tn_job *job)
{
	struct tn_core_group *g = tn_container_of(job, struct tn_core_group, job);
	struct tn_core *core = g->core;

	for (uint32_t i = 0; i < g->members; i++) {
		struct tn_core_member *m = &g->member[i];

		if (m->run->cb.flags & TN_IOCB_VERIFY)
			tn_core_count(&core->stats.verified, 1);
		tn_core_member_done(core, m->run, m->at, m->status);
	}
	group_free(core, g);
}

/* A bad sector must not fail the objects beside it: each object is read again by itself. */
static void read_again(struct tn_core *core, struct tn_core_group *g)
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

static void group_landed(struct tn_core *core, struct tn_core_group *g)
{
	bool job = g->bounce;

	if (g->status && g->status != -ECANCELED && g->members > 1) {
		read_again(core, g);
		return;
	}
	for (uint32_t i = 0; i < g->members; i++) {
		g->member[i].status = g->status;
		job |= g->member[i].run->cb.flags & TN_IOCB_VERIFY;
	}
	if (g->status || !job) {
		for (uint32_t i = 0; i < g->members; i++)
			tn_core_member_done(core, g->member[i].run, g->member[i].at, g->status);
		group_free(core, g);
		return;
	}
	g->job.run = run_job;
	g->job.done = job_done;
	if (core->o.exec) {
		core->o.exec->post(core->o.exec, &g->job);
	} else {
		run_job(&g->job);
		job_done(&g->job);
	}
}

static void piece_done(struct tn_io_req *req)
{
	struct tn_core_piece *p = req->owner;
	struct tn_core_group *g = p->group;
	struct tn_core *core = g->core;
	uint64_t now = tn_now_ns(core->o.clock);
	uint32_t device = tn_ioctx_device(g->disk);

	core->inflight--;
	core->starved = false;
	tn_window_ended(&core->device[device].window, req->length, now - req->issue_ns, req->status == 0, now);
	if (core->o.observe)
		core->o.observe(core->o.observe_arg, device, req->length, now - req->issue_ns, req->status);
	if (req->status && g->status == 0)
		g->status = req->status;
	if (req->status == 0)
		tn_core_count(&core->stats.bytes, req->length);
	p->next = core->free_pieces;
	core->free_pieces = p;
	g->ios--;
	if (g->next_byte < g->bytes && g->status == 0)
		issue_pieces(core, g);
	else if (g->ios == 0)
		group_landed(core, g);
}
