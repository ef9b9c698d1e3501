/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The callers' side of loads, saves and drops: checks, hands over, waits; and what callers tell the scheduler on the way, through the
 * region: where an engine is and how long it computed, what saves are about to bring, what the engine does now. Any thread.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/abi.h"
#include "base/error.h"
#include "base/trace.h"
#include "front/attach.h"
#include "front/stage.h"
#include "region/latency.h"

void tn_load_opts_init_sized(struct tn_load_opts *opts, size_t size)
{
	static const struct tn_load_opts defaults = {.size = sizeof(defaults), .deadline_ns = TN_FOREVER};

	tn_abi_init(opts, size, &defaults, sizeof(defaults));
}

void tn_save_opts_init_sized(struct tn_save_opts *opts, size_t size)
{
	static const struct tn_save_opts defaults = {.size = sizeof(defaults)};

	tn_abi_init(opts, size, &defaults, sizeof(defaults));
}

/* ---- operations ------------------------------------------------------------------------------------------- */

static int owner_is_gone(void)
{
	return tn_fail(-ESHUTDOWN, "the process that owns the cache is gone; close this one and attach again");
}

static int memory_is_lost(const char *call)
{
	return tn_fail(-EFAULT, "%s: pages of the memory are gone: its file was truncated or punched while it was registered; unregister it, and "
		       "register memory that stays", call);
}

static int check_op(const struct tn_space *space, const struct tn_pool *pool, const struct tn_key *keys, size_t n,
		    const uint32_t *pages, void *out)
{
	if (!space || !pool || !keys || !pages || !out)
		return tn_fail(-EINVAL, "space, pool, keys, pages or out is missing");
	if (tn_check_process(space->cache))
		return -ECHILD;
	if (tn_region_is_gone(&space->cache->region))
		return owner_is_gone();
	if (pool->memory->cache != space->cache)
		return tn_fail(-EINVAL, "the pool and the space are of different caches");
	if (!tn_geometry_same(&pool->layout.geometry, &space->geometry))
		return tn_fail(-EINVAL, "the pool has pages of another geometry than the space's blocks");
	if (__atomic_load_n(&pool->memory->told_lost, __ATOMIC_RELAXED))
		return memory_is_lost("the pool cannot be used any more");
	if (n == 0)
		return tn_fail(-EINVAL, "no blocks (n = 0)");
	for (size_t i = 0; i < n; i++)
		if (tn_key_is_zero(&keys[i]))
			return tn_fail(-EINVAL, "keys[%zu] is zero: that means no block", i);
	return 0;
}

/* An operation with its keys and pages; not handed over yet. */
static int take_op(const struct tn_front_args *args, const char *call, struct tn_front_op **out)
{
	struct tn_cache *cache = args->space->cache;
	struct tn_front_op *op;
	int rc = tn_front_fits(args);

	if (rc)
		return rc;
	op = tn_front_take(cache);
	if (!op)
		return tn_fail(-EAGAIN, "%s: all %u operations are under way; end some or raise max_ops", call, cache->o.max_ops);
	tn_front_arm(op, args);
	*out = op;
	return 0;
}

/* As tn_handle_enter, for a call about one layer. */
static int enter_layer(const void *handle, enum tn_handle_kind kind, const char *call, uint32_t layer, struct tn_front_op **op)
{
	int rc = tn_handle_enter(handle, kind, call, op);

	if (rc)
		return rc;
	if (layer < (*op)->space->shape.layers)
		return 0;
	rc = tn_fail(-EINVAL, "layer %u: this space has %u", layer, (*op)->space->shape.layers);
	tn_handle_leave(*op);
	return rc;
}

static void cancel(struct tn_front_op *op)
{
	tn_face_set(&tn_face_asked(op->region, op->number)->cancel);
	tn_front_kick(op);
}

