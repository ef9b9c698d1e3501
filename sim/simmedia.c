/* SPDX-License-Identifier: Apache-2.0 */
#include "simmedia.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* ---- pages and trees -------------------------------------------------------------------------- */

static void *sim_alloc(size_t n, size_t size)
{
	void *p = calloc(n, size);

	assert(p); /* a simulation without memory cannot go on */
	return p;
}

static struct sim_page *page_new(void)
{
	struct sim_page *p = sim_alloc(1, sizeof(*p));

	p->refs = 1;
	return p;
}

static void page_put(struct sim_page *p)
{
	if (p && --p->refs == 0)
		free(p);
}

static void chunk_put(struct sim_chunk *c)
{
	if (!c || --c->refs)
		return;
	for (uint32_t i = 0; i < SIM_CHUNK_PAGES; i++)
		page_put(c->pages[i]);
	free(c);
}

static void tree_destroy(struct sim_tree *t)
{
	for (uint64_t i = 0; i < t->nchunks; i++)
		chunk_put(t->chunks[i]);
	free(t->chunks);
	*t = (struct sim_tree){0};
}

static void tree_clone(const struct sim_tree *t, struct sim_tree *out)
{
	out->nchunks = t->nchunks;
	out->chunks = sim_alloc(t->nchunks + 1, sizeof(*out->chunks));
	for (uint64_t i = 0; i < t->nchunks; i++) {
		out->chunks[i] = t->chunks[i];
		if (out->chunks[i])
			out->chunks[i]->refs++;
	}
}

static const struct sim_page *tree_page(const struct sim_tree *t, uint64_t page)
{
	uint64_t i = page / SIM_CHUNK_PAGES;

	return i < t->nchunks && t->chunks[i] ? t->chunks[i]->pages[page % SIM_CHUNK_PAGES] : NULL;
}

/* The place of a page in a chunk that is this tree's own. */
static struct sim_page **tree_slot(struct sim_tree *t, uint64_t page)
{
	uint64_t i = page / SIM_CHUNK_PAGES;
	struct sim_chunk *c;

	if (i >= t->nchunks) {
		uint64_t n = i + i / 2 + 8;

		t->chunks = realloc(t->chunks, n * sizeof(*t->chunks));
		assert(t->chunks);
		memset(t->chunks + t->nchunks, 0, (n - t->nchunks) * sizeof(*t->chunks));
		t->nchunks = n;
	}
	c = t->chunks[i];
	if (!c || c->refs > 1) {
		struct sim_chunk *own = sim_alloc(1, sizeof(*own));

		own->refs = 1;
		for (uint32_t k = 0; c && k < SIM_CHUNK_PAGES; k++) {
			own->pages[k] = c->pages[k];
			if (own->pages[k])
				own->pages[k]->refs++;
		}
		chunk_put(c);
		t->chunks[i] = c = own;
	}
	return &c->pages[page % SIM_CHUNK_PAGES];
}

static struct sim_page *tree_own_page(struct sim_tree *t, uint64_t page)
{
	struct sim_page **slot = tree_slot(t, page);

	if (!*slot) {
		*slot = page_new();
	} else if ((*slot)->refs > 1) {
		struct sim_page *own = page_new();

		memcpy(own->data, (*slot)->data, SIM_PAGE);
		page_put(*slot);
		*slot = own;
	}
	return *slot;
}

/* Puts bytes [from, to) of the piece's page into the tree; a whole page is shared, not copied. */
static void tree_apply(struct sim_tree *t, const struct sim_piece *p, uint32_t from, uint32_t to)
{
	struct sim_page **slot;

	if (from >= to)
		return;
	if (from == 0 && to == SIM_PAGE) {
		slot = tree_slot(t, p->page);
		p->data->refs++;
		page_put(*slot);
		*slot = p->data;
		return;
	}
	memcpy(tree_own_page(t, p->page)->data + from, p->data->data + from, to - from);
}

