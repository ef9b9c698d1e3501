/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto/ring.h in a kernel: an executor that takes IOCBs, looks at them and gives them back. Compiled only. */
#include <tenuto/ring.h>

__global__ void ring_executor(struct tn_ring_shared *ring, uint64_t *bytes)
{
	uint32_t id;

	while (tn_ring_take(ring, &id)) {
		struct tn_iocb *cb = tn_ring_iocb_of(ring, id);

		while (!tn_ring_may_start(ring, cb) && !tn_ring_load32(&cb->cancel))
			;
		for (uint32_t i = 0; i < cb->count; i++)
			*bytes += tn_ring_ioctx_of(ring, id)[i].length;
		cb->status = 0;
		cb->failed = TN_RING_NO_INDEX;
		cb->failures = 0;
		tn_ring_finish(ring, id);
	}
}
