/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space in a device's file, one segment at a time. The file system may take as long as it likes (it is frozen, or
 * clears a GiB), so the file grows by a request. Whoever needs slots meanwhile does without, or is asked again when the
 * request has ended.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define RETRY_NS 10000000000ull
#define WAIT_NS 2000000000ull /* a longer request is not waited for: the policy's victims go */

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
	a->retry_ns = tn_now_ns(d->store->clock) + RETRY_NS;
	if (status != -ECANCELED) /* the store closes */
		tn_log(d->store->log, TN_LOG_WARN,
		       "%s: no room for segment %u of %u (%s): going on with what there is, trying again later", d->path,
		       d->allocated, d->limit, strerror(-status));
}

void tn_store_allocate_init(struct tn_store_device *d)
{
	tn_store_req_init(&d->alloc.req, d, allocate_done);
}

void tn_store_allocate(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_allocation *a = &d->alloc;

	if (a->req.busy || d->allocated >= d->limit || now_ns < a->retry_ns)
		return;
	a->begun_ns = now_ns;
	tn_store_req_allocate(&a->req, tn_store_segment_offset(d, d->allocated), d->store->segment_bytes);
}

bool tn_store_allocating(const struct tn_store_device *d, uint64_t now_ns)
{
	return d->alloc.req.busy && now_ns < d->alloc.begun_ns + WAIT_NS;
}

uint64_t tn_store_allocate_ahead(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_allocation *a = &d->alloc;

	/* One segment ahead, so that few reserves wait for the file system. */
	if (tn_list_empty(&d->unassigned) && d->prep.segment == UINT32_MAX)
		tn_store_allocate(d, now_ns);
	if (tn_store_allocating(d, now_ns))
		return a->begun_ns + WAIT_NS;
	return d->allocated < d->limit && !a->req.busy && a->retry_ns > now_ns ? a->retry_ns : TN_STORE_NEVER;
}

uint64_t tn_store_allocate_step(struct tn_store_device *d, uint64_t now_ns)
{
	if (d->store->read_only || !tn_store_device_writable(d))
		return TN_STORE_NEVER;
	return tn_store_allocate_ahead(d, now_ns);
}
