/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes into the slack of loads, by simulation: one device, one engine that computes the loads one after the other,
 * layer by layer, and writes that never end.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "sched/sched_internal.h"
#include "tn_test.h"

#define CHUNK (256u << 10)
#define LAYERS 32u
#define LOADS 4u /* at once */
#define IO_NS 5000000ull /* of a layer */

static const struct tn_mix drive = {.version = 1, .read_bps = 1800000000, .write_bps = 750000000, .mixed_bps = 750000000,
				    .read_latency_ns = 960000, .write_latency_ns = 160000};

struct transfer {
	bool write;
	uint32_t load, layer;
	uint64_t end_ns;
};

struct load {
	struct tn_sched_load s;
	bool open;
	uint32_t left[LAYERS], flying[LAYERS]; /* chunks */
	uint64_t before[LAYERS];
	uint64_t begin_ns;
};

struct sim {
	struct tn_sched *s;
	uint64_t now, free_at;
	struct transfer t[4096];
	uint32_t n, reads, writes;
	struct load load[LOADS];
	uint32_t first, count; /* ring of loads, in the order of compute */
	bool computes;
	uint64_t compute_ends, compute_ns;
	uint64_t wait_ns;  /* of the engine, for layers other than a load's first */
	uint64_t wait_since;
	uint64_t written, beside; /* bytes; of them while reads wait */
	uint32_t overlaps, done;
	uint32_t told[4][TN_REASONS];
	int64_t least_slack, least_wait; /* of writes for the reason slack, of reads that wait for it */
};

static void explain(void *arg, const struct tn_decision *d)
{
	struct sim *m = arg;

	m->told[d->chosen][d->reason]++;
	if (d->chosen == TN_CHOSE_WRITE && d->reason == TN_REASON_SLACK && d->slack_ns < m->least_slack)
		m->least_slack = d->slack_ns;
	if (d->chosen == TN_CHOSE_WAIT && d->reason == TN_REASON_SLACK && d->slack_ns < m->least_wait)
		m->least_wait = d->slack_ns;
}

static struct sim *sim_create(uint64_t compute_ns)
{
	struct sim *m = calloc(1, sizeof(*m));
	struct tn_sched_opts o = {.devices = 1, .alloc = &tn_alloc_system, .explain = explain, .explain_arg = m};

	assert_non_null(m);
	assert_int_equal(tn_sched_create(&o, &m->s), 0);
	tn_sched_device(m->s, 0, &drive);
	m->now = 1000 * MS;
	m->compute_ns = compute_ns;
	m->least_slack = m->least_wait = INT64_MAX;
	return m;
}

static void sim_destroy(struct sim *m)
{
	tn_sched_destroy(m->s);
	free(m);
}

static uint32_t chunks_a_layer(void)
{
	return (uint32_t)((double)drive.read_bps * (double)IO_NS / 1e9 / CHUNK);
}

/* Another load, with its first layer needed when those before it are computed, and a table that says window_ns per layer. */
static void load_begin(struct sim *m, uint64_t window_ns)
{
	struct load *l = &m->load[(m->first + m->count) % LOADS];

	assert_true(m->count < LOADS);
	memset(l, 0, sizeof(*l));
	l->open = true;
	for (uint32_t k = 0; k < LAYERS; k++) {
		l->left[k] = chunks_a_layer();
		l->before[k] = k * window_ns;
	}
	l->s = (struct tn_sched_load){
		.layers = LAYERS,
		.start_ns = m->now + (m->count ? m->count * LAYERS * window_ns : 0),
		.before_ns = window_ns ? l->before : NULL,
		.layer_bytes = (uint64_t)chunks_a_layer() * CHUNK,
	};
	m->count++;
	l->begin_ns = m->now;
	tn_sched_load_add(m->s, &l->s, m->now);
	tn_sched_load_waits(m->s, &l->s, 1);
}

static void put(struct sim *m, bool write, uint32_t load, uint32_t layer)
{
	uint64_t from = m->now > m->free_at ? m->now : m->free_at;
	bool mixed = write ? m->reads > 0 : m->writes > 0;
	double bps = (double)(mixed ? drive.mixed_bps : write ? drive.write_bps : drive.read_bps);

	assert_true(m->n < 4096);
	m->overlaps += mixed;
	m->free_at = from + (uint64_t)(CHUNK / bps * 1e9);
	m->t[m->n++] = (struct transfer){write, load, layer, m->free_at + 100000};
	m->reads += !write;
	m->writes += write;
}

