/* SPDX-License-Identifier: Apache-2.0 */
/* Agents of two processes: metadata, transfers, notifications, and peers that die, stop or come back. */
#include "peer_rig.h"

static struct peer_message message;

static struct tn_xfer_agent *agent_new(const char *backends, const char *secret)
{
	const char *specs[] = {backends};
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;

	tn_xfer_agent_opts_init(&opts);
	opts.name = "test";
	opts.backends = specs;
	opts.nbackends = 1;
	opts.secret = secret;
	opts.secret_bytes = secret ? strlen(secret) : 0;
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	return a;
}

/* An agent of the test, a peer, and a request that moves all of the peer's memory. */
struct pair {
	struct peer_process peer;
	struct tn_xfer_agent *agent;
	unsigned char *memory;
	struct tn_xfer_list *local, *remote;
	struct tn_xfer_request *request;
};

static void load_peer(struct pair *p)
{
	char name[TN_XFER_NAME_BYTES];

	assert_true(peer_ask(&p->peer, &message, 'm', 0) > 0);
	assert_int_equal(tn_xfer_load(p->agent, message.data, message.bytes, name), 0);
	assert_string_equal(name, p->peer.name);
}

static void make_lists(struct pair *p)
{
	struct tn_xfer_run here = {.address = (uintptr_t)p->memory, .bytes = 4096, .stride = 4096, .count = PEER_BYTES / 4096};
	struct tn_xfer_run there = here;

	there.address = (uintptr_t)p->peer.memory;
	assert_int_equal(tn_xfer_list_create(p->agent, NULL, TN_XFER_DRAM, &here, 1, &p->local), 0);
	assert_int_equal(tn_xfer_list_create(p->agent, p->peer.name, TN_XFER_DRAM, &there, 1, &p->remote), 0);
}

static void pair_new(struct pair *p, const char *backends)
{
	struct tn_xfer_section s = {.bytes = PEER_BYTES};

	*p = (struct pair){.peer = {.name = "peer", .backends = backends}};
	peer_start(&p->peer);
	p->memory = mmap(NULL, PEER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(p->memory, MAP_FAILED);
	p->agent = agent_new(backends, NULL);
	s.address = (uintptr_t)p->memory;
	assert_int_equal(tn_xfer_register(p->agent, TN_XFER_DRAM, &s, 1), 0);
	load_peer(p);
	make_lists(p);
}

static void make_request(struct pair *p, enum tn_xfer_op op)
{
	assert_int_equal(tn_xfer_request_create(p->agent, op, p->local, NULL, p->remote, NULL, 0, NULL, &p->request), 0);
}

static void pair_free(struct pair *p, int sig)
{
	tn_xfer_list_destroy(p->local);
	tn_xfer_list_destroy(p->remote);
	assert_int_equal(tn_xfer_release(p->request), 0);
	assert_int_equal(tn_xfer_agent_destroy(p->agent), 0);
	if (sig >= 0)
		peer_end(&p->peer, sig);
	munmap(p->memory, PEER_BYTES);
	munmap(p->peer.memory, PEER_BYTES);
}

static void fill(unsigned char *to, size_t bytes, unsigned salt)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = (unsigned char)(i * 31 + i / 4096 + salt);
}

static void a_write_arrives_before_its_notification(void **state)
{
	struct pair p;

	pair_new(&p, "memory");
	make_request(&p, TN_XFER_WRITE);
	for (unsigned i = 0; i < 3; i++) {
		fill(p.memory, PEER_BYTES, i);
		assert_int_equal(tn_xfer_post(p.request, tn_test_deadline(), "written", 7), 0);
		assert_int_equal(peer_ask(&p.peer, &message, 'n', 0), 7);
		assert_memory_equal(message.data, "written", 7);
		assert_string_equal(message.name, "test");
		assert_memory_equal(p.peer.memory, p.memory, PEER_BYTES);
		assert_int_equal(tn_xfer_wait(p.request, tn_test_deadline()), 0);
	}
	pair_free(&p, 0);
}

static void a_read_brings_the_peers_bytes(void **state)
{
	struct pair p;

	pair_new(&p, "memory");
	make_request(&p, TN_XFER_READ);
	fill(p.peer.memory, PEER_BYTES, 7);
	assert_int_equal(tn_xfer_post(p.request, tn_test_deadline(), NULL, 0), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), 0);
	assert_memory_equal(p.memory, p.peer.memory, PEER_BYTES);
	assert_int_equal(peer_ask(&p.peer, &message, 'n', 0), 0);
	pair_free(&p, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_write_arrives_before_its_notification),
		cmocka_unit_test(a_read_brings_the_peers_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
