/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver over a fake libcuda whose calls fail, one after the other; and devices that are lost. */
#include <string.h>
#include <sys/mman.h>

#include "cuda_rig.h"
#include "plugins/cuda/api.h"

#define PIECES 200u

/* Calls whose failure is no caller's matter: those that give something back, and those that there is another way for. */
static const char *const forgiven[] = {"cuMemHostUnregister", "cuMemFree", "cuIpcCloseMemHandle", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncGetAttribute",
				       "cuEventDestroy", "cuStreamDestroy", NULL};

/* Calls that enter a context, also to give something back: then what is CUDA's stays. */
static const char *const to_give_back[] = {"cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode", NULL};

static bool is_in(const char *const *names, const char *call)
{
	for (; *names; names++) {
		if (strcmp(*names, call) == 0)
			return true;
	}
	return false;
}

struct life {
	struct cuda_rig r;
	void *other, *imported;
	struct tn_device_piece piece[PIECES];
	struct tn_device_sum sum;
	unsigned char exported[TN_DEVICE_EXPORT_BYTES];
};

/* Everything that the driver does, once; ends at the first error. */
static int begin_life(struct life *l)
{
	const struct tn_device_driver_ops *ops = l->r.ops;
	const struct tn_device_driver *d = l->r.driver;
	struct tn_memory_range range = {.bytes = CUDA_RIG_BYTES};
	struct tn_device_properties p;
	char detail[200];
	int rc = ops->count(d, detail, sizeof(detail));

	if (rc < 0)
		return rc;
	rc = ops->properties(d, 0, &p);
	if (!rc)
		rc = ops->allocate(d, 0, CUDA_RIG_BYTES, (void **)&l->r.device);
	range.address = l->r.device;
	if (!rc)
		rc = ops->register_range(d, &range, detail, sizeof(detail));
	if (!rc)
		rc = ops->pin(d, l->r.host, CUDA_RIG_BYTES);
	if (!rc)
		rc = ops->stream_create(d, 0, &l->r.stream);
	if (!rc)
		rc = ops->stream_create(d, 1, &l->other);
	return rc;
}

static int use_streams(struct life *l)
{
	const struct tn_device_driver_ops *ops = l->r.ops;
	const struct tn_device_driver *d = l->r.driver;
	uint64_t event;
	int rc = 0;

	for (uint32_t i = 0; i < PIECES; i++)
		l->piece[i] = (struct tn_device_piece){l->r.device + 8192 * i, l->r.host + 8192 * i, 8000};
	l->piece[0].bytes = 1u << 20;
	l->piece[0].device = l->r.device + (2u << 20);
	l->piece[0].other = l->r.host + (2u << 20);
	for (int way = TN_DEVICE_TO_HOST; way <= TN_DEVICE_FROM_HOST && !rc; way++) {
		rc = ops->copy(d, l->r.stream, (enum tn_device_way)way, l->piece, PIECES, &event);
		if (!rc)
			rc = tn_test_ended(ops->wait(d, l->r.stream, event, tn_test_deadline()));
	}
	if (!rc)
		rc = ops->stream_follow(d, l->other, l->r.stream);
	if (!rc)
		rc = ops->word_write(d, l->r.stream, (uint64_t *)(void *)l->r.host, 5);
	if (!rc)
		rc = ops->word_wait(d, l->other, (uint64_t *)(void *)l->r.host, 5);
	l->sum.npieces = PIECES;
	if (!rc)
		rc = ops->sum(d, l->r.stream, l->piece, &l->sum, 1, &event);
	if (!rc)
		rc = tn_test_ended(ops->wait(d, l->r.stream, event, tn_test_deadline()));
	if (rc == -ENOTSUP)
		rc = 0; /* no kernels */
	if (!rc)
		rc = ops->exports(d, l->r.device, 4096, l->exported);
	if (!rc)
		rc = ops->import(d, 0, l->exported, &l->imported);
	return rc;
}

