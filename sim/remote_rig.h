/* SPDX-License-Identifier: Apache-2.0 */
/* A cache with a remote tier over scripted stores, and calls of that tier behind the cache's back. */
#ifndef REMOTE_RIG_H
#define REMOTE_RIG_H

#include "front/cache_rig.h"
#include "tier/remote/client.h"
#include "tier/remote/object.h"
#include "tier/remote/remote.h"

#define OBJECTS 256u
#define CHAIN 40u

struct object {
	char name[TN_OBJECT_NAME_BYTES];
	unsigned char *bytes;
	uint64_t n;
};

struct pending {
	struct tn_object_transfer t;
	char name[TN_OBJECT_NAME_BYTES];
	uint64_t due_ns;
	bool busy, asks;
};

/* A store, and the client of it. A request is answered latency_ns after it came, or later, and what was asked last first; mute: never; fails: with that status. */
struct script {
	struct tn_object_client client;
	const struct tn_clock *clock;
	struct object object[OBJECTS];
	uint32_t n;
	struct pending slot[TN_OBJECT_SLOTS];
	uint32_t requests, most, busy;
	uint64_t latency_ns;
	int fails;
	bool mute;
};

/* Of the cache that was opened last, in the order in which they are asked. */
extern struct script store, second;

/* Clients of such stores: one that reads headers, and one with find, which takes no writes. */
extern const struct tn_object_client_ops remote_client, remote_reader;

/*
 * struct remote_node_opts
 *
 * @offload, @max_blocks: as of the cache's options; NULL: "always", 0: 8192
 * @limits:               of the first store: its write_bytes_per_s and others; name, prefix and client do not count
 * @two:                  the second store is behind it, too; @read_only: and nothing is written there
 */
struct remote_node_opts {
	const char *offload;
	uint64_t max_blocks;
	struct tn_object_store_opts limits;
	bool two, read_only;
};

/* A cache with empty stores behind it. */
struct rig *remote_node_of(const struct remote_node_opts *opts);
struct rig *remote_node(void);
struct tn_tier_base *remote_tier(struct rig *r);
struct object *remote_object_in(struct script *s, struct rig *r, uint64_t id);
struct object *remote_object(struct rig *r, uint64_t id);

/* By the tier alone. remote_read: what a read says; of 0 the bytes are the block's. */
int remote_write(struct rig *r, uint64_t id);
int remote_read(struct rig *r, uint64_t id);
/* How many of the blocks from 1 on a look-up finds. */
uint32_t remote_look_up(struct rig *r, uint32_t n);

/* By the cache: what its own look-up finds; a drop of its space. */
uint32_t remote_ask(struct rig *r, uint64_t first, uint32_t n);
void remote_drop(struct rig *r);

#endif
