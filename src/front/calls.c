/* SPDX-License-Identifier: Apache-2.0 */
#include "front/calls.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/stack.h"

#define ANSWER_NS 10000000000ull
#define SLICE_NS 20000000ull /* how often a caller who waits for a place looks at those that were left */

void tn_calls_init(struct tn_calls *c, const struct tn_region *region)
{
	c->region = region;
	c->answer_ns = ANSWER_NS;
	sem_init(&c->places, 0, TN_WIRE_CALLS);
	pthread_mutex_init(&c->lock, NULL);
	for (uint32_t i = 0; i < TN_WIRE_CALLS; i++)
		tn_stack_push(&c->free, i, &c->next[i]);
}

void tn_calls_destroy(struct tn_calls *c)
{
	sem_destroy(&c->places);
	pthread_mutex_destroy(&c->lock);
}

static size_t sum(const struct iovec *v, int n)
{
	size_t bytes = 0;

	for (int i = 0; i < n; i++)
		bytes += v[i].iov_len;
	return bytes;
}

/* The answer of a call, of which the last of several parts may come shorter; and the owner's detail of an error. */
static int take_answer(const struct tn_region *r, uint32_t call, enum tn_wire_call kind, const struct iovec *out, int nout)
{
	const struct tn_call_told *told = tn_call_told(r, call);
	const unsigned char *bytes = tn_call_told_bytes(r, call);
	size_t left = told->bytes, least = sum(out, nout > 1 ? nout - 1 : nout);

	if (told->status < 0)
		return tn_fail(told->status, "%s", told->text);
	if (left < least)
		return tn_fail(-EPROTO, "call %u was answered with %zu bytes instead of %zu", kind, left, least);
	for (int i = 0; i < nout; i++) {
		size_t n = left < out[i].iov_len ? left : out[i].iov_len;

		if (n)
			memcpy(out[i].iov_base, bytes, n);
		bytes += n;
		left -= n;
	}
	return told->status;
}

/* ---- places ----------------------------------------------------------------------------------------------------- */

static void give_place(struct tn_calls *c, uint32_t call)
{
	tn_stack_push(&c->free, call, &c->next[call]);
	sem_post(&c->places);
}

static void leave_place(struct tn_calls *c, uint32_t call, uint32_t turn, bool overdue)
{
	pthread_mutex_lock(&c->lock);
	c->left[call].turn = turn;
	c->left[call].is = true;
	c->left[call].overdue = overdue;
	__atomic_add_fetch(&c->nleft, 1, __ATOMIC_RELEASE);
	__atomic_add_fetch(&c->noverdue, overdue, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&c->lock);
}

/* A call that gives back what an answer has given to nobody. False: it has given nothing. */
static bool undoes(const struct tn_region *r, uint32_t call, enum tn_wire_call *kind, struct tn_wire_about *about)
{
	const struct tn_call_told *told = tn_call_told(r, call);
	const unsigned char *answer = tn_call_told_bytes(r, call);
	struct tn_wire_match_told matched;
	struct tn_wire_space_told opened;
	struct tn_wire_pool_told created;

	*about = (struct tn_wire_about){0};
	switch (tn_call_asked(r, call)->kind) {
	case TN_WIRE_MATCH:
	case TN_WIRE_QUERY_POLL:
		memcpy(&matched, answer, sizeof(matched));
		*kind = TN_WIRE_UNPIN;
		about->pin = matched.match.pin;
		return told->status >= 0 && about->pin;
	case TN_WIRE_QUERY:
		memcpy(&about->pin, answer, sizeof(about->pin));
		*kind = TN_WIRE_QUERY_CANCEL;
		return told->status >= 0;
	case TN_WIRE_SPACE_OPEN:
		memcpy(&opened, answer, sizeof(opened));
		*kind = TN_WIRE_SPACE_CLOSE;
		about->number = opened.number;
		return told->status >= 0;
	case TN_WIRE_POOL_CREATE:
		memcpy(&created, answer, sizeof(created));
		*kind = TN_WIRE_POOL_DESTROY;
		about->number = created.number;
		about->pin = created.life;
		return told->status >= 0;
	default:
		return false;
	}
}

/*
 * The answer of a place that was left has come: what it gave is given back by a call from the same place, for whose answer nobody waits; else the
 * place is free. True: the owner has something to look at.
 */
static bool take_late(struct tn_calls *c, uint32_t call)
{
	struct tn_wire_about about;
	enum tn_wire_call kind;
	bool undo = undoes(c->region, call, &kind, &about);

	__atomic_sub_fetch(&c->noverdue, c->left[call].overdue, __ATOMIC_RELEASE);
	c->left[call].overdue = false;
	if (undo) {
		memcpy(tn_call_asked_bytes(c->region, call), &about, sizeof(about));
		c->left[call].turn = tn_call_ask(c->region, call, kind, sizeof(about));
		return true;
	}
	c->left[call].is = false;
	__atomic_sub_fetch(&c->nleft, 1, __ATOMIC_RELEASE);
	give_place(c, call);
	return false;
}

/* Looks at all places that were left. */
static void take_all_late(struct tn_calls *c)
{
	bool rings = false;

	pthread_mutex_lock(&c->lock);
	for (uint32_t i = 0; i < TN_WIRE_CALLS; i++)
		if (c->left[i].is && __atomic_load_n(&tn_call_told(c->region, i)->turn, __ATOMIC_ACQUIRE) == c->left[i].turn)
			rings |= take_late(c, i);
	pthread_mutex_unlock(&c->lock);
	if (rings)
		tn_region_ring(c->region);
}

