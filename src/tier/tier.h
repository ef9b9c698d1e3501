/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier: where blocks lie besides the engine's memory. The core has a row of them, by enum tn_tier, and knows each only
 * through this interface: what the tier is good for (struct tn_tier_traits), its calls (struct tn_tier_ops), and what all
 * tiers have in common (tier.c): a policy, counts and quotas by space, and the residency of blocks in the registry.
 *
 * A block is let in (tn_tier_admit, tn_tier_insert), gets a place (place), its bytes go there, and it arrives
 * (tn_tier_arrive, fill). It leaves (tn_tier_leave, drain) when the policy names it, when it was dropped, or when its
 * place failed. What never arrives gives its place back (release).
 *
 * A place is a slot, whose number the registry keeps; in a keyed tier it follows from the block's key, and is 0. How bytes
 * get there is the tier's reach. No call waits: what a tier cannot say at once it says when it is asked again.
 *
 * Owner thread only.
 */
#ifndef TN_TIER_TIER_H
#define TN_TIER_TIER_H

#include "base/list.h"
#include "block/block.h"
#include "policy/policy.h"
#include "store/store.h"
#include "tier/shape.h"

#define TN_TIER_ABI 2u
#define TN_PLACES_AT_ONCE 256u
#define TN_TIER_KINDS (TN_TIER_REMOTE + 1) /* of enum tn_tier; nothing lies in TN_TIER_NONE */

struct tn_drive_ops;
struct tn_durable_ops;
struct tn_header_buffers;
struct tn_queues;
struct tn_remote_stats;
struct tn_tier_base;

/* How a place's bytes are reached. */
enum tn_reach {
	TN_REACH_MEMORY, /* an address: copied by workers */
	TN_REACH_DEVICE, /* device and offset: IOCBs, headers beside the data */
	TN_REACH_WHOLE,  /* whole blocks, by the tier's own executor (move) */
};

struct tn_tier_traits {
	enum tn_reach reach;
	bool keyed;	   /* places follow from keys */
	bool durable;	   /* what is let in here is "stored", and what a flush waits for */
	bool saves;	   /* saves may write here */
	bool promotes;	   /* loads and prefetches leave what they bring here */
	bool offloads;	   /* takes what a tier above holds in memory */
	bool keeps;	   /* keyed: a block that leaves is forgotten here, and stays where it lies: a look-up may evict for what it finds */
	bool entry_by_slot; /* the policy's entries are slots; else blocks, from the moment they are let in */
};

/* Flags of a block in an index entry. */
#define TN_ENTRY_PARTIAL 1u /* holds a prompt's unfinished tail */
#define TN_ENTRY_EXPIRES 2u /* had a time to live: not kept across reopening */

/* When a tier below memory is offered what lies there. */
enum tn_offer {
	TN_OFFER_STORED,  /* it was saved, and is durable or will not be */
	TN_OFFER_REUSED,  /* a load took it */
	TN_OFFER_LEAVING, /* it is among the next to leave memory */
};

/* Why a block leaves a tier. */
enum tn_leave {
	TN_LEAVE_EVICTED,
	TN_LEAVE_DROPPED,
	TN_LEAVE_BAD, /* its bytes were not its */
	TN_LEAVE_EIO,
	TN_LEAVE_GONE, /* the tier has said so: nothing is left to be removed */
};

/* What a space is to a tier. */
#define TN_CLASS_NONE UINT32_MAX

/* Blocks of one operation that want places. Zero before the first call of place, and again after each success. */
struct tn_place_wait {
	uint16_t space;
	uint32_t cls;	       /* of the space in this tier */
	uint64_t block_bytes;
	uint64_t quota_bytes;  /* that the space may have here */
	bool first;	       /* nobody has waited for longer */
	uint64_t ended;	       /* operations that are over so far: what they held may be free */
	uint64_t own;	       /* places that the operation fills here already */
	/* Out. */
	uint64_t due_ns; /* when to ask again if nothing ended */
	bool again;	 /* something happened: ask again at once */
	/* The tier's. */
	uint64_t demand;    /* see tn_store_move; a ticket */
	uint64_t stuck_ns;  /* since when nothing but transfers, or older ones in the queue, is in its way */
	uint64_t again_ns;  /* transfers are: when to look again though none ended; 0: they are not */
	uint64_t ended_then; /* ended when they were */
	bool own_gone;	    /* nothing of its own class could be evicted for it */
};

/* A space, and its life: what was stored before a drop of the space is of an earlier one. */
struct tn_tier_space {
	struct tn_key id;
	uint32_t epoch;
};

/* A block that somebody else put into a keyed tier, or took away. */
struct tn_tier_event {
	struct tn_tier_space space;
	struct tn_key key, parent;
	bool gone;
};

