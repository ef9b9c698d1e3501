/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench match`: look-ups of long prefixes, pins included, among millions of blocks.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include "lab/match_bench.h"

struct match_args {
	uint64_t entries;
	uint64_t keys;
	uint64_t rounds;
	uint64_t seed;
	bool json;
};

static const struct cli_opt options[] = {
	{"entries", "N", "10M", "blocks in the index", CLI_COUNT, offsetof(struct match_args, entries), 1, 1000000000},
	{"keys", "N", "8192", "blocks of the prefix that is looked up", CLI_COUNT, offsetof(struct match_args, keys), 1,
	 1000000},
	{"rounds", "N", "1000", "look-ups", CLI_COUNT, offsetof(struct match_args, rounds), 1, 1000000},
	{"seed", "N", "1", "of the made-up blocks", CLI_COUNT, offsetof(struct match_args, seed), 0, UINT64_MAX},
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct match_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench match",
	.about = "Fills an index with made-up blocks, then looks up prefixes of random ones, each found and pinned. Prints "
		 "percentiles over the look-ups of the mean time per key, and the memory of the index: the registry's, without the policy's and the store's.",
	.opts = options,
};

static const struct {
	const char *name;
	double part;
} percentiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}};

#define PERCENTILES (sizeof(percentiles) / sizeof(percentiles[0]))

static double percentile(const double *sorted, size_t n, double part)
{
	size_t i = (size_t)(part * (double)n);

	return sorted[i < n ? i : n - 1];
}

static int print(const struct match_args *a, const double *ns, uint64_t bytes)
{
	const bool left[] = {true, false, true};
	size_t n = (size_t)a->rounds;
	struct cli_table t;
	char s[32];

	cli_table_init(&t, 3, left);
	cli_table_cell(&t, "entries");
	cli_table_cell(&t, "%s", cli_number(s, a->entries));
	cli_table_cell(&t, "blocks");
	cli_table_cell(&t, "index");
	cli_table_cell(&t, "%.1f", (double)bytes / (double)a->entries);
	cli_table_cell(&t, "bytes a block: the registry, without policy and store");
	cli_table_cell(&t, "look-up");
	cli_table_cell(&t, "%s", cli_number(s, a->keys));
	cli_table_cell(&t, "keys, all found and pinned");
	for (size_t i = 0; i < PERCENTILES; i++) {
		cli_table_cell(&t, "%s", percentiles[i].name);
		cli_table_cell(&t, "%.1f", percentile(ns, n, percentiles[i].part));
		cli_table_cell(&t, "ns per key");
	}
	cli_table_print(&t, stdout, false);
	return cli_finish(CLI_OK);
}

static json_t *as_json(const struct match_args *a, const double *ns, uint64_t bytes)
{
	json_t *o = json_object();

	json_object_set_new(o, "entries", json_integer((json_int_t)a->entries));
	json_object_set_new(o, "keys", json_integer((json_int_t)a->keys));
	json_object_set_new(o, "rounds", json_integer((json_int_t)a->rounds));
	json_object_set_new(o, "index_bytes_per_block", json_real((double)bytes / (double)a->entries));
	for (size_t i = 0; i < PERCENTILES; i++) {
		char name[32];

		snprintf(name, sizeof(name), "ns_per_key_%s", percentiles[i].name);
		json_object_set_new(o, name, json_real(percentile(ns, (size_t)a->rounds, percentiles[i].part)));
	}
	return o;
}

int cmd_bench_match(int argc, char **argv)
{
	struct match_args a = {.entries = 10000000, .keys = 8192, .rounds = 1000, .seed = 1};
	struct tn_match_bench b;
	uint64_t bytes;
	double *ns;
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	ns = calloc((size_t)a.rounds, sizeof(*ns));
	if (!ns)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	b = (struct tn_match_bench){(uint32_t)a.entries, (uint32_t)a.keys, (uint32_t)a.rounds, a.seed};
	rc = tn_match_bench_run(&b, ns, &bytes);
	if (rc) {
		rc = cli_fail(rc, NULL);
	} else {
		bench_median(ns, (size_t)a.rounds); /* sorts */
		rc = a.json ? cli_json(as_json(&a, ns, bytes)) : print(&a, ns, bytes);
	}
	free(ns);
	return rc;
}
