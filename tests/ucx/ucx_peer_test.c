/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin ucx over the libucp.so.0 of the tests for two agents of one process: operations that end late, in any order, with an error, or with their endpoint; calls
 * that fail; peers that stop. Real UCX cannot run under sanitizers; this can.
 */
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#include "stub_ucp.h"
#include "tn_test.h"

#define BLOCK 4096u
#define BLOCKS 64u
#define REQUESTS 4u
#define CASES 60u
#define CUTS 300u

static struct stub_ucp *stub;
static _Alignas(BLOCK) unsigned char memory[2][BLOCK * BLOCKS];

struct two {
	struct tn_xfer_agent *agent[2];
	struct tn_xfer_list *local, *remote;
};

static struct tn_xfer_agent *agent_new(const char *name, unsigned which)
{
	struct tn_xfer_section s = {.address = (uintptr_t)memory[which], .bytes = sizeof(memory[which])};
	const char *backend = "ucx";
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;

	tn_xfer_agent_opts_init(&opts);
	opts.name = name;
	opts.backends = &backend;
	opts.nbackends = 1;
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
	return a;
}

static unsigned char metadata[65536];

static size_t metadata_of(const struct two *t)
{
	int64_t n = tn_xfer_metadata(t->agent[1], TN_XFER_DRAM, NULL, 0, metadata, sizeof(metadata));

	assert_true(n > 0);
	return (size_t)n;
}

static void load(const struct two *t)
{
	assert_int_equal(tn_xfer_load(t->agent[0], metadata, metadata_of(t), NULL), 0);
}

/* The agent has given up its connection, or is about to. */
static void load_again(const struct two *t)
{
	struct tn_xfer_peer_info info = {.size = sizeof(info)};
	uint64_t until = tn_test_deadline();

	while (tn_xfer_peer(t->agent[0], "two", &info) == 0 && info.state != TN_XFER_PEER_LOST && tn_test_now() < until)
		usleep(200);
	assert_int_equal(info.state, TN_XFER_PEER_LOST);
	load(t);
}

static void fill(unsigned salt)
{
	for (size_t i = 0; i < sizeof(memory[0]); i++) {
		memory[0][i] = (unsigned char)(i * 31 + i / BLOCK + salt);
		memory[1][i] = (unsigned char)(i * 7 + i / BLOCK + salt);
	}
}

static void two_new(struct two *t)
{
	struct tn_xfer_run run = {.bytes = BLOCK, .stride = BLOCK, .count = BLOCKS};

	t->agent[0] = agent_new("one", 0);
	t->agent[1] = agent_new("two", 1);
	load(t);
	run.address = (uintptr_t)memory[0];
	assert_int_equal(tn_xfer_list_create(t->agent[0], NULL, TN_XFER_DRAM, &run, 1, &t->local), 0);
	run.address = (uintptr_t)memory[1];
	assert_int_equal(tn_xfer_list_create(t->agent[0], "two", TN_XFER_DRAM, &run, 1, &t->remote), 0);
	fill(0);
}

/* The stub does all at once again, and has everything back. */
static void two_free(struct two *t)
{
	STUB_SET(stub->stopped, 0);
	STUB_SET(stub->broken, 0);
	STUB_SET(stub->late, 0);
	tn_xfer_list_destroy(t->local);
	tn_xfer_list_destroy(t->remote);
	assert_int_equal(tn_xfer_agent_destroy(t->agent[0]), 0);
	assert_int_equal(tn_xfer_agent_destroy(t->agent[1]), 0);
	assert_int_equal(STUB_GET(stub->objects), 0);
	STUB_SET(stub->outlive, 0);
	STUB_SET(stub->reversed, 0);
}

/* n blocks from `first` on, every other one, so that none merge. */
static int try_request(const struct two *t, enum tn_xfer_op op, uint32_t first, uint32_t n, struct tn_xfer_request **q)
{
	uint32_t index[BLOCKS];

	for (uint32_t i = 0; i < n; i++)
		index[i] = (first + 2 * i) % BLOCKS;
	return tn_xfer_request_create(t->agent[0], op, t->local, index, t->remote, index, n, NULL, q);
}

