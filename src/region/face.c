/* SPDX-License-Identifier: Apache-2.0 */
#include "region/face.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/futex.h"
#include "region/event.h"

/* Copies what the other side may change meanwhile; the compiler must not look at the source again for what is in the copy. */
static void copy_once(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
	__asm__ volatile("" ::: "memory");
}

uint64_t tn_face_streams_due(const struct tn_region *r, uint32_t op, uint64_t heard_ns, uint64_t idle_ns)
{
	uint64_t since = __atomic_load_n(&tn_face_asked(r, op)->streams_ns, __ATOMIC_RELAXED);

	if (since == 0)
		return TN_FOREVER;
	return (since > heard_ns ? since : heard_ns) + idle_ns;
}

void tn_face_pass_streams(const struct tn_region *from, const struct tn_region *to, uint32_t op)
{
	uint64_t *at = &tn_face_asked(to, op)->streams_ns, since;

	__atomic_store_n(at, 0, __ATOMIC_SEQ_CST);
	since = __atomic_load_n(&tn_face_asked(from, op)->streams_ns, __ATOMIC_SEQ_CST);
	if (since)
		__atomic_store_n(at, since, __ATOMIC_SEQ_CST);
}

/* ---- the front -------------------------------------------------------------------------------------- */

void tn_face_ask(const struct tn_region *r, uint32_t op, const struct tn_command *command, uint32_t layers)
{
	struct tn_face_asked *a = tn_face_asked(r, op);
	struct tn_face_given *given = tn_face_given(r, op);

	a->command = *command;
	__atomic_store_n(&a->cancel, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&a->commit, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&a->first_wait, TN_WAIT_NOT, __ATOMIC_RELAXED);
	__atomic_store_n(&a->at_layer, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&a->at_ns, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&a->streams_ns, 0, __ATOMIC_RELAXED);
	for (uint32_t l = 0; l < layers; l++)
		__atomic_store_n(&given[l].given, 0, __ATOMIC_RELAXED);
}

enum tn_tier tn_face_lowest_tier(const struct tn_region *r, uint32_t op)
{
	const uint32_t *blocks = tn_face_told(r, op)->blocks;
	uint32_t t = TN_TIERS_MAX - 1;

	while (t > TN_TIER_NONE && __atomic_load_n(&blocks[t], __ATOMIC_RELAXED) == 0)
		t--;
	return (enum tn_tier)t;
}

uint32_t tn_face_attend(const struct tn_region *r, uint32_t op)
{
	__atomic_add_fetch(&tn_face_asked(r, op)->waiters, 1, __ATOMIC_SEQ_CST);
	return __atomic_load_n(&tn_face_told(r, op)->progress, __ATOMIC_SEQ_CST);
}

int tn_face_sleep(const struct tn_region *r, uint32_t op, uint32_t *seen, uint64_t deadline_ns)
{
	uint32_t *progress = &tn_face_told(r, op)->progress;
	int rc;

	if (tn_region_is_gone(r))
		return -ESHUTDOWN;
	rc = tn_futex_wait_on(progress, *seen, deadline_ns, r->shared);
	*seen = __atomic_load_n(progress, __ATOMIC_SEQ_CST);
	return rc == -ETIMEDOUT ? rc : 0;
}

void tn_face_leave(const struct tn_region *r, uint32_t op)
{
	__atomic_sub_fetch(&tn_face_asked(r, op)->waiters, 1, __ATOMIC_RELAXED);
}

/* ---- the core --------------------------------------------------------------------------------------- */

static bool kind_is_known(uint32_t kind)
{
	return kind == TN_COMMAND_LOAD || kind == TN_COMMAND_PREFETCH || kind == TN_COMMAND_SAVE;
}

int tn_face_take_command(const struct tn_region *r, uint32_t op, struct tn_command *out)
{
	copy_once(out, &tn_face_asked(r, op)->command, sizeof(*out));
	if (!kind_is_known(out->kind) || (out->flags & ~TN_COMMAND_FLAGS) || out->blocks == 0 || out->blocks > r->counts.blocks)
		return tn_fail(-EINVAL, "operation %u: kind %u, flags %#x or %u blocks (at most %u)", op, out->kind, out->flags, out->blocks,
			       r->counts.blocks);
	if (out->kind == TN_COMMAND_PREFETCH)
		return 0;
	if (out->first_page >= out->end_page || out->end_page > r->counts.pages)
		return tn_fail(-EINVAL, "operation %u: pages %llu to %llu (at most %u)", op, (unsigned long long)out->first_page,
			       (unsigned long long)out->end_page, r->counts.pages);
	if (out->kind == TN_COMMAND_SAVE && (out->priority < INT8_MIN || out->priority > INT8_MAX))
		return tn_fail(-EINVAL, "operation %u: priority %d", op, out->priority);
	return 0;
}

