/* SPDX-License-Identifier: Apache-2.0 */
/* The memory limit of a process, from the files that the kernel shows of its cgroups. */
#include "base/memory_limit.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tn_test.h"

#define MIB (1ull << 20)

static char root[64];

/* A file below root, with its directories. */
static void put(const char *path, const char *text)
{
	char whole[512];
	FILE *f;

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	for (char *at = strchr(whole + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
		*at = '\0';
		mkdir(whole, 0700);
		*at = '/';
	}
	f = fopen(whole, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static int make_root(void **state)
{
	snprintf(root, sizeof(root), "/tmp/tenuto-cgroup-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static int remove_root(void **state)
{
	return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void is(uint64_t bytes, const char *says)
{
	char what[512];

	assert_int_equal(tn_memory_limit(root, what, sizeof(what)), bytes);
	if (!strstr(what, says))
		fail_msg("\"%s\" does not say \"%s\"", what, says);
}

static uint64_t machine(void)
{
	char what[64];

	return tn_memory_limit("/nowhere", what, sizeof(what));
}

#define MOUNTS1 "30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" \
		"31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n" \
		"32 30 0:28 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
#define MOUNTS2 "30 25 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

static void without_a_limit_it_is_the_machines_memory(void **state)
{
	is(machine(), "machine");
	put("/proc/self/mountinfo", MOUNTS2);
	put("/proc/self/cgroup", "0::/a\n");
	put("/sys/fs/cgroup/a/memory.max", "max\n");
	is(machine(), "machine");
	put("/sys/fs/cgroup/a/memory.max", "9223372036854771712\n");
	is(machine(), "machine");
}

static void the_lowest_limit_of_a_cgroup_and_its_ancestors_counts(void **state)
{
	put("/proc/self/mountinfo", MOUNTS2);
	put("/proc/self/cgroup", "0::/a/b/c\n");
	put("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
	put("/sys/fs/cgroup/a/b/memory.max", "7340032\n");
	put("/sys/fs/cgroup/a/memory.max", "8388608\n");
	is(7 * MIB, "/sys/fs/cgroup/a/b/memory.max");
	put("/sys/fs/cgroup/a/memory.max", "6291456\n");
	is(6 * MIB, "/sys/fs/cgroup/a/memory.max");
	put("/sys/fs/cgroup/memory.max", "5242880\n"); /* as a container sees its own */
	is(5 * MIB, "cgroup (/sys/fs/cgroup/memory.max");
}

static void the_first_version_counts_likewise(void **state)
{
	put("/proc/self/mountinfo", MOUNTS1);
	put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/a/b\n0::/\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "8388608\n");
	put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9437184\n");
	is(8 * MIB, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
}

static void a_container_sees_its_own_cgroup_in_the_place_of_all(void **state)
{
	put("/proc/self/mountinfo", "32 30 0:28 /docker/1f /sys/fs/cgroup/memory ro master:9 - cgroup cgroup rw,memory\n");
	put("/proc/self/cgroup", "4:memory:/docker/1f/child\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "8388608\n");
	put("/sys/fs/cgroup/memory/child/memory.limit_in_bytes", "9437184\n");
	is(8 * MIB, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
	put("/sys/fs/cgroup/memory/child/memory.limit_in_bytes", "7340032\n");
	is(7 * MIB, "child");
	put("/proc/self/cgroup", "4:memory:/docker/1f2\n");
	is(8 * MIB, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
	put("/proc/self/cgroup", "4:memory:/../other\n");
	is(8 * MIB, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

static void files_without_sense_limit_nothing(void **state)
{
	put("/proc/self/mountinfo", "\n - \n - cgroup2\n1 2 3 - cgroup2 x y\n" MOUNTS2);
	put("/proc/self/cgroup", "no colon\n:\n::\n0::/a");
	is(machine(), "machine");
	put("/sys/fs/cgroup/a/memory.max", "");
	is(machine(), "machine");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(without_a_limit_it_is_the_machines_memory, make_root, remove_root),
		cmocka_unit_test_setup_teardown(the_lowest_limit_of_a_cgroup_and_its_ancestors_counts, make_root, remove_root),
		cmocka_unit_test_setup_teardown(the_first_version_counts_likewise, make_root, remove_root),
		cmocka_unit_test_setup_teardown(a_container_sees_its_own_cgroup_in_the_place_of_all, make_root, remove_root),
		cmocka_unit_test_setup_teardown(files_without_sense_limit_nothing, make_root, remove_root),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
