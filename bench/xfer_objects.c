/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer_objects.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

#define PATIENCE_NS 120000000000ull

static int register_one(struct tn_xfer_agent *agent, uint64_t block, uint64_t i, uint64_t device)
{
	char key[80];
	struct tn_xfer_section s = {.bytes = block, .device = device, .meta = key};

	snprintf(key, sizeof(key), "tenuto-bench/%" PRIu64 "/%" PRIu64, block, i);
	return tn_xfer_register(agent, TN_XFER_OBJECT, &s, 1);
}

int xfer_objects_list(struct tn_xfer_agent *agent, uint64_t block, uint64_t n, uint64_t *devices, struct tn_xfer_list **out)
{
	struct tn_xfer_run *run = calloc(n, sizeof(*run));
	int rc = run ? 0 : -ENOMEM;

	for (uint64_t i = 0; i < n && rc == 0; i++) {
		run[i] = (struct tn_xfer_run){.bytes = block, .device = ++*devices, .count = 1};
		rc = register_one(agent, block, i, *devices);
	}
	if (rc == 0)
		rc = tn_xfer_list_create(agent, NULL, TN_XFER_OBJECT, run, (uint32_t)n, out);
	free(run);
	return rc;
}

int xfer_objects_move(struct tn_xfer_agent *agent, const char *backend, enum tn_xfer_op op, const void *memory, uint64_t block, const uint32_t *index,
		      struct tn_xfer_list *objects)
{
	uint64_t n = tn_xfer_list_count(objects);
	struct tn_xfer_run *run = calloc(n, sizeof(*run));
	struct tn_xfer_request *q = NULL;
	struct tn_xfer_list *list = NULL;
	struct tn_xfer_request_opts opts;
	int rc = run ? 0 : -ENOMEM;

	tn_xfer_request_opts_init(&opts);
	opts.backends = &backend;
	opts.nbackends = 1;
	for (uint64_t i = 0; i < n && rc == 0; i++)
		run[i] = (struct tn_xfer_run){.address = (uintptr_t)memory + index[i] * block, .bytes = block, .count = 1};
	if (rc == 0)
		rc = tn_xfer_list_create(agent, NULL, TN_XFER_DRAM, run, (uint32_t)n, &list);
	if (rc == 0)
		rc = tn_xfer_request_create(agent, op, list, NULL, objects, NULL, 0, &opts, &q);
	if (rc == 0)
		rc = tn_xfer_post(q, cli_now_ns() + PATIENCE_NS, NULL, TN_XFER_NO_NOTIFICATION);
	if (rc == 0)
		rc = tn_xfer_wait(q, TN_FOREVER);
	tn_xfer_cancel(q, cli_now_ns() + PATIENCE_NS);
	tn_xfer_release(q);
	tn_xfer_list_destroy(list);
	free(run);
	return rc;
}
