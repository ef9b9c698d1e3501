/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random calls of three ranks on a small heap, against an oracle that knows of each key what must be found: 10^5 steps, 10^6 in the long form. All ranks are of
 * this process, so that the order of the steps follows from the seed; two of them ask the master by its socket.
 */
#include "base/rng.h"
#include "heap/heap_rig.h"

#define RANKS 3u
#define KEYS 48u
#define HELD 8u

enum known { ABSENT, OPEN, STORED };

/* What must be found of a key. An object that may have been evicted is found to be so, and absent from then on. */
struct fact {
	enum known known;
	uint64_t bytes, version; /* version: of its bytes */
	struct tn_heap_plan plan;
	uint32_t producer;
	bool pinned;
};

struct lease {
	struct tn_heap_meta meta;
	uint32_t rank; /* who holds it */
	uint64_t version;
};

struct setting {
	struct tn_heap *heap[RANKS];
	struct tn_rng rng;
	struct fact fact[KEYS];
	struct lease held[HELD];
	uint32_t nheld;
	uint64_t versions, placed, removed; /* the last two: replicas */
	unsigned char copy[8 * HEAP_PAGE];
};

static uint32_t below(struct setting *s, uint32_t n)
{
	return tn_rng_below(&s->rng, n);
}

static void open_one(struct setting *s, uint32_t rank, uint64_t key)
{
	uint64_t bytes = 8 * (1 + below(s, HEAP_PAGE)), version = ++s->versions;
	uint32_t flags = (below(s, 20) == 0 ? TN_HEAP_PIN : 0) | (below(s, 4) == 0 ? TN_HEAP_REPLICAS(1 + below(s, RANKS)) : 0);
	struct fact *f = &s->fact[key];
	struct tn_heap_plan plan;
	struct tn_heap_meta meta;
	int rc = tn_heap_open_for_write(s->heap[rank], &key, 8, bytes, below(s, RANKS), flags, &plan);

	if (f->known != ABSENT && rc != -EEXIST) { /* it was evicted meanwhile */
		assert_true(f->known == STORED && !f->pinned);
		f->known = ABSENT;
	}
	if (rc == -EEXIST) {
		assert_true(f->known != ABSENT);
		return;
	}
	if (rc == -ENOSPC) {
		assert_int_equal(tn_heap_get_location(s->heap[rank], &key, 8, &meta), -ENOENT);
		return;
	}
	assert_int_equal(rc, 0);
	*f = (struct fact){OPEN, bytes, version, plan, rank, flags & TN_HEAP_PIN};
}

/* Writes it, then commits, most of the time. */
static void end_one(struct setting *s, uint64_t key)
{
	struct fact *f = &s->fact[key];
	struct tn_heap *heap = s->heap[f->producer];

	if (below(s, 4) == 0) {
		assert_int_equal(tn_heap_abandon(heap, &f->plan), 0);
		f->known = ABSENT;
		return;
	}
	heap_fill(tn_heap_ptr(heap, f->plan.dst_rank, f->plan.payload_base), f->bytes, f->version);
	assert_int_equal(tn_heap_commit(heap, &f->plan), 0);
	s->placed += f->plan.copies + 1;
	f->known = STORED;
}

static void read_one(struct setting *s, uint32_t rank, uint64_t key)
{
	struct fact *f = &s->fact[key];
	uint64_t bytes;
	int rc = tn_heap_get(s->heap[rank], &key, 8, s->copy, sizeof(s->copy), &bytes);

	if (rc == -ENOENT && f->known == STORED && !f->pinned)
		f->known = ABSENT;
	assert_int_equal(rc, f->known == ABSENT ? -ENOENT : f->known == OPEN ? -EAGAIN : 0);
	if (rc)
		return;
	assert_int_equal(bytes, f->bytes);
	assert_true(heap_is_filled(s->copy, bytes, f->version));
}

static void hold_one(struct setting *s, uint32_t rank, uint64_t key)
{
	struct lease *l = &s->held[s->nheld];

	if (s->nheld == HELD || s->fact[key].known != STORED || tn_heap_hold(s->heap[rank], &key, 8, &l->meta))
		return;
	assert_int_equal(l->meta.bytes_total, s->fact[key].bytes);
	l->rank = rank;
	l->version = s->fact[key].version;
	s->nheld++;
}

