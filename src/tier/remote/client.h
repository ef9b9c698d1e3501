/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the remote tier wants of an object store: objects are written whole, once, and read from their first byte on. Nothing waits: a transfer is begun in
 * a slot and asked for until it has ended.
 *
 * Owner thread only.
 */
#ifndef TN_TIER_REMOTE_CLIENT_H
#define TN_TIER_REMOTE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/log.h"

#define TN_OBJECT_SLOTS 16u
#define TN_OBJECT_NAME_BYTES 256u

#define TN_OBJECT_PARTS 2u

/* Bytes of an object from its first one on, in parts one behind the other. Memory of the parts is the transfer's until it has ended; the rest is not. */
struct tn_object_transfer {
	bool write;
	bool replace; /* also an object that is there already; else that is -EEXIST */
	const char *name;
	struct {
		void *address;
		uint64_t bytes; /* 0: there is no such part */
	} part[TN_OBJECT_PARTS];
	uint64_t deadline_ns;
};

#define TN_OBJECT_NAMES 1024u /* of one find */

/* How many of the first of n objects are there. The caller's until it has ended. */
struct tn_object_find {
	uint32_t n;
	void (*name)(const struct tn_object_find *f, uint32_t i, char name[TN_OBJECT_NAME_BYTES]); /* of object i; called within find alone */
	uint64_t deadline_ns;
	uint32_t found; /* out, when poll says 0 */
};

struct tn_object_client {
	const struct tn_object_client_ops *ops;
};

struct tn_object_client_ops {
	size_t size;
	const char *name;
	bool read_only; /* begin with write is -EROFS: nothing is ever offloaded there */
	/* 0: it has begun in the slot, which is free; or why not. */
	int (*begin)(struct tn_object_client *c, uint32_t slot, const struct tn_object_transfer *t);
	/* In one round trip, and begins as begin does. NULL: the store has no such question, and first bytes of objects are read instead. */
	int (*find)(struct tn_object_client *c, uint32_t slot, struct tn_object_find *f);
	/*
	 * -EINPROGRESS; else the slot is free, and nothing of it moves: 0; -ENOENT: no such object; -EEXIST: there is one already; -ENODATA: it is shorter than
	 * that; -ETIMEDOUT; -EIO and what else the store says. tn_error_last says more.
	 */
	int (*poll)(struct tn_object_client *c, uint32_t slot);
	/* fn is called, on any thread, whenever a transfer or a find has ended, so that nobody has to poll for that. NULL: the client cannot. */
	void (*wake)(struct tn_object_client *c, void (*fn)(void *arg), void *arg);
	/* Ends what is under way. */
	void (*destroy)(struct tn_object_client *c);
};

/*
 * A client by the transfer agent: "s3,bucket=kv-cache,endpoint=http://127.0.0.1:8333" as tn_xfer_backend_add takes it (docs/s3.md), with if_absent=1 added, and a
 * second agent without it from the first object on that is replaced. 0 and *out, or what the agent says: -EINVAL, -ENOENT (no such plugin).
 */
int tn_agent_client_create(const char *spec, const struct tn_alloc *alloc, struct tn_object_client **out);

/*
 * A client of another cache that serves its blocks: "peer,host=10.0.0.2,port=9471,secret_file=/etc/tenuto/peers.secret". 0 and *out; -EINVAL: a parameter; what
 * tn_secret_read says of the file. A peer that does not answer is no error here.
 */
int tn_peer_client_create(const char *spec, const struct tn_alloc *alloc, struct tn_object_client **out);

#endif
