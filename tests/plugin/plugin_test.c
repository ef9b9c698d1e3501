/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loader of plugins with real files. Each attempt has a process of its own, because an opened plugin stays. The plugins lie beside this program
 * (meson.build). Run as --open NAME it opens one plugin and prints what came of it: that form is copied and made setuid.
 */
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <tenuto/device_memory.h>
#include <tenuto/plugin.h>

#include "tn_test.h"
#include "tn_test_child.h"

/* Then each plugin has constructors: the sanitizer's. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#define NOBODY 65534
#define THREADS 8

/* What one process tried, and what came of it; shared with the parent. */
struct attempt {
	const char *environment, *chosen, *name; /* chosen: for tn_plugin_path */
	int rc, chosen_rc;
	char text[448];
};

static char top[PATH_MAX]; /* of this test: removed at its end */
static char built[PATH_MAX]; /* where the plugins were built: others may write there */
static char refused[PATH_MAX]; /* those of rig.c */

/* WHERE/NAME; kept until the end of the program. */
static const char *in(const char *where, const char *name)
{
	static char text[65536];
	static size_t used;
	char *path = text + used;
	size_t a = strlen(where), b = strlen(name);

	if (a + b + 2 > sizeof(text) - used)
		abort();
	memcpy(path, where, a);
	path[a] = '/';
	memcpy(path + a + 1, name, b + 1);
	used += a + b + 2;
	return path;
}

static void copy_file(const char *from, const char *to, mode_t mode)
{
	int in_fd = open(from, O_RDONLY | O_CLOEXEC), out_fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	char bytes[65536];
	ssize_t n;

	assert_true(in_fd >= 0);
	assert_true(out_fd >= 0);
	while ((n = read(in_fd, bytes, sizeof(bytes))) > 0)
		assert_int_equal(write(out_fd, bytes, (size_t)n), n);
	assert_int_equal(fchmod(out_fd, mode), 0);
	close(in_fd);
	close(out_fd);
}

/* A new directory with the example plugin in it. */
static const char *with_example(const char *name)
{
	const char *dir = in(top, name);

	assert_int_equal(mkdir(dir, 0755), 0);
	copy_file(in(built, "libtenuto_example.so"), in(dir, "libtenuto_example.so"), 0644);
	return dir;
}

static void put_bytes(const char *path, const char *bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, strlen(bytes)), (ssize_t)strlen(bytes));
	close(fd);
}

static int attempt_child(void *arg)
{
	const struct tn_device_driver *driver = NULL, *again = NULL;
	struct attempt *a = arg;

	unsetenv("TENUTO_PLUGIN_PATH");
	if (a->environment)
		setenv("TENUTO_PLUGIN_PATH", a->environment, 1);
	if (a->chosen)
		a->chosen_rc = tn_plugin_path(a->chosen);
	if (a->chosen_rc == 0)
		a->rc = tn_device_driver_open(a->name, &driver);
	snprintf(a->text, sizeof(a->text), "%s", tn_error_last()->text);
	if (a->rc || a->chosen_rc)
		return driver ? 2 : 0;
	return tn_device_driver_open(a->name, &again) || again != driver || driver->ops->count(driver, NULL, 0) != 1;
}

static struct attempt *attempt(const char *environment, const char *chosen, const char *name)
{
	static struct attempt *a;

	if (!a)
		a = mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(a != MAP_FAILED);
	*a = (struct attempt){.environment = environment, .chosen = chosen, .name = name};
	assert_int_equal(tn_test_in_child(attempt_child, a), 0);
	return a;
}

static void expect_text(const char *text, const char *word)
{
	if (!strstr(text, word)) {
		print_error("'%s' is not in: %s\n", word, text);
		fail();
	}
}

/* That the plugin of a directory is refused, and what the error names. */
static void expect_refused(const char *directories, const char *name, int rc, const char *word, const char *word2)
{
	struct attempt *a = attempt(directories, NULL, name);

	if (a->rc != rc)
		print_error("%s in %s: %d: %s\n", name, directories, a->rc, a->text);
	assert_int_equal(a->rc, rc);
	expect_text(a->text, word);
	expect_text(a->text, word2);
}

static void expect_opened(const char *directories, const char *name)
{
	struct attempt *a = attempt(directories, NULL, name);

	if (a->rc)
		print_error("%s in %s: %s\n", name, directories, a->text);
	assert_int_equal(a->rc, 0);
}

