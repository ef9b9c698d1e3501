/* SPDX-License-Identifier: Apache-2.0 */
#include "region/doorbell.h"

bool tn_doorbell_ring(const struct tn_doorbell *d, uint32_t number)
{
	struct tn_doorbell_turn t = {.number = number};
	enum tn_doorbell_step step;

	do
		step = tn_doorbell_ring_step(d, &t);
	while (step == TN_DOORBELL_MORE);
	return step == TN_DOORBELL_DONE;
}

uint32_t tn_doorbell_take(const struct tn_doorbell *d, struct tn_doorbell_taker *t, uint32_t *numbers, uint32_t *first)
{
	enum tn_doorbell_step step;

	t->phase = 0;
	do
		step = tn_doorbell_take_step(d, t, numbers);
	while (step == TN_DOORBELL_MORE);
	if (step == TN_DOORBELL_NO)
		return 0;
	if (step == TN_DOORBELL_BROKEN) {
		t->last = t->head;
		t->left = d->count;
		for (uint32_t i = d->count; i-- > 0;)
			if (tn_doorbell_pending(d, i))
				numbers[--t->left] = i;
	}
	*first = t->left;
	return d->count - t->left;
}