/* Also ends a save's waiting for its caller: abort. */
static int cancel_by_handle(const void *handle, enum tn_handle_kind kind, const char *call)
{
	struct tn_front_op *op;
	int rc = tn_handle_enter(handle, kind, call, &op);

	if (rc)
		return rc;
	cancel(op);
	tn_handle_leave(op);
	return 0;
}

/*
 * Also of an operation whose owner is gone: once nothing can land in its pages any more. A save's are only read: then what a dead owner's
 * device writes of pages that change is found wrong when it is loaded. A staged operation ends by the thread that copies, which is here.
 */
static bool is_over(const void *arg)
{
	const struct tn_front_op *op = arg;
	bool save = (op->generation & 1) == TN_HANDLE_SAVE;

	if (op->region != &op->cache->region)
		return tn_front_is_over(op);
	return tn_front_is_over(op) || (save && tn_region_is_dead(op->region)) || tn_attached_landed(op->cache);
}

/*
 * Inside the operation's handle: waits until the operation is over and this caller's alone. 0, -EBUSY at the deadline, or -EINVAL:
 * another caller ends it.
 */
static int end_op(struct tn_front_op *op, uint64_t deadline_ns, const char *call)
{
	const struct timespec nap = {0, 1000000};

	for (;;) {
		int rc = tn_face_wait(op->region, op->number, is_over, op, deadline_ns);

		if (rc == -ESHUTDOWN && tn_now_ns(&op->cache->clock) < deadline_ns) {
			nanosleep(&nap, NULL); /* the kernel ends the dead owner's transfers, and tells nobody */
			continue;
		}
		if (rc)
			return -EBUSY;
		if (!tn_handle_close(op))
			return tn_fail(-EINVAL, "%s: another thread has just ended it", call);
		if (is_over(op))
			return 0;
		tn_handle_reopen(op); /* a caller who was inside, too, has kicked it once more */
	}
}

/* An operation is over: whether the core has refused it because of its memory, which is remembered. */
static bool lost_memory(const struct tn_front_op *op)
{
	bool lost = tn_front_is_over(op) && tn_face_good(&op->cache->region, op->number) == 0 &&
		    tn_face_told(op->region, op->number)->status == -EFAULT;

	if (lost)
		__atomic_store_n(&op->pool->memory->told_lost, 1, __ATOMIC_RELAXED);
	return lost;
}

static void give_back(struct tn_front_op *op)
{
	tn_handle_leave(op);
	tn_front_give(op);
}

/* ---- where the engine is ------------------------------------------------------------------------- */

static bool is_scheduled(const struct tn_cache *cache)
{
	return __atomic_load_n(&tn_region_core(&cache->region)->scheduled, __ATOMIC_RELAXED);
}

void tn_front_observe(const struct tn_space *space, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer, int64_t ns)
{
	if (is_scheduled(space->cache))
		tn_observation_put(&space->cache->region, &(struct tn_observation){
			.input = input_tokens,
			.prefix = prefix_tokens,
			.ns = ns,
			.space = space->index,
			.layer = layer,
		});
}

/* Without a time in between, so that the owner does not take one layer's for another's. */
static void engine_is_at(const struct tn_front_op *op, uint32_t layer, uint64_t now)
{
	struct tn_face_asked *asked = tn_face_asked(&op->cache->region, op->number);

	__atomic_store_n(&asked->at_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&asked->at_layer, layer, __ATOMIC_RELEASE);
	__atomic_store_n(&asked->at_ns, now, __ATOMIC_RELEASE);
}

void tn_hint_wait_begins(struct tn_front_op *op, uint32_t layer, uint64_t now)
{
	if (!is_scheduled(op->cache))
		return;
	if (op->left_ns && op->input_tokens && layer == op->left_layer + 1)
		tn_front_observe(op->space, op->input_tokens, op->n * tn_geometry_block_tokens(&op->space->geometry), op->left_layer,
				 (int64_t)(now - op->left_ns));
	op->left_ns = 0;
	engine_is_at(op, layer, now);
}