static void end_life(struct life *l)
{
	const struct tn_device_driver_ops *ops = l->r.ops;

	if (l->imported)
		ops->import_end(l->r.driver, 0, l->imported);
	if (l->r.stream)
		ops->stream_destroy(l->r.driver, l->r.stream);
	if (l->other)
		ops->stream_destroy(l->r.driver, l->other);
	ops->unpin(l->r.driver, l->r.host, CUDA_RIG_BYTES);
	if (l->r.device)
		ops->release(l->r.driver, 0, l->r.device);
}

/* Return: how it went. @*met: the call was met so often that the one to fail was among them. */
static int live(const char *call, unsigned int skip, bool *met)
{
	struct life *l = calloc(1, sizeof(*l));
	int rc;

	assert_non_null(l);
	cuda_rig_open(&l->r, true);
	l->r.host = mmap(NULL, CUDA_RIG_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(l->r.host != MAP_FAILED);
	fake_cuda_fail(call, skip, TN_CUDA_ERROR_OUT_OF_MEMORY);
	rc = begin_life(l);
	if (!rc)
		rc = use_streams(l);
	end_life(l);
	*met = fake_cuda_failed();
	fake_cuda_fail(NULL, 0, 0);
	if (is_in(forgiven, call) || (rc == 0 && is_in(to_give_back, call)))
		fake_cuda_forget();
	else if (fake_cuda_left() != l->r.left)
		fail_msg("call %u of %s fails: %u objects of CUDA's are left", skip, call, fake_cuda_left() - l->r.left);
	cuda_rig_close(&l->r);
	munmap(l->r.host, CUDA_RIG_BYTES);
	free(l);
	return rc;
}

#define NAME(function, version, parameters) #function,
static const char *const calls[] = {TN_CUDA_CALLS(NAME) "cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync"};
/* Never asked for in this life: the driver's names of errors, the caller's streams and context; a driver has one kind of batches. */
static const char *const unused[] = {"cuGetErrorName", "cuStreamGetCtx", "cuCtxGetCurrent", "cuMemcpyAsync", "cuStreamSynchronize",
				     "cuMemcpyBatchAsync", "cuCtxPopCurrent", NULL};

static void every_call_fails_once_and_that_is_said(void **state)
{
	unsigned int i, skip, failures = 0;
	bool met;
	int rc;

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		for (skip = 0;; skip++) {
			rc = live(calls[i], skip, &met);
			if (!met || (rc == 0 && is_in(to_give_back, calls[i])))
				break;
			failures++;
			if (rc != (is_in(forgiven, calls[i]) ? 0 : -ENOMEM))
				fail_msg("call %u of %s fails: %d", skip, calls[i], rc);
		}
		assert_int_equal(rc, 0);
		if ((skip == 0) != is_in(unused, calls[i]))
			fail_msg("%s was called %u times", calls[i], skip);
	}
	print_message("# %u failures\n", failures);
}

static void a_driver_that_lacks_a_function_is_too_old(void **state)
{
	struct cuda_rig r;
	char detail[256];

	for (unsigned int i = 0; i + 2 < sizeof(calls) / sizeof(calls[0]); i++) {
		fake_cuda_lacks(calls[i]);
		cuda_rig_open(&r, false);
		detail[0] = 0;
		assert_int_equal(r.ops->count(r.driver, detail, sizeof(detail)), -ENOTSUP);
		assert_non_null(strstr(detail, calls[i]));
		assert_int_equal(r.ops->stream_create(r.driver, 0, &r.stream), -ENOTSUP);
		cuda_rig_close(&r);
	}
	fake_cuda_lacks(NULL);
}

static void a_machine_without_cuda_is_told_what_to_install(void **state)
{
	struct tn_cuda_api api;
	char detail[256];

	assert_int_equal(tn_cuda_api_load(&api, "libcuda-that-is-nowhere.so.1", detail, sizeof(detail)), -ENOENT);
	assert_non_null(strstr(detail, "libcuda-that-is-nowhere.so.1"));
	assert_non_null(strstr(detail, "NVIDIA's driver"));
	assert_int_equal(tn_cuda_api_load(&api, "libc.so.6", detail, sizeof(detail)), -ENOTSUP);
	assert_non_null(strstr(detail, "older than CUDA 12.0"));
}

