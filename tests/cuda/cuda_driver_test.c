/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver over a fake libcuda: copies, events, words, streams that follow each other, sums, memory of other processes. What happens when calls
 * fail is in cuda_fail_test.c.
 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/checksum.h"
#include "cuda_rig.h"

#define MOST 3000u

static const char *program;

static void it_says_what_devices_there_are(void **state)
{
	struct tn_device_properties p;
	struct cuda_rig r;
	char detail[64];

	for (int kernels = 0; kernels < 2; kernels++) {
		cuda_rig_open(&r, kernels);
		assert_int_equal(r.ops->count(r.driver, detail, sizeof(detail)), FAKE_DEVICES);
		assert_int_equal(r.ops->properties(r.driver, 1, &p), 0);
		assert_string_equal(p.name, "fake 1");
		assert_int_equal(p.uuid[0], 0x41);
		assert_int_equal(p.bytes, 2ull << 30);
		assert_int_equal(p.sms, 4);
		assert_int_equal(p.words, 1);
		assert_int_equal(p.sums, kernels);
		assert_int_equal(p.exports, 1);
		assert_int_equal(r.ops->properties(r.driver, FAKE_DEVICES, &p), -EINVAL);
		assert_int_equal(fake_cuda_calls("cuDevicePrimaryCtxRetain"), 0);
		cuda_rig_close(&r);
	}
}

/* What a call takes: the kernel, a batch of either declaration, one copy after the other. */
static void scattered_pieces_are_copied_bit_for_bit(void **state)
{
	static const int versions[] = {13000, 12080, 12000};
	struct tn_device_piece *piece = calloc(MOST, sizeof(*piece));
	struct cuda_rig r;

	assert_non_null(piece);
	for (unsigned int i = 0; i < 6; i++) {
		const char *call = i / 2 == 0 ? "cuMemcpyBatchAsync_v2" : i / 2 == 1 ? "cuMemcpyBatchAsync" : "cuMemcpyAsync";
		unsigned int before = fake_cuda_calls(call), launches = fake_cuda_calls("cuLaunchKernel");

		fake_cuda_version(versions[i / 2]);
		cuda_rig_up(&r, i % 2);
		for (unsigned int turn = 0; turn < 12; turn++) {
			uint32_t largest = turn % 4 == 0 ? 200000 : turn % 4 == 1 ? 3000 : turn % 4 == 2 ? 64 : 100000;

			cuda_rig_copy(&r, turn % 3 == 0 ? TN_DEVICE_TO_HOST : TN_DEVICE_FROM_HOST, piece, cuda_rig_pieces(&r, piece, MOST, largest));
		}
		assert_true(fake_cuda_calls(call) > before);
		assert_int_equal(fake_cuda_calls("cuLaunchKernel") > launches, i % 2);
		cuda_rig_down(&r);
	}
	fake_cuda_version(13000);
	free(piece);
}

static void copies_within_the_device_go_from_the_other_side(void **state)
{
	struct tn_device_piece piece[64];
	struct cuda_rig r;
	uint64_t event;

	for (int kernels = 0; kernels < 2; kernels++) {
		cuda_rig_up(&r, kernels);
		for (uint32_t i = 0; i < 64; i++)
			piece[i] = (struct tn_device_piece){r.device + 4096 * i, r.device + (2u << 20) + 4096 * i + i, 3000 + i};
		assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_WITHIN, piece, 64, &event), 0);
		assert_int_equal(cuda_rig_wait(&r, event), 0);
		for (uint32_t i = 0; i < 64; i++)
			memcpy(r.inside + 4096 * i, r.inside + (2u << 20) + 4096 * i + i, 3000 + i);
		fake_cuda_peek(r.device, r.host, CUDA_RIG_BYTES);
		assert_memory_equal(r.host, r.inside, CUDA_RIG_BYTES);
		cuda_rig_down(&r);
	}
}

