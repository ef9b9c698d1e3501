/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler's rules. Times that lie in the future because a clock jumped back count as now; a jump forward
 * at most lets a write go that would have waited.
 */
#include "sched/sched_internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"

#define QUEUE_NS (10u * MS)	   /* of reads in flight: keeps a device busy, and an urgent read gets in soon */
#define QUEUE_MIN_BYTES (8u << 20)
#define PRESSING_SHARE 4u	   /* of the backlog's bound: writes press from there on, until it is half of that */
#define STARVED_NS (250u * MS)	   /* a write that waits so long goes before reads ... */
#define STARVED_SHARE 64u	   /* ... for this part of the time */
#define LATE_SHARE 2u		   /* for this part of the time those that are late go before reads */
#define AGED_NS (200u * MS)	   /* a load that was passed over so long has a turn ... */
#define AGED_EACH_NS (100u * MS)   /* ... one in this time ... */
#define AGED_BYTES (8u << 20)	   /* ... for so much */
#define DRAIN_NS (40u * MS)	   /* a read waits no longer for writes in flight: they are late */
#define METER_NS (10u * MS)	   /* rates are measured over so much time, ... */
#define METER_MIN_NS (MS / 5)	   /* or from the first transfer until none is in flight, but not shorter than this, ... */
#define METER_BYTES (256u << 10)   /* ... and over so many bytes at least */
#define BEST_NS (1u * SECOND)	   /* the best rate of this time, or of the one before, is the device's */
#define FREE_SHARE_PERCENT 95u	   /* of serial use: mixing that gives so much is free */

/* ---- small things -------------------------------------------------------------------------------- */

const char *tn_reason_name(uint32_t reason)
{
	static const char *const names[TN_REASONS] = {
		[TN_REASON_ONLY] = "only",
		[TN_REASON_PRIORITY] = "priority",
		[TN_REASON_EARLIEST_NEED] = "earliest need",
		[TN_REASON_AGED] = "aged",
		[TN_REASON_WINDOW] = "window",
		[TN_REASON_WRITES_DRAIN] = "writes drain",
		[TN_REASON_READS_WAIT] = "reads wait",
		[TN_REASON_READS_IN_FLIGHT] = "reads in flight",
		[TN_REASON_QUANTUM] = "quantum",
		[TN_REASON_IDLE] = "idle",
		[TN_REASON_DECODE] = "decode",
		[TN_REASON_MIX_FREE] = "mix free",
		[TN_REASON_STARVED] = "starved",
		[TN_REASON_BACKLOG] = "backlog",
		[TN_REASON_SLACK] = "slack",
	};

	return reason < TN_REASONS ? names[reason] : "unknown";
}

const char *tn_chosen_name(uint32_t chosen)
{
	static const char *const names[] = {"read", "write", "wait", "refuse"};

	return chosen < sizeof(names) / sizeof(names[0]) ? names[chosen] : "unknown";
}

/* ---- meters -------------------------------------------------------------------------------------- */

/* A transfer begins; in_flight: bytes of all other transfers. */
static void meter_starts(struct tn_meter *m, uint64_t in_flight, uint64_t now_ns)
{
	if (in_flight)
		return;
	m->since_ns = now_ns;
	m->bytes = 0;
	m->first = true;
	m->later = false;
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

static void meter_ends(struct tn_meter *m, uint64_t bytes, uint64_t in_flight, uint64_t now_ns)
{
	uint64_t ns = elapsed(now_ns, m->since_ns);

	if (m->first && ns > 0 && ns < SECOND)
		meter_latency(m, ns);
	m->first = false;
	m->bytes += bytes;
	if (now_ns >= m->since_ns && (m->bytes < METER_BYTES || ns < (in_flight || m->later ? METER_NS : METER_MIN_NS)))
		return;
	if (ns > 0 && ns < 10 * SECOND)
		meter_rate(m, (uint64_t)((double)m->bytes * 1e9 / (double)ns), now_ns);
	m->since_ns = now_ns;
	m->bytes = 0;
	m->later = true;
}

/* ---- rates --------------------------------------------------------------------------------------- */

static uint64_t all_devices(const struct tn_sched *s, bool writes)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < s->o.devices; i++) {
		uint64_t bps = bps_of(writes ? &s->device[i].writes : &s->device[i].reads);

		if (bps == 0)
			return 0;
		sum += bps;
	}
	return sum;
}

