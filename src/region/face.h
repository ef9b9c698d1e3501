/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The face of an operation: what a front asks of it and what the core tells of it. No field says more than the other side needs.
 *
 * An operation's number is used again and again; each use is a life, with a generation that is higher than those before. A life begins with
 * the command and ends when `drained` has its generation and the doorbell has nothing of it (tn_doorbell_pending). No word of the core's
 * is ever set back: `begun`, `drained` and the event words hold the generation for which they are true, so they only rise.
 *
 * An event word (one per chunk, a group of layers) reaches a load's generation when the chunk of every block of the good prefix is in
 * place, also when that is so because the prefix shrank. The core stores the prefix first. So whoever sees the word at
 * the generation or beyond - a thread, another process, a GPU's stream - finds a good prefix without a block that lacks the chunk, and nobody waits
 * for ever: a load that fails ends with all words raised.
 */
#ifndef TN_REGION_FACE_H
#define TN_REGION_FACE_H

#include <errno.h>

#include "region/region.h"

enum tn_command_kind { TN_COMMAND_LOAD = 1, TN_COMMAND_PREFETCH, TN_COMMAND_SAVE };

#define TN_COMMAND_NO_POOL UINT32_MAX
/* Flags of a command. */
#define TN_COMMAND_PARTIAL_LAST 1u /* save: the last block holds a prompt's unfinished tail */
#define TN_COMMAND_WHOLE 2u	   /* load: the caller's last one was waited for with all layers at once; goes before TN_COMMAND_LAYERS */
/* Of an operation that comes in batches, each a life of its own: there was one before, and another one follows. */
#define TN_COMMAND_GOES_ON 4u
#define TN_COMMAND_MORE 8u
#define TN_COMMAND_LAYERS 16u /* load: the caller computes layer by layer; with neither of the two nothing is known of it yet */
#define TN_COMMAND_FLAGS 31u

/* What the first wait for a load, poll of it or question for an event word is about. */
enum tn_wait {
	TN_WAIT_NOT, /* there was none yet */
	TN_WAIT_LAYERS, /* its first layer */
	TN_WAIT_WHOLE, /* a later one: the caller does not compute layer by layer */
};

/**
 * struct tn_command - what an operation is to do; keys and pages are in tables of their own
 * @generation: of this life
 * @kind:       enum tn_command_kind
 * @space, @pool: numbers; a prefetch has no pool
 * @blocks:     at least 1
 * @first_page, @end_page: of the pages of all blocks those that a load is to write, or a save to read
 * @parent:     key of the block before the first: of a save its caller's; of a load only if it goes on with one that brought that block
 * @flags:      TN_COMMAND_PARTIAL_LAST and the others. From a life with TN_COMMAND_MORE to the next one, or until `cancel` is set and a
 *              ring follows, the space counts as in use
 *
 * The other fields are those of struct tn_load_opts and tn_save_opts with the same name.
 */
struct tn_command {
	uint64_t generation;
	uint32_t kind, space, pool, blocks;
	uint64_t first_page, end_page;
	uint64_t deadline_ns, ttl_ns, input_tokens, start_ns;
	struct tn_key parent;
	int32_t priority;
	uint32_t flags;
};

/* The front's words. */
struct tn_face_asked {
	_Alignas(64) struct tn_command command; /* complete before the life's first ring */
	_Alignas(64) uint32_t cancel;		/* load: cancel, save: abort */
	uint32_t commit;
	uint32_t waiters;  /* threads that may sleep on `progress` */
	uint32_t first_wait; /* enum tn_wait */
	uint32_t at_layer; /* the engine waits for this layer, or computes it, ... */
	uint64_t at_ns;	   /* ... since then; 0: not known, or at_layer changes */
	uint64_t streams_ns; /* a load without a deadline: since when a stream may wait for its words; 0: none does */
};

/* The front's: a layer of a save whose bytes are final once the event has reached the value. */
struct tn_face_given {
	uint64_t value;
	uint32_t event; /* TN_EVENT_NONE: they are final now */
	uint32_t given; /* written last */
};

#define TN_FACE_KINDS 8u /* of results, or tiers */

/* The core's words. */
struct tn_face_told {
	_Alignas(64) uint64_t begun; /* generation: the command was taken; good and busy are this life's */
	uint64_t drained;	     /* generation: the core is done with it, and touches neither memory nor pages any more */
	uint32_t progress;	     /* futex word: rises with everything that is told */
	uint32_t good;		     /* blocks of the good prefix */
	int32_t status;		     /* before drained: 0, or why the command was refused or its result is not durable */
	int32_t error;		     /* before drained: a save's first, see tn_save_result */
	/* Before drained: how many blocks of a save had each result; before the event words: how many of a load come from each tier. */
	uint32_t blocks[TN_FACE_KINDS];
};

