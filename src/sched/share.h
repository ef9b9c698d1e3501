/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may take a piece of something that comes in equal pieces, when several kinds of work want more than there are.
 *
 * For each kind that waits a few pieces are left. Of the kinds that have fewer, the one that has waited longest is
 * first. So no kind waits for more than the end of as many pieces as are left for all kinds, however many the others
 * would take. Pure, one thread, no time: a caller asks again in each of its turns, and a kind that does not ask has
 * stopped waiting.
 */
#ifndef TN_SCHED_SHARE_H
#define TN_SCHED_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#define TN_SHARE_KINDS 5u

struct tn_share_kind {
	uint32_t taken;
	bool asked, before; /* in vain: in this turn, and in the one before */
	uint64_t since;	    /* the asking since which it waits, by number */
};

struct tn_share {
	uint32_t least; /* pieces that are left for each kind while it waits */
	uint64_t asks;
	bool deferred; /* in this turn: somebody was refused for the sake of another kind */
	uint32_t vain; /* turns in a row that another had to follow, since a piece was taken */
	struct tn_share_kind kind[TN_SHARE_KINDS];
};

/* Of so many pieces, a sixteenth, at least one, is left for each kind that waits. */
void tn_share_init(struct tn_share *s, uint32_t pieces);

/* A turn begins: a kind that did not ask in the last turn does not wait. */
void tn_share_turn(struct tn_share *s);
/* After all have asked: whether another turn has to follow at once, because a piece was left for a kind that wants none. */
bool tn_share_again(struct tn_share *s);

/* Whether this kind may take one of the free pieces; beyond what is left for it, it keeps `keep` pieces for others. */
bool tn_share_may(struct tn_share *s, uint32_t kind, uint32_t free_pieces, uint32_t keep);
void tn_share_took(struct tn_share *s, uint32_t kind);
void tn_share_gave(struct tn_share *s, uint32_t kind);

#endif
