/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine and the executor that drives queues, with SGLs and with PRPs alone: transfers of one block to more than MDTS at every dword of a page, in
 * pieces, and objects. The number of commands tells which of the two were used: PRPs cannot name pieces that do not meet at a page's boundary.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "guest_rig.h"
#include "ring/nvme.h"

#define HALF_BYTES (2u << 20) /* of the memory: written from, and read to */
#define PIECES 8u

struct lists {
	struct guest_drive *d;
	struct tn_io *io;
	uint32_t file;
	unsigned char *memory;
};

static uint64_t commands_of(struct tn_io *io)
{
	struct tn_nvme_engine_stats stats;

	tn_nvme_engine_stats(io, &stats);
	return stats.commands;
}

static bool up(struct lists *l, struct guest_drive *d, uint32_t queue)
{
	*l = (struct lists){.d = d, .memory = mmap(NULL, 2 * HALF_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
	must(l->memory != MAP_FAILED, "no memory");
	for (uint32_t i = 0; i < 2 * HALF_BYTES; i += 8) {
		uint64_t w = tn_rng_next(&guest.rng);

		memcpy(l->memory + i, &w, 8);
	}
	if (!guest_engine(d, queue, 0, 0, &l->io))
		return false;
	must(tn_io_open(l->io, "store", TN_IO_CREATE, &l->file) == 0, "no file");
	must(tn_io_allocate(l->io, l->file, 0, HALF_BYTES) == 0, "not allocated");
	return true;
}

static void down(struct lists *l)
{
	if (l->io)
		guest_engine_end(l->io);
	munmap(l->memory, 2 * HALF_BYTES);
}

/* ---- the engine --------------------------------------------------------------------------------------------------------- */

static bool move(struct lists *l, enum tn_io_op op, struct iovec *iov, uint32_t n, uint64_t commands)
{
	struct tn_io_req req = {.op = op, .file = l->file, .iov = iov, .iov_count = n}, *one = &req, *done;
	uint64_t before = commands_of(l->io);

	for (uint32_t i = 0; i < n; i++)
		req.length += (uint32_t)iov[i].iov_len;
	must(tn_io_submit(l->io, &one, 1) == 1 && tn_io_poll(l->io, &done, 1, 30 * GUEST_SECOND_NS) == 1, "no answer");
	must(req.status == 0, "op %d of %u bytes in %u pieces: %d", op, req.length, n, req.status);
	must(commands_of(l->io) - before == commands, "op %d of %u bytes in %u pieces: %u commands, not %u", op, req.length, n,
	     (unsigned)(commands_of(l->io) - before), (unsigned)commands);
	return true;
}

/* Written from this place of a page, and read to the one as far before its end; bytes beside them stay. */
static bool there_and_back(struct lists *l, uint32_t skip, uint32_t bytes, uint64_t commands)
{
	unsigned char *from = l->memory + TN_NVME_PAGE + skip, *to = l->memory + HALF_BYTES + 2 * TN_NVME_PAGE - skip;
	struct iovec out = {from, bytes}, in = {to, bytes};
	uint64_t stamp = tn_rng_next(&guest.rng);

	for (uint32_t i = 0; i < bytes; i += 512)
		memcpy(from + i, &stamp, 8);
	memset(to - 4, 0xee, bytes + 8);
	if (!move(l, TN_IO_WRITE, &out, 1, commands) || !move(l, TN_IO_READ, &in, 1, commands))
		return false;
	must(memcmp(from, to, bytes) == 0, "wrong bytes of %u at %u of a page", bytes, skip);
	must(to[-1] == 0xee && to[bytes] == 0xee, "bytes beside %u at %u of a page were touched", bytes, skip);
	return true;
}

/* One block, and some sizes up to beyond MDTS, which takes two commands. */
static bool every_alignment(struct lists *l)
{
	uint32_t block = l->d->info->block_bytes, most = l->d->info->transfer_bytes;

	for (uint32_t skip = 0; skip < TN_NVME_PAGE; skip += 4) {
		if (!there_and_back(l, skip, block, 1))
			return false;
		if (skip % 64 == 4 && (!there_and_back(l, skip, most / 2, 1) || !there_and_back(l, skip, most, 1) || !there_and_back(l, skip, most + block, 2)))
			return false;
	}
	return true;
}

/* Pieces of a block that do not meet: one SGL, or PRPs for each. */
static bool in_pieces(struct lists *l, bool prps)
{
	uint32_t block = l->d->info->block_bytes;

	for (uint32_t round = 0; round < 40; round++) {
		uint32_t n = 2 + tn_rng_below(&guest.rng, PIECES - 1);
		struct iovec out[PIECES], in[PIECES];

		for (uint32_t i = 0; i < n; i++) {
			out[i] = (struct iovec){l->memory + i * 3 * TN_NVME_PAGE + 4 * tn_rng_below(&guest.rng, 512), block};
			in[i] = (struct iovec){l->memory + HALF_BYTES + (n - i) * 3 * TN_NVME_PAGE + 4 * tn_rng_below(&guest.rng, 512), block};
			memset(out[i].iov_base, (int)(1 + (round * 7 + i) % 250), block);
			memset(in[i].iov_base, 0, block);
		}
		if (!move(l, TN_IO_WRITE, out, n, prps ? n : 1) || !move(l, TN_IO_READ, in, n, prps ? n : 1))
			return false;
		for (uint32_t i = 0; i < n; i++)
			must(memcmp(in[i].iov_base, out[i].iov_base, block) == 0, "wrong bytes in piece %u of %u", i, n);
	}
	return true;
}

bool guest_engine_lists(struct guest_drive *d, bool prps)
{
	struct tn_nvme_engine_stats before, after;
	struct lists l;
	bool ok;

	guest_prps(d, prps);
	ok = up(&l, d, 0);
	guest_prps(d, false);
	if (ok) {
		tn_nvme_engine_stats(l.io, &before);
		ok = tn_nvme_engine_map(l.io, l.memory, 2 * HALF_BYTES) == 0 && every_alignment(&l) && in_pieces(&l, prps);
		tn_nvme_engine_stats(l.io, &after);
	}
	down(&l);
	must(!ok || after.bounced == before.bounced, "%u commands by way of bounce buffers", (unsigned)(after.bounced - before.bounced));
	return ok;
}

/* ---- the executor --------------------------------------------------------------------------------------------------------- */

#define OBJECTS 32u
#define OBJECT_BYTES 14000u
#define PADDED_BYTES 16384u
#define STRIDE (4 * PADDED_BYTES)
#define ROUNDS 12u

struct side {
	struct tn_ring *ring;
	struct tn_executor *ex;
	uint64_t sums[OBJECTS];
	uint64_t flat[OBJECTS];
	struct tn_mapped_range range;
	struct tn_mapping memory;
	const struct tn_mapping *memories[1];
};

/* All objects, from or to memory that begins so far behind a page. */
static bool move_objects(struct lists *l, struct side *s, uint16_t op, unsigned char *memory, uint32_t skip)
{
	static const struct tn_shape shape = {
		.layers = 1, .object_iovs = 1, .object_bytes = OBJECT_BYTES, .padded_bytes = PADDED_BYTES, .slot_bytes = PADDED_BYTES};
	struct tn_ring_list list = {.shape = &shape, .blocks = OBJECTS, .flat = s->flat, .align = skip ? 4 : TN_NVME_PAGE, .checks = s->sums};
	uint64_t end = tn_now_ns(&tn_clock_system) + 30 * GUEST_SECOND_NS;
	struct tn_ring_completion done;
	uint32_t id;

	for (uint32_t i = 0; i < OBJECTS; i++)
		s->flat[i] = i * STRIDE + skip;
	tn_mapping_init(&s->memory, &s->range, &(struct tn_memory_range){.address = memory, .bytes = HALF_BYTES}, 1);
	s->memories[0] = &s->memory;
	must(tn_ring_list_set(s->ring, 1, &list) == 0 && tn_ring_get_iocb(s->ring, OBJECTS, NULL, &id) == 0, "no IOCB");
	for (uint32_t i = 0; i < OBJECTS; i++)
		tn_ring_ioctx(s->ring, id)[i] = (struct tn_ioctx){tn_ioctx_disk(0, i * (PADDED_BYTES / 4096)), OBJECT_BYTES, i};
	tn_ring_iocb(s->ring, id)->list = 1;
	tn_ring_iocb(s->ring, id)->op = op;
	tn_ring_iocb(s->ring, id)->flags = op == TN_IOCB_READ ? TN_IOCB_VERIFY : TN_IOCB_SUM;
	must(tn_ring_issue(s->ring, &id, 1) == 0, "not issued");
	while (tn_ring_poll(s->ring, &done, 1) == 0) {
		tn_executor_step(s->ex);
		must(tn_now_ns(&tn_clock_system) < end, "objects do not come back");
	}
	must(done.status == 0, "op %u of objects ended with %d", op, done.status);
	for (uint32_t i = 0; i < OBJECTS && op == TN_IOCB_WRITE; i++)
		s->sums[i] = tn_ring_sums(s->ring, id)[i];
	must(tn_ring_put(s->ring, &id, 1) == 0, "not put back");
	guest.bytes += OBJECTS * PADDED_BYTES;
	return true;
}

/* With SGLs from and to any dword without a copy, with PRPs from and to pages; else by way of bounce buffers. */
static bool objects_move(struct lists *l, struct side *s)
{
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t out = round % 3 ? 4 * tn_rng_below(&guest.rng, 1024) : 0, in = round % 2 ? 4 * tn_rng_below(&guest.rng, 1024) : 0;

		for (uint32_t i = 0; i < OBJECTS; i++) {
			memset(l->memory + i * STRIDE + out, (int)(1 + (round * 11 + i) % 250), OBJECT_BYTES);
			memset(l->memory + HALF_BYTES + i * STRIDE, 0, STRIDE);
		}
		if (!move_objects(l, s, TN_IOCB_WRITE, l->memory, out) || !move_objects(l, s, TN_IOCB_READ, l->memory + HALF_BYTES, in))
			return false;
		for (uint32_t i = 0; i < OBJECTS; i++)
			must(memcmp(l->memory + i * STRIDE + out, l->memory + HALF_BYTES + i * STRIDE + in, OBJECT_BYTES) == 0, "wrong bytes in object %u", i);
	}
	return true;
}

static bool side_up(struct lists *l, struct side *s)
{
	struct tn_ring_drive drive = {.nvme = l->d->nvme, .port = l->d->port, .queue = 1};
	struct tn_executor_drives drives = {.drive = &drive, .command_ns = 60 * GUEST_SECOND_NS};
	struct tn_executor_opts o = {.ndevices = 1, .depth = 16, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
	struct tn_ring_opts ro = tn_ring_opts_default();

	tn_nvme_engine_range(l->io, &drive.first, &drive.blocks);
	ro.mappings = s->memories;
	ro.nmappings = 1;
	must(tn_ring_create(&ro, &tn_alloc_system, &s->ring) == 0, "no ring");
	o.ring = s->ring;
	must(tn_executor_nvme_create(&o, &drives, &s->ex) == 0, "no executor");
	must(tn_executor_make_bounces(s->ex, PADDED_BYTES) == 0, "no bounce buffers");
	must(tn_executor_map(s->ex, l->memory, 2 * HALF_BYTES) == 0, "not mapped");
	return true;
}

bool guest_executor_lists(struct guest_drive *d, bool prps)
{
	struct tn_nvme_pair_stats stats = {0};
	struct side s = {0};
	struct lists l;
	bool ok;

	guest_prps(d, prps);
	ok = up(&l, d, 0) && side_up(&l, &s);
	guest_prps(d, false);
	ok = ok && objects_move(&l, &s);
	if (s.ex) {
		tn_executor_nvme_pair_stats(s.ex, 0, &stats);
		tn_executor_destroy(s.ex);
	}
	tn_ring_destroy(s.ring);
	down(&l);
	guest.commands += stats.commands;
	printf("# executor with %s: %llu commands\n", prps ? "PRPs" : "SGLs", (unsigned long long)stats.commands);
	/*
	 * An SGL names objects that lie side by side on the drive, wherever they lie in memory; PRPs one, because it does not fill its last page: 10 of the
	 * 24 times, when they lie at pages.
	 */
	must(!ok || (stats.commands >= 10 * OBJECTS) == prps, "%u commands", (unsigned)stats.commands);
	return ok;
}
