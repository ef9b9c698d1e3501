/* SPDX-License-Identifier: Apache-2.0 */
/* Regions, doorbells between threads, faces, and a front that writes rubbish. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "region/event.h"
#include "region/face.h"
#include "region/observation.h"
#include "tn_test.h"

#define MS 1000000ull

static const struct tn_region_counts counts = {.ops = 8, .blocks = 16, .pages = 64, .layers = 6, .chunks = 3, .events = 4,
						 .calls = 2, .call_bytes = 192};

static struct tn_region make(void)
{
	struct tn_region r;

	assert_int_equal(tn_region_create(&counts, &tn_alloc_system, &r), 0);
	return r;
}

static uint64_t in_ms(uint64_t ms)
{
	return tn_now_ns(&tn_clock_system) + ms * MS;
}

/* ---- the layout --------------------------------------------------------------------------------------- */

static void tables_lie_apart_and_inside_and_each_part_on_pages_of_its_own(void **state)
{
	struct tn_region r = make();

	for (uint32_t t = 0; t + 1 < TN_REGION_TABLES; t++) {
		assert_true(r.at[t] % 64 == 0);
		assert_true(r.at[t] < r.at[t + 1]);
	}
	assert_true(r.at[0] >= sizeof(struct tn_region_header));
	assert_true(r.at[TN_REGION_TABLES - 1] + counts.calls * counts.call_bytes <= r.bytes);
	assert_true(r.at[TN_REGION_FRONT] % 4096 == 0 && r.at[TN_REGION_CORE] % 4096 == 0 && r.bytes % 4096 == 0);
	assert_true((unsigned char *)(tn_face_busy(&r, counts.ops - 1) + counts.blocks) <= r.base + r.bytes);
	assert_ptr_equal(tn_face_told(&r, counts.ops), tn_region_table(&r, TN_REGION_READY));
	assert_ptr_equal(tn_face_keys(&r, counts.ops), tn_region_table(&r, TN_REGION_PAGES));
	tn_region_destroy(&r, &tn_alloc_system);
}

static void a_region_is_found_as_it_was_made(void **state)
{
	struct tn_region r = make(), other;

	assert_int_equal(tn_region_attach(r.base, r.bytes, true, &other), 0);
	assert_true(other.shared && other.bytes == r.bytes);
	assert_memory_equal(other.at, r.at, sizeof(r.at));
	assert_memory_equal(&other.counts, &counts, sizeof(counts));
	tn_region_destroy(&r, &tn_alloc_system);
}

static void each_bit_of_the_header_that_is_wrong_is_noticed(void **state)
{
	struct tn_region r = make(), other;
	int rc;

	for (size_t i = 0; i < offsetof(struct tn_region_header, at) + sizeof(r.at); i++)
		for (int bit = 0; bit < 8; bit++) {
			r.base[i] ^= (unsigned char)(1u << bit);
			rc = tn_region_attach(r.base, r.bytes, false, &other);
			assert_true(rc == -EINVAL || rc == -EPROTONOSUPPORT);
			r.base[i] ^= (unsigned char)(1u << bit);
		}
	assert_int_equal(tn_region_attach(r.base, r.bytes - 1, false, &other), -EINVAL);
	assert_int_equal(tn_region_attach(r.base, sizeof(struct tn_region_header) - 1, false, &other), -EINVAL);
	assert_int_equal(tn_region_attach(r.base, r.bytes, false, &other), 0);
	tn_region_destroy(&r, &tn_alloc_system);
}

static void counts_beyond_the_limits_are_refused(void **state)
{
	struct tn_region_counts c[6];
	struct tn_region r;

	for (int i = 0; i < 6; i++)
		c[i] = counts;
	c[0].ops = TN_REGION_OPS_MAX + 1;
	c[1].blocks = 0;
	c[2].blocks = TN_REGION_BLOCKS_MAX + 1;
	c[3].layers = TN_LAYERS_MAX + 1;
	c[4].chunks = TN_REGION_CHUNKS_MAX + 1;
	c[5].events = TN_REGION_EVENTS_MAX + 1;
	for (int i = 0; i < 6; i++)
		assert_int_equal(tn_region_create(&c[i], &tn_alloc_system, &r), -EINVAL);
}

