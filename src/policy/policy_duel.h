/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which order of victims suits the present workload: a duel of shadow tiers (policy_shadow.h), after set dueling (Qureshi et al., DIP, ISCA
 * 2007) and "evict what the winner's directory does not hold" (Subramanian et al., adaptive caches, MICRO 2006).
 *
 * Three shadows see the same sample of blocks: by value (the default policy's own order), by recency (LRU), and S3-FIFO. In a tier of up to
 * 4,096 blocks the sample is all blocks. The tier follows the order whose shadow has hit most lately. It can follow the first two by looking at
 * single entries, but not S3-FIFO: so that shadow sees all blocks, and names the blocks of the tier that it has dropped. These are the
 * victims. In a tier of more than 49,152 blocks S3-FIFO takes no part, because its shadow would be too large.
 */
#ifndef TN_POLICY_POLICY_DUEL_H
#define TN_POLICY_POLICY_DUEL_H

#include "policy/policy_shadow.h"

enum tn_duel_order { TN_DUEL_VALUE, TN_DUEL_RECENCY, TN_DUEL_S3FIFO, TN_DUEL_ORDERS };

#define TN_DUEL_ENDS 256u

/* Where a prompt ended, by hashes (0: none): the prompt may go on from there. */
struct tn_duel_end {
	uint64_t last, sampled; /* the last block, and the last one in the sample */
	bool missed[TN_DUEL_ORDERS]; /* the run of hits was over in this shadow */
};

struct tn_duel {
	const struct tn_alloc *alloc;
	enum tn_duel_order order; /* that is followed */
	uint32_t entries; /* of the tier */
	uint32_t mask; /* blocks whose hash has none of these bits are sampled */
	uint32_t sampled; /* blocks since the last decision */
	uint32_t first, count; /* of the queue */
	struct tn_duel_end end; /* of the present prompt, so far */
	struct tn_duel_end ends[TN_DUEL_ENDS]; /* of the prompts before, by the hash of the last block */
	uint32_t prompt[TN_DUEL_ORDERS]; /* hits of sampled blocks in the present prompt */
	double hits[TN_DUEL_ORDERS]; /* of sampled blocks, lately, without the present prompt */
	double spread[TN_DUEL_ORDERS]; /* of each two orders: squares of the difference of their hits in a prompt */
	uint64_t *dropped; /* by entry: S3-FIFO's shadow has let go of the block */
	uint32_t *queue; /* entries to look at for that reason */
	struct tn_shadow shadow[TN_DUEL_ORDERS];
};

/* value: a policy that the duel may have for its shadow by value. 0 or -ENOMEM, and then, too, fini gives back what it has. */
int tn_duel_init(struct tn_duel *d, const struct tn_policy_opts *opts, struct tn_policy *value);
void tn_duel_fini(struct tn_duel *d);
/* The tier holds so many blocks. */
void tn_duel_expect(struct tn_duel *d, uint32_t blocks);
/* Most blocks of a shadow that sees a sample. */
uint32_t tn_duel_nodes(uint32_t entries);

/* A prompt begins, or goes on behind the block of this hash (0: there is none), perhaps after others. */
void tn_duel_request(struct tn_duel *d, uint64_t parent);
/* A block was referenced. */
void tn_duel_refer(struct tn_duel *d, uint64_t hash, const struct tn_policy_block *b);
/* The block that was referenced last is this entry. */
void tn_duel_is(struct tn_duel *d, uint32_t id);
/* A block that was there before this process. */
void tn_duel_recover(struct tn_duel *d, uint64_t hash, uint32_t id, const struct tn_policy_block *b);
void tn_duel_remove(struct tn_duel *d, uint64_t hash, uint32_t id);

static inline bool tn_duel_has_dropped(const struct tn_duel *d, uint32_t id)
{
	return d->dropped[id / 64] >> id % 64 & 1;
}

/* The entry has just become a leaf. */
void tn_duel_leaf(struct tn_duel *d, uint32_t id);
/* The next entry that S3-FIFO has dropped and that is not looked at yet, or TN_ENTRY_NONE. */
uint32_t tn_duel_next(struct tn_duel *d);

#endif
