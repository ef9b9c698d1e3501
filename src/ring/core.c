/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core's life, and its step: IOCBs are taken (run.c), groups of the runs whose turn it is are started (plan.c,
 * group.c), requests are submitted.
 */
#include "ring/core.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"

#define EVENT_POLL_NS 500000u /* an event word may be written by a device, which wakes nobody */

/* Lists of pieces of memory: one per request, two per group. */
static uint32_t lists_of(const struct tn_core *core)
{
	return 2 * core->ngroups + core->o.depth;
}

int tn_core_intake_init(struct tn_core_intake *in, struct tn_ring *ring, const struct tn_alloc *alloc)
{
	*in = (struct tn_core_intake){.ring = ring};
	if (tn_ring_memory_view(ring->memory, ring->bytes, &in->view))
		return tn_fail(-EINVAL, "executor: %llu bytes that are no ring", (unsigned long long)ring->bytes);
	in->ids = tn_get(alloc, tn_array_bytes(in->view.depth, sizeof(*in->ids)));
	if (!in->ids)
		return tn_fail(-ENOMEM, "executor: no memory");
	pthread_mutex_init(&in->lock, NULL);
	return 0;
}

void tn_core_intake_fini(struct tn_core_intake *in, const struct tn_alloc *alloc)
{
	if (!in->ids)
		return;
	pthread_mutex_destroy(&in->lock);
	tn_put(alloc, in->ids, tn_array_bytes(in->view.depth, sizeof(*in->ids)));
}

int tn_core_create(const struct tn_core_opts *opts, struct tn_core **out)
{
	const struct tn_alloc *a = opts->alloc;
	const struct tn_ring_view *v = &opts->intake->view;
	struct tn_core *c = tn_get(a, sizeof(*c));

	if (!c)
		return tn_fail(-ENOMEM, "executor: no memory");
	c->o = *opts;
	c->nruns = v->depth;
	c->ioctxs = v->ioctxs;
	c->ngroups = 2 * opts->depth;
	c->runs = tn_get(a, tn_array_bytes(c->nruns, sizeof(*c->runs)));
	c->sorted = tn_get(a, tn_array_bytes((size_t)c->nruns * c->ioctxs, sizeof(*c->sorted)));
	c->sort_scratch = tn_get(a, tn_array_bytes(c->ioctxs, sizeof(*c->sort_scratch)));
	c->served = tn_get(a, tn_array_bytes(opts->intake->ring->nlists, sizeof(*c->served)));
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
		g->scratch = c->iovs + ((size_t)opts->depth + 2 * i) * TN_OBJECT_IOVS_MAX;
		g->job_scratch = g->scratch + TN_OBJECT_IOVS_MAX;
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
	tn_put(a, c->served, tn_array_bytes(c->o.intake->ring->nlists, sizeof(*c->served)));
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
	bool any = tn_core_take_iocbs(core);

	any |= tn_core_poll_runs(core);
	tn_core_groups_send(core);
	while (core->waiting > 0 && !core->starved && (run = tn_core_next_run(core, now))) {
		if (tn_core_group_start(core, run)) {
			core->passed_over = core->passes_over ? core->passed_over + 1 : 0;
			any = true;
		} else {
			core->starved = true;
		}
	}
	submit(core);
	any |= tn_core_groups_sum(core);
	return any;
}

uint64_t tn_core_due(const struct tn_core *core, uint64_t now_ns)
{
	for (uint32_t i = 0; i < core->nruns && core->used_runs > 0; i++)
		if (core->runs[i].used && !core->runs[i].started)
			return now_ns + EVENT_POLL_NS;
	return TN_FOREVER;
}

void tn_core_stats(const struct tn_core *core, struct tn_executor_stats *stats)
{
	const struct tn_executor_stats *s = &core->stats;

	*stats = (struct tn_executor_stats){
		.iocbs = __atomic_load_n(&s->iocbs, __ATOMIC_RELAXED),
		.objects = __atomic_load_n(&s->objects, __ATOMIC_RELAXED),
		.requests = __atomic_load_n(&s->requests, __ATOMIC_RELAXED),
		.bytes = __atomic_load_n(&s->bytes, __ATOMIC_RELAXED),
		.bytes_written = __atomic_load_n(&s->bytes_written, __ATOMIC_RELAXED),
		.bounced = __atomic_load_n(&s->bounced, __ATOMIC_RELAXED),
		.verified = __atomic_load_n(&s->verified, __ATOMIC_RELAXED),
		.again = __atomic_load_n(&s->again, __ATOMIC_RELAXED),
	};
}
