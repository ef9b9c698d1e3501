/* SPDX-License-Identifier: Apache-2.0 */
/* The first operations of a cache wait for no memory: whoever touches a hugepage first waits until the kernel has cleared it. */
#include <stdio.h>
#include <string.h>

#include "cache_rig.h"

/* KiB in hugepages that the process has. */
static unsigned long in_hugepages(void)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "r");
	unsigned long kib = 0;
	char line[256];

	assert_non_null(f);
	while (fgets(line, sizeof(line), f) && sscanf(line, "AnonHugePages: %lu", &kib) != 1)
		continue;
	fclose(f);
	return kib;
}

static void the_first_save_and_load_take_no_hugepages(void **state)
{
	unsigned long before;
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	r.o.cache.max_op_blocks = 8192;
	rig_must_open(&r);
	memset(r.s->memory, 1, r.s->memory_bytes);
	before = in_hugepages();
	assert_int_equal(rig_save(r.s, 1, 2, 0).stored, 2);
	assert_int_equal(rig_load(r.s, 1, 2), 2);
	assert_in_range(in_hugepages(), before, before + 4096); /* the kernel may collapse pages on its own */
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_save_and_load_take_no_hugepages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
