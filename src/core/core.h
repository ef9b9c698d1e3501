/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core of a cache: what its files share.
 *
 * One owner thread (owner.c) steps everything: loads, saves, offloads, eviction, the store. The front reaches it through the region on the way
 * of loads and saves, and by messages for the rest (command.c). Fields marked "shared" are accessed with __atomic by callers and
 * owner; everything else is the owner's.
 *
 * struct tn_cache holds the parts together. A part is given what it works on when it is made, and its file knows nothing else of the cache:
 * what only one file uses is private to it, and no struct is for all files.
 */
#ifndef TN_CORE_CORE_H
#define TN_CORE_CORE_H

#include <errno.h>
#include <pthread.h>
#include <sys/types.h>
#include <tenuto/cache.h>
#include <tenuto/events.h>
#include <tenuto/status.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/exec.h"
#include "base/list.h"
#include "base/log.h"
#include "block/block.h"
#include "core/op.h"
#include "core/shares.h"
#include "core/space_slack.h"
#include "core/stats.h"
#include "core/vigil.h"
#include "core/watch.h"
#include "device/copier.h"
#include "io/io.h"
#include "policy/policy.h"
#include "region/call.h"
#include "region/event.h"
#include "region/face.h"
#include "region/observation.h"
#include "ring/ring.h"
#include "sched/mix.h"
#include "sched/sched.h"
#include "tier/drives.h"
#include "tier/durable.h"
#include "tier/queues.h"
#include "tier/row.h"

struct tn_space {
	struct tn_cache *cache;
	uint32_t refs; /* handles; under cache->lock */
	uint32_t held; /* shared: loads and saves that callers have not ended */
	uint32_t ops;  /* the owner's: operations under way */
	uint32_t last_wait; /* shared, callers': enum tn_wait of the load whose first wait was the last one */
	uint32_t dropping; /* shared: not all blocks of a drop are marked yet; nothing is found, and saves do not begin */
	uint16_t index;
	uint32_t epoch; /* shared */
	struct tn_key id;
	struct tn_key tenant;	/* tn_tenant_of */
	struct tn_key identity; /* that the keys are of: the space without its share */
	struct tn_key family;	/* of the spaces that hold the other ranks' shares of its blocks */
	uint32_t rank;		/* among them, from 0 */
	struct tn_key table_name; /* for files of its slack table: without the cache's secret, hashes and reset_revision */
	struct tn_secret secret;
	struct tn_geometry geometry;
	struct tn_shape shape;
	struct tn_shape header_shape; /* of the blocks' headers, each one object */
	uint32_t match_rule, window_blocks, group;
	uint32_t cls[TN_TIERS_MAX]; /* by tier: what its blocks are there; TN_CLASS_NONE: they are not held */
	uint32_t memory_tier; /* enum tn_tier: where loads leave its blocks; TN_TIER_NONE: nowhere */
	bool prefetches;      /* and whether there is a tier below */
	struct tn_quota quota; /* shared members */
	struct tn_stats c; /* of it alone, since it has its number: what TN_COUNT counts; shared, callers': its look-ups */
	char model[TN_SLACK_NAME]; /* as much of its name */
	struct tn_slack *slack; /* corrected by what loads show */
	uint64_t slack_changes; /* of the table, read by any thread */
	struct tn_observation slack_news[TN_SPACE_SLACK_NEWS]; /* that the table has learned, and the copy below has not */
	uint32_t nslack_news;
	pthread_mutex_t plan_lock; /* of the two below, for all threads; the owner only tries it */
	struct tn_slack *plan_slack; /* the same table: it learns the same */
	uint64_t *plan_scratch;
};

#define TN_SESSIONS_MAX 32u	/* of processes that have attached */
#define TN_SESSION_OPS_MAX 256u /* of each of them */

/*
 * A region with a front behind it: of the process that opened the cache, or of one that has attached; and the operations that are
 * asked for in it. The owner's, but for what is shared.
 */
struct tn_session {
	struct tn_cache *cache;
	struct tn_list link; /* cache->sessions */
	struct tn_region region;
	union tn_op_place *ops; /* by number */
	struct tn_doorbell_taker kicks;
	uint32_t *kicked; /* numbers of operations, while they are looked at */
	uint32_t place;	  /* among those that have attached */
	bool read_only;	      /* its saves are refused */
	int32_t max_priority; /* of its operations */
	bool over; /* nobody is behind it any more: what is under way is cancelled */
	bool completed; /* since the front was told last that there are completions */
	uint64_t waiting_bytes, given_back_bytes; /* of saves; see struct tn_region_core */
	uint64_t held[TN_TIERS_MAX]; /* by tier: blocks of its saves that have a place there, or were let in, and are not visible yet */
	uint64_t learned, calm_calls, refused_bytes; /* how much of the front's words was looked at */
	uint64_t loads, saves; /* that have begun */
	uint64_t loaded_bytes, saved_bytes; /* of them */
	const uint64_t *leased; /* shared: blocks in its leases, some of them counted more than once; NULL: nobody counts them */
	uint64_t stageable_bytes; /* of pages that its operations were about, in memory that its process copies to and from */
	uint64_t staged_bytes;	  /* that it says it has copied, as far as that can be: not more, and never fewer than before */
	uint64_t may_name[TN_SPACES_MAX / 64]; /* shared: spaces, as bits; the own session may name all */
};

