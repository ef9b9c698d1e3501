/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See drive.h. Between two events (a transfer comes, a transfer is served) both rates are constant, so time advances
 * from event to event. Events are rounded up to whole ns: never faster than the model.
 *
 * Side by side, a queue is kept in the order in which its transfers will be served. With equal shares that order
 * depends on no later arrival, so a transfer's end is a mark on one scale: the bytes that each transfer of the queue
 * was served.
 */
#include "lab/drive.h"

#include <stddef.h>

#define LONGEST_NS 1e18 /* 31 years: sums of such times do not overflow */

void tn_drive_init(struct tn_drive *d, const struct tn_mix *mix, uint32_t stretch)
{
	double scale = 1e9 * stretch;

	*d = (struct tn_drive){
		.q = {{.bytes_per_ns = (double)mix->read_bps / scale, .latency_ns = mix->read_latency_ns * stretch},
		      {.bytes_per_ns = (double)mix->write_bps / scale, .latency_ns = mix->write_latency_ns * stretch}},
		.mixed_bytes_per_ns = (double)mix->mixed_bps / scale,
		.share = mix->service == TN_MIX_SHARE,
	};
	d->q[0].tail = &d->q[0].head;
	d->q[1].tail = &d->q[1].head;
}

static double smaller(double a, double b)
{
	return a < b ? a : b;
}

/* Both rates, in bytes per ns. */
static void rates(const struct tn_drive *d, double rate[2])
{
	const struct tn_drive_queue *q = d->q;
	double share;

	rate[0] = q[0].bytes_per_ns;
	rate[1] = q[1].bytes_per_ns;
	if (!q[0].count || !q[1].count)
		return;
	share = d->mixed_bytes_per_ns * q[0].count / ((double)q[0].count + q[1].count);
	rate[0] = smaller(share, rate[0]);
	rate[1] = smaller(d->mixed_bytes_per_ns - rate[0], rate[1]);
	/* Reads get what writes cannot use. */
	rate[0] = smaller(d->mixed_bytes_per_ns - rate[1], q[0].bytes_per_ns);
}

/* Side by side, a transfer of 0 bytes takes no share; left stays what the transfer came with. */
static bool takes_share(const struct tn_drive *d, const struct tn_drive_job *job)
{
	return !d->share || job->left > 0;
}

/* Bytes until a queue's head is served. */
static double head_left(const struct tn_drive *d, const struct tn_drive_queue *q)
{
	return d->share ? (q->head->end - q->each) * q->count : q->head->left;
}

static void serve(const struct tn_drive *d, struct tn_drive_queue *q, double bytes)
{
	if (!q->head)
		return;
	if (d->share)
		q->each += bytes / q->count;
	else
		q->head->left -= bytes;
}

/* Takes the served transfers out of both queues. */
static void take_out_served(struct tn_drive *d)
{
	for (int i = 0; i < 2; i++) {
		struct tn_drive_queue *q = &d->q[i];

		while (q->head && head_left(d, q) <= 0) {
			q->head->due_ns = d->now_ns + q->latency_ns;
			q->count -= takes_share(d, q->head);
			q->head = q->head->next;
		}
		if (!q->head) {
			q->tail = &q->head;
			q->each = 0;
		}
	}
}

/* ns until the first head is served, at most limit. */
static uint64_t next_event(const struct tn_drive *d, const double rate[2], uint64_t limit)
{
	for (int i = 0; i < 2; i++) {
		double ns = d->q[i].head ? head_left(d, &d->q[i]) / rate[i] : (double)limit;

		if (ns < (double)limit)
			limit = (uint64_t)ns + 1; /* rounds up; a whole number to the next one */
	}
	return limit;
}

void tn_drive_advance(struct tn_drive *d, uint64_t now_ns)
{
	take_out_served(d);
	while (d->now_ns < now_ns && (d->q[0].head || d->q[1].head)) {
		double rate[2];
		uint64_t ns;

		rates(d, rate);
		ns = next_event(d, rate, now_ns - d->now_ns);
		for (int i = 0; i < 2; i++)
			serve(d, &d->q[i], rate[i] * (double)ns);
		d->now_ns += ns;
		take_out_served(d);
	}
	if (d->now_ns < now_ns)
		d->now_ns = now_ns;
}

/* Its place is behind the transfers that will be served before it; a transfer of 0 bytes waits for all. */
static struct tn_drive_job **place(struct tn_drive_queue *q, struct tn_drive_job *job, uint32_t bytes)
{
	struct tn_drive_job **at = &q->head;

	while (*at && (bytes == 0 || (*at)->end <= job->end)) {
		if (bytes == 0)
			job->end = (*at)->end;
		at = &(*at)->next;
	}
	return at;
}

void tn_drive_enter(struct tn_drive *d, struct tn_drive_job *job, bool write, uint32_t bytes)
{
	struct tn_drive_queue *q = &d->q[write];
	struct tn_drive_job **at = q->tail;

	q->entered += bytes;
	*job = (struct tn_drive_job){.mark = q->entered, .left = bytes, .end = q->each + bytes, .write = write};
	if (d->share)
		at = place(q, job, bytes);
	job->next = *at;
	*at = job;
	if (!job->next)
		q->tail = &job->next;
	q->count += takes_share(d, job);
	take_out_served(d);
}

uint64_t tn_drive_soonest(const struct tn_drive *d, const struct tn_drive_job *job)
{
	const struct tn_drive_queue *q = &d->q[job->write];
	double ns;

	if (job->due_ns)
		return job->due_ns;
	if (d->share) /* all of the head, as many bytes of each other transfer, and the rest of this one */
		ns = (head_left(d, q) + job->end - q->head->end) / q->bytes_per_ns;
	else
		ns = ((double)(job->mark - q->head->mark) + q->head->left) / q->bytes_per_ns;
	return d->now_ns + (uint64_t)smaller(ns, LONGEST_NS) + q->latency_ns;
}
