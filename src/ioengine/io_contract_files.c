/* SPDX-License-Identifier: Apache-2.0 */
/* The contract's rules about files: opening, locks, allocation, and the errors when one of these fails. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tenuto/error.h>

#include "ioengine/io_contract.h"
#include "lab/scratch.h"

#define KIB 1024u
#define MIB (1024u * KIB)
#define SECOND_NS 1000000000ull

#define need(c, what)                                                                              \
	do {                                                                                       \
		if (((c)->engine->has & (what)) != (what))                                         \
			tn_test_skip("not for this engine");                                       \
	} while (0)

static void create_makes_a_private_file_and_exclusive_refuses_an_old_one(void **state)
{
	struct tn_contract *c = *state;
	uint32_t file;
	struct stat st;

	if (c->engine->has & TN_CONTRACT_FILES) {
		assert_int_equal(stat(c->path, &st), 0);
		assert_int_equal(st.st_mode & 07777, 0600);
	}
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_CREATE | TN_IO_EXCLUSIVE, &file), -EEXIST);
	assert_non_null(strstr(tn_error_last()->text, c->path));
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_CREATE, &file), 0);
	assert_int_equal(tn_io_close(c->io, file), 0);
	assert_int_equal(tn_io_unlink(c->io, c->path), 0);
	assert_int_equal(tn_io_unlink(c->io, c->path), -ENOENT);
	assert_int_equal(tn_io_open(c->io, c->path, 0, &file), -ENOENT);
	assert_non_null(strstr(tn_error_last()->text, c->path));
}

static void a_handle_that_is_not_open_is_refused(void **state)
{
	struct tn_contract *c = *state;
	struct tn_io_stat st;

	assert_int_equal(tn_io_close(c->io, c->file), 0);
	assert_int_equal(tn_io_close(c->io, c->file), -EBADF);
	assert_int_equal(tn_io_stat(c->io, c->file, &st), -EBADF);
	assert_int_equal(tn_io_stat(c->io, UINT32_MAX, &st), -EBADF);
	assert_int_equal(tn_io_allocate(c->io, c->file, 0, 4096), -EBADF);
	assert_int_equal(tn_contract_do(c, TN_IO_SYNC, 0, NULL, 0), -EBADF);
}

static void a_read_only_file_refuses_writes(void **state)
{
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory(4 * KIB);

	assert_int_equal(tn_contract_do(c, TN_IO_WRITE, 0, mem, 4 * KIB), 0);
	assert_int_equal(tn_io_close(c->io, c->file), 0);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_READ_ONLY, &c->file), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_WRITE, 0, mem, 4 * KIB), -EBADF);
	assert_int_equal(tn_contract_do(c, TN_IO_READ, 0, mem, 4 * KIB), 0);
	free(mem);
}

static void a_buffered_file_takes_any_alignment(void **state)
{
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory(4 * KIB);

	assert_int_equal(tn_io_close(c->io, c->file), 0);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_BUFFERED, &c->file), 0);
	assert_int_equal(tn_io_stat(c->io, c->file, &c->st), 0);
	assert_false(c->st.direct);
	assert_int_equal(c->st.offset_align, 1);
	memcpy(mem + 1, "held", 4);
	assert_int_equal(tn_contract_do(c, TN_IO_WRITE, 3, mem + 1, 4), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_READ, 3, mem + 101, 4), 0);
	assert_memory_equal(mem + 101, "held", 4);
	assert_int_equal(tn_contract_do(c, TN_IO_READ, 4, mem, 4), -EIO);
	free(mem);
}

/* A described drive is no memory, wherever its bytes lie. */
static void a_file_says_whether_its_medium_is_memory(void **state)
{
	struct tn_contract *c = *state;
	struct statfs fs;

	if (c->engine->has & TN_CONTRACT_FILES && strncmp(c->engine->name, "paced", 5) != 0) {
		assert_int_equal(statfs(c->dir, &fs), 0);
		assert_int_equal(c->st.in_memory, fs.f_type == TMPFS_MAGIC);
	} else {
		assert_false(c->st.in_memory);
	}
}

