/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves blocks to other caches (tenuto/peer.h). One thread listens, and each connection has one of its own, which waits for nobody but its peer and its loads. So a
 * peer that is slow, or stands still, holds up no other: what it asked for is loaded and kept in its slots, and counts for the bound of loads no more.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <tenuto/peer.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/proc.h"
#include "base/secret_file.h"
#include "base/thread.h"
#include "core/core.h"
#include "peer/serving.h"
#include "tier/remote/peer_wire.h"
#include "xfer/link.h"

#define LOADS_MAX 8u	       /* under way for all peers */
#define DEPTH 4u	       /* of them for one */
#define SHAKE_NS 2000000000ull /* until a connection has proved its secret */
#define ASK_NS 5000000000ull   /* until a question that has begun to come is there */
#define SEND_NS 10000000000ull /* without a byte taken, and the peer is given up */
#define PATIENCE_NS 20000000ull /* likewise, and its loads are ended first */
#define NAP_NS 1000000ull
#define NAPS 50u /* for an operation of the cache to be free */

/* A block that was asked for. */
struct wanted {
	struct tn_peer_ask ask;
	bool loaded; /* its load has ended, with status */
	int status;
	uint64_t bytes;
};

struct conn {
	struct tn_list link;
	struct tn_peer_server *server;
	struct tn_xfer_socket sock;
	pthread_t thread;
	bool open; /* under the server's lock: it has proved the secret */
	bool over; /* likewise: the thread does nothing more */
	bool local; /* the peer can map the slots */
	struct tn_serving serving;
	struct wanted wanted[DEPTH]; /* the oldest first */
	uint32_t n;
	struct {
		struct tn_peer_ask ask;
		struct tn_key keys[TN_OBJECT_NAMES];
	} in;
};

struct tn_peer_server {
	struct tn_cache *cache;
	struct tn_log log;
	struct tn_secret secret;
	uint64_t boot[2];
	struct tn_xfer_listener listener;
	struct tn_xfer_agent *agent; /* that peers of this machine copy by; NULL: none */
	int wake;
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t freed; /* a load has ended */
	struct tn_list conns;
	uint32_t nconns, loads;
	bool stop;
	struct tn_log_limit refusals;
	struct tn_peer_server_stats stats;
};

static uint64_t now_ns(void)
{
	return tn_now_ns(&tn_clock_system);
}

static void count(uint64_t *stat, uint64_t n)
{
	__atomic_fetch_add(stat, n, __ATOMIC_RELAXED);
}

/* ---- the bound of loads -------------------------------------------------------------------------------------------- */

/* waits: until one is free; only who has none. False: there is none. */
static bool take_load(struct tn_peer_server *s, bool waits)
{
	bool got;

	pthread_mutex_lock(&s->lock);
	while (waits && s->loads == LOADS_MAX && !s->stop)
		tn_cond_wait(&s->freed, &s->lock, UINT64_MAX);
	got = s->loads < LOADS_MAX && !s->stop;
	s->loads += got;
	pthread_mutex_unlock(&s->lock);
	return got;
}

static void give_load(struct tn_peer_server *s)
{
	pthread_mutex_lock(&s->lock);
	s->loads--;
	pthread_cond_signal(&s->freed);
	pthread_mutex_unlock(&s->lock);
}

/* ---- answers ------------------------------------------------------------------------------------------------------- */

static void end_load(struct conn *c, struct wanted *w)
{
	if (w->loaded)
		return;
	w->status = tn_serving_end(&c->serving, w->ask.slot, &w->bytes);
	w->loaded = true;
	give_load(c->server);
}

/* A peer that takes nothing keeps its blocks, and no load. */
static int wait_for_peer(struct conn *c)
{
	if (tn_xfer_socket_wait(c->sock.fd, POLLOUT, now_ns() + PATIENCE_NS) == 0)
		return 0;
	for (uint32_t i = 0; i < c->n; i++)
		end_load(c, &c->wanted[i]);
	return tn_xfer_socket_wait(c->sock.fd, POLLOUT, now_ns() + SEND_NS);
}

static int send_all(struct conn *c, struct iovec *iov, uint32_t n)
{
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
	int rc = 0;

	while (m.msg_iovlen && rc == 0) {
		ssize_t sent = sendmsg(c->sock.fd, &m, MSG_NOSIGNAL);

		if (sent < 0)
			rc = errno == EAGAIN ? wait_for_peer(c) : errno == EINTR ? 0 : -errno;
		while (sent >= 0 && m.msg_iovlen && (size_t)sent >= m.msg_iov->iov_len) {
			sent -= (ssize_t)m.msg_iov->iov_len;
			m.msg_iov++;
			m.msg_iovlen--;
		}
		if (sent > 0) {
			m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + sent;
			m.msg_iov->iov_len -= (size_t)sent;
		}
	}
	return rc;
}

