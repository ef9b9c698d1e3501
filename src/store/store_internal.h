/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the store share: its state (state.h), and the calls between them, in the order of the tree that
 * docs/architecture.md shows: a file calls what is declared above its own section. Nothing outside src/store includes
 * this, except its tests.
 */
#ifndef TN_STORE_STORE_INTERNAL_H
#define TN_STORE_STORE_INTERNAL_H

#include "store/bitmap.h"
#include "store/state.h"

/* ---- numbers and states: geometry.c ----------------------------------------------------------------------- */

/* Offsets of all regions from the sizes; -EINVAL when the numbers cannot be. */
int tn_store_place_regions(struct tn_disk_super *sb);
/* Sizes and regions of a new store; -EINVAL. */
int tn_store_plan_sizes(const struct tn_store_opts *opts, struct tn_disk_super *sb);
/* Bits of a device's local slot numbers. */
uint32_t tn_store_slot_bits(uint64_t slot_pages);

/* ---- numbers and states: budget.c ------------------------------------------------------------------------- */

void tn_store_budget_init(struct tn_store *s, uint64_t bytes_per_day);
/* Bytes of metadata: counted against the budget, never refused. */
void tn_store_charge_meta(struct tn_store_device *d, uint64_t bytes);

/* ---- numbers and states: classes.c ------------------------------------------------------------------------ */

/* Can a segment's record or header from disk be believed? Makes its shape. */
bool tn_store_shape_of(struct tn_store *s, uint64_t slot_bytes, uint32_t header_bytes, uint32_t slot_count, uint32_t *shape);
int tn_store_shape_get(struct tn_store *s, uint64_t slot_bytes, uint32_t header_bytes, uint32_t *shape);

/* ---- numbers and states: segment.c ------------------------------------------------------------------------ */

/* Links a segment into the list where it belongs now. */
void tn_store_segment_place(struct tn_store_device *d, uint32_t segment);
/* State changes of single slots, with all counters. */
void tn_store_slot_set(struct tn_store_device *d, uint32_t local, enum tn_slot_state state);
void tn_store_slot_dirty(struct tn_store_device *d, uint32_t local);
/* Something about this slot is to be logged. */
void tn_store_slot_unlogged(struct tn_store_device *d, uint32_t local);
/* Takes an emptied or unassigned segment for a shape. */
void tn_store_segment_assign(struct tn_store_device *d, uint32_t segment, uint32_t shape);

/* Something about the segment's assignment is not durable. */
static inline bool tn_store_segment_settling(const struct tn_store_segment *sg)
{
	return sg->unlogged || sg->inflight || sg->logged || sg->covered;
}

/* No slot of the segment is used, and its last assignment is durable. */
static inline bool tn_store_segment_clean(const struct tn_store_device *d, uint32_t segment)
{
	return d->segs[segment].used == 0 && !tn_store_segment_settling(&d->segs[segment]);
}

static inline bool tn_store_device_writable(const struct tn_store_device *d)
{
	return !d->store->read_only && (d->hs.health == TN_HEALTHY || d->hs.health == TN_SLOW);
}

/* Something about this segment is to be logged. */
void tn_store_segment_unlogged(struct tn_store_device *d, uint32_t segment);
/* Whether the segment could be another shape's. */
bool tn_store_segment_movable(const struct tn_store_device *d, uint32_t segment, uint32_t shape);

/* ---- numbers and states: records.c ------------------------------------------------------------------------ */

void tn_store_record_fill(struct tn_store_device *d, uint32_t local, struct tn_disk_record *rec);
void tn_store_segment_record(const struct tn_store_device *d, uint32_t segment, struct tn_disk_record *rec);
/* The on-disk header of a segment as it is now, assigned or not. */
void tn_store_segment_seal(const struct tn_store_device *d, uint32_t segment, struct tn_disk_segment *h);

/* ---- numbers and states: waits.c, to those who settle ----------------------------------------------------- */

