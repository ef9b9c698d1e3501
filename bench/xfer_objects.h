/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench xfer --backend s3,...`: the objects that blocks go to and come from, one each. An object is replaced whole, so its key is its size and number below
 * "tenuto-bench/". Runs of the same sizes use the same objects. Nothing removes them: the agent has no call for that.
 */
#ifndef TENUTO_XFER_OBJECTS_H
#define TENUTO_XFER_OBJECTS_H

#include <stdint.h>

#include <tenuto/xfer.h>

/*
 * Registers objects of `block` bytes; the list has them in their order. *devices: how many the agent has, which grows by them: an object stays registered.
 * 0, or -errno with detail.
 */
int xfer_objects_list(struct tn_xfer_agent *agent, uint64_t block, uint64_t n, uint64_t *devices, struct tn_xfer_list **out);

/*
 * Moves all of them at once, to (WRITE) or from the blocks of `memory`, which is registered: block i is number index[i] of its blocks. By the backend of that name.
 * 0, or -errno with detail.
 */
int xfer_objects_move(struct tn_xfer_agent *agent, const char *backend, enum tn_xfer_op op, const void *memory, uint64_t block, const uint32_t *index,
		      struct tn_xfer_list *objects);

#endif
