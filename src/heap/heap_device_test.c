/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A heap whose payload lies in the memory of a soft device, which no CPU may touch, between processes. With TN_HEAP_DRIVER=cuda the driver is that of a plugin,
 * and what the soft device alone can do is left out.
 */
#include <errno.h>

#include "device/soft_rig.h"
#include "heap/heap_internal.h"
#include "heap/heap_rig.h"

#define PAGE 65536u
#define BYTES (2600000u) /* more than two of the buffers that copies go through */

static struct tn_heap_opts device_opts(void)
{
	static const struct tn_device_driver soft = {.ops = &tn_soft_device_ops};
	struct tn_heap_opts o = heap_opts(1);

	o.heap_bytes = 256 * PAGE;
	o.page_bytes = PAGE;
	o.driver = &soft;
	if (getenv("TN_HEAP_DRIVER") && tn_device_driver_open(getenv("TN_HEAP_DRIVER"), &o.driver))
		fail_msg("%s", tn_error_last()->text);
	return o;
}

/* In the place of a kernel: the device gets these bytes at an offset in rank 0's heap. */
static void write_there(struct tn_heap *heap, uint64_t offset, const void *src, uint64_t bytes)
{
	assert_int_equal(tn_heap_on_device_write(&heap->device, 0, offset - heap->memory.layout.heap_base, src, bytes), 0);
}

/* Rank 1: puts object 1 into rank 0's heap. Its device writes object 2 there. */
static int produce(void *arg)
{
	struct tn_heap_opts o = device_opts();
	struct tn_heap *heap = heap_open(2, 1, &o);
	unsigned char *bytes = malloc(BYTES);
	struct tn_heap_plan plan;
	uint64_t key = 2;

	heap_fill(bytes, BYTES, key);
	assert_int_equal(heap_put(heap, 1, BYTES, 0, 0), 0);
	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, BYTES, 0, 0, &plan), 0);
	write_there(heap, plan.payload_base, bytes, BYTES);
	free(bytes);
	assert_int_equal(tn_heap_commit(heap, &plan), 0);
	tn_heap_destroy(heap);
	return 0;
}

static void objects_on_a_device_pass_between_processes(void **state)
{
	struct tn_heap_opts o = device_opts();
	struct tn_heap_meta meta;
	struct tn_heap *heap;
	uint64_t key = 2;
	pid_t producer;

	heap_new_name();
	producer = heap_process(produce, NULL);
	heap = heap_open(2, 0, &o);
	heap_wait_until(heap_get(heap, 2, BYTES) == 0);
	assert_int_equal(heap_join_process(producer), 0);
	assert_int_equal(heap_get(heap, 1, BYTES), 0);
	assert_int_equal(heap_stats(heap, 0).unverified_reads, 0); /* the device has summed the one, the host the other */
	assert_int_equal(tn_heap_hold(heap, &key, 8, &meta), 0);
	write_there(heap, meta.payload_off + BYTES - 1, "", 1);
	assert_int_equal(heap_get(heap, 2, BYTES), -EBADMSG);
	assert_int_equal(tn_heap_release(heap, &meta), 0);
	tn_heap_destroy(heap);
}

static void a_copy_that_fails_leaves_no_object(void **state)
{
	struct tn_heap_opts o = device_opts();
	struct tn_heap *heap, *other;

	heap_new_name();
	heap = heap_open(2, 0, &o);
	other = heap_open(2, 1, &o);
	assert_int_equal(heap_put(other, 1, BYTES, 0, 0), 0);
	assert_int_equal(tn_heap_remove(other, &(uint64_t){1}, 8), 0);
	for (uint64_t k = 2; k < 4; k++) { /* into the extent that is free; by a plan of the master */
		struct tn_heap *who = k == 2 ? other : heap;

		tn_soft_device_fail(tn_soft_device_of_process(), TN_DEVICE_FROM_HOST, 1, -EIO);
		assert_int_equal(heap_put(who, k, BYTES, 0, 0), -EIO);
		assert_int_equal(heap_get(heap, k, BYTES), -ENOENT);
		heap_wait_until(heap_stats(heap, 0).heap_used == 0);
	}
	tn_heap_destroy(other);
	tn_heap_destroy(heap);
}

static int wait_briefly(const struct tn_device_driver *driver, void *stream, uint64_t event, uint64_t deadline_ns)
{
	uint64_t soon = tn_now_ns(&tn_clock_system) + 10000000;

	return tn_soft_device_ops.wait(driver, stream, event, deadline_ns < soon ? deadline_ns : soon);
}

