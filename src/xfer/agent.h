/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of an agent share. One lock guards all of it; nobody holds it while he waits, opens files or copies bytes.
 *
 * Who refers to whom: a list holds its peer and its sections, a request its peer and its sections. Peers and sections live on until the last of these is gone, but
 * for new transfers they are gone as soon as they are invalidated or revoked.
 */
#ifndef TN_XFER_AGENT_H
#define TN_XFER_AGENT_H

#include <pthread.h>
#include <tenuto/xfer_backend.h>
#include <tenuto/xfer_directory.h>

#include "base/list.h"
#include "base/log.h"
#include "xfer/control.h"
#include "xfer/metadata.h"
#include "xfer/section.h"

/* By name in tn_xfer_stat_name. */
enum tn_xfer_stat {
	TN_XFER_STAT_TX_BYTES,
	TN_XFER_STAT_RX_BYTES,
	TN_XFER_STAT_TX_REQUESTS,
	TN_XFER_STAT_RX_REQUESTS,
	TN_XFER_STAT_POST_NS,
	TN_XFER_STAT_TIME_NS,
	TN_XFER_STAT_FAILED,
	TN_XFER_STAT_CANCELLED,
	TN_XFER_STAT_TIMED_OUT,
	TN_XFER_STAT_DISCONNECTED,
	TN_XFER_STAT_STALE,
	TN_XFER_STAT_BACKEND_FAILED,
	TN_XFER_STAT_NOTIFIED,
	TN_XFER_STAT_NOTIFICATIONS,
	TN_XFER_STAT_REGISTERED_BYTES,
	TN_XFER_STAT_SECTIONS,
	TN_XFER_STAT_PEERS,
	TN_XFER_STAT_PEERS_LOST,
	TN_XFER_STATS,
};

struct tn_xfer_backend {
	const struct tn_xfer_backend_ops *ops;
	void *self;
};

struct tn_xfer_peer {
	struct tn_list link;
	uint32_t refs; /* the agent's, and those of lists and requests */
	uint32_t state; /* enum tn_xfer_peer_state */
	bool gone; /* invalidated, or of an older generation */
	bool dialling; /* a thread connects to it */
	struct tn_xfer_head head;
	uint64_t pruned_revision; /* sections that were revoked up to it are not in the table; partial metadata does not raise it */
	uint32_t backends; /* bits of the agent's backends that it has, too */
	struct tn_xfer_table table;
	struct tn_xfer_conn *conn;
	struct tn_xfer_conn *held; /* the connection before, until its jobs have ended: else the peer would take them for ended */
	uint32_t jobs; /* requests that are posted and have not ended */
	void *handle[TN_XFER_BACKENDS_MAX];
	uint32_t reachable; /* bits of backends that have a handle, or need none */
	uint32_t mapped_only; /* bits of those of them that reach only sections which are mapped */
	char unmapped[160]; /* why the last section that was to be mapped was not; "": none */
	char why[TN_XFER_BACKENDS_MAX][160]; /* others: why not */
};

struct tn_xfer_notification {
	struct tn_list link;
	char sender[TN_XFER_NAME_BYTES];
	uint32_t bytes;
	unsigned char data[];
};

struct tn_xfer_agent {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a peer was dialled, a revocation confirmed, a job ended */
	char name[TN_XFER_NAME_BYTES];
	uint64_t generation, revision, boot[2];
	unsigned char key[TN_XFER_SECRET_MAX];
	size_t key_bytes;
	bool shared; /* the key is a shared secret */
	struct tn_xfer_listener listener;
	uint64_t connect_ns;
	struct tn_log log;
	struct tn_xfer_backend backend[TN_XFER_BACKENDS_MAX];
	uint32_t nbackends;
	const struct tn_xfer_directory_ops *directory; /* NULL: none; once set, it stays */
	void *directory_self;
	struct tn_xfer_table table;
	uint64_t last_id;
	uint64_t last_serial; /* of requests */
	struct tn_list peers;
	struct tn_list active; /* requests */
	uint32_t nlists, nrequests;
	struct tn_list notifications;
	uint32_t nnotifications, notifications_max;
	uint64_t notification_bytes; /* memory of those in the queue */
	struct tn_xfer_control control;
	uint32_t event_word;
	int eventfd; /* -1: nobody has asked for it */
	void (*wake)(void *arg); /* NULL: nobody is woken by a call */
	void *wake_arg;
	uint64_t stat[TN_XFER_STATS];
};

/* Without the lock: metadata, if it is signed with the agent's secret, if it has one. As tn_xfer_metadata_unpack. */
static inline int tn_xfer_agent_unpack(const struct tn_xfer_agent *a, const void *bytes, uint64_t n, struct tn_xfer_metadata *out)
{
	return tn_xfer_metadata_unpack(bytes, n, a->shared ? a->key : NULL, a->key_bytes, out);
}

/* Without the lock: as tn_xfer_load, of what was unpacked, which stays the caller's to free. */
int tn_xfer_agent_load(struct tn_xfer_agent *a, struct tn_xfer_metadata *m);

/* All of these with the lock. */

/* Something happened that a sleeper may wait for. */
void tn_xfer_raise(struct tn_xfer_agent *a);

/*
 * Puts a notification into the agent's queue: 0; -EAGAIN: it is full; -ENOMEM. beyond: a confirmation stands behind it, which a deregister may wait for in the thread
 * that takes notifications: so the queue takes more than its maximum, up to a number of bytes.
 */
int tn_xfer_enqueue(struct tn_xfer_agent *a, const char *sender, const void *bytes, uint32_t n, bool beyond);

/* peer.c */
struct tn_xfer_peer *tn_xfer_peer_find(struct tn_xfer_agent *a, const char *name);
void tn_xfer_peer_put(struct tn_xfer_agent *a, struct tn_xfer_peer *p);
/* Takes it out of the table of peers; its requests are the caller's to end. */
void tn_xfer_peer_drop(struct tn_xfer_agent *a, struct tn_xfer_peer *p);
/* The connection is no more for new requests; it closes when the jobs have ended. */
void tn_xfer_peer_disconnect(struct tn_xfer_peer *p);
/* Takes metadata. *old: a peer of the same name that is gone by it, with a reference. 0, or -errno with detail. */
int tn_xfer_peer_load(struct tn_xfer_agent *a, const struct tn_xfer_metadata *m, struct tn_xfer_peer **old);
/* Connects, if it is not connected. Gives the lock back meanwhile; the caller has a reference. 0, or -errno with detail. */
int tn_xfer_peer_connect(struct tn_xfer_agent *a, struct tn_xfer_peer *p, uint64_t deadline_ns);
/* One more connection to it, for questions of this thread; gives the lock back meanwhile. 0, or -errno with detail. */
int tn_xfer_peer_open(struct tn_xfer_agent *a, const struct tn_xfer_peer *p, uint64_t deadline_ns, struct tn_xfer_socket *out);
/*
 * Asks the agent at an address, without the lock: TN_XFER_FETCH: for metadata, TN_XFER_FETCH_STATS: for statistics. *out of *bytes (tn_put). 0, or -errno with
 * detail.
 */
int tn_xfer_peer_fetch(struct tn_xfer_agent *a, const char *address, uint32_t question, uint64_t deadline_ns, void **out, uint64_t *bytes);
/* Sections of it that may be used no more: at most TN_XFER_REVOKE_IDS. serial: 0: more of the same revocation follow. */
void tn_xfer_peer_revoke(struct tn_xfer_peer *p, uint64_t serial, const unsigned char *ids, uint32_t n);

#endif
