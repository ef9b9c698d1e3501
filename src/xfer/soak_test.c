/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lasts: requests by the thousand leave no memory behind, and peers that are killed in mid-transfer leave no byte outside their ranges, no descriptor and no
 * request. TN_SOAK=1: a million requests, a thousand peers.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>

#include "base/rng.h"
#include "peer_rig.h"

#define CYCLES 30000u
#define PAGE 4096u
#define BATCH 10u /* peers that one agent has; they are forked before it */
#define DESCRIPTORS (PEER_BYTES / (2 * PAGE)) /* every other page: those between are canaries */
enum { MY_CANARY = 0xc5, THEIR_CANARY = 0x3a }; /* of either side: a byte too many that is copied is seen */
#define GROWTH_BYTES (2u << 20)

static struct peer_message message;

static struct tn_xfer_agent *agent_new(const char *backend)
{
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;

	tn_xfer_agent_opts_init(&opts);
	opts.name = "test";
	opts.backends = &backend;
	opts.nbackends = 1;
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	return a;
}

/* Bytes of this process in memory. */
static uint64_t resident(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	unsigned long all, pages = 0;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu %lu", &all, &pages), 2);
	fclose(f);
	return (uint64_t)pages * PAGE;
}

static unsigned open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* ---- requests ---------------------------------------------------------------------------------------------------------- */

static void one_cycle(struct tn_xfer_agent *a, struct tn_xfer_list *const *list, struct tn_rng *rng)
{
	uint32_t index[16], n = 1 + tn_rng_below(rng, 16);
	struct tn_xfer_request *q;

	for (uint32_t i = 0; i < n; i++)
		index[i] = tn_rng_below(rng, 64);
	assert_int_equal(tn_xfer_request_create(a, (enum tn_xfer_op)tn_rng_below(rng, 2), list[0], index, list[1], index, n, NULL, &q), 0);
	assert_int_equal(tn_xfer_post(q, TN_FOREVER, "x", tn_rng_below(rng, 2) ? 1 : TN_XFER_NO_NOTIFICATION), 0);
	assert_int_equal(tn_xfer_wait(q, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_release(q), 0);
	while (tn_xfer_take(a, message.name, message.data, sizeof(message.data)) >= 0)
		;
}

static void a_million_requests_leave_memory_flat(void **state)
{
	static unsigned char memory[2][64 * 256];
	uint32_t cycles = tn_test_soak() ? 1000000 : CYCLES;
	struct tn_xfer_agent *a = agent_new("memory");
	struct tn_xfer_list *list[2];
	struct tn_rng rng;
	uint64_t before = 0, after;

	tn_rng_seed(&rng, tn_test_seed());
	for (unsigned i = 0; i < 2; i++) {
		struct tn_xfer_section s = {.address = (uintptr_t)memory[i], .bytes = sizeof(memory[i])};
		struct tn_xfer_run run = {.address = s.address, .bytes = 256, .stride = 256, .count = 64};

		assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
		assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &list[i]), 0);
	}
	for (uint32_t i = 0; i < cycles; i++) {
		one_cycle(a, list, &rng);
		if (i == cycles / 10)
			before = resident();
	}
	after = resident();
	printf("# %u requests: %lld KiB more\n", cycles, ((long long)after - (long long)before) / 1024);
	assert_true(TN_TEST_ADDRESS_SANITIZER || TN_TEST_THREAD_SANITIZER || after < before + GROWTH_BYTES);
	tn_xfer_list_destroy(list[0]);
	tn_xfer_list_destroy(list[1]);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

/* ---- peers that are killed --------------------------------------------------------------------------------------------- */

