/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The published case beside the model: Llama-3-8B on one H100, a prefix of 64K tokens in blocks of 16.
 *
 * Published figures are those of "Tutti: Making SSD-Backed KV Cache Practical for Long-Context LLM Serving"
 * (arXiv 2605.03375, as reviewed in June 2026).
 */
#include "replay_model.h"

#include <string.h>

#include <tenuto/layout.h>

#define BLOCK_TOKENS 16u
#define PLANES 2u /* K and V: one object each in the published layout */
#define HIT_RATE 0.9375
#define TOKENS_MOST (1u << 20)

bool model_paper_applies(const struct replay_model *m)
{
	return !strcmp(m->compute.model, "llama3-8b") && !strcmp(m->compute.gpu, "h100");
}

/* The number of input tokens from which on a layer's compute is as long as its reading; 0: no number in the range. */
static int hides_from(struct replay_model *m, uint64_t read_ns, uint64_t *tokens)
{
	uint64_t low = 0, high = TOKENS_MOST, ns[TN_LAYERS_MAX];

	while (high - low > 1) {
		uint64_t mid = low + (high - low) / 2;
		int rc = model_compute_ns(&m->compute, mid, MODEL_PAPER_PREFIX, ns);

		if (rc)
			return rc;
		if (ns[0] >= read_ns)
			high = mid;
		else
			low = mid;
	}
	*tokens = high < TOKENS_MOST ? high : 0;
	return 0;
}

static int at_rate(struct replay_model *m, double read_bps, uint64_t layer_bytes, struct model_paper_at *out)
{
	uint32_t layers = m->geometry.layers;
	uint64_t ns[TN_LAYERS_MAX], bytes[TN_LAYERS_MAX];
	struct tn_pipeline_layer layer[TN_LAYERS_MAX];
	struct tn_pipeline_result r;
	struct tn_pipeline p;
	int rc;

	out->read_gbps = read_bps * 1e-9;
	out->layer_ms = (double)layer_bytes * 1e3 / read_bps;
	rc = hides_from(m, (uint64_t)(out->layer_ms * 1e6), &out->hides_from_tokens);
	out->crossover = (double)MODEL_PAPER_PREFIX / (double)(MODEL_PAPER_PREFIX + out->hides_from_tokens);
	tn_pipeline_init(&p);
	p.layers = layers;
	p.compute_ns = ns;
	p.bytes = bytes;
	p.io = model_io(&m->device);
	p.io.read_bps = read_bps;
	for (uint32_t l = 0; l < layers; l++)
		bytes[l] = layer_bytes;
	if (!rc)
		rc = model_compute_ns(&m->compute, (uint64_t)(MODEL_PAPER_PREFIX * (1 / HIT_RATE - 1)),
				      MODEL_PAPER_PREFIX, ns);
	if (!rc)
		rc = tn_pipeline_run(&p, TN_STRATEGY_TENUTO, layer, &r);
	if (rc)
		return rc;
	out->ttft_ms = (double)r.restore.ttft_ns * 1e-6;
	out->bubble_ms = (double)r.restore.bubble_ns * 1e-6;
	return 0;
}

int model_paper(struct replay_model *m, struct model_paper *out)
{
	uint64_t token_bytes = tn_geometry_object_bytes(&m->geometry) / m->geometry.page_tokens; /* of one layer */
	int rc;

	*out = (struct model_paper){
		.blocks = MODEL_PAPER_PREFIX / BLOCK_TOKENS,
		.block_tokens = BLOCK_TOKENS,
		.objects = MODEL_PAPER_PREFIX / BLOCK_TOKENS * PLANES,
		.object_bytes = token_bytes * BLOCK_TOKENS / PLANES,
		.layer_bytes = token_bytes * MODEL_PAPER_PREFIX,
		.hit_rate = HIT_RATE,
	};
	rc = at_rate(m, MODEL_PAPER_GBPS * 1e9, out->layer_bytes, &out->at[0]);
	return rc ? rc : at_rate(m, m->device.read_bps, out->layer_bytes, &out->at[1]);
}
