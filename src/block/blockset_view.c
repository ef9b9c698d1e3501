/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side of sets of blocks: bytes from outside, checked before a field is believed; then an index by key. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "block/blockset_bytes.h"

struct entry {
	struct tn_key key;
	uint64_t value;
	uint32_t word;
	uint32_t pages; /* index of its pages, in blocks */
	bool gone;
};

struct tn_blockset_view {
	struct tn_blockset_head head;
	struct tn_pool_share share;
	uint64_t *table; /* of the share */
	uint64_t ntable;
	struct entry *entries; /* by key */
	uint32_t *pages;
};

/* Magic, version, lengths and checksum. */
static int open_envelope(const unsigned char *buf, size_t len, struct tn_blockset_head *h)
{
	uint64_t sum;

	if (len < sizeof(*h) + sizeof(sum))
		return tn_fail(-EBADMSG, "%zu bytes are too few for a set of blocks", len);
	memcpy(h, buf, sizeof(*h));
	if (memcmp(h->magic, tn_blockset_magic, sizeof(h->magic)) != 0)
		return tn_fail(-EBADMSG, "these bytes are no set of blocks: they do not begin with its magic");
	if (h->version != TN_BLOCKSET_VERSION)
		return tn_fail(-EPROTONOSUPPORT, "version %u of a set of blocks: this library reads %u", h->version, TN_BLOCKSET_VERSION);
	if (h->blocks > h->words || h->words > TN_BLOCKSET_BLOCKS_MAX || h->share_bytes > TN_BLOCKSET_SHARE_MAX || h->bytes != len || tn_blockset_bytes(h) != len)
		return tn_fail(-EBADMSG, "a set of %u blocks, %u words and a share of %llu bytes in %zu bytes: these do not fit", h->blocks, h->words,
			       (unsigned long long)h->share_bytes, len);
	memcpy(&sum, buf + len - sizeof(sum), sizeof(sum));
	if (tn_hash64(buf, len - sizeof(sum)) != sum)
		return tn_fail(-EBADMSG, "a set of blocks whose checksum is wrong");
	return 0;
}

static int load_share(struct tn_blockset_view *v, const unsigned char *at)
{
	int64_t n = tn_pool_share_load(at, v->head.share_bytes, &v->share, NULL, 0);

	if (n < 0)
		return (int)n;
	v->ntable = (uint64_t)n;
	v->table = tn_get(&tn_alloc_system, v->ntable * sizeof(*v->table));
	if (!v->table)
		return tn_fail(-ENOMEM, "no memory for a share");
	n = tn_pool_share_load(at, v->head.share_bytes, &v->share, v->table, v->ntable);
	if (n < 0)
		return (int)n;
	if (v->share.geometry.pages_per_block != v->head.per_block)
		return tn_fail(-EBADMSG, "blocks of %u pages, in a pool whose blocks have %u", v->head.per_block, v->share.geometry.pages_per_block);
	return 0;
}

static int by_key(const void *a, const void *b)
{
	return memcmp(&((const struct entry *)a)->key, &((const struct entry *)b)->key, sizeof(struct tn_key));
}

static int load_entries(struct tn_blockset_view *v, const unsigned char *at)
{
	for (uint32_t i = 0; i < v->head.blocks; i++, at += tn_blockset_entry_bytes(&v->head)) {
		struct tn_blockset_entry e;
		uint32_t *pages = v->pages + (uint64_t)i * v->head.per_block;

		memcpy(&e, at, TN_BLOCKSET_ENTRY_BYTES);
		memcpy(pages, at + TN_BLOCKSET_ENTRY_BYTES, v->head.per_block * sizeof(*pages));
		for (uint32_t p = 0; p < v->head.per_block; p++)
			if (pages[p] >= v->share.layout.npages)
				return tn_fail(-EBADMSG, "block %u lies in page %u of a pool of %llu", i, pages[p], (unsigned long long)v->share.layout.npages);
		if (e.word >= v->head.words || !(e.value & 1))
			return tn_fail(-EBADMSG, "block %u has word %u of %u, with the value %llu", i, e.word, v->head.words, (unsigned long long)e.value);
		v->entries[i] = (struct entry){.key = e.key, .value = e.value, .word = e.word, .pages = i};
	}
	qsort(v->entries, v->head.blocks, sizeof(*v->entries), by_key);
	return 0;
}

