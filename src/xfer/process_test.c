/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agents of two processes: metadata, transfers, notifications, and peers that die, stop or come back. The argument is the backend; without one it is memory.
 */
#include "peer_rig.h"

static const char *backend = "memory";
static struct peer_message message;

static bool is_memory(void)
{
	return !strcmp(backend, "memory");
}

/* The backend with faults. */
static const char *faulty(const char *faults)
{
	static char spec[128];

	snprintf(spec, sizeof(spec), "faulty,over=%s,%s", backend, faults);
	return spec;
}

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
	struct peer_process peer, next; /* next: of the same name, for later */
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
	p->next = p->peer;
	peer_fork(&p->next);
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
	if (p->next.pid != p->peer.pid)
		peer_end(&p->next, SIGKILL);
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

	pair_new(&p, backend);
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

	pair_new(&p, backend);
	make_request(&p, TN_XFER_READ);
	fill(p.peer.memory, PEER_BYTES, 7);
	assert_int_equal(tn_xfer_post(p.request, tn_test_deadline(), NULL, 0), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), 0);
	assert_memory_equal(p.memory, p.peer.memory, PEER_BYTES);
	assert_int_equal(peer_ask(&p.peer, &message, 'n', 0), 0);
	pair_free(&p, 0);
}

static uint32_t peer_state(const struct pair *p)
{
	struct tn_xfer_peer_info info = {.size = sizeof(info)};

	assert_int_equal(tn_xfer_peer(p->agent, p->peer.name, &info), 0);
	return info.state;
}

static int post(const struct pair *p, uint64_t deadline_ns)
{
	return tn_xfer_post(p->request, deadline_ns, NULL, TN_XFER_NO_NOTIFICATION);
}

static int try_request(struct pair *p)
{
	struct tn_xfer_request *q;

	return tn_xfer_request_create(p->agent, TN_XFER_WRITE, p->local, NULL, p->remote, NULL, 0, NULL, &q);
}

static void a_peer_that_is_killed_ends_its_requests(void **state)
{
	struct pair p;

	pair_new(&p, faulty("drop=100"));
	assert_int_equal(peer_state(&p), TN_XFER_PEER_LOADED);
	make_request(&p, TN_XFER_WRITE);
	assert_int_equal(peer_state(&p), TN_XFER_PEER_CONNECTED);
	assert_int_equal(post(&p, TN_FOREVER), 0);
	assert_int_equal(tn_xfer_wait(p.request, tn_test_now() + 10000000), -EAGAIN);
	peer_end(&p.peer, SIGKILL);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), -ECONNRESET);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_deadline()), 0);
	assert_int_equal(peer_state(&p), TN_XFER_PEER_LOST);
	assert_int_equal(post(&p, TN_FOREVER), -ECONNRESET);
	assert_int_equal(try_request(&p), -ECONNRESET);
	assert_int_equal(tn_xfer_notify(p.agent, "peer", "x", 1), -ECONNRESET);
	pair_free(&p, -1);
}

static void a_child_of_a_peer_does_not_keep_it_alive(void **state)
{
	struct pair p;
	pid_t child;

	pair_new(&p, faulty("drop=100"));
	make_request(&p, TN_XFER_WRITE);
	assert_int_equal(post(&p, TN_FOREVER), 0);
	child = (pid_t)peer_ask(&p.peer, &message, 'f', 0);
	assert_true(child > 0);
	peer_end(&p.peer, SIGKILL);
	assert_int_equal(tn_xfer_wait(p.request, tn_test_now() + 5 * TN_TEST_SECOND), -ECONNRESET);
	kill(child, SIGKILL);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_deadline()), 0);
	pair_free(&p, -1);
}