static bool issue(struct sim *m, struct load *l)
{
	uint32_t layer = l->s.next_layer;
	bool any = false;

	for (unsigned k = 0; k < 32 && layer < LAYERS; k++) {
		if (!tn_sched_read(m->s, &l->s, layer, 0, CHUNK, m->now))
			break;
		put(m, false, (uint32_t)(l - m->load), layer);
		l->flying[layer]++;
		any = true;
		if (--l->left[layer] == 0)
			layer++;
		l->s.next_layer = layer;
	}
	if (layer == LAYERS)
		tn_sched_load_waits(m->s, &l->s, 0);
	return any;
}

static bool reads_wait(const struct sim *m)
{
	for (uint32_t i = 0; i < LOADS; i++)
		if (m->load[i].open && m->load[i].s.devices)
			return true;
	return false;
}

static void turn(struct sim *m, bool writes)
{
	struct tn_sched_load *s;
	bool more = true;

	tn_sched_turn(m->s, m->now);
	while (more) {
		more = false;
		while ((s = tn_sched_pick(m->s, m->now)))
			more |= issue(m, tn_container_of(s, struct load, s));
		tn_sched_again(m->s);
	}
	while (writes && tn_sched_write(m->s, TN_SCHED_SAVES, 0, CHUNK, m->now)) {
		m->beside += reads_wait(m) ? CHUNK : 0;
		put(m, true, 0, 0);
	}
}

static void end_one(struct sim *m, uint32_t k)
{
	struct transfer t = m->t[k];

	m->t[k] = m->t[--m->n];
	if (t.write) {
		m->writes--;
		m->written += CHUNK;
		tn_sched_write_done(m->s, 0, CHUNK, m->now);
		return;
	}
	m->reads--;
	m->load[t.load].flying[t.layer]--;
	tn_sched_read_done(m->s, 0, CHUNK, m->now);
}

/* The engine goes on as far as it can: computes the layers of the first load in turn, as they come. */
static void engine(struct sim *m)
{
	while (m->count) {
		struct load *l = &m->load[m->first];

		if (m->computes) {
			if (m->now < m->compute_ends)
				return;
			m->computes = false;
			m->wait_since = m->compute_ends;
			if (++l->s.at_layer == LAYERS) {
				l->open = false;
				tn_sched_load_del(m->s, &l->s, m->now, true);
				m->first = (m->first + 1) % LOADS;
				m->count--;
				m->done++;
				continue;
			}
			l->s.at_ns = m->now;
		}
		if (!l->s.at_ns) {
			l->s.at_ns = m->now;
			m->wait_since = m->now;
		}
		if (l->left[l->s.at_layer] || l->flying[l->s.at_layer])
			return;
		if (l->s.at_layer > 0)
			m->wait_ns += m->now - m->wait_since;
		m->computes = true;
		l->s.at_ns = m->now;
		m->compute_ends = m->now + m->compute_ns;
	}
}

static void advance(struct sim *m, uint64_t until)
{
	uint64_t next = tn_sched_due(m->s);

	for (uint32_t k = 0; k < m->n; k++)
		next = m->t[k].end_ns < next ? m->t[k].end_ns : next;
	if (m->computes && m->compute_ends < next)
		next = m->compute_ends;
	m->now = next < until ? next : until;
	for (uint32_t k = m->n; k-- > 0;)
		if (m->t[k].end_ns <= m->now)
			end_one(m, k);
	engine(m);
}

/* Loads one after the other, each begun when the one before it begins to be computed. */
static void run(struct sim *m, uint32_t loads, uint64_t window_ns)
{
	uint32_t begun = 0;

	m->done = 0;
	while (m->done < loads) {
		if (begun < loads && begun <= m->done + 1) {
			load_begin(m, window_ns);
			begun++;
		}
		turn(m, true);
		advance(m, TN_FOREVER);
	}
}

/* ---- when ------------------------------------------------------------------------------------------- */

