/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler against simulated devices: a clock that the test owns, transfers that end when the device says so.
 */
#include "sched/sched.h"

#include <string.h>

#include "base/rng.h"
#include "tn_test.h"

#define MS 1000000ull
#define CHUNK (256u << 10)
#define LOADS 8u

static const struct tn_mix ps1010 = {.version = 1, .read_bps = 29000000000 / 16, .write_bps = 12000000000 / 16,
				     .mixed_bps = 12000000000 / 16, .read_latency_ns = 960000, .write_latency_ns = 160000};

/* ---- a device ------------------------------------------------------------------------------------- */

struct transfer {
	bool write;
	uint32_t device, load;
	uint64_t end_ns;
};

/* Serves in turn, at the mixed rate what begins among others of the other kind; a latency behind it. */
struct sim {
	struct tn_sched *s;
	struct tn_rng rng;
	uint64_t now;
	double read_bps[2], write_bps[2], slowness; /* slowness: of everything; 1 is as described */
	uint64_t free_at[2];
	struct transfer t[4096];
	uint32_t n;
	uint32_t reads[2], writes[2]; /* in flight */
	uint32_t overlaps; /* transfers let go while the other kind was in flight */
	struct tn_sched_load load[LOADS];
	uint32_t left[LOADS]; /* chunks not let go */
	uint32_t flying[LOADS];
	uint64_t done_ns[LOADS];
	uint64_t written;
	uint32_t told[4][TN_REASONS];
	struct tn_decision last[4]; /* by what was chosen */
};

static void explain(void *arg, const struct tn_decision *d)
{
	struct sim *m = arg;

	assert_true(d->chosen <= TN_CHOSE_REFUSE && d->reason < TN_REASONS && d->device <= TN_DEVICES_MAX);
	m->told[d->chosen][d->reason]++;
	m->last[d->chosen] = *d;
}

static struct sim *sim_create(uint32_t devices, const struct tn_mix *mix)
{
	struct sim *m = calloc(1, sizeof(*m));
	struct tn_sched_opts o = {.devices = devices, .alloc = &tn_alloc_system, .explain = explain, .explain_arg = m};

	assert_non_null(m);
	tn_rng_seed(&m->rng, tn_test_seed());
	assert_int_equal(tn_sched_create(&o, &m->s), 0);
	m->now = 1000 * MS;
	m->slowness = 1;
	for (uint32_t i = 0; i < devices; i++) {
		m->read_bps[i] = (double)ps1010.read_bps;
		m->write_bps[i] = (double)ps1010.write_bps;
		if (mix)
			tn_sched_device(m->s, i, mix);
	}
	for (uint32_t i = 0; i < LOADS; i++)
		tn_list_init(&m->load[i].link);
	return m;
}

static void sim_destroy(struct sim *m)
{
	tn_sched_destroy(m->s);
	free(m);
}

static void put(struct sim *m, bool write, uint32_t device, uint32_t load)
{
	bool mixed = write ? m->reads[device] : m->writes[device];
	double bps = mixed ? (double)ps1010.mixed_bps : write ? m->write_bps[device] : m->read_bps[device];
	uint64_t from = m->now > m->free_at[device] ? m->now : m->free_at[device];

	assert_true(m->n < 4096);
	if (write ? m->reads[device] : m->writes[device])
		m->overlaps++;
	m->free_at[device] = from + (uint64_t)(CHUNK / bps * 1e9 * m->slowness);
	m->t[m->n++] = (struct transfer){write, device, load, m->free_at[device] + 100000};
	if (write)
		m->writes[device]++;
	else
		m->reads[device]++;
}

static void load_begin(struct sim *m, uint32_t i, uint32_t chunks, int32_t priority, uint32_t devices)
{
	struct tn_sched_load *l = &m->load[i];

	*l = (struct tn_sched_load){.id = i + 1, .priority = priority, .layers = 1, .start_ns = m->now};
	m->left[i] = chunks;
	m->flying[i] = 0;
	m->done_ns[i] = 0;
	tn_sched_load_add(m->s, l, m->now);
	tn_sched_load_waits(m->s, l, devices);
}

static uint32_t device_of(const struct sim *m, uint32_t i)
{
	return m->load[i].devices == 3 ? m->left[i] & 1 : (uint32_t)__builtin_ctz(m->load[i].devices);
}

