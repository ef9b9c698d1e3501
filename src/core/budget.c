/* SPDX-License-Identifier: Apache-2.0 */
/* See budget.h. */
#include "core/budget.h"

#include "core/pool.h"

void tn_budgets_init(struct tn_budgets *b, const struct tn_copiers *copiers)
{
	*b = (struct tn_budgets){.copiers = copiers, .stands_ns = TN_FOREVER};
	for (uint32_t i = 0; i <= TN_COPIERS_MAX; i++)
		tn_share_init(&b->at[i].share, TN_BUDGET_DEPTH);
}

bool tn_budgets_turn(struct tn_budgets *b, uint64_t now_ns)
{
	bool any = false;
	uint64_t due;

	b->stands_ns = TN_FOREVER;
	for (uint32_t i = 0; i <= TN_COPIERS_MAX; i++)
		tn_share_turn(&b->at[i].share);
	for (uint32_t i = 0; i < TN_COPIERS_MAX; i++) {
		any |= b->at[1 + i].stands = tn_copiers_stand(b->copiers, i, now_ns, &due);
		b->stands_ns = due < b->stands_ns ? due : b->stands_ns;
	}
	return any;
}

bool tn_budgets_again(struct tn_budgets *b)
{
	bool again = false;

	for (uint32_t i = 0; i <= TN_COPIERS_MAX; i++)
		again |= tn_share_again(&b->at[i].share);
	return again;
}

bool tn_op_stands(const struct tn_op *op)
{
	const struct tn_mapping *near = op->cache->mappings[TN_MEMORY_OF_NEAR];

	return tn_budget_of(op->cache->budgets, tn_pool_copier(op->pool))->stands ||
	       (!op->writing && tn_container_of(op, const struct tn_reading, op)->from_near > 0 && tn_budget_of(op->cache->budgets, near->copier)->stands);
}

bool tn_loads_move(const struct tn_cache *cache)
{
	const struct tn_list *pos = cache->loads.next;

	while (pos != &cache->loads && tn_op_stands(&tn_container_of(pos, struct tn_reading, op.link)->op))
		pos = pos->next;
	return pos != &cache->loads;
}

struct tn_budget *tn_budget_of(struct tn_budgets *b, const struct tn_copier *copier)
{
	return &b->at[copier ? 1 + tn_copier_number(copier) : 0];
}

uint32_t tn_budget_depth(const struct tn_copier *copier)
{
	return copier ? tn_copier_share(copier, 2 * TN_BUDGET_DEPTH) : TN_BUDGET_DEPTH;
}

uint32_t tn_budget_left(struct tn_budgets *b, const struct tn_copier *copier)
{
	uint32_t taken = tn_budget_of(b, copier)->taken, depth = tn_budget_depth(copier), left = taken < depth ? depth - taken : 0;
	uint32_t devices_left = TN_BUDGET_IOCBS - TN_BUDGET_DEPTH - (b->taken - b->at[0].taken);

	return !copier || left < devices_left ? left : devices_left;
}

void tn_budget_took(struct tn_budgets *b, const struct tn_copier *copier, unsigned user)
{
	struct tn_budget *of = tn_budget_of(b, copier);

	tn_share_took(&of->share, user);
	of->taken++;
	b->taken++;
}

void tn_budget_gave(struct tn_budgets *b, const struct tn_copier *copier, unsigned user)
{
	struct tn_budget *of = tn_budget_of(b, copier);

	tn_share_gave(&of->share, user);
	of->taken--;
	b->taken--;
}
