/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies on the index only (policy_sim.h): what they would hit and write on a trace of block ids.
 * The policy that knows the future is in policy_belady.c.
 */
#include "lab/policy_sim.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "lab/id_map.h"
#include "policy/policy.h"

#define NOT_HELD UINT32_MAX
#define CAPACITY_MAX (1u << 30)
#define REQUEST_MAX (1u << 24)

struct held {
	uint64_t id;
	uint32_t request; /* the last one that hit or inserted the block, which is protected while it is under way */
	bool hit; /* since the block came in */
};

struct tn_policy_sim {
	struct tn_policy_sim_opts opts;
	bool after, protect;
	struct tn_policy *policy; /* NULL: unlimited */
	struct tn_id_map map; /* id -> entry, or NOT_HELD; unlimited: 0 if hit, else 1 */
	uint32_t entries; /* of the policy */
	struct held *held;
	uint32_t *free;
	uint32_t nfree;
	uint32_t request;
	uint64_t *slots; /* of the present request: places in the map */
	struct tn_policy_sim_stats stats;
};

/* How published simulators of these policies evict. All other policies evict as a real store does. */
static const struct {
	const char *policy;
	bool after, protect;
} published[] = {{"lru", true, false}, {"fifo", true, false}, {"s3fifo", false, false}};

const char *tn_policy_name(size_t i)
{
	const struct tn_policy_ops *ops = tn_policy_at(i);

	return ops ? ops->name : NULL;
}

void tn_policy_sim_opts_init(struct tn_policy_sim_opts *opts)
{
	*opts = (struct tn_policy_sim_opts){
		.policy = "default",
		.max_request_blocks = 65536,
		.protect_request = true,
		.seed = 1,
	};
}

static int check(const struct tn_policy_sim_opts *o)
{
	if (o->capacity_blocks > CAPACITY_MAX)
		return tn_fail(-EINVAL, "capacity_blocks %llu: must be 0 (unlimited) to %u",
			       (unsigned long long)o->capacity_blocks, CAPACITY_MAX);
	if (o->max_request_blocks == 0 || o->max_request_blocks > REQUEST_MAX)
		return tn_fail(-EINVAL, "max_request_blocks %u: must be 1 to %u", o->max_request_blocks, REQUEST_MAX);
	if (o->evict > TN_SIM_EVICT_BEFORE)
		return tn_fail(-EINVAL, "evict %u: must be one of enum tn_sim_evict", o->evict);
	return 0;
}

static void choose_form(struct tn_policy_sim *sim, const char *policy)
{
	sim->after = sim->opts.evict == TN_SIM_EVICT_AFTER;
	sim->protect = sim->opts.evict == TN_SIM_EVICT_BEFORE ? sim->opts.protect_request : true;
	for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++)
		if (sim->opts.evict == TN_SIM_EVICT_AUTO && !strcmp(policy, published[i].policy)) {
			sim->after = published[i].after;
			sim->protect = published[i].protect;
		}
}

static int create_policy(struct tn_policy_sim *sim, const struct tn_policy_ops *ops)
{
	struct tn_policy_opts po = {.seed = sim->opts.seed, .alloc = &tn_alloc_system};
	int rc;

	choose_form(sim, ops->name);
	sim->entries = (uint32_t)sim->opts.capacity_blocks + (sim->after ? sim->opts.max_request_blocks : 0);
	po.capacity = sim->entries;
	po.target = (uint32_t)sim->opts.capacity_blocks;
	sim->held = tn_get(&tn_alloc_system, tn_array_bytes(sim->entries, sizeof(*sim->held)));
	sim->free = tn_get(&tn_alloc_system, tn_array_bytes(sim->entries, sizeof(*sim->free)));
	if (!sim->held || !sim->free)
		return tn_fail(-ENOMEM, "no memory for %u blocks", sim->entries);
	rc = ops->create(&po, &sim->policy);
	if (rc)
		return rc;
	while (sim->nfree < sim->entries) {
		sim->free[sim->nfree] = sim->entries - 1 - sim->nfree;
		sim->nfree++;
	}
	return 0;
}

