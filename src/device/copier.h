/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copier: who moves bytes between host memory and the memory of a device, and within it. It has some streams of the driver's per way, for all threads. A
 * cache has one for each device, and the device's memories share it.
 *
 * A copy that fails costs its stream: it takes no more copies, and is made anew once all that it has are over.
 *
 * A device may stand still for as long as it likes. So whoever has something that work of all devices and of host memory needs gives each device a share of
 * it (tn_copier_share), which leaves as much to host memory; and whoever counts what is under way leaves out a device that stands (tn_copiers_stand).
 * Any thread.
 */
#ifndef TN_DEVICE_COPIER_H
#define TN_DEVICE_COPIER_H

#include <stdbool.h>
#include <sys/uio.h>
#include <tenuto/device_memory.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "device/pins.h"

#define TN_COPIER_PIECES 4096u /* that the driver is asked to copy at once, at most */
#define TN_COPIERS_MAX 15u     /* devices of a cache */
#define TN_COPIER_STANDS_NS 100000000ull /* a device whose moves all take longer stands: many times what one takes */

struct tn_copier;

/* The copiers of a cache, by number, and what host memory they reach: each driver has all of it pinned. */
struct tn_copiers {
	struct tn_pins pins;
	const struct tn_alloc *alloc;
	const struct tn_log *log;
	const struct tn_clock *clock;
	pthread_mutex_t lock; /* held while one is made or goes, which may take a driver long */
	struct tn_copier *at[TN_COPIERS_MAX];
	uint32_t n; /* shared */
	struct tn_copier_moves {
		uint32_t under_way; /* shared: copyings, and what goes the direct way, ... */
		uint64_t since_ns;  /* ... and when the last one ended, or the first one began */
	} moves[TN_COPIERS_MAX];
};

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

/* All arguments outlive them. */
void tn_copiers_init(struct tn_copiers *copiers, const struct tn_alloc *alloc, const struct tn_log *log, const struct tn_clock *clock);
/* There is none, and nothing is added to the pins. */
void tn_copiers_fini(struct tn_copiers *copiers);
/* The device's copier, once for each leave. 0 and *out; -ENOMEM; -ENOSPC: TN_COPIERS_MAX devices have one; or the driver's error. */
int tn_copiers_join(struct tn_copiers *copiers, const struct tn_device_driver *driver, uint32_t device, struct tn_copier **out);
/* With the last leave nothing is under way. */
void tn_copiers_leave(struct tn_copiers *copiers, struct tn_copier *copier);
/* Whether moves of the device with this number are under way, and none has ended for TN_COPIER_STANDS_NS; *due_ns: when that would be so, or TN_FOREVER. */
bool tn_copiers_stand(const struct tn_copiers *copiers, uint32_t number, uint64_t now_ns, uint64_t *due_ns);
/* Below TN_COPIERS_MAX, for as long as it has it. */
uint32_t tn_copier_number(const struct tn_copier *copier);
/* How many of `all` equal things its device may have at once: as many as each of the others, and as host memory; at least one. */
uint32_t tn_copier_share(const struct tn_copier *copier, uint32_t all);
/* One more is under way of what its device moves, or one less: each copying counts itself, and who moves bytes another way counts them. */
void tn_copier_moves(const struct tn_copier *copier, int32_t more);

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
