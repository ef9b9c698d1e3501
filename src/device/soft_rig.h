/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A soft device for tests: memory that no CPU may touch, and a driver (tenuto/device_memory.h) that copies from and to it by a mapping of its own. A
 * process that touches an address of such a memory dies by SIGSEGV. Each stream is a thread, so what is asked of two streams ends in any order.
 * The driver asserts what a caller owes it: pieces lie in registered ranges and pinned host memory, nothing runs in a stream that is destroyed, and a
 * device that is destroyed has nothing left. Any thread. No part of libtenuto; the plugin of the tests is libtenuto_soft.so (soft_plugin.c).
 */
#ifndef TN_DEVICE_SOFT_RIG_H
#define TN_DEVICE_SOFT_RIG_H

#include <stdbool.h>
#include <tenuto/device_memory.h>

struct tn_soft_device;

/**
 * struct tn_soft_device_opts
 * @copy_ns: how long each call of copy takes at least
 * @late_ns: streams are late by up to as much before each call, by chance
 * @seed:    of the chance
 * @bytes_per_second: of copies of one stream, at most; 0: no limit
 */
struct tn_soft_device_opts {
	uint64_t copy_ns, late_ns, seed, bytes_per_second;
};

/* 0; -ENOMEM. */
int tn_soft_device_create(const struct tn_soft_device_opts *opts, struct tn_soft_device **out);
/* Everything that it was asked for has been given back; its memories go. */
void tn_soft_device_destroy(struct tn_soft_device *d);
const struct tn_device_driver *tn_soft_device_driver(struct tn_soft_device *d);
/*
 * The device of the process, which stays: a driver that lacks an argument means it. Streams are late by as much as TN_SOFT_LATE_NS says, copies take
 * TN_SOFT_COPY_NS at least, and each stream copies TN_SOFT_BYTES_PER_SECOND at most.
 */
struct tn_soft_device *tn_soft_device_of_process(void);
extern const struct tn_device_driver_ops tn_soft_device_ops;
/* As ops->allocate of device 0; zeroed. An address that nobody may touch. */
void *tn_soft_device_memory(struct tn_soft_device *d, uint64_t bytes);
void tn_soft_device_release(struct tn_soft_device *d, void *memory);
/* What the device sees at the address; NULL: it is none of its memory. */
void *tn_soft_device_bytes(struct tn_soft_device *d, const void *address);

/* Streams begin nothing until they are let go. */
void tn_soft_device_hold(struct tn_soft_device *d, bool held);
/* The copy after this many others of its way, from now on, fails with the error when half of it is done; then its stream does nothing more. 0: none. */
void tn_soft_device_fail(struct tn_soft_device *d, enum tn_device_way way, uint64_t after, int error);
enum tn_soft_call { TN_SOFT_COPY, TN_SOFT_PIN, TN_SOFT_STREAM_CREATE, TN_SOFT_CALLS };
/* The call after this many others of its kind, from now on, does nothing and returns the error. 0: none. */
void tn_soft_device_refuse(struct tn_soft_device *d, enum tn_soft_call call, uint64_t after, int error);
/* From now on every call, and what was asked for before, fails with -ENODEV. */
void tn_soft_device_lose(struct tn_soft_device *d);

/* Bytes that were copied, and by way; calls of copy that were begun, and those that are not over; calls that were refused (tn_soft_device_refuse). */
struct tn_soft_device_stats {
	uint64_t copied_bytes, way_bytes[3], copies, under_way, refused;
};
struct tn_soft_device_stats tn_soft_device_stats(struct tn_soft_device *d);

#endif
