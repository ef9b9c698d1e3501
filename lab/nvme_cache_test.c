/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache on raw namespaces of software controllers, one and several, beside directories: what was saved comes back, in this life and the next,
 * by an executor that drives queues itself, with threads and without, also while controllers fail and are reset. The controllers look at how they
 * are driven, and count what each pair of queues has moved.
 */
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/rng.h"
#include "core/core.h"
#include "drives/drives.h"
#include "front/cache_rig.h"
#include "lab/soft_rig.h"

#define PATIENT_NS 60000000000ull /* for an answer: nothing is lost, and the machine may be busy */
#define DRIVES 2u
#define BLOCKS 40u
#define DISK_BYTES (24ull << 20) /* of each */

static const char *const addresses[DRIVES] = {"0000:01:00.0", "0000:02:00.0"};
static struct tn_soft *soft[DRIVES];

static int reach(void *arg, const char *address, const struct tn_nvme_port **port)
{
	for (uint32_t i = 0; i < DRIVES; i++)
		if (strcmp(address, addresses[i]) == 0) {
			*port = tn_soft_port(soft[i]);
			return 0;
		}
	return tn_fail(-EINVAL, "%s: no such controller", address);
}

/* As tn_devices_open, with other controllers. */
static int open_soft(struct tn_engines *e)
{
	const struct tn_drives_opts o = {.dirs = e->opts->dirs, .ndirs = e->opts->ndirs, .executors = e->opts->executors, .command_ns = PATIENT_NS,
					 .open = reach, .alloc = e->alloc, .clock = e->clock, .log = e->log};

	return tn_drives_open(&o, &e->drives);
}

static int open_cache(const struct tn_cache_opts *opts, struct tn_cache **out)
{
	int rc = tn_cache_create(opts, out);

	if (rc)
		return rc;
	(*out)->engines.open = open_soft;
	return tn_cache_start(*out);
}

/* Controllers of so many pairs of queues. */
static void up_with(uint32_t queues)
{
	struct tn_soft_opts o;

	for (uint32_t i = 0; i < DRIVES; i++) {
		tn_soft_opts_init(&o);
		o.block_bytes = i ? 4096 : 512;
		o.blocks = (64u << 20) / o.block_bytes;
		o.sgl = i ? 0 : 1;
		o.cache = o.zeroes = true;
		o.queues = queues;
		o.steps = 3;
		o.late_steps = 300;
		o.seed = tn_test_seed() + i;
		assert_int_equal(tn_soft_create(&o, &soft[i]), 0);
		assert_int_equal(tn_soft_start(soft[i]), 0);
	}
}

static int up(void **state)
{
	up_with(4);
	return 0;
}

static int up_with_one_pair(void **state)
{
	up_with(1);
	return 0;
}

static int down(void **state)
{
	for (uint32_t i = 0; i < DRIVES; i++) {
		tn_soft_stop(soft[i]);
		soft_rig_no_findings(soft[i]);
		tn_soft_destroy(soft[i]);
	}
	return 0;
}

/* Other controllers of the same kind, which hold nothing. */
static void empty_drives(void)
{
	down(NULL);
	up(NULL);
}

/* What a cache is made with. dirs outlive it. */
struct kind {
	const char *const *dirs;
	uint32_t n, executors;
	uint64_t host_bytes;
	bool attached;
};

static void rig_of(struct rig *r, const struct kind *k)
{
	rig_init(r, k->n * DISK_BYTES, k->host_bytes, 64);
	r->o.cache.executors = k->executors;
	r->o.attached = k->attached;
	r->o.cache.dirs = k->dirs;
	r->o.cache.ndirs = k->n;
	r->o.open = open_cache;
	rig_must_open(r);
}

static void save_all(struct rig *r)
{
	for (uint32_t i = 0; i < BLOCKS; i += 8) {
		struct tn_save_result s = rig_save(&r->s[0], i, 8, 0);

		assert_int_equal(s.stored, 8);
	}
	assert_int_equal(rig_flush(r), 0);
}

static void load_all(struct rig *r)
{
	for (uint32_t i = 0; i < BLOCKS; i += 8)
		assert_int_equal(rig_load(&r->s[0], i, 8), 8);
}

/* Bytes that pairs of queues have moved, of all drives: the store's engine's, the first; and the others. */
struct moved {
	struct tn_soft_moved store, others;
	uint64_t drive[DRIVES]; /* all pairs of it */
	uint32_t pairs;		/* others that have moved anything */
};

