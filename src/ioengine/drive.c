/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See drive.h. Between two events (a transfer comes, a transfer is served) both rates are constant, so time advances
 * from event to event. Events are rounded up to whole ns: never faster than the model.
 */
#include "ioengine/drive.h"

#include <stddef.h>

#define LONGEST_NS 1e18 /* 31 years: sums of it do not overflow */

void tn_drive_init(struct tn_drive *d, const struct tn_mix *mix, uint32_t stretch)
{
	double scale = 1e9 * stretch;

	*d = (struct tn_drive){
		.q = {{.bytes_per_ns = (double)mix->read_bps / scale, .latency_ns = mix->read_latency_ns * stretch},
		      {.bytes_per_ns = (double)mix->write_bps / scale, .latency_ns = mix->write_latency_ns * stretch}},
		.mixed_bytes_per_ns = (double)mix->mixed_bps / scale,
	};
	d->q[0].tail = &d->q[0].head;
	d->q[1].tail = &d->q[1].head;
}

static double least(double a, double b)
{
	return a < b ? a : b;
}

/* Both rates, in bytes a ns. */
static void rates(const struct tn_drive *d, double rate[2])
{
	const struct tn_drive_queue *q = d->q;
	double share;

	rate[0] = q[0].bytes_per_ns;
	rate[1] = q[1].bytes_per_ns;
	if (!q[0].count || !q[1].count)
		return;
	share = d->mixed_bytes_per_ns * q[0].count / ((double)q[0].count + q[1].count);
	rate[0] = least(share, rate[0]);
	rate[1] = least(d->mixed_bytes_per_ns - rate[0], rate[1]);
	/* What writes cannot use is the reads' again. */
	rate[0] = least(d->mixed_bytes_per_ns - rate[1], q[0].bytes_per_ns);
}

/* Takes out the heads that are served. */
static void settle(struct tn_drive *d)
{
	for (int i = 0; i < 2; i++) {
		struct tn_drive_queue *q = &d->q[i];

		while (q->head && q->head->left <= 0) {
			q->head->due_ns = d->now_ns + q->latency_ns;
			q->head = q->head->next;
			q->count--;
		}
		if (!q->head)
			q->tail = &q->head;
	}
}

/* ns until the first head is served, at most limit. */
static uint64_t next_event(const struct tn_drive *d, const double rate[2], uint64_t limit)
{
	for (int i = 0; i < 2; i++) {
		double ns = d->q[i].head ? d->q[i].head->left / rate[i] : (double)limit;

		if (ns < (double)limit)
			limit = (uint64_t)ns + 1; /* rounds up; of a whole number to the next */
	}
	return limit;
}

void tn_drive_advance(struct tn_drive *d, uint64_t now_ns)
{
	settle(d);
	while (d->now_ns < now_ns && (d->q[0].head || d->q[1].head)) {
		double rate[2];
		uint64_t ns;

		rates(d, rate);
		ns = next_event(d, rate, now_ns - d->now_ns);
		for (int i = 0; i < 2; i++)
			if (d->q[i].head)
				d->q[i].head->left -= rate[i] * (double)ns;
		d->now_ns += ns;
		settle(d);
	}
	if (d->now_ns < now_ns)
		d->now_ns = now_ns;
}

void tn_drive_enter(struct tn_drive *d, struct tn_drive_job *job, bool write, uint32_t bytes)
{
	struct tn_drive_queue *q = &d->q[write];

	q->entered += bytes;
	*job = (struct tn_drive_job){.mark = q->entered, .left = bytes, .write = write};
	*q->tail = job;
	q->tail = &job->next;
	q->count++;
	settle(d);
}

uint64_t tn_drive_soonest(const struct tn_drive *d, const struct tn_drive_job *job)
{
	const struct tn_drive_queue *q = &d->q[job->write];
	double ns;

	if (job->due_ns)
		return job->due_ns;
	ns = ((double)(job->mark - q->head->mark) + q->head->left) / q->bytes_per_ns;
	return d->now_ns + (uint64_t)least(ns, LONGEST_NS) + q->latency_ns;
}
