/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane's life, and its step: IOCBs are taken (run.c), groups of the runs whose turn it is are started (group.c),
 * pieces are sent: by the transport, or the direct way (direct.c).
 */
#include "ring/lane.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"

#define PAGE 4096u
#define MOVE_POLL_NS 100000u  /* a driver wakes nobody, either */
#define EVENT_POLL_NS 500000u /* an event word may be written by a device, which wakes nobody */

/* Lists of pieces of memory: one per request, two per group. */
static uint32_t lists_of(const struct tn_lane *lane)
{
	return 2 * lane->ngroups + lane->o.depth;
}

/* What bounce buffers of a class take, wherever its first whole page begins. */
static size_t bounce_block(size_t bytes_each)
{
	return bytes_each * TN_LANE_BOUNCES + PAGE;
}

static size_t served_bytes(const struct tn_lane *lane)
{
	return tn_array_bytes(lane->o.intake->ring->nlists, sizeof(*lane->turns[0].served));
}

int tn_lane_intake_init(struct tn_lane_intake *in, struct tn_ring *ring, const struct tn_alloc *alloc)
{
	*in = (struct tn_lane_intake){.ring = ring};
	if (tn_ring_memory_view(ring->memory, ring->bytes, &in->view))
		return tn_fail(-EINVAL, "executor: %llu bytes that are no ring", (unsigned long long)ring->bytes);
	in->ids = tn_get(alloc, tn_array_bytes(in->view.depth, sizeof(*in->ids)));
	if (!in->ids)
		return tn_fail(-ENOMEM, "executor: no memory");
	pthread_mutex_init(&in->lock, NULL);
	return 0;
}

void tn_lane_intake_fini(struct tn_lane_intake *in, const struct tn_alloc *alloc)
{
	if (!in->ids)
		return;
	pthread_mutex_destroy(&in->lock);
	tn_put(alloc, in->ids, tn_array_bytes(in->view.depth, sizeof(*in->ids)));
}

