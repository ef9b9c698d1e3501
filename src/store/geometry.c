/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The geometry of a store's files: sizes of segments, log and tables, the places of the regions that follow from the
 * sizes, and whether the superblock that claims them can be true. Pure functions on numbers and memory: nothing is read
 * or written here.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define SEGMENT_BYTES_MIN (64u << 10)
#define SEGMENT_BYTES_MAX (1ull << 40)
#define LOG_BYTES_MIN (64u << 10)
#define SLOT_PAGES_MAX ((1u << 26) - 1) /* so that the number after the last slot has 32 bits, too */
#define DEVICE_BYTES_MAX (1ull << 57)

int tn_store_place_regions(struct tn_disk_super *sb)
{
	uint64_t pages;

	if (sb->segment_bytes < SEGMENT_BYTES_MIN || sb->segment_bytes > SEGMENT_BYTES_MAX ||
	    sb->segment_bytes % TN_DISK_PAGE != 0 || sb->segment_count == 0 || sb->segment_pages == 0 ||
	    (uint64_t)sb->segment_count * sb->segment_pages > SLOT_PAGES_MAX ||
	    sb->segment_count > DEVICE_BYTES_MAX / sb->segment_bytes || sb->log_bytes < LOG_BYTES_MIN ||
	    sb->log_bytes % TN_DISK_PAGE != 0 || sb->log_bytes > 1ull << 40)
		return -EINVAL;
	pages = (uint64_t)sb->segment_count * sb->segment_pages +
		(sb->segment_count + TN_DISK_RECORDS - 1) / TN_DISK_RECORDS;
	sb->log_offset = TN_DISK_LOG_OFFSET;
	sb->checkpoint_bytes = pages * TN_DISK_PAGE + sizeof(struct tn_disk_root);
	sb->checkpoint_offset[0] = sb->log_offset + sb->log_bytes;
	sb->checkpoint_offset[1] = sb->checkpoint_offset[0] + sb->checkpoint_bytes;
	sb->segments_offset = tn_round_up(sb->checkpoint_offset[1] + sb->checkpoint_bytes, 65536);
	return 0;
}

uint32_t tn_store_slot_bits(uint64_t slot_pages)
{
	uint32_t bits = 6;

	while (bits < 32 && 1ull << (bits - 6) < slot_pages)
		bits++;
	return bits;
}

int tn_disk_super_decode(const void *page, size_t len, struct tn_disk_super *out)
{
	struct tn_disk_super sb, placed;
	int rc;

	if (len < sizeof(sb))
		return tn_fail(-EBADMSG, "superblock: %zu bytes, must be %zu", len, sizeof(sb));
	memcpy(&sb, page, sizeof(sb));
	rc = tn_disk_check(&sb.head, TN_DISK_MAGIC_SUPER, sizeof(sb), "superblock");
	if (rc)
		return rc;
	placed = sb;
	if (tn_store_place_regions(&placed) || memcmp(&placed, &sb, sizeof(sb)) != 0 || sb.device_count == 0 ||
	    sb.device_count > TN_DEVICES_MAX || sb.device_index >= sb.device_count || sb.state < TN_DISK_CREATING ||
	    sb.state > TN_DISK_CLEAN || sb.generation >= TN_DISK_LIMIT || sb.epoch >= TN_DISK_LIMIT ||
	    sb.log_epoch >= TN_DISK_LIMIT || sb.sequence_floor >= TN_DISK_LIMIT)
		return tn_fail(-EBADMSG, "superblock: impossible values");
	*out = sb;
	return 0;
}

int tn_store_plan_sizes(const struct tn_store_opts *o, struct tn_disk_super *sb)
{
	uint64_t segment = o->segment_bytes, per_device, slots, count, pages;

	if (o->capacity_bytes == 0)
		return tn_fail(-EINVAL, "capacity_bytes 0: a new store needs a capacity");
	per_device = o->capacity_bytes / o->ndirs;
	if (segment == 0) {
		segment = o->capacity_bytes / 64;
		segment = segment < (4u << 20) ? 4u << 20 : segment > (1u << 30) ? 1u << 30 : segment;
	}
	if (segment <= SEGMENT_BYTES_MAX)
		segment = tn_round_up(segment < SEGMENT_BYTES_MIN ? SEGMENT_BYTES_MIN : segment, 65536);
	if (segment > SEGMENT_BYTES_MAX || per_device > 1ull << 56)
		return tn_fail(-EINVAL, "capacity of %llu bytes in segments of %llu: more than a store can address",
			       (unsigned long long)o->capacity_bytes, (unsigned long long)segment);
	count = (per_device + segment - 1) / segment;
	slots = o->max_slots ? o->max_slots / o->ndirs + 1 : per_device / 65536 + 1;
	count = count ? count : 1;
	pages = (slots + count - 1) / count;
	/* Not more slots than fit with the smallest slot and header. */
	if (pages > segment / (TN_STORE_HEADER_BYTES + TN_STORE_BLOCK_ALIGN))
		pages = segment / (TN_STORE_HEADER_BYTES + TN_STORE_BLOCK_ALIGN);
	pages = (pages + TN_DISK_RECORDS - 1) / TN_DISK_RECORDS;
	if (count * pages > SLOT_PAGES_MAX / o->ndirs || (uint64_t)o->ndirs << tn_store_slot_bits(count * pages) > 1ull << 32)
		return tn_fail(-EINVAL,
			       "capacity of %llu bytes needs %llu pages of slot table, at most %u: give fewer, larger slots (max_slots)",
			       (unsigned long long)o->capacity_bytes, (unsigned long long)(count * pages * o->ndirs),
			       SLOT_PAGES_MAX);
	sb->segment_bytes = segment;
	sb->segment_count = (uint32_t)count;
	sb->segment_pages = (uint32_t)pages;
	sb->log_bytes = o->log_bytes < 1ull << 62 ? o->log_bytes : 1ull << 62;
	if (sb->log_bytes == 0) { /* long enough for each slot to change twice between checkpoints */
		sb->log_bytes = count * pages * TN_DISK_PAGE * 2;
		sb->log_bytes = sb->log_bytes < (1u << 20)   ? 1u << 20
				: sb->log_bytes > (256u << 20) ? 256u << 20
							       : sb->log_bytes;
	}
	sb->log_bytes = tn_round_up(sb->log_bytes < LOG_BYTES_MIN ? LOG_BYTES_MIN : sb->log_bytes, TN_DISK_PAGE);
	if (tn_store_place_regions(sb))
		return tn_fail(-EINVAL, "log of %llu bytes: at most 1 TiB", (unsigned long long)sb->log_bytes);
	return 0;
}
