/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Health of devices: what is seen of transfers moves a device between healthy, slow, read-only
 * and offline; small probes of the scratch page bring it back.
 *
 * Two leaky scores decide, so that single hiccups do nothing: an error adds 8 and a success takes 1
 * away, 64 is offline (eight errors in a row); a late read adds 4, one in time takes 1 away, 64 is
 * slow (half the reads late). What an event does in a state is one table.
 */
#include <errno.h>

#include "base/error.h"
#include "store/store_internal.h"

#define SCORE_LIMIT 64u
#define ERROR_WEIGHT 8u
#define LATE_WEIGHT 4u
#define PROBE_FIRST_NS 1000000000ull
#define PROBE_LAST_NS 30000000000ull
#define PROBES_NEEDED 3u
#define DEFAULT_SLOW_NS 500000000ull

enum event {
	EV_LATE,      /* too many reads were late */
	EV_NO_SPACE,  /* a write found no room or a read-only file system */
	EV_ERRORS,    /* too many errors */
	EV_GONE,      /* the device is not there any more */
	EV_DELETED,   /* its file has no name any more, which was logged */
	EV_GOOD,      /* enough probes in a row were good */
	EV_COUNT,
};

static const char *const health_text[] = {
	"healthy",
	"slow: reads take too long; it is still used",
	"read-only: there is no room or no right to write; what it holds is still read",
	"offline: it is gone, or fails too often; its blocks are misses until it is back",
};

static const enum tn_health next_health[4][EV_COUNT] = {
	/* state         late           no space       errors      gone        deleted       good probes */
	[TN_HEALTHY] = {TN_SLOW, TN_READ_ONLY, TN_OFFLINE, TN_OFFLINE, TN_READ_ONLY, TN_HEALTHY},
	[TN_SLOW] = {TN_SLOW, TN_READ_ONLY, TN_OFFLINE, TN_OFFLINE, TN_READ_ONLY, TN_HEALTHY},
	[TN_READ_ONLY] = {TN_READ_ONLY, TN_READ_ONLY, TN_OFFLINE, TN_OFFLINE, TN_READ_ONLY, TN_HEALTHY},
	[TN_OFFLINE] = {TN_OFFLINE, TN_OFFLINE, TN_OFFLINE, TN_OFFLINE, TN_OFFLINE, TN_HEALTHY},
};

static void happen(struct tn_store_device *d, enum event ev)
{
	struct tn_store_health_state *h = &d->hs;
	struct tn_store *s = d->store;
	enum tn_health old = h->health;

	h->health = next_health[old][ev];
	if (h->health == old)
		return;
	h->error_score = h->slow_score = h->probe_good = 0;
	h->probe_delay_ns = PROBE_FIRST_NS;
	h->probe_ns = tn_now_ns(s->clock) + h->probe_delay_ns;
	if (ev != EV_DELETED)
		tn_log(s->log, h->health == TN_HEALTHY ? TN_LOG_INFO : TN_LOG_WARN, "%s: the device is %s", d->path,
		       health_text[h->health]);
	/* An offline device commits nothing: flushes must not wait for that. */
	if (h->health == TN_OFFLINE && d->log.phase == TN_LOG_IDLE)
		tn_store_waits_settle(d, -EIO);
	if (s->cb.health)
		s->cb.health(s->cb.arg, d->index, h->health);
}

void tn_store_health_deleted(struct tn_store_device *d)
{
	happen(d, EV_DELETED);
}

static void observe_error(struct tn_store_device *d, enum tn_io_op op, int status)
{
	struct tn_store_health_state *h = &d->hs;

	if (op == TN_IO_READ)
		d->read_errors++;
	else
		d->write_errors++;
	if (status == -ESTALE && d->deleted)
		return;
	if (status == -ENODEV || status == -ENXIO || status == -ENOMEDIUM) {
		happen(d, EV_GONE);
		return;
	}
	if (op != TN_IO_READ && (status == -ENOSPC || status == -EDQUOT || status == -EROFS)) {
		happen(d, EV_NO_SPACE);
		return;
	}
	h->error_score += ERROR_WEIGHT;
	if (h->error_score >= SCORE_LIMIT)
		happen(d, EV_ERRORS);
}

