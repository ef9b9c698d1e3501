/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tier has besides whose places lie on drives (TN_REACH_DEVICE). IOCBs move the bytes, and the tier says where they lie. Of each block there is a
 * header beside the data, with its checksums: the tier knows what a header must say, has buffers that headers are read into and written from, and
 * remembers checksums.
 *
 * Owner thread only.
 */
#ifndef TN_TIER_DRIVES_H
#define TN_TIER_DRIVES_H

#include <tenuto/device.h>

#include "io/io.h"
#include "tier/tier.h"

/* Headers that may be on their way at once; each has a buffer, by number. */
#define TN_HEADER_BUFFERS 256u
#define TN_HEADER_NO_BUFFER UINT32_MAX

/* A header: what it must say, and where its checksums are. */
struct tn_header_want {
	uint32_t place;
	const struct tn_key *key;
	const struct tn_tier_space *space;
	uint64_t sequence; /* of one that is written; the tier knows that of one that is read */
	const struct tn_shape *shape;
	uint64_t *checks; /* shape->layers values */
};

/* One header to write; its data is on disk. */
struct tn_header_put {
	uint32_t place;
	struct tn_index_entry entry; /* out: its sequence */
	struct tn_tier_space space;
	uint32_t group;
	const struct tn_shape *shape;
	const uint64_t *checks;
};

/* The buffers: the memory that they lie in one behind the other; by buffer its offset there, and the block of the caller's that it was taken for. */
struct tn_header_buffers {
	const struct tn_mapping *memory;
	const uint64_t *offset;
	const uint32_t *block;
};

struct tn_drive_counts {
	uint64_t header_cache_hits, header_reads;
	uint64_t index_bytes, recovery_ns;
};

struct tn_drive_ops {
	/* Where a place's first object lies, and its header, as IOCBs name it (tn_ioctx_disk). */
	uint64_t (*data_at)(const struct tn_tier_base *t, uint32_t place);
	uint64_t (*header_at)(const struct tn_tier_base *t, uint32_t place);

	/* True: the checksums are known, and want->checks has them. */
	bool (*header_known)(struct tn_tier_base *t, const struct tn_header_want *want);
	/* A free buffer for a block of the caller's, or TN_HEADER_NO_BUFFER: neither reads nor writes get all of them. */
	uint32_t (*header_take)(struct tn_tier_base *t, bool write, uint32_t block);
	void (*header_give)(struct tn_tier_base *t, uint32_t buffer);
	/* A read has ended, and the buffer is free: 0, and want->checks is filled; status; or -EBADMSG: it is not the header of that block. */
	int (*header_read)(struct tn_tier_base *t, uint32_t buffer, int status, const struct tn_header_want *want);
	/* Fills the buffer, and says the sequence. */
	void (*header_encode)(struct tn_tier_base *t, uint32_t buffer, struct tn_header_put *put);
	/* Likewise a write has ended. */
	void (*header_written)(struct tn_tier_base *t, uint32_t buffer, int status, const struct tn_header_want *what);

	/* A request that the I/O engine has completed; false: it is not the tier's own. */
	bool (*complete)(struct tn_tier_base *t, struct tn_io_req *req);
	/* What a transfer showed of a drive. */
	void (*observe)(struct tn_tier_base *t, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status);
	/* A drive's handle in the I/O engine; TN_IO_NO_FILE: it is not there. */
	uint32_t (*file)(const struct tn_tier_base *t, uint32_t device);
	/* Of its file; empty: the drive is not there. */
	const char *(*path)(const struct tn_tier_base *t, uint32_t device);
	/* 0, or -ENOENT past the last drive. */
	int (*stats)(const struct tn_tier_base *t, uint32_t device, struct tn_device_stats *stats);
	void (*counts)(const struct tn_tier_base *t, struct tn_drive_counts *counts);
};

/* Headers of blocks of a shape, each as a block of one object. */
static inline struct tn_shape tn_header_shape(const struct tn_shape *s)
{
	uint32_t bytes = tn_store_header_size(s->layers);

	return (struct tn_shape){.layers = 1, .object_bytes = bytes, .padded_bytes = bytes, .object_iovs = 1, .chunk_objects = 1,
				 .first_objects = 1, .chunks = 1, .slot_bytes = bytes};
}

#endif