/* Cuts the tree at size: what lies beyond reads as zero if the file grows again. */
static void tree_cut(struct sim_tree *t, uint64_t size)
{
	uint64_t first = (size + SIM_PAGE - 1) / SIM_PAGE;

	if (size % SIM_PAGE && tree_page(t, size / SIM_PAGE))
		memset(tree_own_page(t, size / SIM_PAGE)->data + size % SIM_PAGE, 0, SIM_PAGE - size % SIM_PAGE);
	for (uint64_t page = first; page < t->nchunks * SIM_CHUNK_PAGES; page++) {
		if (page % SIM_CHUNK_PAGES == 0 && !t->chunks[page / SIM_CHUNK_PAGES]) {
			page += SIM_CHUNK_PAGES - 1;
		} else if (tree_page(t, page)) {
			struct sim_page **slot = tree_slot(t, page);

			page_put(*slot);
			*slot = NULL;
		}
	}
}

/* ---- writes ------------------------------------------------------------------------------------ */

static struct sim_write *write_new(uint32_t npieces)
{
	struct sim_write *w = sim_alloc(1, sizeof(*w) + npieces * sizeof(w->pieces[0]));

	tn_list_init(&w->link);
	return w;
}

void sim_write_forget(struct sim_write *w)
{
	tn_list_del(&w->link);
	for (uint32_t i = 0; i < w->npieces; i++)
		page_put(w->pieces[i].data);
	free(w);
}

static void writes_destroy(struct tn_list *list)
{
	struct tn_list *n;

	while ((n = list->next) != list)
		sim_write_forget(tn_container_of(n, struct sim_write, link));
}

static void writes_clone(struct tn_list *from, struct tn_list *to)
{
	for (struct tn_list *n = from->next; n != from; n = n->next) {
		struct sim_write *w = tn_container_of(n, struct sim_write, link);
		struct sim_write *c = write_new(w->npieces);

		c->order = w->order;
		c->returned = w->returned;
		c->lost = w->lost;
		c->npieces = w->npieces;
		for (uint32_t i = 0; i < w->npieces; i++) {
			c->pieces[i] = w->pieces[i];
			c->pieces[i].data->refs++;
		}
		tn_list_push(to, &c->link);
	}
}

struct sim_write *sim_write_start(struct sim_file *f, uint64_t order, uint64_t offset, const struct iovec *iov,
				  uint32_t iov_count)
{
	uint64_t len = 0, at = offset;
	struct sim_piece *p = NULL;
	struct sim_write *w;

	for (uint32_t i = 0; i < iov_count; i++)
		len += iov[i].iov_len;
	w = write_new((uint32_t)(len / SIM_PAGE + 2));
	w->order = order;
	for (uint32_t i = 0; i < iov_count; i++) {
		const uint8_t *src = iov[i].iov_base;
		size_t left = iov[i].iov_len;

		while (left > 0) {
			uint32_t in = (uint32_t)(at % SIM_PAGE);
			size_t n = left < SIM_PAGE - in ? left : SIM_PAGE - in;

			if (!p || p->page != at / SIM_PAGE) {
				p = &w->pieces[w->npieces++];
				*p = (struct sim_piece){.page = at / SIM_PAGE, .from = in, .data = page_new()};
			}
			memcpy(p->data->data + in, src, n);
			p->to = in + (uint32_t)n;
			src += n;
			at += n;
			left -= n;
		}
	}
	tn_list_push(&f->inflight, &w->link);
	return w;
}

bool sim_write_unchanged(const struct sim_write *w, const struct iovec *iov, uint32_t iov_count)
{
	const struct sim_piece *p = w->pieces;
	uint32_t in = w->npieces ? p->from : 0;

	for (uint32_t i = 0; i < iov_count; i++) {
		const uint8_t *src = iov[i].iov_base;
		size_t left = iov[i].iov_len;

		while (left > 0) {
			size_t n = left < p->to - in ? left : p->to - in;

			if (memcmp(p->data->data + in, src, n) != 0)
				return false;
			src += n;
			left -= n;
			in += (uint32_t)n;
			if (in == p->to) {
				p++;
				in = p < w->pieces + w->npieces ? p->from : 0;
			}
		}
	}
	return true;
}

/* How a write is torn: by a share of its sectors (0..256 of 256), of them only the first `sectors`. */
struct tear {
	uint32_t share;
	uint64_t sectors;
};

static uint64_t write_sectors(const struct sim_write *w)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < w->npieces; i++)
		n += (w->pieces[i].to - 1) / SIM_SECTOR - w->pieces[i].from / SIM_SECTOR + 1;
	return n;
}

