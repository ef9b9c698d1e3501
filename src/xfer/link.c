/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/link.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "xfer/codec.h"

#define TEXT_BYTES 256u

/* ---- blocking messages ------------------------------------------------------------------------------------------------- */

static int send_bytes(int fd, const void *from, size_t bytes, uint64_t deadline_ns)
{
	while (bytes) {
		ssize_t n = send(fd, from, bytes, MSG_NOSIGNAL);
		int rc = n < 0 && errno == EAGAIN ? tn_xfer_socket_wait(fd, POLLOUT, deadline_ns) : 0;

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
		int rc = n < 0 && errno == EAGAIN ? tn_xfer_socket_wait(fd, POLLIN, deadline_ns) : 0;

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

/* ---- the listening side ------------------------------------------------------------------------------------------------ */

int tn_xfer_shake_hello(struct tn_xfer_shake *s, const unsigned char *in, uint32_t bytes)
{
	struct tn_xfer_reader r = {in, bytes, false};
	uint32_t version = tn_xfer_read_u32(&r);
	const unsigned char *nonce = tn_xfer_read(&r, TN_XFER_NONCE_BYTES);

	s->generation[0] = tn_xfer_read_u64(&r);
	tn_xfer_read_text(&r, s->name[0], sizeof(s->name[0]));
	if (version != TN_XFER_WIRE_VERSION)
		return -EPROTONOSUPPORT;
	if (r.broken || r.left || !s->name[0][0])
		return -EPROTO;
	memcpy(s->nonce[0], nonce, TN_XFER_NONCE_BYTES);
	return 0;
}

int tn_xfer_shake_challenge(struct tn_xfer_shake *s, unsigned char body[TN_XFER_CHALLENGE_MAX])
{
	struct tn_xfer_writer w = {body, 0, TN_XFER_CHALLENGE_MAX};
	unsigned char mac[TN_XFER_MAC_BYTES];

	if (tn_rng_entropy(s->nonce[1], TN_XFER_NONCE_BYTES) || tn_xfer_shake_mac(s, 1, mac))
		return -ENOTSUP;
	tn_xfer_write(&w, s->nonce[1], TN_XFER_NONCE_BYTES);
	tn_xfer_write_u64(&w, s->generation[1]);
	tn_xfer_write_block(&w, s->name[1], (uint32_t)strlen(s->name[1]));
	tn_xfer_write(&w, mac, sizeof(mac));
	return (int)w.bytes;
}

bool tn_xfer_shake_proves(const struct tn_xfer_shake *s, const unsigned char *in, uint32_t bytes)
{
	unsigned char mac[TN_XFER_MAC_BYTES];

	return bytes == sizeof(mac) && tn_xfer_shake_mac(s, 0, mac) == 0 && tn_xfer_mac_equal(mac, in);
}

static int refuse(int fd, int rc, const char *text, uint64_t deadline_ns)
{
	unsigned char body[TEXT_BYTES];
	struct tn_xfer_writer w = {body, 0, sizeof(body)};

	tn_xfer_write_u32(&w, (uint32_t)-rc);
	tn_xfer_write_block(&w, text, (uint32_t)strlen(text));
	tn_xfer_send_all(fd, TN_XFER_REFUSED, body, (uint32_t)w.bytes, deadline_ns);
	return tn_fail(rc, "%s", text);
}

int tn_xfer_shake_answer(int fd, struct tn_xfer_shake *s, uint64_t deadline_ns)
{
	unsigned char body[TN_XFER_CHALLENGE_MAX];
	uint32_t bytes;
	int rc = expect(fd, TN_XFER_HELLO, body, sizeof(body), &bytes, deadline_ns);

	rc = rc ? rc : tn_xfer_shake_hello(s, body, bytes);
	if (rc == -EPROTONOSUPPORT)
		return refuse(fd, rc, "it speaks another version of the protocol", deadline_ns);
	if (rc)
		return rc;
	rc = tn_xfer_shake_challenge(s, body);
	if (rc < 0)
		return refuse(fd, rc, "the library for HMAC-SHA256 is missing (libcrypto.so.3)", deadline_ns);
	rc = tn_xfer_send_all(fd, TN_XFER_CHALLENGE, body, (uint32_t)rc, deadline_ns);
	rc = rc ? rc : expect(fd, TN_XFER_PROOF, body, sizeof(body), &bytes, deadline_ns);
	if (rc)
		return rc;
	if (!tn_xfer_shake_proves(s, body, bytes))
		return refuse(fd, -EACCES, "it has another secret", deadline_ns);
	return tn_xfer_send_all(fd, TN_XFER_WELCOME, &s->revision, sizeof(s->revision), deadline_ns);
}
