/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core of a cache: what its files share.
 *
 * One owner thread (owner.c) steps everything: loads, saves, offloads, eviction, the store. The front reaches it through the region on the way
 * of loads and saves, and by messages for the rest (command.c). Fields marked "shared" are accessed with __atomic by callers and
 * owner; everything else is the owner's.
 */
#ifndef TN_CORE_CORE_H
#define TN_CORE_CORE_H

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
#include "core/op.h"
#include "io/io.h"
#include "policy/policy.h"
#include "region/event.h"
#include "region/face.h"
#include "region/observation.h"
#include "ring/ring.h"
#include "sched/mix.h"
#include "sched/sched.h"
#include "store/store.h"
#include "tier/headers.h"
#include "tier/host.h"
#include "tier/mover.h"

/* Flags of a block in its header and in the log. */
#define TN_ENTRY_PARTIAL 1u /* holds a prompt's unfinished tail */
#define TN_ENTRY_EXPIRES 2u /* had a time to live: not kept across reopening */

struct tn_space {
	struct tn_cache *cache;
	uint32_t refs; /* handles; under cache->lock */
	uint32_t held; /* shared: loads and saves of callers that have not ended them, and look-ups that the owner has not */
	uint32_t ops;  /* the owner's: operations under way */
	uint32_t last_wait; /* shared, callers': enum tn_wait of the load that was waited for last */
	uint32_t dropping; /* shared: not all blocks of a drop are marked yet; nothing is found, and saves do not begin */
	uint16_t index;
	uint32_t epoch; /* shared */
	struct tn_key id;
	struct tn_key identity; /* that the keys are of: the space without its share */
	struct tn_secret secret;
	struct tn_geometry geometry;
	struct tn_shape shape;
	uint32_t match_rule, window_blocks, group;
	uint32_t cls[TN_TIERS_MAX]; /* by tier: what its blocks are there; TN_CLASS_NONE: they are not held */
	struct tn_quota quota; /* shared members */
	char model[TN_SLACK_NAME]; /* as much of its name */
	struct tn_slack *slack; /* corrected by what loads show */
	bool slack_moved;	/* since the copy was made */
	uint64_t slack_shared_ns;
	pthread_mutex_t plan_lock; /* of the two below, for tn_plan; the owner only tries it */
	struct tn_slack *plan_slack;
	uint64_t *plan_scratch;
};

struct tn_lease {
	uint32_t next; /* free list */
	uint32_t generation; /* odd: taken. Shared. */
	uint32_t n;
	tn_block *blocks;
	struct tn_lease *rest; /* leases that end with this one, of other spaces */
};

#define TN_POOLS_MAX 4096u
#define TN_EVENTS 1024u /* of tn_event_create, of one cache */


/* Why a block is among the doomed. */
enum tn_doom {
	TN_DOOM_NOT,
	TN_DOOM_DROPPED, /* it leaves its places when nobody holds it any more */
	TN_DOOM_NOWHERE, /* it has no place; its record goes when nobody holds it, unless it was saved again by then */
};

struct tn_recovery;
struct tn_stats;
struct tn_schedule;
struct tn_events;
struct tn_front;
struct tn_flights; /* block -> leading item */
struct tn_reads;
struct tn_workers;
struct tn_whole;

/* Counters that only the owner changes and anyone reads. */
struct tn_counters {
	uint64_t loads, load_blocks, load_failed_blocks, joined_blocks;
	uint64_t saves, saved_blocks, existing_blocks, host_only_blocks, admission_rejected_blocks, save_failed_blocks;
	uint64_t offload_lost_blocks;
	uint64_t dropped_blocks;
	uint64_t offloaded_blocks, promoted_blocks, prefetched_blocks, blocks_read_back;
	uint64_t verified_objects, corrupt_objects, io_errors, bounced_objects;
	uint64_t recovered_blocks;
	uint64_t resolve_ns, submit_ns, submit_layers;
};

