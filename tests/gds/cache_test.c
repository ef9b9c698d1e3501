/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache whose executors move bytes between its file and the memory of a soft device by the plugin gds, over the tests' libcufile.so.0. A CPU of the
 * process that touches the memory dies; the stub alone reaches it, by the device's own mapping.
 */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "cache_rig.h"
#include "core/core.h"
#include "store/store_internal.h"
#include "tier/disk/disk.h"
#include "device/soft_rig.h"
#include "stub_rig.h"

#define HOST (16u << 20)
#define DISK (24u << 20)
#define BLOCKS 12u
#define NPAGES 256u

static struct stub_cufile *stub;
static struct tn_soft_device *device, *second;
static int stands; /* cuFile does, with pieces of the first device */
static int slow_us; /* that each page of a transfer takes longer */

struct world {
	struct rig r;
	const char *transfer; /* NULL: "direct" */
	uint32_t executors;
};

static int get(const int *of)
{
	return __atomic_load_n(of, __ATOMIC_ACQUIRE);
}

static void set(int *of, int value)
{
	__atomic_store_n(of, value, __ATOMIC_RELEASE);
}

static void *bytes_of(const void *address)
{
	void *bytes = tn_soft_device_bytes(device, address);

	while (bytes && get(&stands))
		usleep(200);
	usleep((useconds_t)get(&slow_us));
	return bytes || !second ? bytes : tn_soft_device_bytes(second, address);
}

/* head_dim 64: the pages of a block have 16 KiB per plane, and go straight; 8: 2 KiB, which do not. */
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

/* ---- what goes by way of host memory ---------------------------------------------------------------------------------- */

static void pages_that_are_not_aligned_go_by_way_of_host_memory(void **state)
{
	struct rig_space aligned;
	struct world w = {0};

	up(&w, 0, 8);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	poison(&w);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_stats(&w.r).direct_bytes, 0);
	assert_int_equal(tn_soft_device_stats(device).copied_bytes, 2 * bytes_of_all(&w));
	rig_open_second(&w.r, 64, &aligned); /* that has lost nothing by it */
	assert_int_equal(rig_save(&aligned, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_stats(&w.r).direct_bytes, BLOCKS * tn_geometry_block_bytes(&aligned.g));
	rig_space_close(&aligned);
	down(&w);
}

static void an_object_of_which_a_part_is_wanted_does_and_its_neighbours_go_straight(void **state)
{
	struct world w = {0};
	struct tn_load_opts o;
	struct tn_load *load;
	uint64_t before;

	up(&w, 0, 64);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	poison(&w);
	tn_load_opts_init(&o);
	o.first_page = 1;
	before = rig_stats(&w.r).direct_bytes;
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, &o);
	assert_int_equal(rig_load_wait(w.r.s, load, RIG_LAYERS - 1), BLOCKS);
	rig_load_end(w.r.s, load);
	assert_int_equal(rig_stats(&w.r).direct_bytes - before, bytes_of_all(&w) / BLOCKS * (BLOCKS - 1));
	assert_int_equal(rig_stats(&w.r).bounced_objects, RIG_LAYERS);
	assert_true(rig_poisoned(w.r.s, 0));
	rig_check_blocks(w.r.s, 2, BLOCKS - 1, RIG_PAGES);
	down(&w);
}

static void how_bytes_go_is_the_option_s_choice(void **state)
{
	static const struct {
		const char *transfer;
		int module;
		bool direct;
	} row[] = {{"bounce", 2, false}, {"auto", 0, false}, {"auto", 2, true}, {"direct", 0, true}, {"direct", 2, true}};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct world w = {.transfer = row[i].transfer};

		set(&stub->module_major, row[i].module);
		up(&w, 0, 64);
		assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
		assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
		assert_int_equal(rig_stats(&w.r).direct_bytes > 0, row[i].direct);
		down(&w);
	}
	set(&stub->module_major, 0);
}

static void a_transfer_that_is_none_is_refused(void **state)
{
	struct world w = {.transfer = "straight"};

	prepare(&w, HOST, 64);
	assert_int_equal(rig_open(&w.r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "\"straight\""));
	w.r.o.cache.transfer = "direct";
	w.r.o.cache.transfer_streams = 65;
	assert_int_equal(rig_open(&w.r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "transfer_streams 65"));
	down(&w);
}

/* ---- what fails --------------------------------------------------------------------------------------------------------- */

