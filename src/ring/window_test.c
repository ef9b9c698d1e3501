/* SPDX-License-Identifier: Apache-2.0 */
/* The window against drives of all kinds, in the drive's own time: it keeps them busy, with little in flight. */
#include "ring/window.h"

#include <string.h>

#include "base/rng.h"
#include "lab/drive.h"
#include "tn_test.h"

#define MS 1000000ull
#define SECOND (1000 * MS)
#define MIB (1u << 20)
#define REQUESTS 1024u

/* One reader with more to read than fits, on one drive; it looks at what ended a little later than it did. */
struct reader {
	struct tn_drive drive;
	struct tn_window window;
	struct tn_drive_job job[REQUESTS];
	uint64_t sent_ns[REQUESTS];
	uint32_t bytes[REQUESTS];
	bool busy[REQUESTS];
	uint64_t now, read, most; /* bytes: read, most in flight */
	uint64_t reaction_ns;
};

static struct reader *reader(const struct tn_mix *mix)
{
	struct reader *r = calloc(1, sizeof(*r));

	tn_drive_init(&r->drive, mix, 1);
	r->now = SECOND;
	r->reaction_ns = 20000;
	tn_drive_advance(&r->drive, r->now);
	return r;
}

static void send(struct reader *r, uint32_t bytes)
{
	uint32_t i = 0;

	while (i < REQUESTS && r->busy[i])
		i++;
	assert_true(i < REQUESTS);
	tn_window_sent(&r->window, bytes, r->now);
	tn_drive_enter(&r->drive, &r->job[i], false, bytes);
	r->sent_ns[i] = r->now;
	r->bytes[i] = bytes;
	r->busy[i] = true;
	if (r->window.in_flight > r->most)
		r->most = r->window.in_flight;
}

/* What has ended until now. */
static void reap(struct reader *r)
{
	tn_drive_advance(&r->drive, r->now);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		if (!r->busy[i] || !r->job[i].due_ns || r->job[i].due_ns > r->now)
			continue;
		r->busy[i] = false;
		r->read += r->bytes[i];
		tn_window_ended(&r->window, r->bytes[i], r->now - r->sent_ns[i], true, r->now);
	}
}

static uint64_t next_end(const struct reader *r)
{
	uint64_t next = UINT64_MAX;

	for (uint32_t i = 0; i < REQUESTS; i++) {
		uint64_t due = r->busy[i] ? tn_drive_soonest(&r->drive, &r->job[i]) : UINT64_MAX;

		next = due < next ? due : next;
	}
	return next;
}

static void drain(struct reader *r)
{
	while (r->window.in_flight) {
		r->now = next_end(r) + r->reaction_ns;
		reap(r);
	}
}

/* Reads objects of this size (0: one without end) as fast as it goes for so long; bytes per second. */
static double read_for(struct reader *r, uint64_t ns, uint32_t object)
{
	uint64_t until = r->now + ns, from = r->now, before = r->read, left = object ? object : UINT64_MAX;

	while (r->now < until) {
		uint64_t next;
		uint32_t piece;

		reap(r);
		for (;;) {
			piece = tn_window_piece(&r->window, left, true);
			piece = piece < left ? piece : (uint32_t)left;
			if (!tn_window_open(&r->window, piece, r->now))
				break;
			send(r, piece);
			left = left > piece ? left - piece : object;
		}
		next = next_end(r);
		assert_true(next != UINT64_MAX); /* a window that is shut with nothing in flight would hang */
		r->now = (next > r->now ? next : r->now) + r->reaction_ns;
	}
	return (double)(r->read - before) * 1e9 / (double)(r->now - from);
}

static struct tn_mix drive(double gbps, uint64_t latency_ns, enum tn_mix_service service)
{
	uint64_t bps = (uint64_t)(gbps * 1e9);

	return (struct tn_mix){.version = TN_MIX_VERSION, .service = service, .read_bps = bps, .write_bps = bps, .mixed_bps = bps,
			       .read_latency_ns = latency_ns, .write_latency_ns = latency_ns};
}

