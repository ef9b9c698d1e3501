/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the store share: the state of a store and of one device, and the calls between
 * them. Nothing outside src/store includes this, except its tests.
 *
 * Slots are numbered by the page of the slot table that describes them: a global slot is
 * [device | page | bit], 63 slots a page, so that table, bitmaps and arrays are all indexed by shifting.
 */
#ifndef TN_STORE_STORE_INTERNAL_H
#define TN_STORE_STORE_INTERNAL_H

#include "base/list.h"
#include "store/format.h"
#include "store/store.h"

#define TN_STORE_SHAPES_MAX 64u
#define TN_STORE_CLASSES_MAX 256u
#define TN_STORE_FLUSHES_MAX 256u
#define TN_STORE_GROUP_BYTES TN_DISK_GROUP_MAX
#define TN_STORE_BATCH_PAGES 16u	  /* checkpoint pages serialised at once: about 0.1 ms of the owner's time */
#define TN_STORE_BULK_BYTES (1u << 20)	  /* one read of recovery */
#define TN_STORE_BULK_DEPTH 32u
#define TN_STORE_COMMIT_DELAY_NS 1000000000ull /* records wait for others at most this long */
#define TN_STORE_NEVER UINT64_MAX
#define TN_SHAPE_NONE UINT32_MAX

enum tn_slot_state {
	TN_SLOT_FREE,
	TN_SLOT_RESERVED,
	TN_SLOT_COMMITTED,
	TN_SLOT_FREEING, /* removed, the record is not durable yet */
	TN_SLOT_QUARANTINED,
};

/* Per slot: sequence << 8 | failures << 4 | state. */
#define TN_META(seq, failures, state) ((uint64_t)(seq) << 8 | (uint64_t)(failures) << 4 | (uint64_t)(state))
#define TN_META_STATE(m) ((enum tn_slot_state)((m) & 15))
#define TN_META_FAILURES(m) ((unsigned)((m) >> 4) & 15)
#define TN_META_SEQUENCE(m) ((m) >> 8)
#define TN_META_WITH_STATE(m, state) (((m) & ~(uint64_t)15) | (uint64_t)(state))

struct tn_store_device;

/* A request of the store's own. Each has one user and one buffer, so that nothing is allocated later. */
struct tn_store_req {
	struct tn_io_req io;
	struct iovec iov;
	struct tn_store_device *dev;
	void (*finish)(struct tn_store_req *r, int status);
	struct tn_list link; /* in store->queued while the engine is full */
	uint64_t start_ns;
	bool busy;
};

/* Equal slots: what a segment is divided into. */
struct tn_store_shape {
	uint64_t slot_bytes; /* distance of slots */
	uint32_t header_bytes;
	uint32_t slot_count; /* a segment */
	uint64_t data_offset; /* of slot 0 within the segment */
	struct tn_list has_free[TN_DEVICES_MAX]; /* segments with free slots, by device */
	uint64_t free_slots[TN_DEVICES_MAX]; /* in them */
	/* Other shapes' segments are looked at for a colder one at this time again, or after so many vain calls. */
	uint64_t look_ns[TN_DEVICES_MAX];
	uint32_t look_calls[TN_DEVICES_MAX];
};

/* Equal blocks: where objects lie within a slot. Several classes may share a shape. */
struct tn_store_class {
	uint32_t nobjects;
	uint32_t shape;
	uint64_t uniform;  /* padded bytes of each object if all are equal, else 0 */
	uint64_t *offset;  /* otherwise nobjects + 1 offsets */
	uint32_t *bytes;   /* as given, to find the class again; NULL when uniform */
	uint32_t uniform_bytes;
};

struct tn_store_segment {
	struct tn_list link; /* has_free of its shape, or unassigned of its device, or alone */
	uint32_t shape;
	uint32_t generation;
	uint32_t free, used, quarantined; /* slots; used: reserved, committed, freeing */
	uint32_t freeing;
	uint32_t cursor; /* part at which the next search begins */
	float warm; /* moving mean of the recency of what is used in it */
	bool victim; /* being emptied for another class: nothing new goes here */
	bool header_dirty; /* the on-disk header must be written before the record */
	bool unlogged, inflight; /* its assignment record */
	bool prepared; /* every byte was written once */
};

