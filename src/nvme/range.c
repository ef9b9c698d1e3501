/* SPDX-License-Identifier: Apache-2.0 */
/* The one file of a range: opened, made and forgotten through the volume header; and memory that its requests move without a copy. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "nvme/engine_internal.h"
#include "nvme/resident.h"

#define ENDS_BYTES (1u << 20) /* that are looked at, of either end of a range without a header */

_Static_assert(ENDS_BYTES >= TN_RESIDENT_ENDS, "who holds it is known by these bytes");

/* What was read of them: nothing but zeros; who left them there, if that is known. */
struct ends {
	bool zeros;
	const char *who;
};

/* ---- the header --------------------------------------------------------------------------------------------------- */

static int transfer(struct tn_nvme_engine *e, enum tn_io_op op, uint64_t offset, void *memory, uint32_t bytes)
{
	struct iovec iov = {memory, bytes};
	struct tn_io_req req = {.op = (uint8_t)op, .offset = offset, .length = bytes, .iov = &iov, .iov_count = 1};

	if (op == TN_IO_SYNC)
		req = (struct tn_io_req){.op = TN_IO_SYNC};
	return tn_nvme_wait_for(e, &req, TN_NVME_RAW);
}

static int not_ours(const struct tn_nvme_engine *e, const char *who)
{
	return tn_fail(-EUCLEAN, "%s: holds %s, from block %llu on: wipe it, or force it by its serial number %s", e->o.port->name,
		       who ? who : "something that is not Tenuto's", (unsigned long long)e->o.first, tn_nvme_info(e->o.nvme)->serial);
}

/*
 * Reads both ends of the range until something fails, or writes them as far as that can be done; *ends: what was read. buffer: TN_VOLUME_DATA bytes.
 */
static int at_ends(struct tn_nvme_engine *e, enum tn_io_op op, unsigned char *buffer, struct ends *ends)
{
	uint64_t all = e->o.blocks * e->block_bytes, some = all < ENDS_BYTES ? all : ENDS_BYTES;
	int rc = 0;

	for (uint64_t at = 0, n; (rc == 0 || op == TN_IO_WRITE) && at < 2 * some; at += n) {
		uint64_t left = (at < some ? some : 2 * some) - at, offset = at < some ? at : all - 2 * some + at;
		int one;

		n = left < TN_VOLUME_DATA ? left : TN_VOLUME_DATA;
		one = transfer(e, op, offset, buffer, (uint32_t)n);
		rc = rc ? rc : one;
		for (uint64_t i = 0; i < n && op == TN_IO_READ; i++)
			ends->zeros &= buffer[i] == 0;
		if (one == 0 && op == TN_IO_READ && !ends->who)
			ends->who = tn_resident(buffer, offset, n, all);
	}
	return rc;
}

/* Not called if it is forced. 0: the range holds nothing but zeros where a header, a file system, a partition table or a RAID's superblock would lie: at either end. */
static int check_empty(struct tn_nvme_engine *e)
{
	unsigned char *buffer = tn_get(e->o.alloc, TN_VOLUME_DATA);
	struct ends ends = {.zeros = true};
	int rc;

	if (!buffer)
		return tn_fail(-ENOMEM, "nvme: no memory");
	rc = at_ends(e, TN_IO_READ, buffer, &ends);
	tn_put(e->o.alloc, buffer, TN_VOLUME_DATA);
	if (rc)
		return tn_fail(rc, "%s: its ends cannot be read, so nobody knows what it holds: force it by its serial number %s", e->o.port->name,
			       tn_nvme_info(e->o.nvme)->serial);
	return ends.zeros ? 0 : not_ours(e, ends.who);
}

/* What was forced away is not found again: firmware and tools write a partition table back from the copy at the other end. Bad blocks do not keep a drive from use. */
static void wipe_ends(struct tn_nvme_engine *e)
{
	unsigned char *zeros = tn_get(e->o.alloc, TN_VOLUME_DATA);

	if (!zeros || at_ends(e, TN_IO_WRITE, zeros, NULL))
		tn_log(e->o.log, TN_LOG_WARN, "%s: not all of its ends could be wiped: what it held may be found there", e->o.port->name);
	tn_put(e->o.alloc, zeros, TN_VOLUME_DATA);
}

/* The first one of a range clears the place of the other one. */
static int write_copy(struct tn_nvme_engine *e, const struct tn_volume *v)
{
	unsigned char two[2 * TN_VOLUME_PAGE] __attribute__((aligned(64))) = {0};
	uint32_t at = tn_volume_place(v) * TN_VOLUME_PAGE;
	bool first = e->volume.sequence == 0;
	int rc;

	if (first && e->o.force)
		wipe_ends(e);
	tn_volume_encode(v, two + at);
	rc = first ? transfer(e, TN_IO_WRITE, 0, two, sizeof(two)) : transfer(e, TN_IO_WRITE, at, two + at, TN_VOLUME_PAGE);
	return rc ? rc : transfer(e, TN_IO_SYNC, 0, NULL, 0);
}

/* Both copies. If the second one fails, the next write goes to its place again: the first one may be the only whole one. */
static int write_header(struct tn_nvme_engine *e, bool exists, uint64_t size_bytes)
{
	struct tn_volume v = {.size_bytes = size_bytes, .exists = exists};

	for (int copy = 0; copy < 2; copy++) {
		int rc;

		v.sequence = e->volume.sequence + 1;
		rc = write_copy(e, &v);
		if (rc)
			return tn_fail(rc, "%s: cannot write the volume header", e->o.port->name);
		e->volume.sequence = v.sequence;
	}
	e->volume = v;
	return 0;
}

