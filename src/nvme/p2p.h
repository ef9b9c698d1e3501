/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The P2P table: where a registered pool lies on the bus, one entry a contiguous region.
 *
 * Built once when a pool is registered, so that a transfer's scatter list (SGL) follows from addresses by a
 * look-up, without a translation a page. Who translates is the caller's: IOMMU, driver, or nobody (identity, for
 * executors on the CPU). Read-only afterwards: any number of threads, and a device, may look things up.
 */
#ifndef TN_NVME_P2P_H
#define TN_NVME_P2P_H

#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "nvme/command.h"

struct tn_p2p_range {
	uintptr_t address;
	uint64_t length;
};

/* The bus address of `address`, and how many of the `length` bytes from there are contiguous on the bus (> 0). 0 or -errno. */
typedef int (*tn_p2p_translate)(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous);

/* Memory as the CPU sees it. */
int tn_p2p_identity(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous);

struct tn_p2p;

/* What lies side by side in memory and on the bus becomes one entry, also over ranges. Ranges in any order; 0 and *out,
   -EINVAL (empty, wrapping or overlapping ranges), -EAGAIN (translate said something else when it was asked again), -ENOMEM, or what translate says. */
int tn_p2p_create(const struct tn_p2p_range *ranges, size_t n, tn_p2p_translate translate, void *arg,
		  const struct tn_alloc *alloc, struct tn_p2p **out);
void tn_p2p_destroy(struct tn_p2p *table);

/* The bus pieces of memory [address, address + length): how many were written to pieces; -EFAULT: some of it is not in
   the table, -E2BIG: more than max. */
int tn_p2p_find(const struct tn_p2p *table, uintptr_t address, uint64_t length, struct tn_nvme_piece *pieces, uint32_t max);

/* The whole piece that an address lies in, and where it begins: 0, or -EFAULT. */
int tn_p2p_around(const struct tn_p2p *table, uintptr_t address, uintptr_t *begin, struct tn_nvme_piece *piece);

struct tn_p2p_size {
	uint64_t memory_bytes; /* registered */
	uint64_t entries;
	uint64_t table_bytes; /* entries, and what it takes to find them */
	uint64_t prp_bytes;   /* of a PRP list over the same memory: 8 bytes per 4 KiB page */
};

void tn_p2p_size(const struct tn_p2p *table, struct tn_p2p_size *size);

#endif
