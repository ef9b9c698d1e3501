/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole cache on a simulated disk that fails: errors, short, late, hanging and corrupt transfers, a full disk, a
 * full engine, in random mixes. A load may find less, never a wrong byte; nothing hangs; and when the
 * faults stop, the devices come back and serve again.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cache_script.h"
#include "ioengine/ioengine.h"
#include "tn_test.h"

static struct tn_io *wrap(struct tn_io *disk, const struct tn_clock *clock, uint64_t seed)
{
	struct tn_io_faulty_opts o = {
		.reorder = seed % 2, .submit_eagain_percent = seed % 3 ? 0 : 20, .seed = seed, .clock = clock};
	struct tn_io *io;
	int rc = tn_io_faulty_create(disk, &o, &io);

	assert(rc == 0);
	return io;
}

static void calm(struct tn_io *wrapper)
{
	tn_io_faulty_set(wrapper, NULL, 0);
	tn_io_faulty_release(wrapper);
}

static struct crig *faulty_rig(struct tn_rng *rng, uint64_t seed)
{
	struct crig_opts o = {
		.seed = seed,
		.ndirs = 1 + tn_rng_below(rng, 2),
		.segment_bytes = 512u << 10,
		.disk_bytes = 4u << 20,
		.host_bytes = tn_rng_below(rng, 2) ? 2u << 20 : 0,
		.policy = "lru",
		.io_depth = 16,
		.max_ops = 12,
		.layers = 2,
		.pages_per_block = 2,
		.head_dim = tn_rng_below(rng, 2) ? 128 : 96,
		.npages = 300,
		.wrap = wrap,
		.calm = calm,
	};

	return crig_create(&o);
}

static void must(struct cscript *s, bool ok)
{
	if (!ok || s->r->error[0])
		fail_msg("TN_SEED=%llu: %s", (unsigned long long)s->r->o.seed, s->r->error);
}

static void steps(struct cscript *s, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		must(s, cscript_step(s));
}

static bool all_healthy(const struct crig *r)
{
	for (uint32_t d = 0; d < r->o.ndirs; d++)
		if (tn_store_health(r->cache->store, d) != TN_HEALTHY)
			return false;
	return true;
}

static uint64_t quarantined(const struct crig *r)
{
	struct tn_device_stats st;
	uint64_t n = 0;

	for (uint32_t d = 0; tn_store_stats(r->cache->store, d, &st) == 0; d++)
		n += st.quarantined_slots;
	return n;
}

/* The faults are over: the devices come back within two minutes, and what is saved then is stored and found. */
static void must_recover(struct cscript *s)
{
	struct crig *r = s->r;
	uint64_t stored, hits;

	calm(r->io);
	crig_run(r, CRIG_SECOND); /* what was to hang may still have been with the disk */
	calm(r->io);
	must(s, cscript_drain(s, 120 * CRIG_SECOND));
	for (uint32_t i = 0; i < 1200 && !all_healthy(r); i++)
		crig_run(r, CRIG_SECOND / 10);
	must(s, all_healthy(r) || crig_fail(r, "a device did not come back"));
	stored = s->n.stored;
	hits = s->n.hits;
	for (uint32_t i = 0; i < 10 && (i == 0 || s->n.stored == stored || s->n.hits == hits); i++)
		steps(s, 150);
	must(s, cscript_settle(s));
	must(s, s->n.stored > stored || crig_fail(r, "nothing is stored after the faults"));
	must(s, s->n.hits > hits || crig_fail(r, "nothing is found after the faults, %llu slots are "
								 "quarantined", (unsigned long long)quarantined(r)));
	must(s, cscript_verify(s));
}

static void random_faults(struct tn_rng *rng, struct tn_io *io)
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
			.delay_ns = (1 + tn_rng_below(rng, 2000)) * CRIG_MS,
		};
	tn_io_faulty_set(io, f, n);
}

static struct cscript *start(struct tn_rng *rng, uint64_t seed)
{
	struct cscript *s;

	tn_rng_seed(rng, seed);
	s = cscript_create(faulty_rig(rng, seed), seed);
	must(s, crig_open(s->r));
	s->drops = seed % 4 == 0;
	steps(s, 100);
	return s;
}

static void finish(struct cscript *s)
{
	struct crig *r = s->r;

	must(s, crig_close(r));
	cscript_destroy(s);
	crig_destroy(r);
}

static uint64_t seeds(uint64_t *first, uint32_t n)
{
	*first = tn_test_seed();
	return *first + (tn_test_soak() ? n * 25ull : n);
}

static void any_mix_of_faults_is_a_miss_and_passes(void **state)
{
	uint64_t seed, end;

	for (end = seeds(&seed, 40); seed < end; seed++) {
		struct tn_rng rng;
		struct cscript *s = start(&rng, seed);

		for (uint32_t round = 0; round < 3; round++) {
			random_faults(&rng, s->r->io);
			steps(s, 120);
			crig_run(s->r, tn_rng_below(&rng, 3000) * CRIG_MS);
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
		struct tn_fault f = {.kind = seed % 6, .op = (uint32_t)(seed / 6 % 3), .count = UINT64_MAX, .delay_ns = CRIG_SECOND};

		tn_io_faulty_set(s->r->io, &f, 1);
		for (uint32_t i = 0; i < 20; i++) {
			steps(s, 20);
			crig_run(s->r, CRIG_SECOND);
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
		struct crig *r = s->r;
		struct tn_fault f[3];
		uint64_t from;

		for (uint32_t op = 0; op < 3; op++)
			f[op] = (struct tn_fault){.kind = TN_FAULT_HANG, .op = op, .count = UINT64_MAX, .percent = seed % 2 ? 100 : 30};
		tn_io_faulty_set(r->io, f, 3);
		for (uint32_t i = 0; i < 10; i++) {
			steps(s, 20);
			crig_run(r, 100 * CRIG_MS);
		}
		from = r->turns;
		calm(r->io);
		crig_run(r, 10 * CRIG_MS); /* what was to hang may still have been with the disk */
		calm(r->io);
		must(s, cscript_drain(s, 120 * CRIG_SECOND));
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
		must(s, cscript_settle(s));
		must(s, cscript_verify(s));
		tn_simdisk_set_capacity(s->r->disk, UINT64_MAX);
		crig_run(s->r, 15 * CRIG_SECOND);
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
