/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery: from checkpoint and log to the state in memory. Writes nothing; run twice it gives the same.
 *
 * Per device: the newest root whose pages are all readable (else the newest, with the slots of damaged
 * pages taken from their block headers), then the log from the root's position to its end. When the log
 * is known to be damaged or no root is left, the device is rebuilt from headers (rebuild.c). Then
 * what the table says is checked against segment headers (adopt.c) and spaces, and each key's highest
 * sequence is given to the owner.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define LOG_WINDOW (4u << 20)
#define BAD_PAGE UINT32_MAX /* instead of the number of a page that is unreadable or not valid */
#define SEQUENCE_JUMP (1ull << 24) /* more than a session can have used without a trace */
#define EPOCH_JUMP (1ull << 20) /* likewise of epochs, one for each failed sync */

/* ---- pages ---------------------------------------------------------------------------------------------------- */

static bool segment_record_ok(struct tn_store *s, const struct tn_disk_record *r)
{
	uint32_t shape;

	if (r->kind != TN_DISK_SEGMENT)
		return true;
	return r->generation > 0 && tn_store_shape_of(s, &r->shape, &shape);
}

static int load_segment_pages(struct tn_store_table *t, uint64_t offset)
{
	struct tn_store *s = t->dev->store;
	int rc = 0;

	tn_store_bulk_read(t->dev, offset, t->seg_page, (uint64_t)s->table_pages * TN_DISK_PAGE);
	for (uint32_t i = 0; i < s->table_pages && rc == 0; i++)
		rc = tn_store_checked(t->dev, tn_disk_page_check(&t->seg_page[i], TN_DISK_PAGE, t->dev->super.device_uuid, i));
	for (uint32_t i = 0; i < s->segment_count && rc == 0; i++)
		if (!segment_record_ok(s, tn_store_seg(t, i)))
			rc = tn_fail(-EBADMSG, "segment %u: impossible values in the checkpoint", i);
	return rc;
}

static void check_pages(struct tn_store_table *t, uint32_t first, uint32_t n)
{
	struct tn_store *s = t->dev->store;

	for (uint32_t p = first; p < first + n; p++) {
		if (tn_store_checked(t->dev, tn_disk_page_check(&t->page[p], TN_DISK_PAGE, t->dev->super.device_uuid,
								s->table_pages + p)) == 0)
			continue;
		t->bad_pages++;
		memset(&t->page[p], 0, sizeof(t->page[p]));
		t->page[p].number = BAD_PAGE;
		t->page[p].generation = tn_store_seg(t, p / s->segment_pages)->generation;
	}
}

/* The slot pages of runs of assigned segments, in large reads. */
static void load_slot_pages(struct tn_store_table *t, uint64_t offset)
{
	struct tn_store *s = t->dev->store;

	for (uint32_t first = 0, end; first < s->segment_count; first = end + 1) {
		uint32_t p = first * s->segment_pages, n;

		for (end = first; end < s->segment_count && tn_store_seg(t, end)->kind == TN_DISK_SEGMENT;)
			end++;
		n = (end - first) * s->segment_pages;
		tn_store_bulk_read(t->dev, offset + (uint64_t)p * TN_DISK_PAGE, &t->page[p], (uint64_t)n * TN_DISK_PAGE);
		check_pages(t, p, n);
	}
}

static int load_root(struct tn_store_table *t, const struct tn_disk_root *root, uint32_t region)
{
	struct tn_store *s = t->dev->store;
	uint64_t pages = t->dev->super.checkpoint_offset[region] + sizeof(*root);
	int rc;

	if (root->page_count != tn_store_page_count(s))
		return tn_fail(-EBADMSG, "%s: a checkpoint of %u pages", t->dev->path, root->page_count);
	memset(t->seg_page, 0, (size_t)tn_store_page_count(s) * TN_DISK_PAGE);
	t->bad_pages = 0;
	rc = load_segment_pages(t, pages);
	if (rc == 0)
		load_slot_pages(t, pages + (uint64_t)s->table_pages * TN_DISK_PAGE);
	return rc;
}

