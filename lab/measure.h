/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures what a directory's device does when it reads, when it writes, and when it does both. For cli/ and bench/,
 * which may not include src/: struct tn_mix, and tn_mixfile_load, which reads device models (share/devices).
 */
#ifndef TN_LAB_MEASURE_H
#define TN_LAB_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tenuto/error.h>

#include "ioengine/mixfile.h"

/**
 * struct tn_io_measure_opts - begin with tn_io_measure_opts_init, then set what differs
 * @dir:            the directory whose device is measured; must be writable
 * @seconds:        time of all measurements together, 0.1 to 3600; default 6. Filling the file comes on top
 * @file_bytes:     size of the temporary file; default 256 MiB
 * @request_bytes:  size of a request; default 256 KiB
 * @depth:          requests in flight; default 64, at most 1024
 * @store:          leave the result in DIR/tenuto.mix, where tn_cache_open finds it (default true)
 * @device_model:   measure this drive (paced_cache.h), not the directory's; nothing is stored then. NULL: none
 * @device_stretch: stretch of the model; default 16
 * @seed:           seed of the offsets
 * @progress, @progress_arg: called with the part that is done, 0 to 1; if it returns false, measuring stops. NULL: none
 * @log, @log_arg:  warnings; NULL: none
 */
struct tn_io_measure_opts {
	const char *dir;
	double seconds;
	uint64_t file_bytes;
	uint32_t request_bytes;
	uint32_t depth;
	bool store;
	const char *device_model;
	uint32_t device_stretch;
	uint64_t seed;
	bool (*progress)(void *arg, double done);
	void *progress_arg;
	tn_log_fn log;
	void *log_arg;
};

/** tn_io_measure_opts_init - defaults. Any thread. */
void tn_io_measure_opts_init(struct tn_io_measure_opts *opts);

/**
 * tn_io_measure - read, write and mixed bandwidth and latency of a directory, with O_DIRECT where the file system has it
 *
 * Five rounds, each of reads, writes, both, and single small transfers; the median of each counts. Mixed is half reads,
 * half writes. The writes' time includes the sync that ends them. The temporary file has no name while it is used.
 *
 * Any thread; blocks.
 *
 * Return: 0 and *out, -EINVAL, -ENOENT, -EACCES, -EROFS, -ENOSPC (no space for the file), -ECANCELED (by progress),
 * -EIO, -ENOMEM.
 */
int tn_io_measure(const struct tn_io_measure_opts *opts, struct tn_mix *out);

#endif
