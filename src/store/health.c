/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Health of devices: what is seen of transfers moves a device between healthy, slow, read-only and offline. Probes
 * (background.c) bring it back; nothing else does. And the write budget of a day.
 *
 * Leaky scores decide, so that single hiccups do nothing. Reads, writes and syncs have one each, because what works says nothing
 * of what does not: an error adds 8 and a success of its kind takes 1 away, 64 is eight errors in a row: of reads, the device is
 * offline; of writes or syncs, it is read-only. A late read adds 4, one in time takes 1 away, 64 is slow (half the reads late).
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "store/store_internal.h"

#define SCORE_LIMIT 64u
#define ERROR_WEIGHT 8u
#define LATE_WEIGHT 4u
#define PROBE_FIRST_NS 1000000000ull
#define PROBE_LAST_NS 30000000000ull
#define PROBES_NEEDED 3u

#define RETRY_MAX_NS 5000000000ull
#define DAY_NS 86400000000000ull

static const char *const health_text[] = {
	"healthy",
	"slow: reads take too long; it is still used",
	"read-only: there is no free disk space or no right to write, or writes or syncs fail; what it holds is still read",
	"offline: it is gone, or fails too often; its blocks are misses until it is back",
};

/* A device that fails again as soon as its probes are good is probed later each time. */
static uint64_t first_probe_delay(struct tn_store_health_state *h, uint64_t now_ns)
{
	bool again = h->good_ns > 0 && now_ns - h->good_ns < PROBE_LAST_NS;

	h->relapse_ns = again ? 2 * h->relapse_ns : PROBE_FIRST_NS;
	if (h->relapse_ns > PROBE_LAST_NS)
		h->relapse_ns = PROBE_LAST_NS;
	return h->relapse_ns;
}

static void change(struct tn_store_device *d, enum tn_health health)
{
	struct tn_store_health_state *h = &d->hs;
	struct tn_store *s = d->store;
	uint64_t now = tn_now_ns(s->clock);

	TN_TRACE2(health, d->index, health);
	if (health == TN_HEALTHY)
		h->good_ns = now;
	else if (h->health == TN_HEALTHY)
		h->probe_delay_ns = first_probe_delay(h, now);
	else
		h->probe_delay_ns = PROBE_FIRST_NS;
	h->health = health;
	memset(h->error_score, 0, sizeof(h->error_score));
	h->slow_score = h->probe_good = 0;
	h->probe_ns = now + h->probe_delay_ns;
	if (!d->deleted || health != TN_READ_ONLY) /* that its file was deleted was logged */
		tn_log(s->log, health == TN_HEALTHY ? TN_LOG_INFO : TN_LOG_WARN, "%s: the device is %s", d->path, health_text[health]);
	/* An offline device commits nothing: flushes must not wait for that. */
	if (health == TN_OFFLINE)
		tn_store_waits_settle(d, -EIO);
	if (s->cb.health)
		s->cb.health(s->cb.arg, d->index, health);
}

/* Of what is known of a device the worst counts. */
static void become(struct tn_store_device *d, enum tn_health health)
{
	if (health > d->hs.health)
		change(d, health);
}

void tn_store_file_deleted(struct tn_store_device *d)
{
	if (d->deleted)
		return;
	d->deleted = true;
	tn_log(d->store->log, TN_LOG_ERROR,
	       "%s: the file was deleted: what it holds is served until the cache closes, and gone then; nothing new is stored in it",
	       d->path);
	become(d, TN_READ_ONLY);
	tn_store_waits_settle(d, -ESTALE);
}

static enum tn_store_kind kind_of(enum tn_io_op op)
{
	return op == TN_IO_READ ? TN_STORE_READS : op == TN_IO_SYNC ? TN_STORE_SYNCS : TN_STORE_WRITES;
}

