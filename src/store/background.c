/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device does by itself, besides the index: its file grows, segments are prepared, and probes find out whether a
 * device that was not healthy is so again.
 *
 * The file grows by one segment at a time. The file system may take as long as it likes (it is frozen, or clears a GiB),
 * so the file grows by a request. Whoever needs slots meanwhile does without, or is asked again when the request has
 * ended.
 *
 * Preparation: an unassigned segment is written once with zeros before its slots are offered, because first writes into
 * unwritten extents run at 0.4 to 0.8 of a drive's speed. One 1 MiB write at a time, with as long a pause as the write
 * took, and only when the owner steps: preparation yields to everything. The segment's header then says that the
 * segment is prepared, so that the next open does not write it again. On tmpfs preparation would gain nothing.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define GROW_RETRY_NS 10000000000ull
#define GROW_WAIT_NS 2000000000ull /* a longer request is not waited for: the policy's victims go */
#define PREPARE_RETRY_NS 10000000u /* the device is wanted for something else */

/* ---- growth --------------------------------------------------------------------------------------------------------- */

static void allocate_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;
	struct tn_store_allocation *a = &d->alloc;

	if (status == 0) {
		a->retry_ns = 0;
		d->allocated++;
		tn_store_segment_place(d, d->allocated - 1);
		return;
	}
	a->retry_ns = tn_now_ns(d->store->clock) + GROW_RETRY_NS;
	a->status = status;
	if (status != -ECANCELED) /* the store closes */
		tn_log(d->store->log, TN_LOG_WARN,
		       "%s: no free disk space for segment %u of %u (%s): going on with what there is, trying again later", d->path,
		       d->allocated, d->limit, strerror(-status));
}

void tn_store_allocate(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_allocation *a = &d->alloc;

	if (a->req.busy || d->allocated >= d->limit || now_ns < a->retry_ns)
		return;
	a->begun_ns = now_ns;
	tn_store_req_submit(&a->req, TN_IO_ALLOCATE, tn_store_segment_offset(d, d->allocated), NULL, d->store->segment_bytes);
}

bool tn_store_allocating(const struct tn_store_device *d, uint64_t now_ns)
{
	return d->alloc.req.busy && now_ns < d->alloc.begun_ns + GROW_WAIT_NS;
}

uint64_t tn_store_allocate_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_allocation *a = &d->alloc;

	if (!tn_store_device_writable(d))
		return TN_STORE_NEVER;
	/* One segment ahead, so that few reserves wait for the file system. */
	if (tn_list_empty(&d->unassigned) && d->prep.segment == UINT32_MAX)
		tn_store_allocate(d, now_ns);
	if (tn_store_allocating(d, now_ns))
		return a->begun_ns + GROW_WAIT_NS;
	return d->allocated < d->limit && !a->req.busy && a->retry_ns > now_ns ? a->retry_ns : TN_STORE_NEVER;
}

/* ---- preparation ---------------------------------------------------------------------------------------------------- */

/* Ends the preparation of a segment, of which nothing is in flight any more. */
static void end_preparation(struct tn_store_device *d)
{
	struct tn_store_prepare *p = &d->prep;
	uint32_t segment = p->segment;

	d->segs[segment].prepared = p->offset >= d->store->segment_bytes;
	p->segment = UINT32_MAX;
	p->stop = false;
	tn_store_segment_place(d, segment);
}

static void prepare_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;
	struct tn_store_prepare *p = &d->prep;
	uint64_t now = tn_now_ns(d->store->clock);
	bool ended = p->offset >= d->store->segment_bytes; /* that was the header */

	if (d->store->cb.written)
		d->store->cb.written(d->store->cb.arg, d->index, r->io.length);
	tn_store_observe_req(r, status);
	if (status == 0 && !ended)
		p->offset += r->io.length;
	p->next_ns = now + (now - r->start_ns);
	/* If preparation cannot be done: an unprepared segment works as well, only slower. */
	if (status || ended || p->stop)
		end_preparation(d);
}

