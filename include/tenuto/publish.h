/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishes the block events of a cache to other processes, under the names that its engines give to the blocks (tenuto/names.h).
 *
 * A thread of its own reads the cache's events and hands them to a bus (tenuto/event_bus.h, docs/events.md). The cache never waits for it. Where
 * it falls behind by more events than the cache keeps, the number of the next batch leaves a gap, and followers take a snapshot.
 */
#ifndef TENUTO_PUBLISH_H
#define TENUTO_PUBLISH_H

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_cache;
struct tn_publisher;

/**
 * struct tn_publish_stats - what a publisher has done
 * @events:    published, of blocks
 * @unnamed:   left out: the block had no name
 * @batches:   sent, those without events, which say that the publisher lives, included
 * @bytes:     of them
 * @gaps:      times that events were lost before they were published
 * @snapshots: begun
 * @lag_ns:    age of the last event when it was published
 */
struct tn_publish_stats {
	size_t size;
	uint64_t events;
	uint64_t unnamed;
	uint64_t batches;
	uint64_t bytes;
	uint64_t gaps;
	uint64_t snapshots;
	uint64_t lag_ns;
};

/**
 * tn_publish_start - publish the events of a cache from now on
 * @cache: that this process has opened
 * @spec:  BUS,key=value,...: "zmq,endpoint=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558". Of every bus:
 *         names (blocks whose names are kept; by default twice the cache's blocks, 2^22 at most), tokens (token ids kept per block; 0),
 *         bytes_per_second (most that is sent; 0: no limit), interval_ms (between looks at the cache; 10). Others are the bus's own
 *
 * Any thread. Return: 0 and *out; -EINVAL with the parameter; -ENOENT: there is no such plugin; -ENOMEM; errors of the bus.
 */
TN_API int tn_publish_start(struct tn_cache *cache, const char *spec, struct tn_publisher **out);

/** tn_publish_stop - before tn_cache_close. What is not sent yet is lost. NULL is fine */
TN_API void tn_publish_stop(struct tn_publisher *publisher);

/** tn_publish_stats - @out->size set by the caller. Any thread. Return: 0, -EINVAL */
TN_API int tn_publish_stats(struct tn_publisher *publisher, struct tn_publish_stats *out);

#ifdef __cplusplus
}
#endif
#endif
