/* SPDX-License-Identifier: Apache-2.0 */
/* The drive's transfers: blocks are written and read back through the disk, as the tier would. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/hash.h"
#include "storedrive_internal.h"

#define POLLS_MAX 200000u /* without a completion: the store hangs */
#define POLL_NS 50000000u
#define REQS 5u /* up to four for the data, one for the header */
#define OBJECTS_MAX 400u
#define SAVE_BYTES (128u << 10)
#define SAVE_BYTES_BIG (OBJECTS_MAX * 4096u + 16384u)

static const struct {
	uint32_t objects, bytes;
} shapes[DRIVE_CLASSES] = {{4, 8192}, {3, 20000}, {OBJECTS_MAX, 100}};

/* Where object i of a block of the class lies within the block's slot: at a multiple of 4 KiB (docs/format.md). */
static uint64_t object_offset(uint32_t cls, uint32_t i)
{
	return i * (((uint64_t)shapes[cls].bytes + TN_PLACE_ALIGN - 1) / TN_PLACE_ALIGN * TN_PLACE_ALIGN);
}

enum stage { IDLE, DATA, HEADER };

struct drive_save {
	struct drive *drive;
	struct drive_spec spec;
	enum stage stage;
	uint32_t record;
	struct tn_store_place place;
	uint8_t *mem; /* data, then header */
	uint64_t data_bytes;
	struct tn_io_req reqs[REQS];
	struct iovec iov[REQS];
	uint32_t nreqs, submitted, pending;
	int status;
};

/* ---- contents ---------------------------------------------------------------------------------------- */

static void contents(const struct drive_record *r, uint32_t object, uint8_t *dst, uint32_t len)
{
	uint64_t seed[3] = {r->key, r->version, object}, word;
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_hash64(seed, sizeof(seed)));
	for (uint32_t i = 0; i < len; i += 8) {
		word = tn_rng_next(&rng);
		memcpy(dst + i, &word, len - i < 8 ? len - i : 8);
	}
}

bool drive_classes(struct drive *d)
{
	uint32_t bytes[OBJECTS_MAX];

	for (uint32_t c = 0; c < DRIVE_CLASSES; c++) {
		int err;

		for (uint32_t i = 0; i < shapes[c].objects; i++)
			bytes[i] = shapes[c].bytes;
		if (c == 2 && !d->opts.big_percent)
			break;
		err = tn_store_class(d->store, shapes[c].objects, bytes, &d->cls[c]);
		if (err)
			return drive_fail(d, "class %u: %d: %s", c, err, tn_error_last()->text);
	}
	return true;
}

/* ---- polling ----------------------------------------------------------------------------------------- */

static void on_data(struct tn_io_req *req)
{
	struct drive_save *s = req->owner;
	struct drive *d = s->drive;

	s->pending--;
	d->own_inflight--;
	if (req->status && !s->status)
		s->status = req->status;
	if (d->store)
		tn_store_observe(d->store, s->place.device, req->op, req->length,
				 medium_now(d->disk) - req->issue_ns, req->status);
}

bool drive_pump(struct drive *d, uint64_t timeout_ns)
{
	struct tn_io_req *done[16];
	uint64_t now = medium_now(d->disk), next = tn_store_step(d->store, now);
	unsigned n;

	/* At once means: again after this poll, which may have freed a place for a request that the disk did not take. */
	if (timeout_ns && next < now + timeout_ns)
		timeout_ns = next > now ? next - now : 1;
	n = tn_io_poll(d->io, done, 16, timeout_ns);
	for (unsigned i = 0; i < n; i++)
		if (!tn_store_complete(d->store, done[i]))
			done[i]->done(done[i]);
	return n > 0;
}

static bool flushes_under_way(const struct drive *d)
{
	for (uint32_t i = 0; i < DRIVE_FLUSHES; i++)
		if (d->flush[i].drive && !d->flush[i].done)
			return true;
	return false;
}

bool drive_settle(struct drive *d)
{
	for (uint32_t polls = 0; d->own_inflight || flushes_under_way(d); polls++) {
		if (drive_pump(d, POLL_NS))
			polls = 0;
		if (polls > POLLS_MAX)
			return drive_fail(d, "hang: %u transfers and a flush never end", d->own_inflight);
	}
	return !d->error[0];
}

