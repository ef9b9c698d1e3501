/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Well-known models and GPUs by name, for programs and simulations: the geometry of a model's KV, and the analytic model of
 * how long a layer computes (docs/model.md). An engine needs neither: it describes its own memory, and is timed.
 */
#ifndef TN_LAB_MODELS_H
#define TN_LAB_MODELS_H

#include <tenuto/layout.h>
#include <tenuto/slack.h>

/* Names of the models, and of the GPUs, in a fixed order; NULL past the last. */
const char *tn_model_at(size_t i);
const char *tn_gpu_at(size_t i);

/*
 * The geometry of a model ("llama3-8b", "qwen3-32b", ...): one bf16 shard with TP 1, pages of 16 tokens, blocks of
 * tn_geometry_default_pages pages. 0 and *out, or -ENOENT with the known names in the detail.
 */
int tn_model_find(const char *name, struct tn_geometry *out);

/* Share of the peak FLOP/s that prefill reaches in practice, unless something else is given. */
#define TN_SLACK_EFFICIENCY 0.5

/*
 * Time of one layer: the larger of FLOPs over rate (efficiency: the share of it that is reached, (0, 1]) and bytes over
 * bandwidth. *window_ns is set only on success, 1 to TN_SLACK_WINDOW_MAX. 0, -ENOENT (unknown model or GPU, the known
 * ones in the detail), -EINVAL (efficiency, layer, 0 or more than TN_SLACK_TOKENS_MAX tokens).
 */
int tn_slack_analytic_ns(const char *model, const char *gpu, double efficiency, uint64_t input_tokens,
			 uint64_t prefix_tokens, uint32_t layer, uint64_t *window_ns);

/*
 * A table of these times: inputs of 1 to 128K tokens behind prefixes of 0 to 1M tokens. The SM budget is what the layer does not
 * need. With read_bps, what the devices read, most_iocbs are the IOCBs that fit into the window, and two more; with 0 there is no
 * bound. @when: as in struct tn_slack_desc. 0 and *out, or as tn_slack_analytic_ns, -ENOMEM.
 */
int tn_slack_analytic(const char *model, const char *gpu, double efficiency, double read_bps, const char *when,
		      struct tn_slack **out);

#endif