/* ---- where is looked ------------------------------------------------------------------------------ */

static void a_plugin_opens_once_from_a_directory_of_the_environment(void **state)
{
	expect_opened(with_example("opens"), "example");
}

static int removed_child(void *arg)
{
	const struct tn_device_driver *driver, *again;

	setenv("TENUTO_PLUGIN_PATH", arg, 1);
	if (tn_device_driver_open("example", &driver) || unlink(in(arg, "libtenuto_example.so")))
		return 2;
	return tn_device_driver_open("example", &again) || again != driver;
}

static void a_plugin_that_is_open_is_not_looked_for_again(void **state)
{
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%s", with_example("removed"));
	assert_int_equal(tn_test_in_child(removed_child, dir), 0);
}

static void a_plugin_that_is_nowhere_is_told_with_every_place(void **state)
{
	const char *empty = in(top, "empty"), *gone = in(top, "gone");
	char both[2 * PATH_MAX];

	assert_int_equal(mkdir(empty, 0755), 0);
	snprintf(both, sizeof(both), "%s:%s", empty, gone);
	expect_refused(both, "example", -ENOENT, empty, gone);
	expect_refused(both, "example", -ENOENT, "libtenuto_example.so", "TENUTO_PLUGIN_PATH");
	expect_refused(NULL, "example", -ENOENT, TN_PLUGIN_DIRECTORY, "install it");
}

static void the_first_directory_that_has_the_file_decides(void **state)
{
	const char *bad = in(top, "first-bad"), *good = with_example("then-good");
	char both[2 * PATH_MAX];

	assert_int_equal(mkdir(bad, 0755), 0);
	snprintf(both, sizeof(both), "%s:%s", bad, good);
	expect_opened(both, "example");
	put_bytes(in(bad, "libtenuto_example.so"), "text");
	expect_refused(both, "example", -EPROTO, bad, "ELF");
}

static void a_relative_directory_is_refused_and_an_empty_one_left_out(void **state)
{
	const char *good = with_example("relative");
	char list[PATH_MAX];

	assert_int_equal(chdir(top), 0);
	expect_refused("relative", "example", -EINVAL, "'relative'", "absolute");
	snprintf(list, sizeof(list), "::%s:", good);
	expect_opened(list, "example");
	assert_int_equal(chdir(good), 0);
	expect_refused(":", "example", -ENOENT, TN_PLUGIN_DIRECTORY, "example");
	assert_int_equal(chdir("/"), 0);
}