static void pieces_are_read_before_copy_returns(void **state)
{
	struct tn_device_piece *piece = calloc(MOST, sizeof(*piece));
	struct cuda_rig r;
	uint64_t event;

	assert_non_null(piece);
	for (int kernels = 0; kernels < 2; kernels++) {
		cuda_rig_up(&r, kernels);
		fake_cuda_hold(true);
		for (uint32_t i = 0; i < 100; i++)
			piece[i] = (struct tn_device_piece){r.device + 1000 * i, r.host + 1000 * i, 1000};
		assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, piece, 100, &event), 0);
		memset(piece, 0, MOST * sizeof(*piece));
		assert_int_equal(r.ops->wait(r.driver, r.stream, event, 0), -ETIMEDOUT);
		fake_cuda_hold(false);
		assert_int_equal(cuda_rig_wait(&r, event), 0);
		fake_cuda_peek(r.device, r.inside, 100000);
		assert_memory_equal(r.inside, r.host, 100000);
		cuda_rig_down(&r);
	}
	free(piece);
}

static void a_wait_ends_at_its_deadline(void **state)
{
	uint64_t event, begin, now;
	struct tn_device_piece piece;
	struct cuda_rig r;

	cuda_rig_up(&r, false);
	piece = (struct tn_device_piece){r.device, r.host, 100};
	fake_cuda_hold(true);
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, &piece, 1, &event), 0);
	begin = tn_test_now();
	assert_int_equal(r.ops->wait(r.driver, r.stream, event, begin + 30000000), -ETIMEDOUT);
	now = tn_test_now();
	assert_true(now >= begin + 30000000);
	assert_int_equal(r.ops->wait(r.driver, r.stream, event, 0), -ETIMEDOUT);
	assert_int_equal(r.ops->wait(r.driver, r.stream, event + 1, 0), -EINVAL);
	fake_cuda_hold(false);
	assert_int_equal(cuda_rig_wait(&r, event), 0);
	assert_int_equal(r.ops->wait(r.driver, r.stream, event, 0), 0);
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, &piece, 0, &event), 0);
	assert_int_equal(cuda_rig_wait(&r, event), 0);
	cuda_rig_down(&r);
}

/* A wait of 200 ms that sleeps asks some thousand times, one that spins a million times. */
static void a_long_wait_sleeps(void **state)
{
	unsigned int before;
	struct tn_device_piece piece;
	struct cuda_rig r;
	uint64_t event;

	cuda_rig_up(&r, false);
	piece = (struct tn_device_piece){r.device, r.host, 100};
	fake_cuda_slow(200000000);
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, &piece, 1, &event), 0);
	before = fake_cuda_asked_not_ready();
	assert_int_equal(cuda_rig_wait(&r, event), 0);
	assert_in_range(fake_cuda_asked_not_ready() - before, 0, 10000);
	fake_cuda_slow(0);
	cuda_rig_down(&r);
}

/* Behind a word that the caller has yet to raise nothing may wait for free events or ring entries. */
static void a_stream_that_stands_still_refuses_what_it_cannot_hold(void **state)
{
	struct tn_device_piece *piece = calloc(20000, sizeof(*piece)), one;
	uint64_t event = 0, last = 0, n = 0;
	struct tn_device_sum sum = {.npieces = 1};
	struct cuda_rig r;
	unsigned int launches;
	int rc;

	assert_non_null(piece);
	cuda_rig_up(&r, true);
	one = (struct tn_device_piece){r.device, r.host, 8};
	for (uint32_t i = 0; i < 20000; i++)
		piece[i] = (struct tn_device_piece){r.device + 100 * i, r.host + 100 * i, 100};
	fake_cuda_hold(true);
	launches = fake_cuda_calls("cuLaunchKernel");
	/* The second does not fit into the ring, and goes to the copy engine. */
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, piece, 20000, &event), 0);
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, piece, 20000, &event), 0);
	assert_int_equal(fake_cuda_calls("cuLaunchKernel") - launches, 1);
	sum.npieces = 20000;
	assert_int_equal(r.ops->sum(r.driver, r.stream, piece, &sum, 1, &event), -EAGAIN);
	while ((rc = r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, &one, 1, &event)) == 0) {
		last = event;
		n++;
	}
	assert_int_equal(rc, -EAGAIN);
	assert_int_equal(n, 1022);
	fake_cuda_hold(false);
	assert_int_equal(cuda_rig_wait(&r, last), 0);
	fake_cuda_peek(r.device, r.inside, 2000000);
	assert_memory_equal(r.inside, r.host, 2000000);
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, piece, 20000, &event), 0);
	assert_int_equal(cuda_rig_wait(&r, event), 0);
	assert_int_equal(r.ops->sum(r.driver, r.stream, piece, &sum, 1, &event), 0);
	assert_int_equal(fake_cuda_calls("cuLaunchKernel") - launches, 3);
	assert_int_equal(cuda_rig_wait(&r, event), 0);
	cuda_rig_down(&r);
	free(piece);
}

