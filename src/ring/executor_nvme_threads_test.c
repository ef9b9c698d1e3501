/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real threads on the pairs of one controller, which has a thread, too: an executor of three threads and one of a single thread, each with an
 * owner's thread that issues, cancels, maps and unmaps. The controller fails meanwhile, so that each pair's thread resets it under the others.
 * Every IOCB ends, what is said of an object is true, and the controller finds nothing wrong with how it is driven.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/rng.h"
#include "executor_nvme_rig.h"
#include "nvme/pair.h"
#include "tn_test.h"

#define OBJECTS 32u /* of a side */
#define AT_ONCE 4u  /* IOCBs, of as many objects each */
#define EACH (OBJECTS / AT_ONCE)
#define BYTES 8192u
#define SIDES 2u
#define ROUNDS 200u

static const uint32_t threads_of[SIDES] = {3, 1};
static struct tn_shape shape = {.layers = 1, .object_iovs = 1, .object_bytes = BYTES - 100, .padded_bytes = BYTES, .slot_bytes = BYTES};

struct side {
	struct rig_nvme *n;
	uint32_t number;
	struct tn_ring *ring;
	struct tn_executor *ex;
	struct tn_ring_list list;
	struct tn_rng rng;
	unsigned char *memory, *flat[OBJECTS];
	uint64_t offset[OBJECTS];
	struct tn_mapped_range range;
	struct tn_mapping mapping;
	const struct tn_mapping *mappings[1];
	uint64_t checks[OBJECTS];
	uint32_t version[OBJECTS]; /* of its bytes on the drive; 0: not known */
	uint64_t good, bad;
	const char *wrong;
};

static void fill(const struct side *s, uint32_t object, uint32_t version)
{
	unsigned char *at = s->flat[object];

	for (uint32_t i = 0; i < shape.object_bytes; i++)
		at[i] = (unsigned char)(s->number * 77 + object * 31 + version * 101 + i * 13 + i / 251);
	memset(at + shape.object_bytes, 0, BYTES - shape.object_bytes);
}

static bool holds(const struct side *s, uint32_t object, uint32_t version)
{
	for (uint32_t i = 0; i < shape.object_bytes; i++)
		if (s->flat[object][i] != (unsigned char)(s->number * 77 + object * 31 + version * 101 + i * 13 + i / 251))
			return false;
	return true;
}

/* Objects [from, from + EACH): written if they are not known, else by chance. */
static uint32_t issue(struct side *s, uint32_t from, bool only_reads, bool *writes)
{
	struct tn_ioctx *x;
	uint32_t id = TN_RING_NO_INDEX;

	*writes = !only_reads && tn_rng_below(&s->rng, 2);
	for (uint32_t i = from; i < from + EACH; i++)
		*writes |= s->version[i] == 0;
	if (tn_ring_get_iocb(s->ring, EACH, NULL, &id))
		s->wrong = "no IOCB is free";
	x = tn_ring_ioctx(s->ring, id);
	for (uint32_t i = from; i < from + EACH; i++) {
		x[i - from] = (struct tn_ioctx){tn_ioctx_disk(0, (uint64_t)(s->number * OBJECTS + i) * (BYTES / 4096)), shape.object_bytes, i};
		if (*writes)
			fill(s, i, s->version[i] + 1);
		else
			memset(s->flat[i], 0xdd, BYTES);
	}
	tn_ring_iocb(s->ring, id)->list = 1;
	tn_ring_iocb(s->ring, id)->op = *writes ? TN_IOCB_WRITE : TN_IOCB_READ;
	tn_ring_iocb(s->ring, id)->flags = *writes ? TN_IOCB_SUM : TN_IOCB_VERIFY;
	tn_ring_issue(s->ring, &id, 1);
	return id;
}

