/* SPDX-License-Identifier: Apache-2.0 */
#include "region/call.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/futex.h"

#define LOOK_NS 200000000u /* how late a ring may be noticed that the other side has kept from us */

/* ---- the front -------------------------------------------------------------------------------------- */

uint32_t tn_call_ask(const struct tn_region *r, uint32_t call, uint32_t kind, uint32_t bytes)
{
	struct tn_call_asked *a = tn_call_asked(r, call);
	uint32_t turn = __atomic_load_n(&a->turn, __ATOMIC_RELAXED) + 1;

	__atomic_store_n(&a->kind, kind, __ATOMIC_RELAXED);
	__atomic_store_n(&a->bytes, bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&a->turn, turn, __ATOMIC_RELEASE);
	return turn;
}

int tn_call_wait(const struct tn_region *r, uint32_t call, uint32_t turn, uint64_t deadline_ns)
{
	struct tn_call_told *t = tn_call_told(r, call);
	int rc = 0;

	for (;;) {
		uint32_t told = __atomic_load_n(&t->turn, __ATOMIC_ACQUIRE);

		if (tn_region_is_gone(r))
			return -ESHUTDOWN;
		if (told == turn)
			return 0;
		if (rc == -ETIMEDOUT)
			return rc;
		rc = tn_futex_wait_on(&t->turn, told, deadline_ns, true);
	}
}

void tn_region_ring(const struct tn_region *r)
{
	uint32_t *rung = &tn_region_front(r)->rung;

	__atomic_add_fetch(rung, 1, __ATOMIC_SEQ_CST);
	tn_futex_wake_on(rung, true);
}

void tn_region_wake(const struct tn_region *r)
{
	if (!__atomic_load_n(&tn_region_core(r)->asleep, __ATOMIC_SEQ_CST))
		return;
	__atomic_add_fetch(&tn_region_front(r)->wakes, 1, __ATOMIC_SEQ_CST); /* a thread of the owner's process passes it on */
	tn_region_ring(r);
}

/* ---- the owner's process ------------------------------------------------------------------------------ */

bool tn_call_is_open(const struct tn_region *r, uint32_t call, uint32_t last, uint32_t *kind, uint32_t *bytes, uint32_t *turn)
{
	const struct tn_call_asked *a = tn_call_asked(r, call);

	*turn = __atomic_load_n(&a->turn, __ATOMIC_ACQUIRE);
	if (*turn == last)
		return false;
	*kind = __atomic_load_n(&a->kind, __ATOMIC_RELAXED);
	*bytes = __atomic_load_n(&a->bytes, __ATOMIC_RELAXED);
	if (*bytes > r->counts.call_bytes)
		*bytes = r->counts.call_bytes;
	return true;
}

void tn_call_answer(const struct tn_region *r, uint32_t call, uint32_t turn, int status, uint32_t bytes, const char *text)
{
	struct tn_call_told *t = tn_call_told(r, call);

	t->status = status;
	t->bytes = bytes;
	snprintf(t->text, sizeof(t->text), "%s", text ? text : "");
	__atomic_store_n(&t->turn, turn, __ATOMIC_RELEASE);
	tn_futex_wake_on(&t->turn, true);
}

void tn_region_tell_completed(const struct tn_region *r)
{
	uint32_t *completed = &tn_region_core(r)->completed;

	__atomic_add_fetch(completed, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&tn_region_front(r)->listens, __ATOMIC_SEQ_CST))
		tn_futex_wake_on(completed, true);
}

uint32_t tn_region_rung(const struct tn_region *r)
{
	return __atomic_load_n(&tn_region_front(r)->rung, __ATOMIC_SEQ_CST);
}

void tn_region_wait_ring(const struct tn_region *r, uint32_t seen)
{
	/* The other side can move whoever sleeps here to a word that nobody wakes (FUTEX_CMP_REQUEUE). */
	tn_futex_wait_on(&tn_region_front(r)->rung, seen, tn_now_ns(&tn_clock_system) + LOOK_NS, true);
}
