/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases and look-ups under way are limited, and the owner's process and those that have attached take from the same tables. Each session has a
 * part that nobody else can take, whoever came first. Beyond it a session takes from what is common, as the owner's process does. The parts lie
 * beyond the limit that the options say, so they take nothing from anybody; and nobody has more than that limit, alone or not.
 *
 * Slots and the write backlog are shared by another rule (core/session.c, core/schedule.c): the store has none beyond its limit that could be set aside,
 * so a session may take half of what the others leave.
 *
 * This file counts only. What is taken lies in the tables of match.c.
 */
#ifndef TN_FRONT_ALLOTMENT_H
#define TN_FRONT_ALLOTMENT_H

#include <stdbool.h>
#include <stdint.h>

/* What is common. */
struct tn_common {
	uint32_t most;
	uint32_t taken; /* shared */
};

/* What one session has; its thread's. */
struct tn_allotment {
	uint32_t own; /* for it alone */
	uint32_t taken;
};

static inline uint32_t tn_allotment_beyond(const struct tn_allotment *p, uint32_t taken)
{
	return taken > p->own ? taken - p->own : 0;
}

/* Takes n, all or none; part NULL: for the owner's process, any thread. */
static inline bool tn_allotment_take(struct tn_common *c, struct tn_allotment *p, uint32_t n)
{
	uint32_t taken = __atomic_load_n(&c->taken, __ATOMIC_RELAXED), beyond = n;

	if (p && p->taken + n > c->most)
		return false;
	if (p)
		beyond = tn_allotment_beyond(p, p->taken + n) - tn_allotment_beyond(p, p->taken);
	do
		if (beyond > c->most - taken)
			return false;
	while (!__atomic_compare_exchange_n(&c->taken, &taken, taken + beyond, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
	if (p)
		p->taken += n;
	return true;
}

/* Gives back n, after they are free in their table. */
static inline void tn_allotment_give(struct tn_common *c, struct tn_allotment *p, uint32_t n)
{
	uint32_t beyond = n;

	if (p) {
		beyond = tn_allotment_beyond(p, p->taken) - tn_allotment_beyond(p, p->taken - n);
		p->taken -= n;
	}
	__atomic_sub_fetch(&c->taken, beyond, __ATOMIC_ACQ_REL);
}

#endif
