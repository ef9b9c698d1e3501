/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks for other nodes' caches (setting `serve`, docs/remote.md), and the metrics of that. */
#ifndef TENUTOD_PEERS_H
#define TENUTOD_PEERS_H

#include <stdio.h>

#include <tenuto/peer.h>

#include "config.h"

/* Lets other nodes read blocks, if the settings say so: 0, and *out stays as it is if they do not; or -errno of tn_peer_serve. */
int peers_start(struct tn_cache *cache, const struct config *c, struct tn_peer_server **out);

/* The metrics of a server; NULL: none. */
void peers_print(struct tn_peer_server *server, FILE *out);

#endif