uint64_t tn_sched_write_bps(const struct tn_sched *s)
{
	return all_devices(s, true);
}

uint64_t tn_sched_read_bps(const struct tn_sched *s)
{
	return all_devices(s, false);
}

static uint64_t read_queue(const struct tn_sched_device *d)
{
	uint64_t bps = bps_of(&d->reads);

	return bps ? max64(QUEUE_MIN_BYTES, bytes_in(bps, QUEUE_NS)) : UINT64_MAX;
}

/* ---- create -------------------------------------------------------------------------------------- */

int tn_sched_create(const struct tn_sched_opts *opts, struct tn_sched **out)
{
	struct tn_sched *s = tn_get(opts->alloc, sizeof(*s));

	assert(opts->devices <= TN_DEVICES_MAX);
	if (!s)
		return tn_fail(-ENOMEM, "scheduler: no memory");
	s->o = *opts;
	for (uint32_t i = 0; i < TN_DEVICES_MAX; i++)
		s->device[i].told = TN_REASONS;
	tn_list_init(&s->loads);
	*out = s;
	return 0;
}

void tn_sched_destroy(struct tn_sched *s)
{
	if (s)
		tn_put(s->o.alloc, s, sizeof(*s));
}

/* Mixing is free if reads and writes together get nearly what one after the other would: their harmonic mean. */
static bool mix_is_free(const struct tn_mix *m)
{
	double serial;

	if (m->version == 0 || m->read_bps == 0 || m->write_bps == 0)
		return false;
	serial = 2 / (1 / (double)m->read_bps + 1 / (double)m->write_bps);
	return (double)m->mixed_bps * 100 >= serial * FREE_SHARE_PERCENT;
}

void tn_sched_device(struct tn_sched *s, uint32_t device, const struct tn_mix *mix)
{
	struct tn_sched_device *d = &s->device[device];

	assert(device < s->o.devices);
	d->free_mix = mix_is_free(mix);
	d->reads.said_bps = mix->version ? mix->read_bps : 0;
	d->reads.said_latency_ns = mix->read_latency_ns;
	d->writes.said_bps = mix->version ? mix->write_bps : 0;
	d->writes.said_latency_ns = mix->write_latency_ns;
}

void tn_sched_calm(struct tn_sched *s, uint64_t until_ns)
{
	s->calm_until_ns = until_ns;
}

void tn_sched_backlog(struct tn_sched *s, uint64_t bytes, uint64_t limit)
{
	uint64_t least = limit / PRESSING_SHARE;

	s->backlog = bytes;
	s->pressing = bytes >= (s->pressing ? least / 2 : least);
}

void tn_sched_late(struct tn_sched *s, bool late)
{
	s->late = late;
}

/* ---- telling ------------------------------------------------------------------------------------- */

static void report_decision(const struct tn_sched *s, struct tn_decision d)
{
	d.deferred_bytes = s->backlog;
	if (s->o.explain)
		s->o.explain(s->o.explain_arg, &d);
}

static void report_reads(struct tn_sched *s)
{
	struct tn_sched_telling *t = &s->read;

	if (!t->any)
		return;
	t->any = false;
	for (uint32_t i = 0; i < s->o.devices; i++) {
		if (t->bytes[i] == 0)
			continue;
		t->d.device = i;
		t->d.bytes = t->bytes[i];
		report_decision(s, t->d);
		t->bytes[i] = 0;
	}
}

static int64_t slack_of(const struct tn_sched_load *load, uint32_t layer, uint64_t now)
{
	uint64_t need = tn_sched_need(load, layer);

	return need >= now ? (int64_t)min64(need - now, INT64_MAX) : -(int64_t)min64(now - need, INT64_MAX);
}