static void a_name_has_no_path_in_it(void **state)
{
	static const char *const bad[] = {"", "..", "../example", "Example", "a-b", "a.b", "example/",
					  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		expect_refused(refused, bad[i], -EINVAL, bad[i], "a to z");
}

static void a_program_chooses_the_directories_itself(void **state)
{
	const char *good = with_example("chosen"), *open_to_all = with_example("chosen-open");
	struct attempt *a = attempt(in(top, "no"), good, "example");

	assert_int_equal(a->rc, 0);
	a = attempt(good, "", "example"); /* then the environment does not count */
	assert_int_equal(a->rc, -ENOENT);
	a = attempt(good, "here", "example");
	assert_int_equal(a->chosen_rc, -EINVAL);
	a = attempt(good, in(top, "no"), "example");
	assert_int_equal(a->chosen_rc, -ENOENT);
	assert_int_equal(chmod(open_to_all, 0777), 0);
	a = attempt(good, open_to_all, "example");
	assert_int_equal(a->chosen_rc, -EPERM);
	expect_text(a->text, "everyone");
}

/* ---- who may write -------------------------------------------------------------------------------- */

static void what_others_may_write_is_refused(void **state)
{
	const char *dir = with_example("writable"), *file = in(dir, "libtenuto_example.so"), *inner = in(dir, "inner");

	assert_int_equal(chmod(file, 0664), 0);
	expect_refused(dir, "example", -EPERM, "libtenuto_example.so' may be written by its group", "chmod go-w");
	assert_int_equal(chmod(file, 0646), 0);
	expect_refused(dir, "example", -EPERM, "libtenuto_example.so' may be written by everyone", "0646");
	assert_int_equal(chmod(file, 0644), 0);
	assert_int_equal(chmod(dir, 0775), 0);
	expect_refused(dir, "example", -EPERM, "writable' may be written by its group", "0775");
	assert_int_equal(mkdir(inner, 0755), 0); /* the directory above is the one that others may write */
	copy_file(file, in(inner, "libtenuto_example.so"), 0644);
	expect_refused(inner, "example", -EPERM, "writable' may be written by its group", "0775");
	assert_int_equal(chmod(dir, 0755), 0);
	expect_opened(inner, "example");
}

static void a_sticky_directory_may_lie_above_but_not_hold_plugins(void **state)
{
	const char *dir = with_example("sticky"), *inner = in(dir, "inner");

	assert_int_equal(chmod(dir, 01777), 0);
	expect_refused(dir, "example", -EPERM, "sticky' may be written by everyone", "1777");
	assert_int_equal(mkdir(inner, 0755), 0);
	copy_file(in(dir, "libtenuto_example.so"), in(inner, "libtenuto_example.so"), 0644);
	expect_opened(inner, "example");
}

static void what_another_user_owns_is_refused(void **state)
{
	const char *dir = with_example("owner"), *file = in(dir, "libtenuto_example.so");

	if (geteuid() != 0)
		tn_test_skip("only root gives files away");
	assert_int_equal(chown(file, NOBODY, 0), 0);
	expect_refused(dir, "example", -EPERM, "libtenuto_example.so' belongs to uid 65534", "uid 0");
	assert_int_equal(chown(file, 0, 0), 0);
	assert_int_equal(chown(dir, NOBODY, 0), 0);
	expect_refused(dir, "example", -EPERM, "owner' belongs to uid 65534", "uid 0");
}

static void links_are_resolved_before_the_check(void **state)
{
	const char *bad = with_example("target"), *good = with_example("good-target"), *links = in(top, "links");
	const char *link_of_dir = in(top, "link-of-dir"), *file = in(links, "libtenuto_example.so");

	assert_int_equal(chmod(bad, 0777), 0);
	assert_int_equal(mkdir(links, 0755), 0);
	assert_int_equal(symlink(in(bad, "libtenuto_example.so"), file), 0);
	expect_refused(links, "example", -EPERM, "target' may be written by everyone", "0777");
	assert_int_equal(symlink(bad, link_of_dir), 0);
	expect_refused(link_of_dir, "example", -EPERM, "target' may be written by everyone", "0777");
	assert_int_equal(unlink(file), 0);
	assert_int_equal(symlink(in(good, "libtenuto_example.so"), file), 0);
	expect_opened(links, "example");
	assert_int_equal(chmod(links, 0777), 0); /* others could put another link there */
	expect_refused(links, "example", -EPERM, "links' may be written by everyone", "0777");
	assert_int_equal(chmod(links, 0755), 0);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(symlink(in(top, "nothing"), file), 0);
	expect_refused(links, "example", -ENOENT, "libtenuto_example.so", "No such file");
}

/* ---- what is no plugin ---------------------------------------------------------------------------- */

static void what_is_no_plugin_is_refused_before_it_runs(void **state)
{
	expect_refused(refused, "abi", -EPROTO, "ABI 2", "libtenuto_abi.so");
	expect_refused(refused, "bytes", -EPROTO, "24 bytes", "headers of Tenuto");
	expect_refused(refused, "kind", -EPROTO, "kind 77", "libtenuto_kind.so");
	expect_refused(refused, "symbol", -EPROTO, "no constant tn_plugin", "libtenuto_symbol.so");
	expect_refused(refused, "unlinked", -ELIBACC, "tn_rig_text_that_nobody_has", "libtenuto_unlinked.so");
	expect_refused(refused, "calls", -EPROTO, "ABI 9", "libtenuto_calls.so");
	expect_refused(refused, "lacks", -EPROTO, "always there", "libtenuto_lacks.so");
	expect_refused(refused, "table", -EPROTO, "without a table", "libtenuto_table.so");
#ifndef SANITIZED
	expect_refused(refused, "constructor", -EPROTO, "has constructors", "libtenuto_constructor.so");
#endif
}

static void what_is_no_file_of_code_is_refused(void **state)
{
	const char *dir = in(top, "odd");

	assert_int_equal(mkdir(dir, 0755), 0);
	put_bytes(in(dir, "libtenuto_text.so"), "#!/bin/sh\n");
	expect_refused(dir, "text", -EPROTO, "no ELF file", "libtenuto_text.so");
	put_bytes(in(dir, "libtenuto_nothing.so"), "");
	expect_refused(dir, "nothing", -EPROTO, "is empty", "libtenuto_nothing.so");
	assert_int_equal(mkfifo(in(dir, "libtenuto_fifo.so"), 0600), 0);
	expect_refused(dir, "fifo", -EPERM, "no regular file", "libtenuto_fifo.so");
	assert_int_equal(mkdir(in(dir, "libtenuto_dir.so"), 0755), 0);
	expect_refused(dir, "dir", -EPERM, "no regular file", "libtenuto_dir.so");
	copy_file(in(built, "libtenuto_example.so"), in(dir, "libtenuto_other.so"), 0644);
	expect_refused(dir, "other", -EPROTO, "is plugin 'example'", "libtenuto_other.so");
	copy_file("/proc/self/exe", in(dir, "libtenuto_program.so"), 0755);
	expect_refused(dir, "program", -EPROTO, "tn_plugin", "libtenuto_program.so");
	with_example("$LIB");
	expect_refused(in(top, "$LIB"), "example", -EINVAL, "with a $ in it", "$LIB");
}

/* ---- rights, threads, lists ------------------------------------------------------------------------ */

/* As a user without rights runs it; prints to `out`. */
static int run_as_nobody(void *arg)
{
	char *const *argument = arg;

	if (dup2(open(argument[3], O_WRONLY), STDOUT_FILENO) < 0 || setgid(NOBODY) || setuid(NOBODY))
		return 98;
	setenv("TENUTO_PLUGIN_PATH", argument[4], 1);
	execl(argument[0], argument[0], argument[1], argument[2], (char *)NULL);
	return 97;
}

static void a_setuid_program_does_not_follow_the_environment(void **state)
{
	const char *good = with_example("secure"), *program = in(top, "setuid-test"), *out = in(top, "said");
	const char *argument[] = {program, "--open", "example", out, good};
	char said[1024] = "";
	int fd;

	if (geteuid() != 0)
		tn_test_skip("only root makes a program setuid root");
	copy_file("/proc/self/exe", program, 0755);
	put_bytes(out, "");
	assert_int_equal(chmod(out, 0666), 0);
	assert_int_equal(tn_test_in_child(run_as_nobody, argument), 0); /* no rights to gain: the environment counts */
	assert_int_equal(chmod(program, 04755), 0);
	assert_int_equal(tn_test_in_child(run_as_nobody, argument), ENOENT);
	fd = open(out, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_true(read(fd, said, sizeof(said) - 1) > 0);
	close(fd);
	expect_text(said, "does not count");
	expect_text(said, TN_PLUGIN_DIRECTORY);
}

static void *open_example(void *arg)
{
	pthread_barrier_t *all = arg;
	const struct tn_device_driver *driver = NULL;

	pthread_barrier_wait(all);
	return (void *)(uintptr_t)(tn_device_driver_open("example", &driver) == 0 ? driver : NULL);
}

static int threads_child(void *arg)
{
	pthread_barrier_t all;
	pthread_t thread[THREADS];
	void *driver[THREADS];

	setenv("TENUTO_PLUGIN_PATH", arg, 1);
	pthread_barrier_init(&all, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, open_example, &all))
			return 2;
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], &driver[i]);
	for (int i = 0; i < THREADS; i++)
		if (!driver[i] || driver[i] != driver[0])
			return 3;
	return 0;
}

