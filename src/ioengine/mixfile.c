/* SPDX-License-Identifier: Apache-2.0 */
/* See mixfile.h. Small files, read and written whole. */
#include "ioengine/mixfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error.h"
#include "ioengine/engine.h"

int tn_mixfile_load(const char *path, struct tn_mix *out)
{
	char text[TN_MIX_BYTES_MAX + 1]; /* one byte more, so that a longer file is noticed */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	size_t got = 0;
	ssize_t n = 1;

	if (fd < 0)
		return tn_fail(-errno, "%s: cannot open: %s", path, strerror(errno));
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return tn_fail(-EINVAL, "%s: must be a regular file", path);
	}
	while (got < sizeof(text) && (n = read(fd, text + got, sizeof(text) - got)) > 0)
		got += (size_t)n;
	n = n < 0 ? -errno : 0;
	close(fd);
	if (n)
		return tn_fail((int)n, "%s: cannot read: %s", path, strerror((int)-n));
	return tn_mix_parse(text, got, path, out);
}

static int write_durably(const char *path, const char *text, size_t bytes)
{
	int fd = tn_above_streams(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)), err = 0;
	ssize_t n;

	if (fd < 0)
		return tn_fail(-errno, "%s: cannot create: %s", path, strerror(errno));
	n = write(fd, text, bytes);
	if (n != (ssize_t)bytes)
		err = n < 0 ? errno : ENOSPC;
	else if (fsync(fd))
		err = errno;
	if (close(fd) && !err)
		err = errno;
	if (!err)
		return 0;
	unlink(path);
	return tn_fail(-err, "%s: cannot write: %s", path, strerror(err));
}

int tn_mixfile_save(const char *dir, const struct tn_mix *mix)
{
	char text[TN_MIX_BYTES_MAX], path[PATH_MAX], new[PATH_MAX];
	int n = tn_mix_print(mix, text, sizeof(text)), rc;

	if (n < 0)
		return n;
	if ((size_t)snprintf(path, sizeof(path), "%s/" TN_MIXFILE_NAME, dir) >= sizeof(path) ||
	    (size_t)snprintf(new, sizeof(new), "%s/" TN_MIXFILE_NAME ".new", dir) >= sizeof(new))
		return tn_fail(-ENAMETOOLONG, "directory %.100s...: the name is too long", dir);
	rc = write_durably(new, text, (size_t)n);
	if (rc)
		return rc;
	if (rename(new, path)) {
		rc = tn_fail(-errno, "%s: cannot rename to %s: %s", new, path, strerror(errno));
		unlink(new);
		return rc;
	}
	return tn_iofiles_sync_directory(path);
}
