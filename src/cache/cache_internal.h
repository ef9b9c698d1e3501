/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the cache: what its files share.
 *
 * One owner thread (owner.c) steps everything: loads, saves, offloads, eviction, the store. Callers
 * talk to it through an intrusive lock-free list of commands and wait on a futex in their operation.
 * Fields marked "shared" are accessed with __atomic by callers and owner; everything else belongs
 * to the owner from the command that hands the operation over until `drained`.
 */
#ifndef TN_CACHE_INTERNAL_H
#define TN_CACHE_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <sys/types.h>
#include <tenuto/cache.h>
#include <tenuto/events.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/exec.h"
#include "base/list.h"
#include "base/log.h"
#include "base/rng.h"
#include "block/block.h"
#include "io/io.h"
#include "policy/policy.h"
#include "ring/ring_internal.h"
#include "sched/mix.h"
#include "sched/sched.h"
#include "store/store.h"
#include "tier/headers.h"
#include "tier/host.h"
#include "tier/mover.h"

/* Whether a host slot's block is still to go to disk. */
enum tn_dirty {
	TN_DIRTY_NOT,
	TN_DIRTY_WAITS, /* in the offload queue */
	TN_DIRTY_MOVES, /* in an offload */
	TN_DIRTY_FAILED, /* could not be written: in host memory only; tried again by the next flush */
};

/* Flags of a block in its header and in the log. */
#define TN_ENTRY_PARTIAL 1u /* holds a prompt's unfinished tail */
#define TN_ENTRY_EXPIRES 2u /* had a time to live: not kept across reopening */

/* A host slot that waits for its offload, since then. */
struct tn_offload_place {
	uint64_t since_ns;
	uint32_t slot;
};

struct tn_cmd {
	struct tn_cmd *next;
	void (*run)(struct tn_cmd *cmd);
};

struct tn_op;

/* One block of an operation. */
struct tn_item {
	struct tn_op *op;
	tn_block block;
	tn_slot slot;       /* on disk */
	uint32_t host_slot; /* being filled or read from */
	uint64_t sequence;   /* save: of its header */
	uint16_t next_chunk; /* save: first one not started */
	uint16_t done_chunks;
	uint16_t inflight; /* reads, moves and header I/O of this item */
	uint16_t landed;   /* loads: chunks that were read, and wait for the header or for a move */
	uint8_t state;     /* enum tn_item_state */
	uint8_t header;    /* enum tn_header_state */
	uint8_t saved;     /* saves: enum tn_saved, as soon as it is known */
	bool frozen;       /* a verification was posted: nobody may join any more */
	bool admitted;     /* saves: to be kept on disk */
	bool partial;      /* loads: only some of its pages are wanted */
	uint8_t device;    /* loads: of slot */
	uint8_t busy;      /* shared; loads: its pages may still be written to */
	int error;
	struct tn_item *followers; /* items of other loads that get a copy */
	struct tn_item *next_follower;
};

enum tn_item_state {
	TN_ITEM_IDLE, /* nothing to do, or over */
	TN_ITEM_DISK, /* load: leads a flight from disk */
	TN_ITEM_HOST, /* load: copied from host memory */
	TN_ITEM_FOLLOW, /* load: gets a copy from the leader */
	TN_ITEM_PLACE, /* save: has no place yet */
	TN_ITEM_WRITE, /* save: bytes on their way */
	TN_ITEM_HEADER, /* save: data written, header not */
	TN_ITEM_STORED, /* save: header written (disk) or copied (host) */
	TN_ITEM_EXISTING,
	TN_ITEM_REJECTED,
	TN_ITEM_FAILED,
};

enum tn_header_state { TN_HEADER_NONE, TN_HEADER_READING, TN_HEADER_HAVE };

enum tn_op_kind { TN_OP_LOAD, TN_OP_PREFETCH, TN_OP_SAVE, TN_OP_OFFLOAD };

#define TN_CHUNK_IDLE 0u
#define TN_CHUNK_MOVING 1u
#define TN_CHUNK_DONE 2u
#define TN_CHUNK_LANDED 3u /* read, to be checked */
#define TN_CHUNK_SOUND 4u  /* read and checked, to be copied on */
#define TN_CHUNK_FAILED 5u
#define TN_CHUNK_READING 6u

/* A caller that waits for a durable point: of a flush or of a dropped space. */
struct tn_flush_waiter {
	struct tn_cmd cmd;
	struct tn_list link;
	struct tn_cache *cache;
	uint64_t offload_target; /* offload tickets to be finished first */
	bool syncing;
	uint32_t done; /* shared: futex. 2: the caller timed out, and the owner frees it */
	int status; /* before done: of the first block that could not be written */
	struct tn_op *save; /* that is over when this flush ends: durability_ms is 0 */
	struct tn_space *space; /* a drop's */
	uint32_t next; /* a drop's: the record to be looked at */
};