void tn_hint_wait_ends(struct tn_front_op *op, uint32_t layer, uint64_t now)
{
	if (!is_scheduled(op->cache))
		return;
	op->left_layer = layer;
	op->left_ns = now;
	engine_is_at(op, layer, now);
}

/* ---- loads ------------------------------------------------------------------------------------------------ */

/* Who tells how much there is to compute does so layer by layer. Else as the load before was waited for. */
static uint32_t flags_of_wait(const struct tn_space *space, uint64_t input_tokens)
{
	if (input_tokens)
		return TN_COMMAND_LAYERS;
	switch (__atomic_load_n(&space->last_wait, __ATOMIC_RELAXED)) {
	case TN_WAIT_LAYERS:
		return TN_COMMAND_LAYERS;
	case TN_WAIT_WHOLE:
		return TN_COMMAND_WHOLE;
	default:
		return 0;
	}
}

int tn_load_begin(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
		  const uint32_t *pages, const struct tn_load_opts *opts, struct tn_load **out)
{
	struct tn_front_op *op = NULL;
	struct tn_load_opts o;
	uint64_t all;
	int rc = check_op(space, pool, keys, n, pages, out);

	tn_load_opts_init(&o);
	if (rc == 0 && opts)
		rc = tn_abi_in(TN_ABI(tn_load_opts, priority), &o, opts);
	if (rc)
		return rc;
	all = n * space->geometry.pages_per_block;
	if (o.first_page >= all || o.npages > all - o.first_page)
		return tn_fail(-EINVAL, "tn_load_begin: pages from %llu on, %llu of them (0: all that follow), of the %llu of %zu blocks",
			       (unsigned long long)o.first_page, (unsigned long long)o.npages, (unsigned long long)all, n);
	rc = take_op(&(struct tn_front_args){space, pool, keys, n, pages}, "tn_load_begin", &op);
	if (rc)
		return rc;
	op->begun_ns = tn_now_ns(&op->cache->clock);
	op->first_page = o.first_page;
	op->end_page = o.npages ? o.first_page + o.npages : all;
	op->input_tokens = o.input_tokens;
	op->tag = o.tag;
	rc = tn_claims_load(pool->claims, tn_face_pages(op->region, op->number), op->first_page, op->end_page);
	if (rc == 0 && pool->stage) {
		rc = tn_stage_take(op, "tn_load_begin");
		if (rc)
			tn_claims_loaded(pool->claims, tn_face_pages(op->region, op->number), op->first_page, op->end_page);
	}
	if (rc) {
		tn_front_give(op);
		return rc;
	}
	tn_handle_next(op, TN_HANDLE_LOAD);
	*out = tn_handle_open(op);
	tn_front_begin(op, &(struct tn_command){
		.kind = TN_COMMAND_LOAD,
		.deadline_ns = o.deadline_ns,
		.input_tokens = o.input_tokens,
		.start_ns = o.start_ns,
		.priority = o.priority,
		.flags = flags_of_wait(space, o.input_tokens),
	});
	if (tn_region_is_dead(&space->cache->region)) /* meanwhile: the event words may have been raised before this load had any */
		tn_attached_raise(space->cache);
	return 0;
}

struct layer_wait {
	const struct tn_front_op *op;
	uint32_t layer;
};

/*
 * What a wait for a layer waits for. When that completes a load that lost nothing, the core is about to let go of
 * it: wait for that as well, so that tn_load_end has nothing to wait for.
 */
static bool wait_is_over(const void *arg)
{
	const struct layer_wait *w = arg;

	if (!tn_front_layer_is_ready(w->op, w->layer))
		return false;
	return tn_face_good(w->op->region, w->op->number) < w->op->n || !tn_front_all_is_ready(w->op) ||
	       tn_front_is_over(w->op);
}

/*
 * The first wait, poll or question for an event word tells whether the caller wants layer by layer. Threads that wait first at once may race: either
 * tells the truth. Batches come as a whole, whatever the caller waits for.
 */