/* Entries of calls that are under way are not given to others. */
static void ring_entries_belong_to_a_call_until_its_event(void **state)
{
	struct tn_device_piece *piece = calloc(25000, sizeof(*piece));
	struct tn_device_sum first = {.npieces = 1}, second = {.npieces = 1};
	uint64_t *word, event, before;
	struct cuda_rig r;
	unsigned int launches;

	assert_non_null(piece);
	cuda_rig_up(&r, true);
	word = (uint64_t *)(void *)(r.host + CUDA_RIG_BYTES - 4096);
	word[0] = 0;
	for (uint32_t i = 0; i < 25000; i++)
		piece[i] = (struct tn_device_piece){r.device + 100 * i, r.host + 100 * i, 100};
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, piece, 10000, &before), 0);
	assert_int_equal(r.ops->word_wait(r.driver, r.stream, word, 1), 0);
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, piece, 10000, &event), 0);
	assert_int_equal(cuda_rig_wait(&r, before), 0);
	launches = fake_cuda_calls("cuLaunchKernel");
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, piece, 25000, &event), 0);
	assert_int_equal(fake_cuda_calls("cuLaunchKernel"), launches);
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	assert_int_equal(cuda_rig_wait(&r, event), 0);

	fake_cuda_peek(r.device, r.inside, CUDA_RIG_BYTES);
	fake_cuda_hold(true);
	assert_int_equal(r.ops->sum(r.driver, r.stream, &piece[0], &first, 1, &event), 0);
	assert_int_equal(r.ops->sum(r.driver, r.stream, &piece[1], &second, 1, &event), 0);
	fake_cuda_hold(false);
	assert_int_equal(cuda_rig_wait(&r, event), 0);
	assert_int_equal(first.sum, tn_checksum(r.inside, 100));
	assert_int_equal(second.sum, tn_checksum(r.inside + 100, 100));
	cuda_rig_down(&r);
	free(piece);
}

static void sums_are_those_of_the_library(void **state)
{
	struct tn_device_piece *piece = calloc(MOST, sizeof(*piece));
	struct tn_device_sum sum[200];
	struct cuda_rig r;
	uint64_t event;

	assert_non_null(piece);
	cuda_rig_up(&r, true);
	for (unsigned int turn = 0; turn < 30; turn++) {
		uint32_t n = cuda_rig_pieces(&r, piece, MOST, turn % 3 == 0 ? 300 : turn % 3 == 1 ? 30000 : 300000), used = 0, objects = 0, at = 0;

		while (objects < 200 && used < n) {
			uint32_t most = n - used < 12 ? n - used : 12;

			sum[objects] = (struct tn_device_sum){.npieces = tn_rng_below(&r.rng, most + 1)};
			used += sum[objects++].npieces;
		}
		assert_int_equal(r.ops->sum(r.driver, r.stream, piece, sum, objects, &event), 0);
		assert_int_equal(cuda_rig_wait(&r, event), 0);
		for (uint32_t i = 0; i < objects; at += sum[i++].npieces) {
			struct iovec iov[12];
			size_t bytes = 0;

			for (uint32_t k = 0; k < sum[i].npieces; k++) {
				iov[k] = (struct iovec){r.inside + ((unsigned char *)piece[at + k].device - r.device), piece[at + k].bytes};
				bytes += piece[at + k].bytes;
			}
			assert_int_equal(sum[i].sum, tn_checksum_iov(iov, sum[i].npieces, 0, bytes));
		}
	}
	assert_int_equal(r.ops->sum(r.driver, r.stream, piece, sum, 0, &event), 0);
	assert_int_equal(cuda_rig_wait(&r, event), 0);
	sum[0].npieces = 40000;
	assert_int_equal(r.ops->sum(r.driver, r.stream, piece, sum, 1, &event), -E2BIG);
	cuda_rig_down(&r);
	cuda_rig_up(&r, false);
	assert_int_equal(r.ops->sum(r.driver, r.stream, piece, sum, 1, &event), -ENOTSUP);
	cuda_rig_down(&r);
	free(piece);
}