/* A load, prefetch, save or offload. */
struct tn_op {
	struct tn_cmd kick;
	uint32_t kicked; /* shared: kick is queued */
	uint32_t seq;    /* shared: futex word, rises with every completion */
	uint32_t waiters; /* shared */
	uint32_t drained; /* shared: the owner is done with it */
	uint32_t cancel;  /* shared: cancel (load), abort (save) */
	uint32_t commit;  /* shared: save */
	uint32_t good;    /* shared: good prefix of a load, in blocks */
	uint32_t left[TN_CHUNKS_MAX]; /* shared: blocks of the good prefix whose chunk is missing */

	struct tn_list link; /* active list */
	struct tn_list place_link; /* saves and offloads: in cache->placing, or alone */
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_pool *pool;
	uint8_t kind;
	bool active;
	bool flat; /* spans are host slots, not pages */
	bool cancelled;
	int32_t priority;
	uint64_t deadline_ns;
	uint64_t first_page, end_page; /* load: wanted pages */
	uint64_t begin_ns;
	struct tn_key parent;
	bool partial_last;
	bool held; /* save: begins when its space is not being dropped any more */
	uint64_t ttl_ns;
	uint8_t *outcome; /* save: the caller's, by block, or NULL */
	int kept_off;     /* save: why the first block that the policy was not asked about, or wanted, does not go to disk */
	uint32_t n;
	uint32_t hdr_i, chunk, i; /* cursors */
	uint32_t inflight;
	uint32_t unplaced, unwritten; /* save: items without a place; with a place, but without all their data */
	uint32_t copying;	      /* save: of those with a place, they that have it in host memory */
	uint32_t ready_chunks;        /* save: the first so many chunks have final bytes */
	uint64_t admitted_bytes;      /* save: of the write backlog */
	uint64_t first_ticket;        /* offload */
	struct tn_flush_waiter flush; /* save: see tn_save_flush */
	uint64_t demand;	      /* of slots on disk, see tn_store_move; 0: none */
	uint64_t stuck_ns;	      /* since when nothing but transfers, or older ones in the queue, is in its way */
	uint64_t again_ns;	      /* transfers are: when to look again though none ended; 0: they are not */
	uint64_t ended;		      /* cache->ended when they were */
	bool own_gone;		      /* nothing of its own class could be evicted for it */
	uint64_t since_ns;	      /* offload: since when its first block has waited */
	uint32_t layers_given; /* save; shared */
	uint8_t *layer_state;  /* save: TN_STORE_OBJECTS_MAX; shared: 0 no, 1 given, 2 ready */
	struct tn_event *layer_event;
	struct tn_save_result result;
	struct tn_key *keys;
	uint32_t *pages;
	struct tn_item *items;
	uint64_t *checks;
	uint8_t *chunk_state; /* chunk-major: [chunk * n + i] */
	/* What the scheduler knows of a load (schedule.c). */
	struct tn_sched_load sched;
	uint64_t input_tokens, start_ns;
	uint64_t *before_ns; /* by layer */
	bool from_disk; /* it has something to read: not all of it comes from host memory and from other loads */
	uint32_t at_layer; /* shared: the engine waits for this layer, or computes it, ... */
	uint64_t at_ns;	   /* shared: ... since then; 0: not known, or at_layer changes */
	uint32_t left_layer; /* the caller's: which wait it returned from last, ... */
	uint64_t left_ns;    /* ... and when; 0: it is in one */
	/* Loads: what the executor is told, once (reads.c). */
	struct tn_ring_list list;
	uint64_t *disk;	     /* by block: its first object's address */
	unsigned char **flat_at; /* by block, of prefetches: its host slot */
	int32_t *read_status;
	uint32_t iocbs;	     /* out */
	uint64_t reading;    /* bytes of them */
	uint32_t landed;     /* chunks of all items that wait for a move: see tn_item */
	uint32_t next_free; /* shared: link of the free stack */
	uint64_t gate;	    /* shared: of its handle, see handle.c */
};