static struct tn_xfer_request *request_new(const struct two *t, enum tn_xfer_op op, uint32_t first, uint32_t n)
{
	struct tn_xfer_request *q = NULL;

	assert_int_equal(try_request(t, op, first, n, &q), 0);
	return q;
}

static int post(struct tn_xfer_request *q)
{
	return tn_xfer_post(q, TN_FOREVER, NULL, TN_XFER_NO_NOTIFICATION);
}

/* How it ends; nothing of it moves then. */
static int finish(struct tn_xfer_request *q)
{
	int rc = tn_xfer_wait(q, tn_test_deadline());

	assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
	assert_int_equal(STUB_GET(stub->in_flight), 0);
	assert_int_equal(tn_xfer_release(q), 0);
	return rc;
}

static int move(const struct two *t, enum tn_xfer_op op)
{
	struct tn_xfer_request *q = request_new(t, op, 0, BLOCKS / 2);

	assert_int_equal(post(q), 0);
	return finish(q);
}

static void expect_text(const char *text, const char *words)
{
	if (!strstr(text, words))
		fail_msg("\"%s\" lacks \"%s\"", text, words);
}

static uint32_t draw(uint64_t *state, uint32_t below)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33) % below;
}

/* Requests of other blocks at a time, each posted twice. */
static void run_case(const struct two *t, uint64_t seed)
{
	struct tn_xfer_request *q[REQUESTS];
	enum tn_xfer_op op = draw(&seed, 2) ? TN_XFER_READ : TN_XFER_WRITE;
	uint32_t each = BLOCKS / 2 / REQUESTS;

	STUB_SET(stub->late, draw(&seed, 5));
	STUB_SET(stub->reversed, draw(&seed, 2));
	for (uint32_t i = 0; i < REQUESTS; i++)
		q[i] = request_new(t, op, i * 2 * each, each);
	for (uint32_t again = 0; again < 2; again++) {
		fill((unsigned)seed + again);
		for (uint32_t i = 0; i < REQUESTS; i++)
			assert_int_equal(post(q[i]), 0);
		for (uint32_t i = 0; i < REQUESTS; i++)
			assert_int_equal(tn_xfer_wait(q[i], tn_test_deadline()), 0);
		for (uint32_t b = 0; b < BLOCKS; b++)
			assert_int_equal(!memcmp(memory[0] + b * BLOCK, memory[1] + b * BLOCK, BLOCK), b % 2 == 0);
	}
	for (uint32_t i = 0; i < REQUESTS; i++)
		assert_int_equal(tn_xfer_release(q[i]), 0);
}

static void operations_may_end_late_and_in_any_order(void **state)
{
	struct two t;

	two_new(&t);
	for (uint32_t i = 0; i < CASES; i++)
		run_case(&t, tn_test_seed() + i);
	two_free(&t);
}

static void each_call_of_an_operation_may_fail(void **state)
{
	static const struct {
		const char *call;
		enum tn_xfer_op op;
		int code;
		unsigned times; /* a key is unpacked once */
	} calls[] = {
		{"ucp_put_nbx", TN_XFER_WRITE, -ENOMEM, 2}, {"ucp_get_nbx", TN_XFER_READ, -ENOMEM, 2}, {"ucp_ep_rkey_unpack", TN_XFER_WRITE, -EINVAL, 1},
		{"operation", TN_XFER_WRITE, -ECONNRESET, 2}, {"operation", TN_XFER_READ, -ECONNRESET, 2},
	};

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		struct two t;

		two_new(&t);
		for (unsigned late = 0; late < calls[i].times; late++) {
			STUB_SET(stub->late, late);
			STUB_SET(stub->fail, calls[i].call);
			assert_int_equal(move(&t, calls[i].op), calls[i].code);
			STUB_SET(stub->fail, NULL);
			assert_int_equal(move(&t, calls[i].op), 0); /* the connection was kept */
			assert_memory_equal(memory[0], memory[1], BLOCK);
		}
		two_free(&t);
	}
}