/* Puts what survives of a write into the tree; *end rises to the end of the last byte that did. */
static void tree_apply_torn(struct sim_tree *t, const struct sim_write *w, struct tear tear, struct tn_rng *rng,
			    uint64_t *end)
{
	for (uint32_t i = 0; i < w->npieces; i++) {
		const struct sim_piece *p = &w->pieces[i];

		for (uint32_t from = p->from, to; from < p->to; from = to) {
			to = (from / SIM_SECTOR + 1) * SIM_SECTOR;
			if (tear.share == 256 && tear.sectors >= SIM_PAGE / SIM_SECTOR)
				to = p->to; /* the whole piece survives: share its page */
			to = to < p->to ? to : p->to;
			if (tear.sectors == 0)
				return;
			tear.sectors -= (to - 1) / SIM_SECTOR - from / SIM_SECTOR + 1;
			if (tear.share < 256 && tn_rng_below(rng, 256) >= tear.share)
				continue;
			tree_apply(t, p, from, to);
			if (p->page * SIM_PAGE + to > *end)
				*end = p->page * SIM_PAGE + to;
		}
	}
}

static struct tear tear_random(const struct sim_write *w, struct tn_rng *rng)
{
	static const uint32_t shares[] = {8, 64, 128, 192, 248};
	uint64_t n = write_sectors(w);

	switch (tn_rng_below(rng, 4)) {
	case 0:
		return (struct tear){.share = 0};
	case 1:
		return (struct tear){.share = 256, .sectors = n};
	case 2:
		return (struct tear){.share = 256, .sectors = tn_rng_below(rng, (uint32_t)n + 1)};
	default:
		return (struct tear){.share = shares[tn_rng_below(rng, 5)], .sectors = n};
	}
}

/* Replaces the pieces' pages by what of the write is on top of the present content. */
static void write_tear_in_place(struct sim_file *f, struct sim_write *w, struct tn_rng *rng)
{
	struct tear tear = {.share = 128, .sectors = write_sectors(w)};
	struct sim_tree mix;
	uint64_t end = 0;

	tree_clone(&f->now, &mix);
	tree_apply_torn(&mix, w, tear, rng, &end);
	for (uint32_t i = 0; i < w->npieces; i++) {
		struct sim_page *page = tree_own_page(&mix, w->pieces[i].page);

		page->refs++;
		page_put(w->pieces[i].data);
		w->pieces[i].data = page;
	}
	tree_destroy(&mix);
}

void sim_write_apply(struct sim_file *f, struct sim_write *w, bool tear, struct tn_rng *rng)
{
	if (tear)
		write_tear_in_place(f, w, rng);
	for (uint32_t i = 0; i < w->npieces; i++) {
		const struct sim_piece *p = &w->pieces[i];

		tree_apply(&f->now, p, p->from, p->to);
		if (p->page * SIM_PAGE + p->to > f->size)
			f->size = p->page * SIM_PAGE + p->to;
	}
	tn_list_del(&w->link);
	tn_list_push(&f->volatiles, &w->link);
}

static bool overlap(const struct sim_write *a, const struct sim_write *b)
{
	for (uint32_t i = 0; i < a->npieces; i++)
		for (uint32_t k = 0; k < b->npieces; k++)
			if (a->pieces[i].page == b->pieces[k].page && a->pieces[i].from < b->pieces[k].to &&
			    b->pieces[k].from < a->pieces[i].to)
				return true;
	return false;
}

/* What was given up and has been written anew, durably, cannot reach the medium any more. */
static void forget_lost_under(struct sim_file *f, const struct sim_write *flushed)
{
	struct tn_list *n, *tmp;

	tn_list_for_each_safe(n, tmp, &f->volatiles) {
		struct sim_write *w = tn_container_of(n, struct sim_write, link);

		if (w == flushed)
			return; /* those behind it are younger */
		if (w->lost && overlap(w, flushed))
			sim_write_forget(w);
	}
}

