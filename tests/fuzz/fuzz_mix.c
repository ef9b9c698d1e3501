/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of tn_mix_parse: whatever the bytes, it refuses them, naming the line, or gives a mix that prints to a
 * text which gives the same mix again.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/error.h>

#include "sched/mix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *exact = malloc(size ? size : 1); /* so that a byte read behind the end is seen */
	struct tn_mix mix, again;
	char text[TN_MIX_BYTES_MAX];
	int n;

	assert(exact);
	memcpy(exact, data, size);
	memset(&mix, 0, sizeof(mix));
	memset(&again, 0, sizeof(again));
	if (tn_mix_parse(exact, size, "fuzz", &mix)) {
		assert(strncmp(tn_error_last()->text, "fuzz:", 5) == 0);
	} else {
		n = tn_mix_print(&mix, text, sizeof(text));
		assert(n > 0);
		assert(tn_mix_parse(text, (size_t)n, "fuzz", &again) == 0);
		assert(mix.read_bps == again.read_bps && mix.write_bps == again.write_bps);
		assert(mix.mixed_bps == again.mixed_bps && mix.measured_s == again.measured_s);
		assert(mix.read_latency_ns == again.read_latency_ns && mix.write_latency_ns == again.write_latency_ns);
		assert(mix.service == again.service);
		assert(strcmp(mix.source, again.source) == 0);
	}
	free(exact);
	return 0;
}
