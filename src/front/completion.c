/* SPDX-License-Identifier: Apache-2.0 */
/* Completions: which loads and saves have made progress or are over. Any thread; one at a time looks. */
#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "front/attach.h"

int tn_cache_eventfd(struct tn_cache *cache)
{
	uint64_t one = 1;

	if (!cache)
		return tn_fail(-EINVAL, "tn_cache_eventfd: no cache");
	if (tn_check_process(cache))
		return -ECHILD;
	if (cache->attached)
		return tn_attached_eventfd(cache);
	/* What ended before anybody listened counts as one. */
	if (!__atomic_exchange_n(&cache->eventfd_used, 1, __ATOMIC_SEQ_CST))
		(void)!write(cache->eventfd, &one, sizeof(one));
	return cache->eventfd;
}

/* The layers from the first on that are ready. */
static uint32_t ready_layers(const struct tn_front_op *op)
{
	uint32_t l = 0;

	while (l < op->space->shape.layers && tn_front_layer_is_ready(op, l))
		l++;
	return l;
}

/* False: the operation ended meanwhile, or nobody has a handle of it. */
static bool describe(struct tn_front_op *op, enum tn_handle_kind kind, struct tn_completion *out)
{
	void *handle = tn_handle_of(op, kind);

	if (!handle || tn_handle_enter(handle, kind, "tn_cache_completions", &op))
		return false;
	*out = (struct tn_completion){.tag = op->tag, .ended = tn_front_is_over(op)};
	if (kind == TN_HANDLE_LOAD) {
		out->load = handle;
		out->ready_layers = ready_layers(op);
		if (out->ready_layers == op->space->shape.layers)
			tn_front_time_load(op);
		out->good_blocks = out->ready_layers ? tn_face_good(op->region, op->number) : op->n;
	} else {
		out->save = handle;
	}
	tn_handle_leave(op);
	return true;
}

int tn_cache_completions(struct tn_cache *cache, struct tn_completion *out, size_t max)
{
	struct tn_doorbell bell;
	struct tn_front *f;
	size_t n = 0;

	if (!cache || (max && !out))
		return tn_fail(-EINVAL, "tn_cache_completions: no cache, or nowhere to return completions");
	if (tn_check_process(cache))
		return -ECHILD;
	f = cache->front;
	pthread_mutex_lock(&f->completions_lock);
	bell = tn_region_completions(f->told_in);
	while (n < max && n < INT32_MAX) {
		uint32_t number;

		if (f->next_completed == bell.count && tn_doorbell_take(&bell, &f->completions, f->completed, &f->next_completed) == 0)
			break;
		number = f->completed[f->next_completed++];
		tn_doorbell_answer(&bell, number);
		if (describe(&f->ops[number], TN_HANDLE_LOAD, &out[n]) || describe(&f->ops[number], TN_HANDLE_SAVE, &out[n]))
			n++;
	}
	pthread_mutex_unlock(&f->completions_lock);
	return (int)n;
}
