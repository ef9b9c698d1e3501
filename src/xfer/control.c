/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/control.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/thread.h"
#include "xfer/codec.h"

#define IN_BYTES (sizeof(struct tn_xfer_message) + TN_XFER_MESSAGE_MAX)
#define SHAKING_MAX 64u	       /* connections that have proved nothing yet */
#define SHAKE_NS 10000000000ull
#define CONNS_MAX 4096u
#define ACCEPT_PAUSE_NS 100000000ull
#define ENDED_MAX 64u /* peers that have ended, and whose notifications find no place */

/* ---- connections ------------------------------------------------------------------------------------------------------- */

static struct tn_xfer_conn *conn_new(struct tn_xfer_control *c, struct tn_xfer_socket *sock, uint32_t state)
{
	struct tn_xfer_conn *conn = tn_get(&tn_alloc_system, sizeof(*conn));

	if (!conn)
		return NULL;
	conn->in = tn_get(&tn_alloc_system, IN_BYTES);
	conn->out = tn_get(&tn_alloc_system, TN_XFER_OUT_BYTES);
	if (!conn->in || !conn->out) {
		tn_put(&tn_alloc_system, conn->in, IN_BYTES);
		tn_put(&tn_alloc_system, conn->out, TN_XFER_OUT_BYTES);
		tn_put(&tn_alloc_system, conn, sizeof(*conn));
		return NULL;
	}
	conn->out_capacity = TN_XFER_OUT_BYTES;
	tn_xfer_socket_move(&conn->sock, sock);
	conn->state = state;
	tn_list_push(&c->conns, &conn->link);
	c->nconns++;
	c->nshaking += state != TN_XFER_CONN_OPEN;
	return conn;
}

static void conn_free(struct tn_xfer_control *c, struct tn_xfer_conn *conn)
{
	tn_list_del(&conn->link);
	c->nconns--;
	c->nshaking -= conn->state != TN_XFER_CONN_OPEN;
	tn_xfer_socket_close(&conn->sock);
	tn_put(&tn_alloc_system, conn->in, IN_BYTES);
	tn_put(&tn_alloc_system, conn->out, conn->out_capacity);
	tn_put(&tn_alloc_system, conn, sizeof(*conn));
}

struct tn_xfer_conn *tn_xfer_control_adopt(struct tn_xfer_control *c, struct tn_xfer_socket *sock, void *peer)
{
	struct tn_xfer_conn *conn = conn_new(c, sock, TN_XFER_CONN_OPEN);

	if (!conn)
		return NULL;
	conn->outgoing = true;
	conn->peer = peer;
	tn_xfer_control_wake(c);
	return conn;
}

void tn_xfer_conn_close(struct tn_xfer_control *c, struct tn_xfer_conn *conn)
{
	conn->closing = true;
	conn->until_ns = tn_now_ns(&tn_clock_system) + c->linger_ns;
	tn_xfer_control_wake(c);
}

void tn_xfer_conn_let_go(struct tn_xfer_control *c, struct tn_xfer_conn *conn)
{
	conn->held = false;
	tn_xfer_control_wake(c);
}

void tn_xfer_control_wake(struct tn_xfer_control *c)
{
	uint64_t one = 1;
	ssize_t n = write(c->wake, &one, sizeof(one));

	(void)n; /* it fails only if the counter is full: then it is readable, too */
}

/* The other side is gone. What it has sent before may wait to be read. */
static void broken(struct tn_xfer_control *c, struct tn_xfer_conn *conn)
{
	conn->ended = true;
	conn->out_bytes = 0;
	if (conn->outgoing || conn->state != TN_XFER_CONN_OPEN)
		conn->closing = true;
	else
		c->ops->closed(c->arg, conn);
}

/* Sends what the socket takes. */
static void flush(struct tn_xfer_control *c, struct tn_xfer_conn *conn)
{
	while (conn->out_bytes) {
		ssize_t n = send(conn->sock.fd, conn->out + conn->out_first, conn->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			if (errno != EAGAIN)
				broken(c, conn);
			return;
		}
		conn->out_first += (uint64_t)n;
		conn->out_bytes -= (uint64_t)n;
	}
	conn->out_first = 0;
}