static void writes_that_press_go_into_the_slack_of_long_loads_and_no_layer_comes_late(void **state)
{
	for (int pressing = 0; pressing < 2; pressing++) {
		struct sim *m = sim_create(3 * IO_NS);
		uint64_t from = m->now, left, reading;
		double share;

		tn_sched_backlog(m->s, 10, pressing ? 40 : 44);
		run(m, 20, 3 * IO_NS);
		left = m->now - from - 20 * LAYERS * IO_NS;
		share = (double)m->written * 1e9 / (double)drive.write_bps / (double)left;
		reading = m->beside >> 20;
		print_message("# %s: %.1f %% of the time that reads leave, %llu MiB while reads wait; the engine waited %.2f ms of %.0f\n",
			      pressing ? "pressing" : "not pressing", 100 * share, (unsigned long long)reading,
			      (double)m->wait_ns / 1e6, (double)(m->now - from) / 1e6);
		assert_int_equal(m->wait_ns, 0);
		assert_true(share > 0.95);
		assert_true(pressing ? reading > 3000 : reading < 20);
		assert_true((m->told[TN_CHOSE_WRITE][TN_REASON_SLACK] > 0) == (pressing == 1));
		assert_true((m->told[TN_CHOSE_WAIT][TN_REASON_SLACK] > 0) == (pressing == 1));
		if (pressing) { /* and none of it is beside reads */
			assert_int_equal(m->overlaps, 0);
			assert_true(m->least_slack >= 0);
		}
		sim_destroy(m);
	}
}

static void writes_press_from_a_quarter_of_the_bound_down_to_an_eighth(void **state)
{
	static const struct {
		uint64_t bytes, limit;
		bool press;
	} steps[] = {{24, 100, false}, {25, 100, true}, {13, 100, true}, {12, 100, true}, {11, 100, false}, {24, 100, false},
		     {0, 0, true}, {0, 100, false}, {UINT64_MAX, UINT64_MAX, true}};

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		struct sim *m = sim_create(3 * IO_NS);
		uint32_t slack;

		for (size_t k = 0; k <= i; k++)
			tn_sched_backlog(m->s, steps[k].bytes, steps[k].limit);
		run(m, 1, 3 * IO_NS);
		slack = m->told[TN_CHOSE_WRITE][TN_REASON_SLACK];
		assert_true((slack > 0) == steps[i].press);
		sim_destroy(m);
	}
}

static void a_load_without_slack_gives_none(void **state)
{
	for (int known = 0; known < 2; known++) { /* no table: nobody knows of its slack */
		struct sim *m = sim_create(known ? IO_NS : 3 * IO_NS);

		tn_sched_backlog(m->s, 1, 0);
		run(m, 10, known ? IO_NS : 0);
		assert_int_equal(m->told[TN_CHOSE_WRITE][TN_REASON_SLACK], 0);
		assert_int_equal(m->told[TN_CHOSE_WAIT][TN_REASON_SLACK], 0);
		sim_destroy(m);
	}
}

/* From layer 8 on a layer takes a third of what its table says: as long as reading it. */
static void writes_stop_at_once_when_the_engine_is_faster_than_its_table(void **state)
{
	struct sim *m = sim_create(3 * IO_NS);
	uint64_t before, at_step = 0;

	tn_sched_backlog(m->s, 1, 0);
	run(m, 1, 3 * IO_NS);
	before = m->beside;
	m->done = 0;
	m->beside = 0;
	m->wait_ns = 0;
	load_begin(m, 3 * IO_NS);
	while (m->done < 1) {
		m->compute_ns = m->load[m->first].s.at_layer >= 8 ? IO_NS : 3 * IO_NS;
		if (m->load[m->first].s.at_layer <= 9)
			at_step = m->beside; /* until layer 8 was computed nobody can know */
		turn(m, true);
		advance(m, TN_FOREVER);
	}
	print_message("# %llu MiB beside a load; beside one that speeds up %llu, then %llu more; the engine waited %.1f ms\n",
		      (unsigned long long)(before >> 20), (unsigned long long)(at_step >> 20),
		      (unsigned long long)((m->beside - at_step) >> 20), (double)m->wait_ns / 1e6);
	assert_true(at_step > 0);
	assert_true(m->beside == at_step);
	assert_true(m->wait_ns < 20 * MS);
	sim_destroy(m);
}