static void what_a_failing_start_was_is_said_by_name(void **state)
{
	struct cuda_rig r;
	char detail[256];

	cuda_rig_open(&r, false);
	fake_cuda_fail("cuInit", 0, TN_CUDA_ERROR_NO_DEVICE);
	assert_int_equal(r.ops->count(r.driver, detail, sizeof(detail)), -ENODEV);
	assert_non_null(strstr(detail, "CUDA_ERROR_NO_DEVICE"));
	/* It is not remembered. */
	fake_cuda_fail("cuInit", 0, TN_CUDA_ERROR_SYSTEM_NOT_READY);
	assert_int_equal(r.ops->count(r.driver, NULL, 0), -ENODEV);
	fake_cuda_fail(NULL, 0, 0);
	assert_int_equal(r.ops->count(r.driver, NULL, 0), FAKE_DEVICES);
	cuda_rig_close(&r);

	fake_cuda_without(TN_CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
	cuda_rig_open(&r, false);
	assert_int_equal(r.ops->count(r.driver, detail, sizeof(detail)), -ENOTSUP);
	assert_non_null(strstr(detail, "unified addressing"));
	cuda_rig_close(&r);
	fake_cuda_without(-1);
}

/* The kernel has begun when the batch fails: the event is reached when the kernel is over, and says what failed; so do later ones. */
static void a_copy_that_fails_in_part_ends_with_its_event(void **state)
{
	struct tn_device_piece piece[20];
	struct cuda_rig r;
	uint64_t before, event, later;

	cuda_rig_up(&r, true);
	for (uint32_t i = 0; i < 20; i++)
		piece[i] = (struct tn_device_piece){r.device + 100000 * i, r.host + 100000 * i, i < 10 ? 1000 : 100000};
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, piece, 10, &before), 0);
	fake_cuda_hold(true);
	fake_cuda_fail("cuMemcpyBatchAsync_v2", 0, TN_CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, piece, 20, &event), 0);
	fake_cuda_fail(NULL, 0, 0);
	assert_int_equal(r.ops->wait(r.driver, r.stream, event, 0), -ETIMEDOUT);
	fake_cuda_hold(false);
	assert_int_equal(cuda_rig_wait(&r, event), -ENOMEM);
	assert_int_equal(cuda_rig_wait(&r, before), 0);
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, piece, 20, &later), 0);
	assert_int_equal(cuda_rig_wait(&r, later), -ENOMEM);
	cuda_rig_down(&r);
}

static void a_driver_without_batches_after_all_copies_one_by_one(void **state)
{
	struct tn_device_piece piece[30];
	unsigned int before = fake_cuda_calls("cuMemcpyAsync");
	struct cuda_rig r;

	cuda_rig_up(&r, false);
	fake_cuda_fail("cuMemcpyBatchAsync_v2", 0, TN_CUDA_ERROR_NOT_SUPPORTED);
	cuda_rig_copy(&r, TN_DEVICE_FROM_HOST, piece, cuda_rig_pieces(&r, piece, 30, 10000));
	assert_true(fake_cuda_failed());
	fake_cuda_fail(NULL, 0, 0);
	before = fake_cuda_calls("cuMemcpyAsync") - before;
	assert_in_range(before, 1, 30);
	cuda_rig_copy(&r, TN_DEVICE_FROM_HOST, piece, cuda_rig_pieces(&r, piece, 30, 10000));
	assert_true(fake_cuda_calls("cuMemcpyAsync") > before);
	cuda_rig_down(&r);
}

