/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copier: who moves bytes between host memory and the memory of a device, and within it. It has some streams of the driver's per way, for all threads.
 *
 * A copy that fails costs its stream: it takes no more copies, and is made anew once all that it has are over. Any thread.
 */
#ifndef TN_DEVICE_COPIER_H
#define TN_DEVICE_COPIER_H

#include <stdbool.h>
#include <sys/uio.h>
#include <tenuto/device_memory.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"

#define TN_COPIER_PIECES 4096u /* that the driver is asked to copy at once, at most */

struct tn_copier;

/* Some copies, or checksums, that are over together. */
struct tn_copying {
	struct tn_copier *copier; /* NULL: there is none */
	enum tn_device_way way;	  /* of checksums TN_DEVICE_WITHIN */
	uint32_t stream;
	bool begun; /* the driver was called; then its event */
	uint64_t event, bytes;
	int error; /* of a call */
	struct tn_device_sum *sum;
	uint32_t nsums;
};

/* sums: checksums will be wanted, and the driver has them. 0 and *out; -ENOMEM; or the driver's error. The driver, the log and the clock outlive it. */
int tn_copier_create(const struct tn_device_driver *driver, uint32_t device, bool sums, const struct tn_alloc *alloc, const struct tn_log *log,
		     const struct tn_clock *clock, struct tn_copier **out);
/* Nothing is under way. NULL-safe. */
void tn_copier_destroy(struct tn_copier *copier);
/* Whether it takes checksums. */
bool tn_copier_sums(const struct tn_copier *copier);

/* Whether both are of one device of one driver. */
bool tn_copier_same(const struct tn_copier *a, const struct tn_copier *b);
/* Whether a copy has failed because the device is lost (-ENODEV). */
bool tn_copier_lost(const struct tn_copier *copier);

/* Copies to be added; others of the same stream wait until tn_copying_go. */
void tn_copying_begin(struct tn_copying *c, struct tn_copier *copier, enum tn_device_way way);
/* Pieces of memory on the device, and as many bytes that lie in a row: of pinned host memory; of a copying within the device: there, where they come from. */
void tn_copying_add(struct tn_copying *c, const struct iovec *device, uint32_t n, unsigned char *row);
/* Within the device: from pieces to pieces of as many bytes. */
void tn_copying_add_within(struct tn_copying *c, const struct iovec *to, uint32_t nto, const struct iovec *from, uint32_t nfrom);
void tn_copying_go(struct tn_copying *c);
/*
 * Likewise, checksums of objects that lie on the device: sum has an element per object, and is there until all is over. What the driver has no place for
 * now is -EAGAIN or -E2BIG of tn_copying_over, which costs no stream and no line of the log.
 */
void tn_copying_begin_sums(struct tn_copying *c, struct tn_copier *copier, struct tn_device_sum *sum);
void tn_copying_add_sum(struct tn_copying *c, const struct iovec *device, uint32_t n);
/*
 * Whether all is over: then *rc is 0, or the driver's error, which was logged: some of it may not be moved. One call per copying says so, and
 * no byte moves after it.
 */
bool tn_copying_over(struct tn_copying *c, int *rc);

#endif
