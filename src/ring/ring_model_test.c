/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every interleaving of a few producers and consumers on small queues: the steps of push and pop as
 * tenuto/ring.h has them, one access to shared memory each, tried in every order (sequentially
 * consistent; weaker orders are ThreadSanitizer's part, ring_test.c). Positions start at 0, and where they
 * wrap.
 */
#include <string.h>

#include <tenuto/ring.h>

#include "base/hash.h"
#include "tn_test.h"

#define CELLS_MAX 4u
#define ACTORS_MAX 4u
#define VISITED (1u << 22)

/* All there is; compared as bytes, so it is zeroed before use. */
struct world {
	struct tn_ring_queue q;
	struct tn_ring_cell cells[CELLS_MAX];
	struct actor {
		struct tn_ring_turn turn;
		uint32_t made;	 /* operations finished */
		uint32_t newest; /* consumer: by producer, the highest id seen, 4 bits each */
	} actor[ACTORS_MAX];
	uint32_t pushed, popped; /* ids, as bits */
};

struct setting {
	uint32_t cells, producers, consumers, each;
	uint64_t start;
	uint64_t *seen; /* hashes of the worlds that were visited */
	uint32_t worlds, ends;
};

static uint32_t id_of(const struct setting *s, uint32_t producer, uint32_t nth)
{
	return producer * s->each + nth;
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

static void saw(const struct setting *s, struct world *w, struct actor *by, uint32_t id)
{
	uint32_t producer = id / s->each, shift = 4 * producer, nth = id % s->each + 1;

	assert_false(w->popped & 1u << id); /* nothing is given out twice, */
	assert_true(w->pushed & 1u << id);  /* nothing that was not put in, */
	if (by) {
		assert_true((by->newest >> shift & 15u) < nth); /* and each producer's in their order */
		by->newest = (by->newest & ~(15u << shift)) | nth << shift;
	}
	w->popped |= 1u << id;
}

/* One step of one actor. */
static void step(const struct setting *s, struct world *w, uint32_t a)
{
	struct actor *act = &w->actor[a];
	int rc;

	if (a < s->producers) {
		act->turn.id = id_of(s, a, act->made);
		if (act->turn.phase == 4)
			w->pushed |= 1u << act->turn.id; /* visible with the next store */
		rc = tn_ring_push_step(&w->q, w->cells, &act->turn);
	} else {
		rc = tn_ring_pop_step(&w->q, w->cells, &act->turn);
		if (rc == TN_RING_TURN_DONE)
			saw(s, w, act, act->turn.id);
	}
	if (rc == TN_RING_TURN_MORE)
		return;
	act->made++;
	memset(&act->turn, 0, sizeof(act->turn));
}

/* Nobody is at work: what was put in comes out, and the queue holds exactly its cells. */
static void check_end(struct setting *s, struct world w)
{
	uint32_t id, fits = 0;

	s->ends++;
	while (tn_ring_pop(&w.q, w.cells, &id))
		saw(s, &w, NULL, id);
	assert_int_equal(w.popped, w.pushed);
	while (tn_ring_push(&w.q, w.cells, 31))
		fits++;
	assert_int_equal(fits, s->cells);
}

static void explore(struct setting *s, const struct world *w)
{
	int busy = 0;

	if (visited(s, w))
		return;
	for (uint32_t a = 0; a < s->producers + s->consumers; a++) {
		struct world next;

		if (w->actor[a].made == s->each)
			continue;
		busy = 1;
		memcpy(&next, w, sizeof(next));
		step(s, &next, a);
		explore(s, &next);
	}
	if (!busy)
		check_end(s, *w);
}

static void try_all(uint32_t cells, uint32_t producers, uint32_t consumers, uint32_t each, uint64_t start)
{
	struct setting s = {cells, producers, consumers, each, start, calloc(VISITED, sizeof(uint64_t)), 0, 0};
	struct world w;

	assert_non_null(s.seen);
	memset(&w, 0, sizeof(w));
	tn_ring_queue_init(&w.q, w.cells, cells, start);
	explore(&s, &w);
	assert_true(s.ends > 0);
	printf("# %u cells, %u producers, %u consumers, %u each, from %#llx: %u states, %u ends\n", cells, producers,
	       consumers, each, (unsigned long long)start, s.worlds, s.ends);
	free(s.seen);
}

static const uint64_t starts[] = {0, UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 2, INT64_MAX};

static void every_interleaving_on_two_cells_keeps_all_values(void **state)
{
	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		try_all(2, 2, 2, 2, starts[i]);
		try_all(2, 3, 1, 2, starts[i]);
		try_all(2, 1, 3, 2, starts[i]);
	}
}

static void every_interleaving_on_four_cells_keeps_all_values(void **state)
{
	try_all(4, 2, 2, 2, 0);
	try_all(4, 2, 1, 3, UINT64_MAX - 2);
	try_all(4, 1, 2, 3, UINT64_MAX - 1);
}

/* One thread: every sequence of pushes and pops of a length, against a plain queue. */
static void every_sequence_of_pushes_and_pops_agrees_with_a_plain_queue(void **state)
{
	enum { LENGTH = 14 };

	for (uint32_t cells = 2; cells <= CELLS_MAX; cells *= 2) {
		for (uint32_t word = 0; word < 1u << LENGTH; word++) {
			struct tn_ring_cell c[CELLS_MAX];
			struct tn_ring_queue q;
			uint32_t in = 0, out = 0, id;

			memset(c, 0, sizeof(c));
			tn_ring_queue_init(&q, c, cells, UINT64_MAX - word % 7);
			for (uint32_t i = 0; i < LENGTH; i++) {
				if (word >> i & 1u) {
					assert_int_equal(tn_ring_push(&q, c, in), in - out < cells);
					in += in - out < cells;
				} else {
					assert_int_equal(tn_ring_pop(&q, c, &id), in != out);
					if (in != out)
						assert_int_equal(id, out++);
				}
			}
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_sequence_of_pushes_and_pops_agrees_with_a_plain_queue),
		cmocka_unit_test(every_interleaving_on_two_cells_keeps_all_values),
		cmocka_unit_test(every_interleaving_on_four_cells_keeps_all_values),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
