/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of sections: an agent's own, or those of a peer. Sorted, so that the section around a range is found in logarithmic time as long as few sections overlap.
 *
 * The table has no lock: its owner has. A section that leaves the table lives on until the last reference to it is put.
 */
#ifndef TN_XFER_SECTION_H
#define TN_XFER_SECTION_H

#include <stdbool.h>
#include <tenuto/xfer_backend.h>

#include "base/alloc.h"

#define TN_XFER_SEC_SHARED (1u << 31) /* of backends: other processes can map the section */

/* A peer's section in this process's memory. base NULL: it is not there. */
struct tn_xfer_mapped {
	void *base;
	uint64_t bytes;
	unsigned char *at; /* the section's first byte */
};

struct tn_xfer_sec {
	uint64_t id; /* of one registration, never used again */
	uint32_t segment;
	uint32_t backends; /* TN_XFER_SEC_SHARED, and bits of those that have it: by the order of its agent's metadata for a peer's, mapped to ours when loaded */
	uint64_t address;
	uint64_t end; /* UINT64_MAX: open */
	uint64_t device;
	char *meta; /* own sections of files and objects; NULL: none */
	uint32_t registrations; /* 1 when made; not used of a peer's */
	uint32_t users; /* requests */
	uint32_t refs; /* table, lists, requests */
	bool revoked; /* takes no new request */
	bool leaving; /* the next sweep takes it out */
	struct tn_xfer_sec *next; /* of those that were taken out together */
	uint64_t revocation; /* number of the message that told the peers */
	uint64_t seen; /* serial number of the request that was counted last */
	void *handle[TN_XFER_BACKENDS_MAX]; /* own sections */
	struct tn_xfer_section_key *key[TN_XFER_BACKENDS_MAX]; /* own sections: for peers; a peer's: what its backends have said. NULL: none */
	int shared_fd; /* own sections: the memfd that the caller named; -1: none */
	uint64_t shared_offset;
	bool unmappable; /* a peer's: mapping it has failed for good */
	struct tn_xfer_mapped mapped; /* a peer's */
};

struct tn_xfer_sec_entry {
	struct tn_xfer_sec *sec;
	uint64_t max_end; /* of this and all entries before it with the same segment and device */
};

struct tn_xfer_table {
	struct tn_xfer_sec_entry *entry;
	uint32_t n, capacity;
};

/* A section with one reference. NULL: no memory. meta is copied. */
struct tn_xfer_sec *tn_xfer_sec_new(enum tn_xfer_segment segment, const struct tn_xfer_section *section);
void tn_xfer_sec_put(struct tn_xfer_sec *sec);
/* NULL is fine. */
void tn_xfer_key_free(struct tn_xfer_section_key *key);
/* The section's id is set. 0, -ENOMEM. */
int tn_xfer_sec_set_key(struct tn_xfer_sec *sec, uint32_t backend, const void *data, uint32_t bytes);
/* In the order of a table: segment, device, address, end. */
void tn_xfer_secs_sort(struct tn_xfer_sec **secs, uint32_t n);

#define TN_XFER_MERGE_ADD 1u   /* sections that the table lacks are added */
#define TN_XFER_MERGE_PRUNE 2u /* sections of the table that the array lacks are revoked, and leave */

/*
 * Sorted sections and a table, side by side: linear time. A section that the table has, with the same id or without one, is counted there; one with another id takes the
 * place of the table's, which is revoked. The table takes a reference of those that it adds. 0; -ENOMEM: nothing was changed.
 */
int tn_xfer_table_merge(struct tn_xfer_table *t, struct tn_xfer_sec *const *secs, uint32_t n, unsigned how);
/* Takes out all that are leaving, and puts the table's references. */
void tn_xfer_table_sweep(struct tn_xfer_table *t);
/* Registered exactly so; NULL: it is not there. */
struct tn_xfer_sec *tn_xfer_table_exact(const struct tn_xfer_table *t, enum tn_xfer_segment segment, const struct tn_xfer_section *section);
/* A section of the same segment and device; NULL: there is none. */
struct tn_xfer_sec *tn_xfer_table_sibling(const struct tn_xfer_table *t, uint32_t segment, uint64_t device);
/* A section that is not revoked and has all of [address, end); NULL: there is none. */
struct tn_xfer_sec *tn_xfer_table_cover(const struct tn_xfer_table *t, uint32_t segment, uint64_t device, uint64_t address, uint64_t end);
/* Puts all that is left. */
void tn_xfer_table_clear(struct tn_xfer_table *t);

/* One past its last byte. */
static inline uint64_t tn_xfer_section_end(const struct tn_xfer_section *s)
{
	return s->bytes ? s->address + s->bytes : UINT64_MAX;
}

#endif
