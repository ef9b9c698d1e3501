/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of the store: each part of each device does what is due, and says when to ask again. For open and close alone,
 * also the loops that step and poll until something has ended.
 */
#include <errno.h>

#include "base/error.h"
#include "store/store_internal.h"

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t tn_store_step(struct tn_store *s, uint64_t now_ns)
{
	uint64_t next = TN_STORE_NEVER;

	tn_store_requeue(s);
	for (uint32_t i = 0; i < s->ndevices; i++) {
		struct tn_store_device *d = &s->dev[i];

		if ((s->starved && d->freeing > 0) || d->victim != UINT32_MAX)
			d->log.urgent = tn_store_log_changed(&d->log) || d->durable.sequence < d->log.sequence;
		next = earlier(next, tn_store_health_step(d, now_ns));
		next = earlier(next, tn_store_log_step(d, now_ns));
		next = earlier(next, tn_store_durable_step(d, now_ns));
		next = earlier(next, tn_store_ckpt_step(d, now_ns));
		if (s->opened && !s->closing) {
			next = earlier(next, tn_store_move_step(d, now_ns));
			next = earlier(next, tn_store_doubt_step(d, now_ns));
			next = earlier(next, tn_store_allocate_step(d, now_ns));
			next = earlier(next, tn_store_prepare_step(d, now_ns));
		}
	}
	s->starved = false;
	if (s->look_again)
		next = now_ns;
	s->look_again = false;
	return s->stalled ? now_ns : next;
}

/* ---- waiting: at open and close -------------------------------------------------------------------------- */

static void flush_waited(void *arg, int status)
{
	*(int *)arg = status;
}

int tn_store_flush_wait(struct tn_store *s)
{
	int status = 1;

	tn_store_flush(s, flush_waited, &status);
	while (status == 1) {
		tn_store_step(s, tn_now_ns(s->clock));
		if (status == 1)
			tn_store_poll(s, 1000000);
	}
	return status;
}

int tn_store_ckpt_wait(struct tn_store_device *d, bool final)
{
	uint64_t number;

	d->ckpt.hurry = true;
	/* A checkpoint that is under way began too early. */
	while (d->ckpt.phase != TN_CKPT_IDLE) {
		tn_store_step(d->store, tn_now_ns(d->store->clock));
		tn_store_poll(d->store, 1000000);
	}
	number = d->ckpt.number;
	tn_store_ckpt_start(d, final);
	while (d->ckpt.phase != TN_CKPT_IDLE) {
		tn_store_step(d->store, tn_now_ns(d->store->clock));
		if (d->ckpt.phase != TN_CKPT_IDLE)
			tn_store_poll(d->store, 1000000);
	}
	d->ckpt.hurry = false;
	return d->ckpt.number > number ? 0 : tn_fail(-EIO, "%s: the checkpoint could not be written", d->path);
}
