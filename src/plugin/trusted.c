/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/trusted.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

/* One directory or file of the path: the first `bytes` of it. holds: it is the directory of the file. */
static int check(const struct stat *st, const char *path, int bytes, bool holds)
{
	bool sticky = S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX);
	unsigned mode = (unsigned)st->st_mode & 07777;

	if (st->st_uid != 0 && st->st_uid != geteuid())
		return tn_fail(-EPERM, "'%.*s' belongs to uid %u, who could change it: it must belong to root or to uid %u, as whom this process runs",
			       bytes, path, (unsigned)st->st_uid, (unsigned)geteuid());
	if (!(st->st_mode & (S_IWGRP | S_IWOTH)) || (sticky && !holds))
		return 0;
	return tn_fail(-EPERM, "'%.*s' may be written by %s (mode %04o): let its owner alone write it: chmod go-w", bytes, path,
		       st->st_mode & S_IWOTH ? "everyone" : "its group", mode);
}

static int open_next(int at, const char *name, bool last, bool file)
{
	if (last && file)
		return openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	return openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* real: absolute, without links. Checks each part of it; the descriptor of the last one. */
static int walk(char *real, bool file)
{
	char *name = real + 1, *end = name;
	int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), next, rc = 0;
	struct stat st;
	bool last, holds;

	if (fd < 0 || fstat(fd, &st))
		rc = tn_fail(-errno, "'/': %s", strerror(errno));
	else
		rc = check(&st, "/", 1, file ? !strchr(name, '/') : !*name);
	for (; rc == 0 && *name; name = last ? end : end + 1) {
		end = strchrnul(name, '/');
		last = !*end;
		*end = '\0';
		next = open_next(fd, name, last, file);
		if (next < 0 || fstat(next, &st))
			rc = tn_fail(-errno, "'%s': %s", real, strerror(errno));
		if (!last)
			*end = '/';
		close(fd);
		fd = next;
		holds = file ? !last && !strchr(end + 1, '/') : last;
		if (rc == 0)
			rc = check(&st, real, (int)(end - real), holds);
	}
	if (rc == 0 && file && !S_ISREG(st.st_mode))
		rc = tn_fail(-EPERM, "'%s' is no regular file: a plugin is one", real);
	if (rc == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return rc;
}

static int open_trusted(const char *path, char real[PATH_MAX], bool file)
{
	if (!realpath(path, real))
		return tn_fail(-errno, "'%s': %s", path, strerror(errno));
	return walk(real, file);
}

int tn_trusted_directory(const char *path, char real[PATH_MAX])
{
	return open_trusted(path, real, false);
}

int tn_trusted_file(const char *path, char real[PATH_MAX])
{
	size_t bytes = (size_t)(strrchr(path, '/') + 1 - path);
	char directory[PATH_MAX];
	int fd;

	if (bytes >= sizeof(directory))
		return tn_fail(-ENAMETOOLONG, "'%.100s...': %s", path, strerror(ENAMETOOLONG));
	memcpy(directory, path, bytes);
	directory[bytes] = '\0';
	fd = open_trusted(directory, real, false);
	if (fd < 0)
		return fd;
	close(fd);
	return open_trusted(path, real, true);
}
