/* SPDX-License-Identifier: Apache-2.0 */
/* Saves in batches (batched.h). */
#include "front/batched.h"

void tn_batched_add(struct tn_batched *b, uint32_t number)
{
	pthread_mutex_lock(&b->lock);
	b->ops[number / 64] |= 1ull << number % 64;
	pthread_mutex_unlock(&b->lock);
}

void tn_batched_remove(struct tn_batched *b, uint32_t number)
{
	pthread_mutex_lock(&b->lock);
	b->ops[number / 64] &= ~(1ull << number % 64);
	pthread_mutex_unlock(&b->lock);
}

static bool brings(const struct tn_front_op *op, const struct tn_space *space, const struct tn_key *key)
{
	const struct tn_key *keys = tn_face_keys(op->region, op->number);

	if (op->space->index != space->index)
		return false;
	for (uint32_t i = op->n; i-- > op->batches.asked;) /* the last one most likely */
		if (tn_key_eq(&keys[i], key))
			return true;
	return false;
}

bool tn_batched_bring(struct tn_batched *b, const struct tn_space *space, const struct tn_key *key)
{
	bool found = false;

	pthread_mutex_lock(&b->lock);
	for (uint32_t w = 0; w < TN_REGION_OPS_MAX / 64; w++)
		for (uint64_t left = b->ops[w]; left && !found; left &= left - 1)
			found = brings(&space->cache->front->ops[w * 64 + (uint32_t)__builtin_ctzll(left)], space, key);
	pthread_mutex_unlock(&b->lock);
	return found;
}
