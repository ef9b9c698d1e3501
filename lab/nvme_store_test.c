/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store on a raw namespace of the software controller: made, closed, opened again, and opened after power cuts that lose what the
 * controller's volatile cache had not flushed.
 *
 * Power goes between two calls of the store, with whatever commands are under way then.
 */
#include <string.h>

#include <tenuto/error.h>

#include "lab/soft_rig.h"
#include "nvme/engine.h"
#include "store/store_rig.h"

#define KEYS 24u
#define CUTS 40u

/* A store with all that is below it, and what may be expected of a key when power goes now. */
struct world {
	struct tn_soft *soft;
	struct tn_nvme *nvme;
	struct rig *rig;
	uint64_t durable[KEYS]; /* sequence that must be found at least; 0: nothing must */
	bool gone[KEYS];	/* removed durably: must not be found */
	uint64_t lost, kept;
};

static void engine_up(struct world *w, struct tn_io **io)
{
	struct tn_nvme_opts n = {.port = tn_soft_port(w->soft), .alloc = &tn_alloc_system, .clock = &tn_clock_system, .queues = 1, .entries = 32};
	struct tn_nvme_engine_opts e = {.port = n.port, .depth = 64, .alloc = &tn_alloc_system, .clock = &tn_clock_system};

	assert_int_equal(tn_nvme_create(&n, &w->nvme), 0);
	e.nvme = w->nvme;
	assert_int_equal(tn_nvme_engine_create(&e, io), 0);
}

static void world_up(struct world *w, uint32_t block_bytes, uint32_t sgl)
{
	struct tn_soft_opts o;
	struct tn_io *io;

	memset(w, 0, sizeof(*w));
	tn_soft_opts_init(&o);
	o.blocks = (16u << 20) / block_bytes;
	o.block_bytes = block_bytes;
	o.sgl = sgl;
	o.steps = 3;
	o.cache = true;
	o.seed = tn_test_seed();
	assert_int_equal(tn_soft_create(&o, &w->soft), 0);
	engine_up(w, &io);
	w->rig = rig_new_on(io, &tn_clock_system, "namespace");
	w->rig->opts.boot[0] = 1;
	if (rig_open(w->rig))
		fail_msg("is not made: %s", tn_error_last()->text);
}

static void world_down(struct world *w)
{
	struct tn_io *io = w->rig->io;

	rig_free(w->rig);
	tn_io_destroy(io);
	tn_nvme_destroy(w->nvme);
	soft_rig_no_findings(w->soft);
	tn_soft_destroy(w->soft);
}

/* Power goes and comes back: the controller has what was flushed, the host nothing. */
static void power_cut(struct world *w)
{
	tn_soft_power_cut(w->soft);
	tn_io_destroy(w->rig->io);
	tn_nvme_destroy(w->nvme);
	rig_abandon(w->rig);
	engine_up(w, &w->rig->io);
	w->rig->opts.io = w->rig->io;
	w->rig->opts.boot[0]++;
	w->rig->opts.lock_timeout_ns = 0;
	if (rig_open(w->rig))
		fail_msg("does not open: %s\n%s", tn_error_last()->text, w->rig->logs);
}

static void flush(struct world *w)
{
	assert_int_equal(rig_flush(w->rig), 0);
	for (uint64_t n = 0; n < KEYS; n++) {
		const struct rig_block *b = rig_find(w->rig, n);

		w->durable[n] = b ? b->entry.sequence : 0;
		w->gone[n] = !b;
	}
}

/* Saves the block if it is not there, else removes it. */
static void change(struct world *w, uint64_t n)
{
	if (rig_find(w->rig, n)) {
		rig_remove(w->rig, n);
		w->durable[n] = 0;
	} else if (rig_save(w->rig, n) >= 0) {
		w->gone[n] = false;
	}
}

static void check(struct world *w)
{
	for (uint64_t n = 0; n < KEYS; n++) {
		const struct rig_block *b = rig_find(w->rig, n);

		if (w->durable[n] && (!b || b->entry.sequence < w->durable[n]))
			fail_msg("durable block %llu is lost\n%s", (unsigned long long)n, w->rig->logs);
		if (w->gone[n] && b)
			fail_msg("removed block %llu is back\n%s", (unsigned long long)n, w->rig->logs);
		if (b && rig_read(w->rig, n))
			fail_msg("block %llu is found but cannot be read\n%s", (unsigned long long)n, w->rig->logs);
		w->kept += b != NULL;
		w->lost += !b && !w->gone[n];
		w->durable[n] = b ? b->entry.sequence : 0;
		w->gone[n] = !b;
	}
	w->rig->logs[0] = '\0';
}

static void a_namespace_is_made_a_store_closed_and_opened_again(void **state)
{
	struct world w;

	world_up(&w, 512, 1);
	for (uint64_t n = 0; n < 8; n++)
		assert_true(rig_save(w.rig, n) >= 0);
	assert_int_equal(rig_close(w.rig), 0);
	assert_int_equal(rig_open(w.rig), 0);
	assert_int_equal(w.rig->recovered, 8);
	for (uint64_t n = 0; n < 8; n++)
		assert_int_equal(rig_read(w.rig, n), 0);
	world_down(&w);
}

static void cuts(uint32_t block_bytes, uint32_t sgl)
{
	struct tn_rng rng;
	struct world w;

	tn_rng_seed(&rng, tn_test_seed() + block_bytes);
	world_up(&w, block_bytes, sgl);
	for (uint32_t cut = 0; cut < CUTS; cut++) {
		uint64_t acts = tn_rng_below(&rng, 30);

		for (uint64_t i = 0; i < acts; i++) {
			uint64_t what = tn_rng_below(&rng, 10);

			if (what == 0)
				flush(&w);
			else if (what < 3)
				rig_step(w.rig, (unsigned)tn_rng_below(&rng, 4));
			else
				change(&w, tn_rng_below(&rng, KEYS));
		}
		power_cut(&w);
		check(&w);
	}
	printf("# %u power cuts: %llu blocks kept, %llu lost that nobody had flushed\n", CUTS, (unsigned long long)w.kept,
	       (unsigned long long)w.lost);
	assert_true(w.kept > 0 && w.lost > 0);
	world_down(&w);
}

static void after_power_cuts_what_was_flushed_is_there_through_sgls(void **state)
{
	cuts(512, 1);
}

static void after_power_cuts_what_was_flushed_is_there_through_prps(void **state)
{
	cuts(4096, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_namespace_is_made_a_store_closed_and_opened_again),
		cmocka_unit_test(after_power_cuts_what_was_flushed_is_there_through_sgls),
		cmocka_unit_test(after_power_cuts_what_was_flushed_is_there_through_prps),
	};

	return cmocka_run_group_tests_name("nvme-store", tests, NULL, NULL);
}