/* A word that stands between two streams: what is behind it in either happens after it is raised. */
static void streams_wait_for_words_and_raise_them(void **state)
{
	uint64_t *word, event;
	struct tn_device_piece piece;
	struct cuda_rig r;

	cuda_rig_up(&r, false);
	word = (uint64_t *)(void *)r.host;
	word[0] = word[1] = 0;
	piece = (struct tn_device_piece){r.device, r.host + 4096, 4096};
	assert_int_equal(r.ops->word_wait(r.driver, r.stream, &word[0], 7), 0);
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, &piece, 1, &event), 0);
	assert_int_equal(r.ops->word_write(r.driver, r.stream, &word[1], 9), 0);
	__atomic_store_n(&word[0], 6, __ATOMIC_RELEASE);
	assert_int_equal(r.ops->wait(r.driver, r.stream, event, tn_test_now() + 20000000), -ETIMEDOUT);
	__atomic_store_n(&word[0], 8, __ATOMIC_RELEASE);
	assert_int_equal(cuda_rig_wait(&r, event), 0);
	while (__atomic_load_n(&word[1], __ATOMIC_ACQUIRE) != 9)
		usleep(100);
	cuda_rig_down(&r);

	/* TN_CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS */
	fake_cuda_without(122);
	cuda_rig_up(&r, false);
	assert_int_equal(r.ops->word_wait(r.driver, r.stream, (uint64_t *)(void *)r.host, 7), -ENOTSUP);
	assert_int_equal(r.ops->word_write(r.driver, r.stream, (uint64_t *)(void *)r.host, 7), -ENOTSUP);
	cuda_rig_down(&r);
	fake_cuda_without(-1);
}

static void check_order(struct cuda_rig *r, void *first, void *second)
{
	uint64_t *word = (uint64_t *)(void *)r->host;

	word[0] = word[1] = word[2] = 0;
	assert_int_equal(r->ops->word_wait(r->driver, first, &word[0], 1), 0);
	assert_int_equal(r->ops->word_write(r->driver, first, &word[1], 1), 0);
	assert_int_equal(r->ops->stream_follow(r->driver, second, first), 0);
	assert_int_equal(r->ops->word_write(r->driver, second, &word[2], 1), 0);
	usleep(5000);
	assert_int_equal(__atomic_load_n(&word[2], __ATOMIC_ACQUIRE), 0);
	__atomic_store_n(&word[0], 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(&word[2], __ATOMIC_ACQUIRE) != 1)
		usleep(100);
	assert_int_equal(__atomic_load_n(&word[1], __ATOMIC_ACQUIRE), 1);
}

