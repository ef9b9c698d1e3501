/* SPDX-License-Identifier: Apache-2.0 */
/* The server of a cache: a Unix socket, and a thread that accepts processes, takes their memories and watches whether they live. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/proc.h"
#include "base/thread.h"
#include "drives/drives.h"
#include "front/find.h"
#include "front/serve.h"
#include "region/call.h"

#define BACKLOG 64
#define CALLERS_MAX 32u
#define GREETING_NS 5000000000ull
#define THREAD_PIDFD O_EXCL /* PIDFD_THREAD of linux/pidfd.h (6.9), which older C libraries do not have */
#define PEER_PIDFD 77	    /* SO_PEERPIDFD of asm/socket.h (6.5), likewise */

/* A connection that has not said yet what it wants. Such have places of their own, so that those that say nothing keep nobody out. */
struct caller {
	int sock; /* 0: the place is free */
	pid_t pid;
	uint32_t uid;
	uint64_t until_ns;
};

struct tn_server {
	struct tn_cache *cache;
	struct sockaddr_un address;
	struct tn_fork_fd forked; /* sock: a child that outlives this process is not to keep it */
	pthread_mutex_t lock;
	struct tn_rules *rules; /* under lock */
	int sock, news; /* news: eventfd; a session has ended, or the server is to */
	bool given;	/* the socket is somebody else's: it stays when the server ends */
	dev_t device;	/* of the socket's entry at the path, */
	ino_t inode;	/* 0: it is not this server's */
	uint32_t stopping; /* shared */
	pthread_t thread;
	struct tn_log_limit lines; /* the thread's: about processes that come and go. Who connects again and again does not fill the log */
	char store[TN_DEVICES_MAX][TN_WIRE_PATH];  /* of the cache: its files */
	uint32_t nstores;
	struct caller caller[CALLERS_MAX];	   /* the thread's */
	struct tn_served *served[TN_ATTACHED_MAX]; /* the thread's */
};

_Static_assert(TN_ATTACHED_MAX == TN_SESSIONS_MAX, "one session per process");

/* ---- a session's beginning and end ------------------------------------------------------------------------------ */

/* By which rule the process goes. */
static int find_rule(struct tn_served *s, const struct tn_wire_hello *hello)
{
	struct tn_server *server = s->cache->server;

	pthread_mutex_lock(&server->lock);
	s->rules = tn_rules_ref(server->rules);
	pthread_mutex_unlock(&server->lock);
	s->rule = tn_rules_find(s->rules, s->uid, hello->token);
	return s->rule ? 0 : tn_fail(-EACCES, "no rule lets user %u attach with %s", s->uid, hello->token[0] ? "that token" : "no token");
}

static int begin(struct tn_served *s, const struct tn_wire_hello *hello, size_t bytes, int *fd)
{
	int rc = tn_served_check_hello(hello, bytes);

	if (rc == 0)
		rc = find_rule(s, hello);
	return rc ? rc : tn_served_begin(s, fd);
}

static void send_answer(int sock, const void *message, size_t bytes, const int *fds, uint32_t nfds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(TN_WELCOME_FDS * sizeof(int))];
	} control;
	struct iovec iov = {(void *)(uintptr_t)message, bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	memset(&control, 0, sizeof(control));
	if (nfds) {
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		control.head = (struct cmsghdr){CMSG_LEN(nfds * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.head), fds, nfds * sizeof(int));
	}
	sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL); /* who does not read has no session */
}

/*
 * Readable when this thread is dead. A process that is killed while one of its threads waits for a disk that hangs is not dead for as long;
 * this thread never does. Before Linux 6.9 there are pidfds of whole processes only.
 */
static int open_life(void)
{
	int fd = (int)syscall(SYS_pidfd_open, (pid_t)syscall(SYS_gettid), THREAD_PIDFD);

	return fd >= 0 ? fd : (int)syscall(SYS_pidfd_open, getpid(), 0);
}

