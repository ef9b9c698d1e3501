/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tools' door: what `tenuto store info|verify|check` do, that is, look into a store without a cache around it.
 * On any engine, so that tests run it on the simulated disk; the public functions (front/admin.c) bring real files and a real engine.
 *
 * verify and check read every block: headers are held against the index, objects against their checksums. Many reads are
 * in flight across blocks (a window of memory holds the blocks that are being read, oldest first); blocks are judged in
 * order. That changes nothing, and drives the engine itself.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tenuto/admin.h>

#include "base/checksum.h"
#include "base/error.h"
#include "store/store_internal.h"

#define BLOCKS 256u /* that are being read */
#define WINDOW_BYTES (64ull << 20)
#define READ_BYTES (16u << 20) /* at once of one block; drives split what is too large for them */

struct block {
	struct tn_store_device *dev;
	uint32_t local;
	struct tn_store_place place;
	unsigned char *bytes; /* in the window: header, then data */
	uint64_t size, next; /* next: of the data, what is to be read next */
	struct tn_store_req header, data;
	bool header_bad, data_bad;
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
};

static struct block *nth(struct walk *w, uint32_t i)
{
	return &w->block[(w->first + i) % BLOCKS];
}

/* ---- reading blocks ---------------------------------------------------------------------------------------------- */

static void header_done(struct tn_store_req *r, int status)
{
	tn_container_of(r, struct block, header)->header_bad = status != 0;
}

static void read_data(struct block *b)
{
	uint64_t all = b->size - b->place.header_bytes, left = all - b->next;
	uint32_t n = left < READ_BYTES ? (uint32_t)left : READ_BYTES;

	if (n > 0)
		tn_store_req_submit(&b->data, TN_IO_READ, b->place.data_offset + b->next,
				    b->bytes + b->place.header_bytes + b->next, n);
	b->next += n;
}

static void data_done(struct tn_store_req *r, int status)
{
	struct block *b = tn_container_of(r, struct block, data);

	b->data_bad |= status != 0;
	read_data(b);
}

/* Where in the window so many bytes fit behind the youngest block; NULL: nowhere now. */
static unsigned char *find_place(struct walk *w, uint64_t bytes)
{
	unsigned char *head = nth(w, 0)->bytes, *tail, *end = w->window + w->window_bytes;

	if (w->count == 0)
		return w->window;
	tail = nth(w, w->count - 1)->bytes + nth(w, w->count - 1)->size;
	if (tail <= head) /* wrapped around */
		return (uint64_t)(head - tail) >= bytes ? tail : NULL;
	if ((uint64_t)(end - tail) >= bytes)
		return tail;
	return (uint64_t)(head - w->window) >= bytes ? w->window : NULL;
}

/* Begins to read a block; false: no free bytes now. */
static bool take(struct walk *w, struct tn_store_device *d)
{
	struct block *b = nth(w, w->count);
	struct tn_store_place place;
	unsigned char *bytes;
	uint64_t size;

	tn_store_locate(w->s, tn_store_global(d, w->local), &place);
	size = place.header_bytes + (w->verify ? place.slot_bytes : 0);
	bytes = w->count < BLOCKS ? find_place(w, size) : NULL;
	if (!bytes)
		return false;
	*b = (struct block){.dev = d, .local = w->local, .place = place, .bytes = bytes, .size = size};
	w->count++;
	tn_store_req_init(&b->header, d, header_done);
	tn_store_req_init(&b->data, d, data_done);
	tn_store_req_submit(&b->header, TN_IO_READ, place.header_offset, bytes, place.header_bytes);
	read_data(b);
	return true;
}

static void keep_reading(struct walk *w)
{
	for (; w->device < w->s->ndevices; w->device++, w->local = 0) {
		struct tn_store_device *d = &w->s->dev[w->device];

		for (; w->local < w->s->slot_pages << 6; w->local++)
			if (d->meta[w->local].state == TN_SLOT_COMMITTED && !take(w, d))
				return;
	}
}

/* ---- judging blocks ---------------------------------------------------------------------------------------------- */

/* Where a bad block lies and what is wrong with it. */
static void report_block(struct walk *w, const struct block *b, const struct tn_key *key, const char *what)
{
	tn_log(w->s->log, TN_LOG_WARN, "%s: slot %u (data from byte %" PRIu64 " on), block %016" PRIx64 "%016" PRIx64 ": %s",
	       b->dev->path, tn_store_global(b->dev, b->local), b->place.data_offset, key->word[0], key->word[1], what);
}

