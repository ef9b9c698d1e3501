/* SPDX-License-Identifier: Apache-2.0 */
/* A shadow tier; see policy_shadow.h. */
#include "policy/policy_shadow.h"

#include <errno.h>

#include "base/error.h"

struct tn_shadow_node {
	uint64_t hash;
	uint32_t next; /* in its bucket */
	uint32_t request; /* the last one that referenced it */
	uint32_t real;
	uint32_t up, down; /* the blocks before and after it in the last prompt; together they are a link while they name each other */
};

int tn_shadow_init(struct tn_shadow *s, struct tn_policy *policy, uint32_t nodes, const struct tn_alloc *alloc)
{
	*s = (struct tn_shadow){.alloc = alloc, .policy = policy, .nodes = nodes, .limit = nodes, .buckets = 64, .protects = true, .last = TN_ENTRY_NONE};
	while (s->buckets < nodes)
		s->buckets *= 2;
	s->bucket = tn_get(alloc, tn_array_bytes(s->buckets, sizeof(*s->bucket)));
	s->free = tn_get(alloc, tn_array_bytes(nodes, sizeof(*s->free)));
	if (!policy->ops->forward)
		s->refs = tn_get(alloc, tn_array_bytes(nodes, sizeof(*s->refs)));
	s->node = tn_get(alloc, tn_array_bytes(nodes, sizeof(*s->node)));
	if (!s->bucket || !s->free || !s->node || (!s->refs && !policy->ops->forward))
		return tn_fail(-ENOMEM, "no memory for a shadow of %u blocks", nodes);
	for (uint32_t i = 0; i < s->buckets; i++)
		s->bucket[i] = TN_ENTRY_NONE;
	for (uint32_t i = 0; i < nodes; i++)
		s->free[i] = nodes - 1 - i;
	return 0;
}

void tn_shadow_fini(struct tn_shadow *s)
{
	if (!s->policy)
		return;
	s->policy->ops->destroy(s->policy);
	tn_put(s->alloc, s->bucket, tn_array_bytes(s->buckets, sizeof(*s->bucket)));
	tn_put(s->alloc, s->free, tn_array_bytes(s->nodes, sizeof(*s->free)));
	tn_put(s->alloc, s->refs, tn_array_bytes(s->nodes, sizeof(*s->refs)));
	tn_put(s->alloc, s->node, tn_array_bytes(s->nodes, sizeof(*s->node)));
}

static uint32_t bucket_of(const struct tn_shadow *s, uint64_t hash)
{
	return (uint32_t)(hash >> 20) & (s->buckets - 1);
}

/* Where the number of the block is, or TN_ENTRY_NONE at the end of its bucket. */
static uint32_t *find(const struct tn_shadow *s, uint64_t hash)
{
	uint32_t *at = &s->bucket[bucket_of(s, hash)];

	while (*at != TN_ENTRY_NONE && s->node[*at].hash != hash)
		at = &s->node[*at].next;
	return at;
}

static bool usable(void *arg, uint32_t id)
{
	const struct tn_shadow *s = arg;

	return s->node[id].request != s->request;
}

/* The block, and those behind it, which nobody finds without it. */
static void drop_chain(struct tn_shadow *s, uint32_t id)
{
	uint32_t down;

	while (s->node[id].real == TN_ENTRY_NONE || s->dropped(s->arg, s->node[id].real)) {
		down = s->node[id].down;
		if (down == TN_ENTRY_NONE || s->node[down].up != id || s->node[down].real == TN_ENTRY_NONE)
			break;
		id = down;
	}
}

/* Makes a free place, if one may go. */
static bool evict(struct tn_shadow *s)
{
	const struct tn_policy_ops *ops = s->policy->ops;
	uint32_t id = ops->victim(s->policy, s->protects ? usable : NULL, s);
	struct tn_shadow_node *n = &s->node[id];

	if (id == TN_ENTRY_NONE)
		return false;
	ops->remove(s->policy, id, n->hash, TN_POLICY_EVICTED);
	*find(s, n->hash) = n->next;
	s->free[--s->held] = id;
	if (s->last == id)
		s->last = TN_ENTRY_NONE;
	if (s->dropped)
		drop_chain(s, id);
	n->down = TN_ENTRY_NONE;
	return true;
}

