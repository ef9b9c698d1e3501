/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NVMe engine in random schedules: mapped and other memory, every kind of fault of the software controller, power cuts. Each request comes
 * back once, by a bound; what it says is true; and the controller finds nothing wrong with how it is driven.
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/rng.h"
#include "lab/soft_rig.h"
#include "nvme/engine.h"
#include "nvme/volume.h"
#include "tn_test.h"

#define MS 1000000ull
#define STEP_NS 100000ull
#define COMMAND_NS (300 * STEP_NS)
#define FILE_BLOCKS 512u
#define SLOTS 24u
#define PIECES 6u
#define SLOT_BYTES 65536u
#define UNKNOWN 0xffffffffu /* a write to the block failed: old or new bytes, or both */

struct rig {
	struct soft_rig s;
	struct tn_soft_opts o;
	struct tn_rng rng;
	uint64_t seed;
	uint32_t end_in; /* so many turns of run(); 0: its controller has no end */
	void (*end)(struct tn_soft *soft);
	struct tn_nvme *nvme;
	struct tn_io *io;
	uint32_t file;
	/* what was written: by block, the number of the write, which its bytes are made of */
	uint32_t content[FILE_BLOCKS], writer[FILE_BLOCKS], readers[FILE_BLOCKS], writes;
	unsigned char *mapped, *other;
};

struct request {
	struct tn_io_req req;
	struct iovec iov[PIECES];
	uint32_t block, blocks, number;
	bool out, after_end;
};

static void must(const struct rig *r, bool ok, const char *what)
{
	if (!ok)
		fail_msg("TN_SEED=%llu: %s (%s)", (unsigned long long)r->seed, what, tn_error_last()->text);
}

/* A controller of any kind, as the seed says. */
static void setup(struct rig *r, uint64_t seed)
{
	memset(r, 0, sizeof(*r));
	r->seed = seed;
	tn_rng_seed(&r->rng, seed);
	tn_soft_opts_init(&r->o);
	r->o.seed = seed;
	r->o.block_bytes = tn_rng_below(&r->rng, 2) ? 512 : 4096;
	r->o.blocks = (8u << 20) / r->o.block_bytes;
	r->o.entries = 2 + tn_rng_below(&r->rng, 40);
	r->o.mdts = 1 + tn_rng_below(&r->rng, 5);
	r->o.stride = tn_rng_below(&r->rng, 3);
	r->o.sgl = tn_rng_below(&r->rng, 4);
	r->o.cache = tn_rng_below(&r->rng, 3) > 0;
	r->o.zeroes = tn_rng_below(&r->rng, 2);
	r->o.wzsl = tn_rng_below(&r->rng, 4); /* what is longer is a finding */
	r->o.ignorant = r->o.wzsl == 0 && tn_rng_below(&r->rng, 2);
	r->o.scattered = tn_rng_below(&r->rng, 5);
	r->o.steps = tn_rng_below(&r->rng, 12);
	r->o.late_steps = 500;
	r->o.stall_steps = tn_rng_below(&r->rng, 2) ? 1000 : 20000; /* beyond a command's deadline; beyond a reset's */
	soft_rig_up(&r->s, &r->o, STEP_NS);
}

static int up(struct rig *r, bool force)
{
	const struct tn_nvme_opts n = {.port = &r->s.port, .alloc = &tn_alloc_system, .clock = &r->s.clock, .queues = 1, .entries = 64,
				       .admin_ns = 100 * STEP_NS};
	struct tn_nvme_engine_opts e = {.port = &r->s.port, .alloc = &tn_alloc_system, .clock = &r->s.clock, .depth = SLOTS,
					.command_ns = COMMAND_NS, .force = force};

	must(r, tn_nvme_create(&n, &r->nvme) == 0, "not up");
	e.nvme = r->nvme;
	return tn_nvme_engine_create(&e, &r->io);
}

