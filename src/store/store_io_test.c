/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store on real files through the real engines, and how long recovery takes: from the log, from a
 * checkpoint, from headers alone. TN_STORE_BLOCKS sets the number of blocks of the latter (default 20,000; it
 * needs 8 KiB each), TN_TEST_DIR the directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <tenuto/admin.h>
#include <unistd.h>

#include "base/error.h"
#include "ioengine/ioengine.h"
#include "lab/scratch.h"
#include "store/store_rig.h"

static char dir[256];

static int make_dir(void **state)
{
	const char *base = getenv("TN_TEST_DIR");

	snprintf(dir, sizeof(dir), "%s/tenuto-store-XXXXXX", base ? base : "/tmp");
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	char path[300];

	snprintf(path, sizeof(path), "%s/tenuto.store", dir);
	unlink(path);
	return rmdir(dir);
}

static struct tn_io *engine(enum tn_ioengine_kind kind)
{
	struct tn_ioengine_opts o = {
		.kind = kind, .depth = 64, .alloc = &tn_alloc_system, .clock = &tn_clock_system, .log = NULL};
	struct tn_io *io = NULL;

	return tn_ioengine_create(&o, &io) ? NULL : io;
}

/* The store of the tests as `tenuto store` names it. */
static void from_outside(struct tn_admin_store *a)
{
	static char parent[256];
	static const char *dirs[1] = {parent};
	char *name;

	tn_admin_store_init(a);
	snprintf(parent, sizeof(parent), "%s", dir);
	name = strrchr(parent, '/');
	*name++ = 0;
	a->dirs = dirs;
	a->ndirs = 1;
	a->instance = name;
}

/* What `tenuto store` sees. */
static void look_from_outside(bool open)
{
	struct tn_admin_store a;
	struct tn_admin_device d;
	struct tn_admin_verify v;
	struct tn_admin_check c;

	from_outside(&a);
	assert_int_equal(tn_admin_store_info(&a, &d), 0);
	assert_int_equal(d.blocks, 60);
	assert_int_equal(d.in_use, open);
	assert_int_equal(tn_admin_store_verify(&a, &v), open ? -EBUSY : 0);
	assert_int_equal(tn_admin_store_check(&a, 0, &c), open ? -EBUSY : 0);
	if (open)
		return;
	assert_int_equal(v.objects, 60 * RIG_OBJECTS);
	assert_int_equal(v.corrupt_objects + v.corrupt_blocks + v.io_errors, 0);
	assert_int_equal(c.problems + c.stale, 0);
	assert_int_equal(tn_admin_store_check(&a, TN_ADMIN_REBUILD, &c), 0);
	assert_int_equal(c.blocks, 60);
}

/* The death of the owner: the kernel ends what was in flight, of which nobody hears, and the file description goes with the engine. */
static void die(struct rig *r, struct tn_io *io)
{
	uint32_t left = r->store->inflight;
	struct tn_io_req *done[16];

	while (left > 0)
		left -= tn_io_poll(io, done, 16, 1000000000);
	rig_abandon(r);
	tn_io_destroy(io);
}

static void the_store_lives_on_every_engine(void **state)
{
	for (int kind = TN_IOENGINE_URING; kind <= TN_IOENGINE_POSIX; kind++) {
		struct tn_io *io = engine((enum tn_ioengine_kind)kind), *again = engine((enum tn_ioengine_kind)kind);
		struct rig *r, *second;
		struct stat st;
		char path[300];

		if (!io || !again) {
			printf("# engine %d: not on this kernel\n", kind);
			continue;
		}
		r = rig_new_on(io, &tn_clock_system, dir);
		r->opts.prepare = true;
		assert_int_equal(rig_open(r), 0);
		snprintf(path, sizeof(path), "%s/tenuto.store", dir);
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_mode & 0777, 0600);
		second = rig_new_on(again, &tn_clock_system, dir);
		assert_int_equal(rig_open(second), -EBUSY);
		for (uint64_t n = 0; n < 60; n++) {
			assert_true(rig_save(r, n) >= 0);
			tn_store_step(r->store, tn_now_ns(r->clock));
		}
		assert_int_equal(rig_flush(r), 0);
		look_from_outside(true);
		die(r, io);
		second->opts.lock_timeout_ns = 5000000000ull;
		assert_int_equal(rig_open(second), 0);
		assert_int_equal(rig_live(second), 60);
		for (uint64_t n = 0; n < 60; n++)
			assert_int_equal(rig_read(second, n), 0);
		rig_free(second);
		look_from_outside(false);
		tn_io_destroy(again);
		rig_free(r);
		assert_int_equal(unlink(path), 0);
	}
}

