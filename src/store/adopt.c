/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery of segments: what the index says of each is compared with the segment's header, before anything is written into
 * it. A damaged header is made again if block headers bear out the index; nothing else is read here, and nothing written.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

/* What became of the segments that the index knows as assigned. */
struct adopted {
	uint32_t cut, damaged, mended, outdated;
	uint64_t kept, unfit; /* blocks of the mended ones */
};

/* What the header of a segment shows, beside the record that the index has of the segment. */
enum header_shows {
	SHOWS_NOTHING, /* the file ends before it */
	SHOWS_RECORD,  /* what the record says */
	SHOWS_NEWER,   /* a later assignment: the header is written before the record */
	SHOWS_OLDER,   /* an earlier one, or other sizes: the header is not what was written last */
	SHOWS_DAMAGE,  /* a checksum that does not fit, or a header of another place in this device */
	SHOWS_FOREIGN, /* a header of another device */
	SHOWS,
};

enum indexed { FREE, EMPTY, WITH_BLOCKS, INDEXED }; /* the segment, as the index has it */

enum verdict {
	UNUSED, /* it may be assigned */
	USE,
	MEND,	/* block headers decide whether it is what the record says */
	FORGET, /* its blocks are forgotten, and it may be assigned */
	OUTDATED, /* likewise: what the index says of it is older than its header */
	CUT,	/* its blocks are beyond the end of the file */
};

static const enum verdict verdicts[SHOWS][INDEXED] = {
	/*                  free    empty   with blocks */
	[SHOWS_NOTHING] = {UNUSED, CUT,    CUT},
	[SHOWS_RECORD]  = {UNUSED, USE,    USE},
	[SHOWS_NEWER]   = {UNUSED, UNUSED, OUTDATED},
	[SHOWS_OLDER]   = {UNUSED, UNUSED, MEND},
	[SHOWS_DAMAGE]  = {UNUSED, UNUSED, MEND},
	[SHOWS_FOREIGN] = {UNUSED, UNUSED, FORGET},
};

static enum header_shows header_shows(const struct tn_store_table *t, uint32_t i, int rc, const struct tn_disk_segment *h)
{
	const struct tn_disk_record *r = tn_store_seg(t, i);

	if (i >= t->dev->allocated)
		return SHOWS_NOTHING;
	if (rc)
		return rc == -EXDEV ? SHOWS_FOREIGN : SHOWS_DAMAGE;
	if (h->generation != r->generation)
		return h->generation > r->generation ? SHOWS_NEWER : SHOWS_OLDER;
	return memcmp(&h->shape, &r->shape, sizeof(h->shape)) == 0 ? SHOWS_RECORD : SHOWS_OLDER;
}

static enum indexed indexed(const struct tn_store_table *t, uint32_t i)
{
	const struct tn_disk_record *r = tn_store_seg(t, i);
	uint32_t pages = t->dev->store->segment_pages;

	if (r->kind != TN_DISK_SEGMENT)
		return FREE;
	for (const struct tn_disk_page *p = &t->page[i * pages]; p < &t->page[(i + 1) * pages]; p++)
		for (uint32_t k = 0; k < TN_DISK_RECORDS && p->generation == r->generation; k++)
			if (p->rec[k].kind == TN_DISK_BLOCK)
				return WITH_BLOCKS;
	return EMPTY;
}

/*
 * One block whose header is where the index says, and fits, proves that the segment still is what the record says; the header is
 * written anew with the first commit. A segment in which nothing fits begins anew.
 */
static int mend_segment(struct tn_store_table *t, uint32_t i, uint32_t shape, struct adopted *a)
{
	struct tn_store_segment *sg = &t->dev->segs[i];
	int rc = tn_store_compare_headers(t, i);

	a->damaged += t->fitting == 0;
	if (rc || t->fitting == 0)
		return rc;
	a->mended++;
	a->kept += t->fitting;
	a->unfit += t->unfit;
	sg->shape = shape;
	sg->generation = tn_store_seg(t, i)->generation;
	tn_store_header_dirty(t->dev, i);
	return 0;
}

