/* SPDX-License-Identifier: Apache-2.0 */
/* nvme/queue.h in kernels: a lane that reads pieces of memory through a pair of queues of its own, and one that makes that pair. Compiled only. */
#include "nvme/queue.h"

/* A timeout of 0: the controller has no I/O commands, or larger pages than ours. */
__global__ void nvme_pair(struct tn_nvme_queue *queue, uint64_t cap, unsigned char *registers, uint32_t number, uint64_t *timeout_ns)
{
	uint32_t most = tn_nvme_cap_entries(cap), stride = tn_nvme_cap_stride(cap);

	*timeout_ns = tn_nvme_cap_nvm(cap) && (1u << tn_nvme_cap_page_shift(cap)) <= TN_NVME_PAGE ? tn_nvme_cap_timeout_ns(cap) : 0;
	queue->entries = most < queue->entries ? most : queue->entries;
	queue->sq_bell = (uint32_t *)(registers + tn_nvme_doorbell(cap, number, 0));
	queue->cq_bell = (uint32_t *)(registers + tn_nvme_doorbell(cap, number, 0) + stride);
	tn_nvme_queue_init(queue);
}

static __device__ uint32_t finish(struct tn_nvme_queue *queue, uint32_t id)
{
	struct tn_nvme_completion done;

	tn_nvme_queue_ring(queue);
	while (!tn_nvme_queue_poll(queue, &done) || tn_nvme_queue_index(queue, done.id) != tn_nvme_queue_index(queue, id))
		;
	tn_nvme_queue_took(queue);
	tn_nvme_queue_give(queue, done.id);
	return tn_nvme_status(&done);
}

__global__ void nvme_lane(struct tn_nvme_queue *queue, const struct tn_nvme_piece *piece, uint32_t n, struct tn_nvme_list list, int sgl, int listed,
			  uint32_t *failed)
{
	struct tn_nvme_command c = tn_nvme_transfer(TN_NVME_READ, 1, 0, 8);
	uint32_t id = tn_nvme_queue_id(queue);

	if (id == TN_NVME_NO_ID)
		return;
	if (listed)
		tn_nvme_set_listed_prps(&c, n, &list);
	else if (sgl ? tn_nvme_set_sgl(&c, piece, n, &list) : tn_nvme_set_prps(&c, piece, n, &list))
		return;
	c.id = (uint16_t)id;
	tn_nvme_queue_put(queue, &c);
	*failed += finish(queue, id) != 0;
}

/* Commands that are built in the queue. */
__global__ void nvme_without_data(struct tn_nvme_queue *queue, const struct tn_nvme_piece *ranges, uint32_t *failed)
{
	uint32_t id = tn_nvme_queue_id(queue);

	if (id == TN_NVME_NO_ID)
		return;
	*tn_nvme_queue_entry(queue) = ranges ? tn_nvme_deallocate(1, 1) : tn_nvme_flush(1);
	if (ranges)
		tn_nvme_queue_entry(queue)->data[0] = ranges->bus;
	tn_nvme_queue_entry(queue)->id = (uint16_t)id;
	tn_nvme_queue_put_entry(queue);
	*failed += finish(queue, id) != 0;
}