#define TN_POOLS_OWN 4096u /* of the process that opened the cache; those of sessions have numbers of their own, so that nobody takes another's */
#define TN_POOLS_MAX (TN_POOLS_OWN + TN_SESSIONS_MAX * 256u)

/* Numbers of memories, by which lists name them (ring/ring.h): of header buffers, of the memory tier, of the near tier, and from POOLS on of those that have pools. */
enum { TN_MEMORY_OF_HEADERS, TN_MEMORY_OF_TIER, TN_MEMORY_OF_NEAR, TN_MEMORY_OF_POOLS, TN_MEMORIES_MAX = TN_MEMORY_OF_POOLS + TN_POOLS_MAX };
#define TN_EVENTS 1024u /* of tn_event_create, of one cache */
#define TN_EVENTS_KEPT 65536u /* of blocks, for tn_cache_events */

/* Why a block is among the doomed. */
enum tn_doom {
	TN_DOOM_NOT,
	TN_DOOM_DROPPED, /* it leaves its places when nobody holds it any more */
	TN_DOOM_NOWHERE, /* it has no place, or leaves one; its record goes when nobody holds it, unless it has another place by then */
};

struct tn_executor;
struct tn_executor_files;
struct tn_executor_opts;
struct tn_keyed;
struct tn_reclaim;
struct tn_schedule;
struct tn_front;
struct tn_matches;
struct tn_flights; /* block -> leading item */
struct tn_transfers;
struct tn_workers;
struct tn_whole;

/* Messages to the owner, and whether this process may send any (command.c). */
struct tn_messages {
	struct tn_cmd *stack; /* shared */
	struct tn_io *io;     /* that a message wakes; the owner's */
	bool owner_runs;      /* false: a simulation, whose only thread is the owner's */
	pid_t opener;
	uint64_t opener_mark; /* fork is detected */
	struct tn_cache *cache; /* for the functions that are called */
};

/*
 * The devices of a cache, and who makes I/O engines on them: tn_devices_open and tn_engine_open, a test, or the lab. open is called on the
 * owner thread before the first engine is made, free with the cache. Executors follow from the engine (tn_executor_open).
 */
struct tn_engines {
	int (*open)(struct tn_engines *e);
	int (*make)(const struct tn_engines *e, uint32_t depth, struct tn_io **out); /* for the thread that calls it */
	void (*free)(void *devices); /* NULL: there is nothing to free */
	void *devices;
	const struct tn_cache_opts *opts;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
	struct tn_drives *drives; /* of directories that are drives; NULL: none is. Closed with the cache */
	struct tn_mix mix[TN_DEVICES_MAX]; /* by device; version 0: nothing is known */
};

/* The row of tiers (see tier/tier.h). */
struct tn_row {
	struct tn_tier_base *tier[TN_TIERS_MAX]; /* by enum tn_tier; NULL: there is none */
	struct tn_tier_base *best_first[TN_TIERS_MAX]; /* the same without gaps; NULL ends it */
	struct tn_tier_base *memory;	     /* the one that loads leave blocks in; NULL: none */
	struct tn_tier_base *durable;	     /* the one that flushes are about; NULL: none */
	struct tn_tier_base *drives;	     /* the one whose places lie on drives; NULL: none */
	struct tn_tier_base *near;	     /* the one in the memory of pools, filled beside loads and saves (near.c); NULL: none */
	struct tn_queues *queues;	     /* the memory tier's; NULL: none */
};
#define for_each_tier(t, row) for (struct tn_tier_base *const *t##_at = (row)->best_first, *t; (t = *t##_at) != NULL; t##_at++)

/* What the core keeps of blocks besides the registry and the tiers (blocks.c). */
struct tn_blocks {
	struct tn_registry *registry;
	struct tn_row *row;
	struct tn_dirty_blocks *dirty;
	struct tn_watch *watch;
	struct tn_io *io;    /* that is woken when a doomed block is let go of */
	struct tn_stats *c;
	const struct tn_alloc *alloc;
	uint32_t max;
	struct tn_tier_watch tier_watch;
	struct tn_shares shares;
	tn_block *doomed; /* ring: blocks to forget when unpinned */
	uint32_t doomed_head, doomed_count;
	uint8_t *is_doomed; /* shared, by block: enum tn_doom; in the ring once if not TN_DOOM_NOT */
	uint32_t doomed_look;  /* shared: one of them may have been let go of: go round once */
	uint32_t doomed_round; /* still to be looked at on this round */
	uint64_t doomed_due_ns; /* of the next one that nothing asked for */
	uint8_t *unread; /* bit per block: written to disk since open, and not loaded from there so far */
	uint8_t *unsure; /* likewise: on disk straight from pages of another process, which may have changed them between sum and write */
	uint32_t *recency; /* by block in a durable tier, or on its way there: tick of the last request for it; NULL without disks */
	uint32_t tick; /* logical time: requests, since the store was made */
	uint32_t space_records[TN_SPACES_MAX]; /* registered blocks, wherever they lie */
	uint32_t space_recency[TN_SPACES_MAX]; /* tick of its last use */
};

