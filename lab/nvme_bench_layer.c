/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tn_layer_bench: what the executor on NVMe queues takes from an IOCB to commands in the queue and the doorbell rung, for one layer of a prefix of 64K
 * tokens: objects of 16 pages in two planes, which lie apart in memory, and in slots that lie apart on the drive.
 *
 * Of a drive that answers at once the executor keeps few bytes under way (ring/window.h), and a layer goes in many parts. So the clock goes ahead while the
 * controller moves bytes, as on a drive with a long way to its bytes. All steps until the last command is in the queue count, however many they are.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "lab/nvme_bench.h"
#include "lab/nvme_bench_drive.h"
#include "nvme/engine.h"
#include "ring/nvme.h"

#define LAYERS 4u
#define LAYER 1u /* that is moved */
#define PLANES 2u
#define PAGE_BYTES 4096u
#define PAGES_PER_BLOCK (TN_LAYER_BENCH_PAGES / PLANES)
#define PAGES (TN_LAYER_BENCH_OBJECTS * PAGES_PER_BLOCK)
#define OBJECT_BYTES (TN_LAYER_BENCH_PAGES * PAGE_BYTES)
#define SLOT_PAGES (LAYERS * TN_LAYER_BENCH_PAGES)
#define BYTES ((uint64_t)TN_LAYER_BENCH_OBJECTS * LAYERS * OBJECT_BYTES)
#define ENTRIES 512u
#define WAY_NS 10000000u /* the drive's latency */
#define WARM_UP 16u	 /* layers until the executor knows the drive */
#define PATIENCE_NS 10000000000ull

struct tn_layer_bench {
	struct tn_bench_drive drive;
	struct tn_clock clock;
	uint64_t ahead_ns;
	struct tn_io *io;
	uint32_t file;
	struct tn_ring *ring;
	struct tn_executor *ex;
	struct tn_shape shape;
	struct tn_layout layout;
	struct tn_ring_list list;
	unsigned char *memory;
	uint64_t base[LAYERS * PLANES];
	uint64_t table[LAYERS * PLANES];
	struct tn_mapping mapping;
	struct tn_mapped_range range;
	const struct tn_mapping *memories[1];
	uint32_t pages[PAGES];
};

static uint64_t now_of(void *arg)
{
	return tn_now_ns(&tn_clock_system) + ((const struct tn_layer_bench *)arg)->ahead_ns;
}

/* An IOCB of the layer's objects. */
static int fill_iocb(struct tn_layer_bench *b, bool write, uint32_t *id)
{
	struct tn_ioctx *x;
	int rc = tn_ring_get_iocb(b->ring, TN_LAYER_BENCH_OBJECTS, NULL, id);

	if (rc)
		return rc;
	x = tn_ring_ioctx(b->ring, *id);
	for (uint32_t i = 0; i < TN_LAYER_BENCH_OBJECTS; i++) {
		uint64_t slot = (i * 77 + 5) % TN_LAYER_BENCH_OBJECTS; /* 77 is odd */

		x[i] = (struct tn_ioctx){tn_ioctx_disk(0, slot * SLOT_PAGES + LAYER * TN_LAYER_BENCH_PAGES), OBJECT_BYTES, i * LAYERS + LAYER};
	}
	tn_ring_iocb(b->ring, *id)->op = write ? TN_IOCB_WRITE : TN_IOCB_READ;
	tn_ring_iocb(b->ring, *id)->list = 1;
	return 0;
}

/* The controller does what it was told of; that takes it a while. */
static void serve(struct tn_layer_bench *b)
{
	b->ahead_ns += WAY_NS;
	while (tn_soft_step(b->drive.soft))
		;
}

static struct tn_nvme_pair_stats stats_of(const struct tn_layer_bench *b)
{
	struct tn_nvme_pair_stats stats;

	tn_executor_nvme_pair_stats(b->ex, 0, &stats);
	return stats;
}

/* Steps until all of the IOCB's commands are in the queue. */
static void submit(struct tn_layer_bench *b, uint32_t id, struct tn_layer_bench_figures *f)
{
	const struct tn_nvme_pair_stats before = stats_of(b);
	uint64_t took = 0;

	for (f->steps = 0; f->steps == 0 || (f->commands < TN_LAYER_BENCH_OBJECTS && f->steps < 1000); f->steps++) {
		uint64_t start;

		if (f->steps)
			serve(b);
		start = tn_now_ns(&tn_clock_system);
		if (f->steps == 0)
			tn_ring_issue(b->ring, &id, 1);
		tn_executor_step(b->ex);
		took += tn_now_ns(&tn_clock_system) - start;
		f->commands = (uint32_t)(stats_of(b).commands - before.commands);
	}
	f->us = (double)took / 1e3;
	f->bells = (uint32_t)(stats_of(b).bells - before.bells);
}

/* The controller moves what is in the queue, on its own thread, as a drive would: not through this CPU's cache. */
static int await(struct tn_layer_bench *b, struct tn_ring_completion *done)
{
	uint64_t until = tn_now_ns(&tn_clock_system) + PATIENCE_NS;
	int rc = tn_soft_start(b->drive.soft);

	b->ahead_ns += WAY_NS;
	while (rc == 0 && tn_ring_poll(b->ring, done, 1) == 0) {
		if (!tn_executor_step(b->ex))
			b->drive.port->pause(b->drive.port->arg);
		if (tn_now_ns(&tn_clock_system) > until)
			rc = tn_fail(-ETIMEDOUT, "a layer was not moved");
	}
	tn_soft_stop(b->drive.soft);
	return rc;
}

