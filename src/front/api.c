/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The callers' side of loads, saves and drops: checks, hands over, waits. Any thread.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "front/claims.h"
#include "front/front.h"

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

/* ---- loads ------------------------------------------------------------------------------------------------ */

static int check_op(const struct tn_space *space, const struct tn_pool *pool, const struct tn_key *keys, size_t n,
		    const uint32_t *pages, void *out)
{
	if (!space || !pool || !keys || !pages || !out)
		return tn_fail(-EINVAL, "space, pool, keys, pages or out is missing");
	if (tn_check_process(space->cache))
		return -ECHILD;
	if (pool->memory->cache != space->cache)
		return tn_fail(-EINVAL, "the pool and the space are of different caches");
	if (!tn_geometry_same(&pool->layout.geometry, &space->geometry))
		return tn_fail(-EINVAL, "the pool has pages of another geometry than the space's blocks");
	if (n == 0)
		return tn_fail(-EINVAL, "no blocks (n = 0)");
	for (size_t i = 0; i < n; i++)
		if (tn_key_is_zero(&keys[i]))
			return tn_fail(-EINVAL, "keys[%zu] is zero: that means no block", i);
	return 0;
}

int tn_load_begin(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
		  const uint32_t *pages, const struct tn_load_opts *opts, struct tn_load **out)
{
	struct tn_front_op *op;
	struct tn_load_opts o;
	uint64_t all;
	int rc = check_op(space, pool, keys, n, pages, out);

	tn_load_opts_init(&o);
	if (rc == 0 && opts)
		rc = tn_abi_in(TN_ABI(tn_load_opts, priority), &o, opts);
	if (rc)
		return rc;
	all = n * space->geometry.pages_per_block;
	if (o.first_page > all || o.npages > all - o.first_page)
		return tn_fail(-EINVAL, "tn_load_begin: pages %llu + %llu are outside the %llu of %zu blocks",
			       (unsigned long long)o.first_page, (unsigned long long)o.npages, (unsigned long long)all, n);
	op = tn_front_take(space->cache);
	if (!op)
		return tn_fail(-EAGAIN, "tn_load_begin: all %u operations are under way; end some or raise max_ops",
			       space->cache->o.max_ops);
	rc = tn_front_arm(op, &(struct tn_front_args){space, pool, keys, n, pages});
	if (rc)
		return rc;
	op->first_page = o.first_page;
	op->end_page = o.npages ? o.first_page + o.npages : all;
	op->input_tokens = o.input_tokens;
	op->tag = o.tag;
	rc = tn_claims_load(pool->claims, tn_face_pages(&op->cache->region, op->number), op->first_page, op->end_page);
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
		.flags = __atomic_load_n(&space->last_wait, __ATOMIC_RELAXED) == TN_WAIT_WHOLE ? TN_COMMAND_WHOLE : 0,
	});
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
	return tn_face_good(&w->op->cache->region, w->op->number) < w->op->n || !tn_front_all_is_ready(w->op) ||
	       tn_front_is_over(w->op);
}

static bool is_over(const void *arg)
{
	return tn_front_is_over(arg);
}

/* The first wait tells whether the caller wants layer by layer. Threads that wait first at once may race: either tells the truth. */
static void note_first_wait(struct tn_front_op *op, uint32_t layer)
{
	uint32_t *first = &tn_face_asked(&op->cache->region, op->number)->first_wait;
	uint32_t wait = layer > 0 ? TN_WAIT_WHOLE : TN_WAIT_LAYERS;

	if (__atomic_load_n(first, __ATOMIC_RELAXED) != TN_WAIT_NOT)
		return;
	__atomic_store_n(first, wait, __ATOMIC_RELAXED);
	__atomic_store_n(&op->space->last_wait, wait, __ATOMIC_RELAXED);
}

static int wait_until_over(const struct tn_front_op *op, uint64_t deadline_ns)
{
	return tn_face_wait(&op->cache->region, op->number, is_over, op, deadline_ns);
}