static inline struct tn_face_asked *tn_face_asked(const struct tn_region *r, uint32_t op)
{
	return (struct tn_face_asked *)tn_region_table(r, TN_REGION_ASKED) + op;
}

static inline struct tn_face_told *tn_face_told(const struct tn_region *r, uint32_t op)
{
	return (struct tn_face_told *)tn_region_table(r, TN_REGION_TOLD) + op;
}

static inline struct tn_key *tn_face_keys(const struct tn_region *r, uint32_t op)
{
	return (struct tn_key *)tn_region_table(r, TN_REGION_KEYS) + (uint64_t)op * r->counts.blocks;
}

static inline uint32_t *tn_face_pages(const struct tn_region *r, uint32_t op)
{
	return (uint32_t *)tn_region_table(r, TN_REGION_PAGES) + (uint64_t)op * r->counts.pages;
}

static inline struct tn_face_given *tn_face_given(const struct tn_region *r, uint32_t op)
{
	return (struct tn_face_given *)tn_region_table(r, TN_REGION_GIVEN) + (uint64_t)op * r->counts.layers;
}

/* Event words of a load, by chunk. */
static inline uint64_t *tn_face_ready(const struct tn_region *r, uint32_t op)
{
	return (uint64_t *)tn_region_table(r, TN_REGION_READY) + (uint64_t)op * r->counts.chunks;
}

/* Results of a save by block; before drained. */
static inline uint8_t *tn_face_saved(const struct tn_region *r, uint32_t op)
{
	return (uint8_t *)tn_region_table(r, TN_REGION_SAVED) + (uint64_t)op * r->counts.blocks;
}

/* Of a load by block: whether its pages may still be written to. */
static inline uint8_t *tn_face_busy(const struct tn_region *r, uint32_t op)
{
	return (uint8_t *)tn_region_table(r, TN_REGION_BUSY) + (uint64_t)op * r->counts.blocks;
}

/*
 * When a load that streams wait for is given up, because nothing of it has come since heard_ns, nor for idle_ns: a stream has no deadline of its own.
 * TN_FOREVER: no stream waits, or the load has a deadline.
 */
uint64_t tn_face_streams_due(const struct tn_region *r, uint32_t op, uint64_t heard_ns, uint64_t idle_ns);
/*
 * Whether a stream waits is told to another region, too, where nothing is told of it yet. Who tells it at the same time stores it in `from` first: either it
 * is seen there, or the store in `to` comes after the first one here.
 */
void tn_face_pass_streams(const struct tn_region *from, const struct tn_region *to, uint32_t op);

/* ---- the front -------------------------------------------------------------------------------------- */

/* Writes down a life's command, after the keys and pages; with no layer given. The caller rings afterwards. */
void tn_face_ask(const struct tn_region *r, uint32_t op, const struct tn_command *command, uint32_t layers);

/* Words that the core looks at after a ring. */
static inline void tn_face_set(uint32_t *word)
{
	__atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
}

static inline bool tn_face_is_ready(const struct tn_region *r, uint32_t op, uint32_t chunk, uint64_t generation)
{
	return __atomic_load_n(&tn_face_ready(r, op)[chunk], __ATOMIC_ACQUIRE) >= generation;
}

static inline bool tn_face_is_drained(const struct tn_region *r, uint32_t op, uint64_t generation)
{
	return __atomic_load_n(&tn_face_told(r, op)->drained, __ATOMIC_ACQUIRE) == generation;
}

/* The good prefix, to be asked for after an event word has reached the generation. */
static inline uint32_t tn_face_good(const struct tn_region *r, uint32_t op)
{
	return __atomic_load_n(&tn_face_told(r, op)->good, __ATOMIC_ACQUIRE);
}

/* The lowest tier that blocks of the load come from, once all its event words were raised; TN_TIER_NONE: nothing was found. */
enum tn_tier tn_face_lowest_tier(const struct tn_region *r, uint32_t op);

/*
 * A wait, from attend to leave. Attend, and each sleep, return in *seen how far the operation is: what the caller looks at after that
 * changes before the core notifies again, which ends the next sleep. 0, -ETIMEDOUT, or -ESHUTDOWN: the core is gone.
 */
uint32_t tn_face_attend(const struct tn_region *r, uint32_t op);
int tn_face_sleep(const struct tn_region *r, uint32_t op, uint32_t *seen, uint64_t deadline_ns);
void tn_face_leave(const struct tn_region *r, uint32_t op);

