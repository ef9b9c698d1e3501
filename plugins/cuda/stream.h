/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of ours: CUDA's, with events that are numbered, and a ring of entries for its kernels.
 *
 * An event is a number, one higher for each. TN_CUDA_EVENTS of CUDA's events take them one after the other: number n is in event[n modulo so
 * many], so that at most so many are asked for and not seen to be reached. What is in the stream goes in order, so an event that is reached
 * gives back all ring entries that were taken up to it. No call waits for a free one: it has another way, or ends with -EAGAIN, since the
 * stream may stand at a word that the caller raises later.
 *
 * Calls that name one stream come one at a time, so nothing here is locked.
 */
#ifndef TN_CUDA_STREAM_H
#define TN_CUDA_STREAM_H

#include "body.h"
#include "driver.h"

#define TN_CUDA_EVENTS 1024u
#define TN_CUDA_SUMS 64u    /* calls of sum that are under way */
#define TN_CUDA_BATCH 4096u /* copies per call of CUDA's */

/* A call of sum: its results lie in @n entries from @first on, and go to @out when @event is reached. */
struct tn_cuda_sums {
	struct tn_device_sum *out;
	uint64_t event;
	uint64_t first;
	uint32_t n;
};

/**
 * struct tn_cuda_stream
 * @next:           of the driver's list, under its lock
 * @asked, @reached: the last event, and the last that is known to be reached
 * @ring:           pinned; NULL: this device runs no kernels of ours
 * @taken, @freed:  ring entries that were ever taken and given back
 * @taken_at:       by event, what @taken was then
 * @sums:           calls @sums_ended to @sums_begun, modulo TN_CUDA_SUMS
 * @failed, @error: a part of a copy could not be begun, when another part had been: all events from @failed on end with @error
 * @to, @from, @bytes: of a batch that is put together
 */
struct tn_cuda_stream {
	struct tn_cuda_stream *next;
	const struct tn_device_driver *driver;
	struct tn_cuda *cuda;
	struct tn_cuda_device *d;
	uint32_t device;
	struct CUstream_st *stream;
	uint64_t asked, reached;
	union tn_cuda_entry *ring;
	uint64_t taken, freed;
	uint64_t sums_begun, sums_ended;
	uint64_t failed;
	int error;
	struct tn_cuda_sums sums[TN_CUDA_SUMS];
	struct CUevent_st *event[TN_CUDA_EVENTS];
	uint64_t taken_at[TN_CUDA_EVENTS];
	tn_cu_pointer to[TN_CUDA_BATCH], from[TN_CUDA_BATCH];
	size_t bytes[TN_CUDA_BATCH];
};

/* In the scope of the device. 0; -EAGAIN: so many events are under way; else why CUDA makes none. A record after it needs nothing new. */
int tn_cuda_stream_prepare(struct tn_cuda_stream *s);

/* In the scope of the device, after prepare: an event behind all that was put into the stream. */
int tn_cuda_stream_record(struct tn_cuda_stream *s, uint64_t *event);

/* In the scope of the device: whether so many ring entries are free, after a look at what was reached. */
bool tn_cuda_stream_has_free(struct tn_cuda_stream *s, uint64_t entries);

static inline union tn_cuda_entry *tn_cuda_entry_of(struct tn_cuda_stream *s, uint64_t number)
{
	return &s->ring[number % TN_CUDA_RING];
}

#endif
