/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptor lists between pools: what tn_pool_map finds, as runs of either side. */
#include <errno.h>
#include <tenuto/xfer.h>

#include "base/alloc.h"
#include "base/error.h"

int64_t tn_xfer_layout_map(const struct tn_pool_share *mine, const struct tn_pool_share *theirs, const struct tn_pool_pages *pages,
			   struct tn_xfer_run *local, struct tn_xfer_run *remote, uint32_t max)
{
	struct tn_pool_run *run;
	int64_t n = tn_pool_map(mine, theirs, pages, NULL, 0);
	size_t bytes;

	if (n <= 0)
		return n;
	if (n > TN_XFER_DESCRIPTORS_MAX)
		return tn_fail(-E2BIG, "%lld runs: a list has at most %u descriptors, move fewer pages at a time", (long long)n, TN_XFER_DESCRIPTORS_MAX);
	if (n > max)
		return n;
	if (!local || !remote)
		return tn_fail(-EINVAL, "local %p, remote %p: arrays for %u runs are wanted", (void *)local, (void *)remote, max);
	bytes = tn_array_bytes((size_t)n, sizeof(*run));
	run = tn_get(&tn_alloc_system, bytes);
	if (!run)
		return tn_fail(-ENOMEM, "no memory for %lld runs", (long long)n);
	n = tn_pool_map(mine, theirs, pages, run, (size_t)n);
	for (int64_t i = 0; i < n; i++) {
		local[i] = (struct tn_xfer_run){run[i].mine, run[i].bytes, mine->device, run[i].mine_stride, run[i].count};
		remote[i] = (struct tn_xfer_run){run[i].theirs, run[i].bytes, theirs->device, run[i].theirs_stride, run[i].count};
	}
	tn_put(&tn_alloc_system, run, bytes);
	return n;
}