/* ---- a doorbell between threads ------------------------------------------------------------------------- */

#define RINGERS 3u
#define STORES 20000u

struct shop {
	struct tn_region r;
	uint64_t word[8]; /* by number: what is to be looked at, one writer each */
	uint32_t over;	  /* shared: ringers that are through */
	uint32_t next;	  /* shared: numbers the threads */
};

static void *ring_often(void *arg)
{
	struct shop *s = arg;
	struct tn_doorbell d = tn_region_kicks(&s->r);
	uint32_t me = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED);

	for (uint64_t i = 1; i <= STORES; i++) {
		uint32_t n = me + RINGERS * (uint32_t)(i % 2); /* two numbers each */

		__atomic_store_n(&s->word[n], i, __ATOMIC_SEQ_CST);
		tn_doorbell_ring(&d, n);
	}
	__atomic_add_fetch(&s->over, 1, __ATOMIC_RELEASE);
	return NULL;
}

static void what_was_stored_before_a_ring_is_found_after_the_answer(void **state)
{
	struct shop s = {.r = make()};
	struct tn_doorbell d = tn_region_kicks(&s.r);
	struct tn_doorbell_taker taker = {0};
	uint32_t numbers[8], first, over, n;
	pthread_t thread[RINGERS];
	uint64_t found[8] = {0};

	for (uint32_t i = 0; i < RINGERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, ring_often, &s), 0);
	do {
		over = __atomic_load_n(&s.over, __ATOMIC_ACQUIRE);
		n = tn_doorbell_take(&d, &taker, numbers, &first);
		for (uint32_t i = first; n > 0 && i < d.count; i++) {
			tn_doorbell_answer(&d, numbers[i]);
			found[numbers[i]] = __atomic_load_n(&s.word[numbers[i]], __ATOMIC_SEQ_CST);
		}
	} while (over < RINGERS || n > 0);
	for (uint32_t i = 0; i < RINGERS; i++)
		pthread_join(thread[i], NULL);
	for (uint32_t i = 0; i < 2 * RINGERS; i++) {
		assert_int_equal(found[i], s.word[i]);
		assert_false(tn_doorbell_pending(&d, i));
	}
	tn_region_destroy(&s.r, &tn_alloc_system);
}

static void numbers_come_in_their_order_and_once(void **state)
{
	struct tn_region r = make();
	struct tn_doorbell d = tn_region_kicks(&r);
	struct tn_doorbell_taker taker = {0};
	uint32_t numbers[8], first;

	assert_false(tn_doorbell_rang(&d, &taker));
	assert_int_equal(tn_doorbell_take(&d, &taker, numbers, &first), 0);
	for (uint32_t i = 0; i < 8; i++) {
		assert_true(tn_doorbell_ring(&d, (i * 3) % 8));
		assert_false(tn_doorbell_ring(&d, (i * 3) % 8));
	}
	assert_true(tn_doorbell_rang(&d, &taker));
	assert_int_equal(tn_doorbell_take(&d, &taker, numbers, &first), 8);
	assert_int_equal(first, 0);
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(numbers[i], (i * 3) % 8);
		assert_true(tn_doorbell_pending(&d, i));
	}
	tn_doorbell_answer(&d, 5);
	assert_false(tn_doorbell_pending(&d, 5));
	assert_true(tn_doorbell_ring(&d, 5));
	assert_int_equal(tn_doorbell_take(&d, &taker, numbers, &first), 1);
	assert_int_equal(numbers[first], 5);
	tn_region_destroy(&r, &tn_alloc_system);
}

