/* SPDX-License-Identifier: Apache-2.0 */
/* Vigils of the owner: kept only where they pay, and never for longer than they may be. */
#include "core/vigil.h"
#include "tn_test.h"

#define US 1000u

/* An operation ends, and the next one is begun so much later; whether the owner was awake then. */
static bool next_after(struct tn_vigil *v, uint64_t *now_ns, uint64_t ns)
{
	uint64_t end_ns = *now_ns + ns;
	bool awake;

	tn_vigil_ended(v);
	for (awake = tn_vigil_keep(v, *now_ns); awake && *now_ns < end_ns; awake = tn_vigil_keep(v, *now_ns))
		*now_ns += US;
	*now_ns = end_ns;
	tn_vigil_begun(v, end_ns);
	return awake;
}

static void who_begins_again_soon_finds_the_owner_awake(void **state)
{
	struct tn_vigil v = {.able = true};
	uint64_t now = 7;

	(void)state;
	assert_false(next_after(&v, &now, 20 * US)); /* nothing is known yet */
	for (unsigned i = 0; i < 100; i++)
		assert_true(next_after(&v, &now, 20 * US));
	assert_int_equal(v.vigils, 100);
	assert_int_equal(v.used, 100);
}

static void a_vigil_in_vain_is_the_last_one(void **state)
{
	struct tn_vigil v = {.able = true};
	uint64_t now = 7;

	(void)state;
	next_after(&v, &now, 20 * US);
	for (unsigned i = 0; i < 100; i++)
		assert_false(next_after(&v, &now, 1000 * US));
	assert_int_equal(v.vigils, 1);
	assert_int_equal(v.used, 0);
	assert_false(next_after(&v, &now, 20 * US));
	assert_true(next_after(&v, &now, 20 * US));
}

static void a_vigil_has_an_end_though_no_operation_comes(void **state)
{
	struct tn_vigil v = {.able = true};
	uint64_t now = 7, from;

	(void)state;
	next_after(&v, &now, 20 * US);
	tn_vigil_ended(&v);
	from = now;
	while (tn_vigil_keep(&v, now))
		now += US;
	assert_in_range(now - from, TN_VIGIL_NS, TN_VIGIL_NS + US);
	for (unsigned i = 0; i < 100; i++, now += US)
		assert_false(tn_vigil_keep(&v, now));
}

static void who_had_to_wake_the_owner_is_soon_with_the_time_that_it_took(void **state)
{
	struct tn_vigil v = {.able = true};
	uint64_t now = 7;

	(void)state;
	assert_false(next_after(&v, &now, TN_VIGIL_SOON_NS - US));
	assert_true(next_after(&v, &now, 20 * US));
}

static void there_is_none_before_an_end_and_none_on_one_cpu(void **state)
{
	struct tn_vigil v = {.able = true}, alone = {.able = false};
	uint64_t now = 7;

	(void)state;
	assert_false(tn_vigil_keep(&v, now));
	tn_vigil_begun(&v, now);
	assert_false(tn_vigil_keep(&v, now));
	for (unsigned i = 0; i < 10; i++)
		assert_false(next_after(&alone, &now, 20 * US));
	assert_int_equal(alone.vigils, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_begins_again_soon_finds_the_owner_awake),
		cmocka_unit_test(a_vigil_in_vain_is_the_last_one),
		cmocka_unit_test(a_vigil_has_an_end_though_no_operation_comes),
		cmocka_unit_test(who_had_to_wake_the_owner_is_soon_with_the_time_that_it_took),
		cmocka_unit_test(there_is_none_before_an_end_and_none_on_one_cpu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
