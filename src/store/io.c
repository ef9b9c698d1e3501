/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's own requests: submitted when the engine has a free place for one, finished in tn_store_complete. And the
 * blocking transfers of open and close, which drive the engine themselves.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define POLL_BATCH 64u
#define BULK_DEPTH 32u

/* A good sync of a file that was deleted made nothing durable: it is good only if the file has a name after it. */
static int synced(struct tn_store_req *r)
{
	bool deleted = r->io.status == 0 && r->stat.links == 0; /* not knowing is no reason to fail */

	r->io.op = TN_IO_SYNC; /* what it was asked for */
	r->io.status = deleted ? -ESTALE : 0;
	if (deleted)
		tn_store_file_deleted(r->dev);
	return r->io.status;
}

static void req_done(struct tn_io_req *io)
{
	struct tn_store_req *r = io->owner;
	struct tn_store *s = r->dev->store;
	int status = io->status;

	assert(r->busy && s->inflight > 0);
	r->busy = false;
	s->inflight--;
	if (io->op == TN_IO_SYNC) {
		r->dev->syncing = false;
		tn_store_sync_ended(r->dev, status);
		if (status == 0) {
			tn_store_req_submit(r, TN_IO_STAT, 0, &r->stat, sizeof(r->stat));
			return;
		}
	}
	r->finish(r, io->op == TN_IO_STAT ? synced(r) : status);
}

void tn_store_req_init(struct tn_store_req *r, struct tn_store_device *d,
		       void (*finish)(struct tn_store_req *r, int status))
{
	memset(r, 0, sizeof(*r));
	r->dev = d;
	r->finish = finish;
	tn_list_init(&r->link);
}

void tn_store_req_submit(struct tn_store_req *r, enum tn_io_op op, uint64_t offset, void *buf, uint64_t len)
{
	struct tn_store_device *d = r->dev;
	struct tn_store *s = d->store;

	assert(!r->busy);
	if (op == TN_IO_WRITE) {
		d->meta_bytes_written += len;
		tn_allowance_spend(&s->budget, (int64_t)len); /* counted, never refused */
	}
	r->iov = (struct iovec){buf, len};
	r->io = (struct tn_io_req){.op = (uint8_t)op,
				   .file = d->file,
				   .offset = offset,
				   .length = op == TN_IO_READ || op == TN_IO_WRITE ? (uint32_t)len : 0,
				   .iov_count = op == TN_IO_SYNC ? 0 : 1,
				   .iov = &r->iov,
				   .done = req_done,
				   .owner = r};
	r->busy = true;
	s->inflight++;
	tn_list_push(&s->queued, &r->link);
	tn_store_requeue(s);
}

/*
 * What the sync will cover. Perhaps again, if the engine did not take it. After a failed sync during a group's writes the
 * log is rewound only when these have ended: until then nothing behind the last good sync is there to be covered.
 */
static void sync_begins(struct tn_store_device *d)
{
	d->sync_sent = d->log.doubt ? d->log.synced : d->log.next;
	d->sync_spaces = d->spaces_unsynced;
}

void tn_store_requeue(struct tn_store *s)
{
	struct tn_list *pos, *tmp;

	s->stalled = false;
	tn_list_for_each_safe(pos, tmp, &s->queued) {
		struct tn_store_req *r = tn_container_of(pos, struct tn_store_req, link);
		struct tn_io_req *io = &r->io;

		if (io->op == TN_IO_SYNC && r->dev->syncing)
			continue;
		r->start_ns = tn_now_ns(s->clock);
		if (io->op == TN_IO_SYNC)
			sync_begins(r->dev);
		s->stalled = tn_io_submit(s->io, &io, 1) == 0;
		if (s->stalled)
			return;
		r->dev->syncing |= io->op == TN_IO_SYNC;
		tn_list_del(&r->link);
	}
}

bool tn_store_complete(struct tn_store *s, struct tn_io_req *io)
{
	struct tn_store_req *r = io->owner;

	if (io->done != req_done || r->dev->store != s)
		return false;
	req_done(io);
	tn_store_requeue(s);
	return true;
}

void tn_store_poll(struct tn_store *s, uint64_t timeout_ns)
{
	struct tn_io_req *done[POLL_BATCH];
	unsigned n;

	tn_store_requeue(s);
	n = tn_io_poll(s->io, done, POLL_BATCH, timeout_ns);
	for (unsigned i = 0; i < n; i++)
		if (done[i]->done)
			done[i]->done(done[i]);
	tn_store_requeue(s);
}

