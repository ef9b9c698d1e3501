/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What callers tell the scheduler, through the region: where an engine is and how long it computed, what saves are about to bring,
 * and what the engine does now. Any thread.
 */
#include <errno.h>

#include "base/error.h"
#include "front/front.h"

/* ---- where the engine is ------------------------------------------------------------------------- */

static void observe(const struct tn_front_op *op, uint32_t layer, int64_t ns)
{
	tn_observation_put(&op->cache->region, &(struct tn_observation){
		.input = op->input_tokens,
		.prefix = op->n * tn_geometry_block_tokens(&op->space->geometry),
		.ns = ns,
		.space = op->space->index,
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

static bool is_scheduled(const struct tn_cache *cache)
{
	return __atomic_load_n(&tn_region_core(&cache->region)->scheduled, __ATOMIC_RELAXED);
}

void tn_hint_wait_begins(struct tn_front_op *op, uint32_t layer)
{
	uint64_t now;

	if (!is_scheduled(op->cache))
		return;
	now = tn_now_ns(&op->cache->clock);
	if (op->left_ns && op->input_tokens && layer == op->left_layer + 1)
		observe(op, op->left_layer, (int64_t)(now - op->left_ns));
	op->left_ns = 0;
	engine_is_at(op, layer, now);
}

void tn_hint_wait_ends(struct tn_front_op *op, uint32_t layer)
{
	if (!is_scheduled(op->cache))
		return;
	op->left_layer = layer;
	op->left_ns = tn_now_ns(&op->cache->clock);
	engine_is_at(op, layer, op->left_ns);
}

/* ---- the write backlog ----------------------------------------------------------------------------- */

/* What memory with so many free slots takes of this space. */
static uint64_t host_bytes(const struct tn_space *space, uint64_t blocks)
{
	uint64_t bytes = blocks * space->shape.slot_bytes, quota = tn_space_quota(space, space->cache->memory->tier);

	return bytes < quota ? bytes : quota;
}

/* Whole saves count, from now on: what several begun at once will bring is bounded before anything of it is here. */
int tn_backlog_admit(const struct tn_space *space, uint64_t blocks)
{
	struct tn_region_front *front = tn_region_front(&space->cache->region);
	const struct tn_region_core *core = tn_region_core(&space->cache->region);
	uint64_t bytes = blocks * space->shape.slot_bytes, host = 0, limit, admitted;
	int64_t waiting;

	limit = __atomic_load_n(&core->limit_bytes, __ATOMIC_RELAXED);
	if (tn_space_in(space, space->cache->memory))
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
	return tn_fail(-EAGAIN, "write backlog: %llu MiB of saves wait for the disk (at most %llu); try again later, or "
		       "raise write_backlog_bytes", (unsigned long long)waiting >> 20, (unsigned long long)(limit >> 20));
}

void tn_backlog_undo(const struct tn_space *space, uint64_t blocks)
{
	__atomic_sub_fetch(&tn_region_front(&space->cache->region)->admitted_bytes, blocks * space->shape.slot_bytes,
			   __ATOMIC_RELAXED);
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
	tn_io_wake(cache->io);
	return 0;
}
