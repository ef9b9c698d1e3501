/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SSD object store: devices, segments, slots, index log, checkpoints, recovery, health.
 *
 * One file per device (DIR/<instance>/tenuto.store), laid out as docs/format.md says. The store decides *places*
 * and keeps the index durable; block data and block headers are moved by the tier above
 * through the same I/O engine, at the places that tn_store_locate names. The store's own I/O (log,
 * checkpoints, preparation, probes) goes through the engine as well and finishes in
 * tn_store_complete, so that the owner thread never waits.
 *
 * The store does not know keys' meaning: a slot carries a cookie (the registry's block index), and
 * what must be written about a block (struct tn_index_entry) is asked back by the describe callback.
 *
 * Owner thread only, except the pure functions tn_store_header_*.
 */
#ifndef TN_STORE_STORE_H
#define TN_STORE_STORE_H

#include <stdbool.h>
#include <tenuto/device.h>
#include <tenuto/types.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "io/io.h"

#define TN_STORE_HEADER_BYTES 4096u /* granularity of block headers */
#define TN_PLACE_ALIGN 4096u  /* smallest slot and object alignment on disk */
#define TN_OBJECTS_MAX 4096u  /* objects (layers) per block */
#define TN_SPACES_MAX 1024u

typedef uint32_t tn_slot; /* global slot number; TN_SLOT_NONE: none */
#define TN_SLOT_NONE UINT32_MAX

/* What is known of a block on disk, in log records, checkpoints and headers alike. */
struct tn_index_entry {
	struct tn_key key;
	struct tn_key parent; /* zero: first of its chain, or unknown */
	uint64_t sequence; /* of the store: rises with every publish; the highest of a key wins */
	uint16_t space; /* index into the store's space table */
	uint32_t recency; /* logical time of last use, the policy's */
	uint8_t flags; /* free for the cache (partial, priority) */
};

/* A block header in memory. */
struct tn_store_header {
	struct tn_index_entry entry;
	struct tn_key space_id; /* fingerprint of the space, checked on every read */
	uint32_t space_epoch;
	uint32_t group;
	uint16_t codec; /* 0: none */
	uint16_t key_id; /* 0: not encrypted */
	uint32_t nobjects;
	const uint32_t *object_bytes;     /* nobjects lengths, unpadded */
	const uint64_t *object_checksum;  /* nobjects tn_checksum values */
};

/* Where a slot lies. */
struct tn_store_place {
	uint32_t device;
	uint32_t file; /* handle of the I/O engine */
	uint64_t data_offset;
	uint64_t header_offset;
	uint32_t header_bytes; /* multiple of TN_STORE_HEADER_BYTES */
	uint64_t slot_bytes;
};

struct tn_store;

#define TN_STORE_REFUSED (UINT32_MAX - 1)

struct tn_store_callbacks {
	/*
	 * A committed block found at open, in no particular order: of each key and space the one with the highest
	 * sequence. Returning a cookie keeps it; UINT32_MAX drops it durably; TN_STORE_REFUSED, with an error, ends the open
	 * with that error (registry full: blocks are not dropped for that).
	 */
	uint32_t (*recovered)(void *arg, tn_slot slot, const struct tn_index_entry *entry);
	/* Fill *entry for a committed slot (checkpoints, log). Must not fail, must not call the store. */
	void (*describe)(void *arg, tn_slot slot, uint32_t cookie, struct tn_index_entry *entry);
	/*
	 * The block's data may be lost because a sync failed, or its segment is beyond a capacity that was made
	 * smaller: remove it (now or when unpinned). Of lost ones it is called again until they are removed; no flush
	 * after the first call reports the loss. From tn_store_step only.
	 */
	void (*evict)(void *arg, tn_slot slot, uint32_t cookie);
	/* A device's health changed. */
	void (*health)(void *arg, uint32_t device, enum tn_health health);
	void *arg;
	/* Whether a background write of so many bytes may go now, and that it ended; NULL: always. */
	bool (*may_write)(void *arg, uint32_t device, uint64_t bytes);
	void (*written)(void *arg, uint32_t device, uint64_t bytes);
	/*
	 * The segment with these n slots is wanted by another class: remove every block in them (tn_store_cookie says
	 * which there are), or none and return false if somebody holds one. From tn_store_move only; NULL: segments do
	 * not move.
	 */
	bool (*vacate)(void *arg, tn_slot first, uint32_t n);
	/*
	 * Of n slots that could not be vacated or have some that are being written: whether transfers under way are all
	 * that is in the way, which end without anybody's doing. From tn_store_move only; NULL: they never are.
	 */
	bool (*passes)(void *arg, tn_slot first, uint32_t n);
};