int tn_lane_create(const struct tn_lane_opts *opts, struct tn_lane **out)
{
	const struct tn_alloc *a = opts->alloc;
	const struct tn_ring_view *v = &opts->intake->view;
	struct tn_lane *c = tn_get(a, sizeof(*c));

	if (!c)
		return tn_fail(-ENOMEM, "executor: no memory");
	c->o = *opts;
	if (opts->depth < 2)
		c->o.direct = NULL; /* a device that stands would have the only request */
	c->direct_most = c->o.direct ? 2 * tn_direct_streams(c->o.direct) : 0;
	c->nruns = v->depth;
	c->ioctxs = v->ioctxs;
	c->ngroups = tn_executor_jobs(opts->depth);
	for (uint32_t i = 0; i < opts->ndevices; i++)
		c->device[i].align = opts->transport->align[i];
	c->runs = tn_get(a, tn_array_bytes(c->nruns, sizeof(*c->runs)));
	c->sorted = tn_get(a, tn_array_bytes((size_t)c->nruns * c->ioctxs, sizeof(*c->sorted)));
	c->sort_scratch = tn_get(a, tn_array_bytes(c->ioctxs, sizeof(*c->sort_scratch)));
	c->turns[0].served = tn_get(a, served_bytes(c));
	c->turns[1].served = tn_get(a, served_bytes(c));
	c->groups = tn_get(a, tn_array_bytes(c->ngroups, sizeof(*c->groups)));
	c->members = tn_get(a, tn_array_bytes((size_t)c->ngroups * TN_LANE_MEMBERS_MAX, sizeof(*c->members)));
	c->sums = c->o.direct ? tn_get(a, tn_array_bytes((size_t)c->ngroups * TN_LANE_MEMBERS_MAX, sizeof(*c->sums))) : NULL;
	c->pieces = tn_get(a, tn_array_bytes(opts->depth, sizeof(*c->pieces)));
	c->transfers = c->o.direct ? tn_get(a, tn_array_bytes(opts->depth, sizeof(*c->transfers))) : NULL;
	c->queue = tn_get(a, tn_array_bytes(opts->depth, sizeof(*c->queue)));
	c->iovs = tn_get(a, tn_array_bytes(lists_of(c), TN_OBJECT_IOVS_MAX * sizeof(struct iovec)));
	c->few_iovs = tn_get(a, tn_array_bytes(opts->depth, TN_LANE_IOVS_FEW * sizeof(struct iovec)));
	/* Made for the largest objects and IOCBs; what is used of each is little. */
	tn_sparse(a, c->iovs, tn_array_bytes(lists_of(c), TN_OBJECT_IOVS_MAX * sizeof(struct iovec)));
	tn_sparse(a, c->sorted, tn_array_bytes((size_t)c->nruns * c->ioctxs, sizeof(*c->sorted)));
	tn_sparse(a, c->members, tn_array_bytes((size_t)c->ngroups * TN_LANE_MEMBERS_MAX, sizeof(*c->members)));
	if (c->sums)
		tn_sparse(a, c->sums, tn_array_bytes((size_t)c->ngroups * TN_LANE_MEMBERS_MAX, sizeof(*c->sums)));
	if (!c->runs || !c->sorted || !c->sort_scratch || !c->turns[0].served || !c->turns[1].served || !c->groups || !c->members ||
	    !c->pieces || !c->queue || !c->iovs || !c->few_iovs || (c->o.direct && (!c->sums || !c->transfers))) {
		tn_lane_destroy(c);
		return tn_fail(-ENOMEM, "executor: no memory for %u requests", opts->depth);
	}
	for (uint32_t i = 0; i < c->nruns; i++)
		c->runs[i].order = c->sorted + (size_t)i * c->ioctxs;
	for (uint32_t i = 0; i < opts->depth; i++) {
		c->pieces[i].number = i;
		c->pieces[i].few = c->few_iovs + (size_t)i * TN_LANE_IOVS_FEW;
		c->pieces[i].many = c->iovs + (size_t)i * TN_OBJECT_IOVS_MAX;
		c->pieces[i].next = c->free_pieces;
		c->free_pieces = &c->pieces[i];
	}
	for (uint32_t i = 0; i < c->ngroups; i++) {
		struct tn_lane_group *g = &c->groups[i];

		g->lane = c;
		g->many = c->members + (size_t)i * TN_LANE_MEMBERS_MAX;
		g->sums = c->sums ? c->sums + (size_t)i * TN_LANE_MEMBERS_MAX : NULL;
		g->scratch = c->iovs + ((size_t)opts->depth + 2 * i) * TN_OBJECT_IOVS_MAX;
		g->job_scratch = g->scratch + TN_OBJECT_IOVS_MAX;
		g->next = c->free_groups;
		c->free_groups = g;
	}
	*out = c;
	return 0;
}

