/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The faulty backend: another one, with faults on purpose. What goes wrong is decided by a seed and by the order of posts.
 *
 * Parameters: over=NAME, and those of that backend; seed=N; of 100 posts how many: drop (never begins, until it is cancelled), fail (one piece is not moved: -EIO),
 * truncate (one piece is moved in part: -EIO), delay (begins delay_us later); reorder=1 (pieces in random order); linger_us (each end is told so much later, also after
 * a cancel: bytes might still move). A write to an object that is replaced whole moves nothing where one piece would be bad.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/list.h"
#include "base/rng.h"
#include "base/thread.h"
#include "plugin/loader.h"
#include "xfer/backends.h"

enum knob { SEED, DROP, FAIL, TRUNCATE, DELAY, DELAY_US, REORDER, LINGER_US, KNOBS };

static const struct {
	const char *key;
	uint64_t most;
} knobs[KNOBS] = {
	[SEED] = {"seed", UINT64_MAX},	 [DROP] = {"drop", 100},		 [FAIL] = {"fail", 100},     [TRUNCATE] = {"truncate", 100},
	[DELAY] = {"delay", 100},	 [DELAY_US] = {"delay_us", 60000000}, [REORDER] = {"reorder", 1}, [LINGER_US] = {"linger_us", 60000000},
};

struct faulty {
	const struct tn_xfer_backend_ops *ops;
	void *inner;
	uint64_t knob[KNOBS];
	struct tn_rng rng;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct tn_list held; /* jobs that wait for a time */
	bool stop;
};

enum phase { IDLE, HELD, RUNNING, LINGERING };

/* A job's work: the job that the inner backend sees. */
struct work {
	struct tn_xfer_job inner; /* first: its end finds the work */
	struct tn_xfer_job *outer;
	struct faulty *faulty;
	struct tn_list link;
	enum phase phase;
	uint64_t due_ns;
	uint32_t bad; /* a piece that is not moved as it should be; UINT32_MAX: none */
	uint64_t bad_bytes; /* moved of it */
	bool prepared; /* by the inner backend */
	bool whole; /* what is prepared is all pieces, in their order */
	uint32_t *order; /* outer index of each inner piece */
};

