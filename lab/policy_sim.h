/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulates eviction and admission policies over a trace of block ids, without any bytes.
 *
 * A simulation does what the cache does with a request, on the index only: look up the longest run of cached blocks
 * from the start of the prompt, then touch or insert every block of the prompt. The answer is what a policy would have
 * hit and written at a capacity; speed is not measured.
 *
 * Threads: one simulation is for one thread at a time. A trace's length is not known in advance, so a simulation,
 * unlike the cache, grows its memory.
 */
#ifndef TN_LAB_POLICY_SIM_H
#define TN_LAB_POLICY_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tn_policy_sim;

/** When a simulation evicts. */
enum tn_sim_evict {
	TN_SIM_EVICT_AUTO,   /**< as the policy's published form: AFTER for lru and fifo; BEFORE, with no block protected,
			          for s3fifo; for all others as a real store does (BEFORE, protect_request) */
	TN_SIM_EVICT_AFTER,  /**< after the request: blocks beyond the capacity go */
	TN_SIM_EVICT_BEFORE, /**< before each insertion, so that the capacity is never exceeded */
};

/**
 * struct tn_policy_sim_opts - begin with tn_policy_sim_opts_init, then set what differs
 * @policy:             a name of tn_policy_name; "default" if not set
 * @capacity_blocks:    most blocks held; 0: unlimited, and the policy is not asked
 * @max_request_blocks: longest request that will come; 65536 if not set
 * @evict:              enum tn_sim_evict
 * @protect_request:    with TN_SIM_EVICT_BEFORE: a request's own blocks are no victims while the request is under way
 *                      (in a real store they are pinned)
 * @seed:               of sampling policies
 */
struct tn_policy_sim_opts {
	const char *policy;
	uint64_t capacity_blocks;
	uint32_t max_request_blocks;
	uint32_t evict;
	bool protect_request;
	uint64_t seed;
};

/** struct tn_policy_sim_result - one request
 * @hits:     blocks of the longest run of cached blocks from the first on
 * @inserted: blocks that came in (would be written)
 * @rejected: missing blocks that the policy did not admit, or for which no block could go
 * @evicted:  blocks that went
 */
struct tn_policy_sim_result {
	uint32_t hits;
	uint32_t inserted;
	uint32_t rejected;
	uint32_t evicted;
};

/** struct tn_policy_sim_stats - totals
 * @requests, @blocks: seen
 * @hits, @inserted, @rejected, @evicted: sums of struct tn_policy_sim_result
 * @distinct: different block ids seen
 * @held:     blocks in the simulated tier now
 * @unread:   inserted blocks that were never hit while they were held (so far)
 */
struct tn_policy_sim_stats {
	uint64_t requests;
	uint64_t blocks;
	uint64_t hits;
	uint64_t distinct;
	uint64_t inserted;
	uint64_t rejected;
	uint64_t evicted;
	uint64_t held;
	uint64_t unread;
};

/** tn_policy_name - the i-th policy's name, NULL past the last. Any thread. */
const char *tn_policy_name(size_t i);

/** tn_policy_sim_opts_init - defaults. Any thread. */
void tn_policy_sim_opts_init(struct tn_policy_sim_opts *opts);

/**
 * tn_policy_sim_create - an empty simulated tier
 *
 * Any thread. Return: 0 and *out, -EINVAL (option; the detail names the known policies), -ENOMEM.
 */
int tn_policy_sim_create(const struct tn_policy_sim_opts *opts, struct tn_policy_sim **out);

/** tn_policy_sim_destroy - NULL is fine */
void tn_policy_sim_destroy(struct tn_policy_sim *sim);

/**
 * tn_policy_sim_request - one prompt: look up, then touch and insert
 * @ids:          block ids, first block of the prompt first; equal ids mean equal prefixes
 * @n:            number of blocks
 * @partial_last: the last block is not full (a hint for admission)
 * @result:       or NULL
 *
 * Return: 0, -EINVAL (n beyond max_request_blocks), -ENOMEM.
 */
int tn_policy_sim_request(struct tn_policy_sim *sim, const uint64_t *ids, size_t n, bool partial_last,
			  struct tn_policy_sim_result *result);

/** tn_policy_sim_stats - totals so far */
void tn_policy_sim_stats(const struct tn_policy_sim *sim, struct tn_policy_sim_stats *stats);

/**
 * tn_policy_sim_belady - what a policy that knows the future would have hit
 * @ids:             block ids of all requests, one request behind the other
 * @lengths:         blocks of each request
 * @requests:        number of requests
 * @capacity_blocks: most blocks held after each request; 0: unlimited
 * @results:         one per request, or NULL
 *
 * Farthest next use (Belady, 1966), prefix-aware: after each request the block whose next reference is farthest
 * away goes first, the deepest first among those never referenced again.
 *
 * Any thread. Return: 0 and *stats, -EINVAL, -ENOMEM.
 */
int tn_policy_sim_belady(const uint64_t *ids, const uint32_t *lengths, size_t requests, uint64_t capacity_blocks,
			 struct tn_policy_sim_result *results, struct tn_policy_sim_stats *stats);

#endif