static bool issue(struct sim *m, uint32_t i)
{
	bool any = false;

	for (unsigned k = 0; k < 32 && m->left[i]; k++) {
		uint32_t d = device_of(m, i);

		if (!tn_sched_read(m->s, &m->load[i], m->load[i].next_layer, d, CHUNK, m->now))
			break;
		m->left[i]--;
		m->flying[i]++;
		put(m, false, d, i);
		any = true;
	}
	if (m->left[i] == 0)
		tn_sched_load_waits(m->s, &m->load[i], 0);
	return any;
}

/* One turn, with writes always waiting for the devices given as bits. True if anything was let go. */
static bool turn(struct sim *m, uint32_t writes)
{
	struct tn_sched_load *l;
	bool any = false, more = true;

	tn_sched_turn(m->s, m->now);
	while (more) {
		more = false;
		while ((l = tn_sched_pick(m->s, m->now)))
			more |= issue(m, (uint32_t)(l - m->load));
		any |= more;
		tn_sched_again(m->s);
	}
	for (uint32_t d = 0; d < 2; d++)
		while ((writes >> d & 1) && tn_sched_write(m->s, TN_SCHED_SAVES, d, CHUNK, m->now)) {
			put(m, true, d, 0);
			any = true;
		}
	return any;
}

static void end_one(struct sim *m, uint32_t k)
{
	struct transfer t = m->t[k];

	m->t[k] = m->t[--m->n];
	if (t.write) {
		m->writes[t.device]--;
		m->written += CHUNK;
		tn_sched_write_done(m->s, t.device, CHUNK, m->now);
		return;
	}
	m->reads[t.device]--;
	tn_sched_read_done(m->s, t.device, CHUNK, m->now);
	if (--m->flying[t.load] == 0 && m->left[t.load] == 0) {
		m->done_ns[t.load] = m->now;
		tn_sched_load_del(m->s, &m->load[t.load], m->now, true);
	}
}

/* Time goes on to the next end, or to the scheduler's due, or to `until`. */
static void advance(struct sim *m, uint64_t until)
{
	uint64_t next = tn_sched_due(m->s);

	for (uint32_t k = 0; k < m->n; k++)
		next = m->t[k].end_ns < next ? m->t[k].end_ns : next;
	m->now = next < until ? next : until;
	for (uint32_t k = m->n; k-- > 0;)
		if (m->t[k].end_ns <= m->now)
			end_one(m, k);
}

static void run_until(struct sim *m, uint64_t until, uint32_t writes)
{
	while (m->now < until) {
		turn(m, writes);
		advance(m, until);
	}
}

/* ---- reads before writes --------------------------------------------------------------------------- */

/* Restores of 16 MiB at random times; their p99 time. */
static uint64_t restore_p99(struct sim *m, uint32_t writes, unsigned count)
{
	static uint64_t took[2000];

	assert_true(count <= 2000);
	for (unsigned k = 0; k < count; k++) {
		uint64_t from;

		run_until(m, m->now + (10 + tn_rng_below(&m->rng, 20)) * MS, writes);
		from = m->now;
		load_begin(m, 0, 64, 0, 1);
		while (!m->done_ns[0]) {
			turn(m, writes);
			advance(m, TN_FOREVER);
		}
		took[k] = m->done_ns[0] - from;
		for (unsigned j = k; j > 0 && took[j - 1] > took[j]; j--) {
			uint64_t t = took[j];

			took[j] = took[j - 1];
			took[j - 1] = t;
		}
	}
	return took[count * 99 / 100];
}

static void saturating_writes_cost_restores_at_most_a_quarter_at_p99(void **state)
{
	for (int known = 0; known < 2; known++) {
		struct sim *m = sim_create(1, known ? &ps1010 : NULL);
		uint64_t without = restore_p99(m, 0, 1000), with, from, wrote;

		restore_p99(m, 1, 20); /* learns, if it has to */
		from = m->now;
		wrote = m->written;
		with = restore_p99(m, 1, 1000);
		print_message("# mix %s: p99 %.2f ms without writes, %.2f ms with; %.0f MB/s written\n",
			      known ? "measured" : "unknown", (double)without / 1e6, (double)with / 1e6,
			      (double)(m->written - wrote) * 1e3 / (double)(m->now - from));
		assert_true((double)with <= 1.25 * (double)without);
		assert_true(m->overlaps == 0);
		assert_true((double)(m->written - wrote) / (double)(m->now - from) > 0.3 * 0.75); /* of what gaps leave */
		sim_destroy(m);
	}
}

