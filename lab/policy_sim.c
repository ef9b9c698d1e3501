/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies on the index only (policy_sim.h): what they would hit and write on a trace of block ids. At the end, the policy that knows
 * the future: farthest next use, deepest first among blocks that are never used again.
 */
#include "lab/policy_sim.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "policy/policy.h"

#define NOT_HELD UINT32_MAX
#define NEVER (UINT32_MAX - 1) /* the request of a next use: there is none */
#define CAPACITY_MAX (1u << 30)
#define REQUEST_MAX (1u << 24)

/* ---- ids -------------------------------------------------------------------------------------- */

struct id_slot {
	uint64_t id;
	uint32_t value;
	bool used;
};

/* A growing map from 64-bit ids to 32-bit values. Values stay in their place until the next reservation. */
struct id_map {
	struct id_slot *slots;
	uint64_t capacity; /* power of two, or 0 */
	uint64_t count;
};

static size_t slots_bytes(uint64_t capacity)
{
	return tn_array_bytes(capacity, sizeof(struct id_slot));
}

static struct id_slot *probe(struct id_slot *slots, uint64_t capacity, uint64_t id)
{
	uint64_t h = id * 0x9e3779b97f4a7c15u;
	uint64_t i = (h ^ h >> 32) & (capacity - 1);

	while (slots[i].used && slots[i].id != id)
		i = (i + 1) & (capacity - 1);
	return &slots[i];
}

/* Makes free slots for n more ids; -ENOMEM. */
static int id_map_reserve(struct id_map *m, uint64_t n)
{
	uint64_t capacity = m->capacity ? m->capacity : 1024;
	struct id_slot *slots;

	/* At most 2/3 full. */
	while ((m->count + n) * 3 > capacity * 2 && capacity <= UINT64_MAX / 2)
		capacity *= 2;
	if (capacity == m->capacity)
		return 0;
	slots = tn_get(&tn_alloc_system, slots_bytes(capacity));
	if (!slots)
		return tn_fail(-ENOMEM, "no memory to remember %llu block ids", (unsigned long long)(m->count + n));
	for (uint64_t i = 0; i < m->capacity; i++)
		if (m->slots[i].used)
			*probe(slots, capacity, m->slots[i].id) = m->slots[i];
	tn_put(&tn_alloc_system, m->slots, slots_bytes(m->capacity));
	m->slots = slots;
	m->capacity = capacity;
	return 0;
}

/* The id's slot. A new id gets `value`; the caller has reserved a free slot for it. */
static struct id_slot *id_map_at(struct id_map *m, uint64_t id, uint32_t value)
{
	struct id_slot *s = probe(m->slots, m->capacity, id);

	if (!s->used) {
		*s = (struct id_slot){id, value, true};
		m->count++;
	}
	return s;
}

static void id_map_fini(struct id_map *m)
{
	tn_put(&tn_alloc_system, m->slots, slots_bytes(m->capacity));
	m->slots = NULL;
	m->capacity = m->count = 0;
}

/* ---- a simulation ----------------------------------------------------------------------------- */

struct held {
	uint64_t id;
	uint32_t request; /* the last one that hit or inserted the block, which is protected while it is under way */
	bool hit; /* since the block came in */
};

struct tn_policy_sim {
	struct tn_policy_sim_opts opts;
	bool after, protect;
	struct tn_policy *policy; /* NULL: unlimited */
	struct id_map map; /* id -> entry, or NOT_HELD; unlimited: 0 if hit, else 1 */
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
	id_map_fini(&sim->map);
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
	id_map_at(&sim->map, sim->held[id].id, NOT_HELD)->value = NOT_HELD;
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
		if (ops->learn)
			ops->learn(sim->policy, TN_ENTRY_NONE, b);
		return;
	}
	assert(sim->nfree > 0);
	entry = sim->free[--sim->nfree];
	sim->held[entry] = (struct held){id, sim->request, false};
	*entry_of(sim, i) = entry;
	ops->insert(sim->policy, entry, b);
	if (ops->learn)
		ops->learn(sim->policy, entry, b);
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

	sim->request++;
	for (uint32_t i = 0; i < r->hits; i++) {
		struct held *h = &sim->held[*entry_of(sim, i)];

		h->request = sim->request;
		sim->stats.unread -= !h->hit;
		h->hit = true;
	}
	ops->request(sim->policy, TN_ENTRY_NONE, 0);
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

