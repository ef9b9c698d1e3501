/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that a peer of the same machine has put into its window: they are copied from there by the transfer agent, which maps it. It is not open if the
 * peer is elsewhere, or cannot be reached so.
 *
 * The peer's thread only.
 */
#ifndef TN_TIER_REMOTE_PEER_WINDOW_H
#define TN_TIER_REMOTE_PEER_WINDOW_H

#include <tenuto/xfer.h>

#include "base/hash.h"
#include "tier/remote/client.h"

struct tn_peer_window {
	struct tn_xfer_agent *agent; /* NULL: there can be none */
	char peer[TN_XFER_NAME_BYTES];
	bool open;
};

void tn_peer_window_init(struct tn_peer_window *w, const struct tn_secret *secret);
void tn_peer_window_close(struct tn_peer_window *w);
/* The metadata of the peer's agent; opens the window if it can be used. */
void tn_peer_window_join(struct tn_peer_window *w, const void *metadata, size_t bytes);
/* Metadata of a section that is new. */
void tn_peer_window_add(struct tn_peer_window *w, const void *metadata, size_t bytes);
/* The connection is gone. */
void tn_peer_window_leave(struct tn_peer_window *w);
/* Copies the parts of t from the address on. 0, or -errno; the window is not open any more if it cannot be used at all. *stop: other than 0 ends it. */
int tn_peer_window_read(struct tn_peer_window *w, const struct tn_object_transfer *t, uint64_t address, const uint32_t *stop);

#endif
