/* SPDX-License-Identifier: Apache-2.0 */
/* What a remote counts: requests and their ends by kind, and how long the last ones took. Owner thread only. */
#ifndef TN_TIER_REMOTE_FIGURES_H
#define TN_TIER_REMOTE_FIGURES_H

#include <stdbool.h>
#include <tenuto/remote.h>

enum tn_remote_kind { TN_REMOTE_LOOKUP, TN_REMOTE_READ, TN_REMOTE_WRITE, TN_REMOTE_KINDS };

#define TN_REMOTE_TIMES 64u

struct tn_remote_figures {
	struct tn_remote_stats counts; /* without what is read off the store itself, and the medians */
	uint64_t ns[TN_REMOTE_KINDS][TN_REMOTE_TIMES];
	uint32_t times[TN_REMOTE_KINDS]; /* that there ever were: the oldest make room */
	uint64_t latency_ns;		 /* exponentially weighted mean of look-ups, which bring next to no bytes; 0: there was none */
};

void tn_remote_asked(struct tn_remote_figures *f, enum tn_remote_kind kind);
/* A request ended after so long, not because nobody wanted it any more. bytes: of a block that came or went. */
void tn_remote_ended(struct tn_remote_figures *f, enum tn_remote_kind kind, int status, uint64_t bytes, uint64_t ns);
/* The counts, with the medians. */
void tn_remote_figures_read(const struct tn_remote_figures *f, struct tn_remote_stats *out);

#endif