static void of_a_broken_list_all_that_rang_are_looked_at_and_the_next_ring_is_heard(void **state)
{
	const uint64_t heads[] = {
		9ull << 32 | 1,	 /* more than there are numbers */
		10ull << 32 | 9, /* none of the numbers */
		11ull << 32,	 /* nor is this one */
		13ull << 32 | 3, /* see below: a circle */
	};
	struct tn_region r = make();
	struct tn_doorbell d = tn_region_kicks(&r);
	struct tn_doorbell_taker taker = {0};
	uint32_t numbers[8], first;

	d.link[2].next = 12ull << 32 | 3;
	for (uint32_t k = 0; k < 4; k++) {
		d.link[1].asked++;
		d.link[6].asked++;
		*d.head = heads[k];
		assert_int_equal(tn_doorbell_take(&d, &taker, numbers, &first), 2);
		assert_int_equal(numbers[first], 1);
		assert_int_equal(numbers[first + 1], 6);
		tn_doorbell_answer(&d, 1);
		tn_doorbell_answer(&d, 6);
		assert_int_equal(tn_doorbell_take(&d, &taker, numbers, &first), 0);
	}
	assert_true(tn_doorbell_ring(&d, 4));
	assert_int_equal(tn_doorbell_take(&d, &taker, numbers, &first), 1);
	assert_int_equal(numbers[first], 4);
	tn_region_destroy(&r, &tn_alloc_system);
}

/* ---- faces --------------------------------------------------------------------------------------------- */

static struct tn_command a_load(uint64_t generation)
{
	return (struct tn_command){.generation = generation, .kind = TN_COMMAND_LOAD, .blocks = 3, .end_page = 12};
}

struct wait_for {
	const struct tn_region *r;
	uint32_t op, chunk;
	uint64_t generation;
};

static bool chunk_is_ready(const void *arg)
{
	const struct wait_for *w = arg;

	return tn_face_is_ready(w->r, w->op, w->chunk, w->generation);
}

/* In the memory of two processes: the child is the core, tells a shorter prefix first, and then raises the words. */
static void core_in_a_child(void *base, uint64_t bytes)
{
	struct tn_doorbell_taker taker = {0};
	struct tn_command c;
	struct tn_region r;
	struct tn_doorbell d;
	uint32_t numbers[8], first;

	if (tn_region_attach(base, bytes, true, &r))
		_exit(1);
	d = tn_region_kicks(&r);
	while (tn_doorbell_take(&d, &taker, numbers, &first) == 0)
		usleep(1000);
	tn_doorbell_answer(&d, numbers[first]);
	if (tn_face_take_command(&r, numbers[first], &c) || c.blocks != 3)
		_exit(2);
	tn_face_begins(&r, numbers[first], c.generation, c.blocks);
	usleep(20000); /* the parent sleeps by now */
	tn_face_tell_good(&r, numbers[first], 1);
	for (uint32_t k = 0; k < counts.chunks; k++)
		tn_face_tell_ready(&r, numbers[first], k, c.generation);
	tn_face_notify(&r, numbers[first]);
	_exit(0);
}

