/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that has attached to the cache of another one. Its struct tn_cache has a front and the view of a region, and no core; what does
 * not go through the region's operations are calls (remote.c), which threads of the owner's process answer.
 */
#ifndef TN_FRONT_ATTACH_H
#define TN_FRONT_ATTACH_H

#include <sys/uio.h>
#include <tenuto/remote.h>
#include <tenuto/session.h>

#include "front/front.h"
#include "front/wire.h"

/* ---- attach.c ---------------------------------------------------------------------------------------------- */

/* The end of an attached cache: its threads end, then, after its memories have gone, it is freed. */
void tn_attached_stop(struct tn_cache *cache);
void tn_detach(struct tn_cache *cache);
/* A part of what a call sends or gets. */
#define TN_PART(p, n) ((struct iovec){(void *)(uintptr_t)(p), (n)})
/*
 * Asks the owner's process: in and out are gathered and scattered; the last of several parts of out may come shorter. The answer's status,
 * with the owner's detail; -ESHUTDOWN, -ETIMEDOUT.
 */
int tn_attached_call(struct tn_cache *cache, enum tn_wire_call kind, const struct iovec *in, int nin, const struct iovec *out, int nout);
/* Whether the owner has this file, of a store, open. */
bool tn_attached_owns(const struct tn_cache *cache, const char *path);
/* The same, of a call with a deadline of its own; 0: none. -ETIMEDOUT, too. */
int tn_attached_call_until(struct tn_cache *cache, enum tn_wire_call kind, uint64_t deadline_ns, const struct iovec *in, int nin,
			   const struct iovec *out, int nout);
/* Registers a memory: a message with a descriptor per range. 0, -ESHUTDOWN, -ETIMEDOUT. */
int tn_attached_memory(struct tn_cache *cache, struct tn_wire_memory *w, const int *fds, struct tn_wire_registered *answer);
/* The owner is to forget it; if it does not answer, by a later call. */
void tn_attached_forget_memory(struct tn_cache *cache, uint32_t number);
/* How long calls without a deadline of their own wait for an owner that says nothing; only tests change it. */
void tn_attached_answer_within(struct tn_cache *cache, uint64_t ns);
/* The owner's process is gone, and nothing that it has begun can still write to this process's memory. */
bool tn_attached_landed(struct tn_cache *cache);
/* Of an owner that is gone: raises the event words of all loads, which have no good block. Any thread. */
void tn_attached_raise(struct tn_cache *cache);
/* A descriptor of this process's own that is readable when there are completions; -errno. */
int tn_attached_eventfd(struct tn_cache *cache);

/* ---- remote.c: calls of an attached cache ------------------------------------------------------------------ */

int tn_remote_space_open(struct tn_cache *cache, const struct tn_identity *id, const struct tn_shard *shard,
			 const struct tn_geometry *g, const struct tn_quota *quota, struct tn_space **out);
void tn_remote_space_close(struct tn_space *space);
int tn_remote_space_drop(struct tn_space *space, uint64_t deadline_ns);
int tn_remote_match(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, uint8_t *tiers,
		    uint32_t *first, struct tn_match *match, unsigned flags, bool all);
int tn_remote_match_begin(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, uint64_t deadline_ns,
			  unsigned flags, uint64_t *query);
int tn_remote_match_poll(struct tn_cache *cache, uint64_t query, uint32_t *first, struct tn_match *match);
int tn_remote_match_cancel(struct tn_cache *cache, uint64_t query);
int tn_remote_unpin(struct tn_cache *cache, uint64_t pin);
int tn_remote_drop(struct tn_space *space, const struct tn_key *keys, size_t n);
int tn_remote_flush(struct tn_cache *cache, uint64_t deadline_ns);
int tn_remote_stats(struct tn_cache *cache, struct tn_stats *s);
int tn_remote_device_stats(struct tn_cache *cache, uint32_t index, struct tn_device_stats *s);
int tn_remote_remote_stats(struct tn_cache *cache, uint32_t index, struct tn_remote_stats *s);
int tn_remote_plan(struct tn_space *space, const struct tn_match *match, const uint8_t *tiers, uint64_t input_tokens,
		   struct tn_plan *plan);
/* Sets the owner's number of the memory, or pool. */
int tn_remote_memory(struct tn_memory *memory);
void tn_remote_memory_unregister(struct tn_memory *memory);
int tn_remote_pool(struct tn_pool *pool, const struct tn_pool_layout *layout);
int tn_remote_pool_destroy(struct tn_pool *pool);

/* ---- remote_events.c, remote_slack.c: calls whose answers come in parts ----------------------------------------- */

long tn_remote_events(struct tn_cache *cache, uint64_t *cursor, struct tn_block_event *out, size_t max);
long tn_remote_snapshot(struct tn_cache *cache, void (*fn)(void *arg, const struct tn_block_event *event), void *arg, uint64_t *cursor);
/* table: NULL: the space's begins anew. */
int tn_remote_slack(struct tn_space *space, const struct tn_slack *table);
int tn_remote_slack_copy(struct tn_space *space, struct tn_slack **out);

/* ---- pool.c ------------------------------------------------------------------------------------------------ */

/* tn_memory_register, for the operations of a session of this process; NULL: its own. */
int tn_memory_register_for(struct tn_cache *cache, const struct tn_memory_desc *desc, struct tn_session *session, struct tn_memory **out);
/* Frees the memories and pools that are left when the owner is gone and the cache ends. No thread is in a call with them. */
void tn_memories_abandon(struct tn_cache *cache);

#endif
