/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What agents say to each other: framed messages, and the handshake.
 *
 * Who connects sends requests on the connection: notifications, and the question for metadata. Who listens answers, and revokes sections. Handshake:
 *
 *   connecting agent                          listening agent
 *   HELLO: version, nonce, name, generation ->
 *                                          <- CHALLENGE: nonce, generation, name, HMAC over both nonces and both names
 *   PROOF: HMAC over the same, other label  ->
 *                                          <- WELCOME: revision; what is revoked from then on is told
 *
 * REFUSED with an errno and a text may come in place of either answer. No message has more bytes than TN_XFER_MESSAGE_MAX, but for METADATA, which only the
 * connecting agent takes, and only when it has asked for it. Once both have proved that they know the key, messages are believed.
 */
#ifndef TN_XFER_LINK_H
#define TN_XFER_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <tenuto/xfer.h>

#include "xfer/address.h"
#include "xfer/hmac.h"

#define TN_XFER_WIRE_VERSION 1u
#define TN_XFER_NONCE_BYTES 32u
#define TN_XFER_SECRET_MAX 256u
#define TN_XFER_MESSAGE_MAX (TN_XFER_NOTIFICATION_MAX + 1024u)
#define TN_XFER_REVOKE_IDS 4096u /* of one message */

enum tn_xfer_message_type {
	TN_XFER_HELLO = 1,
	TN_XFER_CHALLENGE,
	TN_XFER_PROOF,
	TN_XFER_WELCOME,
	TN_XFER_REFUSED,
	TN_XFER_NOTIFY,
	TN_XFER_FETCH,
	TN_XFER_METADATA,
	TN_XFER_REVOKE,	 /* u64 serial, then ids; 0: more of the same serial follow */
	TN_XFER_REVOKED, /* u64 serial: none of the sections up to it is used */
	TN_XFER_SHARE,	 /* u64 id of a section whose file is wanted (shared.h) */
	TN_XFER_SHARED,
	TN_XFER_FETCH_STATS,
	TN_XFER_STATISTICS, /* lines "NAME VALUE" */
};

struct tn_xfer_message {
	uint32_t type;
	uint32_t bytes; /* that follow */
};

/* What a handshake is about. */
struct tn_xfer_shake {
	unsigned char key[TN_XFER_SECRET_MAX];
	size_t key_bytes;
	unsigned char nonce[2][TN_XFER_NONCE_BYTES]; /* of who connects, of who listens */
	char name[2][TN_XFER_NAME_BYTES];
	uint64_t generation[2];
	uint64_t revision; /* of who listens */
};

/* The MAC of one side (0: who connects, 1: who listens). 0, or -errno with detail. */
int tn_xfer_shake_mac(const struct tn_xfer_shake *s, unsigned side, unsigned char out[TN_XFER_MAC_BYTES]);

#define TN_XFER_CHALLENGE_MAX 512u
/* For who listens, of a HELLO: who connects. 0; -EPROTONOSUPPORT: another version; -EPROTO: it is none. */
int tn_xfer_shake_hello(struct tn_xfer_shake *s, const unsigned char *in, uint32_t bytes);
/* The CHALLENGE to it, for which key, name and generation of who listens are there: how many bytes, or -ENOTSUP: no random numbers, or no HMAC. */
int tn_xfer_shake_challenge(struct tn_xfer_shake *s, unsigned char body[TN_XFER_CHALLENGE_MAX]);
/* Whether a PROOF shows that who connects has the key. */
bool tn_xfer_shake_proves(const struct tn_xfer_shake *s, const unsigned char *in, uint32_t bytes);

/* Blocking, for who connects: until the deadline. 0, or -errno with detail. */
int tn_xfer_send_all(int fd, uint32_t type, const void *body, uint32_t bytes, uint64_t deadline_ns);
/* The next message: its head, and at most max bytes of body, else -EMSGSIZE. */
int tn_xfer_receive(int fd, struct tn_xfer_message *head, void *body, uint32_t max, uint64_t deadline_ns);
int tn_xfer_receive_bytes(int fd, void *to, size_t bytes, uint64_t deadline_ns);
/*
 * The handshake of who connects: s has the key, its own name and generation, and of the other side what is known: name "" and generation 0: anyone's.
 * 0; -ESTALE: another generation listens there; -EACCES: the keys differ; or -errno.
 */
int tn_xfer_shake_hands(int fd, struct tn_xfer_shake *s, uint64_t deadline_ns);
/* The same of who listens: s has its key, name and generation. 0; -EACCES: the keys differ, and the other side is told so; or -errno. With detail. */
int tn_xfer_shake_answer(int fd, struct tn_xfer_shake *s, uint64_t deadline_ns);

#endif
