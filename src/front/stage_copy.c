/* SPDX-License-Identifier: Apache-2.0 */
/* See stage_copy.h. */
#include "front/stage_copy.h"

#include <errno.h>
#include <string.h>

#include "front/stage.h"

#define STREAM_CALLS (TN_DEVICE_CALLS / 8) /* a copy begins while fewer are under way, so that itself it may be all others of what a driver takes */

/* Pages of both sides, one to one. */
struct pages {
	const uint32_t *theirs, *ours;
	uint64_t n;
};

/* Pieces for one call of the driver. */
struct pieces {
	const struct tn_device_driver *driver;
	void *stream;
	enum tn_device_way way;
	struct tn_device_piece *piece;
	uint32_t n, most; /* of piece */
	const struct tn_mapped_range *range; /* that the last one lies in */
	uint32_t calls;			     /* that were begun, and the event of the last one */
	uint64_t event;
	int error; /* of a call: no other follows */
};

static enum tn_device_way way_of(const struct tn_front_op *op)
{
	return tn_front_is_save(op) ? TN_DEVICE_TO_HOST : TN_DEVICE_FROM_HOST;
}

static struct tn_stage_stream *stream_of(const struct tn_front_op *op)
{
	return &op->pool->stage->stream[way_of(op)];
}

bool tn_stage_copy_may_begin(const struct tn_front_op *op)
{
	const struct tn_stage_stream *s = stream_of(op);

	return op->copies.n < TN_COPIES_MAX && s->calls < (s->failed ? 1 : STREAM_CALLS);
}

static struct pages pages_of(const struct tn_front_op *op, uint32_t first_block, uint32_t end_block)
{
	uint32_t each = op->space->geometry.pages_per_block;
	uint64_t batch = (uint64_t)first_block * each, first = op->first_page > batch ? op->first_page : batch, end = (uint64_t)end_block * each;

	end = end < op->end_page ? end : op->end_page;
	return (struct pages){.theirs = tn_face_pages(op->region, op->number) + first,
			      .ours = tn_face_pages(&op->cache->region, op->number) + (first - batch),
			      .n = end > first ? end - first : 0};
}

/* ---- by the CPU ---------------------------------------------------------------------------------------------------- */

static void copy_layer(const struct tn_front_op *op, uint32_t layer, const struct pages *pages)
{
	const struct tn_layout *caller = &op->pool->layout, *session = &op->pool->stage->layout;
	const struct tn_mapping *callers = &op->pool->memory->mapping, *sessions = &op->pool->stage->memory.mapping;
	bool to_session = tn_front_is_save(op);

	for (uint32_t p = 0; p < caller->geometry.nplanes; p++) {
		char *their_plane = tn_layout_address(caller, callers, layer, p, 0);
		char *our_plane = tn_layout_address(session, sessions, layer, p, 0);

		for (uint64_t i = 0; i < pages->n; i++) {
			char *a = their_plane + pages->theirs[i] * caller->stride[p];
			char *b = our_plane + pages->ours[i] * session->stride[p];

			memcpy(to_session ? b : a, to_session ? a : b, caller->page_bytes[p]);
		}
	}
}

/* ---- by a driver --------------------------------------------------------------------------------------------------- */

static void flush(struct pieces *p)
{
	uint64_t event;

	if (p->n > 0 && !p->error)
		p->error = p->driver->ops->copy(p->driver, p->stream, p->way, p->piece, p->n, &event);
	if (p->n > 0 && !p->error) {
		p->calls++;
		p->event = event;
	}
	p->n = 0;
}

/* Pages that follow each other on both sides, in one range that was registered, are one piece. */
static void add(struct pieces *p, const struct tn_mapped_range *range, char *device, char *host, uint64_t bytes)
{
	struct tn_device_piece *last = p->n > 0 ? &p->piece[p->n - 1] : NULL;

	if (last && p->range == range && (char *)last->device + last->bytes == device && (char *)last->other + last->bytes == host) {
		last->bytes += bytes;
		return;
	}
	if (p->n == p->most)
		flush(p);
	p->piece[p->n++] = (struct tn_device_piece){.device = device, .other = host, .bytes = bytes};
	p->range = range;
}

static void add_layer(struct pieces *p, const struct tn_front_op *op, uint32_t layer, const struct pages *pages)
{
	const struct tn_layout *caller = &op->pool->layout, *session = &op->pool->stage->layout;
	const struct tn_mapping *callers = &op->pool->memory->mapping, *sessions = &op->pool->stage->memory.mapping;

	for (uint32_t plane = 0; plane < caller->geometry.nplanes; plane++) {
		uint64_t base = caller->base[layer * caller->geometry.nplanes + plane];
		const struct tn_mapped_range *r = tn_mapping_range(callers, base); /* all pages of the plane lie in it */
		char *our_plane = tn_layout_address(session, sessions, layer, plane, 0), *their_plane = (char *)r->address + (base - r->offset);

		for (uint64_t i = 0; i < pages->n; i++)
			add(p, r, their_plane + pages->theirs[i] * caller->stride[plane], our_plane + pages->ours[i] * session->stride[plane],
			    caller->page_bytes[plane]);
	}
}

