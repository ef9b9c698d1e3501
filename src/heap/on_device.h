/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload of a heap in the memory of a device: the master has allocated it for all ranks, and other processes import it by the driver. No CPU touches it:
 * bytes go through a pinned buffer of this process and a stream of the driver. The memory ends with the master's process.
 */
#ifndef TN_HEAP_ON_DEVICE_H
#define TN_HEAP_ON_DEVICE_H

#include <pthread.h>
#include <tenuto/device_memory.h>

#include "heap/segment.h"

struct tn_heap_on_device {
	const struct tn_device_driver *driver; /* NULL: the payload lies in host memory */
	uint32_t device;
	uint32_t ranks;
	uint64_t bytes; /* of each rank's payload */
	unsigned char *payload[TN_HEAP_RANKS_MAX];
	uint32_t registered; /* ranks whose payload copies may name */
	bool allocated;	     /* by this process; else imported */
	pthread_mutex_t lock; /* of the four below */
	void *stream;	      /* NULL: there is none at the moment */
	bool broken;	      /* something has failed in it ... */
	uint64_t event;	      /* ... and this is the last of what was asked of it */
	unsigned char *buffer; /* pinned; also where checksums go */
	bool pinned;
	bool sums; /* the device can */
};

/*
 * Allocates the payload of all ranks, and exports it into the directory; or imports what that names. tn_heap_on_device_drop must follow, also if it fails. 0,
 * -ENOTSUP (the driver cannot do that), or the driver's error.
 */
int tn_heap_on_device_make(struct tn_heap_on_device *d, struct tn_heap_memory *m);
int tn_heap_on_device_map(struct tn_heap_on_device *d, const struct tn_heap_memory *m);
/*
 * No thread copies or sums. What has no driver is ignored. What a device has not ended long after is left to it: stream, buffer and payload stay as they are until
 * the process ends.
 */
void tn_heap_on_device_drop(struct tn_heap_on_device *d);
/* Between host memory and payload that lies @at bytes behind the beginning of the rank's. Any thread. 0, or the driver's error;
 * after an -ETIMEDOUT every call says so until the device has ended what it was asked for. */
int tn_heap_on_device_write(struct tn_heap_on_device *d, uint32_t rank, uint64_t at, const void *src, uint64_t bytes);
int tn_heap_on_device_read(struct tn_heap_on_device *d, uint32_t rank, uint64_t at, void *dst, uint64_t bytes);

/* Checksum of payload. 0, -ENOTSUP (the device sums nothing), or the driver's error. */
int tn_heap_on_device_sum(struct tn_heap_on_device *d, uint32_t rank, uint64_t at, uint64_t bytes, uint64_t *sum);

#endif