/* Makes a tier of a cache whose store is open; *out stays NULL if the options say that there is none. */
typedef int (*tn_tier_make)(struct tn_cache *cache, struct tn_tier_base **out);

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

	pthread_mutex_t lock; /* spaces, memories and pools: open and close only */
	struct tn_space *spaces[TN_STORE_SPACES_MAX]; /* written by the owner, while the caller holds the lock */
	uint32_t nmemories;
	struct tn_pool *pools[TN_POOLS_MAX]; /* shared: by number; written under the lock */

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
	struct tn_tier_base *tier[TN_TIERS_MAX]; /* by enum tn_tier; NULL: there is none */
	struct tn_tier_base *row[TN_TIERS_MAX];  /* the same without gaps, best first; NULL ends it */
	struct tn_tier_base *memory;	     /* the one that loads leave blocks in; NULL: none */
	struct tn_tier_base *durable;	     /* the one that flushes are about; NULL: none */
	struct tn_tier_watch tier_watch;
	tn_tier_make make_tier[TN_TIERS_MAX];    /* who makes them; NULL: nobody. Those of tn_tier_makers, or a test's */
	struct tn_exec *exec;
	struct tn_workers *workers;
	struct tn_mover *mover;
	struct tn_reads *reads; /* NULL without disks */
	struct tn_headers *headers;
	struct tn_host *host;
	struct tn_whole *whole;
	struct tn_flights *flights;
	struct tn_secret secret;
	uint64_t segment_bytes; /* of new stores; 0: the store's choice */
	uint64_t slot_bytes;	/* of the blocks announced at open; 0: none were */
	uint64_t stored_slots;	/* of the stores that were there */
	uint64_t boot[2]; /* which boot of the machine this is; zero: the kernel is asked (simulations set it) */
	uint64_t entropy[2]; /* secrets and UUIDs of new stores come from it; zero: from the kernel (simulations set it) */
	char *dir_paths;

	struct tn_region region; /* where the front asks, and is told */
	struct tn_doorbell_taker kicks;
	uint32_t *kicked; /* numbers of operations, while they are looked at */
	uint64_t given_back_bytes; /* see struct tn_region_core */
	struct tn_front *front; /* the callers' side; nothing of it is the owner's */
	union tn_op_place *ops; /* by number */
	struct tn_offload_op *offloads; /* the owner's own operations */
	uint32_t noffloads;
	struct tn_key *offload_keys; /* theirs */
	struct tn_write_item *offload_items;
	struct tn_list loads, saves; /* active */
	struct tn_list placing; /* saves and offloads with blocks that have no place yet, the oldest first */
	uint64_t places_due_ns; /* when to ask them again without being woken */
	uint64_t ended; /* how many loads, saves and offloads are over: what they held may be free */
	uint32_t device_loads; /* of the loads, those from devices */
	int offload_error;     /* of the last one that failed */
	int offload_lost;      /* likewise, of blocks that left host memory before they could be written, and no flush has told */
	uint64_t offload_retry_ns; /* when to try those again without being asked */
	bool offload_again;    /* a device came back: try those once more */
	bool offloads_first;   /* they are stepped before the saves this time */
	struct tn_list flushes;
	struct tn_list drops; /* their waiters, until the blocks are doomed; then among the flushes */

	struct tn_lease *leases;
	uint32_t nleases;
	uint64_t free_leases; /* shared: tagged stack */
	tn_block *lease_blocks;

	struct tn_query *queries; /* look-ups under way */
	uint64_t free_queries;	  /* shared: tagged stack */
	struct tn_key *query_keys;

	tn_block *doomed; /* ring: blocks to forget when unpinned */
	uint32_t doomed_head, doomed_count, doomed_size;
	uint8_t *is_doomed; /* shared, by block: enum tn_doom; in the ring once if not TN_DOOM_NOT */
	uint32_t doomed_look;  /* shared: one of them may have been let go of: go round once */
	uint32_t doomed_round; /* still to be looked at on this round */
	uint64_t doomed_due_ns; /* of the next one that nothing asked for */
	uint32_t *place_scratch; /* TN_PLACES_AT_ONCE */
	uint8_t *unread; /* bit per block: written to disk since open, and not loaded from there so far */
	struct tn_recovery *recovery;

	uint32_t space_records[TN_STORE_SPACES_MAX]; /* registered blocks, wherever they lie */
	uint32_t space_recency[TN_STORE_SPACES_MAX]; /* tick of its last use */
	uint8_t space_leaving[TN_STORE_SPACES_MAX]; /* enum tn_leaving */
	uint32_t leaving_cursor; /* of the registry: records to go; 0: nothing is looked for */
	uint64_t leaving_next_ns; /* the blocks that are on their way out may be held: then more have to go */
	struct tn_events *events;
	uint32_t *expiry; /* shared, by block: second after which it is not found; 0: none */
	uint32_t ttl_used; /* shared */
	uint32_t expiry_cursor;
	uint64_t expiry_due_ns;
	uint32_t tick; /* logical time: requests, since the store was made */
	uint32_t *recency; /* by block in a durable tier, or on its way there: tick of the last request for it */
	uint64_t ns_per_mib[TN_TIERS_MAX]; /* shared: estimates, by the lowest tier that a load needed */
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
void tn_owner_send(struct tn_cache *cache, struct tn_cmd *cmd);
/*
 * Runs fn(arg) on the owner thread and waits for it, without a deadline: the owner never waits for I/O while the cache
 * is open, so it comes round to fn within a step, and fn may not wait for anything either.
 */
