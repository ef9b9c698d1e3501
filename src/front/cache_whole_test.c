/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a load's requests follow its caller: chunk by chunk for one that waits for the first layer, up to 1 MiB at once, from the first
 * layer on, for one that wants all layers; and for loads that nobody has waited for yet, as in the load before. On a simulated disk
 * whose reads are counted.
 */
#include "cache_rig.h"
#include "core/core.h"
#include "core/load_chunk.h"
#include "io/io.h"
#include "tier/shape.h"

#define LAYERS 16u
#define OBJECT_BYTES (128u << 10) /* the first chunk is one layer, the others are two */
#define BLOCKS 4u
#define MANY 24u /* blocks: more than a load has under way at once */
#define HEADER_BYTES (64u << 10) /* no read of headers is longer, and none of layers shorter */

static const struct tn_io_ops *disk_ops;
/* Of the reads of layers since count_anew: the first with those right behind it, up to the first elsewhere; the longest; all. */
static uint64_t first, longest, bytes;
static uint64_t first_end; /* the place behind them on disk; 0: there was one elsewhere */

static unsigned count_reads(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		uint64_t length = reqs[i]->length;

		if (reqs[i]->op != TN_IO_READ || length <= HEADER_BYTES)
			continue;
		first_end = bytes == 0 ? reqs[i]->offset : first_end;
		if (reqs[i]->offset == first_end) {
			first += length;
			first_end += length;
		} else {
			first_end = 0;
		}
		longest = length > longest ? length : longest;
		bytes += length;
	}
	return disk_ops->submit(io, reqs, n);
}

static void count_anew(void)
{
	first = first_end = longest = bytes = 0;
}

static void count(struct rig *r)
{
	static struct tn_io_ops counting;

	disk_ops = r->io->ops;
	counting = *r->io->ops;
	counting.submit = count_reads;
	r->io->ops = &counting;
}

static struct rig *rig_up(uint64_t read_ns)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.disk_bytes = 128u << 20;
	o.segment_bytes = 16u << 20;
	o.layers = LAYERS;
	o.npages = MANY * 2;
	o.head_dim = OBJECT_BYTES / 128;
	o.read_ns = read_ns;
	o.prepare = count;
	return rig_start(&o);
}

/* The longest read of a load whose caller waits first for this layer; LAYERS: for none. */
static uint64_t load(struct rig *r, uint32_t layer)
{
	struct tn_load *l;

	count_anew();
	l = rig_load_begin(r->s, 1, BLOCKS, BLOCKS * 2, NULL);
	if (layer < LAYERS) {
		tn_load_wait(l, layer, 0);
	} else {
		rig_until(r, !tn_list_empty(&r->cache->loads));
		rig_until(r, tn_list_empty(&r->cache->loads));
	}
	assert_int_equal(rig_load_wait(r->s, l, LAYERS - 1), BLOCKS);
	rig_load_end(r->s, l);
	rig_check_blocks(r->s, 1, BLOCKS, BLOCKS * 2);
	return longest;
}