void tn_lane_destroy(struct tn_lane *c)
{
	const struct tn_alloc *a;

	if (!c)
		return;
	assert(c->inflight == 0 && c->busy_groups == 0);
	a = c->o.alloc;
	for (uint32_t i = 0; i < c->nbounces; i++) {
		struct tn_lane_bounces *b = &c->bounces[i];

		if (c->o.pins)
			tn_pins_remove(c->o.pins, &b->pin);
		if (c->o.transport->maps)
			c->o.transport->ops->unmap(c->o.transport, b->memory, b->bytes_each * TN_LANE_BOUNCES);
		tn_put(a, b->block, bounce_block(b->bytes_each));
	}
	tn_put(a, c->few_iovs, tn_array_bytes(c->o.depth, TN_LANE_IOVS_FEW * sizeof(struct iovec)));
	tn_put(a, c->iovs, tn_array_bytes(lists_of(c), TN_OBJECT_IOVS_MAX * sizeof(struct iovec)));
	tn_put(a, c->queue, tn_array_bytes(c->o.depth, sizeof(*c->queue)));
	tn_put(a, c->transfers, tn_array_bytes(c->o.depth, sizeof(*c->transfers)));
	tn_put(a, c->pieces, tn_array_bytes(c->o.depth, sizeof(*c->pieces)));
	tn_put(a, c->sums, tn_array_bytes((size_t)c->ngroups * TN_LANE_MEMBERS_MAX, sizeof(*c->sums)));
	tn_put(a, c->members, tn_array_bytes((size_t)c->ngroups * TN_LANE_MEMBERS_MAX, sizeof(*c->members)));
	tn_put(a, c->groups, tn_array_bytes(c->ngroups, sizeof(*c->groups)));
	tn_put(a, c->turns[1].served, served_bytes(c));
	tn_put(a, c->turns[0].served, served_bytes(c));
	tn_put(a, c->sort_scratch, tn_array_bytes(c->ioctxs, sizeof(*c->sort_scratch)));
	tn_put(a, c->sorted, tn_array_bytes((size_t)c->nruns * c->ioctxs, sizeof(*c->sorted)));
	tn_put(a, c->runs, tn_array_bytes(c->nruns, sizeof(*c->runs)));
	tn_put(a, c, sizeof(*c));
}

/* The first class takes no more memory than its objects need, and is often the only one; the others are powers of two, so that they are few. */
static size_t class_bytes(const struct tn_lane *lane, size_t object_bytes)
{
	size_t bytes = TN_LANE_BOUNCE_BYTES;

	if (lane->nbounces == 0 && object_bytes > bytes)
		return object_bytes;
	while (bytes < object_bytes)
		bytes *= 2;
	return bytes;
}

int tn_lane_make_bounces(struct tn_lane *lane, uint32_t padded_bytes)
{
	size_t bytes = class_bytes(lane, padded_bytes);
	struct tn_lane_bounces *b = &lane->bounces[lane->nbounces];
	struct tn_lane_transport *t = lane->o.transport;
	int err;

	for (uint32_t i = 0; i < lane->nbounces; i++)
		if (lane->bounces[i].bytes_each >= padded_bytes)
			return 0;
	if (lane->nbounces == TN_LANE_BOUNCE_CLASSES)
		return tn_fail(-ENOMEM, "objects of %u bytes are too large for bounce buffers", padded_bytes);
	b->block = tn_get(lane->o.alloc, bounce_block(bytes));
	if (!b->block)
		return tn_fail(-ENOMEM, "no memory for %u bounce buffers of %zu bytes", TN_LANE_BOUNCES, bytes);
	b->memory = (unsigned char *)b->block + (PAGE - (uintptr_t)b->block % PAGE) % PAGE;
	err = t->maps ? t->ops->map(t, b->memory, bytes * TN_LANE_BOUNCES) : 0;
	err = err && t->must_map ? err : 0;
	if (!err && lane->o.pins) {
		err = tn_pins_add(lane->o.pins, &b->pin, b->memory, bytes * TN_LANE_BOUNCES);
		if (err && t->maps)
			t->ops->unmap(t, b->memory, bytes * TN_LANE_BOUNCES);
	}
	if (err) {
		tn_put(lane->o.alloc, b->block, bounce_block(bytes));
		return err;
	}
	b->bytes_each = bytes;
	for (b->nfree = 0; b->nfree < TN_LANE_BOUNCES; b->nfree++)
		b->free[b->nfree] = b->nfree;
	lane->nbounces++;
	lane->starved = false;
	return 0;
}

static bool goes_direct(const struct tn_lane *lane, const struct tn_lane_piece *p)
{
	return lane->o.direct && tn_lane_on_device(p->group);
}

