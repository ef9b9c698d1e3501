/* SPDX-License-Identifier: Apache-2.0 */
/* The slack tables of spaces as callers give and get them, and what is planned with them: how much of a matched prefix to restore. */
#include <errno.h>
#include <string.h>

#include <tenuto/status.h>

#include "base/abi.h"
#include "base/error.h"
#include "core/core.h"
#include "front/attach.h"
#include "front/front.h"
#include "sched/slack.h"
#include "sched/split.h"

/* ---- the tables ---------------------------------------------------------------------------------- */

struct slack_call {
	struct tn_space *space;
	struct tn_slack *table; /* set: to take; copy: what was given */
};

static int set_on_owner(struct tn_cache *cache, void *arg)
{
	struct slack_call *c = arg;

	c->table = tn_space_slack_replace(c->space, c->table);
	return 0;
}

static int check_table(const struct tn_space *space, const struct tn_slack *table)
{
	struct tn_slack_desc d;

	tn_slack_describe(table, &d);
	if (d.layers != space->geometry.layers)
		return tn_fail(-EINVAL, "slack table of %s: %u layers, the space has %u", d.model, d.layers,
			       space->geometry.layers);
	if (strcmp(d.model, "-") != 0 && strncmp(d.model, space->model, sizeof(space->model)) != 0)
		return tn_fail(-EINVAL, "slack table of %s, but the space's model is %s: write that name or - into its model line, or profile with --name", d.model,
			       space->model);
	return tn_slack_check(table) ? tn_fail_cause(-EINVAL, "slack table of %s has gaps", d.model) : 0;
}

int tn_space_slack(struct tn_space *space, const struct tn_slack *table)
{
	struct slack_call call = {space, NULL};
	struct tn_slack *copy = NULL;
	int rc;

	if (!space)
		return tn_fail(-EINVAL, "tn_space_slack: no space");
	if (tn_check_process(space->cache))
		return -ECHILD;
	if (space->cache->attached)
		return tn_remote_slack(space, table);
	rc = table ? check_table(space, table) : 0;
	if (rc)
		return rc;
	rc = table ? tn_slack_clone(table, &call.table) : tn_slack_create_empty(space->geometry.layers, &call.table);
	if (rc == 0)
		rc = tn_slack_clone(call.table, &copy);
	if (rc == 0)
		rc = tn_owner_call(space->cache, set_on_owner, &call); /* from here on call.table is the old one */
	if (rc == 0) {
		struct tn_slack *old;

		pthread_mutex_lock(&space->plan_lock);
		old = space->plan_slack;
		space->plan_slack = copy;
		pthread_mutex_unlock(&space->plan_lock);
		copy = old;
	}
	tn_slack_destroy(copy);
	tn_slack_destroy(call.table);
	return rc;
}

int tn_space_slack_copy(struct tn_space *space, struct tn_slack **out)
{
	int rc;

	if (!space || !out)
		return tn_fail(-EINVAL, "tn_space_slack_copy: space or out is missing");
	if (tn_check_process(space->cache))
		return -ECHILD;
	if (space->cache->attached)
		return tn_remote_slack_copy(space, out);
	pthread_mutex_lock(&space->plan_lock);
	rc = tn_slack_clone(space->plan_slack, out);
	pthread_mutex_unlock(&space->plan_lock);
	return rc;
}

int tn_space_slack_changes(struct tn_space *space, uint64_t *changes, uint64_t *cells)
{
	if (!space || !changes || !cells)
		return tn_fail(-EINVAL, "tn_space_slack_changes: space, changes or cells is missing");
	if (tn_check_process(space->cache))
		return -ECHILD;
	if (space->cache->attached)
		return tn_fail(-EINVAL, "tn_space_slack_changes: the cache was attached; ask in the process that owns it");
	*changes = __atomic_load_n(&space->slack_changes, __ATOMIC_ACQUIRE);
	pthread_mutex_lock(&space->plan_lock);
	*cells = (uint64_t)space->plan_slack->rows * space->plan_slack->d.ninputs * space->plan_slack->d.nprefixes;
	pthread_mutex_unlock(&space->plan_lock);
	return 0;
}

int tn_space_observe(struct tn_space *space, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer, uint64_t ns)
{
	if (!space)
		return tn_fail(-EINVAL, "tn_space_observe: no space");
	if (tn_check_process(space->cache))
		return -ECHILD;
	if (layer >= space->geometry.layers)
		return tn_fail(-EINVAL, "tn_space_observe: layer %u, the space has %u", layer, space->geometry.layers);
	if (input_tokens == 0 || input_tokens > TN_SLACK_TOKENS_MAX || prefix_tokens > TN_SLACK_TOKENS_MAX)
		return tn_fail(-EINVAL, "tn_space_observe: %llu input tokens behind %llu: the first must be above 0, neither above %llu",
			       (unsigned long long)input_tokens, (unsigned long long)prefix_tokens,
			       (unsigned long long)TN_SLACK_TOKENS_MAX);
	if (ns <= TN_SLACK_WINDOW_MAX)
		tn_front_observe(space, input_tokens, prefix_tokens, layer, (int64_t)ns);
	return 0;
}

