/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this process that other processes can map, too: sealed memfds, of which the process has a list. */
#include "base/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/list.h"

#define HUGE_BYTES (UINT64_C(2) << 20)
#define PAGES_2MIB (21u << 26) /* MFD_HUGE_2MB of linux/memfd.h, which older C libraries do not have */

struct block {
	struct tn_list link;
	unsigned char *address;
	uint64_t bytes;
	uint64_t mark; /* of the process: its children have the entry and the descriptor, but not the memory */
	int fd;
};

/* Under the lock of fork.h: a child never has it locked by a thread that it does not have. */
static struct tn_list blocks = {&blocks, &blocks};

/* Maps so many bytes of a new file; NULL and errno. */
static void *map_new(uint64_t bytes, unsigned flags, int *fd)
{
	void *address = MAP_FAILED;

	*fd = tn_above_streams(memfd_create("tenuto-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
	if (*fd < 0)
		return NULL;
	if (ftruncate(*fd, (off_t)bytes) == 0 && fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
		address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (address != MAP_FAILED)
		return address;
	close(*fd);
	return NULL;
}

int tn_memory_alloc(uint64_t bytes, uint64_t *page_bytes, void **out)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct block *b;

	if (!out || bytes == 0 || bytes > INT64_MAX - HUGE_BYTES)
		return tn_fail(-EINVAL, "tn_memory_alloc: %llu bytes, or nowhere to return them", (unsigned long long)bytes);
	b = tn_get(&tn_alloc_system, sizeof(*b));
	if (!b)
		return tn_fail(-ENOMEM, "tn_memory_alloc: no memory");
	b->bytes = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
	b->address = bytes >= HUGE_BYTES ? map_new(b->bytes, MFD_HUGETLB | PAGES_2MIB, &b->fd) : NULL;
	if (b->address) {
		page = HUGE_BYTES;
	} else {
		b->bytes = (bytes + page - 1) / page * page;
		b->address = map_new(b->bytes, 0, &b->fd);
	}
	if (!b->address) {
		int rc = -errno;

		tn_put(&tn_alloc_system, b, sizeof(*b));
		return tn_fail(rc == -EINVAL ? -ENOMEM : rc, "tn_memory_alloc: %llu bytes: %s", (unsigned long long)bytes, strerror(-rc));
	}
	b->mark = tn_process_mark();
	madvise(b->address, b->bytes, MADV_HUGEPAGE);
	madvise(b->address, b->bytes, MADV_DONTFORK);
	tn_fork_lock();
	tn_list_push(&blocks, &b->link);
	tn_fork_unlock();
	if (page_bytes)
		*page_bytes = page;
	*out = b->address;
	return 0;
}

static struct block *find(const unsigned char *address, uint64_t bytes)
{
	for (struct tn_list *pos = blocks.next; pos != &blocks; pos = pos->next) {
		struct block *b = tn_container_of(pos, struct block, link);

		if (tn_process_is(b->mark) && address >= b->address && address < b->address + b->bytes && bytes <= (uint64_t)(b->address + b->bytes - address))
			return b;
	}
	return NULL;
}

int tn_memory_free(void *memory)
{
	struct block *b;

	if (!memory)
		return 0;
	tn_fork_lock();
	b = find(memory, 1);
	if (b && b->address == memory)
		tn_list_del(&b->link);
	else
		b = NULL;
	tn_fork_unlock();
	if (!b)
		return tn_fail(-EINVAL, "tn_memory_free: %p is not what tn_memory_alloc returned", memory);
	munmap(b->address, b->bytes);
	close(b->fd);
	tn_put(&tn_alloc_system, b, sizeof(*b));
	return 0;
}

int tn_memory_file(const void *address, uint64_t bytes, uint64_t *offset)
{
	const struct block *b;

	tn_fork_lock();
	b = find(address, bytes);
	tn_fork_unlock();
	if (!b)
		return -1;
	*offset = (uint64_t)((const unsigned char *)address - b->address);
	return b->fd;
}
