/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin: a backend of the transfer agent, which copies within one process. Built from the installed headers alone, without the library:
 *
 *     cc -shared -fPIC $(pkg-config --cflags tenuto) plugin_xfer.c -o libtenuto_copy.so
 *     TENUTO_PLUGIN_PATH=$PWD tenuto bench xfer --backend copy --check
 *
 * A transfer is over when post returns, so that there is nothing to cancel.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tenuto/plugin.h>
#include <tenuto/xfer_backend.h>

/* Of each thread, for error. */
static _Thread_local char text[128];

static int create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	if (n) {
		snprintf(text, sizeof(text), "backend copy: %.60s is no parameter of it: it has none", params[0].key);
		return -EINVAL;
	}
	*out = NULL;
	return 0;
}

static void destroy(void *backend)
{
	(void)backend;
}

static int can(void *backend, enum tn_xfer_op op, enum tn_xfer_segment local, enum tn_xfer_segment remote, bool peer)
{
	(void)backend, (void)op;
	if (local == TN_XFER_DRAM && remote == TN_XFER_DRAM && !peer)
		return 0;
	snprintf(text, sizeof(text), "it copies memory of one process");
	return -ENOTSUP;
}

static void estimate(void *backend, bool peer, struct tn_xfer_cost *out)
{
	(void)backend, (void)peer;
	*out = (struct tn_xfer_cost){.latency_ns = 200, .bytes_per_s = 5000000000u};
}

static void post(void *backend, struct tn_xfer_job *job)
{
	(void)backend;
	for (uint32_t i = 0; i < job->npieces; i++) {
		struct tn_xfer_piece *p = &job->piece[i];
		void *local = (void *)(uintptr_t)p->local, *remote = (void *)(uintptr_t)p->remote;

		if (job->op == TN_XFER_READ)
			memmove(local, remote, p->bytes);
		else
			memmove(remote, local, p->bytes);
		tn_xfer_piece_end(p, p->bytes, 0);
	}
	job->ended(job);
}

static const char *last_error(void)
{
	return text;
}

static const struct tn_xfer_backend_ops ops = {
	.size = sizeof(ops),
	.abi = TN_XFER_BACKEND_ABI,
	.segments = 1u << TN_XFER_DRAM,
	.name = "copy",
	.create = create,
	.destroy = destroy,
	.can = can,
	.cost = estimate,
	.post = post,
	.error = last_error,
};

const struct tn_plugin tn_plugin = {
	.size = sizeof(tn_plugin),
	.abi = TN_PLUGIN_ABI,
	.kind = TN_PLUGIN_XFER,
	.name = "copy",
	.built_for = TN_PLUGIN_BUILT_FOR,
	.table = &ops,
};
