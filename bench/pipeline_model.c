/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a layer's compute takes, what reading a layer takes, and the ideal: start(l) = max(end(l-1), loaded(l)) on a
 * device that does nothing else, with the headers and the first layer's load included.
 */
#include "pipeline.h"

#define HEADER_BYTES 4096.0

double pipeline_compute_s(const struct pipeline_set *set, uint32_t prefix_blocks)
{
	uint32_t block = set->geometry.page_tokens * set->geometry.pages_per_block;
	double prefix = (double)prefix_blocks * block, input = (double)(set->blocks - prefix_blocks) * block;
	double linear = 2 * 218e6, attention = 4 * 4096.0;

	if (input < set->geometry.page_tokens)
		input = set->geometry.page_tokens;
	return input * (linear + attention * (prefix + input / 2)) / 495e12 * set->stretch;
}

double pipeline_io_s(const struct pipeline_set *set, const struct pipeline_device *d, uint32_t blocks)
{
	return (double)blocks * tn_geometry_object_bytes(&set->geometry) / d->read_bps;
}

void pipeline_ideal(const struct pipeline_set *set, const struct pipeline_device *d, uint32_t blocks,
		    struct pipeline_run *run)
{
	double each = pipeline_compute_s(set, blocks), io = pipeline_io_s(set, d, blocks), end = 0;
	double loaded = blocks ? d->latency_s + blocks * HEADER_BYTES / d->read_bps : 0;

	for (uint32_t layer = 0; layer < set->geometry.layers; layer++) {
		loaded += io;
		end = (end > loaded ? end : loaded) + each;
	}
	run->ttft = end;
	run->compute = each * set->geometry.layers;
	run->bubble = run->ttft - run->compute;
	run->bytes_read = (uint64_t)(blocks * (HEADER_BYTES + (double)tn_geometry_block_bytes(&set->geometry)));
}
