/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the cache and its scheduler: tells it of loads, transfers and phases, asks it before each transfer, and
 * keeps the slack tables in step with what engines were seen to take.
 *
 * Owner thread, except where the callers' side is marked: callers leave what they saw in a small ring that the owner
 * empties. With scheduler "none", or without disks, there is no scheduler and everything may go.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "cache/cache_internal.h"

#define OBSERVATIONS 1024u
#define BACKLOG_SECONDS 2u /* of writing: what saves may have waiting */
#define BACKLOG_LEAST (256ull << 20)
#define BACKLOG_UNKNOWN (1ull << 30)

/* A layer's compute as an engine's waits showed it. Each entry has a turn number: who holds the turn may fill it. */
struct observation {
	uint64_t turn; /* shared */
	const struct tn_space *space; /* perhaps closed meanwhile, and gone */
	uint16_t index;		      /* its number */
	uint64_t input, prefix;
	uint32_t layer;
	int64_t ns;
};

struct tn_schedule {
	struct tn_sched *sched;
	struct observation seen[OBSERVATIONS];
	uint64_t head; /* shared: next to fill */
	uint64_t tail;
	uint64_t loads;	      /* numbers them */
	uint64_t calm_until;  /* shared: of tn_phase, 0: not called since the owner looked */
	uint64_t admitted;    /* shared: bytes of saves since they were begun, less what of them needs no disk any more */
	uint64_t limit;	      /* shared: most of them */
	uint64_t host_room;   /* shared: blocks that host memory would take from saves */
	uint64_t refused;     /* shared: bytes of saves refused since the owner looked */
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

	if (!cache->store || strcmp(cache->o.scheduler, "none") == 0)
		return 0;
	s = tn_get(cache->alloc, sizeof(*s));
	if (!s)
		return tn_fail(-ENOMEM, "scheduler: no memory");
	rc = tn_sched_create(&o, &s->sched);
	if (rc) {
		tn_put(cache->alloc, s, sizeof(*s));
		return rc;
	}
	for (uint64_t i = 0; i < OBSERVATIONS; i++)
		s->seen[i].turn = i;
	for (uint32_t i = 0; i < o.devices; i++)
		tn_sched_device(s->sched, i, &cache->mix[i]);
	s->limit = cache->o.write_backlog_bytes ? cache->o.write_backlog_bytes : BACKLOG_UNKNOWN;
	cache->schedule = s;
	return 0;
}

void tn_schedule_destroy(struct tn_cache *cache)
{
	if (!cache->schedule)
		return;
	tn_sched_destroy(cache->schedule->sched);
	tn_put(cache->alloc, cache->schedule, sizeof(*cache->schedule));
	cache->schedule = NULL;
}

/* ---- what callers see (their threads) ------------------------------------------------------------- */

