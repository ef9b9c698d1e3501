/* SPDX-License-Identifier: Apache-2.0 */
#include "executor_rig.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/error.h"

#define POOL_PAGES (2 * RIG_BLOCKS * RIG_PAGES)

static unsigned char byte_of(uint32_t block, uint32_t layer, uint32_t i)
{
	return (unsigned char)(block * 31 + layer * 7 + i * 13 + i / 251 + 1);
}

uint64_t rig_disk(const struct rig *r, uint32_t block, uint32_t layer)
{
	uint64_t slot = block * 5 % RIG_BLOCKS; /* 5 and RIG_BLOCKS have no common factor */

	return 1 + (slot * RIG_LAYERS + layer) * (r->shape.padded_bytes / 4096);
}

static uint64_t disk_pages(const struct rig *r)
{
	return RIG_BLOCKS * RIG_LAYERS * (r->shape.padded_bytes / 4096);
}

static void to_disk(struct rig *r, const void *from, size_t bytes, uint64_t offset)
{
	int fd = r->nvme ? -1 : open(r->path, O_RDWR | O_CREAT, 0600);

	if (r->nvme) {
		memcpy(rig_nvme_bytes(&r->drive) + offset, from, bytes);
		return;
	}
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, from, bytes, (off_t)offset), bytes);
	close(fd);
}

static void write_objects(struct rig *r)
{
	unsigned char *object = calloc(1, r->shape.padded_bytes);

	for (uint32_t b = 0; b < r->o.blocks; b++) {
		for (uint32_t l = 0; l < RIG_LAYERS; l++) {
			for (uint32_t i = 0; i < r->shape.padded_bytes; i++)
				object[i] = i < r->shape.object_bytes ? byte_of(b, l, i) : 0xee;
			r->checks[b * RIG_LAYERS + l] = tn_checksum(object, r->shape.object_bytes);
			to_disk(r, object, r->shape.padded_bytes, rig_disk(r, b, l) * 4096);
		}
	}
	free(object);
}

static void make_pool(struct rig *r)
{
	const struct tn_pool_shape shape = {.order = TN_POOL_PLANE_REGION, .npages = POOL_PAGES};
	struct tn_memory_range range[2 * RIG_LAYERS];
	uint64_t bytes, each, base[2 * RIG_LAYERS];
	struct tn_pool_layout layout;
	uint32_t regions;

	assert_int_equal(tn_layout_regions(&r->geometry, &shape, &regions, &bytes), 0);
	each = bytes + 4096; /* a guard behind every region */
	r->pool_bytes = regions * each + 8192;
	if (r->o.flat)
		r->pool_bytes = (size_t)RIG_BLOCKS * r->shape.slot_bytes + 8192;
	assert_int_equal(posix_memalign((void **)&r->pool, 4096, r->pool_bytes), 0);
	for (uint32_t i = 0; i < regions; i++)
		range[i] = (struct tn_memory_range){.address = r->pool + r->o.shift + i * each, .bytes = bytes};
	r->table = calloc(2 * RIG_LAYERS, sizeof(*r->table));
	assert_int_equal(tn_layout_fill(&r->geometry, &shape, NULL, base, &layout), 0);
	tn_mapping_init(&r->pool_memory, r->pool_range, range, regions);
	assert_int_equal(tn_layout_init(&r->geometry, &layout, &r->pool_memory, r->table, &r->layout), 0);
	if (r->o.flat) /* all of it, without guards between */
		tn_mapping_init(&r->pool_memory, r->pool_range, &(struct tn_memory_range){.address = r->pool, .bytes = r->pool_bytes}, 1);
	r->memories[RIG_POOL] = &r->pool_memory;
	for (uint32_t i = 0; i < RIG_BLOCKS * RIG_PAGES; i++)
		r->pages[i] = (i * 7 + 3) % POOL_PAGES; /* scattered; 7 and POOL_PAGES have no common factor */
	for (uint32_t b = 0; b < RIG_BLOCKS; b++)
		r->flat[b] = b * r->shape.slot_bytes;
	rig_wipe(r);
}