static void who_waits_in_another_process_is_woken_and_finds_the_good_prefix(void **state)
{
	uint64_t bytes = tn_region_bytes(&counts, 4096);
	struct wait_for w = {NULL, 5, 2, 77};
	struct tn_command c = a_load(77);
	struct tn_region r;
	struct tn_doorbell d;
	int status;
	pid_t pid;
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(base, MAP_FAILED);
	assert_int_equal(tn_region_format(base, &counts, 4096, true, &r), 0);
	d = tn_region_kicks(&r);
	w.r = &r;
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		core_in_a_child(base, bytes);
	tn_face_ask(&r, 5, &c, counts.layers);
	assert_true(tn_doorbell_ring(&d, 5));
	assert_int_equal(tn_face_wait(&r, 5, chunk_is_ready, &w, in_ms(20000)), 0);
	assert_int_equal(tn_face_good(&r, 5), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	munmap(base, bytes);
}

static void a_wait_ends_at_its_deadline_and_one_without_time_only_looks(void **state)
{
	struct tn_region r = make();
	struct wait_for w = {&r, 1, 0, 5};

	assert_int_equal(tn_face_wait(&r, 1, chunk_is_ready, &w, 0), -ETIMEDOUT);
	assert_int_equal(tn_face_wait(&r, 1, chunk_is_ready, &w, in_ms(2)), -ETIMEDOUT);
	assert_int_equal(tn_face_asked(&r, 1)->waiters, 0);
	tn_face_tell_ready(&r, 1, 0, 5);
	assert_int_equal(tn_face_wait(&r, 1, chunk_is_ready, &w, 0), 0);
	tn_region_destroy(&r, &tn_alloc_system);
}

static void commands_that_are_not_sound_are_refused(void **state)
{
	struct tn_region r = make();
	struct tn_command c[8], out;

	for (int i = 0; i < 8; i++)
		c[i] = a_load(9);
	c[0].kind = 0;
	c[1].kind = TN_COMMAND_SAVE + 1;
	c[2].blocks = 0;
	c[3].blocks = counts.blocks + 1;
	c[4].first_page = c[4].end_page;
	c[5].end_page = counts.pages + 1;
	c[6].kind = TN_COMMAND_SAVE;
	c[6].priority = 128;
	c[7].flags = TN_COMMAND_FLAGS + 1;
	for (int i = 0; i < 8; i++) {
		tn_face_ask(&r, 3, &c[i], 0);
		assert_int_equal(tn_face_take_command(&r, 3, &out), -EINVAL);
	}
	c[0] = a_load(9);
	tn_face_ask(&r, 3, &c[0], 0);
	assert_int_equal(tn_face_take_command(&r, 3, &out), 0);
	assert_memory_equal(&out, &c[0], sizeof(out));
	tn_region_destroy(&r, &tn_alloc_system);
}

static void keys_and_pages_that_are_not_sound_are_refused(void **state)
{
	struct tn_region r = make();
	struct tn_key keys[3];
	uint32_t pages[12];

	for (uint32_t i = 0; i < 3; i++)
		tn_face_keys(&r, 2)[i] = (struct tn_key){{i, 0}};
	assert_int_equal(tn_face_take_keys(&r, 2, 3, keys), -EINVAL);
	tn_face_keys(&r, 2)[0].word[1] = 1;
	assert_int_equal(tn_face_take_keys(&r, 2, 3, keys), 0);
	assert_memory_equal(keys, tn_face_keys(&r, 2), sizeof(keys));
	for (uint32_t i = 0; i < 12; i++)
		tn_face_pages(&r, 2)[i] = i * 5;
	assert_int_equal(tn_face_take_pages(&r, 2, 0, 12, 55, pages), -EINVAL);
	assert_int_equal(tn_face_take_pages(&r, 2, 0, 12, 56, pages), 0);
	assert_memory_equal(pages, tn_face_pages(&r, 2), sizeof(pages));
	assert_int_equal(tn_face_take_pages(&r, 2, 3, 11, 51, pages), 0); /* what is not wanted may be anything */
	tn_region_destroy(&r, &tn_alloc_system);
}

static void a_layer_is_final_when_it_was_given_and_its_event_has_come(void **state)
{
	struct tn_region r = make();
	struct tn_face_given *g = tn_face_given(&r, 7);
	struct tn_command c = a_load(1);

	tn_face_ask(&r, 7, &c, counts.layers);
	assert_int_equal(tn_face_layer_is_final(&r, 7, 4), 0);
	g[4].event = TN_EVENT_NONE;
	tn_face_set(&g[4].given);
	assert_int_equal(tn_face_layer_is_final(&r, 7, 4), 1);
	g[5].event = 3;
	g[5].value = 10;
	tn_face_set(&g[5].given);
	assert_int_equal(tn_face_layer_is_final(&r, 7, 5), 0);
	assert_true(tn_event_word_raise(tn_event_word(&r, 3), 9));
	assert_int_equal(tn_face_layer_is_final(&r, 7, 5), 0);
	assert_true(tn_event_word_raise(tn_event_word(&r, 3), 12));
	assert_false(tn_event_word_raise(tn_event_word(&r, 3), 11));
	assert_int_equal(tn_event_word(&r, 3)->value, 12);
	assert_int_equal(tn_face_layer_is_final(&r, 7, 5), 1);
	g[5].event = counts.events;
	assert_int_equal(tn_face_layer_is_final(&r, 7, 5), -EINVAL);
	tn_region_destroy(&r, &tn_alloc_system);
}

static void observations_come_in_order_and_what_does_not_fit_is_lost(void **state)
{
	struct tn_region r = make();
	struct tn_observation o = {0}, out;
	uint64_t taken = 0;

	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < TN_REGION_OBSERVATIONS + 5; i++) {
			o.layer = i;
			tn_observation_put(&r, &o);
		}
		for (uint32_t i = 0; i < TN_REGION_OBSERVATIONS; i++) {
			assert_true(tn_observation_take(&r, &taken, &out));
			assert_int_equal(out.layer, i);
		}
		assert_false(tn_observation_take(&r, &taken, &out));
	}
	tn_region_destroy(&r, &tn_alloc_system);
}

