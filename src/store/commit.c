/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits: log groups (log.c) and the cycles that make log groups durable (durable.c). A group may wait for a cycle and
 * a cycle for a group, and flushes wait for both. So the ends of the requests of both come here: what waits behind a
 * group or a sync need not wait for the next step of the store.
 */
#include <errno.h>

#include "store/store_internal.h"

static void log_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;

	tn_store_observe(d->store, d->index, (enum tn_io_op)r->io.op, 0, tn_now_ns(d->store->clock) - r->start_ns, status);
	if (tn_store_log_done(d, status))
		tn_store_commit_advance(d);
}

static void durable_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;

	tn_store_observe(d->store, d->index, (enum tn_io_op)r->io.op, 0, tn_now_ns(d->store->clock) - r->start_ns, status);
	if (tn_store_durable_done(d, status))
		tn_store_commit_advance(d);
}

void tn_store_commit_advance(struct tn_store_device *d)
{
	if (tn_store_index_off(d)) {
		tn_store_waits_settle(d, d->deleted ? -ESTALE : -EIO); /* flushes must not wait for what will not be done */
		return;
	}
	tn_store_log_advance(d);
	tn_store_durable_step(d, tn_now_ns(d->store->clock));
}

void tn_store_commit_init(struct tn_store_device *d)
{
	tn_store_req_init(&d->log.req, d, log_done);
	tn_store_req_init(&d->durable.req, d, durable_done);
}