void rig_wipe(struct rig *r)
{
	memset(r->pool, RIG_GUARD, r->pool_bytes);
	memset(r->status, 0x7f, sizeof(r->status));
}

static void make_slots(struct rig *r)
{
	assert_int_equal(posix_memalign((void **)&r->slots, 4096, RIG_BLOCKS * r->shape.slot_bytes), 0);
	memset(r->slots, RIG_GUARD, RIG_BLOCKS * r->shape.slot_bytes);
	for (uint32_t b = 0; b < RIG_BLOCKS; b++)
		r->slot[b] = b * r->shape.slot_bytes;
	tn_mapping_init(&r->slots_memory, &r->slots_range,
			&(struct tn_memory_range){.address = r->slots, .bytes = RIG_BLOCKS * r->shape.slot_bytes}, 1);
	r->memories[RIG_SLOT_MEMORY] = &r->slots_memory;
	r->slot_list = (struct tn_ring_list){.shape = &r->shape, .blocks = RIG_BLOCKS, .align = 4096, .checks = r->checks,
					     .memory = RIG_SLOT_MEMORY, .flat = r->slot};
}

static void shape_of(struct rig *r)
{
	r->geometry = (struct tn_geometry){.layers = RIG_LAYERS, .page_tokens = 16, .pages_per_block = RIG_PAGES, .nplanes = 2};
	for (uint32_t p = 0; p < 2; p++)
		r->geometry.planes[p] = (struct tn_plane){.kind = p, .heads = 1, .head_dim = r->o.page_bytes / 16, .elem_bits = 8};
	r->shape.layers = RIG_LAYERS;
	r->shape.object_bytes = tn_geometry_object_bytes(&r->geometry);
	r->shape.padded_bytes = (r->shape.object_bytes + 4095) / 4096 * 4096;
	r->shape.object_iovs = 2 * RIG_PAGES;
	r->shape.slot_bytes = (uint64_t)RIG_LAYERS * r->shape.padded_bytes;
}

