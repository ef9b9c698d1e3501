/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of an agent: failures by cause, and what another agent is told of them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tenuto/xfer.h>

#include "tn_test.h"

#define BYTES 8192u

static const char secret[] = "a secret of two agents";
static unsigned char memory[2][BYTES];

static struct tn_xfer_agent *agent_new(const char *name, const char *backend, const char *listen, bool shared)
{
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;

	tn_xfer_agent_opts_init(&opts);
	opts.name = name;
	opts.backends = &backend;
	opts.nbackends = 1;
	opts.listen = listen;
	opts.secret = shared ? secret : NULL;
	opts.secret_bytes = shared ? strlen(secret) : 0;
	assert_int_equal(tn_test_ended(tn_xfer_agent_create(&opts, &a)), 0);
	return a;
}

static uint64_t stat_of(struct tn_xfer_agent *a, const char *name)
{
	uint64_t v[64];
	int n = tn_xfer_stats(a, v, 64);

	for (int i = 0; i < n && i < 64; i++)
		if (!strcmp(tn_xfer_stat_name((uint32_t)i), name))
			return v[i];
	fail_msg("no statistic %s", name);
	return 0;
}

/* How a request ends early. */
enum end { CANCEL, DEADLINE, FORGET, DIE, FAIL };

/* One request from an agent to another one of this process, whose bytes never move. */
static void end_one(enum end end, const char *counted)
{
	static const char *const causes[] = {"cancelled_requests", "timed_out_requests", "stale_requests", "disconnected_requests", "backend_failed_requests"};
	const char *backend = end == FAIL ? "faulty,over=memory,seed=1,fail=100" : "faulty,over=memory,seed=1,drop=100";
	struct tn_xfer_agent *a = agent_new("asks", backend, "none", false), *b = agent_new("answers", backend, NULL, false);
	struct tn_xfer_section here = {.address = (uintptr_t)memory[0], .bytes = BYTES}, there = {.address = (uintptr_t)memory[1], .bytes = BYTES};
	struct tn_xfer_run mine = {.address = here.address, .bytes = BYTES, .count = 1}, theirs = {.address = there.address, .bytes = BYTES, .count = 1};
	struct tn_xfer_list *local, *remote;
	struct tn_xfer_request *q;
	unsigned char metadata[4096];
	int64_t n;

	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &here, 1), 0);
	assert_int_equal(tn_xfer_register(b, TN_XFER_DRAM, &there, 1), 0);
	n = tn_xfer_metadata(b, TN_XFER_DRAM, NULL, 0, metadata, sizeof(metadata));
	assert_int_equal(tn_xfer_load(a, metadata, (size_t)n, NULL), 0);
	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &mine, 1, &local), 0);
	assert_int_equal(tn_xfer_list_create(a, "answers", TN_XFER_DRAM, &theirs, 1, &remote), 0);
	assert_int_equal(tn_test_ended(tn_xfer_request_create(a, TN_XFER_WRITE, local, NULL, remote, NULL, 0, NULL, &q)), 0);
	assert_int_equal(tn_xfer_post(q, end == DEADLINE ? tn_test_now() + 1000000 : TN_FOREVER, NULL, TN_XFER_NO_NOTIFICATION), 0);
	if (end == FORGET)
		assert_int_equal(tn_xfer_invalidate(a, "answers"), 0);
	if (end == DIE)
		assert_int_equal(tn_xfer_agent_destroy(b), 0);
	if (end == CANCEL)
		assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
	assert_true(tn_xfer_wait(q, tn_test_deadline()) < 0);
	assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
	for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++)
		assert_int_equal(stat_of(a, causes[i]), !strcmp(causes[i], counted));
	assert_int_equal(stat_of(a, "failed_requests"), 1);
	assert_int_equal(stat_of(a, "tx_requests"), 0);
	tn_xfer_release(q);
	tn_xfer_list_destroy(local);
	tn_xfer_list_destroy(remote);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	if (end != DIE)
		assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

static void a_failure_is_counted_at_its_cause(void **state)
{
	end_one(CANCEL, "cancelled_requests");
	end_one(DEADLINE, "timed_out_requests");
	end_one(FORGET, "stale_requests");
	end_one(DIE, "disconnected_requests");
	end_one(FAIL, "backend_failed_requests");
}

static void an_agent_tells_its_statistics(void **state)
{
	struct tn_xfer_agent *a = agent_new("asks", "null", "none", true), *b = agent_new("answers", "null", "unix:@tn-xfer-stats-test", true);
	struct tn_xfer_agent *other = agent_new("other", "null", "none", false);
	struct tn_xfer_section there = {.address = (uintptr_t)memory[1], .bytes = BYTES};
	char text[8192], line[64];
	int64_t n;

	assert_int_equal(tn_xfer_register(b, TN_XFER_DRAM, &there, 1), 0);
	n = tn_xfer_fetch_stats(a, "unix:@tn-xfer-stats-test", tn_test_deadline(), text, sizeof(text));
	tn_test_ended((int)(n < 0 ? n : 0));
	assert_int_equal(n, strlen(text));
	for (uint32_t i = 0; tn_xfer_stat_name(i); i++) {
		snprintf(line, sizeof(line), "%s %llu\n", tn_xfer_stat_name(i), (unsigned long long)stat_of(b, tn_xfer_stat_name(i)));
		assert_non_null(strstr(text, line));
	}
	assert_non_null(strstr(text, "registered_bytes 8192\n"));
	assert_int_equal(tn_xfer_fetch_stats(a, "unix:@tn-xfer-stats-test", tn_test_deadline(), text, 9), n);
	assert_int_equal(strlen(text), 8);
	assert_int_equal(tn_xfer_fetch_stats(a, "unix:@tn-xfer-stats-test", tn_test_deadline(), NULL, 9), -EINVAL);
	assert_int_equal(tn_xfer_fetch_stats(a, "unix:@tn-xfer-nobody", tn_test_deadline(), text, 9), -ECONNREFUSED);
	assert_int_equal(tn_xfer_fetch_stats(other, "unix:@tn-xfer-stats-test", tn_test_deadline(), text, 9), -EINVAL); /* it has no secret */
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
	assert_int_equal(tn_xfer_agent_destroy(other), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_failure_is_counted_at_its_cause),
		cmocka_unit_test(an_agent_tells_its_statistics),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
