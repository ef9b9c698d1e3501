/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole cache in simulation: random scripts of everything the public API offers, on a good disk, on a full
 * one, through crashes and faults. One seed gives one run; TN_SEED repeats a failed one.
 */
#include <stdlib.h>

#include "cache_script.h"
#include "far.h"
#include "tn_test.h"

struct plan {
	struct rig_opts o;
	bool roomy, drops;
	uint32_t steps, rounds;
	enum { CLEAN, CRASH } between;
};

/* 1 to 3 KiB (bounced) or 4 KiB (direct) a page and plane; now and then blocks of several chunks. */
static void random_geometry(struct tn_rng *rng, struct rig_opts *o)
{
	static const uint32_t dims[] = {128, 128, 32, 96};

	o->layers = 1 + tn_rng_below(rng, 4);
	o->pages_per_block = 1 + tn_rng_below(rng, 4);
	o->head_dim = dims[tn_rng_below(rng, 4)];
	if (tn_rng_below(rng, 6) == 0) { /* objects of 128 KiB */
		o->layers = 5;
		o->pages_per_block = 4;
		o->head_dim = 512;
	}
	o->npages = 300;
	o->cache.max_ops = 6 + tn_rng_below(rng, 8);
	o->cache.io_depth = 1u << tn_rng_below(rng, 6);
	o->cache.ndirs = 1 + tn_rng_below(rng, 2);
}

static uint64_t slot_bytes(const struct rig_opts *o)
{
	uint64_t object = 2ull * o->pages_per_block * o->head_dim * 32;

	return o->layers * ((object + 4095) / 4096 * 4096) + 4096;
}

static struct plan roomy_plan(struct tn_rng *rng, uint64_t seed)
{
	struct plan p = {.o = rig_simulated_opts(), .roomy = true, .drops = true, .steps = 150, .rounds = 3};

	random_geometry(rng, &p.o);
	p.o.seed = seed;
	p.o.segment_bytes = 24 * slot_bytes(&p.o) + (64u << 10);
	p.o.segment_bytes = p.o.segment_bytes < (256u << 10) ? 256u << 10 : p.o.segment_bytes / 4096 * 4096;
	p.o.cache.disk_bytes = 1200 * slot_bytes(&p.o) + 4 * p.o.segment_bytes;
	p.o.cache.host_bytes = tn_rng_below(rng, 2) ? 40 * slot_bytes(&p.o) : 0;
	p.between = tn_rng_below(rng, 4) ? CRASH : CLEAN;
	return p;
}

static struct plan tight_plan(struct tn_rng *rng, uint64_t seed)
{
	static const char *const policies[] = {"lru", "default", "s3fifo", "fifo"};
	struct plan p = roomy_plan(rng, seed);
	uint32_t blocks = 40 + tn_rng_below(rng, 120);

	p.roomy = false;
	p.steps = 250;
	p.o.cache.policy = policies[tn_rng_below(rng, 4)];
	p.o.cache.disk_bytes = (blocks * slot_bytes(&p.o) / p.o.segment_bytes + p.o.cache.ndirs) * p.o.segment_bytes;
	p.o.cache.disk_blocks = tn_rng_below(rng, 2) ? blocks : 0;
	if (tn_rng_below(rng, 2)) {
		p.o.quota_blocks[0] = 8 + tn_rng_below(rng, 30);
		p.o.quota_blocks[1] = tn_rng_below(rng, 2) ? 20 : 0;
	}
	return p;
}

static struct rig *rig_of(const struct plan *p)
{
	struct rig *r = rig_simulated(&p->o);

	rig_must_open(r);
	return r;
}

/* Runs a plan; returns the hash of all that happened. */
static uint64_t run(const struct plan *p, uint64_t seed)
{
	struct rig *r = rig_of(p);
	struct cscript *s = cscript_create(r, seed);
	uint64_t hash;

	s->roomy = p->roomy;
	s->drops = p->drops;
	s->healthy = true;
	for (uint32_t round = 0; round < p->rounds; round++) {
		for (uint32_t i = 0; i < p->steps; i++)
			cscript_step(s);
		if (p->between == CRASH && round % 3 != 2) {
			cscript_crash(s, tn_rng_below(&s->rng, TN_SIMDISK_CRASH_MODES));
		} else {
			cscript_settle(s);
			cscript_verify(s);
			cscript_reopen(s);
		}
		rig_check_quiet(r);
	}
	if (getenv("TN_TEST_VERBOSE"))
		printf("# TN_SEED=%llu: %llu saves, %llu stored, %llu failed, %llu loads, %llu hits, %llu pages checked\n",
		       (unsigned long long)seed, (unsigned long long)s->n.saves, (unsigned long long)s->n.stored,
		       (unsigned long long)s->n.failed, (unsigned long long)s->n.loads, (unsigned long long)s->n.hits,
		       (unsigned long long)s->n.checked_pages);
	hash = r->hash ^ tn_simdisk_history(r->disk);
	cscript_destroy(s);
	rig_tear_down(r);
	return hash;
}

