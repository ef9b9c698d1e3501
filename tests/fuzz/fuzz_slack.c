/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of tn_slack_parse: whatever the bytes, it refuses them or gives a table without gaps that prints to a
 * text which gives the same text again - and that can be asked and taught anything.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/slack.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void print_and_parse(const struct tn_slack *t)
{
	struct tn_slack *again;
	long n = tn_slack_print(t, NULL, 0);
	char *text, *twice;

	assert(n > 0);
	text = malloc((size_t)n + 1);
	twice = malloc((size_t)n + 1);
	assert(text && twice);
	assert(tn_slack_print(t, text, (size_t)n + 1) == n);
	assert(tn_slack_parse(text, (size_t)n, &again) == 0);
	assert(tn_slack_print(again, twice, (size_t)n + 1) == n);
	assert(strcmp(text, twice) == 0);
	tn_slack_destroy(again);
	free(twice);
	free(text);
}

static void ask_and_teach(struct tn_slack *t)
{
	static const uint64_t lengths[] = {0, 1, 1000, UINT64_C(1) << 40, UINT64_MAX};
	struct tn_slack_desc d;

	tn_slack_describe(t, &d);
	for (unsigned i = 0; i < 25; i++) {
		uint64_t in = lengths[i / 5], prefix = lengths[i % 5];

		assert(tn_slack_window(t, in, prefix, d.layers - 1) - 1 < TN_SLACK_WINDOW_MAX);
		tn_slack_observe(t, in, prefix, 0, (int64_t)(lengths[i % 4] + 1));
		tn_slack_observe(t, in, prefix, 0, (int64_t)lengths[i % 4]);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *exact = malloc(size ? size : 1); /* so that a byte read behind the end is seen */
	struct tn_slack *t;

	assert(exact);
	memcpy(exact, data, size);
	if (tn_slack_parse(exact, size, &t) == 0) {
		assert(tn_slack_check(t) == 0);
		print_and_parse(t);
		ask_and_teach(t);
		print_and_parse(t);
		tn_slack_destroy(t);
	}
	free(exact);
	return 0;
}
