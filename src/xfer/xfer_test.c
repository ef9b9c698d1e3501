/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transfer does, once per backend: lists, requests, deadlines, cancels, misuse. Both sides are of one process.
 *
 * Without an argument it runs the backends that need nothing. "s3" runs s3 against the store of the environment (AWS_ENDPOINT_URL) and its bucket "bucket", "redis" a server at REDIS_PORT, "ucx"
 * and "gds" run those. docs/xfer-behaviour.md says which test shows what of which backend.
 */
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kind_rig.h"
#include "tn_test_child.h"

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
	q = request(&r, op_of_parts(&r), local, remote, BLOCKS / 2);
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
		q = request(&r, op_of_parts(&r), turn ? row : apart, turn ? apart : row, 6);
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
	q = request(&r, op_of_parts(&r), &one, &one, 1);
	for (unsigned i = 0; i < 50; i++) {
		fill(r.local + 3 * BLOCK, BLOCK, i);
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
		assert_int_equal(tn_xfer_list_create(r.agent, peer_of(&r, i), segment_of(&r, i), run, 2, &list[i]), 0);
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
	/* Another agent waits for what is posted alone. */
	for (unsigned i = 0; i < (r.kind->peer ? 1 : 2); i++)
		assert_int_equal(tn_xfer_deregister(r.agent, segment_of(&r, i), &r.section[i], 1, 0), -EBUSY);
	run_to_end(q);
	assert_int_equal(tn_xfer_agent_destroy(r.agent), -EBUSY);
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

/* Nothing moves any more: what is there now stays. A store may still keep an object that it had received when the request was cancelled. */
static void assert_still(struct rig *r)
{
	unsigned char *to = is_object(r) ? r->local : r->remote, last;

	if (!is_object(r))
		read_remote(r);
	last = to[BYTES - 1];
	if (is_object(r)) {
		usleep(1000);
	} else {
		r->local[BYTES - 1]++;
		read_remote(r);
	}
	assert_int_equal(to[BYTES - 1], last);
}

static void a_cancel_is_final_in_each_phase(void **state)
{
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, *state);
	q = request(&r, op_of_parts(&r), NULL, NULL, 0);
	assert_int_equal(tn_xfer_cancel(q, 0), 0); /* before the post */
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(post(q), 0);
		usleep(i * 50);
		assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
		assert_true(status(q).state == TN_XFER_ENDED);
		if (r.kind->peer && status(q).status == -ECONNRESET)
			break; /* on a slow machine a backend may give up its connection to the peer to end the request */
		assert_true(status(q).status == 0 || status(q).status == -ECANCELED);
		assert_still(&r);
	}
	assert_int_equal(tn_xfer_cancel(q, 0), 0); /* after the end */
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

/* That arrives within the deadline. */
static int64_t take(struct tn_xfer_agent *a, char *sender, void *out, size_t max)
{
	uint64_t end = tn_test_deadline();
	int64_t n;

	while ((n = tn_xfer_take(a, sender, out, max)) == -EAGAIN && tn_test_now() < end)
		usleep(100);
	return n;
}

static void a_notification_follows_the_bytes(void **state)
{
	char sender[TN_XFER_NAME_BYTES], got[64];
	struct tn_xfer_agent *to;
	struct tn_xfer_request *q;
	struct rig r;

	rig_new(&r, *state);
	to = r.owner[1];
	q = request(&r, TN_XFER_WRITE, NULL, NULL, 0);
	assert_int_equal(tn_xfer_take(to, sender, got, sizeof(got)), -EAGAIN);
	assert_int_equal(tn_xfer_post(q, tn_test_deadline(), "done", 4), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), 0);
	assert_int_equal(take(to, sender, got, 2), 4);
	read_remote(&r);
	assert_memory_equal(r.local, r.remote, BYTES);
	assert_int_equal(take(to, sender, got, sizeof(got)), 4);
	assert_memory_equal(got, "done", 4);
	assert_string_equal(sender, "one");
	assert_int_equal(tn_xfer_notify(r.agent, peer_of(&r, 1), NULL, 0), 0);
	assert_int_equal(take(to, sender, got, sizeof(got)), 0);
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
		if (!strcmp(name, "loaded_peers"))
			assert_int_equal(v[i], r.kind->peer);
		if (!strcmp(name, "tx_requests"))
			assert_int_equal(v[i], 2);
		if (!strcmp(name, "registered_bytes"))
			assert_int_equal(v[i], r.kind->peer ? BYTES : 2 * BYTES);
	}
	assert_null(tn_xfer_stat_name((uint32_t)n));
	assert_int_equal(tn_xfer_release(q), 0);
	rig_free(&r);
}

