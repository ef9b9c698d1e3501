/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the store share: the state of a store and of its devices, how slots are numbered, and the calls
 * between the files. The calls stand in the order of the tree that docs/files.md shows: a file calls what is
 * declared above its own section. Nothing outside src/store includes this, except its tests.
 *
 * Slots are numbered by the page of the slot table that describes them: a global slot is
 * [device | page | bit], 63 slots per page, so that table, bitmaps and arrays are all indexed by shifting.
 */
#ifndef TN_STORE_STORE_INTERNAL_H
#define TN_STORE_STORE_INTERNAL_H

#include "base/allowance.h"
#include "base/error.h"
#include "base/list.h"
#include "store/format.h"
#include "store/store.h"

#define TN_STORE_SHAPES_MAX 64u
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
	TN_SLOT_STATES,
};

struct tn_slot_meta {
	uint64_t state : 4; /* enum tn_slot_state */
	uint64_t failures : 4;
	uint64_t sequence : 56; /* of the block */
};

#define TN_SLOT_FAILURES_MAX 15u

struct tn_store_device;

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

/* What failed is tried again after a pause that doubles up to a limit. */
struct tn_store_retry {
	uint32_t failures; /* in a row */
	uint64_t ns; /* not before */
};

/*
 * Slots and segments about which something is to be done, one word per page of a checkpoint (a bit per record), and in
 * `any` one bit per word that is not zero.
 */