struct tn_space {
	struct tn_cache *cache;
	uint32_t refs; /* handles; under cache->lock */
	uint32_t pools; /* registered; under cache->lock */
	uint32_t ops;  /* shared: operations under way */
	uint32_t dropping; /* shared: not all blocks of a drop are marked yet; nothing is found, and saves do not begin */
	uint16_t index;
	uint32_t epoch; /* shared */
	struct tn_key id;
	struct tn_secret secret;
	struct tn_geometry geometry;
	struct tn_shape shape;
	uint32_t match_rule, window_blocks, group;
	uint32_t disk_class;
	bool host_ok;
	struct tn_quota quota; /* shared members */
	char model[TN_SLACK_NAME]; /* as much of its name */
	struct tn_slack *slack; /* corrected by what loads show */
	bool slack_moved;	/* since the copy was made */
	uint64_t slack_shared_ns;
	pthread_mutex_t plan_lock; /* of the two below, for tn_plan; the owner only tries it */
	struct tn_slack *plan_slack;
	uint64_t *plan_scratch;
};

struct tn_pool {
	struct tn_space *space;
	uint32_t ops; /* shared */
	struct tn_layout layout;
	uintptr_t *table;
	size_t table_bytes;
	uint32_t align;	   /* of all its pages and planes */
	struct tn_p2p *p2p; /* where it lies on the bus: for executors that are no CPU */
	uint64_t *loading; /* shared bitmap: pages that belong to a load */
	size_t loading_bytes;
	uint32_t *saving; /* shared: by page, how many saves it is part of */
	size_t saving_bytes;
};

struct tn_lease {
	uint32_t next; /* free list */
	uint32_t generation; /* odd: taken. Shared. */
	uint32_t n;
	tn_block *blocks;
};

#define TN_OFFLOAD_BLOCKS 64u  /* of one offload */
#define TN_PLACES_AT_ONCE 256u /* disk slots that a save asks for in one go */

/* Why a block is among the doomed. */
enum tn_doom {
	TN_DOOM_NOT,
	TN_DOOM_DROPPED, /* it leaves its places when nobody holds it any more */
	TN_DOOM_NOWHERE, /* it has no place; its record goes when nobody holds it, unless it was saved again by then */
};

struct tn_recovery;
struct tn_p2p;
struct tn_schedule;
struct tn_events;
struct tn_flights; /* block -> leading item */
struct tn_reads;
struct tn_workers;

/* Counters that only the owner changes and anyone reads. */
struct tn_counters {
	uint64_t loads, load_blocks, load_failed_blocks, joined_blocks;
	uint64_t saves, saved_blocks, existing_blocks, host_only_blocks, admission_rejected_blocks, save_failed_blocks;
	uint64_t offload_lost_blocks;
	uint64_t evicted_disk_blocks, evicted_host_blocks, dropped_blocks;
	uint64_t offloaded_blocks, promoted_blocks, prefetched_blocks, blocks_read_back;
	uint64_t verified_objects, corrupt_objects, io_errors, bounced_objects;
	uint64_t recovered_blocks, host_blocks, disk_blocks;
	uint64_t resolve_ns, submit_ns, submit_layers;
};

struct tn_cache {
	struct tn_cache_opts o;
	struct tn_log log;
	struct tn_logger *logger; /* with threads: the log lines' way to the caller */
	const struct tn_alloc *alloc;
	struct tn_clock clock;
	struct tn_rng rng;
	uint32_t handle_slot; /* handle.c; 0: none */
	pid_t opener;
	uint64_t opener_mark; /* fork is detected */

	pthread_mutex_t lock; /* spaces and pools: open and close only */
	struct tn_space *spaces[TN_STORE_SPACES_MAX]; /* written by the owner, while the caller holds the lock */
	uint32_t npools;

	struct tn_cmd *commands; /* shared: stack */
	pthread_t owner;
	bool owner_runs;
	uint32_t opened; /* shared: futex, 1 when open ended, 2 when it may close */
	int open_status;
	struct tn_error open_error;
	bool stopping;
	int eventfd;
	uint32_t eventfd_used; /* shared */
	uint32_t completions_pending;

