/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes that are attached to a cache, as its status shows them, and what those have counted that have left: histograms of latencies
 * lie in each session's region, and the sum of all of them never falls.
 */
#ifndef TN_FRONT_PEERS_H
#define TN_FRONT_PEERS_H

#include "core/core.h"
#include "region/latency.h"

/* A process that is attached. */
struct tn_peer {
	struct tn_list link;
	const struct tn_session *session;
	const uint32_t *calls; /* shared: that wait */
	uint32_t pid;
	uint64_t since_ns;
	bool joined;
	struct tn_region_histogram seen[TN_REGION_HISTOGRAMS]; /* by number */
};

struct tn_peers;

/* 0, -ENOMEM. */
int tn_peers_create(const struct tn_alloc *alloc, struct tn_peers **out);
/* When none is attached any more. */
void tn_peers_destroy(struct tn_peers *peers, const struct tn_alloc *alloc);

/* Of a peer whose members but for link, joined and seen are set. Before its session and region go, it leaves. */
void tn_peers_join(struct tn_peers *peers, struct tn_peer *peer);
void tn_peers_leave(struct tn_peers *peers, struct tn_peer *peer);

/* Any thread. Adds to *out what all processes have counted that are attached, or were. */
void tn_peers_latency(struct tn_peers *peers, uint32_t number, struct tn_latency *out);
/* Attached now, and since the beginning. */
void tn_peers_count(struct tn_peers *peers, uint32_t *now, uint64_t *total);
/* tn_session_describe of an attached process, with what is known of it here. Waits for the owner thread. 0, -ENOENT. */
int tn_peers_describe(struct tn_peers *peers, struct tn_cache *cache, const struct tn_session_view *view);

#endif
