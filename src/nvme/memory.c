/* SPDX-License-Identifier: Apache-2.0 */
/* See memory.h. */
#include "nvme/memory.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

/* How many of them begin at or before the address. */
static uint32_t up_to(const struct tn_nvme_memories *ms, uintptr_t address)
{
	uint32_t low = 0, high = ms->n;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if ((uintptr_t)ms->memory[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The last one that begins at or before the address; NULL: none does. */
static struct tn_nvme_memory *last_up_to(struct tn_nvme_memories *ms, uintptr_t address)
{
	uint32_t n = up_to(ms, address);

	return n ? &ms->memory[n - 1] : NULL;
}

static struct tn_nvme_memory *find(struct tn_nvme_memories *ms, const void *memory, uint64_t bytes)
{
	struct tn_nvme_memory *m = last_up_to(ms, (uintptr_t)memory);

	return m && m->address == memory && m->bytes == bytes ? m : NULL;
}

bool tn_nvme_memories_has(const struct tn_nvme_memories *ms, const void *memory, uint64_t bytes)
{
	return find((struct tn_nvme_memories *)(uintptr_t)ms, memory, bytes);
}

int tn_nvme_memories_map(struct tn_nvme_memories *ms, void *memory, uint64_t bytes)
{
	struct tn_nvme_memory m = {.address = memory, .bytes = bytes, .users = 1}, *before = last_up_to(ms, (uintptr_t)memory + bytes - 1);
	struct tn_nvme_memory *same = find(ms, memory, bytes);
	uint32_t at;
	int rc;

	if (same) {
		same->users++;
		return 0;
	}
	if (ms->n == TN_NVME_MEMORIES)
		return tn_fail(-ENOSPC, "nvme: %u memories are mapped", TN_NVME_MEMORIES);
	if (before && (uintptr_t)before->address + before->bytes > (uintptr_t)memory)
		return tn_fail(-EEXIST, "nvme: some of the %llu bytes at %p are mapped already", (unsigned long long)bytes, memory);
	rc = tn_nvme_map(ms->nvme, memory, bytes, &m.table);
	if (rc)
		return rc;
	at = up_to(ms, (uintptr_t)memory);
	memmove(&ms->memory[at + 1], &ms->memory[at], (ms->n - at) * sizeof(m));
	ms->memory[at] = m;
	ms->n++;
	return 0;
}

/* There are no more of them than mapped memories. */
static void hold(struct tn_nvme_memories *ms, void *memory, uint64_t bytes)
{
	uint32_t i = 0;

	while (i < ms->nheld && (ms->held[i].address != memory || ms->held[i].bytes != bytes))
		i++;
	if (i < ms->nheld) {
		tn_nvme_unmap(ms->nvme, memory, bytes);
		return;
	}
	ms->held[ms->nheld++] = (struct tn_nvme_held){memory, bytes};
	tn_nvme_hold(ms->nvme, memory, bytes);
}

void tn_nvme_memories_unmap(struct tn_nvme_memories *ms, void *memory, uint64_t bytes, bool named)
{
	struct tn_nvme_memory *m = find(ms, memory, bytes);

	if (!m || --m->users > 0)
		return;
	if (named)
		hold(ms, memory, bytes);
	else
		tn_nvme_unmap(ms->nvme, memory, bytes);
	ms->n--;
	memmove(m, m + 1, (size_t)(&ms->memory[ms->n] - m) * sizeof(*m));
	ms->hit.length = 0;
}

void tn_nvme_memories_release(struct tn_nvme_memories *ms)
{
	for (; ms->nheld; ms->nheld--)
		tn_nvme_release(ms->nvme, ms->held[ms->nheld - 1].address, ms->held[ms->nheld - 1].bytes);
}

void tn_nvme_memories_unmap_all(struct tn_nvme_memories *ms)
{
	while (ms->n) {
		ms->memory[0].users = 1;
		tn_nvme_memories_unmap(ms, ms->memory[0].address, ms->memory[0].bytes, false);
	}
	tn_nvme_memories_release(ms);
}

int tn_nvme_memories_look_up(struct tn_nvme_memories *ms, uintptr_t address, uint64_t bytes, struct tn_nvme_piece *piece, uint32_t max)
{
	const struct tn_nvme_memory *m = last_up_to(ms, address);
	int n = m && bytes <= m->bytes && address - (uintptr_t)m->address <= m->bytes - bytes ?
			tn_p2p_find(m->table, address, bytes, piece, max) :
			0;

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

/* Pieces of memory that lie in the piece that was found last, whole, one after the other: most of what is gathered. One was gathered before them. How many. */
static uint32_t gather_hits(const struct tn_nvme_memories *ms, bool sgl, const struct iovec *iov, uint32_t most, struct tn_nvme_piece *piece,
			    uint32_t max, uint32_t *bytes)
{
	const struct tn_nvme_piece hit = ms->hit; /* copies, which writing to piece does not change */
	const uintptr_t hit_address = ms->hit_address;
	uint32_t n = 0, done = 0;

	for (; n < max && done < most; n++, piece++) {
		uint64_t length = iov[n].iov_len, at = (uintptr_t)iov[n].iov_base - hit_address;

		if (at >= hit.length || length > hit.length - at || length > most - done)
			break;
		*piece = (struct tn_nvme_piece){hit.bus + at, length};
		if (!joins(sgl, piece - 1, piece))
			break;
		done += (uint32_t)length;
	}
	*bytes += done;
	return n;
}

uint32_t tn_nvme_memories_gather(struct tn_nvme_memories *ms, bool sgl, const struct iovec *iov, size_t skip, uint32_t most,
				 struct tn_nvme_piece *piece, uint32_t max, uint32_t *bytes)
{
	uint32_t n = 0;

	for (*bytes = 0; *bytes < most; skip = 0) {
		uintptr_t address = (uintptr_t)iov->iov_base + skip;
		uint64_t left = iov->iov_len - skip, some = left < most - *bytes ? left : most - *bytes;
		int k = tn_nvme_memories_find(ms, address, some, piece + n, max - n);
		uint32_t hits;

		if (k <= 0 || (n && !joins(sgl, &piece[n - 1], &piece[n])))
			break;
		n += (uint32_t)k;
		*bytes += (uint32_t)some;
		if (*bytes == most)
			break;
		hits = gather_hits(ms, sgl, iov + 1, most - *bytes, piece + n, max - n, bytes);
		iov += 1 + hits;
		n += hits;
	}
	return n;
}

uint32_t tn_nvme_memories_pages(const struct tn_nvme_memories *ms, const struct iovec *iov, uint32_t bytes, uint64_t *page, uint32_t max)
{
	const struct tn_nvme_piece hit = ms->hit; /* copies, which writing to page does not change */
	const uintptr_t hit_address = ms->hit_address;
	uint32_t n = 0;

	for (uint64_t left = bytes; left; iov++) {
		uint64_t length = iov->iov_len, at = (uintptr_t)iov->iov_base - hit_address, bus = hit.bus + at;

		if (at >= hit.length || length > hit.length - at || length > left || (bus | length) % TN_NVME_PAGE)
			return 0;
		for (left -= length; length && n < max; length -= TN_NVME_PAGE, bus += TN_NVME_PAGE)
			page[n++] = bus;
		if (length)
			return 0;
	}
	return n;
}