static int make_space(struct tn_xfer_conn *conn, uint64_t bytes)
{
	uint64_t need = conn->out_bytes + bytes;
	unsigned char *out = conn->out;

	if (conn->out_first + need <= conn->out_capacity)
		return 0;
	if (need > conn->out_capacity) {
		out = tn_get(&tn_alloc_system, need);
		if (!out)
			return -ENOMEM;
	}
	memmove(out, conn->out + conn->out_first, conn->out_bytes);
	if (out != conn->out) {
		tn_put(&tn_alloc_system, conn->out, conn->out_capacity);
		conn->out = out;
		conn->out_capacity = need;
	}
	conn->out_first = 0;
	return 0;
}

int tn_xfer_conn_send(struct tn_xfer_control *c, struct tn_xfer_conn *conn, uint32_t type, const void *body, uint32_t bytes, uint64_t max)
{
	struct tn_xfer_message head = {type, bytes};
	uint64_t all = sizeof(head) + bytes;
	unsigned char *to;

	if (conn->closing || conn->ended)
		return -ECONNRESET;
	if (conn->out_bytes + all > (max > TN_XFER_OUT_BYTES ? max : TN_XFER_OUT_BYTES))
		return -EAGAIN;
	if (make_space(conn, all))
		return -ENOMEM;
	to = conn->out + conn->out_first + conn->out_bytes;
	memcpy(to, &head, sizeof(head));
	if (bytes)
		memcpy(to + sizeof(head), body, bytes);
	conn->out_bytes += all;
	flush(c, conn);
	if (conn->out_bytes)
		tn_xfer_control_wake(c);
	return conn->ended ? -ECONNRESET : 0;
}

/* ---- messages ---------------------------------------------------------------------------------------------------------- */

static void refuse(struct tn_xfer_control *c, struct tn_xfer_conn *conn, int code, const char *text)
{
	unsigned char body[128];
	struct tn_xfer_writer w = {body, 0, sizeof(body)};

	tn_xfer_write_u32(&w, (uint32_t)-code);
	tn_xfer_write_block(&w, text, (uint32_t)strlen(text));
	tn_xfer_conn_send(c, conn, TN_XFER_REFUSED, body, (uint32_t)w.bytes, 0);
	tn_log(c->log, TN_LOG_WARN, "agent %s is refused: %s", conn->shake.name[0][0] ? conn->shake.name[0] : "(no name)", text);
	conn->closing = true;
}

static void hello(struct tn_xfer_control *c, struct tn_xfer_conn *conn, const unsigned char *in, uint32_t bytes)
{
	unsigned char body[TN_XFER_CHALLENGE_MAX];
	int rc = tn_xfer_shake_hello(&conn->shake, in, bytes);

	if (rc == -EPROTONOSUPPORT) {
		refuse(c, conn, rc, "it speaks another version of the protocol");
		return;
	}
	if (rc) {
		conn->closing = true;
		return;
	}
	c->ops->introduce(c->arg, &conn->shake);
	rc = tn_xfer_shake_challenge(&conn->shake, body);
	if (rc < 0) {
		refuse(c, conn, rc, "the library for HMAC-SHA256 is missing (libcrypto.so.3)");
		return;
	}
	conn->state = TN_XFER_CONN_CHALLENGED;
	tn_xfer_conn_send(c, conn, TN_XFER_CHALLENGE, body, (uint32_t)rc, 0);
}

static void proof(struct tn_xfer_control *c, struct tn_xfer_conn *conn, const unsigned char *in, uint32_t bytes)
{
	if (!tn_xfer_shake_proves(&conn->shake, in, bytes)) {
		refuse(c, conn, -EACCES, "it has another secret");
		return;
	}
	conn->state = TN_XFER_CONN_OPEN;
	c->nshaking--;
	c->ops->opened(c->arg, conn);
	tn_xfer_conn_send(c, conn, TN_XFER_WELCOME, &conn->revoked, sizeof(conn->revoked), 0);
}

static void revocation(struct tn_xfer_control *c, struct tn_xfer_conn *conn, uint32_t type, const unsigned char *in, uint32_t bytes)
{
	struct tn_xfer_reader r = {in, bytes, false};
	uint64_t serial = tn_xfer_read_u64(&r);

	if (r.broken || r.left % sizeof(uint64_t) || r.left > TN_XFER_REVOKE_IDS * sizeof(uint64_t) || (type == TN_XFER_REVOKED && r.left)) {
		conn->closing = true;
	} else if (type == TN_XFER_REVOKE) {
		c->ops->revoke(c->arg, conn, serial, r.in, (uint32_t)(r.left / sizeof(uint64_t)));
	} else if (serial > conn->revoked) {
		conn->revoked = serial;
		c->ops->revoked(c->arg, conn);
	}
}

