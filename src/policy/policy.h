/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction and admission, per tier: which blocks to let in and which to let go.
 *
 * A policy keeps its state by entry id, 0 .. capacity-1 (the tier's choice: block index or slot). Per request the tier
 * calls request once. Then it calls, for each block of the prompt in order, first block first: touch if the block is in
 * the tier, else admit and - if admit says yes - insert. When the tier is full it evicts victims *before* the insert,
 * so that the capacity is never exceeded. Blocks below a rejected block are still offered (parent TN_ENTRY_NONE): that
 * is how a policy learns what rejected blocks would have been worth.
 *
 * A policy that is not forward (LRU, FIFO) wants one more touch per block when the request is through: for all blocks
 * of the prompt that are in the tier, last block first, so that the first block ends up the most recent.
 *
 * Blocks of lower priority go first, whatever else a policy goes by. The caller says by usable() what may not go now
 * (pins). Time is logical: the blocks seen so far. Nothing here allocates after create or reads a clock.
 *
 * Owner thread only.
 */
#ifndef TN_POLICY_POLICY_H
#define TN_POLICY_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"

#define TN_POLICY_ABI 2u
#define TN_ENTRY_NONE UINT32_MAX

struct tn_policy_opts {
	uint32_t capacity; /* entry ids */
	uint32_t target; /* blocks that the tier means to hold: sizes queues and ghosts; 0: capacity */
	uint64_t seed;
	const struct tn_alloc *alloc;
};

enum tn_policy_decided { TN_POLICY_UNDECIDED, TN_POLICY_LET_IN, TN_POLICY_KEPT_OUT };

/**
 * struct tn_policy_block - what is known of a block
 * @key_hash: 64 bits that name key and space, for ghosts and samples; policies hash them
 * @parent:   entry id of the block before it in the chain, TN_ENTRY_NONE if there is none or it is not in this tier
 * @depth:    blocks before it
 * @partial:  the block holds a prompt's unfinished tail (hint)
 * @priority: of the save, 0 is normal
 * @decided:  of admit: what was decided about another share of the same block just now. The policy learns of the reference as ever, and decides the
 *            same, unless the block's parent is not in the tier
 */
struct tn_policy_block {
	uint64_t key_hash;
	uint32_t parent;
	uint32_t depth;
	bool partial;
	int8_t priority;
	enum tn_policy_decided decided;
};

/* Whether an entry may go now. */
typedef bool (*tn_usable_fn)(void *arg, uint32_t id);

enum tn_policy_why { TN_POLICY_EVICTED, TN_POLICY_DROPPED };

struct tn_policy;

struct tn_policy_ops {
	size_t size;
	uint32_t abi;
	const char *name;
	/* One pass over a request is enough; false: see above. */
	bool forward;
	int (*create)(const struct tn_policy_opts *opts, struct tn_policy **out);
	void (*destroy)(struct tn_policy *p);
	/*
	 * The following calls belong to one prompt. parent: entry id of the block before the first block that they are about (a
	 * save that continues a loaded prefix), or TN_ENTRY_NONE. parent_hash: that block's key hash, whether or not the block is in the
	 * tier; 0: there is no such block.
	 */
	void (*request)(struct tn_policy *p, uint32_t parent, uint64_t parent_hash);
	/*
	 * Whether a block that is not in the tier is worth writing; if the tier is full, whether the block is worth
	 * more than the victim that would go (a block that usable accepts). After true with full set, the caller asks for the victim, removes the victim, and inserts the
	 * block.
	 */
	bool (*admit)(struct tn_policy *p, const struct tn_policy_block *b, bool full, tn_usable_fn usable, void *arg);
	/*
	 * An insert without an admit before it is of a block that had to be let in; if it is a share of one that was decided about
	 * (struct tn_policy_block), it is no reference. Before the first request: of
	 * recovered blocks, the oldest first; their parents may be ids that are inserted later.
	 */
	void (*insert)(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b);
	/*
	 * The request that offered the block is through: only now the policy learns of the reference. id: the block's entry, TN_ENTRY_NONE: it was
	 * not let in, or is gone again. A request that is given up is not learned of: what it inserted is removed, and leaves no trace. NULL: nothing
	 * is learned.
	 */
	void (*learn)(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b);
	/* A block that is in the tier was referenced. */
	void (*touch)(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b);
	/* The next entry to go among those that usable() accepts (NULL: all), or TN_ENTRY_NONE. It stays until remove. */
	uint32_t (*victim)(struct tn_policy *p, tn_usable_fn usable, void *arg);
	/* The entry left the tier. key_hash is its block's (struct tn_policy_block): policies need not keep the hash. */
	void (*remove)(struct tn_policy *p, uint32_t id, uint64_t key_hash, enum tn_policy_why why);
	/* The tier holds so many blocks when it is full. NULL: it does not matter. */
	void (*expect)(struct tn_policy *p, uint32_t blocks);
};

struct tn_policy {
	const struct tn_policy_ops *ops;
};

extern const struct tn_policy_ops tn_policy_default, tn_policy_lru, tn_policy_fifo, tn_policy_s3fifo;

/* "default", "lru", "fifo", "s3fifo"; -EINVAL with the known names in the detail. */
int tn_policy_find(const char *name, const struct tn_policy_ops **out);
const struct tn_policy_ops *tn_policy_at(size_t i); /* NULL past the last */

#endif
