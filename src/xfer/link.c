/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/link.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/rng.h"
#include "xfer/codec.h"

#define BACKLOG 128
#define KEEP_IDLE_S 5
#define KEEP_INTERVAL_S 2
#define KEEP_PROBES 3
#define TEXT_BYTES 256u

/* ---- addresses --------------------------------------------------------------------------------------------------------- */

struct endpoint {
	struct sockaddr_storage at;
	socklen_t bytes;
};

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

static int tcp_endpoint(const char *text, struct endpoint *out)
{
	const char *colon = strrchr(text, ':');
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
	char host[TN_XFER_ADDRESS_BYTES] = "127.0.0.1";
	size_t n = colon ? (size_t)(colon - text) : 0;
	int rc;

	if (!colon || n >= sizeof(host))
		return tn_fail(-EINVAL, "address tcp:%s: tcp:HOST:PORT is wanted", text);
	if (n)
		snprintf(host, sizeof(host), "%.*s", (int)n, text);
	if (host[0] == '[' && n > 2 && host[n - 1] == ']') {
		host[n - 1] = 0;
		memmove(host, host + 1, n - 1);
	}
	rc = getaddrinfo(host, colon + 1, &hints, &found);
	if (rc)
		return tn_fail(-EINVAL, "address tcp:%s: %s", text, gai_strerror(rc));
	memcpy(&out->at, found->ai_addr, found->ai_addrlen);
	out->bytes = found->ai_addrlen;
	freeaddrinfo(found);
	return 0;
}

static int endpoint_of(const char *address, struct endpoint *out)
{
	*out = (struct endpoint){0};
	if (!strncmp(address, "unix:", 5))
		return unix_endpoint(address + 5, out);
	if (!strncmp(address, "tcp:", 4))
		return tcp_endpoint(address + 4, out);
	return tn_fail(-EINVAL, "address %s: unix:PATH or tcp:HOST:PORT is wanted", address);
}

/* The port that the kernel chose. */
static void write_address(const char *asked, int fd, char out[TN_XFER_ADDRESS_BYTES])
{
	struct sockaddr_storage at;
	socklen_t bytes = sizeof(at);
	const char *colon = strrchr(asked, ':');
	uint16_t port;

	if (strncmp(asked, "tcp:", 4) || getsockname(fd, (struct sockaddr *)&at, &bytes)) {
		snprintf(out, TN_XFER_ADDRESS_BYTES, "%s", asked);
		return;
	}
	port = at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port;
	if (colon == asked + 4)
		snprintf(out, TN_XFER_ADDRESS_BYTES, "tcp:127.0.0.1:%u", ntohs(port));
	else
		snprintf(out, TN_XFER_ADDRESS_BYTES, "%.*s:%u", (int)(colon - asked), asked, ntohs(port));
}

/* A socket file that an agent which died has left is taken over; one of an agent that lives is not. */
static void remove_leftover(const struct endpoint *at)
{
	const struct sockaddr_un *un = (const struct sockaddr_un *)&at->at;
	struct stat st;
	int fd;

	if (at->at.ss_family != AF_UNIX || !un->sun_path[0] || lstat(un->sun_path, &st) || !S_ISSOCK(st.st_mode))
		return;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&at->at, at->bytes) && errno == ECONNREFUSED)
		unlink(un->sun_path);
	if (fd >= 0)
		close(fd);
}

int tn_xfer_listen(const char *address, int *fd, char out[TN_XFER_ADDRESS_BYTES])
{
	struct endpoint at;
	int on = 1, s, rc = endpoint_of(address, &at);

	if (rc)
		return rc;
	if (strlen(address) + sizeof(":65535") > TN_XFER_ADDRESS_BYTES)
		return tn_fail(-EINVAL, "address %.40s...: at most %u bytes", address, TN_XFER_ADDRESS_BYTES);
	remove_leftover(&at);
	s = tn_above_streams(socket(at.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (s < 0)
		return tn_fail(-errno, "address %s: socket: %s", address, strerror(errno));
	if (at.at.ss_family != AF_UNIX)
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(s, (struct sockaddr *)&at.at, at.bytes) || listen(s, BACKLOG)) {
		rc = tn_fail(-errno, "address %s: %s", address, strerror(errno));
		close(s);
		return rc;
	}
	write_address(address, s, out);
	*fd = s;
	return 0;
}

bool tn_xfer_may_connect(int fd)
{
	struct ucred cred;
	socklen_t bytes = sizeof(cred);
	int domain = 0;
	socklen_t domain_bytes = sizeof(domain);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_bytes) || domain != AF_UNIX)
		return domain != AF_UNIX;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes))
		return false;
	return cred.uid == geteuid() || cred.uid == 0;
}

