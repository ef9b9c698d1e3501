/* SPDX-License-Identifier: Apache-2.0 */
/* tn_plan of matches in the spaces of several ranks. Plans of one space are in schedule_test.c. */
#include <tenuto/slack.h>

#include "core/core.h"
#include "front/cache_rig.h"

static struct tn_slack *table(uint64_t window_ns)
{
	static const uint64_t lengths[] = {1, 4096}, prefixes[] = {0, 65536};
	struct tn_slack_desc d;
	struct tn_slack *t;

	tn_slack_desc_init(&d);
	d.layers = RIG_LAYERS;
	d.model = "-";
	d.inputs = lengths;
	d.prefixes = prefixes;
	d.ninputs = d.nprefixes = 2;
	assert_int_equal(tn_slack_create(&d, &t), 0);
	for (uint32_t k = 0; k < 4; k++)
		assert_int_equal(tn_slack_set(t, k & 1, k >> 1, TN_SLACK_ALL_LAYERS, window_ns), 0);
	return t;
}

/* Two ranks' shares come from the same disk: a plan for both restores no sooner than one for blocks of twice the size. */
static void a_plan_counts_the_shares_of_all_ranks(void **state)
{
	struct tn_match one = {.size = sizeof(one), .blocks = 64, .tier_blocks = {[TN_TIER_DISK] = 64}}, two = one;
	struct tn_plan p = {.size = sizeof(p)}, q = p;
	struct rig_opts o = rig_simulated_opts();
	struct tn_slack *t = table(1000000);
	struct rig *r;

	o.layers = RIG_LAYERS;
	r = rig_start(&o);
	assert_int_equal(tn_space_slack(r->s->space, t), 0);
	tn_slack_destroy(t);
	two.tier_blocks[TN_TIER_DISK] = 128;
	r->cache->read_bps = 10000000;
	assert_int_equal(tn_plan(r->s->space, &one, NULL, 16, &p), 0);
	assert_int_equal(tn_plan(r->s->space, &two, NULL, 16, &q), 0);
	assert_int_equal(q.restore_all.io_ns, 2 * p.restore_all.io_ns);
	two.tier_blocks[TN_TIER_HOST] = 128, two.tier_blocks[TN_TIER_DISK] = 0; /* all of both in host memory: more than there are blocks */
	assert_int_equal(tn_plan(r->s->space, &two, NULL, 16, &q), 0);
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {RIG_SIMULATED_TEST(a_plan_counts_the_shares_of_all_ranks)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
