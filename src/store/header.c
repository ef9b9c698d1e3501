/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding and decoding of single on-disk structures: block headers, and the checks of log groups,
 * checkpoint pages and roots. Pure functions on memory; who reads and writes is elsewhere. Every byte
 * that comes from a disk passes through here before it is believed, so these are the fuzz targets.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/format.h"

void tn_disk_seal(struct tn_disk_head *head, uint32_t magic, size_t bytes)
{
	head->magic = magic;
	head->version = TN_DISK_VERSION;
	head->reserved = 0;
	head->checksum = tn_hash64(head + 1, bytes - sizeof(*head));
}

int tn_disk_check(const struct tn_disk_head *head, uint32_t magic, size_t bytes, const char *what)
{
	if (head->magic != magic)
		return tn_fail(-EBADMSG, "%s: magic %08x instead of %08x", what, head->magic, magic);
	if (head->version != TN_DISK_VERSION)
		return tn_fail(-EPROTONOSUPPORT,
			       "%s has format version %u, this program knows version %u: use the program that wrote it", what,
			       head->version, TN_DISK_VERSION);
	if (head->reserved != 0 || head->checksum != tn_hash64(head + 1, bytes - sizeof(*head)))
		return tn_fail(-EBADMSG, "%s: checksum does not match", what);
	return 0;
}

static bool same_uuid(const uint64_t a[2], const uint64_t b[2])
{
	return a[0] == b[0] && a[1] == b[1];
}

int tn_disk_spaces_check(const void *bytes, size_t len, const uint64_t store_uuid[2])
{
	const struct tn_disk_spaces *t = bytes;
	int rc;

	if (len < sizeof(*t))
		return tn_fail(-EBADMSG, "space table: %zu bytes, must be %zu", len, sizeof(*t));
	rc = tn_disk_check(&t->head, TN_DISK_MAGIC_SPACES, sizeof(*t), "space table");
	if (rc)
		return rc;
	if (!same_uuid(t->store_uuid, store_uuid))
		return tn_fail(-EBADMSG, "space table of another store");
	if (t->count > TN_STORE_SPACES_MAX)
		return tn_fail(-EBADMSG, "space table: %u entries, at most %u", t->count, TN_STORE_SPACES_MAX);
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
	return tn_disk_check(&g->head, TN_DISK_MAGIC_LOG, g->bytes, "log group");
}

int tn_disk_mark_check(const void *page, size_t len, const uint64_t device_uuid[2])
{
	const struct tn_disk_mark *m = page;
	int rc;

	if (len < sizeof(*m))
		return tn_fail(-EBADMSG, "mark: %zu bytes, must be %zu", len, sizeof(*m));
	rc = tn_disk_check(&m->head, TN_DISK_MAGIC_MARK, sizeof(*m), "mark");
	if (rc)
		return rc;
	if (!same_uuid(m->device_uuid, device_uuid))
		return tn_fail(-EBADMSG, "mark of another device");
	if (m->generation == 0 || m->generation >= TN_DISK_LIMIT || m->sequence >= TN_DISK_LIMIT || m->epoch >= TN_DISK_LIMIT)
		return tn_fail(-EBADMSG, "mark: impossible values");
	return 0;
}

int tn_disk_page_check(const void *page, size_t len, const uint64_t device_uuid[2], uint32_t number)
{
	const struct tn_disk_page *p = page;
	int rc;

	if (len < sizeof(*p))
		return tn_fail(-EBADMSG, "checkpoint page: %zu bytes, must be %zu", len, sizeof(*p));
	rc = tn_disk_check(&p->head, TN_DISK_MAGIC_PAGE, sizeof(*p), "checkpoint page");
	if (rc)
		return rc;
	if (!same_uuid(p->device_uuid, device_uuid))
		return tn_fail(-EBADMSG, "checkpoint page %u: of another device", number);
	if (p->number != number)
		return tn_fail(-EBADMSG, "checkpoint page %u: says it is page %u", number, p->number);
	return 0;
}

int tn_disk_root_check(const void *root, size_t len, const struct tn_disk_super *super)
{
	const struct tn_disk_root *r = root;
	int rc;

	if (len < sizeof(*r))
		return tn_fail(-EBADMSG, "checkpoint root: %zu bytes, must be %zu", len, sizeof(*r));
	rc = tn_disk_check(&r->head, TN_DISK_MAGIC_ROOT, sizeof(*r), "checkpoint root");
	if (rc)
		return rc;
	if (!same_uuid(r->super.device_uuid, super->device_uuid))
		return tn_fail(-EBADMSG, "checkpoint root: of another device");
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
	int rc;

	if (len < sizeof(*s))
		return tn_fail(-EBADMSG, "segment header: %zu bytes, must be %zu", len, sizeof(*s));
	rc = tn_disk_check(&s->head, TN_DISK_MAGIC_SEGMENT, sizeof(*s), "segment header");
	if (rc)
		return rc;
	if (!same_uuid(s->device_uuid, device_uuid))
		return tn_fail(-EBADMSG, "segment %u: of another device", segment);
	if (s->segment != segment)
		return tn_fail(-EBADMSG, "segment %u: says it is segment %u", segment, s->segment);
	return 0;
}

bool tn_disk_segment_damaged(const struct tn_disk_segment *h)
{
	return tn_disk_check(&h->head, TN_DISK_MAGIC_SEGMENT, sizeof(*h), "segment header") == -EBADMSG;
}

/* ---- block headers ------------------------------------------------------------------------------ */

uint32_t tn_store_header_size(uint32_t nobjects)
{
	uint64_t bytes = sizeof(struct tn_disk_block) + (uint64_t)nobjects * (sizeof(uint64_t) + sizeof(uint32_t));

	return (uint32_t)((bytes + TN_STORE_HEADER_BYTES - 1) / TN_STORE_HEADER_BYTES * TN_STORE_HEADER_BYTES);
}

void tn_store_header_encode(const struct tn_store_header *h, const uint64_t store_uuid[2], tn_slot slot, void *page)
{
	uint32_t bytes = tn_store_header_size(h->nobjects);
	size_t sums = (size_t)h->nobjects * sizeof(uint64_t);
	struct tn_disk_block *b = page;
	unsigned char *tables = (unsigned char *)page + sizeof(*b);

	assert(h->nobjects > 0 && h->nobjects <= TN_STORE_OBJECTS_MAX);
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
	if (b->head.magic != TN_DISK_MAGIC_BLOCK)
		return tn_fail(-EBADMSG, "block header of slot %u: magic %08x instead of %08x", slot, b->head.magic,
			       TN_DISK_MAGIC_BLOCK);
	if (b->head.version == TN_DISK_VERSION &&
	    (b->nobjects == 0 || b->nobjects > TN_STORE_OBJECTS_MAX ||
	     b->header_bytes != tn_store_header_size(b->nobjects) || b->header_bytes > len))
		return tn_fail(-EBADMSG, "block header of slot %u: %u objects in %u bytes", slot, b->nobjects,
			       b->header_bytes);
	rc = tn_disk_check(&b->head, TN_DISK_MAGIC_BLOCK, b->header_bytes, "block header");
	if (rc)
		return rc;
	if (!same_uuid(b->device_uuid, store_uuid))
		return tn_fail(-EBADMSG, "block header of slot %u: of another device", slot);
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
