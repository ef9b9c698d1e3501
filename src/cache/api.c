/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The callers' side of loads, saves and drops: checks, hands over, waits. Any thread.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/abi.h"
#include "base/error.h"
#include "base/futex.h"
#include "cache/cache_internal.h"
#include "cache/pool.h"

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

/* Waits until ready(op, arg) or the deadline; 0 only looks, without a system call. */
static int wait_op(struct tn_op *op, bool (*ready)(struct tn_op *op, uint32_t arg), uint32_t arg, uint64_t deadline_ns)
{
	int rc = 0;

	if (ready(op, arg))
		return 0;
	if (deadline_ns == 0)
		return -ETIMEDOUT;
	__atomic_add_fetch(&op->waiters, 1, __ATOMIC_SEQ_CST);
	for (;;) {
		uint32_t seq = __atomic_load_n(&op->seq, __ATOMIC_SEQ_CST);

		if (ready(op, arg))
			break;
		rc = tn_futex_wait(&op->seq, seq, deadline_ns);
		if (rc == -ETIMEDOUT) {
			rc = ready(op, arg) ? 0 : -ETIMEDOUT;
			break;
		}
	}
	__atomic_sub_fetch(&op->waiters, 1, __ATOMIC_RELAXED);
	return rc;
}

/* A kick that is still queued would reach whoever has the operation next. */
static bool is_drained(struct tn_op *op, uint32_t arg)
{
	return __atomic_load_n(&op->drained, __ATOMIC_ACQUIRE) && !__atomic_load_n(&op->kicked, __ATOMIC_ACQUIRE);
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

static void hand_over(struct tn_op *op, void (*run)(struct tn_cmd *cmd))
{
	op->kick.run = run;
	tn_op_kick(op);
}

int tn_load_begin(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
		  const uint32_t *pages, const struct tn_load_opts *opts, struct tn_load **out)
{
	struct tn_load_opts o;
	struct tn_load_op *load;
	struct tn_op *op;
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
	op = tn_op_take(space->cache);
	if (!op)
		return tn_fail(-EAGAIN, "tn_load_begin: all %u operations are under way; end some or raise max_ops",
			       space->cache->o.max_ops);
	load = tn_load_of(op);
	rc = tn_load_arm(load, &(struct tn_op_args){space, pool, keys, n, pages});
	if (rc) {
		tn_op_untake(op);
		return rc;
	}
	load->r.deadline_ns = o.deadline_ns;
	op->priority = o.priority;
	load->input_tokens = o.input_tokens;
	load->start_ns = o.start_ns;
	op->first_page = o.first_page;
	op->end_page = o.npages ? o.first_page + o.npages : all;
	rc = tn_claims_load(pool->claims, op->pages, op->first_page, op->end_page);
	if (rc) {
		tn_op_give(op);
		return rc;
	}
	*out = tn_handle_open(op, TN_HANDLE_LOAD);
	hand_over(op, tn_load_start);
	return 0;
}

static uint32_t good_prefix(struct tn_op *op)
{
	return __atomic_load_n(&tn_reading_of(op)->good, __ATOMIC_ACQUIRE);
}

static bool layer_is_there(struct tn_op *op, uint32_t layer)
{
	return __atomic_load_n(&tn_load_of(op)->left[tn_shape_chunk_of(&op->space->shape, layer)], __ATOMIC_ACQUIRE) == 0;
}

static bool all_there(struct tn_op *op)
{
	for (uint32_t c = 0; c < op->space->shape.chunks; c++)
		if (__atomic_load_n(&tn_load_of(op)->left[c], __ATOMIC_ACQUIRE))
			return false;
	return true;
}

/*
 * What a wait for a layer waits for. When that completes a load that lost nothing, the owner is about to let go of
 * it: wait for that as well, so that tn_load_end has nothing to wait for.
 */
static bool wait_is_over(struct tn_op *op, uint32_t layer)
{
	if (!layer_is_there(op, layer))
		return false;
	return good_prefix(op) < op->n || !all_there(op) || is_drained(op, 0);
}

static int check_layer(const struct tn_op *op, uint32_t layer)
{
	if (layer >= op->space->shape.layers)
		return tn_fail(-EINVAL, "layer %u: this space has %u", layer, op->space->shape.layers);
	return 0;
}

/* See wants_whole() of load.c. Threads that wait for the same load first may race: either tells the truth. */
static void note_first_wait(struct tn_op *op, uint32_t layer)
{
	struct tn_load_op *load = tn_load_of(op);
	uint8_t wait = layer > 0 ? TN_WAIT_WHOLE : TN_WAIT_LAYERS;

	if (__atomic_load_n(&load->first_wait, __ATOMIC_RELAXED) != TN_WAIT_NOT)
		return;
	__atomic_store_n(&load->first_wait, wait, __ATOMIC_RELAXED);
	__atomic_store_n(&op->space->last_wait, wait, __ATOMIC_RELAXED);
}

static int load_wait(struct tn_op *op, uint32_t layer, uint64_t deadline_ns)
{
	int rc = check_layer(op, layer);

	if (rc)
		return rc;
	note_first_wait(op, layer);
	tn_schedule_wait_begins(tn_load_of(op), layer);
	if (wait_op(op, wait_is_over, layer, deadline_ns) && !layer_is_there(op, layer))
		return tn_fail(-ETIMEDOUT, "tn_load_wait: layer %u is not there by the deadline", layer);
	tn_schedule_wait_ends(tn_load_of(op), layer);
	return (int)good_prefix(op);
}

int tn_load_wait(struct tn_load *load, uint32_t layer, uint64_t deadline_ns)
{
	struct tn_op *op;
	int rc = tn_handle_enter(load, TN_HANDLE_LOAD, "tn_load_wait", &op);

	if (rc)
		return rc;
	rc = load_wait(op, layer, deadline_ns);
	tn_handle_leave(op);
	return rc;
}

int tn_load_poll(struct tn_load *load, uint32_t layer)
{
	struct tn_op *op;
	int rc = tn_handle_enter(load, TN_HANDLE_LOAD, "tn_load_poll", &op);

	if (rc)
		return rc;
	rc = check_layer(op, layer);
	if (rc == 0)
		rc = layer_is_there(op, layer) ? (int)good_prefix(op) : -EAGAIN;
	tn_handle_leave(op);
	return rc;
}

/* Also ends the save's waiting for its caller: abort. */
static void cancel(struct tn_op *op)
{
	__atomic_store_n(&op->cancel, 1, __ATOMIC_RELEASE);
	tn_op_kick(op);
}

int tn_load_cancel(struct tn_load *load)
{
	struct tn_op *op;
	int rc = tn_handle_enter(load, TN_HANDLE_LOAD, "tn_load_cancel", &op);

	if (rc)
		return rc;
	cancel(op);
	tn_handle_leave(op);
	return 0;
}

/* A block is the caller's again when nothing of it can be in flight any more. */
static void tell_busy(struct tn_op *op, uint8_t *busy)
{
	const struct tn_read_item *items = tn_reading_of(op)->items;

	memset(busy, 0, (op->n + 7) / 8);
	for (uint32_t i = 0; i < op->n; i++)
		if (__atomic_load_n(&items[i].busy, __ATOMIC_ACQUIRE))
			busy[i / 8] |= (uint8_t)(1u << (i % 8));
}

/*
 * Inside the handle of an operation that is drained: 0 if it is this caller's to give back; -EBUSY: it was kicked once
 * more meanwhile, by a caller who was inside, too; -EINVAL: another caller ends it.
 */
static int end_op(struct tn_op *op, const char *call)
{
	if (!tn_handle_close(op))
		return tn_fail(-EINVAL, "%s: another thread has just ended it", call);
	if (is_drained(op, 0))
		return 0;
	tn_handle_reopen(op);
	return -EBUSY;
}

static void give_back(struct tn_op *op)
{
	tn_handle_gone(op);
	tn_op_give(op);
}

/* Inside: cancels what is missing, and waits until the load is over and this caller's alone; -EBUSY at the deadline. */
static int load_end(struct tn_op *op, uint64_t deadline_ns)
{
	int rc;

	if (!is_drained(op, 0) && !__atomic_load_n(&op->cancel, __ATOMIC_RELAXED) && !all_there(op))
		cancel(op);
	do {
		if (wait_op(op, is_drained, 0, deadline_ns))
			return -EBUSY;
		rc = end_op(op, "tn_load_end");
	} while (rc == -EBUSY);
	return rc;
}

int tn_load_end(struct tn_load *load, uint64_t deadline_ns, uint8_t *busy)
{
	struct tn_op *op;
	int rc = tn_handle_enter(load, TN_HANDLE_LOAD, "tn_load_end", &op);

	if (rc)
		return rc;
	rc = load_end(op, deadline_ns);
	if (rc == 0) {
		tn_claims_loaded(op->pool->claims, op->pages, op->first_page, op->end_page);
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
	struct tn_cache *cache;
	struct tn_reading *r;
	struct tn_op *op;
	int rc;

	if (!space || (n && !keys))
		return tn_fail(-EINVAL, "tn_prefetch: space or keys is missing");
	cache = space->cache;
	if (tn_check_process(cache))
		return -ECHILD;
	if (n == 0 || !cache->store || !space->host_ok)
		return 0;
	op = tn_op_take(cache);
	if (!op)
		return tn_fail(-EAGAIN, "tn_prefetch: all %u operations are under way", cache->o.max_ops);
	r = tn_reading_of(op);
	rc = tn_reading_arm(r, &(struct tn_op_args){space, NULL, keys, n, NULL});
	if (rc) {
		tn_op_untake(op);
		return rc;
	}
	r->prefetch = true;
	r->deadline_ns = deadline_ns;
	op->priority = INT32_MIN; /* nobody waits for it yet */
	hand_over(op, tn_load_start);
	return (int)n;
}

/* ---- saves ------------------------------------------------------------------------------------------------ */

/* An operation for the save, with its pages; not handed over yet. */
static int arm_save(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
		    const uint32_t *pages, struct tn_save_op **out)
{
	struct tn_op *op = tn_op_take(space->cache);
	int rc;

	if (!op)
		return tn_fail(-EAGAIN, "tn_save_begin: all %u operations are under way; end some or raise max_ops",
			       space->cache->o.max_ops);
	rc = tn_save_arm(tn_save_of(op), &(struct tn_op_args){space, pool, keys, n, pages});
	if (rc) {
		tn_op_untake(op);
		return rc;
	}
	rc = tn_claims_save(pool->claims, op->pages, op->end_page);
	if (rc) {
		tn_op_give(op);
		return rc;
	}
	*out = tn_save_of(op);
	return 0;
}

int tn_save_begin(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
		  const uint32_t *pages, const struct tn_save_opts *opts, struct tn_save **out)
{
	struct tn_save_op *save = NULL;
	struct tn_save_opts o;
	int rc = check_op(space, pool, keys, n, pages, out);

	tn_save_opts_init(&o);
	if (rc == 0 && opts)
		rc = tn_abi_in(TN_ABI(tn_save_opts, ttl_ns), &o, opts);
	if (rc)
		return rc;
	if (o.priority < -128 || o.priority > 127)
		return tn_fail(-EINVAL, "tn_save_begin: priority %d outside -128..127", o.priority);
	rc = tn_schedule_admit(space, n);
	if (rc)
		return rc;
	rc = arm_save(space, pool, keys, n, pages, &save);
	if (rc) {
		tn_schedule_give_back(space->cache, n * space->shape.slot_bytes);
		return rc;
	}
	save->admitted_bytes = n * space->shape.slot_bytes;
	save->partial_last = o.partial_last;
	save->w.op.priority = o.priority;
	save->ttl_ns = o.ttl_ns;
	save->outcome = o.outcome;
	if (o.parent)
		save->parent = *o.parent;
	*out = tn_handle_open(&save->w.op, TN_HANDLE_SAVE);
	hand_over(&save->w.op, tn_save_start);
	return 0;
}

static int save_layer(struct tn_op *op, uint32_t layer, const struct tn_event *ready)
{
	struct tn_save_op *save = tn_save_of(op);
	int rc = check_layer(op, layer);

	if (rc)
		return rc;
	if (__atomic_load_n(&save->layer_state[layer], __ATOMIC_ACQUIRE) != 0)
		return tn_fail(-EINVAL, "tn_save_layer: layer %u was given before", layer);
	save->layer_event[layer] = ready ? *ready : (struct tn_event){NULL, NULL};
	__atomic_store_n(&save->layer_state[layer], 1, __ATOMIC_RELEASE);
	__atomic_add_fetch(&save->layers_given, 1, __ATOMIC_RELEASE);
	tn_op_kick(op);
	return 0;
}

int tn_save_layer(struct tn_save *save, uint32_t layer, const struct tn_event *ready)
{
	struct tn_op *op;
	int rc = tn_handle_enter(save, TN_HANDLE_SAVE, "tn_save_layer", &op);

	if (rc)
		return rc;
	rc = save_layer(op, layer, ready);
	tn_handle_leave(op);
	return rc;
}

static int save_commit(struct tn_op *op)
{
	uint32_t given = __atomic_load_n(&tn_save_of(op)->layers_given, __ATOMIC_ACQUIRE), layers = op->space->shape.layers;

	if (given != layers)
		return tn_fail(-EINVAL, "tn_save_commit: %u of %u layers were given", given, layers);
	__atomic_store_n(&tn_save_of(op)->commit, 1, __ATOMIC_RELEASE);
	tn_op_kick(op);
	return 0;
}

int tn_save_commit(struct tn_save *save)
{
	struct tn_op *op;
	int rc = tn_handle_enter(save, TN_HANDLE_SAVE, "tn_save_commit", &op);

	if (rc)
		return rc;
	rc = save_commit(op);
	tn_handle_leave(op);
	return rc;
}

int tn_save_abort(struct tn_save *save)
{
	struct tn_op *op;
	int rc = tn_handle_enter(save, TN_HANDLE_SAVE, "tn_save_abort", &op);

	if (rc)
		return rc;
	cancel(op);
	tn_handle_leave(op);
	return 0;
}

/* Inside: waits until it is over, and is this caller's alone. */
static int save_end(struct tn_op *op, uint64_t deadline_ns)
{
	int rc;

	if (!__atomic_load_n(&tn_save_of(op)->commit, __ATOMIC_RELAXED) && !__atomic_load_n(&op->cancel, __ATOMIC_RELAXED))
		return tn_fail(-EINVAL, "tn_save_end: neither committed nor aborted");
	do {
		if (wait_op(op, is_drained, 0, deadline_ns))
			return tn_fail(-ETIMEDOUT, "tn_save_end: still under way at the deadline; call again");
		rc = end_op(op, "tn_save_end");
	} while (rc == -EBUSY);
	return rc;
}

int tn_save_end(struct tn_save *save, uint64_t deadline_ns, struct tn_save_result *result)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_save_result, error);
	struct tn_save_op *s;
	struct tn_op *op;
	int rc = tn_handle_enter(save, TN_HANDLE_SAVE, "tn_save_end", &op);

	if (rc)
		return rc;
	s = tn_save_of(op);
	if (result)
		rc = tn_abi_check(abi, result);
	if (rc == 0)
		rc = save_end(op, deadline_ns);
	if (rc) {
		tn_handle_leave(op);
		return rc;
	}
	if (result)
		tn_abi_out(abi, result, &s->result);
	for (uint32_t i = 0; s->outcome && i < op->n; i++)
		s->outcome[i] = s->w.items[i].saved;
	tn_claims_saved(op->pool->claims, op->pages, op->end_page);
	rc = s->flush.status;
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

		if (b == TN_BLOCK_NONE || (tn_block_residency(cache->registry, b, TN_TIER_DISK) != TN_PRESENT &&
					   tn_block_residency(cache->registry, b, TN_TIER_HOST) != TN_PRESENT))
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