int tn_owner_call(struct tn_cache *cache, int (*fn)(struct tn_cache *cache, void *arg), void *arg);
/* Owner thread: the messages that were sent, the oldest first; to be run. */
struct tn_cmd *tn_messages_take(struct tn_cache *cache);
void tn_messages_run(struct tn_cmd *list);

/* intake.c: takes what callers ask for and what they have sent; whether there was anything */
bool tn_intake_step(struct tn_cache *cache);

/* The quota of a space in a tier, in bytes. Any thread. */
static inline uint64_t tn_space_quota(const struct tn_space *space, enum tn_tier tier)
{
	return __atomic_load_n(&space->quota.bytes[tier], __ATOMIC_RELAXED);
}

static inline bool tn_space_in(const struct tn_space *space, const struct tn_tier_base *t)
{
	return t && space->cls[t->tier] != TN_CLASS_NONE;
}

/* match.c */
int tn_leases_create(struct tn_cache *cache);
void tn_leases_destroy(struct tn_cache *cache);
/* The arguments of a look-up of several spaces: 0, -EINVAL, -ECHILD. */
int tn_match_check(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, unsigned flags);
/* tn_match_all, of arguments that were checked. */
int tn_match_find(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, uint32_t *first,
		  struct tn_match *match, unsigned flags);

/* query.c */
int tn_queries_create(struct tn_cache *cache);
void tn_queries_destroy(struct tn_cache *cache);

/* engine.c: the devices, before the first engine; and an engine on them, for the thread that calls it */
int tn_devices_open(struct tn_cache *cache);
int tn_engine_open(const struct tn_cache *cache, uint32_t depth, struct tn_io **out);

/* open.c: everything that opens and closes on the owner thread */
extern const tn_tier_make tn_tier_makers[TN_TIERS_MAX];
int tn_core_open(struct tn_cache *cache);
int tn_core_close(struct tn_cache *cache);

/* op.c */
int tn_ops_create(struct tn_cache *cache);
void tn_ops_destroy(struct tn_cache *cache);
/* Tells those who wait for the operation that something about it has changed, ... */
void tn_op_notify(struct tn_op *op);
/* ... or that the owner is done with it. */
void tn_op_drained(struct tn_op *op);
/* Most blocks of one operation; any thread. */
uint32_t tn_op_blocks_max(const struct tn_cache *cache, const struct tn_space *space, bool with_pages);
/*
 * A life of the operation, as a front asks for it: checks and copies all of it, and tells that it has begun. 0, or -EINVAL, and
 * then refuse says so to the front.
 */
int tn_op_begin(struct tn_op *op, const struct tn_command *c);
void tn_op_refuse(struct tn_op *op, uint64_t generation, int status);
static inline bool tn_op_is_cancelled(const struct tn_op *op)
{
	return tn_face_is_set(&tn_face_asked(&op->cache->region, op->index)->cancel);
}
static inline bool tn_op_is_committed(const struct tn_op *op)
{
	return tn_face_is_set(&tn_face_asked(&op->cache->region, op->index)->commit);
}
void tn_reading_arm(struct tn_reading *r, const struct tn_command *c);
void tn_load_arm(struct tn_load_op *load, const struct tn_command *c);
void tn_save_arm(struct tn_save_op *save, const struct tn_command *c);
void tn_writing_arm(struct tn_writing *w, struct tn_write_item *items, struct tn_save_op *save);
void tn_op_span(const struct tn_op *op, uint32_t i, struct tn_span *span);

/* load_start.c */
void tn_load_begins(struct tn_reading *r);

/* How the bytes of an item that is not idle are reached. */
static inline enum tn_reach tn_read_reach(const struct tn_read_item *item)
{
	return item->r->op.cache->tier[item->tier]->ops->traits.reach;
}

