/* SPDX-License-Identifier: Apache-2.0 */
/* Commands end: by their completion, or because they are late, by an abort or a reset. */
#include <errno.h>

#include "base/error.h"
#include "nvme/engine_internal.h"

#define LATE_LOOK_NS 10000000ull /* how often commands are looked at for being late */
#define RESET_AGAIN_NS 1000000000ull

/* ---- what is late ------------------------------------------------------------------------------------------------ */

/* Everything under way has failed: the controller reaches none of its memory any more. */
static void fail_all(struct tn_nvme_engine *e, int status)
{
	for (uint32_t i = 0; i < e->nslots; i++)
		if (e->slot[i].state != TN_NVME_FREE)
			tn_nvme_ended(e, &e->slot[i], status);
}

static void reset(struct tn_nvme_engine *e, uint64_t now)
{
	int rc;

	if (now < e->reset_next_ns)
		return;
	e->reset_next_ns = now + RESET_AGAIN_NS;
	e->stats.resets++;
	rc = tn_nvme_reset(e->o.nvme);
	tn_log(e->o.log, TN_LOG_ERROR, rc ? "not reset: %s" : "reset%s", rc ? tn_error_last()->text : "");
	if (rc && rc != -ENODEV)
		return;
	e->gone = rc == -ENODEV;
	fail_all(e, e->gone ? -ENODEV : -EIO);
	if (rc == 0)
		e->reset_next_ns = 0;
}

/* Asks once for the end of a command; true: it will come, or has come. */
static bool ask_for_end(struct tn_nvme_engine *e, struct tn_nvme_slot *s, uint64_t now)
{
	e->stats.late++;
	tn_log(e->o.log, TN_LOG_WARN, "command %u (op %u, block %llu) was not answered in %llu ms", s->id, s->op, (unsigned long long)s->block,
	       (unsigned long long)((now - s->since_ns) / 1000000));
	if (tn_nvme_abort(e->o.nvme, e->o.queue, s->id))
		return false;
	e->stats.aborted++;
	s->state = TN_NVME_ABORTING;
	s->since_ns = tn_now_ns(e->o.clock);
	return true;
}

static void look_for_late(struct tn_nvme_engine *e)
{
	uint64_t now = tn_now_ns(e->o.clock);
	int rc;

	if (e->ncommands == 0 || now < e->late_next_ns)
		return;
	e->late_next_ns = now + LATE_LOOK_NS;
	rc = tn_nvme_check(e->o.nvme);
	if (rc) {
		reset(e, now);
		return;
	}
	for (uint32_t i = 0; i < e->nslots; i++) {
		struct tn_nvme_slot *s = &e->slot[i];

		if (s->state == TN_NVME_FREE || now < s->since_ns + e->o.command_ns)
			continue;
		if (s->state == TN_NVME_ABORTING || !ask_for_end(e, s, now)) {
			reset(e, now);
			return;
		}
	}
}

/* ---- completions ----------------------------------------------------------------------------------------------- */

/* The command that the completion is of; NULL: none that is under way. It is a second one then, or nonsense. */
static struct tn_nvme_slot *slot_of(struct tn_nvme_engine *e, const struct tn_nvme_completion *c)
{
	uint32_t i = tn_nvme_queue_index(e->queue, c->id);

	return i < e->nslots && e->slot[i].state != TN_NVME_FREE && e->slot[i].id == c->id ? &e->slot[i] : NULL;
}

static void collect(struct tn_nvme_engine *e)
{
	struct tn_nvme_completion c;
	bool any = false;

	for (; tn_nvme_queue_poll(e->queue, &c); any = true) {
		struct tn_nvme_slot *s = slot_of(e, &c);

		if (!s) {
			e->stats.strange++;
			continue;
		}
		tn_nvme_ended(e, s, tn_nvme_errno(e, s, tn_nvme_status(&c)));
		tn_nvme_queue_give(e->queue, c.id);
	}
	if (any)
		tn_nvme_queue_took(e->queue);
}

void tn_nvme_turn(struct tn_nvme_engine *e)
{
	collect(e);
	look_for_late(e);
	tn_nvme_grow(e);
	tn_nvme_issue(e);
	e->stats.bells += (uint64_t)tn_nvme_queue_ring(e->queue);
}

int tn_nvme_wait_for(struct tn_nvme_engine *e, struct tn_io_req *req, uint8_t flags)
{
	struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);

	tn_nvme_begin(e, req, flags);
	while (!(x->flags & TN_NVME_ENDED)) {
		tn_nvme_turn(e);
		if (!(x->flags & TN_NVME_ENDED))
			e->o.port->pause(e->o.port->arg);
	}
	tn_list_del(&x->link);
	return req->status;
}
