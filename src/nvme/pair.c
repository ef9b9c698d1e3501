/* SPDX-License-Identifier: Apache-2.0 */
/* See pair.h. */
#include "nvme/pair.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

#define COMMAND_NS 5000000000ull
#define LATE_LOOK_NS 10000000ull /* how often commands are looked at for being late */
#define RESET_AGAIN_NS 1000000000ull

/* ---- completions ------------------------------------------------------------------------------------------------- */

static void end(struct tn_nvme_pair *p, uint32_t index, int status)
{
	p->slot[index].state = TN_NVME_FREE;
	p->ncommands--;
	p->o.ended(p->o.arg, index, status);
}

/* A completion of no command under way is a second one, or nonsense. */
static bool is_under_way(const struct tn_nvme_pair *p, uint32_t index, const struct tn_nvme_completion *c)
{
	return index < p->nslots && p->slot[index].state != TN_NVME_FREE && p->slot[index].id == c->id;
}

/* Without a word to the controller: it may be one that was reset, and knows no such queue. */
static bool take(struct tn_nvme_pair *p)
{
	struct tn_nvme_completion c;
	bool any = false;

	for (; tn_nvme_queue_poll(p->queue, &c); any = true) {
		uint32_t index = tn_nvme_queue_index(p->queue, c.id);

		if (!is_under_way(p, index, &c)) {
			p->stats.strange++;
			continue;
		}
		end(p, index, (int)tn_nvme_status(&c));
		tn_nvme_queue_give(p->queue, c.id);
	}
	return any;
}

static bool collect(struct tn_nvme_pair *p)
{
	bool any = take(p);

	if (any)
		tn_nvme_queue_took(p->queue);
	return any;
}

/* ---- what is late ------------------------------------------------------------------------------------------------ */

/*
 * Everything under way has failed: the controller, reset (Base 3.7.2) or gone, reaches none of its memory any more. But what it answered before is over: its
 * completions lie in the queue still.
 */
static void fail_all(struct tn_nvme_pair *p, int status)
{
	take(p);
	for (uint32_t i = 0; i < p->nslots; i++)
		if (p->slot[i].state != TN_NVME_FREE)
			end(p, i, status);
}

/* After a reset, by this pair's thread or by another's. */
static void renew(struct tn_nvme_pair *p, uint64_t now)
{
	int rc;

	fail_all(p, -EIO);
	rc = tn_nvme_renew(p->o.nvme, p->o.queue, &p->generation);
	p->reset_next_ns = rc ? now + RESET_AGAIN_NS : 0;
	if (rc)
		tn_log(p->o.log, TN_LOG_ERROR, "pair %u is not made again: %s", p->o.queue, tn_error_last()->text);
}

/* late: the command because of which it has to be, unless it has ended while its abort was waited for; NULL: the controller is out of order. */
static void reset(struct tn_nvme_pair *p, const struct tn_nvme_slot *late, uint64_t now)
{
	int rc;

	if (now < p->reset_next_ns)
		return;
	collect(p);
	if (late && late->state == TN_NVME_FREE)
		return;
	p->reset_next_ns = now + RESET_AGAIN_NS;
	p->stats.resets++;
	rc = tn_nvme_restart(p->o.nvme, p->generation);
	tn_log(p->o.log, TN_LOG_ERROR, rc ? "not reset: %s" : "reset%s", rc ? tn_error_last()->text : "");
	p->gone = rc == -ENODEV;
	if (p->gone) {
		tn_log(p->o.log, TN_LOG_ERROR, "%s: the controller is not used any more; close what has it open, so that its slot is released", p->o.port->name);
		fail_all(p, -ENODEV);
	}
	if (rc == 0)
		renew(p, now);
}

/*
 * Asks once for the end of a command; true: its completion will come, or has come. A command that was not aborted has ended, or is about to, or cannot be
 * aborted (Base 5.1): it gets the same time again, too. Until its completion its id and memory are the controller's.
 */
static bool ask_for_end(struct tn_nvme_pair *p, struct tn_nvme_slot *s, uint64_t now)
{
	int rc;

	p->stats.late++;
	tn_log(p->o.log, TN_LOG_WARN, "command %u (op %u, block %llu) was not answered in %llu ms", s->id, s->op, (unsigned long long)s->block,
	       (unsigned long long)((now - s->since_ns) / 1000000));
	rc = tn_nvme_abort(p->o.nvme, p->o.queue, s->id);
	if (rc && rc != -EALREADY)
		return false;
	p->stats.aborted += rc == 0;
	s->state = TN_NVME_ABORTING;
	s->since_ns = tn_now_ns(p->o.clock);
	return true;
}

