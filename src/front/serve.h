/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of sessions (tenuto/session.h): a thread that accepts processes and watches whether they live, and for each process a thread
 * that answers its calls and passes its wake-ups on to the core.
 *
 * Nothing here waits for a process that has attached: its words are copied once and checked, its socket is read without
 * waiting, and its descriptors are only mapped, if they are of memory.
 */
#ifndef TN_FRONT_SERVE_H
#define TN_FRONT_SERVE_H

#include <tenuto/session.h>

#include "base/guard.h"
#include "front/front.h"
#include "front/rules.h"
#include "front/peers.h"
#include "front/wire.h"

#define TN_SERVED_MEMORIES TN_WIRE_MEMORIES
#define TN_SERVED_POOLS 256u
#define TN_SERVED_RANGES 1024u /* of all memories: a process has 65,530 mappings (vm.max_map_count), and others need some, too */

/* Each session can have as many, whatever the others have: tn_pool_create has as many numbers for sessions. */
_Static_assert(TN_POOLS_MAX - TN_POOLS_OWN == TN_ATTACHED_MAX * TN_SERVED_POOLS, "pools of sessions");

struct tn_server;

/* A memory of a session, mapped here. */
struct tn_served_memory {
	struct tn_memory *memory; /* NULL: the place is free */
	uint32_t nranges;
	uint32_t lost; /* shared: pages of it are gone */
	struct tn_memory_range range[TN_WIRE_RANGES_MAX];
	struct tn_memory_range mapped[TN_WIRE_RANGES_MAX]; /* the whole pages of them */
	struct tn_guard guard[TN_WIRE_RANGES_MAX];
};

/* A look-up of a session that tiers answer later. */
struct tn_served_query {
	uint64_t query; /* 0: none */
	uint32_t nspaces;
	uint32_t space[TN_MATCH_SPACES_MAX];
};

/* A process that has attached. */
struct tn_served {
	struct tn_cache *cache;
	struct tn_session *session;
	struct tn_region region;
	struct tn_guard guard; /* of the region, which the process can punch */
	uint32_t lost;
	struct tn_rules *rules; /* by one of which it goes: */
	const struct tn_rule *rule;
	uint32_t uid;
	uint32_t nspaces; /* under lock: open, each once, ... */
	uint32_t nopening; /* ... and being opened */
	pid_t pid;
	int sock, process; /* pidfd; -1: the kernel does not give one. The server's thread's */
	bool staged;	   /* it was said that the process copies; the server's thread's */
	int news;	   /* eventfd of the server's thread: it looks whether this has ended */
	pthread_t thread;
	struct tn_peer peer;
	uint32_t over, ended; /* shared: it is to end; its thread is done */
	uint32_t slow;	      /* shared: calls that wait, each on a thread of its own */
	uint32_t turn[TN_WIRE_CALLS];  /* by call: the last one that was taken */
	unsigned char *asked; /* the call that is answered: a copy */
	pthread_mutex_t lock; /* of what follows */
	struct tn_space *space[TN_SPACES_MAX]; /* by number, which is the space's */
	uint32_t refs[TN_SPACES_MAX];
	struct tn_holder holder; /* its thread's */
	uint64_t *pins; /* by lease */
	struct tn_served_query *queries; /* by the cache's place of the query; its thread's, as what follows up to the memories */
	struct tn_events *events; /* of its spaces; NULL: it has not asked for any */
	unsigned char *slack; /* a table under way in parts; NULL: none */
	uint64_t slack_bytes, slack_at;
	uint32_t slack_space;
	struct tn_served_memory memory[TN_SERVED_MEMORIES];
	uint64_t mapped_bytes; /* of them, whole pages ... */
	uint32_t mappings;     /* ... in so many */
	struct tn_pool *pool[TN_SERVED_POOLS];
	uint64_t pools; /* made so far */
};

/* ---- serve.c ---------------------------------------------------------------------------------------------- */

