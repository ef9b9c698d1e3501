/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disk keeps the I/O contract that the real engines keep: the same suite. */
#include "ioengine/io_contract.h"
#include "simdisk.h"

static int create(uint32_t depth, uint32_t short_percent, struct tn_io **out)
{
	struct tn_simdisk_opts o = {
		.seed = tn_test_seed(), .depth = depth, .submit_short_percent = short_percent, .keep_memory = true};
	struct tn_simdisk *disk;
	int err = tn_simdisk_create(&o, &disk);

	if (err == 0)
		*out = tn_simdisk_io(disk);
	return err;
}

static int create_exact(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	return create(depth, 0, out);
}

static int create_refusing(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	return create(depth, 30, out);
}

static void crash(struct tn_io *io)
{
	tn_simdisk_crash(tn_simdisk_of(io), TN_SIMDISK_DROP, 1);
}

int main(void)
{
	static const struct tn_contract_engine engines[] = {
		{"sim", create_exact, TN_CONTRACT_EXACT, crash},
		{"sim-refusing", create_refusing, 0, crash},
	};
	static struct CMUnitTest tests[128];
	size_t n = 0;

	for (size_t i = 0; i < 2; i++) {
		n = tn_contract_add(tests, n, 128, &engines[i], "simulated");
		n = tn_contract_add_files(tests, n, 128, &engines[i], "simulated");
	}
	return _cmocka_run_group_tests("simcontract", tests, n, NULL, NULL);
}