static void look_for_late(struct tn_nvme_pair *p)
{
	uint64_t now;
	int rc;

	if (!tn_nvme_pair_busy(p))
		return;
	now = tn_now_ns(p->o.clock);
	if (now < p->late_next_ns)
		return;
	p->late_next_ns = now + LATE_LOOK_NS;
	rc = tn_nvme_check(p->o.nvme);
	if (rc || p->reset_next_ns) {
		reset(p, NULL, now);
		return;
	}
	for (uint32_t i = 0; i < p->nslots; i++) {
		struct tn_nvme_slot *s = &p->slot[i];

		if (s->state == TN_NVME_FREE || now < s->since_ns + p->o.command_ns)
			continue;
		if (s->state == TN_NVME_ABORTING || !ask_for_end(p, s, now)) {
			reset(p, s, now);
			return;
		}
	}
}

/* ---- poll -------------------------------------------------------------------------------------------------------- */

bool tn_nvme_pair_poll(struct tn_nvme_pair *p)
{
	uint32_t under_way = p->ncommands;
	bool any = collect(p);

	/* What is under way since a reset by another pair's thread is not answered any more. */
	if (tn_nvme_generation(p->o.nvme) != p->generation && !p->gone)
		renew(p, tn_now_ns(p->o.clock));
	look_for_late(p);
	return any || p->ncommands != under_way;
}

void tn_nvme_pair_drain(struct tn_nvme_pair *p)
{
	tn_nvme_pair_ring(p);
	while (p->ncommands && !p->reset_next_ns) {
		tn_nvme_pair_poll(p);
		if (p->ncommands)
			p->o.port->pause(p->o.port->arg);
	}
}

int tn_nvme_pair_errno(const struct tn_nvme_pair *p, uint32_t index, int status, bool wished)
{
	const struct tn_nvme_slot *s = &p->slot[index];

	if (status <= 0)
		return status;
	if (status == TN_NVME_ABORTED && wished)
		return -ECANCELED;
	tn_log(p->o.log, TN_LOG_WARN, "nvme: op %#x of %u bytes at block %llu ended with status %#x", s->op, s->bytes,
	       (unsigned long long)s->block, (unsigned)status);
	return status == TN_NVME_CAPACITY ? -ENOSPC : -EIO;
}

/* ---- sending --------------------------------------------------------------------------------------------------------- */

int tn_nvme_pair_pieces(struct tn_nvme_pair *p, struct tn_nvme_command *c, const struct tn_nvme_piece *piece, uint32_t n)
{
	const struct tn_nvme_list list = tn_nvme_pair_list(p);

	return p->sgl ? tn_nvme_set_sgl(c, piece, n, &list) : tn_nvme_set_prps(c, piece, n, &list);
}

uint32_t tn_nvme_pair_send(struct tn_nvme_pair *p, uint64_t block, uint32_t bytes, uint64_t now_ns)
{
	struct tn_nvme_command *c = tn_nvme_pair_command(p);
	uint32_t id = tn_nvme_queue_id(p->queue), index = tn_nvme_queue_index(p->queue, id);

	c->id = (uint16_t)id;
	p->slot[index] = (struct tn_nvme_slot){.since_ns = now_ns, .block = block, .bytes = bytes, .id = c->id, .state = TN_NVME_SENT, .op = c->opcode};
	if (p->ncommands++ == 0)
		p->late_next_ns = now_ns; /* a device that fails is noticed soon */
	p->stats.commands++;
	tn_nvme_queue_put_entry(p->queue);
	return index;
}

void tn_nvme_pair_ring(struct tn_nvme_pair *p)
{
	p->stats.bells += (uint64_t)tn_nvme_queue_ring(p->queue);
}

/* ---- made and unmade --------------------------------------------------------------------------------------------------- */

int tn_nvme_pair_init(struct tn_nvme_pair *p, const struct tn_nvme_pair_opts *opts)
{
	const struct tn_nvme_port *port = opts->port;

	memset(p, 0, sizeof(*p));
	if (opts->queue >= tn_nvme_info(opts->nvme)->queues)
		return tn_fail(-EINVAL, "nvme: queue pair %u: there are %u", opts->queue, tn_nvme_info(opts->nvme)->queues);
	p->o = *opts;
	p->o.command_ns = opts->command_ns ? opts->command_ns : COMMAND_NS;
	p->queue = tn_nvme_io_queue(opts->nvme, opts->queue);
	p->sgl = tn_nvme_info(opts->nvme)->sgl;
	p->nslots = p->queue->entries - 1;
	p->slot = tn_get(opts->alloc, p->nslots * sizeof(*p->slot));
	p->lists_bytes = (uint64_t)p->nslots * TN_NVME_PAGE;
	p->lists = port->get(port->arg, p->lists_bytes, &p->lists_bus);
	if (!p->slot || !p->lists)
		return tn_fail(-ENOMEM, "nvme: no memory for %u commands", p->nslots);
	return tn_nvme_renew(opts->nvme, opts->queue, &p->generation); /* a reset before this pair had a user has taken it from the controller */
}

void tn_nvme_pair_fini(struct tn_nvme_pair *p)
{
	if (!p->o.alloc)
		return;
	if (p->lists)
		p->o.port->put(p->o.port->arg, p->lists, p->lists_bytes);
	tn_put(p->o.alloc, p->slot, p->nslots * sizeof(*p->slot));
	memset(p, 0, sizeof(*p));
}
