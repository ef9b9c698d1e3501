/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block store against power cuts and kills: a script of saves, removals, flushes, drops, checkpoints, closes and
 * opens runs on a medium (medium.h); at its events the medium is copied, the copy crashed
 * in several ways and opened again, and what it finds is held against the oracle (storedrive.h). Some
 * recoveries are cut short by a second crash, some go on with the script.
 *
 * The short form samples; TN_SIM_FULL=1 takes every event and every mode. A failure names its seed and event:
 * TN_SEED=<seed> TN_SIM_EVENT=<event> repeats that one alone (with TN_SIM_FULL=1 if it was found so).
 */
#ifndef TN_SIM_POWERCUT_H
#define TN_SIM_POWERCUT_H

#include "storedrive.h"

/** struct powercut_script - sample: of this many events one is tried in the short form */
struct powercut_script {
	const char *name;
	struct drive_opts opts;
	uint32_t steps;
	uint32_t sample;
};

/* Runs it on a medium that make makes; fails the test if anything is not as it must be. */
void powercut_run(const struct powercut_script *script, struct medium *(*make)(uint64_t seed));

#endif