/* ---- the log -------------------------------------------------------------------------------------------------- */

/*
 * A record says what its slot is. Pages may already be newer than the record (a checkpoint is written while
 * the log goes on): older assignments of a segment change nothing.
 */
static void apply(struct tn_store_table *t, const struct tn_disk_record *r)
{
	struct tn_store *s = t->dev->store;
	struct tn_disk_page *page;
	uint32_t p;

	if (r->segment >= s->segment_count || r->sequence >= TN_DISK_LIMIT)
		return;
	if (r->sequence > t->max_sequence)
		t->max_sequence = r->sequence;
	if (r->kind == TN_DISK_SEGMENT) {
		if (r->generation >= tn_store_seg(t, r->segment)->generation && segment_record_ok(s, r))
			*tn_store_seg(t, r->segment) = *r;
		tn_store_page_dirty(t->dev, r->segment / TN_DISK_RECORDS);
		for (uint32_t i = 0; i < s->segment_pages; i++)
			tn_store_page_dirty(t->dev, s->table_pages + r->segment * s->segment_pages + i);
		return;
	}
	if (r->index >= s->segment_pages * TN_DISK_RECORDS)
		return;
	p = r->segment * s->segment_pages + r->index / TN_DISK_RECORDS;
	page = &t->page[p];
	if (r->generation < page->generation)
		return;
	if (r->generation > page->generation) {
		memset(page->rec, 0, sizeof(page->rec));
		page->generation = r->generation;
	}
	page->rec[r->index % TN_DISK_RECORDS] = *r;
	tn_store_page_dirty(t->dev, s->table_pages + p);
}

struct replay {
	struct tn_store_table *t;
	unsigned char *window;
	struct tn_log_point next;
	uint64_t window_at, window_bytes;
	uint64_t end; /* position after which the region has been read once */
	uint32_t groups;
};

/* Brings `need` bytes at the position into the window; fewer only at the end of the region. */
static const unsigned char *log_bytes_at(struct replay *r, uint64_t position, uint32_t need, uint32_t *got)
{
	struct tn_store_device *d = r->t->dev;
	uint64_t size = d->super.log_bytes, to_end = size - position % size;

	if (need > to_end)
		need = (uint32_t)to_end;
	if (position < r->window_at || position + need > r->window_at + r->window_bytes) {
		/* The first look is short: most logs are. */
		uint64_t n = r->groups < 8 ? TN_STORE_GROUP_BYTES : LOG_WINDOW;

		r->window_at = position;
		r->window_bytes = n < to_end ? n : to_end;
		tn_store_bulk_read(d, d->super.log_offset + position % size, r->window, r->window_bytes);
	}
	*got = (uint32_t)(r->window_at + r->window_bytes - position);
	return r->window + (position - r->window_at);
}

/* The group at this position with this sequence, or NULL. */
static const struct tn_disk_group *group_at(struct replay *r, uint64_t position, uint64_t sequence)
{
	struct tn_store_device *d = r->t->dev;
	uint32_t got, bytes;
	const unsigned char *p = log_bytes_at(r, position, TN_DISK_PAGE, &got);
	int rc = tn_disk_group_check(p, got, d->super.device_uuid, position, sequence, r->t->max_epoch, &bytes);

	if (rc == -EMSGSIZE) {
		p = log_bytes_at(r, position, bytes, &got);
		rc = tn_disk_group_check(p, got, d->super.device_uuid, position, sequence, r->t->max_epoch, &bytes);
	}
	return tn_store_checked(d, rc) ? NULL : (const struct tn_disk_group *)(const void *)p;
}

/* Was this group durable, or is it certain that no power cut came after it? */
static bool whole(const struct tn_store_table *t, const struct tn_disk_group *g)
{
	return t->believe_all || g->sequence < t->mark_sequence || (t->same_boot && g->epoch >= t->mark_epoch);
}

