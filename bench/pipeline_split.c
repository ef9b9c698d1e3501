/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench pipeline --mode split`: where the device is too slow, a part is restored and the rest computed again.
 *
 * At each hit rate, alternately: all hits are restored; only the blocks that tn_plan says.
 */
#include "pipeline.h"

#include <stdlib.h>

struct row {
	uint32_t hit, restored; /* blocks */
	double all, split, estimate, recompute; /* TTFT in seconds */
};

static int measure_hit(struct pipeline_bench *b, uint32_t blocks, struct row *row)
{
	double v[2][PIPELINE_REPEAT_MAX], estimate[PIPELINE_REPEAT_MAX], restored[PIPELINE_REPEAT_MAX];
	struct pipeline_run run;
	int rc = CLI_OK;

	for (size_t round = 0; !rc && round < b->repeat; round++)
		for (size_t i = 0; !rc && i < 2; i++) {
			bool split = (i + round) % 2;
			struct pipeline_arm arm = {.strategy = TN_STRATEGY_TENUTO, .blocks = blocks, .split = split};

			rc = pipeline_child(b, &arm, &run);
			v[split][round] = run.ttft;
			if (split) {
				estimate[round] = run.estimate;
				restored[round] = run.restored;
			}
		}
	if (rc)
		return rc;
	*row = (struct row){.hit = blocks, .all = bench_median(v[0], b->repeat), .split = bench_median(v[1], b->repeat),
			    .estimate = bench_median(estimate, b->repeat),
			    .restored = (uint32_t)bench_median(restored, b->repeat)};
	for (uint32_t layer = 0; layer < b->set.geometry.layers; layer++)
		row->recompute += (double)pipeline_compute_ns(&b->set, 0, layer) * 1e-9;
	return CLI_OK;
}

static json_t *as_json(const struct pipeline_bench *b, const struct row *row)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < b->nhits; i++)
		json_array_append_new(rows, json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "hit_rate",
						      (double)row[i].hit / b->set.blocks, "restored_rate",
						      (double)row[i].restored / b->set.blocks, "split_ttft_ms",
						      row[i].split * 1e3, "estimated_ttft_ms", row[i].estimate * 1e3,
						      "restore_all_ttft_ms", row[i].all * 1e3, "recompute_ttft_ms",
						      row[i].recompute * 1e3));
	return json_pack("{s:o, s:o}", "rows", rows, "settings", pipeline_settings(b));
}

static int print(const struct pipeline_bench *b, const struct row *row)
{
	static const char *const heads[] = {"hit", "restored", "TTFT ms", "planned", "all restored", "all computed", "gain"};
	const bool left[7] = {false};
	struct cli_table t;

	pipeline_print_head(b);
	printf("%zu run%s a row, medians\n\n", b->repeat, b->repeat == 1 ? "" : "s");
	cli_table_init(&t, 7, left);
	for (size_t i = 0; i < 7; i++)
		cli_table_cell(&t, "%s", heads[i]);
	for (size_t i = 0; i < b->nhits; i++) {
		double best = row[i].all < row[i].recompute ? row[i].all : row[i].recompute;

		cli_table_cell(&t, "%.1f %%", 100.0 * row[i].hit / b->set.blocks);
		cli_table_cell(&t, "%.1f %%", 100.0 * row[i].restored / b->set.blocks);
		cli_table_cell(&t, "%.1f", row[i].split * 1e3);
		cli_table_cell(&t, "%.1f", row[i].estimate * 1e3);
		cli_table_cell(&t, "%.1f", row[i].all * 1e3);
		cli_table_cell(&t, "%.1f", row[i].recompute * 1e3);
		cli_table_cell(&t, "%.1f %%", 100 * (1 - row[i].split / best));
	}
	cli_table_print(&t, stdout, true);
	printf("\ngain: over the better of restoring all that hit and computing everything\n");
	return cli_finish(CLI_OK);
}

int pipeline_split(struct pipeline_bench *b)
{
	struct row *row = calloc(b->nhits, sizeof(*row));
	int rc = row ? CLI_OK : cli_error(CLI_ENVIRONMENT, "out of memory");

	pipeline_begin(b, "split", 2 * b->nhits * b->repeat);
	for (size_t i = 0; !rc && i < b->nhits; i++)
		rc = measure_hit(b, b->hit[i], &row[i]);
	cli_progress_end(&b->progress);
	if (!rc)
		rc = b->args->json ? cli_json(as_json(b, row)) : print(b, row);
	free(row);
	return rc;
}
