/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the cache and its scheduler: tells it of loads, transfers and phases, asks it before each transfer, and
 * keeps the slack tables in step with what engines were seen to take.
 *
 * Owner thread. What fronts know - where an engine is, how long it computed, what it is about to do - lies in the region
 * (front/api.c). With scheduler "none", or without disks, there is no scheduler and everything may go.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "core/budget.h"
#include "core/core.h"
#include "sched/slack.h"

#define BACKLOG_SECONDS 2u /* of writing: what saves may have waiting */
#define BACKLOG_LEAST (256ull << 20)
#define BACKLOG_UNKNOWN (1ull << 30)

struct tn_schedule {
	struct tn_sched *sched;
	uint64_t loads;	  /* numbers them */
	uint64_t limit_bytes; /* of the write backlog */
};

/* ---- create -------------------------------------------------------------------------------------- */

int tn_schedule_create(struct tn_cache *cache)
{
	struct tn_sched_opts o = {
		.devices = cache->ndevices,
		.alloc = cache->alloc,
		.explain = cache->o.explain,
		.explain_arg = cache->o.explain_arg,
	};
	struct tn_schedule *s;
	int rc;

	if (!cache->row.drives || strcmp(cache->o.scheduler, "none") == 0)
		return 0;
	s = tn_get(cache->alloc, sizeof(*s));
	if (!s)
		return tn_fail(-ENOMEM, "scheduler: no memory");
	rc = tn_sched_create(&o, &s->sched);
	if (rc) {
		tn_put(cache->alloc, s, sizeof(*s));
		return rc;
	}
	for (uint32_t i = 0; i < o.devices; i++)
		tn_sched_device(s->sched, i, &cache->engines.mix[i]);
	cache->schedule = s;
	s->limit_bytes = cache->o.write_backlog_bytes ? cache->o.write_backlog_bytes : BACKLOG_UNKNOWN;
	tn_schedule_session(cache->own);
	return 0;
}

void tn_schedule_session(struct tn_session *session)
{
	struct tn_region_core *core = tn_region_core(&session->region);

	if (!session->cache->schedule)
		return;
	__atomic_store_n(&core->limit_bytes, session->cache->schedule->limit_bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&core->scheduled, 1, __ATOMIC_RELAXED);
}

void tn_schedule_destroy(struct tn_cache *cache)
{
	if (!cache->schedule)
		return;
	tn_sched_destroy(cache->schedule->sched);
	tn_put(cache->alloc, cache->schedule, sizeof(*cache->schedule));
	cache->schedule = NULL;
}

void tn_schedule_give_back(struct tn_op *op, uint64_t bytes)
{
	struct tn_session *session = op->session;

	session->waiting_bytes -= bytes;
	TN_TRACE2(backlog, session->place, session->waiting_bytes);
	__atomic_store_n(&tn_region_core(&session->region)->given_back_bytes, session->given_back_bytes += bytes, __ATOMIC_RELAXED);
}

/* ---- turns ------------------------------------------------------------------------------------------ */

/* Blocks that still have to be written straight to disk, as far as is known; what waits in host memory is bounded by that. */
static uint64_t for_disk(const struct tn_writing *w)
{
	return w->unplaced + w->unwritten - w->copying;
}

/* What of saves waits for the disk. Gives back what was admitted and does not any more: it was written, or waits for a device that stands. */
static uint64_t backlog_of(struct tn_cache *cache)
{
	uint64_t sum = 0;

	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next) {
		struct tn_save_op *save = tn_container_of(pos, struct tn_save_op, w.op.link);
		const struct tn_shape *s = save->w.op.shape;
		uint64_t left = tn_op_stands(&save->w.op) ? 0 : for_disk(&save->w) * s->slot_bytes;

		sum += left / s->layers * save->w.ready;
		if (save->held || left >= save->admitted_bytes)
			continue;
		tn_schedule_give_back(&save->w.op, save->admitted_bytes - left);
		save->admitted_bytes = left;
	}
	return sum;
}

