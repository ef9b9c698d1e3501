/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of a lane (lane.h) whose devices are ranges of namespaces: each piece becomes commands on pairs of queues that are the lane's
 * alone. There are no interrupts, so whoever steps the lane polls while it is busy.
 *
 * A piece waits in its drive's line until all its commands are sent: of as many bytes as the controller moves at once, and of as
 * many pieces of memory as a list has room for.
 */
#include "ring/nvme.h"

#include <errno.h>

#include "base/error.h"
#include "base/futex.h"
#include "base/list.h"
#include "nvme/memory.h"
#include "nvme/pair.h"
#include "ring/lane.h"

/* Of one command at most: as many pages as a list of PRPs in one page names, and as a lane asks for at once. */
#define MOST_BYTES (1u << 20)

/* What became of a piece so far. */
struct transfer {
	struct tn_list link; /* in its drive's line, or among those that are over without a command */
	struct tn_lane_piece *piece;
	uint64_t issue_ns;
	uint32_t sent, out; /* bytes that commands were sent for; commands under way */
	uint32_t iov;
	size_t skip; /* where the next bytes begin in memory */
	int status;
	bool waits; /* in a line */
};

struct drive {
	struct commands *x;
	struct tn_ring_drive o; /* o.nvme NULL: it is not there */
	struct tn_nvme_pair pair;
	struct tn_nvme_memories memories;
	struct transfer **command; /* by the index of its id */
	struct tn_list line;
	uint32_t block_shift, most; /* most: bytes of one command */
};

struct commands {
	struct tn_lane_transport transport;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	uint32_t depth;
	struct transfer *transfer; /* by piece */
	struct tn_list over;
	struct drive *drive; /* by device */
	uint32_t ndrives;
	uint32_t wakes;	     /* shared: since the transport was made; ... */
	uint32_t seen_wakes; /* ... and when it last slept */
	bool sleeps;	     /* shared */
};

static struct commands *of(struct tn_lane_transport *transport)
{
	return tn_container_of(transport, struct commands, transport);
}

/* ---- pieces become commands ------------------------------------------------------------------------------------ */

static void advance(struct transfer *t, uint32_t bytes)
{
	t->sent += bytes;
	while (bytes && t->sent < t->piece->length) { /* nobody asks where the end is */
		size_t left = t->piece->iov[t->iov].iov_len - t->skip;

		if (bytes < left) {
			t->skip += bytes;
			return;
		}
		bytes -= (uint32_t)left;
		t->iov++;
		t->skip = 0;
	}
}

/* Pieces of memory of the next command: whole blocks. How many, and *bytes of them; 0: the controller cannot reach them. */
static uint32_t gather(struct drive *d, const struct transfer *t, struct tn_nvme_piece *s, uint32_t *bytes)
{
	uint32_t most = *bytes, cut;
	uint32_t n = tn_nvme_memories_gather(&d->memories, d->pair.sgl, t->piece->iov + t->iov, t->skip, most, s, TN_NVME_PIECES, bytes);

	for (cut = *bytes & ((1u << d->block_shift) - 1), *bytes -= cut; cut; n--) {
		if (s[n - 1].length > cut) {
			s[n - 1].length -= cut;
			return n;
		}
		cut -= (uint32_t)s[n - 1].length;
	}
	return n;
}

/* Names the memory of the next command, *bytes of it at most; 0 and *bytes, or -EXDEV. */
static int name_memory(struct drive *d, const struct transfer *t, struct tn_nvme_command *c, uint32_t *bytes)
{
	const struct tn_nvme_list list = tn_nvme_pair_list(&d->pair);
	bool pages = !d->pair.sgl && t->skip == 0;
	uint32_t n = pages ? tn_nvme_memories_pages(&d->memories, t->piece->iov + t->iov, *bytes, list.memory, TN_NVME_PRPS_PER_PAGE) : 0;
	struct tn_nvme_piece *s;

	if (n) {
		tn_nvme_set_listed_prps(c, n, &list);
		return 0;
	}
	s = tn_nvme_pair_scratch(&d->pair);
	n = gather(d, t, s, bytes);
	return n && tn_nvme_pair_pieces(&d->pair, c, s, n) == 0 ? 0 : -EXDEV;
}

