/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front of a cache: what the public calls of loads, saves and events keep for themselves. They reach the core through the
 * region alone, and this struct is never the core's.
 */
#ifndef TN_FRONT_FRONT_H
#define TN_FRONT_FRONT_H

#include "core/core.h"

/* An operation as its caller's side knows it, by number. */
struct tn_front_op {
	uint64_t gate;	     /* shared: of its handle, see handle.c */
	uint32_t next_free;  /* shared: link of the free stack */
	uint32_t number;
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_pool *pool; /* NULL: a prefetch */
	uint64_t generation;
	uint64_t first_page, end_page; /* that are claimed */
	uint32_t n; /* blocks */
	uint32_t layers_given; /* shared; saves */
	uint8_t *outcome;      /* saves: the caller's, by block, or NULL */
	uint64_t tag;	       /* the caller's */
	uint64_t input_tokens; /* loads */
	uint32_t left_layer;   /* which wait a load's caller returned from last, ... */
	uint64_t left_ns;      /* ... and when; 0: it is in one */
};

struct tn_event {
	struct tn_cache *cache;
	uint32_t number; /* in the region */
	uint32_t next_free; /* shared: link of the free stack */
};

struct tn_front {
	struct tn_front_op *ops;
	uint64_t free_ops; /* shared: tagged stack of numbers */
	pthread_mutex_t reap_lock;
	uint64_t *prefetches; /* shared: bitmap of the operations that nobody ends; cleared under the lock */
	struct tn_event *events;
	uint64_t free_events; /* shared: tagged stack of numbers */
	pthread_mutex_t completions_lock; /* of the rest */
	struct tn_doorbell_taker completions;
	uint32_t *completed; /* numbers, the next one to be told first, ... */
	uint32_t next_completed; /* ... from here to the end */
};

int tn_front_create(struct tn_cache *cache);
void tn_front_destroy(struct tn_cache *cache);

/* A stack of numbers that any thread may push and pop; pop: number + 1, or 0 if it is empty. */
uint64_t tn_stack_pop(uint64_t *head, uint32_t (*next)(void *arg, uint32_t i), void *arg);
void tn_stack_push(uint64_t *head, uint32_t i, uint32_t *next);

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
/* Copies it into the region, for a new life; -E2BIG: the operation is given back. */
int tn_front_arm(struct tn_front_op *op, const struct tn_front_args *args);
/* Hands the operation over to the core. */
void tn_front_begin(struct tn_front_op *op, const struct tn_command *command);
/* Lets the core look at the operation's words. */
void tn_front_kick(struct tn_front_op *op);
/* Whether the core is done with the operation, and will not look at it again. */
bool tn_front_is_over(const struct tn_front_op *op);
bool tn_front_layer_is_ready(const struct tn_front_op *op, uint32_t layer);
bool tn_front_all_is_ready(const struct tn_front_op *op);
int tn_front_check_layer(const struct tn_front_op *op, uint32_t layer);

/* ---- handle.c: handles of loads and saves, the numbers that callers have instead of addresses -------- */

enum tn_handle_kind { TN_HANDLE_LOAD, TN_HANDLE_SAVE };
int tn_handles_create(struct tn_cache *cache);
void tn_handles_destroy(struct tn_cache *cache);
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

/* ---- hints.c: what the scheduler is told --------------------------------------------------------------- */

/* An engine is about to wait for a layer, and goes on with it. */
void tn_hint_wait_begins(struct tn_front_op *load, uint32_t layer);
void tn_hint_wait_ends(struct tn_front_op *load, uint32_t layer);
/* A save of so many blocks may begin, or -EAGAIN when too much waits to be written already; and it did not begin. */
int tn_backlog_admit(const struct tn_space *space, uint64_t blocks);
void tn_backlog_undo(const struct tn_space *space, uint64_t blocks);

#endif
