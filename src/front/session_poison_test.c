/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that change their pages while these are summed, written, checked and copied: nobody else gets a byte of that, and no block or slot
 * that others use is lost by it.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/checksum.h"
#include "session_rig.h"

#define ATTACKS 40u
#define OWN 100000u /* ids of the attacker's blocks */

/* Changes a word of each page in turn, as fast as it can. */
struct flipper {
	pthread_t thread;
	const struct rig_space *s;
	uint32_t first, end; /* pages */
	uint32_t stop; /* shared */
};

static void *flip(void *arg)
{
	struct flipper *f = arg;
	uint64_t turn = 1;

	while (!__atomic_load_n(&f->stop, __ATOMIC_RELAXED))
		for (uint32_t page = f->first; page < f->end; page++, turn++)
			for (uint32_t l = 0; l < RIG_LAYERS; l++) {
				uint32_t bytes;
				unsigned char *at = rig_plane(f->s, l, turn & 1, page, &bytes);

				__atomic_fetch_xor((uint64_t *)(void *)(at + turn % (bytes / 8) * 8), turn, __ATOMIC_RELAXED);
			}
	return NULL;
}

static void start_flipping(struct flipper *f, const struct rig_space *s, uint32_t first, uint32_t end)
{
	*f = (struct flipper){.s = s, .first = first, .end = end};
	assert_int_equal(pthread_create(&f->thread, NULL, flip, f), 0);
}

static void stop_flipping(struct flipper *f)
{
	__atomic_store_n(&f->stop, 1, __ATOMIC_RELAXED);
	pthread_join(f->thread, NULL);
}

/* Loads the victim's blocks into pages that it changes. */
static int flip_while_loading(const char *dir)
{
	struct flipper f;
	struct rig r;

	attach(dir, &r);
	start_flipping(&f, r.s, 0, BLOCKS * RIG_PAGES);
	for (uint32_t i = 0; i < ATTACKS; i++) {
		struct tn_load *load = rig_load_begin(r.s, 1, BLOCKS, 0, NULL);

		rig_load_wait(r.s, load, RIG_LAYERS - 1);
		rig_load_end(r.s, load);
	}
	stop_flipping(&f);
	detach(&r);
	return 0;
}

/* Saves blocks of its own from pages that it changes. */
static int flip_while_saving(const char *dir)
{
	uint32_t pages[BLOCKS * RIG_PAGES];
	struct tn_key keys[BLOCKS];
	struct flipper f;
	struct rig r;

	attach(dir, &r);
	rig_pages(r.s, 0, BLOCKS, pages);
	start_flipping(&f, r.s, 0, BLOCKS * RIG_PAGES);
	for (uint32_t i = 0; i < ATTACKS; i++) {
		struct tn_save *save;

		rig_keys(OWN + i * BLOCKS, BLOCKS, keys);
		assert_int_equal(tn_save_begin(r.s->space, r.s->pool, keys, BLOCKS, pages, NULL, &save), 0);
		rig_save_give(r.s, save);
		rig_save_end(r.s, save);
	}
	stop_flipping(&f);
	detach(&r);
	return 0;
}

static void set_up_with(struct rig *r, uint64_t host_bytes)
{
	char path[PATH];

	rig_set_up(r, 64u << 20, host_bytes, 64);
	socket_path(r, path);
	assert_int_equal(tn_cache_serve(r->cache, path, NULL), 0);
}

/* What lies in host memory is what its checksums say. Returns how many blocks do. */
static uint32_t check_host(struct rig *r, uint64_t first, uint32_t n)
{
	const struct tn_tier_base *t = r->cache->row.memory;
	const struct tn_shape *shape = &r->s->space->shape;
	uint32_t found = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct tn_key key = rig_key(first + i);
		tn_block b = tn_registry_find_one(r->cache->registry, r->s->space->index, &key, true);
		const unsigned char *at;
		uint64_t *checks;

		if (b == TN_BLOCK_NONE)
			continue;
		if (tn_tier_has(t, b)) {
			at = tn_mapping_address(t->memory, t->ops->offset(t, tn_tier_place_of(t, b), shape, &checks));
			for (uint32_t l = 0; l < RIG_LAYERS; l++)
				assert_int_equal(tn_checksum(at + (size_t)l * shape->padded_bytes, shape->object_bytes), checks[l]);
			found++;
		}
		tn_block_unpin(r->cache->registry, b);
	}
	return found;
}

