/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of a staged operation (stage.h) between its caller's pages and session memory. Host memory is copied by the thread that begins the copy. Device
 * memory is copied by its driver, on a stream that the pool has for each direction: the copy is under way until the driver's event is reached. An
 * operation may have several copies under way. They end in the order in which they began.
 *
 * After a copy that failed the driver's stream may be of no use. Then no other copy begins on it; when all of its copies are over another stream takes
 * its place. Copies of other operations that are under way on it may fail with the same cause.
 *
 * The stage's thread alone calls these functions. None of them waits, but tn_stage_copies_settle.
 */
#ifndef TN_FRONT_STAGE_COPY_H
#define TN_FRONT_STAGE_COPY_H

#include "front/front.h"

/* Whether another copy of the operation can begin now. */
bool tn_stage_copy_may_begin(const struct tn_front_op *op);
/*
 * Begins to copy these layers of the claimed pages of these blocks: of a save to the session memory, of a load from it. The first slot of the operation
 * is first_block's. What cannot begin is over at once, with an error.
 */
void tn_stage_copy_begin(struct tn_front_op *op, uint32_t first_layer, uint32_t end_layer, uint32_t first_block, uint32_t end_block);
/* The oldest copy, if it is over: then it belongs to the operation no more. */
bool tn_stage_copy_take(struct tn_front_op *op, struct tn_stage_copy *out);
/* Waits until no copy of the operation is under way, and forgets them: when the thread has ended. */
void tn_stage_copies_settle(struct tn_front_op *op);
/* Whether the layer is in a copy that was not taken. */
bool tn_stage_copy_has(const struct tn_front_op *op, uint32_t layer);
/* The largest end_block of copies that a driver may be carrying out; 0: there is none. */
uint32_t tn_stage_copy_end(const struct tn_front_op *op);

#endif
