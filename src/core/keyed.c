/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the core learns from keyed tiers, which others use, too: blocks that came and went behind its back, as the tier tells,
 * and - where somebody asks for keys that the registry does not have - the answer to a look-up that may take its time.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/futex.h"
#include "core/core.h"

#define EVENTS_PER_STEP 64u

static struct tn_space *space_of(const struct tn_cache *cache, const struct tn_tier_space *space)
{
	for (uint32_t i = 0; i < TN_STORE_SPACES_MAX; i++) {
		struct tn_space *sp = cache->spaces[i];

		if (sp && tn_key_eq(&sp->id, &space->id))
			return sp->epoch == space->epoch && !__atomic_load_n(&sp->dropping, __ATOMIC_RELAXED) ? sp : NULL;
	}
	return NULL;
}

/* A block is there that the core did not put there. What there is no record or entry for stays unknown. */
static void learn(struct tn_cache *cache, struct tn_tier_base *t, const struct tn_space *space, const struct tn_key *key,
		  const struct tn_key *parent)
{
	struct tn_policy_block info;
	tn_block b;
	int rc;

	if (!tn_space_in(space, t) || t->entries >= t->ops->capacity(t))
		return;
	rc = tn_block_adopt(cache->registry, space->index, key, parent, &b);
	if (rc < 0 || tn_tier_residency(t, b) != TN_ABSENT || cache->is_doomed[b] == TN_DOOM_DROPPED)
		return;
	if (rc == 0) {
		cache->space_records[space->index]++;
		tn_watch_expire_at(cache, b, 0);
	}
	tn_block_describe(cache->registry, b, 0, false, &info);
	info.parent = tn_tier_entry(t, tn_block_parent(cache->registry, b));
	tn_tier_adopt(t, b, &info);
	tn_watch_raise(cache, b, t->tier, TN_EVENT_STORED);
}

/* A load that is reading it finds out by itself. */
static void unlearn(struct tn_cache *cache, struct tn_tier_base *t, const struct tn_space *space, const struct tn_key *key)
{
	tn_block b = tn_registry_find_one(cache->registry, space->index, key, false);

	if (b == TN_BLOCK_NONE || (!tn_tier_has(t, b) && tn_tier_residency(t, b) != TN_DRAINING))
		return;
	tn_tier_leave(t, b, TN_LEAVE_GONE);
	tn_block_try_forget(cache, b);
}

static bool take_events(struct tn_cache *cache, struct tn_tier_base *t)
{
	struct tn_tier_event event[EVENTS_PER_STEP];
	uint32_t n = t->ops->events(t, event, EVENTS_PER_STEP);

	for (uint32_t i = 0; i < n; i++) {
		const struct tn_space *space = space_of(cache, &event[i].space);

		if (space && event[i].gone)
			unlearn(cache, t, space, &event[i].key);
		else if (space)
			learn(cache, t, space, &event[i].key, &event[i].parent);
	}
	return n > 0;
}

bool tn_tiers_step(struct tn_cache *cache, uint64_t now_ns, uint64_t *due_ns)
{
	bool busy = false;

	*due_ns = TN_FOREVER;
	for_each_tier(t, cache) {
		if (t->ops->step)
			busy |= t->ops->step(t, now_ns, due_ns);
		if (t->ops->events)
			busy |= take_events(cache, t);
	}
	return busy;
}

/* ---- look-ups that may take their time -------------------------------------------------------------------------- */

/* The caller's until done; then whoever is second of caller and owner frees it. */
struct tn_lookup {
	struct tn_cmd cmd;
	struct tn_space *space;
	struct tn_tier_base *tier; /* that is asked */
	struct tn_tier_probe probe;
	uint32_t n, known; /* keys; the first of them that need not be asked for */
	uint32_t done; /* shared: futex. 2: the caller gave up */
	struct tn_key keys[];
};

static void free_lookup(struct tn_lookup *l)
{
	tn_put(l->space->cache->alloc, l, sizeof(*l) + l->n * sizeof(l->keys[0]));
}

static void lookup_ends(struct tn_lookup *l)
{
	struct tn_space *space = l->space;

	space->cache->completions_pending = 1;
	if (__atomic_exchange_n(&l->done, 1, __ATOMIC_ACQ_REL) == 2)
		free_lookup(l);
	else
		tn_futex_wake(&l->done);
	__atomic_sub_fetch(&space->held, 1, __ATOMIC_RELEASE);
}

static void probed(struct tn_tier_probe *probe, int status)
{
	const struct tn_key none = {{0, 0}};
	struct tn_lookup *l = probe->owner;
	struct tn_cache *cache = l->space->cache;

	if (status == 0 && space_of(cache, &probe->space) == l->space)
		for (uint32_t i = 0; i < probe->found; i++)
			learn(cache, l->tier, l->space, &probe->keys[i], l->known + i ? &probe->keys[i] - 1 : &none);
	lookup_ends(l);
}

static bool is_known(const struct tn_cache *cache, const struct tn_space *space, const struct tn_key *key)
{
	tn_block b = tn_registry_find_one(cache->registry, space->index, key, false);

	return b != TN_BLOCK_NONE && !tn_block_lies_nowhere(cache, b);
}

static void lookup_command(struct tn_cmd *cmd)
{
	struct tn_lookup *l = tn_container_of(cmd, struct tn_lookup, cmd);
	struct tn_space *space = l->space;
	struct tn_cache *cache = space->cache;

	for_each_tier(t, cache)
		if (t->ops->probe && tn_space_in(space, t))
			l->tier = t;
	while (l->known < l->n && is_known(cache, space, &l->keys[l->known]))
		l->known++;
	if (!l->tier || l->known == l->n) {
		lookup_ends(l);
		return;
	}
	l->probe = (struct tn_tier_probe){
		.space = {space->id, space->epoch},
		.keys = l->keys + l->known,
		.n = l->n - l->known,
		.done = probed,
		.owner = l,
	};
	if (l->tier->ops->probe(l->tier, &l->probe))
		lookup_ends(l);
}

struct tn_lookup *tn_lookup_begin(struct tn_space *space, const struct tn_key *keys, uint32_t n)
{
	struct tn_lookup *l = tn_get(space->cache->alloc, sizeof(*l) + n * sizeof(l->keys[0]));

	if (!l)
		return NULL;
	l->space = space;
	l->n = n;
	memcpy(l->keys, keys, n * sizeof(*keys));
	l->cmd.run = lookup_command;
	__atomic_add_fetch(&space->held, 1, __ATOMIC_RELAXED);
	tn_owner_send(space->cache, &l->cmd);
	return l;
}

bool tn_lookup_over(const struct tn_lookup *l)
{
	return __atomic_load_n(&l->done, __ATOMIC_ACQUIRE) == 1;
}

void tn_lookup_end(struct tn_lookup *l)
{
	uint32_t pending = 0;

	if (tn_lookup_over(l) || !__atomic_compare_exchange_n(&l->done, &pending, 2, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		free_lookup(l);
}
