/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated disk behind the I/O contract (io/io.h): files in memory, completions late and out of
 * order, a clock that only the simulation moves, and power cuts.
 *
 * Everything follows from one seed. Time passes in poll, which jumps to the next completion instead of
 * sleeping. A write is volatile until a TN_IO_SYNC of its file completes that was submitted after
 * poll had returned the write; tn_simdisk_crash then keeps, drops or tears each volatile write by
 * 512-byte sectors. File creation is durable when open returns, allocation only after a sync; one that is a request
 * happens when it completes.
 *
 * It also checks its users: it fills the memory of a read with rubbish at submit, and asserts that
 * the memory of a write has not changed when it completes. One thread; no real I/O, no real time.
 */
#ifndef TN_SIM_SIMDISK_H
#define TN_SIM_SIMDISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "io/io.h"

struct tn_simdisk;

/* What becomes of the writes that no sync covers (in flight ones included). */
enum tn_simdisk_crash {
	TN_SIMDISK_DROP, /* all lost */
	TN_SIMDISK_KEEP, /* all there */
	TN_SIMDISK_TEAR, /* each: lost, whole, a prefix or any subset of its sectors */
	TN_SIMDISK_SUBSET, /* each lost or whole, by chance */
	TN_SIMDISK_LAST_ONLY, /* only the youngest survives */
	TN_SIMDISK_LAST_LOST, /* only the youngest is lost */
	TN_SIMDISK_ONE_LOST, /* one, any, is lost */
	TN_SIMDISK_INFLIGHT_ONLY, /* those in flight got there, those completed before did not */
	TN_SIMDISK_KILL, /* no power cut: only the process dies. What completed can be read; a later power cut may still take it */
	TN_SIMDISK_CRASH_MODES,
};

const char *tn_simdisk_crash_name(enum tn_simdisk_crash mode);

/**
 * struct tn_simdisk_opts - zero means the default
 * @seed:           of latencies, order, what crashes tear
 * @capacity_bytes: of all files; default no limit
 * @depth:          most requests in flight, default 128
 * @align:          direct I/O alignment of offsets, lengths and memory; default 4096
 * @read_ns, @write_ns, @sync_ns: mean latencies; defaults 80 us, 20 us, 300 us
 * @submit_short_percent: chance that submit takes fewer than it could
 * @keep_memory:    do not fill the memory of reads at submit
 */
struct tn_simdisk_opts {
	uint64_t seed;
	uint64_t capacity_bytes;
	uint32_t depth;
	uint32_t align;
	uint64_t read_ns, write_ns, sync_ns;
	uint32_t submit_short_percent;
	bool keep_memory;
};

int tn_simdisk_create(const struct tn_simdisk_opts *opts, struct tn_simdisk **out);
/* Frees everything; what is in flight is forgotten. NULL-safe. Same as tn_io_destroy of its engine. */
void tn_simdisk_destroy(struct tn_simdisk *disk);

/* The engine: the disk itself, valid until destroy, also across crashes. */
struct tn_io *tn_simdisk_io(struct tn_simdisk *disk);
struct tn_simdisk *tn_simdisk_of(struct tn_io *io);
/* Simulated time. Wall time is a fixed date plus it. */
const struct tn_clock *tn_simdisk_clock(struct tn_simdisk *disk);
/* When the next request completes, UINT64_MAX: none is in flight. */
uint64_t tn_simdisk_next_ns(const struct tn_simdisk *disk);
void tn_simdisk_advance(struct tn_simdisk *disk, uint64_t ns);

/* ---- crashes ---------------------------------------------------------------------------------- */

/*
 * The power goes and comes back, or the process dies: handles, locks and requests are gone (poll will not return them;
 * their memory is the caller's again), files are what mode leaves of them.
 */
void tn_simdisk_crash(struct tn_simdisk *disk, enum tn_simdisk_crash mode, uint64_t seed);

/* Names the boot of the simulated machine: another one after each power cut, the same one after a kill. Never 0. */
uint64_t tn_simdisk_boot(const struct tn_simdisk *disk);

