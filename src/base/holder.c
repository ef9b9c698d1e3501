/* SPDX-License-Identifier: Apache-2.0 */
#include "base/holder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

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