/* In the place of one that has failed, by which nothing goes any more. */
static int make_anew(struct tn_stage_stream *s, const struct tn_memory *m)
{
	int rc;

	if (s->stream)
		m->driver->ops->stream_destroy(m->driver, s->stream);
	s->stream = NULL;
	rc = m->driver->ops->stream_create(m->driver, m->device, &s->stream);
	s->failed = rc != 0;
	return rc;
}

static void copy_by_driver(struct tn_front_op *op, struct tn_stage_copy *copy, const struct pages *pages)
{
	struct tn_stage_stream *s = stream_of(op);
	const struct tn_stage_pool *pool = op->pool->stage;
	struct pieces p = {.driver = op->pool->memory->driver, .way = way_of(op), .piece = pool->piece, .most = pool->npieces};

	copy->error = s->failed ? make_anew(s, op->pool->memory) : 0;
	if (copy->error)
		return;
	p.stream = s->stream;
	for (uint32_t l = copy->first_layer; l < copy->end_layer; l++)
		add_layer(&p, op, l, pages);
	flush(&p);
	copy->error = p.error;
	copy->calls = p.calls;
	copy->event = p.event;
	s->calls += p.calls;
	s->failed |= p.error != 0;
}

/* ---- copies of an operation ---------------------------------------------------------------------------------------- */

void tn_stage_copy_begin(struct tn_front_op *op, uint32_t first_layer, uint32_t end_layer, uint32_t first_block, uint32_t end_block)
{
	struct tn_stage_copies *c = &op->copies;
	struct tn_stage_copy *copy = &c->copy[(c->first + c->n++) % TN_COPIES_MAX];
	const struct tn_layout *l = &op->pool->layout;
	struct pages pages = pages_of(op, first_block, end_block);

	*copy = (struct tn_stage_copy){.first_layer = first_layer, .end_layer = end_layer, .end_block = end_block};
	for (uint32_t p = 0; p < l->geometry.nplanes; p++)
		copy->bytes += (end_layer - first_layer) * pages.n * l->page_bytes[p];
	if (op->pool->memory->driver)
		copy_by_driver(op, copy, &pages);
	else
		for (uint32_t i = first_layer; i < end_layer; i++)
			copy_layer(op, i, &pages);
}

bool tn_stage_copy_take(struct tn_front_op *op, struct tn_stage_copy *out)
{
	const struct tn_device_driver *driver = op->pool->memory->driver;
	struct tn_stage_stream *s = stream_of(op);
	struct tn_stage_copies *c = &op->copies;
	struct tn_stage_copy *copy = &c->copy[c->first];

	if (c->n == 0)
		return false;
	if (copy->calls > 0) {
		int rc = driver->ops->wait(driver, s->stream, copy->event, 0);

		if (rc == -ETIMEDOUT)
			return false;
		s->calls -= copy->calls;
		s->failed |= rc != 0;
		copy->error = copy->error ? copy->error : rc;
	}
	if (!copy->error)
		__atomic_add_fetch(&tn_region_front(&op->cache->region)->staged_bytes, copy->bytes, __ATOMIC_RELAXED);
	else if (tn_log_may(&s->lines, &op->cache->log, tn_now_ns(&op->cache->clock)))
		tn_log(&op->cache->log, TN_LOG_WARN, "a %s ends, because driver %s did not copy %llu bytes %s memory of its device %u: error %d",
		       tn_front_is_save(op) ? "save" : "load", driver->ops->name, (unsigned long long)copy->bytes,
		       tn_front_is_save(op) ? "from" : "to", op->pool->memory->device, copy->error);
	*out = *copy;
	c->first = (c->first + 1) % TN_COPIES_MAX;
	c->n--;
	return true;
}

void tn_stage_copies_settle(struct tn_front_op *op)
{
	const struct tn_device_driver *driver = op->pool->memory->driver;
	struct tn_stage_copies *c = &op->copies;

	for (uint32_t i = 0; i < c->n; i++) {
		const struct tn_stage_copy *copy = &c->copy[(c->first + i) % TN_COPIES_MAX];

		if (copy->calls > 0)
			driver->ops->wait(driver, stream_of(op)->stream, copy->event, TN_FOREVER);
	}
	c->n = 0;
}

bool tn_stage_copy_has(const struct tn_front_op *op, uint32_t layer)
{
	const struct tn_stage_copies *c = &op->copies;

	for (uint32_t i = 0; i < c->n; i++) {
		const struct tn_stage_copy *copy = &c->copy[(c->first + i) % TN_COPIES_MAX];

		if (copy->first_layer <= layer && layer < copy->end_layer)
			return true;
	}
	return false;
}

uint32_t tn_stage_copy_end(const struct tn_front_op *op)
{
	const struct tn_stage_copies *c = &op->copies;
	uint32_t end = 0;

	for (uint32_t i = 0; i < c->n; i++) {
		const struct tn_stage_copy *copy = &c->copy[(c->first + i) % TN_COPIES_MAX];

		if (copy->calls > 0 && copy->end_block > end)
			end = copy->end_block;
	}
	return end;
}
