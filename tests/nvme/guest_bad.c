/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A medium with errors: sectors that cannot be read, others that cannot be written, and a first flush that fails. run_faults.py has blkdebug put them where the
 * functions below say.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "guest_rig.h"
#include "nvme/volume.h"
#include "store/store_rig.h"

#define MIB (1ull << 20)
#define FILE_BYTES (4 * MIB)
#define RANGE_BYTES (8 * MIB)
#define STORE_AT (16 * MIB)
#define REQUEST_MOST 32u /* blocks */
#define REQUESTS 1500u
#define SECTOR 512u
#define SAVES 60u

/* A sector of the file, in each MiB the same ones. */
static bool no_reads(uint64_t sector)
{
	return sector % (MIB / SECTOR) == 3;
}

static bool no_writes(uint64_t sector)
{
	return sector % (MIB / SECTOR) == 1033;
}

static bool touches(uint64_t sector, uint64_t n, bool (*bad)(uint64_t sector))
{
	for (uint64_t i = 0; i < n; i++)
		if (bad(sector + i))
			return true;
	return false;
}

static int one(struct tn_io *io, struct tn_io_req *req)
{
	struct tn_io_req *done;

	if (tn_io_submit(io, &req, 1) != 1 || tn_io_poll(io, &done, 1, 30 * GUEST_SECOND_NS) != 1)
		return -ETIMEDOUT;
	return req->status;
}

/* Its ends have sectors that cannot be read. */
static bool it_is_refused_unless_forced(struct guest_drive *d)
{
	struct tn_io *io;
	uint32_t file;
	int rc;

	if (!guest_engine(d, 0, 0, RANGE_BYTES / SECTOR, &io))
		return false;
	rc = tn_io_open(io, "store", TN_IO_CREATE, &file);
	guest_engine_end(io);
	must(rc == -EIO && strstr(tn_error_last()->text, "force it"), "not refused: %d", rc);
	d->force = true;
	return true;
}

static bool the_first_flush_fails(struct tn_io *io, uint32_t *file)
{
	int rc = tn_io_open(io, "store", TN_IO_CREATE, file);

	must(rc == -EIO, "made although the flush of its header failed: %d", rc);
	guest.faults++;
	guest.failed++;
	rc = tn_io_open(io, "store", TN_IO_CREATE, file);
	must(rc == 0, "not made: %d", rc);
	must(tn_io_allocate(io, *file, 0, FILE_BYTES) == 0, "not allocated");
	return true;
}

/* Random transfers: exactly those fail that touch what cannot be moved, and the others are right. content: by sector; 0: not known or zeros. */
static bool transfers_fail_where_they_must(struct tn_io *io, uint32_t file, unsigned char *memory)
{
	static unsigned char content[FILE_BYTES / SECTOR];
	static bool unknown[FILE_BYTES / SECTOR];

	for (uint32_t k = 0; k < REQUESTS; k++) {
		uint64_t n = 1 + tn_rng_below(&guest.rng, REQUEST_MOST), sector = tn_rng_below(&guest.rng, FILE_BYTES / SECTOR - REQUEST_MOST);
		bool writes = tn_rng_below(&guest.rng, 2), bad;
		struct iovec iov = {memory, n * SECTOR};
		struct tn_io_req req = {.op = writes ? TN_IO_WRITE : TN_IO_READ, .file = file, .length = (uint32_t)(n * SECTOR), .iov = &iov, .iov_count = 1};
		int rc;

		if (k % 3 == 0) /* near one of the bad ones */
			sector = sector / (MIB / SECTOR) * (MIB / SECTOR) + (writes ? 1033 - tn_rng_below(&guest.rng, 40) : tn_rng_below(&guest.rng, 5));
		bad = touches(sector, n, writes ? no_writes : no_reads);
		req.offset = sector * SECTOR;
		memset(memory, writes ? (int)(1 + k % 254) : 0xff, n * SECTOR);
		rc = one(io, &req);
		must(rc == (bad ? -EIO : 0), "%s of %u sectors at %u ended with %d", writes ? "write" : "read", (unsigned)n, (unsigned)sector, rc);
		guest.faults += bad;
		guest.failed += bad;
		for (uint64_t i = 0; i < n; i++) {
			const unsigned char *at = memory + i * SECTOR;

			if (writes) {
				unknown[sector + i] = bad;
				content[sector + i] = at[0];
			} else if (!bad && !unknown[sector + i]) {
				must(at[0] == content[sector + i] && !memcmp(at, at + 1, SECTOR - 1), "wrong bytes in sector %u", (unsigned)(sector + i));
			}
		}
	}
	return true;
}

bool guest_errors_of_the_medium(struct guest_drive *d)
{
	unsigned char *memory = mmap(NULL, REQUEST_MOST * SECTOR, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t before = guest.faults;
	struct tn_io *io;
	uint32_t file;
	bool ok;

	must(memory != MAP_FAILED, "no memory");
	if (!it_is_refused_unless_forced(d) || !guest_engine(d, 0, 0, RANGE_BYTES / SECTOR, &io))
		return false;
	ok = the_first_flush_fails(io, &file) && transfers_fail_where_they_must(io, file, memory);
	guest_engine_end(io);
	printf("# %llu requests failed, as they had to\n", (unsigned long long)(guest.faults - before));
	must(!ok || guest.faults - before > 20, "hardly anything failed");
	return ok;
}

/* Blocks whose bytes cannot be read are misses; the rig asserts that none is wrong. */
bool guest_store_on_a_bad_medium(struct guest_drive *d)
{
	uint32_t saved = 0, refused = 0, missed = 0;
	struct tn_io *io;
	struct rig *r;

	if (!guest_engine(d, 0, STORE_AT / SECTOR, 0, &io))
		return false;
	r = rig_new_on(io, &tn_clock_system, "bad");
	r->opts.capacity_bytes = FILE_BYTES;
	r->opts.boot[0] = 1;
	must(rig_open(r) == 0, "no store: %.150s", r->logs);
	for (uint64_t n = 0; n < SAVES; n++) {
		bool ok = rig_save(r, n) >= 0;

		saved += ok;
		refused += !ok;
	}
	must(rig_flush(r) == 0, "not flushed: %.150s", r->logs);
	must(rig_close(r) == 0, "not closed: %.150s", r->logs);
	must(rig_open(r) == 0, "not opened again: %.150s", r->logs);
	for (uint64_t n = 0; n < SAVES; n++)
		if (rig_find(r, n))
			missed += (uint32_t)rig_read(r, n);
	printf("# %u blocks saved, %u could not be written, %u could not be read\n", saved, refused, missed);
	guest.faults += refused + missed;
	guest.failed += refused + missed;
	rig_free(r);
	guest_engine_end(io);
	must(saved > missed && missed > 0 && refused > 0, "%u saved, %u refused, %u missed", saved, refused, missed);
	return true;
}