/* ---- the end of a turn -------------------------------------------------------------------------------- */

/* Up to the middle of a turn of writes. */
static struct sim *in_a_turn_of_writes(void)
{
	struct sim *m = sim_create(3 * IO_NS);

	tn_sched_backlog(m->s, 1, 0);
	load_begin(m, 3 * IO_NS);
	for (int k = 0; k < 100000 && m->writes == 0; k++) {
		turn(m, m->load[0].s.at_layer > 3);
		advance(m, TN_FOREVER);
	}
	turn(m, true);
	assert_true(m->writes > 0 && m->reads == 0 && m->load[0].s.next_layer < LAYERS);
	return m;
}

static void a_load_that_cannot_wait_ends_the_turn_of_writes(void **state)
{
	struct sim *m = in_a_turn_of_writes();
	uint32_t writes = m->told[TN_CHOSE_WRITE][TN_REASON_SLACK], waits = m->told[TN_CHOSE_WAIT][TN_REASON_SLACK];
	uint64_t from = m->now;

	load_begin(m, 0);
	m->load[1].s.priority = 1;
	while (m->reads == 0) {
		turn(m, true);
		if (m->reads == 0)
			advance(m, TN_FOREVER);
	}
	assert_int_equal(m->told[TN_CHOSE_WRITE][TN_REASON_SLACK], writes);
	assert_int_equal(m->told[TN_CHOSE_WAIT][TN_REASON_SLACK], waits);
	assert_true(m->now - from < 10 * MS); /* a quantum */
	sim_destroy(m);
}

static void reads_do_not_wait_for_writes_that_nobody_asks_for_any_more(void **state)
{
	struct sim *m = in_a_turn_of_writes();
	uint32_t turns = 0;

	while (m->writes) { /* they end; nothing else wakes the caller */
		turn(m, false);
		assert_true(m->reads == 0 || m->writes == 0);
		advance(m, TN_FOREVER);
	}
	for (; m->reads == 0 && turns < 4; turns++) {
		uint64_t from = m->now;

		turn(m, false);
		assert_true(m->reads > 0 || tn_sched_due(m->s) != TN_FOREVER);
		if (m->reads == 0)
			advance(m, TN_FOREVER);
		assert_true(m->now - from < 2 * MS);
	}
	assert_true(turns <= 2);
	sim_destroy(m);
}

static void a_drive_that_hangs_in_a_turn_of_writes_stops_no_load(void **state)
{
	struct sim *m = in_a_turn_of_writes();
	uint64_t from = m->now;

	for (uint32_t k = 0; k < m->n; k++)
		m->t[k].end_ns = m->now + 10000 * MS;
	m->free_at = m->now;
	while (m->reads == 0) {
		assert_true(tn_sched_due(m->s) != TN_FOREVER);
		advance(m, TN_FOREVER);
		turn(m, true);
	}
	print_message("# reads went %.0f ms later\n", (double)(m->now - from) / 1e6);
	assert_true(m->now - from < 300 * MS);
	sim_destroy(m);
}

/* Only the clock jumps: what is under way ends when it would have ended. */
static void jump(struct sim *m, uint64_t ns, bool back)
{
	uint64_t by = back ? -ns : ns;

	m->now += by;
	m->free_at += by;
	m->compute_ends += by;
	for (uint32_t k = 0; k < m->n; k++)
		m->t[k].end_ns += by;
}

static void clocks_that_jump_stop_nothing(void **state)
{
	struct sim *m = sim_create(3 * IO_NS);
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	m->now = m->free_at = 1000000000 * MS;
	tn_sched_backlog(m->s, 1, 0);
	for (int k = 0; k < 100000; k++) {
		if (m->count < 2)
			load_begin(m, 3 * IO_NS);
		turn(m, true);
		assert_true(m->n > 0 || m->computes || tn_sched_due(m->s) != TN_FOREVER);
		if (tn_rng_below(&rng, 100) == 0)
			jump(m, tn_rng_next(&rng) % (10ull << tn_rng_below(&rng, 36)), tn_rng_below(&rng, 2));
		advance(m, TN_FOREVER);
	}
	print_message("# %u loads\n", m->done);
	assert_true(m->done > 20);
	assert_true(m->told[TN_CHOSE_WRITE][TN_REASON_SLACK] > 0);
	sim_destroy(m);
}

