/* SPDX-License-Identifier: Apache-2.0 */
/* What a transfer does, once per backend: lists, requests, deadlines, cancels, misuse. Both sides are of one agent. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#include "tn_test.h"

#define MIB (1u << 20)
#define BYTES (4u * MIB)
#define BLOCK 4096u
#define BLOCKS (BYTES / BLOCK)

/* A way to run all tests: the specs of the agent, the backend that is to be used, and where the remote side lies. */
struct kind {
	const char *label;
	const char *spec;
	const char *backend;
	enum tn_xfer_segment remote;
};

/* One agent; local memory; a remote side in memory or in a file. */
struct rig {
	const struct kind *kind;
	struct tn_xfer_agent *agent;
	unsigned char *local, *remote;
	char path[64];
	uint64_t base; /* address of the remote side */
	struct tn_xfer_section section[2];
	struct tn_xfer_list *list[2]; /* BLOCKS blocks each */
};

static struct tn_xfer_agent *agent_new(const char *spec)
{
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;

	tn_xfer_agent_opts_init(&opts);
	opts.name = "one";
	opts.backends = &spec;
	opts.nbackends = 1;
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	return a;
}

static void fill(unsigned char *to, size_t bytes, uint64_t salt)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = (unsigned char)((i * 2654435761u + salt * 97) >> 7);
}

static struct tn_xfer_run blocks(const struct rig *r, unsigned side)
{
	return (struct tn_xfer_run){.address = side ? r->base : (uintptr_t)r->local, .bytes = BLOCK, .device = side, .stride = BLOCK, .count = BLOCKS};
}

static enum tn_xfer_segment segment_of(const struct rig *r, unsigned side)
{
	return side ? r->kind->remote : TN_XFER_DRAM;
}

static void write_remote(const struct rig *r)
{
	if (r->kind->remote == TN_XFER_FILE) {
		int fd = open(r->path, O_WRONLY);

		assert_int_equal(pwrite(fd, r->remote, BYTES, 0), BYTES);
		close(fd);
	}
}

static void read_remote(const struct rig *r)
{
	if (r->kind->remote == TN_XFER_FILE) {
		int fd = open(r->path, O_RDONLY);

		assert_int_equal(pread(fd, r->remote, BYTES, 0), BYTES);
		close(fd);
	}
}

static void rig_new(struct rig *r, const struct kind *kind)
{
	static unsigned serial;

	*r = (struct rig){.kind = kind};
	snprintf(r->path, sizeof(r->path), "/var/tmp/tn-xfer-%d-%u", (int)getpid(), serial++);
	r->agent = agent_new(kind->spec);
	r->local = aligned_alloc(BLOCK, BYTES);
	r->remote = aligned_alloc(BLOCK, BYTES);
	fill(r->local, BYTES, 1);
	fill(r->remote, BYTES, 2);
	r->base = kind->remote == TN_XFER_FILE ? 0 : (uintptr_t)r->remote;
	r->section[0] = (struct tn_xfer_section){(uintptr_t)r->local, BYTES, 0, NULL};
	r->section[1] = (struct tn_xfer_section){r->base, BYTES, 1, kind->remote == TN_XFER_FILE ? r->path : NULL};
	for (unsigned i = 0; i < 2; i++) {
		struct tn_xfer_run run = blocks(r, i);

		assert_int_equal(tn_xfer_register(r->agent, segment_of(r, i), &r->section[i], 1), 0);
		assert_int_equal(tn_xfer_list_create(r->agent, i ? "one" : NULL, segment_of(r, i), &run, 1, &r->list[i]), 0);
		assert_int_equal(tn_xfer_list_count(r->list[i]), BLOCKS);
	}
	write_remote(r);
}

static void rig_free(struct rig *r)
{
	for (unsigned i = 0; i < 2; i++) {
		tn_xfer_list_destroy(r->list[i]);
		assert_int_equal(tn_xfer_deregister(r->agent, segment_of(r, i), &r->section[i], 1, tn_test_deadline()), 0);
	}
	assert_int_equal(tn_xfer_agent_destroy(r->agent), 0);
	free(r->local);
	free(r->remote);
	unlink(r->path);
}

