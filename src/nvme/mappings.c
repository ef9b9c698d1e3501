/* SPDX-License-Identifier: Apache-2.0 */
/* See mappings.h. */
#include "nvme/mappings.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

static struct tn_nvme_mapped *mapped_at(struct tn_nvme_mappings *ms, const void *memory, uint64_t bytes)
{
	for (uint32_t i = 0; i < TN_NVME_MEMORIES; i++)
		if (ms->mapped[i].memory == memory && ms->mapped[i].bytes == bytes)
			return &ms->mapped[i];
	return NULL;
}

static bool meets_mapped(const struct tn_nvme_mappings *ms, uintptr_t memory, uint64_t bytes)
{
	for (uint32_t i = 0; i < TN_NVME_MEMORIES; i++)
		if (memory < (uintptr_t)ms->mapped[i].memory + ms->mapped[i].bytes && (uintptr_t)ms->mapped[i].memory < memory + bytes)
			return true;
	return false;
}

static int attach(struct tn_nvme_mappings *ms, const struct tn_nvme_provider *by, void *memory, uint64_t bytes)
{
	const struct tn_nvme_port *port = ms->port;

	return by ? by->attach(by->arg, port, memory, bytes) : port->map(port->arg, memory, bytes);
}

static void detach(struct tn_nvme_mappings *ms, const struct tn_nvme_provider *by, void *memory, uint64_t bytes)
{
	const struct tn_nvme_port *port = ms->port;

	if (by)
		by->detach(by->arg, port, memory, bytes);
	else
		port->unmap(port->arg, memory, bytes);
}

/* Under lock. */
static int map(struct tn_nvme_mappings *ms, struct tn_nvme_mapped *m, const struct tn_nvme_provider *by, void *memory, uint64_t bytes)
{
	const struct tn_nvme_port *port = ms->port;
	const struct tn_p2p_range range = {(uintptr_t)memory, bytes};
	int rc;

	if (!m)
		return tn_fail(-ENOSPC, "nvme: %u memories are mapped", TN_NVME_MEMORIES);
	if (meets_mapped(ms, (uintptr_t)memory, bytes))
		return tn_fail(-EEXIST, "nvme: some of the %llu bytes at %p are mapped already, beside others", (unsigned long long)bytes, memory);
	rc = attach(ms, by, memory, bytes);
	if (rc)
		return rc;
	rc = tn_p2p_create(&range, 1, by ? by->translate : port->translate, by ? by->arg : port->arg, ms->alloc, &m->table);
	if (rc) {
		detach(ms, by, memory, bytes);
		return rc;
	}
	m->memory = memory;
	m->bytes = bytes;
	m->by = by;
	return 0;
}

void tn_nvme_mappings_init(struct tn_nvme_mappings *ms, const struct tn_nvme_port *port, const struct tn_alloc *alloc)
{
	ms->port = port;
	ms->alloc = alloc;
	pthread_mutex_init(&ms->lock, NULL);
}

void tn_nvme_mappings_fini(struct tn_nvme_mappings *ms)
{
	pthread_mutex_destroy(&ms->lock);
}

int tn_nvme_mappings_map(struct tn_nvme_mappings *ms, const struct tn_nvme_provider *by, void *memory, uint64_t bytes, const struct tn_p2p **table)
{
	struct tn_nvme_mapped *m;
	int rc = 0;

	if (bytes == 0 || bytes % TN_NVME_PAGE || (uintptr_t)memory % TN_NVME_PAGE)
		return tn_fail(-EINVAL, "nvme: %llu bytes at %p are not whole pages", (unsigned long long)bytes, memory);
	pthread_mutex_lock(&ms->lock);
	m = mapped_at(ms, memory, bytes);
	if (!m) {
		m = mapped_at(ms, NULL, 0);
		rc = map(ms, m, by, memory, bytes);
	} else if (!m->users) {
		rc = tn_fail(-EBUSY, "nvme: commands that have not ended name the %llu bytes at %p as they were mapped before", (unsigned long long)bytes, memory);
	} else if (m->by != by) {
		rc = tn_fail(-EEXIST, "nvme: the %llu bytes at %p are mapped already, by another provider", (unsigned long long)bytes, memory);
	}
	if (rc == 0) {
		m->users++;
		*table = m->table;
	}
	pthread_mutex_unlock(&ms->lock);
	return rc;
}

void tn_nvme_mappings_change(struct tn_nvme_mappings *ms, void *memory, uint64_t bytes, int users, int holders)
{
	struct tn_nvme_mapped *m;

	pthread_mutex_lock(&ms->lock);
	m = mapped_at(ms, memory, bytes);
	if (m) {
		m->users += users;
		m->holders += holders;
	}
	if (m && !m->users && !m->holders) {
		tn_p2p_destroy(m->table);
		detach(ms, m->by, memory, bytes);
		memset(m, 0, sizeof(*m));
	}
	pthread_mutex_unlock(&ms->lock);
}
