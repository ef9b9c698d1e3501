/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of a copier, over the soft device; and pins, which its driver counts: it is not destroyed before all are given back. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "device/copier.h"
#include "device/device.h"
#include "device/pins.h"
#include "device/soft_rig.h"
#include "tn_test.h"

#define PIECE 256u
#define PIECES (TN_COPIER_PIECES + 100) /* more than one call */
#define BYTES (8u << 20)
_Static_assert(2 * PIECE * PIECES <= BYTES, "every other piece is copied");

struct world {
	struct tn_soft_device *device;
	const struct tn_device_driver *driver;
	struct tn_memory_range range;
	unsigned char *memory, *host, *bytes; /* the device's; pinned; the memory as the device sees it */
	struct tn_copiers copiers;
	struct tn_pin pin;
	struct tn_log log;
	struct tn_copier *copier;
	struct iovec piece[PIECES];
};

static unsigned char *map(void)
{
	unsigned char *host = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(host, MAP_FAILED);
	return host;
}

static void up(struct world *w)
{
	const struct tn_soft_device_opts o = {.late_ns = 100000, .seed = tn_test_seed()};

	assert_int_equal(tn_soft_device_create(&o, &w->device), 0);
	w->driver = tn_soft_device_driver(w->device);
	w->memory = tn_soft_device_memory(w->device, BYTES);
	w->bytes = tn_soft_device_bytes(w->device, w->memory);
	w->range = (struct tn_memory_range){.address = w->memory, .bytes = BYTES};
	assert_int_equal(tn_device_register(w->driver, &w->range, 1), 0);
	w->host = map();
	tn_copiers_init(&w->copiers, &tn_alloc_system, &w->log, &tn_clock_system);
	assert_int_equal(tn_pins_add(&w->copiers.pins, &w->pin, w->host, BYTES), 0);
	assert_int_equal(tn_copiers_join(&w->copiers, w->driver, 0, &w->copier), 0);
	for (uint32_t i = 0; i < PIECES; i++)
		w->piece[i] = (struct iovec){w->memory + 2 * (size_t)i * PIECE, PIECE};
}

static void down(struct world *w)
{
	tn_copiers_leave(&w->copiers, w->copier);
	tn_pins_remove(&w->copiers.pins, &w->pin);
	tn_copiers_fini(&w->copiers);
	w->driver->ops->unregister_range(w->driver, &w->range);
	munmap(w->host, BYTES);
	tn_soft_device_destroy(w->device);
}

static void begin(struct world *w, enum tn_device_way way, struct tn_copying *c)
{
	tn_copying_begin(c, w->copier, way);
	tn_copying_add(c, w->piece, PIECES, w->host);
	tn_copying_go(c);
}

static int end(struct tn_copying *c)
{
	int rc;

	while (!tn_copying_over(c, &rc))
		sched_yield();
	return rc;
}

static void pieces_go_both_ways(void **state)
{
	static struct world w;
	struct tn_copying c;

	up(&w);
	for (uint32_t i = 0; i < PIECES; i++)
		memset(w.host + (size_t)i * PIECE, (int)(i % 251) + 1, PIECE);
	begin(&w, TN_DEVICE_FROM_HOST, &c);
	assert_int_equal(end(&c), 0);
	for (uint32_t i = 0; i < PIECES; i++) {
		assert_int_equal(w.bytes[2 * (size_t)i * PIECE], i % 251 + 1);
		assert_int_equal(w.bytes[2 * (size_t)i * PIECE + PIECE], 0); /* nothing lies between them */
	}
	memset(w.host, 0, BYTES);
	begin(&w, TN_DEVICE_TO_HOST, &c);
	assert_int_equal(end(&c), 0);
	for (uint32_t i = 0; i < PIECES * PIECE; i++)
		assert_int_equal(w.host[i], i / PIECE % 251 + 1);
	down(&w);
}

/* Of either call of one copying; and others go on. */
static void a_copy_that_fails_costs_no_later_one(void **state)
{
	static struct world w;
	struct tn_copying c;

	up(&w);
	for (uint32_t call = 0; call < 2; call++) {
		tn_soft_device_fail(w.device, TN_DEVICE_FROM_HOST, call, -EIO);
		begin(&w, TN_DEVICE_FROM_HOST, &c);
		assert_int_equal(end(&c), -EIO);
		tn_soft_device_fail(w.device, TN_DEVICE_FROM_HOST, 0, 0);
		for (uint32_t i = 0; i < 8; i++) { /* on each stream */
			begin(&w, TN_DEVICE_FROM_HOST, &c);
			assert_int_equal(end(&c), 0);
		}
	}
	down(&w);
}

static void a_lost_device_ends_what_is_under_way_and_what_comes(void **state)
{
	static struct world w;
	struct tn_copying c[6];
	int rc;

	up(&w);
	tn_soft_device_hold(w.device, true);
	for (uint32_t i = 0; i < 6; i++)
		begin(&w, TN_DEVICE_TO_HOST, &c[i]);
	for (uint32_t i = 0; i < 6; i++)
		assert_false(tn_copying_over(&c[i], &rc));
	tn_soft_device_lose(w.device);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(end(&c[i]), -ENODEV);
	begin(&w, TN_DEVICE_TO_HOST, &c[0]);
	assert_int_equal(end(&c[0]), -ENODEV);
	down(&w);
}

/* Whatever comes first: memory, or drivers. */
static void all_drivers_have_all_memory_pinned(void **state)
{
	static struct world w;
	const struct tn_soft_device_opts o = {0};
	struct tn_soft_device *other;
	unsigned char *more = map();
	struct tn_pin pin;

	up(&w);
	assert_int_equal(tn_soft_device_create(&o, &other), 0);
	assert_int_equal(tn_pins_join(&w.copiers.pins, tn_soft_device_driver(other)), 0);
	assert_int_equal(tn_pins_add(&w.copiers.pins, &pin, more, BYTES), 0);
	assert_int_equal(tn_pins_join(&w.copiers.pins, w.driver), 0); /* twice */
	tn_pins_leave(&w.copiers.pins, w.driver);
	tn_pins_leave(&w.copiers.pins, tn_soft_device_driver(other));
	tn_soft_device_destroy(other); /* it asserts that nothing of it is left pinned */
	tn_pins_remove(&w.copiers.pins, &pin);
	tn_pins_remove(&w.copiers.pins, &pin); /* nothing happens */
	munmap(more, BYTES);
	/* A driver that refuses one of two leaves none. */
	assert_int_equal(tn_pins_add(&w.copiers.pins, &pin, w.host + 1, BYTES - 1), -EINVAL);
	tn_pins_remove(&w.copiers.pins, &pin);
	down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_go_both_ways),
		cmocka_unit_test(a_copy_that_fails_costs_no_later_one),
		cmocka_unit_test(a_lost_device_ends_what_is_under_way_and_what_comes),
		cmocka_unit_test(all_drivers_have_all_memory_pinned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
