/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store's tests share: a small owner of a store (its registry, its data transfers) over any
 * engine. Blocks have contents that follow from key and sequence, so that every read can be judged.
 */
#ifndef TN_STORE_STORE_RIG_H
#define TN_STORE_STORE_RIG_H

#include "base/rng.h"
#include "simdisk.h"
#include "store/store_internal.h"
#include "tn_test.h"

#define RIG_BLOCKS_MAX 1024u
#define RIG_OBJECTS 3u
#define RIG_LOGS 16384u
#define RIG_ALLOCS 512u

struct rig_block {
	struct tn_index_entry entry;
	tn_slot slot;
	bool live;
	bool held; /* its segment cannot move */
};

struct gate;

struct rig {
	struct gate *gate; /* a test's */
	struct tn_simdisk *disk; /* NULL on a real engine */
	struct tn_io *io;
	const struct tn_clock *clock;
	struct tn_log log;
	struct tn_alloc alloc; /* knows what it gave out, so that a killed store can be cleaned up */
	struct {
		void *p;
		size_t bytes;
	} given[RIG_ALLOCS];
	struct tn_store_opts opts;
	const char *dirs[TN_DEVICES_MAX];
	struct tn_store *store;
	struct tn_key space_id;
	uint16_t space;
	uint32_t cls, object_bytes[RIG_OBJECTS];
	struct rig_block block[RIG_BLOCKS_MAX]; /* the cookie is the index */
	uint32_t recovered, evict_calls, refuse_above;
	uint32_t vacate_calls, vacated; /* segments asked for, blocks removed for it */
	tn_slot passes;		      /* of this slot's segment only transfers are in the way; TN_SLOT_NONE: of none */
	bool evict_removes;
	uint32_t allocs_left; /* then memory runs out */
	enum tn_health health;
	char logs[RIG_LOGS]; /* every line, for tests to look into */
};

/* Options for a small store on a simulated disk; change them before rig_open. */
struct rig *rig_new(uint64_t seed);
/* Likewise on a given engine and clock, which stay the caller's. */
struct rig *rig_new_on(struct tn_io *io, const struct tn_clock *clock, const char *dir);
void rig_free(struct rig *r); /* closes what is open, asserts that no memory is left */

int rig_open(struct rig *r); /* the registry is empty at the start and filled by recovery */
int rig_close(struct rig *r);
/* Power cut, then open; asserts that it opens. */
void rig_crash(struct rig *r, enum tn_simdisk_crash mode, uint64_t seed);
void rig_abandon(struct rig *r); /* forget the store object as a killed process does, and free its memory */

struct tn_key rig_key(uint64_t n);
/* Saves a block under key n; its cookie, or -1 when no slot was to be had. */
int rig_save(struct rig *r, uint64_t n);
int rig_save_in(struct rig *r, uint64_t n, uint32_t cls, const uint32_t *bytes, uint32_t nobjects);
void rig_remove(struct rig *r, uint64_t n);
/* As many slots as there are, also if the file must be made longer for them. */
uint32_t rig_reserve(struct rig *r, uint32_t cls, uint32_t n, tn_slot *slots);
/* Waits until no file is being made longer; true if one was. */
bool rig_grown(struct rig *r);
int rig_flush(struct rig *r);
void rig_step(struct rig *r, unsigned rounds);
/* The live block with key n, or NULL. */
struct rig_block *rig_find(struct rig *r, uint64_t n);
/* Reads and verifies: 0 good, 1 a miss (header or checksum does not fit); asserts that it is never wrong bytes. */
int rig_read(struct rig *r, uint64_t n);
uint32_t rig_live(struct rig *r);
/* One transfer, waited for. */
int rig_io(struct rig *r, enum tn_io_op op, uint32_t file, uint64_t offset, void *buf, uint32_t len);

#define RIG_PATH "a/tenuto.store"

#endif