	struct tn_io *io;
	/*
	 * The devices: tn_devices_open and tn_engine_open, a test's, or the lab's. open_devices is called on the owner thread
	 * before the first engine is made, free_devices with the cache.
	 */
	int (*open_devices)(struct tn_cache *cache);
	int (*make_engine)(const struct tn_cache *cache, uint32_t depth, struct tn_io **out);
	void (*free_devices)(void *devices); /* NULL: there is nothing to free */
	void *devices;
	uint64_t slow_read_ns; /* latency budget of a read */
	struct tn_mix mix[TN_DEVICES_MAX]; /* by device; version 0: nothing is known */
	struct tn_store *store;
	uint32_t ndevices; /* of the store: as many as it was made with, also if fewer directories were given */
	struct tn_schedule *schedule; /* NULL: everything goes as it comes */
	struct tn_registry *registry;
	struct tn_policy *disk_policy, *host_policy;
	const struct tn_policy_ops *policy_ops;
	struct tn_exec *exec;
	struct tn_workers *workers;
	struct tn_mover *mover;
	struct tn_reads *reads; /* NULL without disks */
	struct tn_headers *headers;
	struct tn_host *host;
	uint8_t *host_dirty;  /* by host slot: enum tn_dirty */
	uint8_t *host_queued; /* by host slot: it has a place in the offload queue */
	uint32_t host_dirty_slots;
	uint64_t host_dirty_bytes; /* of the blocks in them, on disk */
	struct tn_flights *flights;
	struct tn_secret secret;
	uint64_t segment_bytes; /* of new stores; 0: the store's choice */
	uint64_t slot_bytes;	/* of the blocks announced at open; 0: none were */
	uint64_t stored_slots;	/* of the stores that were there */
	uint64_t boot[2]; /* which boot of the machine this is; zero: the kernel is asked (simulations set it) */
	uint64_t entropy[2]; /* secrets and UUIDs of new stores come from it; zero: from the kernel (simulations set it) */
	char *dir_paths;

	struct tn_op *ops;
	uint64_t free_ops; /* shared: tagged stack of op indices */
	struct tn_op *offloads; /* the owner's own operations */
	uint32_t noffloads;
	struct tn_list loads, saves; /* active */
	struct tn_list placing; /* saves and offloads with blocks that have no place yet, the oldest first */
	uint64_t places_due_ns; /* when to ask them again without being woken */
	uint64_t ended; /* how many loads, saves and offloads are over: what they held may be free */
	uint32_t disk_loads;	     /* of the loads, those from disk */
	struct tn_offload_place *offload_queue; /* ring */
	uint32_t offload_head, offload_count, offload_size;
	uint64_t offload_queued; /* tickets: how many were ever queued */
	int offload_error;     /* of the last one that failed */
	int offload_lost;      /* likewise, of blocks that left host memory before they could be written, and no flush has told */
	uint32_t failed_slots; /* TN_DIRTY_FAILED */
	uint64_t offload_retry_ns; /* when to try those again without being asked */
	bool offload_again;    /* a device came back: try those once more */
	bool offloads_first;   /* they are stepped before the saves this time */
	struct tn_list flushes;
	struct tn_list drops; /* their waiters, until the blocks are doomed; then among the flushes */

	struct tn_lease *leases;
	uint32_t nleases;
	uint64_t free_leases; /* shared: tagged stack */
	tn_block *lease_blocks;

	tn_block *doomed; /* ring: blocks to forget when unpinned */
	uint32_t doomed_head, doomed_count, doomed_size;
	uint8_t *is_doomed; /* shared, by block: enum tn_doom; in the ring once if not TN_DOOM_NOT */
	uint32_t doomed_look;  /* shared: one of them may have been let go of: go round once */
	uint32_t doomed_round; /* still to be looked at on this round */
	uint64_t doomed_due_ns; /* of the next one that nothing asked for */
	tn_slot *slot_scratch; /* TN_PLACES_AT_ONCE */
	uint8_t *unread; /* bit per block: written to disk since open, and not loaded from there so far */
	struct tn_recovery *recovery;

	uint64_t space_disk_blocks[TN_STORE_SPACES_MAX], space_host_blocks[TN_STORE_SPACES_MAX];
	uint32_t space_records[TN_STORE_SPACES_MAX]; /* registered blocks, wherever they lie */
	uint32_t space_recency[TN_STORE_SPACES_MAX]; /* tick of its last use */
	uint8_t space_leaving[TN_STORE_SPACES_MAX]; /* enum tn_leaving */
	uint32_t leaving_cursor; /* of the registry: records to go; 0: nothing is looked for */
	uint64_t leaving_next_ns; /* the blocks that are on their way out may be held: then more have to go */
	uint64_t space_disk_coming[TN_STORE_SPACES_MAX]; /* slots of blocks that are being written */
	uint64_t space_host_coming[TN_STORE_SPACES_MAX]; /* host slots that are being filled */
	uint64_t disk_entries; /* of the disk policy; blocks admitted, written or not */
	struct tn_events *events;
	uint32_t *expiry; /* shared, by block: second after which it is not found; 0: none */
	uint32_t ttl_used; /* shared */
	uint32_t expiry_cursor;
	uint64_t expiry_due_ns;
	uint32_t tick; /* logical time: requests, since the store was made */
	uint32_t *recency; /* by block on disk, or on its way there: tick of the last request for it */
	uint64_t disk_ns_per_mib, host_ns_per_mib; /* shared: estimates */
	uint64_t read_bps; /* shared: of all devices together, as the scheduler knows it; 0: not yet */
	struct tn_counters c;
	uint64_t lookups, lookup_blocks, hit_blocks; /* shared, any thread */
	uint32_t max_blocks, max_objects, max_pages;
};

