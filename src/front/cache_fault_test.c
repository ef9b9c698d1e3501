/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole cache on a simulated disk that fails: errors, short, late, hanging and corrupt transfers, a full disk, a
 * full engine, in random mixes. A load may find less, never a wrong byte; nothing hangs; and when the
 * faults stop, the devices come back and serve again.
 */
#include "core/core.h"
#include "cache_script.h"
#include "far.h"
#include "ioengine/faulty_rig.h"
#include "tn_test.h"
#include "tier/disk/disk.h"

static struct rig *faulty_rig(struct tn_rng *rng, uint64_t seed)
{
	const struct tn_io_faulty_opts faults = {.reorder = seed % 2, .submit_eagain_percent = seed % 3 ? 0 : 20, .seed = seed};
	static const struct tn_far_opts far = {.seed = 5, .blocks = 60, .latency_ns = 3 * RIG_MS, .lose = 6, .others = 6, .corrupt = 40};
	struct rig_opts o = rig_simulated_opts();
	struct rig *r;

	o.seed = seed;
	o.cache.ndirs = 1 + tn_rng_below(rng, 2);
	o.cache.host_bytes = tn_rng_below(rng, 2) ? 2u << 20 : 0;
	if (seed % 3 == 0 && o.cache.host_bytes) /* a third tier, which has no faults of the disk, but its own */
		o.far = &far;
	o.head_dim = tn_rng_below(rng, 2) ? 128 : 96;
	o.npages = 300;
	o.faulty = true;
	o.faults = &faults;
	r = rig_simulated(&o);
	rig_must_open(r);
	r->o.faults = NULL; /* the disk has them */
	return r;
}

static void steps(struct cscript *s, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		cscript_step(s);
}

static bool all_healthy(const struct rig *r)
{
	for (uint32_t d = 0; d < r->o.cache.ndirs; d++)
		if (tn_store_health(tn_disk_tier_store(r->cache->row.durable), d) != TN_HEALTHY)
			return false;
	return true;
}

static uint64_t quarantined(const struct rig *r)
{
	struct tn_device_stats st;
	uint64_t n = 0;

	for (uint32_t d = 0; tn_store_stats(tn_disk_tier_store(r->cache->row.durable), d, &st) == 0; d++)
		n += st.quarantined_slots;
	return n;
}

/* The faults are over: the devices come back within two minutes, and what is saved then is stored and found. */
static void must_recover(struct cscript *s)
{
	struct rig *r = s->r;
	uint64_t stored, hits;

	rig_calm(r);
	rig_run(r, RIG_SECOND); /* what was to hang may still have been with the disk */
	rig_calm(r);
	cscript_drain(s, 120 * RIG_SECOND);
	for (uint32_t i = 0; i < 1200 && !all_healthy(r); i++)
		rig_run(r, RIG_SECOND / 10);
	if (!all_healthy(r))
		rig_fail(r, "a device did not come back");
	stored = s->n.stored;
	hits = s->n.hits;
	for (uint32_t i = 0; i < 10 && (i == 0 || s->n.stored == stored || s->n.hits == hits); i++)
		steps(s, 150);
	cscript_settle(s);
	if (s->n.stored <= stored)
		rig_fail(r, "nothing is stored after the faults");
	if (s->n.hits <= hits)
		rig_fail(r, "nothing is found after the faults, %llu slots are quarantined", (unsigned long long)quarantined(r));
	cscript_verify(s);
}

static void random_faults(struct tn_rng *rng, struct rig *r)
{
	struct tn_fault f[4];
	uint32_t n = 1 + tn_rng_below(rng, 4);

	for (uint32_t i = 0; i < n; i++)
		f[i] = (struct tn_fault){
			.kind = tn_rng_below(rng, TN_FAULT_CORRUPT + 1),
			.op = tn_rng_below(rng, TN_IO_OPS),
			.from = tn_rng_below(rng, 20),
			.count = tn_rng_below(rng, 3) ? UINT64_MAX : 10,
			.percent = tn_rng_below(rng, 4) ? 1 + tn_rng_below(rng, 30) : 100,
			.delay_ns = (1 + tn_rng_below(rng, 2000)) * RIG_MS,
		};
	rig_fault(r, f, n);
}

static struct cscript *start(struct tn_rng *rng, uint64_t seed)
{
	struct cscript *s;

