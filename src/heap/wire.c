/* SPDX-License-Identifier: Apache-2.0 */
/* What both ends of a heap's socket need: its address, and who is at the other end. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error.h"
#include "heap/heap_internal.h"

/* Another user cannot put a socket or a lock there, nor connect to one. */
static int check_private(int fd, const char *path)
{
	struct stat st;

	if (fstat(fd, &st))
		return tn_fail(-errno, "%s: %s", path, strerror(errno));
	if (st.st_uid != geteuid() || (st.st_mode & 077))
		return tn_fail(-EACCES, "%s is user %u's, mode %o: a heap needs a directory that is user %u's, mode 700; set XDG_RUNTIME_DIR", path,
			       st.st_uid, st.st_mode & 0777, geteuid());
	return 0;
}

int tn_heap_directory_open(int *out)
{
	const char *parent = secure_getenv("XDG_RUNTIME_DIR");
	char path[PATH_MAX];
	int fd, rc;

	if (snprintf(path, sizeof(path), "%s/tenuto-heap-%u", parent && *parent ? parent : "/tmp", (unsigned)geteuid()) >= (int)sizeof(path))
		return tn_fail(-ENAMETOOLONG, "XDG_RUNTIME_DIR is longer than a path may be");
	if (mkdir(path, 0700) && errno != EEXIST)
		return tn_fail(-errno, "mkdir %s: %s; set XDG_RUNTIME_DIR", path, strerror(errno));
	fd = tn_above_streams(open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
	if (fd < 0)
		return tn_fail(-errno, "%s: %s", path, strerror(errno));
	rc = check_private(fd, path);
	if (rc)
		close(fd);
	else
		*out = fd;
	return rc;
}

socklen_t tn_heap_address(int directory, const char *name, struct sockaddr_un *out)
{
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(out->sun_path, sizeof(out->sun_path), "/proc/self/fd/%d/%s.sock", directory, name);
	return (socklen_t)sizeof(*out);
}

int tn_heap_peer(int sock, pid_t *pid)
{
	socklen_t len = sizeof(struct ucred);
	struct ucred peer;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len))
		return tn_fail(-errno, "the peer's credentials are not known: %s", strerror(errno));
	if (peer.uid != geteuid())
		return tn_fail(-EACCES, "the heap's name is taken by user %u, this process is user %u's: use another name", peer.uid, geteuid());
	*pid = peer.pid;
	return 0;
}

int tn_heap_process_start(pid_t pid, uint64_t *out)
{
	unsigned long long start = 0;
	char path[64], line[1024], *at;
	FILE *f;
	int rc;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	/* Field 22; the name in parentheses may hold anything. */
	rc = fgets(line, sizeof(line), f) && (at = strrchr(line, ')')) &&
	     sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &start) == 1 ? 0 : -EIO;
	fclose(f);
	if (rc == 0)
		*out = start;
	return rc;
}
