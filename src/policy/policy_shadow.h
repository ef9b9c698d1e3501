/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shadow tier: what a policy would hold and hit, without any blocks. It is told of the same references as a real tier, or of a sample of them
 * by key, and counts hits as prompts are served: the run of blocks that are there from the start of the prompt. In a sample, a block's parent is
 * the sampled block before it in the prompt, so that chains stay whole.
 *
 * A shadow knows which entry of the real tier is the same block, as far as it was told, and says when its policy lets go of such a block.
 */
#ifndef TN_POLICY_POLICY_SHADOW_H
#define TN_POLICY_POLICY_SHADOW_H

#include "policy/policy.h"

struct tn_shadow {
	const struct tn_alloc *alloc;
	struct tn_policy *policy;
	uint32_t nodes;  /* most blocks ever held */
	uint32_t limit;  /* most blocks held now */
	uint32_t held;
	uint32_t buckets; /* power of two */
	uint32_t request; /* number of the present prompt */
	uint32_t nrefs;	  /* in refs */
	uint32_t last;	  /* the block that was referenced last; TN_ENTRY_NONE: it is not held, or the prompt begins */
	bool begun;	  /* a block of the prompt was referenced */
	bool missed;	  /* the prompt's run of hits is over */
	bool chains;	  /* a block whose parent is not held is kept out */
	bool protects;	  /* blocks of the present prompt are not evicted */
	uint32_t *bucket, *free, *refs;
	struct tn_shadow_node *node;
	bool (*dropped)(void *arg, uint32_t real); /* false: that was known */
	void *arg;
};

/* A shadow for up to `nodes` blocks. 0 or -ENOMEM, and then, too, fini gives back what it has; the policy is the shadow's from now on. */
int tn_shadow_init(struct tn_shadow *s, struct tn_policy *policy, uint32_t nodes, const struct tn_alloc *alloc);
void tn_shadow_fini(struct tn_shadow *s);
/* A prompt begins, or goes on behind a block that was referenced before (parent: its hash; 0: there is none). */
void tn_shadow_request(struct tn_shadow *s, uint64_t parent);
/* Its next block (b->key_hash and b->parent are not used). Returns whether it is a hit. */
bool tn_shadow_refer(struct tn_shadow *s, uint64_t hash, const struct tn_policy_block *b);
/* The block that was referenced last is this entry of the real tier. Returns whether the shadow holds it. */
bool tn_shadow_is(struct tn_shadow *s, uint32_t real);
/* The real tier has let go of the block. */
void tn_shadow_forget(struct tn_shadow *s, uint64_t hash);

#endif
