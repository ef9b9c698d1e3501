/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that were deleted underneath. Such a file lives on as long as it is open: reads, writes and syncs succeed, and
 * the last close loses all of them. So a sync counts only if the file still has a name after the sync (io.c), and a
 * flush that has nothing to write looks for the name, too.
 *
 * What such a file holds stays in the cache until the cache closes: the file is as good as host memory. Nothing new
 * goes into the file, no flush succeeds, and the next opening of the directory begins a new store.
 */
#include <errno.h>

#include "base/error.h"
#include "store/store_internal.h"

static void begin(struct tn_store_device *d)
{
	d->look.begun++;
	tn_store_req_look(&d->look.req);
}

static void look_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;

	d->look.ended = d->look.begun;
	if (d->look.again)
		begin(d);
	d->look.again = false;
	if (status == 0)
		tn_store_waits_settle(d, 0);
}

void tn_store_look_init(struct tn_store_device *d)
{
	tn_store_req_init(&d->look.req, d, look_done);
}

uint64_t tn_store_look(struct tn_store_device *d)
{
	if (!d->look.req.busy)
		begin(d);
	else
		d->look.again = true;
	return d->look.begun + d->look.again;
}

void tn_store_file_deleted(struct tn_store_device *d)
{
	if (d->deleted)
		return;
	d->deleted = true;
	tn_log(d->store->log, TN_LOG_ERROR,
	       "%s: the file was deleted: what it holds is served until the cache closes, and gone then; nothing new is stored in it",
	       d->path);
	tn_store_health_deleted(d);
	tn_store_waits_settle(d, -ESTALE);
}

bool tn_store_deleted(const struct tn_store *s)
{
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (s->dev[i].deleted)
			return true;
	return false;
}
