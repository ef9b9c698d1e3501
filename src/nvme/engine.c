/* SPDX-License-Identifier: Apache-2.0 */
/* See engine.h. Requests become commands in transfer.c; what is under way is in pair.c; the file is in range.c and grow.c. */
#include "nvme/engine.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/futex.h"
#include "nvme/engine_internal.h"

#define DEPTH 256u
#define DEPTH_MAX 4096u
#define TRANSFER_MAX (512u << 10) /* of one command: its list is one page, of PRPs or of SGL descriptors */
#define BOUNCE_BYTES (128u << 10)
#define BOUNCES 16u

/* ---- requests ------------------------------------------------------------------------------------------------- */

static unsigned submit(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);
	unsigned taken = 0;

	if (!tn_nvme_pair_busy(&e->pair))
		tn_nvme_pair_poll(&e->pair); /* after a reset by another pair's thread the controller does not know this one */
	for (; taken < n && e->inflight < e->depth; taken++) {
		e->inflight++;
		tn_nvme_begin(e, reqs[taken], 0);
	}
	tn_nvme_issue(e);
	tn_nvme_pair_ring(&e->pair);
	return taken;
}

static int cancel(struct tn_io *io, struct tn_io_req *req)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);
	struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);

	if (x->engine != e)
		return -ENOENT;
	x->flags |= TN_NVME_CANCELLED; /* commands that were not sent are not sent any more */
	if (x->out == 0 && !(x->flags & (TN_NVME_ENDED | TN_NVME_GROWS)))
		tn_nvme_end(e, req, -ECANCELED);
	return 0;
}

static unsigned take_done(struct tn_nvme_engine *e, struct tn_io_req **done, unsigned max)
{
	unsigned n = 0;

	while (n < max && !tn_list_empty(&e->done)) {
		struct tn_io_req *req = tn_container_of(e->done.next, struct tn_io_req, engine);

		tn_list_del(&tn_nvme_xfer_of(req)->link);
		tn_nvme_xfer_of(req)->engine = NULL;
		e->inflight--;
		done[n++] = req;
	}
	return n;
}

/* ---- poll ----------------------------------------------------------------------------------------------------------- */

/* True if there was a wake since the last time. */
static bool was_woken(struct tn_nvme_engine *e)
{
	uint32_t wakes = __atomic_load_n(&e->wakes, __ATOMIC_ACQUIRE);
	bool yes = wakes != e->wakes_seen;

	e->wakes_seen = wakes;
	return yes;
}

static unsigned poll(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);
	uint64_t now = timeout_ns ? tn_now_ns(e->o.clock) : 0;
	uint64_t end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
	unsigned n;

	for (;;) {
		tn_nvme_turn(e);
		n = take_done(e, done, max);
		if (n || timeout_ns == 0 || was_woken(e) || tn_now_ns(e->o.clock) >= end)
			return n;
		if (tn_nvme_pair_busy(&e->pair))
			e->o.port->pause(e->o.port->arg);
		else
			tn_futex_wait(&e->wakes, e->wakes_seen, end);
	}
}

static void wake(struct tn_io *io)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);

	__atomic_fetch_add(&e->wakes, 1, __ATOMIC_RELEASE);
	tn_futex_wake(&e->wakes);
}

/* ---- made and unmade --------------------------------------------------------------------------------------------------- */

static int lend(struct tn_io *io, uint32_t file, struct tn_io_lent *lent)
{
	return tn_fail(-ENOTSUP, "nvme: a range of blocks is no descriptor that could be lent");
}

static int adopt(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file)
{
	return tn_fail(-ENOTSUP, "nvme: takes over no files of other engines");
}

static void destroy(struct tn_io *io)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);
	const struct tn_nvme_port *port = e->o.port;

	tn_nvme_memories_unmap_all(&e->memories);
	if (e->bounces)
		port->put(port->arg, e->bounces, e->bounces_bytes);
	if (e->page)
		port->put(port->arg, e->page, e->page_bytes);
	tn_put(e->o.alloc, e->part, e->pair.nslots * sizeof(*e->part));
	tn_nvme_pair_fini(&e->pair);
	tn_put(e->o.alloc, e, sizeof(*e));
}

static const struct tn_io_ops ops = {
	.size = sizeof(struct tn_io_ops),
	.abi = TN_IO_ABI,
	.name = "nvme",
	.open = tn_nvme_range_open,
	.close = tn_nvme_range_close,
	.stat = tn_nvme_range_stat,
	.allocate = tn_nvme_range_allocate,
	.unlink = tn_nvme_range_unlink,
	.submit = submit,
	.poll = poll,
	.cancel = cancel,
	.lend = lend,
	.adopt = adopt,
	.map = tn_nvme_engine_map,
	.unmap = tn_nvme_engine_unmap,
	.wake = wake,
	.destroy = destroy,
};