static void a_stream_follows_ours_and_the_engines(void **state)
{
	void *other, *engine, *elsewhere;
	struct cuda_rig r;

	cuda_rig_up(&r, false);
	assert_int_equal(r.ops->stream_create(r.driver, 1, &other), 0);
	engine = fake_cuda_engine_stream(0);
	elsewhere = fake_cuda_engine_stream(1);
	check_order(&r, r.stream, other);
	check_order(&r, other, r.stream);
	check_order(&r, engine, r.stream);
	check_order(&r, r.stream, engine);
	check_order(&r, elsewhere, engine);
	/* A default stream needs a current context. */
	assert_int_equal(r.ops->stream_follow(r.driver, r.stream, NULL), -EINVAL);
	fake_cuda_current(0);
	check_order(&r, NULL, r.stream);
	check_order(&r, engine, (void *)1);
	check_order(&r, other, NULL);
	check_order(&r, NULL, other);
	fake_cuda_fail("cuCtxGetCurrent", 0, 999);
	assert_int_equal(r.ops->stream_follow(r.driver, r.stream, NULL), -ENODEV);
	fake_cuda_fail("cuStreamGetCtx", 0, 2);
	assert_int_equal(r.ops->stream_follow(r.driver, r.stream, engine), -ENOMEM);
	fake_cuda_fail(NULL, 0, 0);
	fake_cuda_current(-1);
	fake_cuda_engine_stream_end(engine);
	fake_cuda_engine_stream_end(elsewhere);
	r.ops->stream_destroy(r.driver, other);
	cuda_rig_down(&r);
}

static void only_memory_of_the_device_is_registered(void **state)
{
	struct tn_memory_range range = {.bytes = 4096};
	struct cuda_rig r;
	char detail[200];
	void *memory;

	cuda_rig_up(&r, false);
	range.address = r.host;
	assert_int_equal(r.ops->register_range(r.driver, &range, detail, sizeof(detail)), -EINVAL);
	assert_non_null(strstr(detail, "is no memory of device 0"));
	range.address = r.device;
	range.bytes = CUDA_RIG_BYTES + 4096;
	assert_int_equal(r.ops->register_range(r.driver, &range, detail, sizeof(detail)), -EINVAL);
	range.bytes = CUDA_RIG_BYTES;
	range.device = 1;
	assert_int_equal(r.ops->register_range(r.driver, &range, detail, sizeof(detail)), -EINVAL);
	assert_non_null(strstr(detail, "of another one"));
	range.device = 2;
	assert_int_equal(r.ops->register_range(r.driver, &range, detail, sizeof(detail)), -EINVAL);
	assert_non_null(strstr(detail, "no such device"));
	fake_cuda_foreign(true);
	assert_int_equal(r.ops->allocate(r.driver, 0, 4096, &memory), 0);
	fake_cuda_foreign(false);
	range = (struct tn_memory_range){.address = memory, .bytes = 4096};
	assert_int_equal(r.ops->register_range(r.driver, &range, detail, sizeof(detail)), -EINVAL);
	assert_non_null(strstr(detail, "another context"));
	assert_int_equal(r.ops->register_range(r.driver, &range, NULL, 0), -EINVAL);
	r.ops->release(r.driver, 0, memory);
	cuda_rig_down(&r);
}

static void memory_may_be_pinned_before_and_twice(void **state)
{
	unsigned char *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct cuda_rig r, program_itself;

	cuda_rig_open(&r, false);
	cuda_rig_open(&program_itself, true);
	assert_true(r.driver != program_itself.driver);
	assert_int_equal(program_itself.ops->pin(program_itself.driver, memory, 32768), 0);
	assert_int_equal(r.ops->pin(r.driver, memory, 32768), 0);
	assert_int_equal(r.ops->pin(r.driver, memory, 65536), -EBUSY);
	r.ops->unpin(r.driver, memory, 32768);
	assert_int_equal(fake_cuda_left(), 1);
	program_itself.ops->unpin(program_itself.driver, memory, 32768);
	assert_int_equal(fake_cuda_left(), 0);
	assert_int_equal(r.ops->pin(r.driver, memory, 65536), 0);
	assert_int_equal(r.ops->pin(r.driver, memory, 65536), 0);
	r.ops->unpin(r.driver, memory, 65536);
	assert_int_equal(fake_cuda_left(), 1);
	r.ops->unpin(r.driver, memory, 65536);
	assert_int_equal(fake_cuda_left(), 0);
	assert_int_equal(r.ops->pin(r.driver, memory + 100, 4096), -EINVAL);
	munmap(memory, 65536);
	cuda_rig_close(&r);
	cuda_rig_close(&program_itself);
}