static int adopt_segment(struct tn_store_table *t, uint32_t i, const struct tn_disk_segment *h, struct adopted *a)
{
	struct tn_store_device *d = t->dev;
	struct tn_store_segment *sg = &d->segs[i];
	const struct tn_disk_record *r = tn_store_seg(t, i);
	int rc = i < d->allocated ? tn_store_checked(d, tn_disk_segment_check(h, TN_DISK_PAGE, d->super.device_uuid, i)) : 0;
	enum header_shows shows = header_shows(t, i, rc, h);
	enum verdict verdict = verdicts[shows][indexed(t, i)];
	bool valid = shows == SHOWS_RECORD || shows == SHOWS_NEWER || shows == SHOWS_OLDER;
	uint32_t shape;

	sg->shape = TN_SHAPE_NONE;
	sg->prepared = valid && h->prepared;
	/* Of an assignment at most one can have reached the header and not the log: no lost header has the next generation but one. */
	sg->generation = r->generation + (r->kind == TN_DISK_SEGMENT && shows != SHOWS_RECORD);
	if (valid && h->generation > sg->generation)
		sg->generation = h->generation;
	a->cut += verdict == CUT;
	a->damaged += verdict == FORGET;
	a->outdated += verdict == OUTDATED;
	if (r->kind == TN_DISK_SEGMENT && verdict != USE) /* checkpoints say otherwise */
		tn_store_page_dirty(d, i / TN_DISK_RECORDS);
	if (verdict != USE && verdict != MEND)
		return 0;
	rc = tn_store_shape_get(d->store, r->shape.slot_bytes, r->shape.header_bytes, &shape);
	if (rc)
		return rc;
	if (verdict == MEND)
		return mend_segment(t, i, shape, a);
	sg->shape = shape;
	return 0;
}

int tn_store_adopt_segments(struct tn_store_table *t)
{
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	const struct tn_log *log = s->log;
	size_t bytes = (size_t)s->segment_count * TN_DISK_PAGE;
	struct tn_disk_segment *header = tn_store_pages_get(s, bytes);
	struct adopted a = {0};
	int rc = 0;

	if (!header)
		return tn_fail(-ENOMEM, "no memory for segment headers");
	tn_store_strided_read(d, d->super.segments_offset, s->segment_bytes, TN_DISK_PAGE, (uint64_t)d->allocated * TN_DISK_PAGE,
			      header);
	for (uint32_t i = 0; i < s->segment_count && rc == 0; i++)
		rc = adopt_segment(t, i, &header[i], &a);
	d->lost_segments = a.cut + a.damaged;
	if (a.cut > 0)
		tn_log(log, TN_LOG_WARN, "%s: the file is cut off: the blocks of %u segment%s beyond its end are forgotten", d->path,
		       a.cut, a.cut == 1 ? "" : "s");
	if (a.mended > 0)
		tn_log(log, TN_LOG_WARN, "%s: damaged headers of %u segment%s, made again from what is left: %llu blocks kept, %llu without a "
		       "header that fits forgotten",
		       d->path, a.mended, a.mended == 1 ? "" : "s", (unsigned long long)a.kept, (unsigned long long)a.unfit);
	if (a.outdated > 0)
		tn_log(log, TN_LOG_INFO, "%s: headers newer than the index: what it says of the blocks of %u segment%s is forgotten", d->path,
		       a.outdated, a.outdated == 1 ? "" : "s");
	if (a.damaged > 0)
		tn_log(log, TN_LOG_WARN, "%s: damaged headers: the blocks of %u segment%s are forgotten", d->path, a.damaged,
		       a.damaged == 1 ? "" : "s");
	tn_store_pages_put(s, header, bytes);
	return rc;
}