static void a_peer_that_is_killed_while_bytes_move_ends_its_requests(void **state)
{
	unsigned lost = 0;

	for (unsigned i = 0; i < (is_memory() ? 10 : 3); i++) {
		struct pair p;
		int rc;

		pair_new(&p, is_memory() ? "memory,inline_bytes=0" : backend);
		make_request(&p, i % 2 ? TN_XFER_READ : TN_XFER_WRITE);
		assert_int_equal(post(&p, TN_FOREVER), 0);
		usleep(100 * i);
		peer_end(&p.peer, SIGKILL);
		rc = tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline()));
		assert_true(rc == 0 || rc == -ECONNRESET);
		lost += rc != 0;
		assert_int_equal(tn_xfer_cancel(p.request, tn_test_deadline()), 0);
		pair_free(&p, -1);
	}
	printf("# %u transfers were cut\n", lost);
}

static void a_peer_that_is_stopped_is_given_up_at_the_deadline(void **state)
{
	struct pair p;

	if (!is_memory())
		tn_test_skip("memory alone moves bytes without the peer's process");
	pair_new(&p, backend);
	peer_stop(&p.peer);
	assert_int_equal(tn_xfer_connect(p.agent, "peer", tn_test_now() + 50000000), -ETIMEDOUT);
	kill(p.peer.pid, SIGCONT);
	make_request(&p, TN_XFER_WRITE);
	peer_stop(&p.peer);
	fill(p.memory, PEER_BYTES, 5);
	/* Its memory can be written although it is stopped; nobody waits for it. */
	assert_int_equal(tn_xfer_post(p.request, tn_test_deadline(), "later", 5), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), 0);
	assert_memory_equal(p.peer.memory, p.memory, PEER_BYTES);
	kill(p.peer.pid, SIGCONT);
	assert_int_equal(peer_ask(&p.peer, &message, 'n', 0), 5);
	pair_free(&p, 0);
}

static void notifications_of_a_stopped_peer_wait_until_the_deadline(void **state)
{
	static char big[TN_XFER_NOTIFICATION_MAX];
	struct tn_xfer_request_opts opts;
	struct pair p;
	int rc;

	pair_new(&p, backend);
	tn_xfer_request_opts_init(&opts);
	opts.notification_bytes = sizeof(big);
	assert_int_equal(tn_xfer_request_create(p.agent, TN_XFER_WRITE, p.local, NULL, p.remote, NULL, 0, &opts, &p.request), 0);
	peer_stop(&p.peer);
	/* The kernel takes some of them, now and a little later. */
	for (unsigned full = 0; full < 5; usleep(5000)) {
		rc = tn_xfer_notify(p.agent, "peer", big, sizeof(big));
		assert_true(rc == 0 || rc == -EAGAIN);
		full = rc ? full + 1 : 0;
	}
	assert_int_equal(tn_xfer_post(p.request, tn_test_now() + 100000000, big, sizeof(big)), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, TN_FOREVER) == -ETIMEDOUT ? 0 : -1), 0);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_deadline()), 0); /* a slow machine still copies, and some backends wait for the peer */
	assert_int_equal(tn_xfer_release(p.request), 0);
	p.request = NULL;
	kill(p.peer.pid, SIGCONT);
	pair_free(&p, SIGKILL);
}

static void a_peer_that_came_back_is_another_generation(void **state)
{
	static unsigned char old[PEER_MESSAGE];
	struct tn_xfer_request *q;
	struct tn_xfer_list *list;
	struct peer_process was;
	struct pair p;
	uint32_t bytes;
	struct tn_xfer_run run = {.bytes = 64, .count = 1};

	pair_new(&p, faulty("drop=100"));
	bytes = message.bytes;
	memcpy(old, message.data, bytes);
	make_request(&p, TN_XFER_WRITE);
	assert_int_equal(post(&p, TN_FOREVER), 0);
	was = p.peer;
	p.peer = p.next;
	peer_begin(&p.peer);
	load_peer(&p); /* the other one still lives */
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), -ESTALE);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_deadline()), 0);
	peer_end(&was, SIGKILL);
	assert_int_equal(post(&p, TN_FOREVER), -ESTALE);
	assert_int_equal(try_request(&p), -ESTALE);
	assert_int_equal(tn_xfer_load(p.agent, old, bytes, NULL), -ESTALE);
	run.address = (uintptr_t)p.peer.memory;
	assert_int_equal(tn_xfer_list_create(p.agent, "peer", TN_XFER_DRAM, &run, 1, &list), 0);
	assert_int_equal(tn_xfer_request_create(p.agent, TN_XFER_READ, list, NULL, list, NULL, 0, NULL, &q), -EINVAL);
	tn_xfer_list_destroy(list);
	pair_free(&p, 0);
}

