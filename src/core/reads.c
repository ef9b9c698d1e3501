/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads of loads, as IOCBs: between the loads' chunks and the ring.
 *
 * What an executor must know of a load - pages, checksums, addresses - is prepared once, when it is activated; then each
 * chunk of its blocks is IOCTXs written into an IOCB: one IOCB a device, and one more where checksums are not known yet.
 * An IOCB holds objects of chunks that are read together only, since the executor sorts it by disk address and the next layer
 * must not go before. Its progress is looked at while it runs, so a late object does not keep its neighbours' news.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "core/core.h"
#include "core/pool.h"
#include "core/stats.h"
#include "ring/executor.h"

#define DEPTH 64u
#define IOCTXS_LEAST 64u
#define WINDOW_BYTES (32u << 20) /* of one load */
#define LOOKS 16u		 /* at an IOCB's entries while it runs */
#define NONE UINT32_MAX

/* An IOCB that is written or out. */
struct read {
	struct tn_reading *rd;
	uint32_t device, count;
	uint32_t chunk, chunks; /* the first, and how many of each block */
	uint32_t first; /* block */
	uint32_t seen; /* of them had ended when it was looked at last */
	uint64_t bytes;
	bool verify;
	uint32_t told; /* of them the scheduler knows that they ended */
	uint32_t next; /* in the list of those that are out */
};

struct tn_reads {
	struct tn_ring *ring;
	struct tn_executor *executor;
	tn_reads_ended ended;
	struct read read[DEPTH];
	uint32_t first, last; /* out, in the order of issue */
	uint32_t ours; /* being written, or out */
	uint32_t open[TN_DEVICES_MAX][2]; /* being written: without and with checksums */
	/* Of this turn, by device: what the scheduler said may go, and what of that is counted already. */
	uint64_t room[TN_DEVICES_MAX], granted[TN_DEVICES_MAX];
	uint32_t asked; /* devices, as bits */
};

static void observe(void *arg, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status)
{
	struct tn_cache *cache = arg;

	tn_store_observe(cache->store, device, op, bytes, latency_ns, status);
}

static int thread_engine(void *arg, struct tn_io **out)
{
	const struct tn_cache *cache = arg;
	uint32_t depth = 1;

	while (depth < cache->o.io_depth)
		depth *= 2;
	return cache->make_engine(cache, depth, out);
}

static void wake_owner(void *arg)
{
	tn_io_wake(((struct tn_cache *)arg)->io);
}

static int create_executor(struct tn_cache *cache)
{
	uint32_t files[TN_DEVICES_MAX];
	struct tn_executor_opts o = {
		.ring = cache->reads->ring,
		.io = cache->io,
		.files = files,
		.ndevices = cache->ndevices,
		.depth = cache->o.io_depth,
		.alloc = cache->alloc,
		.clock = &cache->clock,
		.exec = cache->exec,
		.threads = cache->o.executors,
		.engine = thread_engine,
		.engine_arg = cache,
		.wake = wake_owner,
		.wake_arg = cache,
		.observe = observe,
		.observe_arg = cache,
	};

	for (uint32_t i = 0; i < o.ndevices; i++)
		files[i] = tn_store_file(cache->store, i);
	return o.threads ? tn_executor_threads_create(&o, &cache->reads->executor)
			 : tn_executor_inline_create(&o, &cache->reads->executor);
}

int tn_reads_create(struct tn_cache *cache, tn_reads_ended ended)
{
	struct tn_ring_opts ro = tn_ring_opts_default();
	int rc;

	if (!cache->store)
		return 0;
	cache->reads = tn_get(cache->alloc, sizeof(*cache->reads));
	if (!cache->reads)
		return tn_fail(-ENOMEM, "reads: no memory");
	cache->reads->ended = ended;
	cache->reads->first = cache->reads->last = NONE;
	memset(cache->reads->open, 0xff, sizeof(cache->reads->open));
	ro.memory.depth = DEPTH;
	ro.lists = cache->o.max_ops;
	if (cache->o.max_op_blocks < ro.memory.ioctxs)
		ro.memory.ioctxs = cache->o.max_op_blocks > IOCTXS_LEAST ? cache->o.max_op_blocks : IOCTXS_LEAST;
	rc = tn_ring_create(&ro, cache->alloc, &cache->reads->ring);
	return rc ? rc : create_executor(cache);
}

