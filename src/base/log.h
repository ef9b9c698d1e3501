/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines to the caller's callback. A NULL callback drops them. */
#ifndef TN_BASE_LOG_H
#define TN_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>
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

/* For lines that others can cause as often as they like: so many of a kind per second are enough. One thread's; zeros to begin with. */
#define TN_LOG_LINES_PER_SECOND 20u
struct tn_log_limit {
	uint64_t period_ns; /* one line per period is enough; 0: TN_LOG_LINES_PER_SECOND */
	uint64_t since_ns; /* the beginning of the present period or second */
	uint32_t lines, unsaid; /* of it: those that were written, and those that were not */
};

/* Whether a line may be written now. The first one after some were left out tells how many, in a line of its own. */
bool tn_log_may(struct tn_log_limit *limit, const struct tn_log *log, uint64_t now_ns);

#endif