void sim_file_flush(struct sim_file *f, uint64_t returned, uint64_t size)
{
	struct tn_list *n, *tmp;

	tn_list_for_each_safe(n, tmp, &f->volatiles) {
		struct sim_write *w = tn_container_of(n, struct sim_write, link);

		if (w->lost || w->returned == 0 || w->returned > returned)
			continue;
		for (uint32_t i = 0; i < w->npieces; i++)
			tree_apply(&f->durable, &w->pieces[i], w->pieces[i].from, w->pieces[i].to);
		forget_lost_under(f, w);
		sim_write_forget(w);
	}
	if (size > f->durable_size)
		f->durable_size = size;
}

void sim_file_flush_lost(struct sim_file *f, uint64_t returned)
{
	for (struct tn_list *n = f->volatiles.next; n != &f->volatiles; n = n->next) {
		struct sim_write *w = tn_container_of(n, struct sim_write, link);

		if (w->returned && w->returned <= returned)
			w->lost = true;
	}
}

/* ---- files ------------------------------------------------------------------------------------- */

static struct sim_file *file_new(struct sim_media *m, const char *path)
{
	struct sim_file *f = sim_alloc(1, sizeof(*f));

	f->path = strdup(path);
	assert(f->path);
	tn_list_init(&f->inflight);
	tn_list_init(&f->volatiles);
	tn_list_push(&m->files, &f->link);
	return f;
}

static void file_destroy(struct sim_file *f)
{
	tn_list_del(&f->link);
	writes_destroy(&f->inflight);
	writes_destroy(&f->volatiles);
	tree_destroy(&f->now);
	tree_destroy(&f->durable);
	free(f->path);
	free(f);
}

struct sim_file *sim_file_find(const struct sim_media *m, const char *path)
{
	for (struct tn_list *n = m->files.next; n != &m->files; n = n->next) {
		struct sim_file *f = tn_container_of(n, struct sim_file, link);

		if (!f->unlinked && strcmp(f->path, path) == 0)
			return f;
	}
	return NULL;
}

static size_t dir_len(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (size_t)(slash - path) : 0;
}

/* Makes the directory entry durable, and with it every removal from the same directory. */
struct sim_file *sim_file_create(struct sim_media *m, const char *path)
{
	struct tn_list *n, *tmp;

	tn_list_for_each_safe(n, tmp, &m->files) {
		struct sim_file *f = tn_container_of(n, struct sim_file, link);

		if (f->unlinked && f->opens == 0 && dir_len(f->path) == dir_len(path) &&
		    strncmp(f->path, path, dir_len(path)) == 0)
			file_destroy(f);
	}
	return file_new(m, path);
}

void sim_file_read(const struct sim_file *f, uint64_t offset, void *buf, size_t len)
{
	uint8_t *dst = buf;

	while (len > 0) {
		uint32_t in = (uint32_t)(offset % SIM_PAGE);
		size_t n = len < SIM_PAGE - in ? len : SIM_PAGE - in;
		const struct sim_page *p = tree_page(&f->now, offset / SIM_PAGE);

		if (p)
			memcpy(dst, p->data + in, n);
		else
			memset(dst, 0, n);
		dst += n;
		offset += n;
		len -= n;
	}
}

void sim_file_poke(struct sim_file *f, uint64_t offset, const void *buf, size_t len)
{
	const uint8_t *src = buf;

	while (len > 0) {
		uint32_t in = (uint32_t)(offset % SIM_PAGE);
		size_t n = len < SIM_PAGE - in ? len : SIM_PAGE - in;

		memcpy(tree_own_page(&f->now, offset / SIM_PAGE)->data + in, src, n);
		memcpy(tree_own_page(&f->durable, offset / SIM_PAGE)->data + in, src, n);
		src += n;
		offset += n;
		len -= n;
	}
}

void sim_file_resize(struct sim_file *f, uint64_t size)
{
	if (size < f->size) {
		tree_cut(&f->now, size);
		tree_cut(&f->durable, size);
	}
	f->size = f->durable_size = size;
}

/* ---- the whole ---------------------------------------------------------------------------------- */

void sim_media_init(struct sim_media *m)
{
	tn_list_init(&m->files);
}

void sim_media_clone(const struct sim_media *m, struct sim_media *out)
{
	sim_media_init(out);
	for (struct tn_list *n = m->files.next; n != &m->files; n = n->next) {
		struct sim_file *f = tn_container_of(n, struct sim_file, link);
		struct sim_file *c = file_new(out, f->path);

		tree_clone(&f->now, &c->now);
		tree_clone(&f->durable, &c->durable);
		c->size = f->size;
		c->durable_size = f->durable_size;
		c->unlinked = f->unlinked;
		c->bad_from = f->bad_from;
		c->bad_to = f->bad_to;
		writes_clone(&f->inflight, &c->inflight);
		writes_clone(&f->volatiles, &c->volatiles);
	}
}

