/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the core learns from keyed tiers, which others use, too: blocks that came and went behind its back, as the tier tells,
 * and - where somebody asks for keys that the registry does not have - the answer to a look-up that may take its time.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/stack.h"
#include "core/core.h"

#define EVENTS_PER_STEP 64u

enum { PENDING, OVER, GIVEN_UP };

/*
 * An entry of a table that is sized at open: the caller's and the owner's, until the second of both has let go of it. It does not
 * hold its space: an answer that comes after the space was dropped or has gone teaches nothing.
 */
struct tn_lookup {
	uint32_t next; /* free stack */
	uint32_t state; /* shared */
	struct tn_cmd cmd;
	struct tn_keyed *keyed;
	struct tn_session *whose;  /* is told when it is over, if it is still there */
	struct tn_space *space;    /* until the tier is asked */
	struct tn_tier_base *tier; /* that is asked */
	struct tn_tier_probe probe;
	uint32_t n, known; /* keys; the first of them that need not be asked for */
	struct tn_key *keys;
};

struct tn_keyed {
	struct tn_keyed_opts o;
	struct tn_lookup *asked; /* what tiers are asked for callers */
	uint32_t nasked;
	uint64_t free; /* shared: tagged stack */
	struct tn_key *keys; /* theirs */
};

static struct tn_space *space_of(const struct tn_keyed *k, const struct tn_tier_space *space)
{
	for (uint32_t i = 0; i < TN_SPACES_MAX; i++) {
		struct tn_space *sp = k->o.spaces[i];

		if (sp && tn_key_eq(&sp->id, &space->id))
			return sp->epoch == space->epoch && !__atomic_load_n(&sp->dropping, __ATOMIC_RELAXED) ? sp : NULL;
	}
	return NULL;
}

static bool is_full(const struct tn_tier_base *t)
{
	return t->entries >= t->ops->capacity(t);
}

/* A block is there that the core did not put there. What there is no record or entry for stays unknown. */
static void learn(struct tn_keyed *k, struct tn_tier_base *t, const struct tn_space *space, const struct tn_key *key,
		  const struct tn_key *parent)
{
	struct tn_policy_block info;
	tn_block b;
	int rc;

	if (!tn_space_in(space, t) || is_full(t))
		return;
	rc = tn_block_adopt(k->o.registry, space->index, key, parent, &b);
	if (rc < 0 || tn_tier_residency(t, b) != TN_ABSENT || tn_block_is_dropped(k->o.blocks, b))
		return;
	if (rc == 0) {
		k->o.blocks->space_records[space->index]++;
		tn_watch_expire_at(k->o.watch, b, 0);
	}
	tn_block_describe(t, b, false, &info);
	info.parent = tn_tier_entry(t, tn_block_parent(k->o.registry, b));
	tn_tier_adopt(t, b, &info);
	tn_watch_raise(k->o.watch, b, t->tier, TN_EVENT_STORED);
}

/* A load that is reading it finds out by itself. */
static void unlearn(struct tn_keyed *k, struct tn_tier_base *t, const struct tn_space *space, const struct tn_key *key)
{
	tn_block b = tn_registry_find_one(k->o.registry, space->index, key, false);

	if (b == TN_BLOCK_NONE || (!tn_tier_has(t, b) && tn_tier_residency(t, b) != TN_DRAINING))
		return;
	tn_tier_leave(t, b, TN_LEAVE_GONE);
	tn_block_try_forget(k->o.blocks, b);
}

static bool take_events(struct tn_keyed *k, struct tn_tier_base *t)
{
	struct tn_tier_event event[EVENTS_PER_STEP];
	uint32_t n = t->ops->events(t, event, EVENTS_PER_STEP);

	for (uint32_t i = 0; i < n; i++) {
		const struct tn_space *space = space_of(k, &event[i].space);

		if (space && event[i].gone)
			unlearn(k, t, space, &event[i].key);
		else if (space)
			learn(k, t, space, &event[i].key, &event[i].parent);
	}
	return n > 0;
}

bool tn_keyed_step(struct tn_keyed *k, uint64_t now_ns, uint64_t *due_ns)
{
	bool busy = false;

	*due_ns = TN_FOREVER;
	for_each_tier(t, k->o.row) {
		if (t->ops->step)
			busy |= t->ops->step(t, now_ns, due_ns);
		if (t->ops->events)
			busy |= take_events(k, t);
	}
	return busy;
}

/* ---- look-ups that may take their time -------------------------------------------------------------------------- */

int tn_keyed_create(const struct tn_keyed_opts *opts, struct tn_keyed **out)
{
	struct tn_keyed *k = tn_get(opts->alloc, sizeof(*k));
	bool later = false;

	if (!k)
		return tn_fail(-ENOMEM, "no memory for look-ups");
	*out = k;
	k->o = *opts;
	for_each_tier(t, opts->row)
		later |= t->ops->probe != NULL;
	if (!later)
		return 0;
	k->nasked = opts->lookups;
	k->asked = tn_get(opts->alloc, tn_array_bytes(k->nasked, sizeof(*k->asked)));
	k->keys = tn_get(opts->alloc, tn_array_bytes(k->nasked, opts->keys * sizeof(struct tn_key)));
	if (!k->asked || !k->keys)
		return tn_fail(-ENOMEM, "no memory for %u look-ups; lower max_ops or max_op_blocks", k->nasked);
	for (uint32_t i = 0; i < k->nasked; i++) {
		k->asked[i].keyed = k;
		k->asked[i].keys = k->keys + (size_t)i * opts->keys;
		tn_stack_push(&k->free, i, &k->asked[i].next);
	}
	return 0;
}