/* The pair is ready. 0, or -EXDEV. */
static int send_command(struct drive *d, struct transfer *t, uint64_t now)
{
	uint64_t block = d->o.first + ((t->piece->offset + t->sent) >> d->block_shift);
	uint32_t left = t->piece->length - t->sent, bytes = left < d->most ? left : d->most;
	struct tn_nvme_command *c = tn_nvme_pair_command(&d->pair);
	uint32_t opcode = tn_lane_op_of(t->piece) == TN_IO_READ ? TN_NVME_READ : TN_NVME_WRITE;
	int err;

	*c = tn_nvme_transfer(opcode, tn_nvme_info(d->o.nvme)->namespace_id, block, 1);
	err = name_memory(d, t, c, &bytes);
	if (err)
		return err;
	c->dword12 = (bytes >> d->block_shift) - 1;
	d->command[tn_nvme_pair_send(&d->pair, block, bytes, now)] = t;
	if (t->sent == 0)
		t->issue_ns = now;
	t->out++;
	advance(t, bytes);
	return 0;
}

static bool wants_more(const struct transfer *t)
{
	return t->status == 0 && t->sent < t->piece->length;
}

/* Sends what the pair takes, in order: nobody overtakes for ever. */
static void push(struct drive *d)
{
	uint64_t now = tn_list_empty(&d->line) ? 0 : tn_now_ns(d->x->clock);

	while (!tn_list_empty(&d->line)) {
		struct transfer *t = tn_container_of(d->line.next, struct transfer, link);

		if (d->pair.gone && !t->status)
			t->status = -ENODEV;
		while (wants_more(t) && tn_nvme_pair_ready(&d->pair))
			t->status = send_command(d, t, now);
		if (wants_more(t))
			break;
		tn_list_del(&t->link);
		t->waits = false;
		if (t->out == 0)
			tn_list_push(&d->x->over, &t->link);
	}
	if (d->o.nvme)
		tn_nvme_pair_ring(&d->pair);
}

static bool fits(const struct drive *d, const struct tn_lane_piece *p)
{
	uint64_t end = d->o.blocks << d->block_shift;

	return p->offset <= end && p->length <= end - p->offset;
}

static uint32_t send(struct tn_lane_transport *transport, struct tn_lane_piece *const *piece, uint32_t n)
{
	struct commands *x = of(transport);

	for (uint32_t i = 0; i < n; i++) {
		struct drive *d = &x->drive[tn_lane_device_of(piece[i])];
		struct transfer *t = &x->transfer[piece[i]->number];

		*t = (struct transfer){.piece = piece[i], .waits = true, .status = fits(d, piece[i]) ? 0 : -EIO};
		tn_list_push(&d->line, &t->link);
	}
	for (uint32_t i = 0; i < x->ndrives; i++)
		push(&x->drive[i]);
	return n;
}

/* ---- and come back --------------------------------------------------------------------------------------------------- */

static void over(struct commands *x, struct transfer *t)
{
	uint64_t now = t->issue_ns ? t->issue_ns : tn_now_ns(x->clock); /* what was never sent took no time */

	tn_lane_piece_over(t->piece, t->status, now);
}

static void ended(void *arg, uint32_t index, int said)
{
	struct drive *d = arg;
	struct transfer *t = d->command[index];
	int status = tn_nvme_pair_errno(&d->pair, index, said, false);

	t->out--;
	t->status = t->status ? t->status : status;
	if (t->out == 0 && !t->waits)
		over(d->x, t);
}

static bool turn(struct commands *x)
{
	bool any = false;

	for (uint32_t i = 0; i < x->ndrives; i++) {
		any |= x->drive[i].o.nvme && tn_nvme_pair_poll(&x->drive[i].pair);
		tn_nvme_memories_settle(&x->drive[i].memories, x->drive[i].pair.ncommands);
		push(&x->drive[i]);
	}
	while (!tn_list_empty(&x->over)) {
		struct transfer *t = tn_container_of(x->over.next, struct transfer, link);

		tn_list_del(&t->link);
		over(x, t);
		any = true;
	}
	return any;
}

