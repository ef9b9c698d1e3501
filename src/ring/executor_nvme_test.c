/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor on NVMe queues, where a drive fails: commands that are never answered, late answers, resets under way, a drive that is
 * gone; PRPs and SGLs; and several executors, each on pairs of its own, on one namespace. Every IOCB ends by a bound, every status is true, and
 * the controller finds nothing wrong with how it is driven.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checksum.h"
#include "base/rng.h"
#include "executor_nvme_rig.h"
#include "nvme/pair.h"
#include "tn_test.h"

#define OBJECTS 48u
#define PIECES_MOST 4u /* pages of an object */
#define STEP_NS 100000ull
#define COMMAND_NS (300 * STEP_NS)
#define SIDES_MAX 2u

/* One executor with a ring and memory of its own. */
struct side {
	struct tn_ring *ring;
	struct tn_executor *ex;
	struct tn_ring_list list;
	unsigned char *memory;
	unsigned char *flat[OBJECTS];
	uint64_t offset[OBJECTS];
	struct tn_mapped_range range;
	struct tn_mapping mapping;
	const struct tn_mapping *mappings[1];
};

/* A controller of any kind, a file of objects on it, and time that the rig moves. */
struct world {
	struct rig_nvme n;
	struct tn_clock clock;
	struct tn_rng rng;
	uint64_t now;
	struct tn_shape shape;
	uint64_t checks[OBJECTS];
	uint32_t version[OBJECTS]; /* of its bytes on the drive */
	struct side side[SIDES_MAX];
	uint32_t sides;
};

#define BROKEN 1000u /* the version after a write that failed */

static uint64_t now_of(void *arg)
{
	return ((struct world *)arg)->now += STEP_NS / 100; /* whoever waits looks at it */
}

static void fill_object(const struct world *w, unsigned char *at, uint32_t object, uint32_t version)
{
	for (uint32_t i = 0; i < w->shape.object_bytes; i++)
		at[i] = (unsigned char)(object * 31 + version * 101 + i * 13 + i / 251 + 1);
	memset(at + w->shape.object_bytes, 0, w->shape.padded_bytes - w->shape.object_bytes);
}

static bool is_object(const struct world *w, const unsigned char *at, uint32_t object, uint32_t version)
{
	unsigned char want[PIECES_MOST * 4096];

	fill_object(w, want, object, version);
	return memcmp(at, want, w->shape.object_bytes) == 0;
}

static unsigned char *on_drive(struct world *w, uint32_t object)
{
	return rig_nvme_bytes(&w->n) + (uint64_t)object * w->shape.padded_bytes;
}

static void add_side(struct world *w, bool mapped)
{
	struct side *s = &w->side[w->sides];
	struct tn_ring_drive drive = w->n.drive;
	struct tn_executor_drives drives = {.drive = &drive, .command_ns = COMMAND_NS};
	struct tn_executor_opts o = {.ndevices = 1, .depth = 12, .alloc = &tn_alloc_system, .clock = &w->clock};
	struct tn_ring_opts ro = tn_ring_opts_default();
	size_t bytes = OBJECTS * w->shape.padded_bytes;

	ro.memory.depth = 8;
	ro.memory.ioctxs = OBJECTS;
	ro.mappings = s->mappings;
	ro.nmappings = 1;
	assert_int_equal(tn_ring_create(&ro, &tn_alloc_system, &s->ring), 0);
	s->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(s->memory != MAP_FAILED);
	tn_mapping_init(&s->mapping, &s->range, &(struct tn_memory_range){.address = s->memory, .bytes = bytes}, 1);
	s->mappings[0] = &s->mapping;
	for (uint32_t i = 0; i < OBJECTS; i++) {
		s->offset[i] = i * w->shape.padded_bytes;
		s->flat[i] = s->memory + s->offset[i];
	}
	s->list = (struct tn_ring_list){.shape = &w->shape, .blocks = OBJECTS, .flat = s->offset, .align = 4096, .checks = w->checks};
	assert_int_equal(tn_ring_list_set(s->ring, 1, &s->list), 0);
	o.ring = s->ring;
	drive.queue = 1 + w->sides++;
	assert_int_equal(tn_executor_nvme_create(&o, &drives, &s->ex), 0);
	assert_int_equal(tn_executor_make_bounces(s->ex, w->shape.padded_bytes), 0);
	if (mapped)
		assert_int_equal(tn_executor_map(s->ex, s->memory, bytes), 0);
}

