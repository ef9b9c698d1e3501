/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of the process with a device that stands still: what is asked of the device waits, and nothing else does. Loads and saves of host memory, and
 * of a second device, go on; and the operations of the device that stands end by their deadlines, or when it is lost.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cache_rig.h"
#include "core/core.h"
#include "device/soft_rig.h"

#define DISK (512u << 20)
#define HOST (64u << 20)
#define BLOCKS 4u
#define OPS 10u	  /* loads that stand, and as many saves */
#define ROUNDS 4u /* of work beside them */

struct form {
	const char *scheduler;
	uint32_t head_dim; /* 64: 4 layers are one chunk; 512: 4 */
	uint32_t executors;
	uint64_t host_bytes;
};

struct world {
	struct rig r;
	struct tn_soft_device *device[2];
	struct rig_space host, second; /* pools of host memory, and of the second device */
	struct tn_load *load[OPS];
	struct tn_save *save[OPS];
	uint32_t starved; /* shared: writes that reads have kept waiting for 250 ms */
};

static void explain(void *arg, const struct tn_decision *d)
{
	struct world *w = arg;

	if (d->chosen == TN_CHOSE_WRITE && d->reason == TN_REASON_STARVED)
		__atomic_fetch_add(&w->starved, 1, __ATOMIC_RELAXED);
}

/* Where pools that are opened, or freed, lie from now on. */
static void on(struct world *w, struct tn_soft_device *device)
{
	w->r.o.device = device != NULL;
	w->r.o.soft_device = device;
}

static void up(struct world *w, void **state)
{
	const struct tn_soft_device_opts o = {.seed = tn_test_seed()};
	const struct form *form = *state;

	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(tn_soft_device_create(&o, &w->device[i]), 0);
	rig_init(&w->r, DISK, form->host_bytes, form->head_dim);
	w->r.o.cache.scheduler = form->scheduler;
	w->r.o.cache.executors = form->executors;
	w->r.o.cache.max_ops = 64;
	w->r.o.cache.explain = explain;
	w->r.o.cache.explain_arg = w;
	w->r.o.attached = false;
	w->r.o.staged = false;
	on(w, w->device[0]);
	rig_must_open(&w->r);
	on(w, w->device[1]);
	assert_int_equal(rig_space_open(&w->r, &(struct rig_space_opts){.seed = 7}, &w->second), 0);
	on(w, NULL);
	assert_int_equal(rig_space_open(&w->r, &(struct rig_space_opts){.seed = 8}, &w->host), 0);
}

static void down(struct world *w)
{
	on(w, w->device[1]);
	rig_space_close(&w->second);
	on(w, NULL);
	rig_space_close(&w->host);
	on(w, w->device[0]);
	rig_tear_down(&w->r);
	for (uint32_t i = 0; i < 2; i++)
		tn_soft_device_destroy(w->device[i]);
}

static uint64_t first_of(uint32_t i)
{
	return 1 + i * BLOCKS;
}

/* The first device stands, with loads of blocks on disk, and saves. */
static void stand(struct world *w, const struct tn_load_opts *o)
{
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_save(w->r.s, first_of(i), BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&w->r), 0);
	tn_soft_device_hold(w->device[0], true);
	for (uint32_t i = 0; i < OPS; i++) {
		w->load[i] = rig_load_begin(w->r.s, first_of(i), BLOCKS, 2 * i * BLOCKS * RIG_PAGES, o);
		w->save[i] = rig_save_begin(w->r.s, 10000 + first_of(i), BLOCKS, (2 * i + 1) * BLOCKS * RIG_PAGES, NULL);
		rig_save_give(w->r.s, w->save[i]);
	}
	rig_until(&w->r, tn_soft_device_stats(w->device[0]).under_way > 0);
}

