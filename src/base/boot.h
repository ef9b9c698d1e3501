/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which boot of the machine this is. It tells a killed process from a power cut: after the first, all that was written is
 * still in the kernel; after the second, some of it may be lost.
 */
#ifndef TN_BASE_BOOT_H
#define TN_BASE_BOOT_H

#include <stdint.h>

/* The kernel's identifier of this boot; zero if it does not say. Reads a file: not for the owner thread. */
void tn_boot_id(uint64_t id[2]);

#endif