static void note_read(struct tn_sched *s, const struct tn_sched_load *load, uint32_t layer, uint32_t device,
		      uint64_t bytes, uint64_t now)
{
	struct tn_sched_telling *t = &s->read;

	if (!s->o.explain)
		return;
	if (t->any && (t->d.load != load->id || t->d.layer != layer))
		report_reads(s);
	if (!t->any)
		t->d = (struct tn_decision){
			.time_ns = now,
			.load = load->id,
			.layer = layer,
			.chosen = TN_CHOSE_READ,
			.reason = s->picked,
			.slack_ns = slack_of(load, layer, now),
		};
	t->any = true;
	t->bytes[device] += bytes;
}

static int64_t write_slack(const struct tn_sched *s, uint64_t now)
{
	return calm(s, now) ? (int64_t)min64(s->calm_until_ns - now, INT64_MAX) : INT64_MAX;
}

/* What waits is told once, not in every turn. */
static void report_wait(struct tn_sched *s, const struct tn_sched_load *load, uint32_t device, uint64_t bytes,
		      enum tn_reason reason, uint64_t now)
{
	struct tn_sched_device *d = &s->device[device];

	if (!s->o.explain || d->told == reason)
		return;
	report_reads(s);
	d->told = reason;
	report_decision(s, (struct tn_decision){.time_ns = now,
				     .load = load ? load->id : 0,
				     .layer = load ? load->next_layer : 0,
				     .device = device,
				     .chosen = TN_CHOSE_WAIT,
				     .reason = reason,
				     .slack_ns = load ? slack_of(load, load->next_layer, now) : write_slack(s, now),
				     .bytes = bytes});
}

void tn_sched_refused(struct tn_sched *s, uint64_t bytes, uint64_t now_ns)
{
	report_decision(s, (struct tn_decision){.time_ns = now_ns,
				     .device = TN_DEVICES_MAX,
				     .chosen = TN_CHOSE_REFUSE,
				     .reason = TN_REASON_BACKLOG,
				     .bytes = bytes});
}

/* ---- turns --------------------------------------------------------------------------------------- */

/* False: nobody asked. */
static bool wait_goes_on(struct tn_sched_waits *w, uint64_t now)
{
	if (!w->asked || w->since_ns > now)
		w->since_ns = now;
	w->starving &= w->asked;
	w->before = w->asked;
	w->asked = false;
	return w->before;
}

void tn_sched_turn(struct tn_sched *s, uint64_t now_ns)
{
	report_reads(s);
	tn_sched_again(s);
	for (uint32_t i = 0; i < s->o.devices; i++) {
		struct tn_sched_device *d = &s->device[i];

		bool asked = false;

		for (uint32_t w = 0; w < TN_SCHED_WRITERS; w++)
			asked |= wait_goes_on(&d->waits[w], now_ns);
		if (!d->read_asked || d->drains_since_ns > now_ns)
			d->drains_since_ns = now_ns;
		if (d->starved_next_ns > add_ns(now_ns, SECOND)) /* the clock jumped back */
			d->starved_next_ns = now_ns;
		if (d->late_next_ns > add_ns(now_ns, SECOND))
			d->late_next_ns = now_ns;
		if (!asked && !d->wrote)
			d->slack_bytes = 0;
		if (!d->waits[d->holder].before || d->held_ns > now_ns)
			d->held_until_ns = 0;
		if (!d->waits[d->starved].before && !d->wrote) /* nobody uses what is left of the turn */
			d->starved_bytes = 0;
		d->read_asked = d->wrote = d->laxity_known = false;
		d->due_ns = d->drain_due_ns = TN_FOREVER;
	}
	if (s->aged_next_ns > add_ns(now_ns, AGED_EACH_NS))
		s->aged_next_ns = now_ns;
}

uint64_t tn_sched_due(const struct tn_sched *s)
{
	uint64_t due = TN_FOREVER;

	for (uint32_t i = 0; i < s->o.devices; i++)
		due = min64(due, min64(s->device[i].due_ns, s->device[i].drain_due_ns));
	return due;
}

