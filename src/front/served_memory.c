/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memories of processes that have attached, as the owner's process maps them.
 *
 * A file of memory may lose pages at any time: no seal keeps a memfd from being punched, and files in /dev/shm take no seals. So each mapping
 * is guarded (base/guard.h), and what uses memory that is lost fails with -EFAULT, for that process alone. Files of other file systems are
 * refused: a page of a disk, of FUSE or of a network can keep a thread that touches it waiting for ever, and so can the file itself, asked for its
 * status or closed. What a descriptor is the kernel tells without them.
 *
 * What is mapped takes addresses and mappings of the owner's process, whether or not it has pages: both are bounded, for each process and for all.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "front/attach.h"
#include "front/serve.h"

/* ---- descriptors ---------------------------------------------------------------------------------------------- */

#define CLOSING_MAX 16u

struct strangers {
	uint32_t n;
	int fd[TN_WIRE_RANGES_MAX];
};

static uint32_t closing; /* shared: threads of this process that close strangers */

/* Files that can be sealed are the kernel's memory; of others no more than this is asked. */
static bool is_memory(int fd)
{
	return fcntl(fd, F_GET_SEALS) >= 0;
}

bool tn_served_takes_descriptors(void)
{
	return __atomic_load_n(&closing, __ATOMIC_ACQUIRE) < CLOSING_MAX;
}

static void *close_strangers(void *arg)
{
	struct strangers *s = arg;

	for (uint32_t i = 0; i < s->n; i++)
		close(s->fd[i]);
	tn_put(&tn_alloc_system, s, sizeof(*s));
	__atomic_sub_fetch(&closing, 1, __ATOMIC_RELEASE);
	return NULL;
}

void tn_served_close(const int *fds, uint32_t nfds)
{
	struct strangers *s = NULL;
	pthread_t thread;

	for (uint32_t i = 0; i < nfds; i++) {
		if (!is_memory(fds[i]) && !s)
			s = tn_get(&tn_alloc_system, sizeof(*s));
		if (s && !is_memory(fds[i]))
			s->fd[s->n++] = fds[i];
		else
			close(fds[i]);
	}
	if (!s)
		return;
	__atomic_add_fetch(&closing, 1, __ATOMIC_RELAXED);
	if (tn_thread_start(&thread, close_strangers, s))
		close_strangers(s); /* there is nobody else who could */
	else
		pthread_detach(thread);
}

static int check_file(const struct tn_served *s, int fd, uint64_t offset, uint64_t bytes, uint64_t *page_bytes)
{
	struct statfs fs;
	struct stat st;

	if (!is_memory(fd))
		return tn_fail(-EINVAL, "process %d registers a file that is no memory; take a memfd, hugetlbfs, POSIX shared memory or "
			       "tn_memory_alloc", (int)s->pid);
	if (fstat(fd, &st) || fstatfs(fd, &fs))
		return tn_fail(-errno, "process %d registers a descriptor that tells nothing of itself: %s", (int)s->pid, strerror(errno));
	if (!S_ISREG(st.st_mode) || (fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC))
		return tn_fail(-EINVAL, "process %d registers a file that is no memory (of file system %#lx); take a memfd, hugetlbfs, POSIX "
			       "shared memory or tn_memory_alloc", (int)s->pid, (unsigned long)fs.f_type);
	if (bytes == 0 || offset > (uint64_t)st.st_size || bytes > (uint64_t)st.st_size - offset)
		return tn_fail(-EINVAL, "process %d registers %llu bytes at %llu of a file with %lld", (int)s->pid,
			       (unsigned long long)bytes, (unsigned long long)offset, (long long)st.st_size);
	*page_bytes = (uint64_t)fs.f_bsize;
	return 0;
}

/* ---- how much ------------------------------------------------------------------------------------------------- */

#define ADDRESSES_MAX (UINT64_C(1) << 46) /* half of what a process has, of 47 bits */

static uint64_t mapped_by_all; /* shared: bytes of all sessions of this process */

static uint64_t machine_bytes(void)
{
	struct sysinfo i;
	uint64_t bytes;

	return sysinfo(&i) || __builtin_mul_overflow((uint64_t)i.totalram + i.totalswap, (uint64_t)i.mem_unit, &bytes) ? UINT64_MAX : bytes;
}

