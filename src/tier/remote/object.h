/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block as an object: PREFIX/SPACE/KEY, both in hexadecimal. SPACE is the identity's fingerprint: a space's epoch is one node's, and nothing of other nodes'
 * business. A header comes first, then the block as it lies in a slot. The header's first page says
 * whose block it is and is checked by itself; the checksums of the block's objects follow.
 */
#ifndef TN_TIER_REMOTE_OBJECT_H
#define TN_TIER_REMOTE_OBJECT_H

#include "tier/tier.h"

#define TN_OBJECT_HEAD_BYTES 4096u /* enough to see whose block it is */

void tn_object_name(const char *prefix, const struct tn_tier_space *space, const struct tn_key *key, char *name, size_t bytes);
/* Of the header of a block of this shape: where its data begins. */
uint64_t tn_object_header_bytes(const struct tn_shape *shape);
void tn_object_encode(const struct tn_tier_move *m, void *header);
/* The first page: 0, or -EBADMSG: it is not the header of this block. */
int tn_object_check(const void *header, const struct tn_tier_space *space, const struct tn_key *key);
/* The same of the whole header; fills m->checks. */
int tn_object_decode(const void *header, const struct tn_tier_move *m);

#endif