static void allocated_space_reads_as_zero_and_absurd_sizes_are_refused(void **state)
{
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory(64 * KIB);
	struct tn_io_stat st;

	memset(mem, 1, 64 * KIB);
	assert_int_equal(tn_io_allocate(c->io, c->file, 0, 64 * KIB), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_READ, 0, mem, 64 * KIB), 0);
	for (unsigned i = 0; i < 64 * KIB; i++)
		assert_int_equal(mem[i], 0);
	assert_int_equal(tn_io_allocate(c->io, c->file, 0, 0), -EINVAL);
	assert_int_equal(tn_io_allocate(c->io, c->file, 4096, UINT64_MAX - 100), -EFBIG);
	assert_int_equal(tn_io_allocate(c->io, c->file, (uint64_t)INT64_MAX, 1), -EFBIG);
	assert_int_equal(tn_io_stat(c->io, c->file, &st), 0);
	assert_int_equal(st.size_bytes, 64 * KIB);
	free(mem);
}

static void space_is_reserved_by_request_and_absurd_sizes_are_refused(void **state)
{
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory(64 * KIB);
	struct iovec iov = {NULL, 4 * KIB};
	struct tn_io_req req = tn_contract_req(c, TN_IO_ALLOCATE, 0, &iov, 0);
	struct tn_io_stat st;

	memset(mem, 1, 64 * KIB);
	assert_int_equal(tn_contract_do(c, TN_IO_WRITE, 0, mem, 4 * KIB), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_ALLOCATE, 0, NULL, 64 * KIB), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_READ, 0, mem, 64 * KIB), 0);
	for (unsigned i = 0; i < 64 * KIB; i++)
		assert_int_equal(mem[i], i < 4 * KIB);
	assert_int_equal(tn_contract_do(c, TN_IO_ALLOCATE, 0, NULL, 0), -EINVAL);
	assert_int_equal(tn_contract_do(c, TN_IO_ALLOCATE, 4096, NULL, SIZE_MAX - 100), -EFBIG);
	tn_contract_run_all(c, &req, 1);
	assert_int_equal(req.status, -EINVAL);
	assert_int_equal(tn_io_close(c->io, c->file), 0);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_READ_ONLY, &c->file), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_ALLOCATE, 0, NULL, 128 * KIB), -EBADF);
	assert_int_equal(tn_io_stat(c->io, c->file, &st), 0);
	assert_int_equal(st.size_bytes, 64 * KIB);
	free(mem);
}

static void a_cancelled_reservation_comes_back(void **state)
{
	struct tn_contract *c = *state;
	struct iovec iov = {NULL, 1 * MIB};
	struct tn_io_req req = tn_contract_req(c, TN_IO_ALLOCATE, 0, &iov, 1), *p = &req;
	struct tn_io_stat st;
	int err;

	while (tn_io_submit(c->io, &p, 1) == 0)
		;
	err = tn_io_cancel(c->io, &req);
	assert_true(err == 0 || err == -EAGAIN);
	while (tn_io_poll(c->io, &p, 1, SECOND_NS) == 0)
		;
	assert_true(req.status == 0 || req.status == -ECANCELED);
	assert_int_equal(tn_io_stat(c->io, c->file, &st), 0);
	assert_int_equal(st.size_bytes, req.status ? 0 : 1 * MIB);
}

static void a_request_tells_that_the_file_has_no_name_any_more(void **state)
{
	struct tn_contract *c = *state;
	struct tn_io_stat st = {0};
	uint32_t file;

	assert_int_equal(tn_io_allocate(c->io, c->file, 0, 64 * KIB), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_STAT, 0, &st, sizeof(st)), 0);
	assert_int_equal(st.size_bytes, 64 * KIB);
	assert_int_equal(st.offset_align, c->st.offset_align);
	assert_int_equal(st.links, 1);
	assert_int_equal(tn_io_unlink(c->io, c->path), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_STAT, 0, &st, sizeof(st)), 0);
	assert_int_equal(st.links, 0);
	assert_int_equal(tn_contract_do(c, TN_IO_STAT, 0, NULL, sizeof(st)), -EINVAL);
	assert_int_equal(tn_contract_do(c, TN_IO_STAT, 0, &st, 8), -EINVAL);
	assert_int_equal(tn_io_close(c->io, c->file), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_STAT, 0, &st, sizeof(st)), -EBADF);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_CREATE, &file), 0);
}

static void a_file_with_requests_in_flight_cannot_be_closed(void **state)
{
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory(4 * KIB);
	struct iovec iov = {mem, 4 * KIB};
	struct tn_io_req req, *p = &req;

	req = tn_contract_req(c, TN_IO_WRITE, 0, &iov, 1);
	while (tn_io_submit(c->io, &p, 1) == 0)
		;
	assert_int_equal(tn_io_close(c->io, c->file), -EBUSY);
	while (tn_io_poll(c->io, &p, 1, SECOND_NS) == 0)
		;
	assert_int_equal(req.status, 0);
	assert_int_equal(tn_io_close(c->io, c->file), 0);
	free(mem);
}