static void threads_that_open_at_once_get_the_same_driver(void **state)
{
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%s", with_example("threads"));
	for (int i = 0; i < 20; i++)
		assert_int_equal(tn_test_in_child(threads_child, dir), 0);
}

static int list_child(void *arg)
{
	static struct tn_plugin_info info[8];
	const char *const *path = arg;
	char list[3 * PATH_MAX];

	snprintf(list, sizeof(list), "%s:%s:%s", path[0], path[1], path[2]);
	setenv("TENUTO_PLUGIN_PATH", list, 1);
	if (tn_plugin_list(info, 8) != 7 || tn_plugin_list(info, 8) != 7)
		return 2;
	if (info[0].name[0] || info[0].status || strcmp(info[0].path, path[0]) != 0)
		return 3;
	if (strcmp(info[1].name, "bad") != 0 || info[1].status != -EPROTO || !strstr(info[1].why, "ELF"))
		return 4;
	if (strcmp(info[2].name, "example") != 0 || info[2].status || info[2].kind != TN_PLUGIN_DEVICE || strcmp(info[2].built_for, tn_version()) != 0)
		return 5;
	if (strcmp(info[3].path, path[1]) != 0 || info[3].status)
		return 6;
	if (strcmp(info[4].name, "example") != 0 || info[4].status != -EEXIST || !strstr(info[4].why, path[0]))
		return 7;
	if (strcmp(info[5].path, path[2]) != 0 || info[5].status != -EPERM || strcmp(info[6].path, TN_PLUGIN_DIRECTORY) != 0)
		return 8;
	return tn_plugin_list(info, 1) == 7 ? 0 : 9;
}

