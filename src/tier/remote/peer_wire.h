/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a cache says to another one that serves its blocks (src/peer), on a connection after the handshake of transfer agents (xfer/link.h). Messages begin as
 * theirs do, with struct tn_xfer_message; all words are little-endian.
 *
 *   who asks                      who serves
 *   JOIN: version, boot          -> ANSWER: metadata of its transfer agent, if both are of one boot of one machine
 *   FIND: space and keys         -> ANSWER: how many of the first keys are there
 *   GET: space, key, slot, bytes -> ANSWER: the block as an object (object.h): its first bytes behind the answer, or where they lie in the slot's window
 *
 * The window of a slot has the bytes until the next GET of that slot. Answers come in any order.
 */
#ifndef TN_TIER_REMOTE_PEER_WIRE_H
#define TN_TIER_REMOTE_PEER_WIRE_H

#include <tenuto/types.h>

#include "tier/remote/client.h"

#define TN_PEER_VERSION 1u
#define TN_PEER_METADATA_MAX 16384u

enum tn_peer_message { TN_PEER_JOIN = 64, TN_PEER_FIND, TN_PEER_GET, TN_PEER_ANSWER };

struct tn_peer_join {
	uint32_t version, reserved;
	uint64_t boot[2]; /* of the machine: base/proc.h */
};

#define TN_PEER_BEHIND 1u /* the bytes are wanted behind the answer */

struct tn_peer_ask {
	uint64_t id;	/* which the answer has, too */
	uint64_t bytes; /* GET: how many of the first are wanted */
	uint32_t slot, flags;
	uint32_t n, reserved; /* keys that follow: FIND: 1 to TN_OBJECT_NAMES; GET: 1 */
	struct tn_key space;
};

struct tn_peer_answer {
	uint64_t id;
	uint64_t address; /* GET: of the bytes in a section of the agent; 0: they come behind this message */
	uint64_t bytes;	  /* GET: how many: as many as were wanted, or all that there are */
	uint32_t slot;
	int32_t status;	   /* 0; -ENOENT: no such block; or why it cannot be had now */
	uint32_t found;	   /* FIND */
	uint32_t metadata; /* bytes of it that follow in this message: of the agent, or of a section that is new */
};

#define TN_PEER_ASK_MAX (sizeof(struct tn_peer_ask) + TN_OBJECT_NAMES * sizeof(struct tn_key))

_Static_assert(sizeof(struct tn_peer_join) == 24 && sizeof(struct tn_peer_ask) == 48 && sizeof(struct tn_peer_answer) == 40, "messages of peers");

#endif