static bool busy(struct tn_lane_transport *transport)
{
	const struct commands *x = of(transport);
	bool busy = !tn_list_empty(&x->over);

	for (uint32_t i = 0; i < x->ndrives && !busy; i++)
		busy = tn_nvme_pair_busy(&x->drive[i].pair);
	return busy;
}

/* Lets a drive go on, where it needs that. */
static void pause_turn(const struct commands *x)
{
	uint32_t i = 0;

	while (i < x->ndrives && !x->drive[i].o.nvme)
		i++;
	if (i < x->ndrives)
		x->drive[i].o.port->pause(x->drive[i].o.port->arg);
}

static bool poll(struct tn_lane_transport *transport, uint64_t wait_ns)
{
	struct commands *x = of(transport);

	if (turn(x))
		return true;
	if (wait_ns == 0)
		return false;
	if (busy(transport)) {
		pause_turn(x);
		return false;
	}
	/* A waker counts first and then looks for a sleeper, who says so first and then compares the count: one of them sees the other. */
	__atomic_store_n(&x->sleeps, true, __ATOMIC_SEQ_CST);
	tn_futex_wait(&x->wakes, x->seen_wakes, wait_ns == TN_FOREVER ? TN_FOREVER : tn_now_ns(x->clock) + wait_ns);
	__atomic_store_n(&x->sleeps, false, __ATOMIC_RELAXED);
	x->seen_wakes = __atomic_load_n(&x->wakes, __ATOMIC_ACQUIRE);
	return false;
}

static void wake(struct tn_lane_transport *transport)
{
	struct commands *x = of(transport);

	__atomic_fetch_add(&x->wakes, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&x->sleeps, __ATOMIC_SEQ_CST))
		tn_futex_wake(&x->wakes);
}

/* ---- memories -------------------------------------------------------------------------------------------------------- */

static void unmap_first(struct commands *x, uint32_t n, void *memory, uint64_t bytes)
{
	for (uint32_t i = 0; i < n; i++) {
		struct drive *d = &x->drive[i];

		if (!d->o.nvme)
			continue;
		tn_nvme_pair_drain(&d->pair); /* of other memory, with some of the same bytes */
		tn_nvme_memories_settle(&d->memories, d->pair.ncommands);
		tn_nvme_memories_unmap(&d->memories, memory, bytes, d->pair.ncommands > 0);
	}
}

static void unmap(struct tn_lane_transport *transport, void *memory, uint64_t bytes)
{
	unmap_first(of(transport), of(transport)->ndrives, memory, bytes);
}

/* As far as the drives can; pieces for those that cannot come back with -EXDEV. */
static int map(struct tn_lane_transport *transport, void *memory, uint64_t bytes)
{
	struct commands *x = of(transport);
	uint32_t n;
	int rc = 0;

	for (n = 0; n < x->ndrives && !rc; n += !rc)
		rc = x->drive[n].o.nvme ? tn_nvme_memories_map(&x->drive[n].memories, memory, bytes) : 0;
	if (rc)
		unmap_first(x, n, memory, bytes);
	return rc;
}

/* ---- made and unmade -------------------------------------------------------------------------------------------------- */

static void unmake(struct tn_lane_transport *transport)
{
	struct commands *x = of(transport);
	const struct tn_alloc *a = x->alloc;

	for (uint32_t i = 0; x->drive && i < x->ndrives; i++) {
		struct drive *d = &x->drive[i];

		tn_nvme_memories_unmap_all(&d->memories);
		if (d->command)
			tn_put(a, d->command, tn_array_bytes(d->pair.nslots, sizeof(*d->command)));
		tn_nvme_pair_fini(&d->pair);
	}
	tn_put(a, x->transfer, tn_array_bytes(x->depth, sizeof(*x->transfer)));
	tn_put(a, x->drive, tn_array_bytes(x->ndrives, sizeof(*x->drive)));
	tn_put(a, x, sizeof(*x));
}