static void welcome(struct tn_served *s, int rc, int fd)
{
	struct tn_wire_welcome w = {.magic = TN_WIRE_MAGIC, .status = rc};
	int fds[TN_WELCOME_FDS] = {fd, -1};

	snprintf(w.version, sizeof(w.version), "%s", tn_version());
	if (rc) {
		snprintf(w.text, sizeof(w.text), "%.250s", tn_error_last()->text);
	} else {
		w.max_op_blocks = s->cache->o.max_op_blocks;
		w.read_only = s->rule->read_only;
		w.region_bytes = s->region.bytes;
		w.nlocks = s->cache->server->nstores;
		memcpy(w.lock, s->cache->server->store, sizeof(w.lock));
	}
	fds[1] = rc ? -1 : open_life();
	send_answer(s->sock, &w, sizeof(w), fds, rc ? 0 : fds[1] < 0 ? 1 : 2);
	if (fds[1] >= 0)
		close(fds[1]);
}

static void join_peers(struct tn_served *s)
{
	s->peer.session = s->session;
	s->peer.calls = &s->slow;
	s->peer.pid = (uint32_t)s->pid;
	s->peer.since_ns = tn_now_ns(&s->cache->clock);
	tn_peers_join(s->cache->peers, &s->peer);
}

/* The thread of a session that has joined the core. If there is none the session leaves again: nothing of it is under way yet. */
static int start_session(struct tn_served *s)
{
	int rc = tn_thread_start(&s->thread, tn_served_main, s);

	if (rc == 0)
		return 0;
	while (tn_owner_call(s->cache, tn_session_leave, s->session) == -EAGAIN)
		;
	return tn_fail(-rc, "the owner's process cannot start a thread for a session: %s", strerror(rc));
}

/* The first message of a process: its session begins, or it is told why not. False: there is none. Who is welcome is answered from then on. */
static bool greet(struct tn_server *server, struct tn_served *s, const struct tn_wire_hello *hello, size_t bytes)
{
	int fd = -1, rc = begin(s, hello, bytes, &fd);
	bool say;

	if (rc == 0) {
		join_peers(s);
		rc = start_session(s);
	}
	welcome(s, rc, fd);
	if (fd >= 0)
		close(fd);
	say = tn_log_may(&server->lines, &s->cache->log, tn_now_ns(&tn_clock_system));
	if (say && rc == 0)
		tn_log(&s->cache->log, TN_LOG_INFO, "process %d of user %u has attached as session %u", (int)s->pid, s->uid, s->session->place + 1);
	else if (say)
		tn_log(&s->cache->log, TN_LOG_WARN, "process %d of user %u could not attach: %s", (int)s->pid, s->uid, tn_error_last()->text);
	return rc == 0;
}

/* Its thread gives back what it has, then says so. A process that lives learns at once that nobody answers any more. */
static void end(struct tn_served *s)
{
	if (__atomic_exchange_n(&s->over, 1, __ATOMIC_SEQ_CST))
		return;
	shutdown(s->sock, SHUT_WR);
	tn_region_ring(&s->region);
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

void tn_served_message(struct tn_served *s, const struct tn_wire_memory *w, size_t bytes, const int *fds, uint32_t nfds)
{
	struct tn_wire_registered answer = {0};

	answer.turn = bytes == sizeof(*w) ? w->turn : 0;
	if (bytes != sizeof(*w) || w->magic != TN_WIRE_MAGIC)
		answer.status = tn_fail(-EINVAL, "process %d: %zu bytes that are no message", (int)s->pid, bytes);
	else
		answer.status = tn_served_memory(s, w, fds, nfds, &answer.number);
	if (answer.status)
		snprintf(answer.text, sizeof(answer.text), "%.250s", tn_error_last()->text);
	else if (w->staged && !s->staged)
		tn_log(&s->cache->log, TN_LOG_WARN, "process %d keeps its pages in memory that no other process can map, so it copies each byte once "
		       "more (statistic staged_bytes); with pages of tn_memory_alloc it would not", (int)s->pid);
	s->staged |= answer.status == 0 && w->staged;
	send_answer(s->sock, &answer, sizeof(answer), NULL, 0);
}

/*
 * Takes one message without waiting. Bytes, more than size if it is longer; 0 at the end; -errno. fds NULL: the kernel lets go of descriptors that
 * come along; this process does not get them.
 */
static ssize_t receive(int sock, void *message, size_t size, int fds[TN_WIRE_RANGES_MAX], uint32_t *nfds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(TN_WIRE_RANGES_MAX * sizeof(int))];
	} control;
	struct iovec iov = {message, size};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (fds) {
		m.msg_control = &control;
		m.msg_controllen = sizeof(control);
	}
	*nfds = 0;
	n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			*nfds = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(fds, CMSG_DATA(c), *nfds * sizeof(int));
			for (uint32_t i = 0; i < *nfds; i++)
				fds[i] = tn_above_streams(fds[i]);
		}
	return m.msg_flags & MSG_TRUNC ? (ssize_t)size + 1 : n;
}