static int load_wait(struct tn_front_op *op, uint32_t layer, uint64_t deadline_ns)
{
	const struct layer_wait w = {op, layer};
	int rc = tn_front_check_layer(op, layer);

	if (rc)
		return rc;
	note_first_wait(op, layer);
	tn_hint_wait_begins(op, layer);
	if (tn_face_wait(&op->cache->region, op->number, wait_is_over, &w, deadline_ns) && !tn_front_layer_is_ready(op, layer))
		return tn_fail(-ETIMEDOUT, "tn_load_wait: layer %u is not there by the deadline", layer);
	tn_hint_wait_ends(op, layer);
	return (int)tn_face_good(&op->cache->region, op->number);
}

int tn_load_wait(struct tn_load *load, uint32_t layer, uint64_t deadline_ns)
{
	struct tn_front_op *op;
	int rc = tn_handle_enter(load, TN_HANDLE_LOAD, "tn_load_wait", &op);

	if (rc)
		return rc;
	rc = load_wait(op, layer, deadline_ns);
	tn_handle_leave(op);
	return rc;
}

int tn_load_poll(struct tn_load *load, uint32_t layer)
{
	struct tn_front_op *op;
	int rc = tn_handle_enter(load, TN_HANDLE_LOAD, "tn_load_poll", &op);

	if (rc)
		return rc;
	rc = tn_front_check_layer(op, layer);
	if (rc == 0)
		rc = tn_front_layer_is_ready(op, layer) ? (int)tn_face_good(&op->cache->region, op->number) : -EAGAIN;
	tn_handle_leave(op);
	return rc;
}

int tn_load_event(struct tn_load *load, uint32_t layer, const uint64_t **word, uint64_t *value)
{
	struct tn_front_op *op;
	int rc;

	if (!word || !value)
		return tn_fail(-EINVAL, "tn_load_event: word or value is missing");
	rc = tn_handle_enter(load, TN_HANDLE_LOAD, "tn_load_event", &op);
	if (rc)
		return rc;
	rc = tn_front_check_layer(op, layer);
	if (rc == 0) {
		*word = &tn_face_ready(&op->cache->region, op->number)[tn_shape_chunk_of(&op->space->shape, layer)];
		*value = op->generation;
	}
	tn_handle_leave(op);
	return rc;
}

/* Also ends the save's waiting for its caller: abort. */
static void cancel(struct tn_front_op *op)
{
	tn_face_set(&tn_face_asked(&op->cache->region, op->number)->cancel);
	tn_front_kick(op);
}

int tn_load_cancel(struct tn_load *load)
{
	struct tn_front_op *op;
	int rc = tn_handle_enter(load, TN_HANDLE_LOAD, "tn_load_cancel", &op);

	if (rc)
		return rc;
	cancel(op);
	tn_handle_leave(op);
	return 0;
}

/* A block is the caller's again when nothing of it can be in flight any more. */
static void tell_busy(const struct tn_front_op *op, uint8_t *busy)
{
	const struct tn_region *region = &op->cache->region;
	const uint8_t *told = tn_face_busy(region, op->number);
	bool begun = __atomic_load_n(&tn_face_told(region, op->number)->begun, __ATOMIC_ACQUIRE) == op->generation;

	memset(busy, 0, (op->n + 7) / 8);
	for (uint32_t i = 0; i < op->n; i++)
		if (!begun || __atomic_load_n(&told[i], __ATOMIC_ACQUIRE))
			busy[i / 8] |= (uint8_t)(1u << (i % 8));
}

/*
 * Inside the handle of an operation that is over: 0 if it is this caller's to give back; -EBUSY: it was kicked once
 * more meanwhile, by a caller who was inside, too; -EINVAL: another caller ends it.
 */
static int end_op(struct tn_front_op *op, const char *call)
{
	if (!tn_handle_close(op))
		return tn_fail(-EINVAL, "%s: another thread has just ended it", call);
	if (tn_front_is_over(op))
		return 0;
	tn_handle_reopen(op);
	return -EBUSY;
}

static void give_back(struct tn_front_op *op)
{
	tn_handle_leave(op);
	tn_front_give(op);
}