static int find(const char *name, const struct tn_xfer_backend_ops **out)
{
	static const struct tn_xfer_backend_ops *const inner[] = {&tn_xfer_memory_ops, &tn_xfer_file_ops, &tn_xfer_gds_ops, &tn_xfer_null_ops};
	const struct tn_plugin *plugin;
	int rc;

	for (size_t i = 0; i < sizeof(inner) / sizeof(inner[0]); i++)
		if (!strcmp(inner[i]->name, name)) {
			*out = inner[i];
			return 0;
		}
	rc = tn_plugin_open(TN_PLUGIN_XFER, name, &plugin);
	if (rc)
		return tn_fail_cause(-EINVAL, "backend faulty: over=%s: memory, file, gds, null or a plugin is wanted", name);
	*out = plugin->table;
	return 0;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------------- */

static void hold(struct work *w, enum phase phase, uint64_t due_ns)
{
	w->phase = phase;
	w->due_ns = due_ns;
	tn_list_push(&w->faulty->held, &w->link);
	pthread_cond_signal(&w->faulty->changed);
}

static void inner_ended(struct tn_xfer_job *inner)
{
	struct work *w = tn_container_of(inner, struct work, inner);
	struct tn_xfer_job *outer = w->outer;
	struct faulty *f = w->faulty;
	uint64_t linger_ns = f->knob[LINGER_US] * 1000;

	outer->cut = inner->cut;
	for (uint32_t i = 0; i < inner->npieces; i++) {
		outer->piece[w->order[i]].shared = inner->piece[i].shared;
		tn_xfer_piece_end(&outer->piece[w->order[i]], inner->piece[i].moved, inner->piece[i].status);
	}
	if (w->bad < outer->npieces && !tn_xfer_job_stopped(inner))
		tn_xfer_piece_end(&outer->piece[w->bad], w->bad_bytes, -EIO);
	pthread_mutex_lock(&f->lock);
	if (linger_ns)
		hold(w, LINGERING, tn_now_ns(&tn_clock_system) + linger_ns);
	else
		w->phase = IDLE;
	pthread_mutex_unlock(&f->lock);
	if (!linger_ns)
		outer->ended(outer);
}

/* The pieces as the inner backend gets them. */
static void make_inner(struct work *w)
{
	struct tn_xfer_job *outer = w->outer;
	struct tn_xfer_piece *piece = w->inner.piece;
	uint32_t n = 0;

	for (uint32_t i = 0; i < outer->npieces; i++) {
		struct tn_xfer_piece p = outer->piece[i];

		if (i == w->bad)
			p.bytes = w->bad_bytes;
		if (!p.bytes)
			continue;
		w->order[n] = i;
		piece[n++] = p;
	}
	w->inner.npieces = n;
	w->inner.bytes = 0;
	for (uint32_t i = 0; i < n; i++)
		w->inner.bytes += piece[i].bytes;
}

static void shuffle(struct work *w)
{
	for (uint32_t i = w->inner.npieces; i > 1; i--) {
		uint32_t k = tn_rng_below(&w->faulty->rng, i), order = w->order[i - 1];
		struct tn_xfer_piece piece = w->inner.piece[i - 1];

		w->order[i - 1] = w->order[k];
		w->order[k] = order;
		w->inner.piece[i - 1] = w->inner.piece[k];
		w->inner.piece[k] = piece;
	}
}

static bool chance(struct faulty *f, enum knob knob)
{
	return tn_rng_below(&f->rng, 100) < f->knob[knob];
}

static void unprepare(struct work *w)
{
	if (w->prepared && w->faulty->ops->forget)
		w->faulty->ops->forget(w->faulty->inner, &w->inner);
	w->prepared = false;
}

static int prepare_inner(struct work *w)
{
	struct faulty *f = w->faulty;
	int rc = f->ops->prepare ? tn_xfer_backend_told(f->ops, f->ops->prepare(f->inner, &w->inner)) : 0;

	w->prepared = rc == 0;
	return rc;
}

static bool writes_whole(const struct work *w)
{
	const struct tn_xfer_job *job = w->outer;

	return w->faulty->ops->flags & TN_XFER_WHOLE && (job->op == TN_XFER_WRITE ? job->remote_segment : job->local_segment) == TN_XFER_OBJECT;
}

/* Draws the fault of this post, and prepares what is left to move. 0; -EIO: nothing is; or why the inner backend does not take it. */
static int draw(struct work *w)
{
	const struct tn_xfer_job *job = w->outer;
	struct faulty *f = w->faulty;

	w->bad = UINT32_MAX;
	if (job->npieces && chance(f, FAIL)) {
		w->bad = tn_rng_below(&f->rng, job->npieces);
		w->bad_bytes = 0;
	} else if (job->npieces && chance(f, TRUNCATE)) {
		w->bad = tn_rng_below(&f->rng, job->npieces);
		w->bad_bytes = job->piece[w->bad].bytes / 2;
	}
	if (w->bad < job->npieces && writes_whole(w))
		return -EIO;
	make_inner(w);
	if (w->prepared && w->whole && w->bad == UINT32_MAX && !f->knob[REORDER])
		return 0;
	unprepare(w);
	w->whole = w->bad == UINT32_MAX && !f->knob[REORDER];
	if (f->knob[REORDER])
		shuffle(w);
	return prepare_inner(w);
}

/* No piece is moved. */
static void give_up(struct work *w, int code)
{
	for (uint32_t i = 0; i < w->outer->npieces; i++)
		tn_xfer_piece_end(&w->outer->piece[i], 0, code);
}

static void begin(struct work *w)
{
	w->faulty->ops->post(w->faulty->inner, &w->inner);
}

static void faulty_post(void *backend, struct tn_xfer_job *job)
{
	struct faulty *f = backend;
	struct work *w = job->work;
	bool run;
	int rc;

	pthread_mutex_lock(&f->lock);
	rc = draw(w);
	w->inner.peer = job->peer;
	w->inner.cut = 0;
	memset(w->inner.word, 0, sizeof(w->inner.word));
	__atomic_store_n(&w->inner.stop, __atomic_load_n(&job->stop, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
	if (rc)
		w->phase = IDLE;
	else if (chance(f, DROP))
		hold(w, HELD, TN_FOREVER);
	else if (chance(f, DELAY))
		hold(w, HELD, tn_now_ns(&tn_clock_system) + f->knob[DELAY_US] * 1000);
	else
		w->phase = RUNNING;
	run = w->phase == RUNNING;
	pthread_mutex_unlock(&f->lock);
	if (rc) {
		give_up(w, rc);
		job->ended(job);
	} else if (run) {
		begin(w);
	}
}

static void faulty_cancel(void *backend, struct tn_xfer_job *job)
{
	struct faulty *f = backend;
	struct work *w = job->work;

	pthread_mutex_lock(&f->lock);
	__atomic_store_n(&w->inner.stop, 1, __ATOMIC_RELEASE);
	if (w->phase == RUNNING && f->ops->cancel)
		f->ops->cancel(f->inner, &w->inner);
	pthread_cond_signal(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

/* ---- the thread -------------------------------------------------------------------------------------------------------- */

/* A job whose time has come, or that was cancelled before it began; NULL: *next_ns says when to ask again. */
static struct work *take_due(struct faulty *f, uint64_t now, uint64_t *next_ns)
{
	struct tn_list *pos;

	*next_ns = TN_FOREVER;
	for (pos = f->held.next; pos != &f->held; pos = pos->next) {
		struct work *w = tn_container_of(pos, struct work, link);

		if (now >= w->due_ns || (w->phase == HELD && tn_xfer_job_stopped(w->outer))) {
			tn_list_del(&w->link);
			return w;
		}
		if (w->due_ns < *next_ns)
			*next_ns = w->due_ns;
	}
	return NULL;
}

static void *run(void *arg)
{
	struct faulty *f = arg;

	pthread_mutex_lock(&f->lock);
	while (!f->stop) {
		uint64_t next_ns;
		struct work *w = take_due(f, tn_now_ns(&tn_clock_system), &next_ns);
		enum phase was = w ? w->phase : IDLE;

		if (!w) {
			tn_cond_wait(&f->changed, &f->lock, next_ns);
			continue;
		}
		if (was == HELD && tn_xfer_job_stopped(w->outer)) {
			give_up(w, -ECANCELED);
			was = LINGERING;
		}
		w->phase = was == HELD ? RUNNING : IDLE;
		pthread_mutex_unlock(&f->lock);
		if (was == HELD)
			begin(w);
		else
			w->outer->ended(w->outer);
		pthread_mutex_lock(&f->lock);
	}
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

/* ---- what goes through to the inner backend ----------------------------------------------------------------------------- */

static void work_free(struct work *w)
{
	size_t n = (size_t)w->outer->npieces + 1;

	tn_put(&tn_alloc_system, w->inner.piece, tn_array_bytes(n, sizeof(*w->inner.piece)));
	tn_put(&tn_alloc_system, w->order, tn_array_bytes(n, sizeof(*w->order)));
	tn_put(&tn_alloc_system, w, sizeof(*w));
}

static int faulty_prepare(void *backend, struct tn_xfer_job *job)
{
	struct work *w = tn_get(&tn_alloc_system, sizeof(*w));
	int rc;

	if (!w)
		return -ENOMEM;
	w->inner = *job;
	w->inner.ended = inner_ended;
	w->inner.piece = tn_get(&tn_alloc_system, tn_array_bytes((size_t)job->npieces + 1, sizeof(*job->piece)));
	w->order = tn_get(&tn_alloc_system, tn_array_bytes((size_t)job->npieces + 1, sizeof(*w->order)));
	w->outer = job;
	w->faulty = backend;
	w->bad = UINT32_MAX;
	tn_list_init(&w->link);
	job->work = w;
	rc = w->inner.piece && w->order ? 0 : -ENOMEM;
	if (rc == 0) {
		make_inner(w);
		rc = prepare_inner(w);
		w->whole = true;
	}
	if (rc)
		work_free(w);
	return rc;
}

static void faulty_forget(void *backend, struct tn_xfer_job *job)
{
	struct faulty *f = backend;
	struct work *w = job->work;

	/* Whoever has ended it is out of the lock then. */
	pthread_mutex_lock(&f->lock);
	pthread_mutex_unlock(&f->lock);
	unprepare(w);
	work_free(w);
}

static size_t faulty_why(void *backend, const struct tn_xfer_job *job, char *out, size_t bytes)
{
	struct faulty *f = backend;
	struct work *w = job->work;
	size_t n = 0;

	pthread_mutex_lock(&f->lock);
	if (w->bad < job->npieces)
		n = (size_t)snprintf(out, bytes, "a fault on purpose, of backend faulty") + 1;
	else if (w->prepared && f->ops->why)
		n = f->ops->why(f->inner, &w->inner, out, bytes);
	pthread_mutex_unlock(&f->lock);
	return n;
}

static int faulty_section_add(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, void **handle)
{
	struct faulty *f = backend;

	if (!(f->ops->segments & 1u << segment))
		return -ENOTSUP;
	return f->ops->section_add ? tn_xfer_backend_told(f->ops, f->ops->section_add(f->inner, segment, section, handle)) : 0;
}

static void faulty_section_remove(void *backend, void *handle)
{
	struct faulty *f = backend;

	if (f->ops->section_remove)
		f->ops->section_remove(f->inner, handle);
}

static size_t faulty_section_key(void *backend, void *handle, unsigned char out[TN_XFER_SECTION_KEY_MAX])
{
	struct faulty *f = backend;

	return f->ops->section_key ? f->ops->section_key(f->inner, handle, out) : 0;
}

static int faulty_query(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, struct tn_xfer_found *out)
{
	struct faulty *f = backend;

	return f->ops->query ? tn_xfer_backend_told(f->ops, f->ops->query(f->inner, segment, section, out))
			     : tn_fail(-ENOTSUP, "backend %s answers no query", f->ops->name);
}

static size_t faulty_identity(void *backend, unsigned char out[TN_XFER_IDENTITY_MAX])
{
	struct faulty *f = backend;

	return f->ops->identity ? f->ops->identity(f->inner, out) : 0;
}

static uint32_t faulty_process(void *backend, const unsigned char *identity, size_t bytes)
{
	struct faulty *f = backend;

	return f->ops->process ? f->ops->process(f->inner, identity, bytes) : 0;
}

static int faulty_peer_add(void *backend, const unsigned char *identity, size_t bytes, void **peer)
{
	struct faulty *f = backend;

	return f->ops->peer_add ? tn_xfer_backend_told(f->ops, f->ops->peer_add(f->inner, identity, bytes, peer))
				: tn_fail(-ENOTSUP, "backend %s has no peers", f->ops->name);
}

static void faulty_peer_remove(void *backend, void *peer)
{
	struct faulty *f = backend;

	if (f->ops->peer_remove)
		f->ops->peer_remove(f->inner, peer);
}

static int faulty_can(void *backend, enum tn_xfer_op op, enum tn_xfer_segment local, enum tn_xfer_segment remote, bool peer)
{
	struct faulty *f = backend;

	return tn_xfer_backend_told(f->ops, f->ops->can(f->inner, op, local, remote, peer));
}

static void faulty_cost(void *backend, bool peer, struct tn_xfer_cost *out)
{
	struct faulty *f = backend;

	f->ops->cost(f->inner, peer, out);
}

static void faulty_free(struct faulty *f)
{
	if (f->inner || f->ops == &tn_xfer_null_ops)
		f->ops->destroy(f->inner);
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
	tn_put(&tn_alloc_system, f, sizeof(*f));
}

static void faulty_destroy(void *backend)
{
	struct faulty *f = backend;

	pthread_mutex_lock(&f->lock);
	assert(tn_list_empty(&f->held));
	f->stop = true;
	pthread_cond_signal(&f->changed);
	pthread_mutex_unlock(&f->lock);
	pthread_join(f->thread, NULL);
	faulty_free(f);
}

/* rest: gets those of the inner backend. */
static int read_params(struct faulty *f, const struct tn_xfer_param *params, uint32_t n, struct tn_xfer_param *rest, uint32_t *nrest)
{
	int rc = 0;

	f->ops = &tn_xfer_memory_ops;
	f->knob[SEED] = 1;
	*nrest = 0;
	for (uint32_t i = 0; i < n && rc == 0; i++) {
		uint32_t k = 0;

		while (k < KNOBS && strcmp(params[i].key, knobs[k].key))
			k++;
		if (!strcmp(params[i].key, "over"))
			rc = find(params[i].value, &f->ops);
		else if (k < KNOBS)
			rc = tn_xfer_param_number("faulty", &params[i], 0, knobs[k].most, &f->knob[k]);
		else
			rest[(*nrest)++] = params[i];
	}
	return rc;
}

static int faulty_create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	struct faulty *f = tn_get(&tn_alloc_system, sizeof(*f));
	struct tn_xfer_param rest[TN_XFER_PARAMS_MAX];
	uint32_t nrest;
	int rc;

	if (!f)
		return -ENOMEM;
	pthread_mutex_init(&f->lock, NULL);
	tn_cond_init(&f->changed);
	tn_list_init(&f->held);
	rc = read_params(f, params, n, rest, &nrest);
	if (rc == 0)
		rc = tn_xfer_backend_told(f->ops, f->ops->create(rest, nrest, &f->inner));
	tn_rng_seed(&f->rng, f->knob[SEED]);
	if (rc == 0) {
		rc = -tn_thread_start(&f->thread, run, f);
		if (rc)
			tn_fail(rc, "backend faulty: a thread: %s", strerror(-rc));
	}
	if (rc) {
		faulty_free(f);
		return rc;
	}
	*out = f;
	return 0;
}

const struct tn_xfer_backend_ops tn_xfer_faulty_ops = {
	.size = sizeof(struct tn_xfer_backend_ops),
	.abi = TN_XFER_BACKEND_ABI,
	.segments = (1u << TN_XFER_SEGMENTS) - 1,
	.flags = TN_XFER_USES_MAPPED | TN_XFER_WHOLE,
	.name = "faulty",
	.create = faulty_create,
	.destroy = faulty_destroy,
	.section_add = faulty_section_add,
	.section_remove = faulty_section_remove,
	.section_key = faulty_section_key,
	.query = faulty_query,
	.identity = faulty_identity,
	.peer_add = faulty_peer_add,
	.peer_remove = faulty_peer_remove,
	.can = faulty_can,
	.cost = faulty_cost,
	.prepare = faulty_prepare,
	.forget = faulty_forget,
	.post = faulty_post,
	.cancel = faulty_cancel,
	.process = faulty_process,
	.why = faulty_why,
};