static int check_range(struct tn_nvme_engine *e)
{
	const struct tn_nvme_info *info = tn_nvme_info(e->o.nvme);
	uint64_t all = info->blocks;

	if (e->o.first >= all || e->o.blocks > all - e->o.first)
		return tn_fail(-EINVAL, "nvme: the namespace has %llu blocks, not %llu from %llu on", (unsigned long long)all,
			       (unsigned long long)e->o.blocks, (unsigned long long)e->o.first);
	if (e->o.blocks == 0)
		e->o.blocks = all - e->o.first;
	if (e->o.blocks * info->block_bytes < 2 * TN_VOLUME_DATA || e->o.first * info->block_bytes % TN_VOLUME_PAGE)
		return tn_fail(-EINVAL, "nvme: a range has at least %u bytes, and begins at a multiple of %u", 2 * TN_VOLUME_DATA,
			       TN_VOLUME_PAGE);
	e->block_bytes = info->block_bytes;
	e->capacity = e->o.blocks * info->block_bytes / TN_VOLUME_PAGE * TN_VOLUME_PAGE - TN_VOLUME_DATA;
	e->most = info->transfer_bytes < TRANSFER_MAX ? info->transfer_bytes : TRANSFER_MAX;
	return 0;
}

static int make_pair(struct tn_nvme_engine *e)
{
	const struct tn_nvme_pair_opts o = {.nvme = e->o.nvme, .port = e->o.port, .queue = e->o.queue, .command_ns = e->o.command_ns,
					    .alloc = e->o.alloc, .clock = e->o.clock, .log = e->o.log, .ended = tn_nvme_ended, .arg = e};

	return tn_nvme_pair_init(&e->pair, &o);
}

static int get_memory(struct tn_nvme_engine *e)
{
	const struct tn_nvme_port *port = e->o.port;

	e->part = tn_get(e->o.alloc, e->pair.nslots * sizeof(*e->part));
	e->bounce_bytes = e->most < BOUNCE_BYTES ? e->most : BOUNCE_BYTES;
	e->bounces_bytes = (uint64_t)BOUNCES * e->bounce_bytes;
	e->bounces = port->get(port->arg, e->bounces_bytes, &e->bounces_bus);
	e->page_bytes = TN_NVME_PAGE + e->bounce_bytes;
	e->page = port->get(port->arg, e->page_bytes, &e->page_bus);
	if (!e->part || !e->bounces || !e->page)
		return tn_fail(-ENOMEM, "nvme: no memory for %u commands", e->pair.nslots);
	e->free_bounces = (1u << BOUNCES) - 1;
	return 0;
}

int tn_nvme_engine_create(const struct tn_nvme_engine_opts *opts, struct tn_io **out)
{
	struct tn_nvme_engine *e;
	int rc;

	if (opts->depth > DEPTH_MAX)
		return tn_fail(-EINVAL, "nvme: depth %u: at most %u", opts->depth, DEPTH_MAX);
	e = tn_get(opts->alloc, sizeof(*e));
	if (!e)
		return tn_fail(-ENOMEM, "nvme: no memory");
	e->io.ops = &ops;
	e->o = *opts;
	e->depth = opts->depth ? opts->depth : DEPTH;
	e->memories.nvme = opts->nvme;
	tn_list_init(&e->pending);
	tn_list_init(&e->growing);
	tn_list_init(&e->done);
	rc = check_range(e);
	rc = rc ? rc : make_pair(e);
	rc = rc ? rc : get_memory(e);
	if (rc) {
		destroy(&e->io);
		return rc;
	}
	*out = &e->io;
	return 0;
}

uint64_t tn_nvme_engine_bytes(const struct tn_io *io)
{
	return ((const struct tn_nvme_engine *)io)->capacity;
}

void tn_nvme_engine_stats(const struct tn_io *io, struct tn_nvme_engine_stats *stats)
{
	const struct tn_nvme_engine *e = (const struct tn_nvme_engine *)io;
	const struct tn_nvme_pair_stats *p = &e->pair.stats;

	*stats = (struct tn_nvme_engine_stats){.commands = p->commands, .bells = p->bells, .late = p->late, .aborted = p->aborted,
					       .resets = p->resets, .strange = p->strange, .bytes = e->bytes, .bounced = e->bounced,
					       .bounced_bytes = e->bounced_bytes};
}