int rig_engine(void *arg, struct tn_io **out)
{
	struct rig *r = arg;
	static const struct tn_fault late[] = {
		{.kind = TN_FAULT_LATE, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 20, .delay_ns = 300000}};
	struct tn_ioengine_opts eo = {.depth = 64, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
	struct tn_io_faulty_opts fo = {.faults = r->o.faults, .fault_count = r->o.nfaults, .seed = tn_test_seed(),
				       .clock = &tn_clock_system};
	struct tn_io *inner;
	int err = tn_ioengine_create(&eo, &inner);

	if (err)
		return err;
	if (r->o.unruly) {
		fo.reorder = true;
		fo.submit_eagain_percent = 10;
		if (!fo.fault_count) {
			fo.faults = late;
			fo.fault_count = 1;
		}
	}
	return tn_io_faulty_create(inner, &fo, out);
}

static void observe(void *arg, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status)
{
	struct rig *r = arg;

	assert_int_equal(device, 0);
	r->observed++;
	r->observed_writes += op == TN_IO_WRITE;
	r->observed_errors += status != 0;
}

int rig_create(struct rig *r, const struct tn_alloc *alloc)
{
	const struct tn_executor_drives drives = {.drive = &r->drive.drive, .command_ns = r->drive.o.command_ns};
	const struct tn_executor_files files = {.io = r->io, .file = &r->file, .engine = rig_engine, .engine_arg = r};
	const struct tn_executor_opts o = {.ring = r->ring, .ndevices = 1, .depth = r->o.depth, .threads = r->nvme ? r->drive.o.thread : r->o.threads,
					   .alloc = alloc, .clock = &tn_clock_system, .exec = r->o.exec ? &r->exec.exec : NULL,
					   .observe = observe, .observe_arg = r};

	return r->nvme ? tn_executor_nvme_create(&o, &drives, &r->ex) : tn_executor_files_create(&o, &files, &r->ex);
}

static void attach(struct rig *r)
{
	tn_exec_inline_init(&r->exec);
	assert_int_equal(rig_create(r, &tn_alloc_system), 0);
	assert_int_equal(tn_executor_map(r->ex, r->pool, r->pool_bytes / 4096 * 4096), 0);
	assert_int_equal(tn_executor_make_bounces(r->ex, r->shape.padded_bytes), 0);
}

static void open_file(struct rig *r)
{
	assert_int_equal(rig_engine(r, &r->io), 0);
	assert_int_equal(tn_io_open(r->io, r->path, TN_IO_CREATE, &r->file), 0);
}

static void open_nvme(struct rig *r)
{
	struct rig_nvme_opts o;

	rig_nvme_opts_init(&o);
	o.thread = rig_drives == RIG_NVME_THREAD;
	o.file_bytes = (2 + disk_pages(r)) * 4096;
	if (r->o.unruly && !o.thread) { /* with a thread it breaks nothing */
		o.soft.chances = (struct tn_soft_chances){.error = 3000, .lost = 300, .twice = 3000, .late = 6000};
		o.command_ns = 20000000;
	}
	rig_nvme_up(&r->drive, &o);
	r->io = r->drive.io;
	r->file = r->drive.file;
	r->nvme = true;
}

enum rig_drives rig_drives;

struct rig *rig_make(struct rig_opts o)
{
	const char *tmp = getenv("TMPDIR");
	struct rig *r = calloc(1, sizeof(*r));
	struct tn_ring_opts ro = tn_ring_opts_default();
	static uint32_t nth;

	r->o = o;
	if (!r->o.depth)
		r->o.depth = 32;
	if (!r->o.blocks)
		r->o.blocks = RIG_BLOCKS;
	tn_rng_seed(&r->rng, tn_test_seed() + nth);
	snprintf(r->path, sizeof(r->path), "%s/tenuto-ring-%d-%u", tmp && *tmp ? tmp : "/var/tmp", (int)getpid(), nth++);
	shape_of(r);
	if (rig_drives == RIG_FILES)
		open_file(r);
	else
		open_nvme(r);
	write_objects(r);
	make_pool(r);
	make_slots(r);
	r->list = (struct tn_ring_list){.shape = &r->shape, .blocks = RIG_BLOCKS, .memory = RIG_POOL, .align = 1, .checks = r->checks};
	if (o.flat) {
		r->list.flat = r->flat;
	} else {
		r->list.layout = &r->layout;
		r->list.pages = r->pages;
		r->list.end_page = RIG_BLOCKS * RIG_PAGES;
	}
	ro.memory.depth = 16;
	ro.memory.ioctxs = RIG_BLOCKS * RIG_LAYERS;
	ro.mappings = r->memories;
	ro.nmappings = RIG_MEMORIES;
	assert_int_equal(tn_ring_create(&ro, &tn_alloc_system, &r->ring), 0);
	assert_int_equal(tn_ring_list_set(r->ring, 1, &r->list), 0);
	assert_int_equal(tn_ring_list_set(r->ring, RIG_SLOTS, &r->slot_list), 0);
	attach(r);
	return r;
}

void rig_free(struct rig *r)
{
	tn_executor_destroy(r->ex);
	if (r->nvme) {
		rig_nvme_down(&r->drive);
	} else {
		tn_io_unlink(r->io, r->path);
		tn_io_destroy(r->io);
	}
	tn_ring_destroy(r->ring);
	free(r->slots);
	free(r->pool);
	free(r->table);
	free(r);
}

uint32_t rig_iocb(struct rig *r, uint32_t from, uint32_t to, uint32_t layer, uint32_t flags)
{
	uint32_t layers = layer == RIG_LAYERS ? RIG_LAYERS : 1, n = (to - from) * layers, id;
	struct tn_ioctx *ctx;

	assert_int_equal(tn_ring_get_iocb(r->ring, n, NULL, &id), 0);
	ctx = tn_ring_ioctx(r->ring, id);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t b = from + i / layers, l = layers > 1 ? i % layers : layer;

		ctx[i] = (struct tn_ioctx){tn_ioctx_disk(0, rig_disk(r, b, l)), r->shape.object_bytes, b * RIG_LAYERS + l};
	}
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = tn_rng_below(&r->rng, i);
		struct tn_ioctx x = ctx[j];

		ctx[j] = ctx[i - 1];
		ctx[i - 1] = x;
	}
	tn_ring_iocb(r->ring, id)->list = 1;
	tn_ring_iocb(r->ring, id)->flags = (uint16_t)flags;
	return id;
}