/* ---- a front that writes rubbish ------------------------------------------------------------------------- */

/* Another process. Words of the front's part: anything, values that are nearly right, and rings that are. */
static void write_rubbish(const struct tn_region *r, uint64_t seed)
{
	uint64_t begin = r->at[TN_REGION_FRONT] / 8, words = r->at[TN_REGION_CORE] / 8 - begin;
	struct tn_doorbell d = tn_region_kicks(r);
	struct tn_command c = a_load(1);
	struct tn_rng rng;

	tn_rng_seed(&rng, seed);
	for (;;) {
		uint64_t *word = (uint64_t *)(void *)r->base + begin + tn_rng_below(&rng, words), v = tn_rng_next(&rng);
		uint32_t op = (uint32_t)tn_rng_below(&rng, counts.ops);

		switch (tn_rng_below(&rng, 4)) {
		case 0:
			__atomic_store_n(word, v, __ATOMIC_RELAXED);
			break;
		case 1:
			__atomic_store_n(word, v & 15, __ATOMIC_RELAXED);
			break;
		case 2:
			word = d.head;
			__atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + ((v & 1) << 32) + (v >> 62), __ATOMIC_RELAXED);
			break;
		default:
			c.blocks = (uint32_t)(v & 31);
			c.end_page = v >> 5 & 127;
			tn_face_ask(r, op, &c, counts.layers);
			for (uint32_t i = 0; i < counts.pages; i++)
				tn_face_pages(r, op)[i] = i;
			tn_doorbell_ring(&d, op);
		}
	}
}

/* What a core does with an operation, on copies of exactly the size that was asked for: ASAN sees what is touched beyond. */
static int serve(const struct tn_region *r, uint32_t op)
{
	struct tn_key *keys;
	struct tn_command c;
	uint32_t *pages;
	int rc = tn_face_take_command(r, op, &c);

	if (rc)
		return rc;
	keys = malloc(c.blocks * sizeof(*keys));
	pages = malloc(c.end_page * sizeof(*pages));
	rc = tn_face_take_keys(r, op, c.blocks, keys);
	if (rc == 0 && c.kind != TN_COMMAND_PREFETCH)
		rc = tn_face_take_pages(r, op, c.first_page, c.end_page, 1000, pages);
	for (uint64_t i = c.first_page; rc == 0 && c.kind != TN_COMMAND_PREFETCH && i < c.end_page; i++)
		assert_true(pages[i] < 1000);
	for (uint32_t i = 0; rc == 0 && i < c.blocks; i++)
		assert_true(keys[i].word[0] | keys[i].word[1]);
	tn_face_begins(r, op, c.generation, c.blocks);
	for (uint32_t l = 0; l < counts.layers; l++)
		tn_face_layer_is_devices(r, op, tn_face_layer_is_final(r, op, l) == 1 ? 0 : l);
	tn_face_drains(r, op, c.generation);
	free(keys);
	free(pages);
	return rc;
}

