/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/remote/figures.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void tn_remote_asked(struct tn_remote_figures *f, enum tn_remote_kind kind)
{
	uint64_t *const requests[] = {&f->counts.lookup_requests, &f->counts.read_requests, &f->counts.write_requests};

	*requests[kind] += 1;
}

static uint64_t *error_of(struct tn_remote_stats *c, int status)
{
	switch (status) {
	case -ETIMEDOUT:
		return &c->late_errors;
	case -EACCES:
	case -EPERM:
		return &c->denied_errors;
	case -ENOSPC:
		return &c->full_errors;
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -EPIPE:
		return &c->connection_errors;
	default:
		return &c->other_errors;
	}
}

/* Whether the store has answered what it was asked. */
static bool is_answer(enum tn_remote_kind kind, int status)
{
	return status == 0 || status == -EEXIST || status == -ENODATA || (status == -ENOENT && kind != TN_REMOTE_WRITE);
}

void tn_remote_ended(struct tn_remote_figures *f, enum tn_remote_kind kind, int status, uint64_t bytes, uint64_t ns)
{
	struct tn_remote_stats *c = &f->counts;

	if (!is_answer(kind, status)) {
		*error_of(c, status) += 1;
		return;
	}
	f->ns[kind][f->times[kind]++ % TN_REMOTE_TIMES] = ns;
	if (kind == TN_REMOTE_LOOKUP)
		f->latency_ns = f->latency_ns ? (f->latency_ns * 7 + ns) / 8 : ns;
	c->existing_blocks += status == -EEXIST;
	c->missing_blocks += status == -ENOENT && kind == TN_REMOTE_READ;
	if (status || kind == TN_REMOTE_LOOKUP)
		return;
	*(kind == TN_REMOTE_READ ? &c->read_blocks : &c->written_blocks) += 1;
	*(kind == TN_REMOTE_READ ? &c->read_bytes : &c->written_bytes) += bytes;
}

static int by_time(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t median(const struct tn_remote_figures *f, enum tn_remote_kind kind)
{
	uint32_t n = f->times[kind] < TN_REMOTE_TIMES ? f->times[kind] : TN_REMOTE_TIMES;
	uint64_t ns[TN_REMOTE_TIMES];

	if (n == 0)
		return 0;
	memcpy(ns, f->ns[kind], n * sizeof(*ns));
	qsort(ns, n, sizeof(*ns), by_time);
	return ns[n / 2];
}

void tn_remote_figures_read(const struct tn_remote_figures *f, struct tn_remote_stats *out)
{
	size_t size = out->size;

	*out = f->counts;
	out->size = size;
	out->lookup_p50_ns = median(f, TN_REMOTE_LOOKUP);
	out->read_p50_ns = median(f, TN_REMOTE_READ);
	out->write_p50_ns = median(f, TN_REMOTE_WRITE);
}