/*
 * A second disk with the same content, unflushed writes (in flight ones too) and time, but without
 * handles, locks, requests, faults and hook; its own randomness comes from seed. Cheap: contents are shared.
 * Crash the clone to see what a crash at this moment would leave.
 */
int tn_simdisk_clone(const struct tn_simdisk *disk, uint64_t seed, struct tn_simdisk **out);

/*
 * What can change the outcome of a crash: writes and syncs submitted, writes and syncs completed,
 * files created, extended and unlinked. Each is an event, numbered from 1.
 */
uint64_t tn_simdisk_events(const struct tn_simdisk *disk);
uint64_t tn_simdisk_writes(const struct tn_simdisk *disk); /* submitted so far */
uint64_t tn_simdisk_syncs(const struct tn_simdisk *disk);

/* Called after each event, from inside submit, poll, open...: may clone the disk, must not use it. NULL: none. */
typedef void (*tn_simdisk_event_fn)(void *arg, const struct tn_simdisk *disk, uint64_t event);
void tn_simdisk_on_event(struct tn_simdisk *disk, tn_simdisk_event_fn fn, void *arg);

/*
 * The power goes right after event n (0: never; n already past: now). From then until tn_simdisk_crash
 * nothing happens on the medium: requests complete with -ENODEV, open and the like return it.
 */
void tn_simdisk_power_off_at(struct tn_simdisk *disk, uint64_t event);
bool tn_simdisk_is_off(const struct tn_simdisk *disk);

/* ---- faults ----------------------------------------------------------------------------------- */

enum tn_simdisk_fault_kind {
	TN_SIMDISK_EIO, /* completes with -EIO; a write may have happened in part */
	TN_SIMDISK_ENOSPC, /* likewise with -ENOSPC */
	TN_SIMDISK_SYNC_LOST, /* a sync: -EIO, and what it covered is given up, as Linux does with dirty pages */
	TN_SIMDISK_SLOW, /* takes delay_ns longer */
};

/**
 * struct tn_simdisk_fault
 * @path:    files whose path begins with it; NULL: all. Not copied
 * @op:      enum tn_io_op
 * @from:    first affected request of this op and path, counted from 0 when the fault was set
 * @count:   how many; UINT64_MAX: all from there
 * @percent: chance of each, 0 means 100
 */
struct tn_simdisk_fault {
	enum tn_simdisk_fault_kind kind;
	const char *path;
	uint8_t op;
	uint64_t from, count;
	uint32_t percent;
	uint64_t delay_ns;
};

#define TN_SIMDISK_FAULTS_MAX 8u

/* Replaces all faults; n 0: none. -EINVAL if there are too many. */
int tn_simdisk_set_faults(struct tn_simdisk *disk, const struct tn_simdisk_fault *faults, uint32_t n);
/* Reads that touch these bytes of a file fail with -EIO; len 0: none. -ENOENT. */
int tn_simdisk_bad_range(struct tn_simdisk *disk, const char *path, uint64_t offset, uint64_t len);
/* Flips bits in each byte of the range, durably. -ENOENT, -EINVAL beyond the end. */
int tn_simdisk_corrupt(struct tn_simdisk *disk, const char *path, uint64_t offset, uint64_t len, uint64_t seed);
int tn_simdisk_truncate(struct tn_simdisk *disk, const char *path, uint64_t size);
void tn_simdisk_set_capacity(struct tn_simdisk *disk, uint64_t bytes);

/* ---- looking inside ----------------------------------------------------------------------------- */

/* Bytes of a file as reads see them. -ENOENT, -EINVAL beyond the end. */
int tn_simdisk_peek(const struct tn_simdisk *disk, const char *path, uint64_t offset, void *buf, size_t len);
/* Changes them, durably and at once. */
int tn_simdisk_poke(struct tn_simdisk *disk, const char *path, uint64_t offset, const void *buf, size_t len);
/* Of a file; -ENOENT. */
int64_t tn_simdisk_size(const struct tn_simdisk *disk, const char *path);
/* Hash of every event so far with its time and bytes: two runs are the same if it is. */
uint64_t tn_simdisk_history(const struct tn_simdisk *disk);
/* Hash of what is durable: paths, sizes, bytes. */
uint64_t tn_simdisk_digest(const struct tn_simdisk *disk);

#endif
