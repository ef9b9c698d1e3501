/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tn_block_withdraw against pins on other threads: whoever found a block with a pin finds it in its place until he
 * lets go of it, and whoever withdrew it has it for himself.
 */
#include <pthread.h>
#include <sched.h>

#include "block/block.h"
#include "tn_test.h"

#define READERS 2u

struct place {
	struct tn_registry *reg;
	struct tn_key key;
	uint32_t taken; /* by the owner, who withdrew the block */
	uint32_t some_pinned;
	uint32_t stop;
	uint64_t pinned, missed, wrong;
};

static void *reader(void *arg)
{
	struct place *p = arg;
	uint64_t pinned = 0, missed = 0, wrong = 0;

	while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE)) {
		tn_block b;
		uint8_t tier;

		if (tn_registry_find(p->reg, 1, &p->key, 1, true, &b, &tier) == 0) {
			missed++;
			continue;
		}
		for (uint32_t k = 0; k < 20; k++)
			wrong += __atomic_load_n(&p->taken, __ATOMIC_SEQ_CST);
		tn_block_unpin(p->reg, b);
		if (pinned++ % 64 == 0) {
			__atomic_store_n(&p->some_pinned, 1, __ATOMIC_RELAXED);
			sched_yield(); /* the owner needs a moment without pins */
		}
	}
	__atomic_add_fetch(&p->pinned, pinned, __ATOMIC_RELAXED);
	__atomic_add_fetch(&p->missed, missed, __ATOMIC_RELAXED);
	__atomic_add_fetch(&p->wrong, wrong, __ATOMIC_RELAXED);
	return NULL;
}

static void a_pinned_block_is_never_withdrawn(void **state)
{
	struct tn_registry_opts opts = {.max_blocks = 64, .alloc = &tn_alloc_system};
	struct place p = {.key = {{1, 7}}};
	uint32_t withdrawn = 0, refused = 0, rounds = tn_test_soak() ? 20000000 : 400000;
	pthread_t t[READERS];
	tn_block b;

	assert_int_equal(tn_registry_create(&opts, &p.reg), 0);
	assert_int_equal(tn_block_adopt(p.reg, 1, &p.key, NULL, &b), 0);
	tn_block_set_residency(p.reg, b, TN_TIER_HOST, TN_PRESENT);
	for (uint32_t i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, reader, &p), 0);
	for (uint32_t i = 0; i < rounds || withdrawn == 0 || refused == 0 || !__atomic_load_n(&p.some_pinned, __ATOMIC_RELAXED); i++) {
		if (!tn_block_withdraw(p.reg, b, TN_TIER_HOST)) {
			refused++;
			continue;
		}
		withdrawn++;
		__atomic_store_n(&p.taken, 1, __ATOMIC_SEQ_CST);
		for (uint32_t k = 0; k < 20; k++)
			__atomic_load_n(&p.taken, __ATOMIC_SEQ_CST);
		__atomic_store_n(&p.taken, 0, __ATOMIC_SEQ_CST);
		tn_block_set_residency(p.reg, b, TN_TIER_HOST, TN_PRESENT);
	}
	__atomic_store_n(&p.stop, 1, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < READERS; i++)
		pthread_join(t[i], NULL);
	print_message("# %u withdrawn, %u refused, %llu pinned, %llu missed\n", withdrawn, refused,
		      (unsigned long long)p.pinned, (unsigned long long)p.missed);
	assert_int_equal(p.wrong, 0);
	assert_true(p.pinned > 0);
	assert_int_equal(tn_block_refs(p.reg, b), 0);
	tn_registry_destroy(p.reg);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(a_pinned_block_is_never_withdrawn)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
