/* SPDX-License-Identifier: Apache-2.0 */
/* A core's life, and that of its runs: taking IOCBs, starting them, finishing them. */
#include "ring/core.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"

/* Lists of pieces: one a request, one a group. */
static uint32_t lists_of(const struct tn_core *core)
{
	return core->ngroups + core->o.depth;
}

int tn_core_create(const struct tn_core_opts *opts, struct tn_core **out)
{
	const struct tn_alloc *a = opts->alloc;
	struct tn_ring_shared *s = opts->ring->shared;
	struct tn_core *c = tn_get(a, sizeof(*c));

	if (!c)
		return tn_fail(-ENOMEM, "executor: no memory");
	c->o = *opts;
	c->nruns = s->depth;
	c->ioctxs = s->ioctxs;
	c->ngroups = 2 * opts->depth;
	c->runs = tn_get(a, tn_array_bytes(c->nruns, sizeof(*c->runs)));
	c->sorted = tn_get(a, tn_array_bytes((size_t)c->nruns * c->ioctxs, sizeof(*c->sorted)));
	c->sort_scratch = tn_get(a, tn_array_bytes(c->ioctxs, sizeof(*c->sort_scratch)));
	c->served = tn_get(a, tn_array_bytes(opts->ring->nlists, sizeof(*c->served)));
	c->groups = tn_get(a, tn_array_bytes(c->ngroups, sizeof(*c->groups)));
	c->members = tn_get(a, tn_array_bytes((size_t)c->ngroups * TN_CORE_MEMBERS_MAX, sizeof(*c->members)));
	c->pieces = tn_get(a, tn_array_bytes(opts->depth, sizeof(*c->pieces)));
	c->queue = tn_get(a, tn_array_bytes(opts->depth, sizeof(void *)));
	c->iovs = tn_get(a, tn_array_bytes(lists_of(c), TN_OBJECT_IOVS_MAX * sizeof(struct iovec)));
	/* Made for the largest objects and IOCBs; what is used of each is little. */
	tn_sparse(a, c->iovs, tn_array_bytes(lists_of(c), TN_OBJECT_IOVS_MAX * sizeof(struct iovec)));
	tn_sparse(a, c->sorted, tn_array_bytes((size_t)c->nruns * c->ioctxs, sizeof(*c->sorted)));
	tn_sparse(a, c->members, tn_array_bytes((size_t)c->ngroups * TN_CORE_MEMBERS_MAX, sizeof(*c->members)));
	if (!c->runs || !c->sorted || !c->sort_scratch || !c->served || !c->groups || !c->members || !c->pieces || !c->queue ||
	    !c->iovs) {
		tn_core_destroy(c);
		return tn_fail(-ENOMEM, "executor: no memory for %u requests", opts->depth);
	}
	for (uint32_t i = 0; i < c->nruns; i++)
		c->runs[i].order = c->sorted + (size_t)i * c->ioctxs;
	for (uint32_t i = 0; i < opts->depth; i++) {
		c->pieces[i].iov = c->iovs + (size_t)i * TN_OBJECT_IOVS_MAX;
		c->pieces[i].next = c->free_pieces;
		c->free_pieces = &c->pieces[i];
	}
	for (uint32_t i = 0; i < c->ngroups; i++) {
		struct tn_core_group *g = &c->groups[i];

		g->core = c;
		g->member = c->members + (size_t)i * TN_CORE_MEMBERS_MAX;
		g->scratch = c->iovs + ((size_t)opts->depth + i) * TN_OBJECT_IOVS_MAX;
		g->next = c->free_groups;
		c->free_groups = g;
	}
	*out = c;
	return 0;
}

void tn_core_destroy(struct tn_core *c)
{
	const struct tn_alloc *a;

	if (!c)
		return;
	assert(c->inflight == 0 && c->busy_groups == 0);
	a = c->o.alloc;
	for (uint32_t i = 0; i < c->nbounces; i++)
		tn_put(a, c->bounces[i].memory, c->bounces[i].bytes_each * TN_CORE_BOUNCES);
	tn_put(a, c->iovs, tn_array_bytes(lists_of(c), TN_OBJECT_IOVS_MAX * sizeof(struct iovec)));
	tn_put(a, c->queue, tn_array_bytes(c->o.depth, sizeof(void *)));
	tn_put(a, c->pieces, tn_array_bytes(c->o.depth, sizeof(*c->pieces)));
	tn_put(a, c->members, tn_array_bytes((size_t)c->ngroups * TN_CORE_MEMBERS_MAX, sizeof(*c->members)));
	tn_put(a, c->groups, tn_array_bytes(c->ngroups, sizeof(*c->groups)));
	tn_put(a, c->served, tn_array_bytes(c->o.ring->nlists, sizeof(*c->served)));
	tn_put(a, c->sort_scratch, tn_array_bytes(c->ioctxs, sizeof(*c->sort_scratch)));
	tn_put(a, c->sorted, tn_array_bytes((size_t)c->nruns * c->ioctxs, sizeof(*c->sorted)));
	tn_put(a, c->runs, tn_array_bytes(c->nruns, sizeof(*c->runs)));
	tn_put(a, c, sizeof(*c));
}

