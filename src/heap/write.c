/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls that write objects: plans, with and without the master, commit, put. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <tenuto/heap.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "heap/heap_internal.h"

/* Where the plan's replica i goes. */
static struct tn_heap_copy replica_of(const struct tn_heap_plan *plan, uint32_t i)
{
	return i ? plan->copy[i - 1] : (struct tn_heap_copy){plan->header_off, plan->payload_base, plan->dst_rank, plan->epoch};
}

/* Of a plan whose replicas lie within the heap: their slots. */
static int check_replicas(struct tn_heap *heap, const struct tn_heap_plan *plan, uint32_t slot[TN_HEAP_REPLICAS_MAX])
{
	int rc = 0;

	if (plan->copies >= TN_HEAP_REPLICAS_MAX)
		return tn_fail(-EINVAL, "a plan with %u copies: %u at most", plan->copies, TN_HEAP_REPLICAS_MAX - 1);
	for (uint32_t i = 0; i <= plan->copies && rc == 0; i++) {
		struct tn_heap_copy r = replica_of(plan, i);

		rc = tn_heap_slot_at_offset(heap, r.rank, r.header_off, &slot[i]);
		if (rc == 0 && !(heap->memory.rights.write >> r.rank & 1))
			rc = tn_fail(-EACCES, "rank %u may not write into the heap of rank %u", heap->rank, r.rank);
		if (rc == 0 && !tn_heap_payload(heap, r.rank, r.payload_base, plan->bytes_total))
			rc = tn_fail(-EINVAL, "payload_base %llu: the plan lies outside of the heap", (unsigned long long)r.payload_base);
	}
	return rc;
}

/* Whether the master has planned what it was asked for. The caller writes as many bytes as it wanted. */
static int check_plan(struct tn_heap *heap, const struct tn_heap_want *want, const struct tn_heap_plan *plan, uint32_t slot[TN_HEAP_REPLICAS_MAX])
{
	uint32_t page_bytes = heap->memory.layout.page_bytes;
	bool sound = plan->bytes_total == want->bytes && plan->page_bytes == page_bytes &&
		     plan->n_pages == (want->bytes + page_bytes - 1) / page_bytes && plan->copies == tn_heap_replicas(want->flags) - 1;

	for (uint32_t i = 0; sound && i <= plan->copies; i++)
		sound = replica_of(plan, i).rank == (want->owner + i) % heap->ranks;
	if (!sound)
		return tn_fail(-EINVAL, "the master's plan of %llu bytes in %u pages at rank %u is not what it was asked for: %llu bytes at rank %u",
			       (unsigned long long)plan->bytes_total, plan->n_pages, plan->dst_rank, (unsigned long long)want->bytes, want->owner);
	return check_replicas(heap, plan, slot);
}

/* This rank writes a replica from now on; or no more. False: its part of the plan has ended. */
static bool begin(struct tn_heap *heap, const struct tn_heap_copy *r, uint32_t slot)
{
	return tn_heap_begin(tn_heap_slot_of(&heap->memory, r->rank, slot), r->epoch, heap->rank);
}

static bool finish(struct tn_heap *heap, const struct tn_heap_copy *r, uint32_t slot, uint32_t to)
{
	return tn_heap_finish(tn_heap_slot_of(&heap->memory, r->rank, slot), r->epoch, heap->rank, to);
}

static int begin_all(struct tn_heap *heap, const struct tn_heap_plan *plan, const uint32_t *slot)
{
	for (uint32_t i = 0; i <= plan->copies; i++) {
		struct tn_heap_copy r = replica_of(plan, i);

		if (begin(heap, &r, slot[i]))
			continue;
		while (i--) {
			r = replica_of(plan, i);
			finish(heap, &r, slot[i], TN_HEAP_DEAD);
		}
		return tn_fail(-ESTALE, "the plan had ended when it came: this process was stopped for longer than reclaim_ns; try again");
	}
	return 0;
}

/* tn_heap_open_for_write, with the slots. */
static int open_slots(struct tn_heap *heap, const struct tn_heap_want *want, struct tn_heap_plan *plan, uint32_t slot[TN_HEAP_REPLICAS_MAX])
{
	struct tn_heap_ask ask = {.op = TN_HEAP_OPEN};
	struct tn_heap_told told;
	int rc;

	ask.want = *want;
	rc = tn_heap_request(heap, &ask, &told);
	if (rc == 0)
		rc = check_plan(heap, want, &told.plan, slot);
	if (rc == 0)
		rc = begin_all(heap, &told.plan, slot);
	if (rc == 0)
		*plan = told.plan;
	return rc;
}

