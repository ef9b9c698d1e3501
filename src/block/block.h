/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: identity life cycle, the registry that finds them by key, residency, pins.
 *
 * One record per block in arrays sized at create; one open-addressing table of (tag, index) that
 * never rehashes and never moves an entry. The owner thread changes things; tn_registry_find, tn_registry_pin,
 * tn_registry_find_one and tn_block_unpin may come from any thread at any time: they take no lock,
 * pin by compare-and-swap on the reference count and check key and space again after the pin. As no entry
 * ever moves, a reader cannot miss one that stays in the table.
 *
 * A record remembers its parent by index and generation. So parents may go, and their records be used
 * again, in any order. A parent that is not there yet when the child is registered (recovery finds blocks
 * in any order) is remembered by a 64-bit hash instead, and linked by tn_registry_relink.
 *
 * Life cycle: Reset -> Complete -> Registered -> Reset, Complete -> Reset on abort, Reset -> Registered for onboarded
 * and recovered blocks. Every other transition returns -EINVAL and leaves the block as it was. A block that an engine
 * is still filling is the engine's own matter.
 */
#ifndef TN_BLOCK_BLOCK_H
#define TN_BLOCK_BLOCK_H

#include <stdbool.h>
#include <tenuto/types.h>

#include "base/alloc.h"
#include "base/hash.h"

typedef uint32_t tn_block; /* index of a record */
#define TN_BLOCK_NONE UINT32_MAX
#define TN_SLOT_NONE UINT32_MAX

enum tn_block_state { TN_BLOCK_RESET, TN_BLOCK_COMPLETE, TN_BLOCK_REGISTERED };

/* Residency in one tier. */
enum tn_residency { TN_ABSENT, TN_FILLING, TN_PRESENT, TN_DRAINING };

struct tn_registry;

struct tn_registry_opts {
	uint32_t max_blocks; /* 1 .. 2^31 */
	bool device_slots; /* blocks may have slots in the device tier */
	const struct tn_alloc *alloc;
};

int tn_registry_create(const struct tn_registry_opts *opts, struct tn_registry **out);
void tn_registry_destroy(struct tn_registry *reg);
uint32_t tn_registry_count(const struct tn_registry *reg); /* registered blocks */
uint64_t tn_registry_bytes(const struct tn_registry *reg); /* memory it holds */
/* Registered blocks are among the first so many records: the others were never taken. */
uint32_t tn_registry_records(const struct tn_registry *reg);
/* The first registered block after b (TN_BLOCK_NONE: from the start), or TN_BLOCK_NONE. For snapshots. */
tn_block tn_registry_next(const struct tn_registry *reg, tn_block b);
/*
 * After recovery: links every block whose parent was registered later than itself, and sets the depths that
 * follow. One pass over all records; links that would close a circle are dropped. Returns how many were linked.
 */
uint32_t tn_registry_relink(struct tn_registry *reg);

/* ---- identity; owner thread ------------------------------------------------------------------ */

/* Reset -> Complete: takes a record from the pool; -ENOSPC if the pool is empty, -EINVAL for key 0. */
int tn_block_take(struct tn_registry *reg, uint16_t space, const struct tn_key *key, const struct tn_key *parent,
		  tn_block *out);
/*
 * Complete -> Registered, referenced by nobody and absent from all tiers. If the key is taken, *out is the block that
 * has it, and b returns to the pool; returns 1 then, 0 otherwise. The caller gets no reference. A block that has lost
 * its parent is linked again when it is registered once more as a duplicate.
 */
int tn_block_register(struct tn_registry *reg, tn_block b, tn_block *out);
/*
 * Reset -> Registered at once: onboarded and recovered blocks. parent NULL or zero: the first of its chain.
 * Same return as tn_block_register; -ENOSPC if no record is free.
 */
int tn_block_adopt(struct tn_registry *reg, uint16_t space, const struct tn_key *key, const struct tn_key *parent,
		   tn_block *out);
/* Complete -> Reset (abort); the record goes back to the pool. */
int tn_block_reset(struct tn_registry *reg, tn_block b);
/*
 * Registered -> Reset: look-ups no longer find the block, and its record is free. -EBUSY, and nothing has changed, while
 * the block is referenced. (A look-up on another thread may hold a reference for a moment, and gives it back by itself.)
 */
int tn_block_forget(struct tn_registry *reg, tn_block b);

/* ---- look-up; any thread --------------------------------------------------------------------- */

/*
 * Blocks of keys[0..n) from the first on, up to the first that is not registered in `space` or has
 * no tier PRESENT; pins each found one if asked. Memory is prefetched ahead: <= 100 ns per key.
 * Returns how many were found; out[i] and tiers[i] (enum tn_tier: the best one) are set for these.
 */
uint32_t tn_registry_find(struct tn_registry *reg, uint16_t space, const struct tn_key *keys, uint32_t n, bool pin,
			  tn_block *out, uint8_t *tiers);
/* Pins the blocks of all keys that are registered, whatever their residency; out[i] is TN_BLOCK_NONE for the others. */
void tn_registry_pin(struct tn_registry *reg, uint16_t space, const struct tn_key *keys, uint32_t n, tn_block *out);
/* The block of one key, whatever its residency. TN_BLOCK_NONE if the key is not registered. */
tn_block tn_registry_find_one(struct tn_registry *reg, uint16_t space, const struct tn_key *key, bool pin);
void tn_block_unpin(struct tn_registry *reg, tn_block b);

/* ---- what a record holds; owner thread ------------------------------------------------------- */

enum tn_block_state tn_block_state(const struct tn_registry *reg, tn_block b);
uint32_t tn_block_refs(const struct tn_registry *reg, tn_block b);
void tn_block_ref(struct tn_registry *reg, tn_block b); /* one more reference on a Registered block */
struct tn_key tn_block_key(const struct tn_registry *reg, tn_block b);
uint16_t tn_block_space(const struct tn_registry *reg, tn_block b);
/* The parent if it is still registered under the same key, else TN_BLOCK_NONE. */
tn_block tn_block_parent(const struct tn_registry *reg, tn_block b);
uint32_t tn_block_depth(const struct tn_registry *reg, tn_block b); /* blocks before it, saturating at 65535 */
enum tn_residency tn_block_residency(const struct tn_registry *reg, tn_block b, enum tn_tier tier);
void tn_block_set_residency(struct tn_registry *reg, tn_block b, enum tn_tier tier, enum tn_residency r);
/*
 * PRESENT -> DRAINING, unless somebody holds the block. A look-up that pins the block from then on does not see it in this
 * tier any more; a pin that came before is seen here. Returns false, and the block stays PRESENT, if somebody holds it.
 */
bool tn_block_withdraw(struct tn_registry *reg, tn_block b, enum tn_tier tier);
uint32_t tn_block_slot(const struct tn_registry *reg, tn_block b, enum tn_tier tier); /* HOST or DISK */
void tn_block_set_slot(struct tn_registry *reg, tn_block b, enum tn_tier tier, uint32_t slot);

#endif
