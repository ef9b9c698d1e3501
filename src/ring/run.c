/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of a lane: IOCBs are taken, sorted by place, started, cancelled and finished; and whose turn it is. What a run moves is up to
 * group.c.
 */
#include <errno.h>
#include <string.h>

#include "ring/lane.h"

#define LAYERED_NS 1000000000ull /* who has read by layers may do so again */
/* Groups that one list may start before another of the same priority has its turn. */
#define QUANTUM 16u
/* IOCTXs that are sorted one by one; longer runs are merged. */
#define SORT_RUN 16u
/* Groups that may go before what waits with a lower priority, before one group of that goes: the one issued first. */
#define PATIENCE 16u

static void finish(struct tn_lane_intake *in, uint32_t id, int32_t status, uint32_t failed, uint32_t failures)
{
	struct tn_iocb_result *res = tn_ring_result_of(&in->view, id);

	res->status = status;
	res->failed = failed;
	res->failures = failures;
	tn_ring_finish(&in->view, id);
}

/* It reads, and somebody may wait for a part of it. */
static bool is_layered(const struct tn_lane_run *run)
{
	return run->cb.op == TN_IOCB_READ && !(run->cb.flags & TN_IOCB_WHOLE);
}

static void finish_run(struct tn_lane *lane, struct tn_lane_run *run)
{
	struct tn_lane_intake *in = lane->o.intake;

	run->used = false;
	lane->used_runs--;
	lane->layered -= is_layered(run);
	tn_lane_count(&lane->stats.iocbs, 1);
	pthread_mutex_lock(&in->lock);
	finish(in, run->id, run->status, run->failed, run->failures);
	pthread_mutex_unlock(&in->lock);
}

void tn_lane_member_done(struct tn_lane *lane, struct tn_lane_run *run, uint32_t at, int32_t status)
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
	tn_lane_count(&lane->stats.objects, 1);
	/* release: orders the count after the status, for callers that count before they look */
	tn_ring_store32(&tn_ring_result_of(&lane->o.intake->view, run->id)->ended, run->cb.count - run->open + 1);
	if (--run->open == 0)
		finish_run(lane, run);
}

/* Gives up the IOCTXs that are in no group. If none is in a group, the run is finished with the last one. */
static void give_up(struct tn_lane *lane, struct tn_lane_run *run, int status)
{
	for (uint32_t at = run->cursor; run->waiting > 0; at++) {
		if (run->order[at].taken)
			continue;
		run->order[at].taken = true;
		tn_lane_wait(lane, run, -1);
		tn_lane_member_done(lane, run, at, status);
	}
	lane->starved = false; /* what others wait for may have been for it */
}

/* Finishes a whole IOCB that cannot be begun. */
static void refuse(struct tn_lane *lane, struct tn_lane_run *run, int status)
{
	run->status = status;
	run->failed = 0;
	run->failures = run->cb.count;
	finish_run(lane, run);
}

static void merge(struct tn_lane_sorted *to, const struct tn_lane_sorted *a, uint32_t na, const struct tn_lane_sorted *b,
		  uint32_t nb)
{
	while (na && nb) {
		bool first = a->place <= b->place; /* stable: equal places stay in the caller's order */
		const struct tn_lane_sorted *least = first ? a : b;

		*to++ = *least;
		a += first;
		b += !first;
		na -= first;
		nb -= !first;
	}
	memcpy(to, a, na * sizeof(*a));
	memcpy(to + na, b, nb * sizeof(*b));
}

/* Stable, in place: for short runs. */
static void sort_run(struct tn_lane_sorted *x, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++) {
		struct tn_lane_sorted one = x[i];
		uint32_t at = i;

		for (; at > 0 && one.place < x[at - 1].place; at--)
			x[at] = x[at - 1];
		x[at] = one;
	}
}

/* Bottom-up, so that it takes no stack and at most seven passes over sorted runs; a sorted IOCB takes none. */
static void sort(struct tn_lane *lane, struct tn_lane_run *run)
{
	const struct tn_ioctx *ctx = tn_ring_ioctx_of(&lane->o.intake->view, run->id);
	struct tn_lane_sorted *from = run->order, *to = lane->sort_scratch;
	uint32_t n = run->cb.count, bytes = run->list->shape->object_bytes;
	bool sorted = true;

	for (uint32_t i = 0; i < n; i++) {
		run->order[i] = (struct tn_lane_sorted){
			.place = __atomic_load_n(&ctx[i].place, __ATOMIC_RELAXED),
			.entry = __atomic_load_n(&ctx[i].entry, __ATOMIC_RELAXED),
			.index = (uint16_t)i,
			.misfit = __atomic_load_n(&ctx[i].length, __ATOMIC_RELAXED) != bytes,
		};
		sorted &= i == 0 || run->order[i - 1].place <= run->order[i].place;
	}
	for (uint32_t i = 0; i < n && !sorted; i += SORT_RUN)
		sort_run(run->order + i, n - i < SORT_RUN ? n - i : SORT_RUN);
	for (uint32_t width = SORT_RUN; width < n && !sorted; width *= 2) {
		struct tn_lane_sorted *swap = from;

		for (uint32_t i = 0; i < n; i += 2 * width) {
			uint32_t na = n - i < width ? n - i : width;
			uint32_t nb = n - i - na < width ? n - i - na : width;

			merge(to + i, from + i, na, from + i + na, nb);
		}
		from = to;
		to = swap;
	}
	if (from != run->order)
		memcpy(run->order, from, n * sizeof(*from));
}