/* The device is not blamed for what a process did. */
static void device_is_well(struct rig *r)
{
	struct tn_device_stats d = rig_device(r, 0);

	assert_int_equal(d.health, TN_HEALTHY);
	assert_int_equal(d.read_errors + d.write_errors, 0);
	assert_int_equal(d.quarantined_slots, 0);
}

static void what_a_process_saves_while_it_changes_it_is_summed_in_host_memory(void **state)
{
	struct rig r;

	set_up_with(&r, 48u << 20);
	assert_int_equal(end_of(start("flip_while_saving", &r)), 0);
	assert_true(check_host(&r, OWN, ATTACKS * BLOCKS) > BLOCKS);
	device_is_well(&r);
	rig_tear_down(&r);
}

static void what_a_process_saves_to_disk_while_it_changes_it_is_a_miss_and_costs_no_slot(void **state)
{
	struct rig r;

	set_up_with(&r, 0);
	for (uint32_t round = 0; round < 3; round++) {
		assert_int_equal(end_of(start("flip_while_saving", &r)), 0);
		for (uint32_t i = 0; i < ATTACKS; i++) {
			struct tn_load *load = rig_load_begin(r.s, OWN + i * BLOCKS, BLOCKS, RIG_POOL_PAGES / 2, NULL);

			assert_true(rig_load_wait(r.s, load, RIG_LAYERS - 1) <= (int)BLOCKS);
			rig_load_end(r.s, load);
		}
		device_is_well(&r);
	}
	/* A block that was a miss may be saved again. */
	rig_save(r.s, OWN, BLOCKS, 0);
	/* A drive that is driven from user space reads a bounce buffer: the very bytes that were summed. */
	if (!rig_namespace)
		assert_true(rig_stats(&r).corrupt_objects > 0);
	assert_int_equal(rig_save(r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	rig_tear_down(&r);
}

/* Loads the same blocks all the time, until the process is over. */
static void load_beside(struct rig *r, struct rig_space *s, pid_t pid)
{
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0)
		assert_int_equal(rig_load(s, 1, BLOCKS), BLOCKS); /* checks the bytes */
	assert_int_equal(status, 0);
	assert_int_equal(rig_stats(r).corrupt_objects, 0);
	device_is_well(r);
}

static void what_a_process_loads_while_it_changes_it_reaches_nobody_else(void **state)
{
	struct rig r, other;

	set_up_with(&r, 0);
	assert_int_equal(rig_save(r.s, 1, BLOCKS, 0).stored, BLOCKS);
	attach(r.dir, &other);
	load_beside(&r, r.s, start("flip_while_loading", &r));
	load_beside(&r, other.s, start("flip_while_loading", &r));
	detach(&other);
	rig_tear_down(&r);
}

static void what_a_process_loads_while_it_changes_it_does_not_reach_host_memory(void **state)
{
	uint32_t promoted = 0;
	struct rig r;

	set_up_with(&r, 4u << 20); /* for half of them, so that each load brings some */
	assert_int_equal(rig_save(r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&r), 0);
	for (uint32_t i = 0; i < 4; i++) {
		load_beside(&r, r.s, start("flip_while_loading", &r));
		promoted += check_host(&r, 1, BLOCKS);
	}
	assert_true(promoted > 0);
	rig_tear_down(&r);
}

static const struct {
	const char *name;
	int (*run)(const char *dir);
} bodies[] = {
	{"flip_while_loading", flip_while_loading},
	{"flip_while_saving", flip_while_saving},
};

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_process_saves_while_it_changes_it_is_summed_in_host_memory),
		cmocka_unit_test(what_a_process_saves_to_disk_while_it_changes_it_is_a_miss_and_costs_no_slot),
		cmocka_unit_test(what_a_process_loads_while_it_changes_it_reaches_nobody_else),
		cmocka_unit_test(what_a_process_loads_while_it_changes_it_does_not_reach_host_memory),
	};

	for (size_t i = 0; argc == 3 && i < sizeof(bodies) / sizeof(bodies[0]); i++)
		if (strcmp(argv[1], bodies[i].name) == 0)
			return bodies[i].run(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
