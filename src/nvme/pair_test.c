/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads with a pair of queues each, on one controller that fails: whoever notices resets it, and the others learn of it by themselves. Each
 * request ends, what it says is true, and the controller finds nothing wrong with how it is driven.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "lab/soft_rig.h"
#include "nvme/engine.h"
#include "tn_test.h"

#define SIDES 3u
#define ROUNDS 300u
#define REQUESTS 8u
#define BLOCK 4096u
#define RANGE_BLOCKS 512u
#define COMMAND_NS 20000000000ull /* nothing is late but what was sent to a queue that the controller does not know */

struct side {
	struct tn_nvme *nvme;
	const struct tn_nvme_port *port;
	uint32_t queue, good, bad, wrong;
	struct tn_nvme_engine_stats stats;
	pthread_t thread;
};

/* Opening and allocating fail with the controller, too: they are tried until it has not failed meanwhile. */
static void make_file(struct tn_io *io, uint32_t *file)
{
	int rc;

	do
		rc = tn_io_open(io, "store", TN_IO_CREATE, file);
	while (rc == -EIO);
	assert_int_equal(rc, 0);
	do
		rc = tn_io_allocate(io, *file, 0, REQUESTS * BLOCK);
	while (rc == -EIO);
	assert_int_equal(rc, 0);
}

/* Writes to all blocks, and then reads of them, straight to memory that each round maps and unmaps. */
static void one_round(struct side *s, struct tn_io *io, uint32_t file, uint32_t round, unsigned char *memory)
{
	static __thread unsigned char known[REQUESTS];
	struct tn_io_req req[REQUESTS], *one[REQUESTS], *done[REQUESTS];
	struct iovec iov[REQUESTS];
	bool writes = round % 2 == 0;
	uint32_t out = REQUESTS;

	assert_int_equal(tn_io_map(io, memory, REQUESTS * BLOCK), 0);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		iov[i] = (struct iovec){memory + i * BLOCK, BLOCK};
		req[i] = (struct tn_io_req){.op = writes ? TN_IO_WRITE : TN_IO_READ, .file = file, .offset = i * BLOCK, .length = BLOCK, .iov = &iov[i], .iov_count = 1};
		memset(iov[i].iov_base, writes ? (int)(1 + (round + i) % 200) : 0xff, BLOCK);
		one[i] = &req[i];
	}
	assert_int_equal(tn_io_submit(io, one, REQUESTS), REQUESTS);
	while (out)
		out -= tn_io_poll(io, done, REQUESTS, UINT64_MAX);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		const unsigned char *at = memory + i * BLOCK;

		s->good += req[i].status == 0;
		s->bad += req[i].status != 0;
		if (writes)
			known[i] = req[i].status ? 0 : at[0];
		else if (req[i].status == 0 && known[i])
			s->wrong += at[0] != known[i] || memcmp(at, at + 1, BLOCK - 1);
	}
	tn_io_unmap(io, memory, REQUESTS * BLOCK);
}

static void *side_main(void *arg)
{
	struct side *s = arg;
	const struct tn_nvme_engine_opts o = {.nvme = s->nvme, .port = s->port, .queue = s->queue, .first = s->queue * RANGE_BLOCKS, .blocks = RANGE_BLOCKS,
					      .command_ns = COMMAND_NS, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
	unsigned char *memory = mmap(NULL, REQUESTS * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct tn_io *io;
	uint32_t file;
	int rc;

	assert_true(memory != MAP_FAILED);
	do
		rc = tn_nvme_engine_create(&o, &io);
	while (rc == -EIO || rc == -ETIMEDOUT || rc == -EREMOTEIO);
	assert_int_equal(rc, 0);
	make_file(io, &file);
	for (uint32_t round = 0; round < ROUNDS; round++)
		one_round(s, io, file, round, memory);
	tn_nvme_engine_stats(io, &s->stats);
	tn_io_destroy(io);
	munmap(memory, REQUESTS * BLOCK);
	return NULL;
}

static void threads_with_a_pair_each_go_on_when_one_of_them_resets_the_controller(void **state)
{
	struct tn_nvme_opts o = {.alloc = &tn_alloc_system, .clock = &tn_clock_system, .queues = SIDES, .entries = 32, .admin_ns = COMMAND_NS};
	static struct side side[SIDES];
	struct tn_soft_opts so;
	struct tn_soft *soft;
	uint64_t resets = 0, good = 0, bad = 0;

	tn_soft_opts_init(&so);
	so.block_bytes = BLOCK;
	so.blocks = SIDES * RANGE_BLOCKS;
	so.seed = tn_test_seed();
	so.sgl = 1;
	so.steps = 8;
	so.cache = true;
	assert_int_equal(tn_soft_create(&so, &soft), 0);
	o.port = tn_soft_port(soft);
	assert_int_equal(tn_nvme_create(&o, &side[0].nvme), 0);
	tn_soft_fault(soft, &(struct tn_soft_chances){.error = 200, .twice = 500, .fatal = 400});
	assert_int_equal(tn_soft_start(soft), 0);
	for (uint32_t i = 0; i < SIDES; i++) {
		side[i] = (struct side){.nvme = side[0].nvme, .port = o.port, .queue = i};
		assert_int_equal(pthread_create(&side[i].thread, NULL, side_main, &side[i]), 0);
	}
	for (uint32_t i = 0; i < SIDES; i++) {
		assert_int_equal(pthread_join(side[i].thread, NULL), 0);
		assert_int_equal(side[i].wrong, 0);
		assert_int_equal(side[i].stats.late, 0);
		good += side[i].good;
		bad += side[i].bad;
		resets += side[i].stats.resets;
	}
	tn_soft_stop(soft);
	tn_soft_fault(soft, &(struct tn_soft_chances){0});
	tn_nvme_destroy(side[0].nvme);
	printf("# %llu requests moved their bytes, %llu did not; %llu resets\n", (unsigned long long)good, (unsigned long long)bad, (unsigned long long)resets);
	assert_true(resets > 0 && bad > 0 && good > bad);
	soft_rig_no_findings(soft);
	tn_soft_destroy(soft);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_with_a_pair_each_go_on_when_one_of_them_resets_the_controller),
	};

	return cmocka_run_group_tests_name("nvme-pair", tests, NULL, NULL);
}