static void note_first_wait(struct tn_front_op *op, uint32_t layer)
{
	uint32_t *first = &tn_face_asked(op->batches.count > 1 ? op->region : &op->cache->region, op->number)->first_wait;
	uint32_t wait = layer > 0 ? TN_WAIT_WHOLE : TN_WAIT_LAYERS;

	if (__atomic_load_n(first, __ATOMIC_RELAXED) != TN_WAIT_NOT)
		return;
	__atomic_store_n(first, wait, __ATOMIC_RELAXED);
	__atomic_store_n(&op->space->last_wait, wait, __ATOMIC_RELAXED);
}

/*
 * A stream may wait for a word of the load, from now on. The owner is told, too: of the batch under way, if there are batches. One that is asked meanwhile
 * loses this, or asks again (stage.c).
 */
static void note_stream(struct tn_front_op *op)
{
	struct tn_face_asked *ours = tn_face_asked(op->region, op->number), *owner = tn_face_asked(&op->cache->region, op->number);
	uint64_t now = tn_now_ns(&op->cache->clock);

	if (ours->command.deadline_ns != TN_FOREVER || __atomic_load_n(&ours->streams_ns, __ATOMIC_RELAXED))
		return;
	__atomic_store_n(&ours->streams_ns, now, __ATOMIC_SEQ_CST);
	__atomic_store_n(&owner->streams_ns, now, __ATOMIC_SEQ_CST);
}

/* A layer is ready: if it is the last one that was waited for, so may be all. */
static void time_if_last(struct tn_front_op *op, uint32_t layer)
{
	if (layer + 1 == op->space->shape.layers && tn_front_all_is_ready(op))
		tn_front_time_load(op);
}

int tn_load_wait(struct tn_load *load, uint32_t layer, uint64_t deadline_ns)
{
	struct layer_wait w = {.layer = layer};
	const struct tn_cache *cache;
	struct tn_front_op *op;
	uint64_t begun, now;
	int rc = enter_layer(load, TN_HANDLE_LOAD, "tn_load_wait", layer, &op);

	if (rc)
		return rc;
	w.op = op;
	cache = op->cache;
	begun = tn_now_ns(&cache->clock);
	note_first_wait(op, layer);
	tn_hint_wait_begins(op, layer, begun);
	rc = tn_face_wait(op->region, op->number, wait_is_over, &w, deadline_ns);
	now = tn_now_ns(&cache->clock);
	tn_latency_add(&cache->region, TN_LATENCY_LAYER_WAIT, TN_TIER_NONE, now - begun);
	if (rc == -ESHUTDOWN || tn_region_is_gone(&cache->region)) {
		rc = owner_is_gone();
	} else if (rc && !tn_front_layer_is_ready(op, layer)) {
		rc = tn_fail(-ETIMEDOUT, "tn_load_wait: layer %u is not there by the deadline", layer);
	} else {
		tn_hint_wait_ends(op, layer, now);
		time_if_last(op, layer);
		rc = (int)tn_face_good(op->region, op->number);
	}
	tn_handle_leave(op);
	return rc;
}

int tn_load_poll(struct tn_load *load, uint32_t layer)
{
	struct tn_front_op *op;
	int rc = enter_layer(load, TN_HANDLE_LOAD, "tn_load_poll", layer, &op);

	if (rc)
		return rc;
	note_first_wait(op, layer);
	rc = -EAGAIN;
	if (tn_front_layer_is_ready(op, layer)) {
		time_if_last(op, layer);
		rc = (int)tn_face_good(op->region, op->number);
	}
	if (tn_region_is_gone(&op->cache->region))
		rc = owner_is_gone();
	tn_handle_leave(op);
	return rc;
}

int tn_load_event(struct tn_load *load, uint32_t layer, const uint64_t **word, uint64_t *value)
{
	struct tn_front_op *op;
	int rc;

	if (!word || !value)
		return tn_fail(-EINVAL, "tn_load_event: word or value is missing");
	rc = enter_layer(load, TN_HANDLE_LOAD, "tn_load_event", layer, &op);
	if (rc)
		return rc;
	note_first_wait(op, layer);
	note_stream(op);
	*word = &tn_face_ready(op->region, op->number)[tn_shape_chunk_of(&op->space->shape, layer)];
	*value = op->generation;
	tn_handle_leave(op);
	return 0;
}