static struct tn_xfer_request *request(const struct rig *r, enum tn_xfer_op op, const uint32_t *local, const uint32_t *remote, uint32_t n)
{
	struct tn_xfer_request *q;

	assert_int_equal(tn_xfer_request_create(r->agent, op, r->list[0], local, r->list[1], remote, n, NULL, &q), 0);
	return q;
}

static int post(struct tn_xfer_request *q)
{
	return tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION);
}

static struct tn_xfer_status status(struct tn_xfer_request *q)
{
	struct tn_xfer_status s = {.size = sizeof(s)};

	assert_int_equal(tn_xfer_status(q, &s), 0);
	return s;
}

static void run_to_end(struct tn_xfer_request *q)
{
	assert_int_equal(post(q), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), 0);
}

/* ---- the tests of every backend ---------------------------------------------------------------------------------------- */

static void writes_and_reads_move_every_byte(void **state)
{
	struct tn_xfer_request *q;
	struct tn_xfer_status s;
	struct rig r;

	rig_new(&r, *state);
	q = request(&r, TN_XFER_WRITE, NULL, NULL, 0);
	assert_int_equal(status(q).state, TN_XFER_IDLE);
	run_to_end(q);
	s = status(q);
	assert_int_equal(s.state, TN_XFER_ENDED);
	assert_int_equal(s.bytes, BYTES);
	assert_int_equal(s.descriptors, BLOCKS);
	assert_int_equal(s.pieces, 1);
	assert_string_equal(s.backend, r.kind->backend);
	read_remote(&r);
	assert_memory_equal(r.local, r.remote, BYTES);
	assert_int_equal(tn_xfer_release(q), 0);

	fill(r.remote, BYTES, 3);
	write_remote(&r);
	q = request(&r, TN_XFER_READ, NULL, NULL, 0);
	run_to_end(q);
	assert_memory_equal(r.local, r.remote, BYTES);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void scattered_blocks_go_where_the_indices_say(void **state)
{
	uint32_t local[BLOCKS / 2], remote[BLOCKS / 2];
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, *state);
	for (uint32_t i = 0; i < BLOCKS / 2; i++) {
		local[i] = 2 * i;
		remote[i] = (i * 5 + 1) % BLOCKS;
	}
	q = request(&r, TN_XFER_WRITE, local, remote, BLOCKS / 2);
	run_to_end(q);
	read_remote(&r);
	for (uint32_t i = 0; i < BLOCKS / 2; i++)
		assert_memory_equal(r.local + local[i] * BLOCK, r.remote + remote[i] * BLOCK, BLOCK);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void neighbours_on_one_side_alone_are_not_merged(void **state)
{
	static const uint32_t row[6] = {10, 11, 12, 13, 14, 15}, apart[6] = {40, 42, 41, 20, 21, 30};

	for (unsigned turn = 0; turn < 2; turn++) {
		struct tn_xfer_request *q;
		struct rig r;

		rig_new(&r, *state);
		q = request(&r, TN_XFER_WRITE, turn ? row : apart, turn ? apart : row, 6);
		assert_int_equal(status(q).pieces, 5); /* 20 and 21 are neighbours on both sides */
		run_to_end(q);
		read_remote(&r);
		for (uint32_t i = 0; i < 6; i++)
			assert_memory_equal(r.local + (turn ? row : apart)[i] * BLOCK, r.remote + (turn ? apart : row)[i] * BLOCK, BLOCK);
		assert_int_equal(tn_xfer_release(q), 0);
		rig_free(&r);
	}
}

static void a_request_is_posted_again_and_again(void **state)
{
	uint32_t one = 3;
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, *state);
	q = request(&r, TN_XFER_WRITE, &one, &one, 1);
	for (unsigned i = 0; i < 50; i++) {
		fill(r.local, BYTES, i);
		run_to_end(q);
	}
	read_remote(&r);
	assert_memory_equal(r.local + 3 * BLOCK, r.remote + 3 * BLOCK, BLOCK);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void each_descriptor_has_its_status_and_bytes(void **state)
{
	struct tn_xfer_result result[BLOCKS];
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, *state);
	q = request(&r, TN_XFER_READ, NULL, NULL, 0);
	assert_int_equal(tn_xfer_results(q, 0, 1, result), -EINVAL);
	run_to_end(q);
	assert_int_equal(tn_xfer_results(q, 0, BLOCKS, result), 0);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(result[i].status, 0);
		assert_int_equal(result[i].bytes, BLOCK);
	}
	assert_int_equal(tn_xfer_results(q, BLOCKS - 1, 2, result), -EINVAL);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void descriptors_of_no_bytes_move_nothing(void **state)
{
	struct tn_xfer_run run[2] = {{.bytes = 0, .count = 2, .stride = 8}, {.bytes = 0, .count = 1}};
	struct tn_xfer_list *list[2];
	struct tn_xfer_result result[3];
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, *state);
	for (unsigned i = 0; i < 2; i++) {
		run[0].address = run[1].address = blocks(&r, i).address + 64;
		run[0].device = run[1].device = i;
		assert_int_equal(tn_xfer_list_create(r.agent, NULL, segment_of(&r, i), run, 2, &list[i]), 0);
	}
	assert_int_equal(tn_xfer_request_create(r.agent, TN_XFER_WRITE, list[0], NULL, list[1], NULL, 0, NULL, &q), 0);
	run_to_end(q);
	assert_int_equal(status(q).bytes, 0);
	assert_int_equal(tn_xfer_results(q, 0, 3, result), 0);
	assert_int_equal(result[2].status, 0);
	assert_int_equal(tn_xfer_release(q), 0);
	tn_xfer_list_destroy(list[0]);
	tn_xfer_list_destroy(list[1]);
	rig_free(&r);
}

