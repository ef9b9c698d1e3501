/* SPDX-License-Identifier: Apache-2.0 */
#include "base/proc.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

void tn_boot_id(uint64_t id[2])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	uint64_t part[5];

	id[0] = id[1] = 0;
	if (f && fscanf(f, "%8" SCNx64 "-%4" SCNx64 "-%4" SCNx64 "-%4" SCNx64 "-%12" SCNx64, &part[0], &part[1], &part[2],
			&part[3], &part[4]) == 5) {
		id[0] = part[0] << 32 | part[1] << 16 | part[2];
		id[1] = part[3] << 48 | part[4];
	}
	if (f)
		fclose(f);
}

static bool has_open(pid_t pid, const struct stat *file)
{
	bool found = false;
	struct dirent *e;
	struct stat st;
	char path[64];
	DIR *fds;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	fds = opendir(path);
	while (!found && fds && (e = readdir(fds)))
		found = e->d_name[0] != '.' && fstatat(dirfd(fds), e->d_name, &st, 0) == 0 && st.st_dev == file->st_dev &&
			st.st_ino == file->st_ino;
	if (fds)
		closedir(fds);
	return found;
}

pid_t tn_file_holder(const char *path, pid_t first)
{
	pid_t holder = 0, pid;
	struct dirent *e;
	struct stat file;
	DIR *all;

	if (stat(path, &file))
		return 0;
	if (first > 0 && has_open(first, &file))
		return first;
	all = opendir("/proc");
	while (!holder && all && (e = readdir(all))) {
		pid = (pid_t)strtol(e->d_name, NULL, 10);
		if (pid > 0 && pid != getpid() && has_open(pid, &file))
			holder = pid;
	}
	if (all)
		closedir(all);
	return holder;
}

bool tn_process_lives(pid_t pid)
{
	return pid > 0 && (kill(pid, 0) == 0 || errno != ESRCH);
}

bool tn_peer_is_dead(int sock)
{
	socklen_t len = sizeof(struct ucred);
	struct pollfd p = {.events = POLLIN};
	struct ucred peer;
	bool dead;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) || peer.pid <= 0)
		return false; /* of another namespace of processes: it is not known */
	p.fd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
	if (p.fd < 0)
		return errno == ESRCH;
	dead = poll(&p, 1, 0) > 0;
	close(p.fd);
	return dead;
}
