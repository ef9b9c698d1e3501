/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What writes may take of a device. The quantum: how many bytes of writes may be in flight, bounded by the device time that
 * a read which comes now would wait for. The slack of loads: how long their reads may wait without an engine waiting for
 * them, from the layers' needs against the time that reading up to each of them takes; and writes that go meanwhile.
 */
#include "sched/sched_internal.h"

#define QUANTUM_MIN_NS (MS / 10)   /* device time that a read may find taken */
#define QUANTUM_MAX_NS (8u * MS)
#define QUANTUM_START_NS (2u * MS) /* while no restore was seen */
#define QUANTUM_SHARE 24u	   /* of a short restore */
#define CALM_NS (20u * MS)	   /* while no load is expected */
#define QUANTUM_MIN_BYTES (128u << 10)
#define SLACK_MAX_NS (20u * MS) /* of writes that go into the slack of reads before these have a turn */
#define FAR_NS (INT64_C(1) << 60) /* longer times count as this one, and sums of a few do not overflow */
#define LATE_SHARE 4 /* reads may take so much of their time longer, and a layer comes so much of it early */

/* ---- the quantum --------------------------------------------------------------------------------- */

/*
 * Never less than keeps the device busy while one write ends and the next one comes: a drive that is slow to answer is
 * also slow to read.
 */
uint64_t tn_sched_quantum(const struct tn_sched *s, const struct tn_sched_device *d, uint64_t now)
{
	uint64_t ns = s->restore_ns ? s->restore_ns / QUANTUM_SHARE : QUANTUM_START_NS;
	uint64_t bps = bps_of(&d->writes) ? bps_of(&d->writes) : START_BPS;

	ns = max64(QUANTUM_MIN_NS, min64(ns, QUANTUM_MAX_NS));
	ns = max64(ns, min64(2 * latency_of(&d->writes), QUANTUM_MAX_NS));
	if (calm(s, now))
		ns = max64(ns, min64(CALM_NS, (s->calm_until_ns - now) / 2));
	return max64(QUANTUM_MIN_BYTES, bytes_in(bps, ns));
}

/* A shorter restore counts at once by half, a longer one slowly. */
void tn_sched_restore_took(struct tn_sched *s, uint64_t ns)
{
	if (ns == 0 || ns > 60 * SECOND)
		return;
	if (s->restore_ns == 0)
		s->restore_ns = ns;
	else if (ns < s->restore_ns)
		s->restore_ns -= (s->restore_ns - ns) / 2;
	else
		s->restore_ns += (ns - s->restore_ns) / 32;
}

/* ---- one load ------------------------------------------------------------------------------------ */

static int64_t bounded(double ns)
{
	return ns < (double)FAR_NS ? (int64_t)ns : FAR_NS;
}

static int64_t until(uint64_t then, uint64_t now)
{
	if (then >= now)
		return then - now < (uint64_t)FAR_NS ? (int64_t)(then - now) : FAR_NS;
	return now - then < (uint64_t)FAR_NS ? -(int64_t)(now - then) : -FAR_NS;
}

/*
 * The engine may be faster than its table says, and then it is for the rest of this load: the shortest time that the
 * layers were seen to take, as a part of the table's. The load keeps it, so that a load whose slack was overestimated
 * once gives no more.
 */
static void look_at_pace(struct tn_sched_load *load)
{
	struct tn_sched_laxity *k = &load->laxity;
	double table, took;

	if (load->at_ns && k->seen_ns && load->at_layer > k->seen_layer) {
		table = (double)(load->before_ns[load->at_layer] - load->before_ns[k->seen_layer]);
		took = load->at_ns > k->seen_ns ? (double)(load->at_ns - k->seen_ns) : 0;
		if (took < (1 - k->faster) * table) {
			k->faster = 1 - took / table;
			k->known = false;
		}
	}
	k->seen_layer = load->at_layer;
	k->seen_ns = load->at_ns;
}

/* Compute of the layers before this one. */
static int64_t computed_ns(const struct tn_sched_load *load, uint32_t layer)
{
	return bounded((1 - load->laxity.faster) * (double)load->before_ns[layer]);
}

/*
 * The least over all layers from next_layer on: compute of the layers before the layer, less reading up to the layer
 * and those that are read with it. Not above FAR_NS.
 */
