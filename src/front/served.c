/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session's beginning and end in the owner's process: its region, its tables, its place in the core. What it asks in between is answered by
 * answer.c; who may begin one decides serve.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error.h"
#include "front/serve.h"
#include "region/call.h"

#define CALL_BYTES_LEAST (64u << 10)

void tn_served_destroy(struct tn_served *s)
{
	const struct tn_alloc *a = s->cache->alloc;

	tn_peers_leave(s->cache->peers, &s->peer);
	tn_session_destroy(s->session);
	tn_rules_put(s->rules);
	if (s->region.base)
		__atomic_store_n(&tn_region_core(&s->region)->let_go, 1, __ATOMIC_RELEASE);
	tn_guard_remove(&s->guard);
	if (s->region.base)
		munmap(s->region.base, s->region.bytes);
	if (s->process >= 0)
		close(s->process);
	shutdown(s->sock, SHUT_RDWR); /* forked children may have it, too */
	close(s->sock);
	tn_put(a, s->pins, tn_array_bytes(s->cache->matches->nleases, sizeof(*s->pins)));
	tn_put(a, s->queries, tn_array_bytes(s->cache->matches->nqueries, sizeof(*s->queries)));
	tn_holder_fini(&s->holder, s->cache);
	tn_put(a, s->asked, s->region.counts.call_bytes);
	pthread_mutex_destroy(&s->lock);
	tn_put(a, s, sizeof(*s));
}

/* A region in a file whose size is sealed. */
static int make_region(struct tn_served *s, int *fd)
{
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
	struct tn_region_counts counts;
	uint64_t bytes;
	void *base;

	tn_session_counts(s->cache, &counts);
	counts.ops = counts.ops < TN_SESSION_OPS_MAX ? counts.ops : TN_SESSION_OPS_MAX;
	counts.calls = TN_WIRE_CALLS;
	counts.call_bytes = s->cache->o.max_op_blocks * (uint32_t)(sizeof(struct tn_key) + 1) + CALL_BYTES_LEAST;
	counts.call_bytes = (counts.call_bytes + TN_REGION_CALL_ALIGN - 1) / TN_REGION_CALL_ALIGN * TN_REGION_CALL_ALIGN;
	bytes = tn_region_bytes(&counts, page);
	*fd = tn_above_streams(memfd_create("tenuto-session", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (*fd < 0 || ftruncate(*fd, (off_t)bytes) || fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return tn_fail(-errno, "cannot make a region of %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (base == MAP_FAILED)
		return tn_fail(-errno, "cannot map a region of %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
	madvise(base, bytes, MADV_DONTFORK);
	s->region = (struct tn_region){.base = base, .bytes = bytes};
	if (tn_guard_add(&s->guard, base, bytes, &s->lost))
		return tn_error_last()->code;
	return tn_region_format(base, &counts, page, true, &s->region);
}

int tn_served_check_hello(const struct tn_wire_hello *h, size_t bytes)
{
	if (bytes != sizeof(*h) || h->magic != TN_WIRE_MAGIC)
		return tn_fail(-EPROTONOSUPPORT, "%zu bytes that are no greeting of this version of Tenuto, which is %s", bytes, tn_version());
	if (strncmp(h->version, tn_version(), sizeof(h->version)) != 0 || h->command_bytes != sizeof(struct tn_command))
		return tn_fail(-EPROTONOSUPPORT, "the cache's owner has version %s of Tenuto, this process %.31s; use the same", tn_version(),
			       h->version);
	if (h->page_bytes != (uint32_t)sysconf(_SC_PAGESIZE))
		return tn_fail(-EPROTONOSUPPORT, "the cache's owner has pages of %ld bytes, this process of %u", sysconf(_SC_PAGESIZE),
			       h->page_bytes);
	return 0;
}

int tn_served_begin(struct tn_served *s, int *fd)
{
	const struct tn_alloc *a = s->cache->alloc;
	int rc = make_region(s, fd);

	if (rc == 0)
		rc = tn_session_create(s->cache, &s->region, &s->session);
	if (rc)
		return rc;
	rc = tn_holder_init(&s->holder, s->cache);
	if (rc)
		return rc;
	s->session->leased = &s->holder.listed;
	s->session->read_only = s->rule->read_only;
	s->session->max_priority = s->rule->max_priority;
	s->pins = tn_get(a, tn_array_bytes(s->cache->matches->nleases, sizeof(*s->pins)));
	s->queries = tn_get(a, tn_array_bytes(s->cache->matches->nqueries, sizeof(*s->queries)));
	s->asked = tn_get(a, s->region.counts.call_bytes);
	if (!s->pins || !s->queries || !s->asked)
		return tn_fail(-ENOMEM, "no memory for a session");
	return tn_owner_call(s->cache, tn_session_join, s->session);
}
