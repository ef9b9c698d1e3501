/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A doorbell: how one side tells the other which operations to look at. No wake-up is lost, no memory is taken, and no
 * word has two writers.
 *
 * The ringing side keeps a list of numbers, linked from the newest to the oldest; the answering side only reads it, and remembers
 * how far it came. A number is in the list at most once: `asked` counts how often it was put there, `seen` how often
 * the other side took it, and it is put there only while both are equal. So the list cannot overflow, a link does not change while
 * somebody may read it, and a ringing thread that is stopped between two steps holds up nobody.
 *
 * The rule for what is told: the ringing side stores the word that it wants to be looked at, then rings; the answering
 * side answers (which writes `seen`), then loads the word; all four sequentially consistent. A ring that finds `seen` behind `asked` does nothing,
 * because the answer comes later, and the look after it.
 */
#ifndef TN_REGION_DOORBELL_H
#define TN_REGION_DOORBELL_H

#include <stdbool.h>
#include <stdint.h>

struct tn_doorbell_link {
	uint64_t next; /* the list without this number and those put in later */
	uint32_t asked;
	uint32_t unused;
};

/* A view of the words. */
struct tn_doorbell {
	uint64_t *head;		       /* ringing side: how often anything was put in << 32 | the newest number + 1 */
	struct tn_doorbell_link *link; /* ringing side, by number */
	uint32_t *seen;		       /* answering side, by number */
	uint32_t count;		       /* of numbers */
};

/* A ring on its way; each step makes one access to shared memory, so that a test can try every interleaving. */
struct tn_doorbell_turn {
	uint32_t phase;
	uint32_t number;
	uint32_t asked;
	uint64_t head;
};

enum tn_doorbell_step {
	TN_DOORBELL_MORE,
	TN_DOORBELL_DONE,
	TN_DOORBELL_NO, /* ring: it is in the list; take: the list is empty */
	TN_DOORBELL_BROKEN, /* take: the list is none */
};

static inline enum tn_doorbell_step tn_doorbell_ring_step(const struct tn_doorbell *d, struct tn_doorbell_turn *t)
{
	struct tn_doorbell_link *link = &d->link[t->number];
	uint32_t asked;

	switch (t->phase) {
	case 0:
		t->asked = __atomic_load_n(&link->asked, __ATOMIC_SEQ_CST);
		t->phase = 1;
		return TN_DOORBELL_MORE;
	case 1:
		t->phase = 2;
		return __atomic_load_n(&d->seen[t->number], __ATOMIC_SEQ_CST) == t->asked ? TN_DOORBELL_MORE : TN_DOORBELL_NO;
	case 2: /* who loses was late: the winner's number is answered after this one's word was stored */
		asked = t->asked;
		t->phase = 3;
		return __atomic_compare_exchange_n(&link->asked, &asked, asked + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
			       ? TN_DOORBELL_MORE
			       : TN_DOORBELL_NO;
	case 3:
		t->head = __atomic_load_n(d->head, __ATOMIC_RELAXED);
		t->phase = 4;
		return TN_DOORBELL_MORE;
	case 4:
		__atomic_store_n(&link->next, t->head, __ATOMIC_RELAXED);
		t->phase = 5;
		return TN_DOORBELL_MORE;
	default:
		t->phase = 4;
		return __atomic_compare_exchange_n(d->head, &t->head, ((t->head >> 32) + 1) << 32 | (t->number + 1), false,
						   __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)
			       ? TN_DOORBELL_DONE
			       : TN_DOORBELL_MORE;
	}
}

/* Any thread of the ringing side. True: the number came into the list, so wake the other side if it sleeps. */
bool tn_doorbell_ring(const struct tn_doorbell *d, uint32_t number);

/* The answering side's, one thread at a time. */
struct tn_doorbell_taker {
	uint64_t last; /* the list as it was taken before */
	/* Of a take on its way: */
	uint32_t phase, left;
	uint64_t head, at;
};

/* numbers: d->count places; they are filled from the end on, the oldest first. After DONE t->left is the first place. */
static inline enum tn_doorbell_step tn_doorbell_take_step(const struct tn_doorbell *d, struct tn_doorbell_taker *t, uint32_t *numbers)
{
	uint32_t number, n;

	if (t->phase == 0) {
		t->head = t->at = __atomic_load_n(d->head, __ATOMIC_SEQ_CST);
		if (t->head == t->last)
			return TN_DOORBELL_NO;
		n = (uint32_t)(t->head >> 32) - (uint32_t)(t->last >> 32);
		t->left = d->count;
		t->phase = n; /* steps to go */
		return n > 0 && n <= d->count ? TN_DOORBELL_MORE : TN_DOORBELL_BROKEN;
	}
	number = (uint32_t)t->at - 1;
	if (number >= d->count)
		return TN_DOORBELL_BROKEN;
	numbers[--t->left] = number;
	t->at = __atomic_load_n(&d->link[number].next, __ATOMIC_RELAXED);
	if (--t->phase > 0)
		return TN_DOORBELL_MORE;
	if (t->at != t->last)
		return TN_DOORBELL_BROKEN;
	t->last = t->head;
	return TN_DOORBELL_DONE;
}

/*
 * What came into the list since the last take: *first of d->count places, up to the end, the oldest number first. Each has to be
 * answered. If the list is none, because the other side has written what it must not, these are all numbers that were not answered.
 * Returns how many.
 */
uint32_t tn_doorbell_take(const struct tn_doorbell *d, struct tn_doorbell_taker *t, uint32_t *numbers, uint32_t *first);

/* Whether a take would find anything. Who says first that it sleeps and looks then (both SEQ_CST) misses no ring that found it awake. */
static inline bool tn_doorbell_rang(const struct tn_doorbell *d, const struct tn_doorbell_taker *t)
{
	return __atomic_load_n(d->head, __ATOMIC_SEQ_CST) != t->last;
}

/* Before the words are looked at that the other side may have changed. */
static inline void tn_doorbell_answer(const struct tn_doorbell *d, uint32_t number)
{
	uint32_t asked = __atomic_load_n(&d->link[number].asked, __ATOMIC_RELAXED);

	__atomic_store_n(&d->seen[number], asked, __ATOMIC_SEQ_CST);
}

/* Whether the number is in the list, or about to come into it, and was not answered yet. */
static inline bool tn_doorbell_pending(const struct tn_doorbell *d, uint32_t number)
{
	uint32_t asked = __atomic_load_n(&d->link[number].asked, __ATOMIC_SEQ_CST);

	return __atomic_load_n(&d->seen[number], __ATOMIC_SEQ_CST) != asked;
}

#endif
