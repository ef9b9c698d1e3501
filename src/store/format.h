/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's on-disk structures, byte for byte as docs/format.md writes them down.
 *
 * Little-endian, fixed width, no padding that the compiler chose: every offset that another program
 * would need is asserted. Each structure begins with struct tn_disk_head; its checksum is XXH3-64
 * over everything after the head, up to the end of the structure's pages. Nothing here is trusted
 * when read: decoders check every field that is later used as a number or an index.
 */
#ifndef TN_STORE_FORMAT_H
#define TN_STORE_FORMAT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "store/store.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is written by copying little-endian structures");

#define TN_DISK_VERSION 1u
#define TN_DISK_PAGE 4096u
#define TN_DISK_LIMIT (1ull << 55) /* counters of any kind stay below, so that no sum of them overflows */

#define TN_DISK_MAGIC_SUPER 0x53424e54u   /* "TNBS" */
#define TN_DISK_MAGIC_SPACES 0x50534e54u  /* "TNSP" */
#define TN_DISK_MAGIC_LOG 0x474c4e54u     /* "TNLG" */
#define TN_DISK_MAGIC_ROOT 0x54524e54u    /* "TNRT" */
#define TN_DISK_MAGIC_PAGE 0x47504e54u    /* "TNPG" */
#define TN_DISK_MAGIC_SEGMENT 0x47534e54u /* "TNSG" */
#define TN_DISK_MAGIC_BLOCK 0x4b424e54u   /* "TNBK" */
#define TN_DISK_MAGIC_MARK 0x4b4d4e54u    /* "TNMK" */

/* Fixed places. Everything after them follows from the superblock. */
#define TN_DISK_SUPER_OFFSET(i) ((i) ? 65536u : 0u)
#define TN_DISK_SCRATCH_OFFSET 131072u
#define TN_DISK_MARK_OFFSET(i) ((i) ? 245760u : 139264u)
#define TN_DISK_SPACES_OFFSET(i) ((i) ? 262144u : 196608u)
#define TN_DISK_LOG_OFFSET 327680u

struct tn_disk_head {
	uint32_t magic;
	uint16_t version;
	uint16_t reserved;
	uint64_t checksum;
};
static_assert(sizeof(struct tn_disk_head) == 16, "format");

enum tn_disk_state {
	TN_DISK_CREATING = 1, /* metadata complete on this device, perhaps not yet on the others of the set */
	TN_DISK_OPEN = 2,
	TN_DISK_CLEAN = 3,
};

struct tn_disk_super {
	struct tn_disk_head head;
	uint64_t device_uuid[2];
	uint64_t store_uuid[2];
	uint64_t secret[2];
	uint64_t generation; /* of this structure: the newer valid copy counts */
	uint64_t epoch;      /* session that wrote it */
	uint64_t log_epoch;  /* the log is known to reach at least this epoch */
	uint64_t sequence_floor; /* no block of this store has a higher sequence from before this session */
	uint64_t created_wall_ns;
	uint64_t opened_wall_ns;
	uint32_t state; /* enum tn_disk_state */
	uint32_t owner_pid;
	uint32_t device_index;
	uint32_t device_count;
	uint64_t segment_bytes;
	uint32_t segment_count;
	uint32_t segment_pages; /* slot-table pages per segment */
	uint64_t log_offset;
	uint64_t log_bytes;
	uint64_t checkpoint_offset[2];
	uint64_t checkpoint_bytes; /* each */
	uint64_t segments_offset;
	uint32_t life[TN_DEVICES_MAX]; /* of each device: rises when a session goes without it, or makes it anew */
	uint8_t zero[3840];
};
static_assert(sizeof(struct tn_disk_super) == TN_DISK_PAGE, "format");
static_assert(offsetof(struct tn_disk_super, device_uuid) == 16, "format");
static_assert(offsetof(struct tn_disk_super, generation) == 64, "format");
static_assert(offsetof(struct tn_disk_super, state) == 112, "format");
static_assert(offsetof(struct tn_disk_super, segment_bytes) == 128, "format");
static_assert(offsetof(struct tn_disk_super, log_offset) == 144, "format");
static_assert(offsetof(struct tn_disk_super, segments_offset) == 184, "format");
static_assert(offsetof(struct tn_disk_super, life) == 192, "format");
static_assert(offsetof(struct tn_disk_super, zero) == 256, "format");

