/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading every block of a store, for the tools: headers held against the index, objects against their
 * checksums. Many reads are in flight across blocks (a window of memory holds the blocks that are being read, oldest
 * first); blocks are judged in order. Changes nothing, and drives the engine itself.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tenuto/admin.h>

#include "base/checksum.h"
#include "base/error.h"
#include "store/store_internal.h"

#define READS 64u
#define BLOCKS 256u /* that are being read */
#define WINDOW_BYTES (64ull << 20)

struct block {
	struct tn_store_device *dev;
	uint32_t local;
	struct tn_store_place place;
	uint64_t at, bytes; /* in the window: header, then data */
	uint64_t next;	    /* of the data: what is to be read next */
	uint32_t pending;
	bool header_issued, header_bad, data_bad;
};

struct fetch {
	struct tn_store_req req;
	struct block *block;
	bool header;
};

struct walk {
	struct tn_store *s;
	const struct tn_admin_store *a;
	struct tn_admin_verify *verify; /* NULL: headers only */
	uint64_t stale, done, total;
	unsigned char *window;
	uint64_t window_bytes;
	uint32_t device, local; /* where the search for blocks goes on */
	struct block block[BLOCKS]; /* a ring: [first, first + count) modulo BLOCKS */
	uint32_t first, count;
	uint32_t issuing; /* of them, those whose reads are all issued */
	struct fetch fetch[READS];
};

static struct block *nth(struct walk *w, uint32_t i)
{
	return &w->block[(w->first + i) % BLOCKS];
}

