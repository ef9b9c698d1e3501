/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a load is given up by the core. At its deadline; and one without a deadline, when a stream may wait for its words (tn_load_event) and nothing of it has
 * come for TN_SAVE_IDLE_NS. A thread can wait until a time of its own; a stream cannot, and all that is queued behind its wait stands with it. Owner thread.
 */
#ifndef TN_CORE_LOAD_LATE_H
#define TN_CORE_LOAD_LATE_H

#include "core/core.h"

/* Whether it is to be given up now; the log says so of one without a deadline. */
bool tn_load_is_late(struct tn_reading *r, uint64_t now_ns);
/* When the first load is to be given up, or to be looked at again; TN_FOREVER: there is none. */
uint64_t tn_loads_due(const struct tn_cache *cache, uint64_t now_ns);
/* Of a load that is given up: cancels what tiers move for it, which else would keep its pages, and those from the tier that others want to load. */
void tn_load_withdraw(const struct tn_reading *r);

#endif