/* ---- loads --------------------------------------------------------------------------------------- */

void tn_sched_load_add(struct tn_sched *s, struct tn_sched_load *load, uint64_t now_ns)
{
	load->devices = 0;
	load->passed = false;
	load->served_ns = load->begin_ns = now_ns;
	tn_list_push(&s->loads, &load->link);
}

void tn_sched_load_waits(struct tn_sched *s, struct tn_sched_load *load, uint32_t devices)
{
	uint32_t changed = load->devices ^ devices;

	if (devices)
		s->calm_until_ns = 0;
	while (changed) {
		uint32_t i = (uint32_t)__builtin_ctz(changed);

		changed &= changed - 1;
		s->device[i].laxity_known = false;
		s->device[i].loads += devices >> i & 1;
		s->device[i].loads -= load->devices >> i & 1;
	}
	load->devices = devices;
	if (!devices && s->aged == load)
		s->aged = NULL;
}

void tn_sched_load_del(struct tn_sched *s, struct tn_sched_load *load, uint64_t now_ns, bool done)
{
	tn_sched_load_waits(s, load, 0);
	tn_list_del(&load->link);
	if (done)
		tn_sched_restore_took(s, elapsed(now_ns, load->begin_ns));
}

uint64_t tn_sched_need(const struct tn_sched_load *load, uint32_t layer)
{
	uint64_t since = load->at_ns ? load->at_ns : load->start_ns;

	if (!load->before_ns || layer <= load->at_layer || layer >= load->layers)
		return since;
	return add_ns(since, load->before_ns[layer] - load->before_ns[load->at_layer]);
}

void tn_sched_again(struct tn_sched *s)
{
	struct tn_list *pos, *tmp;

	tn_list_for_each_safe(pos, tmp, &s->loads)
		tn_container_of(pos, struct tn_sched_load, link)->passed = false;
}

/* When the next reads of a load are needed, or of no use any more. */
static uint64_t urgency(const struct tn_sched_load *load)
{
	uint64_t need = tn_sched_need(load, load->next_layer);

	return load->deadline_ns ? min64(need, load->deadline_ns) : need;
}

/* Whether a goes before b, and why. */
static bool before(const struct tn_sched_load *a, const struct tn_sched_load *b, enum tn_reason *why)
{
	*why = TN_REASON_PRIORITY;
	if (a->priority != b->priority)
		return a->priority > b->priority;
	*why = TN_REASON_EARLIEST_NEED;
	return urgency(a) < urgency(b);
}

static bool may_be_picked(const struct tn_sched_load *load)
{
	return load->devices && !load->passed;
}

/* The load that was passed over for too long, if such a load may have a turn now. */
static struct tn_sched_load *oldest(const struct tn_sched *s, uint64_t now)
{
	struct tn_sched_load *found = NULL;

	if (now < s->aged_next_ns)
		return NULL;
	for (struct tn_list *pos = s->loads.next; pos != &s->loads; pos = pos->next) {
		struct tn_sched_load *load = tn_container_of(pos, struct tn_sched_load, link);

		if (may_be_picked(load) && elapsed(now, load->served_ns) > AGED_NS &&
		    (!found || load->served_ns < found->served_ns))
			found = load;
	}
	return found;
}

static struct tn_sched_load *most_urgent(struct tn_sched *s)
{
	struct tn_sched_load *best = NULL;
	enum tn_reason why;

	s->picked = TN_REASON_ONLY;
	for (struct tn_list *pos = s->loads.next; pos != &s->loads; pos = pos->next) {
		struct tn_sched_load *load = tn_container_of(pos, struct tn_sched_load, link);

		if (!may_be_picked(load))
			continue;
		if (!best) {
			best = load;
			continue;
		}
		best = before(load, best, &why) ? load : best;
		s->picked = why;
	}
	return best;
}