void tn_reads_destroy(struct tn_cache *cache)
{
	struct tn_reads *r = cache->reads;

	if (!r)
		return;
	tn_executor_destroy(r->executor);
	tn_ring_destroy(r->ring);
	tn_put(cache->alloc, r, sizeof(*r));
	cache->reads = NULL;
}

int tn_reads_room(struct tn_cache *cache, uint32_t padded_bytes)
{
	return cache->reads ? tn_executor_room(cache->reads->executor, padded_bytes) : 0;
}

/* ---- once per load ---------------------------------------------------------------------------------------- */

static uint32_t list_of(const struct tn_reading *rd)
{
	return rd->op.index;
}

void tn_reads_prepare(struct tn_reading *rd)
{
	struct tn_cache *cache = rd->op.cache;
	const struct tn_shape *s = &rd->op.space->shape;
	bool any = false;

	for (uint32_t i = 0; i < rd->op.n; i++) {
		struct tn_read_item *item = &rd->items[i];
		struct tn_store_place place;

		if (item->state != TN_READ_LEAD || tn_read_reach(item) != TN_REACH_DEVICE)
			continue;
		any = true;
		tn_store_locate(cache->store, item->place, &place);
		item->device = (uint8_t)place.device;
		rd->disk[i] = tn_ioctx_disk(place.device, place.data_offset / TN_STORE_BLOCK_ALIGN);
		if (rd->prefetch)
			rd->flat_at[i] = tn_read_memory(item, NULL);
	}
	if (!any)
		return;
	rd->list = (struct tn_ring_list){
		.shape = s,
		.blocks = rd->op.n,
		.layout = rd->prefetch ? NULL : &rd->op.pool->layout,
		.pages = rd->op.pages,
		.first_page = rd->op.first_page,
		.end_page = rd->op.end_page,
		.flat = rd->flat_at,
		.align = rd->prefetch ? TN_STORE_BLOCK_ALIGN : rd->op.pool->align,
		.checks = rd->checks,
	};
	tn_ring_list_set(cache->reads->ring, list_of(rd), &rd->list);
}

/* ---- writing IOCBs ------------------------------------------------------------------------------------------ */

bool tn_reads_may_go(struct tn_read_item *item, uint32_t chunk)
{
	struct tn_reading *rd = item->r;
	struct tn_cache *cache = rd->op.cache;
	struct tn_reads *r = cache->reads;
	uint64_t bytes = (uint64_t)tn_shape_chunk_count(&rd->op.space->shape, chunk) * rd->op.space->shape.padded_bytes;
	uint32_t d = item->device;
	bool later = false;

	if (!cache->schedule)
		return rd->iocbs < 2 || rd->out_bytes < WINDOW_BYTES;
	if (!(r->asked & 1u << d))
		r->room[d] = tn_schedule_read_room(cache, d, bytes, &later);
	r->asked |= 1u << d;
	if (r->room[d] >= bytes) {
		r->room[d] -= bytes;
		return true;
	}
	if (later)
		return false;
	tn_reads_issue(cache); /* what was gathered counts first */
	if (!tn_schedule_read(item, chunk, bytes)) /* says why not */
		return false;
	r->granted[d] += bytes;
	return true;
}

static void issue(struct tn_cache *cache, uint32_t *open)
{
	struct tn_reads *r = cache->reads;
	uint32_t id = *open;
	struct read *read = &r->read[id];
	struct tn_iocb *cb = tn_ring_iocb(r->ring, id);
	uint64_t known = r->granted[read->device] < read->bytes ? r->granted[read->device] : read->bytes;
	int err;

	*open = NONE;
	r->granted[read->device] -= known;
	if (read->bytes > known)
		tn_schedule_read(&read->rd->items[read->first], read->chunk, read->bytes - known);
	cb->list = list_of(read->rd);
	cb->count = read->count;
	cb->flags = read->verify ? TN_IOCB_VERIFY : 0;
	cb->priority = read->rd->op.priority;
	read->next = NONE;
	if (r->last == NONE)
		r->first = id;
	else
		r->read[r->last].next = id;
	r->last = id;
	err = tn_ring_issue(r->ring, &id, 1);
	assert(err == 0);
}