static void on_flushed(void *arg, int status)
{
	struct drive_flush *f = arg;
	struct drive *d = f->drive;

	if (f->done)
		drive_fail(d, "a flush completed twice");
	f->done = true;
	f->status = status;
	d->n.flushes++;
	if (status == 0 && f->tick > d->durable_tick)
		d->durable_tick = f->tick;
	if (status && !d->opts.faulty && !d->disk->ops->is_off(d->disk))
		drive_fail(d, "flush: %d", status);
}

bool drive_flush_start(struct drive *d)
{
	for (uint32_t i = 0; i < DRIVE_FLUSHES; i++) {
		struct drive_flush *f = &d->flush[i];

		if (f->drive && !f->done)
			continue;
		*f = (struct drive_flush){.drive = d, .tick = d->tick};
		tn_store_flush(d->store, on_flushed, f);
		return true;
	}
	return false;
}

static void on_told(void *arg, int status)
{
	*(int *)arg = status;
}

bool drive_flush_status(struct drive *d, int *status)
{
	*status = 1;
	tn_store_flush(d->store, on_told, status);
	for (uint32_t polls = 0; *status == 1; polls++) {
		if (drive_pump(d, POLL_NS))
			polls = 0;
		if (polls > POLLS_MAX)
			return drive_fail(d, "hang: a flush never ends");
	}
	return true;
}

/* Afterwards no slot may still wait for its removal to be durable. */
bool drive_flush_wait(struct drive *d)
{
	uint64_t ready, freeing;

	if (!drive_flush_start(d) && (!drive_settle(d) || !drive_flush_start(d)))
		return false;
	if (!drive_settle(d))
		return false;
	for (uint32_t c = 0; c < 2 && !d->opts.faulty; c++) {
		tn_store_free_slots(d->store, d->cls[c], &ready, &freeing);
		if (freeing)
			return drive_fail(d, "class %u: %llu slots are still not free after a flush", c,
					  (unsigned long long)freeing);
	}
	return true;
}

void drive_remove(struct drive *d, uint32_t record, bool failed_slot)
{
	struct drive_record *r = &d->records[record];

	if (!r->live)
		return;
	r->live = false;
	r->removed = ++d->tick;
	d->n.removes++;
	if (failed_slot)
		tn_store_fail_slot(d->store, r->slot, false);
	else
		tn_store_remove(d->store, r->slot);
}

/* ---- saving ------------------------------------------------------------------------------------------ */

static size_t save_bytes(const struct drive *d)
{
	return d->opts.big_percent ? SAVE_BYTES_BIG : SAVE_BYTES;
}

static void memory(struct drive *d)
{
	if (d->saves)
		return;
	d->saves = calloc(DRIVE_BATCH, sizeof(*d->saves));
	assert(d->saves);
	for (uint32_t i = 0; i < DRIVE_BATCH; i++) {
		d->saves[i].drive = d;
		d->saves[i].mem = aligned_alloc(4096, save_bytes(d));
		assert(d->saves[i].mem);
	}
}

void drive_memory_free(struct drive *d)
{
	for (uint32_t i = 0; d->saves && i < DRIVE_BATCH; i++)
		free(d->saves[i].mem);
	free(d->saves);
	d->saves = NULL;
}

static void add_req(struct drive_save *s, uint8_t op, uint64_t offset, uint8_t *mem, uint64_t len)
{
	struct tn_io_req *r = &s->reqs[s->nreqs];

	s->iov[s->nreqs] = (struct iovec){.iov_base = mem, .iov_len = len};
	*r = (struct tn_io_req){
		.op = op,
		.file = s->place.file,
		.offset = offset,
		.length = (uint32_t)len,
		.iov = &s->iov[s->nreqs],
		.iov_count = 1,
		.done = on_data,
		.owner = s,
	};
	s->nreqs++;
}

/* The data in up to four requests that begin at objects. */
static void add_data_reqs(struct drive_save *s, uint8_t op)
{
	uint32_t cls = s->spec.cls, n = shapes[cls].objects, step = (n + 3) / 4;

	s->nreqs = s->submitted = 0;
	s->status = 0;
	for (uint32_t i = 0; i < n; i += step) {
		uint64_t from = object_offset(cls, i);
		uint64_t to = object_offset(cls, i + step < n ? i + step : n);

		add_req(s, op, s->place.data_offset + from, s->mem + from, to - from);
	}
}

