/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever devices come, and however many IOCBs those before them have, host memory has its own. */
#include "base/clock.h"
#include "core/budget.h"
#include "device/soft_rig.h"
#include "tn_test.h"

#define DRIVERS TN_PINS_DRIVERS_MAX /* of a device each */

static uint32_t take_all(struct tn_budgets *b, const struct tn_copier *copier)
{
	uint32_t n = 0;

	for (; tn_budget_left(b, copier) > 0; n++)
		tn_budget_took(b, copier, n % TN_TRANSFER_USERS);
	return n;
}

static void give_all(struct tn_budgets *b, const struct tn_copier *copier, uint32_t n)
{
	while (n-- > 0)
		tn_budget_gave(b, copier, n % TN_TRANSFER_USERS);
}

static void host_memory_has_its_iocbs_whatever_devices_come(void **state)
{
	const struct tn_soft_device_opts o = {.seed = tn_test_seed()};
	static struct tn_soft_device *device[DRIVERS];
	static struct tn_copier *copier[DRIVERS];
	static struct tn_copiers copiers;
	static struct tn_budgets b;
	const struct tn_log log = {0};
	uint32_t taken[DRIVERS], all = 0;

	tn_copiers_init(&copiers, &tn_alloc_system, &log, &tn_clock_system);
	tn_budgets_init(&b, &copiers);
	for (uint32_t i = 0; i < DRIVERS; i++) {
		assert_int_equal(tn_soft_device_create(&o, &device[i]), 0);
		assert_int_equal(tn_copiers_join(&copiers, tn_soft_device_driver(device[i]), 0, &copier[i]), 0);
		taken[i] = take_all(&b, copier[i]);
		all += taken[i];
		assert_true(taken[i] > 0 || i > 3);
	}
	assert_int_equal(take_all(&b, NULL), TN_BUDGET_DEPTH);
	assert_true(all + TN_BUDGET_DEPTH <= TN_BUDGET_IOCBS);
	give_all(&b, NULL, TN_BUDGET_DEPTH);
	for (uint32_t i = 0; i < DRIVERS; i++) {
		give_all(&b, copier[i], taken[i]);
		tn_copiers_leave(&copiers, copier[i]);
		tn_soft_device_destroy(device[i]);
	}
	assert_int_equal(b.taken, 0);
	tn_copiers_fini(&copiers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(host_memory_has_its_iocbs_whatever_devices_come),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