/* ---- the plan ------------------------------------------------------------------------------------ */

/* A table, and how many layers are looked at, evenly spread over those of the table. */
struct looked {
	const struct tn_slack *table;
	uint32_t layers;
};

static int compute(void *arg, uint64_t input_tokens, uint64_t prefix_tokens, uint64_t *ns)
{
	const struct looked *k = arg;
	const struct tn_slack *t = k->table;

	for (uint32_t l = 0; l < k->layers; l++) {
		uint32_t layer = (uint32_t)((uint64_t)l * t->d.layers / k->layers);

		ns[l] = l && t->rows == 1 ? ns[0] : tn_slack_window(t, input_tokens, prefix_tokens, layer);
		if (ns[l] == 0)
			return -ENODATA;
	}
	return 0;
}

/* Of a tier: of all devices together from their measured mix or the scheduler's meter; or from loads that ended. 0: unknown. */
static double tier_rate(const struct tn_cache *cache, uint32_t tier)
{
	uint64_t bps = tier == TN_TIER_DISK ? __atomic_load_n(&cache->read_bps, __ATOMIC_RELAXED) : 0;
	uint64_t ns_per_mib = __atomic_load_n(&cache->ns_per_mib[tier], __ATOMIC_RELAXED);
	double rate = (double)bps;

	if (!bps && ns_per_mib)
		rate = (double)(1u << 20) * 1e9 / (double)ns_per_mib;
	return rate < TN_READ_BPS_MAX ? rate : TN_READ_BPS_MAX; /* many devices, each as fast as a mix may say */
}

/* Of the slowest tier that the match is read from; 0: it is unknown of one. */
static double read_rate(const struct tn_cache *cache, const struct tn_match *m)
{
	double slowest = TN_READ_BPS_MAX;

	for (uint32_t t = TN_TIER_HOST + 1; t <= TN_TIER_REMOTE; t++) {
		double rate = m->tier_blocks[t] ? tier_rate(cache, t) : slowest;

		slowest = rate < slowest ? rate : slowest;
	}
	return slowest;
}

static struct tn_plan_cost cost_of(const struct tn_restore *r)
{
	return (struct tn_plan_cost){
		.ttft_ns = r->ttft_ns, .bubble_ns = r->bubble_ns, .compute_ns = r->compute_ns, .io_ns = r->io_ns};
}

/* Of a request, to the tier that is furthest away of those that the match is read from. */
static uint64_t latency_of(const struct tn_cache *cache, const struct tn_match *m)
{
	uint64_t most = cache->engines.mix[0].read_latency_ns;

	for_each_tier(t, &cache->row) {
		uint64_t ns = m->tier_blocks[t->tier] ? __atomic_load_n(&t->latency_ns, __ATOMIC_RELAXED) : 0;

		most = ns > most ? ns : most;
	}
	return most < TN_LAYER_NS_MAX ? most : TN_LAYER_NS_MAX;
}

/* What a split of this space has in common, whatever the prefix. */
static struct tn_split split_of(const struct tn_space *space, struct looked *looked)
{
	return (struct tn_split){
		.layers = space->geometry.layers,
		.first_together = space->shape.first_objects,
		.together = space->shape.chunk_objects,
		.window = TN_SPLIT_WINDOW,
		.block_tokens = tn_geometry_block_tokens(&space->geometry),
		.object_bytes = space->shape.padded_bytes,
		.header_bytes = TN_STORE_HEADER_BYTES,
		.latency_ns = space->cache->engines.mix[0].read_latency_ns,
		.compute = compute,
		.compute_arg = looked,
	};
}

/* Spaces that the blocks were found in, such as the shares of all ranks: of several, tier_blocks is the sum. */
static uint32_t shares_of(const struct tn_match *m)
{
	uint64_t found = 0, blocks = m->blocks - m->first;

	for (uint32_t t = 0; t < TN_TIERS_MAX; t++)
		found += m->tier_blocks[t];
	if (found <= blocks || blocks == 0)
		return 1;
	found = (found + blocks - 1) / blocks;
	return found < TN_MATCH_SPACES_MAX ? (uint32_t)found : TN_MATCH_SPACES_MAX;
}

static int choose(struct tn_space *space, const struct tn_match *m, const uint8_t *tiers, uint64_t input,
		  struct tn_split_choice *out)
{
	struct looked looked = {space->plan_slack, space->geometry.layers};
	struct tn_split s = split_of(space, &looked);
	uint32_t shares = shares_of(m);

	/* All shares come from the same disks, and the engine waits for the last of them. */
	s.object_bytes *= shares;
	s.header_bytes *= shares;
	s.blocks = m->blocks;
	s.host_blocks = (m->tier_blocks[TN_TIER_DEVICE] + m->tier_blocks[TN_TIER_HOST]) / shares;
	s.tiers = tiers;
	s.input_tokens = input;
	s.read_bps = read_rate(space->cache, m);
	s.latency_ns = latency_of(space->cache, m);
	s.scratch = space->plan_scratch;
	return tn_split_choose(&s, out);
}

