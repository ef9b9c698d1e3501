/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs in a virtual machine that has nothing but NVMe controllers (tests/nvme/run.py): the driver on hardware that others wrote. TAP on
 * standard output. Arguments: the seed, then controllers by their addresses on the PCI bus.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "guest_rig.h"

#define MEMORY_BYTES (8u << 20)
#define CONTROLLERS_MAX 4

struct drive {
	struct guest_drive g;
	unsigned char *memory; /* mapped */
	struct tn_p2p *table;
	struct tn_nvme_list list;
};

static struct drive drives[CONTROLLERS_MAX];
static int ndrives;

/* ---- drives ------------------------------------------------------------------------------------------------------ */

static bool open_drive(struct drive *d, const char *bdf)
{
	struct tn_p2p_range range;

	if (!guest_open(bdf, &d->g))
		return false;
	d->g.force = true;
	d->memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(d->memory != MAP_FAILED && d->g.port->map(d->g.port->arg, d->memory, MEMORY_BYTES) == 0, "not mapped");
	range = (struct tn_p2p_range){(uintptr_t)d->memory, MEMORY_BYTES};
	must(tn_p2p_create(&range, 1, d->g.port->translate, d->g.port->arg, &tn_alloc_system, &d->table) == 0, "no table");
	d->list.bytes = 4 * TN_NVME_PAGE;
	d->list.memory = d->g.port->get(d->g.port->arg, d->list.bytes, &d->list.bus);
	must(d->list.memory, "no memory for lists");
	return true;
}

static void close_drive(struct drive *d)
{
	tn_p2p_destroy(d->table);
	d->g.port->put(d->g.port->arg, d->list.memory, d->list.bytes);
	d->g.port->unmap(d->g.port->arg, d->memory, MEMORY_BYTES);
	munmap(d->memory, MEMORY_BYTES);
	guest_close(&d->g);
}

/* One command, alone on its queue; its status, or -1: no answer in ten seconds. */
static int one(struct drive *d, uint32_t queue, struct tn_nvme_command *c)
{
	struct tn_nvme_queue *q = tn_nvme_io_queue(d->g.nvme, queue);
	uint64_t end = tn_now_ns(&tn_clock_system) + 10 * GUEST_SECOND_NS;
	struct tn_nvme_completion done;
	uint32_t id = tn_nvme_queue_id(q);

	c->id = (uint16_t)id;
	tn_nvme_queue_put(q, c);
	tn_nvme_queue_ring(q);
	guest.commands++;
	while (!tn_nvme_queue_poll(q, &done)) {
		if (tn_now_ns(&tn_clock_system) > end)
			return -1;
		sched_yield();
	}
	tn_nvme_queue_took(q);
	tn_nvme_queue_give(q, done.id);
	return done.id == id ? (int)tn_nvme_status(&done) : -2;
}

static bool memory_that_no_cpu_maps_is_refused_with_the_reason(struct drive *d)
{
	const struct tn_p2p *table;

	must(tn_nvme_map_other(d->g.nvme, NULL, (void *)((uintptr_t)1 << 46), MEMORY_BYTES, &table) == -ENOTSUP, "not refused");
	must(strstr(tn_error_last()->text, "type 1"), "without the reason");
	return true;
}

/* ---- lists at every alignment ------------------------------------------------------------------------------------------ */

/* A piece of the mapped memory, by its pieces on the bus. */
static uint32_t locate(struct drive *d, uint64_t at, uint64_t bytes, struct tn_nvme_piece *piece, uint32_t max)
{
	int n = tn_p2p_find(d->table, (uintptr_t)d->memory + at, bytes, piece, max);

	return n > 0 ? (uint32_t)n : 0;
}

static int transfer(struct drive *d, uint32_t opcode, uint64_t block, const struct tn_nvme_piece *piece, uint32_t n, bool sgl)
{
	struct tn_nvme_command c;
	uint64_t bytes = 0;
	int rc;

	for (uint32_t i = 0; i < n; i++)
		bytes += piece[i].length;
	c = tn_nvme_transfer(opcode, d->g.info->namespace_id, block, (uint32_t)(bytes / d->g.info->block_bytes));
	rc = sgl ? tn_nvme_set_sgl(&c, piece, n, &d->list) : tn_nvme_set_prps(&c, piece, n, &d->list);
	guest.bytes += bytes;
	return rc ? rc : one(d, tn_rng_below(&guest.rng, d->g.info->queues), &c);
}