void rig_turn_into(struct rig *r, uint32_t id, uint16_t op, bool to_slots)
{
	struct tn_iocb *cb = tn_ring_iocb(r->ring, id);

	cb->op = op;
	if (op != TN_IOCB_COPY)
		return;
	cb->list = to_slots ? RIG_SLOTS : 1;
	cb->source = to_slots ? 1 : RIG_SLOTS;
	for (uint32_t i = 0; i < cb->count; i++)
		tn_ring_ioctx(r->ring, id)[i].place = tn_ring_ioctx(r->ring, id)[i].entry;
}

void rig_issue(struct rig *r, uint32_t id)
{
	assert_int_equal(tn_ring_issue(r->ring, &id, 1), 0);
}

void rig_step(struct rig *r)
{
	struct tn_io_req *done[32];
	unsigned n;

	tn_executor_step(r->ex);
	if (r->nvme)
		rig_nvme_step(&r->drive);
	n = tn_io_poll(r->io, done, 32, r->nvme || r->o.threads || r->exec.first ? 0 : 200000);
	for (unsigned i = 0; i < n; i++)
		done[i]->done(done[i]);
	tn_exec_collect(&r->exec.exec);
	tn_executor_step(r->ex);
}

bool rig_finished(struct rig *r, uint32_t id)
{
	struct tn_ring_completion c;

	while (tn_ring_poll(r->ring, &c, 1))
		;
	return tn_ring_result(r->ring, id, &c) == 0;
}

struct tn_ring_completion rig_await(struct rig *r, uint32_t id)
{
	uint64_t give_up = tn_now_ns(&tn_clock_system) + 60 * SECOND_NS;
	struct tn_ring_completion c;

	const int32_t *statuses;

	while (!rig_finished(r, id)) {
		assert_true(tn_now_ns(&tn_clock_system) < give_up);
		rig_step(r);
		if (r->o.threads)
			sched_yield();
	}
	rig_step(r);
	assert_int_equal(tn_ring_result(r->ring, id, &c), 0);
	statuses = tn_ring_statuses(r->ring, id);
	assert_non_null(statuses);
	for (uint32_t i = 0; i < tn_ring_iocb(r->ring, id)->count && i < RIG_BLOCKS * RIG_LAYERS; i++) {
		uint32_t entry = tn_ring_ioctx(r->ring, id)[i].entry;

		if (entry >= RIG_BLOCKS * RIG_LAYERS)
			continue;
		r->status[entry] = statuses[i];
		r->sums[entry] = tn_ring_sums(r->ring, id)[i];
	}
	assert_int_equal(tn_ring_put(r->ring, &id, 1), 0);
	return c;
}

static uint32_t place_of(struct rig *r, uint32_t block, uint32_t layer, struct iovec *iov)
{
	if (r->o.flat) {
		iov[0] = (struct iovec){r->pool + r->flat[block] + layer * r->shape.padded_bytes, r->shape.object_bytes};
		return 1;
	}
	return tn_layout_object_iov(&r->layout, &r->pool_memory, layer, r->pages + block * RIG_PAGES, iov);
}

static bool holds(const struct iovec *iov, uint32_t n, uint32_t block, uint32_t layer)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < n; i++)
		for (size_t k = 0; k < iov[i].iov_len; k++, at++)
			if (((unsigned char *)iov[i].iov_base)[k] != byte_of(block, layer, at))
				return false;
	return true;
}

bool rig_has(struct rig *r, uint32_t block, uint32_t layer)
{
	struct iovec iov[2 * RIG_PAGES];
	uint32_t n = place_of(r, block, layer, iov);

	return holds(iov, n, block, layer);
}

static struct iovec slot_of(struct rig *r, uint32_t block, uint32_t layer)
{
	return (struct iovec){r->slots + r->slot[block] + (size_t)layer * r->shape.padded_bytes, r->shape.object_bytes};
}

bool rig_slot_has(struct rig *r, uint32_t block, uint32_t layer)
{
	struct iovec iov = slot_of(r, block, layer);

	return holds(&iov, 1, block, layer);
}