static void a_deadline_in_the_past_moves_nothing(void **state)
{
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, *state);
	q = request(&r, TN_XFER_WRITE, NULL, NULL, 0);
	assert_int_equal(tn_xfer_post(q, tn_test_now(), NULL, TN_XFER_NO_NOTIFICATION), -ETIMEDOUT);
	assert_int_equal(status(q).state, TN_XFER_IDLE);
	assert_int_equal(tn_xfer_wait(q, 0), -EINVAL);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void what_is_used_cannot_be_deregistered(void **state)
{
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, *state);
	q = request(&r, TN_XFER_WRITE, NULL, NULL, 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tn_xfer_deregister(r.agent, segment_of(&r, i), &r.section[i], 1, 0), -EBUSY);
	run_to_end(q);
	assert_int_equal(tn_xfer_agent_destroy(r.agent), -EBUSY);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void a_cancel_is_final_in_each_phase(void **state)
{
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, *state);
	q = request(&r, TN_XFER_WRITE, NULL, NULL, 0);
	assert_int_equal(tn_xfer_cancel(q, 0), 0); /* before the post */
	for (unsigned i = 0; i < 20; i++) {
		unsigned char last;

		assert_int_equal(post(q), 0);
		assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
		assert_true(status(q).state == TN_XFER_ENDED);
		assert_true(status(q).status == 0 || status(q).status == -ECANCELED);
		/* Nothing moves any more: what is there now stays. */
		read_remote(&r);
		last = r.remote[BYTES - 1];
		r.local[BYTES - 1]++;
		read_remote(&r);
		assert_int_equal(r.remote[BYTES - 1], last);
	}
	assert_int_equal(tn_xfer_cancel(q, 0), 0); /* after the end */
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void a_notification_to_oneself_follows_the_bytes(void **state)
{
	char sender[TN_XFER_NAME_BYTES], got[64];
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, *state);
	q = request(&r, TN_XFER_WRITE, NULL, NULL, 0);
	assert_int_equal(tn_xfer_take(r.agent, sender, got, sizeof(got)), -EAGAIN);
	assert_int_equal(tn_xfer_post(q, tn_test_deadline(), "done", 4), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), 0);
	assert_int_equal(tn_xfer_take(r.agent, sender, got, 2), 4);
	assert_int_equal(tn_xfer_take(r.agent, sender, got, sizeof(got)), 4);
	assert_memory_equal(got, "done", 4);
	assert_string_equal(sender, "one");
	assert_int_equal(tn_xfer_notify(r.agent, "one", NULL, 0), 0);
	assert_int_equal(tn_xfer_take(r.agent, sender, got, sizeof(got)), 0);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void the_event_word_and_the_eventfd_tell_of_the_end(void **state)
{
	struct tn_xfer_request *q;
	struct rig r;
	uint64_t count;
	uint32_t seen;
	int fd;

	rig_new(&r, *state);
	fd = tn_xfer_eventfd(r.agent);
	assert_true(fd > 2);
	assert_int_equal(tn_xfer_eventfd(r.agent), fd);
	q = request(&r, TN_XFER_READ, NULL, NULL, 0);
	seen = *tn_xfer_event_word(r.agent);
	assert_int_equal(tn_xfer_event_wait(r.agent, seen, tn_test_now() + 1000000), -ETIMEDOUT);
	assert_int_equal(post(q), 0);
	assert_int_equal(tn_test_ended(tn_xfer_event_wait(r.agent, seen, tn_test_deadline())), 0);
	assert_int_equal(status(q).state, TN_XFER_ENDED);
	assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void statistics_add_up(void **state)
{
	uint64_t v[64] = {0};
	struct tn_xfer_request *q;
	struct rig r;
	int n;

	rig_new(&r, *state);
	q = request(&r, TN_XFER_WRITE, NULL, NULL, 0);
	run_to_end(q);
	run_to_end(q);
	n = tn_xfer_stats(r.agent, v, 64);
	assert_true(n > 0 && n <= 64);
	for (int i = 0; i < n; i++) {
		const char *name = tn_xfer_stat_name((uint32_t)i);

		if (!strcmp(name, "tx_bytes"))
			assert_int_equal(v[i], 2 * BYTES);
		if (!strcmp(name, "tx_requests"))
			assert_int_equal(v[i], 2);
		if (!strcmp(name, "registered_bytes"))
			assert_int_equal(v[i], 2 * BYTES);
	}
	assert_null(tn_xfer_stat_name((uint32_t)n));
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

/* ---- one backend each -------------------------------------------------------------------------------------------------- */

static const struct kind kinds[] = {
	{"memory", "memory", "memory", TN_XFER_DRAM},
	{"memory by threads", "memory,inline_bytes=0,threads=2", "memory", TN_XFER_DRAM},
	{"file", "file", "file", TN_XFER_FILE},
	{"file by POSIX threads", "file,engine=posix", "file", TN_XFER_FILE},
	{"faulty memory", "faulty,over=memory,seed=7,delay=50,delay_us=500,reorder=1,linger_us=200", "faulty", TN_XFER_DRAM},
	{"faulty file", "faulty,over=file,seed=9,delay=50,delay_us=500,reorder=1", "faulty", TN_XFER_FILE},
};

static void a_truncated_file_is_an_error(void **state)
{
	struct tn_xfer_result result[BLOCKS];
	struct tn_xfer_request *q;
	struct rig r;
	uint64_t bytes = 0;

	rig_new(&r, &kinds[2]);
	q = request(&r, TN_XFER_READ, NULL, NULL, 0);
	assert_int_equal(truncate(r.path, BYTES / 2 + 100), 0);
	assert_int_equal(post(q), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), -EIO);
	assert_int_equal(tn_xfer_results(q, 0, BLOCKS, result), 0);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		bytes += result[i].bytes;
		assert_int_equal(result[i].status, i < BLOCKS / 2 ? 0 : -EIO);
	}
	assert_int_equal(bytes, BYTES / 2 + 100);
	assert_int_equal(status(q).bytes, bytes);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void one_list_may_span_files(void **state)
{
	char path[2][80];
	struct tn_xfer_section file[2] = {{0, BYTES, 8, path[0]}, {0, BYTES, 9, path[1]}};
	struct tn_xfer_run run[2] = {{0, BLOCK, 8, 0, 1}, {BLOCK, BLOCK, 9, 0, 1}};
	static const uint32_t first[2] = {0, 1};
	unsigned char got[BLOCK];
	struct tn_xfer_request *q;
	struct tn_xfer_list *list;
	struct rig r;

	rig_new(&r, &kinds[2]);
	for (unsigned i = 0; i < 2; i++) {
		snprintf(path[i], sizeof(path[i]), "%s-%u", r.path, i);
		assert_int_equal(tn_xfer_register(r.agent, TN_XFER_FILE, &file[i], 1), 0);
	}
	assert_int_equal(tn_xfer_list_create(r.agent, NULL, TN_XFER_FILE, run, 2, &list), 0);
	assert_int_equal(tn_xfer_request_create(r.agent, TN_XFER_WRITE, r.list[0], first, list, NULL, 2, NULL, &q), 0);
	run_to_end(q);
	for (unsigned i = 0; i < 2; i++) {
		int fd = open(path[i], O_RDONLY);

		assert_int_equal(lseek(fd, 0, SEEK_END), (i + 1) * BLOCK);
		assert_int_equal(pread(fd, got, BLOCK, i * BLOCK), BLOCK);
		assert_memory_equal(got, r.local + i * BLOCK, BLOCK);
		close(fd);
		unlink(path[i]);
	}
	assert_int_equal(tn_xfer_release(q), 0);
	tn_xfer_list_destroy(list);
	rig_free(&r);
}

static void a_file_may_be_a_descriptor(void **state)
{
	struct tn_xfer_section file = {0, BYTES, 0, NULL};
	struct tn_xfer_run run = {0, BLOCK, 0, BLOCK, BLOCKS};
	struct tn_xfer_request *q;
	struct tn_xfer_list *list;
	struct rig r;
	int fd;

	rig_new(&r, &kinds[2]);
	fd = open(r.path, O_RDONLY);
	file.device = run.device = (uint64_t)fd;
	assert_int_equal(tn_xfer_register(r.agent, TN_XFER_FILE, &file, 1), 0);
	assert_int_equal(tn_xfer_list_create(r.agent, NULL, TN_XFER_FILE, &run, 1, &list), 0);
	assert_int_equal(tn_xfer_request_create(r.agent, TN_XFER_READ, r.list[0], NULL, list, NULL, 0, NULL, &q), 0);
	run_to_end(q);
	assert_memory_equal(r.local, r.remote, BYTES);
	assert_int_equal(tn_xfer_release(q), 0);
	/* It is open for reading only. */
	assert_int_equal(tn_xfer_request_create(r.agent, TN_XFER_WRITE, r.list[0], NULL, list, NULL, 0, NULL, &q), 0);
	assert_int_equal(post(q), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), -EBADF);
	assert_int_equal(tn_xfer_release(q), 0);
	tn_xfer_list_destroy(list);
	rig_free(&r);
	close(fd);
}