/* May the blocks that this group names be lost although it can be read? Removals do no harm. */
static bool believed(const struct tn_store_table *t, const struct tn_disk_group *g)
{
	const struct tn_disk_record *rec = (const struct tn_disk_record *)(const void *)(g + 1);

	if (whole(t, g))
		return true;
	for (uint32_t i = 0; i < g->records; i++)
		if (rec[i].kind == TN_DISK_BLOCK || rec[i].kind == TN_DISK_SEGMENT)
			return false;
	return true;
}

/*
 * After the chain ended: does it go on behind a damaged group? A dying process tears only the last one, so a later one proves
 * damage, or a write that failed. What it says is still true, since records are states. A power cut leaves any of those
 * behind the mark: there a gap is the end.
 */
static const struct tn_disk_group *behind_damage(struct replay *r)
{
	for (uint32_t skip = TN_DISK_PAGE; skip <= TN_STORE_GROUP_BYTES; skip += TN_DISK_PAGE) {
		uint64_t position = r->next.position + skip;
		const struct tn_disk_group *g;
		uint32_t got;

		if (position >= r->end)
			return NULL;
		g = (const struct tn_disk_group *)(const void *)log_bytes_at(r, position, TN_DISK_PAGE, &got);
		if (g->head.magic != TN_DISK_MAGIC_LOG || g->position != position || g->sequence <= r->next.sequence)
			continue;
		g = group_at(r, position, g->sequence);
		if (g)
			return whole(r->t, g) ? g : NULL;
	}
	return NULL;
}

/*
 * Is a group missing that was durable? Those before the mark were. A mark from before this root's session may count the groups of a
 * log that was begun anew since.
 */
static bool durable_is_missing(const struct replay *r, const struct tn_disk_root *root)
{
	const struct tn_store_table *t = r->t;

	return !t->believe_all && t->mark_epoch >= root->epoch && r->next.sequence < t->mark_sequence;
}

static void apply_group(struct tn_store_table *t, const struct tn_disk_group *g)
{
	const struct tn_disk_record *rec = (const struct tn_disk_record *)(const void *)(g + 1);
	bool good = believed(t, g);

	t->dev->distrusted |= !good;
	for (uint32_t i = 0; i < g->records; i++) {
		if (good)
			apply(t, &rec[i]);
		else if (rec[i].sequence < TN_DISK_LIMIT && rec[i].sequence > t->max_sequence)
			t->max_sequence = rec[i].sequence; /* a header that has it may be on the disk */
	}
}

static int replay(struct tn_store_table *t, const struct tn_disk_root *root)
{
	struct tn_store_device *d = t->dev;
	struct replay r = {.t = t,
			   .next = {root->log_position, root->log_sequence},
			   .end = root->log_position + d->super.log_bytes};
	bool damaged = false;

	r.window = tn_store_pages_get(d->store, LOG_WINDOW);
	if (!r.window)
		return tn_fail(-ENOMEM, "no memory to replay the log");
	t->max_epoch = root->epoch;
	d->distrusted = false;
	d->log.again = r.next;
	while (r.next.position < r.end) {
		const struct tn_disk_group *g = group_at(&r, r.next.position, r.next.sequence);

		damaged = !g && durable_is_missing(&r, root);
		if (damaged)
			break;
		if (!g) {
			g = behind_damage(&r);
			if (!g)
				break;
			tn_log(d->store->log, TN_LOG_WARN, "%s: the log is damaged before group %llu; going on there", d->path,
			       (unsigned long long)g->sequence);
			r.next = (struct tn_log_point){g->position, g->sequence};
		}
		apply_group(t, g);
		t->max_epoch = g->epoch;
		if (t->believe_all || r.next.sequence < t->mark_sequence)
			d->log.again = r.next;
		r.next.position += g->bytes;
		r.next.sequence++;
		r.groups++;
	}
	tn_store_pages_put(d->store, r.window, LOG_WINDOW);
	d->log.tail = root->log_position;
	d->log.next = r.next;
	if (damaged)
		return tn_fail(-EBADMSG, "%s: the log is damaged at group %llu", d->path, (unsigned long long)r.next.sequence);
	if (t->mark_damaged && d->distrusted)
		return tn_fail(-EBADMSG, "%s: a mark is damaged, and with it how far the log was durable", d->path);
	if ((root->log_required && r.groups == 0) || t->max_epoch < d->super.log_epoch)
		return tn_fail(-EBADMSG, "%s: the log is lost", d->path);
	return 0;
}