static int register_memory(struct world *w, void *memory, struct tn_memory **out)
{
	struct tn_memory_range range = {.address = memory, .bytes = 1u << 20};
	struct tn_memory_desc d;

	tn_memory_desc_init(&d);
	d.kind = TN_MEMORY_DEVICE;
	d.driver = tn_soft_device_driver(device);
	d.ranges = &range;
	d.nranges = 1;
	return tn_memory_register(w->r.cache, &d, out);
}

/* cuFile refuses the file: the memory is not registered, and the next one is. Where the caller leaves the way to the cache, it goes on without. */
static void a_file_that_is_not_registered_ends_the_registration_with_its_cause(void **state)
{
	struct world w = {0};
	struct tn_memory *m;
	void *memory;

	prepare(&w, HOST, 64);
	w.r.o.spaces = 0;
	rig_must_open(&w.r);
	memory = tn_soft_device_memory(device, 1u << 20);
	set(&stub->fail[STUB_REGISTER], 5008);
	assert_int_equal(register_memory(&w, memory, &m), -ENOTSUP);
	assert_non_null(strstr(tn_error_last()->text, "this file is not supported"));
	set(&stub->fail[STUB_PROPERTIES], 5011);
	assert_int_equal(register_memory(&w, memory, &m), -EIO);
	assert_non_null(strstr(tn_error_last()->text, "the CUDA driver failed"));
	assert_int_equal(register_memory(&w, memory, &m), 0);
	assert_int_equal(tn_memory_unregister(m), 0);
	tn_soft_device_release(device, memory);
	down(&w);
}

static int no_sum(const struct tn_device_driver *driver, uint32_t d, struct tn_device_properties *out)
{
	*out = (struct tn_device_properties){.bytes = 1u << 30};
	return 0;
}

static void a_driver_that_does_not_sum_has_no_straight_way(void **state)
{
	struct world w = {0};
	struct tn_device_driver_ops ops;
	struct tn_device_driver driver;
	struct tn_memory_desc d;
	struct tn_memory *m;

	prepare(&w, HOST, 64);
	w.r.o.spaces = 0;
	rig_must_open(&w.r);
	driver = *tn_soft_device_driver(device);
	ops = *driver.ops;
	ops.properties = no_sum;
	driver.ops = &ops;
	tn_memory_desc_init(&d);
	d.kind = TN_MEMORY_DEVICE;
	d.driver = &driver;
	d.ranges = &(struct tn_memory_range){.address = tn_soft_device_memory(device, 1u << 20), .bytes = 1u << 20};
	d.nranges = 1;
	assert_int_equal(tn_memory_register(w.r.cache, &d, &m), -ENOTSUP);
	assert_non_null(strstr(tn_error_last()->text, "does not sum"));
	tn_soft_device_release(device, d.ranges->address);
	down(&w);
}

static void with_auto_the_cache_goes_on_without_it(void **state)
{
	struct world w = {.transfer = "auto"};

	set(&stub->module_major, 2);
	set(&stub->fail[STUB_REGISTER], 5008);
	up(&w, 0, 64);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_stats(&w.r).direct_bytes, 0);
	down(&w);
	set(&stub->module_major, 0);
}

/* error: of cuFile's, or -errno; 0: a transfer is shorter. What it was part of comes by way of host memory, and so does all that follows, if it is for good. */
static void fail_one(struct world *w, enum stub_call call, int error, bool for_good)
{
	static uint64_t first = 1;
	uint64_t before;

	first += BLOCKS;
	if (call == STUB_READ)
		assert_int_equal(rig_save(w->r.s, first, BLOCKS, 0).stored, BLOCKS);
	before = rig_stats(&w->r).bounced_objects;
	set(error ? &stub->fail[call] : &stub->shorter, error ? error : 4096);
	if (call == STUB_WRITE)
		assert_int_equal(rig_save(w->r.s, first, BLOCKS, 0).stored, BLOCKS);
	poison(w);
	assert_int_equal(rig_load(w->r.s, first, BLOCKS), BLOCKS);
	assert_int_equal(get(error ? &stub->fail[call] : &stub->shorter), 0);
	assert_true(rig_stats(&w->r).bounced_objects > before);
	assert_int_equal(rig_stats(&w->r).io_errors, 0);
	before = rig_stats(&w->r).direct_bytes;
	poison(w);
	assert_int_equal(rig_load(w->r.s, first, BLOCKS), BLOCKS);
	assert_int_equal(rig_stats(&w->r).direct_bytes - before, for_good ? 0 : bytes_of_all(w));
}

