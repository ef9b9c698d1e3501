/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The on-disk structures as bytes: sizes and places in a file, encoding, and the checks of everything that comes from a
 * disk before it is believed. Pure functions on numbers and memory: who reads and writes is elsewhere. These are the fuzz
 * targets.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/format.h"

#define SEGMENT_BYTES_MIN (64u << 10)
#define SEGMENT_BYTES_MAX (1ull << 40)
#define LOG_BYTES_MIN (64u << 10)
#define SLOT_PAGES_MAX ((1u << 26) - 1) /* so that the number after the last slot has 32 bits, too */
#define DEVICE_BYTES_MAX (1ull << 57)

/* ---- heads ---------------------------------------------------------------------------------------------------- */

void tn_disk_seal(struct tn_disk_head *head, uint32_t magic, size_t bytes)
{
	head->magic = magic;
	head->version = TN_DISK_VERSION;
	head->reserved = 0;
	head->checksum = tn_hash64(head + 1, bytes - sizeof(*head));
}

/* Later versions have numbers that differ from 1 in several bits: a flipped bit does not make one (docs/format.md). */
static bool is_later(const struct tn_disk_head *head)
{
	return head->version > TN_DISK_VERSION && head->version < 256 && __builtin_popcount(head->version ^ TN_DISK_VERSION) > 1;
}

static int refuse(const struct tn_disk_head *head, const char *what)
{
	return tn_fail(-EPROTONOSUPPORT, "%s has format version %u, this program knows version %u: use the program that wrote it", what,
		       head->version, TN_DISK_VERSION);
}

/*
 * With detail, "what" naming the thing. The first line that fits counts; a structure without an owner's UUID is ours:
 *
 *	magic   checksum       owner     version          bytes 6, 7
 *	other   -              -         -                -             -EBADMSG
 *	right   does not fit   -         -                -             -EBADMSG
 *	right   fits           another   -                -             -EXDEV
 *	right   fits           ours      a later one      -             -EPROTONOSUPPORT
 *	right   fits           ours      another number   -             -EBADMSG: a damaged version
 *	right   fits           ours      ours             not zero      -EBADMSG
 *	right   fits           ours      ours             zero          0
 */
static int check_sum(const void *p, size_t len, uint32_t magic, size_t bytes, const char *what)
{
	const struct tn_disk_head *head = p;

	if (len < sizeof(*head) || head->magic != magic)
		return tn_fail(-EBADMSG, "%s: no magic %08x", what, magic);
	if (len < bytes || head->checksum != tn_hash64(head + 1, bytes - sizeof(*head)))
		return tn_fail(-EBADMSG, "%s: checksum does not match", what);
	return 0;
}

static int check_version(const struct tn_disk_head *head, const char *what)
{
	if (is_later(head))
		return refuse(head, what);
	if (head->version != TN_DISK_VERSION || head->reserved != 0)
		return tn_fail(-EBADMSG, "%s: its version is damaged", what);
	return 0;
}

static int check(const void *p, size_t len, uint32_t magic, size_t bytes, const char *what)
{
	int rc = check_sum(p, len, magic, bytes, what);

	return rc ? rc : check_version(p, what);
}

static bool same_uuid(const uint64_t a[2], const uint64_t b[2])
{
	return a[0] == b[0] && a[1] == b[1];
}

/* owner: where the structure has its owner's UUID, in all versions. What another store left is free, of whatever version it is. */
static int check_owned(const void *p, size_t len, uint32_t magic, size_t bytes, const uint64_t owner[2], const uint64_t uuid[2],
		       const char *what)
{
	int rc = check_sum(p, len, magic, bytes, what);

	if (rc)
		return rc;
	return same_uuid(owner, uuid) ? check_version(p, what) : tn_fail(-EXDEV, "%s of another device or store", what);
}

/* ---- sizes and places ----------------------------------------------------------------------------------------- */

/* Offsets of all regions from the sizes; -EINVAL when the numbers cannot be. */
static int place_regions(struct tn_disk_super *sb)
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

uint32_t tn_disk_slot_bits(uint64_t slot_pages)
{
	uint32_t bits = 6;

	while (bits < 32 && 1ull << (bits - 6) < slot_pages)
		bits++;
	return bits;
}

int tn_disk_plan_sizes(const struct tn_store_opts *o, struct tn_disk_super *sb)
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
	if (pages > segment / (TN_STORE_HEADER_BYTES + TN_PLACE_ALIGN))
		pages = segment / (TN_STORE_HEADER_BYTES + TN_PLACE_ALIGN);
	pages = (pages + TN_DISK_RECORDS - 1) / TN_DISK_RECORDS;
	if (count * pages > SLOT_PAGES_MAX / o->ndirs || (uint64_t)o->ndirs << tn_disk_slot_bits(count * pages) > 1ull << 32)
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
	if (sb->log_bytes > 1ull << 40)
		return tn_fail(-EINVAL, "log of %llu bytes: at most 1 TiB", (unsigned long long)sb->log_bytes);
	if (place_regions(sb))
		return tn_fail(-EINVAL, "capacity of %llu bytes: %llu segments of %llu bytes; a device has at most %llu bytes, and %u pages of slot table",
			       (unsigned long long)o->capacity_bytes, (unsigned long long)count, (unsigned long long)segment,
			       (unsigned long long)DEVICE_BYTES_MAX, SLOT_PAGES_MAX);
	return 0;
}

