/* SPDX-License-Identifier: Apache-2.0 */
/* What a device was seen to do. */
#include "sched/meter.h"

#define MS 1000000u
#define SECOND 1000000000u

#define METER_NS (10u * MS)	 /* rates are measured over so much time, ... */
#define METER_MIN_NS (MS / 5)	 /* or until nothing is in flight, but not shorter than this, ... */
#define METER_BYTES (256u << 10) /* ... and over so many bytes at least */
#define BEST_NS (1u * SECOND)	 /* the best rate of this time, or of the one before, is the device's */

void tn_meter_starts(struct tn_meter *m, uint64_t in_flight, uint64_t now_ns)
{
	if (in_flight)
		return;
	m->since_ns = now_ns;
	m->bytes = 0;
	m->first = true;
}

static void meter_rate(struct tn_meter *m, uint64_t bps, uint64_t now)
{
	if (now < m->best_ns || now - m->best_ns > BEST_NS) {
		m->best[1] = m->best[0];
		m->best[0] = 0;
		m->best_ns = now;
	}
	if (m->best[0] < bps)
		m->best[0] = bps;
}

static void meter_latency(struct tn_meter *m, uint64_t ns)
{
	if (m->latency_ns == 0 || ns < m->latency_ns)
		m->latency_ns = ns;
	else
		m->latency_ns += (ns - m->latency_ns) / 16;
}

void tn_meter_ends(struct tn_meter *m, uint64_t bytes, uint64_t in_flight, uint64_t now_ns)
{
	uint64_t ns = now_ns > m->since_ns ? now_ns - m->since_ns : 0;

	if (m->first && ns > 0 && ns < SECOND)
		meter_latency(m, ns);
	m->first = false;
	m->bytes += bytes;
	if (now_ns >= m->since_ns && (m->bytes < METER_BYTES || ns < (in_flight ? METER_NS : METER_MIN_NS)))
		return;
	if (ns > 0 && ns < 10ull * SECOND)
		meter_rate(m, (uint64_t)((double)m->bytes * 1e9 / (double)ns), now_ns);
	m->since_ns = now_ns;
	m->bytes = 0;
}

uint64_t tn_meter_bps(const struct tn_meter *m)
{
	return m->best[0] > m->best[1] ? m->best[0] : m->best[1];
}