void tn_reads_issue(struct tn_cache *cache)
{
	struct tn_reads *r = cache->reads;

	for (uint32_t d = 0; r && d < cache->ndevices; d++) {
		for (uint32_t v = 0; v < 2; v++)
			if (r->open[d][v] != NONE)
				issue(cache, &r->open[d][v]);
		if (r->granted[d]) /* there was no IOCB for it */
			tn_schedule_read_ended(cache, d, r->granted[d]);
		r->granted[d] = 0;
	}
	if (r)
		r->asked = 0;
}

/* An IOCB with room for one chunk of this load, or NONE. */
static uint32_t writable(struct tn_read_item *item, uint32_t chunk, uint32_t objects, bool verify)
{
	struct tn_cache *cache = item->r->op.cache;
	struct tn_reads *r = cache->reads;
	uint32_t *open = &r->open[item->device][verify], most = r->ring->view.ioctxs, id;

	if (*open != NONE) {
		const struct read *read = &r->read[*open];

		if (read->rd == item->r && chunk - read->chunk < read->chunks && read->count + objects <= most)
			return *open;
		issue(cache, open);
	}
	if (tn_ring_get_iocb(r->ring, most, NULL, &id))
		return NONE;
	r->ours++;
	*open = id;
	r->read[id] = (struct read){.rd = item->r, .device = item->device, .chunk = item->r->chunk, .chunks = item->r->together,
				     .verify = verify, .first = (uint32_t)(item - item->r->items)};
	item->r->iocbs++;
	item->r->op.inflight++;
	return id;
}

bool tn_reads_add(struct tn_read_item *item, uint32_t chunk)
{
	struct tn_reading *rd = item->r;
	struct tn_reads *r = rd->op.cache->reads;
	const struct tn_shape *s = &rd->op.space->shape;
	uint32_t first = tn_shape_chunk_first(s, chunk), n = tn_shape_chunk_count(s, chunk);
	uint32_t i = (uint32_t)(item - rd->items), pages = s->padded_bytes / TN_STORE_BLOCK_ALIGN;
	uint32_t id = writable(item, chunk, n, rd->op.cache->o.verify && item->header == TN_HEADER_HAVE);
	struct tn_ioctx *x;

	if (id == NONE)
		return false;
	x = tn_ring_ioctx(r->ring, id) + r->read[id].count;
	for (uint32_t l = first; l < first + n; l++)
		*x++ = (struct tn_ioctx){rd->disk[i] + (uint64_t)l * pages, s->object_bytes, i * s->layers + l};
	r->read[id].count += n;
	r->read[id].bytes += (uint64_t)n * s->padded_bytes;
	rd->out_bytes += (uint64_t)n * s->padded_bytes;
	return true;
}

/* ---- what ended ---------------------------------------------------------------------------------------------- */

/* The status of one block's part, of so many objects: 1 while some of them have not ended. */
static int part_status(const int32_t *at, uint32_t objects)
{
	int status = 0;

	for (uint32_t k = 0; k < objects; k++) {
		int one = __atomic_load_n(&at[k], __ATOMIC_ACQUIRE);

		if (one == TN_RING_PENDING)
			return 1;
		if (status == 0)
			status = one;
	}
	return status;
}

