/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that comes and goes over UCX's verbs: each round maps buffers, registers them, moves them to a peer, and unmaps them. Prints how much unmapped memory UCX
 * still holds: what the kernel counts as pinned (VmPin), above what it needs for itself, which the first transfer shows. No verdict: verbs.py has it.
 */
#include "peer_rig.h"

#define ROUNDS 4u
#define BUFFERS 16u
#define BUFFER (1u << 20)

static struct peer_message message;

/* VmPin in KiB. */
static unsigned long pinned(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	unsigned long kib = 0;
	char line[256];

	assert_non_null(f);
	while (fgets(line, sizeof(line), f) && sscanf(line, "VmPin: %lu", &kib) != 1)
		;
	fclose(f);
	return kib;
}

static struct tn_xfer_section section_of(unsigned char *memory)
{
	return (struct tn_xfer_section){.address = (uintptr_t)memory, .bytes = BUFFER};
}

static void move(struct tn_xfer_agent *a, unsigned char *memory, const struct peer_process *peer)
{
	struct tn_xfer_run here = {.address = (uintptr_t)memory, .bytes = BUFFER, .count = 1}, there = here;
	struct tn_xfer_list *local, *remote;
	struct tn_xfer_request *q;

	there.address = (uintptr_t)peer->memory;
	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &here, 1, &local), 0);
	assert_int_equal(tn_xfer_list_create(a, "peer", TN_XFER_DRAM, &there, 1, &remote), 0);
	assert_int_equal(tn_xfer_request_create(a, TN_XFER_WRITE, local, NULL, remote, NULL, 0, NULL, &q), 0);
	assert_int_equal(tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), 0);
	assert_memory_equal(peer->memory, memory, BUFFER);
	assert_int_equal(tn_xfer_release(q), 0);
	tn_xfer_list_destroy(local);
	tn_xfer_list_destroy(remote);
}

static void run_round(struct tn_xfer_agent *a, const struct peer_process *peer, unsigned round)
{
	unsigned char *memory[BUFFERS];
	struct tn_xfer_section s;

	for (unsigned i = 0; i < BUFFERS; i++) {
		memory[i] = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert_ptr_not_equal(memory[i], MAP_FAILED);
		memset(memory[i], (int)(round * BUFFERS + i), BUFFER);
		s = section_of(memory[i]);
		assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
		move(a, memory[i], peer);
	}
	for (unsigned i = 0; i < BUFFERS; i++) {
		s = section_of(memory[i]);
		assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, &s, 1, tn_test_deadline()), 0);
	}
	for (unsigned i = 0; i < BUFFERS; i++)
		munmap(memory[i], BUFFER);
}

static void memory_comes_and_goes(void **state)
{
	struct peer_process peer = {.name = "peer", .backends = "ucx"};
	const char *backend = "ucx";
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;
	unsigned char *first = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct tn_xfer_section s = section_of(first);
	unsigned long before;

	assert_ptr_not_equal(first, MAP_FAILED);
	peer_start(&peer);
	tn_xfer_agent_opts_init(&opts);
	opts.name = "churn";
	opts.backends = &backend;
	opts.nbackends = 1;
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
	assert_true(peer_ask(&peer, &message, 'm', 0) > 0);
	assert_int_equal(tn_xfer_load(a, message.data, message.bytes, NULL), 0);
	move(a, first, &peer);
	before = pinned();
	for (unsigned i = 0; i < ROUNDS; i++) {
		run_round(a, &peer, i);
		printf("# round %u: %lu KiB are pinned, %lu before\n", i, pinned(), before);
	}
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	peer_end(&peer, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(memory_comes_and_goes)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
