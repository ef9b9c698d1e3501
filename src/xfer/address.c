/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/address.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/thread.h"

#define BACKLOG 128
#define KEEP_IDLE_S 5
#define KEEP_INTERVAL_S 2
#define KEEP_PROBES 3
#define UNLISTEN_NS 1000000000ull /* how long the end of an agent waits for the lock on a directory */

struct endpoint {
	struct sockaddr_storage at;
	socklen_t bytes;
};

/* ---- sockets ----------------------------------------------------------------------------------------------------------- */

static void watch(struct tn_xfer_socket *s, int fd)
{
	*s = (struct tn_xfer_socket){.fd = fd};
	if (fd >= 0)
		tn_fork_watch(&s->fork, fd);
}

static int socket_open(int family, struct tn_xfer_socket *out)
{
	tn_fork_lock();
	watch(out, tn_above_streams(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
	tn_fork_unlock();
	return out->fd < 0 ? tn_fail(-errno, "socket: %s", strerror(errno)) : 0;
}

/* Tells the kernel to notice a peer machine that is gone. */
static void keep_alive(int fd)
{
	int on = 1, idle = KEEP_IDLE_S, interval = KEEP_INTERVAL_S, probes = KEEP_PROBES;
	unsigned unacknowledged_ms = (KEEP_IDLE_S + KEEP_INTERVAL_S * KEEP_PROBES) * 1000u; /* bytes that are under way: nothing is probed meanwhile */

	/* They fail on Unix sockets, whose peers cannot go without a sign. */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof(unacknowledged_ms));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int tn_xfer_accept(int listener, struct tn_xfer_socket *out)
{
	int rc;

	tn_fork_lock();
	watch(out, tn_above_streams(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)));
	rc = out->fd < 0 ? -errno : 0;
	tn_fork_unlock();
	if (rc == 0)
		keep_alive(out->fd);
	return rc;
}

void tn_xfer_socket_move(struct tn_xfer_socket *to, struct tn_xfer_socket *from)
{
	/* A child that is forked between the two closes it twice, which does no harm: it has one thread. */
	tn_fork_lock();
	watch(to, from->fd);
	tn_fork_unlock();
	tn_fork_unwatch(&from->fork);
	from->fd = -1;
}

void tn_xfer_socket_close(struct tn_xfer_socket *s)
{
	tn_fork_unwatch(&s->fork);
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}

int tn_xfer_socket_wait(int fd, short events, uint64_t deadline_ns)
{
	for (;;) {
		uint64_t now = tn_now_ns(&tn_clock_system), left = deadline_ns > now ? deadline_ns - now : 0;
		struct pollfd p = {.fd = fd, .events = events};
		struct timespec t = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
		int n = ppoll(&p, 1, deadline_ns == TN_FOREVER ? NULL : &t, NULL);

		if (n > 0)
			return 0;
		if (n == 0)
			return tn_fail(-ETIMEDOUT, "the other agent has not answered by the deadline");
		if (errno != EINTR)
			return tn_fail(-errno, "poll: %s", strerror(errno));
	}
}

/* 0; -ENOTSUP: it is TCP; -EACCES: the kernel does not say. */
static int peer_of(int fd, struct ucred *out)
{
	socklen_t bytes = sizeof(*out), domain_bytes = sizeof(int);
	int domain = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_bytes) || domain != AF_UNIX)
		return -ENOTSUP;
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, out, &bytes) ? -EACCES : 0;
}

int tn_xfer_socket_process(int fd, uint32_t *pid)
{
	struct ucred cred = {0};
	int rc = peer_of(fd, &cred);

	*pid = (uint32_t)cred.pid;
	return rc == -ENOTSUP ? rc : 0;
}

bool tn_xfer_may_connect(int fd)
{
	struct ucred cred;
	int rc = peer_of(fd, &cred);

	return rc == -ENOTSUP || (rc == 0 && (cred.uid == geteuid() || cred.uid == 0));
}

/* ---- names of hosts ---------------------------------------------------------------------------------------------------- */

/* Of the thread that looks up and of who waits for it. The last one to leave frees it. */
struct lookup {
	char host[TN_XFER_ADDRESS_BYTES], port[TN_XFER_ADDRESS_BYTES];
	struct addrinfo *found;
	int rc;
	uint32_t ended; /* futex */
	uint32_t refs;
};

static void lookup_put(struct lookup *l)
{
	if (__atomic_sub_fetch(&l->refs, 1, __ATOMIC_ACQ_REL))
		return;
	if (l->found)
		freeaddrinfo(l->found);
	tn_put(&tn_alloc_system, l, sizeof(*l));
}

static void look_up(struct lookup *l, int flags)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};

	l->rc = getaddrinfo(l->host, l->port, &hints, &l->found);
}

static void *run(void *arg)
{
	struct lookup *l = arg;

	look_up(l, 0);
	__atomic_store_n(&l->ended, 1, __ATOMIC_RELEASE);
	tn_futex_wake(&l->ended);
	lookup_put(l);
	return NULL;
}

