/* SPDX-License-Identifier: Apache-2.0 */
#include "connection.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define READ_BYTES 131072u
#define SEND_PIECES 64u
/* What a server may say beside the bytes of an object. */
#define ANSWER_BYTES 4096u

static const char asking[] = "*1\r\n$6\r\nASKING\r\n";

/* ---- what the reader of hiredis calls ---------------------------------------------------------------------------------- */

#ifdef REDIS_REPLY_MAP /* hiredis 1 */
typedef size_t elements;
#else
typedef int elements;
#endif

static struct redis_sent *oldest(struct redis_connection *c)
{
	return &c->sent[c->first];
}

static void *on_string(const redisReadTask *task, char *bytes, size_t n)
{
	struct redis_connection *c = task->privdata;
	struct redis_request *r = c->n > c->unsent ? oldest(c)->request : NULL;
	size_t fits = n < sizeof(c->reply.text) - 1 ? n : sizeof(c->reply.text) - 1;

	c->reply = (struct redis_reply){.bytes = n};
	c->reply.kind = task->type == REDIS_REPLY_ERROR ? REDIS_ERROR : task->type == REDIS_REPLY_STATUS ? REDIS_STATUS : REDIS_STRING;
	if (c->reply.kind != REDIS_STRING) {
		memcpy(c->reply.text, bytes, fits);
	} else if (r && r->transfer->op == OBJECT_GET && n <= r->transfer->bytes) {
		struct http_cursor in;

		http_cursor_set(&in, r->transfer->iov, r->transfer->niov, 0, r->transfer->bytes);
		http_cursor_give(&in, bytes, n);
	}
	return &c->reply;
}

static void *on_integer(const redisReadTask *task, long long value)
{
	struct redis_connection *c = task->privdata;

	c->reply = (struct redis_reply){.kind = REDIS_INTEGER, .integer = value};
	return &c->reply;
}

static void *on_nil(const redisReadTask *task)
{
	struct redis_connection *c = task->privdata;

	c->reply = (struct redis_reply){.kind = REDIS_NIL};
	return &c->reply;
}

/* No command has a list for an answer. */
static void *on_array(const redisReadTask *task, elements n)
{
	return NULL;
}

static void keep(void *reply)
{
}

static redisReplyObjectFunctions functions = {
	.createString = on_string, .createArray = on_array, .createInteger = on_integer, .createNil = on_nil, .freeObject = keep};

/* ---- the socket -------------------------------------------------------------------------------------------------------- */

static uint64_t bytes_of(const struct iovec *iov, uint32_t n)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	return bytes;
}

/* Sets the cursor on what the first unsent command has to say. */
static void begin_command(struct redis_connection *c)
{
	const struct redis_sent *s = &c->sent[(c->first + c->n - c->unsent) % REDIS_PIPELINE];

	c->begun = false;
	if (s->greeting)
		http_cursor_set(&c->out, &c->hello_iov, 1, 0, c->hello_iov.iov_len);
	else
		http_cursor_set(&c->out, s->request->iov, s->request->niov, 0, bytes_of(s->request->iov, s->request->niov));
}

static void add(struct redis_connection *c, struct redis_sent sent)
{
	if (!c->n)
		c->moved_ns = object_now_ns();
	c->sent[(c->first + c->n++) % REDIS_PIPELINE] = sent;
	if (c->unsent++ == 0)
		begin_command(c);
}

