/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of the model: requests come when the trace says. One GPU prefills them one after the other, first come first
 * served. A request's reads begin when the GPU takes the request.
 *
 * Where reads never meet writes (recompute, tenuto, ideal), a request's times do not depend on the other requests, so they
 * are computed once. Where reads and writes share the device, the recurrence is run again with the bytes that wait to be
 * written when the request begins.
 */
#include "replay_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/layout.h>

/* Writes that a restore may find in flight, as src/sched/sched.c bounds them: a share of a short restore's length. */
#define WRITES_SHARE 24.0
#define WRITES_START_NS 2e6 /* before the first restore */
#define WRITES_MIN_NS 1e5
#define WRITES_MAX_NS 8e6
#define WRITES_MIN_BYTES 131072.0
#define FACTOR_MAX 0x1p20
#define FACTOR_MIN 0x1p-20
#define FACTOR_STEP 1.002 /* the search ends when the quotient of its bounds is below this */

static bool reads_beside_writes(uint32_t strategy)
{
	return strategy == TN_STRATEGY_LOAD_THEN_COMPUTE || strategy == TN_STRATEGY_UNSCHEDULED;
}

/* ---- what each request takes --------------------------------------------------------------------- */

static void set_cost(struct model_cost *c, const struct tn_restore *r, uint64_t restored, uint64_t host)
{
	c->ttft_ns = r->ttft_ns;
	c->compute_ns = r->compute_ns;
	c->io_ns = r->io_ns;
	c->read_bytes = r->read_bytes;
	c->restored = (uint32_t)restored;
	c->read = (uint32_t)(restored > host ? restored - host : 0);
}

/* Restores all hits of request i while `backlog` bytes wait to be written and the request adds `brings` bytes. */
static int restore_all(const struct replay_model *m, size_t i, uint32_t strategy, uint64_t backlog, uint64_t brings,
		       uint64_t *scratch, struct tn_pipeline_result *r)
{
	uint32_t layers = m->geometry.layers, read = m->request[i].cost[strategy].read;
	struct tn_pipeline p;

	tn_pipeline_init(&p);
	p.layers = layers;
	p.compute_ns = m->layer_ns + i * layers;
	p.bytes = read ? scratch : NULL;
	p.header_bytes = read * model_header_bytes(layers);
	for (uint32_t l = 0; l < layers; l++)
		scratch[l] = (uint64_t)read * tn_geometry_object_bytes(&m->geometry);
	p.write_bytes = backlog;
	p.write_layer_bytes = brings;
	p.io = model_io(&m->device);
	return tn_pipeline_run(&p, strategy, (struct tn_pipeline_layer *)(scratch + layers), r);
}

/* Costs of the strategies that read beside writes, when there are no writes. Keeps the layers' times for model_play. */
static int cost_shared(struct replay_model *m, size_t i, const struct tn_split *s)
{
	uint64_t input = s->input_tokens ? s->input_tokens : 1;
	uint64_t total = s->blocks * s->block_tokens + s->input_tokens;
	struct tn_pipeline_result r;
	int rc = model_compute_ns(&m->compute, input, total - input, m->layer_ns + i * s->layers);

	for (uint32_t k = 0; !rc && k < TN_STRATEGIES; k++) {
		struct model_cost *c = &m->request[i].cost[k];

		if (!reads_beside_writes(k))
			continue;
		c->read = (uint32_t)(s->blocks - s->host_blocks);
		rc = restore_all(m, i, k, 0, 0, s->scratch, &r);
		if (!rc)
			set_cost(c, &r.restore, s->blocks, s->host_blocks);
	}
	return rc;
}

/*
 * Computes the costs of one request under every strategy. Only whole blocks can be restored: a partly filled last block is
 * computed. A prompt without tokens counts as one token.
 */