	tn_rng_seed(rng, seed);
	s = cscript_create(faulty_rig(rng, seed), seed);
	s->drops = seed % 4 == 0;
	steps(s, 100);
	return s;
}

static void finish(struct cscript *s)
{
	struct rig *r = s->r;

	cscript_destroy(s);
	rig_tear_down(r);
}

static uint64_t seeds(uint64_t *first, uint32_t n)
{
	*first = tn_test_seed();
	return *first + tn_test_cases(n);
}

static void any_mix_of_faults_is_a_miss_and_passes(void **state)
{
	uint64_t seed, end;

	for (end = seeds(&seed, 40); seed < end; seed++) {
		struct tn_rng rng;
		struct cscript *s = start(&rng, seed);

		for (uint32_t round = 0; round < 3; round++) {
			random_faults(&rng, s->r);
			steps(s, 120);
			rig_run(s->r, tn_rng_below(&rng, 3000) * RIG_MS);
			steps(s, 30);
			must_recover(s);
		}
		finish(s);
	}
}

/* Every kind alone, for every transfer of its op, for as long as twenty seconds. */
static void a_device_that_fails_altogether_comes_back(void **state)
{
	uint64_t seed, end;

	for (end = seeds(&seed, 18); seed < end; seed++) {
		struct tn_rng rng;
		struct cscript *s = start(&rng, seed);
		struct tn_fault f = {.kind = seed % 6, .op = (uint32_t)(seed / 6 % 3), .count = UINT64_MAX, .delay_ns = RIG_SECOND};

		rig_fault(s->r, &f, 1);
		for (uint32_t i = 0; i < 20; i++) {
			steps(s, 20);
			rig_run(s->r, RIG_SECOND);
		}
		must_recover(s);
		finish(s);
	}
}

#define TURNS 2000u /* in which everything ends once nothing is in its way; 200 are needed */

/*
 * No request comes back, and leases are held: a load says by its deadline what it has (the script looks), and who waits for
 * a save or a flush is told by his. Once requests come back and the leases are given back, everything ends soon.
 */
static void nothing_outlives_its_deadline_and_all_ends_when_nothing_is_in_its_way(void **state)
{
	uint64_t seed, end, most = 0;

	for (end = seeds(&seed, 30); seed < end; seed++) {
		struct tn_rng rng;
		struct cscript *s = start(&rng, seed);
		struct rig *r = s->r;
		struct tn_fault f[3];
		uint64_t from;

		for (uint32_t op = 0; op < 3; op++)
			f[op] = (struct tn_fault){.kind = TN_FAULT_HANG, .op = op, .count = UINT64_MAX, .percent = seed % 2 ? 100 : 30};
		rig_fault(r, f, 3);
		for (uint32_t i = 0; i < 10; i++) {
			steps(s, 20);
			rig_run(r, 100 * RIG_MS);
		}
		from = r->turns;
		rig_calm(r);
		rig_run(r, 10 * RIG_MS); /* what was to hang may still have been with the disk */
		rig_calm(r);
		cscript_drain(s, 120 * RIG_SECOND);
		most = r->turns - from > most ? r->turns - from : most;
		must_recover(s);
		finish(s);
	}
	printf("# everything ended within %llu turns\n", (unsigned long long)most);
	assert_true(most < TURNS);
}

/* The medium has no room for the segments that the store was promised. */
static void a_full_disk_evicts_and_goes_on(void **state)
{
	uint64_t seed, end;

	for (end = seeds(&seed, 10); seed < end; seed++) {
		struct tn_rng rng;
		struct cscript *s = start(&rng, seed);

		tn_simdisk_set_capacity(s->r->disk, 1);
		steps(s, 300);
		cscript_settle(s);
		cscript_verify(s);
		tn_simdisk_set_capacity(s->r->disk, UINT64_MAX);
		rig_run(s->r, 15 * RIG_SECOND);
		must_recover(s);
		finish(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_mix_of_faults_is_a_miss_and_passes),
		cmocka_unit_test(a_device_that_fails_altogether_comes_back),
		cmocka_unit_test(nothing_outlives_its_deadline_and_all_ends_when_nothing_is_in_its_way),
		cmocka_unit_test(a_full_disk_evicts_and_goes_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