static void start_run(struct tn_lane *lane, struct tn_lane_run *run)
{
	sort(lane, run);
	run->started = true;
	run->cursor = 0;
	run->waiting = 0;
	run->open = run->cb.count;
	tn_lane_wait(lane, run, (int32_t)run->cb.count);
}

static struct tn_lane_run *free_run(struct tn_lane *lane)
{
	for (uint32_t i = 0; i < lane->nruns; i++)
		if (!lane->runs[i].used)
			return &lane->runs[i];
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
		.request_bytes = __atomic_load_n(&cb->request_bytes, __ATOMIC_RELAXED),
		.priority = __atomic_load_n(&cb->priority, __ATOMIC_RELAXED),
	};
}

static const struct tn_ring_list *list_of(const struct tn_ring *ring, uint32_t id)
{
	return id < ring->nlists ? __atomic_load_n(&ring->lists[id], __ATOMIC_ACQUIRE) : NULL;
}

static const struct tn_mapping *memory_of(const struct tn_ring *ring, const struct tn_ring_list *list)
{
	return list && list->memory < ring->nmappings ? __atomic_load_n(&ring->mappings[list->memory], __ATOMIC_ACQUIRE) : NULL;
}

/* What is wrong with an IOCB as a whole, or 0. */
static int check_iocb(const struct tn_lane *lane, const struct tn_lane_run *run)
{
	const struct tn_iocb *cb = &run->cb;

	if (cb->op < TN_IOCB_READ || cb->op > TN_IOCB_CHECK)
		return -ENOTSUP;
	if (!run->memory || !run->source_memory || cb->count == 0 || cb->count > lane->ioctxs)
		return -EINVAL;
	if (run->source->shape->object_bytes != run->list->shape->object_bytes)
		return -EINVAL;
	if ((cb->flags & TN_IOCB_VERIFY) && !run->source->checks)
		return -EINVAL;
	if (cb->after_event != TN_RING_NO_EVENT && cb->after_event >= lane->o.intake->view.events)
		return -EINVAL;
	return 0;
}

static bool is_cancelled(const struct tn_lane_intake *in, uint32_t id)
{
	return tn_ring_load32(&tn_ring_iocb_of(&in->view, id)->cancel);
}

static uint32_t at_most(uint32_t n, uint32_t most)
{
	return n < most ? n : most;
}

/* Whole 4 KiB pages, as places are. */
static uint32_t request_bytes(const struct tn_iocb *cb)
{
	uint32_t bytes = cb->request_bytes & ~4095u;

	if (cb->request_bytes == 0 || bytes > TN_RING_IO_BYTES)
		return TN_RING_IO_BYTES;
	return bytes ? bytes : 4096;
}

static void open_run(struct tn_lane *lane, struct tn_lane_run *run, uint32_t id)
{
	const struct tn_ring_view *v = &lane->o.intake->view;
	struct tn_lane_sorted *order = run->order;
	int err;

	*run = (struct tn_lane_run){.id = id, .cb = copy_of(tn_ring_iocb_of(v, id)), .order = order, .used = true,
				    .statuses = tn_ring_statuses_of(v, id), .sums = tn_ring_sums_of(v, id)};
	run->failed = TN_RING_NO_INDEX;
	run->bounces = run->cb.flags & TN_IOCB_BOUNCE;
	run->request_bytes = request_bytes(&run->cb);
	lane->used_runs++;
	lane->layered += is_layered(run);
	run->list = list_of(lane->o.intake->ring, run->cb.list);
	run->source = run->cb.op == TN_IOCB_COPY ? list_of(lane->o.intake->ring, run->cb.source) : run->list;
	run->memory = memory_of(lane->o.intake->ring, run->list);
	run->source_memory = memory_of(lane->o.intake->ring, run->source);
	tn_ring_begin(v, id, at_most(run->cb.count, v->ioctxs), run->cb.sequence);
	err = check_iocb(lane, run);
	if (err)
		refuse(lane, run, err);
	else
		run->copier = run->memory->copier ? run->memory->copier : run->source_memory->copier;
}