/* The other process: takes an export from its standard input, compares 4,096 bytes with the byte of @arg, and writes that plus one over them. */
static int import_in_child(const char *arg)
{
	unsigned char in[TN_DEVICE_EXPORT_BYTES], bytes[4096], byte = (unsigned char)strtoul(arg, NULL, 10);
	struct cuda_rig r;
	void *memory;

	if (read(0, in, sizeof(in)) != sizeof(in))
		return 10;
	cuda_rig_open(&r, false);
	if (r.ops->import(r.driver, 1, in, &memory) != -EXDEV)
		return 11;
	if (r.ops->import(r.driver, 0, in, &memory))
		return 12;
	fake_cuda_peek(memory, bytes, sizeof(bytes));
	for (uint32_t i = 0; i < sizeof(bytes); i++) {
		if (bytes[i] != byte)
			return 13;
	}
	memset(bytes, byte + 1, sizeof(bytes));
	fake_cuda_poke(memory, bytes, sizeof(bytes));
	r.ops->import_end(r.driver, 0, memory);
	r.ops->import_end(r.driver, 0, memory); /* not known any more: nothing happens */
	return fake_cuda_left() == 0 ? 0 : 14;
}

static void another_process_reaches_exported_memory(void **state)
{
	unsigned char out[TN_DEVICE_EXPORT_BYTES], bytes[4096];
	struct cuda_rig r;
	int ends[2], status;
	void *memory;
	pid_t pid;

	cuda_rig_up(&r, false);
	memset(bytes, 41, sizeof(bytes));
	fake_cuda_poke(r.device + 12345, bytes, sizeof(bytes));
	assert_int_equal(r.ops->exports(r.driver, r.device + 12345, CUDA_RIG_BYTES, out), -EINVAL);
	assert_int_equal(r.ops->exports(r.driver, r.host, 4096, out), -EINVAL);
	assert_int_equal(r.ops->exports(r.driver, r.device + 12345, 4096, out), 0);
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(ends[0], 0);
		close(ends[0]);
		close(ends[1]);
		execl(program, program, "import", "41", NULL);
		_exit(99);
	}
	assert_int_equal(write(ends[1], out, sizeof(out)), sizeof(out));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(ends[0]);
	close(ends[1]);
	assert_int_equal(status, 0);
	fake_cuda_peek(r.device + 12345, bytes, sizeof(bytes));
	for (uint32_t i = 0; i < sizeof(bytes); i++)
		assert_int_equal(bytes[i], 42);
	/* Bytes that the other process did not write so: another version, an offset beyond the allocation. */
	out[0] ^= 1;
	assert_int_equal(r.ops->import(r.driver, 0, out, &memory), -EINVAL);
	out[0] ^= 1;
	memset(out + 88, 0x7f, 4);
	assert_int_equal(r.ops->import(r.driver, 0, out, &memory), -EINVAL);
	cuda_rig_down(&r);
}

/* Calls of ours break no graph that the engine captures, in whatever mode its other threads are. */
static void captures_of_the_engine_go_on(void **state)
{
	struct tn_device_piece piece[100];
	struct cuda_rig r;

	fake_cuda_capture(true);
	cuda_rig_up(&r, true);
	cuda_rig_copy(&r, TN_DEVICE_FROM_HOST, piece, cuda_rig_pieces(&r, piece, 100, 3000));
	cuda_rig_down(&r);
	fake_cuda_capture(false);
}

struct worker {
	const struct cuda_rig *r;
	pthread_t thread;
	uint32_t number;
};

#define WORKERS 4u