static void count(struct tn_policy_sim_stats *stats, uint64_t blocks, const struct tn_policy_sim_result *r)
{
	stats->requests++;
	stats->blocks += blocks;
	stats->hits += r->hits;
	stats->inserted += r->inserted;
	stats->rejected += r->rejected;
	stats->evicted += r->evicted;
}

int tn_policy_sim_request(struct tn_policy_sim *sim, const uint64_t *ids, size_t n, bool partial_last,
			  struct tn_policy_sim_result *result)
{
	struct tn_policy_sim_result r = {0};
	int rc;

	if (n > sim->opts.max_request_blocks)
		return tn_fail(-EINVAL, "request of %zu blocks: max_request_blocks is %u", n,
			       sim->opts.max_request_blocks);
	rc = id_map_reserve(&sim->map, n);
	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++)
		sim->slots[i] = (uint64_t)(id_map_at(&sim->map, ids[i], NOT_HELD) - sim->map.slots);
	while (r.hits < n && *entry_of(sim, r.hits) != NOT_HELD)
		r.hits++;
	if (sim->policy)
		run_policy(sim, ids, n, partial_last, &r);
	else
		keep_all(sim, n, &r);
	count(&sim->stats, n, &r);
	sim->stats.distinct = sim->map.count;
	if (result)
		*result = r;
	return 0;
}

void tn_policy_sim_stats(const struct tn_policy_sim *sim, struct tn_policy_sim_stats *stats)
{
	*stats = sim->stats;
}

/* ---- the policy that knows the future: next uses from the end of the trace, then the requests with a heap of them ------ */

struct use {
	uint32_t next; /* request that uses the block again, or NEVER */
	uint32_t depth;
	uint32_t block;
};

struct belady {
	const uint64_t *ids;
	const uint32_t *lengths;
	size_t requests;
	uint64_t references;
	uint64_t capacity;
	struct id_map map; /* id -> number of the block */
	uint32_t *blocks; /* of each reference */
	uint32_t *next; /* of each reference: request of the block's next reference */
	uint32_t *held; /* of each block: next use while the block is held, else NOT_HELD */
	bool *hit; /* of each block: since the block came in */
	struct use *heap; /* farthest use on top; outdated uses stay until they surface */
	uint64_t heap_count;
	struct tn_policy_sim_stats stats;
};

static bool farther(const struct use *a, const struct use *b)
{
	return a->next != b->next ? a->next > b->next : a->depth > b->depth;
}

