/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The near tier and operations: which of their blocks get a place there, and what becomes of it. The near tier lies in the memory of the pools that it
 * serves. Of a place TN_SLOT_NONE, and without such a tier, nothing happens. Owner thread only.
 */
#ifndef TN_CORE_NEAR_H
#define TN_CORE_NEAR_H

#include "core/core.h"

/* Whether the operation's pages lie in the near tier's memory. */
bool tn_op_is_near(const struct tn_op *op);
/* A place in the near tier for block i of the operation, whose offset is noted; TN_SLOT_NONE: it gets none. */
uint32_t tn_near_place(struct tn_op *op, uint32_t i);
/* No copy to the place is under way. The block lies there if all of it came and nothing speaks against it; else the place is free again. */
void tn_near_arrives(const struct tn_op *op, tn_block b, uint32_t place, bool whole);
/*
 * What is good of a load's item goes to its place in the near tier, too, if there is an IOCB for it. Nobody waits for that but who wants the pages back.
 */
void tn_read_copy_near(struct tn_read_item *item, uint32_t c);
/* None of these copies is under way any more: as tn_near_arrives. */
void tn_read_kept_near(struct tn_read_item *item);
/* The same of a save's item, whose place is free if b is TN_BLOCK_NONE. */
void tn_item_kept_near(struct tn_write_item *item, tn_block b);
/* A copy of the block from there failed: it leaves, because nobody knows which side was at fault. */
void tn_near_failed(const struct tn_op *op, tn_block b);

#endif