static uint64_t free_slots(const struct tn_cache *cache)
{
	uint64_t taken, slots;

	if (!cache->row.queues)
		return 0;
	taken = cache->row.queues->dirty_slots;
	slots = cache->row.memory->ops->capacity(cache->row.memory);
	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next)
		taken += tn_container_of(pos, struct tn_writing, op.link)->copying;
	return taken < slots ? slots - taken : 0;
}

static uint64_t backlog_limit(const struct tn_cache *cache)
{
	uint64_t bps = tn_sched_write_bps(cache->schedule->sched);

	if (cache->o.write_backlog_bytes)
		return cache->o.write_backlog_bytes;
	if (bps == 0)
		return BACKLOG_UNKNOWN;
	return bps * BACKLOG_SECONDS > BACKLOG_LEAST ? bps * BACKLOG_SECONDS : BACKLOG_LEAST;
}

static void learn(struct tn_session *session, uint64_t now)
{
	struct tn_cache *cache = session->cache;
	struct tn_observation o;

	/* No more than there can be: a front that writes all the time must not keep the owner here. */
	for (uint32_t i = 0; i < TN_REGION_OBSERVATIONS && tn_observation_take(&session->region, &session->learned, &o); i++) {
		struct tn_space *space = o.space < TN_SPACES_MAX ? cache->spaces[o.space] : NULL;

		if (!space || !tn_session_may_name(session, o.space) || !space->slack || o.layer >= space->shape.layers)
			continue;
		tn_space_observe_layer(space, &o);
	}
}

/* What the front has said since the last turn. */
static void listen(struct tn_session *session, uint64_t now)
{
	const struct tn_region_front *front = tn_region_front(&session->region);
	uint64_t calls = __atomic_load_n(&front->calm_calls, __ATOMIC_ACQUIRE);
	uint64_t refused = __atomic_load_n(&front->refused_bytes, __ATOMIC_RELAXED);
	struct tn_schedule *s = session->cache->schedule;

	if (calls != session->calm_calls)
		tn_sched_calm(s->sched, __atomic_load_n(&front->calm_until_ns, __ATOMIC_RELAXED));
	if (refused != session->refused_bytes)
		tn_sched_refused(s->sched, refused - session->refused_bytes, now);
	session->calm_calls = calls;
	session->refused_bytes = refused;
}

/* What a session's saves may bring: what those of the others leave, and half of it where there are others. */
static void tell_limits(struct tn_cache *cache)
{
	uint64_t limit = cache->schedule->limit_bytes, blocks = free_slots(cache), all = 0, parts = tn_session_is_alone(cache) ? 1 : 2;

	for_each_session(session, cache)
		all += session->waiting_bytes;
	for_each_session(session, cache) {
		struct tn_region_core *core = tn_region_core(&session->region);
		uint64_t others = all - session->waiting_bytes;

		__atomic_store_n(&core->limit_bytes, others < limit ? (limit - others) / parts : 0, __ATOMIC_RELAXED);
		__atomic_store_n(&core->host_blocks, blocks / parts, __ATOMIC_RELAXED);
	}
}

void tn_schedule_turn(struct tn_cache *cache, uint64_t now, enum tn_offload_urgency urgency)
{
	struct tn_schedule *s = cache->schedule;
	uint64_t backlog;

	if (!s)
		return;
	tn_sched_turn(s->sched, now);
	for_each_session(session, cache)
		learn(session, now);
	backlog = backlog_of(cache);
	s->limit_bytes = backlog_limit(cache);
	tell_limits(cache);
	tn_sched_backlog(s->sched, backlog, urgency == TN_OFFLOAD_IDLE ? s->limit_bytes : 0);
	tn_sched_late(s->sched, urgency == TN_OFFLOAD_LATE);
	__atomic_store_n(&cache->read_bps, tn_sched_read_bps(s->sched), __ATOMIC_RELAXED);
	for_each_session(session, cache)
		listen(session, now);
}

