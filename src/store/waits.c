/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The waits of flushes. A flush needs that the changes flagged before it were swept into a group, and then that this
 * group is durable; or that the file's name was looked at. The log, the cycle or a look calls this file when one of
 * these has come true, or will not. Flushes that wait for nothing more end: by a call of their `done`, up and out of
 * the store. Nothing is started from here.
 */
#include "store/waits.h"

static void flush_end(struct tn_store_waits *w, struct tn_store_flush *f)
{
	void (*done)(void *arg, int status) = f->done;
	void *arg = f->arg;
	int status = f->status;

	f->used = false;
	w->used--;
	done(arg, status);
}

static bool waits(const struct tn_store *s, const struct tn_store_flush *f)
{
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (f->wait[i].sweep > 0 || f->wait[i].ticket > 0 || f->wait[i].look > 0)
			return true;
	return false;
}

bool tn_store_waits_add(struct tn_store *s, void (*done)(void *arg, int status), void *arg, int status,
			const struct tn_store_wait *wait)
{
	struct tn_store_flush *f = s->waits->flush;

	assert(!tn_store_waits_full(s->waits));
	while (f->used)
		f++;
	*f = (struct tn_store_flush){.done = done, .arg = arg, .status = status, .used = true};
	for (uint32_t i = 0; i < s->ndevices; i++)
		f->wait[i] = wait[i];
	s->waits->used++;
	if (waits(s, f))
		return true;
	flush_end(s->waits, f);
	return false;
}

void tn_store_waits_swept(struct tn_store_device *d)
{
	struct tn_store_waits *t = d->store->waits;

	for (uint32_t i = 0; i < TN_STORE_FLUSHES_MAX && t->used > 0; i++) {
		struct tn_store_wait *w = &t->flush[i].wait[d->index];

		if (t->flush[i].used && w->sweep > 0 && d->log.segments_unlogged == 0 && d->log.swept >= w->sweep) {
			w->sweep = 0;
			w->ticket = d->log.sequence + 1;
		}
	}
}

bool tn_store_waits_for_groups(const struct tn_store_device *d)
{
	const struct tn_store_waits *t = d->store->waits;

	for (uint32_t i = 0; i < TN_STORE_FLUSHES_MAX && t->used > 0; i++) {
		const struct tn_store_wait *w = &t->flush[i].wait[d->index];

		if (t->flush[i].used && w->ticket > d->durable.sequence && w->ticket <= d->log.sequence)
			return true;
	}
	return false;
}

void tn_store_waits_settle(struct tn_store_device *d, int status)
{
	struct tn_store *s = d->store;

	d->flush_waiting = false;
	for (uint32_t i = 0; i < TN_STORE_FLUSHES_MAX && s->waits->used > 0; i++) {
		struct tn_store_flush *f = &s->waits->flush[i];
		struct tn_store_wait *w = &f->wait[d->index];

		if (!f->used)
			continue;
		if (status && (w->sweep > 0 || w->ticket > 0 || w->look > 0)) {
			f->status = f->status ? f->status : status;
			*w = (struct tn_store_wait){0, 0, 0};
		}
		if (w->look <= d->look.ended)
			w->look = 0;
		if (w->ticket > 0 && w->ticket <= d->durable.sequence)
			w->ticket = 0;
		d->flush_waiting = d->flush_waiting || w->sweep > 0;
		if (!waits(s, f))
			flush_end(s->waits, f);
	}
}
