/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds commands, and the lists of the memory that they move. One lane a call; the same lines on the host and in a kernel.
 *
 * Memory is named by pieces that are contiguous on the bus. A piece and its neighbour may be of one transfer in PRPs only where they meet at a
 * page boundary (Base 4.1.1); in an SGL everywhere.
 */
#ifndef TN_NVME_COMMAND_H
#define TN_NVME_COMMAND_H

#include <errno.h>

#include "nvme/spec.h"

#define TN_NVME_PRPS_PER_PAGE (TN_NVME_PAGE / 8u)

/** struct tn_nvme_piece - memory that is contiguous on the bus */
struct tn_nvme_piece {
	uint64_t bus;
	uint64_t length;
};

TN_RING_CHECK(sizeof(struct tn_nvme_piece) == 16, "a piece is 16 bytes");

/** struct tn_nvme_list - memory of a command's list: whole pages, contiguous on the bus, untouched until the command has completed */
struct tn_nvme_list {
	void *memory;
	uint64_t bus;
	uint32_t bytes;
};

/* PRP entries of the pieces; 0: PRPs cannot name them. The first may begin at any dword of a page, the last may end anywhere. */
TN_HD uint64_t tn_nvme_prps(const struct tn_nvme_piece *piece, uint32_t n)
{
	uint64_t entries = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t skip = piece[i].bus % TN_NVME_PAGE;

		if (piece[i].length == 0 || skip % 4 || (i > 0 && skip) || (i + 1 < n && (skip + piece[i].length) % TN_NVME_PAGE))
			return 0;
		entries += (skip + piece[i].length + TN_NVME_PAGE - 1) / TN_NVME_PAGE;
	}
	return entries;
}

/* Pages of list memory that so many PRP entries take: the first is in the command, and of two the second (Base 4.1.1). */
TN_HD uint64_t tn_nvme_prp_pages(uint64_t entries)
{
	/* The last entry of a page names the next page, if there is one. */
	return entries <= 2 ? 0 : (entries - 2 + TN_NVME_PRPS_PER_PAGE - 2) / (TN_NVME_PRPS_PER_PAGE - 1);
}

/* Where the next entry of a PRP list goes; `left` entries follow from there on. */
TN_HD uint64_t tn_nvme_prp_at(uint64_t *words, uint64_t bus, uint64_t at, uint64_t left)
{
	if (at % TN_NVME_PRPS_PER_PAGE == TN_NVME_PRPS_PER_PAGE - 1 && left > 1) {
		words[at] = bus + (at + 1) * 8;
		at++;
	}
	return at;
}

/* 0; -EINVAL: PRPs cannot name these pieces; -E2BIG: the list's memory is too small. */
TN_HD int tn_nvme_set_prps(struct tn_nvme_command *c, const struct tn_nvme_piece *piece, uint32_t n, const struct tn_nvme_list *list)
{
	uint64_t entries = tn_nvme_prps(piece, n), done = 0, at = 0;
	uint64_t *words = (uint64_t *)list->memory;

	if (entries == 0)
		return -EINVAL;
	if (tn_nvme_prp_pages(entries) * TN_NVME_PAGE > list->bytes)
		return -E2BIG;
	c->data[1] = entries > 2 ? list->bus : 0;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t end = piece[i].bus + piece[i].length;

		for (uint64_t bus = piece[i].bus; bus < end; bus = (bus / TN_NVME_PAGE + 1) * TN_NVME_PAGE, done++) {
			if (done == 0) {
				c->data[0] = bus;
			} else if (entries == 2) {
				c->data[1] = bus;
			} else {
				at = tn_nvme_prp_at(words, list->bus, at, entries - done);
				words[at++] = bus;
			}
		}
	}
	return 0;
}

TN_HD struct tn_nvme_sgl tn_nvme_sgl_of(uint64_t address, uint64_t length, uint32_t type)
{
	struct tn_nvme_sgl d = {address, (uint32_t)length, {0, 0, 0}, (uint8_t)type};

	return d;
}

/* One piece lies in the command itself, more in one segment. 0; -EINVAL: a piece is empty or has 4 GiB; -E2BIG: the list's memory is too small. */
TN_HD int tn_nvme_set_sgl(struct tn_nvme_command *c, const struct tn_nvme_piece *piece, uint32_t n, const struct tn_nvme_list *list)
{
	struct tn_nvme_sgl *segment = (struct tn_nvme_sgl *)list->memory;
	union {
		struct tn_nvme_sgl sgl;
		uint64_t word[2];
	} first;

	if (n > 1 && n > list->bytes / sizeof(*segment))
		return -E2BIG;
	for (uint32_t i = 0; i < n; i++) {
		if (piece[i].length == 0 || piece[i].length > UINT32_MAX)
			return -EINVAL;
		first.sgl = tn_nvme_sgl_of(piece[i].bus, piece[i].length, TN_NVME_SGL_DATA);
		if (n > 1)
			segment[i] = first.sgl;
	}
	if (n == 0)
		return -EINVAL;
	if (n > 1)
		first.sgl = tn_nvme_sgl_of(list->bus, n * sizeof(*segment), TN_NVME_SGL_LAST_SEGMENT);
	c->flags |= TN_NVME_FLAG_SGL;
	c->data[0] = first.word[0];
	c->data[1] = first.word[1];
	return 0;
}

/* ---- commands without their memory and id ------------------------------------------------------------------- */

TN_HD struct tn_nvme_command tn_nvme_command_of(uint32_t opcode, uint32_t namespace_id)
{
	struct tn_nvme_command c = {0};

	c.opcode = (uint8_t)opcode;
	c.namespace_id = namespace_id;
	return c;
}

/* READ or WRITE of 1..65,536 logical blocks (NVM 3.2.4, 3.2.6). */
TN_HD struct tn_nvme_command tn_nvme_transfer(uint32_t opcode, uint32_t namespace_id, uint64_t block, uint32_t blocks)
{
	struct tn_nvme_command c = tn_nvme_command_of(opcode, namespace_id);

	c.dword10 = (uint32_t)block;
	c.dword11 = (uint32_t)(block >> 32);
	c.dword12 = blocks - 1;
	return c;
}

/* Everything that completed before is durable when this completes (NVM 3.2.1, Base 7.1). */
TN_HD struct tn_nvme_command tn_nvme_flush(uint32_t namespace_id)
{
	return tn_nvme_command_of(TN_NVME_FLUSH, namespace_id);
}

/* The bytes of 1..256 ranges are needed no more; its data are struct tn_nvme_range (NVM 3.2.3). */
TN_HD struct tn_nvme_command tn_nvme_deallocate(uint32_t namespace_id, uint32_t ranges)
{
	struct tn_nvme_command c = tn_nvme_command_of(TN_NVME_DATASET, namespace_id);

	c.dword10 = ranges - 1;
	c.dword11 = TN_NVME_DEALLOCATE;
	return c;
}

#endif