static void make_file(struct rig *r)
{
	must(r, up(r, false) == 0, "no engine");
	must(r, tn_io_open(r->io, "store", TN_IO_CREATE | TN_IO_EXCLUSIVE, &r->file) == 0, "not made");
	must(r, tn_io_allocate(r->io, r->file, 0, (uint64_t)FILE_BLOCKS * r->o.block_bytes) == 0, "not allocated");
	r->mapped = mmap(NULL, SLOTS * SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	r->other = mmap(NULL, SLOTS * SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(r, r->mapped != MAP_FAILED && r->other != MAP_FAILED, "no memory");
	must(r, tn_nvme_engine_map(r->io, r->mapped, SLOTS * SLOT_BYTES) == 0, "not mapped");
}

static void no_findings(const struct rig *r)
{
	struct tn_soft_stats stats;

	tn_soft_stats(r->s.soft, &stats);
	for (uint32_t i = 0; i < TN_SOFT_FINDINGS; i++)
		must(r, stats.findings[i] == 0, tn_soft_finding_name(i));
}

static void down(struct rig *r)
{
	tn_io_destroy(r->io);
	tn_nvme_destroy(r->nvme);
	no_findings(r);
	tn_soft_destroy(r->s.soft);
	munmap(r->mapped, SLOTS * SLOT_BYTES);
	munmap(r->other, SLOTS * SLOT_BYTES);
}

/* ---- requests and what they must leave ------------------------------------------------------------------------------ */

/* Bytes of a block by the number of its write; 0: zeros. */
static uint64_t word_of(uint32_t number, uint32_t block, uint32_t k)
{
	return number ? (uint64_t)number << 40 ^ (uint64_t)block << 20 ^ k : 0;
}

static void fill_block(unsigned char *at, uint32_t bytes, uint32_t number, uint32_t block)
{
	for (uint32_t k = 0; k < bytes / 8; k++) {
		uint64_t w = word_of(number, block, k);

		memcpy(at + k * 8, &w, 8);
	}
}

static bool is_block(const unsigned char *at, uint32_t bytes, uint32_t number, uint32_t block)
{
	for (uint32_t k = 0; k < bytes / 8; k++) {
		uint64_t w;

		memcpy(&w, at + k * 8, 8);
		if (w != word_of(number, block, k))
			return false;
	}
	return true;
}

/* Blocks of a request, in pieces at any place of its slot's memory that a controller may reach. */
static void lay_out(struct rig *r, struct request *q, uint32_t slot)
{
	uint32_t unit = r->o.block_bytes, left = q->blocks, at = slot * SLOT_BYTES;
	unsigned char *memory = tn_rng_below(&r->rng, 3) ? r->mapped : r->other;
	uint32_t spare = SLOT_BYTES - q->blocks * unit, n = 0;

	while (left) {
		uint32_t some = n + 1 == PIECES ? left : 1 + tn_rng_below(&r->rng, left);
		uint32_t gap = tn_rng_below(&r->rng, 3) ? 0 : tn_rng_below(&r->rng, spare / PIECES / 4 + 1) * 4;

		q->iov[n++] = (struct iovec){memory + at + gap, (size_t)some * unit};
		at += gap + some * unit;
		left -= some;
	}
	q->req.iov = q->iov;
	q->req.iov_count = n;
	q->req.length = q->blocks * unit;
}

static unsigned char *block_at(const struct rig *r, const struct request *q, uint32_t k)
{
	uint64_t at = (uint64_t)k * r->o.block_bytes;
	uint32_t i = 0;

	for (; at >= q->iov[i].iov_len; i++)
		at -= q->iov[i].iov_len;
	return (unsigned char *)q->iov[i].iov_base + at;
}

/* False: somebody writes there, or reads what would be written. */
static bool may_touch(const struct rig *r, const struct request *q, bool writes)
{
	for (uint32_t i = q->block; i < q->block + q->blocks; i++)
		if (r->writer[i] || (writes && r->readers[i]))
			return false;
	return true;
}

static bool prepare(struct rig *r, struct request *q, uint32_t slot)
{
	uint32_t most = SLOT_BYTES / 2 / r->o.block_bytes, op = tn_rng_below(&r->rng, 8);

	memset(q, 0, sizeof(*q));
	q->req.file = r->file;
	q->req.op = op < 4 ? TN_IO_READ : op < 7 ? TN_IO_WRITE : TN_IO_SYNC;
	if (q->req.op == TN_IO_SYNC)
		return true;
	q->blocks = 1 + tn_rng_below(&r->rng, tn_rng_below(&r->rng, 2) ? most : 4);
	q->block = tn_rng_below(&r->rng, FILE_BLOCKS - q->blocks + 1);
	if (!may_touch(r, q, q->req.op == TN_IO_WRITE)) {
		q->blocks = 0;
		return false;
	}
	q->req.offset = (uint64_t)q->block * r->o.block_bytes;
	lay_out(r, q, slot);
	q->number = ++r->writes;
	for (uint32_t k = 0; k < q->blocks; k++) {
		if (q->req.op == TN_IO_READ) {
			r->readers[q->block + k]++;
			memset(block_at(r, q, k), 0xee, r->o.block_bytes);
		} else {
			r->writer[q->block + k] = q->number;
			fill_block(block_at(r, q, k), r->o.block_bytes, q->number, q->block + k);
		}
	}
	return true;
}

static void came_back(struct rig *r, struct request *q)
{
	uint32_t good = q->req.transferred / r->o.block_bytes;

	must(r, q->out, "a request came back that was not out");
	q->out = false;
	must(r, q->req.status <= 0, "a status that is none");
	must(r, !q->after_end || q->req.op == TN_IO_SYNC || q->req.status == -ENODEV || q->req.status == -ECANCELED, "done by what is gone");
	must(r, q->req.status || q->req.op == TN_IO_SYNC || q->req.transferred == q->req.length, "not all was moved, and no error");
	for (uint32_t k = 0; k < q->blocks; k++) {
		uint32_t b = q->block + k;

		if (q->req.op == TN_IO_READ) {
			r->readers[b]--;
			if (k < good && r->content[b] != UNKNOWN)
				must(r, is_block(block_at(r, q, k), r->o.block_bytes, r->content[b], b), "wrong bytes");
		} else {
			r->writer[b] = 0;
			r->content[b] = q->req.status ? UNKNOWN : q->number;
		}
		memset(block_at(r, q, k), 0xdd, r->o.block_bytes); /* somebody else's now: a late command would be seen */
	}
}

/* Memory that no request has is not written to. */
static void nobody_touched(const struct rig *r, const struct request *q)
{
	for (uint32_t i = 0; i < SLOTS; i++)
		for (uint32_t k = 0; !q[i].out && k < q[i].blocks; k++) {
			const unsigned char *at = block_at(r, &q[i], k);

			must(r, at[0] == 0xdd && !memcmp(at, at + 1, r->o.block_bytes - 1), "memory that was given back changed");
		}
}

/* So many requests, and then until all are back. */
static void run(struct rig *r, uint32_t requests)
{
	static struct request q[SLOTS];
	struct tn_io_req *done[SLOTS], *one;
	uint64_t quiet = 0;
	uint32_t out = 0;

	memset(q, 0, sizeof(q));
	while (requests || out) {
		uint32_t slot = tn_rng_below(&r->rng, SLOTS);
		unsigned n;

		if (requests && !q[slot].out && prepare(r, &q[slot], slot)) {
			one = &q[slot].req;
			q[slot].out = true;
			q[slot].after_end = r->end && r->end_in == 0;
			must(r, tn_io_submit(r->io, &one, 1) == 1, "not taken");
			out++;
			requests--;
		} else if (q[slot].out && tn_rng_below(&r->rng, 16) == 0) {
			must(r, tn_io_cancel(r->io, &q[slot].req) != -ENOENT, "cancel does not know it");
		}
		if (r->end_in && --r->end_in == 0)
			r->end(r->s.soft);
		if (tn_rng_below(&r->rng, 3) == 0)
			soft_rig_step(&r->s);
		n = tn_io_poll(r->io, done, 1 + tn_rng_below(&r->rng, SLOTS), tn_rng_below(&r->rng, 2) * STEP_NS);
		for (unsigned i = 0; i < n; i++)
			came_back(r, (struct request *)(void *)done[i]);
		out -= n;
		quiet = n ? 0 : quiet + 1;
		must(r, quiet < 2000000, "requests do not come back");
		if (tn_rng_below(&r->rng, 64) == 0)
			nobody_touched(r, q);
	}
	nobody_touched(r, q);
}

/* What is there can be read, all of it. */
static void read_all(struct rig *r)
{
	uint32_t bytes = r->o.block_bytes;

	for (uint32_t b = 0; b < FILE_BLOCKS; b++) {
		struct iovec iov = {r->other, bytes};
		struct tn_io_req req = {.op = TN_IO_READ, .file = r->file, .offset = (uint64_t)b * bytes, .length = bytes, .iov = &iov, .iov_count = 1};
		struct tn_io_req *one = &req, *done;

		must(r, tn_io_submit(r->io, &one, 1) == 1 && tn_io_poll(r->io, &done, 1, UINT64_MAX) == 1 && req.status == 0, "not read");
		must(r, r->content[b] == UNKNOWN || is_block(r->other, bytes, r->content[b], b), "wrong bytes at the end");
	}
}

/* ---- tests ------------------------------------------------------------------------------------------------------------ */

static void random_transfers_move_the_right_bytes(void **state)
{
	struct tn_nvme_engine_stats stats;
	uint64_t commands = 0, bounced = 0, bells = 0;

	for (uint64_t i = 0; i < 150; i++) {
		struct rig r;

		setup(&r, tn_test_seed() + i);
		make_file(&r);
		run(&r, 200);
		read_all(&r);
		tn_nvme_engine_stats(r.io, &stats);
		must(&r, stats.late == 0 && stats.strange == 0 && stats.resets == 0, "something was late");
		commands += stats.commands;
		bounced += stats.bounced;
		bells += stats.bells;
		down(&r);
	}
	printf("# %llu commands, %llu by way of bounce buffers, %llu doorbells\n", (unsigned long long)commands, (unsigned long long)bounced,
	       (unsigned long long)bells);
	assert_true(bounced > 0 && bounced < commands && bells < commands);
}

/* Some of all faults that pass, seldom or often. */
static void choose_faults(struct rig *r, struct tn_soft_chances *c)
{
	*c = (struct tn_soft_chances){0};
	for (uint32_t k = 0; k < 3; k++) {
		uint32_t much = tn_rng_below(&r->rng, 3) ? 600 : 20000;

		switch (tn_rng_below(&r->rng, 6)) {
		case 0:
			c->error = much;
			break;
		case 1:
			c->lost = much / 8;
			break;
		case 2:
			c->twice = much;
			break;
		case 3:
			c->late = much / 8;
			break;
		case 4:
			c->stall = much / 40;
			break;
		default:
			c->fatal = much / 200;
			break;
		}
	}
}

/* Of one controller in eight the end, at any time: it is pulled out, or (one in 128) silent for ever. By the seed, so that some of any 300 have it. */
static void choose_end(struct rig *r)
{
	if (r->seed % 8)
		return;
	r->end = r->seed % 128 ? tn_soft_unplug : tn_soft_hang;
	r->end_in = 1 + tn_rng_below(&r->rng, 100);
}

static void every_fault_ends_in_an_error_or_a_recovery(void **state)
{
	uint64_t schedules = tn_test_soak() ? 100000 : 300, faults = 0, stalls = 0, pulled = 0, silent = 0, aborts = 0, resets = 0, strange = 0;

	for (uint64_t i = 0; i < schedules; i++) {
		struct tn_nvme_engine_stats stats;
		struct tn_soft_chances c;
		struct tn_soft_stats soft;
		struct rig r;

		setup(&r, tn_test_seed() + i);
		make_file(&r);
		choose_faults(&r, &c);
		choose_end(&r);
		tn_soft_fault(r.s.soft, &c);
		run(&r, 100);
		tn_soft_fault(r.s.soft, &(struct tn_soft_chances){0});
		run(&r, 30);
		if (!r.end)
			read_all(&r);
		must(&r, r.s.cuts == (r.end != NULL), "its way to memory was cut, or was not");
		pulled += r.end == tn_soft_unplug;
		silent += r.end == tn_soft_hang;
		tn_nvme_engine_stats(r.io, &stats);
		tn_soft_stats(r.s.soft, &soft);
		faults += soft.faults;
		stalls += soft.stalls;
		aborts += stats.aborted;
		resets += stats.resets;
		strange += stats.strange;
		down(&r);
	}
	printf("# %llu schedules: %llu faults, of them %llu stalls; %llu controllers pulled out, %llu silent for ever; %llu aborts, %llu resets, %llu completions "
	       "of nothing\n",
	       (unsigned long long)schedules, (unsigned long long)faults, (unsigned long long)stalls, (unsigned long long)pulled, (unsigned long long)silent,
	       (unsigned long long)aborts, (unsigned long long)resets, (unsigned long long)strange);
	assert_true(stalls > 0 && pulled > 0 && silent > 0 && aborts > 0 && resets > 0 && strange > 0);
}

/* What waits for a controller that is pulled, or that hangs, so that no reset brings it back, ends with -ENODEV. */
static void nothing_waits_after(void (*fault)(struct tn_soft *soft), uint64_t most_ns)
{
	for (uint64_t i = 0; i < 50; i++) {
		static struct request q[SLOTS];
		struct tn_io_req *done[SLOTS], *one;
		uint32_t out = 0;
		uint64_t before;
		struct rig r;

		setup(&r, tn_test_seed() + i);
		make_file(&r);
		memset(q, 0, sizeof(q));
		for (uint32_t k = 0; k < SLOTS; k++) {
			if (!prepare(&r, &q[k], k))
				continue;
			one = &q[k].req;
			q[k].out = true;
			assert_int_equal(tn_io_submit(r.io, &one, 1), 1);
			out++;
		}
		for (uint32_t k = tn_rng_below(&r.rng, 8); k > 0; k--)
			soft_rig_step(&r.s);
		fault(r.s.soft);
		before = r.s.now;
		while (out) {
			unsigned n = tn_io_poll(r.io, done, SLOTS, 10 * STEP_NS);

			for (unsigned k = 0; k < n; k++) {
				must(&r, done[k]->status >= 0 || (done[k]->status == -ENODEV) == r.s.cuts, "failed, but the memory may still be reached");
				came_back(&r, (struct request *)(void *)done[k]);
			}
			out -= n;
			must(&r, r.s.now - before < most_ns, "requests wait for what is gone");
		}
		do
			must(&r, prepare(&r, &q[0], 0), "not prepared");
		while (q[0].req.op == TN_IO_SYNC); /* nothing to do, where there is no volatile cache */
		one = &q[0].req;
		q[0].out = true;
		assert_int_equal(tn_io_submit(r.io, &one, 1), 1);
		while (tn_io_poll(r.io, done, 1, STEP_NS) == 0)
			must(&r, r.s.now - before < 2 * most_ns, "requests wait for what is gone");
		assert_int_equal(q[0].req.status, -ENODEV);
		assert_int_equal(r.s.cuts, 1);
		down(&r);
	}
}

static void after_an_unplug_everything_fails_and_nothing_waits(void **state)
{
	nothing_waits_after(tn_soft_unplug, 5000 * STEP_NS);
}

static void a_controller_that_no_reset_brings_back_is_cut_off_and_nothing_waits(void **state)
{
	nothing_waits_after(tn_soft_hang, 70000 * MS);
}

/* As by another pair's thread: the controller does not know this pair any more, and nobody has polled since. */
static void a_reset_while_nothing_is_under_way_costs_no_request(void **state)
{
	for (uint64_t seed = 0; seed < 20; seed++) {
		struct rig r;
		struct iovec iov;
		struct tn_io_req req, *q = &req;

		setup(&r, tn_test_seed() + seed);
		make_file(&r);
		for (uint32_t k = 0; k < 3; k++) {
			iov = (struct iovec){r.mapped, r.o.block_bytes};
			req = (struct tn_io_req){.op = k % 2 ? TN_IO_SYNC : TN_IO_READ, .file = r.file};
			if (req.op == TN_IO_READ) {
				req.length = r.o.block_bytes;
				req.iov = &iov;
				req.iov_count = 1;
			}
			must(&r, tn_nvme_restart(r.nvme, tn_nvme_generation(r.nvme)) == 0, "not reset");
			must(&r, tn_io_submit(r.io, &q, 1) == 1, "not taken");
			while (tn_io_poll(r.io, &q, 1, STEP_NS) == 0)
				continue;
			must(&r, req.status == 0, "failed");
		}
		down(&r);
	}
}

/* The file is as long as before the cut, or as long as it was to become; and new bytes are zeros. */
static void a_power_cut_while_it_grows_leaves_one_length_or_the_other(void **state)
{
	uint32_t longer = 0, shorter = 0;

	for (uint64_t i = 0; i < 120; i++) {
		uint64_t old, new;
		struct iovec iov;
		struct tn_io_req req, *one = &req, *done;
		struct tn_io_stat st;
		struct rig r;

		setup(&r, tn_test_seed() + i);
		make_file(&r);
		old = (uint64_t)FILE_BLOCKS * r.o.block_bytes;
		memset(tn_soft_media(r.s.soft) + TN_VOLUME_DATA + old, 0x77, r.o.blocks * r.o.block_bytes - TN_VOLUME_DATA - old);
		new = old + 262144;
		iov = (struct iovec){NULL, new - old};
		req = (struct tn_io_req){.op = TN_IO_ALLOCATE, .file = r.file, .offset = old, .iov = &iov, .iov_count = 1};
		assert_int_equal(tn_io_submit(r.io, &one, 1), 1);
		for (uint32_t k = tn_rng_below(&r.rng, 60); k > 0 && tn_io_poll(r.io, &done, 1, 0) == 0; k--)
			soft_rig_step(&r.s);
		tn_soft_power_cut(r.s.soft);
		tn_io_destroy(r.io);
		r.io = NULL;
		tn_nvme_destroy(r.nvme);
		must(&r, up(&r, false) == 0 && tn_io_open(r.io, "store", 0, &r.file) == 0, "not opened after the cut");
		assert_int_equal(tn_io_stat(r.io, r.file, &st), 0);
		must(&r, st.size_bytes == old || st.size_bytes == new, "a length between");
		longer += st.size_bytes == new;
		shorter += st.size_bytes == old;
		read_all(&r);
		for (uint64_t at = old; at < st.size_bytes; at += r.o.block_bytes) {
			iov = (struct iovec){r.other, r.o.block_bytes};
			req = (struct tn_io_req){.op = TN_IO_READ, .file = r.file, .offset = at, .length = r.o.block_bytes, .iov = &iov, .iov_count = 1};
			assert_int_equal(tn_io_submit(r.io, &one, 1), 1);
			assert_int_equal(tn_io_poll(r.io, &done, 1, UINT64_MAX), 1);
			must(&r, req.status == 0 && is_block(r.other, r.o.block_bytes, 0, 0), "new bytes are not zero");
		}
		down(&r);
	}
	printf("# %u longer, %u as before\n", longer, shorter);
	assert_true(longer > 0 && shorter > 0);
}

static void lives_again(struct rig *r, bool force)
{
	tn_io_destroy(r->io);
	tn_nvme_destroy(r->nvme);
	assert_int_equal(up(r, force), 0);
}

static void end(struct rig *r)
{
	tn_io_destroy(r->io);
	tn_nvme_destroy(r->nvme);
	no_findings(r);
	tn_soft_destroy(r->s.soft);
}

static void what_is_not_ours_is_refused_unless_forced(void **state)
{
	struct rig r;

	setup(&r, tn_test_seed());
	tn_soft_media(r.s.soft)[510] = 0x55; /* a partition table's end */
	assert_int_equal(up(&r, false), 0);
	assert_int_equal(tn_io_open(r.io, "store", TN_IO_CREATE, &r.file), -EUCLEAN);
	assert_non_null(strstr(tn_error_last()->text, "SOFT0001"));
	assert_int_equal(tn_io_open(r.io, "store", 0, &r.file), -EUCLEAN);
	lives_again(&r, true);
	assert_int_equal(tn_io_open(r.io, "store", TN_IO_CREATE, &r.file), 0);
	assert_int_equal(tn_io_open(r.io, "store", TN_IO_CREATE, &r.file), -EBUSY);
	assert_int_equal(tn_io_allocate(r.io, 0, 0, 1 << 30), -ENOSPC);
	assert_int_equal(tn_io_allocate(r.io, 0, 0, 100), -EINVAL);
	assert_int_equal(tn_io_close(r.io, 0), 0);
	assert_int_equal(tn_io_open(r.io, "store", TN_IO_CREATE | TN_IO_EXCLUSIVE, &r.file), -EEXIST);
	assert_int_equal(tn_io_unlink(r.io, "store"), 0);
	assert_int_equal(tn_io_unlink(r.io, "store"), -ENOENT);
	assert_int_equal(tn_io_open(r.io, "store", 0, &r.file), -ENOENT);
	end(&r);
}

/* A super block of btrfs at its place, an uberblock of ZFS in the last label of 8 MiB, btrfs elsewhere. */
static void what_is_not_ours_is_named_if_it_is_known(void **state)
{
	static const char *const mark[] = {"_BHRfS_M", "\x0c\xb1\xba\0\0\0\0\0", "_BHRfS_M"};
	static const char *const says[] = {"holds btrfs, from block 0", "holds ZFS, from block 0", "holds something that is not Tenuto's"};
	static const uint64_t at[] = {0x10040, (8u << 20) - (128u << 10), 0x10048};

	for (uint32_t i = 0; i < 3; i++) {
		struct rig r;

		setup(&r, tn_test_seed());
		memcpy(tn_soft_media(r.s.soft) + at[i], mark[i], 8);
		assert_int_equal(up(&r, false), 0);
		must(&r, tn_io_open(r.io, "store", TN_IO_CREATE, &r.file) == -EUCLEAN, "opened");
		must(&r, strstr(tn_error_last()->text, says[i]), says[i]);
		end(&r);
	}
}

/* A read of one block to memory that is mapped. */
static void begin_read(struct rig *r, struct tn_io_req *req, struct iovec *iov)
{
	*iov = (struct iovec){r->mapped, r->o.block_bytes};
	*req = (struct tn_io_req){.op = TN_IO_READ, .file = r->file, .length = r->o.block_bytes, .iov = iov, .iov_count = 1};
	memset(r->mapped, 0xee, r->o.block_bytes);
	assert_int_equal(tn_io_submit(r->io, &req, 1), 1);
}

/* Two may map memory, of which they share bytes: when one of them unmaps it, the other's requests may be under way there. */
static void memory_is_unmapped_when_all_have_unmapped_it_and_nothing_names_it(void **state)
{
	for (uint64_t i = 0; i < 50; i++) {
		struct tn_nvme_engine_stats before, after;
		struct tn_io_req req, *done;
		struct iovec iov;
		struct rig r;

		setup(&r, tn_test_seed() + i);
		make_file(&r);
		assert_int_equal(tn_nvme_engine_map(r.io, r.mapped, SLOTS * SLOT_BYTES), 0);
		assert_int_equal(tn_nvme_engine_map(r.io, r.mapped, SLOT_BYTES), -EEXIST);
		tn_nvme_engine_unmap(r.io, r.mapped, SLOTS * SLOT_BYTES);
		tn_nvme_engine_stats(r.io, &before);
		begin_read(&r, &req, &iov);
		tn_nvme_engine_unmap(r.io, r.mapped, SLOTS * SLOT_BYTES);
		assert_int_equal(tn_nvme_engine_map(r.io, r.other, SLOTS * SLOT_BYTES), 0); /* lies where the other did */
		memset(r.other, 0xdd, r.o.block_bytes);
		must(&r, tn_io_poll(r.io, &done, 1, UINT64_MAX) == 1 && req.status == 0, "not read");
		must(&r, is_block(r.mapped, r.o.block_bytes, 0, 0) && r.other[0] == 0xdd, "written elsewhere");
		tn_nvme_engine_stats(r.io, &after);
		must(&r, after.bounced == before.bounced, "no longer mapped");
		begin_read(&r, &req, &iov);
		must(&r, tn_io_poll(r.io, &done, 1, UINT64_MAX) == 1 && req.status == 0, "not read");
		tn_nvme_engine_stats(r.io, &after);
		must(&r, after.bounced > before.bounced, "still mapped");
		down(&r);
	}
}

/* A partition table is written over the first copy of the header, a RAID's superblock over the second; the other copy stays whole. */
static void a_drive_that_was_ours_and_is_somebody_elses_is_refused(void **state)
{
	static const uint32_t at[] = {446, 510, 1080, TN_VOLUME_PAGE, TN_VOLUME_PAGE + 100, 2 * TN_VOLUME_PAGE - 1};

	for (uint32_t i = 0; i < 6; i++) {
		unsigned char *media, was;
		struct rig r;

		setup(&r, tn_test_seed());
		media = tn_soft_media(r.s.soft);
		assert_int_equal(up(&r, false), 0);
		assert_int_equal(tn_io_open(r.io, "store", TN_IO_CREATE, &r.file), 0);
		was = media[at[i]];
		media[at[i]] ^= 0xa9;
		lives_again(&r, false);
		must(&r, tn_io_open(r.io, "store", 0, &r.file) == -EUCLEAN, "opened");
		must(&r, tn_nvme_engine_format(r.io) == -EUCLEAN, "formatted");
		assert_non_null(strstr(tn_error_last()->text, "SOFT0001"));
		media[at[i]] = was;
		assert_int_equal(tn_io_open(r.io, "store", 0, &r.file), 0);
		media[at[i]] ^= 0xa9;
		lives_again(&r, true);
		must(&r, tn_nvme_engine_format(r.io) == 0, "not forced");
		lives_again(&r, false);
		must(&r, tn_io_open(r.io, "store", TN_IO_CREATE, &r.file) == 0, "not ours afterwards");
		end(&r);
	}
}

/* A namespace of 512-byte blocks need not have whole pages of them. What was forced away is gone from both ends. */
static void both_ends_are_looked_at_and_wiped_to_the_last_block(void **state)
{
	for (uint32_t blocks = 256; blocks <= 8192; blocks += 7936) {
		for (uint32_t odd = 0; odd < 8; odd++) {
			unsigned char *media, any = 0;
			struct rig r;

			setup(&r, tn_test_seed());
			tn_soft_destroy(r.s.soft);
			r.o.block_bytes = 512;
			r.o.blocks = blocks + odd;
			soft_rig_up(&r.s, &r.o, STEP_NS);
			media = tn_soft_media(r.s.soft);
			media[r.o.blocks * 512 - 1] = 1; /* of a backup of a partition table, or of a RAID's superblock */
			assert_int_equal(up(&r, false), 0);
			must(&r, tn_io_open(r.io, "store", TN_IO_CREATE, &r.file) == -EUCLEAN, "opened");
			media[510] = 0x55;
			media[r.o.blocks * 512 - 65536] = 1;
			lives_again(&r, true);
			must(&r, tn_nvme_engine_format(r.io) == 0, "not forced");
			for (uint64_t i = 0; i < r.o.blocks * 512; i++)
				any |= i < 2 * TN_VOLUME_PAGE && i % TN_VOLUME_PAGE < 512 ? 0 : media[i];
			must(&r, !any, "something is left");
			end(&r);
		}
	}
}

/* Its first commands are answered: they do not go to a queue that the controller has forgotten. */
static void a_pair_that_gets_its_user_after_a_reset_works_at_once(void **state)
{
	for (uint64_t i = 0; i < 20; i++) {
		struct tn_nvme_opts n = {.alloc = &tn_alloc_system, .queues = 2, .entries = 64, .admin_ns = 100 * STEP_NS};
		struct tn_nvme_engine_opts e = {.queue = 1, .alloc = &tn_alloc_system, .depth = SLOTS, .command_ns = COMMAND_NS};
		struct tn_nvme_engine_stats stats;
		struct rig r;

		setup(&r, tn_test_seed() + i);
		n.port = e.port = &r.s.port;
		n.clock = e.clock = &r.s.clock;
		must(&r, tn_nvme_create(&n, &r.nvme) == 0, "not up");
		must(&r, tn_nvme_restart(r.nvme, tn_nvme_generation(r.nvme)) == 0, "not reset");
		e.nvme = r.nvme;
		must(&r, tn_nvme_engine_create(&e, &r.io) == 0, "no engine");
		must(&r, tn_io_open(r.io, "store", TN_IO_CREATE, &r.file) == 0, "not made");
		tn_nvme_engine_stats(r.io, &stats);
		must(&r, stats.late == 0 && stats.resets == 0, "something was late");
		end(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_transfers_move_the_right_bytes),
		cmocka_unit_test(every_fault_ends_in_an_error_or_a_recovery),
		cmocka_unit_test(after_an_unplug_everything_fails_and_nothing_waits),
		cmocka_unit_test(a_controller_that_no_reset_brings_back_is_cut_off_and_nothing_waits),
		cmocka_unit_test(a_reset_while_nothing_is_under_way_costs_no_request),
		cmocka_unit_test(a_power_cut_while_it_grows_leaves_one_length_or_the_other),
		cmocka_unit_test(what_is_not_ours_is_refused_unless_forced),
		cmocka_unit_test(what_is_not_ours_is_named_if_it_is_known),
		cmocka_unit_test(memory_is_unmapped_when_all_have_unmapped_it_and_nothing_names_it),
		cmocka_unit_test(a_drive_that_was_ours_and_is_somebody_elses_is_refused),
		cmocka_unit_test(both_ends_are_looked_at_and_wiped_to_the_last_block),
		cmocka_unit_test(a_pair_that_gets_its_user_after_a_reset_works_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