/* The answer goes past the buffer, because a descriptor goes with it: so the buffer has to be empty. */
static bool share(struct tn_xfer_control *c, struct tn_xfer_conn *conn, const unsigned char *in)
{
	uint64_t id;

	memcpy(&id, in, sizeof(id));
	flush(c, conn);
	return !conn->out_bytes && c->ops->shared(c->arg, conn, id);
}

/* One message; false: it is to be offered again later. */
static bool message(struct tn_xfer_control *c, struct tn_xfer_conn *conn, uint32_t type, const unsigned char *in, uint32_t bytes)
{
	bool incoming = !conn->outgoing && conn->state == TN_XFER_CONN_OPEN;

	if (type == TN_XFER_HELLO && conn->state == TN_XFER_CONN_NEW)
		hello(c, conn, in, bytes);
	else if (type == TN_XFER_PROOF && conn->state == TN_XFER_CONN_CHALLENGED)
		proof(c, conn, in, bytes);
	else if (type == TN_XFER_NOTIFY && incoming && bytes <= TN_XFER_NOTIFICATION_MAX)
		return c->ops->notified(c->arg, conn, in, bytes);
	else if (type == TN_XFER_FETCH && incoming)
		c->ops->fetched(c->arg, conn);
	else if (type == TN_XFER_FETCH_STATS && incoming)
		c->ops->asked_stats(c->arg, conn);
	else if (type == TN_XFER_SHARE && incoming && bytes == sizeof(uint64_t))
		conn->closing |= !share(c, conn, in);
	else if ((type == TN_XFER_REVOKED && incoming) || (type == TN_XFER_REVOKE && conn->outgoing))
		revocation(c, conn, type, in, bytes);
	else
		conn->closing = true; /* not of the protocol */
	return true;
}

static void messages(struct tn_xfer_control *c, struct tn_xfer_conn *conn)
{
	uint32_t at = 0;

	conn->stalled = false;
	while (!conn->closing && conn->in_bytes - at >= sizeof(struct tn_xfer_message)) {
		struct tn_xfer_message head;

		memcpy(&head, conn->in + at, sizeof(head));
		if (head.bytes > (conn->state == TN_XFER_CONN_OPEN ? TN_XFER_MESSAGE_MAX : 512u)) {
			conn->closing = true;
			break;
		}
		if (conn->in_bytes - at < sizeof(head) + head.bytes)
			break;
		if (!message(c, conn, head.type, conn->in + at + sizeof(head), head.bytes)) {
			conn->stalled = true;
			break;
		}
		at += (uint32_t)sizeof(head) + head.bytes;
	}
	conn->in_bytes -= at;
	memmove(conn->in, conn->in + at, conn->in_bytes);
}

static void receive(struct tn_xfer_control *c, struct tn_xfer_conn *conn)
{
	ssize_t n = recv(conn->sock.fd, conn->in + conn->in_bytes, IN_BYTES - conn->in_bytes, MSG_DONTWAIT);

	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
		conn->closing = conn->ended = true;
		return;
	}
	if (conn->left)
		return; /* bytes that nobody wants any more */
	if (n > 0)
		conn->in_bytes += (uint32_t)n;
	messages(c, conn);
}

/* Of too many that have proved nothing yet, the oldest goes: else silent ones would keep out those that have the key. */
static void drop_oldest_shaking(struct tn_xfer_control *c)
{
	for (struct tn_list *pos = c->conns.next; pos != &c->conns; pos = pos->next) {
		struct tn_xfer_conn *conn = tn_container_of(pos, struct tn_xfer_conn, link);

		if (conn->state != TN_XFER_CONN_OPEN) {
			conn_free(c, conn);
			return;
		}
	}
}

