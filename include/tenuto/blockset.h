/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks in a pool that others may read: keys, layout, memory and shard as bytes, and what makes them void.
 *
 * The owner registers blocks with their pages and exports the set. A reader imports it, finds blocks by key, maps their pages (tn_xfer_layout_map, also between TP
 * sizes), and reads them by its transfer agent from the owner's memory. Behind the bytes it reads the block's word, and tn_blockset_check compares it: the owner
 * changes the word when the last handle is dropped, before it writes to the pages again. So bytes that are not the block's are never taken for it: they are a miss.
 *
 * The words are the owner's memory, registered with its agent as the pool is. Removals are also events, in the form of tenuto/events.h: a reader that is told of them
 * (tn_blockset_forget) does not ask in vain.
 *
 * One thread at a time per set, and per view; tn_blockset_events from any.
 */
#ifndef TENUTO_BLOCKSET_H
#define TENUTO_BLOCKSET_H

#include <stddef.h>
#include <tenuto/events.h>
#include <tenuto/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most blocks of a set. */
#define TN_BLOCKSET_BLOCKS_MAX (UINT32_C(1) << 20)
/** Events of a set that are kept. */
#define TN_BLOCKSET_EVENTS 4096u

struct tn_blockset;
struct tn_blockset_view;

/**
 * tn_blockset_create - an empty set over a pool
 * @share: of the pool; copied
 * @words: @max_blocks of them, which stay the caller's until tn_blockset_destroy: register them with the agent, too. Zeros at first
 *
 * Return: 0 and *out; -EINVAL (max_blocks 0 or above TN_BLOCKSET_BLOCKS_MAX; what tn_pool_share_check says); -ENOMEM.
 */
TN_API int tn_blockset_create(const struct tn_pool_share *share, uint64_t *words, uint32_t max_blocks, struct tn_blockset **out);

/** tn_blockset_destroy - all blocks are void for those who have imported them. NULL is fine. */
TN_API void tn_blockset_destroy(struct tn_blockset *set);

/**
 * tn_blockset_register - a block lies in these pages, its bytes are final, and they stay until its last handle is dropped
 * @parent: the block before it, or NULL
 * @pages:  pages_per_block of them
 * @handle: out
 *
 * Return: 0; 1: the key is there already: the handle is one more of that block, and @pages are not used; -EINVAL: a page that the pool does not have, key 0; -ENOSPC.
 */
TN_API int tn_blockset_register(struct tn_blockset *set, const struct tn_key *key, const struct tn_key *parent, const uint32_t *pages, uint64_t *handle);

/** tn_blockset_drop - a handle is given back. Return: 1: it was the last one: the block is void, its removal an event, and its pages may be written; 0; -EINVAL: no such handle. */
TN_API int tn_blockset_drop(struct tn_blockset *set, uint64_t handle);

/** tn_blockset_events - as tn_cache_events. After -ESTALE export again. */
TN_API long tn_blockset_events(struct tn_blockset *set, uint64_t *cursor, struct tn_block_event *out, size_t max);

/**
 * tn_blockset_export - the set as bytes with magic, version and checksum
 *
 * Little-endian: magic "TNBLOCKS", u32 version, u32 pages per block, u64 bytes of all, u64 event number to go on from, u64 address of the words, u32 words, u32 blocks,
 * u64 bytes of the share, the share (tn_pool_share_store); for each block its key, u64 value of its word, u32 number of its word, u32 pages; u64 XXH3-64 of all before.
 *
 * Return: how many bytes it has (more than @len: nothing was written); -EINVAL.
 */
TN_API int64_t tn_blockset_export(const struct tn_blockset *set, void *buf, size_t len);

/** tn_blockset_import - the inverse; everything is checked, nothing trusted. Return: 0 and *out; -EBADMSG; -EPROTONOSUPPORT (version); what tn_pool_share_check says; -ENOMEM. */
TN_API int tn_blockset_import(const void *buf, size_t len, struct tn_blockset_view **out);

/** tn_blockset_view_destroy - NULL is fine. */
TN_API void tn_blockset_view_destroy(struct tn_blockset_view *view);

/** tn_blockset_view_share - the pool of the owner; lives as long as the view */
TN_API const struct tn_pool_share *tn_blockset_view_share(const struct tn_blockset_view *view);

/** tn_blockset_view_cursor - of tn_blockset_events at the owner, from which on events are to be told to tn_blockset_forget */
TN_API uint64_t tn_blockset_view_cursor(const struct tn_blockset_view *view);

/**
 * struct tn_blockset_block - a block of a view
 * @pages: pages_per_block of them, in the owner's pool; they live as long as the view
 * @word:  address of its word in the owner's memory, 8 bytes
 * @value: what the word has while the block is the block
 */
struct tn_blockset_block {
	const uint32_t *pages;
	uint64_t word;
	uint64_t value;
};

/** tn_blockset_find - the longest prefix of @n keys that the view has. Return: how many, and @out of these; -EINVAL. */
TN_API long tn_blockset_find(const struct tn_blockset_view *view, const struct tn_key *keys, size_t n, struct tn_blockset_block *out);

/** tn_blockset_check - whether bytes are the block's, by its word as it was read behind them. Return: 0; -ESTALE: they are not, or may not be: a miss. */
TN_API int tn_blockset_check(const struct tn_blockset_block *block, uint64_t word);

/** tn_blockset_forget - what the owner's events say is gone. Return: how many blocks of the view; -EINVAL. */
TN_API long tn_blockset_forget(struct tn_blockset_view *view, const struct tn_block_event *events, size_t n);

#ifdef __cplusplus
}
#endif
#endif
