/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache is a ring of variable-size entries written one behind the other, with a direct-mapped
 * index by slot: an entry is gone when the ring has come round to it. No lists, no free space to manage.
 */
#include "tier/headers.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"

#define BUFFERS 16u
#define BUFFERS_MOST 12u /* of one direction, so that neither reads nor writes wait until the others want none */
#define BUFFER_BYTES (TN_HEADERS_BATCH * TN_STORE_HEADER_BYTES)
#define ENTRY_WORDS 4u /* key, slot with the number of checksums, sequence */

struct buffer {
	struct tn_io_req req;
	struct iovec iov;
	struct tn_headers *headers;
	struct buffer *next;
	unsigned char *page;
	uint32_t count, header_bytes, device;
	union {
		tn_header_want_done want;
		tn_header_put_done put;
	} done;
	union {
		struct tn_header_want want[TN_HEADERS_BATCH];
		struct tn_header_put put[TN_HEADERS_BATCH];
	} item;
};

struct tn_headers {
	struct tn_headers_opts o;
	uint64_t *ring, *index; /* index: 1 + position in words since the beginning of time */
	uint64_t ring_words, index_size, head;
	struct buffer buffers[BUFFERS], *free;
	uint32_t taken[2]; /* for reads, for writes */
	unsigned char *pages;
	size_t page_bytes; /* of one buffer */
	uint32_t *lengths; /* TN_STORE_OBJECTS_MAX equal object lengths, for encode */
	uint64_t hits, reads;
};

int tn_headers_create(const struct tn_headers_opts *opts, struct tn_headers **out)
{
	struct tn_headers *h = tn_get(opts->alloc, sizeof(*h));

	if (!h)
		return tn_fail(-ENOMEM, "headers: no memory");
	h->o = *opts;
	h->page_bytes = tn_store_header_size(TN_STORE_OBJECTS_MAX);
	if (h->page_bytes < BUFFER_BYTES)
		h->page_bytes = BUFFER_BYTES;
	h->ring_words = opts->cache_bytes / sizeof(uint64_t) * 15 / 16;
	for (h->index_size = 64; h->index_size * 32 <= h->ring_words; h->index_size *= 2)
		;
	h->ring = tn_get(opts->alloc, tn_array_bytes(h->ring_words, sizeof(uint64_t)));
	h->index = tn_get(opts->alloc, tn_array_bytes(h->index_size, sizeof(uint64_t)));
	h->lengths = tn_get(opts->alloc, TN_STORE_OBJECTS_MAX * sizeof(uint32_t));
	/* From 2 MiB on, memory comes page-aligned, as direct I/O wants it. */
	h->pages = tn_get(opts->alloc, tn_array_bytes(BUFFERS, h->page_bytes + (2u << 20) / BUFFERS));
	if (!h->ring || !h->index || !h->lengths || !h->pages) {
		tn_headers_destroy(h);
		return tn_fail(-ENOMEM, "headers: no memory for a cache of %llu bytes; lower header_cache_bytes",
			       (unsigned long long)opts->cache_bytes);
	}
	for (uint32_t i = 0; i < BUFFERS; i++) {
		h->buffers[i].headers = h;
		h->buffers[i].page = h->pages + i * h->page_bytes;
		h->buffers[i].next = h->free;
		h->free = &h->buffers[i];
	}
	*out = h;
	return 0;
}

void tn_headers_destroy(struct tn_headers *h)
{
	const struct tn_alloc *a;

	if (!h)
		return;
	a = h->o.alloc;
	tn_put(a, h->pages, tn_array_bytes(BUFFERS, h->page_bytes + (2u << 20) / BUFFERS));
	tn_put(a, h->lengths, TN_STORE_OBJECTS_MAX * sizeof(uint32_t));
	tn_put(a, h->index, tn_array_bytes(h->index_size, sizeof(uint64_t)));
	tn_put(a, h->ring, tn_array_bytes(h->ring_words, sizeof(uint64_t)));
	tn_put(a, h, sizeof(*h));
}

void tn_headers_counts(const struct tn_headers *h, uint64_t *cache_hits, uint64_t *reads)
{
	*cache_hits = h->hits;
	*reads = h->reads;
}

/* ---- cache ------------------------------------------------------------------------------------ */

static uint64_t *index_of(struct tn_headers *h, tn_slot slot)
{
	return &h->index[(slot * 0x9e3779b97f4a7c15u >> 20) & (h->index_size - 1)];
}