/* A restore of 1 GiB in 32 layers; how long it took. */
static uint64_t long_restore_ns(bool writes)
{
	struct sim *m = sim_create(1, &ps1010);
	uint64_t took;

	run_until(m, m->now + 50 * MS, writes);
	took = m->now;
	load_begin(m, 0, 4096, 0, 1);
	while (!m->done_ns[0]) {
		turn(m, writes);
		advance(m, TN_FOREVER);
	}
	took = m->done_ns[0] - took;
	sim_destroy(m);
	return took;
}

static void a_long_restore_loses_hardly_anything_to_waiting_writes(void **state)
{
	uint64_t without = long_restore_ns(false), with = long_restore_ns(true);

	print_message("# %.1f ms without writes, %.1f ms with\n", (double)without / 1e6, (double)with / 1e6);
	assert_true((double)with <= 1.015 * (double)without);
}

static void a_free_mix_lets_both_go_and_another_does_not(void **state)
{
	struct tn_mix mix = ps1010;

	for (int free_mix = 0; free_mix < 2; free_mix++) {
		struct sim *m;

		mix.mixed_bps = free_mix ? 1050000000 : 1000000000; /* serial use gives 1061 MB/s */
		m = sim_create(1, &mix);
		load_begin(m, 0, 400, 0, 1);
		run_until(m, m->now + 50 * MS, 1);
		assert_true(free_mix ? m->overlaps > 0 : m->overlaps == 0);
		assert_true((m->told[TN_CHOSE_WRITE][TN_REASON_MIX_FREE] > 0) == (free_mix == 1));
		assert_true((m->told[TN_CHOSE_WAIT][TN_REASON_READS_WAIT] > 0) == (free_mix == 0));
		sim_destroy(m);
	}
}

static void a_read_waits_for_the_writes_in_flight_but_not_for_late_ones(void **state)
{
	struct sim *m = sim_create(1, &ps1010);
	uint64_t from;

	turn(m, 1);
	assert_true(m->writes[0] > 0);
	from = m->now;
	load_begin(m, 0, 1, 0, 1);
	turn(m, 0);
	assert_int_equal(m->reads[0], 0);
	assert_int_equal(m->told[TN_CHOSE_WAIT][TN_REASON_WRITES_DRAIN], 1);
	for (uint32_t k = 0; k < m->n; k++)
		m->t[k].end_ns = m->now + 10000 * MS; /* the drive hangs */
	while (m->reads[0] == 0) {
		assert_true(tn_sched_due(m->s) != TN_FOREVER);
		advance(m, TN_FOREVER);
		turn(m, 0);
	}
	assert_true(m->now - from < 100 * MS);
	load_begin(m, 1, 1, 0, 1); /* and the next one does not wait again */
	turn(m, 0);
	assert_int_equal(m->reads[0], 2);
	sim_destroy(m);
}

static void writes_get_a_small_share_although_reads_never_end(void **state)
{
	struct sim *m = sim_create(1, &ps1010);
	uint64_t from = m->now;

	load_begin(m, 0, 1u << 30, 0, 1);
	run_until(m, m->now + 20000 * MS, 1);
	print_message("# %.2f %% of the time, %u turns\n", 100 * (double)m->written / 0.75 / (double)(m->now - from),
		      m->told[TN_CHOSE_WRITE][TN_REASON_STARVED]);
	assert_true(m->written > 0);
	assert_true((double)m->written / 0.75 < 0.05 * (double)(m->now - from));
	assert_int_equal(m->overlaps, 0); /* beside a write, all reads in flight would be slower */
	sim_destroy(m);
}

/* A load that wants all of the device, up to the moment when its reads are held back for a write that has waited for long. */
static struct sim *reads_held(void)
{
	struct sim *m = sim_create(1, &ps1010);
	uint64_t from = m->now;

	load_begin(m, 0, 1u << 30, 0, 1);
	while (m->told[TN_CHOSE_WAIT][TN_REASON_STARVED] == 0) {
		turn(m, 1);
		advance(m, TN_FOREVER);
		assert_true(m->now < from + 300 * MS);
	}
	assert_true(m->reads[0] > 0 && m->writes[0] == 0);
	return m;
}

static void reads_are_held_no_longer_than_somebody_asks_for_the_write(void **state)
{
	struct sim *m = reads_held();
	uint32_t in_flight = m->reads[0];

	turn(m, 1);
	assert_int_equal(m->reads[0], in_flight);
	turn(m, 0); /* the write asked in the turn before */
	turn(m, 0);
	assert_true(m->reads[0] > in_flight);
	sim_destroy(m);
}

