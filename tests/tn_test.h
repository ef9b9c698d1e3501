/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every test program includes: cmocka with its prerequisites, and the seed of the run.
 * TN_SEED=<n> repeats a run; the seed is printed as a TAP comment. TN_SOAK=1 (make soak) asks for the long form.
 */
#ifndef TN_TEST_H
#define TN_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define TN_TEST_SKIP 77

/* Whether the long form of a test is asked for: a quarter of an hour is fine then, otherwise seconds. */
static inline int tn_test_soak(void)
{
	const char *s = getenv("TN_SOAK");

	return s && *s && *s != '0';
}

/* Line by line, so that what a killed program has said, its seed above all, is in the log, and a long one can be watched. */
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
 * For a whole program: `return tn_test_skip_all("no trace");` from main before any test ran. The plan says it and the
 * status is 0: of a TAP program, meson takes any other status (77, too) as an error.
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
		seed = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL);
		printf("# TN_SEED=%llu\n", (unsigned long long)seed);
	}
	return seed;
}

#endif