/* One message of a session. */
static void take_message(struct tn_served *s)
{
	struct tn_wire_memory message;
	int fds[TN_WIRE_RANGES_MAX];
	uint32_t nfds;
	ssize_t n = receive(s->sock, &message, sizeof(message), tn_served_takes_descriptors() ? fds : NULL, &nfds);

	if (n > 0)
		tn_served_message(s, &message, (size_t)n, fds, nfds);
	tn_served_close(fds, nfds);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void refuse(int sock, int rc)
{
	struct tn_wire_welcome w = {.magic = TN_WIRE_MAGIC, .status = rc};

	snprintf(w.text, sizeof(w.text), "%.250s", tn_error_last()->text);
	send_answer(sock, &w, sizeof(w), NULL, 0);
	close(sock);
}

static int peer_of(struct tn_server *server, int sock, pid_t *pid, uint32_t *uid)
{
	socklen_t len = sizeof(struct ucred);
	struct ucred peer;
	bool known;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len))
		return tn_fail(-errno, "the peer's credentials are not known: %s", strerror(errno));
	pthread_mutex_lock(&server->lock);
	known = tn_rules_know(server->rules, peer.uid);
	pthread_mutex_unlock(&server->lock);
	if (!known)
		return tn_fail(-EACCES, "user %u may not attach: the cache is user %u's, and no rule is about user %u", peer.uid, geteuid(), peer.uid);
	*pid = peer.pid;
	*uid = peer.uid;
	return 0;
}

/* A pidfd of the peer; -1: there is none. By its number alone another process could be meant that has the number since. */
static int process_of(int sock, pid_t pid)
{
	int fd = -1;
	socklen_t len = sizeof(fd);

	if (getsockopt(sock, SOL_SOCKET, PEER_PIDFD, &fd, &len))
		fd = (int)syscall(SYS_pidfd_open, pid, 0);
	return tn_above_streams(fd);
}

static void hang_up(struct caller *c)
{
	tn_fail(-ETIMEDOUT, "process %d has connected and said nothing", (int)c->pid);
	refuse(c->sock, -ETIMEDOUT);
	*c = (struct caller){0};
}

/* If all places are taken, the one goes that has said nothing for longest. */
static struct caller *caller_place(struct tn_server *server)
{
	struct caller *oldest = &server->caller[0];

	for (uint32_t i = 0; i < CALLERS_MAX; i++) {
		if (!server->caller[i].sock)
			return &server->caller[i];
		if (server->caller[i].until_ns < oldest->until_ns)
			oldest = &server->caller[i];
	}
	hang_up(oldest);
	return oldest;
}