int tn_load_cancel(struct tn_load *load)
{
	return cancel_by_handle(load, TN_HANDLE_LOAD, "tn_load_cancel");
}

/* A block is the caller's again when nothing of it can be in flight any more. */
static void tell_busy(const struct tn_front_op *op, uint8_t *busy)
{
	const struct tn_region *region = op->region;
	const uint8_t *told = tn_face_busy(region, op->number);
	bool begun = __atomic_load_n(&tn_face_told(region, op->number)->begun, __ATOMIC_ACQUIRE) == op->generation;

	memset(busy, 0, (op->n + 7) / 8);
	for (uint32_t i = 0; i < op->n; i++)
		if (!begun || __atomic_load_n(&told[i], __ATOMIC_ACQUIRE))
			busy[i / 8] |= (uint8_t)(1u << (i % 8));
}

int tn_load_end(struct tn_load *load, uint64_t deadline_ns, uint8_t *busy)
{
	const uint32_t *cancelled;
	struct tn_front_op *op;
	int rc = tn_handle_enter(load, TN_HANDLE_LOAD, "tn_load_end", &op);

	if (rc)
		return rc;
	cancelled = &tn_face_asked(op->region, op->number)->cancel;
	if (!tn_front_is_over(op) && !__atomic_load_n(cancelled, __ATOMIC_RELAXED) && !tn_front_all_is_ready(op))
		cancel(op); /* what is missing */
	rc = end_op(op, deadline_ns, "tn_load_end");
	if (rc == 0) {
		tn_front_time_load(op);
		lost_memory(op);
		tn_claims_loaded(op->pool->claims, tn_face_pages(op->region, op->number), op->first_page, op->end_page);
		give_back(op);
		return 0;
	}
	if (rc == -EBUSY && busy)
		tell_busy(op, busy);
	tn_handle_leave(op);
	return rc;
}

int tn_prefetch(struct tn_space *space, const struct tn_key *keys, size_t n, uint64_t deadline_ns)
{
	struct tn_front_op *op = NULL;
	struct tn_cache *cache;
	int rc;

	if (!space || (n && !keys))
		return tn_fail(-EINVAL, "tn_prefetch: space or keys is missing");
	cache = space->cache;
	if (tn_check_process(cache))
		return -ECHILD;
	if (tn_region_is_gone(&cache->region))
		return owner_is_gone();
	if (n == 0 || !space->prefetches)
		return 0;
	tn_front_reap(cache);
	rc = take_op(&(struct tn_front_args){space, NULL, keys, n, NULL}, "tn_prefetch", &op);
	if (rc)
		return rc;
	tn_handle_next(op, TN_HANDLE_LOAD); /* nobody gets it */
	tn_front_begin(op, &(struct tn_command){
		.kind = TN_COMMAND_PREFETCH,
		.deadline_ns = deadline_ns,
		.priority = INT32_MIN, /* nobody waits for it yet */
	});
	return (int)n;
}

/* ---- the write backlog ----------------------------------------------------------------------------- */

/* What memory with so many free slots takes of this space. */
static uint64_t host_bytes(const struct tn_space *space, uint64_t blocks)
{
	uint64_t bytes = blocks * space->shape.slot_bytes, quota = tn_space_quota(space, space->memory_tier);

	return bytes < quota ? bytes : quota;
}

