/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of a cache, one per directory: their health and their counters. */
#ifndef TENUTO_DEVICE_H
#define TENUTO_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How well a device serves. */
enum tn_health { TN_HEALTHY, TN_SLOW, TN_READ_ONLY, TN_OFFLINE };

/** struct tn_device_stats - one device: its health (enum tn_health), what it holds, and counters since open */
struct tn_device_stats {
	size_t size;
	char path[256];
	uint32_t health;
	bool deleted; /**< its file was deleted while open: the device is read-only, and what it holds is gone at the close */
	uint64_t capacity_bytes, used_bytes;
	uint64_t blocks, quarantined_slots;
	uint64_t bytes_read, bytes_written, meta_bytes_written;
	uint64_t read_errors, write_errors;
	uint64_t lost_blocks; /**< given up because a sync failed before the blocks were durable */
};

#ifdef __cplusplus
}
#endif
#endif
