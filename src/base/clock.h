/* SPDX-License-Identifier: Apache-2.0 */
/* The clock seam: the core never reads the time by itself, so that a simulation can set the time. */
#ifndef TN_BASE_CLOCK_H
#define TN_BASE_CLOCK_H

#include <stdint.h>

struct tn_clock {
	uint64_t (*now_ns)(void *arg); /* monotonic */
	uint64_t (*wall_ns)(void *arg); /* since 1970, for what is written to disk for people to read */
	void *arg;
};

extern const struct tn_clock tn_clock_system;

static inline uint64_t tn_now_ns(const struct tn_clock *c)
{
	return c->now_ns(c->arg);
}

static inline uint64_t tn_wall_ns(const struct tn_clock *c)
{
	return c->wall_ns(c->arg);
}

#endif