static struct moved count_moved(void)
{
	struct moved m = {0};

	for (uint32_t i = 0; i < DRIVES; i++)
		for (uint32_t q = 1; q < TN_SOFT_QUEUES_MAX; q++) {
			struct tn_soft_moved one = tn_soft_moved_by(soft[i], q), *sum = q == 1 ? &m.store : &m.others;

			sum->read += one.read;
			sum->written += one.written;
			m.drive[i] += one.read + one.written;
			m.pairs += q > 1 && one.read + one.written > 0;
		}
	return m;
}

static uint64_t bytes_saved(struct rig *r)
{
	return BLOCKS * rig_core_space(&r->s[0])->shape.slot_bytes;
}

/* In the next life everything is read. */
static void there_again(struct rig *r, struct moved *before, struct moved *after)
{
	rig_reopen(r);
	assert_int_equal(rig_stats(r).recovered_blocks, BLOCKS);
	*before = count_moved();
	load_all(r);
	*after = count_moved();
	assert_int_equal(rig_stats(r).corrupt_objects, 0);
}

static const char *const first_drive[] = {"nvme:0000:01:00.0"}, *const second_drive[] = {"nvme:0000:02:00.0"};
static const char *const both_drives[] = {"nvme:0000:01:00.0", "nvme:0000:02:00.0"};

/* Of all namespaces; 0: one of them has none. */
static uint64_t bytes_on_drives(struct rig *r, const char *const *dirs, uint32_t n)
{
	struct tn_device_stats s = {.size = sizeof(s)};
	uint64_t blocks = 0;

	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(tn_cache_device_stats(r->cache, i, &s), 0);
		if (strncmp(dirs[i], "nvme:", 5))
			continue;
		if (s.blocks == 0)
			return 0;
		blocks += s.blocks;
	}
	return blocks * rig_core_space(&r->s[0])->shape.slot_bytes;
}

/* On a busy machine the other devices may have taken all blocks before a namespace has its first segment: then they are saved once more. */
static void save_on_each(struct rig *r, const char *const *dirs, uint32_t n)
{
	save_all(r);
	for (uint32_t tries = 0; tries < 50 && bytes_on_drives(r, dirs, n) == 0; tries++) {
		assert_int_equal(tn_space_drop(r->s[0].space, TN_FOREVER), 0);
		save_all(r);
	}
	assert_true(bytes_on_drives(r, dirs, n) > 0);
}

/* A save, a load, and one more in the next life. The store's pair has its index, and nothing of a block. */
static void the_executor_moves_it_all(const struct kind *k)
{
	struct moved before, after;
	uint64_t bytes;
	struct rig r;

	empty_drives();
	rig_of(&r, k);
	bytes = bytes_saved(&r);
	save_on_each(&r, k->dirs, k->n);
	load_all(&r);
	assert_true(count_moved().others.written >= bytes);
	there_again(&r, &before, &after);
	printf("# %u drives, %u threads: of %llu bytes %llu were read by the executor's pairs, %llu by the store's\n", k->n, k->executors,
	       (unsigned long long)bytes, (unsigned long long)(after.others.read - before.others.read),
	       (unsigned long long)(after.store.read - before.store.read));
	assert_true(after.others.read - before.others.read >= bytes);
	assert_true(after.store.read - before.store.read < bytes / 8);
	for (uint32_t i = 0; i < DRIVES && k->n == DRIVES; i++) { /* what lies on a drive was written there, and read twice */
		struct tn_device_stats d = {.size = sizeof(d)};

		assert_int_equal(tn_cache_device_stats(r.cache, i, &d), 0);
		assert_true(d.blocks > 0);
		assert_true(after.drive[i] >= 3 * d.blocks * rig_core_space(&r.s[0])->shape.slot_bytes);
	}
	rig_tear_down(&r);
}

static void what_is_saved_on_a_namespace_is_there_in_the_next_life(void **state)
{
	the_executor_moves_it_all(&(struct kind){first_drive, 1});
}

static void so_it_is_with_a_host_tier_before_it(void **state)
{
	the_executor_moves_it_all(&(struct kind){second_drive, 1, .host_bytes = 4u << 20});
}

static void so_it_is_with_executors_of_one_thread_and_of_several(void **state)
{
	for (uint32_t threads = 1; threads <= 3; threads += 2) {
		the_executor_moves_it_all(&(struct kind){first_drive, 1, .executors = threads});
		the_executor_moves_it_all(&(struct kind){second_drive, 1, .executors = threads, .host_bytes = 4u << 20});
	}
}

