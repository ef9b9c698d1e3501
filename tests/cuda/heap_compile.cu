/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto/heap_layout.h in kernels: a producer, a reader in place, and what the master does. Compiled only. */
#include <tenuto/heap_layout.h>

__global__ void heap_producer(unsigned char *base, uint64_t header_off, uint32_t epoch, uint32_t rank, uint64_t value)
{
	struct tn_heap_slot *slot = tn_heap_slot_at(base, header_off);

	if (!tn_heap_begin(slot, epoch, rank))
		return;
	*(uint64_t *)(base + slot->header.payload_base) = value;
	tn_heap_finish(slot, epoch, rank, TN_HEAP_READY);
}

__global__ void heap_allocator(unsigned char *base, uint64_t bytes, uint32_t flags, uint32_t rank, uint32_t *claimed, uint32_t *epoch)
{
	struct tn_heap_ctl *ctl = (struct tn_heap_ctl *)base;
	uint32_t size_class = tn_heap_class(ctl->page_bytes, bytes);

	*claimed = TN_HEAP_NO_SLOT;
	if (size_class < TN_HEAP_CLASSES && tn_heap_replicas(flags) == 1) /* the master alone plans several */
		*claimed = tn_heap_claim(tn_heap_slots(base, ctl), ctl->hdr_count, &ctl->free_head[size_class], tn_heap_by(TN_HEAP_WRITING, rank), epoch);
	if (*claimed != TN_HEAP_NO_SLOT && tn_heap_slots(base, ctl)[*claimed].extra.size_class != size_class) {
		tn_heap_finish(&tn_heap_slots(base, ctl)[*claimed], *epoch, rank, TN_HEAP_DEAD);
		*claimed = TN_HEAP_NO_SLOT;
	}
}

__global__ void heap_announcer(unsigned char *base, const struct tn_heap_announce *a, uint32_t *slot)
{
	if (tn_heap_announce(base, (const struct tn_heap_ctl *)base, a))
		*slot = tn_heap_take_announce(base, (const struct tn_heap_ctl *)base, 0, slot + 1);
}

__global__ void heap_reader(unsigned char *base, uint32_t slot, const uint64_t *digest, uint32_t rank, uint64_t *value)
{
	struct tn_heap_slot *s = &tn_heap_slots(base, (const struct tn_heap_ctl *)base)[slot];
	uint32_t *count = &tn_heap_leases(base, (const struct tn_heap_ctl *)base, slot)[rank];
	uint64_t word;

	if (!tn_heap_match(s, digest, &word) || tn_heap_word_state(word) != TN_HEAP_READY || !tn_heap_lease(s, count, tn_heap_word_epoch(word)))
		return;
	*value = *(uint64_t *)(base + s->header.payload_base);
	tn_heap_unlease(count);
}

__global__ void heap_master(unsigned char *base, uint32_t slot, uint32_t dead)
{
	struct tn_heap_ctl *ctl = (struct tn_heap_ctl *)base;
	struct tn_heap_slot *slots = tn_heap_slots(base, ctl);

	if (tn_heap_revoke(&slots[slot], 1) || tn_heap_bury(&slots[slot], dead) || tn_heap_reclaim(&slots[slot], tn_heap_leases(base, ctl, slot), ctl->ranks))
		tn_heap_push(slots, slot, &ctl->free_head[slots[slot].extra.size_class]);
}