enum tn_log_phase { TN_LOG_IDLE, TN_LOG_SPACES, TN_LOG_SEGMENT, TN_LOG_SYNC_DATA, TN_LOG_WRITE, TN_LOG_SYNC };

/* The append-only log of a device and its group commit. */
struct tn_store_log {
	enum tn_log_phase phase;
	uint64_t position, sequence; /* of the next group */
	uint64_t tail; /* position from which the newest root replays: what is older may be overwritten */
	struct tn_disk_group *group; /* the one being written, or the last one */
	bool has_inserts; /* what it refers to must be synced first */
	bool spaces_written;
	uint32_t segment; /* whose header is being written */
	uint64_t sealed, done; /* commits begun, commits ended */
	uint64_t swept; /* pages passed by all sweeps so far */
	uint32_t cursor; /* page at which the next sweep begins */
	uint64_t unlogged; /* slots with something to tell */
	uint32_t segments_unlogged, headers_dirty;
	uint64_t oldest_ns; /* since when something is unlogged */
	bool urgent; /* slots are short: do not wait for company */
	bool force; /* a group even without records */
	bool full; /* no room until the checkpoint ends */
	int doubt; /* a sync failed since the commit began: it must be done again */
	uint64_t last_position; /* of the newest group that recovery found, */
	uint32_t last_bytes;    /* and its length; 0: none */
	uint32_t failures;
	uint64_t retry_ns;
	struct tn_store_req req;
	struct tn_disk_segment *header_page;
};

/* In their order; the first two only after an attempt whose root may be on the disk. */
enum tn_ckpt_phase {
	TN_CKPT_IDLE,
	TN_CKPT_VOID,
	TN_CKPT_SYNC_VOID,
	TN_CKPT_PAGES,
	TN_CKPT_LOG,
	TN_CKPT_SYNC_PAGES,
	TN_CKPT_ROOT,
	TN_CKPT_SYNC_ROOT,
};

/* Two regions written in turn, incrementally. */
struct tn_store_ckpt {
	enum tn_ckpt_phase phase;
	uint64_t number; /* of the newest valid root */
	uint32_t region; /* the one to write next, or being written */
	uint64_t start_position, start_sequence;
	uint32_t cursor;
	uint32_t soft_budget; /* pages that may be written only for their recency */
	uint32_t soft_from[2]; /* the first of them this time, by region: they take turns */
	bool soft_any;	    /* there are some */
	uint64_t soft_due_ns; /* of a checkpoint for their sake, 0: none is planned */
	int doubt; /* a sync failed since it began: it must be done again */
	bool hurry; /* somebody does nothing but wait for it: it yields to nothing */
	uint64_t granted; /* bytes in flight that it was let write, and whose end is to be told */
	bool root_unknown; /* an attempt at this region failed after its root was sent: it may be valid */
	uint64_t *dirty[2]; /* bit a page: differs from what the region holds */
	uint64_t *soft[2]; /* bit a page: its recency is newer than what the region holds */
	void *buffer;
	uint32_t failures;
	uint64_t retry_ns;
	struct tn_store_req req;
};

struct tn_store_health_state {
	enum tn_health health;
	uint32_t error_score, slow_score, probe_good;
	uint64_t probe_ns, probe_delay_ns;
	bool probing, probe_wrote;
	void *buffer;
	struct tn_store_req req;
};

struct tn_store_prepare {
	uint32_t segment; /* being written with zeros; UINT32_MAX: none */
	uint64_t offset; /* at the end: the header, which says so, is still to be written */
	bool stop; /* the segment is wanted now */
	uint64_t next_ns;
	void *buffer;
	struct tn_store_req req;
};

