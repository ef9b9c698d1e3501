/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache whose executors move bytes between its file and the memory of a soft device by the plugin gds, over the tests' libcufile.so.0. A CPU of the
 * process that touches the memory dies; the stub alone reaches it, by the device's own mapping.
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cache_rig.h"
#include "core/core.h"
#include "device/soft_rig.h"
#include "stub_rig.h"

#define HOST (64u << 20)
#define DISK (64u << 20)
#define BLOCKS 12u
#define NPAGES 256u

static struct stub_cufile *stub;
static struct tn_soft_device *device;

struct world {
	struct rig r;
	const char *transfer; /* NULL: "direct" */
	uint32_t executors;
};

static void *bytes_of(const void *address)
{
	return tn_soft_device_bytes(device, address);
}

static int get(const int *of)
{
	return __atomic_load_n(of, __ATOMIC_ACQUIRE);
}

/* head_dim 64: pages of 4 KiB per plane, which go straight; 32: half of that, which do not. */
static void prepare(struct world *w, uint64_t host_bytes, uint32_t head_dim)
{
	const struct tn_soft_device_opts o = {.late_ns = 100 * RIG_US, .seed = tn_test_seed()};

	assert_int_equal(tn_soft_device_create(&o, &device), 0);
	rig_init(&w->r, DISK, host_bytes, head_dim);
	w->r.o.cache.transfer = w->transfer ? w->transfer : "direct";
	w->r.o.cache.executors = w->executors;
	w->r.o.npages = NPAGES;
	w->r.o.device = true;
	w->r.o.soft_device = device;
}

static void up(struct world *w, uint64_t host_bytes, uint32_t head_dim)
{
	prepare(w, host_bytes, head_dim);
	rig_must_open(&w->r);
}

static void down(struct world *w)
{
	rig_tear_down(&w->r);
	tn_soft_device_destroy(device);
	assert_int_equal(get(&stub->registered), 0);
}

static void poison(struct world *w)
{
	for (uint32_t p = 0; p < NPAGES; p++)
		rig_poison(w->r.s, p);
}

static uint64_t bytes_of_all(struct world *w)
{
	return BLOCKS * tn_geometry_block_bytes(&w->r.s->g);
}

/* ---- bytes that no host memory sees -------------------------------------------------------------------------------- */

static void save_and_load(uint32_t executors)
{
	struct world w = {.executors = executors};

	up(&w, 0, 64);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_stats(&w.r).direct_bytes, bytes_of_all(&w));
	poison(&w);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_stats(&w.r).direct_bytes, 2 * bytes_of_all(&w));
	assert_int_equal(rig_stats(&w.r).bounced_objects, 0);
	assert_int_equal(tn_soft_device_stats(device).copied_bytes, 0);
	assert_true(rig_stats(&w.r).verified_objects >= BLOCKS * RIG_LAYERS);
	down(&w);
}

static void blocks_go_from_device_memory_to_the_file_and_back_straight(void **state)
{
	save_and_load(0);
}

static void executors_with_threads_move_them_straight_too(void **state)
{
	save_and_load(3);
}

static int run_all(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_go_from_device_memory_to_the_file_and_back_straight),
		cmocka_unit_test(executors_with_threads_move_them_straight_too),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
	char top[PATH_MAX];
	int rc;

	if (!stub_rig_built())
		return tn_test_skip_all("no /proc");
	stub = stub_rig_up(argv, top);
	if (!stub)
		return 1;
	setenv("TMPDIR", top, 1);
	__atomic_store_n(&stub->bytes_of, bytes_of, __ATOMIC_RELEASE);
	rc = run_all();
	stub_rig_down(top);
	return tn_test_ran(rc);
}
