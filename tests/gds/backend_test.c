/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend gds of the transfer agent between files and the memory of a soft device, over the tests' libcufile.so.0. A CPU of the process that touches the memory
 * dies; the stub alone reaches it. What all backends do is tested by src/xfer/xfer_test.c.
 */
#include <string.h>
#include <unistd.h>

#include <tenuto/plugin.h>
#include <tenuto/xfer.h>

#include "device/soft_rig.h"
#include "stub_rig.h"
#include "tn_test.h"

#define PAGE 4096u
#define PAGES 64u
#define BYTES (PAGES * PAGE)

static char top[PATH_MAX];
static struct stub_cufile *stub;
static struct tn_soft_device *device;

/* Device memory and a file; lists of all pages of both. */
struct world {
	struct tn_xfer_agent *agent;
	struct tn_xfer_section section[2];
	struct tn_xfer_list *list[2];
	char path[PATH_MAX + 16];
	void *memory;
};

static void *bytes_of(const void *address)
{
	return tn_soft_device_bytes(device, address);
}

static int get(const int *of)
{
	return __atomic_load_n(of, __ATOMIC_ACQUIRE);
}

static void set(int *of, int value)
{
	__atomic_store_n(of, value, __ATOMIC_RELEASE);
}

static int agent_new(const char *spec, struct tn_xfer_agent **out)
{
	struct tn_xfer_agent_opts opts;

	tn_xfer_agent_opts_init(&opts);
	opts.name = "one";
	opts.listen = "none";
	opts.backends = &spec;
	opts.nbackends = 1;
	return tn_xfer_agent_create(&opts, out);
}

static void up(struct world *w)
{
	static const enum tn_xfer_segment segment[2] = {TN_XFER_VRAM, TN_XFER_FILE};
	const struct tn_soft_device_opts o = {.seed = tn_test_seed()};

	assert_int_equal(tn_soft_device_create(&o, &device), 0);
	w->memory = tn_soft_device_memory(device, BYTES);
	assert_non_null(w->memory);
	snprintf(w->path, sizeof(w->path), "%s/file", top);
	assert_int_equal(agent_new("gds", &w->agent), 0);
	w->section[0] = (struct tn_xfer_section){(uintptr_t)w->memory, BYTES, 0, NULL};
	w->section[1] = (struct tn_xfer_section){0, BYTES, 1, w->path};
	for (unsigned i = 0; i < 2; i++) {
		struct tn_xfer_run run = {w->section[i].address, PAGE, i, PAGE, PAGES};

		assert_int_equal(tn_xfer_register(w->agent, segment[i], &w->section[i], 1), 0);
		assert_int_equal(tn_xfer_list_create(w->agent, NULL, segment[i], &run, 1, &w->list[i]), 0);
	}
}

static void down(struct world *w)
{
	tn_xfer_list_destroy(w->list[0]);
	tn_xfer_list_destroy(w->list[1]);
	assert_int_equal(tn_xfer_agent_destroy(w->agent), 0);
	tn_soft_device_release(device, w->memory);
	tn_soft_device_destroy(device);
	unlink(w->path);
}

/* Every other page, so that each is a call of its own. */
static struct tn_xfer_request *scattered(const struct world *w, enum tn_xfer_op op)
{
	uint32_t index[PAGES / 2];
	struct tn_xfer_request *q;

	for (uint32_t i = 0; i < PAGES / 2; i++)
		index[i] = 2 * i;
	assert_int_equal(tn_xfer_request_create(w->agent, op, w->list[0], index, w->list[1], index, PAGES / 2, NULL, &q), 0);
	return q;
}

static int run(struct tn_xfer_request *q)
{
	assert_int_equal(tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), 0);
	return tn_test_ended(tn_xfer_wait(q, tn_test_deadline()));
}

static void device_memory_becomes_a_file_and_comes_back(void **state)
{
	struct tn_xfer_request *q;
	unsigned char *bytes;
	struct world w;

	up(&w);
	bytes = bytes_of(w.memory);
	for (uint32_t i = 0; i < BYTES; i++)
		bytes[i] = (unsigned char)(i * 7 + i / PAGE);
	assert_int_equal(tn_xfer_request_create(w.agent, TN_XFER_WRITE, w.list[0], NULL, w.list[1], NULL, 0, NULL, &q), 0);
	assert_int_equal(run(q), 0);
	assert_int_equal(tn_xfer_release(q), 0);
	memset(bytes, 0, BYTES);
	q = scattered(&w, TN_XFER_READ);
	assert_int_equal(run(q), 0);
	for (uint32_t i = 0; i < BYTES; i++)
		assert_int_equal(bytes[i], i / PAGE % 2 ? 0 : (unsigned char)(i * 7 + i / PAGE));
	assert_int_equal(tn_xfer_release(q), 0);
	assert_int_equal(tn_soft_device_stats(device).copied_bytes, 0); /* the stub has moved all of them */
	down(&w);
}

