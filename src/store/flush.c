/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A flush begins: what the flush must wait for on each device, so that everything published and removed before it is
 * durable. Starts what that takes. The end of a flush comes from below (waits.c).
 */
#include <errno.h>

#include "base/error.h"
#include "store/store_internal.h"
#include "store/waits.h"

static bool pending(const struct tn_store_device *d)
{
	return tn_store_log_changed(&d->log) || d->spaces_generation < d->store->spaces->generation;
}

/* What the flush waits for on this device; an error that it will end with, or 0. */
static int needs(struct tn_store_device *d, struct tn_store_wait *w)
{
	int status = 0;

	if (d->deleted)
		return -ESTALE;
	if (d->untold)
		status = -EIO; /* blocks of whose loss the owner does not know */
	if (pending(d)) {
		w->sweep = d->log.swept + d->store->slot_pages;
		d->flush_waiting = true;
	} else if (d->log.phase != TN_LOG_IDLE) {
		w->ticket = d->log.sequence + 1;
	} else if (d->durable.sequence < d->log.sequence) {
		w->ticket = d->log.sequence;
	} else if (d->hs.health != TN_OFFLINE) {
		w->look = tn_store_look(d);
	}
	if (d->hs.health == TN_OFFLINE && (w->sweep || w->ticket)) {
		status = -EIO;
		*w = (struct tn_store_wait){0, 0, 0};
	}
	return status;
}

void tn_store_flush(struct tn_store *s, void (*done)(void *arg, int status), void *arg)
{
	struct tn_store_wait wait[TN_DEVICES_MAX] = {{0}};
	int status = 0, rc;

	if (tn_store_waits_full(s->waits)) {
		done(arg, tn_fail(-EAGAIN, "%u flushes under way: wait for one to end", TN_STORE_FLUSHES_MAX));
		return;
	}
	for (uint32_t i = 0; i < s->ndevices && !s->read_only; i++) {
		rc = needs(&s->dev[i], &wait[i]);
		status = rc ? rc : status;
	}
	if (!tn_store_waits_add(s, done, arg, status, wait))
		return;
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (s->dev[i].flush_waiting || wait[i].ticket > 0)
			tn_store_commit_advance(&s->dev[i]);
}