static void observe(struct tn_schedule *s, const struct tn_load_op *load, uint32_t layer, int64_t ns)
{
	uint64_t at = __atomic_load_n(&s->head, __ATOMIC_RELAXED), turn;
	struct observation *o;

	for (;;) {
		o = &s->seen[at % OBSERVATIONS];
		turn = __atomic_load_n(&o->turn, __ATOMIC_ACQUIRE);
		if (turn < at)
			return; /* full: one timing more or less does not matter */
		if (turn > at)
			at = __atomic_load_n(&s->head, __ATOMIC_RELAXED);
		else if (__atomic_compare_exchange_n(&s->head, &at, at + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			break;
	}
	o->space = load->r.op.space;
	o->index = load->r.op.space->index;
	o->input = load->input_tokens;
	o->prefix = load->r.op.n * tn_geometry_block_tokens(&load->r.op.space->geometry);
	o->layer = layer;
	o->ns = ns;
	__atomic_store_n(&o->turn, at + 1, __ATOMIC_RELEASE);
}

/* Without a time in between, so that the owner does not take one layer's for another's. */
static void engine_is_at(struct tn_load_op *load, uint32_t layer, uint64_t now)
{
	__atomic_store_n(&load->at_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&load->at_layer, layer, __ATOMIC_RELEASE);
	__atomic_store_n(&load->at_ns, now, __ATOMIC_RELEASE);
}

void tn_schedule_wait_begins(struct tn_load_op *load, uint32_t layer)
{
	struct tn_cache *cache = load->r.op.cache;
	uint64_t now;

	if (!cache->schedule)
		return;
	now = tn_now_ns(&cache->clock);
	if (load->left_ns && load->input_tokens && layer == load->left_layer + 1)
		observe(cache->schedule, load, load->left_layer, (int64_t)(now - load->left_ns));
	load->left_ns = 0;
	engine_is_at(load, layer, now);
}

void tn_schedule_wait_ends(struct tn_load_op *load, uint32_t layer)
{
	if (!load->r.op.cache->schedule)
		return;
	load->left_layer = layer;
	load->left_ns = tn_now_ns(&load->r.op.cache->clock);
	engine_is_at(load, layer, load->left_ns);
}

/* What host memory with room for so many blocks takes of this space's. */
static uint64_t host_bytes(const struct tn_space *space, uint64_t blocks)
{
	uint64_t room = blocks * space->shape.slot_bytes, quota = __atomic_load_n(&space->quota.host_bytes, __ATOMIC_RELAXED);

	return room < quota ? room : quota;
}

/* Whole saves count, from now on: what several begun at once will bring is bounded before anything of it is here. */
int tn_schedule_admit(const struct tn_space *space, uint64_t blocks)
{
	struct tn_schedule *s = space->cache->schedule;
	uint64_t bytes = blocks * space->shape.slot_bytes, host = 0, limit, admitted;

	if (!s)
		return 0;
	limit = __atomic_load_n(&s->limit, __ATOMIC_RELAXED);
	if (space->host_ok)
		host = host_bytes(space, __atomic_load_n(&s->host_room, __ATOMIC_RELAXED));
	limit = limit > UINT64_MAX - host ? UINT64_MAX : limit + host;
	admitted = __atomic_load_n(&s->admitted, __ATOMIC_RELAXED);
	while (admitted == 0 || (bytes <= limit && admitted <= limit - bytes))
		if (__atomic_compare_exchange_n(&s->admitted, &admitted, admitted + bytes, true, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return 0;
	__atomic_add_fetch(&s->refused, bytes, __ATOMIC_RELAXED);
	return tn_fail(-EAGAIN, "write backlog: %llu MiB of saves wait for the disk (at most %llu); try again later, or "
		       "raise write_backlog_bytes", (unsigned long long)(admitted >> 20), (unsigned long long)(limit >> 20));
}

void tn_schedule_give_back(struct tn_cache *cache, uint64_t bytes)
{
	if (cache->schedule)
		__atomic_sub_fetch(&cache->schedule->admitted, bytes, __ATOMIC_RELAXED);
}

int tn_phase(struct tn_cache *cache, enum tn_phase phase, uint64_t slack_ns)
{
	uint64_t now, until;

	if (!cache || (phase != TN_PHASE_PREFILL && phase != TN_PHASE_DECODE))
		return tn_fail(-EINVAL, "tn_phase: no cache, or phase %d is neither prefill nor decode", (int)phase);
	if (tn_forked(cache))
		return tn_error_last()->code;
	if (!cache->schedule)
		return 0;
	now = tn_now_ns(&cache->clock);
	until = slack_ns > TN_FOREVER - now ? TN_FOREVER : now + slack_ns;
	if (phase == TN_PHASE_DECODE && slack_ns == 0)
		until = TN_FOREVER;
	__atomic_store_n(&cache->schedule->calm_until, until, __ATOMIC_RELEASE);
	tn_io_wake(cache->io);
	return 0;
}

/* ---- turns ------------------------------------------------------------------------------------------ */

/* Blocks that still have to be written straight to disk, as far as is known; what waits in host memory is bounded by that. */
static uint64_t for_disk(const struct tn_writing *w)
{
	return w->unplaced + w->unwritten - w->copying;
}

/* What of saves waits for the disk. Gives back what was admitted and does not any more. */
static uint64_t backlog_of(struct tn_cache *cache)
{
	uint64_t sum = 0;

	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next) {
		struct tn_save_op *save = tn_container_of(pos, struct tn_save_op, w.op.link);
		const struct tn_shape *s = &save->w.op.space->shape;
		uint64_t left = for_disk(&save->w) * s->slot_bytes;

		sum += left / s->chunks * save->w.ready_chunks;
		if (save->held || left >= save->admitted_bytes)
			continue;
		tn_schedule_give_back(cache, save->admitted_bytes - left);
		save->admitted_bytes = left;
	}
	return sum;
}

static uint64_t host_room(const struct tn_cache *cache)
{
	uint64_t taken = cache->host_dirty_slots, slots;

	if (!cache->host)
		return 0;
	slots = tn_host_slots(cache->host);
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

static void learn(struct tn_cache *cache, uint64_t now)
{
	struct tn_schedule *s = cache->schedule;

	for (;;) {
		struct observation *o = &s->seen[s->tail % OBSERVATIONS];
		struct tn_space *space;

		if (__atomic_load_n(&o->turn, __ATOMIC_ACQUIRE) != s->tail + 1)
			return;
		space = cache->spaces[o->index] == o->space ? cache->spaces[o->index] : NULL;
		if (space && space->slack && tn_slack_observe(space->slack, o->input, o->prefix, o->layer, o->ns))
			space->slack_moved = true;
		__atomic_store_n(&o->turn, s->tail + OBSERVATIONS, __ATOMIC_RELEASE);
		s->tail++;
		if (space)
			tn_space_share_slack(space, now);
	}
}

void tn_schedule_turn(struct tn_cache *cache, uint64_t now, enum tn_offload_urgency urgency)
{
	struct tn_schedule *s = cache->schedule;
	uint64_t backlog, limit, calm, refused;

	if (!s)
		return;
	tn_sched_turn(s->sched, now);
	learn(cache, now);
	backlog = backlog_of(cache);
	limit = backlog_limit(cache);
	__atomic_store_n(&s->limit, limit, __ATOMIC_RELAXED);
	__atomic_store_n(&s->host_room, host_room(cache), __ATOMIC_RELAXED);
	tn_sched_backlog(s->sched, backlog, urgency == TN_OFFLOAD_IDLE ? limit : 0);
	tn_sched_late(s->sched, urgency == TN_OFFLOAD_LATE);
	__atomic_store_n(&cache->read_bps, tn_sched_read_bps(s->sched), __ATOMIC_RELAXED);
	if (__atomic_load_n(&s->calm_until, __ATOMIC_RELAXED)) {
		calm = __atomic_exchange_n(&s->calm_until, 0, __ATOMIC_ACQUIRE);
		tn_sched_calm(s->sched, calm);
	}
	if (__atomic_load_n(&s->refused, __ATOMIC_RELAXED)) {
		refused = __atomic_exchange_n(&s->refused, 0, __ATOMIC_RELAXED);
		tn_sched_refused(s->sched, refused, now);
	}
}

uint64_t tn_schedule_due(const struct tn_cache *cache)
{
	return cache->schedule ? tn_sched_due(cache->schedule->sched) : TN_FOREVER;
}

/* ---- loads ------------------------------------------------------------------------------------------- */

/* When each layer is needed, as far as the space's table knows. */
static const uint64_t *needs(struct tn_reading *r)
{
	uint64_t prefix = r->op.n * tn_geometry_block_tokens(&r->op.space->geometry);
	uint64_t sum = 0;

	if (r->prefetch || tn_load_of(&r->op)->input_tokens == 0 || !r->op.space->slack)
		return NULL;
	for (uint32_t l = 0; l < r->op.space->shape.layers; l++) {
		r->before_ns[l] = sum;
		sum += tn_slack_window(r->op.space->slack, tn_load_of(&r->op)->input_tokens, prefix, l);
	}
	return r->before_ns;
}

void tn_schedule_load(struct tn_reading *r)
{
	struct tn_schedule *s = r->op.cache->schedule;
	uint32_t blocks[TN_DEVICES_MAX] = {0}, most = 0, devices = 0;

	for (uint32_t i = 0; i < r->op.n; i++) {
		uint32_t d = r->items[i].device;

		if (r->items[i].state != TN_READ_DISK)
			continue;
		devices |= 1u << d;
		most = ++blocks[d] > most ? blocks[d] : most;
	}
	r->from_disk = devices != 0;
	r->op.cache->disk_loads += r->from_disk;
	if (!s)
		return;
	r->sched = (struct tn_sched_load){
		.id = ++s->loads,
		.priority = r->op.priority,
		.layers = r->op.space->shape.layers,
		.start_ns = !r->prefetch && tn_load_of(&r->op)->start_ns ? tn_load_of(&r->op)->start_ns : r->begin_ns,
		.deadline_ns = r->deadline_ns,
		.before_ns = needs(r),
		.layer_bytes = (uint64_t)most * r->op.space->shape.padded_bytes,
		.together = r->op.space->shape.chunk_objects,
	};
	tn_sched_load_add(s->sched, &r->sched, r->begin_ns);
	tn_sched_load_waits(s->sched, &r->sched, devices);
}

void tn_schedule_load_at(struct tn_reading *r)
{
	const struct tn_load_op *load = tn_load_of(&r->op);
	uint64_t since;
	uint32_t layer;

	if (!r->op.cache->schedule)
		return;
	r->sched.priority = r->op.priority;
	if (r->prefetch)
		return;
	since = __atomic_load_n(&load->at_ns, __ATOMIC_ACQUIRE);
	layer = __atomic_load_n(&load->at_layer, __ATOMIC_ACQUIRE);
	if (since == 0 || since != __atomic_load_n(&load->at_ns, __ATOMIC_RELAXED))
		return; /* not yet, or being changed: what was known is soon made up for */
	r->sched.at_layer = layer;
	r->sched.at_ns = since;
}

void tn_schedule_load_issued(struct tn_reading *r, bool all)
{
	if (!r->op.cache->schedule)
		return;
	r->sched.next_layer = tn_shape_chunk_first(&r->op.space->shape, r->chunk);
	if (all)
		tn_sched_load_waits(r->op.cache->schedule->sched, &r->sched, 0);
}

void tn_schedule_load_over(struct tn_reading *r)
{
	r->op.cache->disk_loads -= r->from_disk;
	if (r->op.cache->schedule)
		tn_sched_load_del(r->op.cache->schedule->sched, &r->sched, tn_now_ns(&r->op.cache->clock),
				  r->from_disk && !r->op.cancelled && r->good == r->op.n);
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

uint64_t tn_schedule_read_room(struct tn_cache *cache, uint32_t device, uint64_t least, bool *later)
{
	return tn_sched_read_room(cache->schedule->sched, device, least, tn_now_ns(&cache->clock), later);
}

bool tn_schedule_read(struct tn_read_item *item, uint32_t chunk, uint64_t bytes)
{
	struct tn_reading *r = item->r;
	struct tn_cache *cache = r->op.cache;

	return !cache->schedule ||
	       tn_sched_read(cache->schedule->sched, &r->sched, tn_shape_chunk_first(&r->op.space->shape, chunk),
			     item->device, bytes, tn_now_ns(&cache->clock));
}

void tn_schedule_read_ended(struct tn_cache *cache, uint32_t device, uint64_t bytes)
{
	if (cache->schedule)
		tn_sched_read_done(cache->schedule->sched, device, bytes, tn_now_ns(&cache->clock));
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
	if (w->op.cache->schedule)
		tn_sched_write_waits(w->op.cache->schedule->sched, writer_of(w));
}

bool tn_schedule_store_write(struct tn_cache *cache, uint32_t device, uint64_t bytes)
{
	return !cache->schedule ||
	       tn_sched_write(cache->schedule->sched, TN_SCHED_STORE, device, bytes, tn_now_ns(&cache->clock));
}

void tn_schedule_write_undone(struct tn_cache *cache, uint32_t device, uint64_t bytes)
{
	if (cache->schedule)
		tn_sched_write_undo(cache->schedule->sched, device, bytes);
}

void tn_schedule_write_ended(struct tn_cache *cache, uint32_t device, uint64_t bytes)
{
	if (cache->schedule)
		tn_sched_write_done(cache->schedule->sched, device, bytes, tn_now_ns(&cache->clock));
}