static void a_transfer_that_fails_is_made_again_by_way_of_host_memory(void **state)
{
	struct world w = {0};

	up(&w, 0, 64);
	for (enum stub_call call = STUB_READ; call <= STUB_WRITE; call++) {
		fail_one(&w, call, 5011, false);
		fail_one(&w, call, -EIO, false);
		fail_one(&w, call, 0, false);
	}
	down(&w);
}

static void a_file_that_is_refused_later_has_no_straight_way_any_more(void **state)
{
	for (enum stub_call call = STUB_READ; call <= STUB_WRITE; call++) {
		struct world w = {0};

		up(&w, 0, 64);
		fail_one(&w, call, 5008, true);
		down(&w);
	}
}

/* A space with a pool on a second device, or in host memory. */
static void open_on(struct world *w, struct tn_soft_device *d, struct rig_space *s)
{
	w->r.o.device = d != NULL;
	w->r.o.soft_device = d;
	assert_int_equal(rig_space_open(&w->r, &(struct rig_space_opts){.seed = d ? 7 : 8}, s), 0);
	w->r.o.device = true;
	w->r.o.soft_device = device;
}

static void close_on(struct world *w, struct tn_soft_device *d, struct rig_space *s)
{
	w->r.o.device = d != NULL;
	w->r.o.soft_device = d;
	rig_space_close(s);
	w->r.o.device = true;
	w->r.o.soft_device = device;
}

static void add_device(void)
{
	assert_int_equal(tn_soft_device_create(&(struct tn_soft_device_opts){.seed = tn_test_seed()}, &second), 0);
}

static void remove_device(void)
{
	tn_soft_device_destroy(second);
	second = NULL;
}

static uint64_t direct_bytes_of_load(struct world *w, struct rig_space *s, uint64_t first)
{
	uint64_t before = rig_stats(&w->r).direct_bytes;

	assert_int_equal(rig_load(s, first, BLOCKS), BLOCKS);
	return rig_stats(&w->r).direct_bytes - before;
}

/* Until more memory of the device is registered; cuFile was not asked for that memory meanwhile. */
static void a_device_that_is_refused_has_no_straight_way_any_more_and_another_one_has(void **state)
{
	static const int errors[] = {5009, 5012, 5013, 5014, 5015};
	struct world w = {0};
	struct rig_space other, more;
	int calls;

	add_device();
	up(&w, 0, 64);
	open_on(&w, second, &other);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_save(&other, 1, BLOCKS, 0).stored, BLOCKS);
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		set(&stub->fail[STUB_READ], errors[i]);
		assert_true(direct_bytes_of_load(&w, w.r.s, 1) < bytes_of_all(&w));
		calls = get(&stub->calls[STUB_READ]);
		assert_int_equal(direct_bytes_of_load(&w, w.r.s, 1), 0);
		assert_int_equal(get(&stub->calls[STUB_READ]), calls);
		assert_int_equal(direct_bytes_of_load(&w, &other, 1), bytes_of_all(&w));
		assert_int_equal(rig_space_open(&w.r, &(struct rig_space_opts){.seed = 9}, &more), 0);
		assert_int_equal(direct_bytes_of_load(&w, w.r.s, 1), bytes_of_all(&w));
		rig_space_close(&more);
	}
	assert_int_equal(rig_stats(&w.r).io_errors, 0);
	close_on(&w, second, &other);
	down(&w);
	remove_device();
}

static int sums_refused; /* so many of the next ones have no place */

static int sum_with_place(const struct tn_device_driver *driver, void *stream, const struct tn_device_piece *piece, struct tn_device_sum *sum, uint32_t n,
			  uint64_t *event)
{
	if (__atomic_fetch_sub(&sums_refused, 1, __ATOMIC_ACQ_REL) > 0)
		return -EAGAIN;
	return tn_soft_device_ops.sum(driver, stream, piece, sum, n, event);
}

static void what_the_driver_has_no_place_to_sum_goes_by_way_of_host_memory(void **state)
{
	struct tn_device_driver_ops ops = tn_soft_device_ops;
	struct world w = {0};

	prepare(&w, 0, 64);
	ops.sum = sum_with_place;
	((struct tn_device_driver *)(uintptr_t)tn_soft_device_driver(device))->ops = &ops;
	rig_must_open(&w.r);
	set(&sums_refused, 1);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_true(rig_stats(&w.r).bounced_objects > 0);
	poison(&w);
	set(&sums_refused, 1);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_stats(&w.r).io_errors, 0);
	down(&w);
}