struct tn_store_opts {
	struct tn_io *io;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
	const char *const *dirs; /* must exist (the caller makes DIR/<instance>); the store file is made inside */
	uint32_t ndirs;
	uint64_t capacity_bytes; /* of slots (not metadata), over all devices; 0: as the existing stores say, which never grow */
	uint64_t segment_bytes; /* new stores; 0: capacity / 64 within 4 MiB .. 1 GiB */
	uint64_t log_bytes; /* of each device, new stores; 0: derived from max_slots, 1 .. 256 MiB */
	uint32_t max_slots; /* most slots in all: size of the slot table; 0: derived from the capacity, 64 KiB per slot */
	bool read_only;
	bool inspect; /* with read_only: take no lock, for tools that look at a store in use */
	bool rebuild; /* make the index anew from block headers, whatever checkpoints and log say */
	bool prepare; /* write new segments once in the background, so that first writes are not slow */
	uint64_t write_bytes_per_day;
	uint64_t lock_timeout_ns;
	uint64_t durability_ns; /* a change is durable about so long after it was made; 0: 1 s; UINT64_MAX: when a flush asks */
	uint64_t boot[2]; /* which boot of the machine this is; zero: the kernel is asked (simulations set it) */
	uint64_t slow_read_ns; /* latency budget of a read; beyond it often: TN_SLOW. 0: 500 ms */
	uint64_t entropy[2]; /* seeds UUIDs and the secret of new stores; zero: from the kernel (simulations set it) */
	struct tn_store_callbacks cb;
};

/*
 * Opens or creates all devices, takes the locks, recovers. Drives the engine itself until done (nothing else may be in
 * flight). 0 and *out; -EBUSY (owner's pid in the detail), -EUCLEAN, -EPROTONOSUPPORT, -ENOSPC, -EACCES, -EROFS,
 * -ENOMEM, -EXDEV (device belongs to another store), -ENODEV (more directories than devices), -ENOENT (nothing there
 * and read_only), -EINVAL, -EIO. The directories may be given in another order than before, and fewer of them: a device
 * that is not there is offline (set.c).
 *
 * Where the store drives the engine while it is open (close), requests of others that complete get
 * their done function called, as by any caller of poll.
 */
int tn_store_open(const struct tn_store_opts *opts, struct tn_store **out);
/* Flush, checkpoint, close the files. Drives the engine until done. The error of the last flush, or 0. */
int tn_store_close(struct tn_store *store);

/*
 * Bytes to which the store in a directory may grow, and the most slots that it may be divided into, without opening it;
 * of opts, io, alloc, clock and log are used. Drives the engine; nothing else may be in flight. 0, -ENOENT if there is
 * none, -EUCLEAN if none is valid, -EPROTONOSUPPORT, or as the engine's open.
 */
int tn_store_capacity(const struct tn_store_opts *opts, const char *dir, uint64_t *capacity_bytes, uint64_t *slots);

struct tn_secret tn_store_secret(const struct tn_store *store);

/* ---- spaces ---------------------------------------------------------------------------------- */

/*
 * Index of the space with this fingerprint. A new one is durable before the first block in it is; nothing
 * is waited for. -ENOSPC (TN_SPACES_MAX), -EINVAL (zero).
 */
int tn_store_space(struct tn_store *store, const struct tn_key *space_id, uint16_t *space);
/* Its fingerprint and epoch; -ENOENT. */
int tn_store_space_info(const struct tn_store *store, uint16_t space, struct tn_key *space_id, uint32_t *epoch);
/*
 * The number is free for another space, under its next epoch. No block of it is published or being written: they were
 * removed, which need not be durable yet, because blocks with a sequence taken before are never recovered once the
 * number has another owner.
 */
void tn_store_space_give_back(struct tn_store *store, uint16_t space);
/* Numbers from here on have never been a space's. */
uint16_t tn_store_spaces(const struct tn_store *store);
/*
 * Next epoch from now on; durable once a flush that was begun after it ended with 0: then blocks with a sequence taken
 * before are never recovered. Removing the blocks that are published stays the owner's, before or after. -EROFS,
 * -ENOENT.
 */
int tn_store_space_drop(struct tn_store *store, uint16_t space);

/* ---- places ---------------------------------------------------------------------------------- */

/*
 * The class for blocks of nobjects objects of object_bytes each. Blocks of equal padded size and header size have one.
 * -EINVAL, -ENOSPC (table full).
 */
