/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch directories: what is removed, and what must stay. Each test has a base of its own, itself a scratch directory. */
#include "tn_test.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab/scratch.h"

static char base[PATH_MAX / 4];

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");

	return tn_scratch_make(tmp && *tmp ? tmp : "/var/tmp", base, sizeof(base));
}

static int teardown(void **state)
{
	return tn_scratch_remove(base);
}

static void put(const char *dir, const char *name)
{
	char path[2 * PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "x", 1), 1);
	close(fd);
}

static bool is_there(const char *dir, const char *name)
{
	char path[2 * PATH_MAX];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return lstat(path, &st) == 0;
}

/* A process that makes a scratch directory and ends when it is killed; forked: another one of it lives on. *alive: of the last one. */
static pid_t run(char *dir, size_t bytes, bool forked, pid_t *alive)
{
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		pid_t child;

		if (tn_scratch_make(base, dir, bytes))
			_exit(1);
		put(dir, "tenuto.store");
		child = forked ? fork() : getpid();
		if (child == 0)
			for (;;)
				pause();
		(void)!write(ends[1], &child, sizeof(child));
		(void)!write(ends[1], dir, bytes);
		for (;;)
			pause();
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], alive, sizeof(*alive)), sizeof(*alive));
	assert_int_equal(read(ends[0], dir, bytes), bytes);
	close(ends[0]);
	return pid;
}

static void end(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void next_run(void)
{
	char dir[PATH_MAX];

	assert_int_equal(tn_scratch_make(base, dir, sizeof(dir)), 0);
	assert_true(is_there(dir, TN_SCRATCH_MARK));
	assert_int_equal(tn_scratch_remove(dir), 0);
	assert_false(is_there(dir, ""));
}

static void a_killed_run_leaves_its_directory_to_the_next_one_and_a_running_one_keeps_its_own(void **state)
{
	char killed[512] = "", running[512] = "";
	pid_t alive, a = run(killed, sizeof(killed), false, &alive), b = run(running, sizeof(running), false, &alive);

	next_run();
	assert_true(is_there(killed, "tenuto.store"));
	end(a);
	next_run();
	assert_false(is_there(killed, ""));
	assert_true(is_there(running, "tenuto.store"));
	end(b);
}

static void a_directory_stays_while_a_process_that_was_forked_lives(void **state)
{
	char dir[512] = "";
	pid_t child, parent = run(dir, sizeof(dir), true, &child);

	end(parent);
	next_run();
	assert_true(is_there(dir, "tenuto.store"));
	assert_int_equal(kill(child, SIGKILL), 0);
	while (is_there(dir, "")) /* its end takes a moment, and nobody waits for it here */
		next_run();
}

static void what_is_not_marked_or_has_another_name_or_is_a_link_stays(void **state)
{
	static const char *const names[] = {TN_SCRATCH_NAME "nomark", "tenuto-abcdef", TN_SCRATCH_NAME "marked-by-a-directory"};
	char path[3][1200], link[PATH_MAX], inside[PATH_MAX];

	for (unsigned i = 0; i < 3; i++) {
		snprintf(path[i], sizeof(path[i]), "%s/%s", base, names[i]);
		assert_int_equal(mkdir(path[i], 0700), 0);
		put(path[i], "precious");
	}
	put(path[1], TN_SCRATCH_MARK);
	snprintf(inside, sizeof(inside), "%s/" TN_SCRATCH_MARK, path[2]);
	assert_int_equal(mkdir(inside, 0700), 0);
	snprintf(link, sizeof(link), "%s/" TN_SCRATCH_NAME "linked", base);
	assert_int_equal(symlink(path[1], link), 0);
	put(base, TN_SCRATCH_NAME "a-file");
	next_run();
	for (unsigned i = 0; i < 3; i++)
		assert_true(is_there(path[i], "precious"));
	assert_true(is_there(link, "precious"));
	assert_true(is_there(base, TN_SCRATCH_NAME "a-file"));
}

static void links_inside_are_removed_and_not_followed(void **state)
{
	char killed[512] = "", outside[PATH_MAX], link[PATH_MAX];
	pid_t alive, pid = run(killed, sizeof(killed), false, &alive);

	snprintf(outside, sizeof(outside), "%s/outside", base);
	assert_int_equal(mkdir(outside, 0700), 0);
	put(outside, "precious");
	snprintf(link, sizeof(link), "%s/link", killed);
	assert_int_equal(symlink(outside, link), 0);
	end(pid);
	next_run();
	assert_false(is_there(killed, ""));
	assert_true(is_there(outside, "precious"));
}

static void another_users_directory_stays(void **state)
{
	char killed[512] = "";
	pid_t alive, pid;

	if (geteuid())
		tn_test_skip("only root gives files away");
	pid = run(killed, sizeof(killed), false, &alive);
	end(pid);
	assert_int_equal(chown(killed, 1, 1), 0);
	next_run();
	assert_true(is_there(killed, "tenuto.store"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_killed_run_leaves_its_directory_to_the_next_one_and_a_running_one_keeps_its_own, setup, teardown),
		cmocka_unit_test_setup_teardown(a_directory_stays_while_a_process_that_was_forked_lives, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_not_marked_or_has_another_name_or_is_a_link_stays, setup, teardown),
		cmocka_unit_test_setup_teardown(links_inside_are_removed_and_not_followed, setup, teardown),
		cmocka_unit_test_setup_teardown(another_users_directory_stays, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
