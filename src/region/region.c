/* SPDX-License-Identifier: Apache-2.0 */
/* Where the tables of a region lie: computed from the counts, the same way by both sides. */
#include "region/region.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "region/call.h"
#include "region/doorbell.h"
#include "region/event.h"
#include "region/face.h"
#include "region/latency.h"
#include "region/observation.h"

#define PAGE_BYTES 4096u /* of private memory, where pages only keep the writers' lines apart */
#define PAGE_BYTES_MAX (1u << 20)

static bool counts_are_sound(const struct tn_region_counts *c)
{
	return c->ops > 0 && c->ops <= TN_REGION_OPS_MAX && c->blocks > 0 && c->blocks <= TN_REGION_BLOCKS_MAX && c->layers > 0 &&
	       c->layers <= TN_LAYERS_MAX && c->chunks > 0 && c->chunks <= TN_REGION_CHUNKS_MAX && c->events <= TN_REGION_EVENTS_MAX &&
	       c->calls <= TN_REGION_CALLS_MAX && c->call_bytes <= TN_REGION_CALL_BYTES_MAX &&
	       c->call_bytes % TN_REGION_CALL_ALIGN == 0;
}

static uint64_t table_bytes(const struct tn_region_counts *c, enum tn_region_table table)
{
	/* The largest is 2^12 * 2^32 * 4: no product overflows. */
	const uint64_t ops = c->ops, bytes[TN_REGION_TABLES] = {
		[TN_REGION_FRONT] = sizeof(struct tn_region_front),
		[TN_REGION_KICKS] = ops * sizeof(struct tn_doorbell_link),
		[TN_REGION_HEARD] = ops * sizeof(uint32_t),
		[TN_REGION_ASKED] = ops * sizeof(struct tn_face_asked),
		[TN_REGION_KEYS] = ops * c->blocks * sizeof(struct tn_key),
		[TN_REGION_PAGES] = ops * c->pages * sizeof(uint32_t),
		[TN_REGION_GIVEN] = ops * c->layers * sizeof(struct tn_face_given),
		[TN_REGION_EVENTS] = c->events * sizeof(struct tn_event_word),
		[TN_REGION_OBSERVED] = TN_REGION_OBSERVATIONS * sizeof(struct tn_observation),
		[TN_REGION_CALLS] = c->calls * sizeof(struct tn_call_asked),
		[TN_REGION_CALL_BYTES] = (uint64_t)c->calls * c->call_bytes,
		[TN_REGION_LATENCIES] = TN_REGION_HISTOGRAMS * sizeof(struct tn_region_histogram),
		[TN_REGION_CORE] = sizeof(struct tn_region_core),
		[TN_REGION_SEEN] = ops * sizeof(uint32_t),
		[TN_REGION_COMPLETIONS] = ops * sizeof(struct tn_doorbell_link),
		[TN_REGION_TOLD] = ops * sizeof(struct tn_face_told),
		[TN_REGION_READY] = ops * c->chunks * sizeof(uint64_t),
		[TN_REGION_SAVED] = ops * c->blocks,
		[TN_REGION_BUSY] = ops * c->blocks,
		[TN_REGION_ANSWERS] = c->calls * sizeof(struct tn_call_told),
		[TN_REGION_ANSWER_BYTES] = (uint64_t)c->calls * c->call_bytes,
	};

	return bytes[table];
}

/* Offsets of all tables; the end, which is a whole number of pages. */
static uint64_t lay_out(const struct tn_region_counts *c, uint32_t page_bytes, uint64_t *at)
{
	uint64_t end = sizeof(struct tn_region_header);

	for (uint32_t t = 0; t < TN_REGION_TABLES; t++) {
		uint64_t align = t == TN_REGION_FRONT || t == TN_REGION_CORE ? page_bytes : 64;

		at[t] = (end + align - 1) / align * align;
		end = at[t] + table_bytes(c, t);
	}
	return (end + page_bytes - 1) / page_bytes * page_bytes;
}

uint64_t tn_region_bytes(const struct tn_region_counts *counts, uint32_t page_bytes)
{
	uint64_t at[TN_REGION_TABLES];

	return counts_are_sound(counts) ? lay_out(counts, page_bytes, at) : 0;
}