static void an_operation_that_fails_fails_its_descriptor_alone(void **state)
{
	struct tn_xfer_result result[BLOCKS / 2];
	struct tn_xfer_request *q;
	struct two t;

	two_new(&t);
	STUB_SET(stub->late, 1);
	STUB_SET(stub->fail_skip, 5);
	STUB_SET(stub->fail, "operation");
	q = request_new(&t, TN_XFER_READ, 0, 6);
	assert_int_equal(post(q), 0);
	assert_int_equal(tn_xfer_wait(q, tn_test_deadline()), -ECONNRESET);
	expect_text(tn_error_last()->text, "descriptor 5: UCX: ");
	assert_int_equal(tn_xfer_results(q, 0, 6, result), 0);
	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(result[i].status, i < 5 ? 0 : -ECONNRESET);
		assert_int_equal(result[i].bytes, i < 5 ? BLOCK : 0);
	}
	STUB_SET(stub->fail, NULL);
	assert_int_equal(finish(q), -ECONNRESET);
	two_free(&t);
}

/* Nobody knows then what has arrived: the peer is lost until it is loaded again. */
static void a_flush_that_fails_loses_the_peer(void **state)
{
	static const char *const calls[] = {"ucp_ep_flush_nbx", "flush"};
	struct two t;

	two_new(&t);
	for (unsigned i = 0; i < 4; i++) {
		STUB_SET(stub->late, i / 2);
		STUB_SET(stub->fail, calls[i % 2]);
		assert_int_equal(move(&t, TN_XFER_WRITE), -ECONNRESET);
		expect_text(tn_error_last()->text, "the flush has failed");
		STUB_SET(stub->fail, NULL);
		load_again(&t);
		assert_int_equal(move(&t, TN_XFER_WRITE), 0);
	}
	two_free(&t);
}

/* Metadata that comes before the agent has closed the connection that was cut. */
static void a_peer_that_is_loaded_right_after_a_cut_stays_loaded(void **state)
{
	struct two t;
	size_t n;

	two_new(&t);
	n = metadata_of(&t);
	for (unsigned i = 0; i < CUTS; i++) {
		struct tn_xfer_request *q = request_new(&t, TN_XFER_WRITE, 0, 1);

		STUB_SET(stub->late, 1);
		STUB_SET(stub->fail, "flush");
		assert_int_equal(post(q), 0);
		assert_int_equal(tn_xfer_wait(q, tn_test_deadline()), -ECONNRESET);
		assert_int_equal(tn_xfer_load(t.agent[0], metadata, n, NULL), 0);
		STUB_SET(stub->fail, NULL);
		assert_int_equal(finish(q), -ECONNRESET);
		assert_int_equal(move(&t, TN_XFER_WRITE), 0);
	}
	two_free(&t);
}

static void a_peer_without_an_endpoint_is_not_reached(void **state)
{
	struct tn_xfer_request *q;
	struct two t;

	two_new(&t);
	STUB_SET(stub->fail, "ucp_ep_create");
	assert_int_equal(try_request(&t, TN_XFER_WRITE, 0, 1, &q), -ENOTSUP);
	expect_text(tn_error_last()->text, "no endpoint");
	STUB_SET(stub->fail, NULL);
	two_free(&t);
}

