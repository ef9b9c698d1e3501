/* SPDX-License-Identifier: Apache-2.0 */
/* What a backend does when something goes wrong, and with very many descriptors; once per kind, by the program of xfer_test.c. */
#include <pthread.h>

#include "kind_rig.h"

static void shorten_remote(const struct rig *r, uint64_t bytes)
{
	if (is_object(r))
		move_object(r, TN_XFER_WRITE, bytes);
	else
		assert_int_equal(truncate(r->path, (off_t)bytes), 0);
}

/* back: NULL: neighbours on both sides; else neighbours on the remote side alone. */
static void read_what_is_gone(const struct kind *kind, const uint32_t *back)
{
	enum { LEFT = BLOCKS / 2 + 3 };
	uint64_t more = kind->local == TN_XFER_VRAM ? 0 : 100, bytes = 0; /* gds counts a short transfer as none */
	struct tn_xfer_result result[BLOCKS];
	struct tn_xfer_request *q;
	struct rig r;
	int code;

	rig_new(&r, kind);
	code = is_object(&r) ? -ENODATA : -EIO;
	q = request(&r, TN_XFER_READ, back, NULL, BLOCKS);
	shorten_remote(&r, LEFT * BLOCK + more);
	assert_int_equal(post(q), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), code);
	assert_non_null(strstr(tn_error_last()->text, "descriptor 515"));
	if (!is_object(&r) && kind->local == TN_XFER_DRAM)
		assert_non_null(strstr(tn_error_last()->text, r.path));
	assert_int_equal(tn_xfer_results(q, 0, BLOCKS, result), 0);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		bytes += result[i].bytes;
		assert_int_equal(result[i].status, i < LEFT ? 0 : code);
	}
	assert_int_equal(bytes, LEFT * BLOCK + more);
	assert_int_equal(status(q).bytes, bytes);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void bytes_that_are_gone_are_an_error_of_their_descriptors(void **state)
{
	uint32_t back[BLOCKS];

	for (uint32_t i = 0; i < BLOCKS; i++)
		back[i] = BLOCKS - 1 - i;
	read_what_is_gone(*state, NULL);
	read_what_is_gone(*state, back);
}

static const struct kind *with_faults(const struct kind *kind, const char *faults)
{
	static struct kind faulty;
	static char spec[256];

	snprintf(spec, sizeof(spec), "faulty,over=%s,%s", kind->spec, faults);
	faulty = *kind;
	faulty.spec = spec;
	faulty.backend = "faulty";
	return &faulty;
}

