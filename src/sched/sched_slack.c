/* SPDX-License-Identifier: Apache-2.0 */
/* Writes into the slack of loads: between their reads, when every layer will be there in time all the same. */
#include "sched/laxity.h"
#include "sched/sched_internal.h"

#define SLACK_MAX_NS (20u * MS) /* of writes that go into the slack of reads before these have a turn */
#define LONG_NS (INT64_C(1) << 60) /* reads that take longer wait for nothing; sums of a few do not overflow */

/* The read rate that the device has just shown, if that is slower than its mix says. */
static uint64_t sure_read_bps(const struct tn_sched_device *d)
{
	uint64_t seen = tn_meter_bps(&d->reads), said = d->mix.version ? d->mix.read_bps : seen;

	return seen && seen < said ? seen : said;
}

/*
 * For how long all reads that wait for the device may go on waiting, of whichever load: all that is to be read for
 * other loads goes before what a load needs. TN_LAXITY_NONE: one of the reads cannot wait.
 */
static int64_t laxity(struct tn_sched *s, uint32_t device, uint64_t now)
{
	struct tn_sched_device *d = &s->device[device];
	int64_t all_ns = 0, least = INT64_MAX;

	if (d->laxity_known)
		return d->laxity_ns;
	d->laxity_known = true;
	d->laxity_ns = TN_LAXITY_NONE;
	for (struct tn_list *pos = s->loads.next; pos != &s->loads; pos = pos->next) {
		struct tn_sched_load *load = tn_container_of(pos, struct tn_sched_load, link);
		int64_t one, read_ns;

		if (!(load->devices >> device & 1))
			continue;
		one = tn_laxity(load, sure_read_bps(d), now, &read_ns);
		if (one == TN_LAXITY_NONE)
			return TN_LAXITY_NONE;
		all_ns = all_ns + read_ns < LONG_NS ? all_ns + read_ns : LONG_NS;
		least = one + read_ns < least ? one + read_ns : least;
	}
	if (least != INT64_MAX)
		d->laxity_ns = least - all_ns;
	return d->laxity_ns;
}

/* What is left of the slack for writes that begin when what is in flight has ended. */
static int64_t room_for_writes(struct tn_sched *s, uint32_t device, uint64_t now)
{
	const struct tn_sched_device *d = &s->device[device];
	int64_t ns = laxity(s, device, now);

	if (ns == TN_LAXITY_NONE)
		return ns;
	ns -= (int64_t)(ns_of(d->read_bytes, sure_read_bps(d)) + read_latency(d));
	return ns - (int64_t)(ns_of(d->write_bytes, write_bps(d)) + write_latency(d));
}

/*
 * Reads wait: whether a write may go into their slack. Only when writes press: reads that go early cost writes nothing,
 * because writes find the same time later, and early reads are safe from what is not known yet. Measured: using slack
 * whenever there is some wrote a fifth less, and a load took 1 % longer. Writes that press are refused next, and that
 * is worse.
 *
 * Writes get turns of several quanta, because reads have to end before the writes, and the writes before reads. A turn
 * begins when there is time for two quanta and uses half of that time; the next turn has to find so much time again.
 */
bool tn_sched_into_slack(struct tn_sched *s, uint32_t device, uint64_t bytes, int64_t *slack_ns, uint64_t now)
{
	struct tn_sched_device *d = &s->device[device];
	uint64_t bps = write_bps(d) ? write_bps(d) : START_BPS, least, turn;
	int64_t room = TN_LAXITY_NONE;

	if (s->pressing && d->loads)
		room = room_for_writes(s, device, now);
	if (d->slack_bytes == 0 || now >= d->slack_until_ns) {
		least = 2 * max64(ns_of(tn_sched_quantum(s, d, now), bps), ns_of(bytes, bps));
		if (room < (int64_t)least) {
			d->slack_bytes = 0;
			return false;
		}
		turn = min64((uint64_t)room / 2, SLACK_MAX_NS);
		d->slack_bytes = bytes_in(bps, turn);
		d->slack_until_ns = add_ns(now, (uint64_t)room);
	}
	if (room < (int64_t)ns_of(bytes, bps)) {
		d->slack_bytes = 0;
		return false;
	}
	if (d->read_bytes > 0)
		return false;
	d->slack_bytes -= min64(d->slack_bytes, bytes);
	*slack_ns = room;
	return true;
}

/* Reads wait for writes that have a turn, for as long as they can. */
bool tn_sched_put_off(struct tn_sched *s, uint32_t device, uint64_t now)
{
	struct tn_sched_device *d = &s->device[device];

	if (d->slack_bytes == 0)
		return false;
	if (now >= d->slack_until_ns || !s->pressing || room_for_writes(s, device, now) < 0) {
		d->slack_bytes = 0;
		return false;
	}
	/* With nothing in flight it is the writes' move, in this turn: somebody has to look whether a write went. */
	d->drain_due_ns = min64(d->slack_until_ns, d->read_bytes || d->write_bytes ? TN_FOREVER : add_ns(now, MS));
	return true;
}