/* Blocks in memory that are to go to a tier below (dirty.c). */
struct tn_dirty_blocks {
	const struct tn_row *row;
	const struct tn_registry *registry;
	struct tn_space *const *spaces;
	const struct tn_clock *clock;
	int error; /* of the last one that could not be written */
	int lost;  /* likewise, of blocks that left host memory before they could be written, and no flush has told */
};

/* The wait for places of blocks that are to be stored (writing.c). */
struct tn_places {
	struct tn_list waiting; /* saves and offloads with blocks that have no place yet, the oldest first */
	uint64_t due_ns; /* when to ask again without being woken */
	uint64_t ended;  /* how many loads, saves and offloads are over: what they held may be free */
	uint32_t *scratch; /* TN_PLACES_AT_ONCE */
};

/* The owner's own operations, from memory down the row (offload.c). */
struct tn_offloads {
	const struct tn_row *row;
	struct tn_registry *registry;
	struct tn_blocks *blocks;
	struct tn_dirty_blocks *dirty;
	struct tn_watch *watch;
	struct tn_space *const *spaces;
	struct tn_places *places;
	const uint32_t *device_loads;
	struct tn_stats *c;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	uint64_t lag_ns; /* TN_FOREVER: any */
	bool scheduled;	 /* the scheduler says when writes go */
	bool closing;	 /* the cache is: each is tried once more, and nobody waits for copies */
	struct tn_offload_op *op;
	uint32_t n;
	struct tn_key *keys; /* theirs */
	struct tn_write_item *items;
	uint64_t *offset;
	uint64_t retry_ns; /* when to try those that failed again without being asked */
	bool again;	   /* a device came back: try those once more */
	uint64_t offer_at; /* arrivals in memory, after which those that leave next are offered */
	struct tn_list flushes; /* who waits for them (flush.c) */
};

/* The durable point (flush.c); its waiters are among the offloads'. */
struct tn_flushes {
	struct tn_offloads *offloads;
	struct tn_dirty_blocks *dirty;
	struct tn_messages *messages;
	struct tn_tier_base *durable; /* NULL: nothing is */
	const struct tn_stats *c;
	const struct tn_alloc *alloc;
	bool read_only;
	uint32_t syncing; /* that the tier has begun */
};

/* Spaces that are being dropped (space_drop.c). */
struct tn_drops {
	struct tn_blocks *blocks;
	struct tn_flushes *flushes;
	struct tn_messages *messages;
	struct tn_tier_base *durable; /* NULL: nothing is */
	struct tn_list waiting; /* their waiters, until the blocks are doomed; then they are flushes */
};

struct tn_cache {
	struct tn_cache_opts o;
	struct tn_log log;
	struct tn_logger *logger; /* with threads: the log lines' way to the caller */
	const struct tn_alloc *alloc;
	struct tn_clock clock;
	pthread_mutex_t lock; /* spaces, memories and pools: open and close only */
	struct tn_space *spaces[TN_SPACES_MAX]; /* written by the owner, while the caller holds the lock */
	uint32_t nmemories;
	struct tn_list memories;
	struct tn_pool *pools[TN_POOLS_MAX]; /* shared: by number; written under the lock */

	struct tn_messages messages;
	pthread_t owner;
	struct tn_vigil vigil; /* the owner's */
	uint32_t opened; /* shared: futex, 1 when open ended, 2 when it may close */
	int open_status;
	struct tn_error open_error;
	bool stopping;
	int eventfd;
	uint32_t eventfd_used; /* shared */

	struct tn_io *io;
	struct tn_engines engines;
	uint32_t ndevices; /* of the tier on drives */
	struct tn_schedule *schedule; /* NULL: everything goes as it comes */
	struct tn_registry *registry;
	struct tn_row row;
	struct tn_blocks blocks;
	struct tn_dirty_blocks dirty;
	const struct tn_tier_maker *makers[TN_TIERS_MAX]; /* those of tn_tier_makers, or a test's */
	struct tn_tier_env tiers; /* what they are made of */
	struct tn_exec *exec;
	struct tn_workers *workers;
	struct tn_transfers *transfers;
	struct tn_budgets *budgets; /* the transfers' */
	struct tn_copiers copiers; /* of devices; their pins: what drivers copy from and to, and words of their streams */
	struct tn_pin word_pins[2], tier_pin;
	struct tn_whole *whole;
	struct tn_flights *flights;
	struct tn_secret secret;
	char *dir_paths;

