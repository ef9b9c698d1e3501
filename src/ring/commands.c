/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See nvme.h. A lane whose pieces become commands. A piece waits in its drive's line until all its commands are sent: of as many bytes as
 * the controller moves at once, and of as many pieces of memory as a list has room for.
 */
#include "ring/nvme.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/futex.h"
#include "base/list.h"
#include "base/thread.h"
#include "nvme/memory.h"
#include "nvme/pair.h"
#include "ring/lane.h"
#include "ring/seen.h"

/* Of one command at most: as many pages as a list of PRPs in one page names, and as a lane asks for at once. */
#define MOST_BYTES TN_RING_IO_BYTES

struct executor;

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
	struct executor *x;
	struct tn_ring_drive o;
	struct tn_nvme_pair pair;
	struct tn_nvme_memories memories;
	struct transfer **command; /* by the index of its id */
	struct tn_list line;
	uint32_t block_shift, most; /* most: bytes of one command */
};

struct executor {
	struct tn_executor ex;
	struct tn_executor_nvme_opts o;
	struct tn_lane_transport transport;
	struct tn_lane_intake intake;
	struct tn_lane *lane;
	struct transfer *transfer; /* by piece */
	struct tn_list over;
	struct drive *drive;
	struct tn_seen seen;
	/* with a thread */
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;	  /* of all above while the thread has its turn */
	uint32_t wakes, visitors; /* shared; visitors: calls of the owner's that want the lock */
	bool stop;		  /* shared */
};

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
	uint64_t now = tn_list_empty(&d->line) ? 0 : tn_now_ns(d->x->o.clock);

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
	tn_nvme_pair_ring(&d->pair);
}

static bool fits(const struct drive *d, const struct tn_lane_piece *p)
{
	uint64_t end = d->o.blocks << d->block_shift;

	return p->offset <= end && p->length <= end - p->offset;
}

static uint32_t send(struct tn_lane_transport *transport, struct tn_lane_piece *const *piece, uint32_t n)
{
	struct executor *x = tn_container_of(transport, struct executor, transport);

	for (uint32_t i = 0; i < n; i++) {
		struct drive *d = &x->drive[tn_lane_device_of(piece[i])];
		struct transfer *t = &x->transfer[piece[i]->number];

		*t = (struct transfer){.piece = piece[i], .waits = true, .status = fits(d, piece[i]) ? 0 : -EIO};
		tn_list_push(&d->line, &t->link);
	}
	for (uint32_t i = 0; i < x->o.ndrives; i++)
		push(&x->drive[i]);
	return n;
}

/* ---- and come back --------------------------------------------------------------------------------------------------- */