/* data: the bytes of an answer whose address is 0. */
static int answer(struct conn *c, struct tn_peer_answer *a, const void *metadata, const void *data)
{
	struct tn_xfer_message head = {TN_PEER_ANSWER, (uint32_t)sizeof(*a) + a->metadata};
	struct iovec iov[] = {{&head, sizeof(head)}, {a, sizeof(*a)}, {(void *)(uintptr_t)metadata, a->metadata}, {(void *)(uintptr_t)data, data ? a->bytes : 0}};

	return send_all(c, iov, 4);
}

/* The oldest block that was asked for goes to the peer. */
static int give_block(struct conn *c)
{
	unsigned char metadata[TN_PEER_METADATA_MAX];
	struct tn_serving_slot *slot;
	struct tn_peer_answer a;
	struct wanted w;
	bool behind;
	int64_t n = 0;

	end_load(c, &c->wanted[0]);
	w = c->wanted[0];
	memmove(&c->wanted[0], &c->wanted[1], --c->n * sizeof(w));
	slot = &c->serving.slot[w.ask.slot];
	behind = (w.ask.flags & TN_PEER_BEHIND) || !c->local || !slot->shared;
	if (w.status == 0 && !behind)
		n = tn_serving_tell(&c->serving, w.ask.slot, metadata, sizeof(metadata));
	behind |= n < 0;
	a = (struct tn_peer_answer){.id = w.ask.id, .slot = w.ask.slot, .status = w.status, .metadata = n > 0 ? (uint32_t)n : 0};
	if (w.status == 0) {
		a.bytes = w.ask.bytes < w.bytes ? w.ask.bytes : w.bytes;
		a.address = behind ? 0 : (uintptr_t)slot->memory;
		count(&c->server->stats.blocks, 1);
		count(&c->server->stats.bytes, a.bytes);
		count(&c->server->stats.mapped_blocks, !behind);
	} else {
		count(&c->server->stats.misses, 1);
	}
	return answer(c, &a, metadata, w.status == 0 && behind ? slot->memory : NULL);
}

/* ---- questions ----------------------------------------------------------------------------------------------------- */

static bool has_slot(const struct conn *c, uint32_t slot)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (c->wanted[i].ask.slot == slot)
			return true;
	return false;
}

/* A load may begin in the slot. What was asked for before is given first, as far as it has what this one needs. 0, or the connection is of no use. */
static int make_way(struct conn *c, uint32_t slot)
{
	int rc = 0;

	while (rc == 0 && c->n && (c->n == DEPTH || has_slot(c, slot)))
		rc = give_block(c);
	while (rc == 0 && !take_load(c->server, c->n == 0))
		rc = c->n ? give_block(c) : -ESHUTDOWN;
	return rc;
}

static int begin_load(struct conn *c)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	int rc = -EAGAIN;

	for (uint32_t naps = 0; rc == -EAGAIN && naps < NAPS; naps++) {
		if (naps)
			nanosleep(&nap, NULL);
		rc = tn_serving_begin(&c->serving, c->in.ask.slot, &c->in.ask.space, c->in.keys);
	}
	return rc;
}

static int want_block(struct conn *c)
{
	struct tn_peer_answer a = {.id = c->in.ask.id, .slot = c->in.ask.slot};
	int rc = make_way(c, a.slot);

	if (rc)
		return rc;
	a.status = begin_load(c);
	if (a.status == 0) {
		c->wanted[c->n++] = (struct wanted){.ask = c->in.ask};
		return 0;
	}
	give_load(c->server);
	count(&c->server->stats.misses, 1);
	return answer(c, &a, NULL, NULL);
}

static int find_keys(struct conn *c)
{
	struct tn_peer_answer a = {.id = c->in.ask.id, .slot = c->in.ask.slot};

	a.found = tn_serving_find(&c->serving, &c->in.ask.space, c->in.keys, c->in.ask.n);
	count(&c->server->stats.asked_keys, c->in.ask.n);
	count(&c->server->stats.found_keys, a.found);
	return answer(c, &a, NULL, NULL);
}

