/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many bytes may be spent in a period: a token bucket of an eighth of the period's bytes, refilled with the other seven eighths over the period. No
 * stretch of time as long as the period sees more than its bytes, besides what is spent without asking.
 */
#ifndef TN_BASE_ALLOWANCE_H
#define TN_BASE_ALLOWANCE_H

#include <stdbool.h>
#include <stdint.h>

struct tn_allowance {
	uint64_t bytes; /* per period; 0: no limit */
	uint64_t period_ns;
	int64_t left;
	uint64_t filled_ns;
};

void tn_allowance_init(struct tn_allowance *a, uint64_t bytes, uint64_t period_ns, uint64_t now_ns);
/* Takes so many bytes if they are left. */
bool tn_allowance_take(struct tn_allowance *a, uint64_t bytes, uint64_t now_ns);
/* Takes them, also if fewer are left: then none are, for longer. Negative: gives them back. */
void tn_allowance_spend(struct tn_allowance *a, int64_t bytes);
/* When there is anything left: now_ns, or later. */
uint64_t tn_allowance_due(struct tn_allowance *a, uint64_t now_ns);

#endif