/* Tells of every block of the IOCB that was not told of; @over: what has no status was given up. */
static void look(struct tn_cache *cache, uint32_t id, bool over)
{
	struct read *read = &cache->reads->read[id];
	struct tn_reading *rd = read->rd;
	const struct tn_shape *s = &rd->op.space->shape;
	const struct tn_ioctx *x = tn_ring_ioctx(cache->reads->ring, id);
	const int32_t *statuses = tn_ring_statuses(cache->reads->ring, id);
	uint32_t each;

	for (uint32_t k = 0; k < read->count; k += each) {
		uint32_t i = x[k].entry / s->layers, chunk = tn_shape_chunk_of(s, x[k].entry % s->layers);
		int status;

		each = tn_shape_chunk_count(s, chunk);
		if (rd->chunk_state[(size_t)chunk * rd->op.n + i] != TN_CHUNK_READING)
			continue;
		status = statuses ? part_status(statuses + k, each) : 1;
		if (status == 1 && !over)
			continue;
		cache->reads->ended(&rd->items[i], chunk, status == 1 ? -ECANCELED : status, read->verify);
	}
}

static void tell(struct tn_cache *cache, struct read *read, uint32_t ended)
{
	if (ended > read->told)
		tn_schedule_read_ended(cache, read->device, (uint64_t)(ended - read->told) * read->rd->op.space->shape.padded_bytes);
	read->told = ended;
}

/* The IOCB is through: its record goes first, for the load may end with the last of its blocks. */
static void through(struct tn_cache *cache, uint32_t id, uint32_t before)
{
	struct tn_reads *r = cache->reads;
	struct read *read = &r->read[id];

	if (before == NONE)
		r->first = read->next;
	else
		r->read[before].next = read->next;
	if (r->last == id)
		r->last = before;
	tell(cache, read, read->count);
	look(cache, id, true);
	read->rd->out_bytes -= read->bytes;
	read->rd->iocbs--;
	read->rd->op.inflight--;
	r->ours--;
	tn_ring_put(r->ring, &id, 1);
}

bool tn_reads_step(struct tn_cache *cache)
{
	return cache->reads && tn_executor_step(cache->reads->executor);
}

bool tn_reads_collect(struct tn_cache *cache)
{
	struct tn_reads *r = cache->reads;
	struct tn_ring_completion done;
	bool any = false;

	if (!r)
		return false;
	while (tn_ring_poll(r->ring, &done, 1))
		; /* the list below has them in the order of issue */
	for (uint32_t id = r->first, before = NONE, next; id != NONE; id = next) {
		struct read *read = &r->read[id];
		uint32_t ended = tn_ring_ended(r->ring, id);

		next = read->next;
		if (tn_ring_result(r->ring, id, &done) == 0) {
			through(cache, id, before);
			any = true;
			continue;
		}
		tell(cache, read, ended);
		if (ended > read->seen && (ended - read->seen) * LOOKS >= read->count) {
			read->seen = ended;
			look(cache, id, false);
			any = true;
		}
		before = id;
	}
	return any;
}

uint64_t tn_reads_due(const struct tn_cache *cache, uint64_t now_ns)
{
	return cache->reads ? tn_executor_due(cache->reads->executor, now_ns) : TN_FOREVER;
}

void tn_reads_look(struct tn_reading *rd)
{
	struct tn_reads *r = rd->op.cache->reads;

	if (rd->iocbs == 0)
		return;
	for (uint32_t id = r->first; id != NONE; id = r->read[id].next)
		if (r->read[id].rd == rd)
			look(rd->op.cache, id, false);
}

void tn_reads_cancel(struct tn_reading *rd)
{
	struct tn_reads *r = rd->op.cache->reads;

	if (rd->iocbs == 0)
		return;
	for (uint32_t i = 0; i < rd->op.n; i++)
		if (rd->items[i].followers) /* others wait for some of them */
			return;
	for (uint32_t id = r->first; id != NONE; id = r->read[id].next)
		if (r->read[id].rd == rd)
			tn_ring_cancel(r->ring, &id, 1);
}

void tn_reads_stats(const struct tn_cache *cache, struct tn_stats *stats)
{
	struct tn_executor_stats s;

	if (!cache->reads)
		return;
	tn_executor_stats(cache->reads->executor, &s);
	stats->bytes_read += s.bytes;
	stats->bounced_objects += s.bounced;
	stats->verified_objects += s.verified;
	stats->unobserved_requests = s.unobserved;
}