static void it_keeps_every_drive_busy_with_little_in_flight(void **state)
{
	static const struct {
		double gbps;
		uint64_t latency_ns;
	} drives[] = {{0.2, 5 * MS}, {0.5, 100000}, {1.8, 960000}, {2.7, 20000}, {7, 80000}, {14.5, 60000}, {29, 60000}};

	for (size_t i = 0; i < 2 * sizeof(drives) / sizeof(drives[0]); i++) {
		const struct tn_mix mix = drive(drives[i / 2].gbps, drives[i / 2].latency_ns, (enum tn_mix_service)(i % 2));
		double need = (double)mix.read_bps * (double)mix.read_latency_ns / 1e9, rate;
		struct reader *r = reader(&mix);

		read_for(r, SECOND / 2, 0);
		r->most = 0;
		rate = read_for(r, SECOND / 2, 0);
		print_message("# %4.1f GB/s, %4.0f us, service %zu: %.3f of it, %.1f MiB in flight, %.1f needed\n", drives[i / 2].gbps,
			      (double)mix.read_latency_ns / 1e3, i % 2, rate / (double)mix.read_bps, (double)r->most / MIB, need / MIB);
		assert_true(rate > 0.97 * (double)mix.read_bps);
		/* Bursts look like more bandwidth than there is, up to twice. */
		assert_true((double)r->most < (1 + i % 2) * (4 * need + 2 * TN_WINDOW_BASE + 2 * (double)mix.read_bps / 1e3));
		free(r);
	}
}

/*
 * Without different sizes all rates are 0.7 to 0.8 of the drive's. Smaller objects are not cut: a window that goes on growing is what
 * helps them.
 */
static void objects_of_one_size_do_not_fall_into_step(void **state)
{
	static const uint32_t objects[] = {32 << 10, 128 << 10, 256 << 10, 1 << 20};
	static const struct {
		double gbps;
		uint64_t latency_ns, reaction_ns;
	} drives[] = {{1.8, 960000, 20000}, {1.8, 960000, 250000}, {7, 80000, 20000}, {14.5, 60000, 20000}};

	for (size_t i = 0; i < 4 * sizeof(drives) / sizeof(drives[0]); i++) {
		const struct tn_mix mix = drive(drives[i / 4].gbps, drives[i / 4].latency_ns, TN_MIX_SHARE);
		struct reader *r = reader(&mix);
		double rate;

		r->reaction_ns = drives[i / 4].reaction_ns;
		read_for(r, SECOND / 2, objects[i % 4]);
		rate = read_for(r, SECOND / 2, objects[i % 4]) / (double)mix.read_bps;
		print_message("# %4.1f GB/s, %3.0f us, objects of %4u KiB: %.3f of it\n", drives[i / 4].gbps,
			      (double)drives[i / 4].latency_ns / 1e3, objects[i % 4] >> 10, rate);
		assert_true(rate > (i % 4 ? 0.9 : 0.78));
		free(r);
	}
}

/* Whoever reads little, often, is as slow as he asks, and the device is as fast as before. */
static void small_reads_one_at_a_time_say_nothing_about_the_bandwidth(void **state)
{
	const struct tn_mix mix = drive(1.8, 960000, TN_MIX_ORDER);
	struct reader *r = reader(&mix);
	uint64_t known;

	read_for(r, SECOND, 0);
	drain(r);
	known = r->window.best[0] > r->window.best[1] ? r->window.best[0] : r->window.best[1];
	for (uint64_t until = r->now + 3 * SECOND; r->now < until; r->now += 150000) {
		send(r, 64 << 10);
		drain(r);
	}
	assert_in_range(r->window.best[0] > r->window.best[1] ? r->window.best[0] : r->window.best[1], known / 100 * 95, known / 100 * 105);
	free(r);
}

static void only_a_pause_begins_the_window_anew(void **state)
{
	const struct tn_mix mix = drive(7, 80000, TN_MIX_SHARE);
	struct reader *r = reader(&mix);
	uint64_t grown;

	read_for(r, SECOND, 256 << 10);
	drain(r);
	grown = tn_window_bytes(&r->window);
	r->now += 100000;
	send(r, MIB);
	assert_true(tn_window_bytes(&r->window) >= grown);
	drain(r);
	r->now += MS;
	send(r, MIB);
	assert_true(tn_window_bytes(&r->window) < grown / 2);
	free(r);
}

static void the_first_request_goes_alone_and_then_a_few_more_by_and_by(void **state)
{
	const struct tn_mix mix = drive(2, 50000, TN_MIX_SHARE);
	struct reader *r = reader(&mix);

	assert_true(tn_window_open(&r->window, MIB, r->now));
	send(r, MIB);
	assert_false(tn_window_open(&r->window, 4096, r->now));
	r->now += MS;
	reap(r);
	assert_int_equal(r->window.probes, 1);
	send(r, MIB);
	assert_true(tn_window_open(&r->window, 4096, r->now));
	free(r);
}

