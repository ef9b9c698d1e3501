/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A front that breaks every rule of the region, beside one that keeps them: the core neither crashes nor hangs, touches nothing but
 * the hostile one's own pool, and the other's loads and saves go on, with the right bytes. Most is worth something under ASAN.
 *
 * Both share one region here, so the hostile one writes only the words of its own operations, and the list of the doorbell.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "front/front.h"
#include "cache_rig.h"
#include "enginepool.h"
#include "tn_test.h"

#define HOSTILE_OPS 8u
#define BLOCKS 4u
#define PAGES 64u /* of the hostile pool */

struct hostile {
	struct rig *r;
	struct tn_front_op *op[HOSTILE_OPS];
	struct tn_pool *pool;
	struct tn_rng rng;
	uint64_t words;
	bool honest;   /* what it writes now is right */
	uint32_t stop; /* shared */
};

/* Something that is wrong, nearly right, or right. */
static uint64_t odd(struct hostile *h, uint64_t right)
{
	switch (h->honest ? 4 : tn_rng_below(&h->rng, 5)) {
	case 0:
		return tn_rng_next(&h->rng);
	case 1:
		return right + 1;
	case 2:
		return right - 1;
	default:
		return right;
	}
}

/* Never the other's pool. */
static uint32_t some_pool(struct hostile *h)
{
	return h->honest || tn_rng_below(&h->rng, 4) ? h->pool->number : (uint32_t)tn_rng_next(&h->rng) | 2;
}

/* One command of four is honest, with pages of its own: an operation begins soon, whatever was broken before, and is then broken. */
static void command(struct hostile *h, struct tn_front_op *op)
{
	struct tn_command *c = &tn_face_asked(&h->r->cache->region, op->number)->command;
	uint32_t blocks;

	h->honest = tn_rng_below(&h->rng, 4) == 0;
	blocks = (uint32_t)odd(h, 1 + tn_rng_below(&h->rng, BLOCKS));
	for (uint32_t i = 0; h->honest && i < blocks * RIG_PAGES; i++)
		tn_face_pages(&h->r->cache->region, op->number)[i] = i;
	c->kind = (uint32_t)odd(h, 1 + tn_rng_below(&h->rng, 3));
	c->space = (uint32_t)odd(h, h->r->s->space->index);
	c->pool = some_pool(h);
	c->blocks = blocks;
	c->first_page = odd(h, 0);
	c->end_page = odd(h, (uint64_t)blocks * RIG_PAGES);
	c->deadline_ns = odd(h, TN_FOREVER);
	c->ttl_ns = odd(h, 0);
	c->input_tokens = odd(h, 100);
	c->start_ns = odd(h, 0);
	c->parent = (struct tn_key){{odd(h, 5), 0}};
	c->priority = (int32_t)odd(h, 0);
	c->flags = (uint32_t)odd(h, 0);
	c->generation = h->honest || tn_rng_below(&h->rng, 8) ? ++op->generation : op->generation - 1; /* never far ahead: no life would begin after it */
	h->honest = false;
}

static void change_a_word(struct hostile *h, struct tn_front_op *op)
{
	const struct tn_region *region = &h->r->cache->region;
	struct tn_face_asked *asked = tn_face_asked(region, op->number);
	struct tn_face_given *given = &tn_face_given(region, op->number)[tn_rng_below(&h->rng, RIG_LAYERS)];
	uint64_t i = tn_rng_below(&h->rng, BLOCKS + 1);

	switch (tn_rng_below(&h->rng, 10)) {
	case 0:
		tn_face_keys(region, op->number)[i] = (struct tn_key){{odd(h, 7777 + tn_rng_below(&h->rng, 9)), odd(h, 7)}};
		break;
	case 1:
	case 2:
		tn_face_pages(region, op->number)[tn_rng_below(&h->rng, (BLOCKS + 1) * RIG_PAGES)] =
			(uint32_t)odd(h, tn_rng_below(&h->rng, PAGES));
		break;
	case 3:
		asked->cancel = tn_rng_below(&h->rng, 4) == 0;
		break;
	case 4:
		asked->commit = (uint32_t)tn_rng_next(&h->rng) & 1;
		break;
	case 5:
		asked->waiters = (uint32_t)odd(h, 0);
		break;
	case 6:
		asked->at_layer = (uint32_t)odd(h, RIG_LAYERS);
		asked->at_ns = odd(h, tn_test_now());
		break;
	case 7:
		given->event = (uint32_t)odd(h, TN_EVENT_NONE);
		given->value = odd(h, 5);
		given->given = (uint32_t)tn_rng_next(&h->rng) & 1;
		break;
	case 8:
		tn_region_front(region)->kicks += odd(h, 0);
		break;
	default:
		((struct tn_doorbell_link *)tn_region_table(region, TN_REGION_KICKS))[op->number].next = odd(h, 0);
	}
	h->words++;
}

