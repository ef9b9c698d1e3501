/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of a lane (lane.h): where they lie in memory, whether they can be moved as they are asked to be, and the job of a group: what is
 * done with the bytes that needs no device. A job may run on any thread, and touches its own group only.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/checksum.h"
#include "base/list.h"
#include "device/copier.h"
#include "ring/lane.h"

/* ---- memory that is gone --------------------------------------------------------------------------------- */

bool tn_lane_run_is_lost(const struct tn_lane_run *run)
{
	return tn_mapping_is_lost(run->memory) || tn_mapping_is_lost(run->source_memory);
}

/* ---- objects --------------------------------------------------------------------------------------------- */

/* Where an object of a list lies in memory. 0; -EINVAL: there is none, or none of its pages is wanted. */
static int span_of(const struct tn_ring_list *list, const struct tn_mapping *memory, uint32_t entry, struct tn_span *span)
{
	uint32_t block = entry / list->shape->layers, per_block;
	uint64_t first;

	*span = (struct tn_span){.memory = memory};
	if (block >= list->blocks)
		return -EINVAL;
	if (!list->layout) {
		span->flat = list->flat[block];
		return 0;
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

/* Likewise, and checks that all of it is in the memory, for whatever the executor does with it: nothing was touched yet. -EFAULT: it is not. */
static int check_span(const struct tn_ring_list *list, const struct tn_mapping *memory, uint32_t entry, struct tn_span *span)
{
	uint32_t layer = entry % list->shape->layers;
	int err = span_of(list, memory, entry, span);

	if (err)
		return err;
	if (list->layout)
		return tn_layout_is_mapped(list->layout, memory, layer) ? 0 : -EFAULT;
	return tn_mapping_has(memory, span->flat, (layer + UINT64_C(1)) * list->shape->padded_bytes) ? 0 : -EFAULT;
}

/* Whether some pages of an object of a pool are not wanted. */
static bool is_part(const struct tn_ring_list *list, uint32_t entry)
{
	struct tn_span span;

	if (list->first_page == 0 && list->end_page >= (uint64_t)list->blocks * list->layout->geometry.pages_per_block)
		return false;
	return span_of(list, NULL, entry, &span) || span.page_count;
}

static uint32_t object_iov(const struct tn_ring_list *list, const struct tn_mapping *memory, uint32_t entry, struct iovec *iov)
{
	struct tn_span span;
	int err = span_of(list, memory, entry, &span);

	assert(err == 0); /* the IOCTX was checked when it was planned */
	return tn_span_object(&span, list->shape, entry % list->shape->layers, iov);
}

uint32_t tn_lane_object_iov(const struct tn_lane_run *run, uint32_t entry, struct iovec *iov)
{
	return object_iov(run->list, run->memory, entry, iov);
}

bool tn_lane_is_direct(const struct tn_lane *lane, const struct tn_lane_run *run, uint32_t at, struct iovec *scratch)
{
	const struct tn_ring_list *list = run->list;
	const struct tn_lane_sorted *x = &run->order[at];
	uint32_t device = tn_ioctx_device(x->place), align = lane->device[device].align, n;

	if (run->bounces)
		return false;
	if (run->memory->copier) {
		if (!tn_direct_has(lane->o.direct, tn_copier_number(run->memory->copier), device))
			return false;
		align = TN_DEVICE_FILE_ALIGN;
	}
	if (!list->layout)
		return true; /* flat memory has the padding of the disk */
	if (list->shape->padded_bytes != list->shape->object_bytes || is_part(list, x->entry))
		return false;
	if (list->align >= align)
		return true;
	n = tn_lane_object_iov(run, x->entry, scratch);
	for (uint32_t i = 0; i < n; i++)
		if (((uintptr_t)scratch[i].iov_base | scratch[i].iov_len) & (align - 1))
			return false;
	return true;
}

/* Whether the driver copies from memory of its device to other memory of it, and nobody looks at the bytes on their way. */
static bool goes_within(const struct tn_lane_run *run)
{
	return run->cb.op == TN_IOCB_COPY && !(run->cb.flags & (TN_IOCB_VERIFY | TN_IOCB_SUM | TN_IOCB_LANDED)) && run->memory->copier &&
	       run->memory->copier == run->source_memory->copier;
}

/* What a driver copies from and to is pinned: bounce buffers, and the slots of the memory tier, which are flat. */
bool tn_lane_copy_bounces(const struct tn_lane_run *run)
{
	bool to_device = run->memory->copier, from_device = run->source_memory->copier;

	if (run->cb.op == TN_IOCB_CHECK)
		return from_device;
	if (goes_within(run))
		return false;
	return (from_device && run->list->layout) || (to_device && (run->source->layout || (run->cb.flags & TN_IOCB_LANDED)));
}

static int check_place(const struct tn_lane *lane, const struct tn_lane_run *run, uint64_t place)
{
	if (tn_ioctx_device(place) >= lane->o.ndevices)
		return -ENODEV;
	return tn_ioctx_page(place) > ((uint64_t)INT64_MAX >> 12) - run->list->shape->padded_bytes / 4096 ? -EINVAL : 0;
}

int tn_lane_check(const struct tn_lane *lane, const struct tn_lane_run *run, uint32_t at)
{
	const struct tn_lane_sorted *x = &run->order[at];
	struct tn_span to, from;
	int err = 0;

	if (tn_lane_run_is_lost(run))
		return -EFAULT;
	if (run->cb.op == TN_IOCB_READ || run->cb.op == TN_IOCB_WRITE)
		err = check_place(lane, run, x->place);
	if (!err && x->misfit)
		err = -EINVAL;
	if (!err)
		err = check_span(run->list, run->memory, x->entry, &to);
	if (err || run->cb.op == TN_IOCB_READ)
		return err;
	if (run->cb.op == TN_IOCB_COPY)
		err = x->place > UINT32_MAX ? -EINVAL : check_span(run->source, run->source_memory, (uint32_t)x->place, &from);
	if (err)
		return err;
	/*
	 * Only whole objects can be written, copied or summed; a part of one is copied from a source that is contiguous, and cannot be
	 * summed where it lands.
	 */
	if ((run->cb.flags & TN_IOCB_LANDED) && to.page_count)
		return -EINVAL;
	if (run->cb.op != TN_IOCB_COPY)
		return to.page_count ? -EINVAL : 0;
	return from.page_count || (to.page_count && from.layout && !tn_lane_copy_bounces(run)) ? -EINVAL : 0;
}

/* ---- the job ---------------------------------------------------------------------------------------------- */

/* What a member's bytes come from, if not from a disk: the source of a copy, else its list. */
static uint32_t source_iov(const struct tn_lane_member *m, struct iovec *iov)
{
	const struct tn_lane_run *run = m->run;
	const struct tn_lane_sorted *x = &run->order[m->at];

	return run->cb.op == TN_IOCB_COPY ? object_iov(run->source, run->source_memory, (uint32_t)x->place, iov) : tn_lane_object_iov(run, x->entry, iov);
}

/* Of a group without bounce buffer that copies from a device: it copies to flat memory. */
static unsigned char *flat_of(const struct tn_lane_member *m)
{
	struct iovec iov;

	tn_lane_object_iov(m->run, m->run->order[m->at].entry, &iov);
	return iov.iov_base;
}

/* By the CPU: fills the bounce buffer of a group with its members' objects, as they lie on disk. */
static void fill(struct tn_lane_group *g)
{
	unsigned char *at = g->bounce;

	for (uint32_t i = 0; i < g->members; i++) {
		const struct tn_shape *s = g->member[i].run->list->shape;

		if (!tn_lane_run_is_lost(g->member[i].run)) {
			source_iov(&g->member[i], g->job_scratch);
			tn_iov_copy(&(struct iovec){at, s->object_bytes}, g->job_scratch, s->object_bytes);
		}
		memset(at + s->object_bytes, 0, s->padded_bytes - s->object_bytes);
		at += s->padded_bytes;
	}
}

static struct tn_copier *copier_from(const struct tn_lane_group *g)
{
	const struct tn_lane_run *run = g->member[0].run; /* all are of memories of one copier */

	if (g->op == TN_IOCB_READ)
		return NULL;
	return g->op == TN_IOCB_COPY ? run->source_memory->copier : run->memory->copier;
}

/* An object that lies in a row, or only its wanted pages. */
static void add_object(struct tn_copying *copying, const struct tn_span *span, const struct tn_shape *shape, uint32_t layer, unsigned char *row,
		       struct iovec *iov)
{
	const struct tn_layout *l = span->layout;

	if (span->page_count == 0) {
		tn_copying_add(copying, iov, tn_span_object(span, shape, layer, iov), row);
		return;
	}
	for (uint32_t p = 0; p < l->geometry.nplanes; p++) {
		char *base = tn_layout_address(l, span->memory, layer, p, 0);
		size_t bytes = l->page_bytes[p];

		for (uint32_t i = 0; i < span->page_count; i++)
			iov[i] = (struct iovec){base + span->pages[span->page_first + i] * l->stride[p], bytes};
		tn_copying_add(copying, iov, span->page_count, row + span->page_first * bytes);
		row += l->geometry.pages_per_block * bytes;
	}
}

/* Both memories are of one device. */
static void copy_within(struct tn_lane_group *g)
{
	const struct tn_lane_run *first = g->member[0].run;

	g->worked = true; /* nothing is left for a job */
	tn_copying_begin(&g->copying, first->memory->copier, TN_DEVICE_WITHIN);
	for (uint32_t i = 0; i < g->members; i++) {
		const struct tn_lane_run *run = g->member[i].run;
		const struct tn_shape *s = run->list->shape;
		uint32_t entry = run->order[g->member[i].at].entry, n = source_iov(&g->member[i], g->scratch);
		struct tn_span span;

		span_of(run->list, run->memory, entry, &span);
		if (span.page_count) /* only from a source that is one piece */
			add_object(&g->copying, &span, s, entry % s->layers, g->scratch[0].iov_base, g->job_scratch);
		else
			tn_copying_add_within(&g->copying, g->job_scratch, tn_span_object(&span, s, entry % s->layers, g->job_scratch), g->scratch, n);
	}
	tn_copying_go(&g->copying);
}

static void begin_sums(struct tn_lane_group *g)
{
	g->worked = true;
	tn_copying_begin_sums(&g->copying, g->member[0].run->memory->copier, g->sums);
	for (uint32_t i = 0; i < g->members; i++) {
		const struct tn_lane_member *m = &g->member[i];

		tn_copying_add_sum(&g->copying, g->job_scratch, tn_lane_object_iov(m->run, m->run->order[m->at].entry, g->job_scratch));
	}
	tn_copying_go(&g->copying);
}

bool tn_lane_fetch(struct tn_lane_group *g)
{
	struct tn_copier *copier = copier_from(g);
	unsigned char *at = g->bounce;

	if (tn_lane_on_device(g)) {
		begin_sums(g);
		return true;
	}
	if (!copier)
		return false;
	if (goes_within(g->member[0].run)) {
		copy_within(g);
		return true;
	}
	tn_copying_begin(&g->copying, copier, TN_DEVICE_TO_HOST);
	for (uint32_t i = 0; i < g->members; i++) {
		const struct tn_shape *s = g->member[i].run->list->shape;
		unsigned char *to = at ? at : flat_of(&g->member[i]);

		tn_copying_add(&g->copying, g->job_scratch, source_iov(&g->member[i], g->job_scratch), to);
		memset(to + s->object_bytes, 0, s->padded_bytes - s->object_bytes);
		if (at)
			at += s->padded_bytes;
	}
	tn_copying_go(&g->copying);
	return true;
}

/* From pieces of memory to an object of the list; only its wanted pages, if the source is one piece. */
static void store(struct tn_lane_group *g, const struct tn_lane_run *run, uint32_t entry, const struct iovec *from, uint32_t n)
{
	const struct tn_shape *s = run->list->shape;
	struct tn_span span;

	span_of(run->list, run->memory, entry, &span);
	/* What lay there before may be another tenant's, and the padding goes to disk with the object. */
	if (!span.layout)
		memset(tn_mapping_address(span.memory, span.flat) + (size_t)(entry % s->layers) * s->padded_bytes + s->object_bytes, 0,
		       s->padded_bytes - s->object_bytes);
	if (n > 1) {
		tn_lane_object_iov(run, entry, g->scratch);
		tn_iov_copy(g->scratch, from, s->object_bytes);
		return;
	}
	tn_span_store(&span, s, entry % s->layers, from->iov_base, g->scratch);
}

/* Whether the job brings bytes to the list of its members. */
static bool stores(const struct tn_lane_group *g)
{
	return g->bounce ? g->op == TN_IOCB_READ || g->op == TN_IOCB_COPY : g->op == TN_IOCB_COPY && !copier_from(g);
}

/* What is known of an object now that its checksum is there: 0; -EBADMSG: it is not what is to be read. */
static int judge(const struct tn_lane_run *run, const struct tn_lane_sorted *x, uint32_t from, uint64_t sum)
{
	if ((run->cb.flags & TN_IOCB_VERIFY) && sum != run->source->checks[from])
		return -EBADMSG;
	run->sums[x->index] = sum;
	return 0;
}

void tn_lane_compare(struct tn_lane_group *g)
{
	for (uint32_t i = 0; i < g->members; i++) {
		const struct tn_lane_run *run = g->member[i].run;
		const struct tn_lane_sorted *x = &run->order[g->member[i].at];

		g->member[i].status = judge(run, x, x->entry, g->sums[i].sum);
	}
}

/* The bytes come from the bounce buffer, if there is one, or from the source. To a device they go later, all at once. */
static int work_on_object(struct tn_lane_group *g, const struct tn_lane_member *m, unsigned char *bounce)
{
	const struct tn_lane_run *run = m->run;
	const struct tn_lane_sorted *x = &run->order[m->at];
	bool landed = (run->cb.flags & TN_IOCB_LANDED) && !bounce; /* a bounce buffer does not change meanwhile */
	bool fetched = !bounce && copier_from(g);
	uint32_t bytes = run->list->shape->object_bytes, n = 1;
	uint32_t from = g->op == TN_IOCB_COPY ? (uint32_t)x->place : x->entry;
	struct iovec *iov = g->job_scratch;
	int rc;

	if (bounce)
		iov[0] = (struct iovec){bounce, bytes};
	else if (!fetched)
		n = object_iov(run->source, run->source_memory, from, iov);
	if (landed && !fetched)
		store(g, run, x->entry, iov, n);
	if (landed || fetched)
		n = tn_lane_object_iov(run, x->entry, iov);
	if (run->cb.flags & (TN_IOCB_VERIFY | TN_IOCB_SUM)) {
		rc = judge(run, x, from, tn_checksum_iov(iov, n, 0, bytes));
		if (rc)
			return rc;
	}
	if (stores(g) && !landed && !run->memory->copier)
		store(g, run, x->entry, iov, n);
	return 0;
}

/* To a device: what was found good of the members. */
static void store_on_device(struct tn_lane_group *g)
{
	unsigned char *at = g->bounce;

	tn_copying_begin(&g->copying, g->member[0].run->memory->copier, TN_DEVICE_FROM_HOST);
	for (uint32_t i = 0; i < g->members; i++) {
		const struct tn_lane_run *run = g->member[i].run;
		const struct tn_shape *s = run->list->shape;
		uint32_t entry = run->order[g->member[i].at].entry;
		struct iovec from = {at, s->object_bytes};
		struct tn_span span;

		if (!at)
			source_iov(&g->member[i], &from); /* flat: one piece */
		span_of(run->list, run->memory, entry, &span);
		if (g->member[i].status == 0)
			add_object(&g->copying, &span, s, entry % s->layers, from.iov_base, g->job_scratch);
		if (at)
			at += s->padded_bytes;
	}
	tn_copying_go(&g->copying);
}

void tn_lane_work(struct tn_job *job)
{
	struct tn_lane_group *g = tn_container_of(job, struct tn_lane_group, job);
	unsigned char *at = g->bounce;

	if (at && g->op != TN_IOCB_READ && !copier_from(g))
		fill(g);
	for (uint32_t i = 0; i < g->members; i++) {
		g->member[i].status = tn_lane_run_is_lost(g->member[i].run) ? -EFAULT : work_on_object(g, &g->member[i], at);
		if (at)
			at += g->member[i].run->list->shape->padded_bytes;
	}
	if (stores(g) && g->member[0].run->memory->copier)
		store_on_device(g);
}
