/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines to the caller's callback. A NULL callback drops them. */
#ifndef TN_BASE_LOG_H
#define TN_BASE_LOG_H

#include <tenuto/error.h>

struct tn_log {
	tn_log_fn fn;
	void *arg;
	enum tn_log_level level; /* lines above it are dropped */
};

void tn_log_at(const struct tn_log *log, enum tn_log_level level, const char *where, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#define tn_log(log, lvl, ...)                                                                    \
	do {                                                                                       \
		const struct tn_log *log_ = (log);                                                 \
		if (log_ && log_->fn && (lvl) <= log_->level)                                    \
			tn_log_at(log_, (lvl), __func__, __VA_ARGS__);                           \
	} while (0)

#endif
