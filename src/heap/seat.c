/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's seat: a file NAME.lock in the directory of the user's heaps, which the master has locked, and the socket NAME.sock beside it.
 *
 * A master that is killed leaves both files. The next process that takes a seat of any name removes those whose lock is free.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "heap/heap_internal.h"

#define CLOSING_NS 50000000u

static void file_name(const char *heap, const char *ending, char out[TN_HEAP_NAME_MAX + 8])
{
	snprintf(out, TN_HEAP_NAME_MAX + 8, "%.*s.%s", TN_HEAP_NAME_MAX, heap, ending);
}

/* A forked child would keep the lock. -1 and errno. */
static int open_lock(int directory, const char *name, int flags, struct tn_fork_fd *forked)
{
	int fd;

	tn_fork_lock();
	fd = tn_above_streams(openat(directory, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0600));
	if (fd >= 0)
		tn_fork_watch(forked, fd);
	tn_fork_unlock();
	return fd;
}

static void close_lock(int fd, struct tn_fork_fd *forked)
{
	tn_fork_unwatch(forked);
	if (fd >= 0)
		close(fd);
	*forked = (struct tn_fork_fd){0};
}

/* Whether a name is that file's still: the last one who had the lock may have removed it. */
static bool is_named(int directory, const char *name, int fd)
{
	struct stat locked, there;

	return fstat(fd, &locked) == 0 && fstatat(directory, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && locked.st_ino == there.st_ino;
}

/* ---- what killed masters have left ------------------------------------------------------------------------------ */

static void remove_if_left(int directory, const char *heap)
{
	char lock[TN_HEAP_NAME_MAX + 8], sock[TN_HEAP_NAME_MAX + 8];
	struct tn_fork_fd forked = {0};
	int fd;

	file_name(heap, "lock", lock);
	file_name(heap, "sock", sock);
	fd = open_lock(directory, lock, 0, &forked);
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && is_named(directory, lock, fd)) {
		unlinkat(directory, sock, 0); /* first: a socket without its lock would stay for ever */
		unlinkat(directory, lock, 0);
	}
	close_lock(fd, &forked);
}

static void remove_left(int directory)
{
	int fd = tn_above_streams(openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	char heap[TN_HEAP_NAME_MAX + 8];
	const struct dirent *entry;

	if (!dir && fd >= 0)
		close(fd);
	while (dir && (entry = readdir(dir))) {
		size_t n = strlen(entry->d_name);

		if (n <= 5 || n - 5 > TN_HEAP_NAME_MAX || strcmp(entry->d_name + n - 5, ".lock") != 0)
			continue;
		snprintf(heap, sizeof(heap), "%.*s", (int)(n - 5), entry->d_name);
		remove_if_left(directory, heap);
	}
	if (dir)
		closedir(dir);
}

/* ---- taking and leaving ----------------------------------------------------------------------------------------- */

/* Whether a master listens: 1, 0, or -errno. The queue of one that is stopped may be full. */
static int has_listener(const struct tn_heap_seat *seat, const char *heap)
{
	struct sockaddr_un address;
	socklen_t len = tn_heap_address(seat->directory, heap, &address);
	int fd, rc;

	tn_fork_lock();
	fd = tn_above_streams(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	rc = fd < 0 ? -errno : connect(fd, (struct sockaddr *)&address, len) == 0 || errno == EAGAIN;
	if (fd >= 0)
		close(fd);
	tn_fork_unlock();
	return rc;
}

/*
 * Who has the lock may be no master: a process that removes old files, or a master that begins or ends. So it counts as one only if it listens, and still does after
 * CLOSING_NS (lock and socket of a killed process were seen for some milliseconds after waitpid had told its end), and else is waited for. 0, -EBUSY (there is a master), -ETIMEDOUT, -EAGAIN: the file was removed meanwhile by who had the lock, and is nobody's any more.
 */
static int wait_for_lock(const struct tn_heap_seat *seat, const char *heap, const char *name, uint64_t deadline_ns)
{
	uint64_t begin = tn_now_ns(&tn_clock_system);

	while (flock(seat->lock, LOCK_EX | LOCK_NB)) {
		uint64_t now = tn_now_ns(&tn_clock_system);
		int rc = errno == EWOULDBLOCK ? 0 : -errno;

		if (rc)
			return tn_fail(rc, "the lock of heap %s: %s", heap, strerror(-rc));
		if (!is_named(seat->directory, name, seat->lock))
			return -EAGAIN;
		rc = has_listener(seat, heap);
		if (rc < 0)
			return tn_fail(rc, "the socket of heap %s: %s", heap, strerror(-rc));
		if (rc && now >= begin + CLOSING_NS)
			return tn_fail(-EBUSY, "heap %s has a master already", heap);
		if (!rc && now >= deadline_ns)
			return tn_fail(-ETIMEDOUT, "%s is locked by a process that does not listen as a master: is it stopped?", name);
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	return is_named(seat->directory, name, seat->lock) ? 0 : -EAGAIN;
}

/* The name is this process's while it has the lock. 0, and the errors of wait_for_lock. */
static int try_lock(struct tn_heap_seat *seat, const char *heap, uint64_t deadline_ns)
{
	char name[TN_HEAP_NAME_MAX + 8];
	int rc;

	file_name(heap, "lock", name);
	seat->lock = open_lock(seat->directory, name, O_CREAT, &seat->forked_lock);
	if (seat->lock < 0)
		return tn_fail(-errno, "the lock of heap %s: %s", heap, strerror(errno));
	rc = wait_for_lock(seat, heap, name, deadline_ns);
	seat->locked = rc == 0;
	return rc;
}

static int bind_socket(struct tn_heap_seat *seat, const char *heap)
{
	char name[TN_HEAP_NAME_MAX + 8];
	struct sockaddr_un address;
	socklen_t len;

	file_name(heap, "sock", name);
	unlinkat(seat->directory, name, 0); /* of a master that was killed */
	len = tn_heap_address(seat->directory, heap, &address);
	tn_fork_lock();
	seat->sock = tn_above_streams(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (seat->sock >= 0)
		tn_fork_watch(&seat->forked_sock, seat->sock);
	tn_fork_unlock();
	if (seat->sock < 0 || bind(seat->sock, (struct sockaddr *)&address, len))
		return tn_fail(-errno, "the socket of heap %s: %s", heap, strerror(errno));
	return 0;
}

int tn_heap_seat_take(struct tn_heap_seat *seat, const char *heap, uint64_t timeout_ns)
{
	uint64_t deadline_ns = tn_now_ns(&tn_clock_system) + timeout_ns;
	int rc;

	*seat = (struct tn_heap_seat){.directory = -1, .lock = -1, .sock = -1};
	rc = tn_heap_directory_open(&seat->directory);
	if (rc)
		return rc;
	while ((rc = try_lock(seat, heap, deadline_ns)) == -EAGAIN)
		close_lock(seat->lock, &seat->forked_lock);
	if (rc)
		return rc;
	remove_left(seat->directory);
	return bind_socket(seat, heap);
}

void tn_heap_seat_leave(struct tn_heap_seat *seat, const char *heap)
{
	char name[TN_HEAP_NAME_MAX + 8];

	tn_fork_unwatch(&seat->forked_sock);
	if (seat->sock >= 0)
		close(seat->sock);
	if (seat->locked) {
		file_name(heap, "sock", name);
		unlinkat(seat->directory, name, 0);
		file_name(heap, "lock", name);
		unlinkat(seat->directory, name, 0);
	}
	close_lock(seat->lock, &seat->forked_lock);
	if (seat->directory >= 0)
		close(seat->directory);
}
