/* SPDX-License-Identifier: Apache-2.0 */
/* See route.h. */
#include "drives/route.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "base/error.h"
#include "base/futex.h"

struct target {
	struct tn_io *io;
	const char *prefix; /* NULL: files */
	size_t prefix_bytes;
	uint32_t busy; /* requests */
};

struct router {
	struct tn_io io;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	struct target at[TN_ROUTES_MAX + 1]; /* the last one is that of files, if there is one */
	uint32_t n;	 /* namespaces */
	uint32_t first;	 /* that is looked at first: each poll another one */
	bool has_files;
	uint32_t wakes, wakes_seen; /* wakes: any thread */
};

static struct router *of(struct tn_io *io)
{
	return (struct router *)io;
}

static struct target *by_handle(struct router *r, uint32_t file)
{
	if (file >= TN_IO_FILES_MAX && file - TN_IO_FILES_MAX < r->n)
		return &r->at[file - TN_IO_FILES_MAX];
	return &r->at[r->has_files ? r->n : 0]; /* which knows no such file, and says so */
}

static struct target *by_path(struct router *r, const char *path)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (strncmp(path, r->at[i].prefix, r->at[i].prefix_bytes) == 0 && path[r->at[i].prefix_bytes] == '/')
			return &r->at[i];
	return r->has_files ? &r->at[r->n] : NULL;
}