static void judge_objects(struct walk *w, const struct block *b, const struct tn_store_header *h)
{
	const unsigned char *data = b->bytes + b->place.header_bytes;
	uint64_t at = 0, bytes = b->place.slot_bytes;
	uint32_t bad = 0, first = 0;
	char text[96];

	for (uint32_t i = 0; i < h->nobjects; i++) {
		if (h->object_bytes[i] > bytes - at) {
			w->verify->corrupt_blocks++;
			report_block(w, b, &h->entry.key, "its objects do not fit the slot");
			return;
		}
		w->verify->objects++;
		w->verify->bytes += h->object_bytes[i];
		if (tn_checksum(data + at, h->object_bytes[i]) != h->object_checksum[i] && bad++ == 0)
			first = i;
		at = tn_round_up(at + h->object_bytes[i], TN_PLACE_ALIGN);
		at = at < bytes ? at : bytes;
	}
	if (bad == 0)
		return;
	w->verify->corrupt_objects += bad;
	snprintf(text, sizeof(text), "wrong checksum of %u of its %u objects, first of object %u", bad, h->nobjects, first);
	report_block(w, b, &h->entry.key, text);
}

static void judge(struct walk *w, const struct block *b)
{
	struct tn_admin_verify ignored = {0}, *v = w->verify ? w->verify : &ignored;
	struct tn_store_device *d = b->dev;
	tn_slot slot = tn_store_global(d, b->local);
	struct tn_store_header h;
	struct tn_index_entry e = {0};
	bool bad = b->header_bad;

	v->blocks++;
	v->io_errors += b->header_bad || b->data_bad;
	w->s->cb.describe(w->s->cb.arg, slot, d->cookie[b->local], &e);
	bad = bad || tn_store_header_decode(b->bytes, b->place.header_bytes, d->super.device_uuid, slot, &h) ||
	      !tn_key_eq(&h.entry.key, &e.key) || h.entry.sequence != e.sequence;
	if (bad) {
		w->stale++;
		v->corrupt_blocks++;
		report_block(w, b, &e.key, b->header_bad ? "the block header cannot be read"
						 : "the index and the block header do not agree");
	} else if (b->data_bad) {
		report_block(w, b, &e.key, "its objects cannot be read");
	} else if (w->verify) {
		judge_objects(w, b, &h);
	}
}

static int judge_all(struct walk *w)
{
	int rc = 0;

	for (keep_reading(w); w->count > 0 && rc == 0; keep_reading(w)) {
		struct block *b = nth(w, 0);

		if (b->header.busy || b->data.busy) {
			tn_store_poll(w->s, 100000000);
			continue;
		}
		judge(w, b);
		w->done += b->size;
		w->first = (w->first + 1) % BLOCKS;
		w->count--;
		if (w->a->progress && !w->a->progress(w->a->progress_arg, w->done, w->total))
			rc = tn_fail(-ECANCELED, "stopped by the caller");
	}
	while (w->s->inflight > 0)
		tn_store_poll(w->s, 100000000);
	return rc;
}

/* Reads all blocks; *stale: blocks of which index and header do not agree. */
static int walk_blocks(struct tn_store *s, const struct tn_admin_store *a, struct tn_admin_verify *verify, uint64_t *stale)
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
	tn_store_each(d, s) {
		if (verify)
			verify->lost_segments += d->lost_segments;
		for (uint32_t k = 0; k < d->allocated; k++) {
			const struct tn_store_segment *sg = &d->segs[k];

			if (sg->shape == TN_SHAPE_NONE)
				continue;
			w->total += (uint64_t)tn_store_used(sg) * s->shape[sg->shape].header_bytes;
			w->total += verify ? tn_store_used(sg) * s->shape[sg->shape].slot_bytes : 0;
		}
	}
	w->window = tn_store_pages_get(s, w->window_bytes);
	rc = w->window ? judge_all(w) : tn_fail(-ENOMEM, "no memory to read blocks");
	*stale = w->stale;
	tn_store_pages_put(s, w->window, w->window_bytes);
	tn_put(s->alloc, w, sizeof(*w));
	return rc;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* A registry that only remembers. */
struct registry {
	const struct tn_alloc *alloc;
	struct tn_index_entry *entry;
	size_t n, capacity;
};