/* Offloads that ask meanwhile have waited for nothing yet. */
static void another_kind_that_asks_does_not_keep_the_reads_held(void **state)
{
	struct sim *m = reads_held();
	uint32_t in_flight = m->reads[0];

	for (int k = 0; k < 3; k++) {
		turn(m, 0);
		assert_false(tn_sched_write(m->s, TN_SCHED_OFFLOADS, 0, CHUNK, m->now));
	}
	assert_true(m->reads[0] > in_flight);
	sim_destroy(m);
}

/* Late offloads go beside the reads in flight, all the time: each would begin the wait of the saves anew. */
static void late_offloads_do_not_end_what_is_held_for_saves(void **state)
{
	struct sim *m = reads_held();
	uint32_t in_flight = m->reads[0];

	turn(m, 1);
	tn_sched_late(m->s, true);
	assert_true(tn_sched_write(m->s, TN_SCHED_OFFLOADS, 0, CHUNK, m->now));
	tn_sched_write_done(m->s, 0, CHUNK, m->now);
	turn(m, 1);
	assert_int_equal(m->reads[0], in_flight);
	sim_destroy(m);
}

static void a_starved_write_does_not_wait_for_reads_that_hang(void **state)
{
	struct sim *m = reads_held();
	uint64_t from = m->now;

	for (uint32_t k = 0; k < m->n; k++)
		m->t[k].end_ns = m->now + 10000 * MS;
	while (m->writes[0] == 0) {
		assert_true(tn_sched_due(m->s) != TN_FOREVER);
		advance(m, TN_FOREVER);
		turn(m, 1);
	}
	assert_true(m->now - from < 100 * MS);
	sim_destroy(m);
}

/* Quanta of a tenth of a millisecond: they come more often instead, and what waits for 250 ms waits so once. */
static void that_share_is_theirs_however_small_the_quanta_are(void **state)
{
	struct sim *m = sim_create(1, &ps1010);
	uint64_t from = m->now + 2 * MS;

	load_begin(m, 1, 0, 0, 0);
	m->now = from;
	tn_sched_load_del(m->s, &m->load[1], from, true); /* short restores, small quanta */
	load_begin(m, 0, 1u << 30, 0, 1);
	run_until(m, from + 10000 * MS, 1);
	print_message("# %.2f %% of the time\n", 100 * (double)m->written / 0.75 / (double)(m->now - from));
	assert_true((double)m->written / 0.75 > 0.005 * (double)(m->now - from));
	assert_true((double)m->written / 0.75 < 0.03 * (double)(m->now - from));
	sim_destroy(m);
}

/* A device that answers so slowly that a turn costs more by its latencies than by its bytes. */
static void nor_do_latencies_give_writes_more_than_their_share(void **state)
{
	struct tn_mix far = ps1010;
	struct sim *m;
	uint64_t from;

	far.read_latency_ns = far.write_latency_ns = 200 * MS;
	m = sim_create(1, &far);
	from = m->now;
	load_begin(m, 0, 1u << 30, 0, 1);
	run_until(m, from + 20000 * MS, 1);
	print_message("# %.2f %% of the time\n", 100 * (double)m->written / 0.75 / (double)(m->now - from));
	assert_true(m->written > 0 && (double)m->written / 0.75 < 0.03 * (double)(m->now - from));
	sim_destroy(m);
}

/* Saves ask first in every turn, and always have more; no read is in the way. */
static void saves_and_offloads_take_turns_and_the_store_has_its_own(void **state)
{
	static const uint32_t bytes[TN_SCHED_WRITERS] = {CHUNK, CHUNK, 1u << 20};
	struct sim *m = sim_create(1, &ps1010);
	uint64_t got[TN_SCHED_WRITERS] = {0}, from = m->now;

	while (m->now < from + 5000 * MS) {
		for (bool any = true; any;) {
			any = false;
			tn_sched_turn(m->s, m->now);
			for (uint32_t who = 0; who < TN_SCHED_WRITERS; who++)
				while (tn_sched_write(m->s, who, 0, bytes[who], m->now)) {
					for (uint32_t k = 0; k < bytes[who] / CHUNK; k++)
						put(m, true, 0, 0);
					got[who]++;
					any = true;
				}
		}
		advance(m, TN_FOREVER);
	}
	print_message("# %llu writes of saves, %llu of offloads, %llu of the store\n", (unsigned long long)got[TN_SCHED_SAVES],
		      (unsigned long long)got[TN_SCHED_OFFLOADS], (unsigned long long)got[TN_SCHED_STORE]);
	assert_in_range(got[TN_SCHED_OFFLOADS], got[TN_SCHED_SAVES] * 9 / 10, got[TN_SCHED_SAVES] * 11 / 10);
	assert_in_range(got[TN_SCHED_STORE], 10, 40);
	sim_destroy(m);
}