/* Ends them. Loads that nobody gave up are whole. */
static void go_on(struct world *w, uint32_t good)
{
	tn_soft_device_hold(w->device[0], false);
	for (uint32_t i = 0; i < OPS; i++) {
		assert_int_equal(rig_load_wait(w->r.s, w->load[i], RIG_LAYERS - 1), good);
		rig_load_end(w->r.s, w->load[i]);
		assert_int_equal(rig_save_end(w->r.s, w->save[i]).stored, BLOCKS);
	}
}

/* Saves and loads other blocks each time. */
static void works(struct rig_space *s)
{
	for (uint32_t i = 0; i < ROUNDS; i++) {
		assert_int_equal(rig_save(s, first_of(i), BLOCKS, 0).stored, BLOCKS);
		assert_int_equal(rig_load(s, first_of(i), BLOCKS), BLOCKS);
	}
}

static void host_memory_and_other_devices_go_on_beside_a_device_that_stands(void **state)
{
	struct world w = {0};

	up(&w, state);
	stand(&w, NULL);
	usleep(2 * TN_COPIER_STANDS_NS / 1000);
	__atomic_store_n(&w.starved, 0, __ATOMIC_RELAXED);
	works(&w.host);
	works(&w.second);
	/* A read that stands keeps no write waiting. Of a cache with host memory writes wait for loads beside them. */
	assert_true(w.r.o.cache.host_bytes || __atomic_load_n(&w.starved, __ATOMIC_RELAXED) < ROUNDS);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_match(w.r.s, 10000 + first_of(i), 1), 0);
	go_on(&w, BLOCKS);
	down(&w);
}

static void host_memory_goes_on_beside_two_devices_that_stand(void **state)
{
	struct tn_load *load[OPS];
	struct world w = {0};

	up(&w, state);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_save(&w.second, first_of(i), BLOCKS / 2, 0).stored, BLOCKS / 2);
	stand(&w, NULL);
	tn_soft_device_hold(w.device[1], true);
	for (uint32_t i = 0; i < OPS; i++)
		load[i] = rig_load_begin(&w.second, first_of(i), BLOCKS / 2, i * BLOCKS * RIG_PAGES, NULL);
	rig_until(&w.r, tn_soft_device_stats(w.device[1]).under_way > 0);
	works(&w.host);
	go_on(&w, BLOCKS);
	tn_soft_device_hold(w.device[1], false);
	for (uint32_t i = 0; i < OPS; i++) {
		assert_int_equal(rig_load_wait(&w.second, load[i], RIG_LAYERS - 1), BLOCKS / 2);
		rig_load_end(&w.second, load[i]);
	}
	down(&w);
}

/* Nor does who wants the same blocks wait for it: a load joins no load that waits for another device. */
static void the_blocks_that_a_device_waits_for_come_to_host_memory(void **state)
{
	struct world w = {0};
	struct rig_space same;

	up(&w, state);
	assert_int_equal(rig_space_open(&w.r, &(struct rig_space_opts){0}, &same), 0);
	stand(&w, NULL);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_load(&same, first_of(i), BLOCKS), BLOCKS);
	go_on(&w, BLOCKS);
	rig_space_close(&same);
	down(&w);
}

#define FORM(f, i, text) {#f " (" text ")", (f), NULL, NULL, &form[i]}
#define ALL(f) FORM(f, 0, "one chunk"), FORM(f, 1, "4 chunks"), FORM(f, 2, "with host memory"), FORM(f, 3, "2 executors"), \
	       FORM(f, 4, "without a scheduler")

int main(int argc, char **argv)
{
	static struct form form[] = {{NULL, 64, 0, 0}, {NULL, 512, 0, 0}, {NULL, 512, 0, HOST}, {NULL, 512, 2, 0}, {"none", 512, 0, HOST}};
	const struct CMUnitTest tests[] = {
		ALL(host_memory_and_other_devices_go_on_beside_a_device_that_stands),
		ALL(host_memory_goes_on_beside_two_devices_that_stand),
		ALL(the_blocks_that_a_device_waits_for_come_to_host_memory),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