static int compute_costs(struct replay_model *m, size_t i, uint64_t tokens, const struct replay_hits *h, uint64_t *scratch)
{
	struct model_request *q = &m->request[i];
	struct tn_split s = {.window = TN_SPLIT_WINDOW};
	struct tn_split_choice c;
	int rc;

	tokens = tokens ? tokens : 1;
	m->bill.tokens += tokens;
	m->bill.written_blocks += h->inserted;
	s.layers = m->geometry.layers;
	s.block_tokens = m->geometry.page_tokens; /* as in the trace */
	s.blocks = h->hits < tokens / s.block_tokens ? h->hits : tokens / s.block_tokens;
	s.host_blocks = h->host_hits < s.blocks ? h->host_hits : s.blocks;
	s.input_tokens = tokens - s.blocks * s.block_tokens;
	s.object_bytes = tn_geometry_object_bytes(&m->geometry);
	s.header_bytes = model_header_bytes(s.layers);
	s.read_bps = m->device.read_bps;
	s.latency_ns = m->device.latency_ns;
	s.compute = model_compute_ns;
	s.compute_arg = &m->compute;
	s.scratch = scratch;
	q->write_layer_bytes = h->inserted * (s.object_bytes + s.header_bytes / s.layers);
	rc = tn_split_choose(&s, &c);
	if (rc)
		return rc;
	set_cost(&q->cost[TN_STRATEGY_RECOMPUTE], &c.restore_none, 0, 0);
	set_cost(&q->cost[TN_STRATEGY_TENUTO], &c.chosen, c.restore_blocks, s.host_blocks);
	s.window = UINT32_MAX;
	rc = tn_split_choose(&s, &c);
	if (rc)
		return rc;
	set_cost(&q->cost[TN_STRATEGY_IDEAL], &c.chosen, c.restore_blocks, s.host_blocks);
	return cost_shared(m, i, &s);
}

/* ---- the queue ---------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Nearest rank; sorts. */
static struct model_percentiles percentiles(double *v, size_t n)
{
	struct model_percentiles p = {0};

	qsort(v, n, sizeof(*v), by_value);
	for (size_t i = 0; i < n; i++)
		p.mean += v[i] / (double)n;
	p.p50 = v[(size_t)ceil(0.50 * (double)n) - 1];
	p.p90 = v[(size_t)ceil(0.90 * (double)n) - 1];
	p.p99 = v[(size_t)ceil(0.99 * (double)n) - 1];
	return p;
}

/* State that goes from one request to the next. */
struct waiting {
	double backlog; /* bytes to be written */
	double restore_ns; /* of a short restore, as the scheduler smooths it; 0: there was none */
};

/* Time until the writes in flight are done, if so many bytes wait to be written. */
static uint64_t writes_drain_ns(const struct replay_model *m, const struct waiting *w)
{
	double ns = w->restore_ns > 0 ? w->restore_ns / WRITES_SHARE : WRITES_START_NS, bps = m->device.write_bps;

	/* Only writes of two latencies keep a slow drive busy. */
	ns = fmax(fmin(ns, WRITES_MAX_NS), fmin(2 * (double)m->device.write_latency_ns, WRITES_MAX_NS));
	ns = fmax(ns, WRITES_MIN_NS);
	return (uint64_t)(fmin(w->backlog, fmax(ns * 1e-9 * bps, WRITES_MIN_BYTES)) * 1e9 / bps);
}

/* A shorter restore counts by half at once, a longer one slowly. */
static void restore_took(struct waiting *w, double ns)
{
	if (!(w->restore_ns > 0))
		w->restore_ns = ns;
	else
		w->restore_ns += ns < w->restore_ns ? (ns - w->restore_ns) / 2 : (ns - w->restore_ns) / 32;
}