/*
 * A free extent of the owner's heap: its slot, WRITING by this rank, and where it lies; TN_HEAP_NO_SLOT. The master may have resized it just before
 * the claim.
 */
static uint32_t claim_extent(struct tn_heap *heap, uint32_t owner, uint32_t size_class, uint32_t *epoch, uint64_t *base)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(&heap->memory, owner);
	uint32_t slot = tn_heap_claim(tn_heap_slot_of(&heap->memory, owner, 0), heap->memory.layout.hdr_count, &ctl->free_head[size_class],
				      tn_heap_by(TN_HEAP_WRITING, heap->rank), epoch);
	struct tn_heap_slot *s;

	if (slot == TN_HEAP_NO_SLOT)
		return slot;
	s = tn_heap_slot_of(&heap->memory, owner, slot);
	*base = __atomic_load_n(&s->header.payload_base, __ATOMIC_RELAXED);
	if (tn_heap_class_of(s) == size_class && tn_heap_payload(heap, owner, *base, (uint64_t)heap->memory.layout.page_bytes << size_class))
		return slot;
	tn_heap_finish(s, *epoch, heap->rank, TN_HEAP_DEAD);
	return TN_HEAP_NO_SLOT;
}

/* A plan without the master: its slot is WRITING by this rank, and has the header. False: only the master can make one, or say what is wrong. */
static bool reserve(struct tn_heap *heap, const struct tn_heap_want *want, struct tn_heap_plan *plan)
{
	uint32_t page_bytes = heap->memory.layout.page_bytes, size_class = tn_heap_class(page_bytes, want->bytes), slot = TN_HEAP_NO_SLOT, epoch;
	struct tn_heap_found found;
	struct tn_heap_slot *s;
	uint64_t base;

	if (want->bytes && want->owner < heap->ranks && (heap->memory.rights.write >> want->owner & 1) && size_class < TN_HEAP_CLASSES &&
	    !(want->flags & ~(TN_HEAP_PIN | TN_HEAP_PRIORITY)) && tn_heap_find_any(&heap->memory, &want->name, &found))
		slot = claim_extent(heap, want->owner, size_class, &epoch, &base);
	if (slot == TN_HEAP_NO_SLOT)
		return false;
	s = tn_heap_slot_of(&heap->memory, want->owner, slot);
	tn_heap_describe(s, &want->name, want->bytes, page_bytes, want->flags);
	*plan = (struct tn_heap_plan){.key_hash = want->name.hash, .dst_rank = want->owner, .epoch = epoch,
				      .header_off = TN_HEAP_CTL_BYTES + (uint64_t)slot * sizeof(*s), .payload_base = base, .bytes_total = want->bytes,
				      .page_bytes = page_bytes, .n_pages = (uint32_t)((want->bytes + page_bytes - 1) / page_bytes), .announces = 1};
	return true;
}

/* The cache lines of the topmost free extent, which another process had last: they come while the key is hashed and looked up. */
static void fetch_extent(struct tn_heap *heap, uint64_t bytes, uint32_t owner)
{
	uint32_t size_class = tn_heap_class(heap->memory.layout.page_bytes, bytes), slot;
	struct tn_heap_slot *s;

	if (owner >= heap->ranks || size_class == TN_HEAP_CLASSES)
		return;
	slot = (uint32_t)__atomic_load_n(&tn_heap_ctl_of(&heap->memory, owner)->free_head[size_class], __ATOMIC_RELAXED) - 1;
	if (slot >= heap->memory.layout.hdr_count)
		return;
	s = tn_heap_slot_of(&heap->memory, owner, slot);
	__builtin_prefetch(&s->header, 1);
	__builtin_prefetch(&s->extra, 1);
}

/* 0, and all of *want. */
static int set_want(const struct tn_heap *heap, const void *key, size_t key_bytes, uint64_t bytes, uint32_t owner, uint32_t flags,
		    struct tn_heap_want *want)
{
	int rc;

