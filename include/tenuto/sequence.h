/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence of tokens as an engine produces it: its blocks, their keys, and how far each block's life has come.
 *
 * The life of a block is KVBM's (NVIDIA Dynamo):
 *
 *   Reset       init            -> Partial
 *   Partial     add tokens      -> Partial;  commit, when full -> Complete;  reset -> Reset
 *   Complete    register        -> Registered;  reset -> Reset
 *   Registered  drop (the handle) -> Reset: the block may be evicted; it is found until it is
 *
 * Whatever else is asked for is -EINVAL, and changes nothing. A sequence moves no bytes: a caller saves Complete blocks by tn_save_begin, and registers them when
 * that has ended. The cache tells a block's arrival and its end by its events (tenuto/events.h). The keys are those that tn_keys_from_tokens makes of the same
 * tokens, with the salt as extra: so a later prompt finds what was generated.
 *
 * One thread at a time per sequence.
 */
#ifndef TENUTO_SEQUENCE_H
#define TENUTO_SEQUENCE_H

#include <stddef.h>
#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_sequence;
struct tn_space;

enum tn_life { TN_LIFE_RESET, TN_LIFE_PARTIAL, TN_LIFE_COMPLETE, TN_LIFE_REGISTERED, TN_LIVES };

/**
 * struct tn_sequence_info - where a sequence is
 * @size:       sizeof(struct tn_sequence_info), set by the caller
 * @blocks:     that are Complete or Registered, the first ones of the sequence
 * @registered: of them, the first ones
 * @duplicates: of those, how many the cache held before this sequence saved them
 * @tokens:     of the block that is Partial; 0 if none is
 */
struct tn_sequence_info {
	size_t size;
	uint64_t blocks;
	uint64_t registered;
	uint64_t duplicates;
	uint64_t tokens;
};

/** tn_sequence_create - a sequence whose first block is Reset. The space stays open for as long. Return: 0 and *out; -EINVAL; -ENOMEM. */
TN_API int tn_sequence_create(struct tn_space *space, struct tn_sequence **out);

/** tn_sequence_destroy - drops what it holds. NULL is fine. */
TN_API void tn_sequence_destroy(struct tn_sequence *seq);

/**
 * tn_sequence_init - the first block is Partial, without tokens
 * @salt: what the KV bytes depend on beside the tokens (adapter, images, tenant); @salt_bytes of it, 0: none
 *
 * Return: 0; -EINVAL: the first block is not Reset.
 */
TN_API int tn_sequence_init(struct tn_sequence *seq, const void *salt, size_t salt_bytes);

/**
 * tn_sequence_add_tokens - to the block that is Partial, as many as it has place for
 *
 * Return: how many; 0: it is full, commit it; -EINVAL: no block is Partial.
 */
TN_API long tn_sequence_add_tokens(struct tn_sequence *seq, const uint32_t *tokens, size_t n);

/**
 * tn_sequence_commit - the block that is Partial, and full, is Complete; the next one is Partial
 * @key: out, or NULL
 *
 * Return: 0; -EINVAL: none is Partial, or it is not full (the detail says how many tokens it lacks); -ENOMEM.
 */
TN_API int tn_sequence_commit(struct tn_sequence *seq, struct tn_key *key);

/**
 * tn_sequence_keys - of the first blocks
 * @keys: at most @max of them
 *
 * Return: how many, Registered and Complete; -EINVAL.
 */
TN_API long tn_sequence_keys(const struct tn_sequence *seq, struct tn_key *keys, size_t max);

/** tn_sequence_life - of block @block. Blocks behind the last one are Reset. Return: enum tn_life, or -EINVAL. */
TN_API int tn_sequence_life(const struct tn_sequence *seq, uint64_t block);

/**
 * tn_sequence_register - the first @n blocks that are Complete were saved: those that the cache has are Registered
 * @outcome:    of tn_save_opts, for each of them; NULL: they are not counted as duplicates
 * @duplicates: out: how many of those registered were there before; or NULL
 *
 * The sequence holds a handle on each block that is registered: as a lease of tn_match does, it keeps the block from being evicted. A block that the cache does not
 * have (it was rejected, or has failed) stays Complete, and so do those behind it.
 *
 * Return: how many are Registered now that were not; -EINVAL: fewer than @n are Complete; -EAGAIN: all leases are taken; what tn_match returns else.
 */
TN_API long tn_sequence_register(struct tn_sequence *seq, size_t n, const uint8_t *outcome, uint64_t *duplicates);

/** tn_sequence_reset - blocks from @from on, which are Partial or Complete, are Reset; -EINVAL: there is no such block, or it is Registered. */
TN_API int tn_sequence_reset(struct tn_sequence *seq, uint64_t from);

/** tn_sequence_drop - gives all handles back: each block, Registered before, is Reset. -EINVAL: one of the blocks is Complete or has tokens, or none is Registered. */
TN_API int tn_sequence_drop(struct tn_sequence *seq);

/** tn_sequence_info - @info: size set by the caller. Return: 0, -EINVAL. */
TN_API int tn_sequence_info(const struct tn_sequence *seq, struct tn_sequence_info *info);

#ifdef __cplusplus
}
#endif
#endif