/* In every other turn the writer has no move for its write, and says that it still waits. */
static void a_wait_for_something_else_does_not_begin_anew(void **state)
{
	struct sim *m = sim_create(1, &ps1010);

	load_begin(m, 0, 1u << 30, 0, 1);
	for (uint32_t k = 0; m->written == 0 && m->now < 2000 * MS; k++) {
		turn(m, k & 1);
		if (!(k & 1))
			tn_sched_write_waits(m->s, TN_SCHED_SAVES);
		advance(m, TN_FOREVER);
	}
	assert_true(m->now < 1300 * MS); /* it began at 1,000 */
	sim_destroy(m);
}

/* Saves ask before the store does, in every turn, and for less. */
static void the_stores_own_writes_get_a_turn_beside_saves_and_reads_that_never_end(void **state)
{
	struct sim *m = sim_create(1, &ps1010);
	uint64_t from, store = 0, chunks = (1u << 20) / CHUNK;

	load_begin(m, 1, 0, 0, 0); /* a long restore: the largest quanta, so that turns are further apart than both wait */
	m->now += 400 * MS;
	tn_sched_load_del(m->s, &m->load[1], m->now, true);
	from = m->now;
	load_begin(m, 0, 1u << 30, 0, 1);
	while (m->now < from + 20000 * MS) {
		turn(m, 1);
		if (tn_sched_write(m->s, TN_SCHED_STORE, 0, 1u << 20, m->now)) {
			for (uint32_t k = 0; k < chunks; k++)
				put(m, true, 0, 0);
			store++;
		}
		advance(m, TN_FOREVER);
	}
	print_message("# %.2f %% of the time, %u turns, of which the store had %llu\n",
		      100 * (double)m->written / 0.75 / (double)(m->now - from), m->told[TN_CHOSE_WRITE][TN_REASON_STARVED],
		      (unsigned long long)store);
	assert_true(store >= 10);
	assert_true(m->written > 2 * store << 20); /* saves have theirs */
	assert_true((double)m->written / 0.75 < 0.05 * (double)(m->now - from));
	sim_destroy(m);
}

static void a_drive_that_hardly_writes_at_all_does_not_upset_the_share(void **state)
{
	struct tn_mix mix = ps1010;

	for (uint64_t bytes = 1u << 18; bytes; bytes <<= 9) { /* up to 2^63, at a byte a second */
		struct tn_sched_opts o = {.devices = 1, .alloc = &tn_alloc_system};
		struct tn_sched_load load = {.layers = 1};
		uint32_t went = 0;
		struct tn_sched *s;

		mix.write_bps = mix.mixed_bps = 1;
		assert_int_equal(tn_sched_create(&o, &s), 0);
		tn_sched_device(s, 0, &mix);
		tn_sched_load_add(s, &load, 1);
		tn_sched_load_waits(s, &load, 1);
		for (uint64_t now = 1; now < 10000 * MS; now += MS) {
			tn_sched_turn(s, now);
			if (tn_sched_write(s, TN_SCHED_SAVES, 0, bytes, now)) {
				tn_sched_write_done(s, 0, bytes, now);
				went++;
			}
		}
		assert_in_range(went, 5, 10); /* one in a second */
		tn_sched_load_del(s, &load, 1, false);
		tn_sched_destroy(s);
	}
}

/* As many chunks as may be in flight at once; none of them goes. */
static uint32_t chunks_let_go(struct tn_sched *s, uint64_t now)
{
	uint32_t n = 0;

	while (tn_sched_write(s, TN_SCHED_SAVES, 0, CHUNK, now))
		n++;
	tn_sched_write_undo(s, 0, (uint64_t)n * CHUNK);
	return n;
}