/* All that is left of a load need not be read any more. */
static void give_up(struct load *l, struct tn_sched *s)
{
	memset(l->left, 0, sizeof(l->left));
	l->s.next_layer = LAYERS;
	tn_sched_load_waits(s, &l->s, 0);
}

static void loads_that_vanish_and_writers_that_come_and_go_leave_nobody_waiting_for_ever(void **state)
{
	struct sim *m = sim_create(3 * IO_NS);
	uint32_t vanished = 0;
	bool writes = true;
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t k = 0; k < 200000; k++) {
		writes ^= tn_rng_below(&rng, 20) == 0;
		if (m->count < 3 && tn_rng_below(&rng, 200) == 0)
			load_begin(m, tn_rng_below(&rng, 4) ? 3 * IO_NS : IO_NS / 2);
		if (m->count > 0 && tn_rng_below(&rng, 2000) == 0) {
			give_up(&m->load[(m->first + tn_rng_below(&rng, m->count)) % LOADS], m->s);
			vanished++;
		}
		if (tn_rng_below(&rng, 100) == 0)
			tn_sched_backlog(m->s, tn_rng_below(&rng, 2), tn_rng_below(&rng, 2) * 8);
		turn(m, writes);
		assert_true(m->n > 0 || !reads_wait(m) || (tn_sched_due(m->s) > m->now && tn_sched_due(m->s) != TN_FOREVER));
		advance(m, m->now + 1 + tn_rng_below(&rng, 2 * MS));
	}
	print_message("# %u loads, %u vanished, %u writes into slack\n", m->done, vanished,
		      m->told[TN_CHOSE_WRITE][TN_REASON_SLACK]);
	assert_true(m->done > 20 && vanished > 0 && m->told[TN_CHOSE_WRITE][TN_REASON_SLACK] > 0);
	/* With writes that never end, what is under way does. */
	tn_sched_backlog(m->s, 1, 0);
	for (uint32_t k = 0; k < 100000 && m->count > 0; k++) {
		turn(m, true);
		advance(m, TN_FOREVER);
	}
	assert_int_equal(m->count, 0);
	sim_destroy(m);
}

/* ---- laxity ------------------------------------------------------------------------------------------- */

/* The definition, layer by layer. */
static double laxity_ns(const struct tn_sched_load *l, double bps, double now)
{
	double layer = (double)l->layer_bytes * 1e9 / bps * 1.25, least = 1e18, since = (double)l->start_ns;
	double window = (double)(l->before_ns[l->next_layer + 1] - l->before_ns[l->next_layer]);

	if (l->at_ns)
		since = (double)l->at_ns - (double)l->before_ns[l->at_layer];
	for (uint32_t k = l->next_layer; k < l->layers; k++) {
		double read = (double)((k - l->next_layer) / l->together + 1) * l->together * layer;
		double one = since + (double)l->before_ns[k] - now - read;

		least = one < least ? one : least;
	}
	least -= window / 4;
	if (l->deadline_ns) {
		double one = (double)l->deadline_ns - now - (double)(l->layers - l->next_layer) * layer;

		least = one < least ? one : least;
	}
	return least;
}

static void loads_that_take_for_ever_have_no_slack_however_many_they_are(void **state)
{
	const struct tn_mix slow = {.version = 1, .read_bps = 4, .write_bps = 4, .mixed_bps = 1};
	struct tn_sched_opts o = {.devices = 1, .alloc = &tn_alloc_system};
	uint64_t before[LAYERS] = {0};
	struct tn_sched_load load[20];

	for (uint32_t k = 1; k < LAYERS; k++)
		before[k] = before[k - 1] + MS;
	for (uint32_t n = 1; n <= 20; n++) {
		struct tn_sched *s;

		assert_int_equal(tn_sched_create(&o, &s), 0);
		tn_sched_device(s, 0, &slow);
		tn_sched_backlog(s, 1, 0);
		tn_sched_turn(s, 1);
		for (uint32_t k = 0; k < n; k++) {
			load[k] = (struct tn_sched_load){
				.layers = LAYERS, .before_ns = before, .layer_bytes = 1ull << 40, .start_ns = 1000 * MS, .next_layer = 1};
			tn_sched_load_add(s, &load[k], 1);
			tn_sched_load_waits(s, &load[k], 1);
		}
		assert_false(tn_sched_write(s, TN_SCHED_SAVES, 0, 1, 1));
		for (uint32_t k = 0; k < n; k++)
			tn_sched_load_del(s, &load[k], 1, false);
		tn_sched_destroy(s);
	}
}