void tn_keyed_destroy(struct tn_keyed *k)
{
	const struct tn_alloc *a;

	if (!k)
		return;
	a = k->o.alloc;
	tn_put(a, k->asked, tn_array_bytes(k->nasked, sizeof(*k->asked)));
	tn_put(a, k->keys, tn_array_bytes(k->nasked, k->o.keys * sizeof(struct tn_key)));
	tn_put(a, k, sizeof(*k));
}

/* The first of caller and owner leaves its word, the second frees the entry. */
static void leave_lookup(struct tn_lookup *l, uint32_t word)
{
	struct tn_keyed *k = l->keyed;

	if (__atomic_exchange_n(&l->state, word, __ATOMIC_ACQ_REL) != PENDING)
		tn_stack_push(&k->free, (uint32_t)(l - k->asked), &l->next);
}

static void lookup_ends(struct tn_lookup *l)
{
	struct tn_session *whose = l->whose;

	leave_lookup(l, OVER);
	tn_session_completes(l->keyed->o.messages->cache, whose);
}

/* The first n keys are the most recently used ones, the first of them most of all: where blocks are evicted for the others, it is not they. */
static void touch(const struct tn_lookup *l, const struct tn_space *space, uint32_t n)
{
	tn_block last = n > 0 ? tn_registry_find_one(l->keyed->o.registry, space->index, &l->keys[n - 1], false) : TN_BLOCK_NONE;

	tn_chain_touch_back(l->keyed->o.blocks, last, n);
}

/* What is found takes the place of blocks that others asked for before, not of the look-up's own. */
static void learn_found(struct tn_lookup *l, const struct tn_space *space, uint32_t found)
{
	const struct tn_key none = {{0, 0}};
	struct tn_tier_base *t = l->tier;

	touch(l, space, l->known);
	for (uint32_t i = l->known; i < l->known + found && i < t->ops->capacity(t); i++) {
		if (t->ops->traits.keeps && is_full(t))
			tn_tier_evict(t, 1, -1, NULL);
		learn(l->keyed, t, space, &l->keys[i], i ? &l->keys[i - 1] : &none);
	}
	touch(l, space, l->known + found);
}

static void probed(struct tn_tier_probe *probe, int status)
{
	struct tn_lookup *l = probe->owner;
	const struct tn_space *space = status == 0 || status == -ECANCELED ? space_of(l->keyed, &probe->space) : NULL;

	if (space && probe->found > 0)
		learn_found(l, space, probe->found);
	lookup_ends(l);
}

static bool is_wanted(const struct tn_tier_probe *probe)
{
	const struct tn_lookup *l = probe->owner;

	return __atomic_load_n(&l->state, __ATOMIC_RELAXED) == PENDING;
}

static bool is_known(const struct tn_keyed *k, const struct tn_space *space, const struct tn_key *key)
{
	tn_block b = tn_registry_find_one(k->o.registry, space->index, key, false);

	return b != TN_BLOCK_NONE && !tn_block_lies_nowhere(k->o.blocks, b);
}

/* The space is still there: the caller had it open when it sent the message, and messages run in order. */
static void lookup_command(struct tn_cmd *cmd)
{
	struct tn_lookup *l = tn_container_of(cmd, struct tn_lookup, cmd);
	const struct tn_space *space = l->space;

	for_each_tier(t, l->keyed->o.row)
		if (t->ops->probe && tn_space_in(space, t))
			l->tier = t;
	while (l->known < l->n && is_known(l->keyed, space, &l->keys[l->known]))
		l->known++;
	if (!l->tier || l->known == l->n) {
		lookup_ends(l);
		return;
	}
	l->probe = (struct tn_tier_probe){
		.space = {space->id, space->epoch},
		.keys = l->keys + l->known,
		.n = l->n - l->known,
		.wanted = is_wanted,
		.done = probed,
		.owner = l,
	};
	if (l->tier->ops->probe(l->tier, &l->probe))
		lookup_ends(l);
}

struct tn_lookup *tn_lookup_begin(struct tn_keyed *k, struct tn_session *whose, struct tn_space *space, const struct tn_key *keys,
				  uint32_t n)
{
	struct tn_lookup *l;
	uint32_t i;

	if (k->nasked == 0)
		return NULL;
	i = tn_stack_pop(&k->free, &k->asked[0].next, sizeof(k->asked[0]));
	if (!i)
		return NULL;
	l = &k->asked[i - 1];
	l->state = PENDING;
	l->whose = whose;
	l->space = space;
	l->tier = NULL;
	l->n = n;
	l->known = 0;
	memcpy(l->keys, keys, n * sizeof(*keys));
	l->cmd.run = lookup_command;
	tn_messages_send(k->o.messages, &l->cmd);
	return l;
}

bool tn_lookup_over(const struct tn_lookup *l)
{
	return __atomic_load_n(&l->state, __ATOMIC_ACQUIRE) == OVER;
}

void tn_lookup_end(struct tn_lookup *l)
{
	leave_lookup(l, GIVEN_UP);
}
