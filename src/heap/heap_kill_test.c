/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 at random moments: a master (rank 0) and a producer (rank 1) put, write in place, hold, read and remove objects in each other's heaps; one of them, or both, are
 * killed. Rank 2, this process, takes over if the master is dead. Then nothing may be wrong: each object that can be found has its own bytes, all else
 * has come back, and all of each heap can be allocated.
 *
 * 40 rounds; 1,000 in the long form.
 */
#include "base/rng.h"
#include "heap/heap_rig.h"

#define RANKS 3u
#define PAGES 32u
#define SINGLE 24u
#define KEYS (SINGLE + 6u) /* the last ones have replicas */
#define RECLAIM_NS (TN_TEST_SECOND / 50)

struct part {
	uint32_t rank;
	uint64_t seed;
};

static struct tn_heap_opts options(void)
{
	struct tn_heap_opts o = heap_opts(PAGES);

	o.reclaim_ns = RECLAIM_NS;
	return o;
}

static void must(bool is_right, const char *what)
{
	if (is_right)
		return;
	print_error("%s\n", what);
	abort();
}

static void hold_and_look(struct tn_heap *heap, uint64_t key, struct tn_rng *rng)
{
	struct tn_heap_meta meta;

	if (tn_heap_hold(heap, &key, 8, &meta))
		return;
	for (uint32_t i = 0; i < 1 + tn_rng_below(rng, 3); i++)
		must(heap_is_filled(tn_heap_ptr(heap, meta.owner_rank, meta.payload_off), meta.bytes_total, key), "bytes of another object under a lease");
	if (tn_rng_below(rng, 8))
		tn_heap_release(heap, &meta);
	else
		must(heap_is_filled(tn_heap_ptr(heap, meta.owner_rank, meta.payload_off), meta.bytes_total, key), "bytes changed"); /* and is never released */
}

static void write_in_place(struct tn_heap *heap, uint64_t key, struct tn_rng *rng)
{
	uint64_t bytes = (1 + tn_rng_below(rng, 4)) * HEAP_PAGE;
	uint32_t owner = tn_rng_below(rng, RANKS), flags = key < SINGLE ? 0 : TN_HEAP_REPLICAS(2 + (uint32_t)key % 2);
	struct tn_heap_plan plan;
	int rc = tn_rng_below(rng, 2) ? tn_heap_open_for_write(heap, &key, 8, bytes, owner, flags, &plan)
				      : tn_heap_reserve(heap, &key, 8, bytes, owner, flags, &plan);

	if (rc == -ESHUTDOWN)
		pause();
	if (rc)
		return;
	heap_fill(tn_heap_ptr(heap, plan.dst_rank, plan.payload_base), bytes, key);
	if (tn_rng_below(rng, 10))
		tn_heap_commit(heap, &plan);
}

static void copy_out(struct tn_heap *heap, uint64_t key)
{
	static unsigned char copy[4 * HEAP_PAGE];
	uint64_t bytes;
	int rc = tn_heap_get(heap, &key, 8, copy, sizeof(copy), &bytes);

	must(rc == 0 || rc == -ENOENT || rc == -EAGAIN, "a damaged object");
	must(rc || heap_is_filled(copy, bytes, key), "bytes of another object");
}

/* Until it is killed. */
static int work(void *arg)
{
	const struct part *part = arg;
	struct tn_heap_opts o = options();
	struct tn_heap *heap;
	struct tn_rng rng;

	if (tn_heap_create(heap_name, RANKS, part->rank, &o, &heap))
		pause(); /* the master was killed before */
	tn_rng_seed(&rng, part->seed);
	while (getppid() != 1) {
		uint64_t key = tn_rng_below(&rng, KEYS);
		uint32_t what = tn_rng_below(&rng, 10);

		if (what < 4)
			write_in_place(heap, key, &rng);
		else if (what < 7)
			copy_out(heap, key);
		else if (what < 9)
			hold_and_look(heap, key, &rng);
		else if (tn_heap_remove(heap, &key, 8) == -ESHUTDOWN)
			pause();
	}
	return 0;
}

/* All bytes in use are of READY objects. */
static bool settled(struct tn_heap *heap)
{
	for (uint32_t r = 0; r < RANKS; r++) {
		const struct tn_heap_ctl *ctl = tn_heap_ptr(heap, r, 0);
		struct tn_heap_slot *slots = tn_heap_slots(tn_heap_ptr(heap, r, 0), ctl);
		uint64_t ready = 0;

		for (uint32_t i = 0; i < ctl->hdr_head; i++)
			if (tn_heap_word_state(tn_heap_load64(tn_heap_state_word(&slots[i]))) == TN_HEAP_READY)
				ready += (uint64_t)ctl->page_bytes << slots[i].extra.size_class;
		if (heap_stats(heap, r).heap_used != ready || heap_stats(heap, r).leases)
			return false;
	}
	return true;
}