static void run_seeds(struct plan (*make)(struct tn_rng *rng, uint64_t seed), uint32_t n)
{
	uint64_t first = tn_test_seed();

	n = tn_test_cases(n);
	for (uint64_t seed = first; seed < first + n; seed++) {
		struct tn_rng rng;
		struct plan p;

		tn_rng_seed(&rng, seed);
		p = make(&rng, seed);
		run(&p, seed);
	}
}

static void what_is_durable_is_found_again_after_crashes_and_reopening(void **state)
{
	run_seeds(roomy_plan, 20);
}

static void a_small_cache_evicts_and_never_gives_a_wrong_byte(void **state)
{
	run_seeds(tight_plan, 30);
}

/*
 * Hardly more slots than blocks, each save takes others' places, and the disk is so slow that a commit of the log
 * takes seconds: a save waits for a few of them, not for ever.
 */
static void saves_that_rewrite_every_slot_end_on_a_slow_disk(void **state)
{
	for (uint64_t seed = tn_test_seed(); seed < tn_test_seed() + 6; seed++) {
		struct tn_rng rng;
		struct plan p;
		struct rig *r;
		struct cscript *s;

		tn_rng_seed(&rng, seed);
		p = tight_plan(&rng, seed);
		p.o.cache.policy = "lru";
		p.o.quota_blocks[0] = p.o.quota_blocks[1] = 0;
		p.o.cache.host_bytes = seed % 3 ? 0 : p.o.cache.host_bytes;
		p.o.sync_ns = RIG_SECOND;
		p.o.write_ns = 2 * RIG_MS;
		r = rig_of(&p);
		s = cscript_create(r, seed);
		s->only_saves = s->healthy = true;
		while (s->n.stored < 1500) {
			cscript_step(s);
			rig_run(r, 20 * RIG_MS);
		}
		cscript_settle(s);
		printf("# longest save %.1f s of %llu, %.1f s in all\n", (double)s->save_most_ns / 1e9,
		       (unsigned long long)s->n.saves, (double)rig_now(r) / 1e9);
		cscript_destroy(s);
		rig_tear_down(r);
	}
}

/* The same with a third tier, whose blocks others take away and put back. */
static const struct tn_far_opts far = {.seed = 7, .blocks = 60, .latency_ns = 3 * RIG_MS, .lose = 6, .others = 6, .corrupt = 40};

static struct plan far_plan(struct tn_rng *rng, uint64_t seed)
{
	struct plan p = seed % 2 ? roomy_plan(rng, seed) : tight_plan(rng, seed);

	p.o.cache.host_bytes = (seed % 4 < 2 ? 40 : 12) * slot_bytes(&p.o);
	p.o.far = &far;
	return p;
}

static void a_third_tier_that_others_use_too_gives_no_wrong_byte_either(void **state)
{
	run_seeds(far_plan, 20);
}

static void one_seed_gives_one_run(void **state)
{
	for (uint64_t seed = tn_test_seed(); seed < tn_test_seed() + 4; seed++) {
		struct tn_rng rng;
		struct plan p;

		tn_rng_seed(&rng, seed);
		p = seed % 3 == 0 ? far_plan(&rng, seed) : seed % 3 == 1 ? roomy_plan(&rng, seed) : tight_plan(&rng, seed);
		assert_true(run(&p, seed) == run(&p, seed));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_durable_is_found_again_after_crashes_and_reopening),
		cmocka_unit_test(a_small_cache_evicts_and_never_gives_a_wrong_byte),
		cmocka_unit_test(saves_that_rewrite_every_slot_end_on_a_slow_disk),
		cmocka_unit_test(a_third_tier_that_others_use_too_gives_no_wrong_byte_either),
		cmocka_unit_test(one_seed_gives_one_run),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
