/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front of a cache: what the public calls of loads, saves and events keep for themselves. They reach the core through the
 * region alone, and this struct is never the core's.
 */
#ifndef TN_FRONT_FRONT_H
#define TN_FRONT_FRONT_H

#include "core/core.h"
#include "core/pool.h"
#include "front/allotment.h"
#include "region/call.h"
#include "region/face.h"

/*
 * A staged operation that has less session memory than blocks goes to the owner in batches, one after the other, each a life of its own there
 * (stage.c). Every other operation is one batch.
 */
struct tn_batches {
	uint32_t count, index; /* how many, and the one under way */
	uint32_t blocks;       /* of each, the last may have fewer */
	uint32_t asked;	       /* blocks before that one are in batches that the owner was asked for */
	uint32_t counted[TN_FACE_KINDS]; /* of those that are over: results of a save, or tiers of a load */
	uint32_t left;		     /* of a save: blocks that never got to the owner, ... */
	int error, status;	     /* ... and the first of each */
	int uncopied;		     /* why a device's copy failed, or is waited for no more: of the batch under way nothing is good */
	bool told_all;		     /* of a load: all layers were told; no other copy begins */
};

#define TN_COPIES_MAX 8u

/* Bytes of a staged operation on their way between its caller's pages and session memory (stage_copy.h). */
struct tn_stage_copy {
	uint32_t first_layer, end_layer;
	uint32_t end_block; /* of no block from this one on */
	int error;
	uint32_t calls; /* of a device's driver that carry it out: it is over at the event of the last one; 0: it is over */
	uint64_t event, bytes;
};

/* Those of one operation, the oldest first. */
struct tn_stage_copies {
	uint32_t first, n;
	struct tn_stage_copy copy[TN_COPIES_MAX];
};

/* An operation as its caller's side knows it, by number. */
struct tn_front_op {
	uint64_t gate;	     /* shared: of its handle */
	uint32_t next_free;  /* shared: link of the free stack */
	uint32_t number;
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_pool *pool; /* NULL: a prefetch */
	const struct tn_region *region; /* where its callers meet who carries it out: the cache's, or tn_stage_region */
	uint64_t generation; /* the last of as many as it has batches */
	struct tn_batches batches;
	struct tn_stage_copies copies;
	uint32_t idle_block; /* of a staged load: blocks from here on are told idle */
	uint64_t heard_ns;   /* likewise: when a copy began or ended last */
	uint64_t first_page, end_page; /* that are claimed */
	uint32_t n; /* blocks */
	uint32_t layers_given; /* shared; saves */
	uint8_t *outcome;      /* saves: the caller's, by block, or NULL */
	uint64_t tag;	       /* the caller's */
	uint64_t input_tokens; /* loads */
	uint32_t left_layer;   /* which wait a load's caller returned from last, ... */
	uint64_t left_ns;      /* ... and when; 0: it is in one */
	uint64_t begun_ns;     /* shared: when it began; 0: that it is ready was timed */
};

struct tn_event {
	struct tn_cache *cache;
	uint32_t number; /* in the region */
	uint32_t next_free; /* shared: link of the free stack */
};

struct tn_front {
	uint32_t handle_slot; /* front_op.c; 0: none */
	struct tn_front_op *ops;
	uint64_t free_ops; /* shared: tagged stack of numbers */
	pthread_mutex_t reap_lock;
	uint64_t *prefetches; /* shared: bitmap of the operations that nobody ends; cleared under the lock */
	struct tn_event *events;
	uint64_t free_events; /* shared: tagged stack of numbers */
	pthread_mutex_t completions_lock; /* of the rest */
	const struct tn_region *told_in; /* the region whose completions callers take */
	struct tn_doorbell_taker completions;
	uint32_t *completed; /* numbers, the next one to be told first, ... */
	uint32_t next_completed; /* ... from here to the end */
};

int tn_front_create(struct tn_cache *cache);
void tn_front_destroy(struct tn_cache *cache);

/* ---- front_op.c ------------------------------------------------------------------------------------ */

/* NULL: all are under way. */
struct tn_front_op *tn_front_take(struct tn_cache *cache);
void tn_front_give(struct tn_front_op *op);
/* Gives back the prefetches that are over. */
void tn_front_reap(struct tn_cache *cache);

