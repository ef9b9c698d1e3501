/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names file systems that have a drive to themselves without the kernel's saying so of its block device: btrfs, whose mounts have device numbers of
 * their own, and ZFS, which no holder and no mount table tells of. Goes by what they leave at the drive's ends. Pure; who reads is the caller.
 */
#ifndef TN_NVME_RESIDENT_H
#define TN_NVME_RESIDENT_H

#include <stdint.h>

/* The part of a drive or partition, from either end, in which these bytes lie. */
#define TN_RESIDENT_ENDS (768u << 10)

/*
 * "btrfs" or "ZFS" if `bytes`, `length` of them, which lie at byte `at` of a drive or partition of `all` bytes, have its mark; NULL: they have none. Parts may be
 * given in any order; they begin and end at multiples of 512 bytes, or with the drive. Any thread.
 */
const char *tn_resident(const unsigned char *bytes, uint64_t at, uint64_t length, uint64_t all);

#endif
