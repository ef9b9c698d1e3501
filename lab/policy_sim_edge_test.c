/* SPDX-License-Identifier: Apache-2.0 */
/* Edge cases of the policy simulation: absurd options, requests larger than the tier, no requests. */
#include <errno.h>

#include "lab/policy_sim.h"
#include "tn_test.h"

static void absurd_simulations_are_refused(void **state)
{
	struct tn_policy_sim_opts o;
	struct tn_policy_sim *sim = NULL;
	const uint64_t ids[3] = {1, 2, 3};

	tn_policy_sim_opts_init(&o);
	o.capacity_blocks = (uint64_t)1 << 63;
	assert_int_equal(tn_policy_sim_create(&o, &sim), -EINVAL);
	tn_policy_sim_opts_init(&o);
	o.policy = "nonsense";
	assert_int_equal(tn_policy_sim_create(&o, &sim), -EINVAL);
	tn_policy_sim_opts_init(&o);
	o.evict = 9;
	assert_int_equal(tn_policy_sim_create(&o, &sim), -EINVAL);
	tn_policy_sim_opts_init(&o);
	o.max_request_blocks = 0;
	assert_int_equal(tn_policy_sim_create(&o, &sim), -EINVAL);
	assert_null(sim);
	o.max_request_blocks = 2;
	assert_int_equal(tn_policy_sim_create(&o, &sim), 0);
	assert_int_equal(tn_policy_sim_request(sim, ids, 3, false, NULL), -EINVAL);
	assert_int_equal(tn_policy_sim_request(sim, ids, 0, false, NULL), 0);
	tn_policy_sim_destroy(sim);
	tn_policy_sim_destroy(NULL);
}

static void a_protected_request_cannot_evict_itself(void **state)
{
	for (size_t k = 0; tn_policy_name(k); k++)
		for (uint32_t evict_when = TN_SIM_EVICT_AUTO; evict_when <= TN_SIM_EVICT_BEFORE; evict_when++) {
			const uint64_t ids[6] = {1, 2, 3, 4, 5, 6};
			struct tn_policy_sim_result r;
			struct tn_policy_sim_stats s;
			struct tn_policy_sim_opts o;
			struct tn_policy_sim *sim;

			tn_policy_sim_opts_init(&o);
			o.policy = tn_policy_name(k);
			o.capacity_blocks = 4;
			o.max_request_blocks = 6;
			o.evict = evict_when;
			assert_int_equal(tn_policy_sim_create(&o, &sim), 0);
			assert_int_equal(tn_policy_sim_request(sim, ids, 6, false, &r), 0);
			tn_policy_sim_stats(sim, &s);
			assert_true(s.held <= 4);
			assert_int_equal(r.inserted - r.evicted, s.held);
			assert_int_equal(r.inserted + r.rejected, 6);
			if (evict_when == TN_SIM_EVICT_BEFORE) {
				assert_int_equal(r.evicted, 0);
				assert_int_equal(tn_policy_sim_request(sim, ids, 6, false, &r), 0);
				assert_int_equal(r.hits, s.held);
			}
			tn_policy_sim_destroy(sim);
		}
}

static void a_trace_without_requests_has_no_hits(void **state)
{
	struct tn_policy_sim_stats s;

	assert_int_equal(tn_policy_sim_belady(NULL, NULL, 0, 10, NULL, &s), 0);
	assert_int_equal(s.hits, 0);
	assert_int_equal(s.distinct, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(absurd_simulations_are_refused),
		cmocka_unit_test(a_protected_request_cannot_evict_itself),
		cmocka_unit_test(a_trace_without_requests_has_no_hits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