static void observe_error(struct tn_store_device *d, enum tn_io_op op, int status)
{
	uint32_t *score = &d->hs.error_score[kind_of(op)];

	if (op == TN_IO_READ)
		d->read_errors++;
	else
		d->write_errors++;
	if (status == -ESTALE && d->deleted)
		return;
	if (status == -ENODEV || status == -ENXIO || status == -ENOMEDIUM) {
		become(d, TN_OFFLINE);
		return;
	}
	if (op != TN_IO_READ && (status == -ENOSPC || status == -EDQUOT || status == -EROFS)) {
		become(d, TN_READ_ONLY);
		return;
	}
	*score += ERROR_WEIGHT;
	if (*score >= SCORE_LIMIT)
		become(d, op == TN_IO_READ ? TN_OFFLINE : TN_READ_ONLY);
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
	TN_TRACE3(device_io, device, op, bytes);
	if (op == TN_IO_READ)
		d->bytes_read += bytes;
	else if (op == TN_IO_WRITE)
		d->bytes_written += bytes;
	if (h->error_score[kind_of(op)] > 0)
		h->error_score[kind_of(op)]--;
	if (op != TN_IO_READ)
		return;
	if (latency_ns > s->slow_read_ns)
		h->slow_score += LATE_WEIGHT;
	else if (h->slow_score > 0)
		h->slow_score--;
	if (h->slow_score >= SCORE_LIMIT) {
		h->slow_score = 0;
		become(d, TN_SLOW);
	}
}

void tn_store_observe_req(const struct tn_store_req *r, int status)
{
	const struct tn_store *s = r->dev->store;

	tn_store_observe(r->dev->store, r->dev->index, (enum tn_io_op)r->io.op, 0, tn_now_ns(s->clock) - r->start_ns, status);
}

void tn_store_health_probed(struct tn_store_device *d, bool good)
{
	struct tn_store_health_state *h = &d->hs;

	h->probe_good = good ? h->probe_good + 1 : 0;
	if (good)
		h->probe_delay_ns = PROBE_FIRST_NS / 4;
	else if (h->probe_delay_ns < PROBE_LAST_NS)
		h->probe_delay_ns = h->probe_delay_ns < PROBE_FIRST_NS ? PROBE_FIRST_NS : 2 * h->probe_delay_ns;
	h->probe_ns = tn_now_ns(d->store->clock) + h->probe_delay_ns;
	if (h->probe_good >= PROBES_NEEDED)
		change(d, TN_HEALTHY);
}

enum tn_health tn_store_health(const struct tn_store *s, uint32_t device)
{
	assert(device < s->ndevices);
	return s->dev[device].hs.health;
}

void tn_store_retry_later(struct tn_store_device *d, struct tn_store_retry *r, uint64_t first_ns, const char *what, int status)
{
	uint64_t delay = first_ns << (r->failures < 7 ? r->failures : 7);

	if (r->failures++ == 0 && !d->deleted)
		tn_log(d->store->log, TN_LOG_ERROR, "%s: %s: %s; trying again", d->path, what, strerror(-status));
	r->ns = tn_now_ns(d->store->clock) + (delay < RETRY_MAX_NS ? delay : RETRY_MAX_NS);
}

/*
 * ---- the write budget ----
 *
 * How many bytes may be written in a day, so that a drive lasts as long as it was bought for. Whoever writes blocks asks first. The store's own writes are
 * counted and never refused.
 */

void tn_store_budget_init(struct tn_store *s, uint64_t bytes_per_day)
{
	tn_allowance_init(&s->budget, bytes_per_day, DAY_NS, tn_now_ns(s->clock));
}

bool tn_store_charge_write(struct tn_store *s, uint64_t bytes)
{
	if (tn_allowance_take(&s->budget, bytes, tn_now_ns(s->clock)))
		return true;
	TN_TRACE2(over_budget, bytes, s->budget.left);
	return false;
}

void tn_store_uncharge_write(struct tn_store *s, uint64_t bytes)
{
	tn_allowance_spend(&s->budget, -(int64_t)bytes);
}
