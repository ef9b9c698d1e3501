/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The symmetric heap's layout, and the few atomic steps on it that a host and a kernel take alike.
 *
 * The heap of a rank is one segment of memory, mapped by all ranks: a control block, an arena of headers, a table of leases, an announce ring, and
 * payload. Offsets count from the segment's beginning. A slot is a header and an extent of payload. A free slot keeps its extent, so that nothing is lost when a process
 * dies between two steps. Only the master splits and merges extents.
 *
 * The word {state, epoch} of a header (offset 32, 64 bits, little-endian) is the truth about a slot, and changes only by compare-and-swap. Bits 8 to 31 of
 * the state name who may write: 0, or a rank + 1. Below, WRITING(r) and DEAD(r) are with rank r, the others with 0.
 *
 *   DEAD,       even e  free
 *   RESERVED,   e + 1   claimed by the master: nobody has written payload. Free again, with e + 2, if the producer does not begin in time
 *   WRITING(r), e + 1   the producer writes payload; if it has claimed the slot by itself, the header, too
 *   READY,      e + 1   complete and immutable
 *   DEAD(r),    e + 1   was WRITING for too long: the producer may write still
 *   DEAD,       e + 1   nobody writes: removed, evicted or given up, or the producer has learned of the end. Free when no lease is left
 *   DEAD,       e + 2   free again. So is, at once, what a rank leaves behind that is dead
 *
 * Memory order:
 *   RESERVED -> WRITING(r)  the plan came by a socket after the header's fields were written.
 *   WRITING(r) -> READY     release, system scope: header, payload and checksum come before. The acquire is a reader's load of the word.
 *   DEAD(r) -> DEAD         release: what the producer wrote comes before the reuse. A reclaimer acquires it.
 *   lease                   a reader adds, then loads the word; a remover changes the word, then loads the leases. All four are sequentially
 *                           consistent, so that one of them sees the other. A reader's release orders its loads before the reuse.
 * A producer that was declared dead and goes on finds another epoch or DEAD(r): it cannot publish what is not its own.
 *
 * The *_step functions make one access to shared memory each, so that a test can try every interleaving (src/heap/heap_model_test.c).
 */
#ifndef TENUTO_HEAP_LAYOUT_H
#define TENUTO_HEAP_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define TN_HEAP_CHECK(cond, text) static_assert(cond, text)
#else
#define TN_HEAP_CHECK(cond, text) _Static_assert(cond, text)
#endif

#ifndef TN_HD
#ifdef __CUDACC__
#define TN_HD __host__ __device__ static inline
#else
#define TN_HD static inline
#endif
#endif

#define TN_HEAP_MAGIC 0x3050414548544e54ull /* "TNTHEAP0", little-endian */
#define TN_HEAP_VERSION 1u
#define TN_HEAP_RANKS_MAX 64u
#define TN_HEAP_CLASSES 8u	 /* extents of page_bytes << class */
#define TN_HEAP_SLOTS_MAX (1u << 20)
#define TN_HEAP_CTL_BYTES 4096u
#define TN_HEAP_NO_SLOT UINT32_MAX

enum tn_heap_state { TN_HEAP_RESERVED, TN_HEAP_WRITING, TN_HEAP_READY, TN_HEAP_DEAD };

/** Flags of struct tn_heap_header: eviction passes it by; it goes after all that do not have this flag; it lies at @n ranks, 1 to 3. */
#define TN_HEAP_PIN 1u
#define TN_HEAP_PRIORITY 2u
#define TN_HEAP_REPLICAS(n) (((n) - 1u) << 8)
#define TN_HEAP_REPLICAS_MAX 3u
#define TN_HEAP_FLAGS (TN_HEAP_PIN | TN_HEAP_PRIORITY | 3u << 8)

/**
 * struct tn_heap_header - what an object is, in its owner's memory
 * @key_hash:     xxhash64 of the key
 * @n_pages:      pages that its bytes take
 * @page_size:    bytes
 * @payload_base: offset of page 0
 * @bytes_total:  of the payload
 * @state:        enum tn_heap_state, and who may write; with @epoch one 64-bit word
 * @epoch:        odd: an object's; even: of a free slot
 * @last_access:  CLOCK_MONOTONIC ns: when it was opened, or last read where readers say so
 * @flags:        TN_HEAP_PIN, TN_HEAP_PRIORITY, TN_HEAP_REPLICAS
 */