static void await(struct side *s, uint32_t id)
{
	uint64_t end = tn_test_deadline();
	struct tn_ring_completion any;

	while (tn_ring_result(s->ring, id, &any)) {
		while (tn_ring_poll(s->ring, &any, 1))
			;
		tn_executor_step(s->ex);
		sched_yield();
		if (tn_test_now() > end) {
			fprintf(stderr, "HANG: an IOCB does not end\n");
			abort();
		}
	}
}

static void judge(struct side *s, uint32_t id, uint32_t from, bool wrote)
{
	const int32_t *status = tn_ring_statuses(s->ring, id);

	for (uint32_t i = from; i < from + EACH; i++) {
		int st = status ? status[i - from] : TN_RING_PENDING;

		s->good += st == 0;
		s->bad += st != 0;
		if (wrote) {
			s->version[i] = st ? 0 : s->version[i] + 1;
			s->checks[i] = tn_ring_sums(s->ring, id)[i - from];
			if (st == 0 && s->checks[i] != tn_checksum(s->flat[i], shape.object_bytes))
				s->wrong = "a sum is not that of the bytes";
		} else if (st == 0 && !holds(s, i, s->version[i])) {
			s->wrong = "WRONG BYTES";
		} else if (st == -EBADMSG) {
			s->wrong = "bytes that were written are not there any more";
		}
	}
	tn_ring_put(s->ring, &id, 1);
}

static void one_round(struct side *s, bool calm)
{
	uint32_t id[AT_ONCE];
	bool writes[AT_ONCE];

	if (tn_rng_below(&s->rng, 4) == 0)
		tn_executor_unmap(s->ex, s->memory, OBJECTS * BYTES);
	else
		tn_executor_map(s->ex, s->memory, OBJECTS * BYTES); /* or it is mapped already */
	for (uint32_t k = 0; k < AT_ONCE; k++)
		id[k] = issue(s, k * EACH, calm, &writes[k]);
	if (!calm && tn_rng_below(&s->rng, 4) == 0)
		tn_ring_cancel(s->ring, &id[tn_rng_below(&s->rng, AT_ONCE)], 1);
	for (uint32_t k = 0; k < AT_ONCE; k++) {
		await(s, id[k]);
		judge(s, id[k], k * EACH, writes[k]);
	}
}

static void *owner(void *arg)
{
	struct side *s = arg;

	for (uint32_t i = 0; i < ROUNDS && !s->wrong; i++)
		one_round(s, false);
	return NULL;
}

static void up_side(struct side *s, struct rig_nvme *n, uint32_t number, uint32_t queue, uint64_t command_ns)
{
	struct tn_ring_drive drive = n->drive;
	struct tn_executor_drives drives = {.drive = &drive, .command_ns = command_ns};
	struct tn_executor_opts o = {.ndevices = 1, .depth = 12, .threads = threads_of[number], .alloc = &tn_alloc_system,
				     .clock = &tn_clock_system};
	struct tn_ring_opts ro = tn_ring_opts_default();

	*s = (struct side){.n = n, .number = number};
	tn_rng_seed(&s->rng, tn_test_seed() + number);
	ro.memory.depth = 2 * AT_ONCE;
	ro.memory.ioctxs = EACH;
	ro.mappings = s->mappings;
	ro.nmappings = 1;
	assert_int_equal(tn_ring_create(&ro, &tn_alloc_system, &s->ring), 0);
	s->memory = aligned_alloc(4096, OBJECTS * BYTES);
	assert_non_null(s->memory);
	tn_mapping_init(&s->mapping, &s->range, &(struct tn_memory_range){.address = s->memory, .bytes = OBJECTS * BYTES}, 1);
	s->mappings[0] = &s->mapping;
	for (uint32_t i = 0; i < OBJECTS; i++) {
		s->offset[i] = i * BYTES;
		s->flat[i] = s->memory + s->offset[i];
	}
	s->list = (struct tn_ring_list){.shape = &shape, .blocks = OBJECTS, .flat = s->offset, .align = 4096, .checks = s->checks};
	assert_int_equal(tn_ring_list_set(s->ring, 1, &s->list), 0);
	drive.queue = queue;
	o.ring = s->ring;
	assert_int_equal(tn_executor_nvme_create(&o, &drives, &s->ex), 0);
	assert_int_equal(tn_executor_make_bounces(s->ex, BYTES), 0);
}

