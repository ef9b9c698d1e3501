/* SPDX-License-Identifier: Apache-2.0 */
/* tn_io_measure finds the rates of a described drive, stores them, and leaves nothing else. */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "ioengine/mixfile.h"
#include "lab/measure.h"
#include "lab/scratch.h"
#include "tn_test.h"

struct rig {
	char dir[64];
	struct tn_io_measure_opts o;
	unsigned steps;
	double last;
};

static bool count_steps(void *arg, double done)
{
	struct rig *r = arg;

	assert_true(done > r->last && done <= 1);
	r->last = done;
	r->steps++;
	return true;
}

static bool stop(void *arg, double done)
{
	return false;
}

static int setup(void **state)
{
	struct rig *r = calloc(1, sizeof(*r));

	*state = r;
	tn_io_measure_opts_init(&r->o);
	r->o.dir = r->dir;
	r->o.seconds = 0.6;
	r->o.file_bytes = 16u << 20;
	r->o.seed = tn_test_seed();
	r->o.progress = count_steps;
	r->o.progress_arg = r;
	return tn_scratch_make(access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", r->dir, sizeof(r->dir));
}

/* Files in the directory, but for the mark of a scratch directory. */
static unsigned left_behind(const struct rig *r)
{
	DIR *d = opendir(r->dir);
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 3;
}

static int teardown(void **state)
{
	struct rig *r = *state;

	tn_scratch_remove(r->dir);
	free(r);
	return 0;
}

static void close_to(const char *what, uint64_t measured, uint64_t modelled, double above)
{
	print_message("# %s: %llu, the model has %llu\n", what, (unsigned long long)measured, (unsigned long long)modelled);
	/*
	 * Never better than the model. How much worse depends on the machine: this only tests that the same thing is
	 * measured.
	 */
	assert_true((double)measured <= (double)modelled * above);
	assert_true((double)measured >= (double)modelled / 4);
}

static void a_described_drive_is_found_to_be_what_it_is_described_as(void **state)
{
	static const char model[] = "share/devices/solidigm-d7-p5810.model";
	struct tn_mix m, d;
	struct rig *r = *state;

	assert_int_equal(tn_mixfile_load(model, &d), 0);
	r->o.device_model = model;
	assert_int_equal(tn_io_measure(&r->o, &m), 0);
	close_to("read_bps", m.read_bps, d.read_bps / 16, 1.001);
	close_to("write_bps", m.write_bps, d.write_bps / 16, 1.001);
	/* While the first requests of both kinds are served no request has ended yet, and then many end at once. */
	close_to("mixed_bps", m.mixed_bps, d.mixed_bps / 16, 1.02);
	assert_true(m.read_latency_ns >= 16 * d.read_latency_ns);
	assert_true(m.write_latency_ns >= 16 * d.write_latency_ns);
	assert_int_equal(left_behind(r), 0); /* this directory was not measured */
	assert_int_equal(r->steps, 21);
	assert_true(r->last == 1);
}

static void what_is_found_is_stored_where_the_cache_looks(void **state)
{
	struct rig *r = *state;
	struct tn_mix m, back;
	char path[128];

	snprintf(path, sizeof(path), "%s/" TN_MIXFILE_NAME, r->dir);
	assert_int_equal(tn_io_measure(&r->o, &m), 0);
	assert_int_equal(left_behind(r), 1);
	assert_int_equal(tn_mixfile_load(path, &back), 0);
	assert_true(back.read_bps == m.read_bps && back.write_bps == m.write_bps && back.mixed_bps == m.mixed_bps);
	assert_true(back.read_latency_ns == m.read_latency_ns && back.measured_s > 1700000000);
	assert_non_null(strstr(back.source, "262144 bytes, 64 in flight"));
	assert_int_equal(unlink(path), 0);
	r->o.store = false;
	r->last = 0;
	assert_int_equal(tn_io_measure(&r->o, &m), 0);
	assert_int_equal(left_behind(r), 0);
}

static void it_stops_when_it_is_told_to_and_leaves_nothing(void **state)
{
	struct rig *r = *state;
	struct tn_mix m;

	r->o.progress = stop;
	assert_int_equal(tn_io_measure(&r->o, &m), -ECANCELED);
	assert_int_equal(left_behind(r), 0);
}

static void what_cannot_be_measured_is_told(void **state)
{
	struct rig *r = *state;
	struct tn_io_measure_opts o = r->o;
	struct tn_mix m;

	o.dir = "/nonexistent";
	assert_int_equal(tn_io_measure(&o, &m), -ENOENT);
	o = r->o;
	o.file_bytes = 1ull << 40;
	assert_int_equal(tn_io_measure(&o, &m), -ENOSPC);
	assert_int_equal(left_behind(r), 0);
	o = r->o;
	o.device_model = "/nonexistent.model";
	assert_int_equal(tn_io_measure(&o, &m), -ENOENT);
	o = r->o;
	o.device_model = "share/devices/solidigm-d7-p5810.model";
	o.device_stretch = 0;
	assert_int_equal(tn_io_measure(&o, &m), -EINVAL);
	if (geteuid()) {
		assert_int_equal(chmod(r->dir, 0500), 0);
		assert_int_equal(tn_io_measure(&r->o, &m), -EACCES);
		assert_int_equal(chmod(r->dir, 0700), 0);
	}
}

static void options_that_make_no_sense_are_refused(void **state)
{
	struct rig *r = *state;
	struct tn_io_measure_opts o;
	struct tn_mix m;

	assert_int_equal(tn_io_measure(NULL, &m), -EINVAL);
	assert_int_equal(tn_io_measure(&r->o, NULL), -EINVAL);
#define BAD(field, value)                                                                                                            \
	o = r->o;                                                                                                                    \
	o.field = (value);                                                                                                           \
	assert_int_equal(tn_io_measure(&o, &m), -EINVAL)
	BAD(dir, NULL);
	BAD(seconds, 0);
	BAD(seconds, -1);
	BAD(seconds, 0.0 / 0.0);
	BAD(seconds, 1e9);
	BAD(depth, 0);
	BAD(depth, 1025);
	BAD(request_bytes, 0);
	BAD(request_bytes, 5000);
	BAD(request_bytes, 128u << 20);
	BAD(file_bytes, 0);
	BAD(file_bytes, 5000000);
	BAD(file_bytes, 1ull << 41);
	assert_int_equal(left_behind(r), 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_described_drive_is_found_to_be_what_it_is_described_as),
		T(what_is_found_is_stored_where_the_cache_looks),
		T(it_stops_when_it_is_told_to_and_leaves_nothing),
		T(what_cannot_be_measured_is_told),
		T(options_that_make_no_sense_are_refused),
	};

	return cmocka_run_group_tests_name("measure", tests, NULL, NULL);
}