struct tn_heap_header {
	uint64_t key_hash;
	uint32_t n_pages;
	uint32_t page_size;
	uint64_t payload_base;
	uint64_t bytes_total;
	uint32_t state;
	uint32_t epoch;
	uint64_t last_access;
	uint32_t flags;
	uint32_t pad;
	uint64_t reserved;
};

TN_HEAP_CHECK(sizeof(struct tn_heap_header) == 64, "a header is one cache line");
TN_HEAP_CHECK(offsetof(struct tn_heap_header, n_pages) == 8 && offsetof(struct tn_heap_header, page_size) == 12 &&
		      offsetof(struct tn_heap_header, payload_base) == 16 && offsetof(struct tn_heap_header, bytes_total) == 24 &&
		      offsetof(struct tn_heap_header, state) == 32 && offsetof(struct tn_heap_header, epoch) == 36 &&
		      offsetof(struct tn_heap_header, last_access) == 40 && offsetof(struct tn_heap_header, flags) == 48,
	      "layout of a header");

/**
 * struct tn_heap_extra - a header's second line
 * @digest:         XXH3-128 of the key, which readers compare
 * @checksum:       of the payload, as tn_checksum has it; of the object of @checksum_epoch
 * @checksum_epoch: 0: nobody has summed
 * @next:           slot below this one in a stack of free slots
 * @size_class:     of the extent; TN_HEAP_CLASSES: the slot has none
 * @admitted:       epoch of the object that the master has admitted, as the first one of its key; nobody finds another. The master's
 * @born:           CLOCK_MONOTONIC ns: when it was opened
 */
struct tn_heap_extra {
	uint64_t digest[2];
	uint64_t checksum;
	uint32_t checksum_epoch;
	uint32_t next;
	uint32_t size_class;
	uint32_t admitted;
	uint64_t born;
	uint64_t reserved[2];
};

struct tn_heap_slot {
	struct tn_heap_header header;
	struct tn_heap_extra extra;
};

TN_HEAP_CHECK(sizeof(struct tn_heap_slot) == 128 && offsetof(struct tn_heap_slot, extra) == 64, "a slot is two cache lines");
TN_HEAP_CHECK(offsetof(struct tn_heap_extra, checksum) == 16 && offsetof(struct tn_heap_extra, checksum_epoch) == 24 &&
		      offsetof(struct tn_heap_extra, next) == 28 && offsetof(struct tn_heap_extra, size_class) == 32 &&
		      offsetof(struct tn_heap_extra, admitted) == 36 && offsetof(struct tn_heap_extra, born) == 40 && sizeof(struct tn_heap_extra) == 64,
	      "layout of a header's second line");

/**
 * struct tn_heap_ctl - the control block, at a segment's beginning
 * @heap_base:    offset of the payload
 * @heap_limit:   offset of its end
 * @bump_ptr:     payload below is carved into extents; the master's
 * @hdr_base:     offset of the slots
 * @hdr_count:    slots
 * @hdr_head:     slots below are in use; the master's
 * @free_head:    by class: changes << 32 | the topmost free slot + 1
 * @ann_base:     offset of the announce ring
 * @ann_capacity: announces, a power of two; 0: there is no ring
 * @ann_head:     announces that producers have begun
 * @ann_tail:     announces that the master has taken
 * @epoch:        of the master: rises when another rank takes over
 * @water_hi:     percent of the payload: eviction begins above
 * @water_lo:     percent: and ends here
 * @version:      TN_HEAP_VERSION
 * @magic:        TN_HEAP_MAGIC
 * @lease_base:   offset of the leases: uint32_t by slot and rank
 * @ranks:        of the heap
 * @page_bytes:   of a page
 * @bytes:        of the segment
 */
struct tn_heap_ctl {
	uint64_t heap_base;
	uint64_t heap_limit;
	uint64_t bump_ptr;
	uint64_t hdr_base;
	uint32_t hdr_count;
	uint32_t hdr_head;
	uint64_t free_head[TN_HEAP_CLASSES];
	uint64_t ann_base;
	uint32_t ann_capacity;
	uint32_t ann_head;
	uint32_t ann_tail;
	uint32_t epoch;
	uint32_t water_hi;
	uint32_t water_lo;
	uint32_t pad;
	uint32_t version;
	uint64_t magic;
	uint64_t lease_base;
	uint32_t ranks;
	uint32_t page_bytes;
	uint64_t bytes;
};

