/* SPDX-License-Identifier: Apache-2.0 */
/* What goes to a server of the Redis protocol, and what its errors mean. Pure. */
#ifndef TN_PLUGIN_REDIS_COMMAND_H
#define TN_PLUGIN_REDIS_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../object/object.h"

/* Most bytes of a key; the protocol has no limit that matters. */
#define REDIS_KEY_MAX 1024u
/* Most bytes of a value (proto-max-bulk-len). */
#define REDIS_VALUE_MAX (UINT64_C(512) << 20)
#define REDIS_SLOTS 16384u
#define REDIS_HOST_BYTES 256u
#define REDIS_HEAD_BYTES (REDIS_KEY_MAX + 128u)
#define REDIS_TAIL_BYTES 64u

/* The command of a transfer: head, then the bytes of a write, then tail. */
struct redis_command {
	char head[REDIS_HEAD_BYTES], tail[REDIS_TAIL_BYTES];
	size_t head_bytes, tail_bytes;
};

/* ttl_s: of what is written; 0: for ever. */
void redis_command_set(struct redis_command *c, const struct object_transfer *t, uint32_t ttl_s);

/* AUTH and SELECT of a new connection, for out[bytes]: how long they are, 0: they do not fit. *replies: how many answers they have. */
size_t redis_hello(const char *user, const char *password, uint32_t db, char *out, size_t bytes, uint32_t *replies);

/* The cluster's slot of a key: CRC16 (XMODEM) of the key, or of what stands between its first braces. */
uint32_t redis_slot(const char *key);

enum redis_verdict {
	REDIS_FAILED, /* the code is final */
	REDIS_AGAIN,  /* it may pass */
	REDIS_MOVED,  /* the slot is at host:port, from now on */
	REDIS_ASK,    /* ask host:port this time */
};

struct redis_error {
	enum redis_verdict verdict;
	int code;
	uint32_t slot;
	char host[REDIS_HOST_BYTES]; /* "": the host that was asked */
	uint32_t port;
};

/* What an error reply means. */
void redis_error_read(const char *text, struct redis_error *out);

#endif