static void writes_that_did_not_go_teach_nothing(void **state)
{
	struct tn_sched_opts o = {.devices = 1, .alloc = &tn_alloc_system};
	struct tn_sched *s;
	uint64_t now = 1;
	uint32_t n;

	assert_int_equal(tn_sched_create(&o, &s), 0);
	tn_sched_turn(s, now);
	assert_true(tn_sched_write(s, TN_SCHED_SAVES, 0, CHUNK, now));
	now += 3 * MS; /* slow to answer */
	tn_sched_write_done(s, 0, CHUNK, now);
	n = chunks_let_go(s, now);
	assert_true(tn_sched_write(s, TN_SCHED_SAVES, 0, 5 * CHUNK, now));
	now++;
	tn_sched_write_undo(s, 0, 4 * CHUNK);
	tn_sched_write_undo(s, 0, 0);
	now += 3 * MS;
	tn_sched_write_done(s, 0, CHUNK, now);
	assert_int_equal(chunks_let_go(s, now), n);
	tn_sched_destroy(s);
}

static void an_announced_decode_phase_has_larger_quanta_until_a_load_comes(void **state)
{
	struct sim *m = sim_create(1, &ps1010);
	uint32_t small, large;

	turn(m, 1);
	small = m->writes[0];
	run_until(m, m->now + 1000 * MS, 0);
	tn_sched_calm(m->s, TN_FOREVER);
	turn(m, 1);
	large = m->writes[0];
	assert_true(large >= 4 * small);
	assert_true(m->told[TN_CHOSE_WRITE][TN_REASON_DECODE] == large);
	load_begin(m, 0, 4, 0, 1);
	run_until(m, m->now + 1000 * MS, 0);
	turn(m, 1);
	assert_true(m->writes[0] <= small);
	sim_destroy(m);
}

/* ---- order of loads -------------------------------------------------------------------------------- */

static void loads_go_by_priority_then_by_need(void **state)
{
	static const uint64_t before[4] = {0, 10 * MS, 20 * MS, 30 * MS};
	struct sim *m = sim_create(1, &ps1010);
	uint32_t order[4] = {9, 9, 9, 9};

	for (uint32_t i = 0; i < 4; i++) {
		load_begin(m, i, 1, i == 3, 1);
		m->load[i].layers = 4;
		m->load[i].before_ns = before;
		m->load[i].next_layer = (uint32_t[]){3, 1, 2, 3}[i];
	}
	tn_sched_turn(m->s, m->now);
	for (uint32_t k = 0; k < 4; k++)
		order[k] = (uint32_t)(tn_sched_pick(m->s, m->now) - m->load);
	assert_null(tn_sched_pick(m->s, m->now));
	assert_int_equal(order[0], 3); /* the priority */
	assert_int_equal(order[1], 1);
	assert_int_equal(order[2], 2);
	assert_int_equal(order[3], 0);
	/* The engine of load 0 is at layer 2 already: what it needs comes before what load 2 needs. */
	m->load[0].at_layer = 2;
	m->load[0].at_ns = m->now - 25 * MS;
	tn_sched_again(m->s);
	for (uint32_t k = 0; k < 4; k++)
		order[k] = (uint32_t)(tn_sched_pick(m->s, m->now) - m->load);
	assert_int_equal(order[1], 0);
	sim_destroy(m);
}

static void decisions_say_slack_and_reason(void **state)
{
	static const uint64_t before[2] = {0, 30 * MS};
	struct sim *m = sim_create(1, &ps1010);

	load_begin(m, 0, 3, 0, 1);
	m->load[0].layers = 2;
	m->load[0].before_ns = before;
	m->load[0].next_layer = 1;
	tn_sched_backlog(m->s, 77, 1000);
	turn(m, 0);
	tn_sched_turn(m->s, m->now);
	assert_int_equal(m->told[TN_CHOSE_READ][TN_REASON_ONLY], 1);
	assert_int_equal(m->last[TN_CHOSE_READ].load, 1);
	assert_int_equal(m->last[TN_CHOSE_READ].layer, 1);
	assert_int_equal(m->last[TN_CHOSE_READ].bytes, 3 * CHUNK);
	assert_int_equal(m->last[TN_CHOSE_READ].slack_ns, 30 * MS);
	assert_int_equal(m->last[TN_CHOSE_READ].deferred_bytes, 77);
	tn_sched_refused(m->s, 5, m->now);
	assert_int_equal(m->told[TN_CHOSE_REFUSE][TN_REASON_BACKLOG], 1);
	for (uint32_t r = 0; r < TN_REASONS; r++)
		assert_string_not_equal(tn_reason_name(r), "unknown");
	assert_string_equal(tn_reason_name(TN_REASONS), "unknown");
	sim_destroy(m);
}

