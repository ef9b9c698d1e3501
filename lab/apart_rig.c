/* SPDX-License-Identifier: Apache-2.0 */
/* See apart_rig.h. */
#include "lab/apart_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/error.h"

#define IDLE_ROUNDS 100u /* of looking again before a nap */
#define NAP_NS 20000

/* ---- the executor's process --------------------------------------------------------------------------- */

/* An IOCB that was taken: copied once, and the copy checked. */
struct run {
	struct tn_iocb cb;
	uint32_t id, next; /* IOCTX */
	uint32_t failed, failures;
	int status;
};

struct executor {
	struct tn_ring_view v;
	unsigned char *memory;
	uint32_t objects, object_bytes;
	int file;
	struct run run[TN_RING_DEPTH_MAX];
	uint32_t runs;
};

static int moved(ssize_t n, size_t wanted)
{
	return n < 0 ? -errno : (size_t)n < wanted ? -EIO : 0;
}

static int move(struct executor *e, const struct tn_iocb *cb, struct tn_ioctx x, uint64_t *sum)
{
	unsigned char *at = e->memory + (uint64_t)x.entry * e->object_bytes;
	off_t offset = (off_t)(tn_ioctx_page(x.place) * 4096);
	int err = 0;

	if (x.entry >= e->objects || x.length != e->object_bytes || (cb->op == TN_IOCB_COPY && x.place >= e->objects))
		return -EINVAL;
	if (cb->op == TN_IOCB_READ)
		err = moved(pread(e->file, at, x.length, offset), x.length);
	else if (cb->op == TN_IOCB_WRITE)
		err = moved(pwrite(e->file, at, x.length, offset), x.length);
	else if (cb->op == TN_IOCB_COPY)
		memcpy(at, e->memory + x.place * e->object_bytes, x.length);
	*sum = tn_checksum(at, x.length);
	return err;
}

static void end_one(struct executor *e, struct run *r, int status)
{
	tn_ring_store32((uint32_t *)&tn_ring_statuses_of(&e->v, r->id)[r->next], (uint32_t)status);
	if (status && r->failures++ == 0) {
		r->failed = r->next;
		r->status = status;
	}
	tn_ring_store32(&tn_ring_result_of(&e->v, r->id)->ended, ++r->next);
}

/* Moves one object of a run, or ends the run; whether there was anything to do. */
static bool go_on(struct executor *e, struct run *r)
{
	struct tn_iocb_result *res = tn_ring_result_of(&e->v, r->id);
	struct tn_ioctx x;

	if (r->next == r->cb.count) {
		res->status = r->status;
		res->failed = r->failures ? r->failed : TN_RING_NO_INDEX;
		res->failures = r->failures;
		tn_ring_finish(&e->v, r->id);
		*r = e->run[--e->runs];
		return true;
	}
	if (tn_ring_load32(&tn_ring_iocb_of(&e->v, r->id)->cancel)) {
		end_one(e, r, -ECANCELED);
		return true;
	}
	if (!tn_ring_may_start(&e->v, r->cb.after_event, r->cb.after_value))
		return false;
	x = tn_ring_ioctx_of(&e->v, r->id)[r->next];
	end_one(e, r, move(e, &r->cb, x, &tn_ring_sums_of(&e->v, r->id)[r->next]));
	return true;
}

static bool take(struct executor *e)
{
	struct run *r = &e->run[e->runs];
	uint32_t id;

	if (e->runs == e->v.depth || !tn_ring_take(&e->v, &id))
		return false;
	*r = (struct run){.cb = *tn_ring_iocb_of(&e->v, id), .id = id};
	if (r->cb.count > e->v.ioctxs)
		r->cb.count = e->v.ioctxs;
	if (r->cb.after_event >= e->v.events)
		r->cb.after_event = TN_RING_NO_EVENT;
	tn_ring_begin(&e->v, id, r->cb.count, r->cb.sequence);
	e->runs++;
	return true;
}