static void release_one(struct setting *s, uint32_t i)
{
	struct lease *l = &s->held[i];

	assert_true(heap_is_filled(tn_heap_ptr(s->heap[0], l->meta.owner_rank, l->meta.payload_off), l->meta.bytes_total, l->version));
	assert_int_equal(tn_heap_release(s->heap[l->rank], &l->meta), 0);
	*l = s->held[--s->nheld];
}

static void count(struct setting *s, uint64_t *ready, uint64_t *evictions, uint64_t *leases)
{
	*ready = *evictions = *leases = 0;
	for (uint32_t r = 0; r < RANKS; r++) {
		struct tn_heap_stats st = heap_stats(s->heap[0], r);

		*ready += st.ready_count;
		*evictions += st.evictions;
		*leases += st.leases;
	}
}

static void remove_one(struct setting *s, uint32_t rank, uint64_t key)
{
	struct fact *f = &s->fact[key];
	uint64_t before, after, unused[2];
	int rc;

	count(s, &before, &unused[0], &unused[1]);
	rc = tn_heap_remove(s->heap[rank], &key, 8);

	if (rc == -ENOENT && f->known == STORED && !f->pinned)
		f->known = ABSENT;
	assert_int_equal(rc, f->known == ABSENT ? -ENOENT : f->known == OPEN ? -EAGAIN : 0);
	if (rc)
		return;
	count(s, &after, &unused[0], &unused[1]);
	assert_in_range(before - after, 1, f->plan.copies + 1);
	s->removed += before - after;
	f->known = ABSENT;
}

static void step(struct setting *s)
{
	uint64_t key = below(s, KEYS);
	uint32_t rank = below(s, RANKS), what = below(s, 100);

	if (s->fact[key].known == OPEN && what < 60)
		end_one(s, key);
	else if (what < 35)
		open_one(s, rank, key);
	else if (what < 65)
		read_one(s, rank, key);
	else if (what < 75)
		hold_one(s, rank, key);
	else if (what < 90 && s->nheld)
		release_one(s, below(s, s->nheld));
	else if (what < 98)
		remove_one(s, rank, key);
	else if (what == 98)
		assert_true(tn_heap_evict_until_below(s->heap[rank], 50 + below(s, 50)) >= 0);
}

static void no_reader_gets_other_bytes_than_were_put(void **state)
{
	uint32_t steps = tn_test_soak() ? 1000000 : 100000;
	struct tn_heap_opts o = heap_opts(64);
	struct setting *s = calloc(1, sizeof(*s));
	uint64_t ready, evictions, leases, known = 0;

	assert_non_null(s);
	tn_rng_seed(&s->rng, tn_test_seed());
	heap_new_name();
	o.water_hi = 95;
	o.water_lo = 85;
	o.reclaim_ns = 1000 * TN_TEST_SECOND;
	for (uint32_t r = 0; r < RANKS; r++)
		s->heap[r] = heap_open(RANKS, r, &o);
	for (uint32_t i = 0; i < steps; i++)
		step(s);
	count(s, &ready, &evictions, &leases);
	assert_int_equal(leases, s->nheld);
	while (s->nheld)
		release_one(s, 0);
	for (uint64_t key = 0; key < KEYS; key++) {
		read_one(s, 0, key);
		known += s->fact[key].known == STORED;
	}
	assert_true(ready >= known);
	assert_int_equal(evictions, s->placed - s->removed - ready);
	printf("# %u steps, %llu objects, %llu evicted\n", steps, (unsigned long long)s->versions, (unsigned long long)evictions);
	assert_true(evictions > steps / 1000);
	for (uint64_t key = 0; key < KEYS; key++)
		if (s->fact[key].known != ABSENT)
			s->fact[key].known == OPEN ? end_one(s, key) : remove_one(s, 1, key);
	for (uint64_t key = 0; key < KEYS; key++)
		if (s->fact[key].known == STORED)
			remove_one(s, 2, key);
	for (uint32_t r = 0; r < RANKS; r++)
		heap_wait_until(heap_stats(s->heap[0], r).heap_used == 0);
	for (uint32_t r = RANKS; r-- > 0;)
		tn_heap_destroy(s->heap[r]);
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_reader_gets_other_bytes_than_were_put),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
