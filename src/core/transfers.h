/* SPDX-License-Identifier: Apache-2.0 */
/* What operations move, as IOCBs of the cache's executor (transfers.c). Knows nothing of what an operation is about, nor of which executor it is. */
#ifndef TN_CORE_TRANSFERS_H
#define TN_CORE_TRANSFERS_H

#include "core/core.h"

int tn_transfers_create(struct tn_cache *cache);
void tn_transfers_destroy(struct tn_cache *cache);
/* Blocks of this shape may come. 0 or -ENOMEM. */
int tn_transfers_shape(struct tn_cache *cache, const struct tn_shape *shape);
/* The lists of an operation that begins; checks: of its blocks, by object, or NULL. */
void tn_transfers_prepare(struct tn_op *op, const uint64_t *checks);
/* A turn of the owner's loop begins; and after all have asked: whether another one must follow at once (sched/share.h). */
void tn_transfers_turn(struct tn_cache *cache);
bool tn_transfers_again(struct tn_cache *cache);
/* Whether the scheduler lets the reads of a chunk go now. */
bool tn_transfers_may_read(struct tn_read_item *item, uint32_t chunk);
/*
 * Appends to the IOCB that is being written; a walk finds when it has ended. false: the user has as many IOCBs as it
 * may have now; ask again in the next turn.
 */
bool tn_transfer_add(const struct tn_transfer *t);
/* Whether add would say yes now, for those who have to ask the scheduler, too. */
bool tn_transfer_may(const struct tn_transfer *t);
/* Hands over what was added. */
void tn_transfers_issue(struct tn_cache *cache);
/* Lets the executor go on. */
bool tn_transfers_step(struct tn_cache *cache);
/*
 * A walk over what ended. With an operation: its reads alone, also of IOCBs that are not through, which stay out. One walk at a time without
 * an operation; whoever takes the parts may add transfers meanwhile.
 */
struct tn_transfer_walk {
	struct tn_cache *cache;
	const struct tn_op *op;
	uint32_t next, before, id; /* IOCBs: to be visited, the last one that stayed out, and the one that is looked at */
	uint32_t k;    /* its next entry */
	bool all;      /* all entries before that have ended */
	bool through;  /* and so has the IOCB: it is given back after its last part */
	bool any;      /* something has ended */
};
struct tn_transfer_walk tn_transfers_walk(struct tn_cache *cache, const struct tn_op *op);
/* The next part that ended; false: there is no more. */
bool tn_transfers_ended(struct tn_transfer_walk *w, struct tn_part *part);
/* When to step again although nothing ended. */
uint64_t tn_transfers_due(const struct tn_cache *cache, uint64_t now_ns);
/* Of a load that was given up: what has not begun is not begun. */
void tn_transfers_cancel(const struct tn_op *op);
bool tn_transfers_idle(const struct tn_cache *cache);
void tn_transfers_stats(const struct tn_cache *cache, struct tn_stats *stats);

/*
 * Memory of the cache's, or of a caller's, that objects lie in for long (tn_executor_map): as much of it as is whole pages. False: it is
 * not mapped, which is said if it cannot be; it is copied, and not unmapped. That of the memory tier and of header buffers is mapped already. Owner thread.
 */
bool tn_transfers_map(const struct tn_cache *cache, void *memory, uint64_t bytes);
void tn_transfers_unmap(const struct tn_cache *cache, void *memory, uint64_t bytes);
/* Whether the executor has any use for that. Any thread. */
bool tn_transfers_maps(const struct tn_cache *cache);
/* As tn_direct_open (device/direct.h), for a memory that is to be registered. Any thread. */
int tn_transfers_open_direct(const struct tn_cache *cache, const struct tn_device_driver *driver, uint32_t device, const struct tn_copier *copier);

#endif