static int no_files(const char *path)
{
	return tn_fail(-ENOENT, "%s: no drive of this engine's", path);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int open_file(struct tn_io *io, const char *path, unsigned flags, uint32_t *file)
{
	struct target *t = by_path(of(io), path);

	return t ? tn_io_open(t->io, path, flags, file) : no_files(path);
}

static int unlink_file(struct tn_io *io, const char *path)
{
	struct target *t = by_path(of(io), path);

	return t ? tn_io_unlink(t->io, path) : no_files(path);
}

static int close_file(struct tn_io *io, uint32_t file)
{
	return tn_io_close(by_handle(of(io), file)->io, file);
}

static int stat_file(struct tn_io *io, uint32_t file, struct tn_io_stat *st)
{
	return tn_io_stat(by_handle(of(io), file)->io, file, st);
}

static int allocate(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length)
{
	return tn_io_allocate(by_handle(of(io), file)->io, file, offset, length);
}

static int lend(struct tn_io *io, uint32_t file, struct tn_io_lent *lent)
{
	return tn_io_lend(by_handle(of(io), file)->io, file, lent);
}

static int adopt(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file)
{
	struct router *r = of(io);

	return r->has_files ? tn_io_adopt(r->at[r->n].io, lent, file) : tn_fail(-ENOTSUP, "drives: no engine of files that could take one over");
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* Neighbours that go to one engine go together: a namespace's doorbell is rung once for them. */
static unsigned submit(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	struct router *r = of(io);
	unsigned taken = 0;

	while (taken < n) {
		struct target *t = by_handle(r, reqs[taken]->file);
		unsigned end = taken + 1, k;

		while (end < n && by_handle(r, reqs[end]->file) == t)
			end++;
		k = tn_io_submit(t->io, reqs + taken, end - taken);
		t->busy += k;
		taken += k;
		if (taken < end)
			break;
	}
	return taken;
}

static int cancel(struct tn_io *io, struct tn_io_req *req)
{
	return tn_io_cancel(by_handle(of(io), req->file)->io, req);
}

static unsigned take(struct target *t, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	unsigned n = tn_io_poll(t->io, done, max, timeout_ns);

	t->busy -= n;
	return n;
}

/* What has ended, without waiting; *spins: a namespace has requests. */
static unsigned take_all(struct router *r, struct tn_io_req **done, unsigned max, bool *spins)
{
	uint32_t all = r->n + r->has_files;
	unsigned n = 0;

	*spins = false;
	for (uint32_t i = 0; i < all && n < max; i++) {
		struct target *t = &r->at[(r->first + i) % all];

		if (t->busy)
			n += take(t, done + n, max - n, 0);
		*spins |= t->busy && t->prefix;
	}
	r->first = (r->first + 1) % all;
	return n;
}

/* True if there was a wake since the last time. */
static bool was_woken(struct router *r)
{
	uint32_t wakes = __atomic_load_n(&r->wakes, __ATOMIC_ACQUIRE);
	bool yes = wakes != r->wakes_seen;

	r->wakes_seen = wakes;
	return yes;
}

static unsigned poll(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	struct router *r = of(io);
	uint64_t now = timeout_ns ? tn_now_ns(r->clock) : 0;
	uint64_t end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;

	for (;;) {
		bool spins;
		unsigned n = take_all(r, done, max, &spins);

		if (n || timeout_ns == 0 || was_woken(r))
			return n;
		now = tn_now_ns(r->clock);
		if (now >= end)
			return 0;
		if (spins)
			sched_yield();
		else if (r->has_files) /* a wake reaches this engine, too */
			return take(&r->at[r->n], done, max, end == UINT64_MAX ? UINT64_MAX : end - now);
		else
			tn_futex_wait(&r->wakes, r->wakes_seen, end);
	}
}

static void wake(struct tn_io *io)
{
	struct router *r = of(io);

	__atomic_fetch_add(&r->wakes, 1, __ATOMIC_RELEASE);
	if (r->has_files)
		tn_io_wake(r->at[r->n].io);
	else
		tn_futex_wake(&r->wakes);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void unmap(struct tn_io *io, void *memory, uint64_t bytes)
{
	struct router *r = of(io);

	for (uint32_t i = 0; i < r->n; i++)
		tn_io_unmap(r->at[i].io, memory, bytes);
}

/* For all of them, or for none: then nobody unmaps it. */
static int map(struct tn_io *io, void *memory, uint64_t bytes)
{
	struct router *r = of(io);
	int rc = 0;
	uint32_t n;

	for (n = 0; n < r->n && !rc; n += !rc)
		rc = tn_io_map(r->at[n].io, memory, bytes);
	while (rc && n-- > 0)
		tn_io_unmap(r->at[n].io, memory, bytes);
	return rc;
}

static void destroy(struct tn_io *io)
{
	struct router *r = of(io);

	for (uint32_t i = 0; i < r->n + r->has_files; i++)
		tn_io_destroy(r->at[i].io);
	tn_put(r->alloc, r, sizeof(*r));
}

static const struct tn_io_ops ops = {
	.size = sizeof(struct tn_io_ops),
	.abi = TN_IO_ABI,
	.name = "drives",
	.open = open_file,
	.close = close_file,
	.stat = stat_file,
	.allocate = allocate,
	.unlink = unlink_file,
	.submit = submit,
	.poll = poll,
	.cancel = cancel,
	.lend = lend,
	.adopt = adopt,
	.map = map,
	.unmap = unmap,
	.wake = wake,
	.destroy = destroy,
};

int tn_route_create(struct tn_io *files, const struct tn_route *routes, uint32_t n, const struct tn_alloc *alloc, const struct tn_clock *clock,
		    struct tn_io **out)
{
	struct router *r;

	if (n == 0 || n > TN_ROUTES_MAX)
		return tn_fail(-EINVAL, "drives: %u namespaces: 1..%u", n, TN_ROUTES_MAX);
	r = tn_get(alloc, sizeof(*r));
	if (!r)
		return tn_fail(-ENOMEM, "drives: no memory");
	r->io.ops = &ops;
	r->alloc = alloc;
	r->clock = clock;
	r->n = n;
	r->has_files = files;
	for (uint32_t i = 0; i < n; i++)
		r->at[i] = (struct target){routes[i].io, routes[i].prefix, strlen(routes[i].prefix), 0};
	r->at[n].io = files;
	*out = &r->io;
	return 0;
}
