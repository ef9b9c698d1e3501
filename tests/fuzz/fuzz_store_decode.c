/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of the store's decoders: whatever the bytes, each refuses them or gives values that may be used.
 * The input is tried as it is, and once more with magic, version and checksum put right for each structure,
 * since a fuzzer does not guess checksums.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "store/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_BYTES 65536u

static const uint64_t uuid[2] = {0x0101010101010101ull, 0x0202020202020202ull};

static void decode_block(const unsigned char *page, size_t len)
{
	struct tn_store_header h;
	unsigned char *again;

	if (tn_store_header_decode(page, len, uuid, 7, &h))
		return;
	assert(h.nobjects >= 1 && h.nobjects <= TN_OBJECTS_MAX);
	assert((const unsigned char *)(h.object_bytes + h.nobjects) <= page + len);
	assert((const unsigned char *)(h.object_checksum + h.nobjects) <= page + len);
	/* What was decoded encodes and decodes to the same. */
	again = aligned_alloc(4096, tn_store_header_size(h.nobjects));
	tn_store_header_encode(&h, uuid, 7, again);
	assert(tn_store_header_decode(again, tn_store_header_size(h.nobjects), uuid, 7, &h) == 0);
	free(again);
}

static void decode_all(const unsigned char *page, size_t len)
{
	struct tn_disk_super sb;
	uint32_t bytes;

	decode_block(page, len);
	if (tn_disk_super_decode(page, len, &sb) == 0) {
		assert(sb.segment_count > 0 && sb.segment_pages > 0 && sb.device_index < sb.device_count);
		assert(sb.segments_offset > sb.checkpoint_offset[1]);
		(void)tn_disk_root_check(page, len, &sb);
	}
	if (tn_disk_group_check(page, len, uuid, 4096, 3, 2, &bytes) == 0)
		assert(bytes <= len && bytes % 4096 == 0);
	(void)tn_disk_page_check(page, len, uuid, 5);
	(void)tn_disk_spaces_check(page, len, uuid);
	(void)tn_disk_segment_check(page, len, uuid, 9);
}

/* The structure as this program would have sealed it. */
static void decode_sealed(unsigned char *page, size_t len, uint32_t magic, size_t bytes)
{
	struct tn_disk_head *head = (struct tn_disk_head *)(void *)page;

	if (len < bytes)
		return;
	memcpy(page + sizeof(*head), uuid, sizeof(uuid));
	tn_disk_seal(head, magic, bytes);
	decode_all(page, len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned char *page = aligned_alloc(4096, INPUT_BYTES);
	size_t len = size < INPUT_BYTES ? size : INPUT_BYTES;
	const struct tn_disk_group *g = (const struct tn_disk_group *)(const void *)page;
	const struct tn_disk_block *b = (const struct tn_disk_block *)(const void *)page;

	memset(page, 0, INPUT_BYTES);
	memcpy(page, data, len);
	decode_all(page, len);
	/* Short inputs stand for structures that are zero behind them. */
	decode_all(page, INPUT_BYTES);
	decode_sealed(page, INPUT_BYTES, TN_DISK_MAGIC_SUPER, TN_DISK_PAGE);
	decode_sealed(page, INPUT_BYTES, TN_DISK_MAGIC_SPACES, sizeof(struct tn_disk_spaces));
	decode_sealed(page, INPUT_BYTES, TN_DISK_MAGIC_PAGE, TN_DISK_PAGE);
	decode_sealed(page, INPUT_BYTES, TN_DISK_MAGIC_SEGMENT, TN_DISK_PAGE);
	decode_sealed(page, INPUT_BYTES, TN_DISK_MAGIC_ROOT, sizeof(struct tn_disk_root));
	if (g->bytes >= sizeof(*g) && g->bytes <= INPUT_BYTES)
		decode_sealed(page, INPUT_BYTES, TN_DISK_MAGIC_LOG, g->bytes);
	if (b->header_bytes >= sizeof(*b) && b->header_bytes <= INPUT_BYTES)
		decode_sealed(page, INPUT_BYTES, TN_DISK_MAGIC_BLOCK, b->header_bytes);
	free(page);
	return 0;
}
