/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs in the virtual machine of run_faults.py: several queue pairs of two controllers at once, a medium with errors, a store whose writes and
 * flushes are logged for the host to cut the power at, and an unplug. TAP on standard output. Arguments: the seed, then controllers by their
 * addresses on the PCI bus; their serial numbers say what each is for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "guest_rig.h"

#define DRIVES_MAX 8u
#define ENGINES (2 * GUEST_QUEUES)
#define SLOTS 8u
#define SLOT_BYTES 65536u
#define PLACES 32u
#define ROUNDS 25u

static struct guest_drive drives[DRIVES_MAX];
static uint32_t ndrives;

static struct guest_drive *drive_of(const char *serial)
{
	for (uint32_t i = 0; i < ndrives; i++)
		if (drives[i].info && !strcmp(drives[i].info->serial, serial))
			return &drives[i];
	return NULL;
}

/* ---- several queue pairs of two controllers at once ------------------------------------------------------------------------- */

/* An engine with a file of PLACES slots, of each of which it is known what was written last; 0: zeros. */
struct lane {
	struct tn_io *io;
	unsigned char *memory, content[PLACES];
	struct tn_io_req req[SLOTS + 1];
	struct iovec iov[SLOTS];
	uint32_t file, out, place[SLOTS];
};

static bool lane_up(struct lane *l, struct guest_drive *d, uint32_t queue)
{
	uint64_t share = d->info->blocks / GUEST_QUEUES / 8 * 8;

	if (!guest_engine(d, queue, queue * share, share, &l->io))
		return false;
	l->memory = mmap(NULL, SLOTS * SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(l->memory != MAP_FAILED && tn_nvme_engine_map(l->io, l->memory, SLOTS * SLOT_BYTES / 2) == 0, "not mapped");
	must(tn_io_open(l->io, "store", TN_IO_CREATE, &l->file) == 0, "no file");
	must(tn_io_allocate(l->io, l->file, 0, (uint64_t)PLACES * SLOT_BYTES) == 0, "not allocated");
	return true;
}

/* Reads and writes of different places, and a flush. */
static bool lane_send(struct lane *l, uint32_t round)
{
	struct tn_io_req *batch[SLOTS + 1];
	uint32_t first = tn_rng_below(&guest.rng, PLACES / SLOTS) * SLOTS;

	for (uint32_t i = 0; i < SLOTS; i++) {
		bool writes = tn_rng_below(&guest.rng, 2);

		l->place[i] = first + i;
		l->iov[i] = (struct iovec){l->memory + i * SLOT_BYTES, SLOT_BYTES};
		l->req[i] = (struct tn_io_req){.op = writes ? TN_IO_WRITE : TN_IO_READ, .file = l->file, .offset = (uint64_t)l->place[i] * SLOT_BYTES,
					       .length = SLOT_BYTES, .iov = &l->iov[i], .iov_count = 1};
		memset(l->iov[i].iov_base, writes ? (int)(1 + (round * 7 + i) % 254) : 0xff, SLOT_BYTES);
		batch[i] = &l->req[i];
	}
	l->req[SLOTS] = (struct tn_io_req){.op = TN_IO_SYNC, .file = l->file};
	batch[SLOTS] = &l->req[SLOTS];
	must(tn_io_submit(l->io, batch, SLOTS + 1) == SLOTS + 1, "not taken");
	l->out = SLOTS + 1;
	return true;
}

static bool lane_collect(struct lane *l)
{
	struct tn_io_req *done[SLOTS + 1];
	unsigned n = tn_io_poll(l->io, done, SLOTS + 1, 0);

	l->out -= n;
	for (unsigned k = 0; k < n; k++) {
		uint32_t i = (uint32_t)(done[k] - l->req);
		const unsigned char *at = l->memory + i * SLOT_BYTES;

		must(done[k]->status == 0, "status %d of op %u", done[k]->status, done[k]->op);
		if (done[k]->op == TN_IO_READ)
			must(at[0] == l->content[l->place[i]] && !memcmp(at, at + 1, SLOT_BYTES - 1), "wrong bytes");
		if (done[k]->op == TN_IO_WRITE)
			l->content[l->place[i]] = at[0];
	}
	return true;
}

static bool run_lanes(struct lane *lane, uint32_t n)
{
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint64_t end = tn_now_ns(&tn_clock_system) + 30 * GUEST_SECOND_NS;
		uint32_t out = 0;

		for (uint32_t i = 0; i < n; i++)
			if (!lane_send(&lane[i], round))
				return false;
		do {
			out = 0;
			for (uint32_t i = 0; i < n; i++) {
				if (!lane_collect(&lane[i]))
					return false;
				out += lane[i].out;
			}
			must(tn_now_ns(&tn_clock_system) < end, "%u requests of round %u do not come back", out, round);
		} while (out);
	}
	return true;
}

static bool queues_at_once(struct guest_drive *small, struct guest_drive *large)
{
	static struct lane lane[ENGINES];
	struct guest_drive *both[2] = {small, large};
	uint32_t n = 0;
	bool ok = true;

	must(small && large, "a controller is missing");
	for (uint32_t k = 0; k < 2; k++)
		for (uint32_t q = 0; q < both[k]->info->queues && ok; q++)
			ok = lane_up(&lane[n++], both[k], q);
	ok = ok && run_lanes(lane, n);
	for (uint32_t i = 0; i < n; i++)
		if (lane[i].io)
			guest_engine_end(lane[i].io);
	printf("# %u queue pairs at once, %u requests each\n", n, ROUNDS * (SLOTS + 1));
	must(!ok || n >= GUEST_QUEUES + 2, "only %u queue pairs", n);
	return ok;
}

/* ---- all ------------------------------------------------------------------------------------------------------------------------ */

static bool with(const char *serial, bool (*fn)(struct guest_drive *d))
{
	struct guest_drive *d = drive_of(serial);

	must(d, "no controller %s", serial);
	return fn(d);
}

int main(int argc, char **argv)
{
	guest_begin(argc > 1 ? argv[1] : "1");
	for (int i = 2; i < argc && ndrives < DRIVES_MAX; i++)
		guest_report("a controller comes up", guest_open(argv[i], &drives[ndrives++]));
	guest_report("several queue pairs of two controllers at once", queues_at_once(drive_of("small"), drive_of("large")));
	guest_report("errors of the medium are errors of the requests that touch them", with("bad", guest_errors_of_the_medium));
	guest_report("a store on a medium with errors misses and is never wrong", with("bad", guest_store_on_a_bad_medium));
	guest_report("a store lives on blocks of 512, logged", with("log512", guest_store_life));
	guest_report("a store lives on blocks of 4096, logged", with("log4096", guest_store_life));
	guest_report("after an unplug under load everything fails and nothing hangs", with("hot", guest_unplug));
	for (uint32_t i = 0; i < ndrives; i++)
		if (drives[i].info)
			guest_close(&drives[i]);
	return guest_end();
}
