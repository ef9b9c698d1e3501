/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of session memory (stage.h): which operation has them. */
#include <errno.h>

#include "base/error.h"
#include "front/stage.h"

int tn_stage_take(struct tn_front_op *op, const char *call)
{
	uint32_t each = op->space->geometry.pages_per_block, *pages = tn_face_pages(&op->cache->region, op->number);
	uint32_t n = (uint32_t)((op->end_page + each - 1) / each - op->first_page / each), slots; /* blocks of which some page is claimed */
	struct tn_stage_pool *s = op->pool->stage;
	bool there;

	pthread_mutex_lock(&s->lock);
	slots = n <= s->nslots ? n : (s->nfree + 1) / 2; /* others find some, however many such operations there are */
	there = slots > 0 && slots <= s->nfree;
	for (uint32_t i = 0; there && i < slots; i++) {
		uint32_t page = s->free[--s->nfree] * each;

		for (uint32_t k = 0; k < each; k++)
			pages[i * each + k] = page + k;
	}
	pthread_mutex_unlock(&s->lock);
	op->batches.blocks = slots;
	op->batches.count = there ? (n + slots - 1) / slots : 0;
	return there ? 0 : tn_fail(-EAGAIN, "%s: other operations have too much of the session memory, which is for %u blocks; end some, raise "
				   "stage_bytes, or use tn_memory_alloc", call, s->nslots);
}

void tn_stage_give(const struct tn_front_op *op)
{
	uint32_t each = op->space->geometry.pages_per_block;
	const uint32_t *pages = tn_face_pages(&op->cache->region, op->number);
	struct tn_stage_pool *s = op->pool->stage;

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = op->batches.blocks; i > 0; i--)
		s->free[s->nfree++] = pages[(i - 1) * each] / each;
	pthread_mutex_unlock(&s->lock);
}