/* Flips a bit in each page of the file that has the data of blocks, whose words all differ. */
static void damage(struct world *w)
{
	unsigned char page[4096];
	char path[512];
	off_t at = (off_t)rig_store_file(&w->r, path, sizeof(path));
	int fd = open(path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	for (; pread(fd, page, sizeof(page), at) == (ssize_t)sizeof(page); at += (off_t)sizeof(page)) {
		int zeros = 0;

		for (size_t i = 0; i < sizeof(page); i++)
			zeros += page[i] == 0;
		if (zeros > 200)
			continue;
		page[100] ^= 1;
		assert_int_equal(pwrite(fd, page, sizeof(page), at), sizeof(page));
	}
	close(fd);
}

static void bytes_that_are_wrong_are_a_miss(void **state)
{
	struct world w = {0};

	up(&w, 0, 64);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&w.r), 0);
	damage(&w);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), 0);
	assert_true(rig_stats(&w.r).corrupt_objects > 0);
	assert_true(rig_match(w.r.s, 1, BLOCKS) < (int)BLOCKS);
	down(&w);
}

static void a_file_that_is_cut_short_meanwhile_is_a_miss(void **state)
{
	struct world w = {0};
	struct tn_load *load;
	char path[512];

	up(&w, 0, 64);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&w.r), 0);
	rig_store_file(&w.r, path, sizeof(path));
	set(&stub->hold, 1);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	rig_until(&w.r, get(&stub->held) > 0);
	assert_int_equal(truncate(path, 4096), 0);
	set(&stub->hold, 0);
	assert_int_equal(rig_load_wait(w.r.s, load, RIG_LAYERS - 1), 0);
	rig_load_end(w.r.s, load);
	assert_true(rig_stats(&w.r).io_errors > 0);
	rig_close(&w.r); /* may say that the store is broken */
	down(&w);
}

static void a_lost_device_ends_loads_and_saves_and_the_cache_lives_on(void **state)
{
	struct world w = {0};
	struct tn_soft_device *lost;
	struct rig_space other;
	struct tn_load *load;
	struct tn_save *save;

	up(&w, 0, 64);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	set(&stub->hold, 1);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	save = rig_save_begin(w.r.s, 100, BLOCKS, NPAGES / 2, NULL);
	rig_save_give(w.r.s, save);
	rig_until(&w.r, get(&stub->held) > 0);
	tn_soft_device_lose(device);
	set(&stub->hold, 0);
	assert_int_equal(rig_load_wait(w.r.s, load, RIG_LAYERS - 1), 0);
	rig_load_end(w.r.s, load);
	assert_int_equal(rig_save_end(w.r.s, save).error, -ENODEV);
	lost = device;
	assert_int_equal(tn_soft_device_create(&(struct tn_soft_device_opts){0}, &device), 0);
	w.r.o.soft_device = device;
	assert_int_equal(rig_space_open(&w.r, &(struct rig_space_opts){0}, &other), 0);
	assert_int_equal(rig_load(&other, 1, BLOCKS), BLOCKS);
	rig_space_close(&other);
	tn_soft_device_destroy(device);
	device = lost;
	w.r.o.soft_device = lost;
	down(&w);
}

/* ---- when words rise, and what lives until then ----------------------------------------------------------------------- */

static bool all_moved(struct world *w, uint64_t before)
{
	return rig_stats(&w->r).direct_bytes - before == bytes_of_all(w);
}

static void no_word_rises_before_the_device_has_summed(void **state)
{
	struct world w = {0};
	struct tn_load *load;
	uint64_t before;

	up(&w, 0, 64);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	poison(&w);
	before = rig_stats(&w.r).direct_bytes;
	tn_soft_device_hold(device, true);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	rig_until(&w.r, all_moved(&w, before));
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_load_poll(load, l), -EAGAIN);
	tn_soft_device_hold(device, false);
	assert_int_equal(rig_load_wait(w.r.s, load, RIG_LAYERS - 1), BLOCKS);
	rig_load_end(w.r.s, load);
	rig_check_blocks(w.r.s, 1, BLOCKS, 0);
	down(&w);
}

