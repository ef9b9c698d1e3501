/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata as bytes, and lists of runs as bytes.
 *
 * A checksum finds accidents. Against malice there is HMAC-SHA256 with the shared secret over all but the frame, if the agent has one: without it, whoever can send
 * metadata can say anything in it.
 *
 * Nothing here knows an agent: what is written, and what was read, are plain structs.
 */
#ifndef TN_XFER_METADATA_H
#define TN_XFER_METADATA_H

#include <tenuto/xfer_backend.h>

#include "xfer/hmac.h"
#include "xfer/section.h"

#define TN_XFER_ADDRESS_BYTES 160u
#define TN_XFER_KEY_BYTES 32u

#define TN_XFER_META_PARTIAL 1u /* sections that it lacks may be there */
#define TN_XFER_META_KEY 2u /* the key is in it */
#define TN_XFER_META_SIGNED 4u /* its HMAC is at its end */

struct tn_xfer_identity {
	char name[TN_XFER_BACKEND_NAME_BYTES]; /* of the backend */
	uint32_t bytes;
	unsigned char identity[TN_XFER_IDENTITY_MAX];
};

/* The head of metadata: all but the sections. */
struct tn_xfer_head {
	uint32_t flags;
	uint64_t generation, revision;
	uint64_t boot[2]; /* of the machine: generations of one boot have an order. 0: not known */
	unsigned char key[TN_XFER_KEY_BYTES];
	char name[TN_XFER_NAME_BYTES];
	char address[TN_XFER_ADDRESS_BYTES];
	uint32_t nbackends;
	struct tn_xfer_identity backend[TN_XFER_BACKENDS_MAX];
};

/* Metadata that was read. */
struct tn_xfer_metadata {
	struct tn_xfer_head head;
	struct tn_xfer_sec **sec; /* sorted, with one reference each; backends: by the order of the head */
	uint32_t n, capacity;
};

/* How many bytes: written to out if max is enough. They are metadata when they are sealed, for which no lock is needed. */
uint64_t tn_xfer_metadata_pack(const struct tn_xfer_head *head, struct tn_xfer_sec *const *secs, uint32_t n, void *out, uint64_t max);
/* The HMAC, if the head has TN_XFER_META_SIGNED, and the checksum. 0; -ENOTSUP: no HMAC. */
int tn_xfer_metadata_seal(void *packed, uint64_t bytes, const void *key, size_t key_bytes);
/* key: that it must be signed with; NULL: any metadata is taken. 0, -EBADMSG, -EPROTONOSUPPORT, -EACCES: another key, -ENOMEM. */
int tn_xfer_metadata_unpack(const void *bytes, uint64_t n_bytes, const void *key, size_t key_bytes, struct tn_xfer_metadata *out);
void tn_xfer_metadata_free(struct tn_xfer_metadata *m);

#endif