int tn_layer_bench_run(struct tn_layer_bench *b, bool write, struct tn_layer_bench_figures *f)
{
	struct tn_ring_completion done;
	uint32_t id;
	int rc = fill_iocb(b, write, &id);

	if (rc)
		return rc;
	submit(b, id, f);
	rc = await(b, &done);
	if (rc == 0 && done.status)
		rc = tn_fail(-EIO, "a layer was not moved: %d", done.status);
	rc = rc ? rc : tn_ring_put(b->ring, &id, 1);
	return rc ? rc : tn_bench_drive_check(&b->drive);
}

static int make_layout(struct tn_layer_bench *b)
{
	const struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = PAGES};
	const struct tn_memory_range range = {b->memory, BYTES};
	struct tn_geometry g = {.layers = LAYERS, .page_tokens = 16, .pages_per_block = PAGES_PER_BLOCK, .nplanes = PLANES};
	struct tn_pool_layout pool;
	int rc;

	for (uint32_t p = 0; p < PLANES; p++)
		g.planes[p] = (struct tn_plane){.kind = p ? TN_PLANE_V : TN_PLANE_K, .heads = 1, .head_dim = 128, .elem_bits = 16};
	rc = tn_layout_fill(&g, &shape, NULL, b->base, &pool);
	tn_mapping_init(&b->mapping, &b->range, &range, 1);
	rc = rc ? rc : tn_layout_init(&g, &pool, &b->mapping, b->table, &b->layout);
	for (uint32_t i = 0; i < PAGES; i++)
		b->pages[i] = (i * 1657u + 11u) % PAGES; /* 1657 is odd */
	b->shape = (struct tn_shape){.layers = LAYERS, .object_bytes = OBJECT_BYTES, .padded_bytes = OBJECT_BYTES,
				     .object_iovs = TN_LAYER_BENCH_PAGES, .slot_bytes = LAYERS * OBJECT_BYTES};
	b->list = (struct tn_ring_list){.shape = &b->shape, .blocks = TN_LAYER_BENCH_OBJECTS, .layout = &b->layout, .pages = b->pages,
					.end_page = PAGES, .align = rc ? 1 : tn_layout_align(&b->layout, &b->mapping)};
	return rc;
}

static int make_executor(struct tn_layer_bench *b)
{
	struct tn_nvme_engine_opts eo = {.nvme = b->drive.nvme, .port = b->drive.port, .alloc = &tn_alloc_system, .clock = &b->clock};
	struct tn_ring_drive drive = {.nvme = b->drive.nvme, .port = b->drive.port, .queue = 1};
	struct tn_executor_opts o = {.ndevices = 1, .depth = TN_LAYER_BENCH_OBJECTS, .alloc = &tn_alloc_system, .clock = &b->clock};
	struct tn_ring_opts ro = tn_ring_opts_default();
	int rc = tn_nvme_engine_create(&eo, &b->io);

	b->memories[0] = &b->mapping;
	ro.mappings = b->memories;
	ro.nmappings = 1;
	rc = rc ? rc : tn_io_open(b->io, "store", TN_IO_CREATE, &b->file);
	rc = rc ? rc : tn_io_allocate(b->io, b->file, 0, BYTES);
	rc = rc ? rc : tn_ring_create(&ro, &tn_alloc_system, &b->ring);
	rc = rc ? rc : tn_ring_list_set(b->ring, 1, &b->list);
	if (rc)
		return rc;
	tn_nvme_engine_range(b->io, &drive.first, &drive.blocks);
	o.ring = b->ring;
	rc = tn_executor_nvme_create(&o, &(struct tn_executor_drives){.drive = &drive}, &b->ex);
	rc = rc ? rc : tn_executor_make_bounces(b->ex, OBJECT_BYTES);
	return rc ? rc : tn_executor_map(b->ex, b->memory, BYTES);
}

static int set_up(struct tn_layer_bench *b, bool sgl)
{
	const struct tn_bench_drive_opts o = {.bytes = BYTES + (1u << 20), .queues = 2, .entries = ENTRIES, .sgl = sgl};
	struct tn_layer_bench_figures f;
	int rc;

	b->clock = (struct tn_clock){.now_ns = now_of, .wall_ns = now_of, .arg = b};
	b->memory = tn_bench_memory(BYTES);
	if (!b->memory)
		return tn_fail(-ENOMEM, "no memory for a measurement");
	rc = make_layout(b);
	rc = rc ? rc : tn_bench_drive_up(&b->drive, &o);
	rc = rc ? rc : make_executor(b);
	for (uint32_t i = 0; i < WARM_UP && rc == 0; i++)
		rc = tn_layer_bench_run(b, i % 2, &f);
	return rc;
}

int tn_layer_bench_create(bool sgl, struct tn_layer_bench **out)
{
	struct tn_layer_bench *b = tn_get(&tn_alloc_system, sizeof(*b));
	int rc;

	if (!b)
		return tn_fail(-ENOMEM, "no memory for a measurement");
	rc = set_up(b, sgl);
	if (rc) {
		tn_layer_bench_destroy(b);
		return rc;
	}
	*out = b;
	return 0;
}

void tn_layer_bench_destroy(struct tn_layer_bench *b)
{
	if (!b)
		return;
	if (b->ex)
		tn_executor_destroy(b->ex);
	tn_ring_destroy(b->ring);
	tn_io_destroy(b->io);
	tn_bench_drive_down(&b->drive);
	tn_bench_memory_put(b->memory, BYTES);
	tn_put(&tn_alloc_system, b, sizeof(*b));
}