static void so_it_is_on_two_namespaces(void **state)
{
	for (uint32_t threads = 0; threads <= 2; threads++)
		the_executor_moves_it_all(&(struct kind){both_drives, 2, .executors = threads});
}

/* The owner maps no page of theirs: the bytes are copied. */
static void so_it_is_for_processes_that_have_attached(void **state)
{
	for (uint32_t threads = 0; threads <= 2; threads += 2) {
		struct rig r;

		empty_drives();
		rig_of(&r, &(struct kind){both_drives, 2, .executors = threads, .attached = true});
		save_all(&r);
		load_all(&r);
		assert_true(rig_stats(&r).bounced_objects >= 2 * BLOCKS * RIG_LAYERS);
		rig_tear_down(&r);
	}
	assert_true(count_moved().others.read > 1u << 20);
}

static void pages_of_a_pool_are_not_copied(void **state)
{
	for (uint32_t threads = 0; threads <= 2; threads += 2) {
		struct rig r;

		empty_drives();
		rig_of(&r, &(struct kind){both_drives, 2, .executors = threads});
		save_all(&r);
		load_all(&r);
		assert_int_equal(rig_stats(&r).bounced_objects, 0);
		rig_tear_down(&r);
	}
}

/* Then the engine of the store moves everything, as files are moved. */
static void by_the_store_s_engine(const char *const *dirs, uint32_t n)
{
	struct moved before, after;
	uint64_t on_drives;
	struct rig r;

	rig_of(&r, &(struct kind){dirs, n});
	save_on_each(&r, dirs, n);
	load_all(&r);
	there_again(&r, &before, &after);
	assert_int_equal(after.others.read + after.others.written, 0);
	on_drives = bytes_on_drives(&r, dirs, n);
	printf("# of %llu bytes %llu lie on namespaces, %llu were read there\n", (unsigned long long)bytes_saved(&r), (unsigned long long)on_drives,
	       (unsigned long long)(after.store.read - before.store.read));
	assert_true(on_drives > 0 && after.store.read - before.store.read >= on_drives); /* what lies in a directory is read there */
	for (uint32_t i = 0; i < DRIVES; i++)
		assert_true(after.drive[i] > 1u << 20);
	rig_tear_down(&r);
}

