/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata as bytes, and lists of runs as bytes. Checksummed against accidents, not against malice: what decides whether a peer may do something is the handshake.
 *
 * Nothing here knows an agent: what is written, and what was read, are plain structs.
 */
#ifndef TN_XFER_METADATA_H
#define TN_XFER_METADATA_H

#include <tenuto/xfer_backend.h>

#include "xfer/section.h"

#define TN_XFER_ADDRESS_BYTES 160u
#define TN_XFER_KEY_BYTES 32u

#define TN_XFER_META_PARTIAL 1u /* sections that it lacks may be there */
#define TN_XFER_META_KEY 2u /* the key is in it */

struct tn_xfer_identity {
	char name[TN_XFER_BACKEND_NAME_BYTES]; /* of the backend */
	uint32_t bytes;
	unsigned char identity[TN_XFER_IDENTITY_MAX];
};

/* The head of metadata: all but the sections. */
struct tn_xfer_head {
	uint32_t flags;
	uint64_t generation, revision;
	unsigned char key[TN_XFER_KEY_BYTES];
	char name[TN_XFER_NAME_BYTES];
	char address[TN_XFER_ADDRESS_BYTES];
	uint32_t nbackends;
	struct tn_xfer_identity backend[TN_XFER_BACKENDS_MAX];
};

/* A section's record, as it is written. */
struct tn_xfer_record {
	uint64_t id, address, end, device;
	uint32_t segment, backends;
};

/* How many bytes: written to out if max is enough. */
uint64_t tn_xfer_metadata_pack(const struct tn_xfer_head *head, struct tn_xfer_sec *const *secs, uint32_t n, void *out, uint64_t max);
/* 0, -EBADMSG, -EPROTONOSUPPORT. *records points into the bytes, is not aligned, and has *n of them. */
int tn_xfer_metadata_unpack(const void *bytes, uint64_t n_bytes, struct tn_xfer_head *head, const unsigned char **records, uint32_t *n);

#endif
