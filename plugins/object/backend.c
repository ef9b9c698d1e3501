/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend of the transfer agent, between memory and objects of a store, which the plugin's object_client reaches.
 *
 * Pieces that follow each other in one object go as one transfer of at most RANGE_BYTES; a READ is a GET of a range. A store replaces objects whole, so a WRITE has
 * all bytes of an object from the first on, and all its pieces succeed or fail together.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/plugin.h>
#include <tenuto/xfer_backend.h>

#include "object.h"

#define RANGE_BYTES (UINT64_C(16) << 20)
#define QUERY_NS UINT64_C(30000000000)
#define COST_LATENCY_NS 10000000u
#define COST_BYTES_PER_S 200000000u

struct backend {
	void *client;
	bool if_absent;
	pthread_mutex_t lock;
	struct object *objects;
};

/* An object that sections name; those of the same key share it. */
struct object {
	struct object *next;
	uint32_t refs;
	char key[];
};

/* Pieces of a job that go as one. */
struct part {
	struct object_transfer transfer; /* first */
	struct tn_xfer_job *job;
	uint32_t first, n; /* of work's order */
	uint32_t piece;	   /* the first of them in the job's order */
};

struct work {
	uint32_t nparts;
	uint32_t *order; /* pieces by object and offset */
	struct iovec *iov; /* in that order */
	pthread_mutex_t lock; /* of why */
	const struct part *tried; /* whose try has failed last, and its reason */
	char try_why[OBJECT_WHY_BYTES];
	uint32_t failed_piece; /* of the parts that have ended with a failure, the first in the job's order, and its reason; "": none has */
	char why[OBJECT_WHY_BYTES];
	struct part part[];
};

/* What a job keeps in its words. */
enum { PARTS_LEFT };

/* ---- sections ---------------------------------------------------------------------------------------------------------- */

static int check_key(const struct tn_xfer_section *section)
{
	size_t n = section->meta ? strlen(section->meta) : 0;

	if (n && n <= object_client.key_max)
		return 0;
	return object_fail(-EINVAL, "an OBJECT section of device %llu: its meta is the key of the object, 1 to %u bytes; it has %zu",
		       (unsigned long long)section->device, object_client.key_max, n);
}

static int section_add(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, void **handle)
{
	struct backend *b = backend;
	const char *key = section->meta;
	struct object *o;
	size_t n;

	*handle = NULL;
	if (segment != TN_XFER_OBJECT)
		return 0;
	if (check_key(section))
		return -EINVAL;
	n = strlen(key);
	pthread_mutex_lock(&b->lock);
	for (o = b->objects; o && strcmp(o->key, key); o = o->next)
		;
	if (!o) {
		o = malloc(sizeof(*o) + n + 1);
		if (o) {
			o->next = b->objects;
			o->refs = 0;
			memcpy(o->key, key, n + 1);
			b->objects = o;
		}
	}
	if (o)
		o->refs++;
	pthread_mutex_unlock(&b->lock);
	*handle = o;
	return o ? 0 : -ENOMEM;
}

static void section_remove(void *backend, void *handle)
{
	struct backend *b = backend;
	struct object *o = handle;

	if (!o)
		return;
	pthread_mutex_lock(&b->lock);
	if (!--o->refs) {
		struct object **at = &b->objects;

		while (*at != o)
			at = &(*at)->next;
		*at = o->next;
		free(o);
	}
	pthread_mutex_unlock(&b->lock);
}

static void query_failed(struct object_transfer *t, const char *why)
{
	snprintf(t->arg, OBJECT_WHY_BYTES, "%s", why);
}

static int query(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, struct tn_xfer_found *out)
{
	struct backend *b = backend;
	char why[OBJECT_WHY_BYTES] = "the store has not answered in time: check where the backend looks for it, and that it runs";
	struct object_transfer t = {.op = OBJECT_HEAD, .key = section->meta, .deadline_ns = object_now_ns() + QUERY_NS, .arg = why, .failed = query_failed};
	int rc;

	*out = (struct tn_xfer_found){0};
	if (segment != TN_XFER_OBJECT)
		return -ENOTSUP;
	rc = check_key(section);
	if (rc)
		return rc;
	rc = object_wait(b->client, &t);
	if (rc == -ENOENT)
		return 0;
	if (rc)
		return object_fail(rc, "query: %s", why);
	out->exists = 1;
	out->bytes = t.object_bytes;
	return 0;
}

/* ---- from pieces to transfers ------------------------------------------------------------------------------------------ */

static bool object_is_remote(const struct tn_xfer_job *job)
{
	return job->remote_segment == TN_XFER_OBJECT;
}

static bool writes_object(const struct tn_xfer_job *job)
{
	return (job->op == TN_XFER_WRITE) == object_is_remote(job);
}

static struct object *object_of(const struct tn_xfer_job *job, const struct tn_xfer_piece *p)
{
	return object_is_remote(job) ? p->remote_section : p->local_section;
}

static uint64_t offset_of(const struct tn_xfer_job *job, const struct tn_xfer_piece *p)
{
	return object_is_remote(job) ? p->remote : p->local;
}