/* A group was sealed: flushes that waited for the sweep wait for the group now, if the sweep has come round. */
void tn_store_waits_swept(struct tn_store_device *d);
/* Does anybody wait for groups that were written? */
bool tn_store_waits_for_groups(const struct tn_store_device *d);
/* Settles flushes after more became durable, or nothing did. */
void tn_store_waits_settle(struct tn_store_device *d, int status);

/* ---- requests: io.c --------------------------------------------------------------------------------------- */

void tn_store_req_init(struct tn_store_req *r, struct tn_store_device *d,
		       void (*finish)(struct tn_store_req *r, int status));
void tn_store_req_submit(struct tn_store_req *r, enum tn_io_op op, uint64_t offset, void *buf, uint32_t len);
void tn_store_req_allocate(struct tn_store_req *r, uint64_t offset, uint64_t bytes);
/* Asks whether the file still has a name: ends as a sync, with -ESTALE if it has none. A sync does so by itself. */
void tn_store_req_look(struct tn_store_req *r);
void tn_store_requeue(struct tn_store *s);
/* One round of polling; what is not the store's goes to its done function. */
void tn_store_poll(struct tn_store *s, uint64_t timeout_ns);
/* Blocking transfers while opening and closing. */
int tn_store_sync_io(struct tn_store_device *d, enum tn_io_op op, uint64_t offset, void *buf, uint32_t len);
/* Many reads at once; bad[i] is set for each chunk of TN_STORE_BULK_BYTES that could not be read (then -EIO). */
int tn_store_bulk_read(struct tn_store_device *d, uint64_t offset, void *buf, uint64_t len, uint8_t *bad);
/* Likewise of chunks that lie stride apart; they come together in buf. */
int tn_store_strided_read(struct tn_store_device *d, uint64_t offset, uint64_t stride, uint32_t chunk, uint64_t len,
			  void *buf, uint8_t *bad);
/* Whole pages; those that cannot be read become 0xff. */
void tn_store_patient_read(struct tn_store_device *d, uint64_t offset, void *buf, uint64_t len);
/* Page-aligned memory of the store, counted in index_bytes; give back with the same size. */
void *tn_store_pages_get(struct tn_store *s, size_t bytes);
void tn_store_pages_put(struct tn_store *s, void *p, size_t bytes);

/* ---- one file: spaces.c ----------------------------------------------------------------------------------- */

int tn_store_spaces_load(struct tn_store *s);
int tn_store_spaces_format(struct tn_store_device *d);
/* A space table waits until the one before it is durable. */
bool tn_store_spaces_blocked(const struct tn_store_device *d);
/* Is a block of this space and sequence still valid? */
bool tn_store_spaces_valid(const struct tn_store *s, uint16_t space, uint64_t sequence);
/* A block header found while rebuilding: is its space known? If the table was lost, it is taken from the headers. */
bool tn_store_spaces_adopt(struct tn_store *s, const struct tn_store_header *h);

/* ---- one file: trace.c, superblock.c ---------------------------------------------------------------------- */

enum tn_found {
	TN_FOUND_NOTHING, /* no file, or one in which there is nothing */
	TN_FOUND_CREATING, /* an unfinished creation: no block was ever in it */
	TN_FOUND_STORE,
	TN_FOUND_STALE, /* of the store, but a session went without it */
	TN_FOUND_ABSENT, /* it cannot be opened */
};

/*
 * What is in a file without a valid superblock: 0 and *found, which is TN_FOUND_STORE with *copy (of the newest
 * checkpoint root), or TN_FOUND_NOTHING; -EUCLEAN, whose detail says what was found where.
 */
