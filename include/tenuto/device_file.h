/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes between files and device memory that no host memory sees, by a plugin (tenuto/plugin.h) such as "gds", which uses NVIDIA's cuFile.
 *
 * What such a library cannot move it refuses, per call: -ENOTSUP says that nothing has begun, and that the caller's own way by host memory is the
 * one to take for this file. -ENODEV says so of the device, -EFAULT and -EINVAL of this memory of it. A short transfer is an error. Errors are -errno; @detail says what happened, and what to do.
 *
 * Threads: any, at the same time.
 */
#ifndef TENUTO_DEVICE_FILE_H
#define TENUTO_DEVICE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include <tenuto/error.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_DEVICE_FILE_ABI 2u

/** File offset, address and length of a transfer are multiples of it. */
#define TN_DEVICE_FILE_ALIGN 4096u

/** Most files that are registered at once. */
#define TN_DEVICE_FILES_MAX 256u

/** Most streams of a queue. */
#define TN_DEVICE_FILE_STREAMS_MAX 64u

/** A registered file. */
struct tn_device_file;

/** Transfers that wait for one of a number of streams. A stream is a thread that asks the library. */
struct tn_device_file_queue;

/** What moves the bytes. */
enum tn_device_file_way {
	TN_DEVICE_FILE_HOST,   /**< the library copies by way of host memory itself: right, but no faster than without it */
	TN_DEVICE_FILE_MODULE, /**< a kernel module of the library's vendor */
	TN_DEVICE_FILE_P2PDMA, /**< the kernel's own PCI P2PDMA */
};

/** struct tn_device_file_properties - the library, as it is after start */
struct tn_device_file_properties {
	uint32_t way;	       /**< enum tn_device_file_way */
	uint32_t version;      /**< of the library: 1000 * major + 10 * minor; 0: not known */
	uint32_t module_major; /**< version of the kernel module; 0: it is not loaded */
	uint32_t module_minor;
};

/** How the streams of a queue ask the library. */
enum tn_device_file_calls {
	TN_DEVICE_FILE_SYNC,  /**< for one piece at a time, and wait for it */
	TN_DEVICE_FILE_BATCH, /**< for several pieces in one call, and wait for all of them */
	TN_DEVICE_FILE_ASYNC, /**< for several pieces in the order of a stream of the device, and wait for that stream */
};

/**
 * struct tn_device_file_transfer - bytes of a file that follow each other, and the pieces of device memory that they go to or come from
 * @file:    registered, until done
 * @piece:   addresses of the device, and bytes; each is a multiple of TN_DEVICE_FILE_ALIGN, as @offset is. The array lives until done
 * @npieces: at least 1
 * @write:   0: from the file; 1: to the file
 * @offset:  of the first byte in the file
 * @done:    called once, when no byte moves any more, from a thread of the queue's. The transfer is the caller's again, and may be gone when it returns
 * @arg:     the caller's own
 * @status:  out: 0: every byte was moved; else as read and write return; @detail: out: as theirs
 * @began_ns: out: when the library was asked for the first piece (CLOCK_MONOTONIC)
 * @queue:   the queue's own
 */
struct tn_device_file_transfer {
	struct tn_device_file *file;
	const struct iovec *piece;
	uint32_t npieces;
	uint32_t write;
	uint64_t offset;
	void (*done)(struct tn_device_file_transfer *transfer);
	void *arg;
	int status;
	char detail[160];
	uint64_t began_ns;
	struct {
		struct tn_device_file_transfer *next;
		uint64_t moved;
		uint32_t begun, under_way;
	} queue;
};

/**
 * struct tn_device_file_ops - what a plugin does
 * @size: sizeof(struct tn_device_file_ops)
 * @abi:  TN_DEVICE_FILE_ABI
 * @name: for messages: "gds"
 *
 * All are always there.
 * @start:    loads and starts the library, once per process, in a thread of its own; every other call comes after a start that returned 0 (-EINVAL).
 *            -ETIMEDOUT: not by @deadline_ns (CLOCK_MONOTONIC); it may still start, so a later call can find it ready
 * @describe: how bytes move
 * @add:      registers a descriptor of the caller's, which is open with O_DIRECT. It stays the caller's: its locks stay, nothing closes it
 * @remove:   what add gave; no transfer of it is in flight
 * @acquire:  the file of a path, opened and registered unless it is already; counted. A file that took the place of another under the path is a
 *            file of its own. -ENOTSUP: the file system takes no O_DIRECT; -EAGAIN: TN_DEVICE_FILES_MAX are in use
 * @release:  what acquire gave; the file stays registered for the next one, until its place is wanted
 * @cleanup:  closes the files that acquire has opened and nobody holds; how many are held
 * @read:     @bytes from @offset of the file to @address, all of them; returns when they are there. -ENOTSUP: not aligned, or not possible here
 * @write:    the other way
 * @queue_create:  a queue with so many streams, 1 to TN_DEVICE_FILE_STREAMS_MAX. -ENOTSUP: the library lacks these calls; -EAGAIN: no thread
 * @queue_destroy: nothing is under way; waits for the threads. No done is called any more
 * @submit:   takes a transfer, and returns at once. Pieces of one transfer may move at the same time, and in any order
 */
struct tn_device_file_ops {
	size_t size;
	uint32_t abi;
	const char *name;

	int (*start)(uint64_t deadline_ns, char *detail, size_t detail_bytes);
	int (*describe)(struct tn_device_file_properties *out, char *detail, size_t detail_bytes);
	int (*add)(int fd, struct tn_device_file **out, char *detail, size_t detail_bytes);
	void (*remove)(struct tn_device_file *file);
	int (*acquire)(const char *path, int writable, struct tn_device_file **out, char *detail, size_t detail_bytes);
	void (*release)(struct tn_device_file *file);
	int (*cleanup)(void);
	int (*read)(struct tn_device_file *file, void *address, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes);
	int (*write)(struct tn_device_file *file, const void *address, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes);
	int (*queue_create)(enum tn_device_file_calls calls, uint32_t streams, struct tn_device_file_queue **out, char *detail, size_t detail_bytes);
	void (*queue_destroy)(struct tn_device_file_queue *queue);
	void (*submit)(struct tn_device_file_queue *queue, struct tn_device_file_transfer *transfer);
};

/**
 * tn_device_file_open - what moves bytes between files and devices, from a plugin of this name
 *
 * "gds" is libtenuto_gds.so. It is opened by the first call of a process, and stays. Any thread.
 *
 * Return: 0 and *out; else as tn_device_driver_open (tenuto/device_memory.h).
 */
TN_API int tn_device_file_open(const char *name, const struct tn_device_file_ops **out);

#ifdef __cplusplus
}
#endif
#endif
