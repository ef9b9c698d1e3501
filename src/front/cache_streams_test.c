/* SPDX-License-Identifier: Apache-2.0 */
/* Processes whose stdin, stdout and stderr are closed: what they write to those descriptors reaches no file of a store and no memory. */
#include <fcntl.h>

#include "session_rig.h"

/* A log line on each stream, as a program writes it that does not know that they are closed. */
static void write_to_the_streams(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++) {
		assert_int_equal(write(fd, "a line of a log\n", 16), -1);
		assert_int_equal(errno, EBADF);
	}
}

static void close_the_streams(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		close(fd);
}

static int own(const char *dir, const char *engine)
{
	uint64_t page;
	char path[PATH];
	struct rig r;
	void *memory;

	init_in(dir, &r);
	r.o.cache.io_engine = engine;
	socket_path(&r, path);
	close_the_streams();
	rig_must_open(&r);
	write_to_the_streams();
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	assert_int_equal(rig_save(r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(tn_memory_alloc(1u << 20, &page, &memory), 0);
	write_to_the_streams();
	for (int i = 0; i < 3; i++) { /* each session has descriptors of its own */
		struct rig mine;

		attach(dir, &mine);
		write_to_the_streams();
		assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
		write_to_the_streams();
		detach(&mine);
	}
	assert_int_equal(tn_memory_free(memory), 0);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(rig_close(&r), 0);
	return 0;
}

static int own_with_io_uring(const char *dir)
{
	return own(dir, "auto");
}

static int own_with_threads(const char *dir)
{
	return own(dir, "posix");
}

static void no_file_of_a_store_has_the_number_of_a_stream(void **state)
{
	static const char *const owners[] = {"own_with_io_uring", "own_with_threads"};

	for (size_t i = 0; i < sizeof(owners) / sizeof(owners[0]); i++) {
		struct rig r;

		rig_init(&r, 64u << 20, 0, 64);
		assert_int_equal(end_of(start(owners[i], &r)), 0);
		rig_must_open(&r);
		assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
		rig_tear_down(&r);
	}
}

static int attach_without_streams(const char *dir)
{
	struct rig r;

	close_the_streams();
	attach(dir, &r);
	write_to_the_streams();
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	write_to_the_streams();
	detach(&r);
	return 0;
}

static void no_descriptor_of_a_session_has_the_number_of_a_stream(void **state)
{
	struct rig r;

	set_up(&r);
	assert_int_equal(end_of(start("attach_without_streams", &r)), 0);
	rig_tear_down(&r);
}

int main(int argc, char **argv)
{
	static const struct body bodies[] = {
		{"own_with_io_uring", own_with_io_uring},
		{"own_with_threads", own_with_threads},
		{"attach_without_streams", attach_without_streams},
		{NULL, NULL},
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_file_of_a_store_has_the_number_of_a_stream),
		cmocka_unit_test(no_descriptor_of_a_session_has_the_number_of_a_stream),
	};
	int rc = run_body(argc, argv, bodies);

	return rc >= 0 ? rc : cmocka_run_group_tests(tests, NULL, NULL);
}