static int ask(struct tn_calls *c, enum tn_wire_call kind, uint64_t deadline_ns, const struct iovec *in, int nin, const struct iovec *out,
	       int nout, bool *asked);

/* Those stay that the owner has not been asked about, and those over which a pool lies. Of one that was asked about the number may be another's. */
static void forget_unwanted(struct tn_calls *c)
{
	uint64_t all = __atomic_exchange_n(&c->unwanted, 0, __ATOMIC_ACQ_REL), stay = 0;

	for (uint32_t i = 0; i < TN_WIRE_MEMORIES; i++) {
		struct tn_wire_about about = {.number = i};
		bool asked = false;
		int rc = 0;

		if (all >> i & 1)
			rc = ask(c, TN_WIRE_MEMORY_UNREGISTER, 0, &(struct iovec){&about, sizeof(about)}, 1, NULL, 0, &asked);
		if (rc && (!asked || rc == -EBUSY))
			stay |= UINT64_C(1) << i;
	}
	__atomic_fetch_or(&c->unwanted, stay, __ATOMIC_ACQ_REL);
}

static void look_at_left(struct tn_calls *c)
{
	if (__atomic_load_n(&c->nleft, __ATOMIC_ACQUIRE))
		take_all_late(c);
	if (__atomic_load_n(&c->unwanted, __ATOMIC_ACQUIRE))
		forget_unwanted(c);
}

void tn_calls_forget_memory(struct tn_calls *c, uint32_t number)
{
	if (number >= TN_WIRE_MEMORIES)
		return;
	__atomic_fetch_or(&c->unwanted, UINT64_C(1) << number, __ATOMIC_ACQ_REL);
	look_at_left(c);
}

/* 0, -ESHUTDOWN, -ETIMEDOUT. */
static int take_place(struct tn_calls *c, uint64_t deadline_ns, uint32_t *call)
{
	for (;;) {
		uint64_t now = tn_now_ns(&tn_clock_system), until = now + SLICE_NS < deadline_ns ? now + SLICE_NS : deadline_ns;
		const struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};

		look_at_left(c);
		if (tn_region_is_gone(c->region))
			return -ESHUTDOWN;
		if (__atomic_load_n(&c->noverdue, __ATOMIC_ACQUIRE))
			return -ETIMEDOUT; /* the owner has not answered others for long */
		if (sem_trywait(&c->places) == 0 || sem_clockwait(&c->places, CLOCK_MONOTONIC, &t) == 0)
			break;
		if (now >= deadline_ns)
			return -ETIMEDOUT;
	}
	*call = tn_stack_pop(&c->free, &c->next[0], sizeof(c->next[0])) - 1;
	return 0;
}

/* ---- a call ----------------------------------------------------------------------------------------------------- */

static int timed_out(const struct tn_calls *c, enum tn_wire_call kind, bool own)
{
	if (own)
		return tn_fail(-ETIMEDOUT, "call %u is not answered by its deadline", kind);
	return tn_fail(-ETIMEDOUT, "the process that owns the cache has not answered for %llu ms: is it stopped? Calls go on once it does",
		       (unsigned long long)(c->answer_ns / 1000000u));
}

/* *asked: set once the owner may see the call. */
static int ask(struct tn_calls *c, enum tn_wire_call kind, uint64_t deadline_ns, const struct iovec *in, int nin, const struct iovec *out,
	       int nout, bool *asked)
{
	const struct tn_region *r = c->region;
	bool own = deadline_ns;
	unsigned char *bytes;
	uint32_t call, turn;
	int rc;

	if (sum(in, nin) > r->counts.call_bytes || sum(out, nout) > r->counts.call_bytes)
		return tn_fail(-E2BIG, "call %u: %zu bytes; at most %u go to the owner's process at once", kind, sum(in, nin), r->counts.call_bytes);
	if (!own)
		deadline_ns = tn_now_ns(&tn_clock_system) + c->answer_ns;
	rc = take_place(c, deadline_ns, &call);
	if (rc)
		return rc == -ETIMEDOUT ? timed_out(c, kind, false) : rc;
	bytes = tn_call_asked_bytes(r, call);
	for (int i = 0; i < nin; bytes += in[i].iov_len, i++)
		if (in[i].iov_len)
			memcpy(bytes, in[i].iov_base, in[i].iov_len);
	*asked = true;
	turn = tn_call_ask(r, call, kind, (uint32_t)sum(in, nin));
	tn_region_ring(r);
	rc = tn_call_wait(r, call, turn, deadline_ns);
	if (rc == -ETIMEDOUT) {
		leave_place(c, call, turn, !own);
		return timed_out(c, kind, own);
	}
	rc = rc ? rc : take_answer(r, call, kind, out, nout);
	give_place(c, call);
	return rc;
}

int tn_calls_ask(struct tn_calls *c, enum tn_wire_call kind, uint64_t deadline_ns, const struct iovec *in, int nin, const struct iovec *out,
		 int nout)
{
	bool asked;

	return ask(c, kind, deadline_ns, in, nin, out, nout, &asked);
}