/* Every thread has a stream, and a part of the memory. */
static void *work(void *arg)
{
	const struct worker *w = arg;
	const struct cuda_rig *r = w->r;
	uint32_t part = CUDA_RIG_BYTES / WORKERS, at = part * w->number;
	struct tn_device_piece piece[64];
	unsigned char *scratch = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct tn_device_sum sum = {.npieces = 64};
	uint64_t event;
	void *stream;

	for (unsigned int turn = 0; turn < 20; turn++) {
		assert_int_equal(r->ops->stream_create(r->driver, 0, &stream), 0);
		assert_int_equal(r->ops->pin(r->driver, scratch, 65536), 0);
		for (uint32_t i = 0; i < 64; i++)
			piece[i] = (struct tn_device_piece){r->device + at + 1000 * i, scratch + 1000 * i, 1000};
		memset(scratch, (int)(turn + w->number), 65536);
		assert_int_equal(r->ops->copy(r->driver, stream, TN_DEVICE_FROM_HOST, piece, 64, &event), 0);
		assert_int_equal(r->ops->sum(r->driver, stream, piece, &sum, 1, &event), 0);
		assert_int_equal(tn_test_ended(r->ops->wait(r->driver, stream, event, tn_test_deadline())), 0);
		assert_int_equal(sum.sum, tn_checksum(scratch, 64000));
		r->ops->unpin(r->driver, scratch, 65536);
		r->ops->stream_destroy(r->driver, stream);
	}
	munmap(scratch, 65536);
	return NULL;
}

static void threads_have_streams_of_their_own(void **state)
{
	struct worker w[WORKERS];
	struct cuda_rig r;

	cuda_rig_up(&r, true);
	for (uint32_t i = 0; i < WORKERS; i++) {
		w[i] = (struct worker){.r = &r, .number = i};
		assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (uint32_t i = 0; i < WORKERS; i++)
		pthread_join(w[i].thread, NULL);
	cuda_rig_down(&r);
}

/* The file that is installed, with the kernels of nvcc if there was one. It stays open: this test is the last one. */
static void the_library_opens_the_plugin(void **state)
{
	const struct tn_device_driver *driver;
	char detail[200];
	int rc;

	if (tn_plugin_path(CUDA_PLUGIN_FOLDER) == -EPERM)
		tn_test_skip(tn_error_last()->text);
	rc = tn_device_driver_open("cuda", &driver);
	if (rc == -EPERM)
		tn_test_skip(tn_error_last()->text);
	assert_int_equal(rc, 0);
	assert_string_equal(driver->ops->name, "cuda");
	assert_int_equal(driver->ops->count(driver, detail, sizeof(detail)), FAKE_DEVICES);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_says_what_devices_there_are),
		cmocka_unit_test(scattered_pieces_are_copied_bit_for_bit),
		cmocka_unit_test(copies_within_the_device_go_from_the_other_side),
		cmocka_unit_test(pieces_are_read_before_copy_returns),
		cmocka_unit_test(a_wait_ends_at_its_deadline),
		cmocka_unit_test(a_long_wait_sleeps),
		cmocka_unit_test(a_stream_that_stands_still_refuses_what_it_cannot_hold),
		cmocka_unit_test(ring_entries_belong_to_a_call_until_its_event),
		cmocka_unit_test(sums_are_those_of_the_library),
		cmocka_unit_test(streams_wait_for_words_and_raise_them),
		cmocka_unit_test(a_stream_follows_ours_and_the_engines),
		cmocka_unit_test(only_memory_of_the_device_is_registered),
		cmocka_unit_test(memory_may_be_pinned_before_and_twice),
		cmocka_unit_test(another_process_reaches_exported_memory),
		cmocka_unit_test(captures_of_the_engine_go_on),
		cmocka_unit_test(threads_have_streams_of_their_own),
		cmocka_unit_test(the_library_opens_the_plugin),
	};

	program = argv[0];
	if (argc == 3 && strcmp(argv[1], "import") == 0)
		return import_in_child(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