static void a_call_that_stands_still_keeps_its_pages_busy(void **state)
{
	struct world w = {0};
	struct tn_load *load;

	up(&w, 0, 64);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	set(&stub->hold, 1);
	load = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	rig_until(&w.r, get(&stub->held) > 0);
	assert_int_equal(tn_load_cancel(load), 0);
	assert_int_equal(tn_load_end(load, tn_test_now() + 5 * RIG_MS, NULL), -EBUSY);
	set(&stub->hold, 0);
	rig_load_end(w.r.s, load);
	poison(&w);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	down(&w);
}

static enum tn_health health_of(struct world *w)
{
	struct tn_device_stats s = {.size = sizeof(s)};

	assert_int_equal(tn_cache_device_stats(w->r.cache, 0, &s), 0);
	return (enum tn_health)s.health;
}

/* The first device stands in cuFile with more loads and saves than there are requests and threads of the plugin's. */
static void others_go_on_beside_a_device_that_stands(uint32_t executors, uint32_t io_depth)
{
	enum { OPS = 10, EACH = 12 };
	struct world w = {.executors = executors};
	struct rig_space host, other;
	struct tn_load *load[OPS];
	struct tn_save *save[OPS];

	add_device();
	prepare(&w, 0, 64);
	w.r.o.cache.disk_bytes = 256u << 20;
	w.r.o.cache.max_blocks = 0;
	w.r.o.cache.io_depth = io_depth;
	w.r.o.cache.max_ops = 64;
	w.r.o.npages = 2 * OPS * EACH * RIG_PAGES;
	rig_must_open(&w.r);
	open_on(&w, second, &other);
	open_on(&w, NULL, &host);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_save(w.r.s, 1 + i * EACH, EACH, 0).stored, EACH);
	assert_int_equal(rig_flush(&w.r), 0);
	set(&stands, 1);
	for (uint32_t i = 0; i < OPS; i++) {
		load[i] = rig_load_begin(w.r.s, 1 + i * EACH, EACH, 2 * i * EACH * RIG_PAGES, NULL);
		save[i] = rig_save_begin(w.r.s, 10001 + i * EACH, EACH, (2 * i + 1) * EACH * RIG_PAGES, NULL);
		rig_save_give(w.r.s, save[i]);
	}
	usleep(2 * TN_COPIER_STANDS_NS / 1000);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(rig_save(&host, 1 + i * EACH, EACH, 0).stored, EACH);
		assert_int_equal(rig_load(&host, 1 + i * EACH, EACH), EACH);
		assert_int_equal(rig_save(&other, 1 + i * EACH, EACH, 0).stored, EACH);
		assert_int_equal(direct_bytes_of_load(&w, &other, 1 + i * EACH), bytes_of_all(&w));
	}
	set(&stands, 0);
	assert_int_equal(health_of(&w), TN_HEALTHY);
	for (uint32_t i = 0; i < OPS; i++) {
		assert_int_equal(rig_load_wait(w.r.s, load[i], RIG_LAYERS - 1), EACH);
		rig_load_end(w.r.s, load[i]);
		assert_int_equal(rig_save_end(w.r.s, save[i]).stored, EACH);
	}
	close_on(&w, NULL, &host);
	close_on(&w, second, &other);
	down(&w);
	remove_device();
}

static void others_go_on_beside_a_device_that_stands_in_a_transfer(void **state)
{
	others_go_on_beside_a_device_that_stands(0, 0);
	others_go_on_beside_a_device_that_stands(0, 4);
}

static void so_they_do_where_executors_have_threads(void **state)
{
	others_go_on_beside_a_device_that_stands(2, 8);
}

/* A few reads that take longer make the drive a slow one. */
static int expects_fast_reads(struct tn_cache *cache, void *arg)
{
	struct tn_store *store = tn_disk_tier_store(cache->row.durable);

	store->slow_read_ns = TN_COPIER_STANDS_NS / 2;
	store->dev[0].hs.slow_score = 63;
	return 0;
}

