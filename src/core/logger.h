/* SPDX-License-Identifier: Apache-2.0 */
/* The way of log lines to the caller. */
#ifndef TN_CORE_LOGGER_H
#define TN_CORE_LOGGER_H

#include "base/alloc.h"
#include "base/log.h"

struct tn_logger;

/*
 * From here to stop, which waits until all lines are delivered, the lines of this log go through a thread. 0 or -errno; *out stays as it is
 * if nobody takes any lines.
 */
int tn_logger_start(struct tn_log *log, const struct tn_alloc *alloc, struct tn_logger **out);
void tn_logger_stop(struct tn_logger *l);

#endif