static uint64_t pages_bytes(const struct tn_blockset_view *v)
{
	return (uint64_t)v->head.blocks * v->head.per_block * sizeof(*v->pages) + 1;
}

void tn_blockset_view_destroy(struct tn_blockset_view *view)
{
	if (!view)
		return;
	tn_put(&tn_alloc_system, view->table, view->ntable * sizeof(*view->table));
	tn_put(&tn_alloc_system, view->entries, view->head.blocks * sizeof(*view->entries) + 1);
	tn_put(&tn_alloc_system, view->pages, pages_bytes(view));
	tn_put(&tn_alloc_system, view, sizeof(*view));
}

int tn_blockset_import(const void *buf, size_t len, struct tn_blockset_view **out)
{
	struct tn_blockset_head head;
	struct tn_blockset_view *v;
	int rc;

	if (!buf || !out)
		return tn_fail(-EINVAL, "tn_blockset_import: a pointer is missing");
	rc = open_envelope(buf, len, &head);
	if (rc)
		return rc;
	v = tn_get(&tn_alloc_system, sizeof(*v));
	if (!v)
		return tn_fail(-ENOMEM, "no memory for a view");
	v->head = head;
	v->entries = tn_get(&tn_alloc_system, head.blocks * sizeof(*v->entries) + 1);
	v->pages = tn_get(&tn_alloc_system, pages_bytes(v));
	rc = v->entries && v->pages ? load_share(v, (const unsigned char *)buf + sizeof(head)) : tn_fail(-ENOMEM, "no memory for a view of %u blocks", head.blocks);
	rc = rc ? rc : load_entries(v, (const unsigned char *)buf + sizeof(head) + head.share_bytes);
	if (rc)
		tn_blockset_view_destroy(v);
	else
		*out = v;
	return rc;
}

const struct tn_pool_share *tn_blockset_view_share(const struct tn_blockset_view *view)
{
	return view ? &view->share : NULL;
}

uint64_t tn_blockset_view_cursor(const struct tn_blockset_view *view)
{
	return view ? view->head.cursor : 0;
}

static struct entry *find(const struct tn_blockset_view *v, const struct tn_key *key)
{
	const struct entry wanted = {.key = *key};
	struct entry *e = bsearch(&wanted, v->entries, v->head.blocks, sizeof(*v->entries), by_key);

	return e && !e->gone ? e : NULL;
}

long tn_blockset_find(const struct tn_blockset_view *view, const struct tn_key *keys, size_t n, struct tn_blockset_block *out)
{
	size_t i = 0;

	if (!view || (n && (!keys || !out)))
		return tn_fail(-EINVAL, "tn_blockset_find: a pointer is missing");
	for (; i < n; i++) {
		const struct entry *e = find(view, &keys[i]);

		if (!e)
			break;
		out[i] = (struct tn_blockset_block){.pages = view->pages + (uint64_t)e->pages * view->head.per_block,
						    .word = view->head.words_address + e->word * sizeof(uint64_t), .value = e->value};
	}
	return (long)i;
}

int tn_blockset_check(const struct tn_blockset_block *block, uint64_t word)
{
	if (block && block->value == word)
		return 0;
	return tn_fail(-ESTALE, "the owner has given the block up: its bytes are a miss");
}

long tn_blockset_forget(struct tn_blockset_view *view, const struct tn_block_event *events, size_t n)
{
	long gone = 0;

	if (!view || (n && !events))
		return tn_fail(-EINVAL, "tn_blockset_forget: a pointer is missing");
	for (size_t i = 0; i < n; i++) {
		struct entry *e = events[i].kind == TN_EVENT_REMOVED && events[i].sequence >= view->head.cursor ? find(view, &events[i].key) : NULL;

		if (e) {
			e->gone = true;
			gone++;
		}
	}
	return gone;
}
