/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole of a cache, whichever process asks: who owns it, which processes use it, how long the calls of all of them take.
 *
 * In a process that has attached, the owner's process answers, for processes of the owner's own user alone. Statistics and devices are
 * cache.h: they are of the whole cache anyway.
 *
 * Threads: any. Each call waits for the owner thread's answer, as tn_cache_stats does, and never holds up a load or a save.
 */
#ifndef TENUTO_STATUS_H
#define TENUTO_STATUS_H

#include <tenuto/latency.h>
#include <tenuto/slack.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Places of sessions: the one of the owner's own calls is 0, those of attached processes follow. */
#define TN_SESSION_PLACES 33u

/**
 * struct tn_owner_stats - the process that has opened a cache
 * @pid:                 of it, as its own PID namespace counts
 * @sessions:            processes that are attached now
 * @sessions_total:      that have attached since the cache was opened
 * @open_ns:             for how long the cache has been open
 * @write_bytes_per_day: budget of writes to the disks (tn_cache_opts); 0: none
 */
struct tn_owner_stats {
	size_t size;
	uint32_t pid;
	uint32_t sessions;
	uint64_t sessions_total;
	uint64_t open_ns;
	uint64_t write_bytes_per_day;
};

/**
 * struct tn_session_stats - what one process does with the cache
 * @pid:           of the process, as the owner's PID namespace counts; 0: of another one
 * @attached_ns:   for how long it has been attached
 * @loads, @saves: that it has begun
 * @loaded_bytes:  of blocks that arrived in its pages
 * @saved_bytes:   of blocks that its saves brought, those that were there already left out
 * @calls:         of it that wait for the disks now: flushes, spaces that are opened or dropped
 * @loads_now, @saves_now, @prefetches_now: operations under way. Each of them is in one of:
 * @moving:        has transfers under way
 * @waiting_turn:  waits for its turn on a device, or for a free place in a tier
 * @waiting_process: a save that waits for the process: for the bytes of its next layer, or its commit
 * @backlog_bytes: of its saves that still have to be written
 */
struct tn_session_stats {
	size_t size;
	uint32_t pid;
	uint32_t calls;
	uint64_t attached_ns;
	uint64_t loads, saves;
	uint64_t loaded_bytes, saved_bytes;
	uint32_t loads_now, saves_now, prefetches_now;
	uint32_t moving, waiting_turn, waiting_process;
	uint64_t backlog_bytes;
};

/**
 * tn_cache_owner_stats - who owns the cache
 * @out: size set by the caller
 *
 * Return: 0; -EINVAL, -EACCES (attached, and of another user than the owner, or let see some tenants only), -ESHUTDOWN.
 */
TN_API int tn_cache_owner_stats(struct tn_cache *cache, struct tn_owner_stats *out);

/** Of crossover_tokens: no prefix of up to TN_CROSSOVER_TOKENS is restored sooner than it is computed. */
#define TN_CROSSOVER_NEVER UINT64_MAX
#define TN_CROSSOVER_TOKENS (UINT64_C(1) << 20)
/** Of how: nothing is known of the engine's compute times. */
#define TN_SLACK_UNKNOWN UINT32_MAX

/**
 * struct tn_space_stats - what is worth restoring in a space
 * @index:            its number (tn_space_index)
 * @model:            of the space, as much of its name as fits
 * @how:              enum tn_slack_how of its slack table, or TN_SLACK_UNKNOWN
 * @block_tokens:     tokens per block
 * @read_bps:         of the disks, as tn_plan takes them; 0: not known
 * @crossover_tokens: a prefix of so many tokens and more is restored from disk sooner, as a whole, than it is computed; of shorter ones a part may
 *                    be. 0: not known, because of the table, the disks, or blocks so large that such a prefix has more than 2^53 bytes.
 *                    Of a model of more than 128 layers, 128 stand for all
 */
struct tn_space_stats {
	size_t size;
	char model[TN_SLACK_NAME];
	uint32_t index;
	uint32_t how;
	uint32_t block_tokens;
	uint64_t read_bps;
	uint64_t crossover_tokens;
};

/**
 * tn_cache_space_stats - one space
 * @index:        the first space whose number is that or higher is told; go on with its number + 1
 * @input_tokens: behind the prefix, computed in any case; at least 1
 * @out:          size set by the caller; set only on success
 *
 * Return: 0, -ENOENT (no space has such a number), -EINVAL, -ENOMEM, -EACCES (attached, by another user).
 */
TN_API int tn_cache_space_stats(struct tn_cache *cache, uint32_t index, uint32_t input_tokens, struct tn_space_stats *out);

/**
 * tn_cache_session_stats - one session
 * @place: below TN_SESSION_PLACES; a session keeps its place while it lives
 * @out:   size set by the caller
 *
 * Return: 0; -ENOENT (nobody is in the place), -EINVAL, -EACCES, -ESHUTDOWN.
 */
TN_API int tn_cache_session_stats(struct tn_cache *cache, uint32_t place, struct tn_session_stats *out);

/**
 * tn_cache_all_latency - tn_cache_latency of all processes that use the cache, or have used it since it was opened
 * @kind, @tier, @out: as of tn_cache_latency
 *
 * No count of a bucket ever falls. Return: 0, -EINVAL, -EACCES, -ESHUTDOWN.
 */
TN_API int tn_cache_all_latency(struct tn_cache *cache, enum tn_latency_kind kind, enum tn_tier tier, struct tn_latency *out);

#ifdef __cplusplus
}
#endif
#endif
