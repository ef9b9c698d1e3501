/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where agents listen, and how they are reached: "unix:PATH", "unix:@NAME", "tcp:HOST:PORT".
 *
 * A socket is closed in every forked child: else a peer would not see this process end. A host that is not a number is looked up by a thread of its own, because no
 * resolver keeps a deadline: the thread ends when the resolver does.
 */
#ifndef TN_XFER_ADDRESS_H
#define TN_XFER_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/fork.h"
#include "xfer/metadata.h"

struct tn_xfer_socket {
	int fd;
	struct tn_fork_fd fork;
};

/* A listening socket, and the address that others connect to. */
struct tn_xfer_listener {
	struct tn_xfer_socket sock; /* fd -1: none */
	char address[TN_XFER_ADDRESS_BYTES];
	dev_t device; /* the file of a Unix socket */
	ino_t inode;
};

/* 0, or -errno with detail. */
int tn_xfer_listen(const char *address, uint64_t deadline_ns, struct tn_xfer_listener *out);
/* Its file goes, too. Nothing to do if it does not listen. */
void tn_xfer_unlisten(struct tn_xfer_listener *l);
/* Connects. 0, or -errno with detail. */
int tn_xfer_dial(const char *address, uint64_t deadline_ns, struct tn_xfer_socket *out);
/* The next connection, which does not block. 0, or -errno without detail. */
int tn_xfer_accept(int listener, struct tn_xfer_socket *out);
/* `to` is the socket from then on. */
void tn_xfer_socket_move(struct tn_xfer_socket *to, struct tn_xfer_socket *from);
void tn_xfer_socket_close(struct tn_xfer_socket *s);
/* Until it is ready for the events of poll, or the deadline. 0, -ETIMEDOUT, or -errno with detail. */
int tn_xfer_socket_wait(int fd, short events, uint64_t deadline_ns);
/* The process at the other end of a Unix socket, also of the one that listens; 0: it is in another PID namespace. 0; -ENOTSUP: it is TCP. */
int tn_xfer_socket_process(int fd, uint32_t *pid);
/* Whether the process at the other end of a Unix socket may connect. True of TCP: the key decides. */
bool tn_xfer_may_connect(int fd);

#endif