	struct tn_region region; /* the front's view: where it asks, and is told */
	struct tn_session *own;	 /* the core's side of the same */
	struct tn_list sessions; /* the own one first; the owner's */
	uint32_t nattached;	 /* of the others */
	uint64_t held[TN_TIERS_MAX]; /* of all sessions together */
	uint64_t lease_blocks;	 /* shared: as many as a session that has attached may have in leases */
	uint64_t save_idle_ns;	 /* shared: TN_SAVE_IDLE_NS, but in tests; of loads that streams wait for, too */
	uint64_t parent_steps;	 /* the owner's: blocks of saves that the searches for parents looked at; a test bounds them */
	struct tn_log_limit lines; /* the owner's: of operations that are given up */
	struct tn_log_limit kept_out_lines; /* likewise: of blocks that were not admitted because of others */
	struct tn_front *front; /* the callers' side; nothing of it is the owner's */
	struct tn_matches *matches; /* likewise */
	struct tn_attached *attached; /* of a front in another process than the core: that process' only; NULL: the core is here */
	struct tn_stage *stage; /* shared: likewise, once it has a pool that is staged (front/stage.h) */
	struct tn_server *server; /* what others attach to; NULL: it is not served */
	struct tn_peers *peers;	  /* shared: who is attached, and what those before have counted; NULL: it was never served */
	uint64_t opened_ns;
	struct tn_list loads, saves; /* active */
	struct tn_places places;
	struct tn_offloads offloads;
	uint32_t device_loads; /* of the loads, those from devices */
	bool offloads_first;   /* they are stepped before the saves this time */
	struct tn_flushes flushes;
	struct tn_drops drops;