struct tn_store_map {
	uint64_t *word, *any;
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

struct tn_store_segment {
	struct tn_list link; /* has_free of its shape, or unassigned of its device, or alone */
	uint32_t shape;
	uint32_t generation;
	uint32_t slots[TN_SLOT_STATES]; /* how many, by state */
	uint32_t cursor; /* part at which the next search begins */
	float warm; /* moving mean of the recency of the blocks that are used in the segment */
	uint64_t tried; /* the store's number of the last time that the segment could not move */
	bool closed; /* being emptied for another class, or beyond the capacity: no new block goes here */
	bool header_dirty; /* the on-disk header must be written before the record */
	bool prepared; /* every byte was written once */
};

enum tn_log_phase { TN_LOG_IDLE, TN_LOG_SPACES, TN_LOG_SEGMENT, TN_LOG_WRITE };

/* A group of the log: where it is, in bytes written to the log before it, ever, and its number. */
struct tn_log_point {
	uint64_t position, sequence;
};

#define TN_LOG_HEADERS 16u

/* A segment's header that is being written. */
struct tn_log_header {
	struct tn_store_req req;
	struct tn_disk_segment *page;
	uint32_t segment;
};

/* The append-only log of a device. */
struct tn_store_log {
	enum tn_log_phase phase;
	struct tn_log_point next;
	struct tn_log_point synced; /* groups before it are covered by a good sync */
	uint64_t epoch; /* of groups: rises when groups are written anew, so that the old ones are stale */
	uint64_t tail; /* position from which the newest root replays: groups before it may be overwritten */
	struct tn_disk_group *group; /* being written, or the last one that was */
	struct tn_log_header header[TN_LOG_HEADERS];
	uint32_t headers_next; /* segment at which the next ones are looked for */
	uint32_t headers_open; /* being written */
	int headers_status;    /* of the first of them that failed */
	uint64_t last_ns; /* when the last group was begun */
	uint64_t swept; /* pages passed by all sweeps so far */
	uint32_t cursor; /* page at which the next sweep begins */
	uint64_t unlogged; /* slots and segments with something to log */
	uint32_t headers_dirty;
	uint64_t oldest_ns; /* since when something is unlogged */
	uint64_t published_bytes; /* of blocks, since the last group was begun */
	bool urgent; /* slots are short: the next group does not wait for more records */
	bool force; /* a group is wanted even without records */
	bool full; /* no free space until the checkpoint ends */
	int doubt; /* a sync failed while a group was being written: the group must be written again */
	struct tn_log_point again; /* first group that recovery found and that may not be durable */
	struct tn_store_retry retry;
	struct tn_store_req req;
};

enum tn_durable_phase { TN_DURABLE_IDLE, TN_DURABLE_DATA, TN_DURABLE_SPACES, TN_DURABLE_MARK, TN_DURABLE_SYNC };

/* How far the log is durable, and the cycle that makes more of the log durable (log.c). */
struct tn_store_durable {
	enum tn_durable_phase phase;
	bool running; /* this session's first mark was written */
	struct tn_log_point reached; /* groups before it are durable, and marked so */
	struct tn_log_point cover; /* likewise when the cycle under way ends */
	bool copies_spaces; /* the cycle has written the second copy of a space table */
	uint64_t since_ns; /* age of the oldest record that was logged and is not in the cycle under way; 0: none */
	int doubt; /* a sync failed since the cycle began */
	uint64_t generation; /* of the newest mark */
	uint64_t spaces; /* generation of the newest space table that was ever known to be durable on this device; 0: unknown */
	bool mark_copy; /* the place of that mark: the next one goes to the other place */
	struct tn_disk_mark *mark; /* being written */
	struct tn_store_retry retry;
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
	struct tn_log_point start;
	uint32_t cursor;
	uint32_t soft_from[2]; /* by region, the first page that may be written only for its recency: they take turns */
	bool soft_any; /* there are such pages */
	uint64_t soft_due_ns; /* of a checkpoint for the sake of those pages; 0: none is planned */
	int doubt; /* a sync failed since the checkpoint began: it must be done again */
	bool hurry; /* somebody does nothing but wait for the checkpoint: it yields to nothing */
	uint64_t granted; /* bytes in flight that the checkpoint was allowed to write, and whose end is to be reported */
	bool log_required; /* a group at the start position will be durable with the pages */
	bool root_unknown; /* an attempt at this region failed after its root was sent: that root may be valid */
	uint64_t *dirty[2]; /* one bit per page: the page differs from what the region holds */
	uint64_t *soft[2]; /* one bit per page: the recency is newer than what the region holds */
	void *buffer;
	struct tn_store_retry retry;
	struct tn_store_req req;
};

enum tn_store_kind {
	TN_STORE_READS,
	TN_STORE_WRITES, /* and what else changes the file */
	TN_STORE_SYNCS,
	TN_STORE_KINDS
};

struct tn_store_health_state {
	enum tn_health health;
	uint32_t error_score[TN_STORE_KINDS], slow_score, probe_good;
	uint64_t probe_ns, probe_delay_ns;
	uint64_t good_ns;    /* when probes found it healthy; 0: they did not */
	uint64_t relapse_ns; /* from when it was healthy no more to the first probe */
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
	uint64_t retry_ns; /* after a failure: when to try again; 0: nothing failed */
	int status;	   /* that failure */
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

/* What a flush still waits for on one device. */
struct tn_store_wait {
	uint64_t sweep; /* the sweep that must have been passed; 0: it was passed */
	uint64_t ticket; /* groups before this one must be durable; 0: nothing */
	uint64_t look; /* the look at the file's name that must have ended; 0: nothing */
};

struct tn_store_flush {
	void (*done)(void *arg, int status); /* NULL: this entry is free */
	void *arg;
	int status;
	struct tn_store_wait wait[TN_DEVICES_MAX];
};

/* What is in a device's file. */
enum tn_found {
	TN_FOUND_NOTHING, /* no file, or one in which there is nothing */
	TN_FOUND_CREATING, /* an unfinished creation: no block was ever in it */
	TN_FOUND_STORE,
	TN_FOUND_STALE, /* of the store, but a session went without it */
	TN_FOUND_ABSENT, /* it cannot be opened */
};

struct tn_store_device {
	struct tn_store *store;
	unsigned char *memory; /* of all arrays and buffers below */
	size_t memory_bytes;
	uint32_t index;
	uint32_t file;
	uint32_t align; /* of offsets, lengths and memory that satisfies direct I/O; 1: any */
	bool in_memory; /* tmpfs: reserved space is as fast as written space */
	bool open;
	bool absent; /* this session goes without the device: offline, and nothing of it is read */
	enum tn_found found; /* when the store was opened */
	struct tn_error why; /* it is absent */
	struct tn_error later; /* its code is not 0: a structure is of a later version, so that the store may not be written */
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
	 * A change is unlogged, then in the group that is being written (inflight), then in one that was written
	 * (logged), then in what the cycle under way makes durable (covered).
	 */
	struct tn_store_map unlogged, inflight, logged, covered;
	uint64_t *free, *doubtful; /* slots, a word per page; doubtful: its data may be lost (sync.c) */
	struct tn_slot_meta *meta; /* 64 per page of the slot table, the last one unused */
	uint32_t *cookie;
	uint64_t slots[TN_SLOT_STATES]; /* by state, of assigned segments */
	uint64_t spaces_generation; /* of the table that was written to this device last */
	bool spaces_unsynced; /* no sync covers that table yet: the next one is not written before */
	bool spaces_copy; /* the place of the newest durable table: the next one goes to the other place */
	bool spaces_single; /* the other place has an older table: the cycle writes the newest there, too */
	struct tn_disk_spaces *spaces_page; /* the table that was written last */
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
	struct tn_log_point sync_sent; /* the log's next group, when the sync was sent */
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
	bool read_only, prepare, opened, closing, rebuild;
	bool starved; /* a reserve found too little since the last look */
	bool look_again; /* a look for a segment to move was interrupted */
	uint32_t ndevices;
	struct tn_store_device *dev; /* device[] */
	/* geometry, equal on all devices */
	uint64_t segment_bytes;
	uint32_t segment_count, segment_pages;
	uint32_t slot_pages; /* of the slot table */
	uint32_t table_pages; /* of the segment table, before them in a checkpoint */
	uint32_t device_shift;
	uint64_t slots[TN_SLOT_STATES]; /* by state, over all devices */
	uint64_t sequence; /* the next */
	uint32_t recency; /* the newest that the owner named */
	uint64_t epoch;
	uint64_t slow_read_ns;
	uint64_t durability_ns; /* between a change and the sync that makes it durable; TN_STORE_NEVER: only when asked for */
	uint64_t boot[2]; /* of the machine; zero: unknown */
	uint32_t next_device; /* at which the next reserve begins: round robin */
	uint64_t tries; /* numbers what is asked to move, and what could not */
	uint32_t nshapes;
	uint32_t most_slots; /* per segment, of all shapes */
	bool spaces_doubted; /* no copy may be the newest: block headers add what is newer */
	uint64_t spaces_floor[TN_SPACES_MAX]; /* then, minimum sequences of the newest valid copy */
	struct tn_list queued; /* requests that the engine did not take, and syncs that wait for another sync */
	bool stalled; /* the engine took no more */
	uint32_t inflight;
	uint32_t flushes; /* under way */
	struct tn_allowance budget; /* of writes, per day */
	uint64_t recovery_ns;
	uint64_t index_bytes;
	struct tn_store_device device[TN_DEVICES_MAX];
	struct tn_store_shape shape[TN_STORE_SHAPES_MAX];
	struct tn_store_flush flush[TN_FLUSHES_MAX];
	struct tn_disk_spaces spaces;
};

/* ---- bitmaps: bit i is bit i % 64 of word i / 64 ------------------------------------------------------------ */

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
static inline uint32_t tn_bit_next(const uint64_t *map, uint32_t from, uint32_t n)
{
	while (from < n) {
		uint64_t w = map[from / 64] >> (from % 64);

		if (w) {
			from += (uint32_t)__builtin_ctzll(w);
			return from < n ? from : n;
		}
		from = (from / 64 + 1) * 64;
	}
	return n;
}

static inline void tn_map_set(struct tn_store_map *m, uint64_t item)
{
	m->word[item >> 6] |= 1ull << (item & 63);
	tn_bit_set(m->any, (uint32_t)(item >> 6));
}

static inline void tn_map_clear(struct tn_store_map *m, uint64_t item)
{
	m->word[item >> 6] &= ~(1ull << (item & 63));
	if (m->word[item >> 6] == 0)
		tn_bit_clear(m->any, (uint32_t)(item >> 6));
}

#define tn_store_each(d, s) for (struct tn_store_device *d = (s)->dev; d < (s)->dev + (s)->ndevices; d++)

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

/* Items are what maps and checkpoints list: [page of the checkpoint | bit], segments before slots. */
static inline uint64_t tn_store_slot_item(const struct tn_store *s, uint32_t local)
{
	return ((uint64_t)s->table_pages << 6) + local;
}

static inline uint64_t tn_store_segment_item(uint32_t segment)
{
	return (uint64_t)(segment / TN_DISK_RECORDS) << 6 | segment % TN_DISK_RECORDS;
}

static inline uint32_t tn_store_page_count(const struct tn_store *s)
{
	return s->table_pages + s->slot_pages;
}

/* ---- state: segment.c --------------------------------------------------------------------------------------- */

int tn_store_shape_get(struct tn_store *s, uint64_t slot_bytes, uint32_t header_bytes, uint32_t *shape);
/* Can a segment's record or header from disk be believed? Makes its shape. */
bool tn_store_shape_of(struct tn_store *s, const struct tn_disk_shape *is, uint32_t *shape);
/* The checkpoint's page differs from what both regions hold. */
void tn_store_page_dirty(struct tn_store_device *d, uint32_t page);
/* A slot or segment is to be logged, and its checkpoint page to be written. */
void tn_store_item_changed(struct tn_store_device *d, uint64_t item);
/* The on-disk header of the segment must be written before its record. */
void tn_store_header_dirty(struct tn_store_device *d, uint32_t segment);
/* State changes of single slots, with all counters. */
void tn_store_slot_set(struct tn_store_device *d, uint32_t local, enum tn_slot_state state);
/* Links a segment into the list where it belongs now. */
void tn_store_segment_place(struct tn_store_device *d, uint32_t segment);
/* All slots of a segment that has just got its shape are free. */
void tn_store_segment_fill(struct tn_store_device *d, uint32_t segment);
/* Takes an emptied or unassigned segment for a shape. */
void tn_store_segment_assign(struct tn_store_device *d, uint32_t segment, uint32_t shape);
/* Whether the segment could be another shape's. */
bool tn_store_segment_movable(const struct tn_store_device *d, uint32_t segment, uint32_t shape);
/* What a slot or segment is now, as the disk has it. */
void tn_store_record_fill(struct tn_store_device *d, uint64_t item, struct tn_disk_record *rec);
/* The on-disk header of a segment as it is now, assigned or not. */
void tn_store_segment_seal(const struct tn_store_device *d, uint32_t segment, struct tn_disk_segment *h);

/* Records of a page about which not everything is durable. */
static inline uint64_t tn_store_settling(const struct tn_store_device *d, uint32_t page)
{
	return d->unlogged.word[page] | d->inflight.word[page] | d->logged.word[page] | d->covered.word[page];
}

/* Something about the segment's assignment is not durable. */
static inline bool tn_store_segment_settling(const struct tn_store_device *d, uint32_t segment)
{
	return tn_store_settling(d, segment / TN_DISK_RECORDS) >> segment % TN_DISK_RECORDS & 1;
}

static inline uint32_t tn_store_used(const struct tn_store_segment *sg)
{
	return sg->slots[TN_SLOT_RESERVED] + sg->slots[TN_SLOT_COMMITTED] + sg->slots[TN_SLOT_FREEING];
}

/* No slot of the segment is used, and its last assignment is durable. */
static inline bool tn_store_segment_clean(const struct tn_store_device *d, uint32_t segment)
{
	return tn_store_used(&d->segs[segment]) == 0 && !tn_store_segment_settling(d, segment);
}

static inline bool tn_store_device_writable(const struct tn_store_device *d)
{
	return !d->store->read_only && (d->hs.health == TN_HEALTHY || d->hs.health == TN_SLOW);
}

static inline bool tn_store_in_doubt(const struct tn_store_device *d, uint32_t local)
{
	return d->doubtful[local >> 6] >> (local & 63) & 1;
}

/* Nothing is written to this device's index: the device is offline, or its file was deleted and nobody will ever read it. */
static inline bool tn_store_index_off(const struct tn_store_device *d)
{
	return d->hs.health == TN_OFFLINE || d->deleted;
}

/* ---- state: sync.c ------------------------------------------------------------------------------------------ */

/* Ends the flush if it waits for nothing more. */
void tn_store_flush_end(struct tn_store *s, struct tn_store_flush *f);
/* Settles flushes after more became durable, or nothing did. */
void tn_store_waits_settle(struct tn_store_device *d, int status);
/* What is in one map is in the other one from now on. */
void tn_store_map_move(struct tn_store_device *d, struct tn_store_map *from, struct tn_store_map *to);
/* Empties a map; each item goes to the function. */
void tn_store_map_empty(struct tn_store_device *d, struct tn_store_map *map,
			void (*each)(struct tn_store_device *d, uint64_t item));
/* What was logged and is not durable is marked to be logged once more. */
void tn_store_log_anew(struct tn_store_device *d);
/* After a failed sync: the groups that may be lost by it are written over. */
void tn_store_log_rewind(struct tn_store_device *d);
/* A sync of the device's file ended, whoever asked for it. */
void tn_store_sync_ended(struct tn_store_device *d, int status);
/* Asks the owner to remove what is in doubt; returns when to call again. */
uint64_t tn_store_doubt_step(struct tn_store_device *d, uint64_t now_ns);

/* ---- state: health.c ---------------------------------------------------------------------------------------- */

/* The device's probe ended. */
void tn_store_health_probed(struct tn_store_device *d, bool good);
/* Reports that the file has no name. */
void tn_store_file_deleted(struct tn_store_device *d);
/* A request of the index ended, with which the device shows its health. */
void tn_store_observe_req(const struct tn_store_req *r, int status);
/* The next try comes after `first_ns`, doubled per failure; `what` is logged the first time. */
void tn_store_retry_later(struct tn_store_device *d, struct tn_store_retry *r, uint64_t first_ns, const char *what,
			  int status);
void tn_store_budget_init(struct tn_store *s, uint64_t bytes_per_day);

/* ---- requests: io.c ----------------------------------------------------------------------------------------- */

void tn_store_req_init(struct tn_store_req *r, struct tn_store_device *d,
		       void (*finish)(struct tn_store_req *r, int status));
/* A query of the file (TN_IO_STAT) ends as a sync does: with -ESTALE if the file has no name. A sync asks by itself. */
void tn_store_req_submit(struct tn_store_req *r, enum tn_io_op op, uint64_t offset, void *buf, uint64_t len);
void tn_store_requeue(struct tn_store *s);
/* One round of polling; what is not the store's goes to its done function. */
void tn_store_poll(struct tn_store *s, uint64_t timeout_ns);
/* Blocking transfers while opening and closing. */
int tn_store_sync_io(struct tn_store_device *d, enum tn_io_op op, uint64_t offset, void *buf, uint32_t len);
/* Passes on what the check of a structure returned, and notes one of a later version: the open is refused then. */
int tn_store_checked(struct tn_store_device *d, int rc);
/* Many large reads at once, of whole pages; pages that cannot be read become 0xff. */
void tn_store_bulk_read(struct tn_store_device *d, uint64_t offset, void *buf, uint64_t len);
/* Likewise of chunks that lie stride apart; they come together in buf. */
void tn_store_strided_read(struct tn_store_device *d, uint64_t offset, uint64_t stride, uint32_t chunk, uint64_t len, void *buf);
/* Page-aligned memory of the store, counted in index_bytes; give back with the same size. */
void *tn_store_pages_get(struct tn_store *s, size_t bytes);
void tn_store_pages_put(struct tn_store *s, void *p, size_t bytes);

/* ---- one file: spaces.c ------------------------------------------------------------------------------------- */

/* The newest valid table, after the marks were read. */
void tn_store_spaces_load(struct tn_store *s);
/* Writes an empty table, with memory for one. */
int tn_store_spaces_format(struct tn_store_device *d, struct tn_disk_spaces *t);
/* Is a block of this space and sequence still valid? */
bool tn_store_spaces_valid(const struct tn_store *s, uint16_t space, uint64_t sequence);
/* A block header found while rebuilding: is its space known? If the table is in doubt, what is newer in headers counts. */
bool tn_store_spaces_adopt(struct tn_store *s, const struct tn_store_header *h);

/* ---- one file: superblock.c --------------------------------------------------------------------------------- */

/* The store's file in this directory; -ENAMETOOLONG. */
int tn_store_set_path(struct tn_store_device *d, const char *dir);
/* Opens and locks the file (creates it, with make: -EEXIST if there is one); detail says who has it. */
int tn_store_device_open(struct tn_store_device *d, const struct tn_store_opts *opts, bool make, void *pages);
void tn_store_device_close(struct tn_store_device *d);
/* What the open file is; fills found and super. -EUCLEAN, -EPROTONOSUPPORT, -EIO: it cannot be used, and must not be written. */
int tn_store_identify(struct tn_store_device *d, void *pages);
/* Opens the device's file with its lock; *left_ns, how long another owner is waited for, goes down by what it took. */
int tn_store_lock_wait(struct tn_store_device *d, unsigned flags, uint64_t *left_ns, uint32_t *file);
/* Both copies, one after the other, with a new generation; `page` is memory for one. */
int tn_store_super_write(struct tn_store_device *d, enum tn_disk_state state, struct tn_disk_super *page);

/* ---- one device: background.c ------------------------------------------------------------------------------- */

void tn_store_background_init(struct tn_store_device *d);
/* Probes a device that is not healthy. This and the next ones return when to call again. */
uint64_t tn_store_probe_step(struct tn_store_device *d, uint64_t now_ns);
/* Begins to make the file longer by one segment, if it may be and is not being made longer. */
void tn_store_allocate(struct tn_store_device *d, uint64_t now_ns);
/* Is a segment on its way that is worth waiting for? */
bool tn_store_allocating(const struct tn_store_device *d, uint64_t now_ns);
/* Makes the file longer if no segment is left to be taken, on a device that takes writes. */
uint64_t tn_store_allocate_step(struct tn_store_device *d, uint64_t now_ns);
uint64_t tn_store_prepare_step(struct tn_store_device *d, uint64_t now_ns);
/* The segment being prepared is wanted as it is: true if it can be had at once, else after the write under way. */
bool tn_store_prepare_stop(struct tn_store_device *d);

/* ---- one device: log.c -------------------------------------------------------------------------------------- */

void tn_store_log_init(struct tn_store_device *d);
/* Starts a commit if there is reason to; returns when to ask again. */
uint64_t tn_store_log_step(struct tn_store_device *d, uint64_t now_ns);
/* Likewise a cycle. */
uint64_t tn_store_durable_step(struct tn_store_device *d, uint64_t now_ns);
/*
 * The newest valid mark; -ENOENT: none, as in stores of programs that synced before each group. *damaged: the other copy, or one of the
 * two, is not valid, and may have been a newer one.
 */
int tn_store_mark_load(struct tn_store_device *d, struct tn_disk_mark *mark, bool *damaged);
/* Writes the newest mark again with the same bytes. */
int tn_store_mark_again(struct tn_store_device *d);
/* Writes the newest space table to its other place; a sync must follow. */
int tn_store_spaces_copy(struct tn_store_device *d);
/* Writes the first mark of the session; only then are there cycles. */
int tn_store_durable_start(struct tn_store_device *d);

/* ---- one device: checkpoint.c ------------------------------------------------------------------------------- */

void tn_store_ckpt_init(struct tn_store_device *d);
void tn_store_ckpt_start(struct tn_store_device *d, bool final);
uint64_t tn_store_ckpt_step(struct tn_store_device *d, uint64_t now_ns);
/* The first root of a new device, and the only one: what is at the second one's place goes. */
int tn_store_ckpt_format(struct tn_store_device *d);

/* ---- one device: reserve.c ---------------------------------------------------------------------------------- */

/* Ends moves, empties what is beyond the capacity; returns when to call again. */
uint64_t tn_store_move_step(struct tn_store_device *d, uint64_t now_ns);

/* ---- opening: rebuild.c ------------------------------------------------------------------------------------- */

/* The slot table of a device while it is being recovered: what the pages said, then what the log said. */
struct tn_store_table {
	struct tn_store_device *dev;
	struct tn_disk_page *seg_page; /* all pages of a checkpoint: table_pages */
	struct tn_disk_page *page; /* and slot_pages behind them */
	uint32_t bad_pages;
	uint64_t fitting, unfit; /* blocks of the segment that was compared last */
	uint64_t max_sequence;
	uint64_t max_epoch;
	uint64_t mark_sequence, mark_epoch; /* of the newest mark */
	bool believe_all; /* there is no mark: each group was synced before the next */
	bool same_boot; /* no power cut came since the groups behind the mark were written, so nothing of them is lost */
	bool mark_damaged; /* the newest mark may be lost: more than it says may be durable */
};

static inline struct tn_disk_record *tn_store_seg(const struct tn_store_table *t, uint32_t segment)
{
	return &t->seg_page[segment / TN_DISK_RECORDS].rec[segment % TN_DISK_RECORDS];
}

/* Compares a segment's block headers with the table. A record that no header bears out is flagged to be dropped. */
int tn_store_compare_headers(struct tn_store_table *t, uint32_t segment);
/* Reads the block headers of one segment (first..last part) into the table. */
int tn_store_rebuild_parts(struct tn_store_table *t, uint32_t segment, uint32_t first_part, uint32_t parts);
/* The whole device from segment and block headers. */
int tn_store_rebuild(struct tn_store_table *t);

/* ---- opening: adopt.c --------------------------------------------------------------------------------------- */

/* Gives the segments the shapes that index and headers say; tells what is damaged. */
int tn_store_adopt_segments(struct tn_store_table *t);

/* ---- opening: recovery.c, set.c ----------------------------------------------------------------------------- */

int tn_store_recover(struct tn_store *s);
/* Opens, locks and identifies or creates the files of all devices; fills geometry and super. */
int tn_store_set_open(struct tn_store *s, const struct tn_store_opts *opts);

/* ---- the whole: store.c, while opening and closing ---------------------------------------------------------- */

/* Drives the engine until everything so far is durable. */
int tn_store_flush_wait(struct tn_store *s);
/* Drives the engine through a whole checkpoint. */
int tn_store_ckpt_wait(struct tn_store_device *d, bool final);

#endif
