/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every interleaving of a host and an executor on a ring of two IOCBs: the steps of push and pop as tenuto/ring.h has them, and those of
 * issuing, cancelling, signalling and finishing, one access to shared memory each, in every order, with whatever the host may
 * do next (sequentially consistent; weaker orders are ThreadSanitizer's part, ring_test.c). Positions start at 0, and where they wrap.
 *
 * In every state that is reached both sides are then let run: each IOCB that was issued must be reported, once, with results of its own.
 */
#include <stdbool.h>
#include <string.h>

#include <tenuto/ring.h>

#include "base/hash.h"
#include "tn_test.h"

#define IOCBS 2u
#define ROUNDS 2u /* of each IOCB */
#define VISITED (1u << 22)

enum action { IDLE, ISSUE, CANCEL, SIGNAL, POLL, TAKE, LOOK, FINISH };

struct actor {
	struct tn_ring_step step;
	uint8_t action, id, phase;
};

/* All there is; compared as bytes, so it is zeroed before use. IOCB 1 waits for an event, a higher value each time. */
struct world {
	/* the host's words */
	uint64_t issued, collected, event;
	uint32_t sq[IOCBS], cancel[IOCBS], sequence[IOCBS];
	/* the executor's */
	uint64_t taken, finished;
	uint32_t cq[IOCBS], result_of[IOCBS];
	int32_t status[IOCBS];
	/* private to the host */
	struct actor host;
	uint8_t out[IOCBS], wished[IOCBS], rounds[IOCBS], reported[IOCBS];
	/* private to the executor */
	struct actor executor;
	uint8_t held[IOCBS];
};

struct setting {
	uint64_t *seen; /* hashes of the worlds that were visited */
	uint32_t worlds;
};

static void report(struct world *w, uint32_t id)
{
	assert_in_range(id, 0, IOCBS - 1);
	assert_true(w->out[id]); /* nothing is reported twice, or that was not issued */
	assert_int_equal(w->result_of[id], w->sequence[id]);
	assert_true(w->status[id] == 0 || (w->status[id] == -1 && w->wished[id]));
	assert_true(id == 0 || w->status[id] || w->event >= w->rounds[id]);
	w->out[id] = w->wished[id] = 0;
	w->reported[id]++;
}

static bool host_may(const struct world *w, uint8_t action, uint8_t id)
{
	switch (action) {
	case ISSUE:
		return !w->out[id] && w->rounds[id] < ROUNDS;
	case CANCEL:
		return w->out[id] && !w->wished[id];
	case SIGNAL:
		return id == 0 && w->event < ROUNDS;
	default:
		return id == 0;
	}
}

/* One access of the host to shared memory. */
static void host_step(struct world *w)
{
	struct actor *a = &w->host;
	uint8_t id = a->id;
	bool over = true;
	int rc;

	switch (a->action) {
	case ISSUE:
		if (a->phase == 0)
			w->cancel[id] = 0;
		else if (a->phase == 1)
			w->sequence[id]++;
		a->step.id = id;
		over = a->phase >= 2 && tn_ring_push_step(&w->issued, w->sq, IOCBS, &a->step) == TN_RING_STEP_DONE;
		a->phase += a->phase < 2;
		break;
	case CANCEL:
		w->cancel[id] = 1;
		break;
	case SIGNAL:
		w->event++;
		break;
	default:
		rc = tn_ring_pop_step(&w->collected, &w->finished, w->cq, IOCBS, &a->step);
		if (rc == TN_RING_STEP_DONE)
			report(w, a->step.id);
		over = rc != TN_RING_STEP_MORE;
	}
	if (over)
		memset(a, 0, sizeof(*a));
}

static void host_begin(struct world *w, uint8_t action, uint8_t id)
{
	w->host.action = action;
	w->host.id = id;
	if (action == ISSUE) {
		w->out[id] = 1;
		w->rounds[id]++;
	}
	if (action == CANCEL)
		w->wished[id] = 1;
	host_step(w);
}

static bool executor_may(const struct world *w, uint8_t action, uint8_t id)
{
	return action == TAKE ? id == 0 : w->held[id];
}

static void executor_step(struct world *w)
{
	struct actor *a = &w->executor;
	uint8_t id = a->id;
	int rc;

	switch (a->action) {
	case TAKE:
		rc = tn_ring_pop_step(&w->taken, &w->issued, w->sq, IOCBS, &a->step);
		if (rc == TN_RING_STEP_MORE)
			return;
		if (rc == TN_RING_STEP_DONE)
			w->held[a->step.id] = 1;
		break;
	case LOOK: /* at the cancel first, then at the event */
		if (a->phase++ == 0) {
			if (!w->cancel[id])
				return;
			w->status[id] = -1;
		} else {
			if (id == 1 && w->event < w->sequence[id])
				break;
			w->status[id] = 0;
		}
		memset(a, 0, sizeof(*a));
		a->action = FINISH;
		a->id = id;
		return;
	default:
		a->step.id = id;
		if (a->phase == 0) {
			w->result_of[id] = w->sequence[id];
			a->phase = 1;
			return;
		}
		if (tn_ring_push_step(&w->finished, w->cq, IOCBS, &a->step) != TN_RING_STEP_DONE)
			return;
		w->held[id] = 0;
	}
	memset(a, 0, sizeof(*a));
}

static void executor_begin(struct world *w, uint8_t action, uint8_t id)
{
	w->executor.action = action;
	w->executor.id = id;
	executor_step(w);
}

/* Nothing new is asked for: what is out must end, because it was cancelled, or because the event comes. */
static void let_run(struct world w)
{
	uint32_t issued = 0, reported = 0;

	for (uint32_t i = 0; i < 40; i++) {
		if (w.host.action)
			host_step(&w);
		else
			host_begin(&w, w.event < ROUNDS ? SIGNAL : POLL, 0);
		if (w.executor.action)
			executor_step(&w);
		else
			executor_begin(&w, w.held[i % IOCBS] ? LOOK : TAKE, (uint8_t)(w.held[i % IOCBS] ? i % IOCBS : 0));
	}
	for (uint32_t id = 0; id < IOCBS; id++) {
		assert_false(w.out[id]);
		issued += w.rounds[id];
		reported += w.reported[id];
	}
	assert_int_equal(issued, reported);
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

static void explore(struct setting *s, const struct world *w)
{
	struct world next;

	if (visited(s, w))
		return;
	let_run(*w);
	for (uint8_t action = ISSUE; action <= POLL; action++) {
		for (uint8_t id = 0; id < IOCBS; id++) {
			if (w->host.action ? action > ISSUE || id : !host_may(w, action, id))
				continue;
			memcpy(&next, w, sizeof(next));
			if (w->host.action)
				host_step(&next);
			else
				host_begin(&next, action, id);
			explore(s, &next);
		}
	}
	for (uint8_t action = TAKE; action <= LOOK; action++) {
		for (uint8_t id = 0; id < IOCBS; id++) {
			if (w->executor.action ? action > TAKE || id : !executor_may(w, action, id))
				continue;
			memcpy(&next, w, sizeof(next));
			if (w->executor.action)
				executor_step(&next);
			else
				executor_begin(&next, action, id);
			explore(s, &next);
		}
	}
}

static void every_interleaving_reports_each_iocb_once(void **state)
{
	static const uint64_t starts[] = {0, UINT64_MAX, UINT64_MAX - 1};

	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		struct setting s = {calloc(VISITED, sizeof(uint64_t)), 0};
		struct world w;

		assert_non_null(s.seen);
		memset(&w, 0, sizeof(w));
		w.issued = w.collected = w.taken = w.finished = starts[i];
		explore(&s, &w);
		printf("# from %#llx: %u states\n", (unsigned long long)starts[i], s.worlds);
		assert_true(s.worlds > 1000);
		free(s.seen);
	}
}

/* One thread: every sequence of pushes and pops of a length, against a plain queue. */
static void every_sequence_of_pushes_and_pops_agrees_with_a_plain_queue(void **state)
{
	enum { LENGTH = 14, CELLS = 4 };

	for (uint32_t word = 0; word < 1u << LENGTH; word++) {
		uint64_t head = UINT64_MAX - word % 7, tail = head;
		uint32_t cells[CELLS] = {0}, in = 0, out = 0, id;

		for (uint32_t i = 0; i < LENGTH; i++) {
			if (word >> i & 1u) {
				if (in - out < CELLS)
					tn_ring_push(&tail, cells, CELLS, in++);
				continue;
			}
			assert_int_equal(tn_ring_pop(&head, &tail, cells, CELLS, &id), in != out);
			if (in != out)
				assert_int_equal(id, out++);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_sequence_of_pushes_and_pops_agrees_with_a_plain_queue),
		cmocka_unit_test(every_interleaving_reports_each_iocb_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
