/* SPDX-License-Identifier: Apache-2.0 */
/* What the executors' tests work with: a file of objects, a pool and slots in memory, a ring, and an executor. */
#ifndef TN_RING_EXECUTOR_RIG_H
#define TN_RING_EXECUTOR_RIG_H

#include "base/exec_rig.h"
#include "base/rng.h"
#include "executor_nvme_rig.h"
#include "ioengine/faulty_rig.h"
#include "ioengine/ioengine.h"
#include "ring/executor.h"
#include "tn_test.h"

#define RIG_LAYERS 4u
#define RIG_PAGES 4u /* a block */
#define RIG_BLOCKS 24u
#define RIG_GUARD 0x5au
#define RIG_SLOTS 9u /* the id of the second list: flat memory as large as the disk's */
/* Numbers of memories: the pool's, the slots', and one that nothing is known of. */
enum rig_memory { RIG_POOL, RIG_SLOT_MEMORY, RIG_MEMORIES };
#define SECOND_NS 1000000000ull

struct rig_opts {
	uint32_t threads;    /* 0: inline */
	bool exec;	     /* inline: jobs end when they are collected */
	uint32_t page_bytes; /* of one page of one of the two planes; a multiple of 16 */
	uint32_t depth;
	uint32_t blocks; /* that are on disk; 0: all */
	uint32_t shift; /* the pool begins so many bytes behind a page boundary */
	bool flat;
	const struct tn_fault *faults;
	uint32_t nfaults;
	bool unruly; /* late and reordered completions */
};

/* Which executors rig_make makes: on files, or on NVMe queues, stepped or with a thread. */
enum rig_drives { RIG_FILES, RIG_NVME, RIG_NVME_THREAD };
extern enum rig_drives rig_drives;

struct rig {
	struct rig_opts o;
	char path[128];
	bool nvme; /* whose file lies on a controller, and io is its engine; else: */
	struct rig_nvme drive;
	struct tn_io *io; /* faulty, over the machine's engine */
	uint32_t file;
	struct tn_ring *ring;
	struct tn_executor *ex;
	struct tn_geometry geometry;
	struct tn_shape shape;
	struct tn_layout layout;
	unsigned char *pool; /* also the flat memory */
	uint64_t *table;
	size_t pool_bytes;
	uint32_t pages[RIG_BLOCKS * RIG_PAGES];
	struct tn_mapped_range pool_range[2 * RIG_LAYERS], slots_range;
	struct tn_mapping pool_memory, slots_memory;
	const struct tn_mapping *memories[RIG_MEMORIES];
	uint64_t flat[RIG_BLOCKS], slot[RIG_BLOCKS]; /* offsets of blocks in the flat memory, and in the slots */
	unsigned char *slots; /* of list RIG_SLOTS */
	uint64_t checks[RIG_BLOCKS * RIG_LAYERS];
	int32_t status[RIG_BLOCKS * RIG_LAYERS];
	struct tn_ring_list list, slot_list;
	struct tn_exec_inline exec;
	struct tn_rng rng;
	uint64_t sums[RIG_BLOCKS * RIG_LAYERS];
	uint64_t observed, observed_errors, observed_writes;
};

struct rig *rig_make(struct rig_opts o);
void rig_free(struct rig *r);
/* Makes the rig's executor, instead of one that is destroyed, as tn_executor_files_create or tn_executor_nvme_create. */
int rig_create(struct rig *r, const struct tn_alloc *alloc);
/* Makes an engine with the rig's faults; arg: the rig. */
int rig_engine(void *arg, struct tn_io **out);
/* Disk page of an object: blocks lie in slots one behind the other, shuffled. */
uint64_t rig_disk(const struct rig *r, uint32_t block, uint32_t layer);
/* An IOCB over objects of one layer (or RIG_LAYERS: all) of blocks [from, to), in random order; not issued. */
uint32_t rig_iocb(struct rig *r, uint32_t from, uint32_t to, uint32_t layer, uint32_t flags);
void rig_issue(struct rig *r, uint32_t id);
/* Makes an IOCB write, copy or check; copies go from the slots, or to them. */
void rig_turn_into(struct rig *r, uint32_t id, uint16_t op, bool to_slots);
/* Whether an IOCB that was issued is finished. */
bool rig_finished(struct rig *r, uint32_t id);
/* Steps until the IOCB is finished; its completion, and puts it back. */
struct tn_ring_completion rig_await(struct rig *r, uint32_t id);
/* One turn of the owner's loop. */
void rig_step(struct rig *r);
/* Whether the object is in its place as it is on disk. */
bool rig_has(struct rig *r, uint32_t block, uint32_t layer);
/* Whether its place is untouched. */
bool rig_clean(struct rig *r, uint32_t block, uint32_t layer);
/* Puts the objects of all blocks that are on disk into the pool, or into the slots. */
void rig_fill(struct rig *r);
void rig_fill_slots(struct rig *r);
bool rig_slot_has(struct rig *r, uint32_t block, uint32_t layer);
/* Whether the object is on disk, with zeros behind it; and whether what was there has stayed. */
bool rig_disk_has(struct rig *r, uint32_t block, uint32_t layer);
bool rig_disk_clean(struct rig *r, uint32_t block, uint32_t layer);
/* Fills the places of all objects on disk, and a page before and behind them, with guards. */
void rig_wipe_disk(struct rig *r);
/* Nothing but objects was written: the guards around and between are whole. */
void rig_check_guards(struct rig *r);
void rig_wipe(struct rig *r);

#endif
