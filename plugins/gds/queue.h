/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of transfers. A stream of a queue is a thread: it takes pieces of the oldest transfer, as many as are worth one call, asks the library for them
 * (calls.h) and waits. Pieces of one transfer go to several streams.
 */
#ifndef TN_GDS_QUEUE_H
#define TN_GDS_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include <tenuto/device_file.h>

/* As in tenuto/device_file.h. */
int gds_queue_create(enum tn_device_file_calls calls, uint32_t streams, struct tn_device_file_queue **out, char *detail, size_t detail_bytes);
void gds_queue_destroy(struct tn_device_file_queue *queue);
void gds_queue_submit(struct tn_device_file_queue *queue, struct tn_device_file_transfer *transfer);

#endif