/* ---- one backend each -------------------------------------------------------------------------------------------------- */

static const struct kind kinds[] = {
	{"memory", "memory", "memory", TN_XFER_DRAM, TN_XFER_DRAM},
	{"memory by threads", "memory,inline_bytes=0,threads=2", "memory", TN_XFER_DRAM, TN_XFER_DRAM},
	{"file", "file", "file", TN_XFER_FILE, TN_XFER_DRAM},
	{"file by POSIX threads", "file,engine=posix", "file", TN_XFER_FILE, TN_XFER_DRAM},
	{"faulty memory", "faulty,over=memory,seed=7,delay=50,delay_us=500,reorder=1,linger_us=200", "faulty", TN_XFER_DRAM, TN_XFER_DRAM},
	{"faulty file", "faulty,over=file,seed=9,delay=50,delay_us=500,reorder=1", "faulty", TN_XFER_FILE, TN_XFER_DRAM},
	{"memory of another agent", "memory", "memory", TN_XFER_DRAM, TN_XFER_DRAM, true},
};

static const struct kind object_kinds[] = {
	{"s3", "s3,bucket=bucket", "s3", TN_XFER_OBJECT, TN_XFER_DRAM, false, "s3,bucket=bucket"},
	{"faulty s3", "faulty,over=s3,bucket=bucket,seed=3,delay=50,delay_us=500,reorder=1", "faulty", TN_XFER_OBJECT, TN_XFER_DRAM, false, "s3,bucket=bucket"},
};

static char redis_spec[64], faulty_redis_spec[128]; /* with the port of the environment */

static const struct kind redis_kinds[] = {
	{"redis", redis_spec, "redis", TN_XFER_OBJECT, TN_XFER_DRAM, false, redis_spec},
	{"faulty redis", faulty_redis_spec, "faulty", TN_XFER_OBJECT, TN_XFER_DRAM, false, redis_spec},
};

static void set_redis_specs(void)
{
	const char *port = getenv("REDIS_PORT");

	snprintf(redis_spec, sizeof(redis_spec), "redis,port=%s", port ? port : "6379");
	snprintf(faulty_redis_spec, sizeof(faulty_redis_spec), "faulty,over=redis,port=%s,seed=3,delay=50,delay_us=500,reorder=1", port ? port : "6379");
}

static const struct kind ucx_kinds[] = {
	{"ucx", "ucx", "ucx", TN_XFER_DRAM, TN_XFER_DRAM, true},
	{"faulty ucx", "faulty,over=ucx,seed=5,delay=50,delay_us=500,reorder=1,linger_us=200", "faulty", TN_XFER_DRAM, TN_XFER_DRAM, true},
};

static const struct kind device_kinds[] = {
	{"gds", "gds", "gds", TN_XFER_FILE, TN_XFER_VRAM},
	{"faulty gds", "faulty,over=gds,seed=4,delay=50,delay_us=500,reorder=1", "faulty", TN_XFER_FILE, TN_XFER_VRAM},
};

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