static void down_side(struct side *s)
{
	tn_executor_unmap(s->ex, s->memory, OBJECTS * BYTES);
	tn_executor_destroy(s->ex);
	tn_ring_destroy(s->ring);
	free(s->memory);
}

/* Both sides run at once; afterwards everything is written, and read. */
static struct tn_nvme_pair_stats run(const struct tn_soft_chances *chances, bool sgl)
{
	struct tn_nvme_pair_stats sum = {0};
	struct side side[SIDES];
	pthread_t thread[SIDES];
	struct rig_nvme_opts o;
	struct rig_nvme n;
	uint32_t queue = 1;

	rig_nvme_opts_init(&o);
	o.thread = true;
	o.soft.sgl = sgl;
	o.soft.queues = o.queues = 5;
	o.soft.late_steps = 2000;
	o.file_bytes = (uint64_t)SIDES * OBJECTS * BYTES;
	rig_nvme_up(&n, &o);
	for (uint32_t i = 0; i < SIDES; queue += threads_of[i++])
		up_side(&side[i], &n, i, queue, chances->lost ? 300000000 : 0);
	tn_soft_fault(n.soft, chances);
	for (uint32_t i = 0; i < SIDES; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, owner, &side[i]), 0);
	for (uint32_t i = 0; i < SIDES; i++)
		pthread_join(thread[i], NULL);
	tn_soft_fault(n.soft, &(struct tn_soft_chances){0});
	for (uint32_t i = 0; i < SIDES; i++) {
		struct side *s = &side[i];
		struct tn_nvme_pair_stats one;
		uint64_t bad;

		for (uint32_t k = 0; k < 20; k++) /* the first ones meet what was broken before */
			one_round(s, true);
		bad = s->bad;
		one_round(s, true);
		if (s->wrong)
			fail_msg("side %u: %s", i, s->wrong);
		assert_int_equal(s->bad, bad);
		tn_executor_nvme_pair_stats(s->ex, 0, &one);
		sum.commands += one.commands;
		sum.resets += one.resets;
		sum.aborted += one.aborted;
		printf("# %u threads: %llu objects moved, %llu not; %llu commands, %llu aborts, %llu resets\n", threads_of[i], (unsigned long long)s->good,
		       (unsigned long long)s->bad, (unsigned long long)one.commands, (unsigned long long)one.aborted,
		       (unsigned long long)one.resets);
		down_side(s);
	}
	for (uint32_t q = 2; q <= 5; q++)
		assert_true(tn_soft_moved_by(n.soft, q).read > 0);
	rig_nvme_down(&n);
	return sum;
}

static void threads_on_pairs_of_one_controller_move_what_they_are_asked_for(void **state)
{
	struct tn_nvme_pair_stats s = run(&(struct tn_soft_chances){0}, true);

	assert_int_equal(s.resets + s.aborted, 0);
	s = run(&(struct tn_soft_chances){0}, false);
	assert_int_equal(s.resets + s.aborted, 0);
}

static void each_resets_a_controller_that_fails_and_the_others_go_on(void **state)
{
	assert_true(run(&(struct tn_soft_chances){.fatal = 1500, .error = 100, .twice = 1000}, true).resets > 1);
}

static void commands_that_are_lost_end_and_nobody_waits_for_the_others(void **state)
{
	struct tn_nvme_pair_stats s = run(&(struct tn_soft_chances){.lost = 800, .late = 1000, .error = 100}, false);

	assert_true(s.aborted + s.resets > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_on_pairs_of_one_controller_move_what_they_are_asked_for),
		cmocka_unit_test(each_resets_a_controller_that_fails_and_the_others_go_on),
		cmocka_unit_test(commands_that_are_lost_end_and_nobody_waits_for_the_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