struct tn_disk_space {
	struct tn_key id;      /* zero: entry unused */
	uint64_t min_sequence; /* blocks of the space with a lower sequence were dropped */
	uint32_t epoch;
	uint32_t reserved;
};
static_assert(sizeof(struct tn_disk_space) == 32, "format");

struct tn_disk_spaces {
	struct tn_disk_head head;
	uint64_t store_uuid[2];
	uint64_t generation;
	uint32_t count; /* entries in use: 0 .. count - 1 */
	uint32_t zero[1013];
	struct tn_disk_space space[TN_SPACES_MAX];
};
static_assert(sizeof(struct tn_disk_spaces) == TN_DISK_PAGE + 32768, "format");
static_assert(offsetof(struct tn_disk_spaces, space) == TN_DISK_PAGE, "format");

/* What a record says of its slot (log), or what the slot is (checkpoint). */
enum tn_disk_kind {
	TN_DISK_EMPTY = 0, /* checkpoint: free; log: removed */
	TN_DISK_BLOCK = 1,
	TN_DISK_QUARANTINED = 2,
	TN_DISK_SEGMENT = 3, /* union member shape counts */
};

/* What a segment is divided into; all zero: it has no shape. */
struct tn_disk_shape {
	uint64_t slot_bytes; /* distance of slots */
	uint32_t header_bytes;
	uint32_t slot_count; /* per segment */
};
static_assert(sizeof(struct tn_disk_shape) == 16, "format");

/* One slot or segment: the record of log groups and checkpoint pages alike. */
struct tn_disk_record {
	uint8_t kind;  /* enum tn_disk_kind */
	uint8_t flags; /* the cache's */
	uint16_t space;
	uint32_t recency;
	uint64_t sequence;
	union {
		struct {
			struct tn_key key;
			struct tn_key parent;
		};
		struct tn_disk_shape shape; /* then zeros */
	};
	uint32_t segment;
	uint32_t index; /* of the slot within its segment */
	uint32_t generation; /* of the segment's assignment */
	uint8_t failures; /* reads of this slot that failed verification, ever */
	uint8_t reserved[3];
};
static_assert(sizeof(struct tn_disk_record) == 64, "format");
static_assert(offsetof(struct tn_disk_record, key) == 16, "format");
static_assert(offsetof(struct tn_disk_record, segment) == 48, "format");
static_assert(offsetof(struct tn_disk_record, failures) == 60, "format");

#define TN_DISK_RECORDS 63u /* a page */

#define TN_DISK_GROUP_MAX (64u * TN_DISK_PAGE)

struct tn_disk_group { /* of log records; followed by bytes / 64 - 1 records */
	struct tn_disk_head head;
	uint64_t device_uuid[2];
	uint64_t epoch;
	uint64_t sequence; /* of the group, without gaps */
	uint64_t position; /* bytes written to the log before it, ever */
	uint32_t bytes;    /* multiple of 4096 */
	uint32_t records;
};
static_assert(sizeof(struct tn_disk_group) == 64, "format");

/* How far the log was known to be durable, and in which boot of the machine the rest of it was written. */
struct tn_disk_mark {
	struct tn_disk_head head;
	uint64_t device_uuid[2];
	uint64_t generation; /* of two valid copies the higher counts */
	uint64_t sequence;   /* groups before this one were durable, and the blocks they name */
	uint64_t epoch;      /* of the session that wrote it */
	uint64_t boot[2];    /* of the kernel under which that session ran; zero: unknown */
	uint64_t spaces;     /* a space table of at least this generation was durable; zero: unknown */
	uint8_t zero[4016];
};
static_assert(sizeof(struct tn_disk_mark) == TN_DISK_PAGE, "format");
static_assert(offsetof(struct tn_disk_mark, sequence) == 40, "format");
static_assert(offsetof(struct tn_disk_mark, boot) == 56, "format");
static_assert(offsetof(struct tn_disk_mark, spaces) == 72, "format");

struct tn_disk_page { /* of a checkpoint */
	struct tn_disk_head head;
	uint64_t device_uuid[2];
	uint64_t checkpoint; /* that wrote it */
	uint32_t number;     /* of the page within the checkpoint */
	uint32_t generation; /* of the segment's assignment; 0 on segment pages */
	uint64_t reserved[2];
	struct tn_disk_record rec[TN_DISK_RECORDS];
};
static_assert(sizeof(struct tn_disk_page) == TN_DISK_PAGE, "format");
static_assert(offsetof(struct tn_disk_page, rec) == 64, "format");

