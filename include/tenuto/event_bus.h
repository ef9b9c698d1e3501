/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How block events leave a process and reach others: a const table of functions, in a plugin of kind TN_PLUGIN_EVENT_BUS (tenuto/plugin.h).
 *
 * A bus has two ends. The publishing end sends batches with rising numbers, keeps the last ones, and sends them again to who asks. The
 * following end receives batches, and asks for old ones or for a snapshot. What is sent on the wire is the bus's own affair: docs/events.md
 * says it for ZMQ.
 *
 * Threads: one for each end. Errors are -errno, and error says them in words.
 */
#ifndef TENUTO_EVENT_BUS_H
#define TENUTO_EVENT_BUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tenuto/xfer_backend.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_EVENT_BUS_ABI 1u
/** Most bytes of a block's hash. */
#define TN_BUS_HASH_BYTES 32u

/** What became of a block, or of all: enum tn_bus_event.kind */
enum tn_bus_event_kind { TN_BUS_STORED, TN_BUS_REMOVED, TN_BUS_CLEARED };

/**
 * struct tn_bus_event - a block arrived in a tier, or left it
 * @kind:         enum tn_bus_event_kind
 * @tier:         enum tn_tier
 * @hash_bytes:   of @hash; 8: a big-endian integer
 * @parent_bytes: of @parent; 0: the block begins a prompt, or that is not known
 * @group:        KV cache group of the engine
 * @block_tokens: tokens of the block; 0: not known
 * @ntokens:      of @token_ids, 0 or @block_tokens
 */
struct tn_bus_event {
	uint8_t kind;
	uint8_t tier;
	uint8_t hash_bytes;
	uint8_t parent_bytes;
	uint32_t group;
	uint32_t block_tokens;
	uint32_t ntokens;
	const uint32_t *token_ids;
	unsigned char hash[TN_BUS_HASH_BYTES];
	unsigned char parent[TN_BUS_HASH_BYTES];
};

/** What a follower received. */
enum tn_bus_message_kind {
	TN_BUS_NOTHING,	  /**< the time is over */
	TN_BUS_CONNECTED, /**< a publisher is there, for the first time or again: what it said meanwhile is lost */
	TN_BUS_LOST,	  /**< the publisher is gone; it may come back */
	TN_BUS_LIVE,	  /**< a batch */
	TN_BUS_ANSWER,	  /**< a batch that was asked for */
	TN_BUS_END,	  /**< the end of what was asked for */
	TN_BUS_BUSY,	  /**< too many ask at this moment */
};

/**
 * struct tn_bus_message - what a follower received
 * @kind:     enum tn_bus_message_kind
 * @sequence: of a batch. Of a part of a snapshot: the next batch after the snapshot
 * @events:   @n of them, until the next call
 */
struct tn_bus_message {
	uint32_t kind;
	uint32_t n;
	uint64_t sequence;
	const struct tn_bus_event *events;
};

/** Of ask: a snapshot in the place of a sequence. */
#define TN_BUS_SNAPSHOT UINT64_MAX

/**
 * struct tn_event_bus_ops - a bus
 * @size: sizeof(struct tn_event_bus_ops)
 * @abi:  TN_EVENT_BUS_ABI
 * @name: the plugin's
 *
 * @publisher_create:  0 and *out; -EINVAL: a parameter; -EADDRINUSE, -EACCES, ...: the address
 * @publisher_destroy: what is still queued is lost
 * @publish:           sends a batch, of @n events or none. Never waits: who does not read fast enough misses it. Bytes of the batch, or -ENOMEM
 * @serve:             answers who asks for old batches, for @timeout_ms at most. 1 and *client: that one asks for a snapshot; 0
 * @answer:            a part of a snapshot; @last: the end follows. @events NULL: none now, ask again. 0; -EAGAIN: later; -ENOENT: the client is gone; -ENOMEM
 * @follower_create:   0 and *out; -EINVAL. Waits for nobody
 * @follower_destroy:  or NULL
 * @ask:               for batches from a sequence on, or TN_BUS_SNAPSHOT. Answers of an earlier question are dropped. 0; -ENOTSUP: there is no address
 *                     for questions; -EAGAIN
 * @receive:           @answers: only what belongs to a question, while live batches wait; also TN_BUS_LOST. Waits @timeout_ms at most. 0; -EBADMSG: a
 *                     message that is no batch, which was dropped
 * @error:             why the last call of this thread that failed has failed
 */
struct tn_event_bus_ops {
	size_t size;
	uint32_t abi;
	uint32_t reserved;
	const char *name;
	int (*publisher_create)(const struct tn_xfer_param *params, uint32_t n, void **out);
	void (*publisher_destroy)(void *publisher);
	long (*publish)(void *publisher, uint64_t sequence, double seconds, const struct tn_bus_event *events, uint32_t n);
	int (*serve)(void *publisher, int timeout_ms, uint64_t *client);
	int (*answer)(void *publisher, uint64_t client, uint64_t sequence, const struct tn_bus_event *events, uint32_t n, bool last);
	int (*follower_create)(const struct tn_xfer_param *params, uint32_t n, void **out);
	void (*follower_destroy)(void *follower);
	int (*ask)(void *follower, uint64_t sequence);
	int (*receive)(void *follower, bool answers, int timeout_ms, struct tn_bus_message *out);
	const char *(*error)(void);
};

#ifdef __cplusplus
}
#endif
#endif