static bool save_start(struct drive_save *s, const struct drive_spec *spec)
{
	struct drive *d = s->drive;
	struct drive_record r = {
		.key = spec->key,
		.sequence = tn_store_next_sequence(d->store),
		.version = ++d->version,
		.slot = spec->slot,
		.found = NONE,
		.cls = (uint8_t)spec->cls,
		.space = (uint8_t)spec->space,
		.flags = (uint8_t)(d->version % 4),
	};

	if (r.sequence <= d->sequence_max)
		return drive_fail(d, "sequence %llu was given before", (unsigned long long)r.sequence);
	d->sequence_max = r.sequence;
	if (spec->key % 3)
		r.parent = drive_key(spec->key - 1);
	s->spec = *spec;
	s->record = drive_record_new(d, &r);
	tn_store_locate(d->store, spec->slot, &s->place);
	s->data_bytes = object_offset(spec->cls, shapes[spec->cls].objects);
	if (s->data_bytes > s->place.slot_bytes || s->data_bytes + s->place.header_bytes > save_bytes(d))
		return drive_fail(d, "slot %u: %llu bytes for %llu of data and %u of header", spec->slot,
				  (unsigned long long)s->place.slot_bytes, (unsigned long long)s->data_bytes,
				  s->place.header_bytes);
	memset(s->mem, 0, s->data_bytes);
	for (uint32_t i = 0; i < shapes[spec->cls].objects; i++)
		contents(&r, i, s->mem + object_offset(spec->cls, i), shapes[spec->cls].bytes);
	add_data_reqs(s, TN_IO_WRITE);
	s->stage = DATA;
	return true;
}

static void header_start(struct drive_save *s)
{
	struct drive *d = s->drive;
	const struct drive_record *r = &d->records[s->record];
	uint32_t n = shapes[r->cls].objects, bytes[OBJECTS_MAX];
	uint64_t sums[OBJECTS_MAX], uuid[2];
	struct tn_store_header h = {
		.entry = drive_entry(d, r),
		.space_id = drive_space_id(r->space),
		.nobjects = n,
		.object_bytes = bytes,
		.object_checksum = sums,
	};
	uint8_t *page = s->mem + s->data_bytes;

	for (uint32_t i = 0; i < n; i++) {
		bytes[i] = shapes[r->cls].bytes;
		sums[i] = tn_checksum(s->mem + object_offset(r->cls, i), bytes[i]);
	}
	tn_store_space_info(d->store, d->space[r->space], &h.space_id, &h.space_epoch);
	tn_store_uuid(d->store, r->slot, uuid);
	memset(page, 0, s->place.header_bytes);
	tn_store_header_encode(&h, uuid, r->slot, page);
	s->nreqs = s->submitted = 0;
	add_req(s, TN_IO_WRITE, s->place.header_offset, page, s->place.header_bytes);
	s->stage = HEADER;
}

static void publish(struct drive_save *s)
{
	struct drive *d = s->drive;
	uint32_t old = drive_live(d, s->spec.key);
	struct drive_record *r = &d->records[s->record];
	struct tn_index_entry entry = drive_entry(d, r);

	r->published = ++d->tick;
	r->published_ns = medium_now(d->disk);
	r->live = true;
	tn_store_publish(d->store, r->slot, s->record, &entry);
	d->n.saves++;
	if (old != NONE)
		drive_remove(d, old, false);
}

/* The next thing to do for a save; false when there is nothing but to wait. */
static bool save_advance(struct drive_save *s)
{
	struct drive *d = s->drive;

	if (s->stage == IDLE)
		return false;
	if (s->submitted < s->nreqs) {
		struct tn_io_req *req = &s->reqs[s->submitted];

		/* Counted before: submit's event may look at the drive. */
		s->pending++;
		d->own_inflight++;
		if (tn_io_submit(d->io, &req, 1) == 1) {
			s->submitted++;
			return true;
		}
		s->pending--;
		d->own_inflight--;
		return false;
	}
	if (s->pending)
		return false;
	if (s->status || s->spec.abort_stage == (uint32_t)s->stage) {
		if (s->status && !d->opts.faulty)
			drive_fail(d, "a write of slot %u failed: %d", s->spec.slot, s->status);
		s->stage = IDLE;
		tn_store_unreserve(d->store, s->spec.slot);
	} else if (s->stage == DATA) {
		header_start(s);
	} else {
		s->stage = IDLE;
		publish(s);
	}
	return true;
}

