/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of a lane (lane.h): gathering neighbours, their requests and bounce buffers, and when their jobs begin and end.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/list.h"
#include "ring/lane.h"

/* Most bytes that one job copies or checks, so that several threads share the work. */
#define COPY_BYTES (256u << 10)
#define DEVICE_COPY_BYTES (1u << 20) /* likewise, by a driver: a call has its price */
#define DIRECT_BYTES (1u << 20) /* most bytes of a request that goes the direct way, so that several threads share the work */

/* ---- groups ---------------------------------------------------------------------------------------------- */

static const struct tn_shape *shape_of(const struct tn_lane_member *m)
{
	return m->run->list->shape;
}

static void push(struct tn_lane_groups *q, struct tn_lane_group *g)
{
	g->next = NULL;
	if (q->first)
		q->last->next = g;
	else
		q->first = g;
	q->last = g;
}

static struct tn_lane_group *pop(struct tn_lane_groups *q)
{
	struct tn_lane_group *g = q->first;

	if (g)
		q->first = g->next;
	return g;
}

/* ---- bounce buffers ------------------------------------------------------------------------------------- */

static bool take_bounce(struct tn_lane *lane, struct tn_lane_group *g, const struct tn_copier *copier, uint64_t bytes)
{
	for (uint32_t i = 0; i < lane->nbounces; i++) {
		struct tn_lane_bounces *b = &lane->bounces[i];

		if (b->bytes_each < bytes || b->nfree == 0 || !tn_lane_may_bounce(lane, copier, i))
			continue;
		g->bounce = b->memory + b->bytes_each * b->free[--b->nfree];
		g->bounce_class = i;
		if (g->held) {
			g->held->bounces[i]++;
			lane->device_bounces[i]++;
		}
		return true;
	}
	return false;
}

static bool any_bounce(const struct tn_lane *lane, uint64_t bytes)
{
	for (uint32_t i = 0; i < lane->nbounces; i++)
		if (lane->bounces[i].bytes_each >= bytes)
			return true;
	return false;
}

static void give_bounce(struct tn_lane *lane, struct tn_lane_group *g)
{
	struct tn_lane_bounces *b = &lane->bounces[g->bounce_class];

	b->free[b->nfree++] = (uint32_t)((size_t)(g->bounce - b->memory) / b->bytes_each);
	g->bounce = NULL;
	if (g->held) {
		g->held->bounces[g->bounce_class]--;
		lane->device_bounces[g->bounce_class]--;
	}
}

/* ---- gathering ------------------------------------------------------------------------------------------ */

static void add_member(struct tn_lane *lane, struct tn_lane_group *g, struct tn_lane_run *run, uint32_t at)
{
	if (g->members == TN_LANE_MEMBERS_FEW && g->member == g->few) {
		memcpy(g->many, g->few, sizeof(g->few));
		g->member = g->many;
	}
	g->member[g->members++] = (struct tn_lane_member){.run = run, .at = at};
	g->bytes += run->list->shape->padded_bytes;
	g->iovs += run->list->layout ? run->list->shape->object_iovs : 1;
	run->order[at].taken = true;
	tn_lane_wait(lane, run, -1);
}

/* Whether the IOCTX, which lies behind the group's last, can go with it. */
static bool fits(struct tn_lane *lane, const struct tn_lane_group *g, struct tn_lane_run *run, uint32_t at,
		 uint64_t most_bytes)
{
	uint32_t iovs = run->list->layout ? run->list->shape->object_iovs : 1;

	if (run->order[at].alone || g->members == TN_LANE_MEMBERS_MAX || g->bytes + run->list->shape->padded_bytes > most_bytes)
		return false;
	if (!g->bounce && g->iovs + iovs > TN_LANE_IOVS_MERGED)
		return false;
	if (run->copier != g->member[0].run->copier) /* a driver is called once for all of a group */
		return false;
	return tn_lane_check(lane, run, at) == 0 && tn_lane_is_direct(lane, run, at, g->scratch) == !g->bounce;
}

