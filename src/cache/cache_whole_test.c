/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a load's requests follow its caller: chunk by chunk for one that waits for the first layer, up to 1 MiB at once for one that
 * wants all layers; and for loads that nobody has waited for yet, as in the load before. On a simulated disk whose reads are counted.
 */
#include <errno.h>

#include "cache_sim_rig.h"
#include "tier/shape.h"
#include "tn_test.h"

#define LAYERS 16u
#define BLOCKS 4u
#define UNTIL_NS (60 * CRIG_SECOND)

static const struct tn_io_ops *disk_ops;
static uint64_t longest; /* read since it was set to 0 */

static unsigned count_reads(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (reqs[i]->op == TN_IO_READ && reqs[i]->length > longest)
			longest = reqs[i]->length;
	return disk_ops->submit(io, reqs, n);
}

static struct tn_io *wrap(struct tn_io *disk, const struct tn_clock *clock, uint64_t seed)
{
	static struct tn_io_ops counting;

	disk_ops = disk->ops;
	counting = *disk->ops;
	counting.submit = count_reads;
	disk->ops = &counting;
	return disk;
}

static void calm(struct tn_io *io)
{
}

static struct crig *rig_up(void)
{
	struct crig_opts o = sim_rig_opts();

	o.disk_bytes = 64u << 20;
	o.segment_bytes = 16u << 20;
	o.layers = LAYERS;
	o.head_dim = 1024; /* an object is 128 KiB, a chunk 256 KiB */
	o.wrap = wrap;
	o.calm = calm;
	return sim_rig_up(&o);
}

static void save(struct crig *r)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[BLOCKS * 2];
	struct tn_save *s;

	for (uint32_t i = 0; i < BLOCKS; i++)
		keys[i] = crig_key(i + 1);
	for (uint32_t p = 0; p < BLOCKS * 2; p++)
		pages[p] = p;
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t p = 0; p < BLOCKS * 2; p++)
			crig_fill(r, 0, p / 2 + 1, l, p % 2, p);
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], keys, BLOCKS, pages, NULL, &s), 0);
	for (uint32_t l = 0; l < LAYERS; l++)
		assert_int_equal(tn_save_layer(s, l, NULL), 0);
	assert_int_equal(tn_save_commit(s), 0);
	for (uint64_t end = crig_now(r) + UNTIL_NS; tn_save_end(s, 1, NULL) && crig_now(r) < end;)
		crig_turn(r, CRIG_MS);
}

/* The longest read of a load whose caller waits first for this layer; LAYERS: for none. */
static uint64_t load(struct crig *r, uint32_t layer)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[BLOCKS * 2];
	uint64_t end = crig_now(r) + UNTIL_NS;
	struct tn_load *l;
	int good;

	for (uint32_t i = 0; i < BLOCKS; i++)
		keys[i] = crig_key(i + 1);
	for (uint32_t p = 0; p < BLOCKS * 2; p++)
		pages[p] = BLOCKS * 2 + p;
	longest = 0;
	assert_int_equal(tn_load_begin(r->space[0], r->pool[0], keys, BLOCKS, pages, NULL, &l), 0);
	if (layer < LAYERS)
		tn_load_wait(l, layer, 0);
	while ((good = tn_load_poll(l, LAYERS - 1)) == -EAGAIN && crig_now(r) < end)
		crig_turn(r, CRIG_MS);
	assert_int_equal(good, BLOCKS);
	while (tn_load_end(l, 0, NULL) == -EBUSY && crig_now(r) < end)
		crig_turn(r, CRIG_MS);
	for (uint32_t p = 0; p < BLOCKS * 2; p++)
		for (uint32_t k = 0; k < LAYERS; k++)
			assert_true(crig_check(r, 0, p / 2 + 1, k, p % 2, BLOCKS * 2 + p));
	return longest;
}

static void requests_follow_the_first_wait(void **state)
{
	struct crig *r = rig_up();

	save(r);
	assert_true(load(r, LAYERS) <= TN_CHUNK_BYTES); /* nothing is known */
	assert_true(load(r, LAYERS - 1) > TN_CHUNK_BYTES);
	assert_true(load(r, LAYERS) > TN_CHUNK_BYTES); /* as before */
	assert_true(load(r, 0) <= TN_CHUNK_BYTES);
	assert_true(load(r, LAYERS) <= TN_CHUNK_BYTES);
	sim_rig_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(requests_follow_the_first_wait)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