static int add_drive(struct commands *x, const struct tn_executor_drives *places, uint32_t device, uint32_t number)
{
	const struct tn_ring_drive *o = &places->drive[device];
	const struct tn_nvme_info *info = o->nvme ? tn_nvme_info(o->nvme) : NULL;
	struct drive *d = &x->drive[device];
	const struct tn_nvme_pair_opts po = {.nvme = o->nvme, .port = o->port, .queue = o->queue + number, .command_ns = places->command_ns,
					     .alloc = x->alloc, .clock = x->clock, .log = places->log, .ended = ended, .arg = d};
	int err;

	d->x = x;
	d->o = *o;
	tn_list_init(&d->line);
	x->transport.align[device] = 1;
	if (!info)
		return 0;
	err = tn_nvme_pair_init(&d->pair, &po);
	if (err)
		return err;
	d->memories.nvme = o->nvme;
	d->block_shift = (uint32_t)__builtin_ctz(info->block_bytes);
	d->most = info->transfer_bytes < MOST_BYTES ? info->transfer_bytes : MOST_BYTES;
	d->command = tn_get(x->alloc, tn_array_bytes(d->pair.nslots, sizeof(*d->command)));
	/* Base 4.1.2: SGLs name dwords; 4.1.1: PRPs name pages */
	x->transport.align[device] = d->pair.sgl ? 4 : TN_NVME_PAGE;
	return d->command ? 0 : tn_fail(-ENOMEM, "executor: no memory for %u commands", d->pair.nslots);
}

static int make(const struct tn_executor_opts *o, const void *places, uint32_t number, struct tn_lane_transport **out)
{
	struct commands *x = tn_get(o->alloc, sizeof(*x));
	int err = 0;

	if (!x)
		return tn_fail(-ENOMEM, "executor: no memory");
	x->transport.maps = x->transport.must_map = true;
	x->alloc = o->alloc;
	x->clock = o->clock;
	x->depth = o->depth;
	x->ndrives = o->ndevices;
	tn_list_init(&x->over);
	x->transfer = tn_get(o->alloc, tn_array_bytes(o->depth, sizeof(*x->transfer)));
	x->drive = tn_get(o->alloc, tn_array_bytes(o->ndevices, sizeof(*x->drive)));
	if (!x->transfer || !x->drive)
		err = tn_fail(-ENOMEM, "executor: no memory");
	for (uint32_t i = 0; i < o->ndevices && !err; i++)
		err = add_drive(x, places, i, number);
	if (err)
		unmake(&x->transport);
	else
		*out = &x->transport;
	return err;
}

static const struct tn_lane_transport_ops ops = {
	.make = make,
	.unmake = unmake,
	.send = send,
	.poll = poll,
	.busy = busy,
	.wake = wake,
	.map = map,
	.unmap = unmap,
};

int tn_executor_nvme_create(const struct tn_executor_opts *o, const struct tn_executor_drives *drives, struct tn_executor **out)
{
	return tn_executor_create(o, &ops, drives, out);
}

/* ---- counters --------------------------------------------------------------------------------------------------------- */

struct sum {
	uint32_t device;
	struct tn_nvme_pair_stats *stats;
};

static int add_pair(struct tn_lane *lane, void *arg)
{
	struct sum *sum = arg;
	const struct tn_nvme_pair_stats *one = &of(lane->o.transport)->drive[sum->device].pair.stats;

	sum->stats->commands += one->commands;
	sum->stats->bells += one->bells;
	sum->stats->late += one->late;
	sum->stats->aborted += one->aborted;
	sum->stats->resets += one->resets;
	sum->stats->strange += one->strange;
	return 0;
}

void tn_executor_nvme_pair_stats(struct tn_executor *ex, uint32_t device, struct tn_nvme_pair_stats *stats)
{
	*stats = (struct tn_nvme_pair_stats){0};
	tn_executor_ask(ex, add_pair, &(struct sum){device, stats});
}