/* An image that this GPU cannot run: the plugin does as one without kernels. */
static void kernels_that_do_not_load_are_done_without(void **state)
{
	struct tn_device_piece piece[300];
	unsigned int launches = fake_cuda_calls("cuLaunchKernel");
	struct tn_device_sum sum = {.npieces = 1};
	struct tn_device_properties p;
	struct cuda_rig r;
	uint64_t event;

	fake_cuda_fail("cuModuleLoadData", 0, TN_CUDA_ERROR_NO_BINARY_FOR_GPU);
	cuda_rig_up(&r, true);
	fake_cuda_fail(NULL, 0, 0);
	assert_int_equal(r.ops->properties(r.driver, 0, &p), 0);
	assert_int_equal(p.sums, 0);
	cuda_rig_copy(&r, TN_DEVICE_TO_HOST, piece, cuda_rig_pieces(&r, piece, 300, 10000));
	assert_int_equal(r.ops->sum(r.driver, r.stream, piece, &sum, 1, &event), -ENOTSUP);
	assert_int_equal(fake_cuda_calls("cuLaunchKernel"), launches);
	cuda_rig_down(&r);
}

/* A copy of memory that was unpinned, which a real device reports some time later; the other device works on. */
static void a_lost_device_ends_all_that_follows(void **state)
{
	struct tn_device_piece piece = {0}, again;
	struct tn_memory_range range;
	struct cuda_rig r;
	uint64_t event, elsewhere;
	char detail[200];
	void *stream, *memory;

	cuda_rig_up(&r, true);
	assert_int_equal(r.ops->stream_create(r.driver, 1, &stream), 0);
	assert_int_equal(r.ops->allocate(r.driver, 1, 4096, &memory), 0);
	again = (struct tn_device_piece){r.device, r.host, 1000};
	piece = (struct tn_device_piece){r.device, r.inside, 1000};
	fake_cuda_hold(true); /* else the device may be lost before the copy's event is recorded: then copy ends with the error */
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, &piece, 1, &event), 0);
	fake_cuda_hold(false);
	assert_int_equal(cuda_rig_wait(&r, event), -ENODEV);
	assert_int_equal(cuda_rig_wait(&r, event), -ENODEV);
	assert_int_equal(r.ops->copy(r.driver, r.stream, TN_DEVICE_FROM_HOST, &again, 1, &event), -ENODEV);
	assert_int_equal(r.ops->word_write(r.driver, r.stream, (uint64_t *)(void *)r.host, 1), -ENODEV);
	assert_int_equal(r.ops->stream_follow(r.driver, stream, r.stream), -ENODEV);
	range = (struct tn_memory_range){.address = r.device, .bytes = 4096};
	assert_int_equal(r.ops->register_range(r.driver, &range, detail, sizeof(detail)), -ENODEV);
	assert_non_null(strstr(detail, "restart"));

	again.device = memory;
	assert_int_equal(r.ops->copy(r.driver, stream, TN_DEVICE_FROM_HOST, &again, 1, &elsewhere), 0);
	assert_int_equal(tn_test_ended(r.ops->wait(r.driver, stream, elsewhere, tn_test_deadline())), 0);
	r.ops->stream_destroy(r.driver, stream);
	r.ops->release(r.driver, 1, memory);

	/* What is CUDA's of the lost device stays until the process ends; what is ours is given back. */
	r.ops->stream_destroy(r.driver, r.stream);
	r.ops->unpin(r.driver, r.host, CUDA_RIG_BYTES);
	r.ops->release(r.driver, 0, r.device);
	munmap(r.host, CUDA_RIG_BYTES);
	free(r.inside);
	cuda_rig_close(&r);
	fake_cuda_lose(0, 0);
	fake_cuda_forget();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_call_fails_once_and_that_is_said),
		cmocka_unit_test(a_driver_that_lacks_a_function_is_too_old),
		cmocka_unit_test(a_machine_without_cuda_is_told_what_to_install),
		cmocka_unit_test(what_a_failing_start_was_is_said_by_name),
		cmocka_unit_test(a_copy_that_fails_in_part_ends_with_its_event),
		cmocka_unit_test(a_driver_without_batches_after_all_copies_one_by_one),
		cmocka_unit_test(kernels_that_do_not_load_are_done_without),
		cmocka_unit_test(a_lost_device_ends_all_that_follows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
