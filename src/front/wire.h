/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of a session say to each other besides the region's words: messages on the socket when it begins and when
 * memory is registered, because these pass descriptors; and calls (region/call.h). Both sides have the same library version, so structs go
 * as they are.
 */
#ifndef TN_FRONT_WIRE_H
#define TN_FRONT_WIRE_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <tenuto/cache.h>
#include <tenuto/match.h>
#include <tenuto/session.h>

#include "base/error.h"
#include "layout/layout.h"
#include "store/store.h"

#define TN_WELCOME_FDS 2u
#define TN_WIRE_MAGIC UINT64_C(0x31737365736e7574) /* "tunsess1" */
#define TN_WIRE_TEXT 256u
#define TN_WIRE_PATH 1100u
#define TN_WIRE_CALLS 16u /* places for calls of a session */
#define TN_WIRE_RANGES_MAX 128u /* of a memory, each with a descriptor */
#define TN_WIRE_MEMORIES 64u /* numbers of a session's memories */
#define TN_WIRE_STRINGS 6u /* of an identity */
#define TN_WIRE_STRINGS_BYTES 4096u

/* ---- the socket ----------------------------------------------------------------------------------------------- */

/* Of a socket's path: 0, -ENAMETOOLONG. */
static inline int tn_wire_address(const char *path, struct sockaddr_un *out)
{
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(out->sun_path))
		return tn_fail(-ENAMETOOLONG, "%.60s...: %zu bytes, a socket's path has at most %zu", path, strlen(path), sizeof(out->sun_path) - 1);
	memcpy(out->sun_path, path, strlen(path) + 1);
	return 0;
}

struct tn_wire_hello {
	uint64_t magic;
	char version[32]; /* of the library */
	uint32_t page_bytes;
	uint32_t command_bytes; /* sizeof(struct tn_command): a library built from other sources */
	char token[TN_SERVE_TOKEN_BYTES]; /* zeros behind it */
};

/*
 * Unless status says why not, with two descriptors: of the region, and one that becomes readable when the owner's process dies: a pidfd of the
 * thread that has the socket.
 */
struct tn_wire_welcome {
	uint64_t magic;
	int32_t status;
	uint32_t max_op_blocks;
	uint32_t read_only;
	uint64_t region_bytes;
	char version[32];
	char text[TN_WIRE_TEXT];
	uint32_t nlocks;
	char lock[TN_DEVICES_MAX][TN_WIRE_PATH]; /* files that are locked until nothing that the owner has begun can still be written */
};

/* With a descriptor for each range. */
struct tn_wire_memory {
	uint64_t magic;
	uint32_t turn; /* rises with each message; the answer has it, too */
	uint32_t nranges;
	uint32_t staged; /* session memory: the process copies, because its pages cannot be mapped */
	struct {
		uint64_t offset, bytes;
	} range[TN_WIRE_RANGES_MAX];
};

struct tn_wire_registered {
	uint32_t turn;
	int32_t status;
	uint32_t number;
	char text[TN_WIRE_TEXT];
};

/* ---- calls ---------------------------------------------------------------------------------------------------- */

enum tn_wire_call {
	TN_WIRE_SPACE_OPEN = 1, /* tn_wire_space -> tn_wire_space_told */
	TN_WIRE_SPACE_CLOSE,	/* tn_wire_about */
	TN_WIRE_SPACE_DROP,	/* tn_wire_about */
	TN_WIRE_MATCH,		/* tn_wire_match, keys -> tn_wire_match_told, tiers */
	TN_WIRE_UNPIN,		/* tn_wire_about */
	TN_WIRE_DROP,		/* tn_wire_about, keys */
	TN_WIRE_FLUSH,		/* tn_wire_about */
	TN_WIRE_STATS,		/* -> uint64_t values */
	TN_WIRE_DEVICE_STATS,	/* tn_wire_about -> struct tn_device_stats */
	TN_WIRE_POOL_CREATE,	/* tn_wire_pool, bases -> tn_wire_pool_told */
	TN_WIRE_POOL_DESTROY,	/* tn_wire_about; -ENOENT: it is gone already */
	TN_WIRE_MEMORY_UNREGISTER, /* tn_wire_about */
	TN_WIRE_PLAN,		/* tn_wire_plan, tiers -> struct tn_plan */
	/* Of the whole cache, for processes of the owner's user alone. */
	TN_WIRE_OWNER_STATS,	/* -> struct tn_owner_stats */
	TN_WIRE_SESSION_STATS,	/* tn_wire_about: place -> struct tn_session_stats */
	TN_WIRE_LATENCY,	/* tn_wire_about: kind, n: tier -> struct tn_latency */
	TN_WIRE_QUERY,		/* tn_wire_match, keys -> uint64_t */
	TN_WIRE_QUERY_POLL,	/* tn_wire_about -> tn_wire_match_told */
	TN_WIRE_QUERY_CANCEL,	/* tn_wire_about */
	TN_WIRE_EVENTS,		/* tn_wire_events -> tn_wire_events_told, events */
	TN_WIRE_SNAPSHOT,	/* tn_wire_events -> tn_wire_events_told, events */
	TN_WIRE_SLACK_SET,	/* tn_wire_slack, a part of the table's bytes */
	TN_WIRE_SLACK_GET,	/* tn_wire_slack -> tn_wire_slack, a part of the table's bytes */
	TN_WIRE_SPACE_STATS,	/* tn_wire_about: index, n: input tokens -> struct tn_space_stats; as the session stats */
	TN_WIRE_REMOTE_STATS,	/* tn_wire_about -> struct tn_remote_stats */
	TN_WIRE_NAMES,		/* tn_wire_names, keys, the parent's hash, hashes, token ids */
	TN_WIRE_HINT,		/* tn_wire_hint, keys */
};