/* ---- one device ------------------------------------------------------------------------------------------------- */

/*
 * Can a root that is not valid be what a power cut left of one that was being written? Then its first bytes are those of
 * the old one or of the new one, or zero if there was none; and the store was not closed, since that ends with a whole one.
 */
static bool unfinished(const struct tn_store_device *d, const struct tn_disk_root *root, const struct tn_disk_root *other)
{
	static const struct tn_disk_head none;
	bool zero = memcmp(&root->head, &none, sizeof(none)) == 0;

	if (d->super.state == TN_DISK_CLEAN)
		return zero && other->checkpoint == 1;
	return zero || (root->head.magic == TN_DISK_MAGIC_ROOT && root->head.version == TN_DISK_VERSION);
}

static int read_roots(struct tn_store_device *d, struct tn_disk_root *root, bool valid[2])
{
	bool readable[2];

	for (int i = 0; i < 2; i++) {
		readable[i] =
			tn_store_sync_io(d, TN_IO_READ, d->super.checkpoint_offset[i], &root[i], sizeof(root[i])) == 0;
		valid[i] = readable[i] && tn_store_checked(d, tn_disk_root_check(&root[i], sizeof(root[i]), &d->super)) == 0;
	}
	for (int i = 0; i < 2; i++)
		if (!valid[i] && valid[!i] && !(readable[i] && unfinished(d, &root[i], &root[!i])))
			tn_log(d->store->log, TN_LOG_WARN, "%s: one checkpoint is damaged: going on with the other and the log",
			       d->path);
	return valid[0] || valid[1] ? 0 : tn_fail(-EBADMSG, "%s: no checkpoint is left", d->path);
}

static int use_root(struct tn_store_table *t, const struct tn_disk_root *root, uint32_t region)
{
	struct tn_store *s = t->dev->store;
	uint32_t words = (tn_store_page_count(s) + 63) / 64;
	int rc;

	memset(t->dev->ckpt.dirty[region], 0, words * sizeof(uint64_t));
	memset(t->dev->ckpt.dirty[!region], 0xff, words * sizeof(uint64_t));
	t->max_sequence = root->next_sequence;
	for (uint32_t p = 0; p < s->slot_pages && t->bad_pages > 0; p++) {
		if (t->page[p].number != BAD_PAGE)
			continue;
		rc = tn_store_rebuild_parts(t, p / s->segment_pages, p % s->segment_pages, 1);
		if (rc)
			return rc;
		tn_store_page_dirty(t->dev, s->table_pages + p);
	}
	rc = replay(t, root);
	t->dev->ckpt.region = !region;
	return rc;
}

/* From checkpoint and log; an error other than -ENOMEM means that only the headers are left. */
static int load_index(struct tn_store_table *t, const struct tn_disk_root *root, const bool *valid)
{
	struct tn_store_device *d = t->dev;
	uint32_t newest = valid[1] && (!valid[0] || root[1].checkpoint > root[0].checkpoint);
	int rc;

	rc = load_root(t, &root[newest], newest);
	if (rc == 0 && t->bad_pages == 0)
		return use_root(t, &root[newest], newest);
	tn_log(d->store->log, TN_LOG_WARN, "%s: the newest checkpoint is damaged (%s)", d->path,
	       rc ? tn_error_last()->text : "single pages");
	if (valid[!newest]) {
		rc = load_root(t, &root[!newest], !newest);
		if (rc == 0 && t->bad_pages == 0 && root[!newest].log_required && use_root(t, &root[!newest], !newest) == 0)
			return 0;
	}
	rc = load_root(t, &root[newest], newest);
	return rc ? rc : use_root(t, &root[newest], newest);
}

