/* SPDX-License-Identifier: Apache-2.0 */
/* What the loader reads of a plugin's file before it is linked. tests/fuzz/fuzz_plugin.c has files of any bytes. */
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/plugin.h>

#include "plugin/elf.h"
#include "tn_test.h"

static unsigned char *good; /* the example plugin's file */
static size_t good_bytes;

static int read_front(const void *file, size_t bytes, struct tn_plugin *front)
{
	return tn_elf_constant(file, bytes, "FILE", "tn_plugin", front, offsetof(struct tn_plugin, name));
}

static void the_numbers_of_a_plugin_are_read_from_its_file(void **state)
{
	struct tn_plugin front = {0};

	assert_int_equal(read_front(good, good_bytes, &front), 0);
	assert_int_equal(front.size, sizeof(front));
	assert_int_equal(front.abi, TN_PLUGIN_ABI);
	assert_int_equal(front.kind, TN_PLUGIN_DEVICE);
}

/* The copy ends at a page that may not be touched. */
static void a_file_that_ends_anywhere_is_refused(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (good_bytes + page - 1) / page * page;
	unsigned char *guarded = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct tn_plugin front;

	assert_true(guarded != MAP_FAILED);
	assert_int_equal(mprotect(guarded + pages, page, PROT_NONE), 0);
	for (size_t bytes = 0; bytes < good_bytes; bytes++) {
		unsigned char *copy = guarded + pages - bytes;

		memcpy(copy, good, bytes);
		assert_int_equal(read_front(copy, bytes, &front), -EPROTO);
	}
	munmap(guarded, pages + page);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_numbers_of_a_plugin_are_read_from_its_file),
		cmocka_unit_test(a_file_that_ends_anywhere_is_refused),
	};
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 32);
	struct stat st;
	int fd;

	if (n <= 0)
		return tn_test_skip_all("no /proc");
	path[n] = '\0';
	memcpy(strrchr(path, '/'), "/libtenuto_example.so", sizeof("/libtenuto_example.so"));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		return 1;
	good_bytes = (size_t)st.st_size;
	good = mmap(NULL, good_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	return good == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
