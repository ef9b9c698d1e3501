/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the power-cut suite of the store runs on: an engine of the I/O contract whose power can go at any moment, and which can be copied at any
 * moment to see what would be left. The simulated disk is one; the software controller of lab/ is another.
 */
#ifndef TN_SIM_MEDIUM_H
#define TN_SIM_MEDIUM_H

#include "base/clock.h"
#include "base/rng.h"
#include "simdisk.h"

struct medium;

/* May copy the medium, must not use it. Events are numbered from 1. */
typedef void (*medium_event_fn)(void *arg, struct medium *m, uint64_t event);

/**
 * struct medium_ops
 * @io:        the engine; another one after each crash
 * @boot:      as tn_simdisk_boot
 * @power_off: nothing happens any more until the crash; requests fail
 * @crash:     as tn_simdisk_crash: what is not durable is lost as mode says, and the engine begins anew
 * @copy:      as tn_simdisk_clone
 * @on_event:  called at whatever may change what a crash leaves; NULL: no more
 * @set_faults: some requests fail from now on, as rng says; NULL: none
 */
struct medium_ops {
	struct tn_io *(*io)(struct medium *m);
	const struct tn_clock *(*clock)(struct medium *m);
	uint64_t (*boot)(const struct medium *m);
	bool (*is_off)(const struct medium *m);
	void (*power_off)(struct medium *m);
	void (*crash)(struct medium *m, enum tn_simdisk_crash mode, uint64_t seed);
	struct medium *(*copy)(struct medium *m, uint64_t seed);
	void (*on_event)(struct medium *m, medium_event_fn fn, void *arg);
	uint64_t (*events)(const struct medium *m);
	void (*set_faults)(struct medium *m, struct tn_rng *rng);
	void (*destroy)(struct medium *m);
};

struct medium {
	const struct medium_ops *ops;
};

/* A new simulated disk. */
struct medium *medium_simdisk(const struct tn_simdisk_opts *opts);
/* NULL-safe. */
void medium_destroy(struct medium *m);
uint64_t medium_now(struct medium *m);

#endif
