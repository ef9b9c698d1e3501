/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tn_pair_bench: what a command costs its driver: a look-up of its memory, the entry, a share of two doorbells, and its completion.
 *
 * Against a device that moves nothing, on the same thread, only the driver's time counts: the clock is read before and after the device's part of each
 * batch. Against the software controller, which has a thread of its own, all time counts, also that in which the driver has nothing to do.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "lab/nvme_bench.h"
#include "lab/nvme_bench_drive.h"
#include "nvme/memory.h"
#include "nvme/pair.h"

#define BYTES 4096u		  /* of a command */
#define NAMESPACE_BYTES (1u << 20) /* stays in a CPU's cache, so that the driver is measured and not memory */

/* The device that moves nothing: the controller's side of the pair. */
struct nothing {
	uint32_t head, tail, phase;
};

struct tn_pair_bench {
	struct tn_bench_drive drive;
	enum tn_nvme_bench_device device;
	struct nothing nothing;
	struct tn_nvme_pair pair;
	struct tn_nvme_memories memories;
	unsigned char *memory;
	uint64_t memory_bytes;
	uint64_t sent, ended, failed;
};

static void ended(void *arg, uint32_t index, int status)
{
	struct tn_pair_bench *b = arg;

	b->ended++;
	b->failed += status != 0;
}

/* Ends all that the doorbell told of, in the order of the queue. */
static void end_all(struct nothing *n, const struct tn_nvme_queue *q)
{
	struct tn_nvme_completion *cq = (struct tn_nvme_completion *)(uintptr_t)q->cq;
	uint32_t bell = tn_ring_load32(q->sq_bell);

	while (n->head != bell) {
		uint32_t *dword = (uint32_t *)(void *)&cq[n->tail], id = q->sq[n->head].id;

		n->head = n->head + 1 == q->entries ? 0 : n->head + 1;
		dword[0] = dword[1] = 0;
		dword[2] = n->head;
		tn_ring_store32(&dword[3], id | n->phase << 16);
		if (++n->tail == q->entries) {
			n->tail = 0;
			n->phase ^= 1;
		}
	}
}

static int send(struct tn_pair_bench *b, uint64_t now)
{
	uint64_t at = b->sent++ * BYTES;
	uint64_t block = at % NAMESPACE_BYTES / BYTES;
	struct tn_nvme_piece *piece = tn_nvme_pair_scratch(&b->pair);
	struct tn_nvme_command *c = tn_nvme_pair_command(&b->pair);

	*c = tn_nvme_transfer(TN_NVME_READ, 1, block, 1);
	if (tn_nvme_memories_find(&b->memories, (uintptr_t)b->memory + at % b->memory_bytes, BYTES, piece, 1) != 1 ||
	    tn_nvme_pair_pieces(&b->pair, c, piece, 1))
		return tn_fail(-EIO, "memory of a command is not mapped");
	tn_nvme_pair_send(&b->pair, block, BYTES, now);
	return 0;
}

int tn_pair_bench_run(struct tn_pair_bench *b, uint32_t commands, double *ns, uint64_t *bells)
{
	uint64_t begun = b->sent, bells_before = b->pair.stats.bells, others_ns = 0, start;
	int rc = b->device == TN_NVME_BENCH_NOTHING ? 0 : tn_soft_start(b->drive.soft);

	start = tn_now_ns(&tn_clock_system);
	while (rc == 0 && b->ended - begun < commands) {
		uint64_t now = tn_now_ns(&tn_clock_system);

		while (rc == 0 && b->sent - begun < commands && tn_nvme_pair_ready(&b->pair))
			rc = send(b, now);
		tn_nvme_pair_ring(&b->pair);
		if (b->device == TN_NVME_BENCH_NOTHING) {
			now = tn_now_ns(&tn_clock_system);
			end_all(&b->nothing, b->pair.queue);
			others_ns += tn_now_ns(&tn_clock_system) - now;
		}
		if (!tn_nvme_pair_poll(&b->pair))
			b->drive.port->pause(b->drive.port->arg);
	}
	*ns = (double)(tn_now_ns(&tn_clock_system) - start - others_ns) / commands;
	*bells = b->pair.stats.bells - bells_before;
	tn_soft_stop(b->drive.soft);
	if (rc == 0 && b->failed)
		rc = tn_fail(-EIO, "%llu commands failed", (unsigned long long)b->failed);
	return rc ? rc : tn_bench_drive_check(&b->drive);
}

static int set_up(struct tn_pair_bench *b, uint32_t depth)
{
	const struct tn_bench_drive_opts o = {.bytes = NAMESPACE_BYTES, .queues = 1, .entries = depth + 1, .sgl = true,
					      .checking = b->device == TN_NVME_BENCH_CHECKING};
	struct tn_nvme_pair_opts po = {.alloc = &tn_alloc_system, .clock = &tn_clock_system, .ended = ended, .arg = b};
	int rc = tn_bench_drive_up(&b->drive, &o);

	if (rc)
		return rc;
	po.nvme = b->memories.nvme = b->drive.nvme;
	po.port = b->drive.port;
	b->nothing.phase = 1;
	b->memory_bytes = 2ull * depth * BYTES; /* more than is under way */
	b->memory = tn_bench_memory(b->memory_bytes);
	if (!b->memory)
		return tn_fail(-ENOMEM, "no memory for a measurement");
	rc = tn_nvme_memories_map(&b->memories, b->memory, b->memory_bytes);
	return rc ? rc : tn_nvme_pair_init(&b->pair, &po);
}

int tn_pair_bench_create(enum tn_nvme_bench_device device, uint32_t depth, struct tn_pair_bench **out)
{
	struct tn_pair_bench *b = tn_get(&tn_alloc_system, sizeof(*b));
	int rc;

	if (!b)
		return tn_fail(-ENOMEM, "no memory for a measurement");
	b->device = device;
	rc = set_up(b, depth);
	if (rc) {
		tn_pair_bench_destroy(b);
		return rc;
	}
	*out = b;
	return 0;
}

void tn_pair_bench_destroy(struct tn_pair_bench *b)
{
	if (!b)
		return;
	tn_nvme_memories_unmap_all(&b->memories);
	tn_nvme_pair_fini(&b->pair);
	tn_bench_drive_down(&b->drive);
	tn_bench_memory_put(b->memory, b->memory_bytes);
	tn_put(&tn_alloc_system, b, sizeof(*b));
}