/* What a call without a struct of its own is about. */
struct tn_wire_about {
	uint32_t number; /* of a space, pool, memory or device */
	uint32_t n;	 /* keys */
	uint64_t pin; /* or query, or a pool's life */
	uint64_t deadline_ns;
};

struct tn_wire_space {
	struct tn_shard shard;
	struct tn_quota quota;
	uint64_t hash_seed;
	unsigned char reset_revision[16];
	uint32_t has_quota;
	uint16_t length[TN_WIRE_STRINGS]; /* of the strings, which follow each other */
	char strings[TN_WIRE_STRINGS_BYTES];
	unsigned char geometry[TN_GEOMETRY_BYTES];
};

struct tn_wire_space_told {
	uint32_t number;
	struct tn_secret secret;
	struct tn_key identity;
	struct tn_quota quota;
	uint32_t memory_tier, prefetches; /* see struct tn_space */
};

struct tn_wire_match {
	uint32_t nspaces, flags, n;
	uint32_t all; /* tn_match_all, else tn_match with tiers */
	uint64_t deadline_ns; /* of a query */
	uint32_t space[TN_MATCH_SPACES_MAX];
};

struct tn_wire_match_told {
	struct tn_match match;
	uint32_t nspaces; /* of a query */
	uint32_t first[TN_MATCH_SPACES_MAX];
};

/* What is read of events is bounded by the answer's bytes: the caller asks again. */
struct tn_wire_events {
	uint64_t cursor; /* 0: begin */
	uint32_t max;	 /* events */
	uint32_t at;	 /* a snapshot: the block that was looked at last; TN_BLOCK_NONE: begin */
};

struct tn_wire_events_told {
	uint64_t cursor;
	int32_t status; /* 0 or -ESTALE */
	uint32_t n;	/* events that follow */
	uint32_t at;	/* TN_BLOCK_NONE: the snapshot is complete */
};

/* A slack table has more bytes than a call: they go in parts, one after the other. */
struct tn_wire_slack {
	uint32_t space;
	uint32_t has; /* to set: a table, else the space's begins anew; to get: a part of the copy, else it is made */
	uint64_t bytes, at; /* of the table - of a part that is to be got, of the part -, and where this part begins */
};

struct tn_wire_pool {
	uint32_t memory, nbases;
	uint64_t npages;
	uint64_t stride[TN_PLANES_MAX];
	unsigned char geometry[TN_GEOMETRY_BYTES];
};

/* Numbers are given out again; a life is not. */
struct tn_wire_pool_told {
	uint64_t life;
	uint32_t number;
};

struct tn_wire_hint {
	uint32_t space, kind, n;
	uint32_t reserved;
	uint64_t ttl_ns;
};

/* All parts are of whole 4-byte words, but the hashes: token ids lie behind them at the next whole word. */
struct tn_wire_names {
	uint32_t space, n;
	uint32_t hash_bytes, group, block_tokens;
	uint32_t has_parent, has_tokens;
	uint32_t reserved;
};

struct tn_wire_plan {
	uint32_t space, ntiers;
	uint64_t input_tokens;
	struct tn_match match;
};

#endif