/* ---- structures ------------------------------------------------------------------------------------------------- */

int tn_disk_super_decode(const void *page, size_t len, struct tn_disk_super *out)
{
	struct tn_disk_super sb, placed;
	const struct tn_disk_head *head = page;
	int rc;

	/* A program that converts a store may have died in the middle of this copy, and then the other one is not to be believed. */
	if (len >= sizeof(*head) && head->magic == TN_DISK_MAGIC_SUPER && is_later(head))
		return refuse(head, "superblock");
	rc = check(page, len, TN_DISK_MAGIC_SUPER, sizeof(sb), "superblock");
	if (rc)
		return rc;
	memcpy(&sb, page, sizeof(sb));
	placed = sb;
	if (place_regions(&placed) || memcmp(&placed, &sb, sizeof(sb)) != 0 || sb.device_count == 0 ||
	    sb.device_count > TN_DEVICES_MAX || sb.device_index >= sb.device_count || sb.state < TN_DISK_CREATING ||
	    sb.state > TN_DISK_CLEAN || sb.generation >= TN_DISK_LIMIT || sb.epoch >= TN_DISK_LIMIT ||
	    sb.log_epoch >= TN_DISK_LIMIT || sb.sequence_floor >= TN_DISK_LIMIT)
		return tn_fail(-EBADMSG, "superblock: impossible values");
	*out = sb;
	return 0;
}

int tn_disk_spaces_check(const void *bytes, size_t len, const uint64_t store_uuid[2])
{
	const struct tn_disk_spaces *t = bytes;
	int rc = check_owned(t, len, TN_DISK_MAGIC_SPACES, sizeof(*t), t->store_uuid, store_uuid, "space table");

	if (rc)
		return rc;
	if (t->count > TN_SPACES_MAX)
		return tn_fail(-EBADMSG, "space table: %u entries, at most %u", t->count, TN_SPACES_MAX);
	if (t->generation == 0 || t->generation >= TN_DISK_LIMIT)
		return tn_fail(-EBADMSG, "space table: impossible generation");
	for (uint32_t i = 0; i < t->count; i++)
		if (t->space[i].min_sequence >= TN_DISK_LIMIT)
			return tn_fail(-EBADMSG, "space table: impossible sequence in entry %u", i);
	return 0;
}

int tn_disk_group_check(const void *group, size_t len, const uint64_t device_uuid[2], uint64_t position,
			uint64_t sequence, uint64_t min_epoch, uint32_t *bytes)
{
	const struct tn_disk_group *g = group;

	*bytes = 0;
	if (len < sizeof(*g) || g->head.magic != TN_DISK_MAGIC_LOG)
		return tn_fail(-EBADMSG, "log group: none here");
	if (!same_uuid(g->device_uuid, device_uuid) || g->position != position || g->sequence != sequence ||
	    g->epoch < min_epoch)
		return tn_fail(-EBADMSG, "log group: stale");
	if (g->epoch >= TN_DISK_LIMIT || g->bytes == 0 || g->bytes % TN_DISK_PAGE != 0 || g->bytes > TN_DISK_GROUP_MAX ||
	    g->records > g->bytes / sizeof(struct tn_disk_record) - 1)
		return tn_fail(-EBADMSG, "log group: %u bytes for %u records", g->bytes, g->records);
	*bytes = g->bytes;
	if (len < g->bytes)
		return -EMSGSIZE;
	return check(g, len, TN_DISK_MAGIC_LOG, g->bytes, "log group");
}

int tn_disk_mark_check(const void *page, size_t len, const uint64_t device_uuid[2])
{
	const struct tn_disk_mark *m = page;
	int rc = check_owned(m, len, TN_DISK_MAGIC_MARK, sizeof(*m), m->device_uuid, device_uuid, "mark");

	if (rc)
		return rc;
	if (m->generation == 0 || m->generation >= TN_DISK_LIMIT || m->sequence >= TN_DISK_LIMIT || m->epoch >= TN_DISK_LIMIT ||
	    m->spaces >= TN_DISK_LIMIT)
		return tn_fail(-EBADMSG, "mark: impossible values");
	return 0;
}

int tn_disk_page_check(const void *page, size_t len, const uint64_t device_uuid[2], uint32_t number)
{
	const struct tn_disk_page *p = page;
	int rc = check_owned(p, len, TN_DISK_MAGIC_PAGE, sizeof(*p), p->device_uuid, device_uuid, "checkpoint page");

	if (rc)
		return rc;
	if (p->number != number)
		return tn_fail(-EBADMSG, "checkpoint page %u: says it is page %u", number, p->number);
	return 0;
}

