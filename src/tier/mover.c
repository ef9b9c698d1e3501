/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/mover.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/list.h"
#include "sched/share.h"

#define BOUNCES 32u
#define BOUNCE_CLASSES 4u

/* One I/O of a move. */
struct piece {
	struct tn_io_req req;
	struct tn_move *move;
	struct piece *next;
	struct iovec *iov; /* TN_OBJECT_IOVS_MAX entries */
};

/* Requests that wait for the engine; as many as can exist. */
struct queue {
	struct tn_io_req **req;
	uint32_t head, count;
};

struct bounces {
	unsigned char *memory;
	size_t bytes_each;
	uint32_t free[BOUNCES], nfree;
};

struct tn_mover {
	struct tn_mover_opts o;
	uint32_t nmoves, npieces, nqueue;
	struct tn_move *moves, *free_moves;
	struct piece *pieces, *free_pieces;
	struct iovec *iovs;
	struct tn_move *starved_first, *starved_last; /* without a piece or a bounce buffer yet, or behind those */
	struct queue reads, writes;
	struct bounces bounces[BOUNCE_CLASSES];
	uint32_t nbounces;
	uint32_t busy_moves, inflight, free_count;
	struct tn_share share; /* of the moves, by enum tn_move_user */
	uint64_t bytes_written;
};

static void push_starved(struct tn_mover *m, struct tn_move *mv)
{
	mv->next = NULL;
	if (m->starved_last)
		m->starved_last->next = mv;
	else
		m->starved_first = mv;
	m->starved_last = mv;
}

static size_t iovs_each(void)
{
	return TN_OBJECT_IOVS_MAX;
}

int tn_mover_create(const struct tn_mover_opts *opts, struct tn_mover **out)
{
	struct tn_mover *m = tn_get(opts->alloc, sizeof(*m));
	size_t lists;

	if (!m)
		return tn_fail(-ENOMEM, "mover: no memory");
	m->o = *opts;
	m->npieces = opts->io_depth;
	m->nmoves = 2 * opts->io_depth;
	m->nqueue = m->npieces + 64;
	lists = m->npieces + 2 * (size_t)m->nmoves;
	m->moves = tn_get(opts->alloc, tn_array_bytes(m->nmoves, sizeof(*m->moves)));
	m->pieces = tn_get(opts->alloc, tn_array_bytes(m->npieces, sizeof(*m->pieces)));
	m->iovs = tn_get(opts->alloc, tn_array_bytes(lists, iovs_each() * sizeof(struct iovec)));
	/* 512 KiB each, of which a list of a few pages uses some hundred bytes. */
	tn_sparse(opts->alloc, m->iovs, tn_array_bytes(lists, iovs_each() * sizeof(struct iovec)));
	m->reads.req = tn_get(opts->alloc, tn_array_bytes(m->nqueue, sizeof(void *)));
	m->writes.req = tn_get(opts->alloc, tn_array_bytes(m->nqueue, sizeof(void *)));
	if (!m->moves || !m->pieces || !m->iovs || !m->reads.req || !m->writes.req) {
		tn_mover_destroy(m);
		return tn_fail(-ENOMEM, "mover: no memory for %u transfers; lower io_depth", m->nmoves);
	}
	for (uint32_t i = 0; i < m->npieces; i++) {
		m->pieces[i].iov = m->iovs + i * iovs_each();
		m->pieces[i].next = m->free_pieces;
		m->free_pieces = &m->pieces[i];
	}
	for (uint32_t i = 0; i < m->nmoves; i++) {
		m->moves[i].mover = m;
		m->moves[i].scratch = m->iovs + (m->npieces + 2 * (size_t)i) * iovs_each();
		m->moves[i].scratch_to = m->moves[i].scratch + iovs_each();
		m->moves[i].next = m->free_moves;
		m->free_moves = &m->moves[i];
	}
	m->free_count = m->nmoves;
	tn_share_init(&m->share, m->nmoves);
	*out = m;
	return 0;
}

void tn_mover_destroy(struct tn_mover *m)
{
	const struct tn_alloc *a;

	if (!m)
		return;
	assert(m->busy_moves == 0);
	a = m->o.alloc;
	for (uint32_t i = 0; i < m->nbounces; i++)
		tn_put(a, m->bounces[i].memory, m->bounces[i].bytes_each * BOUNCES);
	tn_put(a, m->writes.req, tn_array_bytes(m->nqueue, sizeof(void *)));
	tn_put(a, m->reads.req, tn_array_bytes(m->nqueue, sizeof(void *)));
	tn_put(a, m->iovs, tn_array_bytes(m->npieces + 2 * (size_t)m->nmoves, iovs_each() * sizeof(struct iovec)));
	tn_put(a, m->pieces, tn_array_bytes(m->npieces, sizeof(*m->pieces)));
	tn_put(a, m->moves, tn_array_bytes(m->nmoves, sizeof(*m->moves)));
	tn_put(a, m, sizeof(*m));
}

