/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache is a ring of variable-size entries written one behind the other, with a direct-mapped
 * index by slot: an entry is gone when the ring has come round to it. No lists, no free space to manage.
 */
#include "tier/disk/headers.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"

#define MOST (TN_HEADER_BUFFERS * 3 / 4) /* of one direction, so that neither reads nor writes wait until the others want none */
#define ENTRY_WORDS 4u /* key, slot with the number of checksums, sequence */

struct tn_headers {
	struct tn_headers_opts o;
	uint64_t *ring, *index; /* index: 1 + position in words since the beginning of time */
	uint64_t ring_words, index_size, head;
	unsigned char *pages;
	size_t page_bytes; /* of one buffer */
	uint64_t offset[TN_HEADER_BUFFERS]; /* of a buffer */
	struct tn_mapping memory;
	struct tn_mapped_range range;
	struct tn_header_buffers buffers;
	uint32_t block[TN_HEADER_BUFFERS];
	bool writes[TN_HEADER_BUFFERS];
	uint32_t free[TN_HEADER_BUFFERS], nfree;
	uint32_t taken[2]; /* for reads, for writes */
	uint32_t *lengths; /* TN_OBJECTS_MAX equal object lengths, for encode */
	uint64_t hits, reads;
};

static size_t pages_bytes(const struct tn_headers *h)
{
	return tn_array_bytes(TN_HEADER_BUFFERS, h->page_bytes);
}

int tn_headers_create(const struct tn_headers_opts *opts, struct tn_headers **out)
{
	struct tn_headers *h = tn_get(opts->alloc, sizeof(*h));

	if (!h)
		return tn_fail(-ENOMEM, "headers: no memory");
	h->o = *opts;
	/* More than 2 MiB together, so that they come page-aligned, as direct I/O wants it. */
	h->page_bytes = tn_store_header_size(TN_OBJECTS_MAX);
	h->ring_words = opts->cache_bytes / sizeof(uint64_t) * 15 / 16;
	for (h->index_size = 64; h->index_size * 32 <= h->ring_words; h->index_size *= 2)
		;
	h->ring = tn_get(opts->alloc, tn_array_bytes(h->ring_words, sizeof(uint64_t)));
	h->index = tn_get(opts->alloc, tn_array_bytes(h->index_size, sizeof(uint64_t)));
	h->lengths = tn_get(opts->alloc, TN_OBJECTS_MAX * sizeof(uint32_t));
	h->pages = tn_get(opts->alloc, pages_bytes(h));
	if (!h->ring || !h->index || !h->lengths || !h->pages) {
		tn_headers_destroy(h);
		return tn_fail(-ENOMEM, "headers: no memory for a cache of %llu bytes; lower header_cache_bytes",
			       (unsigned long long)opts->cache_bytes);
	}
	tn_sparse(opts->alloc, h->pages, pages_bytes(h)); /* most headers are much smaller than the largest */
	tn_sparse(opts->alloc, h->ring, tn_array_bytes(h->ring_words, sizeof(uint64_t))); /* filled as headers come, who wait for no hugepage */
	for (uint32_t i = 0; i < TN_HEADER_BUFFERS; i++) {
		h->offset[i] = i * h->page_bytes;
		h->free[h->nfree++] = TN_HEADER_BUFFERS - 1 - i;
	}
	assert(pages_bytes(h) >= 2u << 20);
	tn_mapping_init(&h->memory, &h->range, &(struct tn_memory_range){.address = h->pages, .bytes = pages_bytes(h)}, 1);
	h->buffers = (struct tn_header_buffers){&h->memory, h->offset, h->block};
	*out = h;
	return 0;
}

void tn_headers_destroy(struct tn_headers *h)
{
	const struct tn_alloc *a;

	if (!h)
		return;
	a = h->o.alloc;
	tn_put(a, h->pages, pages_bytes(h));
	tn_put(a, h->lengths, TN_OBJECTS_MAX * sizeof(uint32_t));
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
	return &h->index[tn_mix_runs(slot) & (h->index_size - 1)];
}

bool tn_headers_cached(struct tn_headers *h, const struct tn_header_want *want)
{
	uint64_t at = *index_of(h, want->place), sequence = tn_store_sequence(h->o.store, want->place);
	uint32_t n = want->shape->layers;
	const uint64_t *e;

	if (at == 0 || h->ring_words == 0)
		return false;
	at--;
	if (at + h->ring_words < h->head + ENTRY_WORDS + n)
		return false;
	e = &h->ring[at % h->ring_words];
	if (e[0] != want->key->word[0] || e[1] != want->key->word[1] || e[2] != (((uint64_t)n << 32) | want->place) ||
	    (sequence && e[3] != sequence))
		return false;
	memcpy(want->checks, e + ENTRY_WORDS, n * sizeof(uint64_t));
	h->hits++;
	return true;
}

