/* SPDX-License-Identifier: Apache-2.0 */
/* A turn of the engine: commands end, and further ones are sent. */
#include "nvme/engine_internal.h"

void tn_nvme_turn(struct tn_nvme_engine *e)
{
	tn_nvme_pair_poll(&e->pair);
	tn_nvme_memories_settle(&e->memories, e->pair.ncommands);
	tn_nvme_issue(e);
	tn_nvme_grow(e);
	tn_nvme_pair_ring(&e->pair);
}

int tn_nvme_wait_for(struct tn_nvme_engine *e, struct tn_io_req *req, uint8_t flags)
{
	struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);

	tn_nvme_begin(e, req, flags);
	while (!(x->flags & TN_NVME_ENDED)) {
		tn_nvme_turn(e);
		if (!(x->flags & TN_NVME_ENDED))
			e->o.port->pause(e->o.port->arg);
	}
	tn_list_del(&x->link);
	return req->status;
}