static uint32_t remember(void *arg, tn_slot slot, const struct tn_index_entry *e)
{
	struct registry *r = arg;

	if (r->n == r->capacity) {
		size_t capacity = r->capacity ? 2 * r->capacity : 4096;
		struct tn_index_entry *more = tn_get(r->alloc, capacity * sizeof(*more));

		if (!more) {
			tn_fail(-ENOMEM, "no memory to list more than %zu blocks", r->n);
			return TN_STORE_REFUSED;
		}
		if (r->n > 0)
			memcpy(more, r->entry, r->n * sizeof(*more));
		tn_put(r->alloc, r->entry, r->capacity * sizeof(*more));
		r->entry = more;
		r->capacity = capacity;
	}
	r->entry[r->n] = *e;
	return (uint32_t)r->n++;
}

static void describe(void *arg, tn_slot slot, uint32_t cookie, struct tn_index_entry *e)
{
	*e = ((struct registry *)arg)->entry[cookie];
}

static int open_for(const struct tn_store_opts *opts, struct registry *r, struct tn_store **s)
{
	struct tn_store_opts o = *opts;

	*r = (struct registry){.alloc = o.alloc};
	o.cb = (struct tn_store_callbacks){.recovered = remember, .describe = describe, .arg = r};
	return tn_store_open(&o, s);
}

static void forget(struct registry *r)
{
	tn_put(r->alloc, r->entry, r->capacity * sizeof(*r->entry));
}

/* ---- info ------------------------------------------------------------------------------------------------------ */

static bool in_use(struct tn_store_device *d, uint64_t *left_ns)
{
	uint32_t file;
	int rc = tn_store_lock_wait(d, TN_IO_READ_ONLY, left_ns, &file);

	if (rc == 0)
		tn_io_close(d->store->io, file);
	return rc == -EBUSY;
}

static void tell_device(struct tn_store_device *d, struct tn_admin_device *a, uint64_t *left_ns)
{
	struct tn_store *s = d->store;
	const struct tn_disk_super *sb = &d->super;
	struct tn_io_stat st = {0};

	memset(a, 0, sizeof(*a));
	a->missing = d->absent;
	if (!d->absent)
		tn_io_stat(s->io, d->file, &st);
	memcpy(a->path, d->path, sizeof(a->path));
	memcpy(a->store_uuid, sb->store_uuid, sizeof(a->store_uuid));
	memcpy(a->device_uuid, sb->device_uuid, sizeof(a->device_uuid));
	a->device_index = sb->device_index;
	a->device_count = sb->device_count;
	a->format_version = sb->head.version;
	a->clean = sb->state == TN_DISK_CLEAN;
	a->in_use = !d->absent && in_use(d, left_ns);
	a->superblock_damaged = d->super_damaged;
	a->owner_pid = sb->owner_pid;
	a->created_wall_ns = sb->created_wall_ns;
	a->opened_wall_ns = sb->opened_wall_ns;
	a->file_bytes = st.size_bytes;
	a->index_bytes = sb->segments_offset;
	a->segment_bytes = sb->segment_bytes;
	a->segments = s->segment_count;
	a->segments_allocated = d->allocated;
	for (uint32_t i = 0; i < d->allocated; i++) {
		if (d->segs[i].shape == TN_SHAPE_NONE)
			continue;
		a->segments_assigned++;
		a->slots += s->shape[d->segs[i].shape].slot_count;
	}
	a->blocks = d->slots[TN_SLOT_COMMITTED];
	a->quarantined = d->slots[TN_SLOT_QUARANTINED];
	a->log_bytes = sb->log_bytes;
	a->log_used_bytes = d->log.next.position - d->log.tail;
	a->checkpoints = d->ckpt.number;
	for (uint32_t i = 0; i < s->spaces.count; i++)
		a->spaces += !tn_key_is_zero(&s->spaces.space[i].id);
}