/* The next message, which has begun to come. */
static int take_question(struct conn *c)
{
	struct tn_xfer_message head;
	uint64_t least = sizeof(c->in.ask);
	int rc = tn_xfer_receive(c->sock.fd, &head, &c->in, sizeof(c->in), now_ns() + ASK_NS);

	if (rc)
		return rc;
	if (head.bytes < least || head.bytes != least + c->in.ask.n * sizeof(struct tn_key) || c->in.ask.slot >= TN_OBJECT_SLOTS || c->in.ask.n == 0)
		return -EPROTO;
	if (head.type == TN_PEER_FIND)
		return find_keys(c);
	return head.type == TN_PEER_GET && c->in.ask.n == 1 ? want_block(c) : -EPROTO;
}

/* All of the next message has come: none of the loads under way has to wait for the rest. */
static bool is_whole(const struct conn *c)
{
	struct tn_xfer_message head;
	int there = 0;

	return recv(c->sock.fd, &head, sizeof(head), MSG_PEEK | MSG_DONTWAIT) == sizeof(head) && ioctl(c->sock.fd, FIONREAD, &there) == 0 &&
	       (uint64_t)there >= sizeof(head) + (uint64_t)head.bytes;
}

static int answer_questions(struct conn *c)
{
	uint32_t taken = 0; /* since a block was given: whoever asks on and on shall keep no load */
	int rc = 0;

	while (rc == 0) {
		struct pollfd p = {.fd = c->sock.fd, .events = POLLIN};
		int n = poll(&p, 1, c->n ? 0 : -1);

		if (n > 0 && (c->n == 0 || (taken < DEPTH && is_whole(c)))) {
			rc = take_question(c);
			taken++;
		} else if (c->n) {
			rc = give_block(c);
			taken = 0;
		}
	}
	return rc;
}

/* ---- connections --------------------------------------------------------------------------------------------------- */

/* What the peer's transfer agent has to know of this one's, if it can map the slots. */
static int join(struct conn *c, uint64_t deadline_ns)
{
	const struct tn_xfer_section none = {.bytes = 0};
	unsigned char metadata[TN_PEER_METADATA_MAX];
	struct tn_peer_answer a = {.id = 0};
	struct tn_peer_join ask;
	struct tn_xfer_message head;
	int64_t n = 0;
	int rc = tn_xfer_receive(c->sock.fd, &head, &ask, sizeof(ask), deadline_ns);

	if (rc)
		return rc;
	if (head.type != TN_PEER_JOIN || head.bytes != sizeof(ask))
		return -EPROTO;
	if (ask.version != TN_PEER_VERSION)
		a.status = -EPROTONOSUPPORT;
	else if (c->server->agent && ask.boot[0] && memcmp(ask.boot, c->server->boot, sizeof(ask.boot)) == 0)
		n = tn_xfer_metadata(c->server->agent, TN_XFER_DRAM, &none, 0, metadata, sizeof(metadata));
	c->local = n > 0 && n <= (int64_t)sizeof(metadata);
	a.metadata = c->local ? (uint32_t)n : 0;
	rc = answer(c, &a, metadata, NULL);
	return rc ? rc : a.status;
}

static int shake(struct conn *c)
{
	struct tn_peer_server *s = c->server;
	uint64_t deadline_ns = now_ns() + SHAKE_NS;
	struct tn_xfer_shake shake = {.key_bytes = sizeof(s->secret), .name = {"", "tenuto-peers"}, .generation = {0, 1}};
	int rc;

	memcpy(shake.key, &s->secret, sizeof(s->secret));
	rc = tn_xfer_shake_answer(c->sock.fd, &shake, deadline_ns);
	explicit_bzero(shake.key, sizeof(shake.key));
	rc = rc ? rc : join(c, deadline_ns);
	pthread_mutex_lock(&s->lock);
	c->open = rc == 0;
	if (rc == 0)
		tn_log(&s->log, TN_LOG_INFO, "peer %s is connected", shake.name[0]);
	else if (tn_log_may(&s->refusals, &s->log, now_ns()))
		tn_log(&s->log, TN_LOG_WARN, "a peer is refused (error %d): %s", -rc,
		       rc == -ECONNRESET ? "it has left before its proof: it may have another secret" : tn_error_last()->text);
	pthread_mutex_unlock(&s->lock);
	count(c->open ? &s->stats.peers : &s->stats.refused, 1);
	return rc;
}

