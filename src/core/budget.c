/* SPDX-License-Identifier: Apache-2.0 */
/* See budget.h. */
#include "core/budget.h"

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
	return tn_budget_of(op->cache->budgets, op->pool)->stands;
}

bool tn_loads_move(const struct tn_cache *cache)
{
	const struct tn_list *pos = cache->loads.next;

	while (pos != &cache->loads && tn_op_stands(&tn_container_of(pos, struct tn_reading, op.link)->op))
		pos = pos->next;
	return pos != &cache->loads;
}

struct tn_budget *tn_budget_of(struct tn_budgets *b, const struct tn_pool *pool)
{
	const struct tn_copier *c = tn_pool_copier(pool);

	return &b->at[c ? 1 + tn_copier_number(c) : 0];
}

uint32_t tn_budget_depth(const struct tn_pool *pool)
{
	const struct tn_copier *c = tn_pool_copier(pool);

	return c ? tn_copier_share(c, 2 * TN_BUDGET_DEPTH) : TN_BUDGET_DEPTH;
}