int tn_store_class(struct tn_store *store, uint32_t nobjects, const uint32_t *object_bytes, uint32_t *cls);
/*
 * Slots in all: those of segments that belong to a class, and in the others as many as the smallest known blocks would
 * have. Does not depend on the order in which classes were made; changes when segments move.
 */
uint64_t tn_store_slots(const struct tn_store *store);
/* Whether removing the block in this slot leaves a slot for the class. */
bool tn_store_frees_for(const struct tn_store *store, tn_slot slot, uint32_t cls);

/*
 * capacity_bytes that holds so many blocks and still has slots to spare while removes become durable.
 * *segment_bytes: 0 on entry picks one that suits; else it is taken.
 */
uint64_t tn_store_bytes_for(uint64_t blocks, uint32_t ndirs, uint32_t nobjects, const uint32_t *object_bytes,
			    uint64_t *segment_bytes);

/*
 * Reserve up to n slots, neighbours where possible, devices round-robin. Returns how many (0..n); fewer than n
 * means: evict (tn_store_remove) and wait for the removes to be durable.
 */
uint32_t tn_store_reserve(struct tn_store *store, uint32_t cls, uint32_t n, tn_slot *slots);
/* Reserved but never published: free again at once. */
void tn_store_unreserve(struct tn_store *store, tn_slot slot);
/* The device's handle in the I/O engine; TN_IO_NO_FILE: it is not there. */
uint32_t tn_store_file(const struct tn_store *store, uint32_t device);
/* Of its file; empty: the device is not there. */
const char *tn_store_path(const struct tn_store *store, uint32_t device);
void tn_store_locate(const struct tn_store *store, tn_slot slot, struct tn_store_place *place);
/* Whether any device takes writes now. */
bool tn_store_writable(const struct tn_store *store);
/* Has the file of any device no name any more? Then what is on it is gone when the store closes. */
bool tn_store_deleted(const struct tn_store *store);
/*
 * Of the class: slots that could be reserved right now, and those whose remove record is not durable yet, on devices
 * that take writes and records: they come by themselves, with the next commits.
 */
void tn_store_free_slots(const struct tn_store *store, uint32_t cls, uint64_t *free_now, uint64_t *freeing);
/*
 * How many slots are on their way to this class without its owner's doing: a segment that moves to it; and for whoever
 * reserves first, one whose preparation ends at once because a reserve wanted it, or by which the file gets longer
 * (that takes as long as the file system likes, and counts for up to two seconds).
 */
uint64_t tn_store_moving(const struct tn_store *store, uint32_t cls);
/*
 * In a full store, begins to move a segment of another class to this one: the coldest whose blocks can go, that is, of
 * which nobody holds one (cb.vacate) and no slot is being written. It changes hands when their removal is durable.
 * `colder`: only one that is colder than the coldest of this class, so that classes compete like blocks under LRU; a
 * class without any takes the coldest there is. What could not move since the demand began is not tried again.
 */
enum tn_store_move {
	TN_STORE_MOVE_NONE,   /* no segment can go */
	TN_STORE_MOVE_COMES,  /* reserve again after the next step: one moves to the class, or - unless `colder` - to another first */
	TN_STORE_MOVE_PASSES, /* not with `colder`: none can go now, but of some only transfers are in the way: ask again, as a new demand */
	TN_STORE_MOVE_GROWS,  /* not with `colder`: none can go now, but a file is getting longer: ask again, as a new demand */
};
enum tn_store_move tn_store_move(struct tn_store *store, uint32_t cls, bool colder, uint64_t demand);
/* Why a file with less than its capacity is not longer: the error of its last allocation; 0: none failed. */
int tn_store_growth_error(const struct tn_store *store);
/* A new demand for slots begins: its number, not 0, for tn_store_move. */
uint64_t tn_store_demand(struct tn_store *store);

/* Next sequence number, for the header of a slot that is about to be written. */
uint64_t tn_store_next_sequence(struct tn_store *store);
/* Data and header of a reserved slot were written: log the insert. entry->sequence as in the header. */
void tn_store_publish(struct tn_store *store, tn_slot slot, uint32_t cookie, const struct tn_index_entry *entry);
/* What describe says of a published slot has changed: its record is logged anew. */
void tn_store_update(struct tn_store *store, tn_slot slot);
/* Forget a published slot; it can be reserved again once the record is durable. */
void tn_store_remove(struct tn_store *store, tn_slot slot);
/*
 * As remove (or unreserve, of a reserved slot whose write failed), but the second time a slot fails, or with eio,
 * it is never used again: unless everything fails on its device now.
 */
