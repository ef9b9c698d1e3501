/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered files: descriptors of the caller's, and files that are opened by path, which stay registered after their last user.
 *
 * A file by path is found by what stands there now (its device and inode): one that has been replaced is another file, and two paths of one file
 * share a registration. Its descriptor stays open while it is registered, so its inode cannot become another file's. Registering takes
 * milliseconds, and is done outside the lock; who wants the same file meanwhile waits for it. The number of places is fixed: the file
 * that was released first gives its place.
 */
#ifndef TN_GDS_FILE_H
#define TN_GDS_FILE_H

#include <stddef.h>

#include <tenuto/device_file.h>

/* As in tenuto/device_file.h. */
int gds_file_add(int fd, struct tn_device_file **out, char *detail, size_t detail_bytes);
void gds_file_remove(struct tn_device_file *file);
int gds_file_acquire(const char *path, int writable, struct tn_device_file **out, char *detail, size_t detail_bytes);
void gds_file_release(struct tn_device_file *file);
int gds_file_cleanup(void);

/* The library's handle; lives while the file is held. */
void *gds_file_handle(const struct tn_device_file *file);

#endif