int tn_core_device_add(struct tn_core *core, uint32_t file)
{
	struct tn_io_stat st = {.offset_align = 1, .memory_align = 1};
	int err = file == TN_IO_NO_FILE ? 0 : tn_io_stat(core->o.io, file, &st);

	if (err)
		return err;
	if (core->ndevices == TN_RING_DEVICES_MAX)
		return tn_fail(-EINVAL, "executor: %u devices, the most an address can name", core->ndevices);
	core->device[core->ndevices++] = (struct tn_core_device){
		.file = file,
		.align = st.offset_align > st.memory_align ? st.offset_align : st.memory_align,
	};
	return 0;
}

int tn_core_room(struct tn_core *core, uint32_t padded_bytes)
{
	size_t bytes = padded_bytes < TN_RING_IO_BYTES ? TN_RING_IO_BYTES : padded_bytes;
	struct tn_core_bounces *b = &core->bounces[core->nbounces];

	for (uint32_t i = 0; i < core->nbounces; i++)
		if (core->bounces[i].bytes_each >= bytes)
			return 0;
	if (core->nbounces == TN_CORE_BOUNCE_CLASSES)
		return tn_fail(-ENOMEM, "no bounce buffers left for objects of %zu bytes; open the largest geometry first", bytes);
	b->memory = tn_get(core->o.alloc, tn_array_bytes(bytes, TN_CORE_BOUNCES));
	if (!b->memory)
		return tn_fail(-ENOMEM, "no memory for %u bounce buffers of %zu bytes", TN_CORE_BOUNCES, bytes);
	b->bytes_each = bytes;
	for (b->nfree = 0; b->nfree < TN_CORE_BOUNCES; b->nfree++)
		b->free[b->nfree] = b->nfree;
	core->nbounces++;
	core->starved = false;
	return 0;
}

/* ---- runs ------------------------------------------------------------------------------------------------- */

static void finish_run(struct tn_core *core, struct tn_core_run *run)
{
	struct tn_iocb *cb = run->shared;

	cb->status = run->status;
	cb->failed = run->failed;
	cb->failures = run->failures;
	run->used = false;
	core->used_runs--;
	tn_core_count(&core->stats.iocbs, 1);
	tn_ring_finish(core->o.ring->shared, run->id);
	tn_ring_notify(core->o.ring);
}

void tn_core_member_done(struct tn_core *core, struct tn_core_run *run, uint32_t at, int32_t status)
{
	uint32_t index = run->order[at].index, entry = run->order[at].entry;

	/* release: the bytes before the status, for those who look before the IOCB is finished */
	if (entry / run->list->shape->layers < run->list->blocks)
		__atomic_store_n(&run->list->status[entry], status, __ATOMIC_RELEASE);
	if (status) {
		run->failures++;
		if (index < run->failed) {
			run->failed = index;
			run->status = status;
		}
	}
	tn_core_count(&core->stats.objects, 1);
	/* release: after the status, for those who count before they look */
	tn_ring_store32(&run->shared->ended, run->cb.count - run->open + 1);
	if (--run->open == 0)
		finish_run(core, run);
}

/* Gives up what is in no group; true: that was all of it, and the run is finished. */
static bool give_up(struct tn_core *core, struct tn_core_run *run, int status)
{
	for (uint32_t at = run->cursor; run->waiting > 0; at++) {
		bool last = run->open == 1;

		if (run->order[at].taken)
			continue;
		run->order[at].taken = true;
		run->waiting--;
		core->waiting--;
		tn_core_member_done(core, run, at, status);
		if (last)
			return true;
	}
	return false;
}

/* A whole IOCB that cannot be begun. */
static void refuse(struct tn_core *core, struct tn_core_run *run, int status)
{
	run->status = status;
	run->failed = 0;
	run->failures = run->cb.count;
	finish_run(core, run);
}

static void start_run(struct tn_core *core, struct tn_core_run *run)
{
	tn_core_sort(core, run);
	run->started = true;
	run->cursor = 0;
	run->waiting = run->open = run->cb.count;
	core->waiting += run->cb.count;
}

static struct tn_core_run *free_run(struct tn_core *core)
{
	for (uint32_t i = 0; i < core->nruns; i++)
		if (!core->runs[i].used)
			return &core->runs[i];
	return NULL;
}

