/* SPDX-License-Identifier: Apache-2.0 */
/* The file behind memory of this process that it has mapped itself: a memfd, POSIX shared memory or hugetlbfs. The kernel tells in /proc. */
#include "base/shared_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/descriptor.h"

#define LINE 4400u /* of /proc/self/maps: numbers, and a path */

/* A shared mapping, or several of one file that follow each other in both. */
struct mapping {
	uintptr_t address, end;
	uint64_t offset;
	dev_t device;
	ino_t inode;
	char path[LINE];
};

static bool parse(const char *line, struct mapping *m)
{
	unsigned major, minor;
	char rights[5];
	int at = 0;

	*m = (struct mapping){0};
	if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %lu %n", &m->address, &m->end, rights, &m->offset, &major, &minor,
		   &m->inode, &at) < 7)
		return false;
	m->device = makedev(major, minor);
	snprintf(m->path, sizeof(m->path), "%.*s", (int)strcspn(line + at, "\n"), line + at);
	return rights[3] == 's' && m->inode;
}

static bool follows(const struct mapping *a, const struct mapping *b)
{
	return a->end == b->address && a->device == b->device && a->inode == b->inode && a->offset + (a->end - a->address) == b->offset;
}

/* False: some of the bytes are of this process alone, or of several files. */
static bool find(uintptr_t address, uint64_t bytes, struct mapping *out)
{
	FILE *f = fopen("/proc/self/maps", "re");
	struct mapping m;
	char line[LINE];
	bool found = false, whole = false;

	while (f && !whole && fgets(line, sizeof(line), f)) {
		bool shared = parse(line, &m);

		if (found && shared && follows(out, &m))
			out->end = m.end;
		else if (found)
			break;
		else if (shared && address >= m.address && address < m.end)
			*out = m;
		else
			continue;
		found = true;
		whole = bytes <= out->end - address;
	}
	if (f)
		fclose(f);
	return whole;
}

/* The descriptor if it is of that file and may be written to, else -1. */
static int keep(int fd, const struct mapping *m)
{
	struct stat st;

	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == m->device && st.st_ino == m->inode && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* One that the process has open. */
static int open_one(const struct mapping *m)
{
	DIR *d = opendir("/proc/self/fd");
	const struct dirent *e;
	int fd = -1;

	while (d && fd < 0 && (e = readdir(d)) != NULL) {
		struct stat st;
		int other = (int)strtol(e->d_name, NULL, 10);

		/* By its name: another thread may close it meanwhile. */
		if (fstatat(dirfd(d), e->d_name, &st, 0) == 0 && st.st_dev == m->device && st.st_ino == m->inode)
			fd = keep(tn_above_streams(fcntl(other, F_DUPFD_CLOEXEC, 0)), m);
	}
	if (d)
		closedir(d);
	return fd;
}

int tn_shared_file(const void *address, uint64_t bytes, uint64_t *offset)
{
	struct mapping m;
	char path[64];
	int fd;

	if (!find((uintptr_t)address, bytes, &m))
		return -1;
	*offset = m.offset + ((uintptr_t)address - m.address);
	fd = open_one(&m);
	if (fd < 0)
		fd = keep(tn_above_streams(open(m.path, O_RDWR | O_CLOEXEC)), &m);
	snprintf(path, sizeof(path), "/proc/self/map_files/%" PRIxPTR "-%" PRIxPTR, m.address, m.end);
	return fd < 0 ? keep(tn_above_streams(open(path, O_RDWR | O_CLOEXEC)), &m) : fd; /* takes a privilege */
}
