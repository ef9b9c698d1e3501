/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection to a server of the Redis protocol: commands go out one behind the other, and answers come in their order.
 *
 * Bytes of a write are sent from where they lie, and those of a read are copied once, out of the reader's buffer. So a request that is stopped may be forgotten
 * unless its command is half sent: then the connection is of no use any more. A server that says more than it was asked for ends the connection.
 *
 * Thread: the client's.
 */
#ifndef TN_PLUGIN_REDIS_CONNECTION_H
#define TN_PLUGIN_REDIS_CONNECTION_H

#include <hiredis/read.h>
#include <poll.h>

#include "../http/cursor.h"
#include "../http/sockets.h"
#include "command.h"

/* Commands that are on their way, at most. */
#define REDIS_PIPELINE 32u
#define REDIS_HELLO_BYTES 1024u

struct redis_request;

enum redis_reply_kind { REDIS_STATUS, REDIS_ERROR, REDIS_STRING, REDIS_INTEGER, REDIS_NIL };

struct redis_reply {
	enum redis_reply_kind kind;
	uint64_t bytes; /* of a string */
	long long integer;
	char text[256]; /* of a status or an error */
};

/* A command that is on its way. */
struct redis_sent {
	struct redis_request *request; /* NULL: the greeting, or one that was forgotten */
	uint32_t replies; /* that are still to come */
	bool greeting;
};

struct redis_connection {
	int fd; /* -1: closed */
	bool connecting;
	uint32_t first, n, unsent; /* of sent: the oldest, how many, and how many of them, the last ones, are not sent to the end */
	struct redis_sent sent[REDIS_PIPELINE];
	struct http_cursor out; /* of the first unsent one */
	bool begun; /* bytes of it have left */
	struct http_sockets *sockets;
	struct redisReader *reader;
	struct redis_reply reply;
	uint64_t moved_ns; /* when a byte moved last, or since when one is waited for */
	struct iovec hello_iov;
	char hello[REDIS_HELLO_BYTES];
};

/* The answer to a request, which is no longer the connection's. */
typedef void redis_answered(struct redis_request *r, struct redis_connection *c, const struct redis_reply *reply);

/* A request, as its connection sees it. */
struct redis_request {
	struct redis_request *next;
	struct object_transfer *transfer;
	struct redis_client *client;
	struct redis_command command;
	struct iovec *iov; /* the command: niov of them */
	uint32_t niov;
	bool asking; /* ASKING goes before it */
	uint32_t node; /* number of the client's server, or NODE_OF_SLOT */
	struct redis_connection *connection; /* NULL: it waits */
	uint32_t redirects;
	int failure; /* -errno of the last try that failed; 0: none has */
	uint64_t resume_ns;
};

/* Begins to connect. 0, or -errno and why[OBJECT_WHY_BYTES]. The greeting: hello of redis_hello. */
int redis_connect(struct redis_connection *c, struct http_sockets *sockets, const char *host, uint32_t port, const char *hello, size_t bytes, uint32_t replies, char *why);
/* Closes it. The requests that it had come off the front with redis_connection_take. */
void redis_close(struct redis_connection *c);
struct redis_request *redis_connection_take(struct redis_connection *c);

bool redis_connection_full(const struct redis_connection *c);
void redis_send(struct redis_connection *c, struct redis_request *r);
/* The request is no longer the connection's. False: its command is half sent, and the connection has to be closed. */
bool redis_forget(struct redis_connection *c, struct redis_request *r);

/* Events that poll is to wait for, and what they led to: 0, or -errno and why: the connection has to be closed. */
short redis_connection_wants(const struct redis_connection *c);
int redis_connection_step(struct redis_connection *c, short events, redis_answered *answered, char *why);

#endif