void tn_store_fail_slot(struct tn_store *store, tn_slot slot, bool eio);
/* Whether the slot's device is offline. */
bool tn_store_offline(const struct tn_store *store, tn_slot slot);
/* Of a committed slot, else UINT32_MAX. */
uint32_t tn_store_cookie(const struct tn_store *store, tn_slot slot);
/*
 * The whole sequence that the block header in a committed slot must have, however the index was recovered (log,
 * checkpoints and headers all have it); 0, which no block has, of any other slot.
 */
uint64_t tn_store_sequence(const struct tn_store *store, tn_slot slot);
/* A block in this slot was used (keeps the segment warm; its checkpoint page gets the new recency in time). */
void tn_store_touch(struct tn_store *store, tn_slot slot, uint32_t recency);

/* ---- durability and background work ----------------------------------------------------------- */

#define TN_FLUSHES_MAX 256u

/*
 * Make all publishes and removes so far durable: the log, fdatasync, the mark, fdatasync. done(arg, status) once,
 * perhaps before this returns; several may be under way (they share the syncs), at most TN_FLUSHES_MAX (-EAGAIN). A device that
 * fails ends the flush with its error; records that it has not taken are tried again. After a failed *sync* blocks
 * whose data it covered are lost: cb.evict is called for each in the next step, and flushes fail until then.
 */
void tn_store_flush(struct tn_store *store, void (*done)(void *arg, int status), void *arg);
/* If req is the store's own, finishes req and returns true. To be called first, for every polled request. */
bool tn_store_complete(struct tn_store *store, struct tn_io_req *req);
/* Background work: group commit of removes, checkpoints, preparing segments, probes. Returns when to call again (ns). */
uint64_t tn_store_step(struct tn_store *store, uint64_t now_ns);

/* ---- health ----------------------------------------------------------------------------------- */

/* What the tier saw on a data transfer; drives healthy -> slow -> read-only -> offline and back. */
void tn_store_observe(struct tn_store *store, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns,
		      int status);
enum tn_health tn_store_health(const struct tn_store *store, uint32_t device);
/* Whether bytes more may be written today (write_bytes_per_day); counts them if so. */
bool tn_store_charge_write(struct tn_store *store, uint64_t bytes);
/* The bytes are not written after all. */
void tn_store_uncharge_write(struct tn_store *store, uint64_t bytes);
/* 0, or -ENOENT past the last device. */
int tn_store_stats(const struct tn_store *store, uint32_t device, struct tn_device_stats *stats);
/* As many as the store was made with; those that are not there are offline. */
uint32_t tn_store_devices(const struct tn_store *store);
uint64_t tn_store_index_bytes(const struct tn_store *store);
uint64_t tn_store_recovery_ns(const struct tn_store *store);

/* ---- headers; pure, any thread ------------------------------------------------------------------ */

/* Bytes of the header of a block with nobjects objects (a multiple of TN_STORE_HEADER_BYTES). */
uint32_t tn_store_header_size(uint32_t nobjects);
/* Writes header_size bytes to page. */
void tn_store_header_encode(const struct tn_store_header *h, const uint64_t store_uuid[2], tn_slot slot, void *page);
/*
 * Checks magic, version, store, slot, checksum; then fills *h, whose tables point into page. -EBADMSG: not a
 * valid header of this slot (detail says what differs), -EXDEV: of another device, -EPROTONOSUPPORT: of a later version.
 */
int tn_store_header_decode(const void *page, size_t len, const uint64_t store_uuid[2], tn_slot slot,
			   struct tn_store_header *h);
void tn_store_uuid(const struct tn_store *store, tn_slot slot, uint64_t uuid[2]); /* of the slot's device */

/* ---- tools: admin.c, what the public tools do, on any engine ------------------------------------------------ */

struct tn_admin_store;
struct tn_admin_device;
struct tn_admin_verify;
struct tn_admin_check;
/* dirs are complete paths here; opts has io, clock, log, dirs. */
int tn_store_admin_info(const struct tn_store_opts *opts, struct tn_admin_device *device);
int tn_store_admin_verify(const struct tn_store_opts *opts, const struct tn_admin_store *a, struct tn_admin_verify *out);
int tn_store_admin_check(const struct tn_store_opts *opts, const struct tn_admin_store *a, bool rebuild,
			 struct tn_admin_check *out);

#endif
