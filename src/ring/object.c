/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of an executor's core (core.h): where they lie in memory, whether an IOCTX may be done at all, and the jobs of groups:
 * what is done with the bytes that needs no device.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/checksum.h"
#include "base/list.h"
#include "ring/core.h"

static int span_of(const struct tn_ring_list *list, uint32_t entry, struct tn_span *span)
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

uint32_t tn_core_object_iov(const struct tn_ring_list *list, uint32_t entry, struct iovec *iov)
{
	struct tn_span span;
	int err = span_of(list, entry, &span);

	assert(err == 0); /* the IOCTX was checked when it was planned */
	return tn_span_object(&span, list->shape, entry % list->shape->layers, iov);
}

bool tn_core_is_direct(const struct tn_core *core, const struct tn_core_run *run, uint32_t at, struct iovec *scratch)
{
	const struct tn_ring_list *list = run->list;
	const struct tn_core_sorted *x = &run->order[at];
	uint32_t align = core->device[tn_ioctx_device(x->place)].align, n;
	struct tn_span span;

	if (!list->layout)
		return true; /* flat memory has the padding of the disk */
	if (span_of(list, x->entry, &span) || span.page_count || list->shape->padded_bytes != list->shape->object_bytes)
		return false;
	if (list->align >= align)
		return true;
	n = tn_core_object_iov(list, x->entry, scratch);
	for (uint32_t i = 0; i < n; i++)
		if (((uintptr_t)scratch[i].iov_base | scratch[i].iov_len) & (align - 1))
			return false;
	return true;
}

static int check_place(const struct tn_core *core, const struct tn_core_run *run, uint64_t place)
{
	if (tn_ioctx_device(place) >= core->ndevices)
		return -ENODEV;
	return tn_ioctx_page(place) > ((uint64_t)INT64_MAX >> 12) - run->list->shape->padded_bytes / 4096 ? -EINVAL : 0;
}

int tn_core_check(const struct tn_core *core, const struct tn_core_run *run, uint32_t at)
{
	const struct tn_core_sorted *x = &run->order[at];
	struct tn_span to, from;
	int err = 0;

	if (run->cb.op == TN_IOCB_READ || run->cb.op == TN_IOCB_WRITE)
		err = check_place(core, run, x->place);
	if (!err && x->misfit)
		err = -EINVAL;
	if (!err)
		err = span_of(run->list, x->entry, &to);
	if (err || run->cb.op == TN_IOCB_READ)
		return err;
	from = to;
	if (run->cb.op == TN_IOCB_COPY && (x->place > UINT32_MAX || span_of(run->source, (uint32_t)x->place, &from)))
		return -EINVAL;
	/* Only whole objects can be written, copied or summed; a part of one is copied from a source that is contiguous. */
	return from.page_count || (to.page_count && from.layout) ? -EINVAL : 0;
}

/* Fills a bounce buffer with an object, as it lies on disk. */
static void fill(struct tn_core_group *g, const struct tn_ring_list *list, uint32_t entry, unsigned char *bounce)
{
	uint32_t bytes = list->shape->object_bytes;

	tn_core_object_iov(list, entry, g->job_scratch);
	tn_iov_copy(&(struct iovec){bounce, bytes}, g->job_scratch, bytes);
	memset(bounce + bytes, 0, list->shape->padded_bytes - bytes);
}

/* From pieces of memory to an object of the list; only its wanted pages, if the source is one piece. */
static void store(struct tn_core_group *g, const struct tn_ring_list *list, uint32_t entry, const struct iovec *from, uint32_t n)
{
	struct tn_span span;

	if (n > 1) {
		tn_core_object_iov(list, entry, g->scratch);
		tn_iov_copy(g->scratch, from, list->shape->object_bytes);
		return;
	}
	span_of(list, entry, &span);
	tn_span_store(&span, list->shape, entry % list->shape->layers, from->iov_base, g->scratch);
}

/* The bytes come from the bounce buffer, if there is one, or from the source. */
static int work_on_object(struct tn_core_group *g, const struct tn_core_member *m, unsigned char *bounce)
{
	const struct tn_core_run *run = m->run;
	const struct tn_core_sorted *x = &run->order[m->at];
	uint32_t bytes = run->list->shape->object_bytes, n = 1;
	uint32_t from = g->op == TN_IOCB_COPY ? (uint32_t)x->place : x->entry;
	struct iovec *iov = g->job_scratch;
	uint64_t sum;

	if (bounce && g->op == TN_IOCB_WRITE)
		fill(g, run->list, x->entry, bounce);
	if (bounce)
		iov[0] = (struct iovec){bounce, bytes};
	else
		n = tn_core_object_iov(run->source, from, iov);
	if (run->cb.flags & (TN_IOCB_VERIFY | TN_IOCB_SUM)) {
		sum = tn_checksum_iov(iov, n, 0, bytes);
		if ((run->cb.flags & TN_IOCB_VERIFY) && sum != run->source->checks[from])
			return -EBADMSG;
		run->sums[x->index] = sum;
	}
	if (g->op == TN_IOCB_COPY || (bounce && g->op == TN_IOCB_READ))
		store(g, run->list, x->entry, iov, n);
	return 0;
}

void tn_core_run_job(struct tn_job *job)
{
	struct tn_core_group *g = tn_container_of(job, struct tn_core_group, job);
	unsigned char *at = g->bounce;

	for (uint32_t i = 0; i < g->members; i++) {
		g->member[i].status = work_on_object(g, &g->member[i], at);
		if (at)
			at += g->member[i].run->list->shape->padded_bytes;
	}
}
