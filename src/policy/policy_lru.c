/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lru and fifo: one list per priority, the oldest goes first, everything is admitted.
 *
 * lru: a touched block becomes the newest. fifo: only a touched block that came in with the present request does. So
 * the second, backward pass over the request (see policy.h) leaves the request's first block the newest in both.
 */
#include <errno.h>

#include "base/error.h"
#include "policy/policies.h"
#include "policy/policy_list.h"

struct entry {
	uint32_t request; /* fifo: number of the request that the block came in with */
	int8_t priority;
};

struct recency {
	struct tn_policy base;
	const struct tn_alloc *alloc;
	uint32_t capacity;
	uint32_t request;
	bool keep_order; /* fifo */
	struct tn_policy_lists lists;
	struct tn_policy_link *links;
	struct entry *entries;
};

static struct recency *recency_of(struct tn_policy *p)
{
	return (struct recency *)(void *)p;
}

static void destroy(struct tn_policy *p)
{
	struct recency *r = recency_of(p);

	if (!r)
		return;
	tn_put(r->alloc, r->links, tn_array_bytes(r->capacity, sizeof(*r->links)));
	tn_put(r->alloc, r->entries, tn_array_bytes(r->capacity, sizeof(*r->entries)));
	tn_put(r->alloc, r, sizeof(*r));
}

static int create(const struct tn_policy_opts *opts, const struct tn_policy_ops *ops, bool keep_order,
		  struct tn_policy **out)
{
	struct recency *r;

	if (opts->capacity == 0 || opts->capacity == TN_ENTRY_NONE)
		return tn_fail(-EINVAL, "capacity %u: a policy needs 1 to 2^32 - 2 entries", opts->capacity);
	r = tn_get(opts->alloc, sizeof(*r));
	if (!r)
		return tn_fail(-ENOMEM, "no memory for a policy");
	r->base.ops = ops;
	r->alloc = opts->alloc;
	r->capacity = opts->capacity;
	r->keep_order = keep_order;
	r->links = tn_get(r->alloc, tn_array_bytes(r->capacity, sizeof(*r->links)));
	r->entries = tn_get(r->alloc, tn_array_bytes(r->capacity, sizeof(*r->entries)));
	if (!r->links || !r->entries) {
		destroy(&r->base);
		return tn_fail(-ENOMEM, "no memory for a policy of %u entries", opts->capacity);
	}
	tn_policy_lists_init(&r->lists, r->links);
	*out = &r->base;
	return 0;
}

static int lru_create(const struct tn_policy_opts *opts, struct tn_policy **out)
{
	return create(opts, &tn_policy_lru, false, out);
}

static int fifo_create(const struct tn_policy_opts *opts, struct tn_policy **out)
{
	return create(opts, &tn_policy_fifo, true, out);
}

static void request(struct tn_policy *p, const struct tn_policy_request *req)
{
	recency_of(p)->request++;
}

static void insert(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b)
{
	struct recency *r = recency_of(p);

	r->entries[id] = (struct entry){r->request, b->priority};
	tn_policy_list_add(&r->lists, tn_policy_level(b->priority), id);
}

static void touch(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b)
{
	struct recency *r = recency_of(p);
	const struct entry *e = &r->entries[id];

	if (r->keep_order && e->request != r->request)
		return;
	tn_policy_list_del(&r->lists, tn_policy_level(e->priority), id);
	tn_policy_list_add(&r->lists, tn_policy_level(e->priority), id);
}

static uint32_t victim(struct tn_policy *p, bool (*usable)(void *arg, uint32_t id), void *arg)
{
	return tn_policy_lists_oldest(&recency_of(p)->lists, usable, arg);
}

static void forget(struct tn_policy *p, uint32_t id, uint64_t key_hash, enum tn_policy_why why)
{
	struct recency *r = recency_of(p);

	tn_policy_list_del(&r->lists, tn_policy_level(r->entries[id].priority), id);
}

/* Both are the same but for their names and what create makes of them. */
#define RECENCY_OPS(policy, make)                                                                                   \
	{                                                                                                           \
		.size = sizeof(struct tn_policy_ops), .abi = TN_POLICY_ABI, .name = (policy),                       \
		.create = (make), .destroy = destroy, .request = request,                                           \
		.admit = tn_policy_admit_all, .insert = insert, .touch = touch, .victim = victim, .remove = forget, \
	}

const struct tn_policy_ops tn_policy_lru = RECENCY_OPS("lru", lru_create);
const struct tn_policy_ops tn_policy_fifo = RECENCY_OPS("fifo", fifo_create);
