/* SPDX-License-Identifier: Apache-2.0 */
/* See memory.h. */
#include "nvme/memory.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

int tn_nvme_memories_map(struct tn_nvme_memories *ms, void *memory, uint64_t bytes)
{
	struct tn_nvme_memory *m = NULL;
	int rc;

	for (uint32_t i = 0; i < TN_NVME_MEMORIES && !m; i++)
		m = ms->memory[i].table ? NULL : &ms->memory[i];
	if (!m)
		return tn_fail(-ENOSPC, "nvme: %u memories are mapped", TN_NVME_MEMORIES);
	rc = tn_nvme_map(ms->nvme, memory, bytes, &m->table);
	if (rc)
		return rc;
	m->address = memory;
	m->bytes = bytes;
	return 0;
}

static void unmap(struct tn_nvme_memories *ms, struct tn_nvme_memory *m)
{
	tn_nvme_unmap(ms->nvme, m->address, m->bytes);
	memset(m, 0, sizeof(*m));
	ms->hit.length = 0;
}

void tn_nvme_memories_unmap(struct tn_nvme_memories *ms, void *memory)
{
	for (uint32_t i = 0; i < TN_NVME_MEMORIES; i++) {
		if (!ms->memory[i].table || ms->memory[i].address != memory)
			continue;
		unmap(ms, &ms->memory[i]);
		return;
	}
}

void tn_nvme_memories_unmap_all(struct tn_nvme_memories *ms)
{
	for (uint32_t i = 0; i < TN_NVME_MEMORIES; i++)
		if (ms->memory[i].table)
			unmap(ms, &ms->memory[i]);
}

static const struct tn_nvme_memory *memory_of(const struct tn_nvme_memories *ms, uintptr_t address, uint64_t bytes)
{
	for (uint32_t i = 0; i < TN_NVME_MEMORIES; i++) {
		const struct tn_nvme_memory *m = &ms->memory[i];

		if (m->table && address >= (uintptr_t)m->address && bytes <= m->bytes && address - (uintptr_t)m->address <= m->bytes - bytes)
			return m;
	}
	return NULL;
}

int tn_nvme_memories_look_up(struct tn_nvme_memories *ms, uintptr_t address, uint64_t bytes, struct tn_nvme_piece *piece, uint32_t max)
{
	const struct tn_nvme_memory *m = memory_of(ms, address, bytes);
	int n = m ? tn_p2p_find(m->table, address, bytes, piece, max) : 0;

	if (n <= 0)
		return 0;
	if (tn_p2p_around(m->table, address, &ms->hit_address, &ms->hit))
		ms->hit.length = 0;
	return n;
}

/* Whether a command may name both, one behind the other. */
static bool joins(bool sgl, const struct tn_nvme_piece *a, const struct tn_nvme_piece *b)
{
	return sgl || ((a->bus + a->length) % TN_NVME_PAGE == 0 && b->bus % TN_NVME_PAGE == 0);
}

uint32_t tn_nvme_memories_gather(struct tn_nvme_memories *ms, bool sgl, const struct iovec *iov, size_t skip, uint32_t most,
				 struct tn_nvme_piece *piece, uint32_t max, uint32_t *bytes)
{
	uint32_t n = 0;

	for (*bytes = 0; *bytes < most; iov++, skip = 0) {
		uintptr_t address = (uintptr_t)iov->iov_base + skip;
		uint64_t left = iov->iov_len - skip, some = left < most - *bytes ? left : most - *bytes;
		int k = tn_nvme_memories_find(ms, address, some, piece + n, max - n);

		if (k <= 0 || (n && !joins(sgl, &piece[n - 1], &piece[n])))
			break;
		n += (uint32_t)k;
		*bytes += (uint32_t)some;
	}
	return n;
}