/* What an operation is about. No pool and no pages: a prefetch. */
struct tn_front_args {
	struct tn_space *space;
	struct tn_pool *pool;
	const struct tn_key *keys;
	size_t n;
	const uint32_t *pages;
};
/* 0; -E2BIG: no operation has room for so many blocks. */
int tn_front_fits(const struct tn_front_args *args);
/* Copies what fits into the region, for a new life. */
void tn_front_arm(struct tn_front_op *op, const struct tn_front_args *args);
/* Hands the operation over to the core. */
void tn_front_begin(struct tn_front_op *op, const struct tn_command *command);
/* The core looks at what the front has written. */
static inline void tn_front_wake(struct tn_cache *cache)
{
	if (cache->attached)
		tn_region_wake(&cache->region);
	else
		tn_io_wake(cache->io);
}

/* Lets the core look at the operation's words. */
void tn_front_kick(struct tn_front_op *op);
/* Whether the core is done with the operation, and will not look at it again. */
bool tn_front_is_over(const struct tn_front_op *op);
bool tn_front_layer_is_ready(const struct tn_front_op *op, uint32_t layer);
bool tn_front_all_is_ready(const struct tn_front_op *op);
/* The caller sees all layers of a load ready: times the load, the first time, unless it was cancelled. */
void tn_front_time_load(struct tn_front_op *op);

/* Of the operation's present life, or the last one; any thread. */
uint64_t tn_front_generation(const struct tn_front_op *op);
/* Handles of loads and saves: the numbers that callers have instead of addresses. */
enum tn_handle_kind { TN_HANDLE_LOAD, TN_HANDLE_SAVE };
static inline bool tn_front_is_save(const struct tn_front_op *op)
{
	return (op->generation & 1) == TN_HANDLE_SAVE;
}

/* The operation's next life; the handle is not open yet. */
void tn_handle_next(struct tn_front_op *op, enum tn_handle_kind kind);
void *tn_handle_open(struct tn_front_op *op);
/* The handle of the life under way; NULL: there is none, or of the other kind. Any thread. */
void *tn_handle_of(const struct tn_front_op *op, enum tn_handle_kind kind);
/* 0 and the operation, which stays that one until leave; -EINVAL: no such handle, any more; -ECHILD. */
int tn_handle_enter(const void *handle, enum tn_handle_kind kind, const char *call, struct tn_front_op **out);
void tn_handle_leave(struct tn_front_op *op);
/*
 * Inside, of an operation that is over: from now on nobody else is inside; false: somebody else closed it. Then either
 * reopen, or leave.
 */
bool tn_handle_close(struct tn_front_op *op);
void tn_handle_reopen(struct tn_front_op *op);

/* ---- pool.c: which pages belong to loads and saves ---------------------------------------------------------- */

/*
 * Claims pages[first..end) for a load, or none: 0, or -EINVAL with the index in the detail (out of range, given twice, or still part of
 * another load or of a save). Any thread.
 */
int tn_claims_load(struct tn_claims *c, const uint32_t *pages, uint64_t first, uint64_t end);
void tn_claims_loaded(struct tn_claims *c, const uint32_t *pages, uint64_t first, uint64_t end);
/* Likewise pages[0..n) for a save, which other saves may have, too. */
int tn_claims_save(struct tn_claims *c, const uint32_t *pages, uint64_t n);
void tn_claims_saved(struct tn_claims *c, const uint32_t *pages, uint64_t n);

/* ---- statistics of some tenants --------------------------------------------------------------------------------- */

/* space.c: what the spaces of a tenant have in common; NULL is "". */
struct tn_key tn_tenant_of(const struct tn_cache *cache, const char *tenant);
/* observe.c: of two of them, for qsort. */
int tn_tenant_order(const void *a, const void *b);
/* tn_stats_take of the spaces of n tenants, in that order, alone: what is not counted by space is 0. 0, or -ECHILD. */
int tn_stats_take_of(struct tn_cache *cache, const struct tn_key *tenants, uint32_t n, struct tn_stats *stats);

/* ---- api.c: what the scheduler is told, for tests ----------------------------------------------------------------- */

/* An engine is about to wait for a layer, and goes on with it. */
void tn_hint_wait_begins(struct tn_front_op *load, uint32_t layer, uint64_t now);
void tn_hint_wait_ends(struct tn_front_op *load, uint32_t layer, uint64_t now);