/* Finishes those that were cancelled before a lane took them; under lock. */
static bool finish_cancelled(struct tn_lane *lane, struct tn_lane_intake *in)
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
		tn_lane_count(&lane->stats.iocbs, 1);
	}
	if (left == in->count)
		return false;
	__atomic_store_n(&in->count, left, __ATOMIC_RELAXED);
	return true;
}

/* Of a run with memory of a device: whether its next group needs a bounce buffer. */
static bool needs_bounce(const struct tn_lane *lane, const struct tn_lane_run *run)
{
	uint32_t at = run->cursor;

	if (tn_lane_copies(run->cb.op))
		return tn_lane_copy_bounces(run);
	while (at < run->cb.count && run->order[at].taken)
		at++;
	if (at == run->cb.count || !lane->free_groups || tn_lane_check(lane, run, at))
		return false; /* there is no next one, or it waits for a group, or it ends without one */
	return !tn_lane_is_direct(lane, run, at, lane->free_groups->scratch);
}

/* Whether the run's device has all that it may have in this lane: its next group waits for one of its others. */
static bool is_full(const struct tn_lane *lane, const struct tn_lane_run *run)
{
	uint64_t bytes = tn_lane_bounce_bytes(run->list->shape->padded_bytes);
	bool none = false, needs;

	if (!run->copier)
		return false;
	if (lane->held[tn_copier_number(run->copier)].groups >= tn_copier_share(run->copier, lane->ngroups / 2))
		return true;
	needs = needs_bounce(lane, run);
	if (!needs && lane->o.direct && !tn_lane_copies(run->cb.op))
		return !tn_lane_may_send(lane, run->copier);
	for (uint32_t i = 0; i < lane->nbounces && needs; i++) {
		if (lane->bounces[i].bytes_each < bytes)
			continue;
		if (tn_lane_may_bounce(lane, run->copier, i))
			return false;
		none = true;
	}
	return none;
}

/* IOCTXs that wait for nothing but their device do not keep the lane from others. */
static uint32_t waiting_for_devices(const struct tn_lane *lane)
{
	uint32_t n = 0, seen = 0;

	for (uint32_t i = 0; (lane->moving.first || lane->device_pieces) && i < lane->nruns && seen < lane->used_runs; i++) {
		seen += lane->runs[i].used;
		if (lane->runs[i].used && is_full(lane, &lane->runs[i]))
			n += lane->runs[i].waiting;
	}
	return n;
}

/* The next IOCB, if the lane has capacity for one; *any: it, or cancelled ones. */
static bool take(struct tn_lane *lane, uint32_t *id, bool *any)
{
	struct tn_lane_intake *in = lane->o.intake;
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
	*any |= finish_cancelled(lane, in);
	mine = in->count > 0 && lane->used_runs < lane->nruns && lane->waiting - waiting_for_devices(lane) < lane->o.backlog;
	if (mine) {
		*id = in->ids[0];
		__atomic_store_n(&in->count, in->count - 1, __ATOMIC_RELAXED);
		memmove(in->ids, in->ids + 1, in->count * sizeof(*in->ids));
	}
	pthread_mutex_unlock(&in->lock);
	*any |= mine;
	return mine;
}

bool tn_lane_take_iocbs(struct tn_lane *lane)
{
	bool any = false;
	uint32_t id;

	while (take(lane, &id, &any)) {
		struct tn_lane_run *run = free_run(lane);

		open_run(lane, run, id);
		if (run->used && tn_ring_may_start(&lane->o.intake->view, run->cb.after_event, run->cb.after_value))
			start_run(lane, run);
	}
	return any;
}

bool tn_lane_poll_runs(struct tn_lane *lane)
{
	uint32_t seen = 0, used = lane->used_runs;
	bool any = false;

	for (uint32_t i = 0; i < lane->nruns && seen < used; i++) {
		struct tn_lane_run *run = &lane->runs[i];

		if (!run->used)
			continue;
		seen++;
		if (is_cancelled(lane->o.intake, run->id)) {
			if (run->started && !run->waiting)
				continue;
			if (!run->started)
				start_run(lane, run); /* for the statuses of its entries */
			give_up(lane, run, -ECANCELED);
			any = true;
		} else if (!run->started && tn_ring_may_start(&lane->o.intake->view, run->cb.after_event, run->cb.after_value)) {
			start_run(lane, run);
			any = true;
		}
	}
	return any;
}

/* ---- whose turn it is, and who lies where ---------------------------------------------------------------------------- */