static void a_cancel_cuts_a_long_copy_short(void **state)
{
	enum { LONG = 128 * MIB };
	char *from = calloc(1, LONG), *to = calloc(1, LONG);
	struct tn_xfer_section s[2] = {{(uintptr_t)from, LONG, 0, NULL}, {(uintptr_t)to, LONG, 0, NULL}};
	struct tn_xfer_run run[2] = {{(uintptr_t)from, LONG, 0, 0, 1}, {(uintptr_t)to, LONG, 0, 0, 1}};
	struct tn_xfer_agent *a = agent_new("memory,threads=1");
	struct tn_xfer_list *list[2];
	struct tn_xfer_result result;
	struct tn_xfer_request *q;
	bool cut = false;

	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, s, 2), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run[i], 1, &list[i]), 0);
	assert_int_equal(tn_xfer_request_create(a, TN_XFER_WRITE, list[0], NULL, list[1], NULL, 0, NULL, &q), 0);
	/* A busy machine may run the copy to its end first. */
	for (unsigned i = 0; i < 50 && !cut; i++) {
		assert_int_equal(post(q), 0);
		assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
		assert_int_equal(tn_xfer_results(q, 0, 1, &result), 0);
		cut = status(q).status == -ECANCELED && result.status == -ECANCELED && result.bytes < LONG;
	}
	assert_true(cut);
	assert_int_equal(tn_xfer_release(q), 0);
	tn_xfer_list_destroy(list[0]);
	tn_xfer_list_destroy(list[1]);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	free(from);
	free(to);
}