	*want = (struct tn_heap_want){.bytes = bytes, .owner = owner, .flags = flags};
	rc = tn_heap_name_of(key, key_bytes, &want->name);
	if (rc == 0 && heap->device.driver && tn_heap_replicas(flags) > 1)
		rc = tn_fail(-ENOTSUP, "%u replicas: the payload of this heap lies on a device, where objects have one", tn_heap_replicas(flags));
	if (rc == 0 && owner == TN_HEAP_ANY)
		want->owner = (uint32_t)(want->name.hash % heap->ranks);
	return rc;
}

int tn_heap_open_for_write(struct tn_heap *heap, const void *key, size_t key_bytes, uint64_t bytes, uint32_t owner, uint32_t flags,
			   struct tn_heap_plan *plan)
{
	uint32_t slot[TN_HEAP_REPLICAS_MAX];
	struct tn_heap_want want;
	int rc = set_want(heap, key, key_bytes, bytes, owner, flags, &want);

	return rc ? rc : open_slots(heap, &want, plan, slot);
}

int tn_heap_reserve(struct tn_heap *heap, const void *key, size_t key_bytes, uint64_t bytes, uint32_t owner, uint32_t flags,
		    struct tn_heap_plan *plan)
{
	uint32_t slot[TN_HEAP_REPLICAS_MAX];
	struct tn_heap_want want;
	int rc;

	fetch_extent(heap, bytes, owner);
	rc = set_want(heap, key, key_bytes, bytes, owner, flags, &want);
	if (rc || reserve(heap, &want, plan))
		return rc;
	return open_slots(heap, &want, plan, slot);
}

/* The master will look at the plan's slot. What is lost of it - the ring is full, the master does not live - the master's sweep finds. */
static void announce(struct tn_heap *heap, const struct tn_heap_plan *plan)
{
	const struct tn_heap_announce a = {.key_hash = plan->key_hash, .owner_rank = plan->dst_rank, .epoch = plan->epoch,
					   .header_off = plan->header_off, .payload_off = plan->payload_base, .n_pages = plan->n_pages,
					   .page_size = plan->page_bytes, .bytes_total = plan->bytes_total};

	tn_heap_announce(heap->memory.base[plan->dst_rank], &heap->memory.layout, &a);
}