bool tn_headers_cached(struct tn_headers *h, const struct tn_header_want *want)
{
	uint64_t at = *index_of(h, want->slot);
	uint32_t n = want->shape->layers;
	const uint64_t *e;

	if (at == 0 || h->ring_words == 0)
		return false;
	at--;
	if (at + h->ring_words < h->head + ENTRY_WORDS + n)
		return false;
	e = &h->ring[at % h->ring_words];
	if (e[0] != want->key.word[0] || e[1] != want->key.word[1] || e[2] != (((uint64_t)n << 32) | want->slot) ||
	    (want->sequence && e[3] != want->sequence))
		return false;
	memcpy(want->checks, e + ENTRY_WORDS, n * sizeof(uint64_t));
	h->hits++;
	return true;
}

static void cache_put(struct tn_headers *h, tn_slot slot, const struct tn_store_entry *entry, uint32_t n,
		      const uint64_t *checks)
{
	uint64_t words = ENTRY_WORDS + n, *e;

	if (words * 4 > h->ring_words)
		return;
	/* Entries do not wrap: the rest of the ring is skipped. */
	if (h->head % h->ring_words + words > h->ring_words)
		h->head += h->ring_words - h->head % h->ring_words;
	e = &h->ring[h->head % h->ring_words];
	e[0] = entry->key.word[0];
	e[1] = entry->key.word[1];
	e[2] = ((uint64_t)n << 32) | slot;
	e[3] = entry->sequence;
	memcpy(e + ENTRY_WORDS, checks, n * sizeof(uint64_t));
	*index_of(h, slot) = h->head + 1;
	h->head += words;
}

/* ---- I/O -------------------------------------------------------------------------------------- */

static struct buffer *take(struct tn_headers *h, bool write)
{
	struct buffer *b = h->free;

	if (!b || h->taken[write] == BUFFERS_MOST)
		return NULL;
	h->taken[write]++;
	h->free = b->next;
	return b;
}

static void give(struct buffer *b)
{
	b->headers->taken[b->req.op == TN_IO_WRITE]--;
	b->next = b->headers->free;
	b->headers->free = b;
}

static void start(struct buffer *b, enum tn_io_op op, const struct tn_store_place *place,
		  void (*done)(struct tn_io_req *req))
{
	b->device = place->device;
	b->iov = (struct iovec){b->page, (size_t)b->count * b->header_bytes};
	b->req = (struct tn_io_req){
		.op = (uint8_t)op,
		.buffer = TN_IO_NO_BUFFER,
		.file = place->file,
		.offset = place->header_offset,
		.length = b->count * b->header_bytes,
		.iov = &b->iov,
		.iov_count = 1,
		.done = done,
		.owner = b,
	};
	tn_mover_submit(b->headers->o.mover, &b->req);
}

static void observe(struct buffer *b)
{
	struct tn_headers *h = b->headers;

	tn_mover_returned(h->o.mover);
	tn_store_observe(h->o.store, b->device, (enum tn_io_op)b->req.op, b->req.length,
			 tn_now_ns(h->o.clock) - b->req.issue_ns, b->req.status);
}

static int check(const struct tn_header_want *w, const struct tn_store_header *hdr)
{
	if (!tn_key_eq(&hdr->entry.key, &w->key))
		return tn_fail(-EBADMSG, "header of slot %u: another block's key", w->slot);
	if (w->sequence && hdr->entry.sequence != w->sequence)
		return tn_fail(-EBADMSG, "header of slot %u: sequence %llu, the index has %llu", w->slot,
			       (unsigned long long)hdr->entry.sequence, (unsigned long long)w->sequence);
	if (!tn_key_eq(&hdr->space_id, &w->space_id) || hdr->space_epoch != w->space_epoch)
		return tn_fail(-EBADMSG, "header of slot %u: of another space or epoch %u", w->slot, hdr->space_epoch);
	if (hdr->nobjects != w->shape->layers || hdr->codec != 0 || hdr->key_id != 0)
		return tn_fail(-EBADMSG, "header of slot %u: %u objects, codec %u, key id %u", w->slot, hdr->nobjects,
			       hdr->codec, hdr->key_id);
	for (uint32_t i = 0; i < hdr->nobjects; i++)
		if (hdr->object_bytes[i] != w->shape->object_bytes)
			return tn_fail(-EBADMSG, "header of slot %u: object %u has %u bytes, not %u", w->slot, i,
				       hdr->object_bytes[i], w->shape->object_bytes);
	return 0;
}

