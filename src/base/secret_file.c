/* SPDX-License-Identifier: Apache-2.0 */
#include "base/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

static int check_file(const char *path, int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		return tn_fail(-errno, "%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return tn_fail(-EPERM, "%s is no file; give a file that holds the secret", path);
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return tn_fail(-EPERM, "%s belongs to user %u; give a file of user %u or root", path, (unsigned)st.st_uid, (unsigned)geteuid());
	if (st.st_mode & (S_IRWXG | S_IRWXO))
		return tn_fail(-EPERM, "%s has mode %04o: others may use the secret; chmod 0600 it", path, (unsigned)st.st_mode & 07777);
	return 0;
}

static int read_bytes(const char *path, int fd, unsigned char *bytes, size_t *n)
{
	ssize_t got = 1;

	*n = 0;
	while (got > 0 && *n <= TN_SECRET_FILE_MOST) {
		got = read(fd, bytes + *n, TN_SECRET_FILE_MOST + 1 - *n);
		if (got < 0 && errno != EINTR)
			return tn_fail(-errno, "%s: %s", path, strerror(errno));
		*n += got > 0 ? (size_t)got : 0;
		got = got < 0 ? 1 : got;
	}
	if (*n > 0 && bytes[*n - 1] == '\n')
		(*n)--;
	if (*n < TN_SECRET_FILE_LEAST || *n > TN_SECRET_FILE_MOST)
		return tn_fail(-EINVAL, "%s has %zu bytes; a secret has %u to %u, as `openssl rand -hex 32` makes one", path, *n, TN_SECRET_FILE_LEAST,
			       TN_SECRET_FILE_MOST);
	return 0;
}

int tn_secret_read(const char *path, struct tn_secret *out)
{
	const struct tn_secret none = {{0, 0}};
	const struct tn_key first = {{0, 0}};
	unsigned char bytes[TN_SECRET_FILE_MOST + 1];
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), rc;
	struct tn_key hash;
	size_t n;

	if (fd < 0)
		return tn_fail(-errno, "%s: %s", path, strerror(errno));
	rc = check_file(path, fd);
	rc = rc ? rc : read_bytes(path, fd, bytes, &n);
	close(fd);
	if (rc)
		return rc;
	hash = tn_hash_chain(&none, &first, bytes, n);
	explicit_bzero(bytes, sizeof(bytes));
	memcpy(out->word, hash.word, sizeof(out->word));
	return 0;
}