static struct tn_xfer_agent *faulty_request(struct rig *r, struct kind *k, const char *spec, struct tn_xfer_request **q)
{
	*k = (struct kind){"faulty", spec, "faulty", TN_XFER_DRAM};
	rig_new(r, k);
	*q = request(r, TN_XFER_WRITE, NULL, NULL, 0);
	return r->agent;
}

static void a_deadline_ends_the_wait_and_not_the_ownership(void **state)
{
	struct tn_xfer_request *q;
	struct kind k;
	struct rig r;

	faulty_request(&r, &k, "faulty,over=memory,delay=100,delay_us=1000,linger_us=1500000", &q);
	assert_int_equal(tn_xfer_post(q, tn_test_now() + 50000000, NULL, TN_XFER_NO_NOTIFICATION), 0);
	assert_int_equal(tn_xfer_wait(q, tn_test_now() + 10000000), -EAGAIN);
	assert_int_equal(post(q), -EBUSY);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, TN_FOREVER) == -ETIMEDOUT ? 0 : -1), 0);
	assert_int_equal(status(q).state, TN_XFER_ENDING);
	assert_int_equal(status(q).status, -ETIMEDOUT);
	assert_int_equal(tn_xfer_release(q), -EBUSY);
	assert_int_equal(tn_xfer_deregister(r.agent, TN_XFER_DRAM, &r.section[0], 1, 0), -EBUSY);
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
	struct kind k;
	struct rig r;
	uint32_t seen;

	faulty_request(&r, &k, "faulty,over=memory,drop=100", &q);
	seen = *tn_xfer_event_word(r.agent);
	assert_int_equal(tn_xfer_post(q, tn_test_now() + 20000000, "never", 5), 0);
	assert_int_equal(tn_test_ended(tn_xfer_event_wait(r.agent, seen, tn_test_deadline())), 0);
	assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
	assert_int_equal(status(q).status, -ETIMEDOUT);
	assert_int_equal(tn_xfer_take(r.agent, (char[TN_XFER_NAME_BYTES]){0}, NULL, 0), -EAGAIN);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void one_bad_piece_is_told_apart_from_the_others(void **state)
{
	uint32_t index[BLOCKS / 2];
	struct tn_xfer_result result[BLOCKS / 2];
	struct tn_xfer_request *q;
	unsigned bad = 0, cut = 0;
	struct kind k = {"faulty", "faulty,over=memory,seed=5,fail=50,truncate=100", "faulty", TN_XFER_DRAM};
	struct rig r;

	rig_new(&r, &k);
	for (uint32_t i = 0; i < BLOCKS / 2; i++)
		index[i] = 2 * i;
	q = request(&r, TN_XFER_WRITE, index, index, BLOCKS / 2);
	for (unsigned turn = 0; turn < 30; turn++) {
		unsigned failed = 0;

		fill(r.local, BYTES, 100 + turn);
		assert_int_equal(post(q), 0);
		assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), -EIO);
		assert_int_equal(tn_xfer_results(q, 0, BLOCKS / 2, result), 0);
		for (uint32_t i = 0; i < BLOCKS / 2; i++) {
			failed += result[i].status != 0;
			bad += result[i].status && result[i].bytes == 0;
			cut += result[i].status && result[i].bytes == BLOCK / 2;
			assert_memory_equal(r.local + index[i] * BLOCK, r.remote + index[i] * BLOCK, result[i].bytes);
		}
		assert_int_equal(failed, 1);
	}
	assert_int_equal(bad + cut, 30);
	assert_true(bad > 5 && cut > 5);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

