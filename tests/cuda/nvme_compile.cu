/* SPDX-License-Identifier: Apache-2.0 */
/* nvme/queue.h in a kernel: a lane that reads pieces of memory through a pair of queues of its own. Compiled only. */
#include "nvme/queue.h"

__global__ void nvme_lane(struct tn_nvme_queue *queue, const struct tn_nvme_piece *piece, uint32_t n, struct tn_nvme_list list, int sgl,
			  uint32_t *failed)
{
	struct tn_nvme_command c = tn_nvme_transfer(TN_NVME_READ, 1, 0, 8);
	struct tn_nvme_completion done;
	uint32_t id = tn_nvme_queue_id(queue);

	if (id == TN_NVME_NO_ID)
		return;
	if (sgl ? tn_nvme_set_sgl(&c, piece, n, &list) : tn_nvme_set_prps(&c, piece, n, &list))
		return;
	c.id = (uint16_t)id;
	tn_nvme_queue_put(queue, &c);
	tn_nvme_queue_ring(queue);
	while (!tn_nvme_queue_poll(queue, &done))
		;
	tn_nvme_queue_took(queue);
	tn_nvme_queue_give(queue, done.id);
	if (tn_nvme_status(&done))
		++*failed;
}
