/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a heap: which slot has the object of a key. A hash table with linear probing in the directory, written by the master and read by all
 * processes without a lock.
 *
 * A place is only a hint. Whether the slot has that object is decided by its header: the digest, between two loads of one and
 * the same word {state, epoch}, and the epoch that the master has admitted. So a place that is out of date finds nothing, and nothing wrong. A dropped place stays filled as GONE, so that the probes of
 * others go on behind it; when three quarters are filled, the index is built anew. Replicas have a place each.
 */
#include <errno.h>
#include <sched.h>

#include "heap/segment.h"

#define PATIENCE 100000u /* yields while the index is being built anew */

/* A producer that claims a slot by itself may write an object that nobody may find: there is one of its key. */
static bool is_admitted(const struct tn_heap_slot *s, uint64_t word)
{
	return __atomic_load_n(&s->extra.admitted, __ATOMIC_ACQUIRE) == tn_heap_word_epoch(word);
}

static bool matches(const struct tn_heap_memory *m, const struct tn_heap_name *name, uint64_t object, struct tn_heap_found *out)
{
	uint32_t rank = (uint32_t)(object >> 32), slot = (uint32_t)object - 1;
	uint64_t word;

	if (rank >= m->ranks || slot >= m->layout.hdr_count || !tn_heap_match(tn_heap_slot_of(m, rank, slot), name->digest, &word) ||
	    !is_admitted(tn_heap_slot_of(m, rank, slot), word))
		return false;
	*out = (struct tn_heap_found){rank, slot, word};
	return true;
}

/* How good a match is: 4 is best. */
static uint32_t value_of(const struct tn_heap_memory *m, const struct tn_heap_found *f, uint32_t near)
{
	if (tn_heap_word_state(f->word) != TN_HEAP_READY)
		return 1;
	if (f->rank == near)
		return 4;
	return tn_heap_life_of(tn_heap_load64(&m->dir->member[f->rank].life)) == TN_HEAP_ALIVE ? 3 : 2;
}

/* The flags may be those of the slot's next object: then the caller finds out that this one is gone. */
static bool has_replicas(const struct tn_heap_memory *m, const struct tn_heap_found *f)
{
	return tn_heap_replicas(__atomic_load_n(&tn_heap_slot_of(m, f->rank, f->slot)->header.flags, __ATOMIC_RELAXED)) > 1;
}

static bool probe(const struct tn_heap_memory *m, const struct tn_heap_name *name, uint32_t near, uint64_t without, struct tn_heap_found *out)
{
	uint32_t best = 0;

	for (uint32_t i = 0; i < m->places && best < 4; i++) {
		struct tn_heap_place *p = &m->dir->place[(name->hash + i) & (m->places - 1)];
		uint64_t object = __atomic_load_n(&p->object, __ATOMIC_ACQUIRE);
		struct tn_heap_found f;

		if (object == 0)
			break;
		if (object == TN_HEAP_GONE || __atomic_load_n(&p->key_hash, __ATOMIC_ACQUIRE) != name->hash || !matches(m, name, object, &f) ||
		    (without >> f.rank & 1))
			continue;
		if (value_of(m, &f, near) > best) {
			*out = f;
			best = value_of(m, &f, near);
		}
		if (!has_replicas(m, &f))
			break;
	}
	return best > 0;
}

int tn_heap_find(const struct tn_heap_memory *m, const struct tn_heap_name *name, uint32_t near, uint64_t without, struct tn_heap_found *out)
{
	for (uint32_t i = 0; i < PATIENCE; i++) {
		uint32_t turn = tn_heap_load32(&m->dir->turn);

		if (probe(m, name, near, without, out))
			return 0;
		if (turn % 2 == 0 && tn_heap_load32(&m->dir->turn) == turn)
			return -ENOENT;
		sched_yield();
	}
	return -EAGAIN;
}

static void insert(struct tn_heap_index *x, const struct tn_heap_memory *m, uint32_t rank, uint32_t slot)
{
	uint64_t hash = tn_heap_slot_of(m, rank, slot)->header.key_hash, object = 0;
	uint32_t mask = m->places - 1, at = (uint32_t)hash & mask;

	for (uint32_t i = 0; i <= mask; i++, at = (at + 1) & mask) {
		object = m->dir->place[at].object;
		if (object == 0 || object == TN_HEAP_GONE)
			break;
	}
	x->filled += object == 0;
	__atomic_store_n(&m->dir->place[at].key_hash, hash, __ATOMIC_RELAXED);
	__atomic_store_n(&m->dir->place[at].object, (uint64_t)rank << 32 | (slot + 1), __ATOMIC_RELEASE);
}

void tn_heap_index_add(struct tn_heap_index *x, const struct tn_heap_memory *m, uint32_t rank, uint32_t slot)
{
	struct tn_heap_slot *s = tn_heap_slot_of(m, rank, slot);
	uint64_t word = __atomic_load_n(tn_heap_state_word(s), __ATOMIC_ACQUIRE); /* whoever writes it may commit meanwhile */

	__atomic_store_n(&s->extra.admitted, tn_heap_word_epoch(word), __ATOMIC_RELEASE); /* first: what a reader found, the next master finds, too */
	if (x->filled >= m->places / 4 * 3)
		tn_heap_index_build(x, m); /* finds this one, too */
	else
		insert(x, m, rank, slot);
}

void tn_heap_index_drop(const struct tn_heap_memory *m, uint32_t rank, uint32_t slot)
{
	uint64_t hash = tn_heap_slot_of(m, rank, slot)->header.key_hash, object;
	uint32_t mask = m->places - 1, at = (uint32_t)hash & mask;

	for (uint32_t i = 0; i <= mask && (object = m->dir->place[at].object) != 0; i++, at = (at + 1) & mask)
		if (object == ((uint64_t)rank << 32 | (slot + 1))) {
			__atomic_store_n(&m->dir->place[at].object, TN_HEAP_GONE, __ATOMIC_RELAXED);
			return;
		}
}

void tn_heap_index_build(struct tn_heap_index *x, const struct tn_heap_memory *m)
{
	__atomic_store_n(&m->dir->turn, m->dir->turn | 1, __ATOMIC_RELAXED); /* a master may have died here */
	for (uint32_t i = 0; i < m->places; i++)
		__atomic_store_n(&m->dir->place[i].object, 0, __ATOMIC_RELEASE); /* after the turn is odd */
	x->filled = 0;
	for (uint32_t r = 0; r < m->ranks; r++)
		for (uint32_t i = 0, head = tn_heap_head(m, r); i < head; i++) {
			struct tn_heap_slot *s = tn_heap_slot_of(m, r, i);
			uint64_t word = tn_heap_load64(tn_heap_state_word(s));

			if (tn_heap_word_state(word) != TN_HEAP_DEAD && is_admitted(s, word))
				insert(x, m, r, i);
		}
	__atomic_store_n(&m->dir->turn, m->dir->turn + 1, __ATOMIC_RELEASE);
}
