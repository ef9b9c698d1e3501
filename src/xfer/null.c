/* SPDX-License-Identifier: Apache-2.0 */
/* The null backend: says that every byte was moved, and moves none. What is measured with it is the agent's own cost. */
#include <errno.h>

#include "base/error.h"
#include "xfer/backends.h"

static int null_create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	if (n)
		return tn_fail(-EINVAL, "backend null: %s is no parameter of it: it has none", params[0].key);
	*out = NULL;
	return 0;
}

static void null_destroy(void *backend)
{
}

static int null_can(void *backend, enum tn_xfer_op op, enum tn_xfer_segment local, enum tn_xfer_segment remote, bool peer)
{
	return peer ? tn_fail(-ENOTSUP, "it has no peers") : 0;
}

static void null_cost(void *backend, bool peer, struct tn_xfer_cost *out)
{
	*out = (struct tn_xfer_cost){1000000000, 1}; /* nobody chooses it who has not named it */
}

static void null_post(void *backend, struct tn_xfer_job *job)
{
	for (uint32_t i = 0; i < job->npieces; i++)
		tn_xfer_piece_end(&job->piece[i], job->piece[i].bytes, 0);
	job->ended(job);
}

const struct tn_xfer_backend_ops tn_xfer_null_ops = {
	.size = sizeof(struct tn_xfer_backend_ops),
	.abi = TN_XFER_BACKEND_ABI,
	.segments = (1u << TN_XFER_SEGMENTS) - 1,
	.name = "null",
	.create = null_create,
	.destroy = null_destroy,
	.can = null_can,
	.cost = null_cost,
	.post = null_post,
};
