/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may take a piece of something that comes in equal pieces, when several kinds of work want more than there are.
 *
 * Each kind that waits is left a few pieces; of those that have fewer, the one that has waited longest is first. So
 * nobody waits for more than the end of as many pieces as all kinds are left, however many the others would take. Pure,
 * one thread, no time: a caller asks again in each of its turns, and whoever does not ask has stopped waiting.
 */
#ifndef TN_SCHED_SHARE_H
#define TN_SCHED_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#define TN_SHARE_KINDS 4u

struct tn_share_kind {
	uint32_t taken;
	bool asked, before; /* in vain: in this turn, and in the one before */
	uint64_t since;	    /* the asking since which it waits, by number */
};

struct tn_share {
	uint32_t least; /* pieces that each kind is left while it waits */
	uint64_t asks;
	bool deferred; /* in this turn: somebody was refused for the sake of another kind */
	struct tn_share_kind kind[TN_SHARE_KINDS];
};

/* Of so many pieces, each kind that waits is left a sixteenth, at least one. */
void tn_share_init(struct tn_share *s, uint32_t pieces);

/* A turn begins: who did not ask in the last one does not wait. */
void tn_share_turn(struct tn_share *s);
/* After all have asked: whether another turn has to follow at once, because a kind that was left a piece wants none. */
bool tn_share_again(const struct tn_share *s);

/* Whether this kind may take one of the free pieces; beyond what it is left, it keeps `keep` of them for others. */
bool tn_share_may(struct tn_share *s, uint32_t kind, uint32_t free_pieces, uint32_t keep);
void tn_share_took(struct tn_share *s, uint32_t kind);
void tn_share_gave(struct tn_share *s, uint32_t kind);

#endif
