/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto/ring.h in a kernel: an executor that takes IOCBs, looks at them and gives them back. Compiled only. */
#include <tenuto/ring.h>

__global__ void ring_executor(struct tn_ring_view ring, uint64_t *bytes)
{
	uint32_t id;

	while (tn_ring_take(&ring, &id)) {
		const struct tn_iocb *cb = tn_ring_iocb_of(&ring, id);
		struct tn_iocb_result *res = tn_ring_result_of(&ring, id);
		uint32_t count = cb->count < ring.ioctxs ? cb->count : ring.ioctxs;
		uint32_t event = cb->after_event < ring.events ? cb->after_event : TN_RING_NO_EVENT;

		tn_ring_begin(&ring, id, count, cb->sequence);
		while (!tn_ring_may_start(&ring, event, cb->after_value) && !tn_ring_load32(&cb->cancel))
			;
		for (uint32_t i = 0; i < count; i++) {
			const struct tn_ioctx *x = &tn_ring_ioctx_of(&ring, id)[i];

			*bytes += x->length;
			tn_ring_sums_of(&ring, id)[i] = tn_ioctx_disk(tn_ioctx_device(x->place), tn_ioctx_page(x->place));
			tn_ring_store32((uint32_t *)&tn_ring_statuses_of(&ring, id)[i], 0);
		}
		tn_ring_store32(&res->ended, count);
		res->status = 0;
		res->failed = TN_RING_NO_INDEX;
		res->failures = 0;
		tn_ring_finish(&ring, id);
	}
}