static void a_list_has_each_directory_and_each_plugin(void **state)
{
	const char *path[] = {with_example("list"), with_example("list-hidden"), with_example("list-refused")};

	put_bytes(in(path[0], "libtenuto_bad.so"), "text");
	put_bytes(in(path[0], "libtenuto.so"), "text");
	assert_int_equal(chmod(path[2], 0777), 0);
	assert_int_equal(tn_test_in_child(list_child, path), 0);
}

static void a_plugin_is_built_for_the_library_s_version(void **state)
{
	assert_string_equal(TN_PLUGIN_BUILT_FOR, tn_version());
}

static int open_and_tell(const char *name)
{
	const struct tn_device_driver *driver;
	int rc = tn_device_driver_open(name, &driver);

	printf("%s\n", rc ? tn_error_last()->text : "open");
	return -rc;
}

static int copy_rigs(void **state)
{
	static const char *const rigs[] = {"abi", "bytes", "kind", "symbol", "constructor", "unlinked", "calls", "lacks", "table"};
	char file[64];

	snprintf(refused, sizeof(refused), "%s", in(top, "refused"));
	assert_int_equal(mkdir(refused, 0755), 0);
	for (size_t i = 0; i < sizeof(rigs) / sizeof(rigs[0]); i++) {
		snprintf(file, sizeof(file), "libtenuto_%s.so", rigs[i]);
		copy_file(in(built, file), in(refused, file), 0644);
	}
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	return remove(path);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_plugin_opens_once_from_a_directory_of_the_environment),
		cmocka_unit_test(a_plugin_that_is_open_is_not_looked_for_again),
		cmocka_unit_test(a_plugin_that_is_nowhere_is_told_with_every_place),
		cmocka_unit_test(the_first_directory_that_has_the_file_decides),
		cmocka_unit_test(a_relative_directory_is_refused_and_an_empty_one_left_out),
		cmocka_unit_test(a_name_has_no_path_in_it),
		cmocka_unit_test(a_program_chooses_the_directories_itself),
		cmocka_unit_test(what_others_may_write_is_refused),
		cmocka_unit_test(a_sticky_directory_may_lie_above_but_not_hold_plugins),
		cmocka_unit_test(what_another_user_owns_is_refused),
		cmocka_unit_test(links_are_resolved_before_the_check),
		cmocka_unit_test(what_is_no_plugin_is_refused_before_it_runs),
		cmocka_unit_test(what_is_no_file_of_code_is_refused),
		cmocka_unit_test(a_setuid_program_does_not_follow_the_environment),
		cmocka_unit_test(threads_that_open_at_once_get_the_same_driver),
		cmocka_unit_test(a_list_has_each_directory_and_each_plugin),
		cmocka_unit_test(a_plugin_is_built_for_the_library_s_version),
	};
	ssize_t n;
	int rc;

	if (argc == 3 && strcmp(argv[1], "--open") == 0)
		return open_and_tell(argv[2]);
	n = readlink("/proc/self/exe", built, sizeof(built) - 1);
	if (n <= 0)
		return tn_test_skip_all("no /proc");
	*strrchr(built, '/') = '\0';
	snprintf(top, sizeof(top), "/var/tmp/tn-plugin-XXXXXX");
	if (!mkdtemp(top) || chmod(top, 0755))
		return 1;
	rc = cmocka_run_group_tests(tests, copy_rigs, NULL);
	nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return rc;
}
