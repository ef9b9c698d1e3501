/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch directories (scratch.h says what they are). */
#include "lab/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* All but the directory itself and its mark: without them a removal that is killed half-way could not be taken up again. */
static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	if (ftw->level == 0 || (ftw->level == 1 && !strcmp(path + ftw->base, TN_SCRATCH_MARK)))
		return 0;
	return remove(path);
}

int tn_scratch_remove(const char *path)
{
	char mark[PATH_MAX];
	int n = snprintf(mark, sizeof(mark), "%s/" TN_SCRATCH_MARK, path);

	if (!*path)
		return -EINVAL;
	if (n < 0 || (size_t)n >= sizeof(mark))
		return -ENAMETOOLONG;
	if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT))
		return -errno;
	unlink(mark);
	return rmdir(path) ? -errno : 0;
}

static bool is_ours(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && st.st_uid == geteuid() && !fstatat(fd, TN_SCRATCH_MARK, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) &&
	       st.st_uid == geteuid();
}

/* One entry of base. While the mark is looked at and the directory is removed, this process holds the lock. */
static void reclaim(int base_fd, const char *base, const char *name)
{
	int fd = openat(base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s/%s", base, name);

	if (fd < 0)
		return;
	if (n >= 0 && (size_t)n < sizeof(path) && !flock(fd, LOCK_EX | LOCK_NB) && is_ours(fd))
		tn_scratch_remove(path);
	close(fd);
}

static void reclaim_all(const char *base)
{
	DIR *dir = opendir(base);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (!strncmp(entry->d_name, TN_SCRATCH_NAME, strlen(TN_SCRATCH_NAME)))
			reclaim(dirfd(dir), base, entry->d_name);
	if (dir)
		closedir(dir);
}

/* First the lock, then the mark: another run that comes in between sees no mark. The descriptor stays open on purpose: it holds the lock. */
static void lock(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), mark = -1;

	if (fd >= 0 && !flock(fd, LOCK_EX))
		mark = openat(fd, TN_SCRATCH_MARK, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (mark >= 0)
		close(mark);
	else if (fd >= 0)
		close(fd);
}

int tn_scratch_make(const char *base, char *path, size_t path_bytes)
{
	int n = snprintf(path, path_bytes, "%s/" TN_SCRATCH_NAME "XXXXXX", base), rc = -ENAMETOOLONG;

	if (n >= 0 && (size_t)n < path_bytes) {
		reclaim_all(base);
		if (mkdtemp(path)) {
			lock(path);
			return 0;
		}
		rc = -errno;
	}
	path[0] = '\0';
	return rc;
}
