/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memories that one user of a controller has mapped, and where their bytes lie on the bus: a P2P table each.
 *
 * One thread makes all calls.
 */
#ifndef TN_NVME_MEMORY_H
#define TN_NVME_MEMORY_H

#include <sys/uio.h>

#include "nvme/controller.h"

struct tn_nvme_memory {
	void *address;
	uint64_t bytes;
	uint32_t users; /* as often was it mapped */
	const struct tn_p2p *table;
};

/* That were unmapped while commands which had not ended named them. */
struct tn_nvme_held {
	void *address;
	uint64_t bytes;
};

/* memory: the first n, by address; they do not meet: each address has one place on the bus, which lasts until its memory is unmapped.
   hit: the piece that was found last, and its address; most addresses that are asked for lie in the same one. */
struct tn_nvme_memories {
	struct tn_nvme *nvme;
	struct tn_nvme_memory memory[TN_NVME_MEMORIES];
	struct tn_nvme_held held[TN_NVME_MEMORIES]; /* each once */
	uint32_t n, nheld;
	uintptr_t hit_address;
	struct tn_nvme_piece hit;
};

/* Until as many unmaps. As tn_nvme_map; -EEXIST: some of it is mapped already, with other memory beside it or without the rest. */
int tn_nvme_memories_map(struct tn_nvme_memories *m, void *memory, uint64_t bytes);
bool tn_nvme_memories_has(const struct tn_nvme_memories *m, const void *memory, uint64_t bytes);
/* Of so many maps. named: commands under way may name it; it is not found any more, but held until tn_nvme_memories_settle or unmap_all. */
void tn_nvme_memories_unmap(struct tn_nvme_memories *m, void *memory, uint64_t bytes, bool named);
/* Nothing under way names any. */
void tn_nvme_memories_unmap_all(struct tn_nvme_memories *m);
void tn_nvme_memories_release(struct tn_nvme_memories *m);

/* So many commands are under way on the pair. None: what is held is released. */
static inline void tn_nvme_memories_settle(struct tn_nvme_memories *m, uint32_t ncommands)
{
	if (m->nheld && !ncommands)
		tn_nvme_memories_release(m);
}

/* As tn_nvme_memories_find, where the piece is not that of the last time. */
int tn_nvme_memories_look_up(struct tn_nvme_memories *m, uintptr_t address, uint64_t bytes, struct tn_nvme_piece *piece, uint32_t max);

/* The pieces of these bytes: how many were written to piece; 0: they are not mapped, or take more than max. */
static inline int tn_nvme_memories_find(struct tn_nvme_memories *m, uintptr_t address, uint64_t bytes, struct tn_nvme_piece *piece, uint32_t max)
{
	uint64_t skip = address - m->hit_address;

	if (skip >= m->hit.length || bytes > m->hit.length - skip || max == 0)
		return tn_nvme_memories_look_up(m, address, bytes, piece, max);
	piece->bus = m->hit.bus + skip;
	piece->length = bytes;
	return 1;
}

/*
 * Pieces of one command, of most bytes at most, from byte `skip` of iov[0] on: how many were written to piece, and *bytes of them.
 * sgl: they may begin and end anywhere; else at page boundaries, as PRPs need. 0: the first bytes are not mapped.
 */
uint32_t tn_nvme_memories_gather(struct tn_nvme_memories *m, bool sgl, const struct iovec *iov, size_t skip, uint32_t most,
				 struct tn_nvme_piece *piece, uint32_t max, uint32_t *bytes);
/*
 * The bus addresses of the pages of so many bytes of whole pages, which lie in the piece that was found last, as most do: how many were written to
 * page. 0: it is not so, or they are more than max.
 */
uint32_t tn_nvme_memories_pages(const struct tn_nvme_memories *m, const struct iovec *iov, uint32_t bytes, uint64_t *page, uint32_t max);

#endif
