/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The direct way: bytes between the files of a cache and memory of devices that no host memory sees, by a plugin such as gds (tenuto/device_file.h).
 *
 * It is opened for the first memory of a device. The files stay those of the I/O engine: the plugin gets their very descriptors, whose locks stay. What
 * the plugin refuses goes by way of host memory, as all bytes do while this is not open.
 *
 * One thread makes and destroys it, and names the files before others know of it. All others: any thread.
 */
#ifndef TN_DEVICE_DIRECT_H
#define TN_DEVICE_DIRECT_H

#include <stdbool.h>
#include <tenuto/device_file.h>
#include <tenuto/device_memory.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "device/copier.h"

#define TN_DIRECT_FILES_MAX 64u
#define TN_DIRECT_STREAMS 8u /* unless told otherwise */

struct tn_direct;

/* What goes the direct way. */
enum tn_direct_mode {
	TN_DIRECT_NEVER,
	TN_DIRECT_AUTO,	  /* what it is faster for: the plugin itself does not copy by way of host memory */
	TN_DIRECT_ALWAYS, /* whatever the plugin does */
};

/* "bounce", "auto", "direct": 0 and *out; -EINVAL. */
int tn_direct_mode_of(const char *transfer, enum tn_direct_mode *out);

/* streams: 0: TN_DIRECT_STREAMS. 0 and *out, or -ENOMEM. The log and the clock outlive it. */
int tn_direct_create(enum tn_direct_mode mode, uint32_t streams, const struct tn_alloc *alloc, const struct tn_log *log, const struct tn_clock *clock,
		     struct tn_direct **out);
/* Nothing is under way. Waits for the plugin's threads: none of them calls done any more. NULL-safe. */
void tn_direct_destroy(struct tn_direct *d);
/* The descriptor of file i, below TN_DIRECT_FILES_MAX, open with O_DIRECT until tn_direct_destroy. Files without one stay without the direct way. */
void tn_direct_file(struct tn_direct *d, uint32_t i, int fd);

/*
 * For memory of a device, whose copier has this number: starts the plugin, unless it has started already, and has it register all files. Takes seconds
 * the first time; later it only asks whether the plugin has started meanwhile. Each device has threads of the plugin of its own, so that one that stands
 * has not those of another. NULL-safe.
 *
 * Return: 0: from now on objects in memory of that device may go the direct way, or else the log says why not. TN_DIRECT_ALWAYS: -errno, if they may
 * not: the driver does not sum, or the plugin is not there, does not start, or does not take a file.
 */
int tn_direct_open(struct tn_direct *d, const struct tn_device_driver *driver, uint32_t device, uint32_t number);
/* Whether objects go the direct way between file i and memory of the device with this number. NULL-safe. */
bool tn_direct_has(const struct tn_direct *d, uint32_t number, uint32_t i);
/* Threads of the plugin for each device. */
uint32_t tn_direct_streams(const struct tn_direct *d);

/* Moves what is described, but for its file, which is file i. As submit of tenuto/device_file.h; tn_direct_has has said true of both. */
void tn_direct_submit(struct tn_direct *d, uint32_t number, uint32_t i, struct tn_device_file_transfer *transfer);
/*
 * Of a transfer that failed: logs it. A file that the plugin does not take has no direct way any more; a device whose memory it does not take, until the
 * next memory of the device is registered. All else is tried again by the next transfer.
 */
void tn_direct_failed(struct tn_direct *d, uint32_t number, uint32_t i, const struct tn_device_file_transfer *transfer);

#endif
