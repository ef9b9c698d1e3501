/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chat generator. A session picks a system prompt, then alternates messages and answers. The prompt of each request
 * is all text of the session so far. Ids name content: blocks inside the system prompt are shared by all sessions that
 * use it; other full blocks by all later requests of their session; the unfinished last block of a prompt by
 * none, because the next request fills it differently.
 *
 * All sessions are generated, their requests sorted by arrival, and the first `requests` of them kept.
 */
#include "workload.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define CONTEXT_MAX 131072u /* a session whose prompt would be longer ends */
#define SERVE_TOKENS_PER_S 60.0

struct request {
	double arrival_ms;
	uint64_t session;
	uint32_t system;
	uint32_t system_tokens;
	uint32_t in_session; /* requests of the session before it */
	uint32_t input, output;
};

static uint64_t scramble(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static double unit(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15u;
	return ((double)(scramble(*state) >> 11) + 0.5) * 0x1.0p-53;
}

static double exponential(uint64_t *state, double mean)
{
	return -mean * log(unit(state));
}

/* Log-normal with the given median; a sigma of 1 puts its mean at 1.65 medians. */
static uint32_t log_normal(uint64_t *state, double median, double sigma)
{
	double a = unit(state), b = unit(state);
	double v = median * exp(sigma * sqrt(-2 * log(a)) * cos(6.283185307179586 * b));

	return v < 1 ? 1 : v > 32768 ? 32768 : (uint32_t)v;
}

/* Popularity of system prompt k is proportional to 1 / (k + 1). */
static uint32_t zipf(uint64_t *state, uint32_t n)
{
	double sum = 0, u;

	for (uint32_t k = 0; k < n; k++)
		sum += 1.0 / (k + 1);
	u = unit(state) * sum;
	for (uint32_t k = 0; k + 1 < n; k++) {
		u -= 1.0 / (k + 1);
		if (u <= 0)
			return k;
	}
	return n - 1;
}

void workload_opts_init(struct workload_opts *o)
{
	*o = (struct workload_opts){
		.seed = 1,
		.requests = 1000,
		.systems = 12,
		.system_tokens = 1800,
		.turns = 5,
		.user_tokens = 120,
		.answer_tokens = 300,
		.session_s = 1,
		.think_s = 20,
	};
}

/* Writes the requests of one session to list; returns how many. */
static size_t session(const struct workload_opts *o, uint64_t number, double start_ms, struct request *list, size_t capacity)
{
	uint64_t rng = scramble(o->seed ^ scramble(number));
	uint32_t system = zipf(&rng, o->systems);
	uint64_t of_system = scramble(o->seed ^ scramble(system + (1ull << 40)));
	uint32_t system_tokens = o->system_tokens / 2 + (uint32_t)(of_system % (o->system_tokens + 1));
	uint32_t context = system_tokens;
	double at = start_ms;
	size_t n = 0;

	do {
		uint32_t output;

		context += log_normal(&rng, o->user_tokens, 1.2);
		output = log_normal(&rng, o->answer_tokens, 0.8);
		if (context > CONTEXT_MAX || n == capacity)
			break;
		list[n] = (struct request){at, number, system, system_tokens, (uint32_t)n, context, output};
		n++;
		context += output;
		at += 1000 * (output / SERVE_TOKENS_PER_S + exponential(&rng, o->think_s));
	} while (unit(&rng) > 1.0 / o->turns);
	return n;
}

static int by_arrival(const void *a, const void *b)
{
	const struct request *x = a, *y = b;

	if (x->arrival_ms != y->arrival_ms)
		return x->arrival_ms < y->arrival_ms ? -1 : 1;
	return (x->session > y->session) - (x->session < y->session);
}

static uint64_t block_id(const struct workload_opts *o, const struct request *t, uint32_t block)
{
	uint64_t end = (uint64_t)(block + 1) * TRACE_BLOCK_TOKENS, who;

	if (end <= t->system_tokens)
		who = scramble(t->system + (1ull << 40));
	else if (end <= t->input)
		who = scramble(t->session + (2ull << 40));
	else
		who = scramble(scramble(t->session + (3ull << 40)) + t->in_session);
	return scramble(scramble(o->seed) ^ who ^ scramble(block)) >> 1; /* a trace's integers are signed */
}

static int append(const struct workload_opts *o, const struct request *q, uint64_t *ids, struct trace *t)
{
	struct trace_request r = {
		.timestamp_ms = round(q->arrival_ms),
		.input_length = q->input,
		.output_length = q->output,
		.ids = ids,
		.n = (q->input + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS,
	};

	for (uint32_t b = 0; b < r.n; b++)
		ids[b] = block_id(o, q, b);
	return trace_append(t, &r);
}

int workload_generate(const struct workload_opts *o, struct trace *t)
{
	/* Twice as many requests as wanted, so that sessions overlap at the end as in the middle. */
	size_t capacity = 2 * (size_t)o->requests + 64, n = 0;
	struct request *list = calloc(capacity, sizeof(*list));
	uint64_t *ids = calloc(CONTEXT_MAX / TRACE_BLOCK_TOKENS + 1, sizeof(*ids));
	uint64_t rng = scramble(o->seed);
	double start = 0;
	int rc = list && ids ? 0 : -ENOMEM;

	memset(t, 0, sizeof(*t));
	t->block_tokens = TRACE_BLOCK_TOKENS;
	t->timed = true;
	for (uint64_t s = 0; !rc && n < capacity; s++) {
		n += session(o, s, start, list + n, capacity - n);
		start += 1000 * exponential(&rng, o->session_s);
	}
	if (!rc)
		qsort(list, n, sizeof(*list), by_arrival);
	for (size_t i = 0; !rc && i < o->requests; i++)
		rc = append(o, &list[i], ids, t);
	if (!rc)
		rc = trace_finish(t);
	free(ids);
	free(list);
	if (rc)
		trace_free(t);
	return rc;
}