/* cache.c: what tn_cache_open is made of; a simulation has its own I/O engine, clock and executor (open.c) */
int tn_cache_create(const struct tn_cache_opts *opts, struct tn_cache **out);
/* Its directories and threads; if that fails, the cache is freed. */
int tn_cache_start(struct tn_cache *cache);
void tn_cache_free(struct tn_cache *cache);

/* owner.c */
/* One turn of the loop; false if nothing happened. *due_ns: when to come back without being woken. */
bool tn_core_step(struct tn_cache *cache, uint64_t *due_ns);
/*
 * After a step in which nothing happened: sleeps in the engine until a completion, a wake-up or the time is up;
 * whether there was a completion.
 */
bool tn_core_wait(struct tn_cache *cache, uint64_t timeout_ns);
bool tn_core_idle(const struct tn_cache *cache);
int tn_owner_start(struct tn_cache *cache);
void tn_owner_stop(struct tn_cache *cache);

/* command.c */
bool tn_forked(const struct tn_cache *cache);
/* First in every public call: 0, or -ECHILD in a forked child, where nobody would ever answer. */
static inline int tn_check_process(const struct tn_cache *cache)
{
	return tn_forked(cache) ? -ECHILD : 0;
}
/* Takes and runs what callers have sent; whether there was anything. */
bool tn_commands_run(struct tn_cache *cache);
void tn_owner_send(struct tn_cache *cache, struct tn_cmd *cmd);
/*
 * Runs fn(arg) on the owner thread and waits for it, without a deadline: the owner never waits for I/O while the cache
 * is open, so it comes round to fn within a step, and fn may not wait for anything either.
 */
int tn_owner_call(struct tn_cache *cache, int (*fn)(struct tn_cache *cache, void *arg), void *arg);
void tn_op_kick(struct tn_op *op);
bool tn_op_kicked(struct tn_op *op);
void tn_op_notify(struct tn_op *op);
void tn_op_drained(struct tn_op *op);

/* match.c */
int tn_leases_create(struct tn_cache *cache);
void tn_leases_destroy(struct tn_cache *cache);

/* engine.c: the devices, before the first engine; and an engine on them, for the thread that calls it */
int tn_devices_open(struct tn_cache *cache);
int tn_engine_open(const struct tn_cache *cache, uint32_t depth, struct tn_io **out);

/* open.c: everything that opens and closes on the owner thread */
int tn_core_open(struct tn_cache *cache);
int tn_core_close(struct tn_cache *cache);

/* open.c, owner thread: what becomes known with the first space */
uint64_t tn_disk_capacity(const struct tn_cache *cache);
void tn_evict_to_capacity(struct tn_cache *cache);
int tn_host_policy_for(struct tn_cache *cache, const struct tn_shape *shape);

/* op.c */
int tn_ops_create(struct tn_cache *cache);
void tn_ops_destroy(struct tn_cache *cache);
struct tn_op *tn_op_take(struct tn_cache *cache);
void tn_op_give(struct tn_op *op);
int tn_op_arm(struct tn_op *op, struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
	      const uint32_t *pages);
uint64_t tn_stack_pop(uint64_t *head, uint32_t (*next)(void *arg, uint32_t i), void *arg);
void tn_stack_push(uint64_t *head, uint32_t i, uint32_t *next);
void tn_op_span(struct tn_op *op, uint32_t i, struct tn_span *span);