/* For what the kernel does with an owner that was killed: a process that holds the lock for so long. */
static pid_t hold_lock(const char *path, unsigned usec)
{
	int fds[2], fd;
	char ready = 0;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		fd = open(path, O_RDONLY);
		if (fd < 0 || flock(fd, LOCK_EX) || write(fds[1], "r", 1) != 1)
			_exit(1);
		usleep(usec);
		_exit(0);
	}
	close(fds[1]);
	assert_int_equal(read(fds[0], &ready, 1), 1);
	close(fds[0]);
	return pid;
}

static void the_tools_wait_for_the_locks_of_an_owner_that_was_just_killed(void **state)
{
	struct tn_io *io = engine(TN_IOENGINE_AUTO);
	struct rig *r = rig_new_on(io, &tn_clock_system, dir);
	struct tn_admin_store a;
	struct tn_admin_device d;
	struct tn_admin_verify v;
	struct tn_admin_check c;
	char path[300];
	int status;

	from_outside(&a);
	snprintf(path, sizeof(path), "%s/tenuto.store", dir);
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(rig_close(r), 0);
	for (int tool = 0; tool < 3; tool++) {
		pid_t pid = hold_lock(path, 200000);

		if (tool == 0) {
			assert_int_equal(tn_admin_store_info(&a, &d), 0);
			assert_false(d.in_use);
		} else {
			assert_int_equal(tool == 1 ? tn_admin_store_verify(&a, &v) : tn_admin_store_check(&a, 0, &c), 0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	rig_free(r);
	tn_io_destroy(io);
	assert_int_equal(unlink(path), 0);
}

/* ---- recovery time ------------------------------------------------------------------------------------------------ */

struct owner {
	struct tn_index_entry *entry;
	uint32_t n, max;
};

static uint32_t remember(void *arg, tn_slot slot, const struct tn_index_entry *e)
{
	struct owner *o = arg;

	if (o->n == o->max)
		return UINT32_MAX;
	o->entry[o->n] = *e;
	return o->n++;
}

static void describe(void *arg, tn_slot slot, uint32_t cookie, struct tn_index_entry *e)
{
	*e = ((struct owner *)arg)->entry[cookie];
}

static void transfer(struct tn_io *io, struct tn_store *s, uint32_t file, uint64_t offset, void *buf, uint32_t len)
{
	struct iovec iov = {buf, len};
	struct tn_io_req req = {.op = TN_IO_WRITE,
				.file = file,
				.offset = offset,
				.length = len,
				.iov = &iov,
				.iov_count = 1};
	struct tn_io_req *p = &req, *done[8];
	bool ended = false;

	assert_int_equal(tn_io_submit(io, &p, 1), 1);
	while (!ended) {
		unsigned n = tn_io_poll(io, done, 8, UINT64_MAX);

		for (unsigned i = 0; i < n; i++)
			if (done[i] == &req)
				ended = true;
			else
				assert_true(tn_store_complete(s, done[i]));
	}
	assert_int_equal(req.status, 0);
}

/* Headers only, a run of neighbours a write. */
static void fill(struct tn_io *io, struct tn_store *s, struct owner *o)
{
	static tn_slot slot[512];
	static uint64_t sum;
	static uint32_t bytes = 4096;
	unsigned char *pages = aligned_alloc(4096, sizeof(slot) / sizeof(*slot) * 4096);
	struct tn_key id = rig_key(1);
	struct tn_store_header h = {.space_id = id, .space_epoch = 1, .nobjects = 1, .object_bytes = &bytes};
	uint16_t space;
	uint32_t cls;

	h.object_checksum = &sum;
	assert_int_equal(tn_store_space(s, &id, &space), 0);
	assert_int_equal(tn_store_class(s, 1, &bytes, &cls), 0);
	while (o->n < o->max) {
		uint32_t n = tn_store_reserve(s, cls, o->max - o->n < 512 ? o->max - o->n : 512, slot), begin = 0;
		struct tn_store_place first, place;
		uint64_t uuid[2];

		if (n == 0) { /* the file is being made longer */
			assert_true(tn_store_moving(s, cls) > 0);
			tn_store_poll(s, 1000000000);
			continue;
		}
		for (uint32_t i = 0; i < n; i++) {
			h.entry = (struct tn_index_entry){.key = rig_key(o->n + i), .space = space};
			h.entry.sequence = tn_store_next_sequence(s);
			tn_store_uuid(s, slot[i], uuid);
			tn_store_header_encode(&h, uuid, slot[i], pages + i * 4096);
			o->entry[o->n + i] = h.entry;
		}
		for (uint32_t i = 1; i <= n; i++) {
			tn_store_locate(s, slot[begin], &first);
			if (i < n)
				tn_store_locate(s, slot[i], &place);
			if (i < n && place.header_offset == first.header_offset + (i - begin) * 4096)
				continue;
			transfer(io, s, first.file, first.header_offset, pages + begin * 4096, (i - begin) * 4096);
			begin = i;
		}
		for (uint32_t i = 0; i < n; i++)
			tn_store_publish(s, slot[i], o->n + i, &o->entry[o->n + i]);
		o->n += n;
		tn_store_step(s, tn_now_ns(&tn_clock_system));
	}
	assert_int_equal(tn_store_flush_wait(s), 0);
	free(pages);
}

static double reopen(struct tn_store_opts *o, struct owner *owner, struct tn_store **s)
{
	owner->n = 0;
	if (tn_store_open(o, s))
		fail_msg("%s", tn_error_last()->text);
	assert_int_equal(owner->n, owner->max);
	return (double)tn_store_recovery_ns(*s) / 1e9;
}

static void recovery_is_quick_from_log_checkpoint_and_headers(void **state)
{
	const char *env = getenv("TN_STORE_BLOCKS");
	uint32_t blocks = env ? (uint32_t)strtoul(env, NULL, 0) : 20000, bytes = 4096;
	struct owner owner = {.max = blocks, .entry = calloc(blocks, sizeof(*owner.entry))};
	const char *dirs[1] = {dir};
	struct tn_store_opts o = {.alloc = &tn_alloc_system,
				  .clock = &tn_clock_system,
				  .dirs = dirs,
				  .ndirs = 1,
				  .log_bytes = 64 * (uint64_t)blocks * 3,
				  .max_slots = blocks + blocks / 4 + 1024,
				  .lock_timeout_ns = 10000000000ull,
				  .cb = {.recovered = remember, .describe = describe, .arg = &owner}};
	static struct tn_store *killed;
	double log, checkpoint, headers;
	struct tn_store *s;

	o.io = engine(TN_IOENGINE_AUTO);
	assert_non_null(o.io);
	o.capacity_bytes = tn_store_bytes_for(blocks, 1, 1, &bytes, &o.segment_bytes);
	assert_int_equal(tn_store_open(&o, &s), 0);
	fill(o.io, s, &owner);
	/* Killed: its memory stays. */
	killed = s;
	tn_io_destroy(o.io);
	o.io = engine(TN_IOENGINE_AUTO);
	log = reopen(&o, &owner, &s);
	assert_int_equal(tn_store_close(s), 0);
	checkpoint = reopen(&o, &owner, &s);
	assert_int_equal(tn_store_close(s), 0);
	o.rebuild = true;
	headers = reopen(&o, &owner, &s);
	assert_ptr_not_equal(killed, s);
	printf("# recovery of %u blocks: %.3f s from the log, %.3f s from a checkpoint, %.3f s from headers\n", blocks, log,
	       checkpoint, headers);
	assert_int_equal(tn_store_close(s), 0);
	tn_io_destroy(o.io);
	free(owner.entry);
}

static void fill_and_wait(const char *where, uint32_t *prepared)
{
	struct tn_io *io;
	struct rig *r;
	char own[64];

	assert_int_equal(tn_scratch_make(where, own, sizeof(own)), 0);
	io = engine(TN_IOENGINE_POSIX);
	r = rig_new_on(io, &tn_clock_system, own);
	r->opts.prepare = true;
	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 0) >= 0);
	rig_step(r, 100);
	for (uint32_t i = 0; i < r->store->segment_count; i++)
		*prepared += r->store->dev[0].segs[i].prepared;
	rig_free(r);
	tn_io_destroy(io);
	tn_scratch_remove(own);
}

/* Reserving it wrote it already. */
static void segments_in_memory_are_not_prepared(void **state)
{
	uint32_t prepared = 0;
	struct statfs fs;

	if (access("/dev/shm", W_OK) || statfs("/dev/shm", &fs) || fs.f_type != TMPFS_MAGIC)
		tn_test_skip("/dev/shm is no tmpfs that can be written");
	fill_and_wait("/dev/shm", &prepared);
	assert_int_equal(prepared, 0);
	if (statfs("/var/tmp", &fs) || fs.f_type == TMPFS_MAGIC)
		return;
	fill_and_wait("/var/tmp", &prepared);
	assert_int_equal(prepared, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_store_lives_on_every_engine),
		cmocka_unit_test(the_tools_wait_for_the_locks_of_an_owner_that_was_just_killed),
		cmocka_unit_test(recovery_is_quick_from_log_checkpoint_and_headers),
		cmocka_unit_test(segments_in_memory_are_not_prepared),
	};

	return cmocka_run_group_tests_name("store-io", tests, make_dir, remove_dir);
}