static void put_objects(struct rig *r, bool slots)
{
	for (uint32_t b = 0; b < r->o.blocks; b++) {
		for (uint32_t l = 0; l < RIG_LAYERS; l++) {
			struct iovec iov[2 * RIG_PAGES];
			uint32_t n = slots ? 1 : place_of(r, b, l, iov), at = 0;

			if (slots)
				iov[0] = slot_of(r, b, l);
			for (uint32_t i = 0; i < n; i++)
				for (size_t k = 0; k < iov[i].iov_len; k++, at++)
					((unsigned char *)iov[i].iov_base)[k] = byte_of(b, l, at);
		}
	}
}

void rig_fill(struct rig *r)
{
	put_objects(r, false);
}

void rig_fill_slots(struct rig *r)
{
	put_objects(r, true);
}

/* The object on disk with its padding; to be freed. */
static unsigned char *from_disk(struct rig *r, uint64_t page, size_t bytes)
{
	unsigned char *object = malloc(bytes);
	int fd = r->nvme ? -1 : open(r->path, O_RDONLY);

	if (r->nvme) {
		memcpy(object, rig_nvme_bytes(&r->drive) + page * 4096, bytes);
		return object;
	}
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, object, bytes, (off_t)page * 4096), bytes);
	close(fd);
	return object;
}

bool rig_disk_has(struct rig *r, uint32_t block, uint32_t layer)
{
	unsigned char *object = from_disk(r, rig_disk(r, block, layer), r->shape.padded_bytes);
	struct iovec iov = {object, r->shape.object_bytes};
	bool has = holds(&iov, 1, block, layer);

	for (uint32_t i = r->shape.object_bytes; i < r->shape.padded_bytes && !r->o.flat; i++)
		has &= object[i] == 0;
	free(object);
	return has;
}

static bool is_guard(struct rig *r, uint64_t page, size_t bytes)
{
	unsigned char *object = from_disk(r, page, bytes);
	bool clean = true;

	for (size_t i = 0; i < bytes; i++)
		clean &= object[i] == RIG_GUARD;
	free(object);
	return clean;
}

bool rig_disk_clean(struct rig *r, uint32_t block, uint32_t layer)
{
	return is_guard(r, rig_disk(r, block, layer), r->shape.padded_bytes) && is_guard(r, 0, 4096) &&
	       is_guard(r, 1 + disk_pages(r), 4096);
}

void rig_wipe_disk(struct rig *r)
{
	size_t bytes = (2 + disk_pages(r)) * 4096;
	unsigned char *guards = malloc(bytes);

	memset(guards, RIG_GUARD, bytes);
	to_disk(r, guards, bytes, 0);
	free(guards);
}

bool rig_clean(struct rig *r, uint32_t block, uint32_t layer)
{
	struct iovec iov[2 * RIG_PAGES];
	uint32_t n = place_of(r, block, layer, iov);

	for (uint32_t i = 0; i < n; i++)
		for (size_t k = 0; k < iov[i].iov_len; k++)
			if (((unsigned char *)iov[i].iov_base)[k] != RIG_GUARD)
				return false;
	return true;
}

void rig_check_guards(struct rig *r)
{
	struct iovec iov[2 * RIG_PAGES];
	unsigned char *copy = malloc(r->pool_bytes);

	/* Everything but the objects' places, which are blanked out. */
	memcpy(copy, r->pool, r->pool_bytes);
	for (uint32_t b = 0; b < RIG_BLOCKS; b++) {
		for (uint32_t l = 0; l < RIG_LAYERS; l++) {
			uint32_t n = place_of(r, b, l, iov);

			if (r->o.flat)
				iov[0].iov_len = r->shape.padded_bytes; /* flat memory includes the padding */
			for (uint32_t i = 0; i < n; i++)
				memset(copy + ((unsigned char *)iov[i].iov_base - r->pool), RIG_GUARD, iov[i].iov_len);
		}
	}
	for (size_t i = 0; i < r->pool_bytes; i++)
		assert_int_equal(copy[i], RIG_GUARD);
	free(copy);
}