/* A socket that connects to one of the addresses, or -errno. */
static int connect_one(struct http_sockets *sockets, const struct addrinfo *a)
{
	const int one = 1;
	int fd = http_sockets_open(sockets, a->ai_family, a->ai_socktype | SOCK_NONBLOCK, a->ai_protocol);

	if (fd < 0)
		return -EMFILE;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	if (connect(fd, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS)
		return fd;
	http_sockets_close(sockets, fd);
	return -ECONNREFUSED;
}

int redis_connect(struct redis_connection *c, struct http_sockets *sockets, const char *host, uint32_t port, const char *hello, size_t bytes, uint32_t replies, char *why)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	char service[16];
	int fd = -EHOSTUNREACH, rc;

	snprintf(service, sizeof(service), "%u", port);
	rc = getaddrinfo(host, service, &hints, &found);
	if (rc) {
		snprintf(why, OBJECT_WHY_BYTES, "host %.200s has no address (%s): check host", host, gai_strerror(rc));
		return -EHOSTUNREACH;
	}
	for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
		fd = connect_one(sockets, a);
	freeaddrinfo(found);
	if (fd < 0) {
		snprintf(why, OBJECT_WHY_BYTES, "no connection: %s", strerror(-fd));
		return fd;
	}
	*c = (struct redis_connection){.fd = fd, .connecting = true, .sockets = sockets, .reader = redisReaderCreateWithFunctions(&functions)};
	if (!c->reader) {
		redis_close(c);
		snprintf(why, OBJECT_WHY_BYTES, "no memory for a connection");
		return -ENOMEM;
	}
	c->reader->privdata = c;
	c->reader->maxbuf = READ_BYTES;
	c->moved_ns = object_now_ns();
	memcpy(c->hello, hello, bytes);
	c->hello_iov = (struct iovec){c->hello, bytes};
	if (replies)
		add(c, (struct redis_sent){.replies = replies, .greeting = true});
	return 0;
}

void redis_close(struct redis_connection *c)
{
	if (c->fd < 0)
		return;
	http_sockets_close(c->sockets, c->fd);
	c->fd = -1;
	if (c->reader)
		redisReaderFree(c->reader);
	c->reader = NULL;
	explicit_bzero(c->hello, sizeof(c->hello));
}

struct redis_request *redis_connection_take(struct redis_connection *c)
{
	while (c->n) {
		struct redis_request *r = oldest(c)->request;

		c->first = (c->first + 1) % REDIS_PIPELINE;
		c->n--;
		if (r) {
			r->connection = NULL;
			return r;
		}
	}
	c->unsent = 0;
	return NULL;
}

/* ---- commands ---------------------------------------------------------------------------------------------------------- */

bool redis_connection_full(const struct redis_connection *c)
{
	return c->n == REDIS_PIPELINE;
}

void redis_send(struct redis_connection *c, struct redis_request *r)
{
	const struct object_transfer *t = r->transfer;

	r->iov[0] = (struct iovec){(void *)(uintptr_t)asking, r->asking ? sizeof(asking) - 1 : 0};
	r->iov[1] = (struct iovec){r->command.head, r->command.head_bytes};
	r->niov = 2;
	if (t->op == OBJECT_PUT) {
		memcpy(r->iov + 2, t->iov, t->niov * sizeof(t->iov[0]));
		r->niov += t->niov;
		r->iov[r->niov++] = (struct iovec){r->command.tail, r->command.tail_bytes};
	}
	r->connection = c;
	add(c, (struct redis_sent){.request = r, .replies = r->asking ? 2 : 1});
}

bool redis_forget(struct redis_connection *c, struct redis_request *r)
{
	uint32_t i = 0, waits;

	while (c->sent[(c->first + i) % REDIS_PIPELINE].request != r)
		i++;
	waits = c->n - c->unsent; /* sent to the end */
	if (i == waits && c->begun)
		return false;
	r->connection = NULL;
	c->sent[(c->first + i) % REDIS_PIPELINE].request = NULL;
	if (i < waits)
		return true;
	for (; i + 1 < c->n; i++)
		c->sent[(c->first + i) % REDIS_PIPELINE] = c->sent[(c->first + i + 1) % REDIS_PIPELINE];
	c->n--;
	if (--c->unsent && !c->begun)
		begin_command(c);
	return true;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------- */

short redis_connection_wants(const struct redis_connection *c)
{
	return (short)(c->connecting || c->unsent ? POLLIN | POLLOUT : POLLIN);
}

static int failed(char *why, int code, const char *what, int error)
{
	snprintf(why, OBJECT_WHY_BYTES, "%s%s%s", what, error ? ": " : "", error ? strerror(error) : "");
	return code;
}

static int finish_connect(struct redis_connection *c, char *why)
{
	socklen_t bytes = sizeof(int);
	int error = 0;

	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &bytes))
		error = errno;
	if (error)
		return failed(why, error == EHOSTUNREACH || error == ENETUNREACH ? -EHOSTUNREACH : -ECONNREFUSED, "no connection", error);
	c->connecting = false;
	return 0;
}