/* ---- blocking ------------------------------------------------------------------------------------- */

static void sync_finish(struct tn_store_req *r, int status)
{
}

int tn_store_sync_io(struct tn_store_device *d, enum tn_io_op op, uint64_t offset, void *buf, uint32_t len)
{
	struct tn_store_req *r = &d->sync_req;
	static const char *const name[] = {"read", "write", "sync"};

	tn_store_req_init(r, d, sync_finish);
	tn_store_req_submit(r, op, offset, buf, len);
	while (r->busy)
		tn_store_poll(d->store, 100000000);
	if (r->io.status)
		return tn_fail(r->io.status, "%s: %s of %u bytes at %llu failed (%s)", d->path, name[op], len,
			       (unsigned long long)offset, strerror(-r->io.status));
	return 0;
}

int tn_store_checked(struct tn_store_device *d, int rc)
{
	if (rc == -EPROTONOSUPPORT && d->later.code == 0)
		d->later = *tn_error_last();
	return rc;
}

/* One of the reads of a bulk: a chunk at once, or, after an error, page by page. */
struct bulk {
	struct tn_store_req req;
	uint64_t offset;
	char *buf;
	uint32_t left, step; /* bytes */
};

static void bulk_finish(struct tn_store_req *r, int status)
{
	struct bulk *b = tn_container_of(r, struct bulk, req);
	uint32_t n = r->io.length;

	if (status && n > TN_DISK_PAGE) { /* one unreadable sector spoils a large read */
		b->step = TN_DISK_PAGE;
		return;
	}
	if (status) {
		memset(b->buf, 0xff, n);
		r->dev->read_errors++;
	}
	b->offset += n;
	b->buf += n;
	b->left -= n;
}

void tn_store_strided_read(struct tn_store_device *d, uint64_t offset, uint64_t stride, uint32_t chunk, uint64_t len, void *buf)
{
	struct bulk b[BULK_DEPTH] = {0};
	uint64_t next = 0;
	bool busy;

	for (uint32_t i = 0; i < BULK_DEPTH; i++)
		tn_store_req_init(&b[i].req, d, bulk_finish);
	do {
		busy = false;
		for (uint32_t i = 0; i < BULK_DEPTH; i++) {
			if (!b[i].req.busy && b[i].left == 0 && next < len) {
				b[i].offset = offset + next / chunk * stride;
				b[i].buf = (char *)buf + next;
				b[i].left = b[i].step = len - next < chunk ? (uint32_t)(len - next) : chunk;
				next += b[i].left;
			}
			if (!b[i].req.busy && b[i].left > 0)
				tn_store_req_submit(&b[i].req, TN_IO_READ, b[i].offset, b[i].buf,
						    b[i].left < b[i].step ? b[i].left : b[i].step);
			busy |= b[i].req.busy;
		}
		if (busy)
			tn_store_poll(d->store, 100000000);
	} while (busy);
}

void tn_store_bulk_read(struct tn_store_device *d, uint64_t offset, void *buf, uint64_t len)
{
	tn_store_strided_read(d, offset, TN_STORE_BULK_BYTES, TN_STORE_BULK_BYTES, len, buf);
}

/* The allocator aligns to 64 bytes, direct I/O wants pages: the true address lies just before ours. */
void *tn_store_pages_get(struct tn_store *s, size_t bytes)
{
	void *raw;
	uintptr_t p;

	if (bytes > SIZE_MAX - 2 * TN_DISK_PAGE)
		return NULL;
	raw = tn_get(s->alloc, bytes + 2 * TN_DISK_PAGE);
	if (!raw)
		return NULL;
	p = ((uintptr_t)raw + sizeof(void *) + TN_DISK_PAGE - 1) & ~(uintptr_t)(TN_DISK_PAGE - 1);
	memcpy((void *)(p - sizeof(void *)), &raw, sizeof(raw));
	s->index_bytes += bytes + 2 * TN_DISK_PAGE;
	return (void *)p;
}

void tn_store_pages_put(struct tn_store *s, void *p, size_t bytes)
{
	void *raw;

	if (!p)
		return;
	memcpy(&raw, (char *)p - sizeof(void *), sizeof(raw));
	tn_put(s->alloc, raw, bytes + 2 * TN_DISK_PAGE);
	s->index_bytes -= bytes + 2 * TN_DISK_PAGE;
}