static void a_load_of_low_priority_is_not_starved(void **state)
{
	struct sim *m = sim_create(1, &ps1010);

	load_begin(m, 0, 1u << 30, 5, 1);
	load_begin(m, 1, 512, -5, 1);
	for (int k = 0; k < 100000 && !m->done_ns[1]; k++) {
		turn(m, 0);
		advance(m, TN_FOREVER);
	}
	print_message("# 128 MiB of low priority took %.1f s\n", (double)(m->done_ns[1] - 1000 * MS) / 1e9);
	assert_true(m->done_ns[1] != 0);
	assert_true(m->told[TN_CHOSE_READ][TN_REASON_AGED] > 0);
	assert_true((1u << 30) - m->left[0] > 10 * 512); /* and hardly slows the other */
	sim_destroy(m);
}

static void an_urgent_load_gets_the_device_although_another_has_much_to_read(void **state)
{
	struct sim *m = sim_create(1, &ps1010);
	uint64_t from;

	load_begin(m, 0, 4000, 0, 1);
	run_until(m, m->now + 100 * MS, 0);
	from = m->now;
	load_begin(m, 1, 64, 1, 1);
	while (!m->done_ns[1]) {
		turn(m, 0);
		advance(m, TN_FOREVER);
	}
	print_message("# 16 MiB took %.1f ms behind what was in flight\n", (double)(m->done_ns[1] - from) / 1e6);
	assert_true(m->done_ns[1] - from < 30 * MS); /* 9.3 ms alone, 10 ms of queue */
	sim_destroy(m);
}

/* ---- changes ---------------------------------------------------------------------------------------- */

/* Steps and noise of the device's speed: the learned quantum follows, and does not swing. */
static void the_quantum_follows_a_step_of_the_devices_speed_without_swinging(void **state)
{
	struct sim *m = sim_create(1, NULL);
	unsigned turns = 0;
	int way = 0;
	uint32_t was = 0, at[4];

	for (int k = 0; k < 4000; k++) {
		m->slowness = (k / 1000 % 2 ? 4 : 1) * (0.9 + 0.2 * tn_rng_unit(&m->rng));
		turn(m, 1);
		if (m->writes[0] != was && was) {
			int now = m->writes[0] > was ? 1 : -1;

			turns += way && now != way;
			way = now;
		}
		was = m->writes[0];
		at[k / 1000] = was;
		advance(m, TN_FOREVER);
		while (m->n) /* the whole quantum, so that what is in flight after a turn is its size */
			advance(m, TN_FOREVER);
	}
	print_message("# %u changes of direction in 4000 quanta and 3 steps; %u, %u, %u, %u writes a quantum\n", turns, at[0],
		      at[1], at[2], at[3]);
	assert_true(turns <= 3 + 40); /* the noise may cross the border between two sizes now and then */
	assert_true(at[1] < at[0] && at[1] < at[2] && at[3] < at[2]);
	sim_destroy(m);
}

static void clocks_that_jump_stop_nothing(void **state)
{
	struct sim *m = sim_create(1, &ps1010);

	load_begin(m, 0, 1u << 30, 0, 1);
	for (int k = 0; k < 20000; k++) {
		uint64_t jump = tn_rng_below(&m->rng, 100) ? 0 : tn_rng_next(&m->rng) % (100000 * MS);

		turn(m, 1);
		assert_true(m->n > 0);
		m->now = tn_rng_below(&m->rng, 2) && m->now > jump ? m->now - jump : m->now + jump;
		end_one(m, tn_rng_below(&m->rng, m->n));
	}
	assert_true(m->written > 0 && m->left[0] < 1u << 30);
	assert_true(m->written < 3000ull * CHUNK); /* reads still come first */
	sim_destroy(m);
}

/* ---- nothing stands still --------------------------------------------------------------------------- */

