/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence of a restore that is computed while it is read (pipeline.h, docs/model.md).
 *
 * The device is a fluid: bytes move at a rate that depends only on whether reads and writes are both under way. So
 * time goes from event to event: a read is done, the writes are done, a layer's compute ends and brings new writes.
 */
#include "lab/pipeline.h"

#include <errno.h>
#include <stdbool.h>

#include "base/error.h"

#define BYTES_MAX (UINT64_C(1) << 53) /* exact as a double */
#define END_MAX 9e18 /* ns that still fit 63 bits */
#define END_NEVER 1e300

static const char *const names[TN_STRATEGIES] = {
	[TN_STRATEGY_RECOMPUTE] = "recompute",
	[TN_STRATEGY_LOAD_THEN_COMPUTE] = "load_then_compute",
	[TN_STRATEGY_UNSCHEDULED] = "unscheduled",
	[TN_STRATEGY_TENUTO] = "tenuto",
	[TN_STRATEGY_IDEAL] = "ideal",
};

/* One run: the device's clock, what waits to be written, and which layers' ends have brought theirs. */
struct run {
	const struct tn_pipeline *p;
	struct tn_pipeline_layer *layer;
	double now_ns;
	double backlog, written;
	uint32_t brought, computed;
	bool writes_wait; /* while reads are to come */
	bool mixed;
};

static double least(double a, double b)
{
	return a < b ? a : b;
}

static double most(double a, double b)
{
	return a > b ? a : b;
}

/* A time is over when its last ns is. */
static uint64_t whole_ns(double ns)
{
	uint64_t n = (uint64_t)ns;

	return n + ((double)n < ns);
}

const char *tn_strategy_name(size_t strategy)
{
	return strategy < TN_STRATEGIES ? names[strategy] : NULL;
}

void tn_pipeline_init(struct tn_pipeline *p)
{
	*p = (struct tn_pipeline){.io = {.read_share = 0.5, .window = TN_SPLIT_WINDOW}};
}

static int check_rate(const char *name, double bps)
{
	if (!(bps >= 1) || !(bps <= TN_READ_BPS_MAX))
		return tn_fail(-EINVAL, "%s of the device is %g bytes a second: must be 1 to %g", name, bps, TN_READ_BPS_MAX);
	return 0;
}

static int check_io(const struct tn_pipeline_io *io, bool writes)
{
	int rc = check_rate("read_bps", io->read_bps);

	if (!rc && writes)
		rc = check_rate("write_bps", io->write_bps);
	if (!rc && writes)
		rc = check_rate("mixed_bps", io->mixed_bps);
	if (rc)
		return rc;
	if (!(io->read_share > 0) || !(io->read_share <= 1))
		return tn_fail(-EINVAL, "read_share %g: must be above 0, at most 1", io->read_share);
	if (!io->window)
		return tn_fail(-EINVAL, "a window of 0 layers: at least one must be in flight");
	if (io->latency_ns > TN_LAYER_NS_MAX || io->busy_ns > TN_LAYER_NS_MAX)
		return tn_fail(-EINVAL, "latency %llu ns, busy %llu ns: at most %llu", (unsigned long long)io->latency_ns,
			       (unsigned long long)io->busy_ns, (unsigned long long)TN_LAYER_NS_MAX);
	return 0;
}

static int check(const struct tn_pipeline *p, uint32_t strategy)
{
	bool reads = strategy != TN_STRATEGY_RECOMPUTE && p->bytes;
	uint64_t sum = p->header_bytes;

	if (strategy >= TN_STRATEGIES)
		return tn_fail(-EINVAL, "strategy %u: there are %u", strategy, TN_STRATEGIES);
	if (!p->layers || p->layers > TN_LAYERS_MAX || !p->compute_ns)
		return tn_fail(-EINVAL, "%u layers: must be 1 to %u, with their compute times", p->layers, TN_LAYERS_MAX);
	if (sum > BYTES_MAX || p->write_bytes > BYTES_MAX || p->write_layer_bytes > BYTES_MAX / p->layers)
		return tn_fail(-EINVAL, "headers of %llu, writes of %llu + %u x %llu bytes: at most %llu each",
			       (unsigned long long)sum, (unsigned long long)p->write_bytes, p->layers,
			       (unsigned long long)p->write_layer_bytes, (unsigned long long)BYTES_MAX);
	for (uint32_t l = 0; l < p->layers; l++) {
		if (!p->compute_ns[l] || p->compute_ns[l] > TN_LAYER_NS_MAX)
			return tn_fail(-EINVAL, "layer %u computes for %llu ns: must be 1 to %llu", l,
				       (unsigned long long)p->compute_ns[l], (unsigned long long)TN_LAYER_NS_MAX);
		if (reads && (p->bytes[l] > BYTES_MAX || (sum += p->bytes[l]) > BYTES_MAX))
			return tn_fail(-EINVAL, "layer %u has %llu bytes: at most %llu in all", l,
				       (unsigned long long)p->bytes[l], (unsigned long long)BYTES_MAX);
	}
	if (!reads && !p->write_bytes && !p->write_layer_bytes)
		return 0;
	return check_io(&p->io, p->write_bytes || p->write_layer_bytes);
}

/* What reads and writes get of the device while both are under way: neither more than alone. */
static void mixed_rates(const struct tn_pipeline_io *io, double *read, double *write)
{
	*read = least(io->mixed_bps * io->read_share, io->read_bps);
	*write = io->mixed_bps - *read;
	if (*write > io->write_bps) {
		*write = io->write_bps;
		*read = least(io->mixed_bps - *write, io->read_bps);
	}
}