static void a_large_list_is_prepared_and_moved(void **state)
{
	enum { N = 112000, SIZE = 64 };
	unsigned char *from = calloc(N, 2 * SIZE), *to = calloc(N, SIZE), packed[65536];
	struct tn_xfer_section s[2] = {{(uintptr_t)from, (uint64_t)N * 2 * SIZE, 0, NULL}, {(uintptr_t)to, (uint64_t)N * SIZE, 0, NULL}};
	struct tn_xfer_run *flat = calloc(N, sizeof(*flat)), strided = {(uintptr_t)from, SIZE, 0, 2 * SIZE, N}, back;
	struct tn_xfer_agent *a = agent_new("memory");
	struct tn_xfer_list *local, *remote;
	struct tn_xfer_request *q;
	enum tn_xfer_segment segment;
	int64_t n;

	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, s, 2), 0);
	fill(from, (size_t)N * 2 * SIZE, 4);
	for (unsigned i = 0; i < N; i++)
		flat[i] = (struct tn_xfer_run){(uintptr_t)to + (uint64_t)i * SIZE, SIZE, 0, 0, 1};
	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &strided, 1, &local), 0);
	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, flat, N, &remote), 0);
	assert_int_equal(tn_xfer_request_create(a, TN_XFER_WRITE, local, NULL, remote, NULL, 0, NULL, &q), 0);
	run_to_end(q);
	for (unsigned i = 0; i < N; i++)
		assert_memory_equal(to + (size_t)i * SIZE, from + (size_t)i * 2 * SIZE, SIZE);
	n = tn_xfer_runs_pack(TN_XFER_DRAM, flat, N, packed, sizeof(packed));
	assert_true(n > 0 && n <= (int64_t)sizeof(packed));
	assert_int_equal(tn_xfer_runs_unpack(packed, (size_t)n, &segment, &back, 1), 1);
	assert_int_equal(back.count, N);
	assert_int_equal(back.stride, SIZE);
	assert_int_equal(tn_xfer_release(q), 0);
	tn_xfer_list_destroy(local);
	tn_xfer_list_destroy(remote);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	free(flat);
	free(from);
	free(to);
}