int tn_store_admin_info(const struct tn_store_opts *opts, struct tn_admin_device *device)
{
	struct tn_store_opts o = *opts;
	uint64_t left_ns = o.lock_timeout_ns; /* for all devices together: the devices have one owner */
	struct registry r;
	struct tn_store *s;
	int rc;

	o.read_only = o.inspect = true;
	rc = open_for(&o, &r, &s);
	/* The store has its devices in their order, the caller's is that of the directories. */
	for (uint32_t i = 0; i < o.ndirs && rc == 0; i++)
		for (uint32_t k = 0; k < s->ndevices; k++)
			if (strncmp(s->dev[k].path, o.dirs[i], strlen(o.dirs[i])) == 0 &&
			    strcmp(s->dev[k].path + strlen(o.dirs[i]), "/tenuto.store") == 0)
				tell_device(&s->dev[k], &device[i], &left_ns);
	if (rc == 0)
		tn_store_close(s);
	forget(&r);
	return rc;
}

/* ---- verify ---------------------------------------------------------------------------------------------------- */

int tn_store_admin_verify(const struct tn_store_opts *opts, const struct tn_admin_store *a, struct tn_admin_verify *out)
{
	struct tn_admin_verify v = {0};
	struct tn_store_opts o = *opts;
	struct registry r;
	struct tn_store *s;
	uint64_t stale;
	int rc;

	o.read_only = true;
	rc = open_for(&o, &r, &s);
	if (rc == 0) {
		rc = walk_blocks(s, a, &v, &stale);
		tn_store_close(s);
	}
	forget(&r);
	if (rc == 0)
		*out = v;
	return rc;
}

/* ---- check -------------------------------------------------------------------------------------------------------- */

/* Counts what the store's own recovery complains about, and passes it on. */
struct listener {
	const struct tn_log *next;
	uint64_t problems;
	bool told; /* what is damaged was said when the store was opened before */
};

static void listen(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	struct listener *l = arg;

	if (level == TN_LOG_WARN && l->told)
		return;
	if (level <= TN_LOG_WARN)
		l->problems++;
	if (l->next && l->next->fn && level <= l->next->level)
		l->next->fn(l->next->arg, level, where, text);
}

/* A session without a device costs what the device holds: an engine decides that, not who repairs the other devices. */
static int all_there(const struct tn_store *s)
{
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (s->dev[i].absent && s->dev[i].found == TN_FOUND_ABSENT)
			return tn_fail(-ENODEV,
				       "%s, device %u of %u of the store, is not there: a repair of the others would cost its blocks; give all "
				       "directories, an empty one in place of one that is lost for good",
				       s->dev[i].path, i + 1, s->ndevices);
	return 0;
}

/* The devices that the repair could not make anew, because not even their directory is there. */
static uint64_t still_absent(const struct tn_store *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->ndevices; i++)
		n += s->dev[i].absent;
	return n;
}

static void count_salvage(const struct tn_store *s, struct tn_admin_check *c)
{
	for (uint32_t i = 0; i < s->ndevices; i++) {
		const struct tn_store_salvage *v = &s->dev[i].salvage;

		c->segments_restored += v->segments_without;
		c->segments_lost += v->segments_lost;
		c->headers_damaged += v->damaged;
		c->headers_unreadable += v->unreadable;
		c->blocks_superseded += v->superseded;
		c->blocks_dropped += v->dropped;
	}
}

int tn_store_admin_check(const struct tn_store_opts *opts, const struct tn_admin_store *a, bool rebuild,
			 struct tn_admin_check *out)
{
	struct listener l = {.next = opts->log};
	struct tn_log log = {listen, &l, TN_LOG_INFO};
	struct tn_admin_check c = {0};
	struct tn_store_opts o = *opts;
	struct registry r;
	struct tn_store *s;
	uint64_t absent;
	int rc;

	o.log = &log;
	o.read_only = true;
	rc = open_for(&o, &r, &s);
	if (rc == 0) {
		c.blocks = s->slots[TN_SLOT_COMMITTED];
		rc = rebuild ? all_there(s) : 0;
		if (rc == 0)
			rc = walk_blocks(s, a, NULL, &c.stale);
		tn_store_close(s);
		l.told = true;
	}
	forget(&r);
	if (rc == 0 && rebuild) {
		o.read_only = false;
		o.rebuild = true;
		rc = open_for(&o, &r, &s);
		if (rc == 0) {
			count_salvage(s, &c);
			c.blocks = s->slots[TN_SLOT_COMMITTED];
			absent = still_absent(s); /* each was told as a problem, unless it went just now */
			c.repaired = l.problems > absent ? l.problems - absent : 0;
			rc = tn_store_close(s);
		}
		forget(&r);
	}
	c.problems = l.problems;
	if (rc == 0)
		*out = c;
	return rc;
}