	struct tn_keyed *keyed;
	struct tn_reclaim *reclaim;
	struct tn_events *events;
	struct tn_names *names; /* shared: set once, by tn_names_keep; or NULL */
	struct tn_hints *hints; /* under lock; NULL: there were none */
	struct tn_watch *watch;
	uint64_t ns_per_mib[TN_TIERS_MAX]; /* shared: estimates, by the lowest tier that a load needed */
	uint64_t read_bps; /* shared: of all devices together, as the scheduler knows it; 0: not yet */
	struct tn_stats c; /* those that are counted: only the owner changes them, and anyone reads them */
	uint32_t max_blocks, max_objects, max_pages;
	const struct tn_mapping *mappings[TN_MEMORIES_MAX]; /* shared: by number; those of pools are written under the lock */
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
/* tn_messages_call, for who has the cache alone. */
int tn_owner_call(struct tn_cache *cache, int (*fn)(struct tn_cache *cache, void *arg), void *arg);

/* command.c */
/* Threads do not survive a fork: the child may not use the parent's cache. */
bool tn_messages_forked(const struct tn_messages *m);
static inline bool tn_forked(const struct tn_cache *cache)
{
	return tn_messages_forked(&cache->messages);
}
/* First in every public call: 0, or -ECHILD in a forked child, where nobody would ever answer. */
static inline int tn_check_process(const struct tn_cache *cache)
{
	return tn_forked(cache) ? -ECHILD : 0;
}
void tn_messages_send(struct tn_messages *m, struct tn_cmd *cmd);
/*
 * Runs fn(cache, arg) on the owner thread and waits for it, without a deadline: the owner never waits for I/O while the cache
 * is open, so it comes round to fn within a step, and fn may not wait for anything either.
 */
int tn_messages_call(struct tn_messages *m, int (*fn)(struct tn_cache *cache, void *arg), void *arg);
/* Owner thread: the messages that were sent, the oldest first; to be run. */
struct tn_cmd *tn_messages_take(struct tn_messages *m);
void tn_messages_run(struct tn_cmd *list);

/* The quota of a space in a tier, in bytes. Any thread. */
static inline uint64_t tn_space_quota(const struct tn_space *space, enum tn_tier tier)
{
	return __atomic_load_n(&space->quota.bytes[tier], __ATOMIC_RELAXED);
}

static inline bool tn_space_in(const struct tn_space *space, const struct tn_tier_base *t)
{
	return t && space->cls[t->tier] != TN_CLASS_NONE;
}

/* engine.c: the devices, before the first engine; and an engine on them, for the thread that calls it */
int tn_devices_open(struct tn_engines *e);
int tn_engine_open(const struct tn_engines *e, uint32_t depth, struct tn_io **out);
/*
 * Who moves a cache's bytes: an executor on queues of namespaces, elsewhere one on files of I/O engines. As
 * who makes them.
 */
int tn_executor_open(const struct tn_engines *e, const struct tn_executor_opts *opts, const struct tn_executor_files *files,
		     struct tn_executor **out);

/* open.c: everything that opens and closes on the owner thread */
int tn_core_open(struct tn_cache *cache);
int tn_core_close(struct tn_cache *cache);

/* session.c */
#define for_each_session(s, c) \
	for (struct tn_session *s = tn_container_of((c)->sessions.next, struct tn_session, link); &(s)->link != &(c)->sessions; \
	     s = tn_container_of((s)->link.next, struct tn_session, link))
/* What one operation may have, of options that are set. */
void tn_session_limits(struct tn_cache *cache);
/* How large the tables of the cache's region are. */
void tn_session_counts(const struct tn_cache *cache, struct tn_region_counts *counts);
/* The core's side of a region, which outlives it. 0, -ENOMEM. */
int tn_session_create(struct tn_cache *cache, const struct tn_region *region, struct tn_session **out);
void tn_session_destroy(struct tn_session *session);
/* Owner thread, arg is a session: it is served from now on; -EAGAIN: TN_SESSIONS_MAX are. */
int tn_session_join(struct tn_cache *cache, void *arg);
/* Likewise: nobody is behind it any more. 0: it is not served, and nothing of it is under way; -EAGAIN: ask again. */
int tn_session_leave(struct tn_cache *cache, void *arg);
/* Owner thread, arg is a struct tn_session_view: 0; -ENOENT: nobody is in the place. */
struct tn_session_view {
	uint32_t place; /* as of tenuto/status.h */
	struct tn_session_stats *out; /* but for what the server knows of the process */
};
int tn_session_describe(struct tn_cache *cache, void *arg);
/* Adds the bytes that the session's process has staged to a sum, which stays at its highest value. Owner thread. */
void tn_session_add_staged(struct tn_session *session, uint64_t *sum);
/*
 * Whether one more block of the session's saves may come into the tier: each session leaves as many places for the others as its saves hold, and what
 * its leases keep is not free. With n that take what they can, each has one of n + 1 parts. Who has the cache alone may have all of it.
 */
bool tn_session_has_share(const struct tn_session *session, const struct tn_tier_base *t);
/* Whether no more than one session is there to share with. The owner's own counts once it has begun a save: a process that only serves takes nothing. */
static inline bool tn_session_is_alone(const struct tn_cache *cache)
{
	return cache->nattached + (cache->own->saves > 0) <= 1;
}
void tn_session_hold(struct tn_session *session, enum tn_tier tier);
void tn_session_let_go(struct tn_session *session, enum tn_tier tier);
/* What a session that has attached may have in leases follows from the durable tier's capacity. Owner thread. */
void tn_sessions_share(struct tn_cache *cache);
/* There is something new for whoever is behind the session; one that has left is not touched. Owner thread. */
void tn_session_completes(struct tn_cache *cache, const struct tn_session *session);
/* Owner thread, arg is a pool of a session that is not the own one: no operation finds it any more. 0; -EBUSY: some use it. */
int tn_session_forget_pool(struct tn_cache *cache, void *arg);
/*
 * The owner sleeps, or is awake again: others than the own front look at this before they wake it. Whoever rings and finds the
 * owner awake was first, so the owner looks at the bells after it has said that it sleeps. Events of saves ring none: while such a
 * save waits (tn_saves_wait_for_others) the owner takes one more step then.
 */
void tn_sessions_sleep(struct tn_cache *cache, bool asleep);
bool tn_sessions_rang(const struct tn_cache *cache);
static inline const struct tn_region *tn_op_region(const struct tn_op *op)
{
	return &op->session->region;
}
/* Whether its bytes lie in pages of another process, which can change them at any time. */
static inline bool tn_op_is_foreign(const struct tn_op *op)
{
	return op->pool && op->session != op->cache->own;
}
/* Whether operations of the session may be about the space of that number, which is below TN_SPACES_MAX. */
static inline bool tn_session_may_name(const struct tn_session *session, uint32_t space)
{
	return session == session->cache->own || __atomic_load_n(&session->may_name[space / 64], __ATOMIC_ACQUIRE) >> (space % 64) & 1;
}

/* op.c */
/* Tells those who wait for the operation that something about it has changed, ... */
void tn_op_notify(struct tn_op *op);
/* ... what became of it, ... */
void tn_op_tell_status(const struct tn_op *op, int status);
/* ... or that the owner is done with it. */
void tn_op_drained(struct tn_op *op);
/* Of an operation that is not under way: no batch of it follows. */
void tn_op_ends(struct tn_op *op);
/* Most blocks of one operation; any thread. */
uint32_t tn_op_blocks_max(const struct tn_cache *cache, const struct tn_space *space, bool with_pages);
/*
 * A life of the operation, as a front asks for it: checks and copies all of it, and tells that it has begun. 0, or -EINVAL, and
 * then refuse says so to the front.
 */
int tn_op_begin(struct tn_op *op, const struct tn_command *c);
void tn_op_refuse(struct tn_op *op, uint64_t generation, int status);
/* Whose blocks it is about. */
void tn_op_set_space(struct tn_op *op, struct tn_space *space);
static inline bool tn_op_is_cancelled(const struct tn_op *op)
{
	return op->session->over || tn_face_is_set(&tn_face_asked(tn_op_region(op), op->number)->cancel);
}
static inline bool tn_op_is_committed(const struct tn_op *op)
{
	return tn_face_is_set(&tn_face_asked(tn_op_region(op), op->number)->commit);
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
	return item->r->op.cache->row.tier[item->tier]->ops->traits.reach;
}

/* For somebody to whom this cache is not nearest: what is read stays where it is. */
static inline bool tn_read_passes(const struct tn_reading *r)
{
	return !r->prefetch && r->op.priority == INT32_MIN;
}

/* Whether it comes from the near tier. */
static inline bool tn_read_is_near(const struct tn_read_item *item)
{
	const struct tn_tier_base *near = item->r->op.cache->row.near;

	return near && item->tier == near->tier;
}

/* An item's place in the memory tier: its offset there. */
static inline uint64_t tn_read_memory(const struct tn_read_item *item, uint64_t **checks)
{
	const struct tn_tier_base *t = item->r->op.cache->row.memory;

	return t->ops->offset(t, item->memory, item->r->op.shape, checks);
}

/* load.c: what load_start.c needs, too. Whether the load itself still wants the block. */
bool tn_read_wanted(const struct tn_read_item *item);
void tn_read_chunk_good(struct tn_read_item *item, uint32_t c);
/* The good prefix is no longer than @good blocks. */
void tn_read_shrink(struct tn_reading *r, uint32_t good);
/* The pages of an item are the caller's again, if nothing writes to them any more, nor will. */
void tn_read_pages_free(struct tn_read_item *item);

/* load.c, save.c, offload.c: one step each; return whether anything happened */
void tn_load_ended(const struct tn_part *part);
void tn_writing_ended(const struct tn_part *part);
bool tn_loads_step(struct tn_cache *cache, uint64_t now_ns);
bool tn_saves_step(struct tn_cache *cache, uint64_t now_ns);
/* When the first save is given up whose caller owes the next layer, or the commit; TN_FOREVER: there is none. */
uint64_t tn_saves_due(const struct tn_cache *cache);
bool tn_save_devices_pending(const struct tn_cache *cache);
/* Whether a save of another process has layers that are not given, or whose event is not raised. Owner thread. */
bool tn_saves_wait_for_others(const struct tn_cache *cache);
void tn_save_begins(struct tn_save_op *save);

/* offload.c */
/* The members above n are set; cache: of the operations, whose numbers begin at first. */
int tn_offloads_create(struct tn_offloads *o, struct tn_cache *cache, uint32_t first);
void tn_offloads_destroy(struct tn_offloads *o);
/* *due_ns: when to come back without being woken. */
bool tn_offload_step(struct tn_offloads *o, uint64_t now_ns, uint64_t *due_ns);
/* For how long the admitted block that has waited for longest lies in host memory; 0: there is none. */
uint64_t tn_offload_age(struct tn_offloads *o, uint64_t now_ns);
/* How much it matters that blocks leave host memory while loads are under way. */
enum tn_offload_urgency {
	TN_OFFLOAD_IDLE,    /* not at all */
	TN_OFFLOAD_PRESSES, /* into the slack of loads */
	TN_OFFLOAD_LATE,    /* before reads: offload_lag_ms is half over */
};
enum tn_offload_urgency tn_offload_urgency(struct tn_offloads *o, uint64_t now_ns);
/* Queues again what could not be written; returns how many blocks there is still no place for. */
uint32_t tn_offload_retry(struct tn_offloads *o);
/* Blocks on their way to the durable tier: all tickets below this one are done; and how many were given. */
uint64_t tn_offloaded_up_to(const struct tn_offloads *o);
uint64_t tn_offload_tickets(const struct tn_offloads *o);
/* The block, which is in memory, goes to the next tier below the durable one that lets it in. */
void tn_offload_further(struct tn_offloads *o, tn_block b, enum tn_offer when);
/* How many operations copy blocks of the space (NULL: of any) to tiers where these are promised to nobody. */
uint32_t tn_offload_copies(const struct tn_offloads *o, const struct tn_space *space);
/* No such copy of the space's blocks (NULL: of any) begins; those under way end soon. */
void tn_offload_forget_copies(struct tn_offloads *o, const struct tn_space *space);
bool tn_offloads_idle(const struct tn_offloads *o);

/* writing.c: what saves and offloads have in common */
/* True: all that could be written is, and nothing is in flight any more. */
bool tn_writing_step(struct tn_writing *w, bool committed, bool *busy);
/* The item's bytes on disk are block b's from now on. */
void tn_writing_publish(struct tn_write_item *item, tn_block b);

/* Places for blocks that are to be stored. */
static inline void tn_place_wait_init(struct tn_place_wait *wait, const struct tn_space *space, const struct tn_tier_base *t)
{
	wait->space = space->index;
	wait->cls = space->cls[t->tier];
	wait->block_bytes = space->shape.slot_bytes;
	wait->quota_bytes = tn_space_quota(space, t->tier);
	wait->ended = space->cache->places.ended;
}
void tn_places_join(struct tn_writing *w);
void tn_places_leave(struct tn_writing *w);
bool tn_places_step(struct tn_cache *cache);
void tn_item_release(struct tn_write_item *item);
void tn_item_failed(struct tn_write_item *item, int status);
/* How the bytes of an item get to its place. */
static inline enum tn_reach tn_item_reach(const struct tn_write_item *item)
{
	return item->w->op.cache->row.tier[item->tier]->ops->traits.reach;
}
/* Whether these slots are held, and by nothing but transfers under way: none by a lease, by a save that waits for its caller, or by an operation that stands. */
bool tn_places_pass(struct tn_cache *cache, uint32_t first, uint32_t n);

/* dirty.c */
void tn_dirty_push(struct tn_dirty_blocks *d, tn_block b, const struct tn_tier_base *target);
/* The block need not go any more, or is there (NOT), or could not be written (FAILED). */
void tn_dirty_settled(struct tn_dirty_blocks *d, uint32_t slot, const struct tn_tier_base *target, enum tn_dirty as);
/* The first place of the queue whose block still needs to go; NULL: there is none. */
const struct tn_waiting *tn_dirty_first(struct tn_dirty_blocks *d, const struct tn_tier_base *target);

/* flush.c */
bool tn_flush_step(struct tn_flushes *f);
/* What a save has stored becomes durable, and then it is over; flush.status is its result. */
void tn_save_flush(struct tn_flushes *f, struct tn_save_op *save);
/* tn_flush in two halves, for those who may not wait: NULL without memory; poll says -EAGAIN while the flush is under way, and frees it then. */
struct tn_flush_waiter *tn_flush_begin(struct tn_flushes *f);
bool tn_flush_is_over(const struct tn_flush_waiter *w);
int tn_flush_poll(struct tn_flush_waiter *w);
/* As poll, but waits; after -ETIMEDOUT the owner frees it. */
int tn_flush_wait(struct tn_flush_waiter *w, uint64_t deadline_ns);
/* Halves of begin: a waiter that is not under way yet, and one that waits for no offload. */
struct tn_flush_waiter *tn_flush_take(struct tn_flushes *f);
void tn_flush_put(struct tn_flush_waiter *w);
void tn_flush_join(struct tn_flush_waiter *w);

/* space_drop.c: tn_space_drop up to the wait for its durable point; *out set only on success. -EBUSY: try again. */
int tn_space_drop_begin(struct tn_drops *d, struct tn_space *space, struct tn_flush_waiter **out);
bool tn_drops_step(struct tn_drops *d);
bool tn_drops_idle(const struct tn_drops *d);

/* reclaim.c: numbers of spaces that nobody has open */
struct tn_reclaim_opts {
	struct tn_blocks *blocks;
	struct tn_space **spaces;
	struct tn_tier_base *durable; /* NULL: nothing is */
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
};
int tn_reclaim_create(const struct tn_reclaim_opts *opts, struct tn_reclaim **out);
void tn_reclaim_destroy(struct tn_reclaim *r);
/*
 * Owner thread, called by who holds the lock: frees the number of a space that nobody has open. 0; -EAGAIN: the blocks of some are on
 * their way out, ask again; -ENOSPC: all are open, or held.
 */
int tn_space_reclaim(struct tn_reclaim *r);
/* The space is open (again): what is left of its blocks stays. */
void tn_space_stays(struct tn_reclaim *r, uint16_t index);
bool tn_reclaim_step(struct tn_reclaim *r);

/* blocks.c: blocks and the row of tiers */
/* The members above tier_watch are set. */
int tn_blocks_create(struct tn_blocks *bl, bool disks);
void tn_blocks_destroy(struct tn_blocks *bl);
void tn_tier_joins(struct tn_blocks *bl, struct tn_tier_base *t);
void tn_request_begins(struct tn_blocks *bl, tn_block parent);
/* A request references a block. First block first; then, if it goes back, last block first. */
void tn_block_touch(struct tn_blocks *bl, tn_block b, bool partial);
bool tn_request_goes_back(const struct tn_blocks *bl);
void tn_block_touch_back(struct tn_blocks *bl, tn_block b);
/* Likewise the block and so many at most of those up to it, which a request continues. TN_BLOCK_NONE: none. */
void tn_chain_touch_back(struct tn_blocks *bl, tn_block last, uint32_t most);
/* A tier has let the block in. */
void tn_block_let_in(struct tn_blocks *bl, struct tn_tier_base *t, tn_block b, const struct tn_policy_block *info);
/* Its bytes are in a place of the tier; entry: what the tier's index keeps of it, or NULL. */
void tn_block_arrives(struct tn_blocks *bl, struct tn_tier_base *t, tn_block b, uint32_t place, const struct tn_index_entry *entry);
/* The space has one record more, by a request. */
void tn_block_registered(struct tn_blocks *bl, uint16_t space);
/* It was loaded from the durable tier. */
void tn_block_read_back(struct tn_blocks *bl, tn_block b);
/* See struct tn_blocks: unsure. */
void tn_block_set_unsure(struct tn_blocks *bl, tn_block b, bool unsure);
bool tn_block_is_unsure(const struct tn_blocks *bl, tn_block b);
/* Whether a visible block is in the durable tier, or was let into it and is not given up: what a flush is about. */
bool tn_block_is_kept(const struct tn_blocks *bl, tn_block b);
/* Whether the block is in memory or in the durable tier. */
bool tn_block_is_local(const struct tn_blocks *bl, tn_block b);
/* Whether no tier has it, nor has let it in. */
bool tn_block_lies_nowhere(const struct tn_blocks *bl, tn_block b);

void tn_block_doom(struct tn_blocks *bl, tn_block b);
/* It leaves the tier, where nobody finds it any more, as soon as nobody holds it. */
void tn_block_quits(struct tn_blocks *bl, struct tn_tier_base *t, tn_block b);
bool tn_block_is_dropped(const struct tn_blocks *bl, tn_block b);
/* Looks at some of the doomed; *due_ns: when to come back without being woken. */
bool tn_doomed_step(struct tn_blocks *bl, uint64_t now_ns, uint64_t *due_ns);
/* Any thread, after unpinning block b: wakes the owner if that may have been what it waits for. */
void tn_doomed_unpinned(struct tn_blocks *bl, tn_block b);
void tn_doomed_end(struct tn_blocks *bl);
void tn_block_try_forget(struct tn_blocks *bl, tn_block b);
/* Gives a reference back; the record goes if nobody else holds it and the block lies nowhere any more. */
void tn_block_release(struct tn_blocks *bl, tn_block b);

/* keyed.c: what tiers do and learn by themselves */
struct tn_keyed_opts {
	const struct tn_row *row;
	struct tn_registry *registry;
	struct tn_blocks *blocks;
	struct tn_watch *watch;
	struct tn_space *const *spaces;
	struct tn_messages *messages;
	const struct tn_alloc *alloc;
	uint32_t lookups, keys; /* at the same time, and keys of each; without tiers that answer later they take no memory */
};
/* Once the tiers are made. */
int tn_keyed_create(const struct tn_keyed_opts *opts, struct tn_keyed **out);
void tn_keyed_destroy(struct tn_keyed *k);
bool tn_keyed_step(struct tn_keyed *k, uint64_t now_ns, uint64_t *due_ns);
/*
 * Callers: asks the tiers that others use, too, for what of these keys the registry does not have; once it is over, a look-up
 * finds what they have, and its session is told that there are completions. NULL: as many as the table has are under way, or no tier
 * answers later. end gives it back, over or not.
 */
struct tn_lookup *tn_lookup_begin(struct tn_keyed *k, struct tn_session *whose, struct tn_space *space, const struct tn_key *keys,
				  uint32_t n);
bool tn_lookup_over(const struct tn_lookup *l);
void tn_lookup_end(struct tn_lookup *l);

/* whole.c: transfers of tiers that move whole blocks by themselves */
int tn_whole_create(const struct tn_alloc *alloc, struct tn_whole **out);
void tn_whole_destroy(struct tn_whole *w);
/* A free one, or NULL: ask again when one has ended. */
struct tn_tier_move *tn_whole_get(struct tn_whole *w, bool write);
void tn_whole_put(struct tn_whole *w, struct tn_tier_move *move);

/* load_headers.c */
/* Asks the tier for those of the blocks before up_to that were not asked for yet. verify: false: no checksums are needed. */
void tn_load_read_headers(struct tn_reading *r, uint32_t up_to, struct tn_tier_base *from, bool verify);
/* What came of one: as header_read (tier/drives.h). */
int tn_load_header_ended(struct tn_read_item *item, const struct tn_part *part, struct tn_tier_base *from);

/* schedule.c */
int tn_schedule_create(struct tn_cache *cache);
void tn_schedule_destroy(struct tn_cache *cache);
/* What a front must know before its first call. */
void tn_schedule_session(struct tn_session *session);
/* Bytes of a save that its front has admitted and that do not wait for the disk any more. */
void tn_schedule_give_back(struct tn_op *op, uint64_t bytes);
void tn_schedule_turn(struct tn_cache *cache, uint64_t now_ns, enum tn_offload_urgency urgency);
uint64_t tn_schedule_due(const struct tn_cache *cache);
/* A load from its activation to its end; between them at: where the engine is, issued: how far it is. */
void tn_schedule_load(struct tn_reading *r);
/* IOCBs of a load's reads that may be out while a chunk is read, by the space's table of the layer that is computed meanwhile; 0: no bound. */
uint32_t tn_schedule_most_iocbs(struct tn_reading *r, uint32_t chunk);
void tn_schedule_load_at(struct tn_reading *r);
void tn_schedule_load_issued(struct tn_reading *r, bool all);
void tn_schedule_load_over(struct tn_reading *r);
/* With a schedule only: whose reads are next, NULL when all had their turn; and all may have another one. */
struct tn_reading *tn_schedule_next(struct tn_cache *cache, uint64_t now_ns);
void tn_schedule_again(struct tn_cache *cache);
/* Bytes that reads of a device may be let go now, at least that many if any; 0: ask with tn_schedule_read, or *later. */
uint64_t tn_schedule_read_allowance(struct tn_cache *cache, uint32_t device, uint64_t least, bool *later);
/* Whether a transfer may go now; if so, its end must be told. */
bool tn_schedule_read(struct tn_read_item *item, uint32_t chunk, uint64_t bytes);
/* Of a save or an offload. */
bool tn_schedule_write(const struct tn_writing *w, uint32_t device, uint64_t bytes);
/* Bytes that one request of it should have at most, if a chunk has fewer. */
uint64_t tn_schedule_write_most(const struct tn_cache *cache, uint32_t device);
/* It cannot ask, because it waits for something else besides: where it waited to write, it goes on waiting. */
void tn_schedule_write_waits(const struct tn_writing *w);
bool tn_schedule_tier_write(struct tn_cache *cache, uint32_t device, uint64_t bytes);
/* Not moved: it did not go, or what it waits for is no drive: nothing is learned. */
void tn_schedule_ended(struct tn_cache *cache, enum tn_io_op op, uint32_t device, uint64_t bytes, bool moved);

/* flights.c */
int tn_flights_create(const struct tn_alloc *alloc, uint32_t max, struct tn_flights **out);
void tn_flights_destroy(struct tn_flights *f);
struct tn_read_item *tn_flights_get(const struct tn_flights *f, tn_block b);
void tn_flights_set(struct tn_flights *f, tn_block b, struct tn_read_item *item);
void tn_flights_del(struct tn_flights *f, tn_block b, const struct tn_read_item *item);

#endif