int tn_face_take_keys(const struct tn_region *r, uint32_t op, uint32_t n, struct tn_key *out)
{
	copy_once(out, tn_face_keys(r, op), n * sizeof(*out));
	for (uint32_t i = 0; i < n; i++)
		if (!(out[i].word[0] | out[i].word[1]))
			return tn_fail(-EINVAL, "operation %u: key %u is zero", op, i);
	return 0;
}

int tn_face_take_pages(const struct tn_region *r, uint32_t op, uint64_t first, uint64_t end, uint32_t npages, uint32_t *out)
{
	uint32_t highest = 0;

	copy_once(out + first, tn_face_pages(r, op) + first, (end - first) * sizeof(*out));
	for (uint64_t i = first; i < end; i++) /* without a branch: many at a time */
		highest = out[i] > highest ? out[i] : highest;
	return first == end || highest < npages ? 0 : tn_fail(-EINVAL, "operation %u: page %u: the pool has %u", op, highest, npages);
}

/* The event of a layer that was given; NULL: it needs none, or was not given. *value: to be reached. 0, 1: final, -EINVAL. */
static int event_of(const struct tn_region *r, uint32_t op, uint32_t layer, const struct tn_event_word **word, uint64_t *value)
{
	const struct tn_face_given *g = &tn_face_given(r, op)[layer];
	uint32_t event;

	*word = NULL;
	if (!tn_face_is_set(&g->given))
		return 0;
	event = __atomic_load_n(&g->event, __ATOMIC_RELAXED);
	if (event == TN_EVENT_NONE)
		return 1;
	if (event >= r->counts.events)
		return tn_fail(-EINVAL, "operation %u: event %u of layer %u: there are %u", op, event, layer, r->counts.events);
	*word = tn_event_word(r, event);
	*value = __atomic_load_n(&g->value, __ATOMIC_RELAXED);
	return 0;
}

int tn_face_layer_is_final(const struct tn_region *r, uint32_t op, uint32_t layer)
{
	const struct tn_event_word *word;
	uint64_t value;
	int rc = event_of(r, op, layer, &word, &value);

	return word ? tn_event_word_reached(word, value) : rc;
}

bool tn_face_layer_is_devices(const struct tn_region *r, uint32_t op, uint32_t layer)
{
	const struct tn_event_word *word;
	uint64_t value;

	event_of(r, op, layer, &word, &value);
	return word && __atomic_load_n(&word->device, __ATOMIC_RELAXED);
}

void tn_face_begins(const struct tn_region *r, uint32_t op, uint64_t generation, uint32_t blocks)
{
	struct tn_face_told *t = tn_face_told(r, op);

	t->status = t->error = 0;
	memset(t->blocks, 0, sizeof(t->blocks));
	memset(tn_face_busy(r, op), 1, blocks);
	__atomic_store_n(&t->good, blocks, __ATOMIC_RELAXED);
	__atomic_store_n(&t->begun, generation, __ATOMIC_RELEASE);
}

void tn_face_tell_saved(const struct tn_region *r, uint32_t op, const uint32_t *blocks, uint32_t kinds, int error)
{
	struct tn_face_told *t = tn_face_told(r, op);

	memcpy(t->blocks, blocks, kinds * sizeof(*blocks));
	t->error = error;
}

void tn_face_tell_tiers(const struct tn_region *r, uint32_t op, const uint32_t *blocks)
{
	uint32_t *told = tn_face_told(r, op)->blocks;

	_Static_assert(TN_TIERS_MAX <= TN_FACE_KINDS, "each tier has its count");
	for (uint32_t t = 0; t < TN_TIERS_MAX; t++)
		__atomic_store_n(&told[t], blocks[t], __ATOMIC_RELAXED);
}

bool tn_face_notify(const struct tn_region *r, uint32_t op)
{
	struct tn_doorbell completions = tn_region_completions(r);
	uint32_t *progress = &tn_face_told(r, op)->progress;

	__atomic_add_fetch(progress, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&tn_face_asked(r, op)->waiters, __ATOMIC_SEQ_CST))
		tn_futex_wake_on(progress, r->shared);
	return tn_doorbell_ring(&completions, op);
}

bool tn_face_drains(const struct tn_region *r, uint32_t op, uint64_t generation)
{
	__atomic_store_n(&tn_face_told(r, op)->drained, generation, __ATOMIC_SEQ_CST);
	return tn_face_notify(r, op);
}