int tn_store_trace(struct tn_store_device *d, uint64_t file_bytes, struct tn_disk_super *copy, enum tn_found *found);
/* The store's file in this directory; -ENAMETOOLONG. */
int tn_store_set_path(struct tn_store_device *d, const char *dir);
/* Opens and locks the file (creates it, with make: -EEXIST if there is one); detail says who has it. */
int tn_store_device_open(struct tn_store_device *d, const struct tn_store_opts *opts, bool make, void *pages);
void tn_store_device_close(struct tn_store_device *d);
/* What the open file is; fills super. -EUCLEAN, -EPROTONOSUPPORT, -EIO: it cannot be used, and must not be written. */
int tn_store_identify(struct tn_store_device *d, void *pages, enum tn_found *found);
/* Opens the device's file with its lock; *left_ns, how long another owner is waited for, goes down by what it took. */
int tn_store_lock_wait(struct tn_store_device *d, unsigned flags, uint64_t *left_ns, uint32_t *file);
/* Both copies, one after the other, with a new generation. */
int tn_store_super_write(struct tn_store_device *d, enum tn_disk_state state);

/* ---- one device: health.c --------------------------------------------------------------------------------- */

void tn_store_health_init(struct tn_store_device *d);
void tn_store_health_deleted(struct tn_store_device *d);
uint64_t tn_store_health_step(struct tn_store_device *d, uint64_t now_ns);

/* ---- one device: deleted.c -------------------------------------------------------------------------------- */

void tn_store_look_init(struct tn_store_device *d);
/* Looks whether the file still has a name, later than now; the number that look.ended will have then. */
uint64_t tn_store_look(struct tn_store_device *d);
/* Reports that the file has no name. */
void tn_store_file_deleted(struct tn_store_device *d);

/* Nothing is written to this device's index: the device is offline, or its file was deleted and nobody will ever read it. */
static inline bool tn_store_index_off(const struct tn_store_device *d)
{
	return d->hs.health == TN_OFFLINE || d->deleted;
}

/* ---- one device: allocate.c ------------------------------------------------------------------------------- */

void tn_store_allocate_init(struct tn_store_device *d);
/* Begins to give the file room for one more segment, if there may be one and none is on its way. */
void tn_store_allocate(struct tn_store_device *d, uint64_t now_ns);
/* Is a segment on its way that is worth waiting for? */
bool tn_store_allocating(const struct tn_store_device *d, uint64_t now_ns);
/* Begins to grow the file if no segment is left to be taken; returns when to ask again. */
uint64_t tn_store_allocate_ahead(struct tn_store_device *d, uint64_t now_ns);
/* Likewise, on a device that takes writes. */
uint64_t tn_store_allocate_step(struct tn_store_device *d, uint64_t now_ns);

/* ---- one device: prepare.c -------------------------------------------------------------------------------- */

uint64_t tn_store_prepare_step(struct tn_store_device *d, uint64_t now_ns);
/* The segment being prepared is wanted as it is: true if it can be had at once, else after the write under way. */
bool tn_store_prepare_stop(struct tn_store_device *d);
void tn_store_prepare_init(struct tn_store_device *d);

/* ---- one device: log.c ------------------------------------------------------------------------------------ */

/* Is there anything to be logged? */
static inline bool tn_store_log_changed(const struct tn_store_log *log)
{
	return log->unlogged > 0 || log->segments_unlogged > 0;
}

/* Starts a commit if there is reason to; returns when to ask again. */
uint64_t tn_store_log_step(struct tn_store_device *d, uint64_t now_ns);
/* The log has failed several times in a row: nothing may wait for what the log is to make durable. */
bool tn_store_log_stuck(const struct tn_store_device *d);
/* Starts a commit if somebody waits for one, or so much has changed that it need not wait for the step. */
void tn_store_log_advance(struct tn_store_device *d);
/* The log's request ended. True: a group was written, and what waits behind it may go on. */
bool tn_store_log_done(struct tn_store_device *d, int status);
/* After a failed sync: the groups that may be lost by it are written over. */
void tn_store_log_rewind(struct tn_store_device *d);

/* ---- one device: durable.c -------------------------------------------------------------------------------- */