/* Whole saves count, from now on: what several begun at once will bring is bounded before anything of it is here. */
static int admit(const struct tn_space *space, uint64_t blocks)
{
	struct tn_region_front *front = tn_region_front(&space->cache->region);
	const struct tn_region_core *core = tn_region_core(&space->cache->region);
	uint64_t bytes = blocks * space->shape.slot_bytes, host = 0, limit, admitted;
	int64_t waiting;

	limit = __atomic_load_n(&core->limit_bytes, __ATOMIC_RELAXED);
	if (space->memory_tier != TN_TIER_NONE)
		host = host_bytes(space, __atomic_load_n(&core->host_blocks, __ATOMIC_RELAXED));
	limit = limit > UINT64_MAX - host ? UINT64_MAX : limit + host;
	admitted = __atomic_load_n(&front->admitted_bytes, __ATOMIC_RELAXED);
	for (;;) {
		waiting = (int64_t)(admitted - __atomic_load_n(&core->given_back_bytes, __ATOMIC_RELAXED));
		if (waiting > 0 && (bytes > limit || (uint64_t)waiting > limit - bytes))
			break;
		if (__atomic_compare_exchange_n(&front->admitted_bytes, &admitted, admitted + bytes, true, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return 0;
	}
	__atomic_add_fetch(&front->refused_bytes, bytes, __ATOMIC_RELAXED);
	TN_TRACE2(save_refused, bytes, waiting);
	return tn_fail(-EAGAIN, "write backlog: %llu MiB of saves wait for the disk (at most %llu); try again later, or "
		       "raise write_backlog_bytes", (unsigned long long)waiting >> 20, (unsigned long long)(limit >> 20));
}

static void admit_undo(const struct tn_space *space, uint64_t blocks)
{
	__atomic_sub_fetch(&tn_region_front(&space->cache->region)->admitted_bytes, blocks * space->shape.slot_bytes,
			   __ATOMIC_RELAXED);
}

/* ---- saves ------------------------------------------------------------------------------------------------ */

int tn_save_begin(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
		  const uint32_t *pages, const struct tn_save_opts *opts, struct tn_save **out)
{
	const struct tn_front_args args = {space, pool, keys, n, pages};
	struct tn_front_op *op = NULL;
	struct tn_save_opts o;
	int rc = check_op(space, pool, keys, n, pages, out);

	tn_save_opts_init(&o);
	if (rc == 0 && opts)
		rc = tn_abi_in(TN_ABI(tn_save_opts, ttl_ns), &o, opts);
	if (rc)
		return rc;
	if (space->cache->attached && space->cache->o.read_only)
		return tn_fail(-EROFS, "tn_save_begin: the owner's rules let this process read only");
	if (o.priority < -128 || o.priority > 127)
		return tn_fail(-EINVAL, "tn_save_begin: priority %d outside -128..127", o.priority);
	rc = tn_front_fits(&args); /* what never fits need not wait for the backlog */
	if (rc == 0)
		rc = admit(space, n);
	if (rc)
		return rc;
	rc = take_op(&args, "tn_save_begin", &op);
	if (rc == 0)
		rc = tn_claims_save(pool->claims, tn_face_pages(op->region, op->number), op->end_page);
	if (rc == 0 && pool->stage) {
		rc = tn_stage_take(op, "tn_save_begin");
		if (rc)
			tn_claims_saved(pool->claims, tn_face_pages(op->region, op->number), op->end_page);
	}
	if (rc) {
		if (op)
			tn_front_give(op);
		admit_undo(space, n);
		return rc;
	}
	op->begun_ns = tn_now_ns(&op->cache->clock);
	op->outcome = o.outcome;
	op->tag = o.tag;
	tn_handle_next(op, TN_HANDLE_SAVE);
	*out = tn_handle_open(op);
	tn_front_begin(op, &(struct tn_command){
		.kind = TN_COMMAND_SAVE,
		.ttl_ns = o.ttl_ns,
		.parent = o.parent && !tn_stage_is_to_come(space, o.parent) ? *o.parent : (struct tn_key){{0, 0}},
		.priority = o.priority,
		.flags = o.partial_last ? TN_COMMAND_PARTIAL_LAST : 0,
	});
	return 0;
}

int tn_save_layer(struct tn_save *save, uint32_t layer, const struct tn_event *event, uint64_t value)
{
	struct tn_face_given *given;
	struct tn_front_op *op;
	int rc = enter_layer(save, TN_HANDLE_SAVE, "tn_save_layer", layer, &op);

	if (rc)
		return rc;
	given = &tn_face_given(op->region, op->number)[layer];
	if (event && event->cache != op->cache) {
		rc = tn_fail(-EINVAL, "tn_save_layer: the event is another cache's");
	} else if (tn_face_is_set(&given->given)) {
		rc = tn_fail(-EINVAL, "tn_save_layer: layer %u was given before", layer);
	} else {
		__atomic_store_n(&given->event, event ? event->number : TN_EVENT_NONE, __ATOMIC_RELAXED);
		__atomic_store_n(&given->value, value, __ATOMIC_RELAXED);
		tn_face_set(&given->given);
		__atomic_add_fetch(&op->layers_given, 1, __ATOMIC_RELEASE);
		tn_front_kick(op);
	}
	tn_handle_leave(op);
	return rc;
}

int tn_save_commit(struct tn_save *save)
{
	struct tn_front_op *op;
	uint32_t given, layers;
	int rc = tn_handle_enter(save, TN_HANDLE_SAVE, "tn_save_commit", &op);

	if (rc)
		return rc;
	given = __atomic_load_n(&op->layers_given, __ATOMIC_ACQUIRE);
	layers = op->space->shape.layers;
	if (given == layers) {
		tn_face_set(&tn_face_asked(op->region, op->number)->commit);
		tn_front_kick(op);
	}
	tn_handle_leave(op);
	return given == layers ? 0 : tn_fail(-EINVAL, "tn_save_commit: %u of %u layers were given", given, layers);
}

int tn_save_abort(struct tn_save *save)
{
	return cancel_by_handle(save, TN_HANDLE_SAVE, "tn_save_abort");
}

static int save_end(struct tn_front_op *op, uint64_t deadline_ns)
{
	const struct tn_face_asked *asked = tn_face_asked(op->region, op->number);
	int rc;

	if (!__atomic_load_n(&asked->commit, __ATOMIC_RELAXED) && !__atomic_load_n(&asked->cancel, __ATOMIC_RELAXED))
		return tn_fail(-EINVAL, "tn_save_end: neither committed nor aborted");
	rc = end_op(op, deadline_ns, "tn_save_end");
	return rc == -EBUSY ? tn_fail(-ETIMEDOUT, "tn_save_end: still under way at the deadline; call again") : rc;
}

/* A save that is over: nobody has aborted it, and blocks have no result. So ends the last thing that an owner does that closes its cache. */
static bool is_forgotten(const struct tn_front_op *op)
{
	const struct tn_face_told *told = tn_face_told(op->region, op->number);

	return told->status == 0 && told->blocks[TN_SAVED_NOT] > 0 && !tn_face_is_set(&tn_face_asked(op->region, op->number)->cancel);
}

static struct tn_save_result result_of(const struct tn_face_told *told)
{
	return (struct tn_save_result){
		.size = sizeof(struct tn_save_result),
		.stored = told->blocks[TN_SAVED_STORED],
		.existing = told->blocks[TN_SAVED_EXISTING],
		.host_only = told->blocks[TN_SAVED_HOST_ONLY],
		.rejected = told->blocks[TN_SAVED_REJECTED],
		.failed = told->blocks[TN_SAVED_FAILED],
		.error = told->error,
	};
}

int tn_save_end(struct tn_save *save, uint64_t deadline_ns, struct tn_save_result *result)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_save_result, error);
	const struct tn_face_told *told;
	const struct tn_cache *cache;
	struct tn_save_result ours;
	struct tn_front_op *op;
	bool refused, lost;
	int rc = tn_handle_enter(save, TN_HANDLE_SAVE, "tn_save_end", &op);

	if (rc)
		return rc;
	if (result)
		rc = tn_abi_check(abi, result);
	if (rc == 0)
		rc = save_end(op, deadline_ns);
	if (rc) {
		tn_handle_leave(op);
		return rc;
	}
	cache = op->cache;
	told = tn_face_told(op->region, op->number);
	if (!tn_front_is_over(op) || told->status == -ESHUTDOWN || is_forgotten(op)) { /* it never will be, or without the owner's having done it */
		tn_claims_saved(op->pool->claims, tn_face_pages(op->region, op->number), op->end_page);
		give_back(op);
		return owner_is_gone();
	}
	if (!__atomic_load_n(&tn_face_asked(op->region, op->number)->cancel, __ATOMIC_RELAXED))
		tn_latency_add(&cache->region, TN_LATENCY_SAVE, TN_TIER_NONE, tn_now_ns(&cache->clock) - op->begun_ns);
	refused = tn_face_save_is_refused(op->region, op->number);
	admit_undo(op->space, refused ? op->n : op->batches.left); /* of which the core gives nothing back */
	ours = result_of(told);
	if (refused)
		ours = (struct tn_save_result){.size = sizeof(ours), .failed = op->n, .error = told->status};
	if (result)
		tn_abi_out(abi, result, &ours);
	if (op->outcome && refused)
		memset(op->outcome, TN_SAVED_FAILED, op->n);
	else if (op->outcome)
		memcpy(op->outcome, tn_face_saved(op->region, op->number), op->n);
	tn_claims_saved(op->pool->claims, tn_face_pages(op->region, op->number), op->end_page);
	rc = told->status;
	lost = lost_memory(op);
	give_back(op);
	if (lost)
		return memory_is_lost("tn_save_end");
	return rc ? tn_fail(rc, refused ? "tn_save_end: the cache's owner has refused it (error %d)" :
					  "tn_save_end: stored, and not durable (error %d)", -rc) : 0;
}