static void a_deadline_ends_the_wait_and_not_the_ownership(void **state)
{
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, with_faults(*state, "delay=100,delay_us=1000,linger_us=1300000"));
	q = request(&r, TN_XFER_WRITE, NULL, NULL, 0);
	assert_int_equal(tn_xfer_post(q, tn_test_now() + 300000000, NULL, TN_XFER_NO_NOTIFICATION), 0);
	assert_int_equal(tn_xfer_wait(q, tn_test_now() + 10000000), -EAGAIN);
	assert_int_equal(post(q), -EBUSY);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, TN_FOREVER) == -ETIMEDOUT ? 0 : -1), 0);
	assert_int_equal(status(q).state, TN_XFER_ENDING);
	assert_int_equal(status(q).status, -ETIMEDOUT);
	assert_int_equal(tn_xfer_release(q), -EBUSY);
	assert_int_equal(tn_xfer_deregister(r.agent, segment_of(&r, 0), &r.section[0], 1, 0), -EBUSY);
	assert_int_equal(tn_xfer_cancel(q, tn_test_now() + 1000000), -EBUSY);
	assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
	assert_int_equal(status(q).state, TN_XFER_ENDED);
	assert_int_equal(status(q).status, -ETIMEDOUT);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void a_request_that_hangs_ends_by_its_deadline_though_nobody_asks(void **state)
{
	struct tn_xfer_request *q;
	struct rig r;
	uint32_t seen;

	rig_new(&r, with_faults(*state, "drop=100"));
	q = request(&r, TN_XFER_WRITE, NULL, NULL, 0);
	seen = *tn_xfer_event_word(r.agent);
	assert_int_equal(tn_xfer_post(q, tn_test_now() + 20000000, "never", 5), 0);
	assert_int_equal(tn_test_ended(tn_xfer_event_wait(r.agent, seen, tn_test_deadline())), 0);
	assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
	assert_int_equal(status(q).status, -ETIMEDOUT);
	assert_int_equal(tn_xfer_take(r.owner[1], (char[TN_XFER_NAME_BYTES]){0}, NULL, 0), -EAGAIN);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

/* Of gds, whole multiples of 4 KiB alone can be moved: half of a block is -ENOTSUP there, and no byte of it is moved. */
static void one_bad_piece_is_told_apart_from_the_others(void **state)
{
	enum { TURNS = 16 };
	const struct kind *kind = *state;
	const uint32_t n = kind->remote == TN_XFER_OBJECT ? 16 : BLOCKS / 2; /* each is a request to a store */
	uint32_t index[BLOCKS / 2];
	struct tn_xfer_result result[BLOCKS / 2];
	struct tn_xfer_request *q;
	unsigned bad = 0, cut = 0;
	struct rig r;

	rig_new(&r, with_faults(kind, kind->local == TN_XFER_VRAM ? "seed=5,fail=100" : "seed=5,fail=50,truncate=100"));
	for (uint32_t i = 0; i < n; i++)
		index[i] = 2 * i;
	q = request(&r, op_of_parts(&r), index, index, n);
	for (unsigned turn = 0; turn < TURNS; turn++) {
		unsigned failed = 0;

		fill(r.local, BYTES, 100 + turn);
		assert_int_equal(post(q), 0);
		assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), -EIO);
		assert_non_null(strstr(tn_error_last()->text, "on purpose"));
		assert_int_equal(tn_xfer_results(q, 0, n, result), 0);
		read_remote(&r);
		for (uint32_t i = 0; i < n; i++) {
			failed += result[i].status != 0;
			bad += result[i].status && result[i].bytes == 0;
			cut += result[i].status && result[i].bytes == BLOCK / 2;
			assert_memory_equal(r.local + index[i] * BLOCK, r.remote + index[i] * BLOCK, result[i].bytes);
		}
		assert_int_equal(failed, 1);
	}
	assert_int_equal(bad + cut, TURNS);
	assert_true(bad > 3 && (cut > 3 || kind->local == TN_XFER_VRAM));
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void a_write_with_a_bad_piece_leaves_no_part_of_an_object(void **state)
{
	struct tn_xfer_result result[BLOCKS];
	struct tn_xfer_request *q;
	unsigned char *before;
	struct rig r;

	rig_new(&r, with_faults(*state, "seed=6,fail=50,truncate=100"));
	before = malloc(BYTES);
	assert_non_null(before);
	memcpy(before, r.remote, BYTES);
	q = request(&r, TN_XFER_WRITE, NULL, NULL, 0);
	for (unsigned turn = 0; turn < 4; turn++) {
		assert_int_equal(post(q), 0);
		assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), -EIO);
		assert_int_equal(tn_xfer_results(q, 0, BLOCKS, result), 0);
		for (uint32_t i = 0; i < BLOCKS; i++)
			assert_true(result[i].status == -EIO && result[i].bytes == 0);
	}
	read_remote(&r);
	assert_memory_equal(r.remote, before, BYTES);
	free(before);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

/* Scattered here, one behind the other there. */
static void a_list_of_112000_descriptors_is_moved(void **state)
{
	enum { N = 112000, SIZE = 32, STRIDE = 36 };
	struct tn_xfer_run *flat = calloc(N, sizeof(*flat)), back, strided;
	unsigned char packed[65536];
	enum tn_xfer_segment segment;
	struct tn_xfer_list *list[2];
	struct tn_xfer_request *q;
	struct rig r;
	int64_t n;

	rig_new(&r, *state);
	strided = (struct tn_xfer_run){(uintptr_t)r.local, SIZE, 0, STRIDE, N};
	assert_non_null(flat);
	for (unsigned i = 0; i < N; i++)
		flat[i] = (struct tn_xfer_run){r.base + (uint64_t)i * SIZE, SIZE, 1, 0, 1};
	assert_int_equal(tn_xfer_list_create(r.agent, NULL, segment_of(&r, 0), &strided, 1, &list[0]), 0);
	assert_int_equal(tn_xfer_list_create(r.agent, peer_of(&r, 1), segment_of(&r, 1), flat, N, &list[1]), 0);
	assert_int_equal(tn_xfer_request_create(r.agent, op_of_parts(&r), list[0], NULL, list[1], NULL, 0, NULL, &q), 0);
	run_to_end(q);
	read_remote(&r);
	for (unsigned i = 0; i < N; i++)
		assert_memory_equal(r.remote + (size_t)i * SIZE, r.local + (size_t)i * STRIDE, SIZE);
	n = tn_xfer_runs_pack(segment_of(&r, 1), flat, N, packed, sizeof(packed));
	assert_true(n > 0 && n <= (int64_t)sizeof(packed));
	assert_int_equal(tn_xfer_runs_unpack(packed, (size_t)n, &segment, &back, 1), 1);
	assert_int_equal(back.count, N);
	assert_int_equal(back.stride, SIZE);
	assert_int_equal(tn_xfer_release(q), 0);
	tn_xfer_list_destroy(list[0]);
	tn_xfer_list_destroy(list[1]);
	rig_free(&r);
	free(flat);
}