/* Memory of both processes, between pages that nobody may touch. */
static void *map_with_guards(uint64_t bytes)
{
	unsigned char *all = mmap(NULL, bytes + 8192, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(all, MAP_FAILED);
	assert_int_equal(mprotect(all + 4096, bytes, PROT_READ | PROT_WRITE), 0);
	return all + 4096;
}

static void a_front_that_writes_rubbish_hurts_only_itself(void **state)
{
	uint64_t until = in_ms(tn_test_soak() ? 60000 : 500), deadline = tn_test_deadline(), turns = 0, served = 0, taken = 0, seed = tn_test_seed();
	uint64_t bytes = tn_region_bytes(&counts, 4096);
	unsigned char *base = map_with_guards(bytes);
	struct tn_doorbell_taker taker = {0};
	uint32_t numbers[8], first;
	struct tn_observation o;
	struct tn_region r;
	struct tn_doorbell d;
	pid_t front;

	assert_int_equal(tn_region_format(base, &counts, 4096, true, &r), 0);
	d = tn_region_kicks(&r);
	front = fork();
	assert_true(front >= 0);
	if (front == 0)
		write_rubbish(&r, seed);
	/* At least so long, and on a busy machine until the front has had its turns, too. */
	for (; tn_now_ns(&tn_clock_system) < until || (served == 0 && tn_test_now() < deadline); turns++) {
		uint32_t n = tn_doorbell_take(&d, &taker, numbers, &first);

		for (uint32_t i = first; n > 0 && i < d.count; i++) {
			tn_doorbell_answer(&d, numbers[i]);
			served += serve(&r, numbers[i]) == 0;
		}
		for (uint32_t i = 0; i < 2 * TN_REGION_OBSERVATIONS && tn_observation_take(&r, &taken, &o); i++)
			assert_true(taken > 0);
	}
	kill(front, SIGKILL);
	assert_int_equal(waitpid(front, NULL, 0), front);
	printf("# %llu turns, %llu operations served\n", (unsigned long long)turns, (unsigned long long)served);
	assert_true(served > 0);
	munmap(base - 4096, bytes + 8192);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tables_lie_apart_and_inside_and_each_part_on_pages_of_its_own),
		cmocka_unit_test(a_region_is_found_as_it_was_made),
		cmocka_unit_test(each_bit_of_the_header_that_is_wrong_is_noticed),
		cmocka_unit_test(counts_beyond_the_limits_are_refused),
		cmocka_unit_test(what_was_stored_before_a_ring_is_found_after_the_answer),
		cmocka_unit_test(numbers_come_in_their_order_and_once),
		cmocka_unit_test(of_a_broken_list_all_that_rang_are_looked_at_and_the_next_ring_is_heard),
		cmocka_unit_test(who_waits_in_another_process_is_woken_and_finds_the_good_prefix),
		cmocka_unit_test(a_wait_ends_at_its_deadline_and_one_without_time_only_looks),
		cmocka_unit_test(commands_that_are_not_sound_are_refused),
		cmocka_unit_test(keys_and_pages_that_are_not_sound_are_refused),
		cmocka_unit_test(a_layer_is_final_when_it_was_given_and_its_event_has_come),
		cmocka_unit_test(observations_come_in_order_and_what_does_not_fit_is_lost),
		cmocka_unit_test(a_front_that_writes_rubbish_hurts_only_itself),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