/* PEER_BYTES between two pages that nobody may touch; memfd: of one that is sealed. */
static unsigned char *guarded(bool memfd, int canary)
{
	unsigned char *base = mmap(NULL, PEER_BYTES + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = memfd ? memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING) : -1;

	assert_ptr_not_equal(base, MAP_FAILED);
	if (memfd)
		assert_true(ftruncate(fd, PEER_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	assert_ptr_equal(mmap(base + PAGE, PEER_BYTES, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED | (memfd ? 0 : MAP_ANONYMOUS), fd, 0), base + PAGE);
	memset(base + PAGE, canary, PEER_BYTES);
	return base + PAGE;
}

static void guarded_free(unsigned char *memory)
{
	munmap(memory - PAGE, PEER_BYTES + 2 * PAGE);
}

/* The descriptor of the memfd that is mapped there stays open in the test until now. */
static void close_memfds(unsigned before)
{
	for (int fd = 3; open_files() > before && fd < 1024; fd++) {
		char path[64], target[64] = {0};

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (readlink(path, target, sizeof(target) - 1) > 0 && !strncmp(target, "/memfd:test", 11))
			close(fd);
	}
}

static void fill(unsigned char *memory, unsigned salt)
{
	for (uint32_t d = 0; d < DESCRIPTORS; d++)
		memset(memory + d * 2ul * PAGE, (int)(d * 7 + salt) & 0xff, PAGE);
}

static void canaries_live(const unsigned char *memory, int with)
{
	static unsigned char canary[PAGE];

	memset(canary, with, PAGE);
	for (uint32_t d = 0; d < DESCRIPTORS; d++)
		assert_memory_equal(memory + (2ul * d + 1) * PAGE, canary, PAGE);
}

struct side {
	struct peer_process peer;
	struct tn_xfer_list *list;
	struct tn_xfer_request *request;
	unsigned char *local;
};

static struct tn_xfer_list *list_of(struct tn_xfer_agent *a, const char *peer, const unsigned char *memory)
{
	struct tn_xfer_run run = {.address = (uintptr_t)memory, .bytes = PAGE, .stride = 2 * PAGE, .count = DESCRIPTORS};
	struct tn_xfer_list *list;

	assert_int_equal(tn_test_ended(tn_xfer_list_create(a, peer, TN_XFER_DRAM, &run, 1, &list)), 0);
	return list;
}

/* Makes a request of the agent to the peer. */
static void connect_side(struct tn_xfer_agent *a, struct side *s, enum tn_xfer_op op)
{
	struct tn_xfer_list *local = list_of(a, NULL, s->local);

	assert_true(peer_ask(&s->peer, &message, 'm', 0) > 0);
	assert_int_equal(tn_test_ended(tn_xfer_load(a, message.data, message.bytes, NULL)), 0);
	s->list = list_of(a, s->peer.name, s->peer.memory);
	assert_int_equal(tn_test_ended(tn_xfer_request_create(a, op, local, NULL, s->list, NULL, 0, NULL, &s->request)), 0);
	tn_xfer_list_destroy(local);
}

/* What a request that was cut off says of itself: all has ended, and each descriptor is whole or has a cause. */
static void ended_with_a_cause(struct tn_xfer_request *q, int rc)
{
	struct tn_xfer_status st = {.size = sizeof(st)};
	struct tn_xfer_result r;

	assert_true(rc == 0 || rc == -ECONNRESET);
	assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_status(q, &st), 0);
	assert_int_equal(st.state, TN_XFER_ENDED);
	assert_int_equal(st.status, rc);
	for (uint32_t d = 0; d < DESCRIPTORS; d++) {
		assert_int_equal(tn_xfer_results(q, d, 1, &r), 0);
		assert_true(r.status == 0 ? r.bytes == PAGE : r.bytes < PAGE && r.status != -EINPROGRESS);
	}
}

/* Kills a peer some time after the post, while another peer's transfer goes on. Whether bytes were still moving. */
static bool kill_one(struct tn_xfer_agent *a, struct side *victim, struct side *other, struct tn_rng *rng)
{
	enum tn_xfer_op op = (enum tn_xfer_op)tn_rng_below(rng, 2);
	int rc;

	connect_side(a, victim, op);
	fill(op == TN_XFER_WRITE ? victim->local : victim->peer.memory, tn_rng_below(rng, 256));
	fill(other->local, tn_rng_below(rng, 256));
	assert_int_equal(tn_xfer_post(other->request, TN_FOREVER, NULL, TN_XFER_NO_NOTIFICATION), 0);
	assert_int_equal(tn_test_ended(tn_xfer_post(victim->request, TN_FOREVER, NULL, TN_XFER_NO_NOTIFICATION)), 0);
	usleep(tn_rng_below(rng, 3000));
	peer_end(&victim->peer, SIGKILL);
	rc = tn_xfer_wait(victim->request, tn_test_deadline());
	ended_with_a_cause(victim->request, rc);
	assert_int_equal(tn_test_ended(tn_xfer_wait(other->request, tn_test_deadline())), 0);
	for (uint32_t d = 0; d < DESCRIPTORS; d++)
		assert_memory_equal(other->local + d * 2ul * PAGE, other->peer.memory + d * 2ul * PAGE, PAGE);
	canaries_live(victim->local, MY_CANARY);
	canaries_live(victim->peer.memory, THEIR_CANARY);
	assert_int_equal(tn_xfer_release(victim->request), 0);
	tn_xfer_list_destroy(victim->list);
	assert_int_equal(tn_xfer_invalidate(a, victim->peer.name), 0);
	return rc != 0;
}

static unsigned kill_batch(unsigned n, struct tn_rng *rng)
{
	static char names[BATCH + 1][16];
	struct side side[BATCH + 1] = {0}, *other = &side[n];
	unsigned lost = 0, files = open_files();
	unsigned char *local[2] = {guarded(false, MY_CANARY), guarded(false, MY_CANARY)};
	struct tn_xfer_agent *a;

	for (unsigned i = 0; i <= n; i++) {
		bool memfd = i % 2;

		snprintf(names[i], sizeof(names[i]), "peer-%u", i);
		side[i] = (struct side){.peer = {.name = names[i], .backends = "memory", .memory = guarded(memfd, THEIR_CANARY), .meta = memfd ? "memfd" : NULL},
					.local = local[i == n]};
		peer_start(&side[i].peer);
	}
	a = agent_new("memory,inline_bytes=0,threads=2");
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &(struct tn_xfer_section){.address = (uintptr_t)local[i], .bytes = PEER_BYTES}, 1), 0);
	connect_side(a, other, TN_XFER_WRITE);
	for (unsigned i = 0; i < n; i++)
		lost += kill_one(a, &side[i], other, rng);
	canaries_live(other->local, MY_CANARY);
	canaries_live(other->peer.memory, THEIR_CANARY);
	assert_int_equal(tn_xfer_release(other->request), 0);
	tn_xfer_list_destroy(other->list);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	peer_end(&other->peer, 0);
	for (unsigned i = 0; i <= n; i++)
		guarded_free(side[i].peer.memory);
	guarded_free(local[0]);
	guarded_free(local[1]);
	close_memfds(files);
	assert_int_equal(open_files(), files);
	return lost;
}

static void peers_that_are_killed_harm_nobody(void **state)
{
	unsigned peers = tn_test_soak() ? 1000 : BATCH, killed = 0, lost = 0;
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	/* Which of them die in mid-transfer is chance, more so on a busy machine: some have to. */
	for (; killed < peers || (lost == 0 && killed < 10 * BATCH); killed += BATCH)
		lost += kill_batch(BATCH, &rng);
	printf("# %u peers killed, %u in mid-transfer\n", killed, lost);
	assert_true(lost);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(peers_that_are_killed_harm_nobody),
		cmocka_unit_test(a_million_requests_leave_memory_flat),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
