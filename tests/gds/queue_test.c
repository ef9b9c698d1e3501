/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of the plugin gds over the tests' libcufile.so.0 and libcuda.so.1, in each of the three ways to ask the library. Files are real ones; the memory
 * is the process's own, and all of it in a context of CUDA's, which the stub asks for.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include <tenuto/device_file.h>

#include "base/rng.h"
#include "stub_cuda.h"
#include "stub_rig.h"
#include "tn_test.h"

#define FILE_BYTES (4u << 20)
#define PAGE TN_DEVICE_FILE_ALIGN
#define PIECES 100u /* of a transfer: more than one call takes */
#define STREAMS 3u
#define THREADS 32u
#define TURNS 5u

static const enum tn_device_file_calls ways[] = {TN_DEVICE_FILE_SYNC, TN_DEVICE_FILE_BATCH, TN_DEVICE_FILE_ASYNC};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

static char top[PATH_MAX];
static const struct tn_device_file_ops *gds;
static struct stub_cufile *stub;
static struct stub_cuda *cuda;
static char detail[256];

static int get(const int *of)
{
	return __atomic_load_n(of, __ATOMIC_ACQUIRE);
}

static void set(int *of, int value)
{
	__atomic_store_n(of, value, __ATOMIC_RELEASE);
}

/* A transfer of scattered pages, and the memory that it goes to or comes from. */
struct move {
	struct tn_device_file_transfer t;
	struct iovec piece[PIECES];
	unsigned char *memory;
	int over;
};

struct world {
	struct tn_device_file_queue *queue;
	struct tn_device_file *file;
	struct move move;
};

static void done(struct tn_device_file_transfer *t)
{
	set(&((struct move *)t->arg)->over, 1);
}

/* Pieces of a page each, in the order of their addresses or against it, with a page between two. */
static void prepare(struct move *m, struct tn_device_file *file, bool write, uint32_t npieces, uint64_t offset)
{
	if (!m->memory)
		m->memory = aligned_alloc(PAGE, 2ul * PIECES * PAGE);
	assert_non_null(m->memory);
	for (uint32_t i = 0; i < npieces; i++)
		m->piece[i] = (struct iovec){m->memory + 2ul * PAGE * (write ? i : npieces - 1 - i), PAGE};
	m->t = (struct tn_device_file_transfer){.file = file, .piece = m->piece, .npieces = npieces, .write = write, .offset = offset, .done = done, .arg = m};
	m->over = 0;
}

/* Bytes of a transfer that begins there; each word says where it is in the file. */
static void fill(struct move *m)
{
	for (uint32_t i = 0; i < m->t.npieces; i++)
		for (uint64_t k = 0; k < PAGE / 8; k++)
			((uint64_t *)m->piece[i].iov_base)[k] = m->t.offset + (uint64_t)i * PAGE + 8 * k;
}

static bool is_right(const struct move *m)
{
	for (uint32_t i = 0; i < m->t.npieces; i++)
		for (uint64_t k = 0; k < PAGE / 8; k++)
			if (((uint64_t *)m->piece[i].iov_base)[k] != m->t.offset + (uint64_t)i * PAGE + 8 * k)
				return false;
	return true;
}

static int await(struct tn_device_file_queue *queue, struct move *m)
{
	uint64_t end = tn_test_deadline();

	gds->submit(queue, &m->t);
	while (!get(&m->over)) {
		assert_true(tn_test_now() < end);
		usleep(100);
	}
	return m->t.status;
}

static void up(struct world *w, enum tn_device_file_calls calls)
{
	char path[PATH_MAX + 16];
	int fd, rc;

	snprintf(path, sizeof(path), "%s/file", top);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, FILE_BYTES), 0);
	close(fd);
	memset(w, 0, sizeof(*w));
	assert_int_equal(gds->acquire(path, 1, &w->file, detail, sizeof(detail)), 0);
	rc = gds->queue_create(calls, STREAMS, &w->queue, detail, sizeof(detail));
	if (rc)
		print_error("%s\n", detail);
	assert_int_equal(rc, 0);
}