/* Reads first: the restore waits for the writes in flight, and all other writes wait for its last read. */
static void serve_scheduled(const struct replay_model *m, size_t i, struct waiting *w, struct model_cost *c)
{
	uint64_t brings = m->request[i].write_layer_bytes;

	if (c->read) {
		uint64_t busy_ns = writes_drain_ns(m, w);

		w->backlog -= fmin((double)busy_ns * 1e-9 * m->device.write_bps, w->backlog);
		c->ttft_ns += busy_ns;
		c->io_ns += busy_ns;
		restore_took(w, (double)c->io_ns);
	}
	/* All that waits is written after the last read; the bytes of the last layer come at the end of the request. */
	w->backlog += (double)brings * (m->geometry.layers - 1);
	w->backlog -= fmin((double)(c->ttft_ns - c->io_ns) * 1e-9 * m->device.write_bps, w->backlog);
	w->backlog += (double)brings;
}

/* The costs of a request beside the bytes that wait; afterwards *w has the bytes that wait then. */
static int serve(const struct replay_model *m, uint32_t strategy, size_t i, struct waiting *w, uint64_t *scratch,
		 struct model_cost *c)
{
	struct tn_pipeline_result r;
	int rc;

	*c = m->request[i].cost[strategy];
	if (strategy == TN_STRATEGY_TENUTO)
		serve_scheduled(m, i, w, c);
	if (!reads_beside_writes(strategy))
		return 0;
	rc = restore_all(m, i, strategy, (uint64_t)w->backlog, m->request[i].write_layer_bytes, scratch, &r);
	if (rc)
		return rc;
	set_cost(c, &r.restore, c->restored, c->restored - c->read);
	w->backlog = (double)r.unwritten_bytes;
	return 0;
}

int model_play(const struct replay_model *m, uint32_t strategy, double factor, uint64_t *scratch,
	       struct model_outcome *out)
{
	struct waiting w = {0};
	double free_ns = 0, used_ns = 0;

	*out = (struct model_outcome){0};
	for (size_t i = 0; i < m->n; i++) {
		double arrival_ns = m->request[i].arrival_ns / factor, start_ns = fmax(arrival_ns, free_ns);
		struct model_cost c;
		int rc;

		w.backlog = fmax(w.backlog - (start_ns - free_ns) * 1e-9 * m->device.write_bps, 0);
		rc = serve(m, strategy, i, &w, scratch, &c);
		if (rc)
			return rc;
		free_ns = start_ns + (double)c.ttft_ns;
		used_ns += (double)c.ttft_ns;
		m->sort[i] = (free_ns - arrival_ns) * 1e-6;
		m->bubble[i] = (double)(c.ttft_ns - c.compute_ns) * 1e-6;
		out->compute_s += (double)c.compute_ns * 1e-9;
		out->bubble_s += m->bubble[i] * 1e-3;
		out->read_bytes += c.read_bytes;
		out->restored += c.restored;
		out->backlog_max_bytes = fmax(out->backlog_max_bytes, w.backlog);
	}
	out->backlog_end_bytes = w.backlog;
	out->busy = used_ns / free_ns;
	out->ttft_ms = percentiles(m->sort, m->n);
	out->bubble_ms = percentiles(m->bubble, m->n);
	return 0;
}

/*
 * The largest factor whose p90 is within the SLO: doubled or halved until it lies between two, then bisected. A higher
 * rate of requests never makes one of them end sooner (docs/model.md), so there is one such factor.
 */
static int search(const struct replay_model *m, uint32_t strategy, uint64_t *scratch, struct model_row *row)
{
	double good = 0, bad = INFINITY, at = 1;

	while (good * FACTOR_STEP < bad && good < FACTOR_MAX && bad > FACTOR_MIN && !cli_interrupted()) {
		struct model_outcome o;
		int rc = model_play(m, strategy, at, scratch, &o);

		if (rc)
			return rc;
		row->tries++;
		if (o.ttft_ms.p90 <= m->slo_ms) {
			good = at;
			row->max_p90_ms = o.ttft_ms.p90;
		} else {
			bad = row->over_factor = at;
			row->over_p90_ms = o.ttft_ms.p90;
		}
		at = bad == INFINITY ? good * 2 : good > 0 ? sqrt(good * bad) : bad / 2;
	}
	row->max_factor = good >= FACTOR_MAX ? -1 : good;
	return 0;
}