static void wake_master(const struct tn_heap *heap)
{
	const uint64_t one = 1;

	while (write(heap->memory.wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static int refused(struct tn_heap *heap, const struct tn_heap_plan *plan)
{
	tn_heap_count(&heap->memory, heap->rank, TN_HEAP_CAS_FAILURES, 1);
	return tn_fail(-ESTALE, "key hash %#llx: the plan has ended: it was not committed within reclaim_ns, or its object is gone already; write the object again",
		       (unsigned long long)plan->key_hash);
}

/* Whether this rank may write the replica still. Of another epoch, if the plan was committed before: then nothing there is this plan's any more. */
static bool is_mine(struct tn_heap *heap, const struct tn_heap_copy *r, uint32_t slot)
{
	uint64_t word = tn_heap_load64(tn_heap_state_word(tn_heap_slot_of(&heap->memory, r->rank, slot)));

	return tn_heap_word_epoch(word) == r->epoch && tn_heap_word_rank(word) == heap->rank;
}

/* The header's second line is the producer's until it has ended: no slot is freed before. */
static bool publish(struct tn_heap *heap, const struct tn_heap_copy *r, uint32_t slot, uint64_t checksum)
{
	struct tn_heap_slot *s = tn_heap_slot_of(&heap->memory, r->rank, slot);

	if (is_mine(heap, r, slot)) {
		s->extra.checksum = checksum;
		s->extra.checksum_epoch = r->epoch;
	}
	return finish(heap, r, slot, TN_HEAP_READY);
}

/* Without a checksum only if the device never has one: what a device that fails was to sum may not be what was written. 0, or why nothing was published. */
static int publish_on_device(struct tn_heap *heap, const struct tn_heap_plan *plan, uint32_t slot)
{
	struct tn_heap_copy r = replica_of(plan, 0);
	uint64_t sum;
	int rc = tn_heap_on_device_sum(&heap->device, r.rank, r.payload_base - heap->memory.layout.heap_base, plan->bytes_total, &sum);

	if (rc && rc != -ENOTSUP) {
		finish(heap, &r, slot, TN_HEAP_DEAD);
		announce(heap, plan);
		return rc;
	}
	return (rc ? finish(heap, &r, slot, TN_HEAP_READY) : publish(heap, &r, slot, sum)) ? 0 : refused(heap, plan);
}

/*
 * Copies the first replica to the others that this rank writes, and publishes all that are WRITING. Returns how many became READY. The first one comes last: while
 * it is copied it must not be evicted, so it stays this rank's, or the caller holds a lease on it.
 */
static uint32_t publish_all(struct tn_heap *heap, const struct tn_heap_plan *plan, const uint32_t *slot)
{
	const unsigned char *bytes = tn_heap_payload(heap, plan->dst_rank, plan->payload_base, plan->bytes_total);
	uint32_t published = 0;

	for (uint32_t i = plan->copies + 1; i--;) {
		struct tn_heap_copy r = replica_of(plan, i);

		if (!is_mine(heap, &r, slot[i]))
			continue;
		published += publish(heap, &r, slot[i], i ? tn_checksum_copy(tn_heap_payload(heap, r.rank, r.payload_base, plan->bytes_total), bytes, plan->bytes_total, true)
							  : tn_checksum(bytes, plan->bytes_total));
	}
	return published;
}

/* Gives up what this rank still writes of a plan. Returns how many replicas these are. */
static uint32_t end_all(struct tn_heap *heap, const struct tn_heap_plan *plan, const uint32_t *slot)
{
	uint32_t ended = 0;

	for (uint32_t i = 0; i <= plan->copies; i++) {
		struct tn_heap_copy r = replica_of(plan, i);

		ended += finish(heap, &r, slot[i], TN_HEAP_DEAD);
	}
	return ended;
}

int tn_heap_commit(struct tn_heap *heap, const struct tn_heap_plan *plan)
{
	const struct tn_heap_copy source = replica_of(plan, 0);
	uint32_t slot[TN_HEAP_REPLICAS_MAX], *count;
	struct tn_heap_slot *first;
	int rc = check_replicas(heap, plan, slot);
	bool was_ready;

	if (rc)
		return rc;
	first = tn_heap_slot_of(&heap->memory, plan->dst_rank, slot[0]);
	was_ready = tn_heap_load64(tn_heap_state_word(first)) == tn_heap_word(TN_HEAP_READY, plan->epoch); /* a kernel was here */
	if (was_ready && (plan->copies == 0 || heap->device.driver))
		return 0;
	count = &tn_heap_leases_of(&heap->memory, plan->dst_rank, slot[0])[heap->rank];
	if (was_ready && tn_heap_lease(first, count, plan->epoch)) {
		publish_all(heap, plan, slot);
		tn_heap_unlease(count);
		return 0;
	}
	/* A kernel's object may have gone since, and its memory be another one's: nothing is left to copy from. */
	if (!is_mine(heap, &source, slot[0])) {
		end_all(heap, plan, slot);
		return refused(heap, plan);
	}
	if (heap->device.driver)
		rc = publish_on_device(heap, plan, slot[0]);
	else if (publish_all(heap, plan, slot) == 0)
		rc = refused(heap, plan);
	if (rc == 0 && plan->announces) {
		announce(heap, plan);
		wake_master(heap);
	}
	return rc;
}

int tn_heap_abandon(struct tn_heap *heap, const struct tn_heap_plan *plan)
{
	uint32_t slot[TN_HEAP_REPLICAS_MAX];
	int rc = check_replicas(heap, plan, slot);

	if (rc)
		return rc;
	if (end_all(heap, plan, slot) == 0)
		return refused(heap, plan);
	announce(heap, plan); /* without a wake-up: the master looks before it says that nothing is free */
	return 0;
}

/* Writes bytes of an object; *sum: their checksum. 0, or the device's error. */
static int write_payload(struct tn_heap *heap, const struct tn_heap_copy *r, const void *src, uint64_t bytes, uint64_t *sum)
{
	if (!heap->device.driver) {
		*sum = tn_checksum_copy(tn_heap_payload(heap, r->rank, r->payload_base, bytes), src, bytes, true);
		return 0;
	}
	*sum = tn_checksum(src, bytes);
	return tn_heap_on_device_write(&heap->device, r->rank, r->payload_base - heap->memory.layout.heap_base, src, bytes);
}

/* The master makes the plan, then the bytes are copied to each replica. */
static int put_planned(struct tn_heap *heap, const struct tn_heap_want *want, const void *src)
{
	uint32_t slot[TN_HEAP_REPLICAS_MAX], published = 0;
	struct tn_heap_plan plan;
	uint64_t began_ns, checksum;
	int rc = open_slots(heap, want, &plan, slot);

	if (rc)
		return rc;
	began_ns = tn_now_ns(&tn_clock_system);
	for (uint32_t i = 0; i <= plan.copies; i++) {
		struct tn_heap_copy r = replica_of(&plan, i);

		rc = write_payload(heap, &r, src, want->bytes, &checksum);
		if (rc) {
			end_all(heap, &plan, slot);
			return rc;
		}
		published += publish(heap, &r, slot[i], checksum);
	}
	tn_heap_count_pages(heap, (uint64_t)plan.n_pages * (plan.copies + 1), began_ns);
	if (published == 0)
		return refused(heap, &plan);
	tn_heap_count(&heap->memory, heap->rank, TN_HEAP_BYTES_TX, want->bytes * (plan.copies + 1));
	return 0;
}

static bool is_admitted(const struct tn_heap_slot *s, uint32_t epoch)
{
	return __atomic_load_n(&s->extra.admitted, __ATOMIC_ACQUIRE) == epoch;
}

/* Until the master has seen an announced object: 0 and whether it has admitted it, or the errors of a request. */
static int await_admission(struct tn_heap *heap, const struct tn_heap_slot *s, uint32_t epoch, bool *admitted)
{
	struct tn_heap_ask ask = {.op = TN_HEAP_HEAR};
	uint64_t until = tn_now_ns(&tn_clock_system) + TN_HEAP_SPIN_NS;
	struct tn_heap_told told;
	int rc = 0;

	while (!is_admitted(s, epoch) && tn_now_ns(&tn_clock_system) < until)
		sched_yield();
	if (!is_admitted(s, epoch))
		rc = tn_heap_request(heap, &ask, &told);
	*admitted = is_admitted(s, epoch);
	return rc;
}

/*
 * Copies into an extent that this rank has claimed by itself, while the master admits the object: who puts waits for the master only if it takes longer than the copy.
 * *done: false, if the master must be asked for a plan. It makes one, or says what is wrong.
 */
static int put_ahead(struct tn_heap *heap, const struct tn_heap_want *want, const void *src, bool *done)
{
	uint64_t began_ns, checksum;
	struct tn_heap_plan plan;
	struct tn_heap_copy copy;
	struct tn_heap_slot *s;
	uint32_t slot;
	int rc;

	/* The master itself makes a plan without waiting for anybody. */
	*done = __atomic_load_n(&heap->memory.dir->master, __ATOMIC_RELAXED) != heap->rank && reserve(heap, want, &plan);
	if (!*done)
		return 0;
	announce(heap, &plan);
	wake_master(heap);
	copy = replica_of(&plan, 0);
	s = tn_heap_slot_at(heap->memory.base[plan.dst_rank], plan.header_off);
	slot = (uint32_t)(s - tn_heap_slot_of(&heap->memory, plan.dst_rank, 0));
	began_ns = tn_now_ns(&tn_clock_system);
	rc = write_payload(heap, &copy, src, want->bytes, &checksum);
	tn_heap_count_pages(heap, plan.n_pages, began_ns);
	if (rc == 0)
		rc = await_admission(heap, s, plan.epoch, done);
	if (rc || !*done) {
		finish(heap, &copy, slot, TN_HEAP_DEAD);
		announce(heap, &plan);
		return rc;
	}
	if (!publish(heap, &copy, slot, checksum))
		return refused(heap, &plan);
	tn_heap_count(&heap->memory, heap->rank, TN_HEAP_BYTES_TX, want->bytes);
	return 0;
}

int tn_heap_put(struct tn_heap *heap, const void *key, size_t key_bytes, const void *src, uint64_t bytes, uint32_t owner, uint32_t flags)
{
	struct tn_heap_want want;
	bool done = false;
	int rc = set_want(heap, key, key_bytes, bytes, owner, flags, &want);

	if (rc == 0)
		rc = put_ahead(heap, &want, src, &done);
	if (rc || done)
		return rc;
	return put_planned(heap, &want, src);
}