static void up(struct world *w, uint64_t seed, uint32_t sides)
{
	struct rig_nvme_opts o;

	memset(w, 0, sizeof(*w));
	tn_rng_seed(&w->rng, seed);
	rig_nvme_opts_init(&o);
	o.soft.seed = seed;
	o.soft.block_bytes = tn_rng_below(&w->rng, 2) ? 512 : 4096;
	o.soft.sgl = tn_rng_below(&w->rng, 3);
	o.soft.mdts = tn_rng_below(&w->rng, 3);
	o.soft.scattered = tn_rng_below(&w->rng, 4);
	o.soft.steps = tn_rng_below(&w->rng, 12);
	o.soft.late_steps = 2500; /* beyond a command's deadline */
	o.entries = 3 + tn_rng_below(&w->rng, 16);
	o.queues = 1 + SIDES_MAX;
	w->clock = (struct tn_clock){.now_ns = now_of, .wall_ns = now_of, .arg = w};
	o.clock = &w->clock;
	o.command_ns = o.admin_ns = COMMAND_NS;
	w->shape = (struct tn_shape){.layers = 1, .object_iovs = 1, .object_bytes = (1 + tn_rng_below(&w->rng, PIECES_MOST)) * 4096};
	w->shape.object_bytes -= tn_rng_below(&w->rng, 2) * 400;
	w->shape.padded_bytes = (w->shape.object_bytes + 4095) / 4096 * 4096;
	w->shape.slot_bytes = w->shape.padded_bytes;
	o.file_bytes = (uint64_t)OBJECTS * w->shape.padded_bytes;
	rig_nvme_up(&w->n, &o);
	for (uint32_t i = 0; i < OBJECTS; i++) {
		fill_object(w, on_drive(w, i), i, 0);
		w->checks[i] = tn_checksum(on_drive(w, i), w->shape.object_bytes);
	}
	while (sides--)
		add_side(w, sides == 0 || tn_rng_below(&w->rng, 2));
}

static void down(struct world *w)
{
	for (uint32_t i = 0; i < w->sides; i++) {
		tn_executor_destroy(w->side[i].ex);
		tn_ring_destroy(w->side[i].ring);
		munmap(w->side[i].memory, OBJECTS * w->shape.padded_bytes);
	}
	rig_nvme_down(&w->n);
}

static void step(struct world *w)
{
	w->now += STEP_NS;
	rig_nvme_step(&w->n);
	for (uint32_t i = 0; i < w->sides; i++)
		tn_executor_step(w->side[i].ex);
}

/* Objects [from, to); a side has its own ones, so that nobody reads what another writes. */
static uint32_t issue(struct world *w, struct side *s, uint16_t op, uint32_t from, uint32_t to)
{
	struct tn_ioctx *x;
	uint32_t id;

	assert_int_equal(tn_ring_get_iocb(s->ring, to - from, NULL, &id), 0);
	x = tn_ring_ioctx(s->ring, id);
	for (uint32_t i = from; i < to; i++)
		x[i - from] = (struct tn_ioctx){tn_ioctx_disk(0, i * (w->shape.padded_bytes / 4096)), w->shape.object_bytes, i};
	tn_ring_iocb(s->ring, id)->list = 1;
	tn_ring_iocb(s->ring, id)->op = op;
	tn_ring_iocb(s->ring, id)->flags = op == TN_IOCB_READ ? TN_IOCB_VERIFY : TN_IOCB_SUM;
	assert_int_equal(tn_ring_issue(s->ring, &id, 1), 0);
	return id;
}

static bool finished(struct side *s, uint32_t id, struct tn_ring_completion *c)
{
	struct tn_ring_completion any;

	while (tn_ring_poll(s->ring, &any, 1))
		;
	return tn_ring_result(s->ring, id, c) == 0;
}

static struct tn_ring_completion await(struct world *w, struct side *s, uint32_t id)
{
	struct tn_ring_completion c;
	uint32_t steps = 0;

	for (; !finished(s, id, &c); steps++) {
		assert_true(steps < 1000000);
		step(w);
	}
	return c;
}

