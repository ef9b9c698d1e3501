/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One table of models, from their published config.json, gives both their geometries and the analytic model: the time of a
 * layer is the larger of its FLOPs over what the GPU reaches of its rate, and its bytes over the memory's bandwidth. The
 * formulas are written out in docs/model.md.
 *
 * What it leaves out: activations' traffic, launches, communication between GPUs, batching with other requests. It is
 * a start that observations correct.
 */
#include "lab/models.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define SM_UNIT 2u
#define IOCB_OBJECTS 2048.0 /* most of one IOCB */
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Attention with grouped queries, or multi-head latent attention if latent is set; bytes per weight as published. */
struct model {
	const char *name;
	uint32_t layers, hidden, heads;
	uint32_t kv_heads, head_dim;		   /* grouped queries */
	uint32_t q_lora, latent, rope, nope, value; /* latent: kv_lora_rank; dims of a head: nope + rope, value */
	uint32_t inner;				   /* of the dense MLP */
	uint32_t dense_layers, experts, active, shared, expert_inner; /* mixture of experts in the other layers */
	double weight_bytes;
};

static const struct model models[] = {
	/* config.json of meta-llama/Meta-Llama-3-8B */
	{.name = "llama3-8b", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .inner = 14336,
	 .dense_layers = 32, .weight_bytes = 2},
	/* config.json of meta-llama/Meta-Llama-3-70B */
	{.name = "llama3-70b", .layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 8, .head_dim = 128, .inner = 28672,
	 .dense_layers = 80, .weight_bytes = 2},
	/* config.json of Qwen/Qwen3-32B */
	{.name = "qwen3-32b", .layers = 64, .hidden = 5120, .heads = 64, .kv_heads = 8, .head_dim = 128, .inner = 25600,
	 .dense_layers = 64, .weight_bytes = 2},
	/* config.json of THUDM/glm-4-9b-chat: multi_query_group_num 2 (the -1m variant has 4) */
	{.name = "glm4-9b", .layers = 40, .hidden = 4096, .heads = 32, .kv_heads = 2, .head_dim = 128, .inner = 13696,
	 .dense_layers = 40, .weight_bytes = 2},
	/* inference/configs/config_671B.json of deepseek-ai/DeepSeek-V3: FP8, three layers dense, then 8 of 256 experts and one shared */
	{.name = "deepseek-v3", .layers = 61, .hidden = 7168, .heads = 128, .q_lora = 1536, .latent = 512, .rope = 64,
	 .nope = 128, .value = 128, .inner = 18432, .dense_layers = 3, .experts = 256, .active = 8, .shared = 1,
	 .expert_inner = 2048, .weight_bytes = 1},
};

struct gpu {
	const char *name;
	double flops_per_s, bytes_per_s;
	uint32_t sms;
};

/* Dense bf16 rates: where a datasheet gives them with sparsity, half of that. SMs as in the architecture papers of these GPUs. */
static const struct gpu gpus[] = {
	{"h100", 989.4e12, 3.35e12, 132}, /* NVIDIA H100 Tensor Core GPU datasheet, SXM5 80 GB */
	{"h200", 989.4e12, 4.8e12, 132}, /* NVIDIA H200 Tensor Core GPU datasheet, SXM 141 GB */
	{"a100", 312e12, 2.039e12, 108}, /* NVIDIA A100 Tensor Core GPU datasheet, SXM4 80 GB */
	{"l40s", 362.05e12, 0.864e12, 142}, /* NVIDIA L40S datasheet */
	{"b200", 2250e12, 8.0e12, 148}, /* NVIDIA DGX B200 datasheet, one of eight GPUs */
};

/* ---- by name ------------------------------------------------------------------------------------ */

const char *tn_model_at(size_t i)
{
	return i < COUNT(models) ? models[i].name : NULL;
}

const char *tn_gpu_at(size_t i)
{
	return i < COUNT(gpus) ? gpus[i].name : NULL;
}

static int find(const char *what, const char *name, const char *(*at)(size_t i), size_t *index)
{
	char known[256];
	size_t used = 0;

	for (size_t i = 0; at(i); i++) {
		if (name && strcmp(at(i), name) == 0) {
			*index = i;
			return 0;
		}
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", at(i));
		if (used >= sizeof(known))
			used = sizeof(known) - 1;
	}
	return tn_fail(-ENOENT, "%s \"%.64s\" is unknown; known are %s", what, name ? name : "", known);
}