static void down(struct world *w)
{
	gds->queue_destroy(w->queue);
	gds->release(w->file);
	assert_int_equal(gds->cleanup(), 0);
	assert_int_equal(get(&stub->batches), 0);
	assert_int_equal(get(&cuda->streams), 0);
	free(w->move.memory);
}

static void pieces_go_to_the_file_and_come_back(void **state)
{
	for (size_t i = 0; i < WAYS; i++) {
		struct world w;

		up(&w, ways[i]);
		for (uint32_t n = 1; n <= PIECES; n += 33) {
			prepare(&w.move, w.file, true, n, 8ul * PAGE);
			fill(&w.move);
			assert_int_equal(await(w.queue, &w.move), 0);
			memset(w.move.memory, 0xee, 2ul * n * PAGE);
			prepare(&w.move, w.file, false, n, 8ul * PAGE);
			assert_int_equal(await(w.queue, &w.move), 0);
			assert_true(is_right(&w.move));
			assert_true(w.move.t.began_ns > 0);
		}
		down(&w);
	}
}

/* What a call fails with is the transfer's, and the next transfer is whole. */
static void fail_once(enum tn_device_file_calls calls, bool write, int *how, int value, int status, const char *word)
{
	struct world w;

	up(&w, calls);
	set(how, value);
	for (int again = 0; again < 2; again++) {
		prepare(&w.move, w.file, write, PIECES, 0);
		fill(&w.move);
		assert_int_equal(await(w.queue, &w.move), again ? 0 : status);
		assert_int_equal(get(how), 0);
		if (!again && !strstr(w.move.t.detail, word))
			fail_msg("'%s' is not in: %s", word, w.move.t.detail);
	}
	down(&w);
}

static void each_call_fails_once(void **state)
{
	for (size_t i = 0; i < WAYS; i++) {
		fail_once(ways[i], false, &stub->fail[STUB_READ], 5011, -EIO, "the CUDA driver failed");
		fail_once(ways[i], false, &stub->fail[STUB_READ], 5008, -ENOTSUP, "this file is not supported");
		fail_once(ways[i], true, &stub->fail[STUB_WRITE], 5010, -EIO, "nvidia-fs refused");
		fail_once(ways[i], true, &stub->shorter, 512, -EIO, "3584 of 4096 bytes");
	}
	fail_once(TN_DEVICE_FILE_BATCH, false, &stub->fail[STUB_BATCH_SET_UP], 5043, -ENOMEM, "cuFileBatchIOSetUp");
	fail_once(TN_DEVICE_FILE_BATCH, false, &stub->fail[STUB_BATCH_SUBMIT], 5022, -EINVAL, "cuFileBatchIOSubmit");
	fail_once(TN_DEVICE_FILE_BATCH, true, &stub->fail[STUB_BATCH_STATUS], 5011, -EIO, "cuFileBatchIOGetStatus");
	fail_once(TN_DEVICE_FILE_ASYNC, false, &stub->fail[STUB_READ_ASYNC], 5011, -EIO, "cuFileReadAsync");
	fail_once(TN_DEVICE_FILE_ASYNC, true, &stub->fail[STUB_WRITE_ASYNC], 5009, -ENODEV, "this GPU is not supported");
	fail_once(TN_DEVICE_FILE_ASYNC, false, &cuda->fail_stream_create, 2, -EIO, "cuStreamCreate: error 2");
	fail_once(TN_DEVICE_FILE_ASYNC, false, &cuda->fail_stream_synchronize, 700, -EIO, "cuStreamSynchronize: error 700");
}

static void a_piece_that_is_not_aligned_is_left_to_the_caller(void **state)
{
	for (size_t i = 0; i < WAYS; i++) {
		struct world w;
		int before;

		up(&w, ways[i]);
		prepare(&w.move, w.file, false, 1, 0);
		w.move.piece[0].iov_len = 512;
		before = get(&stub->calls[STUB_READ]);
		assert_int_equal(await(w.queue, &w.move), -ENOTSUP);
		prepare(&w.move, w.file, false, 1, 512);
		assert_int_equal(await(w.queue, &w.move), -ENOTSUP);
		assert_int_equal(get(&stub->calls[STUB_READ]), before);
		down(&w);
	}
}

