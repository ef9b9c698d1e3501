/* SPDX-License-Identifier: Apache-2.0 */
/* Files with a device's mix: the shipped models, and what cannot be read or written. */
#include "ioengine/mixfile.h"

#include <errno.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/error.h>

#include "tn_test.h"

static int setup(void **state)
{
	char *dir = strdup("/tmp/tenuto-mixfile-XXXXXX");

	*state = dir;
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/" TN_MIXFILE_NAME, (char *)*state);
	unlink(path);
	rmdir(*state);
	free(*state);
	return 0;
}

static void says(const char *text)
{
	if (!strstr(tn_error_last()->text, text))
		fail_msg("\"%s\" does not say \"%s\"", tn_error_last()->text, text);
}

static void every_shipped_model_is_read_and_names_its_source(void **state)
{
	struct tn_mix mix;
	glob_t g;

	/* Tests run in the root of the sources. */
	assert_int_equal(glob("share/devices/*.model", 0, NULL, &g), 0);
	assert_true(g.gl_pathc >= 4);
	for (size_t i = 0; i < g.gl_pathc; i++) {
		if (tn_mixfile_load(g.gl_pathv[i], &mix))
			fail_msg("%s", tn_error_last()->text);
		assert_true(mix.read_bps >= mix.write_bps);
		assert_in_range(mix.mixed_bps, mix.write_bps, mix.read_bps + mix.write_bps);
		assert_true(strlen(mix.source) > 20);
		assert_int_equal(mix.measured_s, 0);
	}
	globfree(&g);
	assert_int_equal(tn_mixfile_load("share/devices/solidigm-d7-ps1010-pair.model", &mix), 0);
	assert_true(mix.read_bps == 29000000000u && mix.write_bps == 12000000000u && mix.mixed_bps == 12000000000u);
}

static void what_is_saved_is_loaded_and_replaces_what_was_there(void **state)
{
	struct tn_mix mix = {1, TN_MIX_ORDER, 3000000000, 2000000000, 2500000000, 90000, 20000, 1700000000, "a test"}, back;
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s/" TN_MIXFILE_NAME, (char *)*state);
	for (unsigned i = 0; i < 2; i++) {
		mix.read_bps += i;
		assert_int_equal(tn_mixfile_save(*state, &mix), 0);
		assert_int_equal(tn_mixfile_load(path, &back), 0);
		assert_true(back.read_bps == mix.read_bps);
		assert_string_equal(back.source, "a test");
	}
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	mix.mixed_bps = 0;
	assert_int_equal(tn_mixfile_save(*state, &mix), -EINVAL);
	assert_int_equal(tn_mixfile_load(path, &back), 0); /* the old file is still there, */
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(*state), 0); /* and no other file */
	assert_int_equal(mkdir(*state, 0700), 0);
}

static void files_that_are_missing_wrong_or_huge_are_told(void **state)
{
	struct tn_mix mix = {1, TN_MIX_ORDER, 1, 1, 1, 0, 0, 0, "x"};
	struct tn_mix out;
	char path[128], text[TN_MIX_BYTES_MAX + 100];
	FILE *f;

	snprintf(path, sizeof(path), "%s/" TN_MIXFILE_NAME, (char *)*state);
	assert_int_equal(tn_mixfile_load(path, &out), -ENOENT);
	says(path);
	assert_int_equal(tn_mixfile_load(*state, &out), -EINVAL);
	says("regular file");
	f = fopen(path, "w");
	assert_non_null(f);
	fputs("tenuto-mix 1\nread_bps 0\n", f);
	fclose(f);
	assert_int_equal(tn_mixfile_load(path, &out), -EINVAL);
	says(TN_MIXFILE_NAME ":2: read_bps");
	f = fopen(path, "w");
	assert_non_null(f);
	memset(text, '\n', sizeof(text));
	assert_int_equal(fwrite(text, 1, sizeof(text), f), sizeof(text));
	fclose(f);
	assert_int_equal(tn_mixfile_load(path, &out), -EINVAL);
	says("at most 4096");
	assert_int_equal(tn_mixfile_save("/nonexistent/here", &mix), -ENOENT);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_shipped_model_is_read_and_names_its_source),
		T(what_is_saved_is_loaded_and_replaces_what_was_there),
		T(files_that_are_missing_wrong_or_huge_are_told),
	};

	return cmocka_run_group_tests_name("mixfile", tests, NULL, NULL);
}
