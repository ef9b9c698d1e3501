/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MMAP_FROM (2u << 20)
#define PAGE_BYTES 4096u

static void *system_get(void *arg, size_t bytes)
{
	void *p;

	if (bytes > SIZE_MAX / 2)
		return NULL;
	if (bytes >= MMAP_FROM) {
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			return NULL;
		madvise(p, bytes, MADV_HUGEPAGE); /* only a hint; refusal costs speed, nothing else */
		return p;
	}
	if (posix_memalign(&p, bytes < PAGE_BYTES ? 64 : PAGE_BYTES, bytes ? bytes : 1))
		return NULL;
	memset(p, 0, bytes);
	return p;
}

static void system_put(void *arg, void *p, size_t bytes)
{
	if (!p)
		return;
	if (bytes >= MMAP_FROM)
		munmap(p, bytes);
	else
		free(p);
}

static void system_sparse(void *arg, void *p, size_t bytes)
{
	if (bytes >= MMAP_FROM)
		madvise(p, bytes, MADV_NOHUGEPAGE);
}

const struct tn_alloc tn_alloc_system = {system_get, system_put, system_sparse, NULL};