static void accept_all(struct tn_xfer_control *c)
{
	struct tn_xfer_socket sock;
	int rc;

	while ((rc = tn_xfer_accept(c->listener, &sock)) == 0 || rc == -EINTR || rc == -ECONNABORTED) {
		struct tn_xfer_conn *conn = NULL;

		if (rc)
			continue;
		c->accept_ns = 0;
		if (c->nshaking >= SHAKING_MAX)
			drop_oldest_shaking(c);
		if (c->nconns < CONNS_MAX && tn_xfer_may_connect(sock.fd))
			conn = conn_new(c, &sock, TN_XFER_CONN_NEW);
		if (conn)
			conn->until_ns = tn_now_ns(&tn_clock_system) + SHAKE_NS;
		else
			tn_xfer_socket_close(&sock);
	}
	if (rc == -EAGAIN)
		return;
	/* Without descriptors or memory the connection stays in the queue, and the listener readable. */
	if (!c->accept_ns)
		tn_log(c->log, TN_LOG_WARN, "no connection can be accepted: %s", strerror(-rc));
	c->accept_ns = tn_now_ns(&tn_clock_system) + ACCEPT_PAUSE_NS;
}

/* ---- the thread -------------------------------------------------------------------------------------------------------- */

/* Of a connection that is closing: whether neither side needs it any more. */
static bool may_free(struct tn_xfer_control *c, struct tn_xfer_conn *conn, uint64_t now)
{
	bool first = !conn->left;

	if (conn->state != TN_XFER_CONN_OPEN)
		return true;
	conn->left = true;
	if (conn->outgoing) {
		if (first)
			c->ops->closed(c->arg, conn);
		return !conn->held && (!conn->out_bytes || conn->ended || now >= conn->until_ns);
	}
	if (first) {
		shutdown(conn->sock.fd, SHUT_WR);
		conn->out_bytes = conn->in_bytes = 0;
		conn->stalled = false;
	}
	if (conn->ended)
		c->ops->closed(c->arg, conn);
	return conn->ended;
}

/* Nobody may ever take notifications: of too many peers that have ended, those of the oldest are lost. */
static void drop_oldest_ended(struct tn_xfer_control *c)
{
	uint32_t n = 0;

	for (struct tn_list *pos = c->conns.prev; pos != &c->conns; pos = pos->prev) {
		struct tn_xfer_conn *conn = tn_container_of(pos, struct tn_xfer_conn, link);

		if (!conn->ended || !conn->stalled || ++n <= ENDED_MAX)
			continue;
		tn_log(c->log, TN_LOG_WARN, "notifications of agent %s, which has ended, are lost: nobody takes those before them", conn->shake.name[0]);
		conn->closing = true;
	}
}

/* Closes what is to be closed. Returns when to look again. */
static uint64_t sweep(struct tn_xfer_control *c, uint64_t now)
{
	uint64_t next = TN_FOREVER;
	struct tn_list *pos, *tmp;

	tn_list_for_each_safe(pos, tmp, &c->conns) {
		struct tn_xfer_conn *conn = tn_container_of(pos, struct tn_xfer_conn, link);

		if (conn->state != TN_XFER_CONN_OPEN && now >= conn->until_ns)
			conn->closing = true;
		if (conn->closing && may_free(c, conn, now))
			conn_free(c, conn);
		else if (now < conn->until_ns && conn->until_ns < next && (conn->closing || conn->state != TN_XFER_CONN_OPEN))
			next = conn->until_ns;
	}
	return next;
}

/* What to sleep for: the wake-up, the listener, the connections in their order. False: no memory. */
static bool gather(struct tn_xfer_control *c, uint64_t now, struct pollfd **out, uint32_t *n)
{
	uint32_t need = 2 + c->nconns;
	struct tn_list *pos;
	struct pollfd *p;

	if (need > c->fds_capacity) {
		uint32_t capacity = need * 2;
		void *fds = tn_get(&tn_alloc_system, capacity * sizeof(*p));

		if (!fds)
			return false;
		tn_put(&tn_alloc_system, c->fds, c->fds_capacity * sizeof(*p));
		c->fds = fds;
		c->fds_capacity = capacity;
	}
	p = c->fds;
	p[0] = (struct pollfd){.fd = c->wake, .events = POLLIN};
	p[1] = (struct pollfd){.fd = c->nconns < CONNS_MAX && now >= c->accept_ns ? c->listener : -1, .events = POLLIN};
	*n = 2;
	for (pos = c->conns.next; pos != &c->conns; pos = pos->next) {
		const struct tn_xfer_conn *conn = tn_container_of(pos, struct tn_xfer_conn, link);

		/* What has ended stays readable: nothing is to be learnt of it. */
		p[(*n)++] = (struct pollfd){.fd = conn->ended && (conn->held || conn->stalled) ? -1 : conn->sock.fd,
					    .events = (short)((conn->stalled ? POLLRDHUP : POLLIN) | (conn->out_bytes ? POLLOUT : 0))};
	}
	*out = p;
	return true;
}