static int play_all(struct replay_model *m, uint64_t *scratch)
{
	int rc = 0;

	for (uint32_t s = 0; !rc && s < TN_STRATEGIES && !cli_interrupted(); s++) {
		struct model_row *row = &m->row[s];

		rc = model_play(m, s, m->factor, scratch, &row->played);
		for (size_t i = 0; !rc && i < m->n; i++)
			m->sort[i] = (double)m->request[i].cost[s].ttft_ns * 1e-6;
		row->alone_ms = percentiles(m->sort, m->n);
		if (!rc && m->slo_ms > 0)
			rc = search(m, s, scratch, row);
	}
	return rc;
}

/*
 * Arrivals in ns from the first. Recorded times are often rounded (the Mooncake traces: to steps of 3 s), and a queue
 * would see bursts that never were. So requests with equal times are spread over the time to the next one, at random, as
 * those of a Poisson process are when their number is known.
 */
static void set_arrivals(struct replay_model *m, const struct trace *t, double first)
{
	unsigned short state[3] = {(uint16_t)m->seed, (uint16_t)(m->seed >> 16), (uint16_t)(m->seed >> 32)};
	double step = 0;
	size_t end;

	for (size_t i = 0; i < m->n; i = end) {
		double at = t->arrival_ms[i];

		for (end = i + 1; end < m->n && t->arrival_ms[end] == at;)
			end++;
		if (end < m->n)
			step = fmax(t->arrival_ms[end] - at, 0);
		for (size_t k = i; k < end; k++)
			m->sort[k] = end - i > 1 ? erand48(state) : 0;
		qsort(m->sort + i, end - i, sizeof(*m->sort), by_value);
		for (size_t k = i; k < end; k++)
			m->request[k].arrival_ns = (at - first + m->sort[k] * step) * 1e6;
		m->spread += end - i > 1 && step > 0 ? end - i : 0;
	}
}

int replay_model_run(struct replay_model *m, const struct trace *t, const struct replay_hits *each)
{
	uint32_t layers = m->geometry.layers;
	uint64_t *scratch = calloc(MODEL_SCRATCH(layers), sizeof(*scratch));
	double first = t->arrival_ms[0], last = first;
	int rc = 0;

	m->n = t->requests;
	m->request = calloc(m->n, sizeof(*m->request));
	m->layer_ns = calloc(m->n * layers, sizeof(*m->layer_ns));
	m->sort = calloc(m->n, sizeof(*m->sort));
	m->bubble = calloc(m->n, sizeof(*m->bubble));
	if (!scratch || !m->request || !m->layer_ns || !m->sort || !m->bubble) {
		free(scratch);
		return cli_error(CLI_ENVIRONMENT, "out of memory for the model of %zu requests", m->n);
	}
	for (size_t i = 0; i < m->n; i++) {
		first = fmin(first, t->arrival_ms[i]);
		last = fmax(last, t->arrival_ms[i]);
	}
	m->trace_per_s = last > first ? (double)(m->n - 1) * 1e3 / (last - first) : 0;
	set_arrivals(m, t, first);
	for (size_t i = 0; !rc && i < m->n && !cli_interrupted(); i++)
		rc = compute_costs(m, i, t->input_tokens[i], &each[i], scratch);
	if (!rc)
		rc = play_all(m, scratch);
	if (!rc && m->paper)
		rc = model_paper(m, m->paper);
	free(scratch);
	if (rc)
		return cli_fail(rc, "the model");
	return cli_interrupted() ? cli_error(CLI_ENVIRONMENT, "interrupted before the model was done") : model_bill(m);
}