/* ---- drop ------------------------------------------------------------------------------------------------- */

struct drop_call {
	struct tn_space *space;
	const struct tn_key *keys;
	size_t n;
};

static int drop_on_owner(struct tn_cache *cache, void *arg)
{
	const struct drop_call *c = arg;
	int found = 0;

	for (size_t i = 0; i < c->n; i++) {
		tn_block b = tn_registry_find_one(cache->registry, c->space->index, &c->keys[i], false);

		if (b == TN_BLOCK_NONE || tn_block_lies_nowhere(&cache->blocks, b))
			continue;
		tn_block_doom(&cache->blocks, b);
		found++;
	}
	return found;
}

int tn_drop(struct tn_space *space, const struct tn_key *keys, size_t n)
{
	struct drop_call call = {space, keys, n};

	if (!space || (n && !keys))
		return tn_fail(-EINVAL, "tn_drop: space or keys is missing");
	if (space->cache->attached && !tn_check_process(space->cache))
		return tn_remote_drop(space, keys, n);
	return tn_owner_call(space->cache, drop_on_owner, &call);
}

/* ---- the phase --------------------------------------------------------------------------------------- */

int tn_phase(struct tn_cache *cache, enum tn_phase phase, uint64_t slack_ns)
{
	struct tn_region_front *front;
	uint64_t now, until;

	if (!cache || (phase != TN_PHASE_PREFILL && phase != TN_PHASE_DECODE))
		return tn_fail(-EINVAL, "tn_phase: no cache, or phase %d is neither prefill nor decode", (int)phase);
	if (tn_forked(cache))
		return tn_error_last()->code;
	if (!is_scheduled(cache))
		return 0;
	now = tn_now_ns(&cache->clock);
	until = slack_ns > TN_FOREVER - now ? TN_FOREVER : now + slack_ns;
	if (phase == TN_PHASE_DECODE && slack_ns == 0)
		until = TN_FOREVER;
	front = tn_region_front(&cache->region);
	__atomic_store_n(&front->calm_until_ns, until, __ATOMIC_RELAXED);
	__atomic_add_fetch(&front->calm_calls, 1, __ATOMIC_RELEASE);
	tn_front_wake(cache);
	return 0;
}
