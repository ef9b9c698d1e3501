/* SPDX-License-Identifier: Apache-2.0 */
/* Spaces of strange sizes: whatever passes the check can be opened, or is refused with a reason. */
#include <errno.h>

#include "cache_rig.h"

static void open_host_cache(struct rig *r)
{
	rig_init(r, 0, 4u << 20, 64);
	r->o.spaces = 0;
	r->o.cache.max_blocks = 4096;
	rig_must_open(r);
}

static int open_space(struct tn_cache *cache, const struct tn_geometry *g, uint32_t window_tokens, struct tn_space **out)
{
	struct tn_identity id;
	struct tn_shard shard;

	tn_identity_init(&id);
	id.model = "sizes";
	tn_shard_init(&shard);
	shard.match_rule = TN_MATCH_WINDOW;
	shard.window_tokens = window_tokens;
	return tn_space_open(cache, &id, &shard, g, NULL, out);
}

/* Recurrent state has no bytes per token, so nothing else bounds the tokens of its pages. */
static struct tn_geometry state_pages(uint32_t page_tokens, uint32_t pages_per_block)
{
	return (struct tn_geometry){.layers = 1,
				    .page_tokens = page_tokens,
				    .pages_per_block = pages_per_block,
				    .nplanes = 1,
				    .planes = {{TN_PLANE_STATE, 4, 64, 16}}};
}

static void a_space_opens_whose_blocks_have_2_to_the_32_tokens_and_more(void **state)
{
	static const uint32_t page_tokens[] = {UINT32_C(1) << 31, (UINT32_C(1) << 31) + 1, UINT32_MAX};
	static const uint32_t tokens[16] = {1, 2, 3};
	struct rig r;
	struct tn_key keys[8];

	open_host_cache(&r);
	for (unsigned i = 0; i < 3; i++) {
		struct tn_geometry g = state_pages(page_tokens[i], 2);
		struct tn_space *space;

		assert_int_equal(open_space(r.cache, &g, 4096, &space), 0);
		/* 16 tokens are no whole block, whatever 32 bits make of its length. */
		assert_int_equal(tn_keys_from_tokens(space, tokens, 16, NULL, 0, keys, 8), 0);
		tn_space_close(space);
	}
	rig_tear_down(&r);
}

static void any_geometry_opens_or_is_refused(void **state)
{
	struct rig r;
	struct tn_rng rng;

	open_host_cache(&r);
	tn_rng_seed(&rng, tn_test_seed());
	for (int i = 0; i < 500; i++) {
		struct tn_geometry g = state_pages(1u << tn_rng_below(&rng, 32), 1u << tn_rng_below(&rng, 13));
		struct tn_space *space;
		int rc;

		g.page_tokens += (uint32_t)tn_rng_below(&rng, 3) - 1;
		g.layers = 1 + (uint32_t)tn_rng_below(&rng, 300);
		g.planes[0].kind = tn_rng_below(&rng, 2) ? TN_PLANE_STATE : TN_PLANE_LATENT;
		g.planes[0].heads = 1u << tn_rng_below(&rng, 8);
		rc = open_space(r.cache, &g, 1u << tn_rng_below(&rng, 32), &space);
		assert_true(rc == 0 || rc == -EINVAL || rc == -EOVERFLOW || rc == -ENOMEM || rc == -ENOSPC);
		if (rc == 0)
			tn_space_close(space);
	}
	rig_tear_down(&r);
}

static void a_capacity_in_blocks_that_no_disk_has_is_refused(void **state)
{
	struct tn_geometry g;
	struct rig r;

	rig_init(&r, 1, 0, 64);
	assert_int_equal(tn_geometry_raw(4096, 128u << 20, &g), 0);
	r.o.cache.disk_bytes = 0;
	r.o.cache.disk_blocks = UINT64_C(1) << 31;
	r.o.cache.geometry = &g;
	r.o.cache.max_blocks = 4096;
	assert_true(rig_open(&r) < 0);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_space_opens_whose_blocks_have_2_to_the_32_tokens_and_more),
		cmocka_unit_test(any_geometry_opens_or_is_refused),
		cmocka_unit_test(a_capacity_in_blocks_that_no_disk_has_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