static void an_old_address_does_not_reach_a_new_agent(void **state)
{
	struct pair p = {.peer = {.name = "peer", .backends = backend, .listen = "unix:@tn-xfer-test-same"}};

	peer_start(&p.peer);
	p.next = p.peer;
	peer_fork(&p.next);
	p.agent = agent_new(backend, NULL);
	load_peer(&p);
	peer_end(&p.peer, SIGKILL);
	p.peer = p.next;
	peer_begin(&p.peer);
	assert_true(peer_ask(&p.peer, &message, 'm', 0) > 0);
	assert_int_equal(tn_xfer_connect(p.agent, "peer", tn_test_deadline()), -ESTALE);
	assert_int_equal(tn_xfer_load(p.agent, message.data, message.bytes, NULL), 0);
	assert_int_equal(tn_xfer_connect(p.agent, "peer", tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_agent_destroy(p.agent), 0);
	peer_end(&p.peer, 0);
	munmap(p.peer.memory, PEER_BYTES);
}

static void an_invalidated_peer_ends_its_requests(void **state)
{
	struct pair p;

	pair_new(&p, faulty("drop=100"));
	make_request(&p, TN_XFER_WRITE);
	assert_int_equal(post(&p, TN_FOREVER), 0);
	assert_int_equal(tn_xfer_invalidate(p.agent, "peer"), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), -ESTALE);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_invalidate(p.agent, "peer"), -ENOENT);
	assert_int_equal(post(&p, TN_FOREVER), -ESTALE);
	load_peer(&p);
	assert_int_equal(post(&p, TN_FOREVER), -ESTALE);
	pair_free(&p, 0);
}

static void a_peer_waits_for_transfers_into_what_it_deregisters(void **state)
{
	struct pair p;

	pair_new(&p, faulty("delay=100,delay_us=1000000"));
	make_request(&p, TN_XFER_WRITE);
	fill(p.memory, PEER_BYTES, 9);
	assert_int_equal(post(&p, tn_test_deadline()), 0);
	assert_int_equal(peer_ask(&p.peer, &message, 'd', 0), -EBUSY);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), 0);
	assert_memory_equal(p.peer.memory, p.memory, PEER_BYTES);
	assert_int_equal(peer_ask(&p.peer, &message, 'd', 0), 0);
	memset(p.peer.memory, 0, PEER_BYTES);
	assert_int_equal(post(&p, tn_test_deadline()), -ESTALE);
	assert_int_equal(try_request(&p), -ESTALE);
	assert_int_equal(peer_ask(&p.peer, &message, 'd', 0), -ENOENT);
	for (unsigned i = 0; i < PEER_BYTES; i += 4096)
		assert_int_equal(p.peer.memory[i], 0);
	assert_int_equal(peer_ask(&p.peer, &message, 'a', 0), 0);
	load_peer(&p);
	assert_int_equal(try_request(&p), -ESTALE); /* the same range, but registered anew */
	pair_free(&p, 0);
}

static void what_was_deregistered_before_the_connection_is_not_used(void **state)
{
	struct pair p;

	pair_new(&p, backend);
	assert_int_equal(peer_ask(&p.peer, &message, 'd', 0), 0);
	assert_int_equal(try_request(&p), -ESTALE);
	pair_free(&p, 0);
}