/* An item's place in the memory tier. */
static inline unsigned char *tn_read_memory(const struct tn_read_item *item, uint64_t **checks)
{
	const struct tn_tier_base *t = item->r->op.cache->memory;

	return t->ops->address(t, item->memory, &item->r->op.space->shape, checks);
}

/* load.c: what load_start.c needs, too */
/* Whether the load itself still wants the block. */
bool tn_read_wanted(const struct tn_read_item *item);
void tn_read_chunk_good(struct tn_read_item *item, uint32_t c);
/* The good prefix is no longer than @good blocks. */
void tn_read_shrink(struct tn_reading *r, uint32_t good);
/* The pages of an item are the caller's again, if nothing writes to them any more, nor will. */
void tn_read_pages_free(struct tn_read_item *item);

/* load.c, save.c, offload.c: one step each; return whether anything happened */
/* See tn_reads_create. */
void tn_load_read_ended(struct tn_read_item *item, uint32_t chunk, int status, bool verified);
bool tn_loads_step(struct tn_cache *cache, uint64_t now_ns);
bool tn_saves_step(struct tn_cache *cache);
bool tn_save_devices_pending(const struct tn_cache *cache);
/* save_begin.c */
void tn_save_begins(struct tn_save_op *save);
/* Finds out what there is to do, block by block. */
void tn_save_find_work(struct tn_save_op *save);
void tn_save_describe(struct tn_save_op *save, uint32_t i, tn_block parent, uint32_t depth, struct tn_policy_block *info);

/* offload.c */
int tn_offloads_create(struct tn_cache *cache);
void tn_offloads_destroy(struct tn_cache *cache);
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
/* Blocks on their way to the durable tier: all tickets below this one are done; and how many were given. */
uint64_t tn_offloaded_up_to(const struct tn_cache *cache);
uint64_t tn_offload_tickets(const struct tn_cache *cache);
/* The block, which is in memory, goes to the next tier below the durable one that lets it in. */
void tn_offload_further(struct tn_cache *cache, tn_block b);
bool tn_offloads_idle(const struct tn_cache *cache);

/* writing.c: what saves and offloads have in common */
/* True: all that could be written is, and nothing is in flight any more. */
bool tn_writing_step(struct tn_writing *w, bool committed, bool *busy);
/* The item's bytes on disk are block b's from now on. */
void tn_writing_publish(struct tn_write_item *item, tn_block b);

/* places.c: places for blocks that are to be stored */
void tn_places_join(struct tn_writing *w);
void tn_places_leave(struct tn_writing *w);
bool tn_places_step(struct tn_cache *cache);
void tn_place_wait_init(struct tn_place_wait *wait, const struct tn_space *space, const struct tn_tier_base *t);
void tn_item_release(struct tn_write_item *item);
void tn_item_failed(struct tn_write_item *item, int status);
/* A block that had a place has all its data there, or never will. */
void tn_item_data_over(struct tn_write_item *item);
/* How the bytes of an item get to its place. */
static inline enum tn_reach tn_item_reach(const struct tn_write_item *item)
{
	return item->w->op.cache->tier[item->tier]->ops->traits.reach;
}
/* Whether these slots are held, and by nothing but transfers under way: none by a lease, or by a save that waits for its caller. */
bool tn_slots_pass(struct tn_cache *cache, tn_slot first, uint32_t n);

/* dirty.c: blocks in memory that are to go to a tier below */
void tn_dirty_push(struct tn_cache *cache, tn_block b, const struct tn_tier_base *target);
/* The block need not go any more, or is there (NOT), or could not be written (FAILED). */
void tn_dirty_settled(struct tn_cache *cache, uint32_t slot, const struct tn_tier_base *target, enum tn_dirty as);
/* The first place of the queue whose block still needs to go; NULL: there is none. */
const struct tn_host_waiting *tn_dirty_first(struct tn_cache *cache, const struct tn_tier_base *target);

/* flush.c */
bool tn_flush_step(struct tn_cache *cache);
/* What a save has stored becomes durable, and then it is over; flush.status is its result. */
void tn_save_flush(struct tn_save_op *save);
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

