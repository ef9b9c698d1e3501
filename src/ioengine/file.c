/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of the real engines: opening with O_DIRECT where it exists, the lock, alignments, allocation.
 *
 * All of it is synchronous and rare. Transfers, and the choice of the thread that runs this code, are the engines' business.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error.h"
#include "ioengine/engine.h"

#define DEFAULT_ALIGN 4096u
#define ALLOCATE_BYTES (64u << 20) /* on tmpfs this takes 20 ms, because tmpfs clears what it reserves */

#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x2000u
#endif

/* Of stx_dio_mem_align and stx_dio_offset_align in struct statx; Debian 12's glibc does not name them yet. */
#define DIO_MEM_ALIGN_AT 0x98u
#define DIO_OFFSET_ALIGN_AT 0x9cu

static struct tn_iofiles *files_of(struct tn_io *io)
{
	return ((struct tn_ioengine *)io)->files;
}

void tn_iofiles_init(struct tn_iofiles *files, const struct tn_log *log)
{
	files->log = log;
	for (uint32_t i = 0; i < TN_IO_FILES_MAX; i++)
		files->f[i].fd = -1;
}

int tn_iofiles_sync_directory(const char *path)
{
	const char *slash = strrchr(path, '/');
	char dir[4096] = ".";
	size_t len = slash ? (size_t)(slash - path) : 0;
	int fd, err = 0;

	if (len >= sizeof(dir))
		return tn_fail(-ENAMETOOLONG, "%.64s...: path is longer than %zu bytes", path, sizeof(dir) - 1);
	if (slash) {
		memcpy(dir, path, len);
		dir[len] = '\0';
		if (len == 0)
			memcpy(dir, "/", 2);
	}
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return tn_fail(-errno, "%s: cannot open the directory to make its entries durable: %s", dir, strerror(errno));
	/* EINVAL: a file system without directories to sync; nothing more can be done there. */
	if (fsync(fd) && errno != EINVAL)
		err = tn_fail(-errno, "%s: fsync of the directory failed: %s", dir, strerror(errno));
	close(fd);
	return err;
}