static void partial_metadata_does_not_hide_what_was_deregistered(void **state)
{
	struct pair p;

	pair_new(&p, backend);
	assert_int_equal(peer_ask(&p.peer, &message, 'd', 0), 0);
	assert_true(peer_ask(&p.peer, &message, 'p', 0) > 0);
	assert_int_equal(tn_xfer_load(p.agent, message.data, message.bytes, NULL), 0);
	assert_int_equal(try_request(&p), -ESTALE);
	pair_free(&p, 0);
}

static void a_stopped_user_of_a_section_keeps_it_busy(void **state)
{
	struct tn_xfer_section s = {.bytes = PEER_BYTES};
	struct tn_xfer_run run = {.bytes = 64, .count = 1};
	struct tn_xfer_list *list;
	struct pair p;

	pair_new(&p, backend);
	s.address = run.address = (uintptr_t)p.memory;
	message.bytes = (uint32_t)tn_xfer_metadata(p.agent, TN_XFER_DRAM, NULL, 0, message.data, sizeof(message.data));
	assert_int_equal(peer_ask(&p.peer, &message, 'l', message.bytes), 0);
	snprintf(message.name, sizeof(message.name), "test");
	assert_int_equal(peer_ask(&p.peer, &message, 't', 0), 0);
	peer_stop(&p.peer);
	assert_int_equal(tn_xfer_deregister(p.agent, TN_XFER_DRAM, &s, 1, tn_test_now() + 30000000), -EBUSY);
	assert_int_equal(tn_xfer_register(p.agent, TN_XFER_DRAM, &s, 1), -EBUSY);
	assert_int_equal(tn_xfer_list_create(p.agent, NULL, TN_XFER_DRAM, &run, 1, &list), -ENOENT);
	kill(p.peer.pid, SIGCONT);
	assert_int_equal(tn_xfer_deregister(p.agent, TN_XFER_DRAM, &s, 1, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_register(p.agent, TN_XFER_DRAM, &s, 1), 0);
	peer_stop(&p.peer);
	assert_int_equal(tn_xfer_deregister(p.agent, TN_XFER_DRAM, &s, 1, tn_test_now() + 1000000), -EBUSY);
	peer_end(&p.peer, SIGKILL);
	assert_int_equal(tn_xfer_deregister(p.agent, TN_XFER_DRAM, &s, 1, tn_test_deadline()), 0);
	pair_free(&p, -1);
}

static void a_deregister_that_is_tried_again_counts_once(void **state)
{
	struct tn_xfer_section s[2] = {{.bytes = 4096}, {.bytes = PEER_BYTES}};
	struct pair p;

	pair_new(&p, backend);
	s[0].address = s[1].address = (uintptr_t)p.memory;
	for (unsigned users = 0; users < 2; users++)
		assert_int_equal(tn_xfer_register(p.agent, TN_XFER_DRAM, s, 1), 0);
	message.bytes = (uint32_t)tn_xfer_metadata(p.agent, TN_XFER_DRAM, NULL, 0, message.data, sizeof(message.data));
	assert_int_equal(peer_ask(&p.peer, &message, 'l', message.bytes), 0);
	snprintf(message.name, sizeof(message.name), "test");
	assert_int_equal(peer_ask(&p.peer, &message, 't', 0), 0);
	peer_stop(&p.peer);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(tn_xfer_deregister(p.agent, TN_XFER_DRAM, s, 2, tn_test_now() + 1000000), -EBUSY);
	kill(p.peer.pid, SIGCONT);
	assert_int_equal(tn_xfer_deregister(p.agent, TN_XFER_DRAM, s, 2, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_deregister(p.agent, TN_XFER_DRAM, s, 1, tn_test_deadline()), 0); /* the other user's */
	assert_int_equal(tn_xfer_deregister(p.agent, TN_XFER_DRAM, s, 1, tn_test_deadline()), -ENOENT);
	pair_free(&p, 0);
}

/* The peer sends more than this agent's queue takes, and then confirms behind it. */
static void a_full_queue_of_notifications_does_not_hold_up_a_deregister(void **state)
{
	struct tn_xfer_section s = {.bytes = PEER_BYTES};
	struct pair p;
	uint64_t until = tn_test_deadline();
	uint32_t sent = 0, taken = 0;
	int64_t rc = 0;

	pair_new(&p, backend);
	s.address = (uintptr_t)p.memory;
	message.bytes = (uint32_t)tn_xfer_metadata(p.agent, TN_XFER_DRAM, NULL, 0, message.data, sizeof(message.data));
	assert_int_equal(peer_ask(&p.peer, &message, 'l', message.bytes), 0);
	for (unsigned full = 0; full < 20 && sent < 200000; full = rc ? full + 1 : 0) {
		snprintf(message.name, sizeof(message.name), "test");
		rc = peer_ask(&p.peer, &message, 't', 100);
		assert_true(rc == 0 || rc == -EAGAIN);
		sent += rc == 0;
		if (rc)
			usleep(1000);
	}
	assert_int_equal(rc, -EAGAIN);
	assert_int_equal(tn_xfer_deregister(p.agent, TN_XFER_DRAM, &s, 1, tn_test_now() + 5 * TN_TEST_SECOND), 0);
	while (taken < sent && tn_test_now() < until)
		taken += tn_xfer_take(p.agent, message.name, message.data, sizeof(message.data)) == 100;
	assert_int_equal(taken, sent);
	pair_free(&p, 0);
}

static void a_peer_that_forgets_waits_for_its_transfers_too(void **state)
{
	struct pair p;

	pair_new(&p, faulty("linger_us=1000000"));
	make_request(&p, TN_XFER_WRITE);
	assert_int_equal(post(&p, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_invalidate(p.agent, "peer"), 0);
	usleep(10000); /* the connection would be closed by now */
	assert_int_equal(peer_ask(&p.peer, &message, 'd', 0), -EBUSY);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_deadline()), 0);
	assert_int_equal(peer_ask(&p.peer, &message, 'd', 0), 0);
	pair_free(&p, 0);
}

static void agents_with_one_secret_find_each_other_by_tcp(void **state)
{
	struct peer_process peer = {.name = "far", .backends = backend, .listen = "tcp::0", .secret = "a secret of two agents"};
	struct tn_xfer_agent *a, *other, *none;
	char name[TN_XFER_NAME_BYTES], address[64];
	unsigned char *at;

	peer_start(&peer);
	assert_true(peer_ask(&peer, &message, 'm', 0) > 0);
	at = memmem(message.data, message.bytes, "tcp:127.0.0.1:", 14);
	assert_non_null(at);
	snprintf(address, sizeof(address), "%.*s", (int)(strspn((char *)at + 14, "0123456789") + 14), (char *)at);
	a = agent_new(backend, peer.secret);
	assert_int_equal(tn_xfer_fetch(a, address, tn_test_deadline(), name), 0);
	assert_string_equal(name, "far");
	assert_int_equal(tn_xfer_connect(a, "far", tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_notify(a, "far", "by tcp", 6), 0);
	assert_int_equal(peer_ask(&peer, &message, 'n', 0), 6);
	other = agent_new(backend, "another secret of agents");
	assert_int_equal(tn_xfer_fetch(other, address, tn_test_deadline(), name), -EACCES);
	none = agent_new(backend, NULL);
	assert_int_equal(tn_xfer_fetch(none, address, tn_test_deadline(), name), -EINVAL);
	assert_int_equal(tn_xfer_fetch(a, "tcp:127.0.0.1:1", tn_test_deadline(), name), -ECONNREFUSED);
	assert_int_equal(tn_xfer_fetch(a, "unix:@nobody-listens-here", tn_test_deadline(), name), -ECONNREFUSED);
	assert_int_equal(tn_xfer_fetch(a, "udp:1", tn_test_deadline(), name), -EINVAL);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(other), 0);
	assert_int_equal(tn_xfer_agent_destroy(none), 0);
	peer_end(&peer, 0);
	munmap(peer.memory, PEER_BYTES);
}

static void many_notifications_arrive_in_their_order(void **state)
{
	struct pair p;
	uint32_t sent = 0;

	pair_new(&p, backend);
	while (sent < 10000 && tn_xfer_notify(p.agent, "peer", &sent, sizeof(sent)) == 0)
		sent++;
	assert_true(sent > 4096); /* more than the peer's queue takes */
	for (uint32_t k = 0; k < sent; k++) {
		assert_int_equal(peer_ask(&p.peer, &message, 'n', 0), sizeof(k));
		assert_memory_equal(message.data, &k, sizeof(k));
	}
	assert_int_equal(tn_xfer_notify(p.agent, "peer", message.data, TN_XFER_NOTIFICATION_MAX + 1), -EINVAL);
	assert_int_equal(tn_xfer_notify(p.agent, "nobody", "x", 1), -ENOENT);
	pair_free(&p, 0);
}

static void memory_that_is_not_there_fails_its_own_descriptors(void **state)
{
	struct tn_xfer_result result[PEER_BYTES / 4096];
	struct pair p;

	if (!is_memory())
		tn_test_skip("others take it that registered memory stays mapped");
	pair_new(&p, backend);
	make_request(&p, TN_XFER_WRITE);
	/* A hole in this process: reading it is EFAULT. */
	munmap(p.memory + PEER_BYTES / 2, 4096);
	assert_int_equal(post(&p, tn_test_deadline()), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), -EFAULT);
	assert_non_null(strstr(tn_error_last()->text, "descriptor 1024"));
	assert_int_equal(tn_xfer_results(p.request, 0, PEER_BYTES / 4096, result), 0);
	for (unsigned i = 0; i < PEER_BYTES / 4096; i++)
		assert_int_equal(result[i].status, i == PEER_BYTES / 8192 ? -EFAULT : 0);
	pair_free(&p, 0);
}

