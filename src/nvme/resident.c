/* SPDX-License-Identifier: Apache-2.0 */
/*
 * btrfs: bytes 64 to 71 of the super block at 64 KiB are its magic number. ZFS: four labels of 256 KiB, two at the beginning and two at the end, the size
 * being rounded down to whole labels; the second half of each is a ring of uberblocks, which begin at multiples of 1 KiB with their magic number, in the
 * order of bytes of the machine that wrote them.
 */
#include "nvme/resident.h"

#include <stdbool.h>
#include <string.h>

#define BTRFS_AT (65536u + 64u)
#define BTRFS_MAGIC "_BHRfS_M"
#define ZFS_LABEL (256u << 10)
#define ZFS_RING (128u << 10)
#define ZFS_STEP 1024u
#define ZFS_MAGIC 0x00bab10cull

static bool is_btrfs(const unsigned char *bytes, uint64_t at, uint64_t length)
{
	uint64_t skip = BTRFS_AT - at;

	return at <= BTRFS_AT && length >= 8 && skip <= length - 8 && memcmp(bytes + skip, BTRFS_MAGIC, 8) == 0;
}

/* Where the label begins that this byte lies in; UINT64_MAX: it lies in none. */
static uint64_t label_of(uint64_t at, uint64_t all)
{
	uint64_t end = all / ZFS_LABEL * ZFS_LABEL;
	bool lies = at < end && (at < 2 * ZFS_LABEL || at >= end - 2 * ZFS_LABEL);

	return end >= 4 * ZFS_LABEL && lies ? at / ZFS_LABEL * ZFS_LABEL : UINT64_MAX;
}

static bool is_uberblock(const unsigned char *bytes)
{
	uint64_t magic;

	memcpy(&magic, bytes, sizeof(magic));
	return magic == ZFS_MAGIC || magic == __builtin_bswap64(ZFS_MAGIC);
}

static bool is_zfs(const unsigned char *bytes, uint64_t at, uint64_t length, uint64_t all)
{
	uint64_t first = (at + ZFS_STEP - 1) / ZFS_STEP * ZFS_STEP;

	for (uint64_t i = first; i + 8 <= at + length; i += ZFS_STEP) {
		uint64_t label = label_of(i, all);

		if (label != UINT64_MAX && i - label >= ZFS_RING && is_uberblock(bytes + (i - at)))
			return true;
	}
	return false;
}

const char *tn_resident(const unsigned char *bytes, uint64_t at, uint64_t length, uint64_t all)
{
	return is_btrfs(bytes, at, length) ? "btrfs" : is_zfs(bytes, at, length, all) ? "ZFS" : NULL;
}
