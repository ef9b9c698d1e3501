/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache on described drives. Each directory, best on tmpfs, has the bandwidth, latency and read/write interference
 * of the drive that a device model (share/devices) describes; all engines of the cache are paced (paced.h).
 */
#ifndef TN_LAB_PACED_CACHE_H
#define TN_LAB_PACED_CACHE_H

#include <stdint.h>

#include <tenuto/cache.h>

/**
 * struct tn_paced_drive - the drive that each directory is paced as
 * @model:   path of a device model; NULL: no pacing
 * @stretch: divides the model's bandwidth and multiplies its latency, for machines that cannot move so much: at most
 *           about 0.9 GB/s per CPU should remain (a warning says so); 0: 16
 */
struct tn_paced_drive {
	const char *model;
	uint32_t stretch;
};

/**
 * tn_paced_cache_open - tn_cache_open on paced drives
 *
 * Measured mixes of the directories (DIR/tenuto.mix) are not read. tn_cache_close closes the cache.
 *
 * Any thread; blocks. Return: as tn_cache_open, and the errors of reading the model, with file and line in the detail.
 */
int tn_paced_cache_open(const struct tn_cache_opts *opts, const struct tn_paced_drive *drive, struct tn_cache **out);

#endif