/* Starts a cycle if there is reason to; returns when to ask again. */
uint64_t tn_store_durable_step(struct tn_store_device *d, uint64_t now_ns);
/* The cycle's request ended. True: what waited for the sync may go on. */
bool tn_store_durable_done(struct tn_store_device *d, int status);
/* What was logged and is not durable is marked to be logged once more. */
void tn_store_log_anew(struct tn_store_device *d);
/* The newest valid mark; -ENOENT: none, as in stores of programs that synced before each group. */
int tn_store_mark_load(struct tn_store_device *d, struct tn_disk_mark *mark);
/* Writes the newest mark again with the same bytes. */
int tn_store_mark_again(struct tn_store_device *d);
/* Writes the first mark of the session; only then are there cycles. */
int tn_store_durable_start(struct tn_store_device *d);

/* Slots of a page about which not everything is durable. */
static inline uint64_t tn_store_settling(const struct tn_store_device *d, uint32_t page)
{
	return d->unlogged[page] | d->inflight[page] | d->logged[page] | d->covered[page];
}

/* ---- one device: checkpoint.c ----------------------------------------------------------------------------- */

void tn_store_ckpt_init(struct tn_store_device *d);
void tn_store_ckpt_start(struct tn_store_device *d, bool final);
uint64_t tn_store_ckpt_step(struct tn_store_device *d, uint64_t now_ns);
/* The first root of a new device, and the only one: what is at the second one's place goes. */
int tn_store_ckpt_format(struct tn_store_device *d);

/* ---- one device: commit.c --------------------------------------------------------------------------------- */

/* Sets where the requests of log and cycle end. */
void tn_store_commit_init(struct tn_store_device *d);
/* After a group or a sync, or when a flush begins: starts what need not wait for the next step. */
void tn_store_commit_advance(struct tn_store_device *d);

/* ---- one device: doubt.c ---------------------------------------------------------------------------------- */

/* Events of requests: any sync of the device's file, whoever asked for it. */
void tn_store_sync_begins(struct tn_store_device *d);
void tn_store_sync_ended(struct tn_store_device *d, int status);
/* A slot was published; perhaps a sync had failed while it was written. */
void tn_store_doubt_publish(struct tn_store_device *d, uint32_t local);
/* Asks the owner to remove what is in doubt; returns when to call again. */
uint64_t tn_store_doubt_step(struct tn_store_device *d, uint64_t now_ns);

static inline bool tn_store_in_doubt(const struct tn_store_device *d, uint32_t local)
{
	return d->doubtful[local >> 6] >> (local & 63) & 1;
}

/* ---- one device: move.c ----------------------------------------------------------------------------------- */

/* Ends moves, empties what is beyond the capacity; returns when to call again. */
uint64_t tn_store_move_step(struct tn_store_device *d, uint64_t now_ns);

/* ---- opening: recovery.c ---------------------------------------------------------------------------------- */

int tn_store_recover(struct tn_store *s);

/* ---- opening: set.c, the devices together ----------------------------------------------------------------- */

/* Opens, locks and identifies or creates the files of all devices; fills geometry and super. */
int tn_store_set_open(struct tn_store *s, const struct tn_store_opts *opts);

/* ---- the whole: step.c, while opening and closing --------------------------------------------------------- */

/* Drives the engine until everything so far is durable. */
int tn_store_flush_wait(struct tn_store *s);
/* Drives the engine through a whole checkpoint. */
int tn_store_ckpt_wait(struct tn_store_device *d, bool final);

/* ---- tools: check.c and walk.c: what the public tools do, on any engine ----------------------------------- */

struct tn_admin_store;
struct tn_admin_device;
struct tn_admin_verify;
struct tn_admin_check;
/* dirs are complete paths here; opts has io, clock, log, dirs. */
int tn_store_admin_info(const struct tn_store_opts *opts, struct tn_admin_device *device);
int tn_store_admin_verify(const struct tn_store_opts *opts, const struct tn_admin_store *a, struct tn_admin_verify *out);
int tn_store_admin_check(const struct tn_store_opts *opts, const struct tn_admin_store *a, bool rebuild,
			 struct tn_admin_check *out);
/* Reads all blocks (walk.c): what verify and check do; *stale: blocks of which index and header do not agree. */
int tn_store_walk(struct tn_store *s, const struct tn_admin_store *a, struct tn_admin_verify *verify, uint64_t *stale);

#endif
