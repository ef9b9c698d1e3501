/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/share.h"

#include <assert.h>
#include <string.h>

#define SHARE 16u

void tn_share_init(struct tn_share *s, uint32_t pieces)
{
	memset(s, 0, sizeof(*s));
	s->least = pieces / SHARE ? pieces / SHARE : 1;
}

void tn_share_turn(struct tn_share *s)
{
	s->deferred = false;
	for (uint32_t k = 0; k < TN_SHARE_KINDS; k++) {
		s->kind[k].before = s->kind[k].asked;
		s->kind[k].asked = false;
	}
}

static bool waits(const struct tn_share_kind *k)
{
	return k->asked || k->before;
}

/*
 * A kind that waited in the last turn, got nothing in this turn, and did not ask: what was left for it is free. Kinds that may take and
 * do not, because they wait for something else besides, would leave it to each other for ever. When each has had its turn, nobody waits.
 */
bool tn_share_again(struct tn_share *s)
{
	bool left = false;

	for (uint32_t k = 0; s->deferred && k < TN_SHARE_KINDS; k++)
		left |= s->kind[k].before && !s->kind[k].asked;
	s->vain = left ? s->vain + 1 : 0;
	for (uint32_t k = 0; s->vain > TN_SHARE_KINDS && k < TN_SHARE_KINDS; k++)
		s->kind[k].asked = false;
	return left;
}

/* Pieces to be left for other kinds: with `older`, only for kinds that have waited longer than since. */
static uint32_t left_to_others(const struct tn_share *s, uint32_t kind, bool older, uint64_t since)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < TN_SHARE_KINDS; k++) {
		const struct tn_share_kind *other = &s->kind[k];

		if (k != kind && waits(other) && other->taken < s->least && (!older || other->since < since))
			n += s->least - other->taken;
	}
	return n;
}

bool tn_share_may(struct tn_share *s, uint32_t kind, uint32_t free_pieces, uint32_t keep)
{
	struct tn_share_kind *k = &s->kind[kind];
	bool few = k->taken < s->least;
	uint32_t others;

	assert(kind < TN_SHARE_KINDS);
	if (!waits(k))
		k->since = ++s->asks;
	others = left_to_others(s, kind, few, k->since);
	if (free_pieces > others && (few || free_pieces > keep))
		return true;
	k->asked = true;
	s->deferred |= free_pieces > (few ? 0 : keep);
	return false;
}

void tn_share_took(struct tn_share *s, uint32_t kind)
{
	struct tn_share_kind *k = &s->kind[kind];

	k->taken++;
	s->vain = 0;
	k->before = false; /* until the kind asks in vain again */
	k->since = ++s->asks;
}

void tn_share_gave(struct tn_share *s, uint32_t kind)
{
	assert(s->kind[kind].taken > 0);
	s->kind[kind].taken--;
}