static void *run_conn(void *arg)
{
	struct conn *c = arg;
	struct tn_peer_server *s = c->server;

	if (shake(c) == 0)
		answer_questions(c);
	for (uint32_t i = 0; i < c->n; i++)
		end_load(c, &c->wanted[i]);
	tn_serving_destroy(&c->serving);
	pthread_mutex_lock(&s->lock);
	c->over = true;
	if (c->open)
		count(&s->stats.peers, (uint64_t)-1);
	pthread_mutex_unlock(&s->lock);
	eventfd_write(s->wake, 1);
	return NULL;
}

/* With the lock: of too many connections, the oldest that has proved nothing goes. */
static bool has_place(struct tn_peer_server *s)
{
	if (s->nconns < TN_PEERS_MAX)
		return true;
	for (struct tn_list *pos = s->conns.next; pos != &s->conns; pos = pos->next) {
		struct conn *c = tn_container_of(pos, struct conn, link);

		if (!c->open && !c->over) {
			shutdown(c->sock.fd, SHUT_RDWR);
			break;
		}
	}
	return false;
}

static void add_conn(struct tn_peer_server *s, struct tn_xfer_socket *sock)
{
	struct conn *c = NULL;

	pthread_mutex_lock(&s->lock);
	if (has_place(s))
		c = tn_get(&tn_alloc_system, sizeof(*c));
	else
		count(&s->stats.refused, 1);
	if (c) {
		c->server = s;
		c->serving.cache = s->cache;
		c->serving.agent = s->agent;
		tn_xfer_socket_move(&c->sock, sock);
		if (tn_thread_start(&c->thread, run_conn, c)) {
			tn_xfer_socket_close(&c->sock);
			tn_put(&tn_alloc_system, c, sizeof(*c));
		} else {
			tn_list_push(&s->conns, &c->link);
			s->nconns++;
		}
	} else {
		tn_xfer_socket_close(sock);
	}
	pthread_mutex_unlock(&s->lock);
}

/* The next one that does nothing more; all: of all, which are ended. NULL: there is none. */
static struct conn *next_over(struct tn_peer_server *s, bool all)
{
	struct conn *found = NULL;

	pthread_mutex_lock(&s->lock);
	for (struct tn_list *pos = s->conns.next; pos != &s->conns && !found; pos = pos->next) {
		struct conn *c = tn_container_of(pos, struct conn, link);

		if (all)
			shutdown(c->sock.fd, SHUT_RDWR);
		if (c->over || all)
			found = c;
	}
	if (found) {
		tn_list_del(&found->link);
		s->nconns--;
	}
	pthread_mutex_unlock(&s->lock);
	return found;
}

static void remove_conns(struct tn_peer_server *s, bool all)
{
	struct conn *c;

	while ((c = next_over(s, all)) != NULL) {
		pthread_join(c->thread, NULL);
		tn_xfer_socket_close(&c->sock);
		tn_put(&tn_alloc_system, c, sizeof(*c));
	}
}

static bool stops(struct tn_peer_server *s)
{
	bool stop;

	pthread_mutex_lock(&s->lock);
	stop = s->stop;
	pthread_mutex_unlock(&s->lock);
	return stop;
}

static void *run(void *arg)
{
	struct tn_peer_server *s = arg;

	while (!stops(s)) {
		struct pollfd p[2] = {{.fd = s->wake, .events = POLLIN}, {.fd = s->listener.sock.fd, .events = POLLIN}};
		struct tn_xfer_socket sock;
		eventfd_t n;
		int rc;

		poll(p, 2, -1);
		if (p[0].revents)
			eventfd_read(s->wake, &n);
		remove_conns(s, false);
		if (!p[1].revents)
			continue;
		rc = tn_xfer_accept(s->listener.sock.fd, &sock);
		if (rc == 0)
			add_conn(s, &sock);
		else if (rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM)
			poll(p, 1, 100); /* the connection stays in the queue, and the listener readable */
	}
	return NULL;
}

/* ---- the whole ----------------------------------------------------------------------------------------------------- */

static const struct tn_peer_serve_opts defaults = {.size = sizeof(defaults), .log_level = TN_LOG_INFO};

void tn_peer_serve_opts_init_sized(struct tn_peer_serve_opts *opts, size_t size)
{
	tn_abi_init(opts, size, &defaults, sizeof(defaults));
}