/* A number needs no thread. 0; -ETIMEDOUT, -EAGAIN with detail. */
static int find_host(struct lookup *l, uint64_t deadline_ns)
{
	pthread_t thread;
	int rc = 0;

	look_up(l, AI_NUMERICHOST);
	if (l->rc != EAI_NONAME)
		return 0;
	l->refs = 2;
	rc = tn_thread_start(&thread, run, l);
	if (rc) {
		l->refs = 1;
		return tn_fail(-rc, "address tcp:%s:%s: a thread: %s", l->host, l->port, strerror(rc));
	}
	pthread_detach(thread);
	while (!__atomic_load_n(&l->ended, __ATOMIC_ACQUIRE))
		if (tn_futex_wait(&l->ended, 0, deadline_ns) == -ETIMEDOUT)
			return tn_fail(-ETIMEDOUT, "address tcp:%s:%s: the host was not found by the deadline", l->host, l->port);
	return 0;
}

static int tcp_endpoint(const char *text, uint64_t deadline_ns, struct endpoint *out)
{
	const char *colon = strrchr(text, ':');
	size_t n = colon ? (size_t)(colon - text) : 0;
	struct lookup *l;
	int rc;

	if (!colon || strlen(text) >= TN_XFER_ADDRESS_BYTES)
		return tn_fail(-EINVAL, "address tcp:%.40s: tcp:HOST:PORT of at most %u bytes is wanted", text, TN_XFER_ADDRESS_BYTES);
	l = tn_get(&tn_alloc_system, sizeof(*l));
	if (!l)
		return tn_fail(-ENOMEM, "no memory for an address");
	l->refs = 1;
	snprintf(l->port, sizeof(l->port), "%s", colon + 1);
	if (n > 2 && text[0] == '[' && text[n - 1] == ']')
		snprintf(l->host, sizeof(l->host), "%.*s", (int)n - 2, text + 1);
	else
		snprintf(l->host, sizeof(l->host), "%.*s", (int)(n ? n : 9), n ? text : "127.0.0.1");
	rc = find_host(l, deadline_ns);
	if (rc == 0 && l->rc)
		rc = tn_fail(-EINVAL, "address tcp:%s: %s", text, gai_strerror(l->rc));
	if (rc == 0) {
		memcpy(&out->at, l->found->ai_addr, l->found->ai_addrlen);
		out->bytes = l->found->ai_addrlen;
	}
	lookup_put(l);
	return rc;
}

/* ---- addresses --------------------------------------------------------------------------------------------------------- */

static int unix_endpoint(const char *path, struct endpoint *out)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	size_t n = strlen(path);

	if (n == 0 || n >= sizeof(un.sun_path))
		return tn_fail(-EINVAL, "address unix:%.40s: a path of 1 to %zu bytes is wanted, it has %zu", path, sizeof(un.sun_path) - 1, n);
	memcpy(un.sun_path, path, n);
	if (*path == '@')
		un.sun_path[0] = 0; /* abstract: as long as the address says, without a zero at its end */
	out->bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (*path != '@'));
	memcpy(&out->at, &un, sizeof(un));
	return 0;
}

static int endpoint_of(const char *address, uint64_t deadline_ns, struct endpoint *out)
{
	*out = (struct endpoint){0};
	if (!strncmp(address, "unix:", 5))
		return unix_endpoint(address + 5, out);
	if (!strncmp(address, "tcp:", 4))
		return tcp_endpoint(address + 4, deadline_ns, out);
	return tn_fail(-EINVAL, "address %s: unix:PATH or tcp:HOST:PORT is wanted", address);
}

/* The path of a Unix socket that is a file; NULL: it is none. */
static const char *path_of(const char *address)
{
	return !strncmp(address, "unix:", 5) && address[5] != '@' ? address + 5 : NULL;
}

/*
 * A lock on the directory of a socket's file. Who has it looks whether an agent listens there, removes the file that a dead one has left, and listens: between
 * these steps no other agent can put its own file there.
 */