/* Waits until ready(arg) or the deadline; a deadline of 0 only looks, without a system call. As tn_face_sleep. */
static inline int tn_face_wait(const struct tn_region *r, uint32_t op, bool (*ready)(const void *arg), const void *arg, uint64_t deadline_ns)
{
	uint32_t seen;
	int rc = 0;

	if (ready(arg))
		return 0;
	if (deadline_ns == 0)
		return tn_region_is_gone(r) ? -ESHUTDOWN : -ETIMEDOUT;
	seen = tn_face_attend(r, op);
	while (rc == 0 && !ready(arg))
		rc = tn_face_sleep(r, op, &seen, deadline_ns);
	tn_face_leave(r, op);
	return rc == -ETIMEDOUT && ready(arg) ? 0 : rc;
}

/* ---- the core --------------------------------------------------------------------------------------- */

/*
 * A copy of the command, and whether it is sound by itself: numbers of spaces, pools, pages and layers are for the caller to check. 0,
 * -EINVAL. Before the ring is answered, because after the answer the front may write the command of the next life.
 */
int tn_face_take_command(const struct tn_region *r, uint32_t op, struct tn_command *out);

/* Copies of as many keys; and of the pages from first to end, which must be below npages. The counts were checked. 0, -EINVAL. */
int tn_face_take_keys(const struct tn_region *r, uint32_t op, uint32_t n, struct tn_key *out);
int tn_face_take_pages(const struct tn_region *r, uint32_t op, uint64_t first, uint64_t end, uint32_t npages, uint32_t *out);

static inline bool tn_face_is_set(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST) != 0;
}

/* Whether the bytes of a layer are final. 1: yes; 0: not yet; -EINVAL: there is no such event. */
int tn_face_layer_is_final(const struct tn_region *r, uint32_t op, uint32_t layer);

/* Of a layer that is not final: whether that may change without a wake-up, because a device writes its event's word. */
bool tn_face_layer_is_devices(const struct tn_region *r, uint32_t op, uint32_t layer);

/* The life has begun: the good prefix is all blocks, whose pages are busy. */
void tn_face_begins(const struct tn_region *r, uint32_t op, uint64_t generation, uint32_t blocks);

static inline void tn_face_tell_good(const struct tn_region *r, uint32_t op, uint32_t good)
{
	__atomic_store_n(&tn_face_told(r, op)->good, good, __ATOMIC_RELEASE);
}

/* After the good prefix. Notify afterwards. */
static inline void tn_face_tell_ready(const struct tn_region *r, uint32_t op, uint32_t chunk, uint64_t generation)
{
	__atomic_store_n(&tn_face_ready(r, op)[chunk], generation, __ATOMIC_SEQ_CST);
}

/* Before drained: how many blocks of a save had each of so many results, and the first error. */
void tn_face_tell_saved(const struct tn_region *r, uint32_t op, const uint32_t *blocks, uint32_t kinds, int error);

/* Of a save that is drained: the owner has refused it, and no block has a result. */
static inline bool tn_face_save_is_refused(const struct tn_region *r, uint32_t op)
{
	const struct tn_face_told *t = tn_face_told(r, op);
	uint32_t blocks = 0;

	for (uint32_t i = 0; i < TN_FACE_KINDS; i++)
		blocks += t->blocks[i];
	return t->status != 0 && blocks == 0;
}

/* How many blocks of a load come from each of TN_TIERS_MAX tiers. */
void tn_face_tell_tiers(const struct tn_region *r, uint32_t op, const uint32_t *blocks);

/* Before drained: why the command was refused, or its result is not durable. */
static inline void tn_face_tell_status(const struct tn_region *r, uint32_t op, int status)
{
	__atomic_store_n(&tn_face_told(r, op)->status, status, __ATOMIC_RELEASE);
}

static inline void tn_face_tell_idle(const struct tn_region *r, uint32_t op, uint32_t block)
{
	__atomic_store_n(&tn_face_busy(r, op)[block], 0, __ATOMIC_RELEASE);
}

/*
 * The core lets go of the operation, and notifies. What waiters sleep on changes after drained is set: the other way round, one who
 * looked in between would go to sleep on the new value. By then the operation may live again, and one more wake-up harms nobody.
 */
bool tn_face_drains(const struct tn_region *r, uint32_t op, uint64_t generation);

/* Wakes who waits for the operation. True: its number came into the list of completions. */
bool tn_face_notify(const struct tn_region *r, uint32_t op);

#endif
