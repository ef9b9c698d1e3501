/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantum: how many bytes of writes may be in flight on a device, bounded by the device time that a read which
 * comes now would wait for. Short restores and the device's speed set it. Which write goes is decided in sched.c.
 */
#include "sched/sched_internal.h"

#define QUANTUM_MIN_NS (MS / 10)   /* device time that a read may find taken */
#define QUANTUM_MAX_NS (8u * MS)
#define QUANTUM_START_NS (2u * MS) /* while no restore was seen */
#define QUANTUM_SHARE 24u	   /* of a short restore */
#define CALM_NS (20u * MS)	   /* while no load is expected */
#define QUANTUM_MIN_BYTES (128u << 10)

/*
 * Never less than keeps the device busy while one write ends and the next one comes: a drive that is slow to answer is
 * also slow to read.
 */
uint64_t tn_sched_quantum(const struct tn_sched *s, const struct tn_sched_device *d, uint64_t now)
{
	uint64_t ns = s->restore_ns ? s->restore_ns / QUANTUM_SHARE : QUANTUM_START_NS;
	uint64_t bps = write_bps(d) ? write_bps(d) : START_BPS;

	ns = max64(QUANTUM_MIN_NS, min64(ns, QUANTUM_MAX_NS));
	ns = max64(ns, min64(2 * write_latency(d), QUANTUM_MAX_NS));
	if (calm(s, now))
		ns = max64(ns, min64(CALM_NS, (s->calm_until_ns - now) / 2));
	return max64(QUANTUM_MIN_BYTES, bytes_in(bps, ns));
}

/* A shorter restore counts at once by half, a longer one slowly. */
void tn_sched_restore_took(struct tn_sched *s, uint64_t ns)
{
	if (ns == 0 || ns > 60ull * SECOND)
		return;
	if (s->restore_ns == 0)
		s->restore_ns = ns;
	else if (ns < s->restore_ns)
		s->restore_ns -= (s->restore_ns - ns) / 2;
	else
		s->restore_ns += (ns - s->restore_ns) / 32;
}
