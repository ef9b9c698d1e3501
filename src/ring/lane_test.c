/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane on a transport that the test is: how much it gives a device at once, which learns that it moves 2 GB/s, request by request;
 * what it leaves to another lane; and its bounce buffers.
 */
#include "ring/lane.h"

#include <string.h>

#include "tn_test.h"

#define MS 1000000ull
#define OBJECTS 64u
#define OBJECT_BYTES (512u << 10)
#define DEPTH 256u
#define LATENCY_NS 50000u
#define BYTES_PER_NS 2u

struct rig {
	struct tn_lane_transport transport;
	struct tn_clock clock;
	uint64_t now;
	struct tn_shape shape;
	uint64_t flat[OBJECTS];
	struct tn_ring_list list;
	struct tn_mapped_range range;
	struct tn_mapping memory;
	const struct tn_mapping *memories[1];
	struct tn_ring *ring;
	struct tn_lane_intake intake;
	struct tn_lane *lane;
	struct tn_lane_piece *piece[DEPTH]; /* under way, in order */
	uint32_t pieces;
	uint64_t in_flight, most; /* bytes */
};

static uint64_t now_of(void *arg)
{
	return ((struct rig *)arg)->now;
}

static uint32_t send(struct tn_lane_transport *transport, struct tn_lane_piece *const *piece, uint32_t n)
{
	struct rig *r = (struct rig *)transport;

	for (uint32_t i = 0; i < n; i++) {
		r->piece[r->pieces++] = piece[i];
		r->in_flight += piece[i]->length;
	}
	r->most = r->in_flight > r->most ? r->in_flight : r->most;
	return n;
}

static const struct tn_lane_transport_ops transport_ops = {.send = send};

/* The one that was sent first ends. */
static void end_one(struct rig *r)
{
	struct tn_lane_piece *p = r->piece[0];
	uint64_t from = r->now - LATENCY_NS;

	r->now += p->length / BYTES_PER_NS;
	r->in_flight -= p->length;
	memmove(r->piece, r->piece + 1, --r->pieces * sizeof(p));
	tn_lane_piece_over(p, 0, from);
}

static struct tn_lane *lane_make(struct rig *r, struct tn_lane_intake *intake, uint32_t backlog, uint32_t depth)
{
	struct tn_lane_opts o = {.intake = intake, .transport = &r->transport, .ndevices = 1, .depth = depth, .backlog = backlog, .alloc = &tn_alloc_system,
				 .clock = &r->clock};
	struct tn_lane *lane;

	assert_int_equal(tn_lane_create(&o, &lane), 0);
	return lane;
}

static struct rig *rig_make_deep(uint32_t backlog, uint32_t depth)
{
	struct rig *r = calloc(1, sizeof(*r));
	struct tn_ring_opts ro = tn_ring_opts_default();

	r->transport = (struct tn_lane_transport){.ops = &transport_ops, .align = {4096}};
	r->clock = (struct tn_clock){.now_ns = now_of, .wall_ns = now_of, .arg = r};
	r->now = 10000 * MS;
	r->shape = (struct tn_shape){.layers = 1, .object_iovs = 1, .object_bytes = OBJECT_BYTES, .padded_bytes = OBJECT_BYTES,
				     .slot_bytes = OBJECT_BYTES};
	for (uint32_t i = 0; i < OBJECTS; i++)
		r->flat[i] = i * (uint64_t)OBJECT_BYTES;
	r->range = (struct tn_mapped_range){.bytes = OBJECTS * (uint64_t)OBJECT_BYTES, .address = (unsigned char *)4096}; /* nobody touches it */
	r->memory = (struct tn_mapping){.range = &r->range, .nranges = 1};
	r->memories[0] = &r->memory;
	r->list = (struct tn_ring_list){.shape = &r->shape, .blocks = OBJECTS, .flat = r->flat, .align = 4096};
	ro.memory.depth = 8;
	ro.memory.ioctxs = OBJECTS;
	ro.mappings = r->memories;
	ro.nmappings = 1;
	assert_int_equal(tn_ring_create(&ro, &tn_alloc_system, &r->ring), 0);
	assert_int_equal(tn_ring_list_set(r->ring, 1, &r->list), 0);
	assert_int_equal(tn_lane_intake_init(&r->intake, r->ring, &tn_alloc_system), 0);
	r->lane = lane_make(r, &r->intake, backlog, depth);
	return r;
}

static struct rig *rig_make(uint32_t backlog)
{
	return rig_make_deep(backlog, DEPTH);
}

static void rig_free(struct rig *r)
{
	tn_lane_destroy(r->lane);
	tn_lane_intake_fini(&r->intake, &tn_alloc_system);
	tn_ring_destroy(r->ring);
	free(r);
}

/* A read of these objects. */
static uint32_t issue(struct rig *r, uint32_t first, uint32_t count, uint16_t flags)
{
	struct tn_ioctx *x;
	uint32_t id;

	assert_int_equal(tn_ring_get_iocb(r->ring, count, NULL, &id), 0);
	x = tn_ring_ioctx(r->ring, id);
	for (uint32_t i = 0; i < count; i++) /* no neighbours */
		x[i] = (struct tn_ioctx){tn_ioctx_disk(0, (first + i) * 2 * (OBJECT_BYTES / 4096)), OBJECT_BYTES, first + i};
	tn_ring_iocb(r->ring, id)->list = 1;
	tn_ring_iocb(r->ring, id)->op = TN_IOCB_READ;
	tn_ring_iocb(r->ring, id)->flags = flags;
	assert_int_equal(tn_ring_issue(r->ring, &id, 1), 0);
	return id;
}

