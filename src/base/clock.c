/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <stddef.h>
#include <time.h>

static uint64_t read_clock(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t monotonic_ns(void *arg)
{
	return read_clock(CLOCK_MONOTONIC);
}

static uint64_t realtime_ns(void *arg)
{
	return read_clock(CLOCK_REALTIME);
}

const struct tn_clock tn_clock_system = {monotonic_ns, realtime_ns, NULL};
