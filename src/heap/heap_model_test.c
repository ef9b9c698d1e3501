/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every interleaving of two producers, a reader and the master on a heap of one or two slots: the steps of heap_layout.h, one access to shared memory each,
 * in every order (sequentially consistent; weaker orders are ThreadSanitizer's part). A producer claims a slot by itself, or is given one by the master; it may die between any two
 * steps. The master removes, expires and frees as it likes.
 *
 * Always: no producer writes to a slot that has another epoch than its own, and a reader under a lease finds the object that was published, whole. In every state that is
 * reached all parties are then let run to their end: each slot must come back to the stack, once.
 */
#include <stdbool.h>
#include <string.h>

#include <tenuto/heap_layout.h>

#include "base/hash.h"
#include "tn_test.h"

#define SLOTS 2u
#define RANKS 2u /* the producers; the reader is rank 1, too */
#define VISITED (1u << 23)

enum action { IDLE, CLAIM, WRITE, READ, GRANT, KILL, EXPIRE, RECLAIM, PUSH, SWEEP, BURY, RESIZE };

struct actor {
	struct tn_heap_turn t;
	uint32_t epoch;
	uint8_t action, phase, slot, at;
};

/* How often each thing may happen. */
struct budget {
	uint8_t claims[RANKS], grants, reads, kills, expires, sweeps, deaths, resizes;
};

/* All there is; compared as bytes, so it is zeroed before use. */
struct world {
	struct tn_heap_slot slot[SLOTS];
	uint32_t leases[SLOTS][RANKS];
	uint64_t stack[2]; /* by class */
	uint8_t payload[SLOTS][2];
	/* what nobody can see */
	struct budget left;
	uint8_t slots, objects, published[SLOTS]; /* objects: opened so far */
	uint32_t published_epoch[SLOTS], ended_epoch[SLOTS]; /* ended: by the master, before the object was READY */
	/* private */
	struct actor producer[RANKS], reader, master;
	uint8_t object[RANKS], dead[RANKS], granted[RANKS], stacked[SLOTS], resized;
	struct tn_heap_turn grant[RANKS]; /* slot and word of a plan on its way */
};

struct setting {
	uint64_t *seen; /* hashes of the worlds that were visited */
	uint32_t worlds;
};

static void rest(struct actor *a)
{
	memset(a, 0, sizeof(*a));
}

static void begin(struct actor *a, uint8_t action, uint8_t slot)
{
	rest(a);
	a->action = action;
	a->slot = slot;
}

/* ---- producers -------------------------------------------------------------------------------------------------- */

static void start_writing(struct world *w, uint32_t p, uint8_t slot, uint32_t epoch, bool granted)
{
	struct actor *a = &w->producer[p];

	begin(a, WRITE, slot);
	a->epoch = epoch;
	a->phase = granted ? 0 : 1; /* to begin with; to the header */
	a->at = TN_HEAP_READY;
	if (!granted && w->slot[slot].extra.size_class != 0) {
		a->phase = 4;
		a->at = TN_HEAP_DEAD;
	} else if (!granted)
		w->object[p] = ++w->objects;
}

/* The header and payload of an object; its end. */
static void write_step(struct world *w, uint32_t p)
{
	struct actor *a = &w->producer[p];
	struct tn_heap_slot *s = &w->slot[a->slot];
	enum tn_heap_step step;

	if (a->phase == 0) {
		if (!tn_heap_begin(s, a->epoch, p)) {
			rest(a);
			return;
		}
		a->phase = 2;
		return;
	}
	if (a->phase <= 3) {
		assert_int_equal(s->header.epoch, a->epoch); /* the memory is ours still, */
		assert_int_equal(s->extra.size_class, 0);    /* and as large as was asked for */
		if (a->phase == 1)
			s->extra.digest[0] = w->object[p];
		else
			w->payload[a->slot][a->phase - 2] = w->object[p];
		a->phase++;
		return;
	}
	step = tn_heap_finish_step(s, a->epoch, p, a->at, &a->t);
	if (step == TN_HEAP_MORE)
		return;
	if (step == TN_HEAP_DONE && a->at == TN_HEAP_READY) {
		assert_int_not_equal(w->ended_epoch[a->slot], a->epoch);
		w->published[a->slot] = w->object[p];
		w->published_epoch[a->slot] = a->epoch;
	}
	rest(a);
}

static void producer_step(struct world *w, uint32_t p)
{
	struct actor *a = &w->producer[p];
	enum tn_heap_step step;

	if (a->action == WRITE) {
		write_step(w, p);
		return;
	}
	step = tn_heap_claim_step(w->slot, w->slots, &w->stack[0], tn_heap_by(TN_HEAP_WRITING, p), &a->t);
	if (step == TN_HEAP_DONE)
		start_writing(w, p, (uint8_t)a->t.slot, tn_heap_word_epoch(a->t.word), false);
	else if (step == TN_HEAP_NO)
		rest(a);
}

static void take_grant(struct world *w, uint32_t p)
{
	w->granted[p] = 0;
	start_writing(w, p, (uint8_t)w->grant[p].slot, tn_heap_word_epoch(w->grant[p].word), true);
	memset(&w->grant[p], 0, sizeof(w->grant[p]));
	write_step(w, p);
}

/* ---- the reader ------------------------------------------------------------------------------------------------- */

/* Its slot is a place of the index, which may be out of date; at: the object that it looks for. */
static void reader_step(struct world *w)
{
	struct actor *a = &w->reader;
	struct tn_heap_slot *s = &w->slot[a->slot];
	uint32_t *count = &w->leases[a->slot][1];
	enum tn_heap_step step;

	switch (a->phase) {
	case 0:
		step = tn_heap_match_step(s, (const uint64_t[]){a->at, 0}, &a->t);
		if (step == TN_HEAP_MORE)
			return;
		if (step == TN_HEAP_NO || tn_heap_word_state(a->t.word) != TN_HEAP_READY) {
			rest(a);
			return;
		}
		a->epoch = tn_heap_word_epoch(a->t.word);
		a->phase = 1;
		memset(&a->t, 0, sizeof(a->t));
		return;
	case 1:
		step = tn_heap_lease_step(s, count, a->epoch, &a->t);
		a->phase += step == TN_HEAP_DONE;
		if (step == TN_HEAP_NO)
			rest(a);
		return;
	case 2:
		assert_int_equal(w->published_epoch[a->slot], a->epoch);
		assert_int_equal(w->published[a->slot], a->at);
		assert_int_equal(s->extra.digest[0], a->at);
		break;
	case 3:
	case 4:
		assert_int_equal(w->payload[a->slot][a->phase - 3], a->at);
		break;
	default:
		tn_heap_unlease(count);
		rest(a);
		return;
	}
	a->phase++;
}

/* ---- the master ------------------------------------------------------------------------------------------------- */

static uint64_t *stack_of(struct world *w, uint8_t slot)
{
	return &w->stack[w->slot[slot].extra.size_class];
}

static void freed(struct world *w, uint8_t slot)
{
	if (w->stacked[slot])
		rest(&w->master);
	else
		begin(&w->master, PUSH, slot);
}

static void grant_step(struct world *w)
{
	struct actor *a = &w->master;
	enum tn_heap_step step;

	if (a->phase == 0) {
		step = tn_heap_claim_step(w->slot, w->slots, &w->stack[0], TN_HEAP_RESERVED, &a->t);
		a->phase = step == TN_HEAP_DONE;
		if (step == TN_HEAP_NO)
			rest(a);
		else if (step == TN_HEAP_DONE)
			w->stacked[a->t.slot] = 0;
		return;
	}
	w->object[0] = ++w->objects;
	w->slot[a->t.slot].extra.digest[0] = w->object[0];
	w->grant[0] = a->t;
	w->granted[0] = 1;
	rest(a);
}

static void expire_step(struct world *w)
{
	struct actor *a = &w->master;
	struct tn_heap_slot *s = &w->slot[a->slot];
	uint32_t epoch = tn_heap_word_epoch(a->t.word), rank = tn_heap_word_rank(a->t.word);

	if (a->phase++ == 0) {
		a->t.word = tn_heap_load64(tn_heap_state_word(s));
		if (tn_heap_word_state(a->t.word) > TN_HEAP_WRITING)
			rest(a);
	} else if (tn_heap_word_state(a->t.word) == TN_HEAP_RESERVED && tn_heap_revoke(s, epoch)) {
		w->ended_epoch[a->slot] = epoch;
		freed(w, a->slot);
	} else {
		if (tn_heap_move(s, epoch, tn_heap_by(TN_HEAP_WRITING, rank), tn_heap_by(TN_HEAP_DEAD, rank)))
			w->ended_epoch[a->slot] = epoch;
		rest(a);
	}
}

/* The stack's slots, then those that are free and not among them. */
static void sweep_step(struct world *w)
{
	struct actor *a = &w->master;

	switch (a->phase) {
	case 0:
		if (a->at == 0)
			memset(w->stacked, 0, sizeof(w->stacked));
		a->t.next = (uint32_t)tn_heap_load64(&w->stack[a->at]) - 1;
		a->phase = 1;
		return;
	case 1:
		if (a->t.next < w->slots && !w->stacked[a->t.next]) {
			w->stacked[a->t.next] = 1;
			a->t.next = tn_heap_load32(&w->slot[a->t.next].extra.next);
			return;
		}
		a->t.next = 0;
		a->phase = a->at == 0 && w->resized ? 0 : 2;
		a->at = a->phase == 0;
		return;
	case 2:
		if (a->at == w->slots) {
			rest(a);
			return;
		}
		a->phase = tn_heap_word_is_free(tn_heap_load64(tn_heap_state_word(&w->slot[a->at]))) && !w->stacked[a->at] ? 3 : 2;
		a->at += a->phase == 2;
		return;
	default:
		if (tn_heap_push_step(w->slot, a->at, stack_of(w, a->at), &a->t) != TN_HEAP_DONE)
			return;
		memset(&a->t, 0, sizeof(a->t));
		w->stacked[a->at++] = 1;
		a->phase = 2;
	}
}

/* A free slot gets an extent of the other class, as by a split. */
static void resize_step(struct world *w)
{
	struct actor *a = &w->master;
	struct tn_heap_slot *s = &w->slot[a->t.slot];
	enum tn_heap_step step;

	switch (a->phase) {
	case 0:
		step = tn_heap_claim_step(w->slot, w->slots, &w->stack[0], TN_HEAP_RESERVED, &a->t);
		a->phase = step == TN_HEAP_DONE;
		if (step == TN_HEAP_NO)
			rest(a);
		else if (step == TN_HEAP_DONE)
			w->stacked[a->t.slot] = 0;
		return;
	case 1:
		w->resized = 1;
		s->extra.size_class = 1;
		a->phase = 2;
		return;
	default:
		assert_true(tn_heap_revoke(s, tn_heap_word_epoch(a->t.word)));
		begin(a, PUSH, (uint8_t)a->t.slot);
	}
}

static void master_step(struct world *w)
{
	struct actor *a = &w->master;
	struct tn_heap_slot *s = &w->slot[a->slot];
	uint8_t slot = a->slot;
	enum tn_heap_step step = TN_HEAP_MORE;

	switch (a->action) {
	case GRANT:
		grant_step(w);
		return;
	case KILL:
		if (a->phase++ == 0) {
			a->t.word = tn_heap_load64(tn_heap_state_word(s));
			return;
		}
		tn_heap_move(s, tn_heap_word_epoch(a->t.word), TN_HEAP_READY, TN_HEAP_DEAD);
		rest(a);
		return;
	case EXPIRE:
		expire_step(w);
		return;
	case SWEEP:
		sweep_step(w);
		return;
	case RESIZE:
		resize_step(w);
		return;
	case PUSH:
		if (tn_heap_push_step(w->slot, slot, stack_of(w, slot), &a->t) == TN_HEAP_DONE) {
			w->stacked[slot] = 1;
			rest(a);
		}
		return;
	case RECLAIM:
		step = tn_heap_reclaim_step(s, w->leases[slot], RANKS, &a->t);
		break;
	default:
		step = tn_heap_bury_step(s, a->at, &a->t);
	}
	if (step == TN_HEAP_DONE)
		freed(w, slot);
	else if (step == TN_HEAP_NO)
		rest(a);
}

/* ---- all of them ------------------------------------------------------------------------------------------------ */

static void die(struct world *w, uint32_t p)
{
	w->dead[p] = 1;
	w->granted[p] = 0;
	memset(&w->grant[p], 0, sizeof(w->grant[p]));
	rest(&w->producer[p]);
}

/* Whether anything is wrong with a world once all have ended. */
static void let_run(struct world w)
{
	uint32_t found = 0, epoch, slot;

	for (uint32_t p = 0; p < RANKS; p++)
		while (w.producer[p].action)
			producer_step(&w, p);
	while (w.reader.action)
		reader_step(&w);
	while (w.master.action)
		master_step(&w);
	for (uint8_t s = 0; s < w.slots; s++) {
		static const uint8_t ends[] = {KILL, EXPIRE, RECLAIM, BURY};

		for (uint32_t i = 0; i < sizeof(ends); i++)
			for (uint8_t p = 0; p < RANKS; p++) {
				if (ends[i] == BURY && !w.dead[p])
					continue;
				begin(&w.master, ends[i], s);
				w.master.at = p;
				while (w.master.action)
					master_step(&w);
			}
	}
	begin(&w.master, SWEEP, 0);
	while (w.master.action)
		master_step(&w);
	for (uint32_t c = 0; c < 2; c++)
		while ((slot = tn_heap_claim(w.slot, w.slots, &w.stack[c], TN_HEAP_RESERVED, &epoch)) != TN_HEAP_NO_SLOT) {
			assert_false(found >> slot & 1);
			assert_int_equal(w.slot[slot].extra.size_class, c);
			found |= 1u << slot;
		}
	assert_int_equal(found, (1u << w.slots) - 1);
}

static bool visited(struct setting *s, const struct world *w)
{
	uint64_t h = tn_hash64(w, sizeof(*w)) | 1;
	uint32_t at = (uint32_t)(h >> 20) % VISITED;

	for (; s->seen[at]; at = (at + 1) % VISITED)
		if (s->seen[at] == h)
			return true;
	assert_true(s->worlds < VISITED / 2);
	s->seen[at] = h;
	s->worlds++;
	return false;
}

static void explore(struct setting *s, const struct world *w);

static void explore_producer(struct setting *s, const struct world *w, uint32_t p)
{
	struct world next;

	if (w->dead[p])
		return;
	memcpy(&next, w, sizeof(next));
	if (w->producer[p].action) {
		producer_step(&next, p);
		explore(s, &next);
	} else if (w->granted[p]) {
		take_grant(&next, p);
		explore(s, &next);
	} else if (w->left.claims[p]) {
		next.left.claims[p]--;
		begin(&next.producer[p], CLAIM, 0);
		producer_step(&next, p);
		explore(s, &next);
	}
	if (w->left.deaths && (w->producer[p].action || w->granted[p])) {
		memcpy(&next, w, sizeof(next));
		next.left.deaths--;
		die(&next, p);
		explore(s, &next);
	}
}

static uint8_t *budget_of(struct world *w, uint8_t action)
{
	return action == GRANT ? &w->left.grants : action == KILL ? &w->left.kills : action == EXPIRE ? &w->left.expires
	       : action == SWEEP ? &w->left.sweeps : action == RESIZE ? &w->left.resizes : NULL;
}

static void explore_master(struct setting *s, const struct world *w)
{
	struct world next;

	if (w->master.action) {
		memcpy(&next, w, sizeof(next));
		master_step(&next);
		explore(s, &next);
		return;
	}
	for (uint8_t action = GRANT; action <= RESIZE; action++)
		for (uint8_t slot = 0; slot < w->slots; slot++) {
			uint8_t *budget;

			memcpy(&next, w, sizeof(next));
			budget = budget_of(&next, action);
			if (action == PUSH || (budget && !*budget) || ((action == GRANT || action == SWEEP || action == RESIZE) && slot) ||
			    (action == GRANT && (w->granted[0] || w->producer[0].action || w->dead[0])) ||
			    (action == BURY && !w->dead[0] && !w->dead[1]))
				continue;
			if (budget)
				--*budget;
			begin(&next.master, action, slot);
			next.master.at = action == BURY && !w->dead[0];
			master_step(&next);
			explore(s, &next);
		}
}

static void explore(struct setting *s, const struct world *w)
{
	struct world next;

	if (visited(s, w))
		return;
	let_run(*w);
	for (uint32_t p = 0; p < RANKS; p++)
		explore_producer(s, w, p);
	if (w->reader.action) {
		memcpy(&next, w, sizeof(next));
		reader_step(&next);
		explore(s, &next);
	} else if (w->left.reads) {
		for (uint8_t i = 0; i < w->slots * w->objects; i++) {
			memcpy(&next, w, sizeof(next));
			next.left.reads--;
			begin(&next.reader, READ, i / w->objects);
			next.reader.at = i % w->objects + 1;
			reader_step(&next);
			explore(s, &next);
		}
	}
	explore_master(s, w);
}

static void explore_from(const char *what, uint8_t slots, struct budget budget)
{
	struct setting s = {calloc(VISITED, sizeof(uint64_t)), 0};
	struct world w;

	assert_non_null(s.seen);
	memset(&w, 0, sizeof(w));
	w.slots = slots;
	w.left = budget;
	for (uint8_t i = 0; i < SLOTS; i++)
		w.slot[i].header.state = TN_HEAP_DEAD;
	for (uint8_t i = 0; i < slots; i++) {
		tn_heap_push(w.slot, i, &w.stack[0]);
		w.stacked[i] = 1;
	}
	explore(&s, &w);
	printf("# %s: %u states\n", what, s.worlds);
	assert_true(s.worlds > 1000);
	free(s.seen);
}

static void a_reader_finds_what_was_published_or_nothing(void **state)
{
	explore_from("one slot, three objects, two reads", 1, (struct budget){.claims = {2, 1}, .reads = 2, .kills = 2});
}

static void a_producer_that_is_late_writes_to_nobody_elses_memory(void **state)
{
	explore_from("one slot, expiry", 1, (struct budget){.claims = {1, 1}, .grants = 1, .reads = 1, .kills = 1, .expires = 1});
}

static void a_slot_that_two_claim_has_one_winner_and_comes_back(void **state)
{
	explore_from("two slots, three claims", 2, (struct budget){.claims = {2, 1}, .kills = 2, .sweeps = 1});
	explore_from("two slots, four claims", 2, (struct budget){.claims = {2, 2}, .kills = 3});
	explore_from("two slots, grant", 2, (struct budget){.claims = {0, 1}, .grants = 1, .sweeps = 1, .expires = 1});
}

static void a_slot_that_is_of_another_class_by_now_is_not_written(void **state)
{
	explore_from("one slot, a split", 1, (struct budget){.claims = {1, 1}, .kills = 1, .resizes = 1, .deaths = 1});
	explore_from("two slots, a split", 2, (struct budget){.claims = {1, 1}, .resizes = 1, .sweeps = 1});
}

static void what_a_dead_producer_leaves_comes_back(void **state)
{
	explore_from("one slot, a death", 1, (struct budget){.claims = {1, 1}, .grants = 1, .reads = 1, .kills = 1, .deaths = 1});
	explore_from("two slots, a death", 2, (struct budget){.claims = {1, 1}, .sweeps = 1, .deaths = 1});
}

static void a_claimer_that_dies_before_it_unlinks_holds_up_nobody(void **state)
{
	struct tn_heap_slot slots[3];
	struct tn_heap_turn t = {0};
	uint64_t stack = 0;
	uint32_t epoch;

	memset(slots, 0, sizeof(slots));
	for (uint32_t i = 0; i < 3; i++) {
		slots[i].header.state = TN_HEAP_DEAD;
		tn_heap_push(slots, i, &stack);
	}
	while (slots[2].header.state == TN_HEAP_DEAD)
		assert_int_equal(tn_heap_claim_step(slots, 3, &stack, tn_heap_by(TN_HEAP_WRITING, 0), &t), TN_HEAP_MORE);
	assert_int_equal((uint32_t)stack - 1, 2);
	assert_int_equal(tn_heap_claim(slots, 3, &stack, tn_heap_by(TN_HEAP_WRITING, 1), &epoch), 1);
	assert_int_equal(tn_heap_claim(slots, 3, &stack, tn_heap_by(TN_HEAP_WRITING, 1), &epoch), 0);
	assert_int_equal(tn_heap_claim(slots, 3, &stack, tn_heap_by(TN_HEAP_WRITING, 1), &epoch), TN_HEAP_NO_SLOT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_claimer_that_dies_before_it_unlinks_holds_up_nobody),
		cmocka_unit_test(a_reader_finds_what_was_published_or_nothing),
		cmocka_unit_test(a_producer_that_is_late_writes_to_nobody_elses_memory),
		cmocka_unit_test(a_slot_that_two_claim_has_one_winner_and_comes_back),
		cmocka_unit_test(a_slot_that_is_of_another_class_by_now_is_not_written),
		cmocka_unit_test(what_a_dead_producer_leaves_comes_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