/* Inside: cancels what is missing, and waits until the load is over and this caller's alone; -EBUSY at the deadline. */
static int load_end(struct tn_front_op *op, uint64_t deadline_ns)
{
	const uint32_t *cancelled = &tn_face_asked(&op->cache->region, op->number)->cancel;
	int rc;

	if (!tn_front_is_over(op) && !__atomic_load_n(cancelled, __ATOMIC_RELAXED) && !tn_front_all_is_ready(op))
		cancel(op);
	do {
		if (wait_until_over(op, deadline_ns))
			return -EBUSY;
		rc = end_op(op, "tn_load_end");
	} while (rc == -EBUSY);
	return rc;
}

int tn_load_end(struct tn_load *load, uint64_t deadline_ns, uint8_t *busy)
{
	struct tn_front_op *op;
	int rc = tn_handle_enter(load, TN_HANDLE_LOAD, "tn_load_end", &op);

	if (rc)
		return rc;
	rc = load_end(op, deadline_ns);
	if (rc == 0) {
		tn_claims_loaded(op->pool->claims, tn_face_pages(&op->cache->region, op->number), op->first_page, op->end_page);
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
	struct tn_front_op *op;
	struct tn_cache *cache;
	int rc;

	if (!space || (n && !keys))
		return tn_fail(-EINVAL, "tn_prefetch: space or keys is missing");
	cache = space->cache;
	if (tn_check_process(cache))
		return -ECHILD;
	if (n == 0 || !tn_space_in(space, cache->memory) || !cache->row[1])
		return 0;
	tn_front_reap(cache);
	op = tn_front_take(cache);
	if (!op)
		return tn_fail(-EAGAIN, "tn_prefetch: all %u operations are under way", cache->o.max_ops);
	rc = tn_front_arm(op, &(struct tn_front_args){space, NULL, keys, n, NULL});
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

/* ---- saves ------------------------------------------------------------------------------------------------ */

/* An operation for the save, with its pages; not handed over yet. */
static int arm_save(const struct tn_front_args *args, struct tn_front_op **out)
{
	struct tn_front_op *op = tn_front_take(args->space->cache);
	int rc;

	if (!op)
		return tn_fail(-EAGAIN, "tn_save_begin: all %u operations are under way; end some or raise max_ops",
			       args->space->cache->o.max_ops);
	rc = tn_front_arm(op, args);
	if (rc)
		return rc;
	rc = tn_claims_save(args->pool->claims, tn_face_pages(&op->cache->region, op->number), op->end_page);
	if (rc)
		tn_front_give(op);
	else
		*out = op;
	return rc;
}

int tn_save_begin(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
		  const uint32_t *pages, const struct tn_save_opts *opts, struct tn_save **out)
{
	struct tn_front_op *op = NULL;
	struct tn_save_opts o;
	int rc = check_op(space, pool, keys, n, pages, out);

	tn_save_opts_init(&o);
	if (rc == 0 && opts)
		rc = tn_abi_in(TN_ABI(tn_save_opts, ttl_ns), &o, opts);
	if (rc)
		return rc;
	if (o.priority < -128 || o.priority > 127)
		return tn_fail(-EINVAL, "tn_save_begin: priority %d outside -128..127", o.priority);
	rc = tn_backlog_admit(space, n);
	if (rc)
		return rc;
	rc = arm_save(&(struct tn_front_args){space, pool, keys, n, pages}, &op);
	if (rc) {
		tn_backlog_undo(space, n);
		return rc;
	}
	op->outcome = o.outcome;
	op->tag = o.tag;
	tn_handle_next(op, TN_HANDLE_SAVE);
	*out = tn_handle_open(op);
	tn_front_begin(op, &(struct tn_command){
		.kind = TN_COMMAND_SAVE,
		.ttl_ns = o.ttl_ns,
		.parent = o.parent ? *o.parent : (struct tn_key){{0, 0}},
		.priority = o.priority,
		.flags = o.partial_last ? TN_COMMAND_PARTIAL_LAST : 0,
	});
	return 0;
}

static int save_layer(struct tn_front_op *op, uint32_t layer, const struct tn_event *event, uint64_t value)
{
	struct tn_face_given *given;
	int rc = tn_front_check_layer(op, layer);

	if (rc)
		return rc;
	if (event && event->cache != op->cache)
		return tn_fail(-EINVAL, "tn_save_layer: the event is another cache's");
	given = &tn_face_given(&op->cache->region, op->number)[layer];
	if (tn_face_is_set(&given->given))
		return tn_fail(-EINVAL, "tn_save_layer: layer %u was given before", layer);
	__atomic_store_n(&given->event, event ? event->number : TN_EVENT_NONE, __ATOMIC_RELAXED);
	__atomic_store_n(&given->value, value, __ATOMIC_RELAXED);
	tn_face_set(&given->given);
	__atomic_add_fetch(&op->layers_given, 1, __ATOMIC_RELEASE);
	tn_front_kick(op);
	return 0;
}

int tn_save_layer(struct tn_save *save, uint32_t layer, const struct tn_event *event, uint64_t value)
{
	struct tn_front_op *op;
	int rc = tn_handle_enter(save, TN_HANDLE_SAVE, "tn_save_layer", &op);

	if (rc)
		return rc;
	rc = save_layer(op, layer, event, value);
	tn_handle_leave(op);
	return rc;
}

static int save_commit(struct tn_front_op *op)
{
	uint32_t given = __atomic_load_n(&op->layers_given, __ATOMIC_ACQUIRE), layers = op->space->shape.layers;

	if (given != layers)
		return tn_fail(-EINVAL, "tn_save_commit: %u of %u layers were given", given, layers);
	tn_face_set(&tn_face_asked(&op->cache->region, op->number)->commit);
	tn_front_kick(op);
	return 0;
}

int tn_save_commit(struct tn_save *save)
{
	struct tn_front_op *op;
	int rc = tn_handle_enter(save, TN_HANDLE_SAVE, "tn_save_commit", &op);

	if (rc)
		return rc;
	rc = save_commit(op);
	tn_handle_leave(op);
	return rc;
}

int tn_save_abort(struct tn_save *save)
{
	struct tn_front_op *op;
	int rc = tn_handle_enter(save, TN_HANDLE_SAVE, "tn_save_abort", &op);

	if (rc)
		return rc;
	cancel(op);
	tn_handle_leave(op);
	return 0;
}

/* Inside: waits until it is over, and is this caller's alone. */
static int save_end(struct tn_front_op *op, uint64_t deadline_ns)
{
	const struct tn_face_asked *asked = tn_face_asked(&op->cache->region, op->number);
	int rc;

	if (!__atomic_load_n(&asked->commit, __ATOMIC_RELAXED) && !__atomic_load_n(&asked->cancel, __ATOMIC_RELAXED))
		return tn_fail(-EINVAL, "tn_save_end: neither committed nor aborted");
	do {
		if (wait_until_over(op, deadline_ns))
			return tn_fail(-ETIMEDOUT, "tn_save_end: still under way at the deadline; call again");
		rc = end_op(op, "tn_save_end");
	} while (rc == -EBUSY);
	return rc;
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
	struct tn_save_result ours;
	struct tn_front_op *op;
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
	told = tn_face_told(&op->cache->region, op->number);
	ours = result_of(told);
	if (result)
		tn_abi_out(abi, result, &ours);
	if (op->outcome)
		memcpy(op->outcome, tn_face_saved(&op->cache->region, op->number), op->n);
	tn_claims_saved(op->pool->claims, tn_face_pages(&op->cache->region, op->number), op->end_page);
	rc = told->status;
	give_back(op);
	return rc ? tn_fail(rc, "tn_save_end: stored, and not durable (error %d)", -rc) : 0;
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

		if (b == TN_BLOCK_NONE || tn_block_lies_nowhere(cache, b))
			continue;
		tn_block_doom(cache, b);
		found++;
	}
	return found;
}

int tn_drop(struct tn_space *space, const struct tn_key *keys, size_t n)
{
	struct drop_call call = {space, keys, n};

	if (!space || (n && !keys))
		return tn_fail(-EINVAL, "tn_drop: space or keys is missing");
	return tn_owner_call(space->cache, drop_on_owner, &call);
}
