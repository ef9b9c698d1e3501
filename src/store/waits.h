/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What flushes wait for: a table of the flushes under way, and per flush and device the points of the log that it needs.
 * Three files see its structure: flush.c begins flushes, waits.c settles them, store.c allocates the table. All others say what
 * happened, by the calls in store_internal.h.
 */
#ifndef TN_STORE_WAITS_H
#define TN_STORE_WAITS_H

#include "store/store_internal.h"

#define TN_STORE_FLUSHES_MAX 256u

/* What a flush still waits for on one device. */
struct tn_store_wait {
	uint64_t sweep; /* the sweep that must have been passed; 0: it was passed */
	uint64_t ticket; /* groups before this one must be durable; 0: nothing */
	uint64_t look; /* the look at the file's name that must have ended; 0: nothing */
};

struct tn_store_flush {
	void (*done)(void *arg, int status);
	void *arg;
	int status;
	bool used;
	struct tn_store_wait wait[TN_DEVICES_MAX];
};

struct tn_store_waits {
	struct tn_store_flush flush[TN_STORE_FLUSHES_MAX];
	uint32_t used;
};

static inline bool tn_store_waits_full(const struct tn_store_waits *w)
{
	return w->used == TN_STORE_FLUSHES_MAX;
}

/*
 * A flush under way; the table must not be full. It ends with `status` when nothing of wait[], one for each device, is left:
 * then already, and false, if that is so at once.
 */
bool tn_store_waits_add(struct tn_store *s, void (*done)(void *arg, int status), void *arg, int status,
			const struct tn_store_wait *wait);

#endif