/* A layer took so long to compute: for the owner, if the cache has a scheduler. */
void tn_front_observe(const struct tn_space *space, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer, int64_t ns);

/* ---- plan.c ------------------------------------------------------------------------------------------------ */

struct tn_space_stats;

/* tn_cache_space_stats of the own cache. */
int tn_space_describe(struct tn_cache *cache, uint32_t index, uint32_t input_tokens, struct tn_space_stats *out);

/* ---- space.c ---------------------------------------------------------------------------------------------- */

#define TN_SPACE_NAPS_MAX 5000u

/* Whether a wait shall end in vain after so many naps of a millisecond. */
typedef bool tn_gives_up(void *arg, uint32_t naps);
/* tn_space_open, which gives up after TN_SPACE_NAPS_MAX while leases hold the blocks of other spaces. */
int tn_space_open_unless(struct tn_cache *cache, const struct tn_identity *identity, const struct tn_shard *shard,
			 const struct tn_geometry *geometry, const struct tn_quota *quota, tn_gives_up *gives_up, void *arg,
			 struct tn_space **out);

/* One more handle of the space of that id, if somebody has it open in the own cache: 0, which tn_space_close ends, or -ENOENT. Any thread. */
int tn_space_of_id(struct tn_cache *cache, const struct tn_key *id, struct tn_space **out);

/* ---- match.c: leases and queries ---------------------------------------------------------------------- */

struct tn_holder;

struct tn_lease {
	uint32_t next; /* free list */
	uint32_t generation; /* odd: taken. Shared. */
	uint32_t n;
	tn_block *blocks;
	struct tn_lease *rest; /* leases that end with this one, of other spaces */
	struct tn_holder *holder; /* the session that has it; NULL: the owner's process */
	struct tn_list link;	  /* holder->taken */
};

#define TN_ALLOTTED_LEASES TN_MATCH_SPACES_MAX /* those of one look-up, of whatever kind */
#define TN_ALLOTTED_QUERIES 4u

/* What a session has of both; its thread's. */
struct tn_holder {
	struct tn_allotment leases, queries;
	struct tn_list taken; /* leases */
	uint64_t listed;      /* shared: blocks in all of them, one in two of them twice */
	uint64_t *seen;	      /* bit by block, while they are counted */
};

/* Look-ups: what they hold, and how many there were. */
struct tn_matches {
	struct tn_lease *leases;
	uint32_t nleases; /* the sessions' own parts included, as of the queries */
	struct tn_common common_leases, common_queries;
	uint64_t free_leases; /* shared: tagged stack */
	tn_block *lease_blocks;
	struct tn_query *queries; /* under way */
	uint32_t nqueries;
	uint64_t free_queries; /* shared: tagged stack */
	struct tn_key *query_keys;
	uint64_t lookups, lookup_blocks, hit_blocks; /* shared */
};

int tn_match_create(struct tn_cache *cache);
void tn_match_destroy(struct tn_cache *cache);
/* The parts of a session that begins: 0, -ENOMEM. */
int tn_holder_init(struct tn_holder *holder, const struct tn_cache *cache);
void tn_holder_fini(struct tn_holder *holder, const struct tn_cache *cache);
/* tn_match and tn_match_all, for a process that times the call itself. */
int tn_match_answer(struct tn_holder *holder, struct tn_space *space, const struct tn_key *keys, size_t n, uint8_t *tiers,
		    struct tn_match *match, unsigned flags);
int tn_match_all_answer(struct tn_holder *holder, struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n,
			uint32_t *first, struct tn_match *match, unsigned flags);
/* tn_unpin, of whichever space. */
int tn_lease_end(struct tn_cache *cache, uint64_t pin);
/* Whether tn_match_begin would take these arguments. */
int tn_query_check(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, unsigned flags);
/* tn_match_begin, of arguments that were checked; the session is told when a tier has answered. holder NULL: for the owner's process. */
int tn_query_begin(struct tn_session *whose, struct tn_holder *holder, struct tn_space *const *spaces, size_t nspaces,
		   const struct tn_key *keys, size_t n, uint64_t deadline_ns, unsigned flags, uint64_t *query);

#endif