/* The first half of the peer's memory. */
static void make_half_request(struct pair *p)
{
	uint32_t index[PEER_BYTES / 8192];

	for (uint32_t i = 0; i < PEER_BYTES / 8192; i++)
		index[i] = i;
	assert_int_equal(tn_xfer_request_create(p->agent, TN_XFER_WRITE, p->local, index, p->remote, index, PEER_BYTES / 8192, NULL, &p->request), 0);
}

/* Every byte is as it was, or what fill with salt 3 wrote; the second half is as it was. */
static void check_late_bytes(const struct pair *p)
{
	fill(p->memory, PEER_BYTES, 3);
	for (size_t i = 0; i < PEER_BYTES; i++)
		if (p->peer.memory[i] != 0xee && (i >= PEER_BYTES / 2 || p->peer.memory[i] != p->memory[i]))
			fail_msg("byte %zu is %#x", i, p->peer.memory[i]);
}

static void nothing_lands_after_a_stopped_peer_was_given_up(void **state)
{
	struct tn_xfer_section s = {.bytes = PEER_BYTES};
	unsigned char *before;
	struct pair p;

	if (is_memory())
		tn_test_skip("it needs nothing of the peer's process");
	before = malloc(PEER_BYTES);
	assert_non_null(before);
	pair_new(&p, backend);
	s.address = (uintptr_t)p.memory;
	make_half_request(&p);
	assert_int_equal(post(&p, tn_test_deadline()), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), 0);
	fill(p.memory, PEER_BYTES, 3);
	memset(p.peer.memory, 0xee, PEER_BYTES);
	peer_stop(&p.peer);
	assert_int_equal(post(&p, tn_test_now() + 50000000), 0);
	assert_int_equal(tn_xfer_wait(p.request, TN_FOREVER), -ETIMEDOUT);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_now() + 1000000), -EBUSY);
	assert_int_equal(tn_xfer_release(p.request), -EBUSY);
	assert_int_equal(tn_xfer_deregister(p.agent, TN_XFER_DRAM, &s, 1, tn_test_now()), -EBUSY);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_now() + 10 * TN_TEST_SECOND), 0);
	fill(p.memory, PEER_BYTES, 9); /* the memory is this agent's again */
	kill(p.peer.pid, SIGCONT);
	assert_int_equal(peer_ask(&p.peer, &message, 'd', 0), 0);
	memcpy(before, p.peer.memory, PEER_BYTES);
	usleep(50000);
	assert_memory_equal(p.peer.memory, before, PEER_BYTES);
	check_late_bytes(&p);
	free(before);
	assert_int_equal(post(&p, tn_test_deadline()), -ECONNRESET);
	assert_int_equal(peer_state(&p), TN_XFER_PEER_LOST);
	pair_free(&p, 0);
}