static void over(struct executor *x, struct transfer *t)
{
	uint64_t now = t->issue_ns ? t->issue_ns : tn_now_ns(x->o.clock); /* what was never sent took no time */

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

/* Takes, sends, collects; whether anything happened. */
static bool turn(struct executor *x)
{
	bool any = false;

	for (uint32_t i = 0; i < x->o.ndrives; i++) {
		any |= tn_nvme_pair_poll(&x->drive[i].pair);
		push(&x->drive[i]);
	}
	while (!tn_list_empty(&x->over)) {
		struct transfer *t = tn_container_of(x->over.next, struct transfer, link);

		tn_list_del(&t->link);
		over(x, t);
		any = true;
	}
	any |= tn_lane_go(x->lane);
	return any;
}

/* Whether something ends that wakes nobody. */
static bool is_busy(const struct executor *x)
{
	bool busy = !tn_list_empty(&x->over);

	for (uint32_t i = 0; i < x->o.ndrives && !busy; i++)
		busy = tn_nvme_pair_busy(&x->drive[i].pair);
	return busy;
}

/* ---- memories -------------------------------------------------------------------------------------------------------- */

/* For all drives, or for none. */
static int map_all(struct executor *x, void *memory, uint64_t bytes)
{
	int err = 0;
	uint32_t n;

	for (n = 0; n < x->o.ndrives && !err; n += !err)
		err = tn_nvme_memories_map(&x->drive[n].memories, memory, bytes);
	while (err && n-- > 0)
		tn_nvme_memories_unmap(&x->drive[n].memories, memory, bytes);
	return err;
}

static void unmap_all(struct executor *x, void *memory, uint64_t bytes)
{
	for (uint32_t i = 0; i < x->o.ndrives; i++)
		tn_nvme_memories_unmap(&x->drive[i].memories, memory, bytes);
}

static int map_bounces(struct tn_lane_transport *transport, void *memory, size_t bytes)
{
	return map_all(tn_container_of(transport, struct executor, transport), memory, bytes);
}

static void unmap_bounces(struct tn_lane_transport *transport, void *memory, size_t bytes)
{
	unmap_all(tn_container_of(transport, struct executor, transport), memory, bytes);
}

/* The owner has the lane and the drives for himself, until leave. */
static void enter(struct executor *x)
{
	__atomic_fetch_add(&x->visitors, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&x->lock);
	__atomic_fetch_sub(&x->visitors, 1, __ATOMIC_RELAXED);
}

static void leave(struct executor *x)
{
	pthread_mutex_unlock(&x->lock);
}

int tn_executor_nvme_map(struct tn_executor *ex, void *memory, uint64_t bytes)
{
	struct executor *x = (struct executor *)ex;
	int err;

	enter(x);
	err = map_all(x, memory, bytes);
	leave(x);
	return err;
}

void tn_executor_nvme_unmap(struct tn_executor *ex, void *memory, uint64_t bytes)
{
	struct executor *x = (struct executor *)ex;

	enter(x);
	unmap_all(x, memory, bytes);
	leave(x);
}

/* ---- its thread ------------------------------------------------------------------------------------------------------- */

static void kick(void *arg)
{
	struct executor *x = arg;

	__atomic_fetch_add(&x->wakes, 1, __ATOMIC_RELEASE);
	tn_futex_wake(&x->wakes);
}

static void observed(void *arg, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status)
{
	struct executor *x = arg;

	if (tn_seen_add(&x->seen, device, op, bytes, latency_ns, status) && x->o.wake)
		x->o.wake(x->o.wake_arg);
}

static void *thread_main(void *arg)
{
	struct executor *x = arg;
	uint64_t iocbs = 0;

	pthread_setname_np(pthread_self(), "tenuto-nvme");
	while (!__atomic_load_n(&x->stop, __ATOMIC_ACQUIRE)) {
		uint32_t wakes = __atomic_load_n(&x->wakes, __ATOMIC_ACQUIRE);
		bool any, busy, news;
		uint64_t due;

		pthread_mutex_lock(&x->lock);
		any = turn(x);
		busy = is_busy(x);
		due = tn_lane_due(x->lane, tn_now_ns(x->o.clock));
		news = x->lane->stats.iocbs != iocbs;
		iocbs = x->lane->stats.iocbs;
		pthread_mutex_unlock(&x->lock);
		if (news && x->o.wake)
			x->o.wake(x->o.wake_arg);
		if (!any && !busy)
			tn_futex_wait(&x->wakes, wakes, due);
		else if (!any || __atomic_load_n(&x->visitors, __ATOMIC_RELAXED))
			x->drive[0].o.port->pause(x->drive[0].o.port->arg);
	}
	return NULL;
}

/* ---- the executor -------------------------------------------------------------------------------------------------------- */

static int nvme_make_bounces(struct tn_executor *ex, uint32_t padded_bytes)
{
	struct executor *x = (struct executor *)ex;
	int err;

	enter(x);
	err = tn_lane_make_bounces(x->lane, padded_bytes);
	leave(x);
	return err;
}

static bool nvme_step(struct tn_executor *ex)
{
	struct executor *x = (struct executor *)ex;

	if (!x->o.thread)
		return turn(x);
	if (x->o.observe)
		tn_seen_tell(&x->seen, x->o.observe, x->o.observe_arg);
	return false; /* what it is told asks for nothing else */
}

static uint64_t nvme_due(struct tn_executor *ex, uint64_t now_ns)
{
	const struct executor *x = (const struct executor *)ex;

	if (x->o.thread)
		return TN_FOREVER;
	return is_busy(x) ? now_ns : tn_lane_due(x->lane, now_ns);
}

static void nvme_stats(struct tn_executor *ex, struct tn_executor_stats *stats)
{
	struct executor *x = (struct executor *)ex;

	tn_lane_stats(x->lane, stats);
	stats->unobserved = x->o.thread ? tn_seen_lost(&x->seen) : 0;
}

static void nvme_destroy(struct tn_executor *ex)
{
	struct executor *x = (struct executor *)ex;
	const struct tn_alloc *a = x->o.alloc;

	tn_ring_attach(x->o.ring, NULL, NULL);
	__atomic_store_n(&x->stop, true, __ATOMIC_RELEASE);
	if (x->started) {
		kick(x);
		pthread_join(x->thread, NULL);
	}
	tn_lane_destroy(x->lane);
	for (uint32_t i = 0; x->drive && i < x->o.ndrives; i++) {
		struct drive *d = &x->drive[i];

		tn_nvme_memories_unmap_all(&d->memories);
		if (d->command)
			tn_put(a, d->command, tn_array_bytes(d->pair.nslots, sizeof(*d->command)));
		tn_nvme_pair_fini(&d->pair);
	}
	tn_lane_intake_fini(&x->intake, a);
	tn_seen_fini(&x->seen);
	pthread_mutex_destroy(&x->lock);
	tn_put(a, x->transfer, tn_array_bytes(x->o.depth, sizeof(*x->transfer)));
	tn_put(a, x->drive, tn_array_bytes(x->o.ndrives, sizeof(*x->drive)));
	tn_put(a, x, sizeof(*x));
}

static const struct tn_executor_ops nvme_ops = {
	.size = sizeof(struct tn_executor_ops),
	.abi = TN_EXECUTOR_ABI,
	.name = "nvme",
	.make_bounces = nvme_make_bounces,
	.step = nvme_step,
	.due = nvme_due,
	.stats = nvme_stats,
	.destroy = nvme_destroy,
};

void tn_executor_nvme_pair_stats(const struct tn_executor *ex, uint32_t device, struct tn_nvme_pair_stats *stats)
{
	*stats = ((const struct executor *)ex)->drive[device].pair.stats;
}

static int make_drive(struct executor *x, struct drive *d, const struct tn_ring_drive *o)
{
	const struct tn_nvme_info *info = tn_nvme_info(o->nvme);
	const struct tn_nvme_pair_opts po = {.nvme = o->nvme, .port = o->port, .queue = o->queue, .command_ns = x->o.command_ns,
					     .alloc = x->o.alloc, .clock = x->o.clock, .log = x->o.log, .ended = ended, .arg = d};
	int err = tn_nvme_pair_init(&d->pair, &po);

	if (err)
		return err;
	d->x = x;
	d->o = *o;
	d->memories.nvme = o->nvme;
	d->block_shift = (uint32_t)__builtin_ctz(info->block_bytes);
	d->most = info->transfer_bytes < MOST_BYTES ? info->transfer_bytes : MOST_BYTES;
	tn_list_init(&d->line);
	d->command = tn_get(x->o.alloc, tn_array_bytes(d->pair.nslots, sizeof(*d->command)));
	if (!d->command)
		return tn_fail(-ENOMEM, "executor: no memory for %u commands", d->pair.nslots);
	/* Base 4.1.2: SGLs name dwords; 4.1.1: PRPs name pages */
	return tn_lane_device_add(x->lane, d->pair.sgl ? 4 : TN_NVME_PAGE);
}

static int start_thread(struct executor *x)
{
	int rc = tn_thread_start(&x->thread, thread_main, x);

	if (rc)
		return tn_fail(-rc, "cannot start an executor's thread: %s", strerror(rc));
	x->started = true;
	tn_ring_attach(x->o.ring, kick, x);
	return 0;
}

static int set_up(struct executor *x)
{
	const struct tn_executor_nvme_opts *o = &x->o;
	struct tn_lane_opts lo = {.intake = &x->intake, .transport = &x->transport, .depth = o->depth, .backlog = UINT32_MAX, .alloc = o->alloc,
				  .clock = o->clock, .exec = o->thread ? NULL : o->exec, .observe = o->observe, .observe_arg = o->observe_arg};
	int err;

	x->transfer = tn_get(o->alloc, tn_array_bytes(o->depth, sizeof(*x->transfer)));
	x->drive = tn_get(o->alloc, tn_array_bytes(o->ndrives, sizeof(*x->drive)));
	if (!x->transfer || !x->drive)
		return tn_fail(-ENOMEM, "executor: no memory");
	if (o->thread && o->observe) {
		lo.observe = observed;
		lo.observe_arg = x;
	}
	err = o->thread ? tn_seen_init(&x->seen, o->alloc) : 0;
	if (!err)
		err = tn_lane_intake_init(&x->intake, o->ring, o->alloc);
	if (!err)
		err = tn_lane_create(&lo, &x->lane);
	for (uint32_t i = 0; i < o->ndrives && !err; i++)
		err = make_drive(x, &x->drive[i], &o->drives[i]);
	if (!err && o->thread)
		err = start_thread(x);
	return err;
}

int tn_executor_nvme_create(const struct tn_executor_nvme_opts *o, struct tn_executor **out)
{
	struct executor *x;
	int err;

	if (o->depth == 0 || o->ndrives == 0)
		return tn_fail(-EINVAL, "executor: depth %u, %u drives", o->depth, o->ndrives);
	x = tn_get(o->alloc, sizeof(*x));
	if (!x)
		return tn_fail(-ENOMEM, "executor: no memory");
	x->ex.ops = &nvme_ops;
	x->o = *o;
	x->transport = (struct tn_lane_transport){.send = send, .map = map_bounces, .unmap = unmap_bounces};
	tn_list_init(&x->over);
	pthread_mutex_init(&x->lock, NULL);
	err = set_up(x);
	if (err) {
		struct tn_error cause = *tn_error_last();

		nvme_destroy(&x->ex);
		return tn_fail_at(cause.where, "", err, "%s", cause.text);
	}
	*out = &x->ex;
	return 0;
}