int tn_policy_sim_create(const struct tn_policy_sim_opts *opts, struct tn_policy_sim **out)
{
	const struct tn_policy_ops *ops;
	struct tn_policy_sim *sim;
	int rc = check(opts);

	if (!rc)
		rc = tn_policy_find(opts->policy ? opts->policy : "default", &ops);
	if (rc)
		return rc;
	sim = tn_get(&tn_alloc_system, sizeof(*sim));
	if (!sim)
		return tn_fail(-ENOMEM, "no memory for a simulation");
	sim->opts = *opts;
	sim->opts.policy = NULL; /* the string is the caller's and may be gone */
	sim->map.alloc = &tn_alloc_system;
	sim->slots = tn_get(&tn_alloc_system, tn_array_bytes(opts->max_request_blocks, sizeof(*sim->slots)));
	if (!sim->slots)
		rc = tn_fail(-ENOMEM, "no memory for requests of %u blocks", opts->max_request_blocks);
	else if (opts->capacity_blocks)
		rc = create_policy(sim, ops);
	if (rc) {
		tn_policy_sim_destroy(sim);
		return rc;
	}
	*out = sim;
	return 0;
}

void tn_policy_sim_destroy(struct tn_policy_sim *sim)
{
	if (!sim)
		return;
	if (sim->policy)
		sim->policy->ops->destroy(sim->policy);
	tn_id_map_fini(&sim->map);
	tn_put(&tn_alloc_system, sim->held, tn_array_bytes(sim->entries, sizeof(*sim->held)));
	tn_put(&tn_alloc_system, sim->free, tn_array_bytes(sim->entries, sizeof(*sim->free)));
	tn_put(&tn_alloc_system, sim->slots, tn_array_bytes(sim->opts.max_request_blocks, sizeof(*sim->slots)));
	tn_put(&tn_alloc_system, sim, sizeof(*sim));
}

/* ---- one request ----------------------------------------------------------------------------- */

static uint32_t *entry_of(struct tn_policy_sim *sim, size_t i)
{
	return &sim->map.slots[sim->slots[i]].value;
}

static bool usable(void *arg, uint32_t id)
{
	const struct tn_policy_sim *sim = arg;

	return sim->held[id].request != sim->request;
}

/* Evicts one block, if one may go. Returns whether one did. */
static bool evict(struct tn_policy_sim *sim, struct tn_policy_sim_result *r)
{
	const struct tn_policy_ops *ops = sim->policy->ops;
	uint32_t id = ops->victim(sim->policy, sim->protect && !sim->after ? usable : NULL, sim);

	if (id == TN_ENTRY_NONE)
		return false;
	ops->remove(sim->policy, id, sim->held[id].id, TN_POLICY_EVICTED);
	tn_id_map_at(&sim->map, sim->held[id].id, NOT_HELD)->value = NOT_HELD;
	sim->free[sim->nfree++] = id;
	sim->stats.held--;
	r->evicted++;
	return true;
}

static struct tn_policy_block describe(struct tn_policy_sim *sim, const uint64_t *ids, size_t n, size_t i, bool partial)
{
	uint32_t parent = i ? *entry_of(sim, i - 1) : NOT_HELD;

	return (struct tn_policy_block){
		.key_hash = ids[i],
		.parent = parent == NOT_HELD ? TN_ENTRY_NONE : parent,
		.depth = (uint32_t)i,
		.from_end = (uint32_t)(n - 1 - i),
		.partial = partial && i == n - 1,
	};
}

static void offer(struct tn_policy_sim *sim, size_t i, uint64_t id, const struct tn_policy_block *b,
		  struct tn_policy_sim_result *r)
{
	const struct tn_policy_ops *ops = sim->policy->ops;
	bool full = !sim->after && sim->stats.held >= sim->opts.capacity_blocks;
	bool admitted = ops->admit(sim->policy, b, full, sim->protect ? usable : NULL, sim);
	uint32_t entry;

