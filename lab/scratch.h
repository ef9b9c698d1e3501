/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch directories: what a benchmark, a replay or a test needs on disk for one run. The run removes its own at the end. A run that is killed
 * cannot, so the next run that makes a scratch directory in the same place removes what the killed one left.
 *
 * A scratch directory is named "tenuto-scratch-XXXXXX", is locked with flock, and holds an empty file ".tenuto-scratch". The process that made it and
 * those that it forked hold the lock until the last of them ends. A directory is removed by another run only if it has that name and that file, both
 * belong to this user, and the lock is free. Symbolic links are not followed. scratch.py of the Python package does the same.
 *
 * Where directories cannot be locked (NFS) there is no such file, and nothing is removed but by the run itself. A shared file system that locks on each
 * host alone (NFS with local_lock, some FUSE) must not be a scratch place of two hosts at once: one host would remove what runs on the other.
 */
#ifndef TENUTO_LAB_SCRATCH_H
#define TENUTO_LAB_SCRATCH_H

#include <stddef.h>

#define TN_SCRATCH_NAME "tenuto-scratch-"
#define TN_SCRATCH_MARK ".tenuto-scratch"

/*
 * Removes what killed runs left in base, then makes a private directory there and locks it until this process ends. 0, or -errno and path is empty.
 * Any thread.
 */
int tn_scratch_make(const char *base, char *path, size_t path_bytes);
/*
 * Removes a directory, a scratch directory or another, with everything in it; does not cross file systems or follow links. If it is killed half-way
 * the directory can still be told as a scratch directory. 0 or -errno; -EINVAL: the path is empty.
 */
int tn_scratch_remove(const char *path);

#endif