int tn_mover_shape(struct tn_mover *m, const struct tn_shape *shape)
{
	size_t bytes = (size_t)shape->chunk_objects * shape->padded_bytes;
	struct bounces *b;

	for (uint32_t i = 0; i < m->nbounces; i++)
		if (m->bounces[i].bytes_each >= bytes)
			return 0;
	if (m->nbounces == BOUNCE_CLASSES)
		return tn_fail(-ENOMEM, "no bounce buffers left for chunks of %zu bytes; open the largest geometry first",
			       bytes);
	b = &m->bounces[m->nbounces];
	bytes = (bytes + 4095) / 4096 * 4096;
	if (bytes < TN_IO_BYTES) /* writes of several chunks; large enough to get page-aligned memory */
		bytes = TN_IO_BYTES;
	b->memory = tn_get(m->o.alloc, tn_array_bytes(bytes, BOUNCES));
	if (!b->memory)
		return tn_fail(-ENOMEM, "no memory for %u bounce buffers of %zu bytes", BOUNCES, bytes);
	b->bytes_each = bytes;
	for (b->nfree = 0; b->nfree < BOUNCES; b->nfree++)
		b->free[b->nfree] = b->nfree;
	m->nbounces++;
	return 0;
}

void tn_mover_turn(struct tn_mover *m)
{
	tn_share_turn(&m->share);
}

bool tn_mover_again(const struct tn_mover *m)
{
	return tn_share_again(&m->share);
}

bool tn_mover_may(struct tn_mover *m, enum tn_move_user user, uint32_t keep)
{
	return tn_share_may(&m->share, user, m->free_count, keep);
}

struct tn_move *tn_mover_get(struct tn_mover *m, enum tn_move_user user)
{
	struct tn_move *mv = m->free_moves;
	struct iovec *scratch, *scratch_to;

	if (!mv)
		return NULL;
	m->free_moves = mv->next;
	m->busy_moves++;
	m->free_count--;
	scratch = mv->scratch;
	scratch_to = mv->scratch_to;
	*mv = (struct tn_move){.mover = m, .user = user, .scratch = scratch, .scratch_to = scratch_to};
	tn_share_took(&m->share, user);
	return mv;
}

uint32_t tn_mover_free(const struct tn_mover *m)
{
	return m->free_count;
}

bool tn_mover_idle(const struct tn_mover *m)
{
	return m->busy_moves == 0 && m->inflight == 0 && m->reads.count == 0 && m->writes.count == 0;
}

uint64_t tn_mover_bytes(const struct tn_mover *m)
{
	return m->bytes_written;
}

static void finish(struct tn_move *mv)
{
	struct tn_mover *m = mv->mover;

	if (mv->bounce) {
		struct bounces *b = &m->bounces[mv->bounce_class];

		b->free[b->nfree++] = (uint32_t)((size_t)(mv->bounce - b->memory) / b->bytes_each);
		mv->bounce = NULL;
	}
	mv->done(mv);
	mv->next = m->free_moves;
	m->free_moves = mv;
	m->free_count++;
	tn_share_gave(&m->share, mv->user);
	m->busy_moves--;
}

/* ---- workers' part ---------------------------------------------------------------------------- */

static void run_check(struct tn_job *job)
{
	struct tn_move *mv = tn_container_of(job, struct tn_move, job);

	for (uint32_t i = 0; i < mv->count && mv->verify && mv->status == 0; i++) {
		uint32_t n = tn_span_object(&mv->mem, mv->shape, mv->first + i, mv->scratch);

		if (tn_checksum_iov(mv->scratch, n, 0, mv->shape->object_bytes) != mv->checks[i])
			mv->status = -EBADMSG;
	}
	if (mv->status == 0 && mv->extra)
		mv->extra(mv);
}

/* Its pieces lie in scratch_to: the owner may be at work with scratch, issuing the same move's I/O. */
static void run_write(struct tn_job *job)
{
	struct tn_move *mv = tn_container_of(job, struct tn_move, job);
	uint32_t bytes = mv->shape->object_bytes, padded = mv->shape->padded_bytes;

	for (uint32_t i = 0; i < mv->count; i++) {
		uint32_t n = tn_span_object(&mv->mem, mv->shape, mv->first + i, mv->scratch_to);

		if (mv->bounce) {
			struct iovec to = {mv->bounce + (size_t)i * padded, padded};

			tn_iov_copy(&to, mv->scratch_to, bytes);
			memset(mv->bounce + (size_t)i * padded + bytes, 0, padded - bytes);
			mv->scratch_to[0] = to;
			n = 1;
		}
		if (mv->checks)
			mv->checks[i] = tn_checksum_iov(mv->scratch_to, n, 0, bytes);
	}
}