bool drive_save_batch(struct drive *d, const struct drive_spec *specs, uint32_t n)
{
	uint32_t polls = 0;
	bool busy = true;

	memory(d);
	for (uint32_t i = 0; i < n; i++)
		if (!save_start(&d->saves[i], &specs[i]))
			return false;
	while (busy && !d->error[0]) {
		bool moved = false;

		busy = false;
		for (uint32_t i = 0; i < n; i++) {
			moved |= save_advance(&d->saves[i]);
			busy |= d->saves[i].stage != IDLE;
		}
		if (tn_rng_below(&d->rng, 60) == 0)
			drive_flush_start(d);
		if (moved && tn_rng_below(&d->rng, 2))
			continue;
		polls = drive_pump(d, moved ? 0 : POLL_NS) || moved ? 0 : polls + 1;
		if (polls > POLLS_MAX)
			return drive_fail(d, "hang: a save never ends");
	}
	return !d->error[0];
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static bool read_all(struct drive_save *s)
{
	struct drive *d = s->drive;

	for (uint32_t polls = 0; s->submitted < s->nreqs || s->pending; polls++) {
		while (s->submitted < s->nreqs) {
			struct tn_io_req *req = &s->reqs[s->submitted];

			if (tn_io_submit(d->io, &req, 1) != 1)
				break;
			s->submitted++;
			s->pending++;
			d->own_inflight++;
		}
		if (drive_pump(d, POLL_NS))
			polls = 0;
		if (polls > POLLS_MAX)
			return drive_fail(d, "hang: a read never ends");
	}
	return s->status ? drive_fail(d, "slot %u: a read failed: %d", s->spec.slot, s->status) : true;
}

static bool verify_header(struct drive_save *s, const struct drive_record *r, struct tn_store_header *h)
{
	struct drive *d = s->drive;
	struct tn_index_entry want = drive_entry(d, r);
	struct tn_key id = drive_space_id(r->space), known;
	uint64_t uuid[2];
	uint32_t epoch;
	int err;

	tn_store_uuid(d->store, r->slot, uuid);
	err = tn_store_header_decode(s->mem + s->data_bytes, s->place.header_bytes, uuid, r->slot, h);
	if (err)
		return drive_fail(d, "key %u slot %u: header: %d: %s", r->key, r->slot, err, tn_error_last()->text);
	if (!tn_key_eq(&h->entry.key, &want.key) || h->entry.sequence != r->sequence || h->entry.space != want.space ||
	    !tn_key_eq(&h->entry.parent, &want.parent) || !tn_key_eq(&h->space_id, &id))
		return drive_fail(d, "key %u slot %u: the header is another block's (sequence %llu, want %llu)", r->key,
				  r->slot, (unsigned long long)h->entry.sequence, (unsigned long long)r->sequence);
	if (h->nobjects != shapes[r->cls].objects)
		return drive_fail(d, "key %u slot %u: %u objects, want %u", r->key, r->slot, h->nobjects,
				  shapes[r->cls].objects);
	if (tn_store_space_info(d->store, h->entry.space, &known, &epoch) || !tn_key_eq(&known, &id))
		return drive_fail(d, "space %u of key %u: another fingerprint", h->entry.space, r->key);
	if (h->space_epoch != epoch)
		return drive_fail(d, "key %u: space epoch %u, but %u is current", r->key, h->space_epoch, epoch);
	return true;
}

bool drive_verify_block(struct drive *d, const struct drive_record *r)
{
	struct drive_save *s;
	struct tn_store_header h;
	uint8_t want[20480];

	memory(d);
	s = &d->saves[0];
	s->spec = (struct drive_spec){.key = r->key, .cls = r->cls, .slot = r->slot};
	tn_store_locate(d->store, r->slot, &s->place);
	s->data_bytes = object_offset(r->cls, shapes[r->cls].objects);
	add_data_reqs(s, TN_IO_READ);
	add_req(s, TN_IO_READ, s->place.header_offset, s->mem + s->data_bytes, s->place.header_bytes);
	if (!read_all(s) || !verify_header(s, r, &h))
		return false;
	for (uint32_t i = 0; i < h.nobjects; i++) {
		const uint8_t *got = s->mem + object_offset(r->cls, i);
		uint32_t len = shapes[r->cls].bytes;

		if (h.object_bytes[i] != len || tn_checksum(got, len) != h.object_checksum[i])
			return drive_fail(d, "key %u slot %u: object %u does not match its checksum", r->key, r->slot, i);
		contents(r, i, want, len);
		if (memcmp(want, got, len) != 0)
			return drive_fail(d, "key %u slot %u: object %u has wrong bytes and a right checksum", r->key,
					  r->slot, i);
	}
	return true;
}