static void accept_one(struct tn_server *server)
{
	int sock = tn_above_streams(accept4(server->sock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)), rc;
	uint32_t uid = 0;
	pid_t pid = 0;

	if (sock < 0 && errno != EAGAIN && errno != ECONNABORTED)
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL); /* out of descriptors: the connection still waits */
	if (sock < 0)
		return;
	rc = peer_of(server, sock, &pid, &uid);
	if (rc)
		refuse(sock, rc);
	else
		*caller_place(server) = (struct caller){sock, pid, uid, tn_now_ns(&tn_clock_system) + GREETING_NS};
}

/* A process that may have a session, or NULL and an error. The socket is its. */
static struct tn_served *create_served(struct tn_server *server, const struct caller *c)
{
	struct tn_served *s = tn_get(server->cache->alloc, sizeof(*s));

	if (!s) {
		tn_fail(-ENOMEM, "no memory");
		return NULL;
	}
	s->cache = server->cache;
	s->pid = c->pid;
	s->uid = c->uid;
	s->sock = c->sock;
	s->news = server->news;
	s->process = process_of(c->sock, c->pid);
	if (s->process < 0 && errno == ESRCH) {
		tn_put(server->cache->alloc, s, sizeof(*s));
		tn_fail(-ESRCH, "process %d has connected and is dead", (int)c->pid);
		return NULL;
	}
	pthread_mutex_init(&s->lock, NULL);
	return s;
}

/* The first message of a connection, which is its greeting. */
static void take_greeting(struct tn_server *server, struct caller *caller)
{
	struct tn_wire_hello hello;
	struct tn_served *s = NULL;
	struct caller c = *caller;
	uint32_t nfds, i = 0;
	ssize_t n = receive(c.sock, &hello, sizeof(hello), NULL, &nfds);

	if (n == -EAGAIN || n == -EINTR)
		return;
	*caller = (struct caller){0};
	while (i < TN_ATTACHED_MAX && server->served[i])
		i++;
	if (n <= 0) {
		close(c.sock);
		return;
	}
	if (i == TN_ATTACHED_MAX)
		tn_fail(-EAGAIN, "%u processes are attached, the most there can be; close the cache in one of them", TN_ATTACHED_MAX);
	else
		s = create_served(server, &c);
	if (!s)
		refuse(c.sock, tn_error_last()->code);
	else if (greet(server, s, &hello, (size_t)n))
		server->served[i] = s;
	else
		tn_served_destroy(s);
}

/* A session that has ended. */
static void forget(struct tn_server *server, uint32_t i)
{
	struct tn_served *s = server->served[i];

	server->served[i] = NULL;
	pthread_join(s->thread, NULL);
	if (tn_log_may(&server->lines, &server->cache->log, tn_now_ns(&tn_clock_system)))
		tn_log(&server->cache->log, TN_LOG_INFO, "process %d of user %u, session %u, is not attached any more", (int)s->pid, s->uid,
		       s->session->place + 1);
	tn_served_destroy(s);
}

/* One turn for a session; its part of the polled descriptors are its socket and its process. */
static void tend(struct tn_served *s, const struct pollfd *p)
{
	if (p[0].revents & POLLIN)
		take_message(s);
	if (p[0].revents & (POLLHUP | POLLERR | POLLRDHUP) || p[1].revents)
		end(s);
}

/* The polled descriptors: the server's own two, then those that have not greeted yet, then two of each session. */
enum { CALLER_AT = 2, SERVED_AT = CALLER_AT + CALLERS_MAX, POLLED = SERVED_AT + 2 * TN_ATTACHED_MAX };