/* A look-up in a keyed tier. The caller's until done. */
struct tn_tier_probe {
	struct tn_list link;
	struct tn_tier_space space;
	const struct tn_key *keys;
	uint32_t n;
	uint32_t found; /* out: that many of the first keys are there; of one that ended with -ECANCELED, as far as it came */
	uint32_t asked;	 /* the tier's, */
	uint64_t due_ns; /* likewise */
	uint32_t from, store, left; /* likewise */
	/* Whether somebody still waits for it; the tier may end one that nobody waits for. NULL: somebody does. */
	bool (*wanted)(const struct tn_tier_probe *probe);
	void (*done)(struct tn_tier_probe *probe, int status);
	void *owner;
};

/* A whole block on its way to or from a tier that moves bytes by itself. The caller's until done. */
struct tn_tier_move {
	struct tn_list link;
	bool write;
	struct tn_tier_space space;
	struct tn_key key, parent;
	const struct tn_shape *shape;
	struct tn_span mem;
	uint64_t *checks; /* by layer: of what is written; out: what was written */
	void (*done)(struct tn_tier_move *move, int status); /* -ENOENT: the block is gone */
	void *owner;
	uint64_t due_ns; /* the tier's */
	bool cancelled;	 /* likewise */
	uint32_t tried;	 /* likewise */
	int status;	 /* likewise */
};

struct tn_tier_ops {
	size_t size;
	uint32_t abi;
	const char *name;
	struct tn_tier_traits traits;
	const struct tn_drive_ops *drives;   /* TN_REACH_DEVICE: drives.h */
	const struct tn_durable_ops *durable; /* durable: durable.h */
	/* What blocks of this shape are to the tier: a class, or TN_CLASS_NONE and an error: they are not held here. */
	int (*space)(struct tn_tier_base *t, const struct tn_shape *shape, uint32_t *cls);
	/* Keyed tiers: asks which blocks are there. */
	int (*probe)(struct tn_tier_base *t, struct tn_tier_probe *probe);
	/*
	 * Up to `want` places: how many there are at once, in out; 0: ask again, in every turn or when w->due_ns has come;
	 * -ENOSPC, -EROFS: there will be none.
	 */
	int (*place)(struct tn_tier_base *t, struct tn_place_wait *w, uint32_t want, uint32_t *out);
	/* A place that block b does not use after all; -EIO: it could not be written. */
	void (*release)(struct tn_tier_base *t, tn_block b, uint32_t place, int status);
	/* The block has arrived; entry: what the tier's index keeps of it. */
	void (*fill)(struct tn_tier_base *t, tn_block b, uint32_t place, const struct tn_index_entry *entry);
	/* It has left. */
	void (*drain)(struct tn_tier_base *t, tn_block b, uint32_t place, enum tn_leave how); /* its key is still known */
	/* Which block lies in a place that is no key's; TN_BLOCK_NONE: none, or one that is on its way. */
	tn_block (*find)(const struct tn_tier_base *t, uint32_t place);
	/* Whether the block may be evicted, for a block of class cls (NULL: of any). */
	bool (*evict)(const struct tn_tier_base *t, tn_block b, uint32_t place, const uint32_t *cls);
	/* Offloads: whether blocks are to be offered then. NULL: when they are stored. */
	bool (*wants)(const struct tn_tier_base *t, enum tn_offer when);
	/* Takes bytes from the budget of writes, or gives them back; false: the budget is used up. */
	bool (*quota)(struct tn_tier_base *t, uint64_t bytes, bool take);
	uint64_t (*capacity)(const struct tn_tier_base *t); /* in blocks */
	int (*health)(const struct tn_tier_base *t);	    /* 0, or why it takes no writes now */
	/* Whether what fails in this place says nothing of the place, because all that it lies on is away. */
	bool (*away)(const struct tn_tier_base *t, uint32_t place);
	void (*used)(struct tn_tier_base *t, uint32_t place, uint32_t tick);
	/* How the remote of this number does, if the tier has any: 0, or -ENOENT past the last. NULL: it has none. */
	int (*remotes)(struct tn_tier_base *t, uint32_t index, struct tn_remote_stats *stats);
	/* TN_REACH_MEMORY: where the place is in the tier's memory, and the checksums of its objects. */
	uint64_t (*offset)(const struct tn_tier_base *t, uint32_t place, const struct tn_shape *shape, uint64_t **checks);
	/*
	 * Of a tier in the memory of pools, which is filled by copies beside what loads and saves move: whether it serves pools there. NULL: it is no such
	 * tier. Any thread.
	 */
	bool (*serves)(const struct tn_tier_base *t, const struct tn_mapping *pool);
	/* TN_REACH_WHOLE: starts a transfer, which ends in a step, by itself, whatever becomes of the other side. */
	void (*move)(struct tn_tier_base *t, struct tn_tier_move *move);
	/* Nobody wants the transfer any more: it ends in a step soon, with -ECANCELED if it was not over. NULL: it ends as all do. */
	void (*cancel)(struct tn_tier_base *t, struct tn_tier_move *move);
	/* Keyed tiers: what others have changed; returns how many, at most max. */
	uint32_t (*events)(struct tn_tier_base *t, struct tn_tier_event *out, uint32_t max);
	/* Goes on with what is under way; whether anything happened. Lowers *due_ns to when it must be called again. */
	bool (*step)(struct tn_tier_base *t, uint64_t now_ns, uint64_t *due_ns);
	/* Once it has joined the row; finds what is there already. NULL: there is nothing to open, or to close. */
	int (*open)(struct tn_tier_base *t);
	/* Before it is destroyed, opened or not: waits until all is durable. The error of that, or 0. */
	int (*close)(struct tn_tier_base *t);
	void (*destroy)(struct tn_tier_base *t);
};