static void requests_follow_the_first_wait(void **state)
{
	struct rig *r = rig_up(0);

	assert_int_equal(rig_save(r->s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_true(load(r, LAYERS) <= TN_CHUNK_BYTES); /* nothing is known */
	assert_true(load(r, LAYERS - 1) > TN_CHUNK_BYTES);
	assert_true(load(r, LAYERS) > TN_CHUNK_BYTES); /* as before */
	assert_true(load(r, 0) <= TN_CHUNK_BYTES);
	assert_true(load(r, LAYERS) <= TN_CHUNK_BYTES);
	rig_tear_down(r);
}

static void a_load_as_a_whole_reads_more_than_the_first_layer_from_the_beginning(void **state)
{
	struct rig *r = rig_up(0);

	assert_int_equal(rig_save(r->s, 1, BLOCKS, 0).stored, BLOCKS);
	load(r, LAYERS);
	assert_int_equal(first, OBJECT_BYTES); /* nothing is known */
	load(r, LAYERS - 1);
	load(r, LAYERS);
	assert_true(first > OBJECT_BYTES);
	load(r, 0);
	load(r, LAYERS);
	assert_int_equal(first, OBJECT_BYTES);
	rig_tear_down(r);
}

/* Its first requests are as long as in the load before; those after its first wait are of the layer that it waits for. */
static void who_waits_for_the_first_layer_after_all_gets_it_before_the_others(void **state)
{
	/* So slow that the scheduler does not let all of a load go at once, also after a lucky run ... */
	struct rig *r = rig_up(50 * RIG_MS);
	struct tn_reading *reading;
	struct tn_load *l;
	uint32_t begun = 0;

	assert_int_equal(rig_save(r->s, 1, MANY, 0).stored, MANY);
	for (unsigned i = 0; i == 0 || r->cache->read_bps == 0; i++) { /* ... and once it knows how slow */
		assert_in_range(i, 0, 15);
		load(r, LAYERS - 1);
		rig_turn(r, RIG_MS);
	}
	count_anew();
	l = rig_load_begin(r->s, 1, MANY, 0, NULL);
	rig_until(r, bytes > 0);
	reading = tn_container_of(r->cache->loads.next, struct tn_reading, op.link);
	while (begun < MANY && *tn_chunk_state(reading, begun, 0) != TN_CHUNK_IDLE)
		begun++;
	assert_in_range(begun, 1, MANY - 2);
	assert_true(reading->whole);
	assert_int_not_equal(*tn_chunk_state(reading, 0, 1), TN_CHUNK_IDLE);
	tn_load_wait(l, 0, 0);
	while (*tn_chunk_state(reading, MANY - 1, 0) == TN_CHUNK_IDLE) {
		/* The core may have been about to send one more. */
		for (uint32_t i = begun + 1; i < MANY; i++)
			assert_int_equal(*tn_chunk_state(reading, i, 1), TN_CHUNK_IDLE);
		rig_turn(r, RIG_MS);
	}
	assert_false(reading->whole);
	assert_int_equal(rig_load_wait(r->s, l, LAYERS - 1), MANY);
	rig_load_end(r->s, l);
	rig_check_blocks(r->s, 1, MANY, 0);
	rig_tear_down(r);
}

/* Begins a load, and waits until something of it is sent. */
static struct tn_reading *begin(struct rig *r, uint32_t page, const struct tn_load_opts *o, struct tn_load **l)
{
	const struct tn_list *last = r->cache->loads.prev;
	struct tn_reading *reading;

	*l = rig_load_begin(r->s, 1, MANY / 2, page, o);
	rig_until(r, r->cache->loads.prev != last);
	reading = tn_container_of(r->cache->loads.prev, struct tn_reading, op.link);
	rig_until(r, *tn_chunk_state(reading, 0, 0) != TN_CHUNK_IDLE);
	return reading;
}

static struct rig *saved(void)
{
	struct rig *r = rig_up(50 * RIG_MS);

	assert_int_equal(rig_save(r->s, 1, MANY, 0).stored, MANY);
	return r;
}

static void wait(struct tn_load *l, uint32_t layer)
{
	tn_load_wait(l, layer, 0);
}

static void poll(struct tn_load *l, uint32_t layer)
{
	tn_load_poll(l, layer);
}

static void ask_for_event(struct tn_load *l, uint32_t layer)
{
	const uint64_t *word;
	uint64_t value;

	assert_int_equal(tn_load_event(l, layer, &word, &value), 0);
}

static void until_a_layer_is_asked_for_none_is_urgent(void **state)
{
	static void (*const ask[])(struct tn_load *l, uint32_t layer) = {wait, poll, ask_for_event};
	struct tn_load_opts o;
	struct tn_load *l, *second;
	struct rig *r;

	for (uint32_t i = 0; i < 2 * sizeof(ask) / sizeof(ask[0]); i++) {
		bool last = i % 2;

		r = saved();
		assert_true(begin(r, 0, NULL, &l)->whole);
		assert_true(begin(r, MANY, NULL, &second)->whole);
		rig_load_end(r->s, second); /* given up: that tells nothing */
		ask[i / 2](l, last ? LAYERS - 1 : 0);
		rig_load_end(r->s, l);
		assert_int_equal(begin(r, 0, NULL, &l)->whole, last);
		rig_load_end(r->s, l);
		rig_tear_down(r);
	}
	/* Who says how much there is to compute does it layer by layer. */
	r = saved();
	tn_load_opts_init(&o);
	o.input_tokens = 1000;
	assert_false(begin(r, 0, &o, &l)->whole);
	rig_load_end(r->s, l);
	assert_true(begin(r, 0, NULL, &l)->whole);
	wait(l, LAYERS - 1);
	rig_load_end(r->s, l);
	assert_false(begin(r, 0, &o, &l)->whole); /* another reader of the same space */
	rig_load_end(r->s, l);
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_follow_the_first_wait),
		cmocka_unit_test(a_load_as_a_whole_reads_more_than_the_first_layer_from_the_beginning),
		cmocka_unit_test(until_a_layer_is_asked_for_none_is_urgent),
		cmocka_unit_test(who_waits_for_the_first_layer_after_all_gets_it_before_the_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