/* load.c, save.c, offload.c: one step each; return whether anything happened */
void tn_load_start(struct tn_cmd *cmd);
bool tn_loads_step(struct tn_cache *cache, uint64_t now_ns);
void tn_save_start(struct tn_cmd *cmd);
/* save_begin.c: finds out what there is to do, block by block. */
void tn_save_begins(struct tn_op *op);
void tn_save_describe(struct tn_op *op, uint32_t i, tn_block parent, uint32_t depth, struct tn_policy_block *info);
bool tn_saves_step(struct tn_cache *cache);
/* places.c: places for blocks that are to be stored */
void tn_places_join(struct tn_op *op);
void tn_places_leave(struct tn_op *op);
bool tn_places_step(struct tn_cache *cache);
void tn_item_release(struct tn_item *item);
void tn_item_failed(struct tn_item *item, int status);
/* A block that had a place has all its data there, or never will. */
void tn_item_data_over(struct tn_item *item);
static inline bool tn_item_on_disk(const struct tn_item *item)
{
	return item->slot != TN_SLOT_NONE;
}
bool tn_save_events_pending(const struct tn_cache *cache);
bool tn_save_op_step(struct tn_op *op);
void tn_offload_push(struct tn_cache *cache, uint32_t host_slot);
/* A block in host memory need not go to disk any more, or is there: it does not wait. */
void tn_offload_settled(struct tn_cache *cache, uint32_t host_slot);
/* *due_ns: when to come back without being woken. */
bool tn_offload_step(struct tn_cache *cache, uint64_t now_ns, uint64_t *due_ns);
/* For how long the admitted block that has waited for longest lies in host memory; 0: there is none. */
uint64_t tn_offload_age(struct tn_cache *cache, uint64_t now_ns);
/* How much it matters that blocks leave host memory while loads are under way. */
enum tn_offload_urgency {
	TN_OFFLOAD_IDLE,    /* not at all */
	TN_OFFLOAD_PRESSES, /* into the slack of loads */
	TN_OFFLOAD_LATE,    /* before reads: offload_lag_ms is half over */
};
enum tn_offload_urgency tn_offload_urgency(struct tn_cache *cache, uint64_t now_ns);
/* Queues again what could not be written; returns how many blocks there is still no place for. */
uint32_t tn_offload_retry(struct tn_cache *cache);
/* A block of this offload could not be written: flushes that wait for it will say so. */
void tn_offload_failed(const struct tn_op *op, int status);
bool tn_flush_step(struct tn_cache *cache);
/* What a save has stored becomes durable, and then it is over; flush.status is its result. */
void tn_save_flush(struct tn_op *op);
/* tn_flush in two halves, for those who may not wait: NULL without memory; poll frees it unless it says -EAGAIN. */
struct tn_flush_waiter *tn_flush_begin(struct tn_cache *cache);
int tn_flush_poll(struct tn_flush_waiter *w);
/* As poll, but waits; after -ETIMEDOUT the owner frees it. */
int tn_flush_wait(struct tn_flush_waiter *w, uint64_t deadline_ns);
/* space_drop.c: tn_space_drop up to the wait for its durable point; *out set only on success. -EBUSY: try again. */
int tn_space_drop_begin(struct tn_space *space, struct tn_flush_waiter **out);
bool tn_drops_step(struct tn_cache *cache);

/* reclaim.c: numbers of spaces that nobody has open */
enum tn_leaving {
	TN_LEAVING_NOT,
	TN_LEAVING_MARKED, /* its blocks are being looked for */
	TN_LEAVING_DOOMED, /* they all go, as soon as nobody holds them */
};
/*
 * Owner thread, called by who holds the lock: frees the number of a space that nobody has open. 0; -EAGAIN: the blocks of some are on
 * their way out, ask again; -ENOSPC: all are open, or held.
 */
int tn_space_reclaim(struct tn_cache *cache);
/* The space is open (again): what is left of its blocks stays. */
void tn_space_stays(struct tn_cache *cache, uint16_t index);
bool tn_reclaim_step(struct tn_cache *cache);