int tn_model_find(const char *name, struct tn_geometry *out)
{
	struct tn_geometry g = {.page_tokens = 16, .page_order = TN_PAGE_NHD};
	const struct model *m;
	size_t i;
	int rc = find("model", name, tn_model_at, &i);

	if (rc)
		return rc;
	m = &models[i];
	g.layers = m->layers;
	g.nplanes = m->latent ? 1 : 2;
	if (m->latent)
		g.planes[0] = (struct tn_plane){TN_PLANE_LATENT, 1, m->latent + m->rope, 16};
	else
		for (uint32_t p = 0; p < 2; p++)
			g.planes[p] = (struct tn_plane){p ? TN_PLANE_V : TN_PLANE_K, m->kv_heads, m->head_dim, 16};
	g.pages_per_block = tn_geometry_default_pages(&g);
	*out = g;
	return 0;
}

/* ---- one layer ---------------------------------------------------------------------------------- */

static double min2(double a, double b)
{
	return a < b ? a : b;
}

/* Weights of the attention's projections. */
static double attention_weights(const struct model *m)
{
	double h = m->hidden, heads = m->heads;

	if (!m->latent)
		return h * heads * m->head_dim * 2 + h * m->kv_heads * m->head_dim * 2;
	return h * m->q_lora + m->q_lora * heads * (m->nope + m->rope) + h * (m->latent + m->rope) +
	       m->latent * heads * (m->nope + m->value) + heads * m->value * h;
}

struct cost {
	double flops, bytes;
};

/* Gate, up and down projection, and all experts that any of the tokens is sent to. */
static struct cost mlp(const struct model *m, uint32_t layer, double tokens)
{
	double dense = 3.0 * m->hidden * m->inner, expert = 3.0 * m->hidden * m->expert_inner;
	double touched = min2(m->experts, tokens * m->active) + m->shared;

	if (layer < m->dense_layers)
		return (struct cost){2 * tokens * dense, dense * m->weight_bytes};
	return (struct cost){2 * tokens * (expert * (m->active + m->shared) + (double)m->hidden * m->experts),
			     (expert * touched + (double)m->hidden * m->experts) * m->weight_bytes};
}

/*
 * Scores and their product with the values: each new token looks at all before it. MLA also turns the prefix's latents
 * into keys and values again, once per layer.
 */
static struct cost attention(const struct model *m, double tokens, double prefix)
{
	double pairs = tokens * (prefix + (tokens + 1) / 2), w = attention_weights(m), context = prefix + tokens;

	if (!m->latent)
		return (struct cost){2 * tokens * w + 4 * pairs * m->heads * m->head_dim,
				     w * m->weight_bytes + context * m->kv_heads * m->head_dim * 4};
	return (struct cost){2 * tokens * w + 2 * pairs * m->heads * (m->nope + m->rope + m->value) +
				     2 * prefix * m->latent * m->heads * (m->nope + m->value),
			     w * m->weight_bytes + context * (m->latent + m->rope) * 2};
}

/* Time of a layer if only the arithmetic took any, and if only the memory did. */
struct times {
	double compute_ns, memory_ns;
};

static struct times layer_times(const struct model *m, const struct gpu *g, double efficiency, uint64_t input, uint64_t prefix,
				uint32_t layer)
{
	struct cost a = attention(m, (double)input, (double)prefix), f = mlp(m, layer, (double)input);

	return (struct times){(a.flops + f.flops) / (g->flops_per_s * efficiency) * 1e9, (a.bytes + f.bytes) / g->bytes_per_s * 1e9};
}

static uint64_t window_of(struct times t)
{
	double ns = t.compute_ns > t.memory_ns ? t.compute_ns : t.memory_ns;

	if (ns > (double)TN_SLACK_WINDOW_MAX)
		ns = (double)TN_SLACK_WINDOW_MAX;
	return ns < 1 ? 1 : (uint64_t)ns;
}

/*
 * SMs that a layer does not need: its arithmetic would be done in time without them. At most half, because fewer SMs than that
 * do not use up the memory's bandwidth. At least one unit, the smallest partition of an H100.
 */
static uint32_t sm_budget(const struct gpu *g, struct times t)
{
	double spare = t.memory_ns > t.compute_ns ? g->sms * (1 - t.compute_ns / t.memory_ns) : 0;
	uint32_t n = (uint32_t)min2(spare, g->sms / 2.0) / SM_UNIT * SM_UNIT;

	return n > SM_UNIT ? n : SM_UNIT;
}