static void run_copy(struct tn_job *job)
{
	struct tn_move *mv = tn_container_of(job, struct tn_move, job);
	uint32_t bytes = mv->shape->object_bytes;

	for (uint32_t i = 0; i < mv->count; i++) {
		uint32_t n;

		n = tn_span_object(&mv->mem, mv->shape, mv->first + i, mv->scratch);
		if (mv->to.page_count) {
			tn_span_store(&mv->to, mv->shape, mv->first + i, mv->scratch[0].iov_base, mv->scratch_to);
			continue;
		}
		tn_span_object(&mv->to, mv->shape, mv->first + i, mv->scratch_to);
		tn_iov_copy(mv->scratch_to, mv->scratch, bytes);
		if (mv->checks)
			mv->checks[i] = tn_checksum_iov(mv->scratch, n, 0, bytes);
	}
	if (mv->extra)
		mv->extra(mv);
}

static void job_finishes(struct tn_job *job)
{
	finish(tn_container_of(job, struct tn_move, job));
}

/* ---- pieces: the I/Os of a move ------------------------------------------------------------------ */

static bool span_is_direct(struct tn_mover *m, const struct tn_move *mv)
{
	uint32_t align, n;

	if (!mv->mem.layout)
		return true;
	align = tn_store_align(m->o.store, mv->place.device);
	if (mv->shape->padded_bytes != mv->shape->object_bytes)
		return false;
	for (uint32_t i = 0; i < mv->count; i++) {
		n = tn_span_object(&mv->mem, mv->shape, mv->first + i, mv->scratch);
		for (uint32_t j = 0; j < n; j++)
			if (((uintptr_t)mv->scratch[j].iov_base | mv->scratch[j].iov_len) & (align - 1))
				return false;
	}
	return true;
}

static bool take_bounce(struct tn_mover *m, struct tn_move *mv)
{
	size_t bytes = (size_t)mv->count * mv->shape->padded_bytes;

	for (uint32_t i = 0; i < m->nbounces; i++) {
		struct bounces *b = &m->bounces[i];

		if (b->bytes_each >= bytes && b->nfree > 0) {
			mv->bounce = b->memory + b->bytes_each * b->free[--b->nfree];
			mv->bounce_class = i;
			return true;
		}
	}
	return false;
}

/* The memory of bytes [from, from + len) of the move, as stored on disk. */
static uint32_t piece_iov(const struct tn_move *mv, uint64_t from, uint32_t len, struct iovec *iov)
{
	uint32_t padded = mv->shape->padded_bytes, n = 0;

	if (mv->bounce) {
		iov[0] = (struct iovec){mv->bounce + from, len};
		return 1;
	}
	if (!mv->mem.layout) {
		iov[0] = (struct iovec){mv->mem.flat + (size_t)mv->first * padded + from, len};
		return 1;
	}
	for (uint32_t i = (uint32_t)(from / padded); len > 0; i++) {
		uint32_t k = tn_span_object(&mv->mem, mv->shape, mv->first + i, mv->scratch);

		n += tn_iov_cut(iov + n, mv->scratch, k, from % padded, &len);
		from += padded - from % padded;
	}
	return n;
}

static void piece_done(struct tn_io_req *req);

/* Queues as many pieces as there are free; the rest follows as pieces come back. */
static void issue_pieces(struct tn_mover *m, struct tn_move *mv)
{
	while (mv->next_byte < mv->total_bytes && mv->status == 0) {
		struct piece *p = m->free_pieces;
		uint64_t len = mv->total_bytes - mv->next_byte;

		if (!p) {
			if (mv->ios == 0)
				push_starved(m, mv);
			return;
		}
		if (len > TN_IO_BYTES)
			len = TN_IO_BYTES;
		m->free_pieces = p->next;
		p->move = mv;
		p->req = (struct tn_io_req){
			.op = TN_IO_WRITE,
			.buffer = TN_IO_NO_BUFFER,
			.file = mv->place.file,
			.offset = mv->place.data_offset + (uint64_t)mv->first * mv->shape->padded_bytes + mv->next_byte,
			.length = (uint32_t)len,
			.iov_count = piece_iov(mv, mv->next_byte, (uint32_t)len, p->iov),
			.iov = p->iov,
			.done = piece_done,
			.owner = p,
		};
		mv->next_byte += len;
		mv->ios++;
		tn_mover_submit(m, &p->req);
	}
}