#define THREADS 4u

/* One of several threads, which has every fourth block. */
struct user {
	const struct rig *rig;
	pthread_t thread;
	unsigned number;
	uint32_t blocks;
	int failed; /* of the calls, how many */
};

static void *use(void *arg)
{
	struct user *u = arg;
	struct tn_xfer_section own = {.bytes = BLOCK, .device = 10 + u->number};
	uint32_t index[BLOCKS / THREADS];
	void *memory = aligned_alloc(BLOCK, BLOCK);
	struct tn_xfer_request *q;

	own.address = (uintptr_t)memory;
	for (uint32_t i = 0; i < u->blocks; i++)
		index[i] = i * THREADS + u->number;
	for (unsigned turn = 0; turn < 5; turn++) {
		u->failed += tn_xfer_register(u->rig->agent, segment_of(u->rig, 0), &own, 1) != 0;
		if (tn_xfer_request_create(u->rig->agent, op_of_parts(u->rig), u->rig->list[0], index, u->rig->list[1], index, u->blocks, NULL, &q)) {
			u->failed++;
			break;
		}
		u->failed += post(q) != 0;
		u->failed += tn_xfer_wait(q, tn_test_deadline()) != 0;
		u->failed += tn_xfer_release(q) != 0;
		u->failed += tn_xfer_deregister(u->rig->agent, segment_of(u->rig, 0), &own, 1, tn_test_deadline()) != 0;
	}
	free(memory);
	return NULL;
}

static void several_threads_use_one_agent(void **state)
{
	struct user user[THREADS];
	uint32_t blocks;
	struct rig r;

	rig_new(&r, *state);
	blocks = is_object(&r) ? 8 : BLOCKS / THREADS; /* each is a request to a store */
	for (unsigned i = 0; i < THREADS; i++) {
		user[i] = (struct user){.rig = &r, .number = i, .blocks = blocks};
		assert_int_equal(pthread_create(&user[i].thread, NULL, use, &user[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(user[i].thread, NULL);
		assert_int_equal(user[i].failed, 0);
	}
	read_remote(&r);
	assert_memory_equal(r.local, r.remote, (size_t)blocks * THREADS * BLOCK);
	rig_free(&r);
}

const struct each kind_faults[] = {
	{"bytes that are gone are an error of their descriptors", bytes_that_are_gone_are_an_error_of_their_descriptors, ENDS},
	{"a deadline ends the wait and not the ownership", a_deadline_ends_the_wait_and_not_the_ownership, NO_FAULTS},
	{"a request that hangs ends by its deadline though nobody asks", a_request_that_hangs_ends_by_its_deadline_though_nobody_asks, NO_FAULTS},
	{"one bad piece is told apart from the others", one_bad_piece_is_told_apart_from_the_others, NO_FAULTS},
	{"a write with a bad piece leaves no part of an object", a_write_with_a_bad_piece_leaves_no_part_of_an_object, OBJECTS | NO_FAULTS},
	{"several threads use one agent", several_threads_use_one_agent, 0},
	{"a list of 112,000 descriptors is moved", a_list_of_112000_descriptors_is_moved, SMALL},
};
const size_t kind_faults_count = sizeof(kind_faults) / sizeof(kind_faults[0]);
