/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a store and of its devices, and how slots are numbered. The structures of the parts are members
 * of the device. Those of flushes under way (waits.h) and of recovery (rebuild.h) have headers of their own.
 *
 * Slots are numbered by the page of the slot table that describes them: a global slot is
 * [device | page | bit], 63 slots per page, so that table, bitmaps and arrays are all indexed by shifting.
 */
#ifndef TN_STORE_STATE_H
#define TN_STORE_STATE_H

#include "base/list.h"
#include "store/format.h"
#include "store/store.h"

#define TN_STORE_SHAPES_MAX 64u
#define TN_STORE_CLASSES_MAX 256u
#define TN_STORE_GROUP_BYTES TN_DISK_GROUP_MAX
#define TN_STORE_BATCH_PAGES 16u	  /* checkpoint pages serialised at once: about 0.1 ms of the owner's time */
#define TN_STORE_BULK_BYTES (1u << 20)	  /* one read of recovery */
#define TN_STORE_DURABILITY_NS 1000000000ull /* the default */
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

/*
 * What the store's own requests tell those above them; set at open, before the first sync. All on the owner, per sync,
 * and before the `finish` of the sync itself.
 */
struct tn_store_events {
	void (*sync_begins)(struct tn_store_device *d); /* perhaps again, if the engine did not take it */
	void (*sync_ended)(struct tn_store_device *d, int status);
	void (*file_deleted)(struct tn_store_device *d); /* the file has no name any more; after each sync that finds it so */
};

/* A request of the store's own. Each has one user and one buffer, so that nothing is allocated later. */
struct tn_store_req {
	struct tn_io_req io;
	struct iovec iov;
	struct tn_io_stat stat; /* after a sync */
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
	uint32_t slot_count; /* per segment */
	uint64_t data_offset; /* of slot 0 within the segment */
	struct tn_list has_free[TN_DEVICES_MAX]; /* segments with free slots, by device */
	uint64_t free_slots[TN_DEVICES_MAX]; /* in those segments */
	/* The colder segments of other shapes are tried again at this time, or after so many calls. */
	uint64_t try_ns[TN_DEVICES_MAX];
	uint32_t try_calls[TN_DEVICES_MAX];
};

/* Equal blocks, by the bytes of their objects. Several classes may share a shape. */
struct tn_store_class {
	uint32_t nobjects;
	uint32_t shape;
	uint32_t *bytes; /* of each object; NULL when all have uniform_bytes */
	uint32_t uniform_bytes;
};

struct tn_store_segment {
	struct tn_list link; /* has_free of its shape, or unassigned of its device, or alone */
	uint32_t shape;
	uint32_t generation;
	uint32_t free, used, quarantined; /* slots; used: reserved, committed, freeing */
	uint32_t freeing;
	uint32_t cursor; /* part at which the next search begins */
	float warm; /* moving mean of the recency of the blocks that are used in the segment */
	uint64_t tried; /* the store's number of the last time that the segment could not move */
	bool closed; /* being emptied for another class, or beyond the capacity: no new block goes here */
	bool header_dirty; /* the on-disk header must be written before the record */
	bool unlogged, inflight, logged, covered; /* its assignment record: see the maps of slots */
	bool prepared; /* every byte was written once */
};

enum tn_log_phase { TN_LOG_IDLE, TN_LOG_SPACES, TN_LOG_SEGMENT, TN_LOG_WRITE };

/* The append-only log of a device. */
struct tn_store_log {
	enum tn_log_phase phase;
	uint64_t position, sequence; /* of the next group */
	uint64_t synced_position, synced_sequence; /* groups before these are covered by a good sync */
	uint64_t epoch; /* of groups: rises when groups are written anew, so that the old ones are stale */
	uint64_t tail; /* position from which the newest root replays: groups before it may be overwritten */
	struct tn_disk_group *group; /* being written, or the last one that was */
	uint32_t segment; /* whose header is being written */
	uint64_t last_ns; /* when the last group was begun */
	uint64_t swept; /* pages passed by all sweeps so far */
	uint32_t cursor; /* page at which the next sweep begins */
	uint64_t unlogged; /* slots with something to log */
	uint32_t segments_unlogged, headers_dirty;
	uint64_t oldest_ns; /* since when something is unlogged */
	bool urgent; /* slots are short: the next group does not wait for more records */
	bool force; /* a group is wanted even without records */
	bool full; /* no free space until the checkpoint ends */
	int doubt; /* a sync failed while a group was being written: the group must be written again */
	uint64_t again_position, again_sequence; /* first group that recovery found and that may not be durable */
	uint32_t failures;
	uint64_t retry_ns;
	struct tn_store_req req;
	struct tn_disk_segment *header_page;
};

