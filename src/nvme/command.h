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

TN_RING_CHECK(sizeof(struct tn_nvme_piece) == 16 && offsetof(struct tn_nvme_piece, length) == offsetof(struct tn_nvme_sgl, length) &&
		      TN_NVME_SGL_DATA == 0,
	      "a piece is 16 bytes, those of its SGL descriptor");

/** struct tn_nvme_list - memory of a command's list: whole pages, contiguous on the bus, untouched until the command has completed */
struct tn_nvme_list {
	void *memory;
	uint64_t bus;
	uint32_t bytes;
};

/* PRP entries of the pieces; 0: PRPs cannot name them. The first may begin at any dword of a page, the last may end anywhere; none has more than 4 GiB. */
TN_HD uint64_t tn_nvme_prps(const struct tn_nvme_piece *piece, uint32_t n)
{
	uint64_t total = 0, wrong = 0, inner = 0, end = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t bus = piece[i].bus, length = piece[i].length;

		wrong |= length - 1; /* of none, too */
		inner |= i ? bus | end : 0;
		end = bus + length;
		total += length;
	}
	if (n == 0 || wrong >> 32 || inner % TN_NVME_PAGE || piece->bus % 4)
		return 0;
	return (piece->bus % TN_NVME_PAGE + total + TN_NVME_PAGE - 1) / TN_NVME_PAGE;
}

/* Pages of list memory that so many PRP entries take: the first is in the command, and of two the second (Base 4.1.1). */
TN_HD uint64_t tn_nvme_prp_pages(uint64_t entries)
{
	/* The last entry of a page names the next page, if there is one. */
	return entries <= 2 ? 0 : (entries - 2 + TN_NVME_PRPS_PER_PAGE - 2) / (TN_NVME_PRPS_PER_PAGE - 1);
}

/* Where in a PRP list the next page's address goes, if `left` entries begin a page at `at`. */
TN_HD uint64_t tn_nvme_prp_link(uint64_t at, uint64_t left)
{
	return left > TN_NVME_PRPS_PER_PAGE ? at + TN_NVME_PRPS_PER_PAGE - 1 : UINT64_MAX;
}

/* 0; -EINVAL: PRPs cannot name these pieces; -E2BIG: the list's memory is too small. */
TN_HD int tn_nvme_set_prps(struct tn_nvme_command *c, const struct tn_nvme_piece *piece, uint32_t n, const struct tn_nvme_list *list)
{
	uint64_t entries = tn_nvme_prps(piece, n), at = 0, link = tn_nvme_prp_link(0, entries - 1), links = 0;
	uint64_t *words = entries == 2 ? &c->data[1] : (uint64_t *)list->memory;

	if (entries == 0)
		return -EINVAL;
	if (tn_nvme_prp_pages(entries) * TN_NVME_PAGE > list->bytes)
		return -E2BIG;
	c->data[0] = piece->bus;
	c->data[1] = entries > 2 ? list->bus : 0;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t bus = i ? piece[i].bus : (piece->bus / TN_NVME_PAGE + 1) * TN_NVME_PAGE, end = piece[i].bus + piece[i].length;

		for (; bus < end; bus += TN_NVME_PAGE) {
			if (at == link) {
				words[at++] = list->bus + (link + 1) * 8;
				link = tn_nvme_prp_link(at, entries - 1 + ++links - at);
			}
			words[at++] = bus;
		}
	}
	return 0;
}

/*
 * Whole pages whose n addresses, 1 to TN_NVME_PRPS_PER_PAGE, lie at the beginning of the list's memory already. The command takes the first, and its
 * list begins with the second: a list may begin anywhere in a page (Base 4.1.1).
 */
TN_HD void tn_nvme_set_listed_prps(struct tn_nvme_command *c, uint32_t n, const struct tn_nvme_list *list)
{
	const uint64_t *words = (const uint64_t *)list->memory;

	c->data[0] = words[0];
	c->data[1] = n == 1 ? 0 : n == 2 ? words[1] : list->bus + 8;
}

TN_HD struct tn_nvme_sgl tn_nvme_sgl_of(uint64_t address, uint64_t length, uint32_t type)
{
	struct tn_nvme_sgl d = {address, (uint32_t)length, {0, 0, 0}, (uint8_t)type};

	return d;
}

/*
 * One piece lies in the command itself, more in one segment. Pieces in the list's memory stay there: one of 1 byte to below 4 GiB, as they have
 * to be, has the bytes of its descriptor. 0; -EINVAL: a piece is empty or has 4 GiB; -E2BIG: the list's memory is too small.
 */
TN_HD int tn_nvme_set_sgl(struct tn_nvme_command *c, const struct tn_nvme_piece *piece, uint32_t n, const struct tn_nvme_list *list)
{
	struct tn_nvme_sgl *segment = (struct tn_nvme_sgl *)list->memory;
	int in_place = (const void *)piece == list->memory;

	c->flags |= TN_NVME_FLAG_SGL;
	if (n > 1 && n > list->bytes / sizeof(*segment))
		return -E2BIG;
	for (uint32_t i = 0; i < n && !in_place; i++) {
		if (piece[i].length == 0 || piece[i].length > UINT32_MAX)
			return -EINVAL;
		if (n > 1)
			segment[i] = tn_nvme_sgl_of(piece[i].bus, piece[i].length, TN_NVME_SGL_DATA);
	}
	if (n == 0)
		return -EINVAL;
	/* A descriptor's two words: the second has the length below and the type above. */
	c->data[0] = n == 1 ? piece->bus : list->bus;
	c->data[1] = n == 1 ? piece->length : (uint64_t)TN_NVME_SGL_LAST_SEGMENT << 56 | n * sizeof(*segment);
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

/* Everything that completed before this is submitted is durable when this completes (Base 7.1). */
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