static uint64_t data_bytes(const struct walk *w, const struct block *b)
{
	return w->verify ? b->place.slot_bytes : 0;
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

static void fetched(struct tn_store_req *r, int status)
{
	struct fetch *f = tn_container_of(r, struct fetch, req);

	f->block->pending--;
	if (status && f->header)
		f->block->header_bad = true;
	else if (status)
		f->block->data_bad = true;
}

/* Where in the window so many bytes fit behind the youngest block; UINT64_MAX: nowhere now. */
static uint64_t room(struct walk *w, uint64_t bytes)
{
	uint64_t tail, head;

	if (w->count == 0)
		return 0;
	head = nth(w, 0)->at;
	tail = nth(w, w->count - 1)->at + nth(w, w->count - 1)->bytes;
	if (nth(w, w->count - 1)->at < head) /* wrapped around */
		return head - tail >= bytes ? tail : UINT64_MAX;
	if (w->window_bytes - tail >= bytes)
		return tail;
	return head >= bytes ? 0 : UINT64_MAX;
}

/* Takes the next block into the window; false: no free bytes now, or no block is left. */
static bool take(struct walk *w)
{
	struct tn_store *s = w->s;

	for (; w->device < s->ndevices; w->device++, w->local = 0) {
		struct tn_store_device *d = &s->dev[w->device];

		for (; w->local < s->slot_pages << 6; w->local++) {
			struct block b = {.dev = d, .local = w->local};

			if (TN_META_STATE(d->meta[w->local]) != TN_SLOT_COMMITTED)
				continue;
			tn_store_locate(s, tn_store_global(d, w->local), &b.place);
			b.bytes = b.place.header_bytes + data_bytes(w, &b);
			b.at = room(w, b.bytes);
			if (w->count == BLOCKS || b.at == UINT64_MAX)
				return false;
			*nth(w, w->count++) = b;
			w->local++;
			return true;
		}
	}
	return false;
}

/* The next read of a block; false: all are issued. */
static bool issue(struct walk *w, struct block *b, struct fetch *f)
{
	uint64_t left = data_bytes(w, b) - b->next;
	uint32_t n = left < TN_STORE_BULK_BYTES ? (uint32_t)left : TN_STORE_BULK_BYTES;

	if (b->header_issued && left == 0)
		return false;
	tn_store_req_init(&f->req, b->dev, fetched);
	f->block = b;
	f->header = !b->header_issued;
	b->pending++;
	if (f->header) {
		b->header_issued = true;
		tn_store_req_submit(&f->req, TN_IO_READ, b->place.header_offset, w->window + b->at, b->place.header_bytes);
	} else {
		tn_store_req_submit(&f->req, TN_IO_READ, b->place.data_offset + b->next,
				    w->window + b->at + b->place.header_bytes + b->next, n);
		b->next += n;
	}
	return true;
}

static void keep_reading(struct walk *w)
{
	while (take(w))
		;
	for (uint32_t i = 0; i < READS; i++) {
		if (w->fetch[i].req.busy)
			continue;
		while (w->issuing < w->count && !issue(w, nth(w, w->issuing), &w->fetch[i]))
			w->issuing++;
		if (w->issuing == w->count)
			return;
	}
}

/* ---- judging ---------------------------------------------------------------------------------------------- */

/* Where a bad block lies and what is wrong with it. */
static void tell(struct walk *w, const struct block *b, const struct tn_key *key, const char *what)
{
	tn_log(w->s->log, TN_LOG_WARN, "%s: slot %u (data from byte %" PRIu64 " on), block %016" PRIx64 "%016" PRIx64 ": %s",
	       b->dev->path, tn_store_global(b->dev, b->local), b->place.data_offset, key->word[0], key->word[1], what);
}

static void judge_objects(struct walk *w, const struct block *b, const struct tn_store_header *h)
{
	const unsigned char *data = w->window + b->at + b->place.header_bytes;
	uint64_t at = 0, bytes = b->place.slot_bytes;
	uint32_t bad = 0, first = 0;
	char text[96];

	for (uint32_t i = 0; i < h->nobjects; i++) {
		if (h->object_bytes[i] > bytes - at) {
			w->verify->corrupt_blocks++;
			tell(w, b, &h->entry.key, "its objects do not fit the slot");
			return;
		}
		w->verify->objects++;
		w->verify->bytes += h->object_bytes[i];
		if (tn_checksum(data + at, h->object_bytes[i]) != h->object_checksum[i] && bad++ == 0)
			first = i;
		at = tn_round_up(at + h->object_bytes[i], TN_STORE_BLOCK_ALIGN);
		at = at < bytes ? at : bytes;
	}
	if (bad == 0)
		return;
	w->verify->corrupt_objects += bad;
	snprintf(text, sizeof(text), "wrong checksum of %u of its %u objects, first of object %u", bad, h->nobjects, first);
	tell(w, b, &h->entry.key, text);
}

static void judge(struct walk *w, const struct block *b)
{
	struct tn_admin_verify ignored = {0}, *v = w->verify ? w->verify : &ignored;
	struct tn_store_device *d = b->dev;
	tn_slot slot = tn_store_global(d, b->local);
	struct tn_store_header h;
	struct tn_store_entry e = {0};
	bool bad = b->header_bad;

	v->blocks++;
	v->io_errors += b->header_bad || b->data_bad;
	w->s->cb.describe(w->s->cb.arg, slot, d->cookie[b->local], &e);
	bad = bad || tn_store_header_decode(w->window + b->at, b->place.header_bytes, d->super.device_uuid, slot, &h) ||
	      !tn_key_eq(&h.entry.key, &e.key) || h.entry.sequence != e.sequence;
	if (bad) {
		w->stale++;
		v->corrupt_blocks++;
		tell(w, b, &e.key, b->header_bad ? "the block header cannot be read"
						 : "the index and the block header do not agree");
	} else if (b->data_bad) {
		tell(w, b, &e.key, "its objects cannot be read");
	} else if (w->verify) {
		judge_objects(w, b, &h);
	}
}

static int judge_all(struct walk *w)
{
	int rc = 0;

	for (keep_reading(w); w->count > 0 && rc == 0; keep_reading(w)) {
		struct block *b = nth(w, 0);

		if (b->pending > 0 || w->issuing == 0) {
			tn_store_poll(w->s, 100000000);
			continue;
		}
		judge(w, b);
		w->done += b->bytes;
		w->first = (w->first + 1) % BLOCKS;
		w->count--;
		w->issuing--;
		if (w->a->progress && !w->a->progress(w->a->progress_arg, w->done, w->total))
			rc = tn_fail(-ECANCELED, "stopped by the caller");
	}
	while (tn_store_inflight(w->s) > 0)
		tn_store_poll(w->s, 100000000);
	return rc;
}

int tn_store_walk(struct tn_store *s, const struct tn_admin_store *a, struct tn_admin_verify *verify, uint64_t *stale)
{
	struct walk *w = tn_get(s->alloc, sizeof(*w));
	int rc;

	if (!w)
		return tn_fail(-ENOMEM, "no memory to read blocks");
	w->s = s;
	w->a = a;
	w->verify = verify;
	w->window_bytes = WINDOW_BYTES;
	for (uint32_t i = 0; i < s->nshapes; i++) {
		uint64_t need = s->shape[i].header_bytes + (verify ? s->shape[i].slot_bytes : 0);

		w->window_bytes = w->window_bytes > 2 * need ? w->window_bytes : 2 * need;
	}
	for (uint32_t i = 0; i < s->ndevices; i++) {
		const struct tn_store_device *d = &s->dev[i];

		if (verify)
			verify->lost_segments += d->lost_segments;
		for (uint32_t k = 0; k < d->allocated; k++) {
			const struct tn_store_shape *sh = &s->shape[d->segs[k].shape];

			if (d->segs[k].shape != TN_SHAPE_NONE)
				w->total += d->segs[k].used * (sh->header_bytes + (verify ? sh->slot_bytes : 0));
		}
	}
	w->window = tn_store_pages_get(s, w->window_bytes);
	rc = w->window ? judge_all(w) : tn_fail(-ENOMEM, "no memory to read blocks");
	*stale = w->stale;
	tn_store_pages_put(s, w->window, w->window_bytes);
	tn_put(s->alloc, w, sizeof(*w));
	return rc;
}
