/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a device's mix: what is taken, and where what is wrong is said to be. */
#include "sched/mix.h"

#include <errno.h>
#include <string.h>

#include <tenuto/error.h>

#include "tn_test.h"

static const char good[] = "tenuto-mix 1\n"
			   "# two drives\n"
			   "source two drives, a paper\n"
			   "\n"
			   "measured_s 0\n"
			   "read_bps 29000000000\n"
			   "write_bps 12000000000\n"
			   "mixed_bps 12000000000\n"
			   "read_latency_ns 60000\n"
			   "write_latency_ns 10000\n";

static int parse(const char *text, struct tn_mix *mix)
{
	return tn_mix_parse(text, strlen(text), "drive.model", mix);
}

/* The good text with one piece of it replaced. */
static const char *with(const char *old, const char *new)
{
	static char text[2 * TN_MIX_BYTES_MAX];
	const char *at = strstr(good, old);

	assert_non_null(at);
	snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, new, at + strlen(old));
	return text;
}

static void refused(const char *text, int code, const char *says)
{
	struct tn_mix mix = {.read_bps = 4711};

	assert_int_equal(parse(text, &mix), code);
	assert_int_equal(mix.read_bps, 4711);
	if (!strstr(tn_error_last()->text, says))
		fail_msg("\"%s\" does not say \"%s\"", tn_error_last()->text, says);
}

static void a_described_drive_is_read(void **state)
{
	struct tn_mix mix;

	assert_int_equal(parse(good, &mix), 0);
	assert_int_equal(mix.version, TN_MIX_VERSION);
	assert_true(mix.read_bps == 29000000000u);
	assert_true(mix.write_bps == 12000000000u);
	assert_true(mix.mixed_bps == 12000000000u);
	assert_int_equal(mix.read_latency_ns, 60000);
	assert_int_equal(mix.write_latency_ns, 10000);
	assert_int_equal(mix.measured_s, 0);
	assert_string_equal(mix.source, "two drives, a paper");
}

static void what_is_printed_is_read_back_the_same(void **state)
{
	struct tn_mix mix, back;
	char text[TN_MIX_BYTES_MAX];
	int n;

	memset(&mix, 0, sizeof(mix));
	memset(&back, 0, sizeof(back));
	mix = (struct tn_mix){1, TN_MIX_SHARE, 1, TN_MIX_BPS_MAX, 3, 0, TN_MIX_LATENCY_MAX_NS, 1700000000, ""};
	memset(mix.source, 'x', sizeof(mix.source) - 1);
	n = tn_mix_print(&mix, text, sizeof(text));
	assert_true(n > 0);
	assert_int_equal(tn_mix_parse(text, (size_t)n, "mix", &back), 0);
	assert_int_equal(back.version, mix.version);
	assert_int_equal(back.service, mix.service);
	assert_memory_equal(&back.read_bps, &mix.read_bps, sizeof(mix) - offsetof(struct tn_mix, read_bps));
	assert_int_equal(tn_mix_print(&mix, text, 60), -ENOSPC);
	mix.write_bps = 0;
	assert_int_equal(tn_mix_print(&mix, text, sizeof(text)), -EINVAL);
}

static void a_drive_serves_in_order_unless_the_text_says_otherwise(void **state)
{
	struct tn_mix mix;

	assert_int_equal(parse(good, &mix), 0);
	assert_int_equal(mix.service, TN_MIX_ORDER);
	assert_int_equal(parse(with("measured_s 0", "measured_s 0\nservice order"), &mix), 0);
	assert_int_equal(mix.service, TN_MIX_ORDER);
	assert_int_equal(parse(with("measured_s 0", "measured_s 0\nservice share"), &mix), 0);
	assert_int_equal(mix.service, TN_MIX_SHARE);
	refused(with("measured_s 0", "measured_s 0\nservice shared"), -EINVAL, "drive.model:6: service \"shared\"");
	refused(with("measured_s 0", "service share\nmeasured_s 0\nservice share"), -EINVAL, "service is there twice");
}

static void a_bad_number_is_named_with_its_line(void **state)
{
	static const char *const bad[] = {"", "0", "-1", "+1", "1e9", "29 GB", " 29", "29 ", "0x10", "1000000000000001",
					  "99999999999999999999999"};
	char line[64];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(line, sizeof(line), "read_bps %s\n", bad[i]);
		refused(with("read_bps 29000000000\n", line), -EINVAL, "drive.model:6: read_bps");
	}
	refused(with("60000", "1000000000001"), -EINVAL, "drive.model:9: read_latency_ns");
}

static void missing_and_doubled_and_unknown_keys_are_refused(void **state)
{
	static const char *const keys[] = {"measured_s 0\n", "read_bps 29000000000\n", "write_bps 12000000000\n",
					   "mixed_bps 12000000000\n", "read_latency_ns 60000\n",
					   "write_latency_ns 10000\n", "source two drives, a paper\n"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		char twice[128];

		refused(with(keys[i], ""), -EINVAL, " is missing");
		snprintf(twice, sizeof(twice), "%s%s", keys[i], keys[i]);
		refused(with(keys[i], twice), -EINVAL, " is there twice");
	}
	refused(with("mixed_bps", "mixed_bpz"), -EINVAL, "drive.model:8: unknown key \"mixed_bpz\"");
	refused(with("mixed_bps ", "mixed_bps"), -EINVAL, "drive.model:8: ");
}

static void another_version_and_another_file_are_told_apart(void **state)
{
	refused(with("tenuto-mix 1", "tenuto-mix 2"), -EPROTONOSUPPORT, "drive.model:1: version 2");
	refused(with("tenuto-mix 1\n", ""), -EINVAL, "drive.model:2: another file: must begin with \"tenuto-mix 1\"");
	refused("", -EINVAL, "drive.model:1: empty");
	refused("# nothing\n", -EINVAL, "drive.model:1: empty");
}

static void a_file_that_was_cut_off_is_refused_wherever(void **state)
{
	struct tn_mix mix;

	for (size_t n = 0; n < sizeof(good) - 1; n++)
		assert_int_equal(tn_mix_parse(good, n, "drive.model", &mix), -EINVAL);
}

static void bytes_that_are_no_text_are_refused(void **state)
{
	static char long_text[TN_MIX_BYTES_MAX + 2];

	refused(with("two drives,", "two\tdrives,"), -EINVAL, "drive.model:3: byte 0x09");
	refused(with("0\nread", "0\r\nread"), -EINVAL, "drive.model:5: byte 0x0d");
	memset(long_text, '#', sizeof(long_text) - 1);
	refused(long_text, -EINVAL, "4097 bytes");
	memset(long_text, 'x', 200);
	long_text[200] = '\0';
	refused(with("two drives, a paper", long_text), -EINVAL, "drive.model:3: source has 200 bytes");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_described_drive_is_read),
		cmocka_unit_test(what_is_printed_is_read_back_the_same),
		cmocka_unit_test(a_drive_serves_in_order_unless_the_text_says_otherwise),
		cmocka_unit_test(a_bad_number_is_named_with_its_line),
		cmocka_unit_test(missing_and_doubled_and_unknown_keys_are_refused),
		cmocka_unit_test(another_version_and_another_file_are_told_apart),
		cmocka_unit_test(a_file_that_was_cut_off_is_refused_wherever),
		cmocka_unit_test(bytes_that_are_no_text_are_refused),
	};

	return cmocka_run_group_tests_name("mix", tests, NULL, NULL);
}