/* Whether neighbours of both runs may go together. A read of the same list is a later layer, which must not hold up this one. */
static bool may_join(const struct tn_lane_run *run, const struct tn_lane_run *other)
{
	return other != run && other->used && other->started && other->waiting && other->cb.op == run->cb.op &&
	       (run->cb.op == TN_IOCB_WRITE || other->cb.list != run->cb.list);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Adds what lies right behind the group, of the same IOCB first, then of any IOCB that has started. */
static void extend(struct tn_lane *lane, struct tn_lane_group *g, struct tn_lane_run *run)
{
	uint64_t most = g->bounce ? smaller(run->request_bytes, lane->bounces[g->bounce_class].bytes_each) : run->request_bytes;
	uint32_t at = run->cursor;
	bool more = true;

	while (more && g->bytes < most) {
		uint64_t place = g->place + g->bytes / 4096;

		at = tn_lane_find(run, at + 1, place);
		more = at != TN_RING_NO_INDEX && fits(lane, g, run, at, most);
		if (more)
			add_member(lane, g, run, at);
		for (uint32_t i = 0, others = lane->used_runs - 1; !more && others && g->bytes < TN_RING_CROSS_BYTES && g->bytes < most; i++) {
			struct tn_lane_run *other = &lane->runs[i];
			uint32_t find;

			others -= other->used && other != run;
			if (!may_join(run, other))
				continue;
			find = tn_lane_find(other, other->cursor, place);
			more = find != TN_RING_NO_INDEX && fits(lane, g, other, find, smaller(most, TN_RING_CROSS_BYTES));
			if (more) {
				add_member(lane, g, other, find);
				most = smaller(most, TN_RING_CROSS_BYTES);
			}
		}
	}
}

/* Adds what the same IOCB copies or checks next. */
static void extend_copies(struct tn_lane *lane, struct tn_lane_group *g, struct tn_lane_run *run)
{
	uint64_t most = run->copier ? DEVICE_COPY_BYTES : COPY_BYTES;
	uint64_t room = g->bounce ? lane->bounces[g->bounce_class].bytes_each : UINT64_MAX;

	for (uint32_t at = run->cursor; at < run->cb.count && g->members < TN_LANE_MEMBERS_MAX && g->bytes < most; at++) {
		if (run->order[at].taken)
			continue;
		if (g->bytes + run->list->shape->padded_bytes > room || tn_lane_check(lane, run, at))
			return; /* its turn comes */
		add_member(lane, g, run, at);
	}
}

static void group_free(struct tn_lane *lane, struct tn_lane_group *g)
{
	if (g->bounce)
		give_bounce(lane, g);
	if (g->held)
		g->held->groups--;
	g->next = lane->free_groups;
	lane->free_groups = g;
	lane->busy_groups--;
	lane->copying -= tn_lane_copies(g->op);
	lane->starved = false;
}

static void issue_pieces(struct tn_lane *lane, struct tn_lane_group *g, uint64_t now);
static void begin_job(struct tn_lane *lane, struct tn_lane_group *g);

/* Whether the group has work that needs no device. */
static bool needs_job(const struct tn_lane_group *g)
{
	bool job = g->bounce || tn_lane_copies(g->op);

	for (uint32_t i = 0; i < g->members && !job; i++)
		job = g->member[i].run->cb.flags & (TN_IOCB_VERIFY | TN_IOCB_SUM);
	return job;
}

/* What it takes to transfer, copy or check the run's next IOCTX: 0; -EAGAIN: something is not free; or what is wrong. */
static int make_ready(struct tn_lane *lane, struct tn_lane_group *g, const struct tn_lane_run *run, bool copies)
{
	uint64_t bytes = tn_lane_bounce_bytes(run->list->shape->padded_bytes);

	if (!copies && (!lane->free_pieces || lane->filled.first))
		return -EAGAIN;
	if (copies ? !tn_lane_copy_bounces(run) : tn_lane_is_direct(lane, run, run->cursor, g->scratch))
		return 0;
	if (!any_bounce(lane, bytes))
		return -ENOBUFS; /* nobody announced objects of that size */
	return take_bounce(lane, g, run->copier, bytes) ? 0 : -EAGAIN;
}

static void transfer(struct tn_lane *lane, struct tn_lane_group *g, uint64_t now)
{
	if (g->bounce)
		tn_lane_count(&lane->stats.bounced, g->members);
	if (g->op == TN_IOCB_READ || !g->bounce)
		issue_pieces(lane, g, now);
	if (g->op == TN_IOCB_WRITE && needs_job(g))
		begin_job(lane, g);
}

bool tn_lane_group_start(struct tn_lane *lane, struct tn_lane_run *run, uint64_t now_ns)
{
	struct tn_lane_group *g = lane->free_groups;
	bool copies = tn_lane_copies(run->cb.op);
	uint32_t at;
	int err;

	while (run->order[run->cursor].taken)
		run->cursor++;
	at = run->cursor;
	if (!g)
		return false;
	g->member = g->few;
	g->members = g->iovs = g->ios = 0;
	g->bytes = g->next_byte = 0;
	g->status = 0;
	g->op = (uint8_t)run->cb.op;
	g->held = run->copier ? &lane->held[tn_copier_number(run->copier)] : NULL;
	err = tn_lane_check(lane, run, at);
	if (!err)
		err = make_ready(lane, g, run, copies);
	if (err == -EAGAIN)
		return false;
	if (err) {
		run->order[at].taken = true;
		tn_lane_wait(lane, run, -1);
		tn_lane_member_done(lane, run, at, err);
		return true;
	}
	lane->free_groups = g->next;
	lane->busy_groups++;
	lane->copying += copies;
	if (g->held)
		g->held->groups++;
	g->place = run->order[at].place;
	add_member(lane, g, run, at);
	if (copies) {
		extend_copies(lane, g, run);
		begin_job(lane, g);
		return true;
	}
	if (!run->order[at].alone)
		extend(lane, g, run);
	transfer(lane, g, now_ns);
	return true;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

/* The memory of a member, as long as on disk; how many pieces. */
static uint32_t member_iov(const struct tn_lane_member *m, struct iovec *iov)
{
	uint32_t n = tn_lane_object_iov(m->run, m->run->order[m->at].entry, iov);

	if (!m->run->list->layout)
		iov[0].iov_len = m->run->list->shape->padded_bytes;
	return n;
}

/* The memory of bytes [from, from + len) of the group, as they lie on disk. */
static uint32_t piece_iov(const struct tn_lane_group *g, uint64_t from, uint32_t len, struct iovec *iov)
{
	uint64_t begin = 0; /* offset of the member in the group */
	uint32_t n = 0;

	if (g->bounce) {
		iov[0] = (struct iovec){g->bounce + from, len};
		return 1;
	}
	for (uint32_t i = 0; i < g->members && len > 0; i++) {
		uint32_t padded = shape_of(&g->member[i])->padded_bytes;

		if (from <= begin && padded <= len) {
			n += member_iov(&g->member[i], iov + n);
			len -= padded;
		} else if (begin + padded > from) {
			uint32_t k = member_iov(&g->member[i], g->scratch);

			n += tn_iov_cut(iov + n, g->scratch, k, from > begin ? from - begin : 0, &len);
		}
		begin += padded;
	}
	assert(len == 0);
	return n;
}

/* The copier of a group that goes the direct way; NULL: it does not. */
static struct tn_copier *direct_copier(const struct tn_lane_group *g)
{
	return tn_lane_on_device(g) ? g->member[0].run->memory->copier : NULL;
}

/* One piece more goes the direct way, or less. */
static void count_direct(struct tn_lane *lane, struct tn_lane_group *g, struct tn_copier *copier, int32_t pieces)
{
	g->held->pieces += (uint32_t)pieces;
	lane->device_pieces += (uint32_t)pieces;
	tn_copier_moves(copier, pieces);
}

/*
 * Sends as many requests as are free and, of reads, the window takes. One goes at least: the caller has seen to that. The rest
 * follows as requests come back. What goes the direct way is in no window, which a device that stands would fill: it is bounded by the device's share.
 */
static void issue_pieces(struct tn_lane *lane, struct tn_lane_group *g, uint64_t now)
{
	struct tn_window *window = &lane->device[tn_ioctx_device(g->place)].window;
	struct tn_copier *direct = direct_copier(g);
	bool read = g->op == TN_IOCB_READ && !direct;

	while (g->next_byte < g->bytes && g->status == 0 && lane->free_pieces) {
		struct tn_lane_piece *p = lane->free_pieces;
		uint64_t len = smaller(g->bytes - g->next_byte, g->member[0].run->request_bytes);

		if (direct)
			len = smaller(len, DIRECT_BYTES);
		if (read)
			len = smaller(len, tn_window_piece(window, g->bytes - g->next_byte, lane->inflight < lane->o.depth / 2));
		if (g->ios > 0 && ((read && !tn_window_open(window, len, now)) || (direct && !tn_lane_may_send(lane, direct))))
			return; /* the group goes on when one of its requests is back */
		if (read)
			tn_window_sent(window, len, now);
		if (direct)
			count_direct(lane, g, direct, 1);
		lane->free_pieces = p->next;
		p->group = g;
		p->offset = tn_ioctx_page(g->place) * 4096 + g->next_byte;
		p->length = (uint32_t)len;
		p->iov = g->bounce || g->iovs <= TN_LANE_IOVS_FEW ? p->few : p->many;
		p->iov_count = piece_iov(g, g->next_byte, (uint32_t)len, p->iov);
		g->next_byte += len;
		g->ios++;
		lane->inflight++;
		tn_lane_count(&lane->stats.requests, 1);
		lane->queue[(lane->queue_head + lane->queue_count++) % lane->o.depth] = p;
	}
}

void tn_lane_groups_send(struct tn_lane *lane, uint64_t now_ns)
{
	while (lane->filled.first && lane->free_pieces)
		issue_pieces(lane, pop(&lane->filled), now_ns);
}

/* The value does not matter, and another request of the group may be on its way there: no race that anything depends on. */
__attribute__((no_sanitize("thread"))) static void touch(const struct iovec *iov)
{
	for (size_t at = 0; at < iov->iov_len; at += 4096)
		(void)((const volatile unsigned char *)iov->iov_base)[at];
}

/* After a request that failed: an access per page tells whether the memory is to blame, or the device. */
static bool memory_failed(struct tn_lane_group *g)
{
	bool lost = false;

	for (uint32_t i = 0; i < g->members && !g->bounce; i++) {
		const struct tn_lane_run *run = g->member[i].run;
		bool asks = run->memory->lost && !tn_mapping_is_lost(run->memory);
		uint32_t n = asks ? tn_lane_object_iov(run, run->order[g->member[i].at].entry, g->scratch) : 0;

		for (uint32_t k = 0; k < n; k++)
			touch(&g->scratch[k]);
		lost |= tn_mapping_is_lost(run->memory);
	}
	return lost;
}

/* ---- jobs, and the end ------------------------------------------------------------------------------------ */

/* Each object is to be moved once more: by itself, or by way of a bounce buffer, as all that is left of its run. */
static void move_again(struct tn_lane *lane, struct tn_lane_group *g, bool bounce)
{
	for (uint32_t i = 0; i < g->members; i++) {
		struct tn_lane_run *run = g->member[i].run;
		uint32_t at = g->member[i].at;

		run->order[at].taken = false;
		if (bounce)
			run->bounces = true;
		else
			run->order[at].alone = 1;
		tn_lane_wait(lane, run, 1);
		if (at < run->cursor)
			run->cursor = at;
	}
	group_free(lane, g);
}

/* Requests and job are over: each member has what the requests say, or else what the job said. */
static void group_over(struct tn_lane *lane, struct tn_lane_group *g)
{
	if (g->status == -EXDEV && !g->bounce) {
		move_again(lane, g, true);
		return;
	}
	/* A bad sector must not fail the objects beside it. */
	if (g->status && g->status != -ECANCELED && g->members > 1) {
		tn_lane_count(&lane->stats.again, g->members);
		move_again(lane, g, false);
		return;
	}
	for (uint32_t i = 0; i < g->members; i++) {
		struct tn_lane_member *m = &g->member[i];
		int status = g->status ? g->status : m->status;

		tn_lane_member_done(lane, m->run, m->at, tn_lane_run_is_lost(m->run) ? -EFAULT : status);
	}
	group_free(lane, g);
}

static bool requests_are_over(const struct tn_lane_group *g)
{
	return g->ios == 0 && (g->next_byte == g->bytes || g->status);
}

/* The job is over, and what a driver moves for it. */
static void work_over(struct tn_lane *lane, struct tn_lane_group *g)
{
	int bad = 0;

	g->working = false;
	for (uint32_t i = 0; i < g->members; i++) {
		if (g->member[i].run->cb.flags & TN_IOCB_VERIFY)
			tn_lane_count(&lane->stats.verified, 1);
		bad = bad ? bad : g->member[i].status;
	}
	if (g->op != TN_IOCB_WRITE || (!g->bounce && requests_are_over(g))) {
		group_over(lane, g);
	} else if (g->bounce && bad) {
		g->status = bad; /* nothing of it was written; alone, each object gets its own status */
		group_over(lane, g);
	} else if (g->bounce && lane->free_pieces && !lane->filled.first) {
		issue_pieces(lane, g, tn_now_ns(lane->o.clock));
	} else if (g->bounce) {
		push(&lane->filled, g);
	}
}

static void job_done(struct tn_job *job)
{
	struct tn_lane_group *g = tn_container_of(job, struct tn_lane_group, job);

	if (g->copying.copier)
		push(&g->lane->moving, g);
	else
		work_over(g->lane, g);
}

static void post_job(struct tn_lane *lane, struct tn_lane_group *g)
{
	g->worked = true;
	g->job.bytes = g->bytes;
	g->job.run = tn_lane_work;
	g->job.done = job_done;
	if (lane->o.exec) {
		lane->o.exec->post(lane->o.exec, &g->job);
	} else if (g->op == TN_IOCB_READ) {
		push(&lane->landed, g); /* so that the device works meanwhile */
	} else if (g->op == TN_IOCB_WRITE && !g->bounce) {
		push(&lane->summing, g); /* likewise */
	} else {
		tn_lane_work(&g->job);
		job_done(&g->job);
	}
}

/* What it works on may have to come from a device first. */
static void begin_job(struct tn_lane *lane, struct tn_lane_group *g)
{
	g->working = true;
	g->worked = false;
	if (tn_lane_fetch(g))
		push(&lane->moving, g);
	else
		post_job(lane, g);
}

/* Of a driver that had no place for checksums of what lies on the device: those in a bounce buffer are the CPU's. */
static bool needs_other_way(int rc)
{
	return rc == -EAGAIN || rc == -E2BIG;
}

/* Of a driver that did not. */
static void not_copied(struct tn_lane_group *g, int rc)
{
	for (uint32_t i = 0; i < g->members; i++)
		if (!g->worked || g->member[i].status == 0)
			g->member[i].status = TN_RING_NOT_COPIED + rc;
}

bool tn_lane_groups_move(struct tn_lane *lane)
{
	struct tn_lane_groups q = lane->moving;
	bool any = false;
	int rc;

	lane->moving = (struct tn_lane_groups){NULL, NULL};
	for (struct tn_lane_group *g = pop(&q); g; g = pop(&q)) {
		if (!tn_copying_over(&g->copying, &rc)) {
			push(&lane->moving, g);
			continue;
		}
		any = true;
		if (rc && tn_lane_on_device(g) && needs_other_way(rc))
			g->status = -EXDEV;
		else if (rc)
			not_copied(g, rc);
		else if (tn_lane_on_device(g))
			tn_lane_compare(g);
		if (rc || g->worked)
			work_over(lane, g);
		else
			post_job(lane, g);
	}
	return any;
}

/* The next of them; its bytes, 0: there is none. */
static uint64_t work_next(struct tn_lane_groups *q)
{
	struct tn_lane_group *g = pop(q);
	uint64_t bytes = g ? g->bytes : 0;

	if (g) {
		tn_lane_work(&g->job);
		job_done(&g->job);
	}
	return bytes;
}

bool tn_lane_groups_work(struct tn_lane *lane)
{
	bool any = lane->landed.first || lane->summing.first;
	uint64_t bytes = 0;

	while (bytes < TN_LANE_WORK_BYTES && lane->landed.first)
		bytes += work_next(&lane->landed);
	work_next(&lane->summing);
	return any;
}

static void requests_over(struct tn_lane *lane, struct tn_lane_group *g)
{
	if (g->working)
		return; /* the job's end is the group's */
	if (g->op == TN_IOCB_WRITE) {
		group_over(lane, g);
		return;
	}
	if (g->status == 0 && needs_job(g))
		begin_job(lane, g);
	else
		group_over(lane, g);
}

/*
 * How long the drive took for a request of the direct way. One that took long may have waited for a device that stood: that is so if others had an answer
 * from the drive meanwhile, and then nothing is known of the drive (0).
 */
static uint64_t drive_took(const struct tn_lane_device *drive, const struct tn_copier *direct, uint64_t issue_ns, uint64_t took)
{
	for (uint32_t i = 0; took >= TN_COPIER_STANDS_NS && i <= TN_COPIERS_MAX; i++)
		if (i != tn_copier_number(direct) && drive->prompt_ns[i] > issue_ns)
			return 0;
	return took;
}

void tn_lane_piece_over(struct tn_lane_piece *p, int status, uint64_t issue_ns)
{
	struct tn_lane_group *g = p->group;
	struct tn_lane *lane = g->lane;
	uint64_t now = tn_now_ns(lane->o.clock), took = now - issue_ns;
	uint32_t device = tn_lane_device_of(p);
	enum tn_io_op op = tn_lane_op_of(p);
	struct tn_copier *direct = direct_copier(g);

	if (status && status != -ECANCELED && status != -EXDEV && memory_failed(g))
		status = -EFAULT;
	lane->inflight--;
	lane->starved = false;
	if (direct)
		count_direct(lane, g, direct, -1);
	else if (op == TN_IO_READ)
		tn_window_ended(&lane->device[device].window, p->length, took, status == 0, now);
	if (took < TN_COPIER_STANDS_NS && status == 0)
		lane->device[device].prompt_ns[direct ? tn_copier_number(direct) : TN_COPIERS_MAX] = now;
	else if (direct)
		took = drive_took(&lane->device[device], direct, issue_ns, took);
	if (lane->o.observe && status != -EFAULT && status != -EXDEV)
		lane->o.observe(lane->o.observe_arg, device, op, p->length, took, status);
	if (status && g->status == 0)
		g->status = status;
	if (status == 0)
		tn_lane_count(op == TN_IO_READ ? &lane->stats.bytes : &lane->stats.bytes_written, p->length);
	if (status == 0 && direct)
		tn_lane_count(&lane->stats.direct_bytes, p->length);
	p->next = lane->free_pieces;
	lane->free_pieces = p;
	g->ios--;
	if (g->next_byte < g->bytes && g->status == 0)
		issue_pieces(lane, g, now);
	else if (g->ios == 0)
		requests_over(lane, g);
	tn_lane_tell_ended(lane);
}
