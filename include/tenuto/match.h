/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look-ups: how much of a prompt can be loaded, of one space or of all that a request needs, and leases that keep it so.
 *
 * Threads: any. Nothing here waits; a look-up allocates nothing and takes no lock that a completion holds.
 */
#ifndef TENUTO_MATCH_H
#define TENUTO_MATCH_H

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_cache;
struct tn_space;

/** How the blocks of a space match. A model whose layers differ in this has a space for each kind (struct tn_shard: group). */
enum tn_match_rule {
	TN_MATCH_PREFIX, /**< full attention: longest run from the first block */
	TN_MATCH_WINDOW, /**< sliding window: the last window_tokens before the end must be there */
	TN_MATCH_EXACT,  /**< recurrent state: the last block alone */
};

/** Takes a lease. */
#define TN_MATCH_PIN 1u
/** Most spaces of one look-up. */
#define TN_MATCH_SPACES_MAX 64u

/**
 * struct tn_match - what a look-up found
 * @size:        sizeof(struct tn_match), set by the caller
 * @blocks:      matched blocks, from the start of the prompt
 * @first:       first block that must be loaded (> 0 only under TN_MATCH_WINDOW and TN_MATCH_EXACT); of several spaces
 *               the least
 * @tier_blocks: by enum tn_tier: how many of the blocks that must be loaded lie there, and not in a tier above;
 *               of several spaces the sum
 * @load_ns:     estimated time to load them all, from the loads so far; 0 until one of 1 MiB or more has ended
 * @pin:         the lease: pass it to tn_unpin; 0 if none was asked for, or nothing matched
 */
struct tn_match {
	size_t size;
	uint32_t blocks;
	uint32_t first;
	uint32_t tier_blocks[TN_TIERS_MAX];
	uint64_t load_ns;
	uint64_t pin;
};

/**
 * tn_match - longest prefix of a prompt that can be loaded
 * @keys:  block keys, first block of the prompt first
 * @n:     number of keys
 * @tiers: n bytes (enum tn_tier of each matched block), or NULL
 * @match: size set by the caller; the rest is set only on success
 * @flags: TN_MATCH_PIN takes a lease, so that the blocks are still there to load
 *
 * A lease ends by tn_unpin in the process that took it, or with that process. It holds the blocks for whoever loads them, in any process: a load names
 * keys, not leases. To load what was found pass keys + first and blocks - first of them to tn_load_begin.
 *
 * Return: number of matched blocks (0..n, at most max_op_blocks), -EINVAL, or - with TN_MATCH_PIN - -EAGAIN when all
 * leases are taken (max_ops * 4). Each process that has attached has a part of 64 leases and 4 look-ups that no other takes, whoever came first.
 */
TN_API int tn_match(struct tn_space *space, const struct tn_key *keys, size_t n, uint8_t *tiers,
		    struct tn_match *match, unsigned flags);

/**
 * tn_match_all - longest prefix of a prompt that every one of several spaces can load
 * @spaces: of one cache, one identity and as many tokens per block: the TP ranks and KV groups that a request needs, each with
 *          its own rule (struct tn_shard: match_rule); 1 to TN_MATCH_SPACES_MAX, each once
 * @first:  @nspaces of them: the first block that must be loaded of each space; or NULL
 * @keys, @n, @match, @flags: as of tn_match
 *
 * A block that one rank has not saved, or whose save has not committed there, is not found. What was found, each rank loads by the same
 * keys from its own space; ranks that load go on with the least of their good prefixes.
 *
 * The prefix ends where every space's rule can end: a window or a checkpoint that one of them lacks makes it shorter for all. The
 * lease holds the blocks that must be loaded of all spaces, or none; it ends by one tn_unpin with any of the spaces.
 * It counts as a lease per space.
 *
 * Return: as of tn_match.
 */
TN_API int tn_match_all(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n,
			uint32_t *first, struct tn_match *match, unsigned flags);

/** tn_unpin - end a lease of tn_match or tn_match_all; -EINVAL if there is no such lease */
TN_API int tn_unpin(struct tn_space *space, uint64_t pin);

/** tn_cache_unpin - tn_unpin, also of a lease whose spaces were closed meanwhile */
TN_API int tn_cache_unpin(struct tn_cache *cache, uint64_t pin);

/**
 * tn_match_begin - as tn_match_all, also of tiers that do not answer at once
 * @deadline_ns: what a tier has not answered by then is not there; 0: only what is known at once
 * @query:       out: names the look-up, until tn_match_poll ends it, or tn_match_cancel
 *
 * The arguments are copied; the spaces stay open until the look-up is over. Without a tier that answers later
 * the first tn_match_poll ends it. A lease is taken when the look-up ends, never before: what was found may have gone
 * until then, and is not part of the result. Tiers are asked for max_ops * 4 spaces at a time; beyond that, and while a tier
 * answers nothing, only what is known at once is found. A look-up does not keep a space from being dropped.
 *
 * Return: 0 and *query, -EINVAL, -EAGAIN (max_ops look-ups are under way), -E2BIG (more than max_op_blocks keys).
 */
TN_API int tn_match_begin(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n,
			  uint64_t deadline_ns, unsigned flags, uint64_t *query);

/**
 * tn_match_poll - what a look-up has found
 * @first, @match: as of tn_match_all
 *
 * Return: as of tn_match_all, and the look-up is over; or -EAGAIN: a tier has still to answer, and the deadline lies ahead. The
 * eventfd says when one has. With TN_MATCH_PIN -EAGAIN may also mean that all leases are taken: ask again.
 * Every other error ends the look-up, but for -EINVAL.
 */
TN_API int tn_match_poll(struct tn_cache *cache, uint64_t query, uint32_t *first, struct tn_match *match);

/** tn_match_cancel - forget a look-up; -EINVAL if there is no such look-up */
TN_API int tn_match_cancel(struct tn_cache *cache, uint64_t query);

#ifdef __cplusplus
}
#endif
#endif