/* What is due. Returns when to wake at the latest. */
static uint64_t tend(struct tn_xfer_control *c, uint64_t now)
{
	uint64_t swept, next;

	drop_oldest_ended(c);
	swept = sweep(c, now);
	next = c->ops->overdue(c->arg, now);
	next = swept < next ? swept : next;
	return now < c->accept_ns && c->accept_ns < next ? c->accept_ns : next;
}

/* At the end: whether a connection, all of which are closing, still has to send something. */
static bool lingers(struct tn_xfer_control *c)
{
	for (struct tn_list *pos = c->conns.next; pos != &c->conns; pos = pos->next)
		if (tn_container_of(pos, struct tn_xfer_conn, link)->outgoing)
			return true;
	return false;
}

static void turn(struct tn_xfer_control *c, const struct pollfd *p, uint32_t n)
{
	struct tn_list *pos = c->conns.next;
	uint64_t count;

	if (p[0].revents)
		while (read(c->wake, &count, sizeof(count)) > 0)
			;
	/* Connections that were added meanwhile are at the end; none has gone. */
	for (uint32_t i = 2; i < n; i++, pos = pos->next) {
		struct tn_xfer_conn *conn = tn_container_of(pos, struct tn_xfer_conn, link);

		if (p[i].revents & POLLOUT)
			flush(c, conn);
		if (conn->stalled)
			messages(c, conn);
		if (p[i].revents & (POLLIN | POLLHUP | POLLERR) && !conn->stalled)
			receive(c, conn);
		else if (p[i].revents & (POLLHUP | POLLERR | POLLRDHUP) && conn->stalled)
			broken(c, conn);
	}
	if (p[1].revents)
		accept_all(c);
}

static void *run(void *arg)
{
	struct tn_xfer_control *c = arg;

	pthread_mutex_lock(c->lock);
	for (;;) {
		uint64_t now = tn_now_ns(&tn_clock_system), left;
		struct timespec t = {0, 100000000};
		struct pollfd *p = NULL;
		uint32_t n = 0;
		bool gathered, forever;
		int rc;

		c->next_ns = tend(c, now);
		if (c->stop && !lingers(c))
			break;
		left = c->next_ns > now ? c->next_ns - now : 0;
		gathered = gather(c, now, &p, &n);
		forever = gathered && c->next_ns == TN_FOREVER;
		if (gathered)
			t = (struct timespec){(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
		pthread_mutex_unlock(c->lock);
		rc = ppoll(gathered ? p : NULL, n, forever ? NULL : &t, NULL);
		pthread_mutex_lock(c->lock);
		if (rc > 0 && p)
			turn(c, p, n);
	}
	pthread_mutex_unlock(c->lock);
	return NULL;
}

int tn_xfer_control_start(struct tn_xfer_control *c)
{
	int rc;

	c->wake = tn_above_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (c->wake < 0)
		return tn_fail(-errno, "eventfd: %s", strerror(errno));
	rc = tn_thread_start(&c->thread, run, c);
	if (rc)
		return tn_fail(-rc, "a thread for connections: %s", strerror(rc));
	c->started = true;
	return 0;
}

void tn_xfer_control_stop(struct tn_xfer_control *c)
{
	struct tn_list *node;

	if (c->started) {
		pthread_mutex_lock(c->lock);
		c->stop = true;
		pthread_mutex_unlock(c->lock);
		tn_xfer_control_wake(c);
		pthread_join(c->thread, NULL);
	}
	while ((node = tn_list_pop(&c->conns)) != NULL)
		conn_free(c, tn_container_of(node, struct tn_xfer_conn, link));
	if (c->wake >= 0)
		close(c->wake);
	tn_put(&tn_alloc_system, c->fds, c->fds_capacity * sizeof(struct pollfd));
}
