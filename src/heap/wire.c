/* SPDX-License-Identifier: Apache-2.0 */
/* What both ends of a heap's socket need: its address, and who is at the other end. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "heap/heap_internal.h"

socklen_t tn_heap_address(const char *name, struct sockaddr_un *out)
{
	int n;

	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	n = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "tenuto-heap/%u/%s", (unsigned)geteuid(), name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
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