/* READY replicas of a key; each has its own bytes. */
static uint64_t replicas_of(struct tn_heap *heap, uint64_t key)
{
	struct tn_heap_name name;
	uint64_t n = 0;

	assert_int_equal(tn_heap_name_of(&key, 8, &name), 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		const struct tn_heap_ctl *ctl = tn_heap_ptr(heap, r, 0);
		struct tn_heap_slot *slots = tn_heap_slots(tn_heap_ptr(heap, r, 0), ctl);

		for (uint32_t i = 0; i < ctl->hdr_head; i++) {
			const struct tn_heap_header *h = &slots[i].header;

			if (tn_heap_word_state(tn_heap_load64(tn_heap_state_word(&slots[i]))) != TN_HEAP_READY || h->key_hash != name.hash)
				continue;
			assert_true(heap_is_filled(tn_heap_ptr(heap, r, h->payload_base), h->bytes_total, key));
			n++;
		}
	}
	return n;
}

/* Whether the index has each READY object. One that its producer announced, and that is not the first of its key, is READY for a moment. */
static bool all_found(struct tn_heap *heap, uint64_t *ready)
{
	static unsigned char copy[4 * HEAP_PAGE];
	uint64_t found = 0, bytes;

	*ready = 0;
	for (uint32_t r = 0; r < RANKS; r++)
		*ready += heap_stats(heap, r).ready_count;
	for (uint64_t key = 0; key < KEYS; key++)
		if (tn_heap_get(heap, &key, 8, copy, sizeof(copy), &bytes) == 0) {
			found += key < SINGLE ? 1 : replicas_of(heap, key);
			assert_true(heap_is_filled(copy, bytes, key));
		}
	return found == *ready;
}

/* READY objects and index agree, and each page can be allocated. */
static void check(struct tn_heap *heap)
{
	struct tn_heap_plan plan;
	uint64_t key, ready;

	heap_wait_until(settled(heap) && all_found(heap, &ready));
	assert_int_equal(tn_heap_evict_until_below(heap, 0), ready);
	for (uint32_t r = 0; r < RANKS; r++) {
		const struct tn_heap_ctl *ctl = tn_heap_ptr(heap, r, 0);
		uint32_t taken = 0;

		for (uint32_t i = 0; i <= PAGES; i++) {
			key = 1000 * (r + 1) + i;
			assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, r, TN_HEAP_PIN, &plan), i < PAGES ? 0 : -ENOSPC);
			taken |= i < PAGES ? 1u << (plan.payload_base - ctl->heap_base) / HEAP_PAGE : 0;
		}
		assert_int_equal(taken, UINT32_MAX); /* no page twice */
	}
}

static void run_round(struct tn_rng *rng)
{
	struct tn_heap_opts o = options();
	struct part part[2] = {{0, tn_rng_next(rng)}, {1, tn_rng_next(rng)}};
	uint32_t victims = 1 + tn_rng_below(rng, 3), rejoins = tn_rng_below(rng, 2);
	struct tn_heap *heap;
	pid_t pid[2];

	heap_new_name();
	for (uint32_t r = 0; r < 2; r++)
		pid[r] = heap_process(work, &part[r]);
	heap = heap_open(RANKS, 2, &o);
	for (uint32_t i = 0; i < 2; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 1000000 + tn_rng_below(rng, 8000000)}, NULL);
		if (victims >> i & 1)
			kill(pid[i], SIGKILL);
		if (i == 1 && victims == 2 && rejoins) { /* only the producer died: another one comes in its place */
			assert_int_equal(heap_join_process(pid[1]), 1000 + SIGKILL);
			pid[1] = heap_process(work, &part[1]);
			nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
		}
	}
	for (uint32_t r = 0; r < 2; r++) {
		kill(pid[r], SIGKILL);
		assert_int_equal(heap_join_process(pid[r]), 1000 + SIGKILL);
	}
	assert_int_equal(tn_heap_take_over(heap), 0);
	check(heap);
	tn_heap_destroy(heap);
}

static void whoever_is_killed_leaves_nothing_wrong_and_nothing_behind(void **state)
{
	uint32_t rounds = tn_test_soak() ? 1000 : 40;
	struct tn_rng rng;

	for (uint32_t i = 0; i < rounds; i++) {
		tn_rng_seed(&rng, tn_test_seed() + i);
		run_round(&rng);
		if (i % 100 == 99)
			printf("# %u rounds\n", i + 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whoever_is_killed_leaves_nothing_wrong_and_nothing_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