/* The soft device, of which nobody waits for longer than an instant. */
static struct tn_heap *impatient_heap(void)
{
	static struct tn_device_driver_ops ops;
	static const struct tn_device_driver driver = {.ops = &ops};
	struct tn_heap_opts o = device_opts();

	ops = tn_soft_device_ops;
	ops.wait = wait_briefly;
	o.driver = &driver;
	heap_new_name();
	return heap_open(1, 0, &o);
}

static void an_object_whose_checksum_fails_is_none(void **state)
{
	struct tn_soft_device *device = tn_soft_device_of_process();
	struct tn_heap *heap = impatient_heap();
	unsigned char *bytes = malloc(BYTES);
	struct tn_heap_plan plan;

	for (uint64_t key = 1; key < 3; key++) {
		heap_fill(bytes, BYTES, key);
		assert_int_equal(tn_heap_open_for_write(heap, &key, 8, BYTES, 0, 0, &plan), 0);
		write_there(heap, plan.payload_base, bytes, BYTES);
		tn_soft_device_hold(device, key == 1);
		assert_int_equal(tn_heap_commit(heap, &plan), key == 1 ? -ETIMEDOUT : 0);
		tn_soft_device_hold(device, false);
		heap_wait_until(tn_heap_on_device_read(&heap->device, 0, 0, bytes, 1) == 0);
		assert_int_equal(heap_get(heap, key, BYTES), key == 1 ? -ENOENT : 0);
	}
	assert_int_equal(heap_stats(heap, 0).unverified_reads, 0);
	free(bytes);
	tn_heap_destroy(heap);
}

static void a_copy_that_comes_late_has_its_own_bytes(void **state)
{
	struct tn_soft_device *device = tn_soft_device_of_process();
	struct tn_heap *heap = impatient_heap();
	char got = 0;

	tn_soft_device_hold(device, true);
	assert_int_equal(tn_heap_on_device_write(&heap->device, 0, 0, "a", 1), -ETIMEDOUT);
	assert_int_equal(tn_heap_on_device_write(&heap->device, 0, PAGE, "b", 1), -ETIMEDOUT);
	tn_soft_device_hold(device, false);
	heap_wait_until(tn_heap_on_device_read(&heap->device, 0, 0, &got, 1) == 0);
	assert_int_equal(got, 'a');
	tn_heap_destroy(heap);
}

static int lead(void *arg)
{
	struct tn_heap_opts o = device_opts();
	struct tn_heap *heap = heap_open(2, 0, &o);

	assert_int_equal(heap_put(heap, 1, BYTES, 1, 0), 0);
	pause();
	return 0;
}

static void what_a_heap_on_a_device_cannot_do_is_refused(void **state)
{
	struct tn_heap_opts o = device_opts(), host = heap_opts(1);
	struct tn_heap *heap = NULL;
	pid_t master;

	heap_new_name();
	o.need_tokens = 1;
	assert_int_equal(tn_heap_create(heap_name, 2, 0, &o, &heap), -EINVAL);
	o.need_tokens = 0;
	o.device = 7;
	assert_int_equal(tn_heap_create(heap_name, 2, 0, &o, &heap), -EINVAL);
	o.device = 0;
	master = heap_process(lead, NULL);
	assert_int_equal(tn_heap_create(heap_name, 2, 1, &host, &heap), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "all ranks name a driver"));
	heap = heap_open(2, 1, &o);
	heap_wait_until(heap_get(heap, 1, BYTES) == 0);
	assert_int_equal(heap_put(heap, 2, BYTES, 0, TN_HEAP_REPLICAS(2)), -ENOTSUP);
	heap_kill(master);
	assert_int_equal(tn_heap_take_over(heap), -ENOTSUP);
	tn_heap_destroy(heap);
}

int main(void)
{
	const struct CMUnitTest everywhere[] = {cmocka_unit_test(objects_on_a_device_pass_between_processes)};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_heap_on_a_device_cannot_do_is_refused),
		cmocka_unit_test(objects_on_a_device_pass_between_processes),
		cmocka_unit_test(a_copy_that_fails_leaves_no_object),
		cmocka_unit_test(an_object_whose_checksum_fails_is_none),
		cmocka_unit_test(a_copy_that_comes_late_has_its_own_bytes),
	};

	if (getenv("TN_HEAP_DRIVER")) /* a forked child can use a GPU only if its parent has not */
		return cmocka_run_group_tests(everywhere, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
