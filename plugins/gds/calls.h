/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who asks the library for pieces, in one of three ways (enum tn_device_file_calls), and waits for them. What the library may look at until a piece is
 * over lies in the caller: no call returns before all of its pieces are over.
 */
#ifndef TN_GDS_CALLS_H
#define TN_GDS_CALLS_H

#include <stddef.h>
#include <stdint.h>

#include <tenuto/device_file.h>

struct gds_caller;

/* Most pieces that are worth one call. */
uint32_t gds_calls_most(enum tn_device_file_calls calls);
/* 0; -ENOTSUP: the library, or that of CUDA, lacks the functions. */
int gds_calls_check(enum tn_device_file_calls calls, char *detail, size_t detail_bytes);

/* NULL: no memory. One thread. */
struct gds_caller *gds_caller_create(enum tn_device_file_calls calls);
/* NULL-safe. */
void gds_caller_destroy(struct gds_caller *c);
/*
 * Moves n pieces, at most gds_calls_most, from or to the bytes of the file that begin at the offset. No byte moves when it returns. 0, or what is wrong
 * with one of them and detail.
 */
int gds_caller_move(struct gds_caller *c, struct tn_device_file *file, const struct iovec *piece, uint32_t n, uint64_t offset, int write,
		    char *detail, size_t detail_bytes);

#endif