static void all_handles_can_be_open_and_one_more_is_refused(void **state)
{
	struct tn_contract *c = *state;
	uint32_t files[TN_IO_FILES_MAX], more;

	files[0] = c->file;
	for (unsigned i = 1; i < TN_IO_FILES_MAX; i++) {
		assert_int_equal(tn_io_open(c->io, c->path, 0, &files[i]), 0);
		for (unsigned j = 0; j < i; j++)
			assert_int_not_equal(files[i], files[j]);
	}
	assert_int_equal(tn_io_open(c->io, c->path, 0, &more), -EMFILE);
	assert_int_equal(tn_io_close(c->io, files[5]), 0);
	assert_int_equal(tn_io_open(c->io, c->path, 0, &c->file), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_SYNC, 0, NULL, 0), 0);
}

static void a_second_opener_is_refused_until_the_first_has_closed(void **state)
{
	struct tn_contract *c = *state;
	struct tn_io *other = NULL;
	uint32_t mine, theirs;

	need(c, TN_CONTRACT_FILES);
	assert_int_equal(c->engine->create(8, &c->log, &other), 0);
	for (int round = 0; round < 50; round++) {
		assert_int_equal(tn_io_open(c->io, c->path, TN_IO_LOCK, &mine), 0);
		assert_int_equal(tn_io_open(c->io, c->path, TN_IO_LOCK, &theirs), -EBUSY);
		assert_int_equal(tn_io_open(other, c->path, TN_IO_LOCK, &theirs), -EBUSY);
		assert_non_null(strstr(tn_error_last()->text, c->path));
		assert_int_equal(tn_io_close(c->io, mine), 0);
		/* At once: the lock does not wait for work that the kernel does later. */
		assert_int_equal(tn_io_open(other, c->path, TN_IO_LOCK, &theirs), 0);
		assert_int_equal(tn_io_close(other, theirs), 0);
	}
	assert_int_equal(tn_io_open(other, c->path, TN_IO_LOCK, &theirs), 0);
	tn_io_destroy(other);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_LOCK, &mine), 0);
}

/* Forks while there is no engine: a child of a process with threads may not do much. Then go_on. */
static pid_t fork_alone(struct tn_contract *c)
{
	pid_t pid;

	tn_io_destroy(c->io);
	c->io = NULL;
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	return pid;
}

static void go_on(struct tn_contract *c)
{
	assert_int_equal(c->engine->create(64, &c->log, &c->io), 0);
}

/* The child: locks the file and overwrites it with 0xee until it is killed. */
static void write_until_killed(const struct tn_contract *c, int ready)
{
	enum { N = 32 };
	static struct tn_io_req reqs[N];
	static struct iovec iov[N];
	struct tn_io_req *done[N];
	char *mem = aligned_alloc(4096, MIB);
	struct tn_io *io;
	uint32_t file;

	if (!mem || c->engine->create(64, NULL, &io) || tn_io_open(io, c->path, TN_IO_LOCK, &file))
		_exit(1);
	memset(mem, 0xee, MIB);
	for (unsigned i = 0; i < N; i++) {
		iov[i] = (struct iovec){mem, MIB};
		reqs[i] = tn_contract_req(c, TN_IO_WRITE, (uint64_t)i * MIB, &iov[i], 1);
		reqs[i].file = file;
		done[i] = &reqs[i];
	}
	for (unsigned n = N, told = 0;; told++) {
		for (unsigned sent = 0; sent < n;)
			sent += tn_io_submit(io, done + sent, n - sent);
		if (told == 0 && write(ready, "x", 1) != 1)
			_exit(1);
		n = tn_io_poll(io, done, N, UINT64_MAX);
	}
}