struct tn_disk_root {
	struct tn_disk_head head;
	uint64_t checkpoint;     /* rises; the newer valid root counts */
	uint64_t log_position;   /* replay from here ... */
	uint64_t log_sequence;   /* ... where this group is */
	uint64_t epoch;          /* groups replayed have at least this one */
	uint64_t next_sequence;  /* of blocks, when it was written */
	uint32_t page_count;
	uint32_t log_required; /* 1: the group at log_position was durable, so its absence means damage */
	uint64_t zero[8];
	struct tn_disk_super super; /* a third copy, to rebuild from; its own checksum counts */
	uint8_t rest[3968];
};
static_assert(sizeof(struct tn_disk_root) == 2 * TN_DISK_PAGE, "format");
static_assert(offsetof(struct tn_disk_root, super) == 128, "format");

struct tn_disk_segment {
	struct tn_disk_head head;
	uint64_t device_uuid[2];
	uint32_t segment;
	uint32_t generation; /* of its assignment; 0: never assigned */
	struct tn_disk_shape shape;
	uint32_t prepared; /* 1: every byte was written once */
	uint32_t reserved;
	uint8_t zero[4032];
};
static_assert(sizeof(struct tn_disk_segment) == TN_DISK_PAGE, "format");
static_assert(offsetof(struct tn_disk_segment, shape) == 40, "format");

struct tn_disk_block { /* then object checksums (u64 each), then object lengths (u32 each) */
	struct tn_disk_head head;
	uint64_t device_uuid[2];
	uint32_t slot;
	uint32_t header_bytes;
	uint64_t sequence;
	struct tn_key key;
	struct tn_key parent;
	struct tn_key space_id;
	uint32_t space_epoch;
	uint32_t group;
	uint32_t recency;
	uint32_t nobjects;
	uint16_t space;
	uint16_t codec;
	uint16_t key_id;
	uint8_t flags;
	uint8_t reserved;
	uint64_t zero;
};
static_assert(sizeof(struct tn_disk_block) == 128, "format");
static_assert(offsetof(struct tn_disk_block, key) == 48, "format");
static_assert(offsetof(struct tn_disk_block, space_epoch) == 96, "format");

/* Fills magic, version and checksum of a structure of so many bytes. */
void tn_disk_seal(struct tn_disk_head *head, uint32_t magic, size_t bytes);

/*
 * Pure decoders: everything that comes from the disk goes through one of them. -EBADMSG: damaged, or never written;
 * -EXDEV: of another device or store; -EPROTONOSUPPORT: of a later version, so that nothing of the store may be written.
 */
int tn_disk_super_decode(const void *page, size_t len, struct tn_disk_super *out);
int tn_disk_spaces_check(const void *bytes, size_t len, const uint64_t store_uuid[2]);
/* *bytes: length of the whole group, also when more than len (-EMSGSIZE: read on). */
int tn_disk_group_check(const void *group, size_t len, const uint64_t device_uuid[2], uint64_t position,
			uint64_t sequence, uint64_t min_epoch, uint32_t *bytes);
int tn_disk_page_check(const void *page, size_t len, const uint64_t device_uuid[2], uint32_t number);
int tn_disk_root_check(const void *root, size_t len, const struct tn_disk_super *super);
int tn_disk_mark_check(const void *page, size_t len, const uint64_t device_uuid[2]);
/* A header of another place in this device is a damaged one. */
int tn_disk_segment_check(const void *page, size_t len, const uint64_t device_uuid[2], uint32_t segment);

/* Sizes and regions of a new store; -EINVAL. */
int tn_disk_plan_sizes(const struct tn_store_opts *opts, struct tn_disk_super *sb);
/* Bits of a device's local slot numbers. */
uint32_t tn_disk_slot_bits(uint64_t slot_pages);

/* A block as a record has it. */
static inline void tn_disk_record_block(struct tn_disk_record *r, const struct tn_index_entry *e)
{
	r->kind = TN_DISK_BLOCK;
	r->flags = e->flags;
	r->space = e->space;
	r->recency = e->recency;
	r->sequence = e->sequence;
	r->key = e->key;
	r->parent = e->parent;
}

static inline struct tn_index_entry tn_disk_record_entry(const struct tn_disk_record *r)
{
	return (struct tn_index_entry){.key = r->key,
				       .parent = r->parent,
				       .sequence = r->sequence,
				       .space = r->space,
				       .recency = r->recency,
				       .flags = r->flags};
}

static inline uint64_t tn_round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

#endif