void tn_xfer_keep_alive(int fd)
{
	int on = 1, idle = KEEP_IDLE_S, interval = KEEP_INTERVAL_S, probes = KEEP_PROBES;

	/* They fail on Unix sockets, whose peers cannot go without a sign. */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* ---- blocking messages ------------------------------------------------------------------------------------------------- */

static int sleep_for(int fd, short events, uint64_t deadline_ns)
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

int tn_xfer_dial(const char *address, uint64_t deadline_ns, int *fd)
{
	struct endpoint at;
	int s, error = 0, rc = endpoint_of(address, &at);
	socklen_t bytes = sizeof(error);

	if (rc)
		return rc;
	s = tn_above_streams(socket(at.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (s < 0)
		return tn_fail(-errno, "address %s: socket: %s", address, strerror(errno));
	rc = connect(s, (struct sockaddr *)&at.at, at.bytes) ? -errno : 0;
	while (rc == -EAGAIN && tn_now_ns(&tn_clock_system) < deadline_ns) {
		/* A Unix socket whose backlog is full: nothing tells when it is not. */
		poll(NULL, 0, 1);
		rc = connect(s, (struct sockaddr *)&at.at, at.bytes) ? -errno : 0;
	}
	if (rc == -EAGAIN)
		rc = tn_fail(-ETIMEDOUT, "address %s: the other agent accepts no connection", address);
	else if (rc == -EINPROGRESS)
		rc = sleep_for(s, POLLOUT, deadline_ns);
	else if (rc)
		rc = tn_fail(rc == -ENOENT ? -ECONNREFUSED : rc, "address %s: %s", address, strerror(-rc));
	if (rc == 0 && getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error)
		rc = tn_fail(-error, "address %s: %s", address, strerror(error));
	if (rc) {
		close(s);
		return rc;
	}
	tn_xfer_keep_alive(s);
	*fd = s;
	return 0;
}

static int send_bytes(int fd, const void *from, size_t bytes, uint64_t deadline_ns)
{
	while (bytes) {
		ssize_t n = send(fd, from, bytes, MSG_NOSIGNAL);
		int rc = n < 0 && errno == EAGAIN ? sleep_for(fd, POLLOUT, deadline_ns) : 0;

		if (rc)
			return rc;
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return tn_fail(errno == EPIPE ? -ECONNRESET : -errno, "the other agent has closed the connection");
		if (n > 0) {
			from = (const char *)from + n;
			bytes -= (size_t)n;
		}
	}
	return 0;
}

int tn_xfer_receive_bytes(int fd, void *to, size_t bytes, uint64_t deadline_ns)
{
	while (bytes) {
		ssize_t n = recv(fd, to, bytes, 0);
		int rc = n < 0 && errno == EAGAIN ? sleep_for(fd, POLLIN, deadline_ns) : 0;

		if (rc)
			return rc;
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return tn_fail(-ECONNRESET, "the other agent has closed the connection");
		if (n > 0) {
			to = (char *)to + n;
			bytes -= (size_t)n;
		}
	}
	return 0;
}

int tn_xfer_send_all(int fd, uint32_t type, const void *body, uint32_t bytes, uint64_t deadline_ns)
{
	struct tn_xfer_message head = {type, bytes};
	int rc = send_bytes(fd, &head, sizeof(head), deadline_ns);

	return rc ? rc : send_bytes(fd, body, bytes, deadline_ns);
}

int tn_xfer_receive(int fd, struct tn_xfer_message *head, void *body, uint32_t max, uint64_t deadline_ns)
{
	int rc = tn_xfer_receive_bytes(fd, head, sizeof(*head), deadline_ns);

	if (rc)
		return rc;
	if (head->bytes > max)
		return tn_fail(-EMSGSIZE, "a message of type %u has %u bytes, at most %u are taken: no agent listens there", head->type, head->bytes, max);
	return tn_xfer_receive_bytes(fd, body, head->bytes, deadline_ns);
}

/* ---- handshake --------------------------------------------------------------------------------------------------------- */

int tn_xfer_shake_mac(const struct tn_xfer_shake *s, unsigned side, unsigned char out[TN_XFER_MAC_BYTES])
{
	unsigned char text[2 * (TN_XFER_NONCE_BYTES + TN_XFER_NAME_BYTES + 16) + 64];
	struct tn_xfer_writer w = {text, 0, sizeof(text)};

	tn_xfer_write_block(&w, side ? "tenuto-xfer listens" : "tenuto-xfer connects", side ? 19 : 20);
	for (unsigned i = 0; i < 2; i++) {
		tn_xfer_write(&w, s->nonce[i], TN_XFER_NONCE_BYTES);
		tn_xfer_write_u64(&w, s->generation[i]);
		tn_xfer_write_block(&w, s->name[i], (uint32_t)strlen(s->name[i]));
	}
	return tn_xfer_hmac(s->key, s->key_bytes, text, w.bytes, out);
}

static int refused(const unsigned char *body, uint32_t bytes)
{
	struct tn_xfer_reader r = {body, bytes, false};
	uint32_t code = tn_xfer_read_u32(&r);
	char text[TEXT_BYTES] = "it says no more";

	tn_xfer_read_text(&r, text, sizeof(text));
	if (code == 0 || code > 4095)
		code = EACCES;
	return tn_fail(-(int)code, "the other agent refuses the connection: %s", text);
}

static int read_challenge(struct tn_xfer_shake *s, const unsigned char *body, uint32_t bytes, unsigned char mac[TN_XFER_MAC_BYTES])
{
	struct tn_xfer_reader r = {body, bytes, false};
	uint64_t known = s->generation[1];
	char name[TN_XFER_NAME_BYTES];
	const unsigned char *nonce = tn_xfer_read(&r, TN_XFER_NONCE_BYTES), *theirs;

	s->generation[1] = tn_xfer_read_u64(&r);
	tn_xfer_read_text(&r, name, sizeof(name));
	theirs = tn_xfer_read(&r, TN_XFER_MAC_BYTES);
	if (r.broken || r.left)
		return tn_fail(-EPROTO, "a challenge of %u bytes: no agent of this version listens there", bytes);
	if (s->name[1][0] && strcmp(name, s->name[1]))
		return tn_fail(-ESTALE, "agent %s listens where agent %s did: load its metadata again", name, s->name[1]);
	if (known && known != s->generation[1])
		return tn_fail(-ESTALE, "agent %s was restarted: load its metadata again", name);
	memcpy(s->nonce[1], nonce, TN_XFER_NONCE_BYTES);
	memcpy(mac, theirs, TN_XFER_MAC_BYTES);
	memcpy(s->name[1], name, sizeof(name));
	return 0;
}

/* The next message, which must be of the type. */
static int expect(int fd, uint32_t type, unsigned char *body, uint32_t max, uint32_t *bytes, uint64_t deadline_ns)
{
	struct tn_xfer_message head;
	int rc = tn_xfer_receive(fd, &head, body, max, deadline_ns);

	if (rc)
		return rc;
	if (head.type == TN_XFER_REFUSED)
		return refused(body, head.bytes);
	if (head.type != type)
		return tn_fail(-EPROTO, "message %u in place of %u: no agent of this version listens there", head.type, type);
	*bytes = head.bytes;
	return 0;
}

int tn_xfer_shake_hands(int fd, struct tn_xfer_shake *s, uint64_t deadline_ns)
{
	unsigned char body[1024], theirs[TN_XFER_MAC_BYTES], mac[TN_XFER_MAC_BYTES];
	struct tn_xfer_writer w = {body, 0, sizeof(body)};
	uint32_t bytes;
	int rc = tn_rng_entropy(s->nonce[0], TN_XFER_NONCE_BYTES);

	if (rc)
		return tn_fail(rc, "no random numbers: %s", strerror(-rc));
	tn_xfer_write_u32(&w, TN_XFER_WIRE_VERSION);
	tn_xfer_write(&w, s->nonce[0], TN_XFER_NONCE_BYTES);
	tn_xfer_write_u64(&w, s->generation[0]);
	tn_xfer_write_block(&w, s->name[0], (uint32_t)strlen(s->name[0]));
	rc = tn_xfer_send_all(fd, TN_XFER_HELLO, body, (uint32_t)w.bytes, deadline_ns);
	if (rc == 0)
		rc = expect(fd, TN_XFER_CHALLENGE, body, sizeof(body), &bytes, deadline_ns);
	if (rc == 0)
		rc = read_challenge(s, body, bytes, theirs);
	if (rc == 0)
		rc = tn_xfer_shake_mac(s, 1, mac);
	if (rc == 0 && !tn_xfer_mac_equal(mac, theirs))
		rc = tn_fail(-EACCES, "agent %s has another secret", s->name[1]);
	if (rc == 0)
		rc = tn_xfer_shake_mac(s, 0, mac);
	if (rc == 0)
		rc = tn_xfer_send_all(fd, TN_XFER_PROOF, mac, sizeof(mac), deadline_ns);
	if (rc == 0)
		rc = expect(fd, TN_XFER_WELCOME, body, sizeof(body), &bytes, deadline_ns);
	if (rc == 0 && bytes != sizeof(s->revision))
		rc = tn_fail(-EPROTO, "a welcome of %u bytes: no agent of this version listens there", bytes);
	if (rc == 0)
		memcpy(&s->revision, body, sizeof(s->revision));
	return rc;
}
