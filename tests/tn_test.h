/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every test program includes: cmocka with its prerequisites, the seed of the run, and the deadline of waits.
 *
 * TN_SEED=<n> sets the seed. scripts/run_tests.py sets a seed per commit, and random seeds in `make soak`; a program that
 * is run by hand has TN_TEST_SEED. The seed is printed as a TAP comment, and again after a failure, with the command that
 * repeats it. A test of many cases gives case i the seed tn_test_seed() + i: TN_SEED=<the seed of a failed case> begins with
 * that case. TN_SOAK=1 (make soak) asks for the long form.
 */
#ifndef TN_TEST_H
#define TN_TEST_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define TN_TEST_SKIP 77
#define TN_TEST_SEED 1
#define TN_TEST_SECOND 1000000000ull

/* Whether ThreadSanitizer watches this program. It has nothing to see where one thread runs alone, and takes ten times as long. */
#if defined(__SANITIZE_THREAD__)
#define TN_TEST_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TN_TEST_THREAD_SANITIZER 1
#endif
#endif
#ifndef TN_TEST_THREAD_SANITIZER
#define TN_TEST_THREAD_SANITIZER 0
#endif

/* Whether AddressSanitizer does. It keeps what was freed for a while, and clang 14's allocator is not ready for a fork while other threads allocate. */
#if defined(__SANITIZE_ADDRESS__)
#define TN_TEST_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TN_TEST_ADDRESS_SANITIZER 1
#endif
#endif
#ifndef TN_TEST_ADDRESS_SANITIZER
#define TN_TEST_ADDRESS_SANITIZER 0
#endif

/* Whether the long form of a test is asked for: a quarter of an hour is fine then, otherwise seconds. */
static inline int tn_test_soak(void)
{
	const char *s = getenv("TN_SOAK");

	return s && *s && *s != '0';
}

/*
 * How many cases a test of @n random ones takes: 25 times as many in the long form. Under a sanitizer it is a third:
 * there a case takes several times as long, and `make test` runs all of them.
 */
static inline uint32_t tn_test_cases(uint32_t n)
{
	if (tn_test_soak())
		return 25 * n;
	return TN_TEST_ADDRESS_SANITIZER || TN_TEST_THREAD_SANITIZER ? (n + 2) / 3 : n;
}

/* Line by line, so that the log has the output of a killed program, above all its seed, and a long run can be watched. */
static __attribute__((constructor)) void tn_test_say_at_once(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
}

/* For one test of many: cmocka 1.1's skip() prints "not ok", which meson counts as failed. Returns. */
#define tn_test_skip(why)                                                                          \
	do {                                                                                       \
		printf("# SKIP %s: %s\n", __func__, (why));                                        \
		return;                                                                            \
	} while (0)

/*
 * For a whole program: `return tn_test_skip_all("no trace");` from main before any test ran. TAP's plan line says that all
 * is skipped, and the status is 0: for a TAP program, meson takes any other status (77, too) as an error.
 */
static inline int tn_test_skip_all(const char *why)
{
	printf("1..0 # SKIP %s\n", why);
	return 0;
}

static inline uint64_t tn_test_seed(void)
{
	static uint64_t seed;
	const char *s = getenv("TN_SEED");

	if (!seed) {
		seed = s ? strtoull(s, NULL, 0) : 0;
		seed = seed ? seed : TN_TEST_SEED;
		printf("# TN_SEED=%llu\n", (unsigned long long)seed);
	}
	return seed;
}

/* Takes the status of a run of tests from cmocka. Prints how to repeat a run that failed. */
static inline int tn_test_ran(int failed)
{
	if (failed)
		printf("# to repeat: %sTN_SEED=%llu %s\n", tn_test_soak() ? "TN_SOAK=1 " : "", (unsigned long long)tn_test_seed(),
		       program_invocation_name);
	return failed;
}

#undef cmocka_run_group_tests
#define cmocka_run_group_tests(tests, set_up, tear_down) cmocka_run_group_tests_name(#tests, tests, set_up, tear_down)
#undef cmocka_run_group_tests_name
#define cmocka_run_group_tests_name(name, tests, set_up, tear_down)                                 \
	tn_test_ran(_cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof((tests)[0]), set_up, tear_down))

static inline uint64_t tn_test_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * TN_TEST_SECOND + (uint64_t)t.tv_nsec;
}

/*
 * The deadline of a wait that should end by itself. However busy the machine is, only a call that hangs still waits
 * then.
 */
static inline uint64_t tn_test_deadline(void)
{
	return tn_test_now() + 60 * TN_TEST_SECOND;
}

/* The value of `call`, which waits at most until tn_test_deadline(). The test fails if the call waited until then. */
#define tn_test_ended(call) tn_test_ended_in_time((call), #call, __FILE__, __LINE__)

static inline int tn_test_ended_in_time(int rc, const char *call, const char *file, int line)
{
	if (rc == -ETIMEDOUT) {
		print_error("HANG: %s did not end within a minute\n", call);
		_fail(file, line);
	}
	return rc;
}

#endif
