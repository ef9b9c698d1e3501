/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a core moves objects: copying and sorting an IOCB by place, whose turn it is, who lies where. */
#include "ring/core.h"

#include <string.h>

/* Groups that one list may start before another of the same priority has its turn. */
#define QUANTUM 16u
/* Groups that may go before what waits with a lower priority, before one group of that goes: the one issued first. */
#define PATIENCE 16u

static void merge(struct tn_core_sorted *to, const struct tn_core_sorted *a, uint32_t na, const struct tn_core_sorted *b,
		  uint32_t nb)
{
	while (na && nb) {
		bool first = a->place <= b->place; /* stable: equal places stay in the caller's order */

		*to++ = first ? *a++ : *b++;
		na -= first;
		nb -= !first;
	}
	memcpy(to, a, na * sizeof(*a));
	memcpy(to + na, b, nb * sizeof(*b));
}

/* Bottom-up, so that it takes no stack and at most eleven passes; a sorted IOCB takes none. */
void tn_core_sort(struct tn_core *core, struct tn_core_run *run)
{
	const struct tn_ioctx *ctx = tn_ring_ioctx_of(&core->o.intake->view, run->id);
	struct tn_core_sorted *from = run->order, *to = core->sort_scratch;
	uint32_t n = run->cb.count, bytes = run->list->shape->object_bytes;
	bool sorted = true;

	for (uint32_t i = 0; i < n; i++) {
		run->order[i] = (struct tn_core_sorted){
			.place = __atomic_load_n(&ctx[i].place, __ATOMIC_RELAXED),
			.entry = __atomic_load_n(&ctx[i].entry, __ATOMIC_RELAXED),
			.index = (uint16_t)i,
			.misfit = __atomic_load_n(&ctx[i].length, __ATOMIC_RELAXED) != bytes,
		};
		sorted &= i == 0 || run->order[i - 1].place <= run->order[i].place;
	}
	for (uint32_t width = 1; width < n && !sorted; width *= 2) {
		struct tn_core_sorted *swap = from;

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

/* Whether b goes before a. */
static bool goes_before(const struct tn_core *core, const struct tn_core_run *b, const struct tn_core_run *a)
{
	uint64_t sa = core->served[a->cb.list], sb = core->served[b->cb.list];

	if (a->cb.priority != b->cb.priority)
		return b->cb.priority > a->cb.priority;
	if (sa != sb)
		return sb < sa;
	return (int64_t)(b->cb.sequence - a->cb.sequence) < 0;
}

/*
 * Which devices take one more read. The same for all who want the device, whatever their size, so that small ones do not pass a large one
 * for ever. Writes have no window: the scheduler lets no more of them go than reads can bear.
 */
static void look_at_windows(struct tn_core *core, uint64_t now_ns)
{
	for (uint32_t d = 0; d < core->ndevices; d++)
		core->device[d].open = tn_window_open(&core->device[d].window, TN_WINDOW_PIECE_LEAST, now_ns);
}

/* Whether a run has more to move that may go now. An address of no device is found out when it is its turn. */
static bool may_go(const struct tn_core *core, struct tn_core_run *run)
{
	uint32_t device;

	if (!run->used || !run->started || !run->waiting)
		return false;
	while (run->order[run->cursor].taken)
		run->cursor++;
	device = tn_ioctx_device(run->order[run->cursor].place);
	return run->cb.op != TN_IOCB_READ || device >= core->ndevices || core->device[device].open;
}

/* Of what waits with a lower priority than this, the one that was issued first. */
static struct tn_core_run *first_below(struct tn_core *core, int32_t priority)
{
	struct tn_core_run *first = NULL;

	for (uint32_t i = 0; i < core->nruns; i++) {
		struct tn_core_run *run = &core->runs[i];

		if (may_go(core, run) && run->cb.priority < priority &&
		    (!first || (int64_t)(run->cb.sequence - first->cb.sequence) < 0))
			first = run;
	}
	return first;
}

/* The most urgent; among equals the lists take turns; within a list in the order of issue. */
struct tn_core_run *tn_core_next_run(struct tn_core *core, uint64_t now_ns)
{
	struct tn_core_run *best = NULL;
	int32_t lowest = INT32_MAX;
	uint32_t seen = 0;

	look_at_windows(core, now_ns);
	for (uint32_t i = 0; i < core->nruns && seen < core->used_runs; i++) {
		struct tn_core_run *run = &core->runs[i];

		seen += run->used;
		if (!may_go(core, run))
			continue;
		lowest = run->cb.priority < lowest ? run->cb.priority : lowest;
		if (!best || goes_before(core, run, best))
			best = run;
	}
	if (!best)
		return NULL;
	core->passes_over = lowest < best->cb.priority && core->passed_over < PATIENCE;
	if (lowest < best->cb.priority && !core->passes_over)
		best = first_below(core, best->cb.priority);
	if (best->cb.list != core->turn_list || core->turn_left == 0) {
		/* A turn that ended for want of work is one, too, or lists of little work would go before others for ever. */
		if (core->turn_left > 0)
			core->served[core->turn_list] = ++core->turn;
		core->turn_list = best->cb.list;
		core->turn_left = QUANTUM;
	}
	if (--core->turn_left == 0)
		core->served[best->cb.list] = ++core->turn;
	return best;
}

uint32_t tn_core_find(const struct tn_core_run *run, uint64_t place)
{
	uint32_t lo = run->cursor, hi = run->cb.count;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (run->order[mid].place < place)
			lo = mid + 1;
		else
			hi = mid;
	}
	/* The same object may be asked for twice, each with its own destination. */
	for (; lo < run->cb.count && run->order[lo].place == place; lo++)
		if (!run->order[lo].taken && !run->order[lo].alone)
			return lo;
	return TN_RING_NO_INDEX;
}