TN_HEAP_CHECK(offsetof(struct tn_heap_ctl, bump_ptr) == 16 && offsetof(struct tn_heap_ctl, hdr_count) == 32 &&
		      offsetof(struct tn_heap_ctl, free_head) == 40 && offsetof(struct tn_heap_ctl, ann_base) == 104 &&
		      offsetof(struct tn_heap_ctl, ann_head) == 116 && offsetof(struct tn_heap_ctl, epoch) == 124 &&
		      offsetof(struct tn_heap_ctl, water_lo) == 132 && offsetof(struct tn_heap_ctl, version) == 140 &&
		      offsetof(struct tn_heap_ctl, lease_base) == 152 && offsetof(struct tn_heap_ctl, bytes) == 168,
	      "layout of the control block");

/**
 * struct tn_heap_announce - a producer says that the master should look at a slot: it has claimed that by itself, and has written the header, or the object is READY; or
 * it has given a plan up. A hint: the header is the truth
 * @turn: how many announces there had been with this one; written last
 */
struct tn_heap_announce {
	uint64_t key_hash;
	uint32_t owner_rank;
	uint32_t epoch;
	uint64_t header_off;
	uint64_t payload_off;
	uint32_t n_pages;
	uint32_t page_size;
	uint64_t bytes_total;
	uint32_t turn;
	uint32_t pad[3];
};

TN_HEAP_CHECK(sizeof(struct tn_heap_announce) == 64 && offsetof(struct tn_heap_announce, header_off) == 16 &&
		      offsetof(struct tn_heap_announce, n_pages) == 32 && offsetof(struct tn_heap_announce, turn) == 48,
	      "layout of an announce");

/* ---- words ------------------------------------------------------------------------------------------------------ */

TN_HD uint64_t tn_heap_word(uint32_t state, uint32_t epoch)
{
	return (uint64_t)epoch << 32 | state;
}

/* The state of what a rank writes. */
TN_HD uint32_t tn_heap_by(uint32_t state, uint32_t rank)
{
	return state | (rank + 1) << 8;
}

TN_HD uint32_t tn_heap_word_state(uint64_t word)
{
	return (uint32_t)word & 0xff;
}

/* Who may write; UINT32_MAX: nobody, or the master. */
TN_HD uint32_t tn_heap_word_rank(uint64_t word)
{
	return ((uint32_t)word >> 8) - 1;
}