/* evict.c: places and blocks that go */
uint32_t tn_evict_disk(struct tn_cache *cache, uint32_t want, int space);
uint32_t tn_evict_class(struct tn_cache *cache, uint32_t want, uint32_t cls);
uint32_t tn_evict_host(struct tn_cache *cache, uint32_t want, int space);
/* All blocks in these slots leave the disk, or none if somebody holds one. */
bool tn_evict_slots(struct tn_cache *cache, tn_slot first, uint32_t n);
/* Whether these slots are held, and by nothing but transfers under way: none by a lease, or by a save that waits for its caller. */
bool tn_slots_pass(struct tn_cache *cache, tn_slot first, uint32_t n);
/* A host slot that the space's quota allows, to be filled with block b; it arrives, or is put back. */
uint32_t tn_host_slot_get(struct tn_cache *cache, const struct tn_space *space, tn_block b);
void tn_host_slot_put(struct tn_cache *cache, const struct tn_space *space, uint32_t slot);
void tn_block_leaves_disk(struct tn_cache *cache, tn_block b, bool failed, bool eio);
void tn_block_leaves_host(struct tn_cache *cache, tn_block b);
void tn_block_arrives_in_host(struct tn_cache *cache, tn_block b, uint32_t host_slot, bool dirty);
void tn_block_arrives_on_disk(struct tn_cache *cache, tn_block b, tn_slot slot);
void tn_block_doom(struct tn_cache *cache, tn_block b);
/* Looks at some of the doomed; *due_ns: when to come back without being woken. */
bool tn_doomed_step(struct tn_cache *cache, uint64_t now_ns, uint64_t *due_ns);
/* Any thread, after unpinning block b: wakes the owner if that may have been what it waits for. */
void tn_doomed_unpinned(struct tn_cache *cache, tn_block b);
void tn_doomed_end(struct tn_cache *cache);
void tn_block_try_forget(struct tn_cache *cache, tn_block b);
/* Which blocks may go: those that nobody holds, of one space or of any (-1), in slots of one class or of any (NULL). */
struct tn_usable {
	struct tn_cache *cache;
	int space;
	const uint32_t *cls;
};
bool tn_disk_usable(void *arg, uint32_t id);
uint32_t tn_disk_entry(struct tn_cache *cache, tn_block b);
/* Whether a visible block is on disk, or was admitted to it and is not given up: what a flush is about. */
bool tn_block_goes_to_disk(const struct tn_cache *cache, tn_block b);
/* 1: a new block of so many bytes may go to disk, and they are charged; 0: it is not worth it; -EDQUOT: no write budget is left. */
int tn_disk_admit(struct tn_cache *cache, const struct tn_policy_block *info, uint64_t bytes);
bool tn_disk_readmit(struct tn_cache *cache, tn_block b);
void tn_disk_entry_add(struct tn_cache *cache, tn_block b, const struct tn_policy_block *info);
void tn_disk_entry_del(struct tn_cache *cache, tn_block b, enum tn_policy_why why);
uint64_t tn_key_hash(const struct tn_key *key, uint16_t space);
void tn_request_begins(struct tn_cache *cache, uint32_t blocks, uint32_t hits, tn_block parent);
void tn_block_touch(struct tn_cache *cache, tn_block b, uint32_t from_end, bool partial);
void tn_request_ends(struct tn_op *op);

void tn_load_header_ended(const struct tn_header_want *want, int status);
/* load_headers.c: those of the blocks before up_to that were not asked for yet. */
void tn_load_read_headers(struct tn_op *op, uint32_t up_to);
void tn_load_read_ended(struct tn_item *item, uint32_t chunk, int status, bool verified);

/* reads.c: reads of loads, as IOCBs */
int tn_reads_create(struct tn_cache *cache);
void tn_reads_destroy(struct tn_cache *cache);
int tn_reads_room(struct tn_cache *cache, uint32_t padded_bytes);
/* A load's list and addresses; its items are activated. */
void tn_reads_prepare(struct tn_op *op);
/* Whether the reads of a chunk may go now: the scheduler's word, or without one a window a load. */
bool tn_reads_may_go(struct tn_item *item, uint32_t chunk);
/* Appends the reads of a chunk to the IOCB being written; false: no IOCB is free. */
bool tn_reads_add(struct tn_item *item, uint32_t chunk);
/* Hands over what was added. */
void tn_reads_issue(struct tn_cache *cache);
/* Lets the executor go on. */
bool tn_reads_step(struct tn_cache *cache);
/* Tells tn_load_read_ended what ended. */
bool tn_reads_collect(struct tn_cache *cache);
/* When to ask for an IOCB again although nothing ended. */
uint64_t tn_reads_due(const struct tn_cache *cache, uint64_t now_ns);
/* Of a load that was given up: what ended counts, what has not begun is not begun. */
void tn_reads_look(struct tn_op *op);
void tn_reads_cancel(struct tn_op *op);
void tn_reads_stats(const struct tn_cache *cache, struct tn_stats *stats);

/* watch.c: events, expiry */
int tn_watch_create(struct tn_cache *cache);
void tn_watch_destroy(struct tn_cache *cache);
void tn_watch_raise(struct tn_cache *cache, tn_block b, enum tn_tier tier, enum tn_block_event_kind kind);
void tn_watch_expire_at(struct tn_cache *cache, tn_block b, uint64_t ttl_ns);
void tn_watch_extend(struct tn_cache *cache, tn_block b, uint64_t ttl_ns);
bool tn_watch_expired(const struct tn_cache *cache, tn_block b);
uint64_t tn_watch_step(struct tn_cache *cache, uint64_t now_ns);

/* schedule.c */
int tn_schedule_create(struct tn_cache *cache);
void tn_schedule_destroy(struct tn_cache *cache);
/* Callers: an engine is about to wait for a layer, and goes on with it. */
void tn_schedule_wait_begins(struct tn_op *op, uint32_t layer);
void tn_schedule_wait_ends(struct tn_op *op, uint32_t layer);
/*
 * Callers: a save of so many blocks may begin, or -EAGAIN when too much waits to be written already. What was admitted
 * counts until it is given back: by the turns, as it needs no disk any more, and at the save's end.
 */