/* What others may change meanwhile, each field read once. */
static struct tn_iocb copy_of(const struct tn_iocb *cb)
{
	return (struct tn_iocb){
		.op = __atomic_load_n(&cb->op, __ATOMIC_RELAXED),
		.flags = __atomic_load_n(&cb->flags, __ATOMIC_RELAXED),
		.list = __atomic_load_n(&cb->list, __ATOMIC_RELAXED),
		.count = __atomic_load_n(&cb->count, __ATOMIC_RELAXED),
		.after_event = __atomic_load_n(&cb->after_event, __ATOMIC_RELAXED),
		.after_value = __atomic_load_n(&cb->after_value, __ATOMIC_RELAXED),
		.sequence = __atomic_load_n(&cb->sequence, __ATOMIC_RELAXED),
		.priority = __atomic_load_n(&cb->priority, __ATOMIC_RELAXED),
	};
}

static void open_run(struct tn_core *core, struct tn_core_run *run, uint32_t id)
{
	struct tn_ring *ring = core->o.ring;
	struct tn_iocb *shared = tn_ring_iocb_of(ring->shared, id);
	struct tn_core_sorted *order = run->order;
	const struct tn_iocb *cb = &run->cb;

	*run = (struct tn_core_run){.id = id, .cb = copy_of(shared), .shared = shared, .order = order, .used = true};
	run->failed = TN_RING_NO_INDEX;
	core->used_runs++;
	if (cb->list < ring->nlists)
		run->list = __atomic_load_n(&ring->lists[cb->list], __ATOMIC_ACQUIRE);
	if (cb->op != TN_IOCB_READ)
		refuse(core, run, -ENOTSUP);
	else if (!run->list || cb->count == 0 || cb->count > core->ioctxs)
		refuse(core, run, -EINVAL);
	else if (cb->after_event != TN_RING_NO_EVENT && cb->after_event >= ring->shared->events)
		refuse(core, run, -EINVAL);
}

/* A backlog of its own does not keep one executor from looking at what is urgent; several leave work for each other. */
static bool take(struct tn_core *core)
{
	bool any = false;
	uint32_t id;

	while (core->used_runs < core->nruns && core->waiting < core->o.backlog &&
	       tn_ring_take(core->o.ring->shared, &id)) {
		struct tn_core_run *run = free_run(core);

		open_run(core, run, id);
		if (run->used && tn_ring_may_start(core->o.ring->shared, &run->cb))
			start_run(core, run);
		any = true;
	}
	return any;
}

/* Runs that were cancelled, and those whose event has come. */
static bool look_at_runs(struct tn_core *core)
{
	uint32_t seen = 0, used = core->used_runs;
	bool any = false;

	for (uint32_t i = 0; i < core->nruns && seen < used; i++) {
		struct tn_core_run *run = &core->runs[i];

		if (!run->used)
			continue;
		seen++;
		if (tn_ring_load32(&run->shared->cancel)) {
			if (run->started && !run->waiting)
				continue;
			if (!run->started)
				start_run(core, run); /* for the statuses of its entries */
			give_up(core, run, -ECANCELED);
			any = true;
		} else if (!run->started && tn_ring_may_start(core->o.ring->shared, &run->cb)) {
			start_run(core, run);
			any = true;
		}
	}
	return any;
}

static void submit(struct tn_core *core)
{
	while (core->queue_count > 0) {
		uint32_t run = core->o.depth - core->queue_head; /* up to the wrap */
		unsigned n;

		if (run > core->queue_count)
			run = core->queue_count;
		n = tn_io_submit(core->o.io, core->queue + core->queue_head, run);
		core->queue_head = (core->queue_head + n) % core->o.depth;
		core->queue_count -= n;
		if (n < run)
			return;
	}
}

bool tn_core_go(struct tn_core *core)
{
	struct tn_core_run *run;
	uint64_t now = tn_now_ns(core->o.clock);
	bool any = take(core);

	any |= look_at_runs(core);
	while (core->waiting > 0 && !core->starved && (run = tn_core_next_run(core, now))) {
		if (tn_core_group_start(core, run)) {
			core->passed_over = core->passes_over ? core->passed_over + 1 : 0;
			any = true;
		} else {
			core->starved = true;
		}
	}
	submit(core);
	return any;
}

bool tn_core_waits(const struct tn_core *core)
{
	for (uint32_t i = 0; i < core->nruns && core->used_runs > 0; i++)
		if (core->runs[i].used && !core->runs[i].started)
			return true;
	return false;
}

void tn_core_stats(const struct tn_core *core, struct tn_executor_stats *stats)
{
	const struct tn_executor_stats *s = &core->stats;

	*stats = (struct tn_executor_stats){
		.iocbs = __atomic_load_n(&s->iocbs, __ATOMIC_RELAXED),
		.objects = __atomic_load_n(&s->objects, __ATOMIC_RELAXED),
		.requests = __atomic_load_n(&s->requests, __ATOMIC_RELAXED),
		.bytes = __atomic_load_n(&s->bytes, __ATOMIC_RELAXED),
		.bounced = __atomic_load_n(&s->bounced, __ATOMIC_RELAXED),
		.verified = __atomic_load_n(&s->verified, __ATOMIC_RELAXED),
		.again = __atomic_load_n(&s->again, __ATOMIC_RELAXED),
	};
}
