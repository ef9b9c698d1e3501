/* SPDX-License-Identifier: Apache-2.0 */
/* Which backend moves a request, and why, in words. */
#ifndef TN_XFER_CHOICE_H
#define TN_XFER_CHOICE_H

#include "xfer/agent.h"

#define TN_XFER_EXPLAIN_BYTES 1024u

/* What the choice depends on. */
struct tn_xfer_wish {
	enum tn_xfer_op op;
	enum tn_xfer_segment local, remote;
	const struct tn_xfer_peer *peer; /* connected; NULL: the agent itself */
	uint32_t local_backends, remote_backends; /* bits of those that have all sections of a side */
	uint64_t bytes;
	const struct tn_xfer_request_opts *opts;
};

/* With the agent's lock: *backend, *estimate_ns and a text; or -EINVAL, -ENOTSUP, and the text is the detail. */
int tn_xfer_choose(struct tn_xfer_agent *a, const struct tn_xfer_wish *wish, uint32_t *backend, uint64_t *estimate_ns, char text[TN_XFER_EXPLAIN_BYTES]);

#endif