struct tn_store_device {
	struct tn_store *store;
	uint32_t index;
	uint32_t file;
	bool open;
	bool super_damaged; /* one copy was not as new and valid as the other */
	bool lost; /* no index was left: rebuilt from headers */
	char path[512];
	struct tn_disk_super super;
	struct tn_store_segment *segs;
	struct tn_list unassigned; /* allocated segments without a shape */
	uint32_t allocated; /* segments for which the file has room */
	uint32_t limit; /* segments to use */
	uint32_t empty; /* assigned segments without a used slot */
	uint32_t assigned; /* segments, of those to use */
	uint64_t assigned_slots; /* in them */
	uint32_t victim; /* segment being emptied; UINT32_MAX: none */
	uint32_t victim_shape; /* for this one */
	uint64_t victim_until_ns; /* then it stays what it was */
	uint32_t given_up; /* the last one of which that came true: not the next victim again; UINT32_MAX: none */
	uint64_t victim_ns; /* earliest time for the next one beyond the capacity */
	uint64_t allocate_ns; /* after ENOSPC: when to try again */
	/* a word a page of the slot table, bit i: slot i */
	uint64_t *free, *unlogged, *inflight;
	uint64_t *doubtful; /* reserved or committed, and its data may be lost: see doubt.c */
	uint64_t *unlogged_pages; /* bit a page: unlogged is not zero */
	uint64_t *meta; /* 64 a page, the last unused */
	uint32_t *cookie;
	uint64_t committed, reserved, freeing, quarantined;
	uint64_t spaces_generation; /* of the table that this device has */
	bool spaces_copy; /* where that table is: the next one goes to the other place */
	struct tn_disk_spaces *spaces_page; /* being written */
	struct tn_store_log log;
	struct tn_store_ckpt ckpt;
	struct tn_store_health_state hs;
	struct tn_store_prepare prep;
	struct tn_store_req sync_req; /* of code that drives the engine */
	bool syncing; /* a sync is in flight: the next one waits */
	bool running; /* recovered */
	bool untold; /* the owner does not know of all blocks in doubt yet */
	uint64_t tell_ns; /* when to ask it (again) to remove them */
	uint64_t lost_blocks;
	uint32_t lost_segments; /* at open: damaged or cut off */
	bool flush_waiting;
	uint64_t bytes_read, bytes_written, meta_bytes_written, read_errors, write_errors;
};

/* What a flush still waits for on one device. */
struct tn_store_wait {
	uint64_t sweep; /* the sweep that must have been passed; 0: it was */
	uint64_t ticket; /* the commit that must have ended; 0: nothing */
};

struct tn_store_flush {
	void (*done)(void *arg, int status);
	void *arg;
	int status;
	bool used;
	struct tn_store_wait wait[TN_DEVICES_MAX];
};

struct tn_store {
	struct tn_io *io;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
	struct tn_store_callbacks cb;
	bool read_only, prepare, closing, rebuild;
	bool starved; /* a reserve found too little since the last look */
	uint32_t ndevices;
	struct tn_store_device *dev;
	/* geometry, equal on all devices */
	uint64_t segment_bytes;
	uint32_t segment_count, segment_pages;
	uint32_t slot_pages; /* of the slot table */
	uint32_t table_pages; /* of the segment table, before them in a checkpoint */
	uint32_t device_shift;
	uint64_t capacity_blocks;
	uint64_t committed, reserved; /* over all devices */
	uint64_t sequence; /* the next */
	uint32_t recency; /* the newest that was told */
	uint64_t epoch;
	uint64_t slow_read_ns;
	uint32_t next_device; /* round robin */
	uint32_t nshapes, nclasses;
	uint32_t most_slots; /* a segment, of all shapes */
	struct tn_store_shape *shape;
	struct tn_store_class *cls;
	struct tn_disk_spaces *spaces;
	bool spaces_lost; /* no copy was valid: rebuilt from block headers */
	struct tn_list queued; /* requests that the engine had no room for, and syncs that wait for another */
	bool stalled; /* the engine had no room */
	uint32_t inflight;
	struct tn_store_flush *flush;
	uint32_t flushes;
	int last_flush;
	uint64_t budget_rate; /* bytes a day; 0: no limit */
	int64_t budget_tokens;
	uint64_t budget_ns;
	uint64_t recovery_ns;
	uint64_t index_bytes;
};

/* ---- numbering ---------------------------------------------------------------------------------- */

static inline struct tn_store_device *tn_store_device_of(const struct tn_store *s, tn_slot slot)
{
	uint32_t d = s->device_shift >= 32 ? 0 : slot >> s->device_shift;

	assert(d < s->ndevices);
	return &s->dev[d];
}

/* Slot number within its device: page * 64 + bit. */
static inline uint32_t tn_store_local(const struct tn_store *s, tn_slot slot)
{
	return s->device_shift >= 32 ? slot : slot & ((1u << s->device_shift) - 1);
}

