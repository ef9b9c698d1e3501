/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staged saves that go to the owner in batches (stage.h), and the blocks of them that it does not know yet: of a save that names such a block as its parent
 * it would think that the parent is nowhere.
 */
#ifndef TN_FRONT_BATCHED_H
#define TN_FRONT_BATCHED_H

#include <pthread.h>

#include "front/front.h"

struct tn_batched {
	pthread_mutex_t lock; /* of what follows, and of the members' batches.asked: held while the owner is asked for their next batch */
	uint64_t ops[TN_REGION_OPS_MAX / 64]; /* by number */
};

/* A save takes part from before its first batch until no batch of it follows. */
void tn_batched_add(struct tn_batched *b, uint32_t number);
void tn_batched_remove(struct tn_batched *b, uint32_t number);
/* Whether one of them has the block in a batch that the owner was not asked for. Any thread. */
bool tn_batched_bring(struct tn_batched *b, const struct tn_space *space, const struct tn_key *key);

#endif
