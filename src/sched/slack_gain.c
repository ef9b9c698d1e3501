/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much an observation counts, for given tables (slack.c) and for those that learn (slack_learn.c): the gain of a
 * deviation, the step that a gain makes, and the weight of each corner. Knows cells and runs, and no table.
 */
#include "sched/slack_internal.h"

/* docs/model.md */
#define DEAD_BAND 0.03    /* a deviation below is noise */
#define CLIP 2.0	  /* most that one observation may claim: twice or half */
#define GAIN 0.15	  /* part of a deviation confirmed once that a cell, and all cells together, make up */
#define GAIN_MIXED 0.08	  /* of a deviation that follows one in the other direction */
#define STREAK_MOVES 2	  /* deviations in a row before anything moves */
#define STREAK_LONG 4	  /* deviations in a row before it moves faster */

double tn_slack_gain(struct tn_slack_run *run, double ratio)
{
	bool up = ratio > 1;

	if (ratio < 1 + DEAD_BAND && ratio > 1 / (1 + DEAD_BAND)) {
		*run = (struct tn_slack_run){0, 0};
		return 0;
	}
	run->any += run->any < STREAK_MOVES;
	if ((run->same > 0) != up || run->same == 0)
		run->same = up ? 1 : -1;
	else if (run->same < STREAK_LONG && run->same > -STREAK_LONG)
		run->same = (int8_t)(run->same + (up ? 1 : -1));
	if (run->any < STREAK_MOVES)
		return 0;
	if (run->same == STREAK_LONG || run->same == -STREAK_LONG)
		return TN_SLACK_GAIN_LONG;
	return run->same >= STREAK_MOVES || run->same <= -STREAK_MOVES ? GAIN : GAIN_MIXED;
}

double tn_slack_step(double ratio, double gain)
{
	if (ratio > CLIP)
		ratio = CLIP;
	if (ratio < 1 / CLIP)
		ratio = 1 / CLIP;
	return ratio >= 1 ? 1 + gain * (ratio - 1) : 1 / (1 + gain * (1 / ratio - 1));
}

void tn_slack_weigh(const struct tn_slack_corners *c, double w[4])
{
	double si = c->input.share > 1 ? 1 : c->input.share, sp = c->prefix.share > 1 ? 1 : c->prefix.share;

	w[0] = (1 - sp) * (1 - si);
	w[1] = (1 - sp) * si;
	w[2] = sp * (1 - si);
	w[3] = sp * si;
}