uint64_t tn_schedule_due(const struct tn_cache *cache)
{
	return cache->schedule ? tn_sched_due(cache->schedule->sched) : TN_FOREVER;
}

/* ---- loads ------------------------------------------------------------------------------------------- */

static uint64_t prefix_tokens(const struct tn_reading *r)
{
	return r->op.n * tn_geometry_block_tokens(&r->op.space->geometry);
}

/* When each layer is needed, as far as the space's table knows. */
static const uint64_t *needs(struct tn_reading *r)
{
	uint64_t prefix = prefix_tokens(r), sum = 0;

	if (r->prefetch || tn_load_of(&r->op)->input_tokens == 0 || !r->op.space->slack)
		return NULL;
	for (uint32_t l = 0; l < r->op.shape->layers; l++) {
		r->before_ns[l] = sum;
		sum += tn_slack_window(r->op.space->slack, tn_load_of(&r->op)->input_tokens, prefix, l);
	}
	return r->before_ns;
}

uint32_t tn_schedule_most_iocbs(struct tn_reading *r, uint32_t chunk)
{
	const struct tn_slack *table = r->op.space->slack;
	uint32_t layer = tn_shape_chunk_first(r->op.shape, chunk);
	struct tn_slack_cell cell;

	if (!table || !table->bounded || r->prefetch || layer == 0 || tn_load_of(&r->op)->input_tokens == 0)
		return 0;
	tn_slack_at(table, tn_load_of(&r->op)->input_tokens, prefix_tokens(r), layer - 1, &cell);
	return cell.most_iocbs;
}

void tn_schedule_load(struct tn_reading *r)
{
	struct tn_schedule *s = r->op.cache->schedule;
	uint32_t blocks[TN_DEVICES_MAX] = {0}, most = 0, devices = 0;

	for (uint32_t i = 0; i < r->op.n; i++) {
		uint32_t d = r->items[i].device;

		if (r->items[i].state != TN_READ_LEAD || tn_read_reach(&r->items[i]) != TN_REACH_DEVICE)
			continue;
		devices |= 1u << d;
		most = ++blocks[d] > most ? blocks[d] : most;
	}
	r->devices = devices;
	r->op.cache->device_loads += devices != 0;
	if (!s)
		return;
	r->sched = (struct tn_sched_load){
		.id = ++s->loads,
		.priority = r->op.priority,
		.layers = r->op.shape->layers,
		.start_ns = !r->prefetch && tn_load_of(&r->op)->start_ns ? tn_load_of(&r->op)->start_ns : r->begin_ns,
		.deadline_ns = r->deadline_ns,
		.before_ns = needs(r),
		.layer_bytes = (uint64_t)most * r->op.shape->padded_bytes,
		.together = r->op.shape->chunk_objects,
	};
	tn_sched_load_add(s->sched, &r->sched, r->begin_ns);
	tn_sched_load_waits(s->sched, &r->sched, devices);
}

void tn_schedule_load_at(struct tn_reading *r)
{
	const struct tn_face_asked *asked = tn_face_asked(tn_op_region(&r->op), r->op.number);
	bool waits = r->chunk < r->op.shape->chunks && !tn_op_stands(&r->op);
	uint32_t layer, devices = waits ? r->devices : 0;
	uint64_t since;

	if (!r->op.cache->schedule)
		return;
	if (r->sched.devices != devices)
		tn_sched_load_waits(r->op.cache->schedule->sched, &r->sched, devices);
	r->sched.priority = r->op.priority;
	if (r->prefetch)
		return;
	since = __atomic_load_n(&asked->at_ns, __ATOMIC_ACQUIRE);
	layer = __atomic_load_n(&asked->at_layer, __ATOMIC_ACQUIRE);
	if (since == 0 || since != __atomic_load_n(&asked->at_ns, __ATOMIC_RELAXED) || layer >= r->op.shape->layers)
		return; /* not yet, or being changed: what was known is soon made up for */
	r->sched.at_layer = layer;
	r->sched.at_ns = since;
}