void sim_media_destroy(struct sim_media *m)
{
	struct tn_list *n;

	while ((n = m->files.next) != &m->files)
		file_destroy(tn_container_of(n, struct sim_file, link));
}

uint64_t sim_media_bytes(const struct sim_media *m)
{
	uint64_t bytes = 0;

	for (struct tn_list *n = m->files.next; n != &m->files; n = n->next) {
		const struct sim_file *f = tn_container_of(n, struct sim_file, link);

		if (!f->unlinked || f->opens)
			bytes += f->size;
	}
	return bytes;
}

uint64_t sim_media_digest(const struct sim_media *m)
{
	uint64_t sum = 0;

	for (struct tn_list *n = m->files.next; n != &m->files; n = n->next) {
		const struct sim_file *f = tn_container_of(n, struct sim_file, link);
		uint64_t h[3] = {tn_hash64(f->path, strlen(f->path)), f->durable_size, f->unlinked};

		for (uint64_t page = 0; page * SIM_PAGE < f->durable_size; page++) {
			const struct sim_page *p = tree_page(&f->durable, page);

			if (p) {
				h[2] += page * 0x9e3779b97f4a7c15u ^ tn_hash64(p->data, SIM_PAGE);
				h[2] = tn_hash64(&h[2], sizeof(h[2]));
			}
		}
		sum += tn_hash64(h, sizeof(h));
	}
	return sum;
}

/* ---- the crash ---------------------------------------------------------------------------------- */

const char *tn_simdisk_crash_name(enum tn_simdisk_crash mode)
{
	static const char *const names[] = {
		[TN_SIMDISK_DROP] = "drop",	      [TN_SIMDISK_KEEP] = "keep",
		[TN_SIMDISK_TEAR] = "tear",	      [TN_SIMDISK_SUBSET] = "subset",
		[TN_SIMDISK_LAST_ONLY] = "last-only", [TN_SIMDISK_LAST_LOST] = "last-lost",
		[TN_SIMDISK_ONE_LOST] = "one-lost",   [TN_SIMDISK_INFLIGHT_ONLY] = "inflight-only",
		[TN_SIMDISK_KILL] = "kill",
	};

	return (unsigned)mode < TN_SIMDISK_CRASH_MODES ? names[mode] : "?";
}

struct fate {
	enum tn_simdisk_crash mode;
	struct tn_rng *rng;
	uint64_t count; /* unflushed writes over all files */
	uint64_t youngest; /* the highest order among them */
	uint64_t chosen, at; /* by count */
};

static void fate_survey(struct fate *fate, struct tn_list *list)
{
	for (struct tn_list *n = list->next; n != list; n = n->next) {
		struct sim_write *w = tn_container_of(n, struct sim_write, link);

		fate->count++;
		if (w->order > fate->youngest)
			fate->youngest = w->order;
	}
}

static struct tear fate_of(struct fate *fate, const struct sim_write *w, bool in_flight)
{
	bool keep = false;
	uint64_t at = fate->at++;

	switch (fate->mode) {
	case TN_SIMDISK_TEAR:
		return tear_random(w, fate->rng);
	case TN_SIMDISK_KEEP:
		keep = true;
		break;
	case TN_SIMDISK_SUBSET:
		keep = tn_rng_below(fate->rng, 2);
		break;
	case TN_SIMDISK_LAST_ONLY:
		keep = w->order == fate->youngest;
		break;
	case TN_SIMDISK_LAST_LOST:
		keep = w->order != fate->youngest;
		break;
	case TN_SIMDISK_ONE_LOST:
		keep = at != fate->chosen;
		break;
	case TN_SIMDISK_INFLIGHT_ONLY:
		keep = in_flight;
		break;
	case TN_SIMDISK_DROP:
	default:
		break;
	}
	return (struct tear){.share = 256, .sectors = keep ? write_sectors(w) : 0};
}