/* Fills them in. Returns until when to poll at most, in ms; -1: as long as it takes. */
static int polled(const struct tn_server *server, struct pollfd p[POLLED])
{
	bool stopping = __atomic_load_n(&server->stopping, __ATOMIC_ACQUIRE);
	uint64_t now = tn_now_ns(&tn_clock_system), until = UINT64_MAX;

	p[0] = (struct pollfd){.fd = server->news, .events = POLLIN};
	p[1] = (struct pollfd){.fd = stopping ? -1 : server->sock, .events = POLLIN};
	for (uint32_t i = 0; i < CALLERS_MAX; i++) {
		const struct caller *c = &server->caller[i];

		p[CALLER_AT + i] = (struct pollfd){.fd = c->sock ? c->sock : -1, .events = POLLIN};
		if (c->sock && c->until_ns < until)
			until = c->until_ns;
	}
	for (uint32_t i = 0; i < TN_ATTACHED_MAX; i++) {
		const struct tn_served *s = server->served[i];
		bool over = !s || __atomic_load_n(&s->over, __ATOMIC_ACQUIRE);

		p[SERVED_AT + 2 * i] = (struct pollfd){.fd = over ? -1 : s->sock, .events = POLLIN | POLLRDHUP};
		p[SERVED_AT + 2 * i + 1] = (struct pollfd){.fd = over ? -1 : s->process, .events = POLLIN};
	}
	if (until == UINT64_MAX)
		return -1;
	return until > now ? (int)((until - now) / 1000000u) + 1 : 0;
}

/* One message of each, and one new connection. */
static void serve_turn(struct tn_server *server)
{
	struct pollfd p[POLLED];
	uint64_t count, now;

	if (poll(p, POLLED, polled(server, p)) < 0)
		return;
	if (p[0].revents)
		(void)!read(server->news, &count, sizeof(count));
	now = tn_now_ns(&tn_clock_system);
	for (uint32_t i = 0; i < TN_ATTACHED_MAX; i++) {
		struct tn_served *s = server->served[i];

		if (s && __atomic_load_n(&s->ended, __ATOMIC_ACQUIRE))
			forget(server, i);
		else if (s)
			tend(s, &p[SERVED_AT + 2 * i]);
	}
	for (uint32_t i = 0; i < CALLERS_MAX; i++) {
		struct caller *c = &server->caller[i];

		if (c->sock && p[CALLER_AT + i].revents)
			take_greeting(server, c);
		else if (c->sock && now >= c->until_ns)
			hang_up(c);
	}
	if (p[1].revents)
		accept_one(server);
}

static bool has_sessions(const struct tn_server *server)
{
	bool any = false;

	for (uint32_t i = 0; i < TN_ATTACHED_MAX; i++)
		any |= server->served[i] != NULL;
	return any;
}

static void *server_main(void *arg)
{
	struct tn_server *server = arg;

	pthread_setname_np(pthread_self(), "tenuto-server");
	while (!__atomic_load_n(&server->stopping, __ATOMIC_ACQUIRE))
		serve_turn(server);
	for (uint32_t i = 0; i < CALLERS_MAX; i++)
		if (server->caller[i].sock)
			close(server->caller[i].sock);
	memset(server->caller, 0, sizeof(server->caller));
	for (uint32_t i = 0; i < TN_ATTACHED_MAX; i++)
		if (server->served[i])
			end(server->served[i]);
	while (has_sessions(server))
		serve_turn(server);
	return NULL;
}

/* ---- serve and stop ------------------------------------------------------------------------------------------------ */