/* Reads all objects; the most bytes in flight. */
static uint64_t read_all(struct rig *r, uint16_t flags)
{
	struct tn_ring_completion c;
	uint32_t id;

	r->most = 0;
	id = issue(r, 0, OBJECTS, flags);
	while (tn_ring_poll(r->ring, &c, 1) == 0) {
		tn_lane_go(r->lane);
		if (r->pieces)
			end_one(r);
	}
	assert_int_equal(c.status, 0);
	assert_int_equal(tn_ring_put(r->ring, &id, 1), 0);
	r->now += 30 * MS;
	return r->most;
}

static void reads_that_are_wanted_whole_have_a_deep_window_when_nobody_has_read_by_layers_for_a_second(void **state)
{
	struct rig *r = rig_make(UINT32_MAX);
	uint64_t layered, whole;

	for (int i = 0; i < 5; i++) /* it gets to know the device */
		read_all(r, TN_IOCB_WHOLE);
	whole = read_all(r, TN_IOCB_WHOLE);
	assert_in_range(whole, 10u << 20, 20u << 20); /* 6 ms of 2 GB/s and more */
	layered = read_all(r, 0);
	assert_in_range(layered, 1, 7u << 20);
	for (int i = 0; i < 3; i++)
		assert_in_range(read_all(r, TN_IOCB_WHOLE), 1, 7u << 20); /* whoever reads by layers may do so again */
	r->now += 1000 * MS;
	assert_int_equal(read_all(r, TN_IOCB_WHOLE), whole);
	rig_free(r);
}

/* With few requests half of the window is never in flight, and a cut object takes requests that others need. */
static void objects_are_cut_only_where_there_are_requests_to_spare(void **state)
{
	static const uint32_t depths[] = {DEPTH, 4};

	for (size_t i = 0; i < 2; i++) {
		struct rig *r = rig_make_deep(UINT32_MAX, depths[i]);
		uint64_t before;

		for (int k = 0; k < 5; k++)
			read_all(r, 0);
		before = r->lane->stats.requests;
		read_all(r, 0);
		print_message("# depth %u: %llu requests of %u objects\n", depths[i], (unsigned long long)(r->lane->stats.requests - before), OBJECTS);
		assert_in_range(r->lane->stats.requests - before, OBJECTS + 1, OBJECTS + OBJECTS / 8);
		rig_free(r);
	}
}

static void of_two_lanes_one_whose_objects_wait_leaves_the_next_iocb_to_the_other(void **state)
{
	struct rig *r = rig_make(TN_LANE_BACKLOG), *other = rig_make(TN_LANE_BACKLOG);
	struct tn_lane *lane = lane_make(other, &r->intake, TN_LANE_BACKLOG, DEPTH);
	struct tn_ring_completion c[3];
	uint32_t done = 0, id[3];

	for (uint32_t i = 0; i < 3; i++)
		id[i] = issue(r, i * 16, 16, 0);
	tn_lane_go(r->lane);
	assert_true(r->lane->waiting >= TN_LANE_BACKLOG);
	assert_int_equal(r->lane->used_runs, 1);
	tn_lane_go(lane);
	assert_int_equal(lane->used_runs, 1);
	assert_true(other->pieces > 0);
	assert_int_equal(r->intake.count, 1);
	/* The third is for the one whose objects have gone out first; the other need not move. */
	while (r->intake.count) {
		assert_true(r->pieces > 0);
		end_one(r);
		tn_lane_go(r->lane);
	}
	assert_true(r->lane->waiting < 16 + TN_LANE_BACKLOG);
	while (r->pieces || other->pieces) {
		struct rig *next = r->pieces ? r : other;

		end_one(next);
		tn_lane_go(next == r ? r->lane : lane);
	}
	while (done < 3 && tn_ring_poll(r->ring, &c[done], 1) == 1)
		assert_int_equal(c[done++].status, 0);
	assert_int_equal(done, 3);
	assert_int_equal(tn_ring_put(r->ring, id, 3), 0);
	tn_lane_destroy(lane);
	rig_free(other);
	rig_free(r);
}

/* Each space's objects are a page larger than all before: who opens such spaces uses up nothing that others need. */
static void bounce_buffers_of_ever_larger_objects_never_run_out(void **state)
{
	static const uint32_t first[] = {4096, TN_LANE_BOUNCE_BYTES + 4096, TN_RING_OBJECT_MAX};

	for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
		struct rig *r = rig_make(UINT32_MAX);
		struct tn_lane_bounces *b = r->lane->bounces;

		assert_int_equal(tn_lane_make_bounces(r->lane, first[i]), 0);
		assert_int_equal(b[0].bytes_each, first[i] < TN_LANE_BOUNCE_BYTES ? TN_LANE_BOUNCE_BYTES : first[i]);
		for (uint32_t n = 0; b[n].bytes_each < TN_RING_OBJECT_MAX; n++) {
			assert_int_equal(tn_lane_make_bounces(r->lane, (uint32_t)b[n].bytes_each + 4096), 0);
			assert_int_equal(r->lane->nbounces, n + 2);
			assert_in_range(b[n + 1].bytes_each, b[n].bytes_each + 4096, TN_RING_OBJECT_MAX);
		}
		rig_free(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_that_are_wanted_whole_have_a_deep_window_when_nobody_has_read_by_layers_for_a_second),
		cmocka_unit_test(objects_are_cut_only_where_there_are_requests_to_spare),
		cmocka_unit_test(of_two_lanes_one_whose_objects_wait_leaves_the_next_iocb_to_the_other),
		cmocka_unit_test(bounce_buffers_of_ever_larger_objects_never_run_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