/* What it says of the groups behind it: see believed(). */
static void load_mark(struct tn_store_table *t)
{
	const struct tn_store_device *d = t->dev;
	const uint64_t *boot = d->store->boot;
	struct tn_disk_mark mark;

	t->believe_all = true;
	if (tn_store_mark_load(t->dev, &mark, &t->mark_damaged))
		return;
	t->mark_sequence = mark.sequence;
	t->mark_epoch = mark.epoch;
	/* Then a program that writes no marks has opened the store since. */
	t->believe_all = d->super.epoch > mark.epoch;
	t->same_boot = (boot[0] || boot[1]) && boot[0] == mark.boot[0] && boot[1] == mark.boot[1];
}

static int recover_device(struct tn_store_table *t)
{
	struct tn_store_device *d = t->dev;
	struct tn_disk_root *root = d->ckpt.buffer;
	bool valid[2] = {false, false};
	int rc;

	rc = read_roots(d, root, valid);
	for (int i = 0; i < 2; i++) /* a rebuilt index continues their numbers */
		if (valid[i] && root[i].checkpoint > d->ckpt.number)
			d->ckpt.number = root[i].checkpoint;
	if (d->store->spaces_doubted || d->store->rebuild)
		rc = tn_fail(-EBADMSG, "%s", d->store->rebuild ? "as asked for" : "the newest space table is lost");
	if (rc == 0)
		rc = load_index(t, root, valid);
	if (rc == 0 || rc == -ENOMEM)
		return rc;
	tn_log(d->store->log, d->store->rebuild ? TN_LOG_INFO : TN_LOG_WARN,
	       "%s: rebuilding the index from block headers (%s)", d->path, tn_error_last()->text);
	d->lost = true;
	return tn_store_rebuild(t);
}

/* ---- from the table to memory --------------------------------------------------------------------------------------- */

/* The newest slot of each key so far: open addressing over the slots; the tables have their records. */
struct seen {
	struct tn_store_table *table; /* of each device */
	tn_slot *next; /* the slot's number plus one; 0: none */
	size_t mask, bytes;
	int refused; /* why the owner cannot know all of them */
};

static struct tn_disk_record *record_of(const struct tn_store_table *t, uint32_t local)
{
	return &t->page[local >> 6].rec[local & 63];
}

/* Forgets a slot durably. */
static void drop(struct tn_store_table *t, uint32_t local)
{
	record_of(t, local)->kind = TN_DISK_EMPTY;
	tn_store_slot_set(t->dev, local, TN_SLOT_FREEING);
	tn_store_item_changed(t->dev, tn_store_slot_item(t->dev->store, local));
}

/* Where the newest slot of this key of this space is noted, or will be. */
static tn_slot *find_seen(const struct seen *seen, const struct tn_disk_record *r)
{
	const struct tn_store *s = seen->table->dev->store;
	uint64_t name[3] = {r->key.word[0], r->key.word[1], r->space};
	size_t i = tn_hash64(name, sizeof(name)) & seen->mask;

	for (; seen->next[i] > 0; i = (i + 1) & seen->mask) {
		tn_slot slot = seen->next[i] - 1;
		const struct tn_disk_record *other =
			record_of(&seen->table[tn_store_device_of(s, slot)->index], tn_store_local(s, slot));

		if (tn_key_eq(&other->key, &r->key) && other->space == r->space)
			break;
	}
	return &seen->next[i];
}

/* Of several slots with a key the newest stays. */
static void note_block(struct tn_store_table *t, uint32_t local, struct seen *seen)
{
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	const struct tn_disk_record *r = record_of(t, local);
	tn_slot *newest;

	if (!tn_store_spaces_valid(s, r->space, r->sequence)) {
		d->salvage.dropped++;
		drop(t, local);
		return;
	}
	newest = find_seen(seen, r);
	if (*newest > 0) {
		struct tn_store_table *ot = &seen->table[tn_store_device_of(s, *newest - 1)->index];
		uint32_t other = tn_store_local(s, *newest - 1);

		d->salvage.superseded++;
		if (record_of(ot, other)->sequence >= r->sequence) {
			drop(t, local);
			return;
		}
		drop(ot, other);
	}
	*newest = tn_store_global(d, local) + 1;
}