/* What the core wants to know. */
struct tn_tier_watch {
	void (*leaves)(void *arg, struct tn_tier_base *t, tn_block b, uint32_t place, enum tn_leave how);
	/* An evicted block has left. */
	void (*evicted)(void *arg, struct tn_tier_base *t, tn_block b);
	/* Whether the block was dropped, so that it only waits for its holders. */
	bool (*dropped)(void *arg, tn_block b);
	/* Whether some blocks wait like that: what they take of a quota is free once their holders let go of them. */
	bool (*dropping)(void *arg);
	/* A block is to leave as soon as nobody holds it; nobody finds it in the tier any more. */
	void (*quits)(void *arg, struct tn_tier_base *t, tn_block b);
	/* A durable tier has lost the block's bytes, or has no place for it any more: it goes wherever it lies. */
	void (*lost)(void *arg, struct tn_tier_base *t, tn_block b);
	/* A block was there when the tier was opened, and was adopted; in the order of last use. */
	void (*found)(void *arg, struct tn_tier_base *t, tn_block b);
	/* Whether the block has a time to live. */
	bool (*expires)(void *arg, tn_block b);
	void *arg;
};

struct tn_tier_base {
	const struct tn_tier_ops *ops;
	enum tn_tier tier;
	const struct tn_mapping *memory; /* TN_REACH_MEMORY: that its places lie in */
	const struct tn_header_buffers *headers; /* TN_REACH_DEVICE */
	uint32_t devices; /* likewise: drives, also those that are not there */
	const struct tn_tier_watch *watch;
	struct tn_registry *registry;
	const uint16_t *next_share;  /* by space: rings of the spaces that hold the shares of the same blocks */
	const uint16_t *first_share; /* by space: of such a ring one, the same for all of it */
	struct tn_queues *queues;    /* what lies here and is still to go to tiers below; NULL: nothing ever is */
	uint32_t *recency; /* by block in a durable tier, or on its way there: tick of the last request for it; else NULL */
	uint32_t *share;	     /* by block: share.h; NULL: each share is an entry of the policy's */
	struct tn_policy *policy; /* NULL: the tier holds nothing yet */
	const tn_block *block_of; /* by slot, where entries are slots */
	uint64_t entries;	  /* shares that are in, or on their way */
	uint64_t promised;	  /* of the free ones: for shares of blocks of which the first share was let in */
	uint64_t expected;	  /* blocks that the policy was told the tier holds when it is full */
	uint32_t ranks;		  /* shares of a block, if all ranks have theirs; 0: one */
	uint64_t blocks;	  /* that lie here */
	uint64_t evicted;
	uint64_t corrupt; /* TN_REACH_WHOLE: objects that the tier found damaged */
	uint64_t latency_ns; /* likewise: how long a request takes, besides its bytes; any thread reads it; 0: unknown */
	uint64_t space_blocks[TN_SPACES_MAX];
	uint64_t space_coming[TN_SPACES_MAX]; /* places that are being filled */
};

/* ---- what all tiers have in common: tier.c, and leave.c below the tiers ----------------------------------------- */

static inline enum tn_residency tn_tier_residency(const struct tn_tier_base *t, tn_block b)
{
	return tn_block_residency(t->registry, b, t->tier);
}

static inline bool tn_tier_has(const struct tn_tier_base *t, tn_block b)
{
	return tn_tier_residency(t, b) == TN_PRESENT;
}

static inline uint32_t tn_tier_place_of(const struct tn_tier_base *t, tn_block b)
{
	return t->ops->traits.keyed ? 0 : tn_block_slot(t->registry, b, t->tier);
}

/* The policy's entry of a block, which another share of it may be, or TN_ENTRY_NONE. */
uint32_t tn_tier_entry(const struct tn_tier_base *t, tn_block b);