int tn_region_format(void *base, const struct tn_region_counts *counts, uint32_t page_bytes, bool shared, struct tn_region *out)
{
	struct tn_region_header *h = base;

	if (!counts_are_sound(counts))
		return tn_fail(-EINVAL, "region: %u operations of %u blocks of %u layers in %u chunks, %u events: beyond the limits",
			       counts->ops, counts->blocks, counts->layers, counts->chunks, counts->events);
	*out = (struct tn_region){.base = base, .counts = *counts, .shared = shared};
	out->bytes = lay_out(counts, page_bytes, out->at);
	*h = (struct tn_region_header){.magic = TN_REGION_MAGIC, .version = TN_REGION_VERSION, .page_bytes = page_bytes,
				       .bytes = out->bytes, .counts = *counts};
	memcpy(h->at, out->at, sizeof(h->at));
	h->check = tn_hash64(h, offsetof(struct tn_region_header, check));
	return 0;
}

int tn_region_attach(void *base, uint64_t bytes, bool shared, struct tn_region *out)
{
	struct tn_region_header h;
	struct tn_region r = {.base = base, .shared = shared};

	if (bytes < sizeof(h))
		return tn_fail(-EINVAL, "region: %llu bytes are too few for its header", (unsigned long long)bytes);
	memcpy(&h, base, sizeof(h));
	__asm__ volatile("" ::: "memory"); /* from here on only the copy */
	if (h.magic != TN_REGION_MAGIC || h.version != TN_REGION_VERSION)
		return tn_fail(-EPROTONOSUPPORT, "region: magic %#llx, version %u; this library knows version %u",
			       (unsigned long long)h.magic, h.version, TN_REGION_VERSION);
	if (h.check != tn_hash64(&h, offsetof(struct tn_region_header, check)))
		return tn_fail(-EINVAL, "region: the header's checksum is wrong");
	if (!counts_are_sound(&h.counts) || h.page_bytes < 64 || h.page_bytes > PAGE_BYTES_MAX || (h.page_bytes & (h.page_bytes - 1)))
		return tn_fail(-EINVAL, "region: counts or a page size of %u beyond the limits", h.page_bytes);
	r.counts = h.counts;
	r.bytes = lay_out(&h.counts, h.page_bytes, r.at);
	if (r.bytes > bytes || h.bytes != r.bytes || memcmp(h.at, r.at, sizeof(r.at)) != 0)
		return tn_fail(-EINVAL, "region: its tables take %llu bytes, the header says %llu, and there are %llu",
			       (unsigned long long)r.bytes, (unsigned long long)h.bytes, (unsigned long long)bytes);
	*out = r;
	return 0;
}

int tn_region_create(const struct tn_region_counts *counts, const struct tn_alloc *alloc, struct tn_region *out)
{
	uint64_t bytes = tn_region_bytes(counts, PAGE_BYTES);
	void *base = tn_get(alloc, bytes ? bytes : PAGE_BYTES);
	int rc;

	if (!base)
		return tn_fail(-ENOMEM, "no memory for %u operations of %u blocks; lower max_ops or max_op_blocks", counts->ops,
			       counts->blocks);
	tn_sparse(alloc, base, bytes);
	rc = tn_region_format(base, counts, PAGE_BYTES, false, out);
	if (rc)
		tn_put(alloc, base, bytes ? bytes : PAGE_BYTES);
	return rc;
}

void tn_region_destroy(struct tn_region *region, const struct tn_alloc *alloc)
{
	tn_put(alloc, region->base, region->bytes);
	*region = (struct tn_region){0};
}

/* ---- doorbells (doorbell.h) --------------------------------------------------------------------------- */

bool tn_doorbell_ring(const struct tn_doorbell *d, uint32_t number)
{
	struct tn_doorbell_turn t = {.number = number};
	enum tn_doorbell_step step;

	do
		step = tn_doorbell_ring_step(d, &t);
	while (step == TN_DOORBELL_MORE);
	return step == TN_DOORBELL_DONE;
}

uint32_t tn_doorbell_take(const struct tn_doorbell *d, struct tn_doorbell_taker *t, uint32_t *numbers, uint32_t *first)
{
	enum tn_doorbell_step step;

	t->phase = 0;
	do
		step = tn_doorbell_take_step(d, t, numbers);
	while (step == TN_DOORBELL_MORE);
	if (step == TN_DOORBELL_NO)
		return 0;
	if (step == TN_DOORBELL_BROKEN) {
		t->last = t->head;
		t->left = d->count;
		for (uint32_t i = d->count; i-- > 0;)
			if (tn_doorbell_pending(d, i))
				numbers[--t->left] = i;
	}
	*first = t->left;
	return d->count - t->left;
}