static void submit(struct tn_lane *lane)
{
	while (lane->queue_count > 0) {
		struct tn_lane_piece **piece = lane->queue + lane->queue_head;
		uint32_t most = lane->o.depth - lane->queue_head; /* up to the wrap */
		bool direct = goes_direct(lane, piece[0]);
		uint32_t run = 1, n;

		if (most > lane->queue_count)
			most = lane->queue_count;
		while (run < most && goes_direct(lane, piece[run]) == direct)
			run++;
		if (direct)
			tn_lane_direct_send(lane, piece, run);
		n = direct ? run : lane->o.transport->ops->send(lane->o.transport, piece, run);
		lane->queue_head = (lane->queue_head + n) % lane->o.depth;
		lane->queue_count -= n;
		if (n < run)
			return;
	}
}

/* Starts the next group, of those that copy or check, or of a device's; false: there is none, or nothing is free. */
static bool start_next(struct tn_lane *lane, bool copies, uint64_t now_ns)
{
	struct tn_lane_turns *t = &lane->turns[copies];
	struct tn_lane_run *run;

	if (lane->waiting == 0 || (copies && (!lane->free_groups || lane->copying >= lane->ngroups / 2)))
		return false;
	/* Where CPUs are slower than devices each group that is free again would be a read's. */
	if (!copies && lane->to_copy > 0 && lane->copying == 0 && lane->busy_groups + 1 >= lane->ngroups)
		return false;
	run = tn_lane_next_run(lane, copies, now_ns);
	if (!run)
		return false;
	if (!tn_lane_group_start(lane, run, now_ns)) {
		lane->starved |= !copies;
		return false;
	}
	t->passed_over = t->passes_over ? t->passed_over + 1 : 0;
	return true;
}

bool tn_lane_go(struct tn_lane *lane)
{
	uint64_t now = tn_now_ns(lane->o.clock);
	bool any = tn_lane_take_iocbs(lane);

	any |= tn_lane_poll_runs(lane);
	any |= tn_lane_direct_ended(lane);
	any |= tn_lane_groups_move(lane);
	tn_lane_groups_send(lane, now);
	while (!lane->starved && start_next(lane, false, now))
		any = true;
	submit(lane);
	any |= tn_lane_groups_work(lane);
	/* What is done on the spot is one at a time: what ended on a device meanwhile is looked at before the next. */
	while (start_next(lane, true, now)) {
		any = true;
		if (!lane->o.exec)
			break;
	}
	tn_lane_tell_ended(lane);
	return any;
}

uint64_t tn_lane_due(const struct tn_lane *lane, uint64_t now_ns)
{
	if (lane->moving.first)
		return now_ns + MOVE_POLL_NS;
	for (uint32_t i = 0, seen = 0; i < lane->nruns && seen < lane->used_runs; i++) {
		seen += lane->runs[i].used;
		if (lane->runs[i].used && !lane->runs[i].started)
			return now_ns + EVENT_POLL_NS;
	}
	return TN_FOREVER;
}

void tn_lane_stats_add(const struct tn_lane *lane, struct tn_executor_stats *stats)
{
	const struct tn_executor_stats *s = &lane->stats;

	stats->iocbs += __atomic_load_n(&s->iocbs, __ATOMIC_RELAXED);
	stats->objects += __atomic_load_n(&s->objects, __ATOMIC_RELAXED);
	stats->requests += __atomic_load_n(&s->requests, __ATOMIC_RELAXED);
	stats->bytes += __atomic_load_n(&s->bytes, __ATOMIC_RELAXED);
	stats->bytes_written += __atomic_load_n(&s->bytes_written, __ATOMIC_RELAXED);
	stats->direct_bytes += __atomic_load_n(&s->direct_bytes, __ATOMIC_RELAXED);
	stats->bounced += __atomic_load_n(&s->bounced, __ATOMIC_RELAXED);
	stats->verified += __atomic_load_n(&s->verified, __ATOMIC_RELAXED);
	stats->again += __atomic_load_n(&s->again, __ATOMIC_RELAXED);
}