/* All of its bytes are counted, too. */
static void a_drive_that_is_slow_is_known_for_it_from_the_straight_way_alone(void **state)
{
	struct tn_device_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	struct world w = {0};

	up(&w, 0, 64);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&w.r), 0);
	assert_int_equal(tn_cache_device_stats(w.r.cache, 0, &before), 0);
	assert_int_equal(tn_owner_call(rig_core(&w.r), expects_fast_reads, NULL), 0);
	set(&slow_us, (int)(TN_COPIER_STANDS_NS / 2000));
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(tn_cache_device_stats(w.r.cache, 0, &after), 0);
	assert_true(after.bytes_read - before.bytes_read >= bytes_of_all(&w));
	set(&slow_us, 0);
	assert_int_equal(health_of(&w), TN_SLOW);
	down(&w);
}

/* A second open of the file would lose the lock that the first one has. */
static void the_store_keeps_its_lock(void **state)
{
	struct world w = {0};
	struct tn_cache_opts o;
	struct tn_cache *other;
	int rc;

	up(&w, 0, 64);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(get(&stub->registered), 1);
	o = w.r.o.cache;
	o.lock_timeout_ns = 1;
	rc = tn_cache_open(&o, &other);
	assert_int_equal(rc, -EBUSY);
	assert_int_equal(rig_load(w.r.s, 1, BLOCKS), BLOCKS);
	down(&w);
}

/* ---- all at once --------------------------------------------------------------------------------------------------------- */

static void *fail_now_and_then(void *arg)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	while (!get(arg)) {
		set(&stub->fail[tn_rng_below(&rng, 2) ? STUB_READ : STUB_WRITE], tn_rng_below(&rng, 2) ? -EIO : 5011);
		usleep(500);
	}
	return NULL;
}

static void what_fails_by_chance_costs_no_block(void **state)
{
	struct world w = {.executors = 3};
	uint32_t rounds = tn_test_soak() ? 2000 : 12;
	pthread_t thread;
	int ends = 0;

	up(&w, 0, 64);
	assert_int_equal(pthread_create(&thread, NULL, fail_now_and_then, &ends), 0);
	for (uint32_t i = 0; i < rounds; i++) {
		assert_int_equal(rig_save(w.r.s, 1 + i * BLOCKS, BLOCKS, 0).stored, BLOCKS);
		poison(&w);
		assert_int_equal(rig_load(w.r.s, 1 + i * BLOCKS, BLOCKS), BLOCKS);
	}
	set(&ends, 1);
	pthread_join(thread, NULL);
	set(&stub->fail[STUB_READ], 0);
	set(&stub->fail[STUB_WRITE], 0);
	down(&w);
}

static int run_all(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_go_from_device_memory_to_the_file_and_back_straight),
		cmocka_unit_test(executors_with_threads_move_them_straight_too),
		cmocka_unit_test(pages_that_are_not_aligned_go_by_way_of_host_memory),
		cmocka_unit_test(an_object_of_which_a_part_is_wanted_does_and_its_neighbours_go_straight),
		cmocka_unit_test(how_bytes_go_is_the_option_s_choice),
		cmocka_unit_test(a_transfer_that_is_none_is_refused),
		cmocka_unit_test(a_file_that_is_not_registered_ends_the_registration_with_its_cause),
		cmocka_unit_test(a_driver_that_does_not_sum_has_no_straight_way),
		cmocka_unit_test(with_auto_the_cache_goes_on_without_it),
		cmocka_unit_test(a_transfer_that_fails_is_made_again_by_way_of_host_memory),
		cmocka_unit_test(a_file_that_is_refused_later_has_no_straight_way_any_more),
		cmocka_unit_test(a_device_that_is_refused_has_no_straight_way_any_more_and_another_one_has),
		cmocka_unit_test(what_the_driver_has_no_place_to_sum_goes_by_way_of_host_memory),
		cmocka_unit_test(bytes_that_are_wrong_are_a_miss),
		cmocka_unit_test(a_file_that_is_cut_short_meanwhile_is_a_miss),
		cmocka_unit_test(a_lost_device_ends_loads_and_saves_and_the_cache_lives_on),
		cmocka_unit_test(no_word_rises_before_the_device_has_summed),
		cmocka_unit_test(a_call_that_stands_still_keeps_its_pages_busy),
		cmocka_unit_test(others_go_on_beside_a_device_that_stands_in_a_transfer),
		cmocka_unit_test(so_they_do_where_executors_have_threads),
		cmocka_unit_test(a_drive_that_is_slow_is_known_for_it_from_the_straight_way_alone),
		cmocka_unit_test(the_store_keeps_its_lock),
		cmocka_unit_test(what_fails_by_chance_costs_no_block),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
	char top[PATH_MAX];
	int rc;

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
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
