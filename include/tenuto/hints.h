/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints: what somebody outside expects of blocks, as a router that has sent a request and knows what comes next.
 *
 * A hint is never waited for: it is queued, and a thread of the owner's follows it soon, or not at all. Its answer is the same whether the blocks
 * are there or not. Each tenant has TN_HINTS_TENANT hints that are queued or hold blocks.
 */
#ifndef TENUTO_HINTS_H
#define TENUTO_HINTS_H

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_cache;
struct tn_space;

/** What is expected. */
enum tn_hint_kind {
	TN_HINT_PREFETCH = 1, /**< they are loaded soon: bring them to host memory */
	TN_HINT_PIN,	      /**< they are loaded within the time: let nothing evict them until then */
	TN_HINT_DEMOTE,	      /**< nobody loads them soon: those that lie on disk, too, leave host memory */
};

/** Hints of one tenant that are queued, or hold blocks. */
#define TN_HINTS_TENANT 32u
/** Most blocks of a hint. */
#define TN_HINT_BLOCKS_MAX 4096u
/** Longest time of a hint: an hour. */
#define TN_HINT_NS_MAX UINT64_C(3600000000000)

/**
 * tn_hint - what is expected of blocks
 * @kind:   enum tn_hint_kind
 * @keys:   n consecutive blocks of one prompt, the first one first; copied
 * @ttl_ns: of a prefetch: it is given up then; of a pin: the blocks are let go then. 1 to TN_HINT_NS_MAX; of a demotion 0
 *
 * Any thread. Return: 0; -EINVAL with the value; -EAGAIN: the tenant has TN_HINTS_TENANT hints under way; -ENOMEM; -ESHUTDOWN in an attached process.
 */
TN_API int tn_hint(struct tn_space *space, enum tn_hint_kind kind, const struct tn_key *keys, size_t n, uint64_t ttl_ns);

/**
 * tn_hint_named - tn_hint of blocks that are called by their engine's hashes (tenuto/names.h)
 * @cache:  that this process has opened
 * @hashes: n consecutive blocks of one prompt: the last 8 bytes of each hash, as tn_tree_key has them
 *
 * Meant are the blocks of each space that somebody has open and that has such a name, and of the spaces with the shares of their other ranks.
 * Nothing is said of whether there are any. Return: 0, -EINVAL, -ENOTSUP (the cache keeps no names), -ENOMEM.
 */
TN_API int tn_hint_named(struct tn_cache *cache, enum tn_hint_kind kind, const uint64_t *hashes, size_t n, uint64_t ttl_ns);

#ifdef __cplusplus
}
#endif
#endif
