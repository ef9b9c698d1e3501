/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that one peer gets its blocks in: by slot of the peer's, as much as its last block has. A block is loaded into it as by any caller of the cache, with the
 * lowest priority, and gets the header of an object (tier/remote/object.h) before it.
 *
 * Peers of the same machine map a copy of the slots through the transfer agent. They can write there, too, and harm what they themselves asked for, which
 * they verify; what the cache loads and judges lies in memory that is this process's alone.
 *
 * One thread per peer.
 */
#ifndef TN_PEER_SERVING_H
#define TN_PEER_SERVING_H

#include <tenuto/cache.h>
#include <tenuto/xfer.h>

#include "tier/remote/client.h"

struct tn_serving_slot {
	unsigned char *loaded; /* where the cache puts a block; NULL: there is no memory yet */
	unsigned char *memory; /* where the object lies for the peer: the agent's, or the same */
	uint64_t bytes;
	struct tn_memory *registered; /* loaded */
	struct tn_pool *pool;
	struct tn_key space_id; /* that the pool is made for */
	bool shared, told; /* the agent has it; and the peer knows */
	/* Of the load under way; NULL: there is none. */
	struct tn_load *load;
	struct tn_space *space;
	struct tn_key key;
	uint64_t pin;
};

struct tn_serving {
	struct tn_cache *cache;
	struct tn_xfer_agent *agent; /* NULL: bytes go over the connection alone */
	struct tn_serving_slot slot[TN_OBJECT_SLOTS];
};

void tn_serving_destroy(struct tn_serving *s);
/* How many of the first n keys are here, in memory or on disk. */
uint32_t tn_serving_find(const struct tn_serving *s, const struct tn_key *space_id, const struct tn_key *keys, uint32_t n);
/* Begins to load a block into a slot without a load. 0; -ENOENT: it is not here; -EAGAIN: too much is under way; or -errno. */
int tn_serving_begin(struct tn_serving *s, uint32_t slot, const struct tn_key *space_id, const struct tn_key *key);
/* Waits for it: 0, and the object of *bytes lies in the slot; -ENOENT: it has gone, or was damaged; or -errno. */
int tn_serving_end(struct tn_serving *s, uint32_t slot, uint64_t *bytes);
/* What a peer has to know of a slot that is new to it: bytes of metadata, 0: nothing, or -errno. */
int64_t tn_serving_tell(struct tn_serving *s, uint32_t slot, void *out, size_t bytes);

#endif