static void memory_of_another_context_has_another_stream(void **state)
{
	struct world w;

	up(&w, TN_DEVICE_FILE_ASYNC);
	for (int memory = STUB_CUDA_UNKNOWN; memory <= STUB_CUDA_DEVICE; memory++) {
		set(&cuda->memory, memory);
		prepare(&w.move, w.file, true, PIECES, 0);
		fill(&w.move);
		assert_int_equal(await(w.queue, &w.move), 0);
		prepare(&w.move, w.file, false, PIECES, 0);
		assert_int_equal(await(w.queue, &w.move), 0);
		assert_true(is_right(&w.move));
	}
	set(&cuda->memory, STUB_CUDA_CONTEXT);
	down(&w);
}

static void a_queue_that_cannot_be_is_refused(void **state)
{
	struct tn_device_file_queue *q;

	assert_int_equal(gds->queue_create(TN_DEVICE_FILE_SYNC, 0, &q, detail, sizeof(detail)), -EINVAL);
	assert_int_equal(gds->queue_create(TN_DEVICE_FILE_SYNC, TN_DEVICE_FILE_STREAMS_MAX + 1, &q, detail, sizeof(detail)), -EINVAL);
	assert_non_null(strstr(detail, "65 streams"));
}

struct user {
	struct world *world;
	uint32_t number, right;
};

/* Each has a part of the file, and fails are nobody else's. */
static void *use(void *arg)
{
	struct user *u = arg;
	struct tn_rng rng;
	struct move m = {0};

	tn_rng_seed(&rng, tn_test_seed() + u->number);
	for (uint32_t i = 0; i < TURNS; i++) {
		uint32_t n = 1 + tn_rng_below(&rng, FILE_BYTES / THREADS / PAGE);

		prepare(&m, u->world->file, true, n, (uint64_t)u->number * (FILE_BYTES / THREADS));
		fill(&m);
		if (await(u->world->queue, &m))
			continue;
		memset(m.memory, 0xee, 2ul * n * PAGE);
		prepare(&m, u->world->file, false, n, m.t.offset);
		if (await(u->world->queue, &m) == 0)
			u->right += is_right(&m);
	}
	free(m.memory);
	return NULL;
}

static void many_threads_share_a_queue(void **state)
{
	for (size_t i = 0; i < WAYS; i++) {
		struct user user[THREADS];
		pthread_t thread[THREADS];
		uint32_t right = 0;
		struct world w;

		up(&w, ways[i]);
		tn_test_seed(); /* its first call is no thread's */
		set(&stub->fail[STUB_READ], 5011);
		for (uint32_t k = 0; k < THREADS; k++) {
			user[k] = (struct user){&w, k, 0};
			assert_int_equal(pthread_create(&thread[k], NULL, use, &user[k]), 0);
		}
		for (uint32_t k = 0; k < THREADS; k++) {
			pthread_join(thread[k], NULL);
			right += user[k].right;
		}
		assert_int_equal(right, THREADS * TURNS - 1);
		down(&w);
	}
}

static int run_all(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_go_to_the_file_and_come_back),
		cmocka_unit_test(each_call_fails_once),
		cmocka_unit_test(a_piece_that_is_not_aligned_is_left_to_the_caller),
		cmocka_unit_test(memory_of_another_context_has_another_stream),
		cmocka_unit_test(a_queue_that_cannot_be_is_refused),
		cmocka_unit_test(many_threads_share_a_queue),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
	void *library;
	int rc;

	if (!stub_rig_built())
		return tn_test_skip_all("no /proc");
	stub = stub_rig_up(argv, top);
	library = dlopen("libcuda.so.1", RTLD_NOW);
	cuda = library ? dlsym(library, "stub_cuda") : NULL;
	if (!stub || !cuda || tn_device_file_open("gds", &gds) || gds->start(tn_test_deadline(), detail, sizeof(detail)))
		return 1;
	set(&cuda->memory, STUB_CUDA_CONTEXT);
	rc = run_all();
	stub_rig_down(top);
	return tn_test_ran(rc);
}