static int split_match(struct tn_space *space, const struct tn_match *match, const uint8_t *tiers, uint64_t input_tokens,
		       struct tn_plan *plan)
{
	struct tn_split_choice choice;
	int rc;

	if (space->match_rule != TN_MATCH_PREFIX || match->blocks == 0)
		return 0;
	if (read_rate(space->cache, match) == 0)
		return 0;
	pthread_mutex_lock(&space->plan_lock);
	rc = choose(space, match, tiers, input_tokens, &choice);
	pthread_mutex_unlock(&space->plan_lock);
	if (rc == -ENODATA)
		return 0;
	if (rc)
		return rc;
	plan->restore_blocks = (uint32_t)choice.restore_blocks;
	plan->recompute_blocks = match->blocks - plan->restore_blocks;
	plan->choice = cost_of(&choice.chosen);
	plan->restore_all = cost_of(&choice.restore_all);
	plan->recompute_all = cost_of(&choice.restore_none);
	return 0;
}

int tn_plan(struct tn_space *space, const struct tn_match *match, const uint8_t *tiers, uint64_t input_tokens,
	    struct tn_plan *plan)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_plan, choice);
	struct tn_match m = {.size = sizeof(m)};
	struct tn_plan p = {.size = sizeof(p)};
	int rc;

	if (!space || !match || !plan)
		return tn_fail(-EINVAL, "tn_plan: space, match or plan is missing");
	if (tn_check_process(space->cache))
		return -ECHILD;
	rc = tn_abi_check(abi, plan);
	if (rc == 0)
		rc = tn_abi_in(TN_ABI_RESULT(tn_match, pin), &m, match);
	if (rc)
		return rc;
	if (m.first > m.blocks || m.tier_blocks[TN_TIER_HOST] / TN_MATCH_SPACES_MAX > m.blocks || input_tokens > TN_SLACK_TOKENS_MAX)
		return tn_fail(-EINVAL, "tn_plan: %u blocks from %u on and %llu input tokens are no match", m.blocks, m.first,
			       (unsigned long long)input_tokens);
	p.restore_blocks = m.blocks;
	if (space->cache->attached)
		rc = tn_remote_plan(space, &m, tiers, input_tokens, &p);
	else
		rc = split_match(space, &m, tiers, input_tokens, &p);
	if (rc == 0)
		tn_abi_out(abi, plan, &p);
	return rc;
}

/* ---- what is worth restoring ---------------------------------------------------------------------- */

/* Layers that a crossover looks at: of a model with more, this many evenly spread ones stand for all. Bounds what a scrape costs. */
#define CROSSOVER_LAYERS 128u

/* With the plan lock. 0: not known, or more bytes than can be counted. */
static uint64_t find_crossover(struct tn_space *space, uint32_t input_tokens, uint64_t read_bps)
{
	uint32_t layers = space->geometry.layers < CROSSOVER_LAYERS ? space->geometry.layers : CROSSOVER_LAYERS;
	struct looked looked = {space->plan_slack, layers};
	struct tn_split s = split_of(space, &looked);
	uint64_t all = TN_CROSSOVER_TOKENS / s.block_tokens, countable, blocks;

	s.layers = layers;
	s.input_tokens = input_tokens;
	s.read_bps = (double)read_bps;
	s.scratch = space->plan_scratch;
	all += all == 0;
	countable = TN_SPLIT_BYTES_MAX / (layers * s.object_bytes + s.header_bytes);
	s.blocks = all < countable ? all : countable;
	if (s.blocks == 0 || tn_split_crossover(&s, &blocks))
		return 0;
	if (blocks == TN_SPLIT_NEVER)
		return s.blocks < all ? 0 : TN_CROSSOVER_NEVER;
	return blocks * s.block_tokens;
}

/* Of the space that a thread which opens or closes one leaves alone: with the cache's lock. */
static void describe(struct tn_space *space, uint32_t input_tokens, struct tn_space_stats *out)
{
	out->index = space->index;
	memcpy(out->model, space->model, sizeof(out->model));
	out->block_tokens = (uint32_t)tn_geometry_block_tokens(&space->geometry);
	out->read_bps = (uint64_t)tier_rate(space->cache, TN_TIER_DISK);
	pthread_mutex_lock(&space->plan_lock);
	out->how = space->plan_slack->unknown ? TN_SLACK_UNKNOWN : space->plan_slack->d.how;
	if (!space->plan_slack->unknown && out->read_bps)
		out->crossover_tokens = find_crossover(space, input_tokens, out->read_bps);
	pthread_mutex_unlock(&space->plan_lock);
}

int tn_space_describe(struct tn_cache *cache, uint32_t index, uint32_t input_tokens, struct tn_space_stats *out)
{
	struct tn_space *space = NULL;

	pthread_mutex_lock(&cache->lock);
	for (; index < TN_SPACES_MAX && !space; index++)
		space = cache->spaces[index];
	if (space)
		describe(space, input_tokens, out);
	pthread_mutex_unlock(&cache->lock);
	return space ? 0 : -ENOENT;
}