static int send_some(struct redis_connection *c, char *why)
{
	struct iovec piece[SEND_PIECES];
	struct msghdr message = {.msg_iov = piece};
	struct http_cursor ahead = c->out;
	ssize_t n;
	char *at;
	size_t step;

	while (message.msg_iovlen < SEND_PIECES && (step = http_cursor_step(&ahead, SIZE_MAX, &at)) > 0)
		piece[message.msg_iovlen++] = (struct iovec){at, step};
	n = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : failed(why, -EIO, "the connection broke while a command was sent", errno);
	c->begun = true;
	c->moved_ns = object_now_ns();
	for (size_t left = (size_t)n; left; left -= http_cursor_step(&c->out, left, &at))
		;
	if (!c->out.left && --c->unsent)
		begin_command(c);
	else if (!c->out.left)
		c->begun = false;
	return n ? 1 : 0;
}

/* One answer has come. */
static int take_reply(struct redis_connection *c, redis_answered *answered, char *why)
{
	struct redis_sent *s = oldest(c);
	struct redis_request *r = s->request;

	if (c->n == c->unsent)
		return failed(why, -EIO, "the server answers what nobody has asked", 0);
	if (s->greeting && c->reply.kind == REDIS_ERROR) {
		snprintf(why, OBJECT_WHY_BYTES, "the server refuses the greeting: %.200s: check user, db, and the password of the environment (REDISCLI_AUTH)", c->reply.text);
		return -EACCES;
	}
	if (--s->replies)
		return 0;
	c->first = (c->first + 1) % REDIS_PIPELINE;
	c->n--;
	if (r) {
		r->connection = NULL;
		answered(r, c, &c->reply);
	}
	return 0;
}

/* Bytes of an answer that may be in the reader without being whole. */
static uint64_t bytes_wanted(struct redis_connection *c)
{
	const struct redis_request *r = c->n > c->unsent ? oldest(c)->request : NULL;
	uint64_t bytes = ANSWER_BYTES;

	if (r && r->transfer->op == OBJECT_GET)
		bytes += r->transfer->bytes;
	else if (!r)
		bytes += REDIS_VALUE_MAX; /* one that was forgotten */
	return bytes;
}

static int receive_some(struct redis_connection *c, redis_answered *answered, char *why)
{
	char bytes[READ_BYTES];
	ssize_t n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	void *reply;
	int rc;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : failed(why, -EIO, "the connection broke while an answer was awaited", errno);
	if (n == 0)
		return failed(why, -EIO, "the server has closed the connection", 0);
	c->moved_ns = object_now_ns();
	if (redisReaderFeed(c->reader, bytes, (size_t)n))
		return failed(why, -ENOMEM, "no memory for an answer", 0);
	do {
		if (redisReaderGetReply(c->reader, &reply))
			return failed(why, -EIO, "what came is no answer of a Redis server: check host and port", 0);
		rc = reply ? take_reply(c, answered, why) : 0;
	} while (rc == 0 && reply);
	if (rc == 0 && c->reader->len - c->reader->pos > bytes_wanted(c))
		return failed(why, -EIO, "the server sends more than it was asked for", 0);
	return rc;
}

int redis_connection_step(struct redis_connection *c, short events, redis_answered *answered, char *why)
{
	int rc = 0;

	if (c->connecting && events & (POLLOUT | POLLERR | POLLHUP))
		rc = finish_connect(c, why);
	if (c->connecting || rc)
		return rc;
	do
		rc = c->unsent ? send_some(c, why) : 0;
	while (rc == 1);
	if (rc == 0 && events & (POLLIN | POLLERR | POLLHUP))
		rc = receive_some(c, answered, why);
	return rc;
}
