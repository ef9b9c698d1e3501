/* SPDX-License-Identifier: Apache-2.0 */
/* One piece between a file and device memory, by a synchronous call; and what the library is never asked for. Any thread. */
#ifndef TN_GDS_TRANSFER_H
#define TN_GDS_TRANSFER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <tenuto/device_file.h>

/* address: of the device; read from if write, else written. 0, -ENOTSUP (nothing was begun), or -errno and detail. */
int gds_transfer(struct tn_device_file *file, void *address, uint64_t bytes, uint64_t offset, int write, char *detail, size_t detail_bytes);

/* Whether the library may be asked: 0; -ENOTSUP: not aligned; -EINVAL: beyond what a file can have. */
int gds_transfer_check(const void *address, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes);
/* What the library's answer means: n bytes of so many were moved, or an error below 0; err: errno then. 0 or -errno. */
int gds_transfer_ended(const char *call, ssize_t n, int err, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes);

#endif