/* Writes with one kind of list, and reads with one to another place of memory. */
static bool there_and_back(struct drive *d, uint64_t from, uint64_t to, uint64_t bytes, bool sgl, bool sgl_back)
{
	uint64_t blocks = bytes / d->g.info->block_bytes, block = 1024 + tn_rng_below(&guest.rng, (uint32_t)(d->g.info->blocks - 1024 - blocks));
	struct tn_nvme_piece piece[4];
	uint32_t n;
	int rc;

	for (uint64_t i = 0; i < bytes; i += 512) {
		uint64_t w = tn_rng_next(&guest.rng);

		memcpy(d->memory + from + i, &w, 8);
	}
	n = locate(d, from, bytes, piece, 4);
	rc = transfer(d, TN_NVME_WRITE, block, piece, n, sgl);
	must(rc == 0, "write of %llu bytes at offset %llu of memory with %s: %#x", (unsigned long long)bytes, (unsigned long long)from,
	     sgl ? "SGL" : "PRPs", (unsigned)rc);
	memset(d->memory + to - 4, 0xee, bytes + 8);
	n = locate(d, to, bytes, piece, 4);
	rc = transfer(d, TN_NVME_READ, block, piece, n, sgl_back);
	must(rc == 0, "read of %llu bytes at offset %llu of memory with %s: %#x", (unsigned long long)bytes, (unsigned long long)to,
	     sgl_back ? "SGL" : "PRPs", (unsigned)rc);
	must(memcmp(d->memory + from, d->memory + to, bytes) == 0, "wrong bytes of %llu", (unsigned long long)bytes);
	must(d->memory[to - 1] == 0xee && d->memory[to + bytes] == 0xee, "bytes beside the %llu were touched", (unsigned long long)bytes);
	return true;
}

/*
 * From one block to MDTS, at every dword of a page (Base 4.1.1, 4.1.2), with both kinds of lists in both directions; in the short form more than one block at
 * every fifth dword. One block with SGLs at the bytes between them, too.
 */
static bool every_alignment(struct drive *d)
{
	uint64_t most = d->g.info->transfer_bytes < 1u << 20 ? d->g.info->transfer_bytes : 1u << 20, transfers = 0;
	uint32_t dwords = getenv("TN_SOAK") ? 1 : 5;

	for (uint64_t i = 0; i < MEMORY_BYTES; i += 8) {
		uint64_t w = tn_rng_next(&guest.rng);

		memcpy(d->memory + i, &w, 8);
	}
	for (uint64_t bytes = d->g.info->block_bytes; bytes <= most; bytes *= 2)
		for (uint32_t skip = 0; skip < TN_NVME_PAGE; skip += bytes == d->g.info->block_bytes ? 4 : 4 * dwords, transfers += 4)
			for (uint32_t sgl = 0; sgl < 2; sgl++)
				if (!there_and_back(d, skip, (4u << 20) + TN_NVME_PAGE - skip, bytes, sgl, !sgl))
					return false;
	for (uint32_t skip = 1; skip < TN_NVME_PAGE; skip += skip % 4 == 3 ? 2 : 1, transfers += 2)
		if (!there_and_back(d, skip, (4u << 20) + TN_NVME_PAGE - skip, d->g.info->block_bytes, true, true))
			return false;
	printf("# %llu transfers of %u to %llu bytes\n", (unsigned long long)transfers, d->g.info->block_bytes, (unsigned long long)most);
	return true;
}

/* Objects in many pieces: PRPs where pages are whole, SGLs anywhere. */
static bool many_pieces(struct drive *d)
{
	for (uint32_t round = 0; round < 40; round++) {
		uint32_t n = 2 + tn_rng_below(&guest.rng, 30), unit = round % 2 ? TN_NVME_PAGE : d->g.info->block_bytes;
		bool sgl = unit < TN_NVME_PAGE || tn_rng_below(&guest.rng, 2);
		struct tn_nvme_piece out[32], in[32];
		uint64_t block = 1024 + tn_rng_below(&guest.rng, (uint32_t)(d->g.info->blocks - 4096));
		int rc;

		for (uint32_t i = 0; i < n; i++) {
			uint64_t at = (uint64_t)i * 2 * TN_NVME_PAGE + (unit < TN_NVME_PAGE ? 4 * tn_rng_below(&guest.rng, 900) : 0);

			memset(d->memory + at, (int)(round * 7 + i), unit);
			must(locate(d, at, unit, &out[i], 1) == 1 && locate(d, (4u << 20) + (uint64_t)(n - i) * 2 * TN_NVME_PAGE, unit, &in[i], 1) == 1,
			     "not located");
		}
		rc = transfer(d, TN_NVME_WRITE, block, out, n, sgl);
		must(rc == 0, "write of %u pieces of %u with %s: %#x", n, unit, sgl ? "SGL" : "PRPs", (unsigned)rc);
		rc = transfer(d, TN_NVME_READ, block, in, n, true);
		must(rc == 0, "read of %u pieces: %#x", n, (unsigned)rc);
		for (uint32_t i = 0; i < n; i++) {
			const unsigned char *at = d->memory + (4u << 20) + (uint64_t)(n - i) * 2 * TN_NVME_PAGE;

			must(at[0] == (unsigned char)(round * 7 + i) && !memcmp(at, at + 1, unit - 1), "wrong bytes in piece %u of %u", i, n);
		}
	}
	return true;
}

