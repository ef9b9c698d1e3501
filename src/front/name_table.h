/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that engines give to blocks (tenuto/names.h): a table of fixed size, by space and key.
 *
 * Names come before the block's record, and are asked for after it has gone, so they lie beside the registry. Eight names share a bucket. A
 * ninth takes the place of the one that was given first. Any thread; a lock is held for one call, and the core's thread never comes here.
 */
#ifndef TN_FRONT_NAME_TABLE_H
#define TN_FRONT_NAME_TABLE_H

#include <stdbool.h>
#include <tenuto/names.h>

#include "base/alloc.h"

struct tn_names;

/* -EINVAL, -ENOMEM */
int tn_names_create(uint32_t max_blocks, uint32_t max_tokens, const struct tn_alloc *alloc, struct tn_names **out);
void tn_names_destroy(struct tn_names *names);
/* 0; -EINVAL: a value that cannot be, whoever gives it. */
int tn_names_check(const struct tn_block_names *in);
/* in: checked. fresh: n, out: whether that block had no name, or another one. Returns how many such there are. */
size_t tn_names_put(struct tn_names *names, uint16_t space, const struct tn_key *keys, size_t n, const struct tn_block_names *in, bool *fresh);
/* Whether the block has a name; token_ids: max_tokens of them, or NULL. */
bool tn_names_get(struct tn_names *names, uint16_t space, const struct tn_key *key, struct tn_block_name *out, uint32_t *token_ids,
		  uint32_t max_tokens);

/* A block that has a name. */
struct tn_named {
	struct tn_key key;
	uint16_t space;
};
/*
 * Blocks whose name has these last 8 bytes, as a big-endian integer (tn_tree_key): one in each space that has it. Returns how many, max at most. Of
 * more than eight such names in the table some may not be found.
 */
uint32_t tn_names_by_hash(struct tn_names *names, uint64_t hash, struct tn_named *out, uint32_t max);

#endif
