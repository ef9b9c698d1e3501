/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Made-up KV bytes: the content of every object follows from its block id and layer.
 *
 * Each 64-bit word depends on block, layer and position, so that any misplaced, torn or stale word shows when
 * an object is compared with what it should be. Writing the words costs less than the memory traffic that it causes.
 */
#ifndef TENUTO_CLI_CONTENT_H
#define TENUTO_CLI_CONTENT_H

#include <stddef.h>
#include <stdint.h>

/* Writes bytes [offset, offset + bytes) of the object; offset is a multiple of 8. */
void content_fill(void *to, size_t bytes, uint64_t block, uint32_t layer, size_t offset);
/* Compares: -1 if all bytes are right, else the offset of the first wrong 8-byte word within the piece. */
long content_check(const void *from, size_t bytes, uint64_t block, uint32_t layer, size_t offset);

#endif
