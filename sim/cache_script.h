/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random scripts for a simulated cache (cache_rig.h), and what must be true of it: every byte that a load reports is
 * right, nothing hangs, pages outside a sub-range and those given back stay untouched, what is durable is
 * found again, what was dropped with its space is not.
 */
#ifndef TN_SIM_CACHE_SCRIPT_H
#define TN_SIM_CACHE_SCRIPT_H

#include "front/cache_rig.h"

#define CSCRIPT_CHAINS 6u
#define CSCRIPT_CHAIN_BLOCKS 32u
#define CSCRIPT_ACTS 10u
#define CSCRIPT_ACT_BLOCKS 16u
#define CSCRIPT_ACT_PAGES 64u

enum cact_kind { CACT_NONE, CACT_LOAD, CACT_SAVE, CACT_FLUSH, CACT_DROP, CACT_LEASE };

struct cscript;

/* A layer of a save whose bytes are there only later. */
struct cact_event {
	struct tn_event *event; /* NULL: there is none */
	bool raised, device;	/* device: a device writes the word, which wakes nobody */
	uint64_t ready_ns;
};

/* One operation under way. */
struct cact {
	enum cact_kind kind;
	struct cscript *script;
	uint32_t space, n;
	uint64_t id; /* of its first block */
	uint64_t begin_ns, deadline_ns, end_ns; /* end_ns: unpin a lease; of a save: when it was committed */
	uint32_t pages[CSCRIPT_ACT_PAGES];
	struct tn_load *load;
	struct tn_save *save;
	struct tn_flush_waiter *flush; /* or of a drop */
	uint64_t pin;
	uint64_t tick;           /* at which it began */
	uint32_t layer;          /* next to be given or polled */
	uint32_t good;           /* of a load, as reported last */
	uint32_t first_page, end_page;
	bool over;               /* committed, aborted, cancelled or seen to the end */
	bool aborted;
	uint16_t back;           /* load: blocks whose pages were given back early */
	struct cact_event event[TN_PLANES_MAX * 8];
};

/* What is known of one block. */
struct cblock {
	uint64_t saved; /* tick at which it was there for certain; 0: never, or dropped since */
	uint64_t dropped; /* tick */
	bool gone;      /* its space was dropped: must not be found until it is saved again */
	uint32_t saving; /* saves of it under way */
};

/**
 * struct cscript
 * @r:     the rig, the caller's
 * @roomy: nothing is ever evicted or refused, so that everything durable must be found
 */
struct cscript {
	struct rig *r;
	struct tn_rng rng;
	bool roomy, healthy; /* healthy: without faults, so that saves may not fail either */
	bool drops, only_saves;
	uint64_t save_most_ns; /* the longest from commit to end */
	uint64_t tick, durable_tick;
	struct cact act[CSCRIPT_ACTS];
	struct cblock block[RIG_SPACES][CSCRIPT_CHAINS * CSCRIPT_CHAIN_BLOCKS];
	uint32_t *free_pages[RIG_SPACES];
	uint32_t nfree[RIG_SPACES];
	struct {
		uint64_t loads, saves, hits, stored, failed, checked_pages, flushes, crashes;
	} n;
};

struct cscript *cscript_create(struct rig *r, uint64_t seed);
void cscript_destroy(struct cscript *s);
/* One random step: begin something or let time pass; everything under way goes on. What must not be fails the test. */
void cscript_step(struct cscript *s);
/* Ends everything under way; fails if that takes more than limit_ns of simulated time. */
void cscript_drain(struct cscript *s, uint64_t limit_ns);
/* Drains, flushes, and checks that nothing is lost or left over. */
void cscript_settle(struct cscript *s);
/* What must be found is, with every byte, and what must not is not. Nothing may be under way. */
void cscript_verify(struct cscript *s);
/* Clean close and reopen; what is found is verified. */
void cscript_reopen(struct cscript *s);
/* The power fails now; reopen, verify. */
void cscript_crash(struct cscript *s, enum tn_simdisk_crash mode);

#endif
