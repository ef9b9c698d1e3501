/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The durable point: a flush waits for everything that was queued for the disk before it, then for the durable tier. It is about
 * admitted blocks alone: what admission keeps in host memory is never queued.
 *
 * The tier has places for so many flushes; the others wait for one of them. A caller that gives up at its deadline leaves its flush behind.
 * Such a flush goes on, or ends in the next one, which is about all that it is about: so whoever asks often and does not wait takes neither
 * memory nor, for long, the others' places.
 */
#include <errno.h>

#include "base/error.h"
#include "base/futex.h"
#include "core/core.h"

static void flush_ends(struct tn_flush_waiter *w, int status)
{
	const struct tn_tier_base *t = w->flushes->durable;

	tn_list_del(&w->link);
	/* Why no device takes writes, where it is that. */
	w->status = status && t && t->ops->durable->deleted(t) ? -ESTALE : status;
	if (w->save) {
		tn_op_tell_status(&w->save->w.op, w->status);
		tn_op_drained(&w->save->w.op);
		return;
	}
	/* The waiter belongs to its caller, or - abandoned - to nobody, from the exchange on. */
	if (__atomic_exchange_n(&w->done, 1, __ATOMIC_ACQ_REL) == 2)
		tn_flush_put(w);
	else
		tn_futex_wake(&w->done);
}

/* What could be written is durable, also when something else could not be. */
static void synced(void *arg, int status)
{
	struct tn_flush_waiter *w = arg;

	w->flushes->syncing--;
	flush_ends(w, w->status ? w->status : status);
}

/* Nobody waits for it any more, and the next one begins no earlier than it would: that one tells its error, too. */
static bool ends_in(struct tn_flush_waiter *w, struct tn_flush_waiter *next)
{
	if (w->save || __atomic_load_n(&w->done, __ATOMIC_ACQUIRE) != 2 || next->syncing || next->offload_target < w->offload_target)
		return false;
	next->status = next->status ? next->status : w->status;
	tn_list_del(&w->link);
	tn_flush_put(w);
	return true;
}

/* When a flush of the durable tier ends, the core takes another turn, and this looks again. */
bool tn_flush_step(struct tn_flushes *f)
{
	struct tn_list *pos, *tmp, *all = &f->offloads->flushes;
	bool busy = false;

	tn_list_for_each_safe(pos, tmp, all) {
		struct tn_flush_waiter *w = tn_container_of(pos, struct tn_flush_waiter, link);

		if (w->syncing || (tmp != all && ends_in(w, tn_container_of(tmp, struct tn_flush_waiter, link))))
			continue;
		if (tn_offloaded_up_to(f->offloads) < w->offload_target || f->syncing == TN_FLUSHES_MAX)
			continue;
		busy = true;
		if (!f->durable) {
			flush_ends(w, 0);
			continue;
		}
		w->syncing = true;
		f->syncing++;
		f->durable->ops->durable->flush(f->durable, synced, w);
	}
	return busy;
}

void tn_flush_join(struct tn_flush_waiter *w)
{
	tn_list_push(&w->flushes->offloads->flushes, &w->link);
}

static void flush_command(struct tn_cmd *cmd)
{
	struct tn_flush_waiter *w = tn_container_of(cmd, struct tn_flush_waiter, cmd);
	const struct tn_flushes *f = w->flushes;

	/* What failed before is among the blocks that this flush is about: it is tried again, or there is no place for it. */
	if (tn_offload_retry(f->offloads) > 0)
		w->status = f->dirty->error;
	else if (f->read_only && f->durable && f->c->host_only_blocks > 0)
		w->status = -EROFS;
	if (f->dirty->lost) { /* told once */
		w->status = f->dirty->lost;
		f->dirty->lost = 0;
	}
	w->offload_target = tn_offload_tickets(f->offloads);
	tn_flush_join(w);
}

void tn_save_flush(struct tn_flushes *f, struct tn_save_op *save)
{
	save->flush = (struct tn_flush_waiter){.flushes = f, .save = save};
	flush_command(&save->flush.cmd);
}

struct tn_flush_waiter *tn_flush_take(struct tn_flushes *f)
{
	struct tn_flush_waiter *w = tn_get(f->alloc, sizeof(*w));

	if (w)
		w->flushes = f;
	return w;
}

void tn_flush_put(struct tn_flush_waiter *w)
{
	tn_put(w->flushes->alloc, w, sizeof(*w));
}

struct tn_flush_waiter *tn_flush_begin(struct tn_flushes *f)
{
	struct tn_flush_waiter *w = tn_flush_take(f);

	if (!w)
		return NULL;
	w->cmd.run = flush_command;
	tn_messages_send(f->messages, &w->cmd);
	return w;
}

bool tn_flush_is_over(const struct tn_flush_waiter *w)
{
	return __atomic_load_n(&w->done, __ATOMIC_ACQUIRE);
}

int tn_flush_poll(struct tn_flush_waiter *w)
{
	int status;

	if (!tn_flush_is_over(w))
		return -EAGAIN;
	status = w->status;
	tn_flush_put(w);
	return status ? tn_fail(status, "what was to be durable could not be written (error %d)", -status) : 0;
}

int tn_flush_wait(struct tn_flush_waiter *w, uint64_t deadline_ns)
{
	uint32_t pending = 0;

	while (!__atomic_load_n(&w->done, __ATOMIC_ACQUIRE)) {
		if (tn_futex_wait(&w->done, 0, deadline_ns) == -ETIMEDOUT) {
			/* The owner frees it when the flush ends, unless that happened just now. */
			if (__atomic_compare_exchange_n(&w->done, &pending, 2, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				return tn_fail(-ETIMEDOUT, "not durable by the deadline; it goes on");
			break;
		}
	}
	return tn_flush_poll(w);
}
