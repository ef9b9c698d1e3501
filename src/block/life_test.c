/* SPDX-License-Identifier: Apache-2.0 */
/* Each step from each state of a block that is built token by token: seven are allowed, seventeen are not. */
#include <errno.h>

#include "block/life.h"
#include "tn_test.h"

static const struct {
	enum tn_life from;
	enum tn_life_step step;
	enum tn_life to;
} allowed[] = {
	{TN_LIFE_RESET, TN_LIFE_INIT, TN_LIFE_PARTIAL},
	{TN_LIFE_PARTIAL, TN_LIFE_ADD, TN_LIFE_PARTIAL},
	{TN_LIFE_PARTIAL, TN_LIFE_COMMIT, TN_LIFE_COMPLETE},
	{TN_LIFE_PARTIAL, TN_LIFE_TO_RESET, TN_LIFE_RESET},
	{TN_LIFE_COMPLETE, TN_LIFE_REGISTER, TN_LIFE_REGISTERED},
	{TN_LIFE_COMPLETE, TN_LIFE_TO_RESET, TN_LIFE_RESET},
	{TN_LIFE_REGISTERED, TN_LIFE_DROP, TN_LIFE_RESET},
};

static void each_step_leads_where_the_table_of_kvbm_says_or_nowhere(void **state)
{
	uint32_t forbidden = 0;

	for (unsigned from = 0; from < TN_LIVES; from++)
		for (unsigned step = 0; step < TN_LIFE_STEPS; step++) {
			int to = -EINVAL;

			for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
				if (allowed[i].from == from && allowed[i].step == step)
					to = (int)allowed[i].to;
			assert_int_equal(tn_life_next((enum tn_life)from, (enum tn_life_step)step), to);
			forbidden += to < 0;
		}
	assert_int_equal(forbidden, 17);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(each_step_leads_where_the_table_of_kvbm_says_or_nowhere)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
