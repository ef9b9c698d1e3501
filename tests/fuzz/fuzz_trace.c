/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of the trace parser: whatever the bytes, it hands out only valid requests, and
 * an error has a message that begins with file and line.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	union {
		const uint8_t *in;
		void *out;
	} bytes = {.in = data};
	FILE *file = size ? fmemopen(bytes.out, size, "r") : NULL;
	const struct trace_format format = {.block_tokens = size % 2 ? 0 : 16, .unit = (enum trace_unit)(size % 3)};
	struct trace_reader r;
	struct trace_request q;
	uint64_t sum = 0;
	int rc;

	if (!file)
		return 0;
	rc = trace_open(&r, "fuzz", &format, file);
	assert(rc == 0);
	while ((rc = trace_next(&r, &q)) == 1) {
		assert(isfinite(q.timestamp_ms) && q.timestamp_ms >= 0);
		assert(q.input_length >= 1 && q.input_length <= TRACE_TOKENS_MAX && q.output_length <= TRACE_TOKENS_MAX);
		assert(r.block_tokens >= 1 && r.block_tokens <= TRACE_BLOCK_TOKENS_MAX);
		assert(q.n == (q.input_length + r.block_tokens - 1) / r.block_tokens);
		assert(r.timed || q.timestamp_ms == 0);
		assert(q.line >= 1 && q.line <= r.line);
		for (uint32_t i = 0; i < q.n; i++) {
			assert(q.ids[i] <= INT64_MAX);
			sum += q.ids[i];
		}
	}
	assert(rc == 0 || rc == -EINVAL);
	assert(rc == 0 || !strncmp(r.error, "fuzz:", 5));
	trace_close(&r);
	return (int)(sum & 0); /* the ids were read */
}
