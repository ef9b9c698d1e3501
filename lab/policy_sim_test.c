/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies on a real trace: the figures of the traces' README, exactly. Skipped if ../shared/traces (or
 * $TN_TRACES) is missing.
 */
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "lab/policy_sim.h"
#include "tn_test.h"

#define TRACE "conversation.jsonl"

static struct {
	uint64_t *ids;
	uint32_t *lengths;
	bool *partial;
	size_t requests, blocks, capacity;
} trace;

static void add_request(json_t *line)
{
	json_t *ids = json_object_get(line, "hash_ids");
	size_t n = json_array_size(ids);

	if (trace.blocks + n > trace.capacity) {
		trace.capacity = (trace.blocks + n) * 2;
		trace.ids = realloc(trace.ids, trace.capacity * sizeof(*trace.ids));
	}
	trace.lengths = realloc(trace.lengths, (trace.requests + 1) * sizeof(*trace.lengths));
	trace.partial = realloc(trace.partial, (trace.requests + 1) * sizeof(*trace.partial));
	for (size_t i = 0; i < n; i++)
		trace.ids[trace.blocks++] = (uint64_t)json_integer_value(json_array_get(ids, i));
	trace.lengths[trace.requests] = (uint32_t)n;
	trace.partial[trace.requests++] = json_integer_value(json_object_get(line, "input_length")) % 512 != 0;
}

static bool read_trace(void)
{
	static const char *const places[] = {"../shared/traces", "../../shared/traces"};
	const char *dir = getenv("TN_TRACES");
	char path[512], *line = NULL;
	size_t size = 0;
	FILE *f = NULL;

	for (size_t i = 0; !f && i < 2; i++) {
		snprintf(path, sizeof(path), "%s/" TRACE, dir ? dir : places[i]);
		f = fopen(path, "r");
	}
	if (!f)
		return false;
	while (getline(&line, &size, f) > 0) {
		json_t *request = json_loads(line, 0, NULL);

		assert_non_null(request);
		add_request(request);
		json_decref(request);
	}
	free(line);
	fclose(f);
	return true;
}

/* salt: turns the ids into others, for policies that hash the ids. */
static struct tn_policy_sim_stats run_with(const struct tn_policy_sim_opts *opts, uint64_t salt)
{
	struct tn_policy_sim_stats stats;
	struct tn_policy_sim *sim = NULL;
	uint64_t ids[1024];
	size_t at = 0;

	assert_int_equal(tn_policy_sim_create(opts, &sim), 0);
	for (size_t q = 0; q < trace.requests; at += trace.lengths[q++]) {
		struct tn_policy_sim_result r;

		for (uint32_t i = 0; i < trace.lengths[q]; i++)
			ids[i] = trace.ids[at + i] + salt;
		assert_int_equal(tn_policy_sim_request(sim, ids, trace.lengths[q], trace.partial[q], &r), 0);
		tn_policy_sim_stats(sim, &stats);
		assert_true(!opts->capacity_blocks || stats.held <= opts->capacity_blocks);
	}
	tn_policy_sim_destroy(sim);
	assert_int_equal(stats.requests, 12031);
	assert_int_equal(stats.blocks, 288500);
	assert_int_equal(stats.distinct, 182790);
	assert_int_equal(stats.held, stats.inserted - stats.evicted);
	return stats;
}

static struct tn_policy_sim_stats run(const char *policy, uint64_t capacity, uint32_t evict)
{
	struct tn_policy_sim_opts opts;

	tn_policy_sim_opts_init(&opts);
	opts.policy = policy;
	opts.capacity_blocks = capacity;
	opts.max_request_blocks = 1024;
	opts.evict = evict;
	return run_with(&opts, 0);
}

static void unlimited_capacity_hits_every_block_seen_before(void **state)
{
	struct tn_policy_sim_stats s = run("lru", 0, TN_SIM_EVICT_AUTO);

	assert_int_equal(s.hits, 105710);
	assert_int_equal(s.inserted, 182790);
	assert_int_equal(s.held, 182790);
	assert_int_equal(s.unread, 182790 - 44144); /* 44,144 are referenced again */
	assert_int_equal(s.rejected, 0);
}