static void what_the_library_says_reaches_the_caller(void **state)
{
	struct tn_xfer_result result[PAGES / 2];
	struct tn_xfer_request *q;
	unsigned failed = 0;
	struct world w;

	up(&w);
	q = scattered(&w, TN_XFER_WRITE);
	set(&stub->fail[STUB_WRITE], -EIO);
	assert_int_equal(run(q), -EIO);
	assert_non_null(strstr(tn_error_last()->text, "cuFileWrite"));
	assert_int_equal(tn_xfer_results(q, 0, PAGES / 2, result), 0);
	for (unsigned i = 0; i < PAGES / 2; i++)
		failed += result[i].status == -EIO;
	assert_int_equal(failed, 1);
	assert_int_equal(run(q), 0);
	assert_int_equal(tn_xfer_release(q), 0);
	down(&w);
}

static void a_cancel_waits_for_what_the_library_moves_and_begins_no_more(void **state)
{
	struct tn_xfer_status st = {.size = sizeof(st)};
	struct tn_xfer_request *q;
	struct world w;
	int before;

	up(&w);
	q = scattered(&w, TN_XFER_WRITE);
	before = get(&stub->calls[STUB_WRITE]);
	set(&stub->hold, 1);
	assert_int_equal(tn_xfer_post(q, TN_FOREVER, NULL, TN_XFER_NO_NOTIFICATION), 0);
	for (uint64_t end = tn_test_deadline(); get(&stub->held) < 1; usleep(100))
		assert_true(tn_test_now() < end);
	assert_int_equal(tn_xfer_cancel(q, tn_test_now() + 5000000), -EBUSY);
	assert_int_equal(tn_xfer_release(q), -EBUSY);
	set(&stub->hold, 0);
	assert_int_equal(tn_xfer_cancel(q, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_status(q, &st), 0);
	assert_int_equal(st.status, -ECANCELED);
	assert_in_range(get(&stub->calls[STUB_WRITE]) - before, 1, 16); /* those that were in the queue */
	assert_int_equal(run(q), 0);
	assert_int_equal(tn_xfer_release(q), 0);
	down(&w);
}

static void sections_of_one_file_share_its_registration(void **state)
{
	struct tn_xfer_section again, missing = {.bytes = BYTES, .device = 3, .meta = "ro:/nowhere/at/all"};
	struct world w;
	int before;

	up(&w);
	before = get(&stub->registered); /* those of files that are gone stay, until their place is wanted */
	assert_int_equal(tn_xfer_register(w.agent, TN_XFER_FILE, &missing, 1), -ENOENT);
	assert_non_null(strstr(tn_error_last()->text, "/nowhere/at/all"));
	again = w.section[1];
	again.address = BYTES;
	assert_int_equal(tn_xfer_register(w.agent, TN_XFER_FILE, &again, 1), 0);
	assert_int_equal(get(&stub->registered), before);
	assert_int_equal(tn_xfer_deregister(w.agent, TN_XFER_FILE, &again, 1, 0), 0);
	down(&w);
}

static void an_agent_that_cannot_have_it_is_told_why(void **state)
{
	struct tn_xfer_agent *a;

	assert_int_equal(agent_new("gds,colour=red", &a), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "colour"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_memory_becomes_a_file_and_comes_back),
		cmocka_unit_test(what_the_library_says_reaches_the_caller),
		cmocka_unit_test(a_cancel_waits_for_what_the_library_moves_and_begins_no_more),
		cmocka_unit_test(sections_of_one_file_share_its_registration),
		cmocka_unit_test(an_agent_that_cannot_have_it_is_told_why),
	};
	int rc;

	if (!stub_rig_built())
		return tn_test_skip_all("no /proc");
	stub = stub_rig_up(argv, top);
	if (!stub)
		return 1;
	__atomic_store_n(&stub->bytes_of, bytes_of, __ATOMIC_RELEASE);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	stub_rig_down(top);
	return tn_test_ran(rc);
}