/* What is said of objects [from, to) of a finished IOCB is true; afterwards nobody's memory is touched by what comes late. */
static uint32_t expect(struct world *w, struct side *s, uint32_t id, uint16_t op, uint32_t from, uint32_t to)
{
	const int32_t *status = tn_ring_statuses(s->ring, id);
	uint32_t good = 0;

	for (uint32_t i = from; i < to; i++) {
		int st = status ? status[i - from] : TN_RING_PENDING;

		if (op == TN_IOCB_WRITE && st) { /* old or new bytes, or both: the next one finds known ones */
			w->version[i] = BROKEN;
			fill_object(w, on_drive(w, i), i, w->version[i]);
			w->checks[i] = tn_checksum(on_drive(w, i), w->shape.object_bytes);
		} else if (op == TN_IOCB_WRITE) {
			w->version[i]++;
			assert_int_equal(tn_ring_sums(s->ring, id)[i - from], tn_checksum(s->flat[i], w->shape.object_bytes));
			assert_true(is_object(w, on_drive(w, i), i, w->version[i]));
			w->checks[i] = tn_ring_sums(s->ring, id)[i - from];
		} else if (st == 0) {
			assert_true(is_object(w, s->flat[i], i, w->version[i]));
		}
		good += st == 0;
		memset(s->flat[i], 0xdd, w->shape.padded_bytes);
	}
	assert_int_equal(tn_ring_put(s->ring, &id, 1), 0);
	return good;
}

static void nobody_touched(const struct world *w, const struct side *s, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		assert_true(s->flat[i][0] == 0xdd && !memcmp(s->flat[i], s->flat[i] + 1, w->shape.padded_bytes - 1));
}

/* Each side reads and writes its own half, in rounds. */
struct tally {
	uint64_t good, bad, resets, aborted, strange;
};

static void one_round(struct world *w, struct tally *t)
{
	uint32_t id[SIDES_MAX], from[SIDES_MAX], to[SIDES_MAX], half = OBJECTS / SIDES_MAX;
	uint16_t op[SIDES_MAX];

	for (uint32_t i = 0; i < w->sides; i++) {
		struct side *s = &w->side[i];

		from[i] = i * half + tn_rng_below(&w->rng, half);
		to[i] = from[i] + 1 + tn_rng_below(&w->rng, (i + 1) * half - from[i]);
		op[i] = tn_rng_below(&w->rng, 2) ? TN_IOCB_READ : TN_IOCB_WRITE;
		for (uint32_t k = from[i]; k < to[i]; k++)
			if (op[i] == TN_IOCB_WRITE)
				fill_object(w, s->flat[k], k, w->version[k] + 1);
		id[i] = issue(w, s, op[i], from[i], to[i]);
		if (tn_rng_below(&w->rng, 6) == 0) {
			step(w);
			tn_ring_cancel(s->ring, &id[i], 1);
		}
	}
	for (uint32_t i = 0; i < w->sides; i++) {
		uint32_t good;

		await(w, &w->side[i], id[i]);
		good = expect(w, &w->side[i], id[i], op[i], from[i], to[i]);
		t->good += good;
		t->bad += to[i] - from[i] - good;
	}
	for (uint32_t k = tn_rng_below(&w->rng, 20); k > 0; k--)
		step(w);
	for (uint32_t i = 0; i < w->sides; i++)
		nobody_touched(w, &w->side[i], from[i], to[i]);
}

static void count(struct world *w, struct tally *t)
{
	for (uint32_t i = 0; i < w->sides; i++) {
		struct tn_nvme_pair_stats p;

		tn_executor_nvme_pair_stats(w->side[i].ex, 0, &p);
		t->resets += p.resets;
		t->aborted += p.aborted;
		t->strange += p.strange;
	}
}

static void schedules(const struct tn_soft_chances *chances, struct tally *t)
{
	uint32_t worlds = tn_test_soak() ? 2000 : 60;

	memset(t, 0, sizeof(*t));
	for (uint32_t k = 0; k < worlds; k++) {
		struct world w;

		up(&w, tn_test_seed() * 1000 + k, 1 + k % SIDES_MAX);
		tn_soft_fault(w.n.soft, chances);
		for (uint32_t round = 0; round < 12; round++)
			one_round(&w, t);
		tn_soft_fault(w.n.soft, &(struct tn_soft_chances){0});
		count(&w, t);
		down(&w);
	}
	printf("# %llu objects moved, %llu not; %llu aborts, %llu resets, %llu completions of no command\n", (unsigned long long)t->good,
	       (unsigned long long)t->bad, (unsigned long long)t->aborted, (unsigned long long)t->resets, (unsigned long long)t->strange);
}