static void shuffle(struct tn_list *list, struct tn_rng *rng)
{
	struct tn_list out;

	tn_list_init(&out);
	while (!tn_list_empty(list)) {
		struct tn_list *n = list->next;

		tn_list_del(n);
		if (tn_rng_below(rng, 2))
			tn_list_push(&out, n);
		else
			tn_list_push_front(&out, n);
	}
	while (!tn_list_empty(&out)) {
		struct tn_list *n = out.next;

		tn_list_del(n);
		tn_list_push(list, n);
	}
}

/* Only the process died: what was in flight got there, in part, or not at all. */
static void file_kill(struct sim_file *f, uint64_t returned, struct tn_rng *rng)
{
	shuffle(&f->inflight, rng);
	while (!tn_list_empty(&f->inflight)) {
		struct sim_write *w = tn_container_of(f->inflight.next, struct sim_write, link);
		uint32_t chance = tn_rng_below(rng, 3);

		if (chance == 0)
			sim_write_forget(w);
		else
			sim_write_apply(f, w, chance == 1, rng);
	}
	for (struct tn_list *n = f->volatiles.next; n != &f->volatiles; n = n->next) {
		struct sim_write *w = tn_container_of(n, struct sim_write, link);

		w->returned = w->returned ? w->returned : returned;
	}
	f->opens = 0;
	f->locked = false;
}

static void file_crash(struct sim_file *f, struct fate *fate)
{
	uint64_t end = 0;
	bool kept_size;

	/* Writes in flight together have no order; those that completed keep theirs. */
	if (fate->mode == TN_SIMDISK_TEAR || fate->mode == TN_SIMDISK_SUBSET)
		shuffle(&f->inflight, fate->rng);
	for (int in_flight = 0; in_flight < 2; in_flight++) {
		struct tn_list *list = in_flight ? &f->inflight : &f->volatiles;

		for (struct tn_list *n = list->next; n != list; n = n->next) {
			struct sim_write *w = tn_container_of(n, struct sim_write, link);

			tree_apply_torn(&f->durable, w, fate_of(fate, w, in_flight), fate->rng, &end);
		}
		writes_destroy(list);
	}
	/* An extension that no sync covers is kept or not; bytes beyond the kept end are gone with it. */
	kept_size = fate->mode == TN_SIMDISK_KEEP || fate->mode == TN_SIMDISK_LAST_LOST ||
		    fate->mode == TN_SIMDISK_ONE_LOST || (fate->mode != TN_SIMDISK_DROP && tn_rng_below(fate->rng, 2));
	if (kept_size && f->size > f->durable_size)
		f->durable_size = f->size;
	if (kept_size && end > f->durable_size)
		f->durable_size = end; /* a write in flight had extended it */
	if (f->size > f->durable_size || end > f->durable_size)
		tree_cut(&f->durable, f->durable_size);
	f->size = f->durable_size;
	tree_destroy(&f->now);
	tree_clone(&f->durable, &f->now);
	f->opens = 0;
	f->locked = false;
}

void sim_media_crash(struct sim_media *m, enum tn_simdisk_crash mode, uint64_t returned, struct tn_rng *rng)
{
	struct fate fate = {.mode = mode, .rng = rng};
	struct tn_list *n, *tmp;

	tn_list_for_each_safe(n, tmp, &m->files) {
		fate_survey(&fate, &tn_container_of(n, struct sim_file, link)->volatiles);
		fate_survey(&fate, &tn_container_of(n, struct sim_file, link)->inflight);
	}
	fate.chosen = fate.count ? tn_rng_below(rng, (uint32_t)fate.count) : 0;
	tn_list_for_each_safe(n, tmp, &m->files) {
		struct sim_file *f = tn_container_of(n, struct sim_file, link);

		if (mode == TN_SIMDISK_KILL) {
			file_kill(f, returned, rng);
			continue;
		}
		file_crash(f, &fate);
		if (!f->unlinked)
			continue;
		/* A removal is not durable by itself, unless the name was given to a new file. */
		f->unlinked = false;
		tn_list_del(&f->link);
		if (sim_file_find(m, f->path) || mode == TN_SIMDISK_KEEP ||
		    (mode != TN_SIMDISK_DROP && tn_rng_below(rng, 2)))
			file_destroy(f);
		else
			tn_list_push(&m->files, &f->link);
	}
}