static int lock_directory(const char *path, uint64_t deadline_ns, struct tn_xfer_socket *out)
{
	char directory[TN_XFER_ADDRESS_BYTES] = ".";
	const char *slash = strrchr(path, '/');

	if (slash)
		snprintf(directory, sizeof(directory), "%.*s", (int)(slash - path + 1), path);
	tn_fork_lock();
	watch(out, tn_above_streams(open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
	tn_fork_unlock();
	if (out->fd < 0)
		return tn_fail(-errno, "address unix:%s: its directory: %s", path, strerror(errno));
	while (flock(out->fd, LOCK_EX | LOCK_NB)) {
		int rc = errno == EWOULDBLOCK ? 0 : tn_fail(-errno, "address unix:%s: a lock on its directory: %s", path, strerror(errno));

		if (rc == 0 && tn_now_ns(&tn_clock_system) >= deadline_ns)
			rc = tn_fail(-ETIMEDOUT, "address unix:%s: another process has its directory locked", path);
		if (rc) {
			tn_xfer_socket_close(out);
			return rc;
		}
		poll(NULL, 0, 1);
	}
	return 0;
}

static int bind_address(const char *address, const struct endpoint *at, struct tn_xfer_socket *out)
{
	int on = 1, rc = socket_open(at->at.ss_family, out);

	if (rc)
		return rc;
	if (at->at.ss_family != AF_UNIX)
		setsockopt(out->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(out->fd, (const struct sockaddr *)&at->at, at->bytes) || listen(out->fd, BACKLOG)) {
		rc = tn_fail(-errno, "address %s: %s", address, strerror(errno));
		tn_xfer_socket_close(out);
	}
	return rc;
}

static void remove_leftover(const char *path, const struct endpoint *at)
{
	struct tn_xfer_socket probe;
	struct stat st;

	if (lstat(path, &st) || !S_ISSOCK(st.st_mode) || socket_open(AF_UNIX, &probe))
		return;
	if (connect(probe.fd, (const struct sockaddr *)&at->at, at->bytes) && errno == ECONNREFUSED)
		unlink(path);
	tn_xfer_socket_close(&probe);
}

static int listen_at_path(const char *path, uint64_t deadline_ns, const struct endpoint *at, struct tn_xfer_listener *out)
{
	struct tn_xfer_socket directory;
	struct stat st;
	int rc = lock_directory(path, deadline_ns, &directory);

	if (rc)
		return rc;
	remove_leftover(path, at);
	rc = bind_address(out->address, at, &out->sock);
	if (rc == 0 && stat(path, &st) == 0) {
		out->device = st.st_dev;
		out->inode = st.st_ino;
	}
	flock(directory.fd, LOCK_UN);
	tn_xfer_socket_close(&directory);
	return rc;
}

/* The port that the kernel chose. */
static void set_port(struct tn_xfer_listener *l)
{
	struct sockaddr_storage at;
	socklen_t bytes = sizeof(at);
	char *colon = strrchr(l->address, ':');
	uint16_t port;

	if (getsockname(l->sock.fd, (struct sockaddr *)&at, &bytes))
		return;
	port = at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port;
	snprintf(colon, sizeof(l->address) - (size_t)(colon - l->address), "%s:%u", colon == l->address + 4 ? "127.0.0.1" : "", ntohs(port));
}

int tn_xfer_listen(const char *address, uint64_t deadline_ns, struct tn_xfer_listener *out)
{
	const char *path = path_of(address);
	struct endpoint at;
	int rc = endpoint_of(address, deadline_ns, &at);

	if (rc)
		return rc;
	if (strlen(address) + sizeof("127.0.0.1:65535") > TN_XFER_ADDRESS_BYTES)
		return tn_fail(-EINVAL, "address %.40s...: at most %zu bytes", address, TN_XFER_ADDRESS_BYTES - sizeof("127.0.0.1:65535"));
	snprintf(out->address, sizeof(out->address), "%s", address);
	rc = path ? listen_at_path(path, deadline_ns, &at, out) : bind_address(address, &at, &out->sock);
	if (rc)
		out->address[0] = 0;
	else if (at.at.ss_family != AF_UNIX)
		set_port(out);
	return rc;
}

void tn_xfer_unlisten(struct tn_xfer_listener *l)
{
	const char *path = path_of(l->address);
	struct tn_xfer_socket directory;
	struct stat st;

	if (l->sock.fd < 0)
		return;
	/* While it still listens nobody takes the file for a leftover. */
	if (path && lock_directory(path, tn_now_ns(&tn_clock_system) + UNLISTEN_NS, &directory) == 0) {
		if (lstat(path, &st) == 0 && st.st_dev == l->device && st.st_ino == l->inode)
			unlink(path);
		flock(directory.fd, LOCK_UN);
		tn_xfer_socket_close(&directory);
	}
	tn_xfer_socket_close(&l->sock);
}

int tn_xfer_dial(const char *address, uint64_t deadline_ns, struct tn_xfer_socket *out)
{
	struct endpoint at;
	int error = 0, rc = endpoint_of(address, deadline_ns, &at);
	socklen_t bytes = sizeof(error);

	if (rc == 0)
		rc = socket_open(at.at.ss_family, out);
	if (rc)
		return rc;
	rc = connect(out->fd, (struct sockaddr *)&at.at, at.bytes) ? -errno : 0;
	while (rc == -EAGAIN && tn_now_ns(&tn_clock_system) < deadline_ns) {
		/* A Unix socket whose backlog is full: nothing tells when it is not. */
		poll(NULL, 0, 1);
		rc = connect(out->fd, (struct sockaddr *)&at.at, at.bytes) ? -errno : 0;
	}
	if (rc == -EAGAIN)
		rc = tn_fail(-ETIMEDOUT, "address %s: the other agent accepts no connection", address);
	else if (rc == -EINPROGRESS)
		rc = tn_xfer_socket_wait(out->fd, POLLOUT, deadline_ns);
	else if (rc)
		rc = tn_fail(rc == -ENOENT ? -ECONNREFUSED : rc, "address %s: %s", address, strerror(-rc));
	if (rc == 0 && getsockopt(out->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error)
		rc = tn_fail(-error, "address %s: %s", address, strerror(error));
	if (rc)
		tn_xfer_socket_close(out);
	else
		keep_alive(out->fd);
	return rc;
}
