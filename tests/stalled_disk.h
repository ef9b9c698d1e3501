/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system on a disk that can be made to hang: every read and write that reaches it waits until it goes on, and cannot be cancelled.
 * Needs root, loop devices and mkfs.ext4.
 *
 * The disk is a loop device over a file in another file system. While that one is frozen, the first write to the disk hangs, and the loop
 * device takes everything else after it. A process of its own freezes and thaws; it thaws when the test's process dies.
 */
#ifndef TN_STALLED_DISK_H
#define TN_STALLED_DISK_H

#include <stdbool.h>
#include <sys/types.h>

struct stalled_disk {
	char root[64], path[72]; /* path: of the file system */
	char device[16];	 /* loopN */
	pid_t guard;
	int commands;
};

/* Before the process has threads, whose mounts are its own from then on. NULL, or why there is none. */
const char *stalled_disk_create(struct stalled_disk *d);
void stalled_disk_destroy(struct stalled_disk *d);
void stalled_disk_stop(struct stalled_disk *d);
void stalled_disk_go_on(struct stalled_disk *d);
/* Reads that have reached the disk and are not done. */
unsigned stalled_disk_reads(const struct stalled_disk *d);

#endif