	while (admitted && !sim->after && sim->stats.held >= sim->opts.capacity_blocks)
		admitted = evict(sim, r);
	if (!admitted) {
		r->rejected++;
		return;
	}
	assert(sim->nfree > 0);
	entry = sim->free[--sim->nfree];
	sim->held[entry] = (struct held){id, sim->request, false};
	*entry_of(sim, i) = entry;
	ops->insert(sim->policy, entry, b);
	sim->stats.held++;
	sim->stats.unread++;
	r->inserted++;
}

static void refer(struct tn_policy_sim *sim, const uint64_t *ids, size_t n, size_t i, bool partial,
		  struct tn_policy_sim_result *r)
{
	struct tn_policy_block b = describe(sim, ids, n, i, partial);
	uint32_t entry = *entry_of(sim, i);

	if (entry == NOT_HELD)
		offer(sim, i, ids[i], &b, r);
	else
		sim->policy->ops->touch(sim->policy, entry, &b);
}

static void touch_backward(struct tn_policy_sim *sim, const uint64_t *ids, size_t n, bool partial)
{
	for (size_t i = n; i-- > 0;)
		if (*entry_of(sim, i) != NOT_HELD) {
			struct tn_policy_block b = describe(sim, ids, n, i, partial);

			sim->policy->ops->touch(sim->policy, *entry_of(sim, i), &b);
		}
}

static void run_policy(struct tn_policy_sim *sim, const uint64_t *ids, size_t n, bool partial,
		       struct tn_policy_sim_result *r)
{
	const struct tn_policy_ops *ops = sim->policy->ops;
	const struct tn_policy_request req = {(uint32_t)n, r->hits, TN_ENTRY_NONE};

	sim->request++;
	for (uint32_t i = 0; i < r->hits; i++) {
		struct held *h = &sim->held[*entry_of(sim, i)];

		h->request = sim->request;
		sim->stats.unread -= !h->hit;
		h->hit = true;
	}
	ops->request(sim->policy, &req);
	for (size_t i = 0; i < n; i++)
		refer(sim, ids, n, i, partial, r);
	if (!ops->forward)
		touch_backward(sim, ids, n, partial);
	while (sim->after && sim->stats.held > sim->opts.capacity_blocks)
		if (!evict(sim, r))
			break;
}

static void keep_all(struct tn_policy_sim *sim, size_t n, struct tn_policy_sim_result *r)
{
	for (uint32_t i = 0; i < r->hits; i++) {
		sim->stats.unread -= *entry_of(sim, i);
		*entry_of(sim, i) = 0;
	}
	for (size_t i = r->hits; i < n; i++)
		if (*entry_of(sim, i) == NOT_HELD) {
			*entry_of(sim, i) = 1;
			sim->stats.held++;
			sim->stats.unread++;
			r->inserted++;
		}
}

int tn_policy_sim_request(struct tn_policy_sim *sim, const uint64_t *ids, size_t n, bool partial_last,
			  struct tn_policy_sim_result *result)
{
	struct tn_policy_sim_result r = {0};
	int rc;

	if (n > sim->opts.max_request_blocks)
		return tn_fail(-EINVAL, "request of %zu blocks: max_request_blocks is %u", n,
			       sim->opts.max_request_blocks);
	rc = tn_id_map_reserve(&sim->map, n);
	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		sim->slots[i] = (uint64_t)(tn_id_map_at(&sim->map, ids[i], NOT_HELD) - sim->map.slots);
	while (r.hits < n && *entry_of(sim, r.hits) != NOT_HELD)
		r.hits++;
	if (sim->policy)
		run_policy(sim, ids, n, partial_last, &r);
	else
		keep_all(sim, n, &r);
	sim->stats.requests++;
	sim->stats.blocks += n;
	sim->stats.hits += r.hits;
	sim->stats.inserted += r.inserted;
	sim->stats.rejected += r.rejected;
	sim->stats.evicted += r.evicted;
	sim->stats.distinct = sim->map.count;
	if (result)
		*result = r;
	return 0;
}

void tn_policy_sim_stats(const struct tn_policy_sim *sim, struct tn_policy_sim_stats *stats)
{
	*stats = sim->stats;
}