static void heap_push(struct belady *s, struct use u)
{
	uint64_t i = s->heap_count++;

	for (; i > 0 && farther(&u, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = u;
}

static struct use heap_pop(struct belady *s)
{
	struct use top = s->heap[0], last = s->heap[--s->heap_count];
	uint64_t i = 0;

	for (uint64_t c = 1; c < s->heap_count; c = 2 * i + 1) {
		if (c + 1 < s->heap_count && farther(&s->heap[c + 1], &s->heap[c]))
			c++;
		if (!farther(&s->heap[c], &last))
			break;
		s->heap[i] = s->heap[c];
		i = c;
	}
	s->heap[i] = last;
	return top;
}

static void belady_fini(struct belady *s)
{
	const struct tn_alloc *a = &tn_alloc_system;

	id_map_fini(&s->map);
	tn_put(a, s->blocks, tn_array_bytes(s->references, sizeof(*s->blocks)));
	tn_put(a, s->next, tn_array_bytes(s->references, sizeof(*s->next)));
	tn_put(a, s->held, tn_array_bytes(s->references, sizeof(*s->held)));
	tn_put(a, s->hit, tn_array_bytes(s->references, sizeof(*s->hit)));
	tn_put(a, s->heap, tn_array_bytes(s->references, sizeof(*s->heap)));
}

static int number_blocks(struct belady *s)
{
	const struct tn_alloc *a = &tn_alloc_system;
	int rc;

	if (s->requests >= NEVER)
		return tn_fail(-EINVAL, "%zu requests: more than %u", s->requests, NEVER - 1);
	for (size_t q = 0; q < s->requests; q++)
		s->references += s->lengths[q];
	if (s->references >= NEVER)
		return tn_fail(-EINVAL, "%llu blocks: more than %u", (unsigned long long)s->references, NEVER - 1);
	s->blocks = tn_get(a, tn_array_bytes(s->references, sizeof(*s->blocks)));
	s->next = tn_get(a, tn_array_bytes(s->references, sizeof(*s->next)));
	s->held = tn_get(a, tn_array_bytes(s->references, sizeof(*s->held)));
	s->hit = tn_get(a, tn_array_bytes(s->references, sizeof(*s->hit)));
	s->heap = tn_get(a, tn_array_bytes(s->references, sizeof(*s->heap)));
	if (!s->blocks || !s->next || !s->held || !s->hit || !s->heap)
		return tn_fail(-ENOMEM, "no memory for a trace of %llu blocks", (unsigned long long)s->references);
	for (uint64_t i = 0; i < s->references; i++) {
		rc = id_map_reserve(&s->map, 1);
		if (rc)
			return rc;
		s->blocks[i] = id_map_at(&s->map, s->ids[i], (uint32_t)s->map.count)->value;
	}
	return 0;
}

/* From the end: which request uses each reference's block next. Leaves held[] empty. */
static void look_ahead(struct belady *s)
{
	uint64_t end = s->references;

	for (uint64_t b = 0; b < s->map.count; b++)
		s->held[b] = NEVER;
	for (size_t q = s->requests; q-- > 0;) {
		uint64_t start = end - s->lengths[q];

		for (uint64_t i = start; i < end; i++)
			s->next[i] = s->held[s->blocks[i]];
		for (uint64_t i = start; i < end; i++)
			s->held[s->blocks[i]] = (uint32_t)q;
		end = start;
	}
	for (uint64_t b = 0; b < s->map.count; b++)
		s->held[b] = NOT_HELD;
}

static struct tn_policy_sim_result serve(struct belady *s, uint64_t start, uint32_t n)
{
	struct tn_policy_sim_result r = {0};

	while (r.hits < n && s->held[s->blocks[start + r.hits]] != NOT_HELD) {
		uint32_t b = s->blocks[start + r.hits++];

		s->stats.unread -= !s->hit[b];
		s->hit[b] = true;
	}
	for (uint32_t i = n; i-- > 0;) {
		uint32_t b = s->blocks[start + i];

		if (s->held[b] == NOT_HELD) {
			s->stats.held++;
			s->stats.unread++;
			s->hit[b] = false;
			r.inserted++;
		}
		s->held[b] = s->next[start + i];
		if (s->capacity)
			heap_push(s, (struct use){s->next[start + i], i, b});
	}
	while (s->capacity && s->stats.held > s->capacity) {
		struct use u = heap_pop(s);

		if (s->held[u.block] != u.next)
			continue; /* the block was used since */
		s->held[u.block] = NOT_HELD;
		s->stats.held--;
		r.evicted++;
	}
	return r;
}

int tn_policy_sim_belady(const uint64_t *ids, const uint32_t *lengths, size_t requests, uint64_t capacity_blocks,
			 struct tn_policy_sim_result *results, struct tn_policy_sim_stats *stats)
{
	struct belady s = {.ids = ids, .lengths = lengths, .requests = requests, .capacity = capacity_blocks};
	uint64_t start = 0;
	int rc = number_blocks(&s);

	if (rc) {
		belady_fini(&s);
		return rc;
	}
	look_ahead(&s);
	for (size_t q = 0; q < requests; q++) {
		struct tn_policy_sim_result r = serve(&s, start, lengths[q]);

		start += lengths[q];
		count(&s.stats, lengths[q], &r);
		if (results)
			results[q] = r;
	}
	s.stats.distinct = s.map.count;
	*stats = s.stats;
	belady_fini(&s);
	return 0;
}
