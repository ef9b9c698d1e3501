/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One remote of the remote tier: an object store behind its client (client.h), with slots for what is under way there, and a circuit breaker. It reads blocks
 * into memory, verified against their own headers (object.h), and writes blocks that no node has written yet.
 *
 * A store that fails or is late three times in a row is left alone for some seconds: nothing is found there, nothing is written, and what was to come from
 * there is a miss at once. Then one request tries it, and while that is under way all others are still misses.
 *
 * What was read is verified, and copied to where it is scattered, by the cache's workers.
 *
 * Bytes cost money. What a second's limit does not let go waits, and what a day's limit does not let go is not asked for: -EDQUOT.
 *
 * Which of several remotes is asked is the tier's matter (remote.c). Owner thread only.
 */
#ifndef TN_TIER_REMOTE_STORE_H
#define TN_TIER_REMOTE_STORE_H

#include "tier/remote/client.h"
#include "tier/row.h"

#define TN_PREFIX_BYTES 64u
#define TN_REMOTE_NAME_BYTES 32u

struct tn_object_store;
struct tn_remote_stats;

/* Who is told what has ended. */
struct tn_object_store_owner {
	/* A look-up found all that it found here: probe->found. -ECANCELED: nobody waits for it any more, and probe->found is as far as it came. */
	void (*probed)(void *arg, struct tn_object_store *s, struct tn_tier_probe *probe, int status);
	/* -ENOENT: the block is not there, or what is there is not the block; -EHOSTDOWN: the store is left alone; -EDQUOT. */
	void (*moved)(void *arg, struct tn_object_store *s, struct tn_tier_move *move, int status);
	void *arg;
};

/* Of a remote. name: in the log and in statistics; prefix: of the objects' names, 1 to 63 bytes; client: goes with the store. */
struct tn_object_store_opts {
	char name[TN_REMOTE_NAME_BYTES];
	char prefix[TN_PREFIX_BYTES];
	uint64_t write_bytes_per_s, write_bytes_per_day, read_bytes_per_s, read_bytes_per_day; /* 0: no limit */
	struct tn_object_client *client;
};

/* The env outlives it. For an error the client is left to the caller. */
int tn_object_store_create(const struct tn_tier_env *env, const struct tn_object_store_opts *opts, const struct tn_object_store_owner *owner,
			   struct tn_object_store **out);
/* What is under way in the client ends here, while the memory that it is about is there; nobody is told. */
void tn_object_store_close(struct tn_object_store *s);
/* Look-ups that have not ended end with -ESHUTDOWN. NULL-safe. */
void tn_object_store_destroy(struct tn_object_store *s);

/* Whether blocks may be written there: 0, -EHOSTDOWN, -EDQUOT, or -EROFS: never. */
int tn_object_store_health( struct tn_object_store *s);
/* Asks for the keys from probe->asked on, up to the first that is missing: probe->found. */
void tn_object_store_probe(struct tn_object_store *s, struct tn_tier_probe *probe);
void tn_object_store_move(struct tn_object_store *s, struct tn_tier_move *move);
/* Whether the block has a slot here: its request ends by itself, and is not withdrawn. */
bool tn_object_store_moves(const struct tn_object_store *s, const struct tn_tier_move *move);
/* As of tenuto/remote.h; stats->size is not touched. */
void tn_object_store_stats(struct tn_object_store *s, struct tn_remote_stats *stats);
/* How long a request takes, besides its bytes; 0: unknown. */
uint64_t tn_object_store_latency(const struct tn_object_store *s);
/* Objects of it that were found damaged. */
uint64_t tn_object_store_corrupt(const struct tn_object_store *s);
/* As struct tn_tier_ops has it. */
bool tn_object_store_step(struct tn_object_store *s, uint64_t now_ns, uint64_t *due_ns);

#endif
