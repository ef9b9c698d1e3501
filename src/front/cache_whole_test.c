/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a load's requests follow its caller: chunk by chunk for one that waits for the first layer, up to 1 MiB at once for one that
 * wants all layers; and for loads that nobody has waited for yet, as in the load before. On a simulated disk whose reads are counted.
 */
#include "cache_rig.h"
#include "io/io.h"
#include "tier/shape.h"

#define LAYERS 16u
#define BLOCKS 4u

static const struct tn_io_ops *disk_ops;
static uint64_t longest; /* read since it was set to 0 */

static unsigned count_reads(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (reqs[i]->op == TN_IO_READ && reqs[i]->length > longest)
			longest = reqs[i]->length;
	return disk_ops->submit(io, reqs, n);
}

static void count(struct rig *r)
{
	static struct tn_io_ops counting;

	disk_ops = r->io->ops;
	counting = *r->io->ops;
	counting.submit = count_reads;
	r->io->ops = &counting;
}

static struct rig *rig_up(void)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.disk_bytes = 64u << 20;
	o.segment_bytes = 16u << 20;
	o.layers = LAYERS;
	o.head_dim = 1024; /* an object is 128 KiB, a chunk 256 KiB */
	o.prepare = count;
	return rig_start(&o);
}

/* The longest read of a load whose caller waits first for this layer; LAYERS: for none. */
static uint64_t load(struct rig *r, uint32_t layer)
{
	struct tn_load *l;

	longest = 0;
	l = rig_load_begin(r->s, 1, BLOCKS, BLOCKS * 2, NULL);
	if (layer < LAYERS)
		tn_load_wait(l, layer, 0);
	assert_int_equal(rig_load_wait(r->s, l, LAYERS - 1), BLOCKS);
	rig_load_end(r->s, l);
	rig_check_blocks(r->s, 1, BLOCKS, BLOCKS * 2);
	return longest;
}

static void requests_follow_the_first_wait(void **state)
{
	struct rig *r = rig_up();

	assert_int_equal(rig_save(r->s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_true(load(r, LAYERS) <= TN_CHUNK_BYTES); /* nothing is known */
	assert_true(load(r, LAYERS - 1) > TN_CHUNK_BYTES);
	assert_true(load(r, LAYERS) > TN_CHUNK_BYTES); /* as before */
	assert_true(load(r, 0) <= TN_CHUNK_BYTES);
	assert_true(load(r, LAYERS) <= TN_CHUNK_BYTES);
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(requests_follow_the_first_wait)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
