/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of a core: IOCBs are taken, started, cancelled and finished. What a run reads is up to plan.c and group.c. */
#include <errno.h>

#include "ring/core.h"

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

	/* release: orders the bytes before the status, for callers that look before the IOCB is finished */
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
	/* release: orders the count after the status, for callers that count before they look */
	tn_ring_store32(&run->shared->ended, run->cb.count - run->open + 1);
	if (--run->open == 0)
		finish_run(core, run);
}

/* Gives up the IOCTXs that are in no group. If none is in a group, the run is finished with the last one. */
static void give_up(struct tn_core *core, struct tn_core_run *run, int status)
{
	for (uint32_t at = run->cursor; run->waiting > 0; at++) {
		if (run->order[at].taken)
			continue;
		run->order[at].taken = true;
		run->waiting--;
		core->waiting--;
		tn_core_member_done(core, run, at, status);
	}
}

/* Finishes a whole IOCB that cannot be begun. */
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

/* Others may change the shared header meanwhile: each field is read once. */
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

bool tn_core_take_iocbs(struct tn_core *core)
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

bool tn_core_poll_runs(struct tn_core *core)
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