static void a_store_lies_on_two_namespaces_and_a_directory(void **state)
{
	static char dir[256];
	const char *dirs[] = {"nvme:0000:01:00.0", dir, "nvme:0000:02:00.0"};

	snprintf(dir, sizeof(dir), "%s/tn-drives-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(dir));
	by_the_store_s_engine(dirs, 3);
}

static void a_controller_with_one_pair_of_queues_is_used_too(void **state)
{
	by_the_store_s_engine(both_drives, 2);
}

static struct tn_memory *registered(struct rig *r, unsigned char *at, uint64_t bytes)
{
	const struct tn_memory_range range = {at, bytes};
	struct tn_memory_desc d;
	struct tn_memory *m;

	tn_memory_desc_init(&d);
	d.ranges = &range;
	d.nranges = 1;
	assert_int_equal(tn_memory_register(r->cache, &d, &m), 0);
	return m;
}

struct mapping {
	const char *dir;
	unsigned char *at;
	uint64_t bytes;
	int rc;
};

static int map_it(struct tn_cache *cache, void *arg)
{
	struct mapping *m = arg;

	m->rc = tn_io_map(tn_drives_io(cache->engines.drives, m->dir), m->at, m->bytes);
	return 0;
}

static int unmap_it(struct tn_cache *cache, void *arg)
{
	const struct mapping *m = arg;

	tn_io_unmap(tn_drives_io(cache->engines.drives, m->dir), m->at, m->bytes);
	return 0;
}

/* Whether the second of two pages is mapped: others cannot map it then, together with a third one. */
static bool is_mapped(struct rig *r, const char *dir, unsigned char *at)
{
	struct mapping m = {dir, at + 4096, 8192, 0};

	tn_messages_call(&rig_core(r)->messages, map_it, &m);
	if (m.rc == 0)
		tn_messages_call(&rig_core(r)->messages, unmap_it, &m);
	return m.rc != 0;
}

/* What could not be mapped, because other memory had some of its bytes, takes nobody's mapping away when it goes. */
static void memories_that_share_bytes_are_unmapped_each_by_itself(void **state)
{
	static const char *const dirs[] = {"nvme:0000:01:00.0", "nvme:0000:02:00.0"};
	struct tn_memory *all, *some, *again, *twin;
	unsigned char *at;
	struct rig r;

	rig_of(&r, &(struct kind){dirs, 2});
	at = aligned_alloc(4096, 3 * 4096);
	assert_non_null(at);
	all = registered(&r, at, 3 * 4096);
	some = registered(&r, at, 2 * 4096);
	assert_int_equal(tn_memory_unregister(all), 0);
	assert_false(is_mapped(&r, dirs[0], at));
	again = registered(&r, at, 2 * 4096);
	assert_int_equal(tn_memory_unregister(some), 0);
	assert_true(is_mapped(&r, dirs[0], at));
	twin = registered(&r, at, 2 * 4096);
	assert_int_equal(tn_memory_unregister(again), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(is_mapped(&r, dirs[i], at));
	assert_int_equal(tn_memory_unregister(twin), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_false(is_mapped(&r, dirs[i], at));
	free(at);
	rig_tear_down(&r);
}

/* A mapping that one drive has and another has not is nobody's to take away. */
static void what_one_of_two_drives_cannot_map_none_has(void **state)
{
	static const char *const dirs[] = {"nvme:0000:01:00.0", "nvme:0000:02:00.0"};
	struct mapping other = {dirs[1], NULL, 4096, 0};
	struct tn_memory *m;
	unsigned char *at;
	struct rig r;

	rig_of(&r, &(struct kind){dirs, 2});
	at = other.at = aligned_alloc(4096, 3 * 4096);
	assert_non_null(at);
	tn_messages_call(&rig_core(&r)->messages, map_it, &other);
	assert_int_equal(other.rc, 0);
	m = registered(&r, at, 2 * 4096);
	assert_false(is_mapped(&r, dirs[0], at));
	assert_int_equal(tn_memory_unregister(m), 0);
	tn_messages_call(&rig_core(&r)->messages, unmap_it, &other);
	free(at);
	rig_tear_down(&r);
}

/* ---- while controllers fail ---------------------------------------------------------------------------------- */

#define ROUNDS 60u
#define ROUND_BLOCKS 8u

struct storm {
	struct rig r;
	struct tn_rng rng;
	uint64_t next; /* blocks below it were saved, or tried */
	uint64_t good, bad, cancelled, resets;
};

/* As another thread's reset of a controller in its way. */
static void reset_one(struct storm *s)
{
	const struct tn_cache *c = rig_core(&s->r);
	struct tn_drive_range d;

	assert_true(tn_drives_range(c->engines.drives, c->io, TN_IO_FILES_MAX + tn_rng_below(&s->rng, (uint32_t)s->r.o.cache.ndirs), &d));
	assert_int_equal(tn_nvme_restart(d.nvme, tn_nvme_generation(d.nvme)), 0);
}

/* Layer by layer: each is there when it is said to be. */
static void await_layers(struct storm *s, struct tn_load *load, uint64_t first, uint32_t page)
{
	struct rig_space *sp = &s->r.s[0];
	int good = 0;

	for (uint32_t l = 0; l < sp->g.layers; l++) {
		good = rig_load_wait(sp, load, l);
		assert_true(good >= 0);
		for (uint32_t i = 0; i < (uint32_t)good * RIG_PAGES; i++)
			assert_true(rig_holds(sp, first + i / RIG_PAGES, l, i % RIG_PAGES, page + i));
	}
	s->good += (uint32_t)good;
	s->bad += ROUND_BLOCKS - (uint32_t)good;
	rig_load_end(sp, load);
}

/* Two loads and a save at once; between them whatever is to happen. */
static void one_round(struct storm *s, void (*happens)(struct storm *s))
{
	struct rig_space *sp = &s->r.s[0];
	uint64_t first[2];
	struct tn_load *load[2];
	struct tn_save *save;

	rig_fill_blocks(sp, s->next, ROUND_BLOCKS, 0);
	save = rig_save_begin(sp, s->next, ROUND_BLOCKS, 0, NULL);
	rig_save_give(sp, save);
	for (uint32_t i = 0; i < 2; i++) {
		first[i] = s->next - ROUND_BLOCKS * (1 + tn_rng_below(&s->rng, BLOCKS / ROUND_BLOCKS));
		load[i] = rig_load_begin(sp, first[i], ROUND_BLOCKS, sp->npages / 2 + i * ROUND_BLOCKS * RIG_PAGES, NULL);
	}
	happens(s);
	if (tn_rng_below(&s->rng, 4) == 0) {
		tn_load_cancel(load[1]);
		s->cancelled++;
	}
	for (uint32_t i = 0; i < 2; i++)
		await_layers(s, load[i], first[i], sp->npages / 2 + i * ROUND_BLOCKS * RIG_PAGES);
	rig_save_end(sp, save);
	s->next += ROUND_BLOCKS;
}

static void nothing(struct storm *s)
{
}

static void a_reset(struct storm *s)
{
	if (tn_rng_below(&s->rng, 6) == 0)
		reset_one(s);
}

static void a_fault(struct storm *s)
{
	const struct tn_soft_chances chances[] = {{.error = 400, .twice = 3000, .late = 3000}, {.fatal = 1000}, {0}};
	const struct tn_soft_chances *c = &chances[tn_rng_below(&s->rng, 3)];

	for (uint32_t i = 0; i < DRIVES; i++)
		tn_soft_fault(soft[i], c);
}

/* Of the controllers, but for that at the end of a cache. */
static uint64_t count_resets(uint32_t drives)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < drives; i++) {
		struct tn_soft_stats s;

		tn_soft_stop(soft[i]);
		tn_soft_stats(soft[i], &s);
		assert_int_equal(tn_soft_start(soft[i]), 0);
		n += s.resets - 1;
	}
	return n;
}

static bool all_healthy(struct rig *r)
{
	bool all = true;

	for (uint32_t i = 0; i < r->o.cache.ndirs; i++)
		all &= rig_device(r, i).health == TN_HEALTHY;
	return all;
}

/* When the controllers are in order again, everything is saved and loaded. */
static struct storm storm(const struct kind *k, void (*happens)(struct storm *s))
{
	struct storm s = {.next = BLOCKS};

	empty_drives();
	tn_rng_seed(&s.rng, tn_test_seed() + k->n + 8 * k->executors);
	rig_of(&s.r, k);
	save_all(&s.r);
	for (uint32_t i = 0; i < ROUNDS; i++)
		one_round(&s, i < BLOCKS / ROUND_BLOCKS ? nothing : happens); /* something is there when it begins */
	for (uint32_t i = 0; i < DRIVES; i++)
		tn_soft_fault(soft[i], &(struct tn_soft_chances){0});
	assert_true(s.good > ROUND_BLOCKS);
	/* A controller that failed at the end may not have been looked at yet. */
	rig_until(&s.r, all_healthy(&s.r) && rig_save(&s.r.s[0], s.next += ROUND_BLOCKS, ROUND_BLOCKS, 0).stored == ROUND_BLOCKS);
	rig_flush(&s.r); /* tells once of what left host memory while nobody could write it */
	assert_int_equal(rig_flush(&s.r), 0);
	assert_int_equal(rig_load(&s.r.s[0], s.next, ROUND_BLOCKS), ROUND_BLOCKS);
	assert_int_equal(rig_stats(&s.r).corrupt_objects, 0);
	rig_tear_down(&s.r);
	s.resets = count_resets(k->n);
	printf("# %u drives, %u threads: %llu blocks loaded, %llu not, %llu loads cancelled, %llu resets\n", k->n, k->executors, (unsigned long long)s.good,
	       (unsigned long long)s.bad, (unsigned long long)s.cancelled, (unsigned long long)s.resets);
	return s;
}

/* One drive and two, without threads and with two; those last. */
static void storms(void (*happens)(struct storm *s), bool resets)
{
	uint64_t all = 0;

	for (uint32_t n = 1; n <= DRIVES; n++)
		for (uint32_t threads = 0; threads <= 2; threads += 2) {
			struct storm s = storm(&(struct kind){both_drives, n, .executors = threads, .host_bytes = n == 2 ? 4u << 20 : 0}, happens);

			all += s.resets;
			assert_true(resets || s.bad <= s.cancelled * ROUND_BLOCKS);
		}
	assert_int_equal(all > 0, resets);
}

static void loads_are_there_layer_by_layer_and_some_are_cancelled(void **state)
{
	struct moved m;

	storms(nothing, false);
	m = count_moved();
	assert_true(m.pairs == 4); /* both threads of both drives */
}

static void a_reset_under_load_costs_what_was_under_way_and_nothing_else(void **state)
{
	storms(a_reset, true);
}

static void a_controller_that_fails_under_load_is_used_again_and_no_byte_is_wrong(void **state)
{
	storms(a_fault, true);
}

/* ---- what is refused ------------------------------------------------------------------------------------------ */

static void a_capacity_beyond_the_namespace_is_refused(void **state)
{
	static const char *const dirs[] = {"nvme:0000:01:00.0"};
	struct rig r;

	rig_init(&r, 100ull << 20, 0, 64);
	r.o.cache.dirs = dirs;
	r.o.open = open_cache;
	assert_int_equal(rig_open(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "nvme:0000:01:00.0"));
	r.o.cache.disk_bytes = (64ull << 20) - (128u << 10); /* fits, but for the index */
	assert_int_equal(rig_open(&r), -ENOSPC);
	assert_non_null(strstr(tn_error_last()->text, "index"));
	r.o.cache.disk_bytes = DISK_BYTES;
	rig_must_open(&r);
	rig_tear_down(&r);
}

static void what_a_drive_cannot_do_is_said(void **state)
{
	static const char *const dirs[] = {"nvme:0000:01:00.0", "nvme:0000:01:00.0", "nvme:nonsense", "nvme:0000:01:00.0", "/tmp"};
	struct rig r;

	rig_init(&r, DISK_BYTES, 0, 64);
	r.o.cache.dirs = dirs;
	r.o.open = open_cache;
	r.o.cache.executors = 4;
	assert_int_equal(rig_open(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "has 4 pairs of queues"));
	assert_non_null(strstr(tn_error_last()->text, "at most 3"));
	r.o.cache.executors = 2;
	r.o.cache.dirs = &dirs[3];
	r.o.cache.ndirs = 2;
	assert_int_equal(rig_open(&r), -ENOTSUP);
	assert_non_null(strstr(tn_error_last()->text, "executors"));
	r.o.cache.executors = 0;
	r.o.cache.dirs = dirs;
	assert_int_equal(rig_open(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "twice"));
	r.o.cache.dirs = &dirs[2];
	r.o.cache.ndirs = 1;
	assert_int_equal(rig_open(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "nonsense"));
	rig_tear_down(&r);
}

static void what_is_not_ours_is_not_written_over(void **state)
{
	static const char *const dirs[] = {"nvme:0000:02:00.0"};
	unsigned char *media = tn_soft_media(soft[1]);
	struct rig r;

	media[(64u << 20) - 512] = 'E'; /* of the backup of a GUID partition table */
	rig_init(&r, DISK_BYTES, 0, 64);
	r.o.cache.dirs = dirs;
	r.o.open = open_cache;
	assert_int_equal(rig_open(&r), -EUCLEAN);
	assert_non_null(strstr(tn_error_last()->text, "serial number"));
	media[(64u << 20) - 512] = 0;
	rig_must_open(&r);
	rig_tear_down(&r);
}

#define ON_DRIVES(f) cmocka_unit_test_setup_teardown(f, up, down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_DRIVES(what_is_saved_on_a_namespace_is_there_in_the_next_life),
		ON_DRIVES(so_it_is_with_a_host_tier_before_it),
		ON_DRIVES(so_it_is_with_executors_of_one_thread_and_of_several),
		ON_DRIVES(so_it_is_on_two_namespaces),
		ON_DRIVES(so_it_is_for_processes_that_have_attached),
		ON_DRIVES(pages_of_a_pool_are_not_copied),
		ON_DRIVES(memories_that_share_bytes_are_unmapped_each_by_itself),
		ON_DRIVES(what_one_of_two_drives_cannot_map_none_has),
		ON_DRIVES(a_store_lies_on_two_namespaces_and_a_directory),
		cmocka_unit_test_setup_teardown(a_controller_with_one_pair_of_queues_is_used_too, up_with_one_pair, down),
		ON_DRIVES(loads_are_there_layer_by_layer_and_some_are_cancelled),
		ON_DRIVES(a_reset_under_load_costs_what_was_under_way_and_nothing_else),
		ON_DRIVES(a_controller_that_fails_under_load_is_used_again_and_no_byte_is_wrong),
		ON_DRIVES(a_capacity_beyond_the_namespace_is_refused),
		ON_DRIVES(what_a_drive_cannot_do_is_said),
		ON_DRIVES(what_is_not_ours_is_not_written_over),
	};

	return cmocka_run_group_tests_name("nvme-cache", tests, NULL, NULL);
}