/* Whether b goes before a. */
static bool goes_before(const struct tn_lane_turns *t, const struct tn_lane_run *b, const struct tn_lane_run *a)
{
	uint64_t sa = t->served[a->cb.list], sb = t->served[b->cb.list];

	if (a->cb.priority != b->cb.priority)
		return b->cb.priority > a->cb.priority;
	if ((a->cb.flags ^ b->cb.flags) & TN_IOCB_FIRST)
		return b->cb.flags & TN_IOCB_FIRST;
	if (sa != sb)
		return sb < sa;
	return (int64_t)(b->cb.sequence - a->cb.sequence) < 0;
}

/*
 * Which devices take one more read. The same for all who want the device, whatever their size, so that small ones do not pass a large one
 * for ever. They are deep if for a while nobody has read anything that is wanted by layers. Writes have no window: the scheduler lets no more of them go
 * than reads can bear.
 */
static void look_at_windows(struct tn_lane *lane, uint64_t now_ns)
{
	bool deep;

	if (lane->layered)
		lane->layered_ns = now_ns;
	deep = lane->layered_ns == 0 || now_ns - lane->layered_ns >= LAYERED_NS;
	for (uint32_t d = 0; d < lane->o.ndevices; d++) {
		struct tn_lane_device *device = &lane->device[d];

		tn_window_deep(&device->window, deep);
		device->open = tn_window_open(&device->window, TN_WINDOW_PIECE_LEAST, now_ns);
	}
}

/* Whether a run has more to move that may go now. An address of no device is found out when it is its turn. */
static bool may_go(const struct tn_lane *lane, bool copies, struct tn_lane_run *run)
{
	uint32_t device;

	if (!run->used || !run->started || !run->waiting || tn_lane_copies(run->cb.op) != copies || is_full(lane, run))
		return false;
	while (run->order[run->cursor].taken)
		run->cursor++;
	device = tn_ioctx_device(run->order[run->cursor].place);
	return run->cb.op != TN_IOCB_READ || device >= lane->o.ndevices || lane->device[device].open;
}

/* Of what waits with a lower priority than this, the one that was issued first. */
static struct tn_lane_run *first_below(struct tn_lane *lane, bool copies, int32_t priority)
{
	struct tn_lane_run *first = NULL;

	for (uint32_t i = 0; i < lane->nruns; i++) {
		struct tn_lane_run *run = &lane->runs[i];

		if (may_go(lane, copies, run) && run->cb.priority < priority &&
		    (!first || (int64_t)(run->cb.sequence - first->cb.sequence) < 0))
			first = run;
	}
	return first;
}

/* The most urgent, TN_IOCB_FIRST before others of the same priority; among equals the lists take turns; within a list in the order of issue. */
struct tn_lane_run *tn_lane_next_run(struct tn_lane *lane, bool copies, uint64_t now_ns)
{
	struct tn_lane_turns *t = &lane->turns[copies];
	struct tn_lane_run *best = NULL;
	int32_t lowest = INT32_MAX;
	uint32_t seen = 0;

	if (!copies)
		look_at_windows(lane, now_ns);
	for (uint32_t i = 0; i < lane->nruns && seen < lane->used_runs; i++) {
		struct tn_lane_run *run = &lane->runs[i];

		seen += run->used;
		if (!may_go(lane, copies, run))
			continue;
		lowest = run->cb.priority < lowest ? run->cb.priority : lowest;
		if (!best || goes_before(t, run, best))
			best = run;
	}
	if (!best)
		return NULL;
	t->passes_over = lowest < best->cb.priority && t->passed_over < PATIENCE;
	if (lowest < best->cb.priority && !t->passes_over)
		best = first_below(lane, copies, best->cb.priority);
	if (best->cb.list != t->list || t->left == 0) {
		/* A turn that ended for want of work is one, too, or lists of little work would go before others for ever. */
		if (t->left > 0)
			t->served[t->list] = ++t->turn;
		t->list = best->cb.list;
		t->left = QUANTUM;
	}
	if (--t->left == 0)
		t->served[best->cb.list] = ++t->turn;
	return best;
}

static bool is_free_at(const struct tn_lane_run *run, uint32_t at, uint64_t place)
{
	return run->order[at].place == place && !run->order[at].taken && !run->order[at].alone;
}

uint32_t tn_lane_find(const struct tn_lane_run *run, uint32_t likely, uint64_t place)
{
	uint32_t lo = run->cursor, hi = run->cb.count;

	if (likely < hi && is_free_at(run, likely, place))
		return likely;
	if (likely > lo && likely < hi && run->order[likely - 1].place < place && place < run->order[likely].place)
		return TN_RING_NO_INDEX;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (run->order[mid].place < place)
			lo = mid + 1;
		else
			hi = mid;
	}
	/* The same object may be asked for twice, each with its own destination. */
	for (; lo < run->cb.count && run->order[lo].place == place; lo++)
		if (is_free_at(run, lo, place))
			return lo;
	return TN_RING_NO_INDEX;
}