void tn_headers_written(struct tn_headers *h, tn_slot slot, const struct tn_key *key, uint64_t sequence, uint32_t n,
			const uint64_t *checks)
{
	uint64_t words = ENTRY_WORDS + n, *e;

	if (words * 4 > h->ring_words)
		return;
	/* Entries do not wrap: the rest of the ring is skipped. */
	if (h->head % h->ring_words + words > h->ring_words)
		h->head += h->ring_words - h->head % h->ring_words;
	e = &h->ring[h->head % h->ring_words];
	e[0] = key->word[0];
	e[1] = key->word[1];
	e[2] = ((uint64_t)n << 32) | slot;
	e[3] = sequence;
	memcpy(e + ENTRY_WORDS, checks, n * sizeof(uint64_t));
	*index_of(h, slot) = h->head + 1;
	h->head += words;
}

/* ---- buffers ------------------------------------------------------------------------------------ */

uint32_t tn_headers_take(struct tn_headers *h, bool write, uint32_t block)
{
	uint32_t b;

	if (h->nfree == 0 || h->taken[write] == MOST)
		return TN_HEADER_NO_BUFFER;
	b = h->free[--h->nfree];
	h->taken[write]++;
	h->writes[b] = write;
	h->block[b] = block;
	return b;
}

void tn_headers_give(struct tn_headers *h, uint32_t buffer)
{
	h->taken[h->writes[buffer]]--;
	h->free[h->nfree++] = buffer;
}

const struct tn_header_buffers *tn_headers_buffers(const struct tn_headers *h)
{
	return &h->buffers;
}

static int check(const struct tn_header_want *w, uint64_t sequence, const struct tn_store_header *hdr)
{
	if (!tn_key_eq(&hdr->entry.key, w->key))
		return tn_fail(-EBADMSG, "header of slot %u: another block's key", w->place);
	if (sequence && hdr->entry.sequence != sequence)
		return tn_fail(-EBADMSG, "header of slot %u: sequence %llu, the index has %llu", w->place,
			       (unsigned long long)hdr->entry.sequence, (unsigned long long)sequence);
	if (!tn_key_eq(&hdr->space_id, &w->space->id) || hdr->space_epoch != w->space->epoch)
		return tn_fail(-EBADMSG, "header of slot %u: of another space or epoch %u", w->place, hdr->space_epoch);
	if (hdr->nobjects != w->shape->layers || hdr->codec != 0 || hdr->key_id != 0)
		return tn_fail(-EBADMSG, "header of slot %u: %u objects, codec %u, key id %u", w->place, hdr->nobjects,
			       hdr->codec, hdr->key_id);
	for (uint32_t i = 0; i < hdr->nobjects; i++)
		if (hdr->object_bytes[i] != w->shape->object_bytes)
			return tn_fail(-EBADMSG, "header of slot %u: object %u has %u bytes, not %u", w->place, i,
				       hdr->object_bytes[i], w->shape->object_bytes);
	return 0;
}

int tn_headers_decode(struct tn_headers *h, uint32_t buffer, const struct tn_header_want *w)
{
	struct tn_store_header hdr;
	uint64_t uuid[2];

	h->reads++;
	tn_store_uuid(h->o.store, w->place, uuid);
	if (tn_store_header_decode(h->pages + h->offset[buffer], tn_store_header_size(w->shape->layers), uuid, w->place, &hdr) ||
	    check(w, tn_store_sequence(h->o.store, w->place), &hdr))
		return -EBADMSG;
	memcpy(w->checks, hdr.object_checksum, w->shape->layers * sizeof(uint64_t));
	tn_headers_written(h, w->place, &hdr.entry.key, hdr.entry.sequence, w->shape->layers, w->checks);
	return 0;
}

void tn_headers_encode(struct tn_headers *h, uint32_t buffer, const struct tn_header_put *p)
{
	struct tn_store_header hdr = {
		.entry = p->entry,
		.space_id = p->space.id,
		.space_epoch = p->space.epoch,
		.group = p->group,
		.nobjects = p->shape->layers,
		.object_bytes = h->lengths,
		.object_checksum = p->checks,
	};
	uint64_t uuid[2];

	if (h->lengths[0] != p->shape->object_bytes || h->lengths[p->shape->layers - 1] != p->shape->object_bytes)
		for (uint32_t i = 0; i < TN_OBJECTS_MAX; i++)
			h->lengths[i] = p->shape->object_bytes;
	tn_store_uuid(h->o.store, p->place, uuid);
	tn_store_header_encode(&hdr, uuid, p->place, h->pages + h->offset[buffer]);
}
