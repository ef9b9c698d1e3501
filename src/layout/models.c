/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Geometries of well-known models, for the command line, benchmarks and simulations.
 *
 * Figures are those of the models' published config.json. An engine does not need this table: it
 * describes its own memory. All are bf16, one shard (TP 1), pages of 16 tokens, and blocks of
 * tn_geometry_default_pages pages (a test holds them to it).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tenuto/layout.h>

#include "base/error.h"

#define GQA_BF16(layers_, pages, heads)                                                                                \
	{                                                                                                              \
		.layers = (layers_), .page_tokens = 16, .pages_per_block = (pages), .page_order = TN_PAGE_NHD,         \
		.nplanes = 2, .planes = {{TN_PLANE_K, (heads), 128, 16}, {TN_PLANE_V, (heads), 128, 16}},              \
	}

static const struct tn_model models[] = {
	/* meta-llama/Meta-Llama-3-8B: num_hidden_layers 32, num_key_value_heads 8, hidden_size 4096 / 32 heads */
	{"llama3-8b", GQA_BF16(32, 4, 8)},
	/* meta-llama/Meta-Llama-3-70B: num_hidden_layers 80, num_key_value_heads 8, hidden_size 8192 / 64 heads */
	{"llama3-70b", GQA_BF16(80, 4, 8)},
	/* Qwen/Qwen3-32B: num_hidden_layers 64, num_key_value_heads 8, head_dim 128 */
	{"qwen3-32b", GQA_BF16(64, 4, 8)},
	/* THUDM/glm-4-9b: num_layers 40, multi_query_group_num 2, kv_channels 128 */
	{"glm4-9b", GQA_BF16(40, 16, 2)},
	/* deepseek-ai/DeepSeek-V3: num_hidden_layers 61, kv_lora_rank 512 + qk_rope_head_dim 64, one latent plane */
	{"deepseek-v3",
	 {
		 .layers = 61,
		 .page_tokens = 16,
		 .pages_per_block = 15,
		 .page_order = TN_PAGE_NHD,
		 .nplanes = 1,
		 .planes = {{TN_PLANE_LATENT, 1, 512 + 64, 16}},
	 }},
};

const struct tn_model *tn_model_at(size_t i)
{
	return i < sizeof(models) / sizeof(models[0]) ? &models[i] : NULL;
}

int tn_model_find(const char *name, struct tn_geometry *out)
{
	char known[256];
	size_t used = 0;

	for (size_t i = 0; tn_model_at(i); i++) {
		if (strcmp(models[i].name, name) == 0) {
			*out = models[i].geometry;
			return 0;
		}
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", models[i].name);
		if (used >= sizeof(known))
			used = sizeof(known) - 1;
	}
	return tn_fail(-ENOENT, "model \"%.64s\" is unknown; known are %s", name, known);
}
