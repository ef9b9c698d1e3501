/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many bytes an executor keeps in flight on one device: enough to keep it busy, and no more.
 *
 * A device serves what is in flight side by side, so every byte beyond what keeps it busy delays the bytes that are
 * needed first, and gains nothing. Enough is the bandwidth times the latency that does not come from the bytes
 * themselves (as BBR has it for networks, Cardwell et al., ACM Queue 14(5), 2016), with a factor for what a device does not do evenly,
 * and a base for the time until the executor has seen that a request ended and sent the next one.
 *
 * Straight after a pause less is sent, and more as requests end, so that what is wanted first does not share the device with what is
 * wanted next; in the end also what covers a moment in which the executor does not get to run.
 *
 * Requests of one size that go together end together on a device that serves side by side. The next ones then find the device empty, and
 * it is idle for a latency in each round. So the requests that fill an empty window differ in size, and end one after the other. A window
 * that is empty only until the next request goes does not begin anew, as it does after a pause.
 *
 * While nobody waits for a part of what is read before the rest, a deep window gives the device several milliseconds of bandwidth at once: large
 * reads then are as fast as the device makes them, and whoever comes meanwhile waits that long.
 *
 * Both are learned: the bandwidth is the best of the last second or two, the latency that of requests that were alone. For that one request
 * goes alone now and then, when the device is idle anyway; rarely, on a device that is never idle, the window is let
 * run empty for it.
 *
 * Pure: time is an argument. One thread makes all calls.
 */
#ifndef TN_RING_WINDOW_H
#define TN_RING_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#define TN_WINDOW_PROBES 4u
#define TN_WINDOW_BASE (1280u << 10)
#define TN_WINDOW_START (2u << 20) /* while nothing is known */
#define TN_WINDOW_MOST (64u << 20)
#define TN_WINDOW_PIECE_LEAST (256u << 10)

/* A request that was alone. */
struct tn_window_probe {
	uint64_t ns, bytes;
};

struct tn_window {
	/* Bytes that ended since then, up to the last end: a burst is counted whole, by the next thing that happens. */
	uint64_t since_ns, last_ns, bytes;
	uint64_t best[2], best_ns; /* bytes per second: of the present second, which began then, and of the one before */
	struct tn_window_probe probe[TN_WINDOW_PROBES]; /* the last ones */
	uint32_t probes;     /* ever */
	uint64_t probed_ns;  /* when the last one ended */
	uint64_t in_flight;  /* bytes */
	uint64_t begun;	     /* bytes sent since the last pause */
	uint64_t limit;	     /* bytes that may be in flight now; 0: nothing is known */
	uint32_t count;	     /* and requests */
	bool alone;	     /* the one request in flight is a probe */
	bool deep;
	bool full; /* a request did not fit since the measurement began: what ends shows what the device can do */
};

/* From now on, or no more. */
void tn_window_deep(struct tn_window *w, bool deep);
/* Bytes that may be in flight now. */
uint64_t tn_window_bytes(const struct tn_window *w);
/*
 * Size of the next request for @left bytes: at most a quarter of the window, so that one ends while the others are served. Requests that
 * fill the lower half of the window differ in size, because requests of one size would end together. @spare: there are many free
 * requests; where they are few, each is as large as it can be. The caller sends no more than @left bytes.
 */
uint32_t tn_window_piece(const struct tn_window *w, uint64_t left, bool spare);
/* Whether a request of so many bytes may go; one always may while nothing is in flight. */
bool tn_window_open(struct tn_window *w, uint64_t bytes, uint64_t now_ns);
/* A request goes; it ended, after so long. Failed ones say nothing about the device. */
void tn_window_sent(struct tn_window *w, uint64_t bytes, uint64_t now_ns);
void tn_window_ended(struct tn_window *w, uint64_t bytes, uint64_t latency_ns, bool good, uint64_t now_ns);

#endif
