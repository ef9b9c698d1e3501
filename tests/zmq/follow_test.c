/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Followers of a publisher over real sockets: early, slow, restarted again and again, and late. Batches are lost before they are published, and on
 * their way to the slow one; the publisher starts again. In the end each follower's tree is what the publisher has.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <tenuto/event_bus.h>
#include <tenuto/prefix_tree.h>
#include <tenuto/subscribe.h>

#include "base/rng.h"
#include "plugin/loader.h"
#include "tn_test.h"

#define KEYS 5000u
#define BATCH 100u
#define PART 300u
#define TIERS 4u

enum { EARLY, SLOW, RESTARTED, LATE, TRUTH, COLUMNS };

struct source {
	const struct tn_event_bus_ops *ops;
	void *bus;
	struct tn_rng rng;
	char spec[256];
	bool has[KEYS][TIERS];
	uint64_t sequence, events, lost, restarts;
	uint64_t client, client_sequence; /* that takes a snapshot */
	uint32_t client_at;
	bool has_client;
};

static void fill(struct tn_bus_event *e, uint32_t key, uint32_t tier, bool stored)
{
	uint64_t mixed = (key + 1) * 0x9e3779b97f4a7c15u;

	*e = (struct tn_bus_event){.kind = stored ? TN_BUS_STORED : TN_BUS_REMOVED, .tier = (uint8_t)(tier + 1), .hash_bytes = 32, .block_tokens = 16};
	memset(e->hash, (int)key, sizeof(e->hash));
	for (int i = 0; i < 8; i++)
		e->hash[24 + i] = (unsigned char)(mixed >> (56 - 8 * i));
}

static void start_bus(struct source *s)
{
	char endpoint[64], replay[64];
	const struct tn_xfer_param params[] = {{"endpoint", endpoint}, {"replay", replay}, {"buffer", "50"}, {"hwm", "4"}};

	snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/tenuto-follow-%d", (int)getpid());
	snprintf(replay, sizeof(replay), "ipc:///tmp/tenuto-follow-%d-replay", (int)getpid());
	snprintf(s->spec, sizeof(s->spec), "zmq,endpoint=%s,replay=%s,hwm=4", endpoint, replay);
	assert_int_equal(s->ops->publisher_create(params, 4, &s->bus), 0);
	s->sequence = 0;
	s->has_client = false;
}

static void stop_bus(struct source *s)
{
	s->ops->publisher_destroy(s->bus);
	s->bus = NULL;
}

/* Some blocks come and go. One batch in a hundred is lost. */
static void publish_changes(struct source *s)
{
	struct tn_bus_event e[BATCH];

	for (uint32_t i = 0; i < BATCH; i++) {
		uint32_t key = tn_rng_below(&s->rng, KEYS), tier = tn_rng_below(&s->rng, TIERS);

		s->has[key][tier] = !s->has[key][tier];
		fill(&e[i], key, tier, s->has[key][tier]);
	}
	s->events += BATCH;
	if (tn_rng_below(&s->rng, 100) == 0)
		s->lost++;
	else
		assert_true(s->ops->publish(s->bus, s->sequence, 1.0, e, BATCH) > 0);
	s->sequence++;
}

static void send_part(struct source *s)
{
	struct tn_bus_event e[PART];
	uint32_t n = 0, at = s->client_at;
	int rc;

	for (; at < KEYS && n + TIERS <= PART; at++)
		for (uint32_t t = 0; t < TIERS; t++)
			if (s->has[at][t])
				fill(&e[n++], at, t, true);
	rc = s->ops->answer(s->bus, s->client, s->client_sequence, e, n, at == KEYS);
	if (rc == -EAGAIN)
		return;
	s->client_at = at;
	s->has_client = rc == 0 && at < KEYS;
}

static void serve(struct source *s, int timeout_ms)
{
	uint64_t client;

	if (s->has_client)
		send_part(s);
	while (s->ops->serve(s->bus, timeout_ms, &client) > 0) {
		if (s->has_client) {
			s->ops->answer(s->bus, client, 0, NULL, 0, true); /* busy: ask again */
			continue;
		}
		s->has_client = true;
		s->client = client;
		s->client_sequence = s->sequence;
		s->client_at = 0;
	}
}

static void be_slow(void *arg, uint64_t sequence, const struct tn_bus_event *event)
{
	if (sequence % 16 == 0 && event->hash[31] % 64 == 0)
		usleep(2000);
}

static struct tn_subscriber *follow(const struct source *s, struct tn_tree *tree, uint32_t column)
{
	const struct tn_subscribe_opts o = {.size = sizeof(o), .tree = tree, .cache = column, .on_event = column == SLOW ? be_slow : NULL};
	struct tn_subscriber *out;

	assert_int_equal(tn_subscribe_start(s->spec, &o, &out), 0);
	return out;
}

static struct tn_subscribe_state state_of(struct tn_subscriber *s)
{
	struct tn_subscribe_state state = {.size = sizeof(state)};

	assert_int_equal(tn_subscribe_state(s, &state), 0);
	return state;
}