void tn_store_observe(struct tn_store *s, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns,
		      int status)
{
	struct tn_store_device *d = &s->dev[device];
	struct tn_store_health_state *h = &d->hs;

	assert(device < s->ndevices);
	if (status == -ECANCELED)
		return;
	if (status) {
		observe_error(d, op, status);
		return;
	}
	if (op == TN_IO_READ)
		d->bytes_read += bytes;
	else if (op == TN_IO_WRITE)
		d->bytes_written += bytes;
	if (h->error_score > 0)
		h->error_score--;
	if (op != TN_IO_READ)
		return;
	if (latency_ns > s->slow_read_ns)
		h->slow_score += LATE_WEIGHT;
	else if (h->slow_score > 0)
		h->slow_score--;
	if (h->slow_score >= SCORE_LIMIT) {
		h->slow_score = 0;
		happen(d, EV_LATE);
	}
}

/* ---- probes ------------------------------------------------------------------------------------------------ */

static void probe_end(struct tn_store_device *d, bool good)
{
	struct tn_store_health_state *h = &d->hs;

	h->probing = false;
	h->probe_good = good ? h->probe_good + 1 : 0;
	if (good)
		h->probe_delay_ns = PROBE_FIRST_NS / 4;
	else if (h->probe_delay_ns < PROBE_LAST_NS)
		h->probe_delay_ns = h->probe_delay_ns < PROBE_FIRST_NS ? PROBE_FIRST_NS : 2 * h->probe_delay_ns;
	h->probe_ns = tn_now_ns(d->store->clock) + h->probe_delay_ns;
	if (h->probe_good >= PROBES_NEEDED)
		happen(d, EV_GOOD);
}

/* A slow device is read; any other is written, synced and read back. */
static void probe_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;
	struct tn_store_health_state *h = &d->hs;
	bool late = tn_now_ns(d->store->clock) - r->start_ns > d->store->slow_read_ns;

	if (status || late || r->io.op == TN_IO_READ)
		probe_end(d, status == 0 && !late);
	else if (r->io.op == TN_IO_WRITE)
		tn_store_req_submit(&h->req, TN_IO_SYNC, 0, NULL, 0);
	else
		tn_store_req_submit(&h->req, TN_IO_READ, TN_DISK_SCRATCH_OFFSET, h->buffer, TN_DISK_PAGE);
}

uint64_t tn_store_health_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_health_state *h = &d->hs;

	if (h->health == TN_HEALTHY || d->store->read_only || d->absent || d->deleted || h->probing)
		return TN_STORE_NEVER;
	if (now_ns < h->probe_ns)
		return h->probe_ns;
	h->probing = true;
	tn_store_req_submit(&h->req, h->health == TN_SLOW ? TN_IO_READ : TN_IO_WRITE, TN_DISK_SCRATCH_OFFSET, h->buffer,
			    TN_DISK_PAGE);
	return TN_STORE_NEVER;
}

void tn_store_health_init(struct tn_store_device *d)
{
	tn_store_req_init(&d->hs.req, d, probe_done);
	d->hs.probe_delay_ns = PROBE_FIRST_NS;
	if (d->store->read_only)
		d->hs.health = TN_READ_ONLY;
	if (d->absent)
		d->hs.health = TN_OFFLINE;
	if (d->store->slow_read_ns == 0)
		d->store->slow_read_ns = DEFAULT_SLOW_NS;
}

enum tn_health tn_store_health(const struct tn_store *s, uint32_t device)
{
	assert(device < s->ndevices);
	return s->dev[device].hs.health;
}