/* All sessions end; NULL-safe of a cache that is not served. */
void tn_server_stop(struct tn_cache *cache);
/* Closes what came with a message. What is no memory a thread closes that nobody waits for: a file system may be asked by that, and not answer. */
void tn_served_close(const int *fds, uint32_t nfds);
/* False: too many such threads still wait for a file system. */
bool tn_served_takes_descriptors(void);
/* A message of a session, of so many bytes, with descriptors, which stay the caller's. */
void tn_served_message(struct tn_served *s, const struct tn_wire_memory *w, size_t bytes, const int *fds, uint32_t nfds);

/* ---- served.c --------------------------------------------------------------------------------------------- */

/* Whether that is a greeting which this process understands: 0 or -EPROTONOSUPPORT. */
int tn_served_check_hello(const struct tn_wire_hello *h, size_t bytes);
/* A session, whose rule is known, gets a region - *fd is its file - and joins the core. After an error, as at its end, it is destroyed. */
int tn_served_begin(struct tn_served *s, int *fd);
/* After it has left the core. The memory goes, too. */
void tn_served_destroy(struct tn_served *s);

/* ---- answer.c --------------------------------------------------------------------------------------------- */

/* Answers the calls of a session until it is over, then gives back all that it has; arg is a struct tn_served. */
void *tn_served_main(void *arg);
/* Its parts: answers the calls that are there, and begins those that wait; the session leaves the core, and gives back all that it has. */
void tn_served_answer(struct tn_served *s);
void tn_served_leave(struct tn_served *s);

/* ---- served_memory.c -------------------------------------------------------------------------------------- */

/* A memory of so many ranges, each with a descriptor, which stays the caller's. 0 and *number, or an error. */
int tn_served_memory(struct tn_served *s, const struct tn_wire_memory *w, const int *fds, uint32_t nfds, uint32_t *number);

/* 0; -EINVAL: there is none; -EBUSY: it has pools. */
int tn_served_forget(struct tn_served *s, uint32_t number);

/* ---- served_query.c: look-ups that tiers answer later. The session's thread. ------------------------------------- */

/* As tn_match_begin, tn_match_poll and tn_match_cancel, of the session's own queries. */
int tn_served_query(struct tn_served *s, struct tn_space *const *spaces, const struct tn_wire_match *w, const struct tn_key *keys,
		    uint64_t *query);
int tn_served_query_poll(struct tn_served *s, uint64_t query, struct tn_wire_match_told *told);
int tn_served_query_cancel(struct tn_served *s, uint64_t query);
/* Cancels those about a space that the session closes; TN_SPACES_MAX: all. */
void tn_served_query_forget(struct tn_served *s, uint32_t space);

/* ---- served_events.c: what arrives in the session's spaces, and leaves. The session's thread. -------------------- */

/* Reads events, max at most, to out, which may be memory of the session: it is only written. */
int tn_served_events(struct tn_served *s, const struct tn_wire_events *w, struct tn_wire_events_told *told, struct tn_block_event *out,
		     uint32_t max);
/* A part of a snapshot. */
int tn_served_snapshot(struct tn_served *s, const struct tn_wire_events *w, struct tn_wire_events_told *told, struct tn_block_event *out,
		       uint32_t max);

/* ---- served_slack.c: slack tables. The session's thread. --------------------------------------------------------- */

/* A part of a table; with the last one the space has it. */
int tn_served_slack_set(struct tn_served *s, struct tn_space *space, const struct tn_wire_slack *w, const unsigned char *part, uint32_t n);
/* Without w->has: makes a copy of the space's table, and tells told->bytes. With it: w->bytes of the copy, n at most. How many. */
int tn_served_slack_get(struct tn_served *s, struct tn_space *space, const struct tn_wire_slack *w, struct tn_wire_slack *told,
			unsigned char *part, uint32_t n);
/* A table that is under way is forgotten. */
void tn_served_slack_forget(struct tn_served *s);

/* ---- names.c -------------------------------------------------------------------------------------------------- */

/* Names of blocks that the process sends. asked: memory of the session. space: NULL: it has no such space open, and the detail is set. */
int tn_served_names(struct tn_served *s, struct tn_space *space, const unsigned char *asked, uint32_t bytes);

#endif
