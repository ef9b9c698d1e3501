/* SPDX-License-Identifier: Apache-2.0 */
/* The thread-local detail of the last failure; log lines; and whose they are: the library's version. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

static __thread struct tn_error last;

const struct tn_error *tn_error_last(void)
{
	return &last;
}

static void set_where(const char *file, const char *func, int code)
{
	const char *slash = strrchr(file, '/');

	last.code = code;
	snprintf(last.where, sizeof(last.where), "%s:%s", slash ? slash + 1 : file, func);
}

int tn_fail_at(const char *file, const char *func, int code, const char *fmt, ...)
{
	va_list ap;

	set_where(file, func, code);
	va_start(ap, fmt);
	vsnprintf(last.text, sizeof(last.text), fmt, ap);
	va_end(ap);
	return code;
}

int tn_fail_cause_at(const char *file, const char *func, int code, const char *fmt, ...)
{
	char cause[sizeof(last.text)];
	va_list ap;
	int n;

	memcpy(cause, last.text, sizeof(cause));
	set_where(file, func, code);
	va_start(ap, fmt);
	n = vsnprintf(last.text, sizeof(last.text), fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof(last.text) && cause[0] != '\0')
		snprintf(last.text + n, sizeof(last.text) - (size_t)n, ": %s", cause);
	return code;
}

void tn_log_at(const struct tn_log *log, enum tn_log_level level, const char *where, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log->fn(log->arg, level, where, text);
}

const char *tn_version(void)
{
	return TN_VERSION;
}

bool tn_log_may(struct tn_log_limit *l, const struct tn_log *log, uint64_t now_ns)
{
	if (now_ns - l->since_ns >= (l->period_ns ? l->period_ns : 1000000000u)) {
		if (l->unsaid)
			tn_log(log, TN_LOG_INFO, "%u more lines of this kind were left out", l->unsaid);
		*l = (struct tn_log_limit){.period_ns = l->period_ns, .since_ns = now_ns};
	}
	if (l->lines == (l->period_ns ? 1 : TN_LOG_LINES_PER_SECOND)) {
		l->unsaid++;
		return false;
	}
	l->lines++;
	return true;
}