static void in_any_run_something_is_chosen_or_a_time_to_come_back_is_given(void **state)
{
	for (int known = 0; known < 2; known++) {
		struct sim *m = sim_create(2, known ? &ps1010 : NULL);
		uint32_t steps = tn_test_soak() ? 10000000 : 100000, loads = 0;

		for (uint32_t k = 0; k < steps; k++) {
			uint32_t i = tn_rng_below(&m->rng, LOADS), writes = tn_rng_below(&m->rng, 4);
			bool waits = writes != 0, any;

			if (tn_list_empty(&m->load[i].link)) {
				if (tn_rng_below(&m->rng, 4) == 0) {
					load_begin(m, i, 1 + tn_rng_below(&m->rng, 200), (int32_t)tn_rng_below(&m->rng, 3),
						   1 + tn_rng_below(&m->rng, 3));
					loads++;
				}
			} else if (m->left[i] && tn_rng_below(&m->rng, 50) == 0) { /* cancelled */
				m->left[i] = 0;
				tn_sched_load_waits(m->s, &m->load[i], 0);
				if (m->flying[i] == 0)
					tn_sched_load_del(m->s, &m->load[i], m->now, false);
			}
			for (uint32_t l = 0; l < LOADS; l++)
				waits |= m->left[l] > 0;
			if (tn_rng_below(&m->rng, 1000) == 0)
				tn_sched_calm(m->s, m->now + tn_rng_below(&m->rng, 1000) * MS);
			any = turn(m, writes);
			assert_true(any || !waits || m->n > 0 || (tn_sched_due(m->s) > m->now && tn_sched_due(m->s) != TN_FOREVER));
			if (m->n)
				end_one(m, tn_rng_below(&m->rng, m->n));
			m->now += tn_rng_below(&m->rng, 2 * MS);
		}
		for (uint32_t k = 0; k < 100000 && m->n; k++) { /* all of it ends */
			turn(m, 0);
			end_one(m, m->n - 1);
			m->now += MS;
		}
		for (uint32_t l = 0; l < LOADS; l++)
			assert_int_equal(m->left[l] + m->flying[l], 0);
		assert_true(loads > 100);
		sim_destroy(m);
	}
}

static void what_nobody_asks_for_again_does_not_wake_anybody(void **state)
{
	struct sim *m = sim_create(1, &ps1010);

	load_begin(m, 0, 1u << 20, 0, 1);
	turn(m, 1);
	assert_true(tn_sched_due(m->s) != TN_FOREVER);
	turn(m, 0);
	assert_true(tn_sched_due(m->s) == TN_FOREVER);
	sim_destroy(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(saturating_writes_cost_restores_at_most_a_quarter_at_p99),
		cmocka_unit_test(a_long_restore_loses_hardly_anything_to_waiting_writes),
		cmocka_unit_test(a_free_mix_lets_both_go_and_another_does_not),
		cmocka_unit_test(a_read_waits_for_the_writes_in_flight_but_not_for_late_ones),
		cmocka_unit_test(writes_get_a_small_share_although_reads_never_end),
		cmocka_unit_test(reads_are_held_no_longer_than_somebody_asks_for_the_write),
		cmocka_unit_test(another_kind_that_asks_does_not_keep_the_reads_held),
		cmocka_unit_test(late_offloads_do_not_end_what_is_held_for_saves),
		cmocka_unit_test(a_starved_write_does_not_wait_for_reads_that_hang),
		cmocka_unit_test(that_share_is_theirs_however_small_the_quanta_are),
		cmocka_unit_test(nor_do_latencies_give_writes_more_than_their_share),
		cmocka_unit_test(saves_and_offloads_take_turns_and_the_store_has_its_own),
		cmocka_unit_test(a_wait_for_something_else_does_not_begin_anew),
		cmocka_unit_test(the_stores_own_writes_get_a_turn_beside_saves_and_reads_that_never_end),
		cmocka_unit_test(a_drive_that_hardly_writes_at_all_does_not_upset_the_share),
		cmocka_unit_test(writes_that_did_not_go_teach_nothing),
		cmocka_unit_test(an_announced_decode_phase_has_larger_quanta_until_a_load_comes),
		cmocka_unit_test(loads_go_by_priority_then_by_need),
		cmocka_unit_test(decisions_say_slack_and_reason),
		cmocka_unit_test(a_load_of_low_priority_is_not_starved),
		cmocka_unit_test(an_urgent_load_gets_the_device_although_another_has_much_to_read),
		cmocka_unit_test(the_quantum_follows_a_step_of_the_devices_speed_without_swinging),
		cmocka_unit_test(clocks_that_jump_stop_nothing),
		cmocka_unit_test(in_any_run_something_is_chosen_or_a_time_to_come_back_is_given),
		cmocka_unit_test(what_nobody_asks_for_again_does_not_wake_anybody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
