/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every interleaving of a few threads that ring a doorbell and one that answers: the steps of doorbell.h, one access to shared
 * memory each, tried in every order (sequentially consistent; weaker orders are ThreadSanitizer's part, region_test.c).
 *
 * Each ringing thread stores its word before it rings. The answering one looks at all words of a number after its answer. In the
 * end nobody may have stored a word that was not looked at, no number may have been taken twice for one ring, and the list is whole.
 */
#include <string.h>

#include "base/hash.h"
#include "region/doorbell.h"
#include "tn_test.h"

#define NUMBERS_MAX 2u
#define RINGERS_MAX 3u
#define VISITED (1u << 23)

/* All there is; compared as bytes, so it is zeroed before use. */
struct world {
	uint64_t head;
	struct tn_doorbell_link link[NUMBERS_MAX];
	uint32_t seen[NUMBERS_MAX];
	struct ringer {
		struct tn_doorbell_turn turn;
		uint32_t word;	 /* what it has stored */
		uint32_t stored; /* for the ring under way */
		uint32_t done;
		uint32_t found; /* what the answering side has seen of it */
	} ringer[RINGERS_MAX];
	struct {
		struct tn_doorbell_taker taker;
		uint32_t numbers[NUMBERS_MAX];
		uint32_t next;	  /* to be answered; NUMBERS_MAX: none */
		uint32_t asked;	  /* of the answer under way, */
		uint32_t looking; /* and how far it is: 0 load, 1 store, then a ringer each */
	} answerer;
	uint32_t rings, takes;
};

struct setting {
	uint32_t numbers, ringers, each;
	uint64_t start;
	uint64_t *seen; /* hashes of the worlds that were visited */
	uint32_t worlds, ends;
};

static struct tn_doorbell bell(struct world *w, const struct setting *s)
{
	return (struct tn_doorbell){&w->head, w->link, w->seen, s->numbers};
}

static uint32_t number_of(const struct setting *s, uint32_t ringer)
{
	return ringer % s->numbers;
}

static int visited(struct setting *s, const struct world *w)
{
	uint64_t h = tn_hash64(w, sizeof(*w)) | 1;
	uint32_t at = (uint32_t)(h >> 20) % VISITED;

	for (; s->seen[at]; at = (at + 1) % VISITED)
		if (s->seen[at] == h)
			return 1;
	assert_true(s->worlds < VISITED / 2);
	s->seen[at] = h;
	s->worlds++;
	return 0;
}

static void step_ringer(const struct setting *s, struct world *w, uint32_t i)
{
	struct tn_doorbell d = bell(w, s);
	struct ringer *r = &w->ringer[i];
	enum tn_doorbell_step step;

	if (!r->stored) {
		r->word++;
		r->stored = 1;
		memset(&r->turn, 0, sizeof(r->turn));
		r->turn.number = number_of(s, i);
		return;
	}
	step = tn_doorbell_ring_step(&d, &r->turn);
	if (step == TN_DOORBELL_MORE)
		return;
	w->rings += step == TN_DOORBELL_DONE;
	r->stored = 0;
	r->done++;
	memset(&r->turn, 0, sizeof(r->turn));
}

/* Answers one number, an access per step. */
static void step_answer(const struct setting *s, struct world *w)
{
	uint32_t number = w->answerer.numbers[w->answerer.next], k = w->answerer.looking++;

	if (k == 0) {
		w->answerer.asked = w->link[number].asked;
		assert_int_equal(w->answerer.asked, w->seen[number] + 1); /* taken once per ring */
		return;
	}
	if (k == 1) {
		w->seen[number] = w->answerer.asked;
		return;
	}
	if (k - 2 < s->ringers) {
		if (number_of(s, k - 2) == number)
			w->ringer[k - 2].found = w->ringer[k - 2].word;
		return;
	}
	w->answerer.looking = w->answerer.asked = 0;
	w->answerer.next++;
	w->takes++;
}

static void step_answerer(const struct setting *s, struct world *w)
{
	struct tn_doorbell d = bell(w, s);
	enum tn_doorbell_step step;

	if (w->answerer.next < s->numbers) {
		step_answer(s, w);
		return;
	}
	step = tn_doorbell_take_step(&d, &w->answerer.taker, w->answerer.numbers);
	assert_int_not_equal(step, TN_DOORBELL_BROKEN);
	if (step == TN_DOORBELL_MORE)
		return;
	if (step == TN_DOORBELL_DONE)
		w->answerer.next = w->answerer.taker.left;
	w->answerer.taker = (struct tn_doorbell_taker){.last = w->answerer.taker.last};
	if (step == TN_DOORBELL_NO)
		memset(w->answerer.numbers, 0, sizeof(w->answerer.numbers));
}

static bool answerer_is_busy(const struct setting *s, const struct world *w)
{
	return w->answerer.next < s->numbers || w->answerer.taker.phase > 0 || w->head != w->answerer.taker.last;
}

static void check_end(struct setting *s, const struct world *w)
{
	s->ends++;
	assert_int_equal(w->rings, w->takes);
	for (uint32_t i = 0; i < s->ringers; i++)
		assert_int_equal(w->ringer[i].found, w->ringer[i].word);
	for (uint32_t n = 0; n < s->numbers; n++)
		assert_int_equal(w->link[n].asked, w->seen[n]);
}

static void explore(struct setting *s, const struct world *w)
{
	struct world next;
	int busy = 0;

	if (visited(s, w))
		return;
	for (uint32_t i = 0; i < s->ringers; i++) {
		if (w->ringer[i].done == s->each)
			continue;
		busy = 1;
		memcpy(&next, w, sizeof(next));
		step_ringer(s, &next, i);
		explore(s, &next);
	}
	if (answerer_is_busy(s, w)) {
		busy = 1;
		memcpy(&next, w, sizeof(next));
		step_answerer(s, &next);
		explore(s, &next);
	}
	if (!busy)
		check_end(s, w);
}

static void try_all(uint32_t numbers, uint32_t ringers, uint32_t each, uint64_t start)
{
	struct setting s = {numbers, ringers, each, start, calloc(VISITED, sizeof(uint64_t)), 0, 0};
	struct world w;

	assert_non_null(s.seen);
	memset(&w, 0, sizeof(w));
	w.head = w.answerer.taker.last = start << 32;
	w.answerer.next = numbers;
	for (uint32_t n = 0; n < numbers; n++)
		w.link[n].asked = w.seen[n] = (uint32_t)start;
	explore(&s, &w);
	assert_true(s.ends > 0);
	printf("# %u numbers, %u threads that ring %u times, from %#llx: %u states, %u ends\n", numbers, ringers, each,
	       (unsigned long long)start, s.worlds, s.ends);
	free(s.seen);
}

static void no_word_is_overlooked_where_threads_ring_for_one_number(void **state)
{
	try_all(1, 1, 4, 0);
	try_all(1, 2, 2, 0);
	try_all(1, 2, 2, UINT32_MAX - 1); /* the counts wrap */
}

static void no_word_is_overlooked_where_threads_ring_for_two_numbers(void **state)
{
	try_all(2, 2, 3, UINT32_MAX);
	try_all(2, 3, 1, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_word_is_overlooked_where_threads_ring_for_one_number),
		cmocka_unit_test(no_word_is_overlooked_where_threads_ring_for_two_numbers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
