/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors and logging, as every part of Tenuto reports them.
 *
 * Functions return 0 (or a count >= 0) or a negative errno. The detail of the last
 * failure on the calling thread - which value was wrong, and what to do about it -
 * is kept in a thread-local record until the next failure. The library never prints
 * and never exits; what it has to say goes to the log callback given at open.
 */
#ifndef TENUTO_ERROR_H
#define TENUTO_ERROR_H

#if defined(__GNUC__)
#define TN_API __attribute__((visibility("default")))
#else
#define TN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** struct tn_error - detail of a failure
 * @code:  negative errno, 0 if nothing failed yet on this thread
 * @where: file and function that decided the error
 * @text:  one sentence with the offending value and what to do, then its causes
 */
struct tn_error {
	int code;
	char where[64];
	char text[448];
};

enum tn_log_level { TN_LOG_ERROR, TN_LOG_WARN, TN_LOG_INFO, TN_LOG_DEBUG };

/**
 * tn_log_fn - receives one log line; must not call back into Tenuto. A cache calls it from one thread of its own (cache.h),
 * other functions from the thread that called them
 */
typedef void (*tn_log_fn)(void *arg, enum tn_log_level level, const char *where, const char *text);

/**
 * tn_error_last - detail of the last failure on this thread
 *
 * Any thread; the record belongs to the thread and lives until its next failure.
 *
 * Return: never NULL; code is 0 if nothing failed yet. Answers that are no failures - -EAGAIN of the polling functions, -EBUSY of
 * tn_load_end, -ENOENT of tn_cache_device_stats - leave it as it was.
 */
TN_API const struct tn_error *tn_error_last(void);

/**
 * tn_version - version of the library that is running, "major.minor.patch"
 *
 * Any thread. Return: a static string.
 */
TN_API const char *tn_version(void);

#ifdef __cplusplus
}
#endif
#endif
