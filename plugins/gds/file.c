/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cufile.h"
#include "driver.h"

enum state { FREE, OPENING, READY, CLOSING };

struct tn_device_file {
	enum state state;
	bool by_path; /* opened here: fd is ours to close */
	bool writable;
	int fd;
	void *handle;
	uint32_t held;	      /* by so many; 0: idle, its place may be taken. A descriptor of the caller's: 1 */
	uint64_t released_at; /* value of files.releases when it became idle */
	dev_t device;	      /* of a file by path: what it is found by, with writable */
	ino_t inode;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a file is no longer OPENING or CLOSING */
	uint64_t releases;
	struct tn_device_file file[TN_DEVICE_FILES_MAX];
} files = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int refuse(int rc, const char *what, char *detail, size_t detail_bytes)
{
	snprintf(detail, detail_bytes, "'%s': %s", what, strerror(-rc));
	return rc;
}

/* ---- one file: without the lock, in state OPENING or CLOSING ---------------------------------------- */

static int register_fd(int fd, void **handle, char *detail, size_t detail_bytes)
{
	struct cufile_description d = {.type = CUFILE_TYPE_FD, .file.fd = fd};
	struct cufile_error e = gds_library()->handle_register(handle, &d);

	return e.error ? cufile_fail("cuFileHandleRegister", e.error, e.cuda_error, detail, detail_bytes) : 0;
}

/* A descriptor that is none of the standard streams', or -1 and errno. */
static int open_above_streams(const char *path, int flags)
{
	int fd = open(path, flags), above;

	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	close(fd);
	return above;
}