/* Every other block, so that none merge: more operations than UCX's queues take. */
static void make_scattered_request(struct pair *p, enum tn_xfer_op op)
{
	uint32_t index[PEER_BYTES / 8192];

	for (uint32_t i = 0; i < PEER_BYTES / 8192; i++)
		index[i] = 2 * i;
	assert_int_equal(tn_xfer_request_create(p->agent, op, p->local, index, p->remote, index, PEER_BYTES / 8192, NULL, &p->request), 0);
}

/* A stopped peer that is given up, and then goes on or dies. */
static void give_up(enum tn_xfer_op op, bool goes_on)
{
	unsigned char *before = malloc(PEER_BYTES);
	struct pair p;

	assert_non_null(before);
	pair_new(&p, backend);
	make_scattered_request(&p, op);
	assert_int_equal(post(&p, tn_test_deadline()), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), 0);
	peer_stop(&p.peer);
	assert_int_equal(post(&p, TN_FOREVER), 0);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_now() + 1000000), -EBUSY);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_now() + 10 * TN_TEST_SECOND), 0);
	memcpy(before, p.memory, PEER_BYTES);
	if (goes_on) {
		kill(p.peer.pid, SIGCONT);
		assert_int_equal(peer_ask(&p.peer, &message, 'd', 0), 0);
		usleep(20000);
	}
	assert_memory_equal(p.memory, before, PEER_BYTES);
	free(before);
	pair_free(&p, goes_on ? 0 : SIGKILL);
}

