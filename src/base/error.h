/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How code inside Tenuto fails: `return tn_fail(-EINVAL, "depth %u: must be a power of two", d);`
 *
 * tn_fail starts a new detail record. tn_fail_cause starts one, too, and appends the present one as the cause, after ": ".
 * Both return the code. Only the function that decides an error calls them.
 */
#ifndef TN_BASE_ERROR_H
#define TN_BASE_ERROR_H

#include <tenuto/error.h>

int tn_fail_at(const char *file, const char *func, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
int tn_fail_cause_at(const char *file, const char *func, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#define tn_fail(code, ...) tn_fail_at(__FILE__, __func__, (code), __VA_ARGS__)
#define tn_fail_cause(code, ...) tn_fail_cause_at(__FILE__, __func__, (code), __VA_ARGS__)

#endif
