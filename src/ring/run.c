/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of a core: IOCBs are taken, started, cancelled and finished. What a run moves is up to plan.c and group.c. */
#include <errno.h>
#include <string.h>

#include "ring/core.h"

static void finish(struct tn_core_intake *in, uint32_t id, int32_t status, uint32_t failed, uint32_t failures)
{
	struct tn_iocb_result *res = tn_ring_result_of(&in->view, id);

	res->status = status;
	res->failed = failed;
	res->failures = failures;
	tn_ring_finish(&in->view, id);
}

static void finish_run(struct tn_core *core, struct tn_core_run *run)
{
	struct tn_core_intake *in = core->o.intake;

	run->used = false;
	core->used_runs--;
	tn_core_count(&core->stats.iocbs, 1);
	pthread_mutex_lock(&in->lock);
	finish(in, run->id, run->status, run->failed, run->failures);
	pthread_mutex_unlock(&in->lock);
}

void tn_core_member_done(struct tn_core *core, struct tn_core_run *run, uint32_t at, int32_t status)
{
	uint32_t index = run->order[at].index;

	/* release: orders the bytes before the status, for callers that look before the IOCB is finished */
	__atomic_store_n(&run->statuses[index], status, __ATOMIC_RELEASE);
	if (status) {
		run->failures++;
		if (index < run->failed) {
			run->failed = index;
			run->status = status;
		}
	}
	tn_core_count(&core->stats.objects, 1);
	/* release: orders the count after the status, for callers that count before they look */
	tn_ring_store32(&tn_ring_result_of(&core->o.intake->view, run->id)->ended, run->cb.count - run->open + 1);
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
		.source = __atomic_load_n(&cb->source, __ATOMIC_RELAXED),
		.priority = __atomic_load_n(&cb->priority, __ATOMIC_RELAXED),
	};
}

static const struct tn_ring_list *list_of(const struct tn_ring *ring, uint32_t id)
{
	return id < ring->nlists ? __atomic_load_n(&ring->lists[id], __ATOMIC_ACQUIRE) : NULL;
}

/* What is wrong with an IOCB as a whole, or 0. */
static int check_iocb(const struct tn_core *core, const struct tn_core_run *run)
{
	const struct tn_iocb *cb = &run->cb;

	if (cb->op < TN_IOCB_READ || cb->op > TN_IOCB_CHECK)
		return -ENOTSUP;
	if (!run->list || !run->source || cb->count == 0 || cb->count > core->ioctxs)
		return -EINVAL;
	if (run->source->shape->object_bytes != run->list->shape->object_bytes)
		return -EINVAL;
	if ((cb->flags & TN_IOCB_VERIFY) && !run->source->checks)
		return -EINVAL;
	if (cb->after_event != TN_RING_NO_EVENT && cb->after_event >= core->o.intake->view.events)
		return -EINVAL;
	return 0;
}

static bool is_cancelled(const struct tn_core_intake *in, uint32_t id)
{
	return tn_ring_load32(&tn_ring_iocb_of(&in->view, id)->cancel);
}

static uint32_t at_most(uint32_t n, uint32_t most)
{
	return n < most ? n : most;
}

static void open_run(struct tn_core *core, struct tn_core_run *run, uint32_t id)
{
	const struct tn_ring_view *v = &core->o.intake->view;
	struct tn_core_sorted *order = run->order;
	int err;

	*run = (struct tn_core_run){.id = id, .cb = copy_of(tn_ring_iocb_of(v, id)), .order = order, .used = true,
				    .statuses = tn_ring_statuses_of(v, id), .sums = tn_ring_sums_of(v, id)};
	run->failed = TN_RING_NO_INDEX;
	core->used_runs++;
	run->list = list_of(core->o.intake->ring, run->cb.list);
	run->source = run->cb.op == TN_IOCB_COPY ? list_of(core->o.intake->ring, run->cb.source) : run->list;
	tn_ring_begin(v, id, at_most(run->cb.count, v->ioctxs), run->cb.sequence);
	err = check_iocb(core, run);
	if (err)
		refuse(core, run, err);
}

/* Finishes those that were cancelled before a core took them; under lock. */
static bool finish_cancelled(struct tn_core *core, struct tn_core_intake *in)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < in->count; i++) {
		uint32_t id = in->ids[i];
		struct tn_iocb cb;

		if (!is_cancelled(in, id)) {
			in->ids[left++] = id;
			continue;
		}
		cb = copy_of(tn_ring_iocb_of(&in->view, id));
		tn_ring_begin(&in->view, id, at_most(cb.count, in->view.ioctxs), cb.sequence);
		finish(in, id, -ECANCELED, 0, cb.count);
		tn_core_count(&core->stats.iocbs, 1);
	}
	if (left == in->count)
		return false;
	__atomic_store_n(&in->count, left, __ATOMIC_RELAXED);
	return true;
}

/* The next IOCB, if the core has capacity for one; *any: it, or cancelled ones. */
static bool take(struct tn_core *core, uint32_t *id, bool *any)
{
	struct tn_core_intake *in = core->o.intake;
	uint32_t taken;
	bool mine;

	/* Without the lock: what is issued after this wakes us. */
	if (__atomic_load_n(&in->count, __ATOMIC_RELAXED) == 0 && tn_ring_load64(in->view.issued) == tn_ring_load64(in->view.taken))
		return false;
	pthread_mutex_lock(&in->lock);
	while (in->count < in->view.depth && tn_ring_take(&in->view, &taken)) {
		in->ids[in->count] = taken;
		__atomic_store_n(&in->count, in->count + 1, __ATOMIC_RELAXED);
	}
	*any |= finish_cancelled(core, in);
	mine = in->count > 0 && core->used_runs < core->nruns && core->waiting < core->o.backlog;
	if (mine) {
		*id = in->ids[0];
		__atomic_store_n(&in->count, in->count - 1, __ATOMIC_RELAXED);
		memmove(in->ids, in->ids + 1, in->count * sizeof(*in->ids));
	}
	pthread_mutex_unlock(&in->lock);
	*any |= mine;
	return mine;
}

bool tn_core_take_iocbs(struct tn_core *core)
{
	bool any = false;
	uint32_t id;

	while (take(core, &id, &any)) {
		struct tn_core_run *run = free_run(core);

		open_run(core, run, id);
		if (run->used && tn_ring_may_start(&core->o.intake->view, run->cb.after_event, run->cb.after_value))
			start_run(core, run);
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
		if (is_cancelled(core->o.intake, run->id)) {
			if (run->started && !run->waiting)
				continue;
			if (!run->started)
				start_run(core, run); /* for the statuses of its entries */
			give_up(core, run, -ECANCELED);
			any = true;
		} else if (!run->started && tn_ring_may_start(&core->o.intake->view, run->cb.after_event, run->cb.after_value)) {
			start_run(core, run);
			any = true;
		}
	}
	return any;
}
