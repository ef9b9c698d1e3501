/* SPDX-License-Identifier: Apache-2.0 */
/* See medium.h: the simulated disk as one. */
#include "medium.h"

#include <assert.h>
#include <stdlib.h>

struct sim_medium {
	struct medium m;
	struct tn_simdisk *disk;
	medium_event_fn fn;
	void *arg;
};

static struct sim_medium *of(const struct medium *m)
{
	return (struct sim_medium *)(uintptr_t)m;
}

static struct tn_io *io_of(struct medium *m)
{
	return tn_simdisk_io(of(m)->disk);
}

static const struct tn_clock *clock_of(struct medium *m)
{
	return tn_simdisk_clock(of(m)->disk);
}

static uint64_t boot(const struct medium *m)
{
	return tn_simdisk_boot(of(m)->disk);
}

static bool is_off(const struct medium *m)
{
	return tn_simdisk_is_off(of(m)->disk);
}

static void power_off(struct medium *m)
{
	tn_simdisk_power_off_at(of(m)->disk, 1);
}

static void crash(struct medium *m, enum tn_simdisk_crash mode, uint64_t seed)
{
	tn_simdisk_crash(of(m)->disk, mode, seed);
}

static void happened(void *arg, const struct tn_simdisk *disk, uint64_t event)
{
	struct sim_medium *s = arg;

	s->fn(s->arg, &s->m, event);
}

static void on_event(struct medium *m, medium_event_fn fn, void *arg)
{
	of(m)->fn = fn;
	of(m)->arg = arg;
	tn_simdisk_on_event(of(m)->disk, fn ? happened : NULL, m);
}

static uint64_t events(const struct medium *m)
{
	return tn_simdisk_events(of(m)->disk);
}

/* Errors come and go in spells; a flush that failed promises nothing, and later ones must be honest. */
static void set_faults(struct medium *m, struct tn_rng *rng)
{
	struct tn_simdisk_fault f[2] = {
		{.kind = TN_SIMDISK_EIO, .op = TN_IO_WRITE, .count = UINT64_MAX},
		{.kind = TN_SIMDISK_EIO, .op = TN_IO_SYNC, .count = UINT64_MAX},
	};
	uint32_t n = 0;
	int rc;

	if (rng) {
		f[0].percent = 1 + tn_rng_below(rng, 20);
		f[1].percent = 1 + tn_rng_below(rng, 50);
		if (tn_rng_below(rng, 3) == 0)
			f[0].kind = TN_SIMDISK_ENOSPC;
		if (tn_rng_below(rng, 2) == 0)
			f[1].kind = TN_SIMDISK_SYNC_LOST;
		n = tn_rng_below(rng, 3) ? 0 : 1 + tn_rng_below(rng, 2);
	}
	rc = tn_simdisk_set_faults(of(m)->disk, f, n);
	assert(rc == 0);
}

static void destroy(struct medium *m)
{
	tn_simdisk_destroy(of(m)->disk);
	free(of(m));
}

static struct medium *copy(struct medium *m, uint64_t seed);

static const struct medium_ops ops = {
	.io = io_of, .clock = clock_of, .boot = boot, .is_off = is_off, .power_off = power_off, .crash = crash, .copy = copy, .on_event = on_event,
	.events = events, .set_faults = set_faults, .destroy = destroy,
};

static struct sim_medium *new_medium(void)
{
	struct sim_medium *s = calloc(1, sizeof(*s));

	assert(s);
	s->m.ops = &ops;
	return s;
}

static struct medium *copy(struct medium *m, uint64_t seed)
{
	struct sim_medium *s = new_medium();
	int rc = tn_simdisk_clone(of(m)->disk, seed, &s->disk);

	assert(rc == 0);
	return &s->m;
}

struct medium *medium_simdisk(const struct tn_simdisk_opts *opts)
{
	struct sim_medium *s = new_medium();
	int rc = tn_simdisk_create(opts, &s->disk);

	assert(rc == 0);
	return &s->m;
}

void medium_destroy(struct medium *m)
{
	if (m)
		m->ops->destroy(m);
}

uint64_t medium_now(struct medium *m)
{
	return tn_now_ns(m->ops->clock(m));
}