static void the_lock_is_held_until_a_killed_owner_s_writes_have_ended(void **state)
{
	struct tn_contract *c = *state;
	char *mem;
	uint64_t start;
	int pipe_fd[2], status;
	uint32_t file;
	pid_t pid;
	char x;

	need(c, TN_CONTRACT_FILES);
	mem = tn_contract_memory(32 * MIB);
	assert_int_equal(tn_io_allocate(c->io, c->file, 0, 32 * MIB), 0);
	assert_int_equal(pipe(pipe_fd), 0);
	pid = fork_alone(c);
	if (pid == 0) {
		close(pipe_fd[0]);
		write_until_killed(c, pipe_fd[1]);
	}
	close(pipe_fd[1]);
	go_on(c);
	assert_int_equal(read(pipe_fd[0], &x, 1), 1);
	close(pipe_fd[0]);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_LOCK, &file), -EBUSY);
	usleep(tn_rng_below(&c->rng, 20000));
	kill(pid, SIGKILL);
	start = tn_contract_now();
	while (tn_io_open(c->io, c->path, TN_IO_LOCK, &file)) {
		assert_true(tn_contract_now() - start < 60 * SECOND_NS);
		usleep(100);
	}
	/* Now this process has the lock, and no other process writes to the file. */
	c->file = file;
	memset(mem, 0x11, 32 * MIB);
	assert_int_equal(tn_contract_do(c, TN_IO_WRITE, 0, mem, 32 * MIB), 0);
	waitpid(pid, &status, 0);
	usleep(50000);
	assert_int_equal(tn_contract_do(c, TN_IO_READ, 0, mem, 32 * MIB), 0);
	for (size_t i = 0; i < 32 * MIB; i += 512)
		assert_int_equal(mem[i], 0x11);
	free(mem);
}

static void an_adopted_file_is_the_lender_s_description_with_its_lock(void **state)
{
	struct tn_contract *c = *state, theirs = *c;
	struct tn_io_lent lent;
	char *mem;
	uint32_t locked, again;

	need(c, TN_CONTRACT_FILES);
	mem = tn_contract_memory(8 * KIB);
	assert_int_equal(tn_io_lend(c->io, TN_IO_FILES_MAX, &lent), -EBADF);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_LOCK, &locked), 0);
	assert_int_equal(tn_io_lend(c->io, locked, &lent), 0);
	assert_int_equal(lent.file, locked);
	assert_int_equal(c->engine->create(8, &c->log, &theirs.io), 0);
	assert_int_equal(tn_io_adopt(theirs.io, &lent, &theirs.file), 0);
	assert_int_equal(tn_io_stat(theirs.io, theirs.file, &theirs.st), 0);
	assert_int_equal(theirs.st.direct, c->st.direct);
	assert_int_equal(theirs.st.offset_align, c->st.offset_align);
	memset(mem, 7, 4 * KIB);
	assert_int_equal(tn_contract_do(&theirs, TN_IO_WRITE, 0, mem, 4 * KIB), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_READ, 0, mem + 4 * KIB, 4 * KIB), 0);
	assert_memory_equal(mem, mem + 4 * KIB, 4 * KIB);
	/* The lock does not end when the adopter closes the file, but when the lender does. */
	assert_int_equal(tn_io_close(theirs.io, theirs.file), 0);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_LOCK, &again), -EBUSY);
	assert_int_equal(tn_io_adopt(theirs.io, &lent, &theirs.file), 0);
	tn_io_destroy(theirs.io);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_LOCK, &again), -EBUSY);
	assert_int_equal(tn_io_close(c->io, locked), 0);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_LOCK, &again), 0);
	lent.fd = -1;
	assert_int_equal(tn_io_adopt(c->io, &lent, &again), -EBADF);
	free(mem);
}

static void a_file_adopted_read_only_refuses_writes(void **state)
{
	struct tn_contract *c = *state, theirs = *c;
	struct tn_io_lent lent;
	char *mem;

	need(c, TN_CONTRACT_FILES);
	mem = tn_contract_memory(4 * KIB);
	assert_int_equal(tn_contract_do(c, TN_IO_WRITE, 0, mem, 4 * KIB), 0);
	assert_int_equal(tn_io_close(c->io, c->file), 0);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_READ_ONLY, &c->file), 0);
	assert_int_equal(tn_io_lend(c->io, c->file, &lent), 0);
	assert_int_equal(c->engine->create(8, &c->log, &theirs.io), 0);
	assert_int_equal(tn_io_adopt(theirs.io, &lent, &theirs.file), 0);
	assert_int_equal(tn_contract_do(&theirs, TN_IO_WRITE, 0, mem, 4 * KIB), -EBADF);
	assert_int_equal(tn_contract_do(&theirs, TN_IO_READ, 0, mem, 4 * KIB), 0);
	tn_io_destroy(theirs.io);
	free(mem);
}

/* A small file system that only this process sees; false: no right to mount. */
static bool mount_small(char *dir, const char *options)
{
	static bool own;

	if (!own && (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)))
		return false;
	own = true;
	memcpy(dir, "/tmp/tenuto-io-XXXXXX", sizeof("/tmp/tenuto-io-XXXXXX"));
	assert_non_null(mkdtemp(dir));
	if (mount("tenuto", dir, "tmpfs", 0, options) == 0)
		return true;
	rmdir(dir);
	return false;
}