/* What the publisher has. */
static void write_truth(const struct source *s, struct tn_tree *tree)
{
	struct tn_bus_event e;

	tn_tree_clear(tree, TRUTH);
	for (uint32_t k = 0; k < KEYS; k++)
		for (uint32_t t = 0; t < TIERS; t++)
			if (s->has[k][t]) {
				fill(&e, k, t, true);
				tn_tree_store(tree, TRUTH, (enum tn_tier)(t + 1), tn_tree_key(e.hash, e.hash_bytes));
			}
}

/* Nothing changes any more: the followers catch up, each with what there is. */
static void catch_up(struct source *s, struct tn_tree *tree, struct tn_subscriber *const *sub)
{
	uint64_t until = tn_test_deadline(), want, blocks;
	uint32_t equal = 0;

	write_truth(s, tree);
	want = tn_tree_digest(tree, TRUTH, &blocks);
	while (equal < TRUTH && tn_test_now() < until) {
		s->ops->publish(s->bus, s->sequence++, 1.0, NULL, 0);
		for (int i = 0; i < 10; i++)
			serve(s, 2);
		equal = 0;
		for (uint32_t c = 0; c < TRUTH; c++)
			equal += state_of(sub[c]).current && tn_tree_digest(tree, c, &blocks) == want;
	}
	for (uint32_t c = 0; c < TRUTH; c++) {
		struct tn_subscribe_state state = state_of(sub[c]);

		printf("# follower %u: %llu events, %llu gaps, %llu replays, %llu snapshots, %llu restarts, current %d\n", c,
		       (unsigned long long)state.events, (unsigned long long)state.gaps, (unsigned long long)state.replays,
		       (unsigned long long)state.snapshots, (unsigned long long)state.restarts, state.current);
		assert_true(tn_tree_digest(tree, c, &blocks) == want);
		assert_int_equal(state.bad, 0);
	}
}

static void every_follower_ends_with_what_the_publisher_has(void **state)
{
	static struct source s;
	struct tn_subscriber *sub[COLUMNS];
	const struct tn_plugin *plugin;
	uint64_t total = (uint64_t)tn_test_cases(40000);
	struct tn_tree *tree;

	assert_int_equal(tn_plugin_open(TN_PLUGIN_EVENT_BUS, "zmq", &plugin), 0);
	s.ops = plugin->table;
	tn_rng_seed(&s.rng, tn_test_seed());
	start_bus(&s);
	assert_int_equal(tn_tree_create(KEYS, COLUMNS, &tree), 0);
	for (uint32_t c = EARLY; c < LATE; c++)
		sub[c] = follow(&s, tree, c);
	while (s.events < total) {
		publish_changes(&s);
		serve(&s, tn_rng_below(&s.rng, 3) == 0);
		if (s.events % 10000 == 0) {
			tn_subscribe_stop(sub[RESTARTED]);
			sub[RESTARTED] = follow(&s, tree, RESTARTED);
		}
		if (s.events % (total / 4) == total / 8) {
			stop_bus(&s);
			memset(s.has, 0, sizeof(s.has) / 2);
			start_bus(&s);
		}
	}
	sub[LATE] = follow(&s, tree, LATE);
	catch_up(&s, tree, sub);
	assert_true(s.lost > 0);
	assert_true(state_of(sub[EARLY]).snapshots > 0);
	for (uint32_t c = 0; c < TRUTH; c++)
		tn_subscribe_stop(sub[c]);
	stop_bus(&s);
	tn_tree_destroy(tree);
}

struct stop {
	struct tn_subscriber *sub; /* shared, as done */
	uint32_t events;
	bool done;
};

static void stop_at_once(void *arg, uint64_t sequence, const struct tn_bus_event *event)
{
	struct stop *stop = arg;

	stop->events++;
	tn_subscribe_stop(__atomic_load_n(&stop->sub, __ATOMIC_ACQUIRE));
	__atomic_store_n(&stop->done, true, __ATOMIC_RELEASE);
}

static void on_event_may_stop_its_subscriber(void **state)
{
	static struct source s;
	struct stop stop = {0};
	const struct tn_subscribe_opts o = {.size = sizeof(o), .on_event = stop_at_once, .arg = &stop};
	const struct tn_plugin *plugin;
	struct tn_subscriber *sub;

	assert_int_equal(tn_plugin_open(TN_PLUGIN_EVENT_BUS, "zmq", &plugin), 0);
	s.ops = plugin->table;
	tn_rng_seed(&s.rng, tn_test_seed());
	start_bus(&s);
	assert_int_equal(tn_subscribe_start(s.spec, &o, &sub), 0);
	__atomic_store_n(&stop.sub, sub, __ATOMIC_RELEASE);
	for (int i = 0; i < 500 && !__atomic_load_n(&stop.done, __ATOMIC_ACQUIRE); i++) {
		publish_changes(&s);
		serve(&s, 10);
	}
	assert_true(stop.done);
	usleep(200000); /* of turns of the thread, if it lived */
	assert_int_equal(stop.events, 1);
	stop_bus(&s);
}