static int compare(const void *a, const void *b, void *arg)
{
	const struct tn_xfer_job *job = arg;
	const struct tn_xfer_piece *p = &job->piece[*(const uint32_t *)a], *q = &job->piece[*(const uint32_t *)b];
	uintptr_t o = (uintptr_t)object_of(job, p), r = (uintptr_t)object_of(job, q);

	if (o != r)
		return o < r ? -1 : 1;
	return offset_of(job, p) < offset_of(job, q) ? -1 : offset_of(job, p) > offset_of(job, q);
}

/* How many pieces from `first` on go as one, and how many bytes they have. */
static uint32_t run_of(const struct tn_xfer_job *job, const uint32_t *order, uint32_t first, uint64_t *bytes)
{
	const struct tn_xfer_piece *begin = &job->piece[order[first]];
	uint32_t n = 1;

	*bytes = begin->bytes;
	for (; first + n < job->npieces; n++) {
		const struct tn_xfer_piece *next = &job->piece[order[first + n]];

		if (object_of(job, next) != object_of(job, begin) || offset_of(job, next) != offset_of(job, begin) + *bytes ||
		    (!writes_object(job) && *bytes + next->bytes > RANGE_BYTES))
			break;
		*bytes += next->bytes;
	}
	return n;
}

static int check_write(const struct tn_xfer_job *job, const struct work *w, const struct part *p)
{
	const struct tn_xfer_piece *begin = &job->piece[w->order[p->first]];

	if (!writes_object(job) || offset_of(job, begin) == 0)
		return 0;
	return object_fail(-ENOTSUP, "bytes from %llu on of object %.200s: an object is written whole, from byte 0, without a gap, in one request",
		       (unsigned long long)offset_of(job, begin), object_of(job, begin)->key);
}

static int set_part(struct backend *b, struct tn_xfer_job *job, struct work *w, struct part *p, uint64_t bytes)
{
	const struct tn_xfer_piece *begin = &job->piece[w->order[p->first]];
	int rc = check_write(job, w, p);

	if (rc)
		return rc;
	p->job = job;
	p->transfer.op = writes_object(job) ? OBJECT_PUT : OBJECT_GET;
	p->transfer.key = object_of(job, begin)->key;
	p->transfer.offset = offset_of(job, begin);
	p->transfer.bytes = bytes;
	p->transfer.iov = w->iov + p->first;
	p->transfer.niov = p->n;
	p->transfer.if_absent = b->if_absent;
	p->transfer.stop = &job->stop;
	p->transfer.deadline_ns = OBJECT_NO_DEADLINE; /* the agent's deadline stops the job */
	return object_client.prepare(b->client, &p->transfer);
}

static void work_free(struct work *w)
{
	for (uint32_t i = 0; i < w->nparts; i++)
		object_client.forget(&w->part[i].transfer);
	pthread_mutex_destroy(&w->lock);
	free(w->order);
	free(w->iov);
	free(w);
}

static struct work *work_new(uint32_t n)
{
	struct work *w = calloc(1, sizeof(*w) + n * sizeof(w->part[0]));

	if (!w)
		return NULL;
	pthread_mutex_init(&w->lock, NULL);
	w->order = malloc((n + 1) * sizeof(w->order[0]));
	w->iov = malloc((n + 1) * sizeof(w->iov[0]));
	if (w->order && w->iov)
		return w;
	work_free(w);
	return NULL;
}

static int prepare(void *backend, struct tn_xfer_job *job)
{
	struct work *w = work_new(job->npieces);
	uint64_t bytes;
	int rc = 0;

	if (!w)
		return object_fail(-ENOMEM, "no memory for %u pieces", job->npieces);
	for (uint32_t i = 0; i < job->npieces; i++)
		w->order[i] = i;
	qsort_r(w->order, job->npieces, sizeof(w->order[0]), compare, job);
	for (uint32_t i = 0; i < job->npieces; i++) {
		const struct tn_xfer_piece *p = &job->piece[w->order[i]];

		w->iov[i] = (struct iovec){(void *)(uintptr_t)(object_is_remote(job) ? p->local : p->remote), p->bytes};
	}
	for (uint32_t i = 0; i < job->npieces && rc == 0; i += w->part[w->nparts - 1].n) {
		struct part *p = &w->part[w->nparts++];

		p->first = i;
		p->n = run_of(job, w->order, i, &bytes);
		p->piece = w->order[i];
		for (uint32_t k = i; k < i + p->n; k++)
			p->piece = w->order[k] < p->piece ? w->order[k] : p->piece;
		rc = set_part(backend, job, w, p, bytes);
	}
	if (rc) {
		work_free(w);
		return rc;
	}
	job->work = w;
	return 0;
}