static inline tn_slot tn_store_global(const struct tn_store_device *d, uint32_t local)
{
	return d->store->device_shift >= 32 ? local : (d->index << d->store->device_shift | local);
}

static inline uint32_t tn_store_segment_of(const struct tn_store *s, uint32_t local)
{
	return (local >> 6) / s->segment_pages;
}

static inline uint32_t tn_store_index_of(const struct tn_store *s, uint32_t local)
{
	return (local >> 6) % s->segment_pages * TN_DISK_RECORDS + (local & 63);
}

static inline uint32_t tn_store_local_of(const struct tn_store *s, uint32_t segment, uint32_t index)
{
	return (segment * s->segment_pages + index / TN_DISK_RECORDS) << 6 | index % TN_DISK_RECORDS;
}

static inline uint64_t tn_store_segment_offset(const struct tn_store_device *d, uint32_t segment)
{
	return d->super.segments_offset + (uint64_t)segment * d->store->segment_bytes;
}

static inline void tn_bit_set(uint64_t *map, uint32_t i)
{
	map[i / 64] |= 1ull << (i % 64);
}

static inline void tn_bit_clear(uint64_t *map, uint32_t i)
{
	map[i / 64] &= ~(1ull << (i % 64));
}

static inline bool tn_bit_test(const uint64_t *map, uint32_t i)
{
	return map[i / 64] >> (i % 64) & 1;
}

/* First set bit at or after from, or n. */
uint32_t tn_bit_next(const uint64_t *map, uint32_t from, uint32_t n);

static inline uint64_t tn_round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* ---- io.c: the store's own requests --------------------------------------------------------------- */

void tn_store_req_init(struct tn_store_req *r, struct tn_store_device *d,
		       void (*finish)(struct tn_store_req *r, int status));
void tn_store_req_submit(struct tn_store_req *r, enum tn_io_op op, uint64_t offset, void *buf, uint32_t len);
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
/* Page-aligned memory of the store, counted in index_bytes; give back with the same size. */
void *tn_store_pages_get(struct tn_store *s, size_t bytes);
void tn_store_pages_put(struct tn_store *s, void *p, size_t bytes);

/* ---- superblock.c --------------------------------------------------------------------------------- */

struct tn_store_opts;
/* The store's file in this directory; -ENAMETOOLONG. */
int tn_store_set_path(struct tn_store_device *d, const char *dir);
/* Opens, locks and identifies or creates the files of all devices; fills geometry and super. */
int tn_store_super_open(struct tn_store *s, const struct tn_store_opts *opts);
/* Opens the device's file with its lock; *left_ns, how long another owner is waited for, goes down by what it took. */
int tn_store_lock_wait(struct tn_store_device *d, unsigned flags, uint64_t *left_ns, uint32_t *file);
/* Both copies, one after the other, with a new generation. */
int tn_store_super_write(struct tn_store_device *d, enum tn_disk_state state);
/* The newer valid copy; repair says whether one copy must be written again. */
int tn_store_super_pick(const void *copy0, const void *copy1, const char *path, struct tn_disk_super *out, bool *repair);

/* ---- check.c: what the public tools do, on any engine -------------------------------------------------- */

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
/* Writes both superblocks from a copy in a checkpoint root, if both are damaged and one is found. */
int tn_store_super_restore(struct tn_store *s, const struct tn_store_opts *opts);

/* ---- segment.c -------------------------------------------------------------------------------------- */

/* Can a segment's record or header from disk be believed? Makes its shape. */
bool tn_store_shape_of(struct tn_store *s, uint64_t slot_bytes, uint32_t header_bytes, uint32_t slot_count, uint32_t *shape);
int tn_store_shape_get(struct tn_store *s, uint64_t slot_bytes, uint32_t header_bytes, uint32_t *shape);
/* Links a segment into the list where it belongs now. */
void tn_store_segment_place(struct tn_store_device *d, uint32_t segment);
/* State changes of single slots, with all counters. */
void tn_store_slot_set(struct tn_store_device *d, uint32_t local, enum tn_slot_state state);
void tn_store_slot_dirty(struct tn_store_device *d, uint32_t local);
/* Something about this slot is to be logged. */
void tn_store_slot_unlogged(struct tn_store_device *d, uint32_t local);
/* Allocates ahead, empties victims; returns when to call again. */
uint64_t tn_store_segment_step(struct tn_store_device *d, uint64_t now_ns);
uint64_t tn_store_prepare_step(struct tn_store_device *d, uint64_t now_ns);
/* The segment being prepared is wanted as it is: true if it is to be had at once, else after the write under way. */
bool tn_store_prepare_stop(struct tn_store_device *d);
void tn_store_prepare_init(struct tn_store_device *d);