static void a_long_question_is_not_taken(void **state)
{
	static unsigned char frame[1024];
	static struct source s;
	const struct tn_plugin *plugin;
	void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER), *monitor = zmq_socket(context, ZMQ_PAIR);
	zmq_pollitem_t item = {.socket = monitor, .events = ZMQ_POLLIN};
	char replay[64];
	int linger = 0;

	snprintf(replay, sizeof(replay), "ipc:///tmp/tenuto-follow-%d-replay", (int)getpid());
	assert_int_equal(tn_plugin_open(TN_PLUGIN_EVENT_BUS, "zmq", &plugin), 0);
	s.ops = plugin->table;
	start_bus(&s);
	zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof(linger));
	assert_int_equal(zmq_socket_monitor(dealer, "inproc://m", ZMQ_EVENT_DISCONNECTED), 0);
	assert_int_equal(zmq_connect(monitor, "inproc://m"), 0);
	assert_int_equal(zmq_connect(dealer, replay), 0);
	assert_int_equal(zmq_send(dealer, frame, sizeof(frame), 0), sizeof(frame));
	assert_int_equal(zmq_poll(&item, 1, 5000), 1); /* the publisher hangs up */
	zmq_close(monitor);
	zmq_close(dealer);
	zmq_ctx_term(context);
	stop_bus(&s);
}

/* More followers ask than read. */
static void snapshots_that_nobody_reads_have_a_bound(void **state)
{
	static struct tn_bus_event e[1024];
	static struct source s;
	const struct tn_plugin *plugin;
	void *context = zmq_ctx_new(), *dealer[16];
	char replay[64];
	uint64_t client;
	int linger = 0, hwm = 1, rc = 0;

	assert_int_equal(tn_plugin_open(TN_PLUGIN_EVENT_BUS, "zmq", &plugin), 0);
	s.ops = plugin->table;
	for (uint32_t i = 0; i < 1024; i++)
		fill(&e[i], i, i % TIERS, true);
	snprintf(replay, sizeof(replay), "ipc:///tmp/tenuto-bound-%d-replay", (int)getpid());
	{
		char endpoint[64];
		const struct tn_xfer_param params[] = {{"endpoint", endpoint}, {"replay", replay}};

		snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/tenuto-bound-%d", (int)getpid());
		assert_int_equal(s.ops->publisher_create(params, 2, &s.bus), 0);
	}
	for (int i = 0; i < 16; i++) {
		dealer[i] = zmq_socket(context, ZMQ_DEALER);
		zmq_setsockopt(dealer[i], ZMQ_RCVHWM, &hwm, sizeof(hwm));
		zmq_setsockopt(dealer[i], ZMQ_LINGER, &linger, sizeof(linger));
		assert_int_equal(zmq_connect(dealer[i], replay), 0);
		zmq_send(dealer[i], "", 0, ZMQ_SNDMORE);
		zmq_send(dealer[i], "snapshot", 8, 0);
		while (s.ops->serve(s.bus, 100, &client) == 0)
			;
		for (int part = 0; part < 200 && rc == 0; part++)
			rc = s.ops->answer(s.bus, client, 1, e, 1024, part == 199);
	}
	assert_int_equal(rc, -EAGAIN);
	for (int i = 0; i < 16; i++)
		zmq_close(dealer[i]);
	zmq_ctx_term(context);
	stop_bus(&s);
}

/* A host that goes without a word. */
static void tcp_asks_whether_the_publisher_is_there(void **state)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(at);
	int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), client, alive = 0;
	const struct tn_subscribe_opts o = {.size = sizeof(o)};
	struct tn_subscriber *sub;
	char spec[64];

	assert_int_equal(bind(server, (struct sockaddr *)&at, size), 0);
	assert_int_equal(listen(server, 1), 0);
	assert_int_equal(getsockname(server, (struct sockaddr *)&at, &size), 0);
	snprintf(spec, sizeof(spec), "zmq,endpoint=tcp://127.0.0.1:%d", ntohs(at.sin_port));
	assert_int_equal(tn_subscribe_start(spec, &o, &sub), 0);
	client = accept4(server, NULL, NULL, SOCK_CLOEXEC);
	assert_true(client >= 0);
	for (int fd = 3; fd < 256; fd++) {
		struct sockaddr_in peer = {0};
		int on = 0;

		size = sizeof(peer);
		if (getpeername(fd, (struct sockaddr *)&peer, &size) || peer.sin_family != AF_INET || peer.sin_port != at.sin_port)
			continue;
		for (int i = 0; i < 500 && !on; i++, usleep(10000)) {
			size = sizeof(on);
			getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &size);
		}
		alive += on != 0;
	}
	assert_int_equal(alive, 1);
	tn_subscribe_stop(sub);
	close(client);
	close(server);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(on_event_may_stop_its_subscriber),
		cmocka_unit_test(a_long_question_is_not_taken),
		cmocka_unit_test(snapshots_that_nobody_reads_have_a_bound),
		cmocka_unit_test(tcp_asks_whether_the_publisher_is_there),
		cmocka_unit_test(every_follower_ends_with_what_the_publisher_has),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
