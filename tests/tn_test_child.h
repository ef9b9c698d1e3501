/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that need a process of their own: they change the process for good, or may kill it. */
#ifndef TN_TEST_CHILD_H
#define TN_TEST_CHILD_H

#include <sys/wait.h>
#include <unistd.h>

#include "tn_test.h"

/*
 * Runs body(arg) in a child that is killed after a minute: its exit status, or 1000 + the signal that ended it. A failed
 * assertion aborts the child, because otherwise the child would run the parent's other tests.
 */
static inline int tn_test_in_child(int (*body)(void *arg), void *arg)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(60);
		setenv("CMOCKA_TEST_ABORT", "1", 1);
		_exit(body(arg));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#endif