/* Bytes of operations whose endpoint has failed or was closed still move, until the operations end. */
static void an_endpoint_that_fails_ends_its_requests_when_nothing_moves(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		struct tn_xfer_request *q[2];
		struct two t;

		two_new(&t);
		STUB_SET(stub->late, 3);
		STUB_SET(stub->outlive, i / 2 * 2);
		q[0] = request_new(&t, i % 2 ? TN_XFER_READ : TN_XFER_WRITE, 0, BLOCKS / 2);
		q[1] = request_new(&t, TN_XFER_WRITE, 1, BLOCKS / 4);
		STUB_SET(stub->broken, 1);
		assert_int_equal(post(q[0]), 0);
		tn_xfer_post(q[1], TN_FOREVER, NULL, TN_XFER_NO_NOTIFICATION); /* the peer may be lost by now */
		assert_int_equal(tn_xfer_wait(q[0], tn_test_deadline()), -ECONNRESET);
		assert_int_equal(tn_xfer_cancel(q[1], tn_test_deadline()), 0);
		assert_int_equal(finish(q[0]), -ECONNRESET);
		assert_int_equal(tn_xfer_release(q[1]), 0);
		STUB_SET(stub->broken, 0);
		load_again(&t);
		assert_int_equal(move(&t, TN_XFER_WRITE), 0);
		two_free(&t);
	}
}

static void a_stopped_peer_is_given_up_and_nothing_lands_later(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		struct tn_xfer_request *q;
		struct two t;

		two_new(&t);
		STUB_SET(stub->outlive, i / 2 * 3);
		q = request_new(&t, i % 2 ? TN_XFER_READ : TN_XFER_WRITE, 0, BLOCKS / 2);
		STUB_SET(stub->stopped, 1);
		assert_int_equal(post(q), 0);
		assert_int_equal(tn_xfer_cancel(q, tn_test_now() + 10000000), -EBUSY);
		assert_int_equal(tn_xfer_release(q), -EBUSY);
		assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
		assert_int_equal(finish(q), -ECANCELED);
		STUB_SET(stub->stopped, 0);
		load_again(&t);
		assert_int_equal(move(&t, TN_XFER_WRITE), 0);
		two_free(&t);
	}
}

/* UCX says of a flush that all is well when it ends because its endpoint was closed or has failed. */
static void a_write_whose_flush_ends_with_its_endpoint_has_failed(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		struct tn_xfer_result result[BLOCKS / 2];
		struct tn_xfer_request *q;
		struct two t;

		two_new(&t);
		STUB_SET(stub->outlive, i / 2 * 3);
		q = request_new(&t, TN_XFER_WRITE, 0, BLOCKS / 2);
		STUB_SET(stub->lost, 1);
		STUB_SET(stub->broken, i % 2);
		assert_int_equal(post(q), 0);
		if (!(i % 2))
			assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
		assert_int_equal(tn_xfer_wait(q, tn_test_deadline()), i % 2 ? -ECONNRESET : -ECANCELED);
		assert_int_equal(tn_xfer_results(q, 0, BLOCKS / 2, result), 0);
		for (unsigned k = 0; k < BLOCKS / 2; k++) {
			assert_int_equal(result[k].status, -ECONNRESET);
			assert_int_equal(result[k].bytes, 0);
		}
		STUB_SET(stub->lost, 0);
		assert_int_equal(tn_xfer_release(q), 0);
		two_free(&t);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(operations_may_end_late_and_in_any_order),
		cmocka_unit_test(each_call_of_an_operation_may_fail),
		cmocka_unit_test(an_operation_that_fails_fails_its_descriptor_alone),
		cmocka_unit_test(a_flush_that_fails_loses_the_peer),
		cmocka_unit_test(a_peer_that_is_loaded_right_after_a_cut_stays_loaded),
		cmocka_unit_test(a_peer_without_an_endpoint_is_not_reached),
		cmocka_unit_test(an_endpoint_that_fails_ends_its_requests_when_nothing_moves),
		cmocka_unit_test(a_stopped_peer_is_given_up_and_nothing_lands_later),
		cmocka_unit_test(a_write_whose_flush_ends_with_its_endpoint_has_failed),
	};
	void *library = dlopen("libucp.so.0", RTLD_NOW);

	stub = library ? dlsym(library, "stub_ucp") : NULL;
	return stub ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