/* Slots begin as free ones of their segment, then take the state that the table says. */
static void note_slot(struct tn_store_table *t, uint32_t local, struct seen *seen)
{
	const struct tn_disk_record *r = record_of(t, local);
	struct tn_slot_meta *m = &t->dev->meta[local];

	m->failures = r->failures < TN_SLOT_FAILURES_MAX ? r->failures : TN_SLOT_FAILURES_MAX;
	if (r->kind == TN_DISK_QUARANTINED)
		tn_store_slot_set(t->dev, local, TN_SLOT_QUARANTINED);
	if (r->kind != TN_DISK_BLOCK || r->sequence >= TN_DISK_LIMIT)
		return;
	m->sequence = r->sequence;
	note_block(t, local, seen);
}

static void hand_over(struct tn_store_table *t, uint32_t local, struct seen *seen)
{
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	const struct tn_disk_record *r = record_of(t, local);
	struct tn_index_entry e = tn_disk_record_entry(r);

	if (r->kind != TN_DISK_BLOCK || r->sequence >= TN_DISK_LIMIT)
		return;
	d->cookie[local] = s->cb.recovered(s->cb.arg, tn_store_global(d, local), &e);
	if (d->cookie[local] == TN_STORE_REFUSED)
		seen->refused = tn_error_last()->code;
	if (d->cookie[local] == UINT32_MAX) {
		drop(t, local);
		return;
	}
	tn_store_slot_set(d, local, TN_SLOT_COMMITTED);
	d->segs[tn_store_segment_of(s, local)].warm += (float)r->recency; /* the mean is taken at the end */
	s->recency = s->recency > r->recency ? s->recency : r->recency;
}

/* Calls fn for each slot of a segment of which the table says something. */
static void each_slot(struct tn_store_table *t, uint32_t segment, struct seen *seen,
		      void (*fn)(struct tn_store_table *t, uint32_t local, struct seen *seen))
{
	const struct tn_store_segment *sg = &t->dev->segs[segment];
	const struct tn_store *s = t->dev->store;

	for (uint32_t i = 0; sg->shape != TN_SHAPE_NONE && i < s->shape[sg->shape].slot_count; i++) {
		uint32_t local = tn_store_local_of(s, segment, i);

		if (t->page[local >> 6].generation == sg->generation)
			fn(t, local, seen);
	}
}

/* ---- all devices --------------------------------------------------------------------------------------------------- */

static int table_get(struct tn_store_device *d, struct tn_store_table *t)
{
	struct tn_store *s = d->store;

	*t = (struct tn_store_table){.dev = d, .max_epoch = 0};
	t->seg_page = tn_store_pages_get(s, (size_t)tn_store_page_count(s) * TN_DISK_PAGE);
	if (!t->seg_page)
		return tn_fail(-ENOMEM, "no memory for a slot table of %u pages", s->slot_pages);
	t->page = t->seg_page + s->table_pages;
	return 0;
}

static uint64_t count_blocks(const struct tn_store_table *t)
{
	const struct tn_store *s = t->dev->store;
	uint64_t n = 0;

	for (uint32_t p = 0; p < s->slot_pages; p++)
		for (uint32_t i = 0; i < TN_DISK_RECORDS && t->page[p].generation != 0; i++)
			n += t->page[p].rec[i].kind == TN_DISK_BLOCK;
	return n;
}