static bool what_is_wrong_is_refused(struct drive *d)
{
	struct tn_nvme_command c = tn_nvme_transfer(TN_NVME_READ, d->g.info->namespace_id, d->g.info->blocks, 1);
	int rc;

	c.data[0] = d->list.bus;
	rc = one(d, 0, &c);
	must(rc == TN_NVME_LBA_RANGE, "a read beyond the end: %#x", (unsigned)rc);
	c = tn_nvme_flush(77);
	rc = one(d, 0, &c);
	must(rc > 0, "a flush of namespace 77: %#x", (unsigned)rc);
	c = tn_nvme_flush(d->g.info->namespace_id);
	rc = one(d, 0, &c);
	must(rc == 0, "a flush: %#x", (unsigned)rc);
	return true;
}

/* ---- the engine ------------------------------------------------------------------------------------------------------------ */

#define SLOTS 32u
#define SLOT_BYTES 131072u

/* Random transfers of a file, with resets in between. */
static bool engine_runs(struct drive *d, uint32_t rounds, bool resets)
{
	static unsigned char number[SLOTS * 4]; /* by a slot's range of the file: what was written there last; 0: not known */
	struct tn_nvme_engine_stats stats;
	unsigned char *memory = mmap(NULL, SLOTS * SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct tn_io *io;
	uint32_t file, failed = 0;

	must(memory != MAP_FAILED, "no memory");
	if (!guest_engine(&d->g, d->g.info->queues - 1, 0, 0, &io))
		return false;
	must(tn_nvme_engine_map(io, memory, SLOTS * SLOT_BYTES / 2) == 0, "not mapped"); /* the other half is bounced */
	must(tn_io_open(io, "store", TN_IO_CREATE, &file) == 0, "no file");
	must(tn_io_allocate(io, file, 0, sizeof(number) * SLOT_BYTES) == 0, "not allocated");
	memset(number, 0, sizeof(number));
	for (uint32_t round = 0; round < rounds; round++) {
		struct tn_io_req req[SLOTS], *batch[SLOTS], *done[SLOTS];
		struct iovec iov[SLOTS];
		uint32_t where[SLOTS], first = tn_rng_below(&guest.rng, 4) * SLOTS, back = 0;

		for (uint32_t i = 0; i < SLOTS; i++) {
			bool writes = number[first + i] == 0 || tn_rng_below(&guest.rng, 2);

			where[i] = first + i;
			iov[i] = (struct iovec){memory + i * SLOT_BYTES, SLOT_BYTES};
			req[i] = (struct tn_io_req){.op = writes ? TN_IO_WRITE : TN_IO_READ, .file = file, .offset = (uint64_t)where[i] * SLOT_BYTES,
						    .length = SLOT_BYTES, .iov = &iov[i], .iov_count = 1};
			memset(memory + i * SLOT_BYTES, writes ? (int)(1 + (round + i) % 255) : 0, SLOT_BYTES);
			batch[i] = &req[i];
		}
		must(tn_io_submit(io, batch, SLOTS) == SLOTS, "not taken");
		if (resets && round % 4 == 3) /* the engine finds out, and resets it itself */
			*(volatile uint32_t *)((unsigned char *)d->g.port->registers + TN_NVME_CC) &= ~TN_NVME_CC_ENABLE;
		guest.faults += resets && round % 4 == 3;
		while (back < SLOTS) {
			unsigned n = tn_io_poll(io, done, SLOTS, 30 * GUEST_SECOND_NS);

			must(n > 0, "%u requests of round %u do not come back", SLOTS - back, round);
			for (unsigned k = 0; k < n; k++) {
				uint32_t i = (uint32_t)(done[k] - req);
				const unsigned char *at = memory + i * SLOT_BYTES;

				failed += req[i].status != 0;
				must(req[i].status == 0 || resets, "status %d", req[i].status);
				if (req[i].op == TN_IO_READ && req[i].status == 0)
					must(at[0] == number[where[i]] && !memcmp(at, at + 1, SLOT_BYTES - 1), "wrong bytes in round %u", round);
				if (req[i].op == TN_IO_WRITE)
					number[where[i]] = req[i].status ? 0 : at[0];
			}
			back += n;
		}
	}
	must(!resets || failed > 0, "nothing was under way in any reset");
	tn_nvme_engine_stats(io, &stats);
	printf("# engine: %llu commands, %llu bounced, %llu doorbells, %llu resets, %u requests failed by them\n", (unsigned long long)stats.commands,
	       (unsigned long long)stats.bounced, (unsigned long long)stats.bells, (unsigned long long)stats.resets, failed);
	guest.failed += failed;
	must(tn_io_close(io, file) == 0, "not closed");
	guest_engine_end(io);
	munmap(memory, SLOTS * SLOT_BYTES);
	return true;
}

static bool it_is_found(void)
{
	struct tn_nvme_found found[16], look;
	int n = tn_nvme_vfio_find(found, 16), mine = 0;

	for (int i = 0; i < n && i < 16; i++)
		mine += found[i].vfio;
	must(mine == ndrives, "%d controllers can be used, %d were to be found", mine, ndrives);
	for (int i = 0; i < n && i < 16; i++) {
		char path[32];

		must(tn_nvme_vfio_look(found[i].bdf, &look) && strcmp(look.bdf, found[i].bdf) == 0 && look.vfio == found[i].vfio, "%.15s is not found", found[i].bdf);
		snprintf(path, sizeof(path), "./%.15s", found[i].bdf);
		must(!tn_nvme_vfio_look(path, &look), "%s is found", path);
	}
	must(!tn_nvme_vfio_look("0000:00:00.0", &look) && !tn_nvme_vfio_look("nonsense", &look), "found what is not there");
	return true;
}

static bool a_second_owner_is_refused(struct drive *d)
{
	struct tn_nvme_vfio *v;
	int rc = tn_nvme_vfio_open(d->g.bdf, &tn_alloc_system, &v);

	must(rc == -EBUSY, "opened twice: %d", rc);
	rc = tn_nvme_vfio_open("0000:00:00.0", &tn_alloc_system, &v);
	must(rc == -ENODEV, "the host bridge: %d", rc);
	rc = tn_nvme_vfio_open("nonsense", &tn_alloc_system, &v);
	must(rc == -EINVAL, "nonsense: %d", rc);
	return true;
}

/* As the device has it: bus master, and Interrupt Disable. */
static bool it_masters_the_bus_and_interrupts_nobody(const struct drive *d)
{
	char path[64];
	uint16_t command = 0;
	int fd;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.15s/config", d->g.bdf);
	fd = open(path, O_RDONLY);
	must(fd >= 0 && pread(fd, &command, sizeof(command), 4) == sizeof(command), "its configuration is not read");
	close(fd);
	must((command & 0x404) == 0x404, "its command register has %#x", command);
	return true;
}

static void run(struct drive *d, const char *bdf)
{
	bool up = open_drive(d, bdf);

	guest_report("a controller comes up", up);
	if (!up)
		return;
	guest_report("it masters the bus and interrupts nobody", it_masters_the_bus_and_interrupts_nobody(d));
	guest_report("memory that no CPU maps is refused with the reason", memory_that_no_cpu_maps_is_refused_with_the_reason(d));
	guest_report("PRPs and SGLs of one block to MDTS, at every alignment", every_alignment(d));
	guest_report("objects in many pieces", many_pieces(d));
	guest_report("what is wrong is refused", what_is_wrong_is_refused(d));
	guest_report("a second owner is refused", a_second_owner_is_refused(d));
	guest_report("the engine with SGLs, at every alignment", guest_engine_lists(&d->g, false));
	guest_report("the engine with PRPs, at every alignment", guest_engine_lists(&d->g, true));
	guest_report("the executor with SGLs", guest_executor_lists(&d->g, false));
	guest_report("the executor with PRPs", guest_executor_lists(&d->g, true));
	guest_report("the engine moves the right bytes", engine_runs(d, 12, false));
	guest_report("resets under load lose nothing", engine_runs(d, 12, true));
}

int main(int argc, char **argv)
{
	ndrives = argc - 2 < CONTROLLERS_MAX ? argc - 2 : CONTROLLERS_MAX;
	guest_begin(argc > 1 ? argv[1] : "1");
	guest_report("the controllers are found", it_is_found());
	for (int i = 0; i < ndrives; i++)
		run(&drives[i], argv[i + 2]);
	for (int i = 0; i < ndrives; i++)
		if (drives[i].table)
			close_drive(&drives[i]);
	guest_report("all are closed, and come up again", ndrives > 0 && open_drive(&drives[0], argv[2]));
	return guest_end();
}