static void *break_rules(void *arg)
{
	struct hostile *h = arg;
	struct tn_doorbell d = tn_region_kicks(&h->r->cache->region);

	while (!__atomic_load_n(&h->stop, __ATOMIC_RELAXED)) {
		struct tn_front_op *op = h->op[tn_rng_below(&h->rng, HOSTILE_OPS)];

		for (uint64_t n = tn_rng_below(&h->rng, 20); n > 0; n--)
			change_a_word(h, op);
		if (tn_rng_below(&h->rng, 4) == 0)
			command(h, op);
		tn_observation_put(&h->r->cache->region,
				   &(struct tn_observation){odd(h, 0), odd(h, 9), odd(h, 9), (int64_t)odd(h, 9), (uint32_t)odd(h, 0),
							    (uint32_t)odd(h, RIG_LAYERS)});
		tn_doorbell_ring(&d, op->number);
		tn_io_wake(rig_core(h->r)->io);
	}
	return NULL;
}

/* As a session that ends: everything of it is cancelled, and its pool stays until the core is done. */
static void end_hostile(struct hostile *h)
{
	const struct tn_region *region = &h->r->cache->region;
	struct tn_doorbell d = tn_region_kicks(region);
	uint64_t until = tn_test_deadline();

	for (uint32_t i = 0; i < HOSTILE_OPS; i++) {
		uint32_t number = h->op[i]->number;

		tn_face_asked(region, number)->command.generation = 0; /* none begins any more */
		tn_face_set(&tn_face_asked(region, number)->cancel);
		while (__atomic_load_n(&rig_session(h->r)->ops[number].op.alive, __ATOMIC_RELAXED) && tn_test_now() < until) {
			tn_doorbell_ring(&d, number);
			tn_io_wake(rig_core(h->r)->io);
			usleep(1000);
		}
		assert_false(rig_session(h->r)->ops[number].op.alive);
	}
	assert_int_equal(enginepool_destroy(h->pool), 0);
}

/* The other's own are a load and a save per round. */
static uint64_t begun_by_hostile(struct rig *r, uint64_t rounds)
{
	struct tn_stats s = rig_stats(r);

	return s.loads + s.saves - 2 * rounds;
}

static void others_never_notice_a_front_that_breaks_every_rule(void **state)
{
	uint64_t from, until, id = 1, rounds = 0, good = 0, begun;
	const struct tn_pool_shape shape = {.order = TN_POOL_CROSS_LAYER, .npages = PAGES};
	struct hostile h = {0};
	pthread_t thread;
	uint64_t bytes;
	struct rig r;
	void *memory;

	rig_set_up(&r, 64u << 20, 0, 64);
	bytes = PAGES * (uint64_t)tn_geometry_block_bytes(&r.s->g) / RIG_PAGES;
	memory = r.owner ? rig_memory(&r, bytes) : malloc(bytes); /* ASAN guards its ends */
	assert_non_null(memory);
	h.r = &r;
	tn_rng_seed(&h.rng, tn_test_seed());
	assert_int_equal(enginepool_create(r.cache, &r.s->g, &shape, &memory, &h.pool), 0);
	assert_true((h.pool->number & 2) == 0); /* the numbers that are made up have that bit */
	for (uint32_t i = 0; i < HOSTILE_OPS; i++) {
		h.op[i] = tn_front_take(r.cache);
		assert_non_null(h.op[i]);
	}
	assert_int_equal(pthread_create(&thread, NULL, break_rules, &h), 0);
	from = tn_test_now();
	until = tn_test_deadline();
	/* At least so long, and on a busy machine until the hostile one has had its turns, too. */
	for (; tn_test_now() < from + (tn_test_soak() ? 60000 : 1500) * RIG_MS ||
	       ((good == 0 || begun_by_hostile(&r, rounds) <= HOSTILE_OPS) && tn_test_now() < until);
	     rounds++, id = id % 20 + 1) {
		rig_save(r.s, id * BLOCKS, BLOCKS, 0);
		good += (uint64_t)rig_load(r.s, id * BLOCKS, BLOCKS); /* checks the bytes of what is good */
	}
	__atomic_store_n(&h.stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	end_hostile(&h);
	begun = begun_by_hostile(&r, rounds);
	printf("# %llu rounds, %llu good blocks; %llu words changed, %llu hostile operations begun\n", (unsigned long long)rounds,
	       (unsigned long long)good, (unsigned long long)h.words, (unsigned long long)begun);
	assert_true(rounds > 0 && good > 0 && begun > HOSTILE_OPS);
	if (r.owner)
		rig_memory_free(&r, memory, bytes);
	else
		free(memory);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(others_never_notice_a_front_that_breaks_every_rule),
	};

	if (TN_TEST_THREAD_SANITIZER)
		return tn_test_skip_all("the races are the point");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