struct tn_sched_load *tn_sched_pick(struct tn_sched *s, uint64_t now_ns)
{
	struct tn_sched_load *best = most_urgent(s), *old = s->aged ? NULL : oldest(s, now_ns);

	if (old && old != best) {
		s->aged = old;
		s->aged_bytes = AGED_BYTES;
		s->aged_next_ns = add_ns(now_ns, AGED_EACH_NS);
	}
	if (s->aged && may_be_picked(s->aged)) {
		best = s->aged;
		s->picked = TN_REASON_AGED;
	}
	if (best)
		best->passed = true;
	return best;
}

static void aged_reads(struct tn_sched *s, const struct tn_sched_load *load, uint64_t bytes)
{
	if (s->aged != load)
		return;
	s->aged_bytes -= min64(s->aged_bytes, bytes);
	if (s->aged_bytes == 0)
		s->aged = NULL;
}

/* ---- reads --------------------------------------------------------------------------------------- */

/* Writes in flight that take longer than they should are not waited for: a drive may hold one for seconds. */
static bool drained(struct tn_sched_device *d, uint64_t now)
{
	uint64_t due = add_ns(d->drains_since_ns, DRAIN_NS);

	if (d->write_bytes == 0 || d->free_mix || d->late)
		return true;
	d->late = now >= due;
	if (d->late)
		return true;
	d->read_asked = true;
	d->drain_due_ns = due;
	return false;
}

/*
 * Reads are held back, so that a starved write finds the device without them, until one of its kind has gone or nobody asks
 * for one any more; at most until held_until_ns, when it goes beside the reads in flight.
 */
static bool held(struct tn_sched_device *d, uint64_t now)
{
	if (now >= d->held_until_ns)
		return false;
	/* With nothing in flight it is the writes' move, in this turn: somebody has to see whether a write went. */
	d->drain_due_ns = min64(d->held_until_ns, d->read_bytes || d->write_bytes ? TN_FOREVER : add_ns(now, MS));
	return true;
}

/* Bytes of reads that may go now, whatever they are for; *reason: why no more may. An idle device takes any number. */
static uint64_t sendable(struct tn_sched *s, uint32_t device, enum tn_reason *reason, uint64_t now)
{
	struct tn_sched_device *d = &s->device[device];
	uint64_t queue = read_queue(d);

	*reason = TN_REASON_SLACK;
	if (d->slack_bytes && tn_sched_put_off(s, device, now))
		return 0;
	*reason = TN_REASON_STARVED;
	if (held(d, now))
		return 0;
	*reason = TN_REASON_WRITES_DRAIN;
	if (!drained(d, now))
		return 0;
	*reason = TN_REASON_WINDOW;
	if (d->read_bytes == 0)
		return UINT64_MAX;
	return queue > d->read_bytes ? queue - d->read_bytes : 0;
}

uint64_t tn_sched_sendable(struct tn_sched *s, uint32_t device, uint64_t least, uint64_t now_ns, bool *later)
{
	const struct tn_sched_device *d = &s->device[device];
	enum tn_reason reason;
	uint64_t bytes = sendable(s, device, &reason, now_ns);

	*later = reason == TN_REASON_WINDOW && bytes < read_queue(d) / 4;
	if (d->read_bytes == 0)
		return bytes ? max64(read_queue(d), least) : 0;
	return bytes >= least && !*later ? bytes : 0;
}

bool tn_sched_read(struct tn_sched *s, struct tn_sched_load *load, uint32_t layer, uint32_t device, uint64_t bytes,
		   uint64_t now_ns)
{
	struct tn_sched_device *d = &s->device[device];
	enum tn_reason reason;

	assert(device < s->o.devices);
	if (bytes > sendable(s, device, &reason, now_ns)) {
		report_wait(s, load, device, bytes, reason, now_ns);
		return false;
	}
	note_read(s, load, layer, device, bytes, now_ns);
	d->told = TN_REASONS;
	meter_starts(&d->reads, d->read_bytes, now_ns);
	d->read_bytes += bytes;
	load->served_ns = now_ns;
	aged_reads(s, load, bytes);
	return true;
}