int tn_disk_root_check(const void *root, size_t len, const struct tn_disk_super *super)
{
	const struct tn_disk_root *r = root;
	int rc = check_owned(r, len, TN_DISK_MAGIC_ROOT, sizeof(*r), r->super.device_uuid, super->device_uuid, "checkpoint root");

	if (rc)
		return rc;
	if (r->log_position % TN_DISK_PAGE != 0 || r->log_position >= TN_DISK_LIMIT || r->log_sequence >= TN_DISK_LIMIT ||
	    r->epoch >= TN_DISK_LIMIT || r->next_sequence >= TN_DISK_LIMIT || r->checkpoint >= TN_DISK_LIMIT)
		return tn_fail(-EBADMSG, "checkpoint root: impossible values (log position %llu)",
			       (unsigned long long)r->log_position);
	if ((uint64_t)r->page_count * TN_DISK_PAGE + sizeof(*r) > super->checkpoint_bytes)
		return tn_fail(-EBADMSG, "checkpoint root: %u pages do not fit", r->page_count);
	return 0;
}

int tn_disk_segment_check(const void *page, size_t len, const uint64_t device_uuid[2], uint32_t segment)
{
	const struct tn_disk_segment *s = page;
	int rc = check_owned(s, len, TN_DISK_MAGIC_SEGMENT, sizeof(*s), s->device_uuid, device_uuid, "segment header");

	if (rc)
		return rc;
	if (s->segment != segment)
		return tn_fail(-EBADMSG, "segment %u: says it is segment %u", segment, s->segment);
	return 0;
}

/* ---- block headers ------------------------------------------------------------------------------ */

uint32_t tn_store_header_size(uint32_t nobjects)
{
	uint64_t bytes = sizeof(struct tn_disk_block) + (uint64_t)nobjects * (sizeof(uint64_t) + sizeof(uint32_t));

	return (uint32_t)tn_round_up(bytes, TN_STORE_HEADER_BYTES);
}

void tn_store_header_encode(const struct tn_store_header *h, const uint64_t store_uuid[2], tn_slot slot, void *page)
{
	uint32_t bytes = tn_store_header_size(h->nobjects);
	size_t sums = (size_t)h->nobjects * sizeof(uint64_t);
	struct tn_disk_block *b = page;
	unsigned char *tables = (unsigned char *)page + sizeof(*b);

	assert(h->nobjects > 0 && h->nobjects <= TN_OBJECTS_MAX);
	memset(page, 0, bytes);
	memcpy(b->device_uuid, store_uuid, sizeof(b->device_uuid));
	b->slot = slot;
	b->header_bytes = bytes;
	b->sequence = h->entry.sequence;
	b->key = h->entry.key;
	b->parent = h->entry.parent;
	b->space_id = h->space_id;
	b->space_epoch = h->space_epoch;
	b->group = h->group;
	b->recency = h->entry.recency;
	b->nobjects = h->nobjects;
	b->space = h->entry.space;
	b->codec = h->codec;
	b->key_id = h->key_id;
	b->flags = h->entry.flags;
	memcpy(tables, h->object_checksum, sums);
	memcpy(tables + sums, h->object_bytes, (size_t)h->nobjects * sizeof(uint32_t));
	tn_disk_seal(&b->head, TN_DISK_MAGIC_BLOCK, bytes);
}

int tn_store_header_decode(const void *page, size_t len, const uint64_t store_uuid[2], tn_slot slot,
			   struct tn_store_header *h)
{
	const struct tn_disk_block *b = page;
	const unsigned char *tables = (const unsigned char *)page + sizeof(*b);
	int rc;

	if (len < TN_STORE_HEADER_BYTES)
		return tn_fail(-EBADMSG, "block header: %zu bytes, must be at least %u", len, TN_STORE_HEADER_BYTES);
	if (b->header_bytes < TN_STORE_HEADER_BYTES || b->header_bytes > len)
		return tn_fail(-EBADMSG, "block header of slot %u: %u bytes", slot, b->header_bytes);
	rc = check_owned(b, len, TN_DISK_MAGIC_BLOCK, b->header_bytes, b->device_uuid, store_uuid, "block header");
	if (rc)
		return rc;
	if (b->nobjects == 0 || b->nobjects > TN_OBJECTS_MAX || b->header_bytes != tn_store_header_size(b->nobjects))
		return tn_fail(-EBADMSG, "block header of slot %u: %u objects in %u bytes", slot, b->nobjects,
			       b->header_bytes);
	if (b->sequence >= TN_DISK_LIMIT)
		return tn_fail(-EBADMSG, "block header of slot %u: impossible sequence", slot);
	if (b->slot != slot)
		return tn_fail(-EBADMSG, "block header of slot %u: says it is slot %u", slot, b->slot);
	*h = (struct tn_store_header){
		.entry = {.key = b->key,
			  .parent = b->parent,
			  .sequence = b->sequence,
			  .space = b->space,
			  .recency = b->recency,
			  .flags = b->flags},
		.space_id = b->space_id,
		.space_epoch = b->space_epoch,
		.group = b->group,
		.codec = b->codec,
		.key_id = b->key_id,
		.nobjects = b->nobjects,
		.object_checksum = (const uint64_t *)(const void *)tables,
		.object_bytes = (const uint32_t *)(const void *)(tables + (size_t)b->nobjects * sizeof(uint64_t)),
	};
	return 0;
}