/* Under lock, as what follows. */
static int reserve(struct tn_served *s, uint64_t bytes)
{
	uint64_t most = s->rule->max_memory_bytes ? s->rule->max_memory_bytes : machine_bytes();

	if (s->mappings == TN_SERVED_RANGES)
		return tn_fail(-ENOSPC, "process %d has %u ranges of memory registered, the most there can be; unregister some, or make ranges one",
			       (int)s->pid, TN_SERVED_RANGES);
	if (bytes > most || s->mapped_bytes > most - bytes)
		return tn_fail(-ENOSPC, "process %d registers %llu bytes and has %llu, of at most %llu; unregister some, or have the cache's owner raise "
			       "max_memory_bytes of its rule", (int)s->pid, (unsigned long long)bytes, (unsigned long long)s->mapped_bytes,
			       (unsigned long long)most);
	if (bytes > ADDRESSES_MAX || __atomic_add_fetch(&mapped_by_all, bytes, __ATOMIC_RELAXED) > ADDRESSES_MAX) {
		if (bytes <= ADDRESSES_MAX)
			__atomic_sub_fetch(&mapped_by_all, bytes, __ATOMIC_RELAXED);
		return tn_fail(-ENOSPC, "process %d registers %llu bytes: the owner's process maps at most %llu of all that are attached; unregister some",
			       (int)s->pid, (unsigned long long)bytes, (unsigned long long)ADDRESSES_MAX);
	}
	s->mapped_bytes += bytes;
	s->mappings++;
	return 0;
}

static void unreserve(struct tn_served *s, uint64_t bytes)
{
	__atomic_sub_fetch(&mapped_by_all, bytes, __ATOMIC_RELAXED);
	s->mapped_bytes -= bytes;
	s->mappings--;
}

/* ---- mapping -------------------------------------------------------------------------------------------------- */

static void unmap(struct tn_served *s, struct tn_served_memory *m)
{
	for (uint32_t i = 0; i < m->nranges; i++) {
		tn_guard_remove(&m->guard[i]);
		munmap(m->mapped[i].address, m->mapped[i].bytes);
		unreserve(s, m->mapped[i].bytes);
	}
	m->nranges = 0;
	m->memory = NULL;
}

static int map(struct tn_served *s, const struct tn_wire_memory *w, const int *fds, struct tn_served_memory *m)
{
	m->lost = 0;
	for (uint32_t i = 0; i < w->nranges; i++) {
		uint64_t offset = w->range[i].offset, bytes = w->range[i].bytes, page = 1, into, whole;
		int rc = check_file(s, fds[i], offset, bytes, &page);
		unsigned char *address;

		if (rc)
			return rc;
		into = offset % page;
		whole = (into + bytes + page - 1) / page * page;
		rc = reserve(s, whole);
		if (rc)
			return rc;
		address = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], (off_t)(offset - into));
		if (address == MAP_FAILED) {
			rc = -errno;
			unreserve(s, whole);
			return tn_fail(rc, "cannot map %llu bytes of process %d: %s", (unsigned long long)bytes, (int)s->pid, strerror(-rc));
		}
		madvise(address, whole, MADV_DONTFORK);
		m->mapped[i] = (struct tn_memory_range){.address = address, .bytes = whole};
		m->range[m->nranges++] = (struct tn_memory_range){.address = address + into, .bytes = bytes};
		rc = tn_guard_add(&m->guard[i], address, whole, &m->lost);
		if (rc)
			return rc;
	}
	return 0;
}

int tn_served_memory(struct tn_served *s, const struct tn_wire_memory *w, const int *fds, uint32_t nfds, uint32_t *number)
{
	struct tn_memory_desc d;
	struct tn_served_memory *m;
	uint32_t i = 0;
	int rc;

	if (nfds == 0 && !tn_served_takes_descriptors())
		return tn_fail(-EAGAIN, "process %d registers memory, and %u messages with descriptors of other files wait to be closed: a file system "
			       "does not answer. Try again when it does", (int)s->pid, CLOSING_MAX);
	if (w->nranges == 0 || w->nranges > TN_WIRE_RANGES_MAX || w->nranges != nfds)
		return tn_fail(-EINVAL, "process %d registers %u ranges with %u descriptors", (int)s->pid, w->nranges, nfds);
	pthread_mutex_lock(&s->lock);
	while (i < TN_SERVED_MEMORIES && s->memory[i].memory)
		i++;
	m = &s->memory[i < TN_SERVED_MEMORIES ? i : 0];
	rc = i < TN_SERVED_MEMORIES ? map(s, w, fds, m)
				    : tn_fail(-ENOSPC, "process %d has %u memories; unregister some", (int)s->pid, TN_SERVED_MEMORIES);
	tn_memory_desc_init(&d);
	d.nranges = m->nranges;
	d.ranges = m->range;
	if (rc == 0)
		rc = tn_memory_register_for(s->cache, &d, s->session, &m->memory);
	if (rc == 0) {
		m->memory->staged = w->staged;
		m->memory->mapping.lost = &m->lost;
	} else if (i < TN_SERVED_MEMORIES) {
		unmap(s, m);
	}
	pthread_mutex_unlock(&s->lock);
	*number = i;
	return rc;
}

int tn_served_forget(struct tn_served *s, uint32_t number)
{
	struct tn_served_memory *m = number < TN_SERVED_MEMORIES ? &s->memory[number] : NULL;
	int rc;

	pthread_mutex_lock(&s->lock);
	if (!m || !m->memory)
		rc = tn_fail(-EINVAL, "process %d has no memory %u", (int)s->pid, number);
	else
		rc = tn_memory_unregister(m->memory);
	if (rc == 0)
		unmap(s, m);
	pthread_mutex_unlock(&s->lock);
	return rc;
}