static void unmount_small(const char *dir)
{
	umount2(dir, MNT_DETACH);
	rmdir(dir);
}

static void a_full_disk_is_told_and_what_fits_is_kept(void **state)
{
	struct tn_contract *c = *state;
	char dir[64], path[96], *mem;
	struct iovec iov[3];
	struct tn_io_req reqs[3];
	struct tn_io_stat st;

	need(c, TN_CONTRACT_FILES);
	if (!mount_small(dir, "size=1m"))
		tn_test_skip("no right to mount");
	mem = tn_contract_memory(2 * MIB);
	snprintf(path, sizeof(path), "%s/f", dir);
	assert_int_equal(tn_io_close(c->io, c->file), 0);
	assert_int_equal(tn_io_open(c->io, path, TN_IO_CREATE, &c->file), 0);
	assert_int_equal(tn_io_allocate(c->io, c->file, 0, 64 * KIB), 0);
	assert_int_equal(tn_io_allocate(c->io, c->file, 0, 8 * MIB), -ENOSPC);
	assert_non_null(strstr(tn_error_last()->text, "8388608"));
	assert_int_equal(tn_io_stat(c->io, c->file, &st), 0);
	assert_int_equal(st.size_bytes, 64 * KIB);
	assert_int_equal(tn_contract_do(c, TN_IO_ALLOCATE, 0, NULL, 8 * MIB), -ENOSPC);
	assert_int_equal(tn_io_stat(c->io, c->file, &st), 0);
	assert_int_equal(st.size_bytes, 64 * KIB);
	iov[0] = (struct iovec){mem, 16 * KIB};
	iov[1] = (struct iovec){mem, 2 * MIB};
	iov[2] = (struct iovec){mem, 16 * KIB};
	reqs[0] = tn_contract_req(c, TN_IO_WRITE, 0, &iov[0], 1);
	reqs[1] = tn_contract_req(c, TN_IO_WRITE, 64 * KIB, &iov[1], 1);
	reqs[2] = tn_contract_req(c, TN_IO_WRITE, 32 * KIB, &iov[2], 1);
	tn_contract_run_all(c, reqs, 3);
	assert_int_equal(reqs[0].status, 0);
	assert_int_equal(reqs[1].status, -ENOSPC);
	assert_in_range(reqs[1].transferred, 0, MIB);
	assert_int_equal(reqs[2].status, 0);
	assert_int_equal(tn_io_close(c->io, c->file), 0);
	unmount_small(dir);
	free(mem);
}

static void a_read_only_file_system_and_a_forbidden_directory_are_told(void **state)
{
	struct tn_contract *c = *state;
	char dir[64], path[96];
	uint32_t file;

	need(c, TN_CONTRACT_FILES);
	if (!mount_small(dir, "size=64k,mode=0700"))
		tn_test_skip("no right to mount");
	snprintf(path, sizeof(path), "%s/f", dir);
	if (geteuid() == 0) {
		assert_int_equal(seteuid(65534), 0);
		assert_int_equal(tn_io_open(c->io, path, TN_IO_CREATE, &file), -EACCES);
		assert_int_equal(seteuid(0), 0);
		assert_non_null(strstr(tn_error_last()->text, path));
	}
	assert_int_equal(mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, "size=64k"), 0);
	assert_int_equal(tn_io_open(c->io, path, TN_IO_CREATE, &file), -EROFS);
	assert_non_null(strstr(tn_error_last()->text, path));
	assert_int_equal(tn_io_open(c->io, dir, TN_IO_READ_ONLY, &file), -EINVAL);
	unmount_small(dir);
}

/* As tn_contract_do, without the assertions: a child must not return into the test runner. */
static int do_in_child(const struct tn_contract *c, enum tn_io_op op, void *mem, size_t bytes)
{
	struct iovec iov = {mem, bytes};
	struct tn_io_req req = tn_contract_req(c, op, 0, &iov, 1), *p = &req;

	while (tn_io_submit(c->io, &p, 1) == 0)
		;
	while (tn_io_poll(c->io, &p, 1, SECOND_NS) == 0)
		;
	return req.status;
}