static int adopt_tables(struct tn_store *s, struct tn_store_table *t)
{
	struct seen seen = {.table = t, .mask = 1023};
	uint64_t blocks = 0;

	for (uint32_t i = 0; i < s->ndevices; i++)
		blocks += count_blocks(&t[i]);
	while (seen.mask < 4 * blocks)
		seen.mask = seen.mask * 2 + 1;
	seen.bytes = (seen.mask + 1) * sizeof(*seen.next);
	seen.next = tn_get(s->alloc, seen.bytes);
	if (!seen.next)
		return tn_fail(-ENOMEM, "no memory to compare %llu keys", (unsigned long long)blocks);
	for (uint32_t i = 0; i < s->ndevices; i++)
		for (uint32_t k = 0; k < s->segment_count && !s->dev[i].absent; k++) {
			if (s->dev[i].segs[k].shape == TN_SHAPE_NONE)
				tn_store_segment_place(&s->dev[i], k);
			else
				tn_store_segment_fill(&s->dev[i], k);
			each_slot(&t[i], k, &seen, note_slot);
		}
	for (uint32_t i = 0; i < s->ndevices; i++)
		for (uint32_t k = 0; k < s->segment_count && !s->dev[i].absent; k++) {
			struct tn_store_segment *sg = &s->dev[i].segs[k];

			each_slot(&t[i], k, &seen, hand_over);
			if (sg->slots[TN_SLOT_COMMITTED] > 0)
				sg->warm /= (float)sg->slots[TN_SLOT_COMMITTED];
		}
	tn_put(s->alloc, seen.next, seen.bytes);
	return seen.refused ? tn_fail_cause(seen.refused, "not all blocks of the store can be known") : 0;
}

/* One line: what the rebuild saved, what not, and why. */
static void tell_salvage(const struct tn_store_device *d)
{
	const struct tn_store_salvage *v = &d->salvage;

	tn_log(d->store->log, TN_LOG_INFO,
	       "%s: saved %llu blocks from the headers of %u segments (%u of them had lost their own header); not saved: %llu damaged and "
	       "%llu unreadable block headers, %llu blocks older than another of their key, %llu of dropped or unknown spaces, %u "
	       "segments without a good header",
	       d->path, (unsigned long long)d->slots[TN_SLOT_COMMITTED], v->segments, v->segments_without, (unsigned long long)v->damaged,
	       (unsigned long long)v->unreadable, (unsigned long long)v->superseded, (unsigned long long)v->dropped,
	       v->segments_lost);
}

int tn_store_recover(struct tn_store *s)
{
	struct tn_store_table t[TN_DEVICES_MAX];
	uint64_t sequence = 0, epoch = 0, jump;
	uint32_t n = 0;
	int rc = 0;

	for (; n < s->ndevices && rc == 0; n++) {
		rc = table_get(&s->dev[n], &t[n]);
		if (rc == 0 && !s->dev[n].absent)
			load_mark(&t[n]);
	}
	if (rc == 0)
		tn_store_spaces_load(s);
	for (uint32_t i = 0; i < n && rc == 0; i++) {
		struct tn_store_device *d = &s->dev[i];

		if (d->absent)
			continue;
		rc = recover_device(&t[i]);
		if (rc == 0)
			rc = tn_store_adopt_segments(&t[i]);
		if (d->later.code)
			rc = tn_fail_at(d->later.where, "", d->later.code, "%s: %s", d->path, d->later.text);
		/* Groups behind a gap in the log may be of later epochs than any that was read. */
		t[i].max_epoch += t[i].believe_all || t[i].same_boot ? 0 : EPOCH_JUMP;
		sequence = sequence > t[i].max_sequence ? sequence : t[i].max_sequence;
		sequence = sequence > d->super.sequence_floor ? sequence : d->super.sequence_floor;
		epoch = epoch > t[i].max_epoch ? epoch : t[i].max_epoch;
		epoch = epoch > d->super.epoch ? epoch : d->super.epoch;
		epoch = epoch > t[i].mark_epoch ? epoch : t[i].mark_epoch;
		/* A rebuilt log begins anew: what lies in its region must all be older. */
		epoch += d->lost ? 1000 : 0;
	}
	for (uint32_t i = 0; i < s->spaces.count; i++)
		if (s->spaces.space[i].min_sequence > sequence)
			sequence = s->spaces.space[i].min_sequence;
	jump = s->read_only ? 1 : SEQUENCE_JUMP;
	s->sequence = sequence + jump;
	s->epoch = epoch + 1;
	if (rc == 0)
		rc = adopt_tables(s, t);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		if (s->dev[i].lost)
			tell_salvage(&s->dev[i]);
	for (uint32_t i = 0; i < n; i++)
		tn_store_pages_put(s, t[i].seg_page, (size_t)tn_store_page_count(s) * TN_DISK_PAGE);
	return rc;
}