/* Without it, peers of this machine get their bytes over the connection. */
static void make_agent(struct tn_peer_server *s)
{
	const char *const backends[] = {"memory,threads=1"};
	struct tn_xfer_agent_opts o;
	char name[64];

	tn_boot_id(s->boot);
	snprintf(name, sizeof(name), "tenuto-peers-%d-%llx", (int)getpid(), (unsigned long long)now_ns());
	tn_xfer_agent_opts_init(&o);
	o.name = name;
	o.backends = backends;
	o.nbackends = 1;
	o.secret = &s->secret;
	o.secret_bytes = sizeof(s->secret);
	if (tn_xfer_agent_create(&o, &s->agent)) {
		s->agent = NULL;
		tn_log(&s->log, TN_LOG_WARN, "peers of this machine cannot map memory: %s", tn_error_last()->text);
	}
}

static void free_server(struct tn_peer_server *s)
{
	tn_xfer_agent_destroy(s->agent);
	if (s->wake >= 0)
		close(s->wake);
	tn_xfer_unlisten(&s->listener);
	pthread_cond_destroy(&s->freed);
	pthread_mutex_destroy(&s->lock);
	explicit_bzero(&s->secret, sizeof(s->secret));
	tn_put(&tn_alloc_system, s, sizeof(*s));
}

static int start(struct tn_peer_server *s, const struct tn_peer_serve_opts *o)
{
	char address[TN_XFER_ADDRESS_BYTES];
	int rc = tn_secret_read(o->secret_file, &s->secret);

	if (rc)
		return rc;
	if (snprintf(address, sizeof(address), "tcp:%s", o->address) >= (int)sizeof(address))
		return tn_fail(-EINVAL, "tn_peer_serve: address %.40s... is too long", o->address);
	rc = tn_xfer_listen(address, now_ns() + SHAKE_NS, &s->listener);
	if (rc)
		return rc;
	s->wake = tn_above_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (s->wake < 0)
		return tn_fail(-errno, "tn_peer_serve: no descriptor: %s", strerror(errno));
	make_agent(s);
	rc = tn_thread_start(&s->thread, run, s);
	return rc ? tn_fail(-rc, "tn_peer_serve: no thread: %s", strerror(rc)) : 0;
}

int tn_peer_serve(struct tn_cache *cache, const struct tn_peer_serve_opts *opts, struct tn_peer_server **out)
{
	struct tn_peer_serve_opts o = defaults;
	struct tn_peer_server *s;
	int rc = cache && opts && out ? tn_abi_in(TN_ABI(tn_peer_serve_opts, log_level), &o, opts) : -EINVAL;

	if (rc || !o.address || !o.secret_file || cache->attached)
		return tn_fail(-EINVAL, "tn_peer_serve: a cache that this process has opened, an address and a secret_file are wanted");
	s = tn_get(&tn_alloc_system, sizeof(*s));
	if (!s)
		return tn_fail(-ENOMEM, "tn_peer_serve: no memory");
	s->cache = cache;
	s->log = (struct tn_log){o.log, o.log_arg, o.log_level};
	s->wake = s->listener.sock.fd = -1;
	pthread_mutex_init(&s->lock, NULL);
	tn_cond_init(&s->freed);
	tn_list_init(&s->conns);
	rc = start(s, &o);
	if (rc)
		free_server(s);
	else
		*out = s;
	return rc;
}

void tn_peer_server_end(struct tn_peer_server *server)
{
	if (!server)
		return;
	pthread_mutex_lock(&server->lock);
	server->stop = true;
	pthread_cond_broadcast(&server->freed);
	pthread_mutex_unlock(&server->lock);
	eventfd_write(server->wake, 1);
	pthread_join(server->thread, NULL);
	remove_conns(server, true);
	free_server(server);
}

const char *tn_peer_server_address(const struct tn_peer_server *server)
{
	return server->listener.address;
}

int tn_peer_server_stats(struct tn_peer_server *server, struct tn_peer_server_stats *out)
{
	struct tn_peer_server_stats now;
	int rc = server && out ? tn_abi_check(TN_ABI_RESULT(tn_peer_server_stats, misses), out) : tn_fail(-EINVAL, "tn_peer_server_stats: no server, or nowhere");
	const uint64_t *from;
	uint64_t *to;

	if (rc)
		return rc;
	from = &server->stats.peers;
	to = &now.peers;
	for (size_t i = 0; i < (sizeof(now) - offsetof(struct tn_peer_server_stats, peers)) / sizeof(uint64_t); i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
	tn_abi_out(TN_ABI_RESULT(tn_peer_server_stats, misses), out, &now);
	return 0;
}
