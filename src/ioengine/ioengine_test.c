/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing an engine: options, and what happens where the kernel forbids io_uring. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tenuto/error.h>

#include "ioengine/ioengine.h"
#include "tn_test.h"

static struct tn_ioengine_opts defaults(void)
{
	return (struct tn_ioengine_opts){.alloc = &tn_alloc_system, .clock = &tn_clock_system};
}

static void options_out_of_range_are_refused_by_name(void **state)
{
	static const struct {
		uint32_t kind, depth, threads;
		const char *named;
	} bad[] = {{0, 3, 0, "depth 3"}, {0, 8192, 0, "depth 8192"}, {0, 0, 65, "threads 65"}, {7, 0, 0, "kind 7"}};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct tn_ioengine_opts o = defaults();
		struct tn_io *io;

		o.kind = bad[i].kind;
		o.depth = bad[i].depth;
		o.threads = bad[i].threads;
		assert_int_equal(tn_ioengine_create(&o, &io), -EINVAL);
		assert_non_null(strstr(tn_error_last()->text, bad[i].named));
	}
}

static void a_failed_allocation_fails_the_creation_and_leaks_nothing(void **state)
{
	for (uint32_t kind = TN_IOENGINE_URING; kind <= TN_IOENGINE_POSIX; kind++) {
		struct tn_ioengine_opts o = defaults();
		struct tn_alloc_counter c;
		struct tn_io *io;

		tn_alloc_counter_init(&c);
		c.fail_after = 0;
		o.alloc = &c.alloc;
		o.kind = kind;
		assert_int_equal(tn_ioengine_create(&o, &io), -ENOMEM);
		assert_int_equal(c.live_bytes, 0);
	}
}

/* As the seccomp profile of containers does. */
static int forbid_io_uring(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof(code) / sizeof(code[0]), code};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) ? -errno : 0;
}

static int choose_where_forbidden(void)
{
	struct tn_ioengine_opts o = defaults();
	struct tn_io *io;
	int chosen;

	if (forbid_io_uring())
		return TN_TEST_SKIP;
	o.kind = TN_IOENGINE_URING;
	if (tn_ioengine_create(&o, &io) != -EPERM || !strstr(tn_error_last()->text, "io_uring"))
		return 1;
	o.kind = TN_IOENGINE_AUTO;
	if (tn_ioengine_create(&o, &io))
		return 2;
	chosen = strcmp(io->ops->name, "posix") ? 3 : 0;
	tn_io_destroy(io);
	return chosen;
}

static void where_the_kernel_forbids_io_uring_threads_do_it(void **state)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(choose_where_forbidden());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == TN_TEST_SKIP)
		tn_test_skip("no seccomp");
	assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_out_of_range_are_refused_by_name),
		cmocka_unit_test(a_failed_allocation_fails_the_creation_and_leaks_nothing),
		cmocka_unit_test(where_the_kernel_forbids_io_uring_threads_do_it),
	};

	return cmocka_run_group_tests_name("ioengine", tests, NULL, NULL);
}