bool tn_store_prepare_stop(struct tn_store_device *d)
{
	struct tn_store_prepare *p = &d->prep;

	if (p->segment == UINT32_MAX)
		return false;
	/* Zeros under way would overwrite what comes after them. */
	p->stop = p->req.busy;
	if (p->stop)
		return false;
	end_preparation(d);
	return true;
}

static uint32_t next_segment(const struct tn_store_device *d)
{
	struct tn_list *l;

	for (l = d->unassigned.next; l != &d->unassigned; l = l->next) {
		const struct tn_store_segment *sg = tn_container_of(l, struct tn_store_segment, link);

		if (!sg->prepared)
			return (uint32_t)(sg - d->segs);
	}
	return UINT32_MAX;
}

/* Other slots must be left to offer in the meantime. */
static bool others_free(const struct tn_store_device *d)
{
	for (uint32_t i = 0; i < d->store->nshapes; i++)
		if (d->store->shape[i].free_slots[d->index] > 0)
			return true;
	return false;
}

uint64_t tn_store_prepare_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store *s = d->store;
	struct tn_store_prepare *p = &d->prep;
	uint64_t left, at;

	if (!s->prepare || d->in_memory || p->req.busy || d->hs.health != TN_HEALTHY)
		return TN_STORE_NEVER;
	if (p->segment == UINT32_MAX) {
		uint32_t segment = next_segment(d);

		if (segment == UINT32_MAX || !others_free(d))
			return TN_STORE_NEVER;
		p->segment = segment;
		p->offset = 0;
		tn_list_del(&d->segs[segment].link);
	}
	if (now_ns < p->next_ns)
		return p->next_ns;
	left = s->segment_bytes - p->offset;
	left = left < TN_STORE_BULK_BYTES ? left : TN_STORE_BULK_BYTES;
	if (s->cb.may_write && !s->cb.may_write(s->cb.arg, d->index, left > 0 ? left : TN_DISK_PAGE))
		return now_ns + PREPARE_RETRY_NS;
	at = tn_store_segment_offset(d, p->segment);
	if (left > 0) {
		memset(p->buffer, 0, TN_DISK_PAGE); /* a header was there */
		tn_store_req_submit(&p->req, TN_IO_WRITE, at + p->offset, p->buffer, (uint32_t)left);
	} else {
		d->segs[p->segment].prepared = true;
		tn_store_segment_seal(d, p->segment, p->buffer);
		tn_store_req_submit(&p->req, TN_IO_WRITE, at, p->buffer, TN_DISK_PAGE);
	}
	return TN_STORE_NEVER;
}

/* ---- probes --------------------------------------------------------------------------------------------------------- */

/* A slow device is read; any other is written, synced and read back. */
static void probe_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;
	bool late = tn_now_ns(d->store->clock) - r->start_ns > d->store->slow_read_ns;

	if (status || late || r->io.op == TN_IO_READ)
		tn_store_health_probed(d, status == 0 && !late);
	else if (r->io.op == TN_IO_WRITE)
		tn_store_req_submit(r, TN_IO_SYNC, 0, NULL, 0);
	else
		tn_store_req_submit(r, TN_IO_READ, TN_DISK_SCRATCH_OFFSET, d->hs.buffer, TN_DISK_PAGE);
}

uint64_t tn_store_probe_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_health_state *h = &d->hs;

	if (h->health == TN_HEALTHY || d->store->read_only || d->absent || d->deleted || h->req.busy)
		return TN_STORE_NEVER;
	if (now_ns < h->probe_ns)
		return h->probe_ns;
	tn_store_req_submit(&h->req, h->health == TN_SLOW ? TN_IO_READ : TN_IO_WRITE, TN_DISK_SCRATCH_OFFSET, h->buffer,
			    TN_DISK_PAGE);
	return TN_STORE_NEVER;
}

void tn_store_background_init(struct tn_store_device *d)
{
	tn_store_req_init(&d->alloc.req, d, allocate_done);
	tn_store_req_init(&d->prep.req, d, prepare_done);
	tn_store_req_init(&d->hs.req, d, probe_done);
	d->prep.segment = UINT32_MAX;
}
