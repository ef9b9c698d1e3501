/* SPDX-License-Identifier: Apache-2.0 */
/* What tests hold a split against: the pipeline, asked for one number of blocks. */
#ifndef TN_LAB_PIPELINE_RIG_H
#define TN_LAB_PIPELINE_RIG_H

#include "lab/pipeline.h"

/* What to expect when exactly the first @restore blocks are restored. */
static inline int tn_split_at(const struct tn_split *s, uint64_t restore, struct tn_restore *out)
{
	uint64_t input = (s->blocks - restore) * s->block_tokens + s->input_tokens, reads = 0;
	uint64_t compute[TN_LAYERS_MAX], bytes[TN_LAYERS_MAX];
	struct tn_pipeline_layer layer[TN_LAYERS_MAX];
	struct tn_pipeline_result r;
	struct tn_pipeline p;
	int rc;

	for (uint64_t b = 0; b < restore; b++)
		reads += s->tiers ? s->tiers[b] > TN_TIER_HOST : b >= s->host_blocks;
	rc = s->compute(s->compute_arg, input ? input : 1, restore * s->block_tokens - !input, compute);
	for (uint32_t l = 0; l < s->layers; l++)
		bytes[l] = reads * s->object_bytes;
	tn_pipeline_init(&p);
	p.layers = s->layers;
	p.compute_ns = compute;
	p.bytes = reads ? bytes : NULL;
	p.header_bytes = reads * s->header_bytes;
	p.io.read_bps = s->read_bps;
	p.io.latency_ns = s->latency_ns;
	p.io.window = s->window;
	if (!rc)
		rc = tn_pipeline_run(&p, TN_STRATEGY_TENUTO, layer, &r);
	*out = rc ? (struct tn_restore){0} : r.restore;
	return rc;
}

#endif