/* What is at the path goes if it is the socket of a server that is gone. */
static int clear_path(const struct sockaddr_un *address)
{
	const char *path = address->sun_path;
	struct stat st;
	int fd, rc;

	if (lstat(path, &st))
		return errno == ENOENT ? 0 : tn_fail(-errno, "%s: %s", path, strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return tn_fail(-EEXIST, "%s is there and is no socket; give another path", path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return tn_fail(-errno, "socket: %s", strerror(errno));
	rc = connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ? 0 : -errno;
	if (rc == 0 && tn_peer_is_dead(fd))
		rc = -ECONNREFUSED; /* a forked child of a dead owner keeps its socket */
	close(fd);
	if (rc != -ECONNREFUSED)
		return tn_fail(-EADDRINUSE, "%s: another process serves there", path);
	return unlink(path) && errno != ENOENT ? tn_fail(-errno, "%s: %s", path, strerror(errno)) : 0;
}

/* Unless another server has put its own there since; the kernel gives the number of our entry to no other one while our socket is open. */
static void remove_socket(struct tn_server *server)
{
	struct stat now;

	if (server->inode && lstat(server->address.sun_path, &now) == 0 && now.st_dev == server->device && now.st_ino == server->inode)
		unlink(server->address.sun_path);
	server->inode = 0;
}

/* Nobody can connect before listen; until then only this user may open the socket. */
static int open_socket(struct tn_server *server)
{
	int rc = clear_path(&server->address);
	struct stat made;

	if (rc)
		return rc;
	tn_fork_lock();
	server->sock = tn_above_streams(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (server->sock >= 0)
		tn_fork_watch(&server->forked, server->sock);
	tn_fork_unlock();
	if (server->sock < 0)
		return tn_fail(-errno, "socket: %s", strerror(errno));
	if (bind(server->sock, (struct sockaddr *)&server->address, sizeof(server->address)))
		return tn_fail(-errno, "%s: cannot make a socket there: %s", server->address.sun_path, strerror(errno));
	if (lstat(server->address.sun_path, &made)) { /* nobody could tell later whose the socket is */
		rc = tn_fail(-errno, "%s: cannot see the socket made there: %s", server->address.sun_path, strerror(errno));
		unlink(server->address.sun_path);
		return rc;
	}
	server->device = made.st_dev;
	server->inode = made.st_ino;
	/* Who may connect is not let in by that alone. */
	if (chmod(server->address.sun_path, tn_rules_let_others(server->rules) ? 0666 : 0600) || listen(server->sock, BACKLOG)) {
		rc = tn_fail(-errno, "%s: %s", server->address.sun_path, strerror(errno));
		remove_socket(server);
	}
	return rc;
}

static void free_server(struct tn_server *server)
{
	tn_fork_unwatch(&server->forked);
	if (server->sock >= 0)
		close(server->sock);
	if (server->news >= 0)
		close(server->news);
	tn_rules_put(server->rules);
	pthread_mutex_destroy(&server->lock);
	tn_put(server->cache->alloc, server, sizeof(*server));
}

static int start(struct tn_server *server)
{
	int rc = tn_thread_start(&server->thread, server_main, server);

	return rc ? tn_fail(-rc, "cannot start a thread (errno %d)", rc) : 0;
}

int tn_cache_serve_anew(struct tn_cache *cache, const struct tn_serve_opts *opts)
{
	struct tn_rules *rules, *before;
	int rc;

	if (!cache || !cache->server)
		return tn_fail(-EINVAL, "tn_cache_serve_anew: no cache, or it is not served");
	if (tn_check_process(cache))
		return -ECHILD;
	rc = tn_rules_create(opts, cache->alloc, &rules);
	if (rc)
		return rc;
	pthread_mutex_lock(&cache->server->lock);
	before = cache->server->rules;
	cache->server->rules = rules;
	pthread_mutex_unlock(&cache->server->lock);
	tn_rules_put(before);
	return 0;
}

static int check_serve(struct tn_cache *cache)
{
	if (tn_check_process(cache))
		return -ECHILD;
	if (cache->attached)
		return tn_fail(-EINVAL, "tn_cache_serve: the cache is another process's; that one serves it");
	if (cache->server)
		return tn_fail(-EALREADY, "tn_cache_serve: it is served at %s already", cache->server->address.sun_path);
	return 0;
}

/*
 * For the server's thread, which asks no directory. A drive is no file that could be locked, and needs none: it never reaches other processes' memory,
 * to which this process copies, and that ends when it dies.
 */
static void find_stores(struct tn_server *server)
{
	const struct tn_cache *cache = server->cache;

	for (uint32_t i = 0; i < cache->ndevices; i++)
		if (tn_find_has_file(cache, i))
			tn_find_store(cache, i, server->store[server->nstores++], TN_WIRE_PATH);
}

/* At a path, or with a socket that listens there. */
static int serve(struct tn_cache *cache, const struct sockaddr_un *address, int given, const struct tn_serve_opts *opts)
{
	struct tn_server *server = tn_get(cache->alloc, sizeof(*server));
	struct tn_peers *peers = cache->peers; /* of a try before this one */
	int rc;

	if (!server)
		return tn_fail(-ENOMEM, "tn_cache_serve: no memory");
	server->cache = cache;
	server->address = *address;
	server->sock = given;
	server->given = given >= 0;
	pthread_mutex_init(&server->lock, NULL);
	find_stores(server);
	server->news = tn_above_streams(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	rc = server->news < 0 ? tn_fail(-errno, "eventfd: %s", strerror(errno)) : tn_rules_create(opts, cache->alloc, &server->rules);
	if (rc == 0)
		rc = tn_guard_prepare();
	if (rc == 0 && !peers)
		rc = tn_peers_create(cache->alloc, &peers);
	if (rc == 0 && !server->given)
		rc = open_socket(server);
	if (rc == 0) {
		__atomic_store_n(&cache->peers, peers, __ATOMIC_RELEASE);
		cache->server = server; /* its thread looks there */
		rc = start(server);
		if (rc)
			remove_socket(server);
	}
	if (rc == 0) {
		tn_find_me(cache, server->address.sun_path);
		return 0;
	}
	cache->server = NULL;
	if (peers != cache->peers) /* whoever asks for the status may look there, also if the thread did not start */
		tn_peers_destroy(peers, cache->alloc);
	if (server->given)
		server->sock = -1; /* stays the caller's */
	free_server(server);
	return rc;
}

int tn_cache_serve(struct tn_cache *cache, const char *path, const struct tn_serve_opts *opts)
{
	struct sockaddr_un address;
	int rc;

	if (!cache || !path || path[0] == '\0')
		return tn_fail(-EINVAL, "tn_cache_serve: cache or path is missing");
	rc = check_serve(cache);
	if (rc)
		return rc;
	rc = tn_wire_address(path, &address);
	if (rc)
		return rc;
	return serve(cache, &address, -1, opts);
}

int tn_cache_serve_socket(struct tn_cache *cache, int fd, const struct tn_serve_opts *opts)
{
	struct sockaddr_un address = {0};
	socklen_t bytes = sizeof(address) - 1, len = sizeof(int);
	int type = 0, listens = 0, rc;

	if (!cache)
		return tn_fail(-EINVAL, "tn_cache_serve_socket: cache is missing");
	rc = check_serve(cache);
	if (rc)
		return rc;
	if (getsockname(fd, (struct sockaddr *)&address, &bytes) || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) ||
	    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len))
		return tn_fail(-errno, "descriptor %d: %s", fd, strerror(errno));
	if (address.sun_family != AF_UNIX || type != SOCK_SEQPACKET || !listens || address.sun_path[0] != '/')
		return tn_fail(-EINVAL, "descriptor %d: must be a Unix socket of type SOCK_SEQPACKET that listens at a path (systemd: "
			       "ListenSequentialPacket=)", fd);
	if (fcntl(fd, F_SETFL, O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC))
		return tn_fail(-errno, "descriptor %d: %s", fd, strerror(errno));
	return serve(cache, &address, fd, opts);
}

void tn_server_stop(struct tn_cache *cache)
{
	struct tn_server *server = cache->server;
	uint64_t one = 1;

	if (server) {
		tn_find_me_no_more(cache);
		remove_socket(server);
		__atomic_store_n(&server->stopping, 1, __ATOMIC_SEQ_CST);
		(void)!write(server->news, &one, sizeof(one));
		pthread_join(server->thread, NULL);
		free_server(server);
		cache->server = NULL;
	}
	tn_peers_destroy(cache->peers, cache->alloc);
	cache->peers = NULL;
}
