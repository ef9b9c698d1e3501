/* SPDX-License-Identifier: Apache-2.0 */
/* See window.h. */
#include "ring/window.h"

#include <assert.h>

#define MS 1000000u
#define RATE_NS (10u * MS)	     /* a bandwidth is measured over so much time, ... */
#define RATE_WINDOWS 2u		     /* and so many windows, for what is in flight may end in one burst, */
#define RATE_MIN_NS (MS / 5)	     /* or until nothing is in flight, but not less than this, ... */
#define RATE_BYTES (256u << 10)	     /* ... and over so many bytes at least */
#define BEST_NS (1000u * MS)	     /* the best of this time, or of the one before, is the device's */
#define IDLE_NS (MS / 5)	     /* without a request: a pause, and not the time that the executor takes to send the next one */
#define SIZES 4u		     /* of requests that fill an empty window; they are ... */
#define CUT_BYTES (64u << 10)	     /* ... by multiples of this smaller than the largest */
#define GAIN 3u			     /* windows of bandwidth times latency */
#define PAUSE_NS (2u * MS)	     /* of the executor's thread */
#define DEEP_NS (6u * MS)	     /* of bandwidth in flight, where nobody waits for a part */
#define PROBE_FIRST_NS (20ull * MS)  /* between probes while there are few, */
#define PROBE_EVERY_NS (10000ull * MS) /* and later */
#define PROBE_FORCED_NS (20000ull * MS) /* after so long, a busy device is let run empty */

static uint64_t bandwidth(const struct tn_window *w)
{
	return w->best[0] > w->best[1] ? w->best[0] : w->best[1];
}

/* What ended so far is one measurement, if it took long enough. */
static void measure(struct tn_window *w, uint64_t least_ns)
{
	uint64_t ns = w->last_ns > w->since_ns ? w->last_ns - w->since_ns : 0, bps;

	if (ns < least_ns || w->bytes < RATE_BYTES)
		return;
	bps = (uint64_t)((double)w->bytes * 1e9 / (double)ns);
	if (!w->full && bps < bandwidth(w)) { /* what was asked for, not what the device can do */
		w->since_ns = w->last_ns;
		w->bytes = 0;
		return;
	}
	if (w->last_ns < w->best_ns || w->last_ns - w->best_ns > BEST_NS) {
		w->best[1] = w->best[0];
		w->best[0] = 0;
		w->best_ns = w->last_ns;
	}
	if (w->best[0] < bps)
		w->best[0] = bps;
	w->since_ns = w->last_ns;
	w->bytes = 0;
	w->full = false;
}

/* Of a request alone, what its bytes at the full bandwidth do not explain; the least of the last probes. */
static uint64_t latency(const struct tn_window *w, double bytes_per_ns)
{
	uint32_t n = w->probes < TN_WINDOW_PROBES ? w->probes : TN_WINDOW_PROBES;
	double least = 0;

	for (uint32_t i = 0; i < n; i++) {
		double ns = (double)w->probe[i].ns - (double)w->probe[i].bytes / bytes_per_ns;

		if (i == 0 || ns < least)
			least = ns;
	}
	return least > 0 ? (uint64_t)least : 0;
}

/*
 * What comes first after a pause has the device almost for itself; then as much goes again as has ended, up to what
 * covers the moments in which the executor's thread does not get to run.
 */
static double grown(const struct tn_window *w, double bytes_per_ns)
{
	double ended = (double)(w->begun - w->in_flight), most = bytes_per_ns * PAUSE_NS;

	return ended < most ? ended : most;
}

/* What it depends on changes when requests end, and when one goes to an idle device: rarely, beside how often it is asked for. */
static void renew_limit(struct tn_window *w)
{
	double bytes_per_ns = (double)bandwidth(w) / 1e9, most = TN_WINDOW_MOST - TN_WINDOW_BASE, bytes;

	w->limit = 0;
	if (bytes_per_ns <= 0 || w->probes == 0)
		return;
	bytes = GAIN * bytes_per_ns * (double)latency(w, bytes_per_ns);
	bytes += w->deep ? bytes_per_ns * DEEP_NS : grown(w, bytes_per_ns);
	w->limit = TN_WINDOW_BASE + (uint64_t)(bytes < most ? bytes : most);
}

void tn_window_deep(struct tn_window *w, bool deep)
{
	if (w->deep == deep)
		return;
	w->deep = deep;
	renew_limit(w);
}

uint64_t tn_window_bytes(const struct tn_window *w)
{
	return w->limit ? w->limit : TN_WINDOW_START;
}

uint32_t tn_window_piece(const struct tn_window *w, uint64_t left, bool spare)
{
	uint64_t window = tn_window_bytes(w);
	uint32_t piece = TN_WINDOW_PIECE_LEAST, less;

	while (piece < window / 4 / 2)
		piece *= 2;
	if (w->deep || !spare || w->in_flight >= window / 2)
		return piece;
	if (piece > left)
		piece = (uint32_t)left;
	less = piece / SIZES * (SIZES - 1 - w->count % SIZES);
	return piece - less / CUT_BYTES * CUT_BYTES;
}

static bool probe_is_due(const struct tn_window *w, uint64_t now, uint64_t every)
{
	return w->probed_ns == 0 || now < w->probed_ns || now - w->probed_ns >= every;
}

bool tn_window_open(struct tn_window *w, uint64_t bytes, uint64_t now_ns)
{
	if (w->in_flight == 0)
		return true;
	if (w->alone || probe_is_due(w, now_ns, PROBE_FORCED_NS))
		return false;
	if (w->in_flight + bytes <= tn_window_bytes(w))
		return true;
	w->full = true;
	return false;
}

void tn_window_sent(struct tn_window *w, uint64_t bytes, uint64_t now_ns)
{
	if (w->in_flight == 0) {
		measure(w, RATE_MIN_NS);
		if (now_ns - w->last_ns > IDLE_NS) {
			w->since_ns = w->last_ns = now_ns;
			w->bytes = w->begun = 0;
			w->count = 0;
			w->full = false;
		}
		renew_limit(w);
	}
	w->begun += bytes;
	w->count++;
	w->alone = w->in_flight == 0 && probe_is_due(w, now_ns, w->probes < TN_WINDOW_PROBES ? PROBE_FIRST_NS : PROBE_EVERY_NS);
	w->in_flight += bytes;
}

void tn_window_ended(struct tn_window *w, uint64_t bytes, uint64_t latency_ns, bool good, uint64_t now_ns)
{
	bool learned = w->alone;

	assert(w->in_flight >= bytes);
	w->in_flight -= bytes;
	renew_limit(w);
	if (now_ns > w->last_ns && w->bytes >= RATE_WINDOWS * tn_window_bytes(w)) {
		measure(w, RATE_NS);
		learned = true;
	}
	w->bytes += good ? bytes : 0;
	w->last_ns = now_ns;
	if (w->alone) {
		/* A failed one, too: the next would wait for it as long. */
		if (good)
			w->probe[w->probes++ % TN_WINDOW_PROBES] = (struct tn_window_probe){latency_ns, bytes};
		w->probed_ns = now_ns;
	}
	w->alone = false;
	if (learned)
		renew_limit(w);
}