/* A file system of 64 KiB, in a mount namespace of its own: so this is a process of its own. */
static int write_to_a_full_disk(void *arg)
{
	static const struct kind kind = {"file", "file", "file", TN_XFER_FILE, TN_XFER_DRAM};
	char dir[] = "/var/tmp/tn-xfer-full-XXXXXX", path[64];
	struct tn_xfer_section s[2] = {{.bytes = BYTES}, {0, BYTES, 1, path}};
	struct tn_xfer_result result[BLOCKS];
	struct tn_xfer_list *list[2];
	struct tn_xfer_request *q;
	struct tn_xfer_agent *a;
	uint64_t bytes = 0;

	if (!mkdtemp(dir) || unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
		return TN_TEST_SKIP;
	snprintf(path, sizeof(path), "%s/file", dir);
	a = agent_new(kind.spec);
	s[0].address = (uintptr_t)aligned_alloc(BLOCK, BYTES);
	for (unsigned i = 0; i < 2; i++) {
		struct tn_xfer_run run = {s[i].address, BLOCK, i, BLOCK, BLOCKS};

		assert_int_equal(tn_xfer_register(a, i ? TN_XFER_FILE : TN_XFER_DRAM, &s[i], 1), 0);
		assert_int_equal(tn_xfer_list_create(a, NULL, i ? TN_XFER_FILE : TN_XFER_DRAM, &run, 1, &list[i]), 0);
	}
	assert_int_equal(tn_xfer_request_create(a, TN_XFER_WRITE, list[0], NULL, list[1], NULL, 0, NULL, &q), 0);
	assert_int_equal(post(q), 0);
	assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), -ENOSPC);
	assert_int_equal(tn_xfer_results(q, 0, BLOCKS, result), 0);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		assert_int_equal(result[i].status, result[i].bytes == BLOCK ? 0 : -ENOSPC);
		bytes += result[i].bytes;
	}
	assert_in_range(bytes, BLOCK, 64 << 10);
	return 0;
}

static void a_full_disk_is_an_error_of_what_does_not_fit(void **state)
{
	if (TN_TEST_THREAD_SANITIZER)
		tn_test_skip("a forked child starts no thread there");
	switch (tn_test_in_child(write_to_a_full_disk, NULL)) {
	case 0:
		break;
	case TN_TEST_SKIP:
		tn_test_skip("this process may mount nothing");
	default:
		fail_msg("the child failed");
	}
}

static void what_gds_cannot_move_is_refused_when_the_request_is_made(void **state)
{
	static const struct tn_xfer_run bad[][2] = {{{.bytes = 512}, {.bytes = 512}}, {{.bytes = BLOCK}, {.bytes = BLOCK, .address = 512}}};
	struct tn_xfer_section fd = {.bytes = BYTES};
	struct rig r;

	rig_new(&r, &device_kinds[0]);
	for (size_t i = 0; i < 2; i++) {
		struct tn_xfer_list *list[2];
		struct tn_xfer_request *q;

		for (unsigned k = 0; k < 2; k++) {
			struct tn_xfer_run run = bad[i][k];

			run.address += k ? 0 : (uintptr_t)r.local;
			run.device = k;
			run.count = 1;
			assert_int_equal(tn_xfer_list_create(r.agent, NULL, segment_of(&r, k), &run, 1, &list[k]), 0);
		}
		assert_int_equal(tn_xfer_request_create(r.agent, TN_XFER_READ, list[0], NULL, list[1], NULL, 0, NULL, &q), -ENOTSUP);
		assert_non_null(strstr(tn_error_last()->text, "multiples of 4096"));
		tn_xfer_list_destroy(list[0]);
		tn_xfer_list_destroy(list[1]);
	}
	fd.device = (uint64_t)open(r.path, O_RDWR);
	assert_int_equal(tn_xfer_register(r.agent, TN_XFER_FILE, &fd, 1), -ENOTSUP);
	assert_non_null(strstr(tn_error_last()->text, "O_DIRECT"));
	close((int)fd.device);
	rig_free(&r);
}

static void gds_takes_a_descriptor_with_o_direct(void **state)
{
	struct tn_xfer_section fd = {.bytes = BYTES};
	struct tn_xfer_run run = {0, BLOCK, 0, BLOCK, BLOCKS};
	struct tn_xfer_request *q;
	struct tn_xfer_list *list;
	struct rig r;

	rig_new(&r, &device_kinds[0]);
	fd.device = run.device = (uint64_t)open(r.path, O_RDWR | O_DIRECT);
	assert_int_equal(tn_xfer_register(r.agent, TN_XFER_FILE, &fd, 1), 0);
	assert_int_equal(tn_xfer_list_create(r.agent, NULL, TN_XFER_FILE, &run, 1, &list), 0);
	assert_int_equal(tn_xfer_request_create(r.agent, TN_XFER_READ, r.list[0], NULL, list, NULL, 0, NULL, &q), 0);
	run_to_end(q);
	assert_memory_equal(r.local, r.remote, BYTES);
	assert_int_equal(tn_xfer_release(q), 0);
	tn_xfer_list_destroy(list);
	rig_free(&r);
	close((int)fd.device);
}

/* ---- the program ------------------------------------------------------------------------------------------------------- */

