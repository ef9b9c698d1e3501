/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What reaches the owner: operations that a front has begun or changed (the region's doorbell), and messages. An operation that is
 * under way needs no more than the owner's step, which looks at the front's words.
 */
#include "core/core.h"

static void begin_load(struct tn_op *op, const struct tn_command *c)
{
	if (c->kind == TN_COMMAND_PREFETCH)
		tn_reading_arm(tn_reading_of(op), c);
	else
		tn_load_arm(tn_load_of(op), c);
	tn_load_begins(tn_reading_of(op));
}

static void begin_save(struct tn_op *op, const struct tn_command *c)
{
	tn_save_arm(tn_save_of(op), c);
	tn_save_begins(tn_save_of(op));
}

/* Until the ring is answered the front begins no new life of the operation: the command is copied before that. */
static void look(struct tn_cache *cache, const struct tn_doorbell *kicks, uint32_t number)
{
	struct tn_op *op = &cache->ops[number].op;
	bool alive = op->alive;
	struct tn_command c;
	int rc = alive ? 0 : tn_face_take_command(&cache->region, number, &c);

	tn_doorbell_answer(kicks, number);
	if (alive)
		return;
	if (c.generation <= op->generation) {
		tn_op_notify(op); /* rung once more, too late: who waits to give the operation back may do so now */
		return;
	}
	if (rc == 0)
		rc = tn_op_begin(op, &c);
	if (rc)
		tn_op_refuse(op, c.generation, rc);
	else if (c.kind == TN_COMMAND_SAVE)
		begin_save(op, &c);
	else
		begin_load(op, &c);
}

/* A thread that begins an operation and then sends a message finds both done in that order. */
bool tn_intake_step(struct tn_cache *cache)
{
	struct tn_doorbell kicks = tn_region_kicks(&cache->region);
	struct tn_cmd *messages = tn_messages_take(cache);
	uint32_t first, n = tn_doorbell_take(&kicks, &cache->kicks, cache->kicked, &first);

	for (uint32_t i = 0; i < n; i++)
		look(cache, &kicks, cache->kicked[first + i]);
	tn_messages_run(messages);
	return n > 0 || messages;
}
