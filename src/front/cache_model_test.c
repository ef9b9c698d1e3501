/* SPDX-License-Identifier: Apache-2.0 */
/* A cache on modelled devices: takes their time, gives the same bytes; and what it takes as known of devices. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"
#include "cache_rig.h"
#include "ioengine/mixfile.h"
#include "lab/paced_cache.h"

#define STRETCH 20u

/* After the stretch: 32 MB/s reading, 64 MB/s writing. */
static const struct tn_mix slow = {1, TN_MIX_ORDER, 32000000u * STRETCH, 64000000u * STRETCH, 32000000u * STRETCH, 50000, 10000, 0, "a test"};

static struct tn_paced_drive drive;

static int open_paced(const struct tn_cache_opts *opts, struct tn_cache **out)
{
	return tn_paced_cache_open(opts, &drive, out);
}

static void write_model(const struct rig *r, const char *name, const struct tn_mix *mix, char *path, size_t room)
{
	char text[TN_MIX_BYTES_MAX];
	FILE *f;

	snprintf(path, room, "%s/%s", r->dir, name);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_true(tn_mix_print(mix, text, sizeof(text)) > 0);
	fputs(text, f);
	fclose(f);
}

static void loads_and_saves_take_the_time_of_the_model_and_give_the_same_bytes(void **state)
{
	const uint64_t bytes = 64u * 128u << 10;
	char path[512];
	uint64_t t0, wrote, read;
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	write_model(&r, "drive.model", &slow, path, sizeof(path));
	drive = (struct tn_paced_drive){path, STRETCH};
	r.o.open = open_paced;
	rig_must_open(&r);
	assert_int_equal(rig_core(&r)->engines.mix[0].read_bps, 32000000);
	assert_int_equal(rig_core(&r)->engines.mix[0].write_latency_ns, 10000 * STRETCH);
	t0 = tn_test_now();
	rig_save(r.s, 1, 64, 0);
	assert_int_equal(rig_flush(&r), 0);
	wrote = tn_test_now() - t0;
	t0 = tn_test_now();
	assert_int_equal(rig_load(r.s, 1, 64), 64);
	read = tn_test_now() - t0;
	print_message("# %.0f ms to write, %.0f ms to read, the model says %.0f and %.0f or more\n", (double)wrote / 1e6,
		      (double)read / 1e6, (double)bytes / 64e3, (double)bytes / 32e3);
	assert_true(wrote >= bytes * 1000 / 64);
	assert_true(read >= bytes * 1000 / 32);
	rig_tear_down(&r);
}

static void a_model_that_cannot_be_read_is_told_with_its_line(void **state)
{
	char path[512];
	FILE *f;
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	write_model(&r, "drive.model", &slow, path, sizeof(path));
	f = fopen(path, "a");
	assert_non_null(f);
	fputs("color blue\n", f);
	fclose(f);
	drive = (struct tn_paced_drive){path, 0};
	r.o.open = open_paced;
	assert_int_equal(rig_open(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "drive.model:9: unknown key \"color\""));
	drive.model = "/nonexistent.model";
	assert_int_equal(rig_open(&r), -ENOENT);
	drive.stretch = 1000001;
	assert_int_equal(rig_open(&r), -EINVAL);
	drive = (struct tn_paced_drive){NULL, 0};
	assert_int_equal(rig_open(&r), 0);
	rig_tear_down(&r);
}

static void what_was_measured_of_a_directory_is_known_and_a_broken_file_is_not(void **state)
{
	char path[512];
	struct rig r;
	FILE *f;

	rig_set_up(&r, 64u << 20, 0, 64);
	assert_int_equal(rig_core(&r)->engines.mix[0].version, 0);
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(tn_mixfile_save(r.dir, &slow), 0);
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_core(&r)->engines.mix[0].version, 1);
	assert_true(rig_core(&r)->engines.mix[0].write_bps == slow.write_bps);
	assert_int_equal(rig_close(&r), 0);
	snprintf(path, sizeof(path), "%s/" TN_MIXFILE_NAME, r.dir);
	f = fopen(path, "w");
	assert_non_null(f);
	fclose(f);
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_core(&r)->engines.mix[0].version, 0);
	rig_tear_down(&r);
}

int main(void)
{
	if (rig_namespace)
		return tn_test_skip_all(RIG_FAULTY);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loads_and_saves_take_the_time_of_the_model_and_give_the_same_bytes),
		cmocka_unit_test(a_model_that_cannot_be_read_is_told_with_its_line),
		cmocka_unit_test(what_was_measured_of_a_directory_is_known_and_a_broken_file_is_not),
	};

	return cmocka_run_group_tests_name("cache-model", tests, NULL, NULL);
}
