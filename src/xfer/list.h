/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptor lists: runs, each with the section that it lies in, and the index of its first descriptor. */
#ifndef TN_XFER_LIST_H
#define TN_XFER_LIST_H

#include "xfer/agent.h"

struct tn_xfer_list_run {
	uint64_t address;
	uint64_t bytes;
	uint64_t stride;
	uint64_t first; /* index of its first descriptor */
	struct tn_xfer_sec *sec;
};

struct tn_xfer_list {
	struct tn_xfer_agent *agent;
	struct tn_xfer_peer *peer; /* NULL: the agent's own */
	uint32_t segment;
	uint32_t nruns;
	uint64_t count;
	struct tn_xfer_list_run run[]; /* and one more, whose first is count */
};

/* The run of descriptor i; *hint: the run that was found last. */
static inline const struct tn_xfer_list_run *tn_xfer_list_find(const struct tn_xfer_list *l, uint64_t i, uint32_t *hint)
{
	uint32_t low = 0, high = l->nruns;

	if (i >= l->run[*hint].first && i < l->run[*hint + 1].first)
		return &l->run[*hint];
	if (*hint + 1 < l->nruns && i >= l->run[*hint + 1].first && i < l->run[*hint + 2].first)
		return &l->run[++*hint];
	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;

		if (l->run[mid].first <= i)
			low = mid;
		else
			high = mid;
	}
	*hint = low;
	return &l->run[low];
}

static inline uint64_t tn_xfer_list_address(const struct tn_xfer_list_run *r, uint64_t i)
{
	return r->address + (i - r->first) * r->stride;
}

#endif