TN_HD uint32_t tn_heap_word_epoch(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

TN_HD int tn_heap_word_is_free(uint64_t word)
{
	return (uint32_t)word == TN_HEAP_DEAD && tn_heap_word_epoch(word) % 2 == 0;
}

TN_HD uint64_t *tn_heap_state_word(struct tn_heap_slot *slot)
{
	return (uint64_t *)(void *)&slot->header.state;
}

#ifdef __CUDA_ARCH__
/* A fence.sc between two of these makes them sequentially consistent, as the leases need. */
TN_HD uint64_t tn_heap_load64(const uint64_t *p)
{
	uint64_t v;

	asm volatile("fence.sc.sys; ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

TN_HD uint32_t tn_heap_load32(const uint32_t *p)
{
	uint32_t v;

	asm volatile("fence.sc.sys; ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

TN_HD void tn_heap_store32(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

TN_HD void tn_heap_add32(uint32_t *p, uint32_t v)
{
	asm volatile("fence.sc.sys; red.release.sys.add.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

TN_HD int tn_heap_cas32(uint32_t *p, uint32_t was, uint32_t v)
{
	uint32_t old;

	asm volatile("fence.sc.sys; atom.acq_rel.sys.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(p), "r"(was), "r"(v) : "memory");
	return old == was;
}

TN_HD int tn_heap_cas64(uint64_t *p, uint64_t was, uint64_t v)
{
	uint64_t old;

	asm volatile("fence.sc.sys; atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(p), "l"(was), "l"(v) : "memory");
	return old == was;
}
#else
/* Sequentially consistent, because the leases need that; on x86 a load costs nothing more. */
TN_HD uint64_t tn_heap_load64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

TN_HD uint32_t tn_heap_load32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

TN_HD void tn_heap_store32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

TN_HD void tn_heap_add32(uint32_t *p, uint32_t v)
{
	__atomic_add_fetch(p, v, __ATOMIC_SEQ_CST);
}

TN_HD int tn_heap_cas32(uint32_t *p, uint32_t was, uint32_t v)
{
	return __atomic_compare_exchange_n(p, &was, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

TN_HD int tn_heap_cas64(uint64_t *p, uint64_t was, uint64_t v)
{
	return __atomic_compare_exchange_n(p, &was, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
#endif

/* ---- steps ------------------------------------------------------------------------------------------------------ */

/* Something on its way, of one caller. Zeroed before it begins. */
struct tn_heap_turn {
	uint32_t phase;
	uint32_t slot;
	uint32_t next;
	uint32_t i;
	uint64_t word;
	uint64_t head;
};

enum tn_heap_step { TN_HEAP_MORE, TN_HEAP_DONE, TN_HEAP_NO };

/* Moves a slot of that epoch from one state to the next. */
TN_HD int tn_heap_move(struct tn_heap_slot *slot, uint32_t epoch, uint32_t from, uint32_t to)
{
	return tn_heap_cas64(tn_heap_state_word(slot), tn_heap_word(from, epoch), tn_heap_word(to, epoch));
}

/* The producer is about to write payload. 0: the plan has ended, write nothing. */
TN_HD int tn_heap_begin(struct tn_heap_slot *slot, uint32_t epoch, uint32_t rank)
{
	return tn_heap_move(slot, epoch, TN_HEAP_RESERVED, tn_heap_by(TN_HEAP_WRITING, rank));
}

/* Frees a slot of that epoch that nobody has begun to write: it has no lease, and its producer cannot begin any more. The master alone. */
TN_HD int tn_heap_revoke(struct tn_heap_slot *slot, uint32_t epoch)
{
	return tn_heap_cas64(tn_heap_state_word(slot), tn_heap_word(TN_HEAP_RESERVED, epoch), tn_heap_word(TN_HEAP_DEAD, epoch + 1));
}

/*
 * The producer writes no more: the object becomes @to, READY or DEAD. NO: the plan has ended, and nobody will read it; the master learns that the
 * producer writes no more.
 */
TN_HD enum tn_heap_step tn_heap_finish_step(struct tn_heap_slot *slot, uint32_t epoch, uint32_t rank, uint32_t to, struct tn_heap_turn *t)
{
	if (t->phase++ == 0)
		return tn_heap_move(slot, epoch, tn_heap_by(TN_HEAP_WRITING, rank), to) ? TN_HEAP_DONE : TN_HEAP_MORE;
	tn_heap_move(slot, epoch, tn_heap_by(TN_HEAP_DEAD, rank), TN_HEAP_DEAD);
	return TN_HEAP_NO;
}

/* Frees a slot of a rank that is dead. NO: it has none here. The master alone. */
TN_HD enum tn_heap_step tn_heap_bury_step(struct tn_heap_slot *slot, uint32_t rank, struct tn_heap_turn *t)
{
	if (t->phase++ == 0) {
		t->word = tn_heap_load64(tn_heap_state_word(slot));
		return tn_heap_word_rank(t->word) == rank ? TN_HEAP_MORE : TN_HEAP_NO;
	}
	return tn_heap_cas64(tn_heap_state_word(slot), t->word, tn_heap_word(TN_HEAP_DEAD, tn_heap_word_epoch(t->word) + 1)) ? TN_HEAP_DONE
																: TN_HEAP_NO;
}

/*
 * Whether a slot has the object of that digest, and it is not DEAD: then t->word is its word. One and the same word before and after the digest says
 * that the digest is that word's: within an epoch the claimer writes it, between RESERVED or WRITING and READY. A word changes three times per epoch
 * at most, so the steps end.
 */
TN_HD enum tn_heap_step tn_heap_match_step(struct tn_heap_slot *slot, const uint64_t digest[2], struct tn_heap_turn *t)
{
	uint64_t word;

	switch (t->phase) {
	case 0:
		t->word = tn_heap_load64(tn_heap_state_word(slot));
		t->phase = 1;
		return tn_heap_word_state(t->word) == TN_HEAP_DEAD ? TN_HEAP_NO : TN_HEAP_MORE;
	case 1:
		t->i = tn_heap_load64(&slot->extra.digest[0]) == digest[0];
		t->phase = 2;
		return TN_HEAP_MORE;
	case 2:
		t->i &= tn_heap_load64(&slot->extra.digest[1]) == digest[1];
		t->phase = 3;
		return TN_HEAP_MORE;
	default:
		word = tn_heap_load64(tn_heap_state_word(slot));
		if (word == t->word)
			return t->i ? TN_HEAP_DONE : TN_HEAP_NO;
		t->phase = 1;
		if (tn_heap_word_epoch(word) != tn_heap_word_epoch(t->word) || tn_heap_word_state(word) == TN_HEAP_DEAD)
			return TN_HEAP_NO;
		t->word = word;
		return TN_HEAP_MORE;
	}
}

/* Counts a lease in this rank's count of the slot. DONE: the object of that epoch stays until tn_heap_unlease. NO: it is not READY. */
TN_HD enum tn_heap_step tn_heap_lease_step(struct tn_heap_slot *slot, uint32_t *count, uint32_t epoch, struct tn_heap_turn *t)
{
	switch (t->phase++) {
	case 0:
		tn_heap_add32(count, 1);
		return TN_HEAP_MORE;
	case 1:
		return tn_heap_load64(tn_heap_state_word(slot)) == tn_heap_word(TN_HEAP_READY, epoch) ? TN_HEAP_DONE : TN_HEAP_MORE;
	default:
		tn_heap_add32(count, UINT32_MAX);
		return TN_HEAP_NO;
	}
}

TN_HD void tn_heap_unlease(uint32_t *count)
{
	tn_heap_add32(count, UINT32_MAX);
}

/* Frees a slot that is DEAD and has no lease. NO: not yet. The master alone. */
TN_HD enum tn_heap_step tn_heap_reclaim_step(struct tn_heap_slot *slot, const uint32_t *counts, uint32_t ranks, struct tn_heap_turn *t)
{
	uint32_t epoch = tn_heap_word_epoch(t->word);

	if (t->phase == 0) {
		t->word = tn_heap_load64(tn_heap_state_word(slot));
		t->phase = 1;
		return (uint32_t)t->word != TN_HEAP_DEAD || tn_heap_word_is_free(t->word) ? TN_HEAP_NO : TN_HEAP_MORE;
	}
	if (t->i < ranks)
		return tn_heap_load32(&counts[t->i++]) == 0 ? TN_HEAP_MORE : TN_HEAP_NO;
	return tn_heap_cas64(tn_heap_state_word(slot), t->word, tn_heap_word(TN_HEAP_DEAD, epoch + 1)) ? TN_HEAP_DONE : TN_HEAP_NO;
}

/*
 * Claims the topmost free slot of a stack: t->slot, with epoch tn_heap_word_epoch(t->word). NO: the stack is empty. state: RESERVED of the master, else
 * WRITING by a rank.
 *
 * The claim is the compare-and-swap of the slot's word; the stack only helps to find it. Whoever meets a claimed slot on top unlinks it, so that
 * nobody waits for a process that died between the two. The master alone pushes: a slot that is not in the stack when the master looks stays out.
 *
 * Between the stack and the claim the master may have given the slot an extent of another class. So a producer, on a host or in a kernel, compares
 * slot->extra.size_class with its stack's class after the claim, when the class is fixed. If they differ, it calls tn_heap_finish with TN_HEAP_DEAD
 * and writes nothing.
 */
TN_HD enum tn_heap_step tn_heap_claim_step(struct tn_heap_slot *slots, uint32_t count, uint64_t *stack, uint32_t state,
					   struct tn_heap_turn *t)
{
	uint64_t word;

	switch (t->phase) {
	case 0:
		t->head = tn_heap_load64(stack);
		t->slot = (uint32_t)t->head - 1;
		t->i = 0;
		t->phase = 1;
		return t->slot < count ? TN_HEAP_MORE : TN_HEAP_NO;
	case 1:
		t->word = tn_heap_load64(tn_heap_state_word(&slots[t->slot]));
		t->phase = tn_heap_word_is_free(t->word) ? 2 : 3;
		return TN_HEAP_MORE;
	case 2:
		word = tn_heap_word(state, tn_heap_word_epoch(t->word) + 1);
		t->i = (uint32_t)tn_heap_cas64(tn_heap_state_word(&slots[t->slot]), t->word, word);
		t->word = word;
		t->phase = t->i ? 3 : 0;
		return TN_HEAP_MORE;
	case 3:
		t->next = tn_heap_load32(&slots[t->slot].extra.next);
		t->phase = 4;
		return TN_HEAP_MORE;
	default:
		tn_heap_cas64(stack, t->head, ((t->head >> 32) + 1) << 32 | (uint32_t)(t->next + 1));
		t->phase = 0;
		return t->i ? TN_HEAP_DONE : TN_HEAP_MORE;
	}
}

/* Puts a free slot that is in no stack on top of one. The master alone. */
TN_HD enum tn_heap_step tn_heap_push_step(struct tn_heap_slot *slots, uint32_t slot, uint64_t *stack, struct tn_heap_turn *t)
{
	switch (t->phase) {
	case 0:
		t->head = tn_heap_load64(stack);
		t->phase = 1;
		return TN_HEAP_MORE;
	case 1:
		tn_heap_store32(&slots[slot].extra.next, (uint32_t)t->head - 1);
		t->phase = 2;
		return TN_HEAP_MORE;
	default:
		t->phase = 0;
		return tn_heap_cas64(stack, t->head, ((t->head >> 32) + 1) << 32 | (slot + 1)) ? TN_HEAP_DONE : TN_HEAP_MORE;
	}
}

/* ---- the same as one call --------------------------------------------------------------------------------------- */

TN_HD int tn_heap_finish(struct tn_heap_slot *slot, uint32_t epoch, uint32_t rank, uint32_t to)
{
	struct tn_heap_turn t = {0, 0, 0, 0, 0, 0};
	enum tn_heap_step step;

	do
		step = tn_heap_finish_step(slot, epoch, rank, to, &t);
	while (step == TN_HEAP_MORE);
	return step == TN_HEAP_DONE;
}

TN_HD int tn_heap_bury(struct tn_heap_slot *slot, uint32_t rank)
{
	struct tn_heap_turn t = {0, 0, 0, 0, 0, 0};
	enum tn_heap_step step;

	do
		step = tn_heap_bury_step(slot, rank, &t);
	while (step == TN_HEAP_MORE);
	return step == TN_HEAP_DONE;
}

TN_HD int tn_heap_lease(struct tn_heap_slot *slot, uint32_t *count, uint32_t epoch)
{
	struct tn_heap_turn t = {0, 0, 0, 0, 0, 0};
	enum tn_heap_step step;

	do
		step = tn_heap_lease_step(slot, count, epoch, &t);
	while (step == TN_HEAP_MORE);
	return step == TN_HEAP_DONE;
}

TN_HD int tn_heap_reclaim(struct tn_heap_slot *slot, const uint32_t *counts, uint32_t ranks)
{
	struct tn_heap_turn t = {0, 0, 0, 0, 0, 0};
	enum tn_heap_step step;

	do
		step = tn_heap_reclaim_step(slot, counts, ranks, &t);
	while (step == TN_HEAP_MORE);
	return step == TN_HEAP_DONE;
}

/* The word of the object of that digest, if the slot has it; else 0. */
TN_HD int tn_heap_match(struct tn_heap_slot *slot, const uint64_t digest[2], uint64_t *word)
{
	struct tn_heap_turn t = {0, 0, 0, 0, 0, 0};
	enum tn_heap_step step;

	do
		step = tn_heap_match_step(slot, digest, &t);
	while (step == TN_HEAP_MORE);
	*word = t.word;
	return step == TN_HEAP_DONE;
}

/* The slot, and its epoch; TN_HEAP_NO_SLOT: the stack is empty. */
TN_HD uint32_t tn_heap_claim(struct tn_heap_slot *slots, uint32_t count, uint64_t *stack, uint32_t state, uint32_t *epoch)
{
	struct tn_heap_turn t = {0, 0, 0, 0, 0, 0};
	enum tn_heap_step step;

	do
		step = tn_heap_claim_step(slots, count, stack, state, &t);
	while (step == TN_HEAP_MORE);
	*epoch = tn_heap_word_epoch(t.word);
	return step == TN_HEAP_DONE ? t.slot : TN_HEAP_NO_SLOT;
}

TN_HD void tn_heap_push(struct tn_heap_slot *slots, uint32_t slot, uint64_t *stack)
{
	struct tn_heap_turn t = {0, 0, 0, 0, 0, 0};

	while (tn_heap_push_step(slots, slot, stack, &t) != TN_HEAP_DONE)
		;
}

/*
 * ---- places --------------------------------------------------------------------------------------------------------
 *
 * layout: a control block whose offsets and counts the caller believes: the heap's own, in a kernel, or a copy that was checked.
 */

/* The smallest class whose extent holds that many bytes; TN_HEAP_CLASSES: none does. */
TN_HD uint32_t tn_heap_class(uint32_t page_bytes, uint64_t bytes)
{
	uint32_t c = 0;

	while (c < TN_HEAP_CLASSES && (uint64_t)page_bytes << c < bytes)
		c++;
	return c;
}

/* At how many ranks an object of these flags lies, if no replica was evicted; 4: the flags are wrong. */
TN_HD uint32_t tn_heap_replicas(uint32_t flags)
{
	return (flags >> 8 & 3u) + 1;
}

TN_HD struct tn_heap_slot *tn_heap_slots(void *base, const struct tn_heap_ctl *layout)
{
	return (struct tn_heap_slot *)(void *)((unsigned char *)base + layout->hdr_base);
}

TN_HD struct tn_heap_slot *tn_heap_slot_at(void *base, uint64_t header_off)
{
	return (struct tn_heap_slot *)(void *)((unsigned char *)base + header_off);
}

/* The leases of a slot: a count per rank. */
TN_HD uint32_t *tn_heap_leases(void *base, const struct tn_heap_ctl *layout, uint32_t slot)
{
	return (uint32_t *)(void *)((unsigned char *)base + layout->lease_base) + (uint64_t)slot * layout->ranks;
}

/* ---- announces -------------------------------------------------------------------------------------------------- */

TN_HD struct tn_heap_announce *tn_heap_announce_at(void *base, const struct tn_heap_ctl *layout, uint32_t turn)
{
	return (struct tn_heap_announce *)(void *)((unsigned char *)base + layout->ann_base) + (turn & (layout->ann_capacity - 1));
}

/* Puts an announce into the ring of the owner's heap. 0: the ring is full; the master finds the object by a scan, later. */
TN_HD int tn_heap_announce(void *base, const struct tn_heap_ctl *layout, const struct tn_heap_announce *a)
{
	struct tn_heap_ctl *ctl = (struct tn_heap_ctl *)base;
	struct tn_heap_announce *cell;
	uint32_t turn;

	do {
		turn = tn_heap_load32(&ctl->ann_head);
		if (turn - tn_heap_load32(&ctl->ann_tail) >= layout->ann_capacity)
			return 0;
	} while (!tn_heap_cas32(&ctl->ann_head, turn, turn + 1));
	cell = tn_heap_announce_at(base, layout, turn);
	cell->key_hash = a->key_hash;
	cell->owner_rank = a->owner_rank;
	cell->epoch = a->epoch;
	cell->header_off = a->header_off;
	cell->payload_off = a->payload_off;
	cell->n_pages = a->n_pages;
	cell->page_size = a->page_size;
	cell->bytes_total = a->bytes_total;
	tn_heap_store32(&cell->turn, turn + 1);
	return 1;
}

/*
 * The slot of the next announce, and the epoch that it is about; the master checks both. TN_HEAP_NO_SLOT: there is none, or its producer has not written it yet.
 * skip: then go on without it, because that producer may be dead. The master alone.
 */
TN_HD uint32_t tn_heap_take_announce(void *base, const struct tn_heap_ctl *layout, int skip, uint32_t *epoch)
{
	struct tn_heap_ctl *ctl = (struct tn_heap_ctl *)base;
	uint32_t tail = ctl->ann_tail, slot = TN_HEAP_NO_SLOT;
	struct tn_heap_announce *cell = tn_heap_announce_at(base, layout, tail);

	if (tail == tn_heap_load32(&ctl->ann_head))
		return TN_HEAP_NO_SLOT;
	*epoch = 0;
	if (tn_heap_load32(&cell->turn) == tail + 1) {
		*epoch = cell->epoch;
		slot = (uint32_t)((cell->header_off - layout->hdr_base) / sizeof(struct tn_heap_slot));
	}
	if (slot != TN_HEAP_NO_SLOT || skip)
		tn_heap_store32(&ctl->ann_tail, tail + 1);
	return slot;
}

#endif