static void many_operations_of_a_stopped_peer_end_when_it_is_given_up(void **state)
{
	if (is_memory())
		tn_test_skip("it needs nothing of the peer's process");
	for (unsigned i = 0; i < 4; i++)
		give_up(i % 2 ? TN_XFER_WRITE : TN_XFER_READ, i / 2);
}

#define LATER 20

static void posts_to_a_stopped_peer_do_not_keep_a_cancelled_request_alive(void **state)
{
	struct tn_xfer_request *later[LATER];
	uint32_t n = 0, first = 0;
	struct pair p;

	if (is_memory())
		tn_test_skip("it needs nothing of the peer's process");
	pair_new(&p, backend);
	for (uint32_t i = 0; i < LATER; i++)
		assert_int_equal(tn_xfer_request_create(p.agent, TN_XFER_READ, p.local, &first, p.remote, &first, 1, NULL, &later[i]), 0);
	make_request(&p, TN_XFER_READ);
	assert_int_equal(post(&p, tn_test_deadline()), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), 0);
	peer_stop(&p.peer);
	assert_int_equal(post(&p, TN_FOREVER), 0);
	while (tn_xfer_cancel(p.request, tn_test_now() + 100000000) == -EBUSY) {
		int rc = n < LATER ? tn_xfer_post(later[n], TN_FOREVER, NULL, 0) : -1;

		assert_true(rc == 0 || rc == -ECONNRESET); /* the peer may have been given up since */
		n += rc == 0;
	}
	assert_true(n > 1);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(tn_test_ended(tn_xfer_wait(later[i], tn_test_deadline())), -ECONNRESET);
	for (uint32_t i = 0; i < LATER; i++) {
		assert_int_equal(tn_xfer_cancel(later[i], tn_test_deadline()), 0); /* the peer is lost a little before its last operation ends */
		assert_int_equal(tn_xfer_release(later[i]), 0);
	}
	pair_free(&p, SIGKILL);
}

