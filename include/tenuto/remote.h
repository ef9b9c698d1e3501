/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote stores of a cache (remote of struct tn_cache_opts, docs/remote.md): how each of them does, and whether one would.
 */
#ifndef TENUTO_REMOTE_H
#define TENUTO_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include <tenuto/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_cache;

/** Whether a remote is asked. */
enum tn_remote_state {
	TN_REMOTE_SERVES, /**< it is */
	TN_REMOTE_TRIED,  /**< one request tries it after a pause; all others are misses */
	TN_REMOTE_ALONE,  /**< it is not, for some seconds, since it failed three times in a row */
	TN_REMOTE_SPENT,  /**< it is not, since its bytes of the day are used up */
};

/**
 * struct tn_remote_stats - one remote; counts are since the open
 * @name:            the client's word, and a number if it is not the first of its kind: "s3", "s3-2"
 * @state:           enum tn_remote_state
 * @read_only:       nothing is ever written there
 * @lookup_requests, @read_requests, @write_requests: that the store was asked
 * @unasked_requests: that it was not asked, because of its state
 * @hit_blocks:      that look-ups found there
 * @read_blocks, @read_bytes, @written_blocks, @written_bytes: of blocks, with their headers
 * @existing_blocks: writes of blocks that were there already
 * @missing_blocks:  reads of blocks that were not there any more
 * @corrupt_objects: that were not the block of their name, or were damaged or cut short
 * @late_errors, @denied_errors, @full_errors, @connection_errors, @other_errors: requests that failed: at their deadline; -EACCES, as of wrong credentials or a clock
 *                   that is off; -ENOSPC; no connection, or a lost one; anything else the store says, as 5xx
 * @pauses:          how often it was left alone
 * @lookup_p50_ns, @read_p50_ns, @write_p50_ns: median of the last 64 requests that had an answer; 0: there was none
 */
struct tn_remote_stats {
	size_t size;
	char name[32];
	uint32_t state;
	uint32_t read_only;
	uint64_t lookup_requests, read_requests, write_requests, unasked_requests;
	uint64_t hit_blocks, read_blocks, read_bytes, written_blocks, written_bytes;
	uint64_t existing_blocks, missing_blocks, corrupt_objects;
	uint64_t late_errors, denied_errors, full_errors, connection_errors, other_errors;
	uint64_t pauses;
	uint64_t lookup_p50_ns, read_p50_ns, write_p50_ns;
};

/**
 * tn_cache_remote_stats - a snapshot of one remote
 * @index: 0 for the first; they have the order of the option
 * @stats: size set by the caller
 *
 * Any thread. Return: 0, -ENOENT past the last remote, -EINVAL, -EACCES (attached, and let see some tenants only).
 */
TN_API int tn_cache_remote_stats(struct tn_cache *cache, uint32_t index, struct tn_remote_stats *stats);

/**
 * tn_remotes_try - writes and reads an object of 4 KiB in each of the remotes, one after the other
 * @remote:      as of struct tn_cache_opts
 * @deadline_ns: of CLOCK_MONOTONIC, for all of them
 * @report:      is called for each: its name, 0 or -errno, and a text that says what is wrong and what to do; it may be NULL
 *
 * The object is PREFIX/check, and stays. One that is for reading only is asked for it alone. Any thread; waits until the deadline at most.
 *
 * Return: 0; the first error; -EINVAL: what the text says is no list of remotes.
 */
TN_API int tn_remotes_try(const char *remote, uint64_t deadline_ns, void (*report)(void *arg, const char *name, int status, const char *text), void *arg);

#ifdef __cplusplus
}
#endif
#endif
