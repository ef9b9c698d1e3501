/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device can do when it reads, when it writes, and when it does both: measured by
 * `tenuto bench mix` (DIR/tenuto.mix), or described by a device model (share/devices).
 *
 * The text, parsed strictly; '#' begins a comment line:
 *
 *	tenuto-mix 1
 *	source Two Solidigm D7-PS1010 of 3.84 TB, arXiv 2605.03375
 *	measured_s 0
 *	read_bps 29000000000
 *	write_bps 12000000000
 *	mixed_bps 12000000000
 *	read_latency_ns 60000
 *	write_latency_ns 10000
 *	service share
 *
 * The first line comes first, each other key once, in any order; service may be left out, and is order then. Pure:
 * files are read and written by src/ioengine.
 */
#ifndef TN_SCHED_MIX_H
#define TN_SCHED_MIX_H

#include <stddef.h>
#include <stdint.h>

#define TN_MIX_VERSION 1u
#define TN_MIX_BYTES_MAX 4096u /* the longest text taken, and more than is ever printed */
#define TN_MIX_BPS_MAX 1000000000000000u
#define TN_MIX_LATENCY_MAX_NS 1000000000000u

/* How a device divides its bandwidth among the transfers in flight. */
enum tn_mix_service {
	TN_MIX_ORDER, /* one after the other, in the order they came */
	TN_MIX_SHARE, /* side by side, all equally fast: many real ones, and virtual disks */
};

/**
 * struct tn_mix
 * @version:          TN_MIX_VERSION; 0 in a zeroed one: nothing is known of the device
 * @service:          enum tn_mix_service; of a described drive, nobody measures it
 * @read_bps:         bytes per second while only reads are in flight
 * @write_bps:        likewise writes
 * @mixed_bps:        of both together while both are
 * @read_latency_ns:  of one small read on an idle device
 * @write_latency_ns: likewise of a write
 * @measured_s:       when the device was measured, seconds since 1970; 0: it was not
 * @source:           where the figures are from
 */
struct tn_mix {
	uint32_t version;
	uint32_t service;
	uint64_t read_bps;
	uint64_t write_bps;
	uint64_t mixed_bps;
	uint64_t read_latency_ns;
	uint64_t write_latency_ns;
	uint64_t measured_s;
	char source[160];
};

/*
 * Reads the text of the file called name (for messages). 0 and *out, -EPROTONOSUPPORT (a version that this build
 * does not know) or -EINVAL, both with "name:line: what is wrong".
 */
int tn_mix_parse(const char *text, size_t bytes, const char *name, struct tn_mix *out);

/* The text, with a 0 behind it. Its length, or -EINVAL: tn_mix_parse would refuse it, or -ENOSPC. */
int tn_mix_print(const struct tn_mix *mix, char *buf, size_t size);

#endif
