/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto workload`: the demo's chat workload as a trace, for `tenuto replay` or anything else. */
#include "cli.h"

#include <inttypes.h>
#include <string.h>

#include "workload.h"

static const struct cli_opt options[] = {
	{"requests", "N", "1000", "how many", CLI_COUNT, offsetof(struct workload_opts, requests), 1, 10000000},
	{"seed", "N", "1", "one seed, one trace", CLI_COUNT, offsetof(struct workload_opts, seed), 0, UINT64_MAX},
	{0},
};

static const struct cli_verb verb = {
	.name = "workload",
	.about = "Prints a generated chat workload (multi-turn sessions with shared system prompts, docs/workload.md) as a "
		 "trace: one JSON object per line.",
	.opts = options,
};

int cmd_workload(int argc, char **argv)
{
	struct workload_opts o;
	struct trace t;
	int n, rc;

	workload_opts_init(&o);
	rc = cli_parse(&verb, argc, argv, &o, &n);
	if (rc != CLI_GO)
		return rc;
	rc = workload_generate(&o, &t);
	if (rc)
		return cli_error(CLI_ENVIRONMENT, "%s", strerror(-rc));
	for (size_t i = 0; i < t.requests; i++) {
		printf("{\"timestamp\": %.0f, \"input_length\": %" PRIu64 ", \"output_length\": %u, \"hash_ids\": [",
		       t.arrival_ms[i], t.input_tokens[i], t.output_tokens[i]);
		for (uint32_t b = 0; b < t.length[i]; b++)
			printf("%s%" PRIu64, b ? ", " : "", t.ids[t.first[i] + b]);
		puts("]}");
	}
	trace_free(&t);
	return cli_finish(CLI_OK);
}