/*
 * Whole IOCBs that are read within a layer's time, and two more: one that is read when the time is over, and one that waits
 * behind it. An IOCB is a layer of the prefix.
 */
static uint32_t most_iocbs(const struct tn_geometry *g, double read_bps, uint64_t window_ns, uint64_t prefix)
{
	double object = (double)tn_geometry_object_bytes(g), layer = (double)prefix / tn_geometry_block_tokens(g) * object, n;

	if (!(read_bps > 0) || prefix == 0)
		return 0;
	n = 2 + (double)window_ns * 1e-9 * read_bps / min2(layer, IOCB_OBJECTS * object);
	return (uint32_t)min2(n, TN_SLACK_BOUND_MAX);
}

/* ---- tables -------------------------------------------------------------------------------------- */

static int look_up(const char *model, const char *gpu, double efficiency, const struct model **m,
		   const struct gpu **g)
{
	size_t i;
	int rc = find("model", model, tn_model_at, &i);

	if (rc)
		return rc;
	*m = &models[i];
	rc = find("GPU", gpu, tn_gpu_at, &i);
	if (rc)
		return rc;
	*g = &gpus[i];
	if (!(efficiency > 0 && efficiency <= 1))
		return tn_fail(-EINVAL, "efficiency %g: must be above 0 and at most 1", efficiency);
	return 0;
}

int tn_slack_analytic_ns(const char *model, const char *gpu, double efficiency, uint64_t input_tokens,
			 uint64_t prefix_tokens, uint32_t layer, uint64_t *window_ns)
{
	const struct gpu *g;
	const struct model *m;
	int rc = look_up(model, gpu, efficiency, &m, &g);

	if (rc)
		return rc;
	if (layer >= m->layers)
		return tn_fail(-EINVAL, "layer %u: %s has %u", layer, m->name, m->layers);
	if (input_tokens == 0 || input_tokens > TN_SLACK_TOKENS_MAX || prefix_tokens > TN_SLACK_TOKENS_MAX)
		return tn_fail(-EINVAL, "%llu input and %llu prefix tokens: give 1 to 2^40, and at most 2^40",
			       (unsigned long long)input_tokens, (unsigned long long)prefix_tokens);
	*window_ns = window_of(layer_times(m, g, efficiency, input_tokens, prefix_tokens, layer));
	return 0;
}

/* Twice as many each time: what lies between is at most an eighth above the quadratic part. */
static uint32_t doubling(uint64_t from, uint64_t to, uint64_t *lengths, uint32_t n)
{
	for (uint64_t at = from; at <= to; at *= 2)
		lengths[n++] = at;
	return n;
}

int tn_slack_analytic(const char *model, const char *gpu, double efficiency, double read_bps, const char *when,
		      struct tn_slack **out)
{
	struct tn_geometry geometry;
	struct tn_slack_cell cell;
	uint64_t inputs[TN_SLACK_LENGTHS_MAX], prefixes[TN_SLACK_LENGTHS_MAX] = {0};
	const struct gpu *g;
	struct tn_slack_desc d;
	const struct model *m;
	int rc = look_up(model, gpu, efficiency, &m, &g);

	if (!rc)
		rc = tn_model_find(model, &geometry);
	if (rc)
		return rc;
	tn_slack_cell_init(&cell);
	tn_slack_desc_init(&d);
	d.model = m->name;
	d.gpu = g->name;
	d.when = when;
	d.how = TN_SLACK_ANALYTIC;
	d.layers = m->layers;
	d.per_layer = m->dense_layers < m->layers;
	d.inputs = inputs;
	d.ninputs = doubling(1, 128 << 10, inputs, 0);
	d.prefixes = prefixes;
	d.nprefixes = doubling(1 << 10, 1 << 20, prefixes, 1);
	rc = tn_slack_create(&d, out);
	if (rc)
		return rc;
	for (uint32_t r = 0; r < (d.per_layer ? d.layers : 1); r++)
		for (uint32_t p = 0; p < d.nprefixes; p++)
			for (uint32_t i = 0; i < d.ninputs; i++) {
				struct times t = layer_times(m, g, efficiency, inputs[i], prefixes[p], r);

				cell.window_ns = window_of(t);
				cell.sm_budget = sm_budget(g, t);
				cell.most_iocbs = most_iocbs(&geometry, read_bps, cell.window_ns, prefixes[p]);
				tn_slack_set_cell(*out, i, p, d.per_layer ? r : TN_SLACK_ALL_LAYERS, &cell);
			}
	return 0;
}
