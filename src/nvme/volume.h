/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The volume header: what a range of a raw namespace begins with, in place of what a file system knows of a file. docs/format.md has its layout.
 *
 * Two copies that say the same: the second is written when the first is durable, before the change is acknowledged. So one is whole after a power
 * cut in the middle of a write, and one that is damaged costs nothing. Pure.
 */
#ifndef TN_NVME_VOLUME_H
#define TN_NVME_VOLUME_H

#include <stdbool.h>
#include <stdint.h>

#define TN_VOLUME_PAGE 4096u
#define TN_VOLUME_DATA 65536u /* where the file begins: behind the two copies, and room to grow */

/** struct tn_volume - size_bytes: of the file; exists: it was created and not unlinked; sequence: of the copy, rises by one per write */
struct tn_volume {
	uint64_t sequence;
	uint64_t size_bytes;
	bool exists;
};

void tn_volume_encode(const struct tn_volume *v, unsigned char *page);
/* 0 and *v, or -EUCLEAN: the page is no header. */
int tn_volume_decode(const unsigned char *page, struct tn_volume *v);
/* The newer of two copies: 0 and *v, or -EUCLEAN; *same: both are whole, and say the same of the file. */
int tn_volume_choose(const unsigned char *two, struct tn_volume *v, bool *same);
/*
 * Neither of two copies has bytes that no write of a header leaves there: somebody else's, who took a drive that had been ours. One flipped bit is
 * nobody's.
 */
bool tn_volume_is_ours(const unsigned char *two);
/* Which copy it is. */
static inline uint32_t tn_volume_place(const struct tn_volume *v)
{
	return (uint32_t)(v->sequence % 2);
}

#endif