/*
 * Moves the device's clock to until_ns, or, if *left bytes are being read, to when they are (until_ns is not looked at
 * then). Each pass of the loop uses up one event, so rounding cannot make the loop endless.
 */
static void advance(struct run *r, double until_ns, double *left)
{
	const struct tn_pipeline_io *io = &r->p->io;

	for (;;) {
		bool writing = r->backlog > 0 && (r->mixed || (!left && !r->writes_wait));
		double read = io->read_bps, write = writing ? io->write_bps : 0;
		double end, empty, more, next, moved;

		if (left && writing)
			mixed_rates(io, &read, &write);
		end = left ? r->now_ns + *left * 1e9 / read : most(until_ns, r->now_ns);
		empty = write > 0 ? r->now_ns + r->backlog * 1e9 / write : END_NEVER;
		more = r->brought < r->computed ? most((double)r->layer[r->brought].end_ns, r->now_ns) : END_NEVER;
		next = least(end, least(empty, more));
		moved = next == empty ? r->backlog : least(r->backlog, write * (next - r->now_ns) * 1e-9);
		r->backlog -= moved;
		r->written += moved;
		if (left)
			*left = most(*left - read * (next - r->now_ns) * 1e-9, 0);
		r->now_ns = next;
		if (next == empty)
			continue;
		if (next == more) {
			r->backlog += (double)r->p->write_layer_bytes;
			r->brought++;
		} else if (next == end) {
			return;
		}
	}
}

/* When layer l has been read, given those before it. */
static double load(struct run *r, uint32_t l, bool ideal)
{
	const struct tn_pipeline *p = r->p;
	double left = (double)p->bytes[l] + (l ? 0 : (double)p->header_bytes);
	double before = l ? (double)r->layer[l - 1].loaded_ns : 0;
	double issued = ideal ? 0 : (double)p->io.busy_ns;

	if (left <= 0)
		return before;
	if (!ideal && l >= p->io.window)
		issued = most(issued, (double)r->layer[l - p->io.window].loaded_ns);
	advance(r, most(before, issued + (double)p->io.latency_ns), NULL);
	advance(r, 0, &left);
	return r->now_ns;
}

static void compute(struct run *r, uint32_t l, double loaded)
{
	double start = most(loaded, l ? (double)r->layer[l - 1].end_ns : 0);

	r->layer[l].start_ns = whole_ns(start);
	r->layer[l].end_ns = r->layer[l].start_ns + r->p->compute_ns[l];
	r->computed = l + 1;
}

/* The layers in their order; -EOVERFLOW as soon as a time does not fit. */
static int recur(struct run *r, uint32_t strategy)
{
	uint32_t n = r->p->layers;
	bool first_all = strategy == TN_STRATEGY_LOAD_THEN_COMPUTE;
	bool reads = strategy != TN_STRATEGY_RECOMPUTE && r->p->bytes;

	for (uint32_t l = 0; l < n; l++) {
		double loaded = reads ? load(r, l, strategy == TN_STRATEGY_IDEAL) : 0;

		if (!(loaded + (double)r->p->compute_ns[l] + (l ? (double)r->layer[l - 1].end_ns : 0) < END_MAX))
			return tn_fail(-EOVERFLOW, "layer %u would be there after %g ns: no clock counts that", l,
				       loaded);
		r->layer[l].loaded_ns = whole_ns(loaded);
		if (!first_all)
			compute(r, l, loaded);
	}
	for (uint32_t l = 0; first_all && l < n; l++)
		compute(r, l, (double)r->layer[n - 1].loaded_ns);
	return 0;
}

int tn_pipeline_run(const struct tn_pipeline *p, uint32_t strategy, struct tn_pipeline_layer *layer,
		    struct tn_pipeline_result *result)
{
	struct tn_pipeline_result out = {0};
	struct run r = {.p = p, .layer = layer, .backlog = (double)p->write_bytes};
	bool reads = strategy != TN_STRATEGY_RECOMPUTE && p->bytes;
	int rc = check(p, strategy);

	if (rc)
		return rc;
	r.mixed = strategy == TN_STRATEGY_UNSCHEDULED || strategy == TN_STRATEGY_LOAD_THEN_COMPUTE;
	r.writes_wait = reads && !r.mixed;
	rc = recur(&r, strategy);
	if (rc)
		return rc;
	for (uint32_t l = 0; l < p->layers; l++) {
		out.restore.compute_ns += p->compute_ns[l];
		out.restore.read_bytes += reads ? p->bytes[l] : 0;
	}
	if (out.restore.read_bytes)
		out.restore.read_bytes += p->header_bytes;
	out.restore.ttft_ns = layer[p->layers - 1].end_ns;
	out.restore.bubble_ns = out.restore.ttft_ns - out.restore.compute_ns;
	out.restore.io_ns = layer[p->layers - 1].loaded_ns;
	r.writes_wait = false;
	if (p->write_bytes || p->write_layer_bytes)
		advance(&r, (double)out.restore.ttft_ns, NULL);
	out.written_bytes = (uint64_t)(r.written + 0.5);
	out.unwritten_bytes = p->write_bytes + p->layers * p->write_layer_bytes - out.written_bytes;
	*result = out;
	return 0;
}