/* blocks.c: blocks and the row of tiers */
#define for_each_tier(t, cache) for (struct tn_tier_base *const *t##_at = (cache)->row, *t; (t = *t##_at) != NULL; t##_at++)
void tn_tier_joins(struct tn_cache *cache, struct tn_tier_base *t);
void tn_request_begins(struct tn_cache *cache, uint32_t blocks, uint32_t hits, tn_block parent);
/* A request references a block. First block first; then, if it goes back, last block first. */
void tn_block_touch(struct tn_cache *cache, tn_block b, uint32_t from_end, bool partial);
bool tn_request_goes_back(const struct tn_cache *cache);
void tn_block_touch_back(struct tn_cache *cache, tn_block b, uint32_t from_end);
/* A tier has let the block in. */
void tn_block_let_in(struct tn_cache *cache, struct tn_tier_base *t, tn_block b, const struct tn_policy_block *info);
/* Whether a visible block is in the durable tier, or was let into it and is not given up: what a flush is about. */
bool tn_block_is_kept(const struct tn_cache *cache, tn_block b);
/* Whether the block is in memory or in the durable tier. */
bool tn_block_is_local(const struct tn_cache *cache, tn_block b);
/* Whether no tier has it, nor has let it in. */
bool tn_block_lies_nowhere(const struct tn_cache *cache, tn_block b);

void tn_block_doom(struct tn_cache *cache, tn_block b);
/* Looks at some of the doomed; *due_ns: when to come back without being woken. */
bool tn_doomed_step(struct tn_cache *cache, uint64_t now_ns, uint64_t *due_ns);
/* Any thread, after unpinning block b: wakes the owner if that may have been what it waits for. */
void tn_doomed_unpinned(struct tn_cache *cache, tn_block b);
void tn_doomed_end(struct tn_cache *cache);
void tn_block_try_forget(struct tn_cache *cache, tn_block b);
/* Gives a reference back; the record goes if nobody else holds it and the block lies nowhere any more. */
void tn_block_release(struct tn_cache *cache, tn_block b);

/* keyed.c: what tiers do and learn by themselves */
bool tn_tiers_step(struct tn_cache *cache, uint64_t now_ns, uint64_t *due_ns);
/*
 * Callers: asks the tiers that others use, too, for what of these keys the registry does not have; once it is over, a look-up
 * finds what they have. NULL: no memory. end frees it, over or not.
 */
struct tn_lookup *tn_lookup_begin(struct tn_space *space, const struct tn_key *keys, uint32_t n);
bool tn_lookup_over(const struct tn_lookup *l);
void tn_lookup_end(struct tn_lookup *l);

/* whole.c: transfers of tiers that move whole blocks by themselves */
int tn_whole_create(struct tn_cache *cache);
void tn_whole_destroy(struct tn_cache *cache);
/* A free one, or NULL: ask again when one has ended. */
struct tn_tier_move *tn_whole_get(struct tn_cache *cache);
void tn_whole_put(struct tn_cache *cache, struct tn_tier_move *move);

/* load_headers.c: those of the blocks before up_to that were not asked for yet. */
void tn_load_read_headers(struct tn_reading *r, uint32_t up_to, tn_header_want_done done);

/* reads.c: reads of loads, as IOCBs */
/* A chunk was read (and verified), or failed. */
typedef void (*tn_reads_ended)(struct tn_read_item *item, uint32_t chunk, int status, bool verified);
int tn_reads_create(struct tn_cache *cache, tn_reads_ended ended);
void tn_reads_destroy(struct tn_cache *cache);
int tn_reads_room(struct tn_cache *cache, uint32_t padded_bytes);
/* A load's list and addresses; its items are activated. */
void tn_reads_prepare(struct tn_reading *r);
/* Whether the reads of a chunk may go now: the scheduler's word, or without one a window a load. */
bool tn_reads_may_go(struct tn_read_item *item, uint32_t chunk);
/* Appends the reads of a chunk to the IOCB being written; false: no IOCB is free. */
bool tn_reads_add(struct tn_read_item *item, uint32_t chunk);
/* Hands over what was added. */
void tn_reads_issue(struct tn_cache *cache);
/* Lets the executor go on. */
bool tn_reads_step(struct tn_cache *cache);
/* Tells what ended. */
bool tn_reads_collect(struct tn_cache *cache);
/* When to ask for an IOCB again although nothing ended. */
uint64_t tn_reads_due(const struct tn_cache *cache, uint64_t now_ns);
/* Of a load that was given up: what ended counts, what has not begun is not begun. */
void tn_reads_look(struct tn_reading *r);
void tn_reads_cancel(struct tn_reading *r);
void tn_reads_stats(const struct tn_cache *cache, struct tn_stats *stats);