/* In a child without privileges and with 64 KiB of memlock: nothing depends on locked memory. */
static int work_without_memlock(const struct tn_contract *c)
{
	struct rlimit lim = {64 * KIB, 64 * KIB};
	char *mem = aligned_alloc(4096, 16 * MIB);
	struct tn_contract own = *c;

	if (!mem || setrlimit(RLIMIT_MEMLOCK, &lim) || (geteuid() == 0 && setuid(65534)))
		return 1;
	if (access(c->dir, W_OK))
		return TN_TEST_SKIP;
	snprintf(own.path, sizeof(own.path), "%s/tenuto-io-poor-%d", c->dir, (int)getpid());
	if (own.engine->create(64, NULL, &own.io) || tn_io_open(own.io, own.path, TN_IO_CREATE, &own.file))
		return 2;
	memset(mem, 3, 16 * MIB);
	if (do_in_child(&own, TN_IO_WRITE, mem, 8 * MIB) || do_in_child(&own, TN_IO_READ, mem + 8 * MIB, 8 * MIB))
		return 4;
	tn_io_unlink(own.io, own.path);
	tn_io_destroy(own.io);
	return memcmp(mem, mem + 8 * MIB, 8 * MIB) ? 5 : 0;
}

static void an_engine_works_without_memlock(void **state)
{
	struct tn_contract *c = *state;
	int status;
	pid_t pid;

	need(c, TN_CONTRACT_FILES);
	pid = fork_alone(c);
	if (pid == 0)
		_exit(work_without_memlock(c));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	go_on(c);
	if (WEXITSTATUS(status) == TN_TEST_SKIP)
		tn_test_skip("the directory is not for everyone");
	assert_int_equal(WEXITSTATUS(status), 0);
}

#define T(f) {#f, f}

size_t tn_contract_add_files(struct CMUnitTest *tests, size_t n, size_t max, const struct tn_contract_engine *engine,
			     const char *dir)
{
	static const struct {
		const char *name;
		CMUnitTestFunction f;
	} all[] = {
		T(create_makes_a_private_file_and_exclusive_refuses_an_old_one),
		T(a_handle_that_is_not_open_is_refused),
		T(a_read_only_file_refuses_writes),
		T(a_buffered_file_takes_any_alignment),
		T(a_file_says_whether_its_medium_is_memory),
		T(allocated_space_reads_as_zero_and_absurd_sizes_are_refused),
		T(space_is_reserved_by_request_and_absurd_sizes_are_refused),
		T(a_cancelled_reservation_comes_back),
		T(a_request_tells_that_the_file_has_no_name_any_more),
		T(a_file_with_requests_in_flight_cannot_be_closed),
		T(all_handles_can_be_open_and_one_more_is_refused),
		T(a_second_opener_is_refused_until_the_first_has_closed),
		T(the_lock_is_held_until_a_killed_owner_s_writes_have_ended),
		T(an_adopted_file_is_the_lender_s_description_with_its_lock),
		T(a_file_adopted_read_only_refuses_writes),
		T(a_full_disk_is_told_and_what_fits_is_kept),
		T(a_read_only_file_system_and_a_forbidden_directory_are_told),
		T(an_engine_works_without_memlock),
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		n = tn_contract_append(tests, n, max, engine, dir, all[i].name, all[i].f);
	return n;
}

int tn_contract_main(const char *name, const struct tn_contract_engine *engines, size_t count)
{
	static struct CMUnitTest tests[1024];
	const char *tmp = getenv("TMPDIR");
	static char dirs[2][200];
	struct tn_io *probe;
	size_t n = 0, first = 0;
	int rc;

	tn_test_seed();
	if (tn_scratch_make("/dev/shm", dirs[0], sizeof(dirs[0]))) {
		printf("# /dev/shm is not writable: not tested on tmpfs\n");
		first = 1;
	}
	assert_int_equal(tn_scratch_make(tmp && tmp[0] ? tmp : "/var/tmp", dirs[1], sizeof(dirs[1])), 0);
	for (size_t e = 0; e < count; e++) {
		if (engines[e].create(8, NULL, &probe)) {
			printf("# %s: %s\n", engines[e].name, tn_error_last()->text);
			continue;
		}
		tn_io_destroy(probe);
		for (size_t d = first; d < 2; d++) {
			n = tn_contract_add(tests, n, 1024, &engines[e], dirs[d]);
			n = tn_contract_add_files(tests, n, 1024, &engines[e], dirs[d]);
		}
	}
	rc = _cmocka_run_group_tests(name, tests, n, NULL, NULL);
	for (size_t d = first; d < 2; d++)
		tn_scratch_remove(dirs[d]);
	return rc;
}
