/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memories that a controller may reach, by way of its port or of a provider of bus addresses: a P2P table each, which all who map the memory share.
 *
 * Any thread maps and unmaps.
 */
#ifndef TN_NVME_MAPPINGS_H
#define TN_NVME_MAPPINGS_H

#include <pthread.h>

#include "nvme/controller.h"

/* Memory that was mapped by so many, or that so many hold. by: who knows its place on the bus; NULL: the port. */
struct tn_nvme_mapped {
	void *memory;
	uint64_t bytes;
	const struct tn_nvme_provider *by;
	struct tn_p2p *table;
	int users, holders;
};

struct tn_nvme_mappings {
	const struct tn_nvme_port *port;
	const struct tn_alloc *alloc;
	pthread_mutex_t lock; /* its own: pinning a large memory takes seconds, in which a reset must not have to wait */
	struct tn_nvme_mapped mapped[TN_NVME_MEMORIES];
};

/* Of zeroed memory. */
void tn_nvme_mappings_init(struct tn_nvme_mappings *ms, const struct tn_nvme_port *port, const struct tn_alloc *alloc);
/* All is unmapped. */
void tn_nvme_mappings_fini(struct tn_nvme_mappings *ms);
/* As tn_nvme_map; by: as tn_nvme_map_other, or NULL: the port. */
int tn_nvme_mappings_map(struct tn_nvme_mappings *ms, const struct tn_nvme_provider *by, void *memory, uint64_t bytes, const struct tn_p2p **table);
/* So many users (tn_nvme_unmap) and holders (tn_nvme_hold, tn_nvme_release) more or less; unmapped with the last of both. */
void tn_nvme_mappings_change(struct tn_nvme_mappings *ms, void *memory, uint64_t bytes, int users, int holders);

#endif