enum tn_durable_phase { TN_DURABLE_IDLE, TN_DURABLE_DATA, TN_DURABLE_MARK, TN_DURABLE_SYNC };

/* How far the log is durable, and the cycle that makes more of the log durable (durable.c). */
struct tn_store_durable {
	enum tn_durable_phase phase;
	bool running; /* this session's first mark was written */
	uint64_t sequence, position; /* groups before these are durable, and marked so */
	uint64_t cover_sequence, cover_position; /* likewise when the cycle under way ends */
	uint64_t since_ns; /* age of the oldest record that was logged and is not in the cycle under way; 0: none */
	int doubt; /* a sync failed since the cycle began */
	uint64_t generation; /* of the newest mark */
	bool mark_copy; /* the place of that mark: the next one goes to the other place */
	struct tn_disk_mark *mark; /* being written */
	uint32_t failures;
	uint64_t retry_ns;
	struct tn_store_req req;
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
	uint32_t region; /* to be written next, or being written */
	uint64_t start_position, start_sequence;
	uint32_t cursor;
	uint32_t soft_budget; /* pages that may be written only for their recency */
	uint32_t soft_from[2]; /* the first of those pages this time, by region: they take turns */
	bool soft_any;	    /* there are such pages */
	uint64_t soft_due_ns; /* of a checkpoint for the sake of those pages; 0: none is planned */
	int doubt; /* a sync failed since the checkpoint began: it must be done again */
	bool hurry; /* somebody does nothing but wait for the checkpoint: it yields to nothing */
	uint64_t granted; /* bytes in flight that the checkpoint was allowed to write, and whose end is to be reported */
	bool log_required; /* a group at the start position will be durable with the pages */
	bool root_unknown; /* an attempt at this region failed after its root was sent: that root may be valid */
	uint64_t *dirty[2]; /* one bit per page: the page differs from what the region holds */
	uint64_t *soft[2]; /* one bit per page: the recency is newer than what the region holds */
	void *buffer;
	uint32_t failures;
	uint64_t retry_ns;
	struct tn_store_req req;
};

struct tn_store_health_state {
	enum tn_health health;
	uint32_t error_score, slow_score, probe_good;
	uint64_t probe_ns, probe_delay_ns;
	bool probing;
	void *buffer;
	struct tn_store_req req;
};

struct tn_store_prepare {
	uint32_t segment; /* being written with zeros; UINT32_MAX: none */
	uint64_t offset; /* at the end of the segment: its header, which says so, is still to be written */
	bool stop; /* the segment is wanted now */
	uint64_t next_ns;
	void *buffer;
	struct tn_store_req req;
};

/* Space in the file for one more segment. */
struct tn_store_allocation {
	uint64_t begun_ns;
	uint64_t retry_ns; /* after ENOSPC: when to try again; 0: nothing failed */
	struct tn_store_req req; /* busy: under way */
};

/* What a rebuild from headers found, and what it could not save. */
struct tn_store_salvage {
	uint64_t damaged; /* block headers that are not valid */
	uint64_t unreadable; /* block headers that cannot be read */
	uint64_t dropped; /* blocks of spaces that were dropped, or are not known */
	uint64_t superseded; /* blocks of whose key there is a newer one */
	uint32_t segments; /* of which block headers were read */
	uint32_t segments_without; /* those of them whose own header had to be made from block headers */
	uint32_t segments_lost; /* damaged, without a single good block header */
};

