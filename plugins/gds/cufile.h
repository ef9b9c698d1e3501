/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few functions of libcufile.so.0 that are used, loaded at run time, with declarations of our own.
 *
 * Layouts and numbers are those of the cuFile API (NVIDIA, "cuFile API Reference Guide"; the same from 1.4 to 1.20).
 */
#ifndef TN_GDS_CUFILE_H
#define TN_GDS_CUFILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* Errors of the library begin above it; below are those of the system. */
#define CUFILE_ERROR_BASE 5000

struct cufile_error {
	int error;
	int cuda_error;
};

#define CUFILE_TYPE_FD 1

struct cufile_description {
	int type;
	union {
		int fd;
		void *handle;
	} file;
	const void *operations; /* of a file system in user space: none */
};

#define CUFILE_FEATURE_P2PDMA (1u << 4)

struct cufile_properties {
	struct {
		unsigned major_version;
		unsigned minor_version;
		size_t poll_threshold_bytes;
		size_t max_direct_io_kib;
		unsigned status_flags;
		unsigned control_flags;
	} module;
	unsigned feature_flags;
	unsigned max_device_cache_kib;
	unsigned per_buffer_cache_kib;
	unsigned max_pinned_kib;
	unsigned max_batch;
	unsigned max_batch_timeout_ms;
	unsigned char later[256]; /* what a newer library may write behind */
};

#define CUFILE_BATCH 1
#define CUFILE_OPCODE_READ 0
#define CUFILE_OPCODE_WRITE 1
#define CUFILE_STATUS_COMPLETE 0x10

struct cufile_batch_piece {
	int mode; /* CUFILE_BATCH */
	union {
		struct {
			void *base;
			off_t offset, base_offset;
			size_t bytes;
		} batch;
	} u;
	void *handle;
	int opcode;
	void *cookie;
};

struct cufile_batch_event {
	void *cookie;
	int status;
	size_t moved; /* an error is below 0 */
};

struct cufile {
	struct cufile_error (*driver_open)(void);
	struct cufile_error (*driver_properties)(struct cufile_properties *out);
	struct cufile_error (*handle_register)(void **handle, struct cufile_description *description);
	void (*handle_deregister)(void *handle);
	ssize_t (*read)(void *handle, void *base, size_t bytes, off_t offset, off_t base_offset);
	ssize_t (*write)(void *handle, const void *base, size_t bytes, off_t offset, off_t base_offset);
	struct cufile_error (*version)(int *out); /* NULL: a library older than 1.8 */
	/* Several pieces in one call; each NULL: a library older than 1.6. */
	struct cufile_error (*batch_set_up)(void **batch, unsigned most);
	struct cufile_error (*batch_submit)(void *batch, unsigned n, struct cufile_batch_piece *piece, unsigned flags);
	struct cufile_error (*batch_status)(void *batch, unsigned least, unsigned *n, struct cufile_batch_event *event, struct timespec *timeout);
	struct cufile_error (*batch_cancel)(void *batch);
	void (*batch_destroy)(void *batch);
	/* In the order of a stream, which reads the arguments when it gets there; NULL: a library older than 1.7. */
	struct cufile_error (*read_async)(void *handle, void *base, size_t *bytes, off_t *offset, off_t *base_offset, ssize_t *moved, void *stream);
	struct cufile_error (*write_async)(void *handle, void *base, size_t *bytes, off_t *offset, off_t *base_offset, ssize_t *moved, void *stream);
};

/* Loads the library: 0; -ENOENT: there is none; -EPROTO: it lacks a function. It is never unloaded. */
int cufile_load(struct cufile *out, char *detail, size_t detail_bytes);

/*
 * -errno of an error of the library (a number above CUFILE_ERROR_BASE), and in detail what `call` said of it. -ENOTSUP: not with this file, file
 * system or machine; -ENODEV: not with this device; -EFAULT, -EINVAL: not with this memory of it, or in this context.
 */
int cufile_fail(const char *call, int error, int cuda_error, char *detail, size_t detail_bytes);

#endif
