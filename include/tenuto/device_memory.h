/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory: what a driver of accelerators does for a cache whose KV pages lie where no CPU may touch them.
 *
 * A driver is a const table of functions, which a plugin exports (tenuto/plugin.h) or a program makes by itself. A memory that is registered with kind
 * TN_MEMORY_DEVICE names its driver (tenuto/memory.h). The cache never reads nor writes an address of such a memory: it names addresses to
 * the driver. Devices are numbered from 0, as the driver's library numbers them.
 *
 * Threads: any, at the same time; calls that name one stream come one at a time. Errors are -errno; a driver describes what happened in
 * @detail where a function has it, else the caller knows no more than the number. A function that a driver lacks is NULL, and its caller does without: only
 * those under "always there" must be.
 */
#ifndef TENUTO_DEVICE_MEMORY_H
#define TENUTO_DEVICE_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_DEVICE_DRIVER_ABI 1u

/** Calls of copy under way on one stream that a driver takes. A pool of the cache begins another copy while fewer than an eighth of them are. */
#define TN_DEVICE_CALLS 1024u

/** Bytes of what names an exported memory in another process. */
#define TN_DEVICE_EXPORT_BYTES 128u

struct tn_device_driver;

/** Which way pieces are copied. */
enum tn_device_way { TN_DEVICE_TO_HOST, TN_DEVICE_FROM_HOST, TN_DEVICE_WITHIN /**< both sides are on the device */ };

/** struct tn_device_piece - bytes that follow each other on both sides; other: in host memory that is pinned, or on the device */
struct tn_device_piece {
	void *device;
	void *other;
	uint64_t bytes;
};

/** struct tn_device_sum - object whose checksum is wanted: so many pieces of those that are named, in their order */
struct tn_device_sum {
	uint32_t npieces;
	uint32_t reserved;
	uint64_t sum; /**< the result: the checksum that a store has of an object of these bytes (docs/format.md), bit for bit */
};

/** struct tn_device_properties - a device */
struct tn_device_properties {
	char name[64];
	unsigned char uuid[16];
	uint64_t bytes;	 /**< memory that it has */
	uint32_t sms;	 /**< multiprocessors; 0: not known */
	uint32_t words;	 /**< 1: streams wait for words and write them (word_wait, word_write) */
	uint32_t sums;	 /**< 1: it sums (sum) */
	uint32_t exports; /**< 1: other processes may import its memory */
};

/**
 * struct tn_device_driver_ops - what a driver does
 * @size: sizeof(struct tn_device_driver_ops)
 * @abi:  TN_DEVICE_DRIVER_ABI
 * @name: for messages: "cuda"
 *
 * Always there:
 * @count:            how many devices there are, >= 0; -errno: the library of the device is missing or does not start, as @detail says
 * @properties:       of one of them
 * @register_range:   copies may name its addresses from now on; an address that is not of the device is -EINVAL
 * @unregister_range: no copy names them any more; as it was registered
 * @pin:              host memory that copies and words will name, until unpin; whole pages
 * @unpin:            no copy names it any more
 * @stream_create:    a stream of a device; what is asked of one stream happens one after the other
 * @stream_destroy:   nothing runs in it
 * @copy: begins to copy @n pieces, in any order, and returns at once; *event is reached when all of them, and all calls before it on the
 *        stream, are over. The pieces are read before it returns. It never waits for calls before it: a driver takes at least TN_DEVICE_CALLS of copy
 *        that are not over on a stream, and returns -EAGAIN when it has no place for another one. An error: nothing was begun
 * @wait: until the event is reached: 0; -ETIMEDOUT: not by @deadline_ns (CLOCK_MONOTONIC; 0: only asks); else why something up to it failed, and then
 *        none of these goes on. An event may be asked for any number of times. Events after one that failed may fail, too: the cache asks for all that it has
 *        of the stream, destroys it, and makes another one
 *
 * As it can:
 * @stream_follow: what is asked of @stream from now on happens after what was asked of @other so far; either may be the engine's own (a cudaStream_t)
 * @word_wait:     the stream goes on when the word (in pinned memory) is at least @value
 * @word_write:    the stream raises the word to @value when it gets there
 * @sum:           begins to sum objects of so many pieces (whose other side is not looked at); the results are there at the event
 * @allocate:      memory of the device's own; @release: gives it back
 * @exports, @import, @import_end: what another process reaches the memory by
 */
struct tn_device_driver_ops {
	size_t size;
	uint32_t abi;
	const char *name;

	int (*count)(const struct tn_device_driver *driver, char *detail, size_t detail_bytes);
	int (*properties)(const struct tn_device_driver *driver, uint32_t device, struct tn_device_properties *out);
	int (*register_range)(const struct tn_device_driver *driver, const struct tn_memory_range *range, char *detail, size_t detail_bytes);
	void (*unregister_range)(const struct tn_device_driver *driver, const struct tn_memory_range *range);
	int (*pin)(const struct tn_device_driver *driver, void *host, uint64_t bytes);
	void (*unpin)(const struct tn_device_driver *driver, void *host, uint64_t bytes);
	int (*stream_create)(const struct tn_device_driver *driver, uint32_t device, void **stream);
	void (*stream_destroy)(const struct tn_device_driver *driver, void *stream);
	int (*copy)(const struct tn_device_driver *driver, void *stream, enum tn_device_way way, const struct tn_device_piece *piece, uint32_t n,
		    uint64_t *event);
	int (*wait)(const struct tn_device_driver *driver, void *stream, uint64_t event, uint64_t deadline_ns);

	int (*stream_follow)(const struct tn_device_driver *driver, void *stream, void *other);
	int (*word_wait)(const struct tn_device_driver *driver, void *stream, const uint64_t *word, uint64_t value);
	int (*word_write)(const struct tn_device_driver *driver, void *stream, uint64_t *word, uint64_t value);
	int (*sum)(const struct tn_device_driver *driver, void *stream, const struct tn_device_piece *piece, struct tn_device_sum *sum, uint32_t n,
		   uint64_t *event);
	int (*allocate)(const struct tn_device_driver *driver, uint32_t device, uint64_t bytes, void **out);
	void (*release)(const struct tn_device_driver *driver, uint32_t device, void *address);
	int (*exports)(const struct tn_device_driver *driver, void *address, uint64_t bytes, unsigned char out[TN_DEVICE_EXPORT_BYTES]);
	int (*import)(const struct tn_device_driver *driver, uint32_t device, const unsigned char in[TN_DEVICE_EXPORT_BYTES], void **out);
	void (*import_end)(const struct tn_device_driver *driver, uint32_t device, void *address);
};

/** struct tn_device_driver - a driver: outlives the memories that name it */
struct tn_device_driver {
	const struct tn_device_driver_ops *ops;
	void *arg; /**< the driver's own */
};

/**
 * tn_device_driver_open - the driver of a name, from a plugin (tenuto/plugin.h)
 *
 * "cuda" is libtenuto_cuda.so. It is opened by the first call of a process, and stays. Any thread; may take seconds.
 *
 * Return: 0 and *out; -ENOENT: no such plugin; -EPERM, -EPROTO: not one that may or can be opened; else why it does not start. tn_error_last() says
 * where was looked and what to do.
 */
TN_API int tn_device_driver_open(const char *name, const struct tn_device_driver **out);

#ifdef __cplusplus
}
#endif
#endif