struct tn_store_device {
	struct tn_store *store;
	uint32_t index;
	uint32_t file;
	uint32_t align; /* of offsets, lengths and memory that satisfies direct I/O; 1: any */
	bool in_memory; /* tmpfs: reserved space is as fast as written space */
	bool open;
	bool absent; /* this session goes without the device: offline, and nothing of it is read */
	bool unreachable; /* absent, and not because there is nothing in its directory */
	bool made; /* its file was created by this open */
	bool deleted; /* its file has no name any more */
	bool super_damaged; /* one copy was not as new and valid as the other one */
	bool lost; /* no index was left: rebuilt from headers */
	bool distrusted; /* groups in its log were not believed: those must not be read again */
	char path[512];
	struct tn_disk_super super;
	struct tn_store_segment *segs;
	struct tn_list unassigned; /* allocated segments without a shape */
	uint32_t allocated; /* segments for which the file is long enough */
	uint32_t limit; /* segments to use */
	uint32_t empty; /* assigned segments without a used slot */
	uint32_t assigned; /* segments, of those to use */
	uint64_t assigned_slots; /* in those segments */
	uint32_t victim; /* segment that moves; UINT32_MAX: none */
	uint32_t victim_shape; /* to which the victim moves */
	uint64_t passing; /* the store's number of the last time that only transfers kept a segment from moving */
	uint32_t leaving; /* next segment beyond the capacity whose blocks are to go */
	uint64_t leave_ns; /* not before */
	/*
	 * One word per page of the slot table, bit i: slot i. A change is unlogged, then in the group that is being
	 * written (inflight), then in one that was written (logged), then in what the cycle under way makes durable
	 * (covered).
	 */
	uint64_t *free, *unlogged, *inflight, *logged, *covered;
	uint64_t *doubtful; /* reserved or committed, and its data may be lost: see doubt.c */
	uint64_t *unlogged_pages, *logged_pages, *covered_pages; /* one bit per page: the word is not zero */
	uint64_t *meta; /* 64 per page, the last one unused */
	uint32_t *cookie;
	uint64_t committed, reserved, freeing, quarantined;
	uint64_t spaces_generation; /* of the table that was written to this device last */
	bool spaces_unsynced; /* no sync covers that table yet: the next one is not written before */
	bool spaces_copy; /* the place of the newest durable table: the next one goes to the other place */
	struct tn_disk_spaces *spaces_page; /* being written */
	struct tn_store_log log;
	struct tn_store_durable durable;
	struct tn_store_ckpt ckpt;
	struct tn_store_health_state hs;
	struct tn_store_prepare prep;
	struct tn_store_allocation alloc;
	struct {
		struct tn_store_req req;
		uint64_t begun, ended;
		bool again; /* somebody asked after the look under way had begun */
	} look; /* at the file's name, for a flush that has nothing to write */
	struct tn_store_req sync_req; /* of code that drives the engine */
	bool syncing; /* a sync is in flight: the next one waits */
	uint64_t sync_position, sync_sequence; /* of the log, when the sync was sent */
	bool sync_spaces; /* the sync covers a new space table */
	bool running; /* recovered */
	bool untold; /* the owner does not know of all blocks in doubt yet */
	uint64_t tell_ns; /* when to ask the owner (again) to remove them */
	uint64_t lost_blocks;
	uint32_t lost_segments; /* at open: damaged or cut off */
	struct tn_store_salvage salvage;
	bool flush_waiting;
	uint64_t bytes_read, bytes_written, meta_bytes_written, read_errors, write_errors;
};

struct tn_store {
	struct tn_io *io;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
	struct tn_store_callbacks cb;
	const struct tn_store_events *events;
	bool read_only, prepare, opened, closing, rebuild;
	bool starved; /* a reserve found too little since the last look */
	bool look_again; /* a look for a segment to move was interrupted */
	uint32_t ndevices;
	struct tn_store_device *dev;
	/* geometry, equal on all devices */
	uint64_t segment_bytes;
	uint32_t segment_count, segment_pages;
	uint32_t slot_pages; /* of the slot table */
	uint32_t table_pages; /* of the segment table, before them in a checkpoint */
	uint32_t device_shift;
	uint64_t committed, reserved; /* over all devices */
	uint64_t sequence; /* the next */
	uint32_t recency; /* the newest that the owner named */
	uint64_t epoch;
	uint64_t slow_read_ns;
	uint64_t durability_ns; /* between a change and the sync that makes it durable; TN_STORE_NEVER: only when asked for */
	uint64_t boot[2]; /* of the machine; zero: unknown */
	uint32_t next_device; /* at which the next reserve begins: round robin */
	uint64_t tries; /* numbers what is asked to move, and what could not */
	uint32_t nshapes, nclasses;
	uint32_t most_slots; /* per segment, of all shapes */
	struct tn_store_shape *shape;
	struct tn_store_class *cls;
	struct tn_disk_spaces *spaces;
	bool spaces_lost; /* no copy was valid: rebuilt from block headers */
	struct tn_list queued; /* requests that the engine did not take, and syncs that wait for another sync */
	bool stalled; /* the engine took no more */
	uint32_t inflight;
	struct tn_store_waits *waits; /* of flushes */
	uint64_t budget_rate; /* bytes per day; 0: no limit */
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

static inline uint64_t tn_round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

#endif
