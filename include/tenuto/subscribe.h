/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Follows the published events of one cache, of Tenuto or of vLLM, and keeps a prefix tree by them (tenuto/prefix_tree.h).
 *
 * A thread of its own for each cache. It survives restarts of the publisher and lost messages: gaps are seen by number, and are filled by batches
 * that the publisher still has, or by a snapshot. A publisher of vLLM gives no snapshots. Then the tree has what its last batches tell.
 */
#ifndef TENUTO_SUBSCRIBE_H
#define TENUTO_SUBSCRIBE_H

#include <stdbool.h>
#include <tenuto/error.h>
#include <tenuto/event_bus.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_tree;
struct tn_subscriber;

/**
 * struct tn_subscribe_opts
 * @size:     sizeof(struct tn_subscribe_opts)
 * @tree:     to be kept; NULL: none
 * @cache:    number of the cache in the tree
 * @on_event: called for each event in order, on the subscriber's thread, those of snapshots included; or NULL
 * @arg:      of it
 */
struct tn_subscribe_opts {
	size_t size;
	struct tn_tree *tree;
	uint32_t cache;
	void (*on_event)(void *arg, uint64_t sequence, const struct tn_bus_event *event);
	void *arg;
};

/**
 * struct tn_subscribe_state - how well the tree knows the cache
 * @connected: the publisher is there
 * @current:   nothing is missing: no gap is open, no snapshot under way
 * @complete:  the tree began with a snapshot, or with the publisher's first batch; else older blocks are unknown
 * @next:      number of the next batch
 * @heard_ns:  CLOCK_MONOTONIC: when the last batch came; 0: never. A publisher of Tenuto sends one per second at least
 * @events:    taken over
 * @batches:   likewise
 * @gaps:      that were seen
 * @replays:   asked for
 * @snapshots: taken over
 * @restarts:  of the publisher, that were seen by its numbers
 * @bad:       messages that were no batches
 */
struct tn_subscribe_state {
	size_t size;
	uint64_t next;
	uint64_t heard_ns;
	uint64_t events;
	uint64_t batches;
	uint64_t gaps;
	uint64_t replays;
	uint64_t snapshots;
	uint64_t restarts;
	uint64_t bad;
	bool connected;
	bool current;
	bool complete;
};

/**
 * tn_subscribe_start - follow a cache from now on
 * @spec: BUS,key=value,...: "zmq,endpoint=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558"; waits for no publisher
 *
 * Any thread. Return: 0 and *out; -EINVAL, -ENOENT (no such plugin), -ENOMEM, errors of the bus.
 */
TN_API int tn_subscribe_start(const char *spec, const struct tn_subscribe_opts *opts, struct tn_subscriber **out);

/** tn_subscribe_stop - the tree keeps what it knows. From on_event, too: no event follows, and the thread ends after it. NULL is fine */
TN_API void tn_subscribe_stop(struct tn_subscriber *subscriber);

/** tn_subscribe_state - @out->size set by the caller. Any thread. Return: 0, -EINVAL */
TN_API int tn_subscribe_state(struct tn_subscriber *subscriber, struct tn_subscribe_state *out);

#ifdef __cplusplus
}
#endif
#endif