static void a_cancel_that_the_peer_outlives_leaves_the_connection(void **state)
{
	struct pair p;

	if (is_memory())
		tn_test_skip("it ends at once, and waits for no peer");
	pair_new(&p, backend);
	make_request(&p, TN_XFER_WRITE);
	assert_int_equal(post(&p, tn_test_deadline()), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), 0);
	peer_stop(&p.peer);
	assert_int_equal(post(&p, TN_FOREVER), 0);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_now() + 10000000), -EBUSY);
	kill(p.peer.pid, SIGCONT);
	assert_int_equal(tn_xfer_cancel(p.request, tn_test_deadline()), 0);
	fill(p.memory, PEER_BYTES, 4);
	assert_int_equal(post(&p, tn_test_deadline()), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(p.request, tn_test_deadline())), 0);
	assert_memory_equal(p.peer.memory, p.memory, PEER_BYTES);
	pair_free(&p, 0);
}

/* In a process of its own: the others fork before they have threads. */
static bool can_be_used(void)
{
	int status = 1;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		struct tn_xfer_agent_opts opts;
		struct tn_xfer_agent *a;

		tn_xfer_agent_opts_init(&opts);
		opts.name = "try";
		opts.backends = &backend;
		opts.nbackends = 1;
		if (tn_xfer_agent_create(&opts, &a)) {
			printf("1..0 # SKIP %s\n", tn_error_last()->text);
			fflush(NULL);
			_exit(1);
		}
		_exit(0);
	}
	return waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_write_arrives_before_its_notification),
		cmocka_unit_test(a_read_brings_the_peers_bytes),
		cmocka_unit_test(a_peer_that_is_killed_ends_its_requests),
		cmocka_unit_test(a_child_of_a_peer_does_not_keep_it_alive),
		cmocka_unit_test(a_peer_that_is_killed_while_bytes_move_ends_its_requests),
		cmocka_unit_test(a_peer_that_is_stopped_is_given_up_at_the_deadline),
		cmocka_unit_test(notifications_of_a_stopped_peer_wait_until_the_deadline),
		cmocka_unit_test(a_peer_that_came_back_is_another_generation),
		cmocka_unit_test(an_old_address_does_not_reach_a_new_agent),
		cmocka_unit_test(an_invalidated_peer_ends_its_requests),
		cmocka_unit_test(a_peer_waits_for_transfers_into_what_it_deregisters),
		cmocka_unit_test(what_was_deregistered_before_the_connection_is_not_used),
		cmocka_unit_test(partial_metadata_does_not_hide_what_was_deregistered),
		cmocka_unit_test(a_stopped_user_of_a_section_keeps_it_busy),
		cmocka_unit_test(a_deregister_that_is_tried_again_counts_once),
		cmocka_unit_test(a_full_queue_of_notifications_does_not_hold_up_a_deregister),
		cmocka_unit_test(a_peer_that_forgets_waits_for_its_transfers_too),
		cmocka_unit_test(agents_with_one_secret_find_each_other_by_tcp),
		cmocka_unit_test(many_notifications_arrive_in_their_order),
		cmocka_unit_test(memory_that_is_not_there_fails_its_own_descriptors),
		cmocka_unit_test(nothing_lands_after_a_stopped_peer_was_given_up),
		cmocka_unit_test(many_operations_of_a_stopped_peer_end_when_it_is_given_up),
		cmocka_unit_test(posts_to_a_stopped_peer_do_not_keep_a_cancelled_request_alive),
		cmocka_unit_test(a_cancel_that_the_peer_outlives_leaves_the_connection),
	};

	if (argc > 1)
		backend = argv[1];
	return can_be_used() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