/* Opens, or creates with a durable entry. O_NONBLOCK: to open a FIFO is to wait until another process does; set_up refuses it. */
static int open_path(const char *path, unsigned flags, int *out)
{
	int mode = (flags & TN_IO_READ_ONLY ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK;
	int fd = -1, err;

	for (int tries = 0; tries < 16 && fd < 0; tries++) {
		if (!(flags & TN_IO_EXCLUSIVE))
			fd = tn_above_streams(open(path, mode));
		else
			errno = ENOENT;
		if (fd >= 0 || errno != ENOENT || !(flags & TN_IO_CREATE))
			break;
		fd = tn_above_streams(open(path, mode | O_CREAT | O_EXCL, 0600));
		if (fd >= 0) {
			err = tn_iofiles_sync_directory(path);
			if (err) {
				close(fd);
				return err;
			}
		} else if (errno != EEXIST || (flags & TN_IO_EXCLUSIVE)) {
			break;
		} /* another process created the file between the two opens: open that file */
	}
	if (fd < 0)
		return tn_fail(-errno, "%s: cannot open: %s", path, strerror(errno));
	*out = fd;
	return 0;
}

/* The logical block size of the disk under a file system, or 0. */
static uint32_t logical_block_size(const struct stat *st)
{
	/* A partition has no queue of its own; its disk is the directory above. */
	static const char *const above[] = {"", "/.."};
	uint32_t bytes = 0;

	for (size_t i = 0; i < 2 && !bytes; i++) {
		char path[96];
		FILE *f;

		snprintf(path, sizeof(path), "/sys/dev/block/%u:%u%s/queue/logical_block_size", major(st->st_dev),
			 minor(st->st_dev), above[i]);
		f = fopen(path, "re");
		if (!f)
			continue;
		if (fscanf(f, "%u", &bytes) != 1)
			bytes = 0;
		fclose(f);
	}
	return bytes;
}

/* Asks the kernel for the alignments of direct I/O; false: this file does not support direct I/O. */
static bool find_alignment(struct tn_iofile *f, const struct stat *st)
{
	struct statx buf;
	uint32_t mem, off;

	_Static_assert(sizeof(struct statx) >= 0xa0, "struct statx has the alignment fields");
	memset(&buf, 0, sizeof(buf));
	if (!statx(f->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &buf) && (buf.stx_mask & STATX_DIOALIGN)) {
		memcpy(&mem, (char *)&buf + DIO_MEM_ALIGN_AT, sizeof(mem));
		memcpy(&off, (char *)&buf + DIO_OFFSET_ALIGN_AT, sizeof(off));
		f->memory_align = mem;
		f->offset_align = off;
		return off != 0 && mem != 0;
	}
	off = 0;
	if (S_ISBLK(st->st_mode)) {
		int bytes = 0;

		if (!ioctl(f->fd, BLKSSZGET, &bytes) && bytes > 0)
			off = (uint32_t)bytes;
	} else {
		off = logical_block_size(st);
	}
	if (off == 0 || (off & (off - 1)))
		off = DEFAULT_ALIGN;
	f->offset_align = f->memory_align = off;
	return true;
}

/*
 * O_DIRECT is set after opening: open(2) with both O_CREAT and O_DIRECT leaves the file behind when it
 * fails. This way the file description is the same whether direct I/O works or not.
 */
static int set_direct(struct tn_iofile *f, const struct stat *st, const char *path, const struct tn_log *log)
{
	int fl;

	f->direct = find_alignment(f, st);
	if (f->direct) {
		fl = fcntl(f->fd, F_GETFL);
		if (fl < 0)
			return tn_fail(-errno, "%s: F_GETFL failed: %s", path, strerror(errno));
		f->direct = fcntl(f->fd, F_SETFL, fl | O_DIRECT) == 0;
	}
	if (!f->direct) {
		f->offset_align = f->memory_align = 1;
		tn_log(log, TN_LOG_INFO, "%s: the file system has no O_DIRECT; using buffered I/O", path);
	}
	return 0;
}

static int set_up(struct tn_iofile *f, const char *path, unsigned flags, const struct tn_log *log)
{
	struct stat st;
	size_t len = strlen(path);

	f->read_only = flags & TN_IO_READ_ONLY;
	if (len < sizeof(f->name))
		snprintf(f->name, sizeof(f->name), "%s", path);
	else
		snprintf(f->name, sizeof(f->name), "...%s", path + len - sizeof(f->name) + 4);
	if (fstat(f->fd, &st))
		return tn_fail(-errno, "%s: fstat failed: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return tn_fail(-EINVAL, "%s: must be a regular file or a block device", path);
	/* io_uring fails what would wait with EAGAIN, if the file has it. */
	if (fcntl(f->fd, F_SETFL, fcntl(f->fd, F_GETFL) & ~O_NONBLOCK))
		return tn_fail(-errno, "%s: F_SETFL failed: %s", path, strerror(errno));
	if ((flags & TN_IO_LOCK) && flock(f->fd, LOCK_EX | LOCK_NB)) {
		if (errno == EWOULDBLOCK)
			return tn_fail(-EBUSY, "%s: locked by another opener", path);
		return tn_fail(-errno, "%s: flock failed: %s", path, strerror(errno));
	}
	/*
	 * The file's creator may have failed and removed the file before the lock was free: bytes written to it would
	 * be lost.
	 */
	if ((flags & TN_IO_LOCK) && S_ISREG(st.st_mode) && (fstat(f->fd, &st) || st.st_nlink == 0))
		return tn_fail(-ENOENT, "%s: was removed while it was opened", path);
	f->direct = false;
	f->offset_align = f->memory_align = 1;
	return flags & TN_IO_BUFFERED ? 0 : set_direct(f, &st, path, log);
}

static void close_watched(struct tn_iofile *f)
{
	tn_fork_unwatch(&f->fork);
	close(f->fd);
	f->fd = -1;
}

/* The kernel may hold a registered file a little longer than the descriptor is open. So the lock is given back first. */
static void unlock_and_close(struct tn_iofile *f)
{
	if (!f->adopted)
		flock(f->fd, LOCK_UN);
	close_watched(f);
}

void tn_iofiles_fini(struct tn_iofiles *files)
{
	for (uint32_t i = 0; i < TN_IO_FILES_MAX; i++) {
		assert(files->f[i].fd < 0 || files->f[i].inflight == 0);
		if (files->f[i].fd >= 0)
			unlock_and_close(&files->f[i]);
	}
}

/*
 * Opens a file so that no child has a copy of the descriptor that is not in its list, before the lock is taken. Opening may
 * block, and fork must not wait for it. So if there was a fork meanwhile, the file is opened once more.
 */
static int open_watched(struct tn_iofile *f, const char *path, unsigned flags)
{
	for (;;) {
		uint64_t forks = tn_fork_count();
		int err = open_path(path, flags, &f->fd);

		if (err)
			return err;
		tn_fork_lock();
		tn_fork_watch(&f->fork, f->fd);
		tn_fork_unlock();
		if (tn_fork_count() == forks)
			return 0;
		close_watched(f);
		flags &= ~(TN_IO_CREATE | TN_IO_EXCLUSIVE); /* the file exists now */
	}
}

/* A free entry of the table, or NULL with detail. */
static struct tn_iofile *free_entry(struct tn_iofiles *files, const char *name)
{
	for (uint32_t i = 0; i < TN_IO_FILES_MAX; i++)
		if (files->f[i].fd < 0)
			return &files->f[i];
	tn_fail(-EMFILE, "%s: %u files are open, the most an engine takes", name, TN_IO_FILES_MAX);
	return NULL;
}

int tn_ioengine_open(struct tn_io *io, const char *path, unsigned flags, uint32_t *file)
{
	struct tn_iofiles *files = files_of(io);
	struct tn_iofile *f;
	int err;

	if ((flags & TN_IO_EXCLUSIVE) && !(flags & TN_IO_CREATE))
		return tn_fail(-EINVAL, "%s: EXCLUSIVE goes with CREATE only", path);
	f = free_entry(files, path);
	if (!f)
		return -EMFILE;
	err = open_watched(f, path, flags);
	if (err) {
		f->fd = -1;
		return err;
	}
	err = set_up(f, path, flags, files->log);
	if (err) {
		close_watched(f);
		return err;
	}
	f->inflight = 0;
	f->adopted = f->sparse = false;
	*file = (uint32_t)(f - files->f);
	return 0;
}

/* NULL with detail: it is not open. */
static struct tn_iofile *get_file(struct tn_iofiles *files, uint32_t file)
{
	if (file < TN_IO_FILES_MAX && files->f[file].fd >= 0)
		return &files->f[file];
	tn_fail(-EBADF, "file %u is not open", file);
	return NULL;
}

int tn_ioengine_close(struct tn_io *io, uint32_t file)
{
	struct tn_iofile *f = get_file(files_of(io), file);

	if (!f)
		return -EBADF;
	if (f->inflight)
		return tn_fail(-EBUSY, "%s: %u requests are in flight; poll them first", f->name, f->inflight);
	unlock_and_close(f);
	return 0;
}

int tn_ioengine_lend(struct tn_io *io, uint32_t file, struct tn_io_lent *lent)
{
	const struct tn_iofile *f = get_file(files_of(io), file);

	if (!f)
		return -EBADF;
	*lent = (struct tn_io_lent){
		.fd = f->fd,
		.file = file,
		.direct = f->direct,
		.read_only = f->read_only,
		.offset_align = f->offset_align,
		.memory_align = f->memory_align,
	};
	_Static_assert(sizeof(lent->name) == sizeof(f->name), "one length of names");
	memcpy(lent->name, f->name, sizeof(f->name));
	return 0;
}

int tn_ioengine_adopt(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file)
{
	struct tn_iofiles *files = files_of(io);
	struct tn_iofile *f = free_entry(files, lent->name);

	if (!f)
		return -EMFILE;
	*f = (struct tn_iofile){
		.fd = -1,
		.direct = lent->direct,
		.read_only = lent->read_only,
		.adopted = true,
		.offset_align = lent->offset_align,
		.memory_align = lent->memory_align,
	};
	memcpy(f->name, lent->name, sizeof(f->name));
	tn_fork_lock();
	f->fd = tn_above_streams(fcntl(lent->fd, F_DUPFD_CLOEXEC, 0));
	if (f->fd >= 0)
		tn_fork_watch(&f->fork, f->fd);
	tn_fork_unlock();
	if (f->fd < 0)
		return tn_fail(-errno, "%s: cannot share the open file: %s", lent->name, strerror(errno));
	*file = (uint32_t)(f - files->f);
	return 0;
}

static int stat_file(struct tn_iofiles *files, uint32_t file, struct tn_io_stat *out)
{
	const struct tn_iofile *f = get_file(files, file);
	uint64_t bytes = 0;
	struct statfs fs;
	struct stat st;

	if (!f)
		return -EBADF;
	if (fstat(f->fd, &st))
		return tn_fail(-errno, "%s: fstat failed: %s", f->name, strerror(errno));
	if (!S_ISBLK(st.st_mode))
		bytes = (uint64_t)st.st_size;
	else if (ioctl(f->fd, BLKGETSIZE64, &bytes))
		return tn_fail(-errno, "%s: BLKGETSIZE64 failed: %s", f->name, strerror(errno));
	*out = (struct tn_io_stat){.size_bytes = bytes,
				   .offset_align = f->offset_align,
				   .memory_align = f->memory_align,
				   .links = (uint32_t)st.st_nlink,
				   .direct = f->direct,
				   .in_memory = fstatfs(f->fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC};
	return 0;
}

int tn_ioengine_stat(struct tn_io *io, uint32_t file, struct tn_io_stat *st)
{
	return stat_file(files_of(io), file, st);
}

/*
 * Whether the file system seems to have so many free bytes. Without this check, a reservation in pieces would take all free
 * bytes before the file system says that it is full, and other files' writes would fail meanwhile. On tmpfs these bytes are
 * the machine's memory.
 */
static bool may_have_space(const struct tn_iofile *f, uint64_t bytes)
{
	struct statvfs fs;

	return fstatvfs(f->fd, &fs) || bytes / fs.f_frsize <= fs.f_bfree;
}

/*
 * Reserves bytes, or makes the file longer where the file system cannot reserve. In pieces, so that a cancel takes
 * effect soon.
 */
static int reserve(struct tn_iofiles *files, struct tn_iofile *f, uint64_t offset, uint64_t length, uint64_t size,
		   struct tn_io_req *req)
{
	uint64_t from = offset > size ? offset : size;
	int err = 0;

	if (offset + length > from && !may_have_space(f, offset + length - from))
		return ENOSPC;
	for (uint64_t done = 0, n; done < length && !err; done += n) {
		n = length - done < ALLOCATE_BYTES ? length - done : ALLOCATE_BYTES;
		if (req && tn_ioxfer_is_cancelled(req))
			return ECANCELED;
		do {
			err = fallocate(f->fd, 0, (off_t)(offset + done), (off_t)n) ? errno : 0;
		} while (err == EINTR);
	}
	if (err != EOPNOTSUPP && err != ENOSYS)
		return err;
	if (!__atomic_exchange_n(&f->sparse, true, __ATOMIC_RELAXED))
		tn_log(files->log, TN_LOG_WARN,
		       "%s: the file system cannot reserve space; the file is sparse and writes may meet a full disk",
		       f->name);
	return offset + length > size && ftruncate(f->fd, (off_t)(offset + length)) ? errno : 0;
}

static int allocate(struct tn_iofiles *files, uint32_t file, uint64_t offset, uint64_t length, struct tn_io_req *req)
{
	struct tn_iofile *f = get_file(files, file);
	struct tn_io_stat st;
	uint64_t end;
	int err;

	if (!f)
		return -EBADF;
	if (length == 0)
		return tn_fail(-EINVAL, "%s: nothing to allocate (length 0)", f->name);
	if (__builtin_add_overflow(offset, length, &end) || end > INT64_MAX)
		return tn_fail(-EFBIG, "%s: cannot allocate %llu bytes at %llu", f->name, (unsigned long long)length,
			       (unsigned long long)offset);
	err = stat_file(files, file, &st);
	if (err)
		return err;
	err = reserve(files, f, offset, length, st.size_bytes, req);
	if (!err)
		return 0;
	/* ext4 keeps the bytes that it had reserved before it failed. */
	if (end > st.size_bytes && ftruncate(f->fd, (off_t)st.size_bytes))
		tn_log(files->log, TN_LOG_WARN, "%s: cannot go back to %llu bytes: %s", f->name,
		       (unsigned long long)st.size_bytes, strerror(errno));
	return tn_fail(-err, "%s: cannot reserve %llu bytes at %llu: %s", f->name, (unsigned long long)length,
		       (unsigned long long)offset, strerror(err));
}

int tn_ioengine_allocate(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length)
{
	return allocate(files_of(io), file, offset, length, NULL);
}

int tn_iofiles_do(struct tn_iofiles *files, struct tn_io_req *req)
{
	if (req->op == TN_IO_STAT)
		return stat_file(files, req->file, req->iov->iov_base);
	assert(req->op == TN_IO_ALLOCATE);
	return allocate(files, req->file, req->offset, req->iov->iov_len, req);
}

int tn_ioengine_unlink(struct tn_io *io, const char *path)
{
	if (unlink(path))
		return tn_fail(-errno, "%s: cannot unlink: %s", path, strerror(errno));
	return tn_iofiles_sync_directory(path);
}