void tn_sched_read_undo(struct tn_sched *s, uint32_t device, uint64_t bytes)
{
	assert(s->device[device].read_bytes >= bytes);
	s->device[device].read_bytes -= bytes;
}

void tn_sched_read_done(struct tn_sched *s, uint32_t device, uint64_t bytes, uint64_t now_ns)
{
	struct tn_sched_device *d = &s->device[device];

	tn_sched_read_undo(s, device, bytes);
	meter_ends(&d->reads, bytes, d->read_bytes, now_ns);
}

/* ---- writes -------------------------------------------------------------------------------------- */

/*
 * True if another kind of writers has waited longer and asked in the last turn, so that it will ask in this turn, too.
 * The store's own writes come first only when they have waited for long, because nothing waits for their end.
 */
static bool others_first(const struct tn_sched_device *d, enum tn_sched_writer who, uint64_t now)
{
	for (uint32_t w = 0; w < TN_SCHED_WRITERS; w++)
		if (w != who && d->waits[w].before && d->waits[w].since_ns < d->waits[who].since_ns &&
		    (w != TN_SCHED_STORE || elapsed(now, d->waits[w].since_ns) >= STARVED_NS))
			return true;
	return false;
}

/* Late writes go before reads for a larger part of the time than other writes that have waited for long. */
static bool is_late(const struct tn_sched *s, enum tn_sched_writer who)
{
	return s->late && who == TN_SCHED_OFFLOADS;
}

/*
 * A starved write goes when the reads in flight have ended, and no more are sent until then: beside the write they would
 * all be slower, which costs them many times the write's own time. True: it has to wait for that.
 */
static bool holds_reads(struct tn_sched_device *d, enum tn_sched_writer who, uint64_t now)
{
	uint64_t took;

	if (d->read_bytes == 0)
		return false;
	if (d->held_until_ns == 0) {
		took = ns_of(d->read_bytes, sure_read_bps(d)) + latency_of(&d->reads);
		d->holder = who;
		d->held_ns = now;
		d->held_until_ns = add_ns(now, min64(2 * took + MS, SECOND));
	}
	if (now >= d->held_until_ns)
		return false;
	d->due_ns = min64(d->due_ns, d->held_until_ns);
	return true;
}

/*
 * Reads wait or are in flight: a write goes only if its kind has waited for long, or is late. Then one quantum of such
 * writes goes at a time, so often that reads lose the writes' share of the time and no more. The writes' latency
 * counts, too, because reads wait for its end. Late writes go beside the reads in flight.
 */
static bool starved(struct tn_sched *s, struct tn_sched_device *d, enum tn_sched_writer who, uint64_t bytes, uint64_t now)
{
	struct tn_sched_waits *w = &d->waits[who];
	bool late = is_late(s, who);
	uint64_t due = w->starving ? d->starved_next_ns : max64(add_ns(w->since_ns, STARVED_NS), d->starved_next_ns);
	uint64_t quantum, took, from;

	if (late)
		due = d->late_next_ns;

	if (d->starved == who)
		d->starved_bytes = 0;
	if (now < due) {
		d->due_ns = min64(d->due_ns, due);
		return false;
	}
	if (!late && holds_reads(d, who, now))
		return false;
	from = d->held_until_ns ? d->held_ns : now; /* while the reads in flight end, they lose nothing */
	quantum = max64(bytes, tn_sched_quantum(s, d, now));
	w->starving = true;
	d->starved = who;
	d->starved_bytes = quantum - bytes;
	took = ns_of(quantum, bps_of(&d->writes)) + latency_of(&d->writes);
	d->late_next_ns = add_ns(now, min64(LATE_SHARE * took, SECOND));
	if (late) /* the reads that are held for another kind stay so */
		return true;
	d->held_until_ns = 0;
	d->starved_next_ns = add_ns(from, min64(STARVED_SHARE * took, SECOND));
	return true;
}