int tn_schedule_admit(const struct tn_space *space, uint64_t blocks);
void tn_schedule_give_back(struct tn_cache *cache, uint64_t bytes);
void tn_schedule_turn(struct tn_cache *cache, uint64_t now_ns);
uint64_t tn_schedule_due(const struct tn_cache *cache);
/* A load from its activation to its end; between them at: where the engine is, issued: how far it is. */
void tn_schedule_load(struct tn_op *op);
void tn_schedule_load_at(struct tn_op *op);
void tn_schedule_load_issued(struct tn_op *op, bool all);
void tn_schedule_load_over(struct tn_op *op);
/* With a schedule only: whose reads are next, NULL when all had their turn; and all may have another one. */
struct tn_op *tn_schedule_next(struct tn_cache *cache, uint64_t now_ns);
void tn_schedule_again(struct tn_cache *cache);
/* Bytes that reads of a device may be let go now, at least that many if any; 0: ask with tn_schedule_read, or *later. */
uint64_t tn_schedule_read_room(struct tn_cache *cache, uint32_t device, uint64_t least, bool *later);
/* Whether a transfer may go now; if so, its end must be told. */
bool tn_schedule_read(struct tn_item *item, uint32_t chunk, uint64_t bytes);
void tn_schedule_read_ended(struct tn_cache *cache, uint32_t device, uint64_t bytes);
/* Of a save or an offload. */
bool tn_schedule_write(const struct tn_op *op, uint32_t device, uint64_t bytes);
/* Bytes that one request of it should have at most, if a chunk has fewer. */
uint64_t tn_schedule_write_most(const struct tn_cache *cache, uint32_t device);
/* It cannot ask, because it waits for something else besides: where it waited to write, it goes on waiting. */
void tn_schedule_write_waits(const struct tn_op *op);
bool tn_schedule_store_write(struct tn_cache *cache, uint32_t device, uint64_t bytes);
void tn_schedule_write_ended(struct tn_cache *cache, uint32_t device, uint64_t bytes);
/* Bytes that were let go, and did not go. */
void tn_schedule_write_undone(struct tn_cache *cache, uint32_t device, uint64_t bytes);

/* handle.c: handles of loads and saves, the numbers that callers have instead of addresses */
enum tn_handle_kind { TN_HANDLE_LOAD, TN_HANDLE_SAVE };
int tn_handles_create(struct tn_cache *cache);
void tn_handles_destroy(struct tn_cache *cache);
void *tn_handle_open(struct tn_op *op, enum tn_handle_kind kind);
/* 0 and the operation, which stays that one until leave; -EINVAL: no such handle, any more; -ECHILD. */
int tn_handle_enter(const void *handle, enum tn_handle_kind kind, const char *call, struct tn_op **out);
void tn_handle_leave(struct tn_op *op);
/*
 * Inside, of an operation that is over: from now on nobody else is inside; false: somebody else closed it. Then either
 * reopen, or gone, which leaves.
 */
bool tn_handle_close(struct tn_op *op);
void tn_handle_reopen(struct tn_op *op);
void tn_handle_gone(struct tn_op *op);

/* plan.c */
int tn_space_slack_create(struct tn_space *space);
void tn_space_slack_destroy(struct tn_space *space);
void tn_space_share_slack(struct tn_space *space, uint64_t now_ns);

/* flights.c */
int tn_flights_create(const struct tn_alloc *alloc, uint32_t max, struct tn_flights **out);
void tn_flights_destroy(struct tn_flights *f);
struct tn_item *tn_flights_get(const struct tn_flights *f, tn_block b);
void tn_flights_set(struct tn_flights *f, tn_block b, struct tn_item *item);
void tn_flights_del(struct tn_flights *f, tn_block b, const struct tn_item *item);

/* workers.c */
int tn_workers_create(uint32_t n, const struct tn_alloc *alloc, void (*wake)(void *arg), void *arg,
		      struct tn_workers **out);
void tn_workers_destroy(struct tn_workers *w);
struct tn_exec *tn_workers_exec(struct tn_workers *w);

/* ---- logger.c ------------------------------------------------------------------------------------- */

/* From here to stop, which waits until all lines are delivered, log lines go through a thread. 0 or -errno. */
int tn_logger_start(struct tn_cache *cache);
void tn_logger_stop(struct tn_cache *cache);

#endif