/* *found: there is a header, which is e->volume now. writes: and both copies say so. */
static int read_header(struct tn_nvme_engine *e, bool writes, bool *found)
{
	unsigned char two[2 * TN_VOLUME_PAGE] __attribute__((aligned(64)));
	bool same;
	int rc = transfer(e, TN_IO_READ, 0, two, sizeof(two));

	*found = false;
	e->volume = (struct tn_volume){0};
	if (rc && !e->o.force)
		return tn_fail(rc, "%s: cannot read the volume header", e->o.port->name);
	if (rc || tn_volume_choose(two, &e->volume, &same))
		return e->o.force ? 0 : check_empty(e);
	if (!e->o.force && !tn_volume_is_ours(two)) /* a partition table or a RAID's superblock overwrites one copy and leaves the other */
		return not_ours(e, NULL);
	*found = true;
	if (e->volume.size_bytes > e->capacity)
		return tn_fail(-EUCLEAN, "%s: the volume header says %llu bytes, the range has %llu", e->o.port->name,
			       (unsigned long long)e->volume.size_bytes, (unsigned long long)e->capacity);
	if (same)
		return 0;
	tn_log(e->o.log, TN_LOG_WARN, "%s: one copy of the volume header is damaged or older than the other one%s", e->o.port->name,
	       writes ? ": both are written again" : "");
	return writes ? write_header(e, e->volume.exists, e->volume.size_bytes) : 0;
}

/* ---- the file -------------------------------------------------------------------------------------------------------- */

int tn_nvme_range_open(struct tn_io *io, const char *path, unsigned flags, uint32_t *file)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);
	bool found;
	int rc;

	/* Only those that read may have it open together. */
	if (e->opens && !(e->read_only && (flags & (TN_IO_READ_ONLY | TN_IO_CREATE)) == TN_IO_READ_ONLY))
		return tn_fail(-EBUSY, "%s: open already", path);
	rc = e->opens ? 0 : read_header(e, !(flags & TN_IO_READ_ONLY), &found); /* who has it open needs what e->volume says, which is newer than what can be read */
	if (rc)
		return rc;
	if (e->volume.exists && flags & TN_IO_CREATE && flags & TN_IO_EXCLUSIVE)
		return tn_fail(-EEXIST, "%s: exists", path);
	if (!e->volume.exists && !(flags & TN_IO_CREATE))
		return tn_fail(-ENOENT, "%s: %s has no store", path, e->o.port->name);
	rc = e->volume.exists ? 0 : write_header(e, true, 0);
	if (rc)
		return rc;
	e->opens++;
	e->read_only = flags & TN_IO_READ_ONLY;
	*file = e->o.file;
	return 0;
}

static int check_open(const struct tn_nvme_engine *e, uint32_t file)
{
	return file == e->o.file && e->opens ? 0 : tn_fail(-EBADF, "nvme: file %u is not open", file);
}

int tn_nvme_range_close(struct tn_io *io, uint32_t file)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);
	int rc = check_open(e, file);

	if (rc)
		return rc;
	if (e->inflight)
		return tn_fail(-EBUSY, "nvme: %u requests are in flight", e->inflight);
	e->opens--;
	return 0;
}

int tn_nvme_range_stat(struct tn_io *io, uint32_t file, struct tn_io_stat *st)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);
	int rc = check_open(e, file);

	if (rc == 0)
		tn_nvme_range_describe(e, st);
	return rc;
}

int tn_nvme_range_allocate(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);
	struct iovec iov = {NULL, length};
	struct tn_io_req req = {.op = TN_IO_ALLOCATE, .file = file, .offset = offset, .iov = &iov, .iov_count = 1};
	int rc = check_open(e, file);

	return rc ? rc : tn_nvme_wait_for(e, &req, 0);
}

int tn_nvme_range_unlink(struct tn_io *io, const char *path)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);
	bool found = true;
	int rc = e->opens ? 0 : read_header(e, true, &found);

	if (rc)
		return rc;
	if (!found || !e->volume.exists)
		return tn_fail(-ENOENT, "%s: %s has no store", path, e->o.port->name);
	return write_header(e, false, e->opens ? e->volume.size_bytes : 0);
}

int tn_nvme_engine_format(struct tn_io *io)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);
	bool found;
	int rc = e->opens ? tn_fail(-EBUSY, "%s: is open", e->o.port->name) : read_header(e, true, &found);

	if (rc == -EUCLEAN && e->o.force) {
		e->volume = (struct tn_volume){0};
		rc = 0;
	}
	return rc ? rc : write_header(e, false, 0);
}

/* ---- memories ----------------------------------------------------------------------------------------------------------- */

int tn_nvme_engine_map(struct tn_io *io, void *memory, uint64_t bytes)
{
	return tn_nvme_memories_map(&tn_nvme_engine_of(io)->memories, memory, bytes);
}

void tn_nvme_engine_unmap(struct tn_io *io, void *memory, uint64_t bytes)
{
	struct tn_nvme_engine *e = tn_nvme_engine_of(io);

	if (!tn_nvme_memories_has(&e->memories, memory, bytes))
		return;
	/* No request of whoever unmaps it is under way; but those of another memory, with some of the same bytes, name this one's place on the bus. */
	tn_nvme_pair_drain(&e->pair);
	tn_nvme_memories_settle(&e->memories, e->pair.ncommands);
	tn_nvme_memories_unmap(&e->memories, memory, bytes, e->pair.ncommands > 0);
}

void tn_nvme_engine_range(const struct tn_io *io, uint64_t *first, uint64_t *blocks)
{
	const struct tn_nvme_engine *e = (const struct tn_nvme_engine *)io;

	*first = tn_nvme_block_at(e, TN_VOLUME_DATA);
	*blocks = e->capacity / e->block_bytes;
}