__attribute__((noreturn)) static void serve(struct executor *e)
{
	uint32_t idle = 0;

	for (;;) {
		bool any = take(e);

		for (uint32_t i = 0; i < e->runs; i++) /* a step of each, so that a kill meets many in the middle */
			any |= go_on(e, &e->run[i]);
		idle = any ? 0 : idle + 1;
		if (idle > IDLE_ROUNDS)
			nanosleep(&(struct timespec){0, NAP_NS}, NULL);
	}
}

/* The region with the host's part read-only. */
static void *map_region(const struct tn_apart *a)
{
	uint64_t at = ((const struct tn_ring_shared *)a->region)->executor_at;
	char *region = mmap(NULL, a->region_bytes, PROT_READ, MAP_SHARED, a->region_fd, 0);

	if (region == MAP_FAILED ||
	    mmap(region + at, a->region_bytes - at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->region_fd, (off_t)at) == MAP_FAILED)
		return NULL;
	return region;
}

__attribute__((noreturn)) static void executor_main(const struct tn_apart *a, bool scribble)
{
	static struct executor e;
	void *region = map_region(a);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int s = 1; s < SIGRTMIN; s++) /* a fault must kill us, whatever the host does about its own */
		signal(s, SIG_DFL);
	e.memory = mmap(NULL, a->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->memory_fd, 0);
	e.objects = a->o.objects;
	e.object_bytes = a->o.object_bytes;
	e.file = open(a->o.path, O_RDWR | O_CLOEXEC);
	if (!region || e.memory == MAP_FAILED || e.file < 0 || tn_ring_memory_view(region, a->region_bytes, &e.v))
		_exit(1);
	/* What the host had mapped is not ours. */
	munmap(a->region, a->region_bytes);
	munmap(a->memory, a->memory_bytes);
	if (scribble)
		tn_ring_store32(&e.v.iocbs[0].cancel, 1);
	serve(&e);
}

/* ---- the host's process --------------------------------------------------------------------------------- */

static void *share(uint64_t bytes, int *fd)
{
	void *at;

	*fd = memfd_create("tenuto-apart", MFD_CLOEXEC);
	if (*fd < 0 || ftruncate(*fd, (off_t)bytes))
		return NULL;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	return at == MAP_FAILED ? NULL : at;
}

int tn_apart_open(struct tn_apart *a, const struct tn_apart_opts *opts)
{
	struct tn_ring_opts ro = {.memory = opts->ring, .lists = 1};
	int err;

	*a = (struct tn_apart){.o = *opts, .region_bytes = tn_ring_memory_bytes(&opts->ring), .region_fd = -1, .memory_fd = -1,
			       .memory_bytes = (uint64_t)opts->objects * opts->object_bytes};
	a->region = share(a->region_bytes, &a->region_fd);
	a->memory = share(a->memory_bytes, &a->memory_fd);
	ro.at = a->region;
	err = a->region && a->memory ? tn_ring_create(&ro, opts->alloc, &a->ring)
				     : tn_fail(-errno, "no shared memory of %llu bytes", (unsigned long long)a->memory_bytes);
	if (err)
		tn_apart_close(a);
	return err;
}

void tn_apart_close(struct tn_apart *a)
{
	tn_apart_stop(a);
	tn_ring_destroy(a->ring);
	if (a->region)
		munmap(a->region, a->region_bytes);
	if (a->memory)
		munmap(a->memory, a->memory_bytes);
	if (a->region_fd >= 0)
		close(a->region_fd);
	if (a->memory_fd >= 0)
		close(a->memory_fd);
}

int tn_apart_start(struct tn_apart *a, bool scribble)
{
	a->pid = fork();
	if (a->pid < 0) {
		a->pid = 0;
		return tn_fail(-errno, "cannot start an executor's process: %s", strerror(errno));
	}
	if (a->pid == 0)
		executor_main(a, scribble);
	return 0;
}

int tn_apart_stop(struct tn_apart *a)
{
	int status = 0;

	if (a->pid == 0)
		return 0;
	kill(a->pid, SIGKILL);
	while (waitpid(a->pid, &status, 0) < 0 && errno == EINTR)
		;
	a->pid = 0;
	return status;
}