static void laxity_is_the_least_of_all_layers_whatever_was_kept(void **state)
{
	struct tn_sched_load l = {.layers = LAYERS};
	uint64_t before[LAYERS] = {0};
	struct tn_rng rng;
	int64_t read_ns;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t k = 1; k < LAYERS; k++)
		before[k] = before[k - 1] + 1 + tn_rng_below(&rng, 20 * MS);
	l.before_ns = before;
	for (uint32_t k = 0; k < 20000; k++) {
		uint64_t bps = 1000000000ull << tn_rng_below(&rng, 2), now = 1000 * MS + tn_rng_below(&rng, 50 * MS);
		double want;

		l.at_layer = tn_rng_below(&rng, LAYERS - 2);
		l.next_layer = l.at_layer + 1 + tn_rng_below(&rng, LAYERS - 2 - l.at_layer);
		l.at_ns = tn_rng_below(&rng, 4) || l.at_layer ? 1000 * MS : 0;
		l.start_ns = 1000 * MS + tn_rng_below(&rng, 50 * MS);
		l.deadline_ns = tn_rng_below(&rng, 2) ? 0 : 1000 * MS + tn_rng_below(&rng, 500 * MS);
		l.laxity.seen_ns = 0; /* no pace */
		if (tn_rng_below(&rng, 10) == 0) { /* as a load's never do: so what was kept goes */
			l.together = 1 + tn_rng_below(&rng, 4);
			l.layer_bytes = 1 + tn_rng_below(&rng, 10000000);
			l.laxity.known = false;
		} else if (k == 0) {
			l.together = l.layer_bytes = 1;
		}
		want = laxity_ns(&l, (double)bps, (double)now);
		assert_true(fabs((double)tn_laxity(&l, bps, now, &read_ns) - want) < 1000);
	}
	l.at_layer = l.next_layer;
	l.at_ns = 1;
	assert_true(tn_laxity(&l, 1, 5, &read_ns) == TN_LAXITY_NONE);
	l.at_layer = l.next_layer = 0;
	l.at_ns = 0;
	l.start_ns = 5;
	assert_true(tn_laxity(&l, 1, 5, &read_ns) == TN_LAXITY_NONE);
	l.next_layer = 1;
	assert_true(tn_laxity(&l, 0, 5, &read_ns) == TN_LAXITY_NONE);
	l.before_ns = NULL;
	assert_true(tn_laxity(&l, 1, 5, &read_ns) == TN_LAXITY_NONE);
	l.before_ns = before;
	l.layer_bytes = UINT64_MAX; /* absurd figures are late, not early */
	assert_true(tn_laxity(&l, 1, 5, &read_ns) < 0);
	l.deadline_ns = UINT64_MAX;
	assert_true(tn_laxity(&l, 1, UINT64_MAX, &read_ns) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes_that_press_go_into_the_slack_of_long_loads_and_no_layer_comes_late),
		cmocka_unit_test(writes_press_from_a_quarter_of_the_bound_down_to_an_eighth),
		cmocka_unit_test(a_load_without_slack_gives_none),
		cmocka_unit_test(writes_stop_at_once_when_the_engine_is_faster_than_its_table),
		cmocka_unit_test(a_load_that_cannot_wait_ends_the_turn_of_writes),
		cmocka_unit_test(reads_do_not_wait_for_writes_that_nobody_asks_for_any_more),
		cmocka_unit_test(a_drive_that_hangs_in_a_turn_of_writes_stops_no_load),
		cmocka_unit_test(clocks_that_jump_stop_nothing),
		cmocka_unit_test(loads_that_vanish_and_writers_that_come_and_go_leave_nobody_waiting_for_ever),
		cmocka_unit_test(loads_that_take_for_ever_have_no_slack_however_many_they_are),
		cmocka_unit_test(laxity_is_the_least_of_all_layers_whatever_was_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