static void lru_hits_what_the_oracle_says(void **state)
{
	static const uint64_t rows[][2] = {{1000, 12847}, {5000, 32260}, {10000, 61046}, {20000, 83035}, {50000, 102290}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(run("lru", rows[i][0], TN_SIM_EVICT_AUTO).hits, rows[i][1]);
}

static void fifo_hits_what_the_experiments_say(void **state)
{
	static const uint64_t rows[][2] = {{1000, 12572}, {5000, 30614}, {10000, 52294}, {20000, 74252}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(run("fifo", rows[i][0], TN_SIM_EVICT_AUTO).hits, rows[i][1]);
}

static void s3fifo_hits_what_the_oracle_says(void **state)
{
	static const uint64_t rows[][2] = {{1000, 16086}, {5000, 41753}, {10000, 58228}, {20000, 72541}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(run("s3fifo", rows[i][0], TN_SIM_EVICT_AUTO).hits, rows[i][1]);
}

static void belady_hits_what_the_oracle_says(void **state)
{
	static const uint64_t rows[][2] = {{1000, 55019}, {5000, 98448}, {10000, 105710}, {20000, 105710}, {0, 105710}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct tn_policy_sim_stats s;

		assert_int_equal(
			tn_policy_sim_belady(trace.ids, trace.lengths, trace.requests, rows[i][0], NULL, &s), 0);
		assert_int_equal(s.hits, rows[i][1]);
		assert_int_equal(s.requests, 12031);
		assert_int_equal(s.distinct, 182790);
		assert_int_equal(s.held, s.inserted - s.evicted);
	}
}

static void making_room_before_insertion_costs_lru_little(void **state)
{
	struct tn_policy_sim_stats s = run("lru", 10000, TN_SIM_EVICT_BEFORE);

	assert_true(s.hits > 60000 && s.hits < 62000);
	s = run("s3fifo", 10000, TN_SIM_EVICT_AFTER);
	assert_true(s.hits > 57000 && s.hits < 60000);
}

static void the_default_policy_reaches_its_goals_whatever_the_seed_and_the_keys(void **state)
{
	/* Capacity in blocks, and hits to reach while inserting at most 94 % of what LRU inserts. */
	static const uint64_t goals[][2] = {{1000, 20000}, {5000, 43000}, {10000, 67000}, {20000, 87000}};
	struct tn_policy_sim_opts opts;

	tn_policy_sim_opts_init(&opts);
	opts.policy = "default";
	opts.max_request_blocks = 1024;
	for (size_t i = 0; i < sizeof(goals) / sizeof(goals[0]); i++) {
		uint64_t lru_inserted = run("lru", goals[i][0], TN_SIM_EVICT_AUTO).inserted;

		opts.capacity_blocks = goals[i][0];
		for (uint64_t n = 0; n < 4; n++) {
			struct tn_policy_sim_stats s;

			opts.seed = n ? tn_test_seed() + n : 1;
			opts.evict = n % 2 ? TN_SIM_EVICT_BEFORE : TN_SIM_EVICT_AUTO;
			s = run_with(&opts, n ? opts.seed * 1000003 : 0);
			print_message("# default %5llu blocks: %llu hits, %llu inserted (%.3f of LRU)\n",
				      (unsigned long long)goals[i][0], (unsigned long long)s.hits,
				      (unsigned long long)s.inserted, (double)s.inserted / (double)lru_inserted);
			assert_true(s.hits >= goals[i][1]);
			assert_true(s.inserted * 100 <= lru_inserted * 94);
		}
	}
}

static void the_default_policy_repeats_itself(void **state)
{
	struct tn_policy_sim_stats a = run("default", 2000, TN_SIM_EVICT_BEFORE);
	struct tn_policy_sim_stats b = run("default", 2000, TN_SIM_EVICT_BEFORE);

	assert_memory_equal(&a, &b, sizeof(a));
}

static void every_policy_beats_half_of_lru_and_none_beats_the_future(void **state)
{
	for (size_t i = 0; tn_policy_name(i); i++) {
		struct tn_policy_sim_stats s = run(tn_policy_name(i), 10000, TN_SIM_EVICT_AUTO);

		print_message("# %-8s 10000 blocks: %llu hits, %llu inserted, %llu rejected, %llu never read\n",
			      tn_policy_name(i), (unsigned long long)s.hits, (unsigned long long)s.inserted,
			      (unsigned long long)s.rejected, (unsigned long long)s.unread);
		assert_in_range(s.hits, 61046 / 2, 105710);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unlimited_capacity_hits_every_block_seen_before),
		cmocka_unit_test(lru_hits_what_the_oracle_says),
		cmocka_unit_test(fifo_hits_what_the_experiments_say),
		cmocka_unit_test(s3fifo_hits_what_the_oracle_says),
		cmocka_unit_test(belady_hits_what_the_oracle_says),
		cmocka_unit_test(making_room_before_insertion_costs_lru_little),
		cmocka_unit_test(the_default_policy_reaches_its_goals_whatever_the_seed_and_the_keys),
		cmocka_unit_test(the_default_policy_repeats_itself),
		cmocka_unit_test(every_policy_beats_half_of_lru_and_none_beats_the_future),
	};
	int rc;

	if (!read_trace())
		return tn_test_skip_all("no ../shared/traces/" TRACE " (TN_TRACES names another place)");
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	free(trace.ids);
	free(trace.lengths);
	free(trace.partial);
	return rc;
}