int main(void)
{
	static const struct {
		const char *name;
		CMUnitTestFunction test;
	} each[] = {
		{"writes and reads move every byte", writes_and_reads_move_every_byte},
		{"scattered blocks go where the indices say", scattered_blocks_go_where_the_indices_say},
		{"neighbours on one side alone are not merged", neighbours_on_one_side_alone_are_not_merged},
		{"a request is posted again and again", a_request_is_posted_again_and_again},
		{"each descriptor has its status and bytes", each_descriptor_has_its_status_and_bytes},
		{"descriptors of no bytes move nothing", descriptors_of_no_bytes_move_nothing},
		{"a deadline in the past moves nothing", a_deadline_in_the_past_moves_nothing},
		{"what is used cannot be deregistered", what_is_used_cannot_be_deregistered},
		{"a cancel is final in each phase", a_cancel_is_final_in_each_phase},
		{"a notification to oneself follows the bytes", a_notification_to_oneself_follows_the_bytes},
		{"the event word and the eventfd tell of the end", the_event_word_and_the_eventfd_tell_of_the_end},
		{"statistics add up", statistics_add_up},
	};
	const struct CMUnitTest once[] = {
		cmocka_unit_test(a_truncated_file_is_an_error),
		cmocka_unit_test(one_list_may_span_files),
		cmocka_unit_test(a_file_may_be_a_descriptor),
		cmocka_unit_test(a_cancel_cuts_a_long_copy_short),
		cmocka_unit_test(a_deadline_ends_the_wait_and_not_the_ownership),
		cmocka_unit_test(a_request_that_hangs_ends_by_its_deadline_though_nobody_asks),
		cmocka_unit_test(one_bad_piece_is_told_apart_from_the_others),
		cmocka_unit_test(a_large_list_is_prepared_and_moved),
	};
	enum { EVERY = sizeof(each) / sizeof(each[0]), KINDS = sizeof(kinds) / sizeof(kinds[0]), ONCE = sizeof(once) / sizeof(once[0]) };
	static struct CMUnitTest tests[EVERY * KINDS + ONCE];
	static char names[EVERY * KINDS][96];

	for (unsigned i = 0; i < EVERY * KINDS; i++) {
		snprintf(names[i], sizeof(names[i]), "%s: %s", kinds[i / EVERY].label, each[i % EVERY].name);
		tests[i] = (struct CMUnitTest){.name = names[i], .test_func = each[i % EVERY].test, .initial_state = (void *)(uintptr_t)&kinds[i / EVERY]};
	}
	memcpy(&tests[EVERY * KINDS], once, sizeof(once));
	return cmocka_run_group_tests_name("xfer", tests, NULL, NULL);
}
