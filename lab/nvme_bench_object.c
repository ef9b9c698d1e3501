/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tn_object_bench: objects through the I/O engine, beside memcpy. The software controller moves bytes by memcpy, on a thread of its own; so what memcpy
 * of the same objects does on one thread, in the same order and between the same memories, is the limit.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "lab/nvme_bench.h"
#include "lab/nvme_bench_drive.h"
#include "nvme/engine.h"

#define DEPTH_MAX 256u
#define SLACK_BYTES (1u << 20) /* of the namespace, for the volume header */

struct tn_object_bench {
	struct tn_bench_drive drive;
	struct tn_io *io;
	uint32_t file, object_bytes, objects, depth;
	unsigned char *memory, *media; /* media: the file's bytes */
	uint64_t bytes;
	struct tn_io_req req[DEPTH_MAX];
	struct iovec iov[DEPTH_MAX];
};

/* Uses a request that is not in flight for the next object. */
static struct tn_io_req *next_request(struct tn_object_bench *b, struct tn_io_req *req, bool write, uint32_t object)
{
	struct iovec *iov = &b->iov[req - b->req];

	*iov = (struct iovec){b->memory + (uint64_t)object * b->object_bytes, b->object_bytes};
	*req = (struct tn_io_req){.op = write ? TN_IO_WRITE : TN_IO_READ, .file = b->file, .offset = (uint64_t)object * b->object_bytes,
				  .length = b->object_bytes, .iov = iov, .iov_count = 1};
	return req;
}

/* With depth under way, until all have ended. */
static int move_all(struct tn_object_bench *b, bool write)
{
	struct tn_io_req *batch[DEPTH_MAX];
	uint32_t begun = 0, ended = 0;
	int rc = 0;

	for (; begun < b->depth; begun++)
		batch[begun] = next_request(b, &b->req[begun], write, begun);
	tn_io_submit(b->io, batch, begun);
	while (ended < b->objects) {
		unsigned n = tn_io_poll(b->io, batch, b->depth, UINT64_MAX), again = 0;

		ended += n;
		for (unsigned i = 0; i < n; i++) {
			rc = rc ? rc : batch[i]->status;
			if (begun < b->objects)
				batch[again++] = next_request(b, batch[i], write, begun++);
		}
		tn_io_submit(b->io, batch, again);
	}
	return rc ? tn_fail(-EIO, "a request of the engine's ended with %d", rc) : 0;
}

static double copy_all(struct tn_object_bench *b, bool write)
{
	uint64_t start = tn_now_ns(&tn_clock_system);

	for (uint64_t at = 0; at < b->bytes; at += b->object_bytes)
		memcpy((write ? b->media : b->memory) + at, (write ? b->memory : b->media) + at, b->object_bytes);
	return (double)(tn_now_ns(&tn_clock_system) - start) / 1e9;
}

int tn_object_bench_run(struct tn_object_bench *b, bool write, bool memcpy_first, struct tn_object_bench_figures *f)
{
	uint64_t start;
	int rc;

	if (memcpy_first)
		f->memcpy_s = copy_all(b, write);
	rc = tn_soft_start(b->drive.soft);
	if (rc)
		return rc;
	start = tn_now_ns(&tn_clock_system);
	rc = move_all(b, write);
	f->engine_s = (double)(tn_now_ns(&tn_clock_system) - start) / 1e9;
	tn_soft_stop(b->drive.soft);
	if (!memcpy_first)
		f->memcpy_s = copy_all(b, write);
	return rc ? rc : tn_bench_drive_check(&b->drive);
}

static int open_file(struct tn_object_bench *b)
{
	const struct tn_nvme_engine_opts eo = {.nvme = b->drive.nvme, .port = b->drive.port, .depth = b->depth, .alloc = &tn_alloc_system,
					       .clock = &tn_clock_system};
	uint64_t first, blocks;
	int rc = tn_nvme_engine_create(&eo, &b->io);

	rc = rc ? rc : tn_io_open(b->io, "store", TN_IO_CREATE, &b->file);
	rc = rc ? rc : tn_io_allocate(b->io, b->file, 0, b->bytes);
	rc = rc ? rc : tn_io_map(b->io, b->memory, b->bytes);
	if (rc)
		return rc;
	tn_nvme_engine_range(b->io, &first, &blocks);
	b->media = b->drive.media + first * tn_nvme_info(b->drive.nvme)->block_bytes;
	return 0;
}

int tn_object_bench_create(bool sgl, uint32_t object_bytes, uint64_t total, uint32_t depth, struct tn_object_bench **out)
{
	const struct tn_bench_drive_opts o = {.bytes = total + SLACK_BYTES, .queues = 1, .entries = depth + 1, .sgl = sgl};
	struct tn_object_bench *b;
	int rc;

	if (depth == 0 || depth > DEPTH_MAX || object_bytes % 4096 || total % object_bytes || total / object_bytes < depth)
		return tn_fail(-EINVAL, "%llu bytes in objects of %u, %u under way: whole pages, whole objects, and at least that many",
			       (unsigned long long)total, object_bytes, depth);
	b = tn_get(&tn_alloc_system, sizeof(*b));
	if (!b)
		return tn_fail(-ENOMEM, "no memory for a measurement");
	b->object_bytes = object_bytes;
	b->objects = (uint32_t)(total / object_bytes);
	b->depth = depth;
	b->bytes = total;
	b->memory = tn_bench_memory(total);
	rc = b->memory ? tn_bench_drive_up(&b->drive, &o) : tn_fail(-ENOMEM, "no memory for %llu bytes", (unsigned long long)total);
	rc = rc ? rc : open_file(b);
	if (rc) {
		tn_object_bench_destroy(b);
		return rc;
	}
	*out = b;
	return 0;
}

void tn_object_bench_destroy(struct tn_object_bench *b)
{
	if (!b)
		return;
	tn_io_destroy(b->io);
	tn_bench_drive_down(&b->drive);
	tn_bench_memory_put(b->memory, b->bytes);
	tn_put(&tn_alloc_system, b, sizeof(*b));
}
