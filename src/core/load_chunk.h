/* SPDX-License-Identifier: Apache-2.0 */
/* The transfers of a chunk that is loaded. Owner thread only. */
#ifndef TN_CORE_LOAD_CHUNK_H
#define TN_CORE_LOAD_CHUNK_H

#include "core/core.h"

uint8_t *tn_chunk_state(const struct tn_reading *r, uint32_t i, uint32_t c);
/* Each begins a transfer of the chunk; false: no IOCB is free, or it may not be read now. It is read from a device or from memory; ... */
bool tn_chunk_read(struct tn_read_item *item, uint32_t c);
/* ... once more from a device, into memory that no other process can change, and checked there; ... */
bool tn_chunk_read_again(struct tn_read_item *item, uint32_t c);
/* ... checked where it lies; ... */
bool tn_chunk_check(struct tn_read_item *item, uint32_t c);
/* ... copied on; what other processes can change is checked in any case once it is in the memory tier; ... */
bool tn_chunk_copy(struct tn_read_item *item, uint32_t c, uint32_t copy, bool verify);
/* ... copied to the item's place in the near tier. */
bool tn_chunk_copy_near(struct tn_read_item *item, uint32_t c);
/* Whom it is copied to: the memory tier first, if the item goes there, then those who joined, in their order. */
bool tn_chunk_goes_to_memory(const struct tn_read_item *item);
uint32_t tn_chunk_copies(const struct tn_read_item *item);
/* The receiver of that copy; NULL: the memory tier. */
struct tn_read_item *tn_chunk_copies_to(const struct tn_read_item *item, uint32_t copy);
/* The first from that copy on which is still of use; tn_chunk_copies: none is. */
uint32_t tn_chunk_next_copy(const struct tn_read_item *item, uint32_t copy);

#endif
