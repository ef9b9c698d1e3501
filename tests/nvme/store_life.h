/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store's life that is logged write by write: the guest lives it, the host cuts the power at any place of the log (replay.c). The guest
 * writes notes of what must be found into the end of the namespace, so that they are in the log, too: a note counts from its place on.
 */
#ifndef TN_TESTS_NVME_STORE_LIFE_H
#define TN_TESTS_NVME_STORE_LIFE_H

#include "store/store_rig.h"

#define LIFE_KEYS 24u
#define LIFE_NOTES_BYTES 65536u /* at the end of the namespace, of which the first block is used */
#define LIFE_MAGIC 0x65746f6e66696c00ull

struct life_note {
	uint64_t magic, round;
	uint64_t durable[LIFE_KEYS]; /* sequence that must be found at least; 0: nothing must */
	unsigned char gone[LIFE_KEYS]; /* removed durably: must not be found */
};

_Static_assert(sizeof(struct life_note) <= 512, "one block");

/* The same store on both sides. */
static inline struct rig *life_rig(struct tn_io *io, uint64_t boot)
{
	struct rig *r = rig_new_on(io, &tn_clock_system, "namespace");

	r->opts.boot[0] = boot;
	r->opts.lock_timeout_ns = 0;
	return r;
}

#endif
