/* SPDX-License-Identifier: Apache-2.0 */
/* The soft device (soft_rig.h) keeps what tenuto/device_memory.h says of drivers. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/checksum.h"
#include "device/device.h"
#include "device/soft_rig.h"
#include "tn_test.h"

#define BYTES (1u << 20)
#define MS 1000000ull

struct world {
	struct tn_soft_device *device;
	const struct tn_device_driver *driver;
	struct tn_memory_range range;
	unsigned char *memory, *host, *bytes; /* the device's; pinned; the memory as the device sees it */
	void *stream[2];
};

static void up(struct world *w)
{
	const struct tn_soft_device_opts o = {.late_ns = MS / 10, .seed = tn_test_seed()};

	assert_int_equal(tn_soft_device_create(&o, &w->device), 0);
	w->driver = tn_soft_device_driver(w->device);
	assert_int_equal(tn_device_check(w->driver), 0);
	w->memory = tn_soft_device_memory(w->device, BYTES);
	w->bytes = tn_soft_device_bytes(w->device, w->memory);
	w->range = (struct tn_memory_range){.address = w->memory, .bytes = BYTES};
	assert_int_equal(tn_device_register(w->driver, &w->range, 1), 0);
	w->host = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(w->host, MAP_FAILED);
	assert_int_equal(w->driver->ops->pin(w->driver, w->host, BYTES), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(w->driver->ops->stream_create(w->driver, 0, &w->stream[i]), 0);
}

static void down(struct world *w)
{
	for (uint32_t i = 0; i < 2; i++)
		w->driver->ops->stream_destroy(w->driver, w->stream[i]);
	w->driver->ops->unpin(w->driver, w->host, BYTES);
	w->driver->ops->unregister_range(w->driver, &w->range);
	munmap(w->host, BYTES);
	tn_soft_device_destroy(w->device);
}

static uint64_t begin(struct world *w, uint32_t stream, enum tn_device_way way, uint32_t device, uint32_t host, uint32_t bytes)
{
	struct tn_device_piece piece = {.device = w->memory + device, .other = w->host + host, .bytes = bytes};
	uint64_t event;

	assert_int_equal(w->driver->ops->copy(w->driver, w->stream[stream], way, &piece, 1, &event), 0);
	memset(&piece, 0, sizeof(piece)); /* it was read */
	return event;
}

static int wait_for(struct world *w, uint32_t stream, uint64_t event)
{
	return w->driver->ops->wait(w->driver, w->stream[stream], event, TN_FOREVER);
}

static int ask(struct world *w, uint32_t stream, uint64_t event)
{
	return w->driver->ops->wait(w->driver, w->stream[stream], event, 0);
}

static void copies_go_both_ways_in_the_order_of_their_stream(void **state)
{
	struct world w = {0};
	uint64_t event;

	up(&w);
	memset(w.host, 7, 4096);
	begin(&w, 0, TN_DEVICE_FROM_HOST, 8192, 0, 4096);
	event = begin(&w, 0, TN_DEVICE_TO_HOST, 8192, 65536, 4096);
	assert_int_equal(wait_for(&w, 0, event), 0);
	assert_int_equal(ask(&w, 0, event), 0); /* any number of times */
	assert_memory_equal(w.host + 65536, w.host, 4096);
	assert_int_equal(w.bytes[8192], 7);
	assert_int_equal(w.bytes[8191], 0);
	down(&w);
}

static void what_is_asked_of_two_streams_ends_in_any_order(void **state)
{
	struct world w = {0};
	uint64_t *word, late, event;

	up(&w);
	word = (uint64_t *)w.host;
	assert_int_equal(w.driver->ops->word_wait(w.driver, w.stream[0], word, 3), 0);
	late = begin(&w, 0, TN_DEVICE_FROM_HOST, 0, 4096, 4096);
	event = begin(&w, 1, TN_DEVICE_FROM_HOST, 4096, 4096, 4096);
	assert_int_equal(wait_for(&w, 1, event), 0);
	assert_int_equal(ask(&w, 0, late), -ETIMEDOUT);
	assert_int_equal(w.driver->ops->wait(w.driver, w.stream[0], late, tn_test_now() + MS), -ETIMEDOUT);
	assert_int_equal(w.driver->ops->word_write(w.driver, w.stream[1], word, 3), 0);
	assert_int_equal(wait_for(&w, 0, late), 0);
	down(&w);
}

static void a_stream_that_follows_another_waits_for_what_was_asked_of_it(void **state)
{
	struct world w = {0};
	uint64_t *word, event;

	up(&w);
	word = (uint64_t *)w.host;
	assert_int_equal(w.driver->ops->word_wait(w.driver, w.stream[0], word, 1), 0);
	memset(w.host + 4096, 9, 4096);
	begin(&w, 0, TN_DEVICE_FROM_HOST, 0, 4096, 4096);
	assert_int_equal(w.driver->ops->stream_follow(w.driver, w.stream[1], w.stream[0]), 0);
	event = begin(&w, 1, TN_DEVICE_TO_HOST, 0, 8192, 4096);
	usleep(2000);
	assert_int_equal(ask(&w, 1, event), -ETIMEDOUT);
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	assert_int_equal(wait_for(&w, 1, event), 0);
	assert_int_equal(w.host[8192], 9);
	down(&w);
}

static void sums_are_those_of_the_store(void **state)
{
	struct tn_device_piece piece[5];
	struct tn_device_sum sum[2] = {{.npieces = 3}, {.npieces = 2}};
	struct world w = {0};
	uint64_t event;

	up(&w);
	for (uint32_t i = 0; i < BYTES; i++)
		w.bytes[i] = (unsigned char)(i * 2654435761u >> 13);
	for (uint32_t i = 0; i < 5; i++)
		piece[i] = (struct tn_device_piece){.device = w.memory + i * 70000, .bytes = 70000};
	assert_int_equal(w.driver->ops->sum(w.driver, w.stream[0], piece, sum, 2, &event), 0);
	assert_int_equal(wait_for(&w, 0, event), 0);
	assert_int_equal(sum[0].sum, tn_checksum(w.bytes, 210000));
	assert_int_equal(sum[1].sum, tn_checksum(w.bytes + 210000, 140000));
	down(&w);
}

static void a_copy_that_fails_ends_its_stream_alone(void **state)
{
	struct world w = {0};
	uint64_t event;

	up(&w);
	tn_soft_device_fail(w.device, TN_DEVICE_FROM_HOST, 1, -EIO);
	event = begin(&w, 0, TN_DEVICE_TO_HOST, 0, 0, 4096);
	assert_int_equal(wait_for(&w, 0, event), 0);
	event = begin(&w, 0, TN_DEVICE_FROM_HOST, 0, 0, 4096);
	assert_int_equal(wait_for(&w, 0, event), 0);
	event = begin(&w, 0, TN_DEVICE_FROM_HOST, 0, 0, 4096);
	assert_int_equal(wait_for(&w, 0, event), -EIO);
	event = begin(&w, 0, TN_DEVICE_FROM_HOST, 0, 0, 4096);
	assert_int_equal(wait_for(&w, 0, event), -EIO);
	event = begin(&w, 1, TN_DEVICE_FROM_HOST, 0, 0, 4096);
	assert_int_equal(wait_for(&w, 1, event), 0);
	down(&w);
}

static void a_call_that_is_refused_begins_nothing(void **state)
{
	struct tn_device_piece piece;
	struct world w = {0};
	uint64_t event;
	void *stream;

	up(&w);
	piece = (struct tn_device_piece){.device = w.memory, .other = w.host, .bytes = 4096};
	tn_soft_device_refuse(w.device, TN_SOFT_COPY, 1, -EIO);
	begin(&w, 0, TN_DEVICE_FROM_HOST, 0, 0, 4096);
	assert_int_equal(w.driver->ops->copy(w.driver, w.stream[0], TN_DEVICE_FROM_HOST, &piece, 1, &event), -EIO);
	event = begin(&w, 0, TN_DEVICE_FROM_HOST, 0, 0, 4096);
	assert_int_equal(wait_for(&w, 0, event), 0);
	assert_int_equal(tn_soft_device_stats(w.device).copies, 2);
	tn_soft_device_refuse(w.device, TN_SOFT_STREAM_CREATE, 0, -ENOMEM);
	assert_int_equal(w.driver->ops->stream_create(w.driver, 0, &stream), -ENOMEM);
	tn_soft_device_refuse(w.device, TN_SOFT_PIN, 0, -ENOMEM);
	assert_int_equal(w.driver->ops->pin(w.driver, w.host, 4096), -ENOMEM);
	down(&w);
}

static void a_stream_that_is_full_says_so(void **state)
{
	struct tn_device_piece piece;
	struct world w = {0};
	uint64_t event;

	up(&w);
	piece = (struct tn_device_piece){.device = w.memory, .other = w.host, .bytes = 64};
	tn_soft_device_hold(w.device, true);
	for (uint32_t i = 0; i < TN_DEVICE_CALLS; i++)
		event = begin(&w, 0, TN_DEVICE_FROM_HOST, 0, 0, 64);
	assert_int_equal(w.driver->ops->copy(w.driver, w.stream[0], TN_DEVICE_FROM_HOST, &piece, 1, &(uint64_t){0}), -EAGAIN);
	tn_soft_device_hold(w.device, false);
	assert_int_equal(wait_for(&w, 0, event), 0);
	down(&w);
}

static void a_lost_device_ends_what_waits_and_takes_nothing_more(void **state)
{
	struct tn_device_piece piece;
	struct world w = {0};
	uint64_t event;
	void *stream;

	up(&w);
	piece = (struct tn_device_piece){.device = w.memory, .other = w.host, .bytes = 4096};
	assert_int_equal(w.driver->ops->word_wait(w.driver, w.stream[0], (uint64_t *)w.host, 1), 0);
	event = begin(&w, 0, TN_DEVICE_FROM_HOST, 0, 0, 4096);
	tn_soft_device_lose(w.device);
	assert_int_equal(wait_for(&w, 0, event), -ENODEV);
	assert_int_equal(w.driver->ops->copy(w.driver, w.stream[1], TN_DEVICE_FROM_HOST, &piece, 1, &event), -ENODEV);
	assert_int_equal(w.driver->ops->stream_create(w.driver, 0, &stream), -ENODEV);
	down(&w);
}

/* In a process that has no thread of the device's. */
static int import_and_write(const unsigned char name[TN_DEVICE_EXPORT_BYTES])
{
	struct tn_soft_device *d;
	void *memory;
	int rc = tn_soft_device_create(&(struct tn_soft_device_opts){0}, &d);

	rc = rc ? rc : tn_soft_device_driver(d)->ops->import(tn_soft_device_driver(d), 0, name, &memory);
	if (rc)
		return 1;
	memset(tn_soft_device_bytes(d, memory), 5, BYTES);
	tn_soft_device_driver(d)->ops->import_end(tn_soft_device_driver(d), 0, memory);
	tn_soft_device_destroy(d);
	return 0;
}

static void another_process_imports_the_memory(void **state)
{
	unsigned char name[TN_DEVICE_EXPORT_BYTES];
	struct world w = {0};
	void *memory;
	int status;
	pid_t pid;

	up(&w);
	assert_int_equal(w.driver->ops->exports(w.driver, w.memory + 4096, 4096, name), -EINVAL); /* a whole memory */
	assert_int_equal(w.driver->ops->exports(w.driver, w.memory, BYTES, name), 0);
	pid = fork();
	if (pid == 0)
		_exit(import_and_write(name));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(w.bytes[0], 5);
	assert_int_equal(w.bytes[BYTES - 1], 5);
	memset(name, 0, sizeof(name));
	assert_int_equal(w.driver->ops->import(w.driver, 0, name, &memory), -EINVAL);
	down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_go_both_ways_in_the_order_of_their_stream),
		cmocka_unit_test(what_is_asked_of_two_streams_ends_in_any_order),
		cmocka_unit_test(a_stream_that_follows_another_waits_for_what_was_asked_of_it),
		cmocka_unit_test(sums_are_those_of_the_store),
		cmocka_unit_test(a_copy_that_fails_ends_its_stream_alone),
		cmocka_unit_test(a_call_that_is_refused_begins_nothing),
		cmocka_unit_test(a_stream_that_is_full_says_so),
		cmocka_unit_test(a_lost_device_ends_what_waits_and_takes_nothing_more),
		cmocka_unit_test(another_process_imports_the_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