/* *slack_ns: of the decision. */
static bool may_write(struct tn_sched *s, enum tn_sched_writer who, uint32_t device, uint64_t bytes,
		      enum tn_reason *reason, int64_t *slack_ns, uint64_t now)
{
	struct tn_sched_device *d = &s->device[device];
	bool reads = d->loads > 0 || d->read_bytes > 0;

	*slack_ns = write_slack(s, now);
	*reason = TN_REASON_QUANTUM;
	if (d->write_bytes >= tn_sched_quantum(s, d, now)) /* the last one may pass it: two in flight hide the latency */
		return false;
	if (reads && d->starved == who && d->starved_bytes >= bytes) {
		d->starved_bytes -= bytes;
		*reason = TN_REASON_STARVED;
		return true;
	}
	if (!(reads && is_late(s, who)) && others_first(d, who, now)) { /* if that kind asks no more, this one must again */
		d->due_ns = min64(d->due_ns, add_ns(now, MS));
		return false;
	}
	if (reads && !d->free_mix) {
		if (tn_sched_into_slack(s, device, bytes, slack_ns, now)) {
			*reason = TN_REASON_SLACK;
			return true;
		}
		if (d->slack_bytes) { /* as soon as the reads in flight have ended */
			*reason = TN_REASON_READS_IN_FLIGHT;
			return false;
		}
		if (starved(s, d, who, bytes, now)) {
			*reason = TN_REASON_STARVED;
			return true;
		}
		*reason = d->loads && !d->held_until_ns ? TN_REASON_READS_WAIT : TN_REASON_READS_IN_FLIGHT;
		return false;
	}
	d->starved_bytes = d->slack_bytes = d->held_until_ns = 0;
	d->waits[who].starving = false;
	*reason = reads ? TN_REASON_MIX_FREE : calm(s, now) ? TN_REASON_DECODE : TN_REASON_IDLE;
	return true;
}

bool tn_sched_write(struct tn_sched *s, enum tn_sched_writer who, uint32_t device, uint64_t bytes, uint64_t now_ns)
{
	struct tn_sched_device *d = &s->device[device];
	enum tn_reason reason;
	int64_t slack_ns;

	assert(device < s->o.devices);
	if (!may_write(s, who, device, bytes, &reason, &slack_ns, now_ns)) {
		d->waits[who].asked = true;
		report_wait(s, NULL, device, bytes, reason, now_ns);
		return false;
	}
	d->told = TN_REASONS;
	report_reads(s);
	report_decision(s, (struct tn_decision){.time_ns = now_ns,
				     .device = device,
				     .chosen = TN_CHOSE_WRITE,
				     .reason = reason,
				     .slack_ns = slack_ns,
				     .bytes = bytes});
	d->wrote = true;
	if (who == d->holder && !is_late(s, who))
		d->held_until_ns = 0;
	d->waits[who].since_ns = now_ns;
	meter_starts(&d->writes, d->write_bytes, now_ns);
	d->write_bytes += bytes;
	return true;
}

uint64_t tn_sched_write_most(const struct tn_sched *s, uint32_t device, uint64_t now_ns)
{
	return (tn_sched_quantum(s, &s->device[device], now_ns) + 1) / 2;
}

void tn_sched_write_waits(struct tn_sched *s, enum tn_sched_writer who)
{
	for (uint32_t i = 0; i < s->o.devices; i++)
		s->device[i].waits[who].asked |= s->device[i].waits[who].before;
}

void tn_sched_write_undo(struct tn_sched *s, uint32_t device, uint64_t bytes)
{
	struct tn_sched_device *d = &s->device[device];

	assert(d->write_bytes >= bytes);
	d->write_bytes -= bytes;
	if (d->write_bytes == 0)
		d->late = false;
}

void tn_sched_write_done(struct tn_sched *s, uint32_t device, uint64_t bytes, uint64_t now_ns)
{
	struct tn_sched_device *d = &s->device[device];

	tn_sched_write_undo(s, device, bytes);
	meter_ends(&d->writes, bytes, d->write_bytes, now_ns);
}