void tn_schedule_load_issued(struct tn_reading *r, bool all)
{
	if (!r->op.cache->schedule)
		return;
	r->sched.next_layer = tn_shape_chunk_first(r->op.shape, r->chunk);
	if (all)
		tn_sched_load_waits(r->op.cache->schedule->sched, &r->sched, 0);
}

void tn_schedule_load_over(struct tn_reading *r)
{
	r->op.cache->device_loads -= r->devices != 0;
	if (r->op.cache->schedule)
		tn_sched_load_del(r->op.cache->schedule->sched, &r->sched, tn_now_ns(&r->op.cache->clock),
				  r->devices && !r->op.cancelled && r->good == r->op.n);
}

struct tn_reading *tn_schedule_next(struct tn_cache *cache, uint64_t now)
{
	struct tn_sched_load *load = tn_sched_pick(cache->schedule->sched, now);

	return load ? tn_container_of(load, struct tn_reading, sched) : NULL;
}

void tn_schedule_again(struct tn_cache *cache)
{
	tn_sched_again(cache->schedule->sched);
}

/* ---- transfers --------------------------------------------------------------------------------------- */

uint64_t tn_schedule_read_allowance(struct tn_cache *cache, uint32_t device, uint64_t least, bool *later)
{
	return tn_sched_sendable(cache->schedule->sched, device, least, tn_now_ns(&cache->clock), later);
}

bool tn_schedule_read(struct tn_read_item *item, uint32_t chunk, uint64_t bytes)
{
	struct tn_reading *r = item->r;
	struct tn_cache *cache = r->op.cache;

	return !cache->schedule ||
	       tn_sched_read(cache->schedule->sched, &r->sched, tn_shape_chunk_first(r->op.shape, chunk),
			     item->device, bytes, tn_now_ns(&cache->clock));
}

static enum tn_sched_writer writer_of(const struct tn_writing *w)
{
	return w->save ? TN_SCHED_SAVES : TN_SCHED_OFFLOADS;
}

bool tn_schedule_write(const struct tn_writing *w, uint32_t device, uint64_t bytes)
{
	struct tn_cache *cache = w->op.cache;

	return !cache->schedule ||
	       tn_sched_write(cache->schedule->sched, writer_of(w), device, bytes, tn_now_ns(&cache->clock));
}

uint64_t tn_schedule_write_most(const struct tn_cache *cache, uint32_t device)
{
	return cache->schedule ? tn_sched_write_most(cache->schedule->sched, device, tn_now_ns(&cache->clock)) : UINT64_MAX;
}

void tn_schedule_write_waits(const struct tn_writing *w)
{
	if (w->op.cache->schedule && !tn_op_stands(&w->op))
		tn_sched_write_waits(w->op.cache->schedule->sched, writer_of(w));
}

bool tn_schedule_tier_write(struct tn_cache *cache, uint32_t device, uint64_t bytes)
{
	return !cache->schedule ||
	       tn_sched_write(cache->schedule->sched, TN_SCHED_STORE, device, bytes, tn_now_ns(&cache->clock));
}

void tn_schedule_ended(struct tn_cache *cache, enum tn_io_op op, uint32_t device, uint64_t bytes, bool moved)
{
	struct tn_sched *s = cache->schedule ? cache->schedule->sched : NULL;
	uint64_t now = tn_now_ns(&cache->clock);

	if (s && !moved)
		op == TN_IO_READ ? tn_sched_read_undo(s, device, bytes) : tn_sched_write_undo(s, device, bytes);
	else if (s)
		op == TN_IO_READ ? tn_sched_read_done(s, device, bytes, now) : tn_sched_write_done(s, device, bytes, now);
}