static void objects_are_read_and_written_by_prps_and_sgls_on_pairs_of_several_executors(void **state)
{
	const struct tn_soft_chances none = {0};
	struct tally t;

	schedules(&none, &t);
	assert_int_equal(t.resets + t.aborted + t.strange, 0);
	assert_true(t.good > 10 * t.bad); /* the cancelled ones */
}

static void commands_that_are_never_answered_end_by_abort_or_reset_and_late_ones_touch_nothing(void **state)
{
	const struct tn_soft_chances some = {.error = 600, .lost = 600, .twice = 2000, .late = 1500};
	struct tally t;

	schedules(&some, &t);
	assert_true(t.resets && t.aborted && t.strange && t.bad);
	assert_true(t.good > t.bad);
}

/* A reset for one pair takes the others from the controller: what is under way there fails, and goes on afterwards. */
static void a_controller_that_fails_is_reset_and_all_pairs_go_on(void **state)
{
	const struct tn_soft_chances fatal = {.fatal = 300};
	struct tally t;

	schedules(&fatal, &t);
	assert_true(t.resets && t.bad);
	assert_true(t.good > t.bad);
}

static void a_drive_that_is_gone_fails_everything_at_once(void **state)
{
	struct tn_ring_completion c;
	struct world w;
	uint32_t id[2];

	up(&w, tn_test_seed(), 2);
	for (uint32_t i = 0; i < 2; i++)
		id[i] = issue(&w, &w.side[i], TN_IOCB_READ, 0, OBJECTS);
	for (uint32_t i = 0; i < 2; i++)
		tn_executor_step(w.side[i].ex);
	tn_soft_unplug(w.n.soft);
	for (uint32_t i = 0; i < 2; i++) {
		c = await(&w, &w.side[i], id[i]);
		assert_int_equal(c.status, -ENODEV);
		assert_int_equal(tn_ring_put(w.side[i].ring, &id[i], 1), 0);
		id[i] = issue(&w, &w.side[i], TN_IOCB_READ, 0, 1);
		assert_int_equal(await(&w, &w.side[i], id[i]).status, -ENODEV);
		assert_int_equal(tn_ring_put(w.side[i].ring, &id[i], 1), 0);
		assert_int_equal(tn_executor_due(w.side[i].ex, 1), UINT64_MAX);
	}
	down(&w);
}

static void memory_that_two_executors_map_stays_until_the_second_has_unmapped_it(void **state)
{
	struct world w;
	struct side *a, *b;
	uint32_t id;

	up(&w, tn_test_seed() + 1, 2);
	a = &w.side[0];
	b = &w.side[1];
	for (uint32_t i = 0; i < 2; i++)
		tn_executor_unmap(w.side[i].ex, w.side[i].memory, OBJECTS * w.shape.padded_bytes);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(tn_executor_map(w.side[i].ex, a->memory, OBJECTS * w.shape.padded_bytes), 0);
	tn_executor_unmap(a->ex, a->memory, OBJECTS * w.shape.padded_bytes);
	memcpy(b->flat, a->flat, sizeof(b->flat));
	b->mappings[0] = &a->mapping;
	id = issue(&w, b, TN_IOCB_READ, 0, OBJECTS);
	assert_int_equal(await(&w, b, id).status, 0);
	assert_int_equal(expect(&w, b, id, TN_IOCB_READ, 0, OBJECTS), OBJECTS);
	down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(objects_are_read_and_written_by_prps_and_sgls_on_pairs_of_several_executors),
		cmocka_unit_test(commands_that_are_never_answered_end_by_abort_or_reset_and_late_ones_touch_nothing),
		cmocka_unit_test(a_controller_that_fails_is_reset_and_all_pairs_go_on),
		cmocka_unit_test(a_drive_that_is_gone_fails_everything_at_once),
		cmocka_unit_test(memory_that_two_executors_map_stays_until_the_second_has_unmapped_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