static int64_t least(struct tn_sched_load *load, int64_t layer_ns)
{
	struct tn_sched_laxity *k = &load->laxity;
	uint32_t together = load->together ? load->together : 1;

	if (k->layer_ns == layer_ns && k->next_layer == load->next_layer && k->known)
		return k->least_ns;
	k->known = true;
	k->next_layer = load->next_layer;
	k->layer_ns = layer_ns;
	k->least_ns = FAR_NS;
	for (uint32_t l = load->next_layer; l < load->layers; l++) {
		uint32_t read = ((l - load->next_layer) / together + 1) * together;
		int64_t one = computed_ns(load, l) - bounded((double)layer_ns * read);

		if (one < k->least_ns)
			k->least_ns = one;
	}
	return k->least_ns;
}

static uint64_t layer_window(const struct tn_sched_load *load, uint32_t layer)
{
	if (layer + 1 < load->layers)
		return load->before_ns[layer + 1] - load->before_ns[layer];
	return layer ? load->before_ns[layer] - load->before_ns[layer - 1] : 0;
}

int64_t tn_laxity(struct tn_sched_load *load, uint64_t read_bps, uint64_t now_ns, int64_t *read_ns)
{
	uint64_t since = load->at_ns ? load->at_ns : load->start_ns;
	int64_t layer_ns, laxity, whole;
	uint32_t next = load->next_layer;

	if (!load->before_ns || !load->layer_bytes || !read_bps || next >= load->layers)
		return TN_LAXITY_NONE;
	if (next <= load->at_layer && (load->at_ns || load->start_ns <= now_ns))
		return TN_LAXITY_NONE;
	look_at_pace(load);
	layer_ns = bounded((double)load->layer_bytes * 1e9 / (double)read_bps * (LATE_SHARE + 1) / LATE_SHARE);
	*read_ns = bounded((double)layer_ns * (load->layers - next));
	laxity = until(since, now_ns) - computed_ns(load, load->at_layer) + least(load, layer_ns) -
		 bounded((double)layer_window(load, next) / LATE_SHARE);
	if (load->deadline_ns) {
		whole = until(load->deadline_ns, now_ns) - *read_ns;
		laxity = whole < laxity ? whole : laxity;
	}
	return laxity;
}

/* ---- all loads of a device ----------------------------------------------------------------------- */

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
		all_ns = all_ns + read_ns < FAR_NS ? all_ns + read_ns : FAR_NS;
		least = one + read_ns < least ? one + read_ns : least;
	}
	if (least != INT64_MAX)
		d->laxity_ns = least - all_ns;
	return d->laxity_ns;
}

/* What is left of the slack for writes that begin when what is in flight has ended. */
static int64_t slack_left(struct tn_sched *s, uint32_t device, uint64_t now)
{
	const struct tn_sched_device *d = &s->device[device];
	int64_t ns = laxity(s, device, now);

	if (ns == TN_LAXITY_NONE)
		return ns;
	ns -= (int64_t)(ns_of(d->read_bytes, sure_read_bps(d)) + latency_of(&d->reads));
	return ns - (int64_t)(ns_of(d->write_bytes, bps_of(&d->writes)) + latency_of(&d->writes));
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
	uint64_t bps = bps_of(&d->writes) ? bps_of(&d->writes) : START_BPS, least, turn;
	int64_t left = TN_LAXITY_NONE;

	if (s->pressing && d->loads)
		left = slack_left(s, device, now);
	if (d->slack_bytes == 0 || now >= d->slack_until_ns) {
		least = 2 * max64(ns_of(tn_sched_quantum(s, d, now), bps), ns_of(bytes, bps));
		if (left < (int64_t)least) {
			d->slack_bytes = 0;
			return false;
		}
		turn = min64((uint64_t)left / 2, SLACK_MAX_NS);
		d->slack_bytes = bytes_in(bps, turn);
		d->slack_until_ns = add_ns(now, (uint64_t)left);
	}
	if (left < (int64_t)ns_of(bytes, bps)) {
		d->slack_bytes = 0;
		return false;
	}
	if (d->read_bytes > 0)
		return false;
	d->slack_bytes -= min64(d->slack_bytes, bytes);
	*slack_ns = left;
	return true;
}

/* Reads wait for writes that have a turn, for as long as they can. */
bool tn_sched_put_off(struct tn_sched *s, uint32_t device, uint64_t now)
{
	struct tn_sched_device *d = &s->device[device];

	if (now >= d->slack_until_ns || !s->pressing || slack_left(s, device, now) < 0) {
		d->slack_bytes = 0;
		return false;
	}
	/* With nothing in flight it is the writes' move, in this turn: somebody has to look whether a write went. */
	d->drain_due_ns = min64(d->slack_until_ns, d->read_bytes || d->write_bytes ? TN_FOREVER : add_ns(now, MS));
	return true;
}