/* The blocks up to the parent belong to the prompt: they are protected, and touched at its end, the prompt's first block last. */
static void go_on(struct tn_shadow *s, uint64_t parent)
{
	s->last = *find(s, parent);
	s->begun = true;
	s->missed = s->last == TN_ENTRY_NONE;
	for (uint32_t id = s->last, up; s->protects && id != TN_ENTRY_NONE && s->node[id].request != s->request; id = up) {
		up = s->node[id].up;
		if (up != TN_ENTRY_NONE && s->node[up].down != id)
			up = TN_ENTRY_NONE;
		s->node[id].request = s->request;
		if (s->refs && s->nrefs < s->nodes)
			s->refs[s->nrefs++] = id;
	}
	for (uint32_t i = 0; s->refs && i < s->nrefs / 2; i++) {
		uint32_t id = s->refs[i];

		s->refs[i] = s->refs[s->nrefs - 1 - i];
		s->refs[s->nrefs - 1 - i] = id;
	}
}

void tn_shadow_request(struct tn_shadow *s, uint64_t parent)
{
	const struct tn_policy_block none = {.parent = TN_ENTRY_NONE};

	while (s->nrefs > 0)
		s->policy->ops->touch(s->policy, s->refs[--s->nrefs], &none);
	s->request++;
	s->last = TN_ENTRY_NONE;
	s->begun = s->missed = false;
	if (parent)
		go_on(s, parent);
	s->policy->ops->request(s->policy, s->last, parent);
}

/* Whether there is a place for the block, and it is let in. */
static bool comes_in(struct tn_shadow *s, const struct tn_policy_block *b)
{
	bool in = s->policy->ops->admit(s->policy, b, s->held >= s->limit, s->protects ? usable : NULL, s);

	while (in && s->held >= s->limit)
		in = evict(s);
	return in;
}

static uint32_t insert(struct tn_shadow *s, const struct tn_policy_block *b)
{
	uint32_t id = s->free[s->held++], *at = &s->bucket[bucket_of(s, b->key_hash)];

	s->node[id] = (struct tn_shadow_node){.hash = b->key_hash, .next = *at, .real = TN_ENTRY_NONE, .down = TN_ENTRY_NONE};
	*at = id;
	s->policy->ops->insert(s->policy, id, b);
	return id;
}

/* The prompt has come to this block. */
static void reach(struct tn_shadow *s, uint32_t id)
{
	s->node[id].request = s->request;
	s->node[id].up = s->last;
	if (s->last != TN_ENTRY_NONE)
		s->node[s->last].down = id;
	if (s->refs && s->nrefs < s->nodes)
		s->refs[s->nrefs++] = id;
}

bool tn_shadow_refer(struct tn_shadow *s, uint64_t hash, const struct tn_policy_block *of)
{
	struct tn_policy_block b = *of;
	uint32_t id = *find(s, hash);

	b.key_hash = hash;
	b.parent = s->last;
	b.decided = s->begun && s->last == TN_ENTRY_NONE && s->chains ? TN_POLICY_KEPT_OUT : TN_POLICY_UNDECIDED;
	if (id != TN_ENTRY_NONE) {
		s->policy->ops->touch(s->policy, id, &b);
	} else {
		s->missed = true;
		if (comes_in(s, &b))
			id = insert(s, &b);
	}
	if (s->missed && s->policy->ops->learn)
		s->policy->ops->learn(s->policy, id, &b);
	if (id != TN_ENTRY_NONE)
		reach(s, id);
	s->last = id;
	s->begun = true;
	return !s->missed;
}

bool tn_shadow_is(struct tn_shadow *s, uint32_t real)
{
	if (s->last == TN_ENTRY_NONE)
		return false;
	s->node[s->last].real = real;
	return true;
}

void tn_shadow_forget(struct tn_shadow *s, uint64_t hash)
{
	uint32_t id = *find(s, hash);

	if (id != TN_ENTRY_NONE)
		s->node[id].real = TN_ENTRY_NONE;
}