/* ---- log.c ------------------------------------------------------------------------------------------ */

void tn_store_log_init(struct tn_store_device *d);
/* Starts a commit if there is reason to; returns when to ask again. */
uint64_t tn_store_log_step(struct tn_store_device *d, uint64_t now_ns);
/* Settles flushes after a commit ended with this status. */
void tn_store_flush_settle(struct tn_store_device *d, int status);
void tn_store_record_fill(struct tn_store_device *d, uint32_t local, struct tn_disk_record *rec);
void tn_store_segment_record(const struct tn_store_device *d, uint32_t segment, struct tn_disk_record *rec);
/* The on-disk header of a segment as it is now, assigned or not. */
void tn_store_segment_seal(const struct tn_store_device *d, uint32_t segment, struct tn_disk_segment *h);
/* Drives the engine until everything so far is durable. */
int tn_store_flush_wait(struct tn_store *s);

/* ---- doubt.c ------------------------------------------------------------------------------------------- */

/* Any sync of the device's file failed; before its own finish is called. */
void tn_store_sync_failed(struct tn_store_device *d, int status);
/* A slot was published; perhaps a sync had failed while it was written. */
void tn_store_doubt_publish(struct tn_store_device *d, uint32_t local);
/* Asks the owner to remove what is in doubt; returns when to call again. */
uint64_t tn_store_doubt_step(struct tn_store_device *d, uint64_t now_ns);

static inline bool tn_store_in_doubt(const struct tn_store_device *d, uint32_t local)
{
	return d->doubtful[local >> 6] >> (local & 63) & 1;
}

/* ---- checkpoint.c ------------------------------------------------------------------------------------ */

void tn_store_ckpt_init(struct tn_store_device *d);
void tn_store_ckpt_start(struct tn_store_device *d, bool final);
uint64_t tn_store_ckpt_step(struct tn_store_device *d, uint64_t now_ns);
/* Drives the engine through a whole checkpoint. */
int tn_store_ckpt_wait(struct tn_store_device *d, bool final);
/* The first root of a new device. */
int tn_store_ckpt_format(struct tn_store_device *d);
void tn_store_root_fill(struct tn_store_device *d, struct tn_disk_root *root);

/* ---- recovery.c, rebuild.c ---------------------------------------------------------------------------- */

int tn_store_recover(struct tn_store *s);

/* The slot table of a device while it is being recovered: what the pages said, then what the log said. */
struct tn_store_table {
	struct tn_store_device *dev;
	struct tn_disk_page *page; /* slot_pages */
	struct tn_disk_record *seg; /* segment_count */
	uint8_t *bad; /* a byte a page: unreadable */
	uint32_t bad_pages;
	uint64_t max_sequence;
	uint64_t max_epoch;
};

/* Reads the block headers of one segment (first..last part) into the table. */
int tn_store_rebuild_parts(struct tn_store_table *t, uint32_t segment, uint32_t first_part, uint32_t parts);
/* The whole device from segment and block headers. */
int tn_store_rebuild(struct tn_store_table *t);

/* ---- spaces.c ------------------------------------------------------------------------------------------ */

int tn_store_spaces_load(struct tn_store *s);
int tn_store_spaces_format(struct tn_store_device *d);
/* Is a block of this space and sequence still valid? */
bool tn_store_spaces_valid(const struct tn_store *s, uint16_t space, uint64_t sequence);
/* A block header found while rebuilding: is its space known? If the table was lost, it is taken from the headers. */
bool tn_store_spaces_adopt(struct tn_store *s, const struct tn_store_header *h);

/* ---- health.c ------------------------------------------------------------------------------------------- */

void tn_store_health_init(struct tn_store_device *d);
uint64_t tn_store_health_step(struct tn_store_device *d, uint64_t now_ns);
/* Bytes of metadata: counted against the budget, never refused. */
void tn_store_charge_meta(struct tn_store_device *d, uint64_t bytes);

#endif