static const struct each each[] = {
	{"writes and reads move every byte", writes_and_reads_move_every_byte, 0},
	{"scattered blocks go where the indices say", scattered_blocks_go_where_the_indices_say, 0},
	{"neighbours on one side alone are not merged", neighbours_on_one_side_alone_are_not_merged, 0},
	{"a request is posted again and again", a_request_is_posted_again_and_again, 0},
	{"each descriptor has its status and bytes", each_descriptor_has_its_status_and_bytes, 0},
	{"descriptors of no bytes move nothing", descriptors_of_no_bytes_move_nothing, 0},
	{"a deadline in the past moves nothing", a_deadline_in_the_past_moves_nothing, 0},
	{"what is used cannot be deregistered", what_is_used_cannot_be_deregistered, 0},
	{"a cancel is final in each phase", a_cancel_is_final_in_each_phase, 0},
	{"a notification follows the bytes", a_notification_follows_the_bytes, 0},
	{"the event word and the eventfd tell of the end", the_event_word_and_the_eventfd_tell_of_the_end, 0},
	{"statistics add up", statistics_add_up, 0},
};

static const struct CMUnitTest once[] = {
	cmocka_unit_test(a_full_disk_is_an_error_of_what_does_not_fit), /* forks */
	cmocka_unit_test(one_list_may_span_files),
	cmocka_unit_test(a_file_may_be_a_descriptor),
	cmocka_unit_test(a_cancel_cuts_a_long_copy_short),
};

static const struct CMUnitTest device_once[] = {
	cmocka_unit_test(what_gds_cannot_move_is_refused_when_the_request_is_made),
	cmocka_unit_test(gds_takes_a_descriptor_with_o_direct),
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define FAULTS_MAX 16u
#define TESTS_MAX ((COUNT(each) + FAULTS_MAX) * COUNT(kinds) + COUNT(once))

/* Which kinds a program runs, and what it runs once. */
static const struct {
	const char *argument;
	const struct kind *kind;
	size_t nkinds;
	const struct CMUnitTest *once;
	size_t nonce;
} programs[] = {
	{"", kinds, COUNT(kinds), once, COUNT(once)},
	{"s3", object_kinds, COUNT(object_kinds), NULL, 0},
	{"redis", redis_kinds, COUNT(redis_kinds), NULL, 0},
	{"ucx", ucx_kinds, COUNT(ucx_kinds), NULL, 0},
	{"gds", device_kinds, COUNT(device_kinds), device_once, COUNT(device_once)},
};

static bool has(const struct kind *kind, unsigned needs)
{
	bool faulty = !strcmp(kind->backend, "faulty");

	return !(needs & ENDS && kind->remote == TN_XFER_DRAM) && !(needs & OBJECTS && kind->remote != TN_XFER_OBJECT) && !(needs & NO_FAULTS && faulty) &&
	       !(needs & SMALL && (kind->local == TN_XFER_VRAM || (faulty && (kind->peer || kind->remote == TN_XFER_FILE))));
}

int main(int argc, char **argv)
{
	static struct CMUnitTest tests[TESTS_MAX];
	static char names[TESTS_MAX][96];
	size_t p = 0, n = 0;

	set_redis_specs();
	while (p < COUNT(programs) && strcmp(programs[p].argument, argc > 1 ? argv[1] : ""))
		p++;
	if (p == COUNT(programs)) {
		fprintf(stderr, "%s: no argument, s3, redis, ucx or gds is wanted\n", argv[1]);
		return 1;
	}
	for (size_t i = 0; i < programs[p].nonce; i++)
		tests[n++] = programs[p].once[i];
	assert_true(kind_faults_count <= FAULTS_MAX);
	for (size_t k = 0; k < programs[p].nkinds; k++) {
		const struct kind *kind = &programs[p].kind[k];

		for (size_t i = 0; i < COUNT(each) + kind_faults_count; i++) {
			const struct each *e = i < COUNT(each) ? &each[i] : &kind_faults[i - COUNT(each)];

			if (!has(kind, e->needs))
				continue;
			snprintf(names[n], sizeof(names[n]), "%s: %s", kind->label, e->name);
			tests[n] = (struct CMUnitTest){.name = names[n], .test_func = e->test, .initial_state = (void *)(uintptr_t)kind};
			n++;
		}
	}
	return _cmocka_run_group_tests("xfer", tests, n, NULL, NULL);
}