/* Also straight after a pause, and no longer than it is deep. */
static void a_deep_window_is_milliseconds_of_bandwidth_from_the_first_request_on(void **state)
{
	const struct tn_mix mix = drive(2, 50000, TN_MIX_SHARE);
	struct reader *r = reader(&mix);
	uint64_t shallow;

	tn_window_deep(&r->window, true);
	assert_int_equal(tn_window_bytes(&r->window), TN_WINDOW_START); /* nothing is known */
	read_for(r, SECOND, MIB);
	while (r->window.in_flight) {
		r->now += MS;
		reap(r);
	}
	r->now += SECOND;
	send(r, MIB);
	assert_in_range(tn_window_bytes(&r->window), 9 * MIB, 20 * MIB); /* 6 ms of 2 GB/s; bursts look like more bandwidth, up to twice */
	assert_int_equal(tn_window_piece(&r->window, UINT64_MAX, true), tn_window_piece(&r->window, UINT64_MAX, true) / MIB * MIB);
	tn_window_deep(&r->window, false);
	shallow = tn_window_bytes(&r->window);
	assert_true(shallow < 3 * MIB);
	free(r);
}

/* A request goes alone every twenty seconds on a drive that is never idle. */
static void a_drive_that_became_another_is_noticed(void **state)
{
	const struct tn_mix near_by = drive(7, 80000, TN_MIX_ORDER), far = drive(2, 4 * MS, TN_MIX_ORDER);

	for (int i = 0; i < 2; i++) {
		struct reader *r = reader(i ? &far : &near_by), *other = reader(i ? &near_by : &far);
		uint64_t bps = i ? near_by.read_bps : far.read_bps;

		read_for(r, SECOND, 0);
		drain(r);
		other->window = r->window;
		tn_drive_advance(&other->drive, other->now = r->now);
		read_for(other, 90 * SECOND, 0);
		other->most = 0;
		assert_true(read_for(other, SECOND, 0) > 0.95 * (double)bps);
		assert_true(other->most < 32u * MIB);
		free(r);
		free(other);
	}
}

static void requests_that_failed_teach_nothing(void **state)
{
	struct tn_window w;

	memset(&w, 0, sizeof(w));
	for (uint64_t now = SECOND; now < 2 * SECOND; now += MS) {
		assert_true(tn_window_open(&w, MIB, now));
		tn_window_sent(&w, MIB, now);
		tn_window_ended(&w, MIB, 10, false, now + 10);
	}
	assert_int_equal(tn_window_bytes(&w), TN_WINDOW_START);
	assert_int_equal(w.in_flight, 0);
}

/* Sizes and reaction times at random: what is in flight never passes the most, and nothing ever hangs. */
static void at_random_it_neither_hangs_nor_passes_its_bound(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int i = 0; i < 20; i++) {
		const struct tn_mix mix = drive(0.1 * (double)(1 + tn_rng_below(&rng, 100)), tn_rng_below(&rng, MS), tn_rng_below(&rng, 2));
		struct reader *r = reader(&mix);

		for (int k = 0; k < 20; k++) {
			r->reaction_ns = 1 + tn_rng_below(&rng, 200000);
			read_for(r, 10 * MS, 65536u << tn_rng_below(&rng, 5));
			assert_true(r->window.in_flight <= TN_WINDOW_MOST);
		}
		free(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_keeps_every_drive_busy_with_little_in_flight),
		cmocka_unit_test(objects_of_one_size_do_not_fall_into_step),
		cmocka_unit_test(small_reads_one_at_a_time_say_nothing_about_the_bandwidth),
		cmocka_unit_test(only_a_pause_begins_the_window_anew),
		cmocka_unit_test(the_first_request_goes_alone_and_then_a_few_more_by_and_by),
		cmocka_unit_test(a_deep_window_is_milliseconds_of_bandwidth_from_the_first_request_on),
		cmocka_unit_test(a_drive_that_became_another_is_noticed),
		cmocka_unit_test(requests_that_failed_teach_nothing),
		cmocka_unit_test(at_random_it_neither_hangs_nor_passes_its_bound),
	};

	return cmocka_run_group_tests_name("window", tests, NULL, NULL);
}
