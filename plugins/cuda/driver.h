/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this plugin share: the driver's state, its devices, and how a call enters a device's context.
 *
 * A device's primary context is retained at its first use, until the process ends, and is what torch and every runtime program use. It is
 * current only during a call of ours: pushed at its begin, popped at its end. In the meantime the thread's captures of graphs are relaxed,
 * since the engine may capture one in another thread, which our allocations and queries would end.
 *
 * Locks: `lock` guards the loading, the opening of devices, and the lists of streams and imports; `pins_lock` the pins, since registering a large
 * memory takes seconds. Nobody holds one while a device works. A context is published by an atomic store: no call takes a lock to enter it.
 */
#ifndef TN_CUDA_DRIVER_H
#define TN_CUDA_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <tenuto/device_memory.h>

#include "api.h"

#define TN_CUDA_DEVICES_MAX 64

/* What kernels.cu was compiled to; of 0 bytes where there was no nvcc. */
extern const unsigned char tn_cuda_kernels[];
extern const size_t tn_cuda_kernels_bytes;

/**
 * struct tn_cuda_device
 * @context: atomic: primary context; NULL: not retained yet. What is behind it was set before
 * @lost:    atomic: nothing of the context works any more
 * @copy, @sum: the kernels; NULL: none for this device
 * @no_batch: atomic: cuMemcpyBatchAsync was refused as not supported
 * @host_pointers: kernels and words name pinned host memory by its own address
 */
struct tn_cuda_device {
	tn_cu_device number;
	struct CUctx_st *context;
	struct CUfunc_st *copy, *sum;
	int sms;
	bool host_pointers, words, kernels_fit;
	bool lost, no_batch;
};

struct tn_cuda_pin;
struct tn_cuda_import;
struct tn_cuda_stream;

struct tn_cuda {
	pthread_mutex_t lock, pins_lock;
	bool loaded; /* atomic: what follows is there */
	struct tn_cuda_api api;
	int ndevices;
	struct tn_cuda_device device[TN_CUDA_DEVICES_MAX];
	struct tn_cuda_pin *pins;
	struct tn_cuda_import *imports;
	struct tn_cuda_stream *streams;
};

/* A call that is inside a context. */
struct tn_cuda_scope {
	struct tn_cuda *cuda;
	struct tn_cuda_device *device; /* NULL: the caller's own context */
	unsigned int mode;	       /* of captures, before */
};

static inline struct tn_cuda *tn_cuda_of(const struct tn_device_driver *driver)
{
	return driver->arg;
}

/* Loads libcuda, unless that is done. 0; else -errno, and @detail says why. A failure is not remembered: the next call tries again. */
int tn_cuda_load(struct tn_cuda *cuda, char *detail, size_t detail_bytes);

/* -errno of a result; remembers that the device is lost. */
int tn_cuda_result(struct tn_cuda *cuda, struct tn_cuda_device *device, tn_cu_result result);
bool tn_cuda_lost(const struct tn_cuda_device *device);

static inline struct CUctx_st *tn_cuda_context(const struct tn_cuda_device *device)
{
	return __atomic_load_n(&device->context, __ATOMIC_ACQUIRE);
}

/* Into the primary context of a device. 0 and *scope, to leave; -EINVAL: no such device; -ENODEV: lost; ... */
int tn_cuda_enter(struct tn_cuda *cuda, uint32_t device, struct tn_cuda_scope *scope);
/* Into that of any device that is in use, or the caller's; else of device 0: for host memory, which belongs to none. */
int tn_cuda_enter_any(struct tn_cuda *cuda, struct tn_cuda_scope *scope);
/* Into a context that is known. @device: NULL: of none of ours */
int tn_cuda_enter_context(struct tn_cuda *cuda, struct tn_cuda_device *device, struct CUctx_st *context, struct tn_cuda_scope *scope);
void tn_cuda_leave(struct tn_cuda_scope *scope);

/* memory.c */
int tn_cuda_register_range(const struct tn_device_driver *driver, const struct tn_memory_range *range, char *detail, size_t detail_bytes);
void tn_cuda_unregister_range(const struct tn_device_driver *driver, const struct tn_memory_range *range);
int tn_cuda_pin(const struct tn_device_driver *driver, void *host, uint64_t bytes);
void tn_cuda_unpin(const struct tn_device_driver *driver, void *host, uint64_t bytes);
int tn_cuda_allocate(const struct tn_device_driver *driver, uint32_t device, uint64_t bytes, void **out);
void tn_cuda_release(const struct tn_device_driver *driver, uint32_t device, void *address);
int tn_cuda_exports(const struct tn_device_driver *driver, void *address, uint64_t bytes, unsigned char out[TN_DEVICE_EXPORT_BYTES]);
int tn_cuda_import(const struct tn_device_driver *driver, uint32_t device, const unsigned char in[TN_DEVICE_EXPORT_BYTES], void **out);
void tn_cuda_import_end(const struct tn_device_driver *driver, uint32_t device, void *address);

/* stream.c */
int tn_cuda_stream_create(const struct tn_device_driver *driver, uint32_t device, void **stream);
void tn_cuda_stream_destroy(const struct tn_device_driver *driver, void *stream);
int tn_cuda_wait(const struct tn_device_driver *driver, void *stream, uint64_t event, uint64_t deadline_ns);

/* follow.c */
int tn_cuda_stream_follow(const struct tn_device_driver *driver, void *stream, void *other);
int tn_cuda_word_wait(const struct tn_device_driver *driver, void *stream, const uint64_t *word, uint64_t value);
int tn_cuda_word_write(const struct tn_device_driver *driver, void *stream, uint64_t *word, uint64_t value);

/* copy.c */
int tn_cuda_copy(const struct tn_device_driver *driver, void *stream, enum tn_device_way way, const struct tn_device_piece *piece, uint32_t n,
		 uint64_t *event);

/* sum_objects.c */
int tn_cuda_sum(const struct tn_device_driver *driver, void *stream, const struct tn_device_piece *piece, struct tn_device_sum *sum, uint32_t n,
		uint64_t *event);

#endif
