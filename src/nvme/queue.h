/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pair of queues, driven by one lane: commands in, completions out, no interrupts. The same lines on the host and in a kernel.
 *
 * A command takes an id of the queue's, and gives it back when it is known that the controller has done with it. There is one id less than a
 * queue has entries, a full queue has one entry less than its size (Base 3.3.1, Full Queue), and the controller is told of the completions that were
 * polled before it is told of new commands. So neither queue is ever full, and nothing but ids has to be counted.
 *
 * The upper bits of an id, beyond those that the number of entries needs, change with each use. So a completion that a controller posts twice is
 * not taken for the end of the next command with that index; of 4,096 entries it takes 16 uses until an id comes again, of 64 it takes 1,024.
 *
 * Order, with the controller at the other end of the bus:
 *   to it    entries are plain stores; the doorbell's store is released after them, so that the controller, which fetches no entry at or behind
 *            the tail that it was told, sees them whole (Base 3.3.1.2, Queue Usage). One doorbell may tell of many entries.
 *   from it  the dword with the phase is acquired before the others are read: the controller inverts the phase of an entry with each pass
 *            over the queue (Base 3.3.3.2, Phase Tag), and writes no entry again before the head's doorbell has passed it (Base 3.3.1.2, Queue
 *            Usage).
 */
#ifndef TN_NVME_QUEUE_H
#define TN_NVME_QUEUE_H

#include "nvme/command.h"

#define TN_NVME_NO_ID UINT32_MAX
#define TN_NVME_ENTRIES_MAX 4096u

/**
 * struct tn_nvme_queue - the driving side's view of a pair
 * @sq, @cq:       entries of the queues, of as many each
 * @sq_bell, @cq_bell: their doorbells
 * @free:          ids that are free: a stack, with room for all
 * @entries:       2..TN_NVME_ENTRIES_MAX
 * @stride:        of ids with the same index: a power of two
 * @tail, @rung:   the next entry of the submission queue, and the tail that the controller was told
 * @head, @taken:  the next entry of the completion queue, and the head that the controller was told
 */
struct tn_nvme_queue {
	struct tn_nvme_command *sq;
	const struct tn_nvme_completion *cq;
	uint32_t *sq_bell;
	uint32_t *cq_bell;
	uint16_t *free;
	uint32_t entries, stride;
	uint32_t nfree;
	uint32_t tail, rung;
	uint32_t head, taken;
	uint32_t phase;
};

/* The completion queue is zeroed, so the first pass has phase 1 (Base 3.3.3.2, Phase Tag). */
TN_HD void tn_nvme_queue_init(struct tn_nvme_queue *q)
{
	q->tail = q->rung = q->head = q->taken = 0;
	q->phase = 1;
	for (q->stride = 2; q->stride < q->entries;)
		q->stride *= 2;
	q->nfree = q->entries - 1;
	for (uint32_t i = 0; i < q->nfree; i++)
		q->free[i] = (uint16_t)(q->nfree - 1 - i);
}

/* Which of the ids that are in use at once: below entries - 1 of those that were given out. */
TN_HD uint32_t tn_nvme_queue_index(const struct tn_nvme_queue *q, uint32_t id)
{
	return id & (q->stride - 1);
}

TN_HD uint32_t tn_nvme_queue_id(struct tn_nvme_queue *q)
{
	return q->nfree ? q->free[--q->nfree] : TN_NVME_NO_ID;
}

/*
 * The controller does not touch the command's memory any more. An id under way is no other command's (Base 3.3.3.1, Command Identifier), and none is
 * FFFFh, which error logs use for "no command": no index has all the bits of stride - 1.
 */
TN_HD void tn_nvme_queue_give(struct tn_nvme_queue *q, uint32_t id)
{
	q->free[q->nfree++] = (uint16_t)(id + q->stride);
}

/* The entry that is put next: a command that is built there need not be copied. An id is free, or it is not free to be written. */
TN_HD struct tn_nvme_command *tn_nvme_queue_entry(const struct tn_nvme_queue *q)
{
	return &q->sq[q->tail];
}

/* The entry has a command with an id; the controller learns of it by the next ring. */
TN_HD void tn_nvme_queue_put_entry(struct tn_nvme_queue *q)
{
	q->tail = q->tail + 1 == q->entries ? 0 : q->tail + 1;
}

/* Writes a command that has an id; likewise. */
TN_HD void tn_nvme_queue_put(struct tn_nvme_queue *q, const struct tn_nvme_command *c)
{
	*tn_nvme_queue_entry(q) = *c;
	tn_nvme_queue_put_entry(q);
}

/*
 * Writes a doorbell or another register: 32 bits, aligned (PCIe 3.1.2). A release that a device on the bus sees, too, so that what it then fetches was
 * written before (Base 3.3.1.2, Queue Usage): arm64's ordinary one is for CPUs only.
 */
TN_HD void tn_nvme_bell(uint32_t *bell, uint32_t value)
{
#if defined(__aarch64__) && !defined(__CUDA_ARCH__)
	__asm__ volatile("dmb osh" : : : "memory");
#endif
	tn_ring_store32(bell, value);
}

/* Gives the controller back the entries that were polled: the head's doorbell (PCIe 3.1.2.2). */
TN_HD void tn_nvme_queue_took(struct tn_nvme_queue *q)
{
	if (q->taken == q->head)
		return;
	q->taken = q->head;
	tn_nvme_bell(q->cq_bell, q->head);
}

/* Tells the controller of all commands that were put, by the tail's doorbell (PCIe 3.1.2.1); 1 if there was one to tell of. */
TN_HD int tn_nvme_queue_ring(struct tn_nvme_queue *q)
{
	if (q->rung == q->tail)
		return 0;
	tn_nvme_queue_took(q);
	q->rung = q->tail;
	tn_nvme_bell(q->sq_bell, q->tail);
	return 1;
}

/*
 * The next completion: 1 and *out, or 0. It is new if its phase is that of this pass (Base 3.3.3.2, Phase Tag); the other dwords are read after the
 * acquire. What it says is the controller's: check it.
 */
TN_HD int tn_nvme_queue_poll(struct tn_nvme_queue *q, struct tn_nvme_completion *out)
{
	const uint32_t *dword = (const uint32_t *)(const void *)&q->cq[q->head];
	uint32_t last = tn_ring_load32(&dword[3]);

	if ((last >> 16 & 1) != q->phase)
		return 0;
	out->result = dword[0];
	out->reserved = 0;
	out->sq_head = (uint16_t)dword[2];
	out->sq_id = (uint16_t)(dword[2] >> 16);
	out->id = (uint16_t)last;
	out->status = (uint16_t)(last >> 16);
	if (++q->head == q->entries) {
		q->head = 0;
		q->phase ^= 1;
	}
	return 1;
}

#endif