static void forget(void *backend, struct tn_xfer_job *job)
{
	work_free(job->work);
	job->work = NULL;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------------- */

/* The last reason of a part that has failed comes before its end, in the same thread. */
static void part_failed(struct object_transfer *t, const char *why)
{
	struct work *w = ((struct part *)(void *)t)->job->work;

	pthread_mutex_lock(&w->lock);
	w->tried = (struct part *)(void *)t;
	snprintf(w->try_why, sizeof(w->try_why), "%s", why);
	pthread_mutex_unlock(&w->lock);
}

/* The agent names the first descriptor that has failed, so this is told of the first part. */
static void keep_reason(struct work *w, const struct part *p)
{
	pthread_mutex_lock(&w->lock);
	if (w->tried == p && (!*w->why || p->piece < w->failed_piece)) {
		w->failed_piece = p->piece;
		memcpy(w->why, w->try_why, sizeof(w->why));
	}
	pthread_mutex_unlock(&w->lock);
}

static size_t why(void *backend, const struct tn_xfer_job *job, char *out, size_t bytes)
{
	struct work *w = job->work;
	const char *words;
	size_t n;

	pthread_mutex_lock(&w->lock);
	words = *w->why ? w->why : w->try_why;
	n = *words ? (size_t)snprintf(out, bytes, "%s", words) + 1 : 0;
	pthread_mutex_unlock(&w->lock);
	return n < bytes ? n : bytes;
}

static void part_done(struct object_transfer *t)
{
	struct part *p = (struct part *)(void *)t;
	struct tn_xfer_job *job = p->job;
	struct work *w = job->work;
	uint64_t left = t->moved;

	if (t->code)
		keep_reason(w, p);
	for (uint32_t i = p->first; i < p->first + p->n; i++) {
		struct tn_xfer_piece *piece = &job->piece[w->order[i]];
		uint64_t moved = left < piece->bytes ? left : piece->bytes;

		left -= moved;
		tn_xfer_piece_end(piece, moved, t->code && moved == piece->bytes && t->op == OBJECT_GET ? 0 : t->code);
	}
	if (__atomic_sub_fetch(&job->word[PARTS_LEFT], 1, __ATOMIC_ACQ_REL) == 0) /* when the process ends, parts end in the thread that posts, too */
		job->ended(job);
}

static void post(void *backend, struct tn_xfer_job *job)
{
	struct work *w = job->work;
	uint32_t n = w->nparts;

	if (!n) {
		job->ended(job);
		return;
	}
	pthread_mutex_lock(&w->lock);
	w->tried = NULL;
	w->why[0] = w->try_why[0] = 0;
	pthread_mutex_unlock(&w->lock);
	job->word[PARTS_LEFT] = n;
	/* The job may be over before the last part is posted, but not before the last part is done. */
	for (uint32_t i = 0; i < n; i++) {
		w->part[i].transfer.failed = part_failed;
		w->part[i].transfer.done = part_done;
		object_client.post(&w->part[i].transfer);
	}
}

static void cancel(void *backend, struct tn_xfer_job *job)
{
	object_client.poke(((struct backend *)backend)->client);
}

/* ---- the backend ------------------------------------------------------------------------------------------------------- */

static int create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	struct backend *b = calloc(1, sizeof(*b));
	int rc;

	if (!b)
		return object_fail(-ENOMEM, "no memory");
	rc = object_client.create(params, n, &b->if_absent, &b->client);
	if (rc) {
		free(b);
		return rc;
	}
	pthread_mutex_init(&b->lock, NULL);
	*out = b;
	return 0;
}

static void destroy(void *backend)
{
	struct backend *b = backend;

	object_client.destroy(b->client);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

static int can(void *backend, enum tn_xfer_op op, enum tn_xfer_segment local, enum tn_xfer_segment remote, bool peer)
{
	if (peer)
		return object_fail(-ENOTSUP, "it moves objects of its own agent only");
	if ((local == TN_XFER_OBJECT) == (remote == TN_XFER_OBJECT) || (local != TN_XFER_DRAM && remote != TN_XFER_DRAM))
		return object_fail(-ENOTSUP, "it moves DRAM from and to OBJECT");
	return 0;
}

static void cost(void *backend, bool peer, struct tn_xfer_cost *out)
{
	*out = (struct tn_xfer_cost){COST_LATENCY_NS, COST_BYTES_PER_S};
}

static const struct tn_xfer_backend_ops ops = {
	.size = sizeof(ops),
	.abi = TN_XFER_BACKEND_ABI,
	.segments = 1u << TN_XFER_DRAM | 1u << TN_XFER_OBJECT,
	.name = OBJECT_PLUGIN,
	.create = create,
	.destroy = destroy,
	.section_add = section_add,
	.section_remove = section_remove,
	.query = query,
	.can = can,
	.cost = cost,
	.prepare = prepare,
	.forget = forget,
	.post = post,
	.cancel = cancel,
	.error = object_error,
	.flags = TN_XFER_WHOLE,
	.why = why,
};

const struct tn_plugin tn_plugin = {
	.size = sizeof(tn_plugin),
	.abi = TN_PLUGIN_ABI,
	.kind = TN_PLUGIN_XFER,
	.name = OBJECT_PLUGIN,
	.built_for = TN_PLUGIN_BUILT_FOR,
	.table = &ops,
};