/* st: of what was opened, which may have replaced what was looked for. */
static int open_path(struct tn_device_file *f, const char *path, struct stat *st, char *detail, size_t detail_bytes)
{
	int rc;

	f->fd = open_above_streams(path, (f->writable ? O_RDWR : O_RDONLY) | O_DIRECT | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	if (f->fd < 0 && errno == EINVAL)
		return refuse(-ENOTSUP, path, detail, detail_bytes); /* no O_DIRECT there */
	if (f->fd < 0 || fstat(f->fd, st))
		rc = refuse(-errno, path, detail, detail_bytes);
	else
		rc = register_fd(f->fd, &f->handle, detail, detail_bytes);
	if (rc && f->fd >= 0)
		close(f->fd);
	return rc;
}

static void close_path(struct tn_device_file *f)
{
	gds_library()->handle_deregister(f->handle);
	close(f->fd);
}

/* ---- places: with the lock ------------------------------------------------------------------------- */

static struct tn_device_file *find(const struct stat *st, bool writable)
{
	for (size_t i = 0; i < TN_DEVICE_FILES_MAX; i++) {
		struct tn_device_file *f = &files.file[i];

		if (f->state != FREE && f->by_path && f->writable == writable && f->device == st->st_dev && f->inode == st->st_ino)
			return f;
	}
	return NULL;
}

static void set_identity(struct tn_device_file *f, const struct stat *st)
{
	f->device = st->st_dev;
	f->inode = st->st_ino;
}

static bool is_idle(const struct tn_device_file *f)
{
	return f->state == READY && f->held == 0;
}

static void set_state(struct tn_device_file *f, enum state state)
{
	f->state = state;
	pthread_cond_broadcast(&files.changed);
}

/* Lets go of the lock meanwhile. */
static void close_idle(struct tn_device_file *f)
{
	set_state(f, CLOSING);
	pthread_mutex_unlock(&files.lock);
	close_path(f);
	pthread_mutex_lock(&files.lock);
	set_state(f, FREE);
}

/* A free place, or that of the file that has been idle for longest, which is closed first. *closed: the lock was let go of. NULL: all are held. */
static struct tn_device_file *find_place(bool *closed)
{
	struct tn_device_file *oldest = NULL;

	*closed = false;
	for (size_t i = 0; i < TN_DEVICE_FILES_MAX; i++) {
		struct tn_device_file *f = &files.file[i];

		if (f->state == FREE)
			return f;
		if (is_idle(f) && (!oldest || f->released_at < oldest->released_at))
			oldest = f;
	}
	*closed = oldest;
	if (oldest)
		close_idle(oldest);
	return oldest;
}

/*
 * Takes a place in state OPENING for what st says (NULL: a descriptor of the caller's). 0, -EAGAIN: all are held; 1: the lock was let go of: ask
 * again whether the file is there.
 */
static int take_place(const struct stat *st, bool writable, struct tn_device_file **out)
{
	bool closed;
	struct tn_device_file *f = find_place(&closed);

	if (!f)
		return -EAGAIN;
	if (closed)
		return 1;
	*f = (struct tn_device_file){.state = OPENING, .by_path = st, .writable = writable, .fd = -1, .held = 1};
	if (st)
		set_identity(f, st);
	*out = f;
	return 0;
}

/* What came of OPENING. st: of a file by path. */
static int finish(struct tn_device_file *f, int rc, const struct stat *st, struct tn_device_file **out)
{
	pthread_mutex_lock(&files.lock);
	if (rc == 0 && st)
		set_identity(f, st);
	set_state(f, rc ? FREE : READY);
	pthread_mutex_unlock(&files.lock);
	if (rc == 0)
		*out = f;
	return rc;
}

static int all_held(char *detail, size_t detail_bytes)
{
	snprintf(detail, detail_bytes, "%u files are in use: release some first", TN_DEVICE_FILES_MAX);
	return -EAGAIN;
}

/* ---- the calls ------------------------------------------------------------------------------------- */

int gds_file_add(int fd, struct tn_device_file **out, char *detail, size_t detail_bytes)
{
	struct tn_device_file *f;
	int rc;

	if (!gds_library())
		return gds_not_started(detail, detail_bytes);
	pthread_mutex_lock(&files.lock);
	do
		rc = take_place(NULL, true, &f);
	while (rc > 0);
	pthread_mutex_unlock(&files.lock);
	if (rc)
		return all_held(detail, detail_bytes);
	f->fd = fd;
	return finish(f, register_fd(fd, &f->handle, detail, detail_bytes), NULL, out);
}

void gds_file_remove(struct tn_device_file *f)
{
	assert(!f->by_path && f->held == 1);
	gds_library()->handle_deregister(f->handle);
	pthread_mutex_lock(&files.lock);
	set_state(f, FREE);
	pthread_mutex_unlock(&files.lock);
}

/* One look at what the path names. 0, -errno; 1: it changed meanwhile, look again. */
static int try_acquire(const char *path, bool writable, struct tn_device_file **out, char *detail, size_t detail_bytes)
{
	struct tn_device_file *f;
	struct stat st;
	int rc = 0;

	if (stat(path, &st))
		return refuse(-errno, path, detail, detail_bytes);
	pthread_mutex_lock(&files.lock);
	f = find(&st, writable);
	if (f && f->state == READY) {
		f->held++;
		*out = f;
	} else if (f) {
		pthread_cond_wait(&files.changed, &files.lock);
		rc = 1;
	} else {
		rc = take_place(&st, writable, &f);
		if (rc == 0)
			rc = 2;
	}
	pthread_mutex_unlock(&files.lock);
	if (rc == 2) {
		rc = open_path(f, path, &st, detail, detail_bytes);
		return finish(f, rc, &st, out);
	}
	return rc == -EAGAIN ? all_held(detail, detail_bytes) : rc;
}

int gds_file_acquire(const char *path, int writable, struct tn_device_file **out, char *detail, size_t detail_bytes)
{
	int rc;

	if (!gds_library())
		return gds_not_started(detail, detail_bytes);
	do
		rc = try_acquire(path, writable, out, detail, detail_bytes);
	while (rc > 0);
	return rc;
}

void gds_file_release(struct tn_device_file *f)
{
	pthread_mutex_lock(&files.lock);
	assert(f->by_path && f->state == READY && f->held > 0);
	if (--f->held == 0)
		f->released_at = ++files.releases;
	pthread_mutex_unlock(&files.lock);
}

int gds_file_cleanup(void)
{
	int held = 0;

	pthread_mutex_lock(&files.lock);
	for (size_t i = 0; i < TN_DEVICE_FILES_MAX; i++) {
		if (is_idle(&files.file[i]))
			close_idle(&files.file[i]);
		held += files.file[i].state != FREE && files.file[i].by_path;
	}
	pthread_mutex_unlock(&files.lock);
	return held;
}

void *gds_file_handle(const struct tn_device_file *f)
{
	return f->handle;
}