/* watch.c: events, expiry */
int tn_watch_create(struct tn_cache *cache);
void tn_watch_destroy(struct tn_cache *cache);
/* Owner thread: tells fn of all blocks; arg is a struct tn_watch_snapshot. */
struct tn_watch_snapshot {
	void (*fn)(void *arg, const struct tn_block_event *event);
	void *arg;
	uint64_t cursor; /* out: events from here on are newer */
	long count;	 /* out */
};
int tn_watch_snapshot(struct tn_cache *cache, void *arg);
void tn_watch_raise(struct tn_cache *cache, tn_block b, enum tn_tier tier, enum tn_block_event_kind kind);
void tn_watch_expire_at(struct tn_cache *cache, tn_block b, uint64_t ttl_ns);
void tn_watch_extend(struct tn_cache *cache, tn_block b, uint64_t ttl_ns);
bool tn_watch_expired(const struct tn_cache *cache, tn_block b);
/* Gives expired blocks to @expire, some at a time; returns when to come back. */
uint64_t tn_watch_step(struct tn_cache *cache, uint64_t now_ns, void (*expire)(struct tn_cache *cache, tn_block b));

/* schedule.c */
int tn_schedule_create(struct tn_cache *cache);
void tn_schedule_destroy(struct tn_cache *cache);
/* Bytes of saves that a front has admitted and that do not wait for the disk any more. */
void tn_schedule_give_back(struct tn_cache *cache, uint64_t bytes);
void tn_schedule_turn(struct tn_cache *cache, uint64_t now_ns, enum tn_offload_urgency urgency);
uint64_t tn_schedule_due(const struct tn_cache *cache);
/* A load from its activation to its end; between them at: where the engine is, issued: how far it is. */
void tn_schedule_load(struct tn_reading *r);
void tn_schedule_load_at(struct tn_reading *r);
void tn_schedule_load_issued(struct tn_reading *r, bool all);
void tn_schedule_load_over(struct tn_reading *r);
/* With a schedule only: whose reads are next, NULL when all had their turn; and all may have another one. */
struct tn_reading *tn_schedule_next(struct tn_cache *cache, uint64_t now_ns);
void tn_schedule_again(struct tn_cache *cache);
/* Bytes that reads of a device may be let go now, at least that many if any; 0: ask with tn_schedule_read, or *later. */
uint64_t tn_schedule_read_room(struct tn_cache *cache, uint32_t device, uint64_t least, bool *later);
/* Whether a transfer may go now; if so, its end must be told. */
bool tn_schedule_read(struct tn_read_item *item, uint32_t chunk, uint64_t bytes);
void tn_schedule_read_ended(struct tn_cache *cache, uint32_t device, uint64_t bytes);
/* Of a save or an offload. */
bool tn_schedule_write(const struct tn_writing *w, uint32_t device, uint64_t bytes);
/* Bytes that one request of it should have at most, if a chunk has fewer. */
uint64_t tn_schedule_write_most(const struct tn_cache *cache, uint32_t device);
/* It cannot ask, because it waits for something else besides: where it waited to write, it goes on waiting. */
void tn_schedule_write_waits(const struct tn_writing *w);
bool tn_schedule_store_write(struct tn_cache *cache, uint32_t device, uint64_t bytes);
void tn_schedule_write_ended(struct tn_cache *cache, uint32_t device, uint64_t bytes);
/* Bytes that were let go, and did not go. */
void tn_schedule_write_undone(struct tn_cache *cache, uint32_t device, uint64_t bytes);

/* plan.c */
int tn_space_slack_create(struct tn_space *space);
void tn_space_slack_destroy(struct tn_space *space);
void tn_space_share_slack(struct tn_space *space, uint64_t now_ns);

/* flights.c */
int tn_flights_create(const struct tn_alloc *alloc, uint32_t max, struct tn_flights **out);
void tn_flights_destroy(struct tn_flights *f);
struct tn_read_item *tn_flights_get(const struct tn_flights *f, tn_block b);
void tn_flights_set(struct tn_flights *f, tn_block b, struct tn_read_item *item);
void tn_flights_del(struct tn_flights *f, tn_block b, const struct tn_read_item *item);

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