static void read_done(struct tn_io_req *req)
{
	struct buffer *b = req->owner;
	struct tn_headers *h = b->headers;

	observe(b);
	for (uint32_t i = 0; i < b->count; i++) {
		const struct tn_header_want *w = &b->item.want[i];
		struct tn_store_header hdr;
		uint64_t uuid[2];
		int rc = req->status;

		if (rc == 0) {
			tn_store_uuid(h->o.store, w->slot, uuid);
			rc = tn_store_header_decode(b->page + (size_t)i * b->header_bytes, b->header_bytes, uuid,
						    w->slot, &hdr);
			if (rc == 0)
				rc = check(w, &hdr);
			if (rc)
				rc = -EBADMSG;
		}
		if (rc == 0) {
			memcpy(w->checks, hdr.object_checksum, w->shape->layers * sizeof(uint64_t));
			cache_put(h, w->slot, &hdr.entry, w->shape->layers, w->checks);
		}
		b->done.want(w, rc);
	}
	give(b);
}

uint32_t tn_headers_read(struct tn_headers *h, const struct tn_header_want *wants, uint32_t n, tn_header_want_done done)
{
	struct tn_store_place first, place;
	struct buffer *b = take(h, false);

	assert(n > 0);
	if (!b)
		return 0;
	tn_store_locate(h->o.store, wants[0].slot, &first);
	b->header_bytes = first.header_bytes;
	b->done.want = done;
	b->count = 0;
	while (b->count < n && b->count < TN_HEADERS_BATCH && (b->count + 1) * (size_t)b->header_bytes <= h->page_bytes) {
		tn_store_locate(h->o.store, wants[b->count].slot, &place);
		if (place.file != first.file || place.header_bytes != first.header_bytes ||
		    place.header_offset != first.header_offset + (uint64_t)b->count * first.header_bytes)
			break;
		b->item.want[b->count] = wants[b->count];
		b->count++;
	}
	h->reads++;
	start(b, TN_IO_READ, &first, read_done);
	return b->count;
}

static void write_done(struct tn_io_req *req)
{
	struct buffer *b = req->owner;

	observe(b);
	for (uint32_t i = 0; i < b->count; i++) {
		const struct tn_header_put *p = &b->item.put[i];

		if (req->status == 0)
			cache_put(b->headers, p->slot, &p->entry, p->shape->layers, p->checks);
		b->done.put(p, req->status);
	}
	give(b);
}

static void encode(struct tn_headers *h, const struct tn_header_put *p, unsigned char *page)
{
	struct tn_store_header hdr = {
		.entry = p->entry,
		.space_id = p->space_id,
		.space_epoch = p->space_epoch,
		.group = p->group,
		.nobjects = p->shape->layers,
		.object_bytes = h->lengths,
		.object_checksum = p->checks,
	};
	uint64_t uuid[2];

	if (h->lengths[0] != p->shape->object_bytes || h->lengths[p->shape->layers - 1] != p->shape->object_bytes)
		for (uint32_t i = 0; i < TN_STORE_OBJECTS_MAX; i++)
			h->lengths[i] = p->shape->object_bytes;
	tn_store_uuid(h->o.store, p->slot, uuid);
	tn_store_header_encode(&hdr, uuid, p->slot, page);
}

uint32_t tn_headers_write(struct tn_headers *h, const struct tn_header_put *puts, uint32_t n, tn_header_put_done done)
{
	struct tn_store_place first, place;
	struct buffer *b = take(h, true);

	assert(n > 0);
	if (!b)
		return 0;
	tn_store_locate(h->o.store, puts[0].slot, &first);
	b->header_bytes = first.header_bytes;
	b->done.put = done;
	b->count = 0;
	while (b->count < n && b->count < TN_HEADERS_BATCH && (b->count + 1) * (size_t)b->header_bytes <= h->page_bytes) {
		tn_store_locate(h->o.store, puts[b->count].slot, &place);
		if (place.file != first.file || place.header_bytes != first.header_bytes ||
		    place.header_offset != first.header_offset + (uint64_t)b->count * first.header_bytes)
			break;
		encode(h, &puts[b->count], b->page + (size_t)b->count * b->header_bytes);
		b->item.put[b->count] = puts[b->count];
		b->count++;
	}
	start(b, TN_IO_WRITE, &first, write_done);
	return b->count;
}