static void all_pieces_done(struct tn_move *mv)
{
	if (!mv->summing) /* else the job's end is the move's */
		finish(mv);
}

static void piece_done(struct tn_io_req *req)
{
	struct piece *p = req->owner;
	struct tn_move *mv = p->move;
	struct tn_mover *m = mv->mover;

	tn_mover_returned(m);
	if (m->o.store)
		tn_store_observe(m->o.store, mv->place.device, (enum tn_io_op)req->op, req->length,
				 tn_now_ns(m->o.clock) - req->issue_ns, req->status);
	if (req->status && mv->status == 0)
		mv->status = req->status;
	if (req->status == 0)
		m->bytes_written += req->length;
	p->next = m->free_pieces;
	m->free_pieces = p;
	mv->ios--;
	if (mv->next_byte < mv->total_bytes && mv->status == 0)
		issue_pieces(m, mv);
	else if (mv->ios == 0)
		all_pieces_done(mv);
}

/* A write's checksums are known; its I/O went on meanwhile. */
static void job_beside_io(struct tn_job *job)
{
	struct tn_move *mv = tn_container_of(job, struct tn_move, job);

	mv->summing = false;
	if (mv->ios == 0 && (mv->next_byte == mv->total_bytes || mv->status))
		finish(mv);
}

/* A write's checksums are known and its bounce buffer is filled: now it can go. */
static void job_precedes_io(struct tn_job *job)
{
	struct tn_move *mv = tn_container_of(job, struct tn_move, job);

	if (mv->mover->starved_first)
		push_starved(mv->mover, mv);
	else
		issue_pieces(mv->mover, mv);
}

static void start_io(struct tn_mover *m, struct tn_move *mv)
{
	mv->started = true;
	if (!mv->checks && !mv->bounce) {
		issue_pieces(m, mv);
		return;
	}
	mv->summing = !mv->bounce;
	mv->job.run = run_write;
	mv->job.done = mv->bounce ? job_precedes_io : job_beside_io;
	m->o.exec->post(m->o.exec, &mv->job);
	if (mv->summing)
		issue_pieces(m, mv);
}

void tn_mover_start(struct tn_move *mv)
{
	struct tn_mover *m = mv->mover;

	if (mv->kind != TN_MOVE_WRITE) {
		mv->job.run = mv->kind == TN_MOVE_CHECK ? run_check : run_copy;
		mv->job.done = job_finishes;
		m->o.exec->post(m->o.exec, &mv->job);
		return;
	}
	mv->total_bytes = (uint64_t)mv->count * mv->shape->padded_bytes;
	mv->next_byte = 0;
	mv->bounced = !span_is_direct(m, mv);
	if (m->starved_first || (mv->bounced && !take_bounce(m, mv)))
		push_starved(m, mv);
	else
		start_io(m, mv);
}

/* ---- the queue before the engine ------------------------------------------------------------------ */

void tn_mover_submit(struct tn_mover *m, struct tn_io_req *req)
{
	struct queue *q = req->op == TN_IO_READ ? &m->reads : &m->writes;

	assert(q->count < m->nqueue);
	q->req[(q->head + q->count++) % m->nqueue] = req;
	m->inflight++;
}

void tn_mover_returned(struct tn_mover *m)
{
	m->inflight--;
}

static void flush_queue(struct tn_mover *m, struct queue *q)
{
	while (q->count > 0) {
		uint32_t run = m->nqueue - q->head; /* up to the wrap */
		unsigned n;

		if (run > q->count)
			run = q->count;
		n = tn_io_submit(m->o.io, q->req + q->head, run);
		q->head = (q->head + n) % m->nqueue;
		q->count -= n;
		if (n < run)
			return;
	}
}

void tn_mover_flush(struct tn_mover *m)
{
	struct tn_move *mv = m->starved_first;

	/*
	 * Moves that could not get a piece or a bounce buffer, and all that came while some of them waited; each may starve
	 * again and then keeps its turn.
	 */
	m->starved_first = m->starved_last = NULL;
	while (mv) {
		struct tn_move *next = mv->next;

		if (mv->started)
			issue_pieces(m, mv);
		else if (!mv->bounced || mv->bounce || take_bounce(m, mv))
			start_io(m, mv);
		else
			push_starved(m, mv);
		mv = next;
	}
	flush_queue(m, &m->reads);
	if (m->reads.count == 0)
		flush_queue(m, &m->writes);
}
