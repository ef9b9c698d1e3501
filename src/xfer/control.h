/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that an agent has for its connections: it listens, shakes hands with who connects, reads and sends messages, and watches deadlines.
 *
 * A connection that its listening side still sees tells it that transfers may go on. So who has connected keeps a connection until its transfers have ended, and who
 * listens says no more on one that it gives up, and waits until the other side has closed it.
 *
 * All of it is under the agent's lock, which the thread does not hold while it sleeps. Only the thread frees a connection; others mark it as closing. What a message
 * means is said by a table of functions, which are called with the lock held and wait for nothing.
 */
#ifndef TN_XFER_CONTROL_H
#define TN_XFER_CONTROL_H

#include <pthread.h>

#include "base/list.h"
#include "base/log.h"
#include "xfer/link.h"

#define TN_XFER_OUT_BYTES (256u << 10) /* at first, and of notifications: enough for all but metadata and long revocations */

enum tn_xfer_conn_state {
	TN_XFER_CONN_NEW,	 /* nothing is known of who has connected */
	TN_XFER_CONN_CHALLENGED, /* waits for the proof */
	TN_XFER_CONN_OPEN,
};

struct tn_xfer_conn {
	struct tn_list link;
	struct tn_xfer_socket sock;
	uint32_t state;
	bool outgoing;
	bool closing; /* the thread closes it, if neither side needs it any more */
	bool left; /* the thread has seen that it is closing */
	bool held; /* outgoing: transfers of it have not ended */
	bool ended; /* the other side has closed it: no transfer of it goes on; notifications that it has sent may still be read */
	bool stalled; /* a notification waits in the buffer because nobody takes those before it */
	uint64_t until_ns; /* of the handshake; of one that is closing: how long what it has to send is waited for */
	struct tn_xfer_shake shake;
	uint32_t in_bytes;
	unsigned char *in; /* sizeof(struct tn_xfer_message) + TN_XFER_MESSAGE_MAX */
	unsigned char *out;
	uint64_t out_first, out_bytes, out_capacity;
	uint64_t revoked; /* incoming: highest revocation that the peer has confirmed */
	uint64_t told; /* incoming: highest revocation that the peer was told */
	uint64_t revoking; /* outgoing: revocation to be confirmed; 0: none */
	void *peer; /* outgoing: the owner's */
};

struct tn_xfer_control_ops {
	/* Key, name and generation of this agent. */
	void (*introduce)(void *arg, struct tn_xfer_shake *s);
	/* A connection has opened. Sets `revoked` to the present revision: what was revoked before does not concern it. */
	void (*opened)(void *arg, struct tn_xfer_conn *c);
	/* False: there are too many, call again later. */
	bool (*notified)(void *arg, struct tn_xfer_conn *c, const void *bytes, uint32_t n);
	void (*fetched)(void *arg, struct tn_xfer_conn *c);
	void (*asked_stats)(void *arg, struct tn_xfer_conn *c);
	/* The peer wants the file of a section; false: the connection is to be closed. */
	bool (*shared)(void *arg, struct tn_xfer_conn *c, uint64_t id);
	void (*revoke)(void *arg, struct tn_xfer_conn *c, uint64_t serial, const unsigned char *ids, uint32_t n);
	void (*revoked)(void *arg, struct tn_xfer_conn *c);
	/* An open connection has ended or is gone, or an outgoing one is to be: sets `held` to keep it until tn_xfer_conn_let_go. */
	void (*closed)(void *arg, struct tn_xfer_conn *c);
	/* Ends what is overdue; returns when to be called next. */
	uint64_t (*overdue)(void *arg, uint64_t now_ns);
};

struct tn_xfer_control {
	pthread_mutex_t *lock;
	const struct tn_xfer_control_ops *ops;
	void *arg;
	const struct tn_log *log;
	struct tn_list conns;
	uint32_t nconns, nshaking;
	int listener; /* the owner's; -1: none */
	uint64_t accept_ns; /* no connection is accepted before: there was no descriptor or memory for one; 0: all is well */
	int wake;
	uint64_t next_ns; /* when it wakes by itself */
	uint64_t linger_ns; /* how long a connection that is closed may still send what it was told */
	bool stop;
	bool started;
	pthread_t thread;
	void *fds; /* struct pollfd */
	uint32_t fds_capacity;
};

/* 0, or -errno with detail. */
int tn_xfer_control_start(struct tn_xfer_control *c);
/* Ends the thread and all connections. The owner has closed the outgoing ones: what they have to send is waited for. Without the lock. */
void tn_xfer_control_stop(struct tn_xfer_control *c);
/* With the lock: an open outgoing connection. NULL: no memory. The socket is the control's, if it succeeds. */
struct tn_xfer_conn *tn_xfer_control_adopt(struct tn_xfer_control *c, struct tn_xfer_socket *sock, void *peer);
/* With the lock: a message goes out, after those before it. 0; -EAGAIN: more than max bytes would wait; -ECONNRESET: the connection is closing; -ENOMEM. */
int tn_xfer_conn_send(struct tn_xfer_control *c, struct tn_xfer_conn *conn, uint32_t type, const void *body, uint32_t bytes, uint64_t max);
/* With the lock. */
void tn_xfer_conn_close(struct tn_xfer_control *c, struct tn_xfer_conn *conn);
/* With the lock: a connection that was held is held no more. */
void tn_xfer_conn_let_go(struct tn_xfer_control *c, struct tn_xfer_conn *conn);
/* Any thread: the thread looks again at what waits: notifications that were refused, a deadline. */
void tn_xfer_control_wake(struct tn_xfer_control *c);

#endif
