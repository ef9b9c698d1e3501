/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a simulated disk remembers: files as sparse trees of 4 KiB pages, each twice - as reads see it
 * (volatile) and as a power cut leaves it (durable) - and the writes that make the difference.
 *
 * Pages and tree chunks are shared by reference and copied on write, so that a clone of a whole store
 * costs microseconds and a crash can be tried at every single write. No time, no requests, no
 * faults: those are simdisk.c's. One thread.
 */
#ifndef TN_SIM_SIMMEDIA_H
#define TN_SIM_SIMMEDIA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/list.h"
#include "base/rng.h"
#include "simdisk.h"

#define SIM_PAGE 4096u
#define SIM_SECTOR 512u
#define SIM_CHUNK_PAGES 256u

struct sim_page {
	uint32_t refs;
	uint8_t data[SIM_PAGE];
};

struct sim_chunk {
	uint32_t refs;
	struct sim_page *pages[SIM_CHUNK_PAGES];
};

struct sim_tree {
	struct sim_chunk **chunks;
	uint64_t nchunks;
};

/* Bytes [from, to) of one page. */
struct sim_piece {
	uint64_t page;
	uint32_t from, to;
	struct sim_page *data;
};

/* A write that is in flight, or done and not flushed yet. */
struct sim_write {
	struct tn_list link; /* in its file's inflight, then, by order of completion, in its volatiles */
	uint64_t order; /* of submission, over all files */
	uint64_t returned; /* when poll returned it; 0: not yet. A sync covers what was returned before it */
	bool lost; /* a failed sync gave it up: no later sync covers it */
	uint32_t npieces;
	struct sim_piece pieces[];
};

struct sim_file {
	struct tn_list link;
	char *path;
	struct sim_tree now, durable;
	uint64_t size, durable_size;
	struct tn_list inflight; /* submitted */
	struct tn_list volatiles; /* completed and seen by reads, but not flushed */
	uint32_t opens;
	bool locked;
	bool unlinked; /* gone from its directory, but a crash may bring it back */
	uint64_t bad_from, bad_to; /* reads that touch these bytes fail */
};

struct sim_media {
	struct tn_list files;
};

void sim_media_init(struct sim_media *m);
void sim_media_clone(const struct sim_media *m, struct sim_media *out);
void sim_media_destroy(struct sim_media *m);
uint64_t sim_media_bytes(const struct sim_media *m); /* sum of file sizes */
uint64_t sim_media_digest(const struct sim_media *m); /* of all paths, sizes and durable bytes */

/*
 * What a power cut leaves: unflushed writes kept, torn or dropped. A kill leaves them as they are, returned at that moment.
 * No file stays open or locked.
 */
void sim_media_crash(struct sim_media *m, enum tn_simdisk_crash mode, uint64_t returned, struct tn_rng *rng);

struct sim_file *sim_file_find(const struct sim_media *m, const char *path);
struct sim_file *sim_file_create(struct sim_media *m, const char *path); /* durable at once */

void sim_file_read(const struct sim_file *f, uint64_t offset, void *buf, size_t len);
/* Changes bytes now and durably, past all rules (damage, test set-up). */
void sim_file_poke(struct sim_file *f, uint64_t offset, const void *buf, size_t len);
void sim_file_resize(struct sim_file *f, uint64_t size);

/* A write enters flight: its bytes are taken now. */
struct sim_write *sim_write_start(struct sim_file *f, uint64_t order, uint64_t offset, const struct iovec *iov, uint32_t iov_count);
/* It completes: reads see it. With tear, only a random subset of its sectors got there. */
void sim_write_apply(struct sim_file *f, struct sim_write *w, bool tear, struct tn_rng *rng);
/* It never happened. */
void sim_write_forget(struct sim_write *w);
/* A sync of the file completes that was submitted at `returned` when the file had `size` bytes. */
void sim_file_flush(struct sim_file *f, uint64_t returned, uint64_t size);
/* A sync fails and gives up what it covered. */
void sim_file_flush_lost(struct sim_file *f, uint64_t returned);
/* Whether the bytes in memory are still what they were at the start. */
bool sim_write_unchanged(const struct sim_write *w, const struct iovec *iov, uint32_t iov_count);

#endif
