/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An executor in a process apart: what a device is to a ring, without a device.
 *
 * The process reaches the ring's region and the objects' memory by loads and stores alone. Of the region it maps the host's part
 * read-only, so that a store to a word of the host's kills it; nothing wakes it, and it wakes nobody. It moves objects between a file and
 * memory by itself. Entry e of list 0 is the object at e * object_bytes of the memory; places are pages of the file.
 *
 * One thread, the host, makes all calls, in a process without other threads: each start is a fork.
 */
#ifndef TN_LAB_APART_RIG_H
#define TN_LAB_APART_RIG_H

#include <sys/types.h>

#include "ring/ring.h"

/**
 * struct tn_apart_opts
 * @ring:         numbers of the ring
 * @path:         the file, which exists
 * @objects, @object_bytes: of the memory
 * @alloc:        for the host's side
 */
struct tn_apart_opts {
	struct tn_ring_memory_opts ring;
	const char *path;
	uint32_t objects, object_bytes;
	const struct tn_alloc *alloc;
};

struct tn_apart {
	struct tn_apart_opts o;
	struct tn_ring *ring;
	unsigned char *memory; /* shared, as the region is */
	void *region;
	uint64_t region_bytes, memory_bytes;
	int region_fd, memory_fd;
	pid_t pid; /* 0: there is no executor */
};

/* Makes ring and memory, without an executor. 0, or -errno. */
int tn_apart_open(struct tn_apart *a, const struct tn_apart_opts *opts);
/* Stops the executor, too. */
void tn_apart_close(struct tn_apart *a);
/* @scribble: the executor begins with a store to a word of the host's. 0, or -errno. */
int tn_apart_start(struct tn_apart *a, bool scribble);
/*
 * Kills the executor, if it lives, and waits until it is gone; its I/O is its own system calls, so that is gone with it. Returns
 * the status that waitpid tells.
 */
int tn_apart_stop(struct tn_apart *a);

#endif