/* 64 bits that name a block: its key, and the first of the spaces that hold its shares. Others do not share ghosts. */
uint64_t tn_key_hash(const struct tn_tier_base *t, const struct tn_key *key, uint16_t space);
void tn_block_describe(const struct tn_tier_base *t, tn_block b, bool partial, struct tn_policy_block *info);
/* The same, with the parent as the tier's policy knows it. */
void tn_tier_describe(const struct tn_tier_base *t, tn_block b, struct tn_policy_block *info);

/* What a policy asks of an entry: whether its block may go, for a block of a space (-1: any) and a class (NULL: any). */
struct tn_tier_usable {
	const struct tn_tier_base *tier;
	int space;
	const uint32_t *cls;
};
bool tn_tier_usable(void *arg, uint32_t id);

/*
 * The policy hears of a request, and of each block that it references. parent_hash: tn_key_hash of the block before the request's first one,
 * 0: there is none; parent: that block, TN_BLOCK_NONE if it is nowhere. info->parent is set here.
 */
void tn_tier_request(struct tn_tier_base *t, tn_block parent, uint64_t parent_hash);
void tn_tier_touch(struct tn_tier_base *t, tn_block b, struct tn_policy_block *info);

/*
 * 1: a new block of so many bytes may come in, and they are charged, and there is a free entry: if another block had to go
 * for it, that one is gone; 0: it is not worth it; -EBUSY: nothing can go for it; -EDQUOT: no write budget is left; else what health says.
 */
int tn_tier_admit(struct tn_tier_base *t, const struct tn_policy_block *info, uint64_t bytes);
/* A block that was let in before and could not be written is let in again, if there is a free entry for it. */
bool tn_tier_readmit(struct tn_tier_base *t, tn_block b);
/* The block counts as one of the tier's from now on: FILLING. */
void tn_tier_insert(struct tn_tier_base *t, tn_block b, const struct tn_policy_block *info);
/* The operation that offered the block is through: the policy learns of the reference. b: TN_BLOCK_NONE if it was not let in. */
void tn_tier_learn(struct tn_tier_base *t, tn_block b, const struct tn_policy_block *info);
/* Before it is inserted: it is a share of the block that another one, which is in or on its way, is a share of. */
void tn_tier_follow(struct tn_tier_base *t, tn_block b, tn_block mate);
/* A block that was inserted does not come after all. */
void tn_tier_remove(struct tn_tier_base *t, tn_block b);

/* A block that is in is one entry with the other ranks' shares of it, as far as these are registered. */
void tn_tier_gather(struct tn_tier_base *t, tn_block b);
/* A share that the tier has of the block, of another rank than the space's, and that is registered; TN_BLOCK_NONE. */
tn_block tn_tier_mate(const struct tn_tier_base *t, uint16_t space, const struct tn_key *key);
/* Its bytes are in the place, which counted as coming. dropped: it only waits for its holders, and nobody finds it. */
void tn_tier_arrive(struct tn_tier_base *t, tn_block b, uint32_t place, const struct tn_index_entry *entry, bool dropped);
/* A block was there before this process: the policy does not hear of a request, and nobody of an event. */
void tn_tier_adopt(struct tn_tier_base *t, tn_block b, const struct tn_policy_block *info);
void tn_tier_leave(struct tn_tier_base *t, tn_block b, enum tn_leave how);
/* A block that was withdrawn leaves as an evicted one, and with it what may go of the other ranks' shares. */
void tn_tier_leave_evicted(struct tn_tier_base *t, tn_block b);
/* A block that is in, and that nobody holds, leaves now, without the other ranks' shares. Whether it did. */
bool tn_tier_demote(struct tn_tier_base *t, tn_block b);

/* The next blocks to be evicted, at most max, which stay. Returns how many. */
uint32_t tn_tier_next(struct tn_tier_base *t, tn_block *out, uint32_t max);

/*
 * Evicts `want` blocks or fewer, of one space or any (-1), whose places blocks of class cls can have (NULL: any). The shares that other ranks have of
 * them go, too, because nobody can use those any more: returns how many such blocks left, which may be more than `want`.
 */
uint32_t tn_tier_evict(struct tn_tier_base *t, uint32_t want, int space, const uint32_t *cls);
/* How many of `want` more blocks of a space its quota lets in; the space's own go for them if need be. */
uint32_t tn_tier_quota(struct tn_tier_base *t, uint16_t space, uint64_t limit_blocks, uint32_t want);

/* As the calls above, with the counts of what is coming. */
int tn_tier_place(struct tn_tier_base *t, struct tn_place_wait *w, uint32_t want, uint32_t *out);
void tn_tier_release(struct tn_tier_base *t, uint16_t space, tn_block b, uint32_t place, int status);

#endif
