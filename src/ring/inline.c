/* SPDX-License-Identifier: Apache-2.0 */
/* The executor that runs in its owner's thread, on its owner's engine: deterministic, and no thread to wake. */
#include <errno.h>

#include "base/error.h"
#include "ring/core.h"

struct inline_executor {
	struct tn_executor ex;
	struct tn_core *core;
	struct tn_core_intake intake;
	const struct tn_alloc *alloc;
};

static int inline_room(struct tn_executor *ex, uint32_t padded_bytes)
{
	return tn_core_room(((struct inline_executor *)ex)->core, padded_bytes);
}

static bool inline_step(struct tn_executor *ex)
{
	return tn_core_go(((struct inline_executor *)ex)->core);
}

static uint64_t inline_due(struct tn_executor *ex, uint64_t now_ns)
{
	return tn_core_due(((struct inline_executor *)ex)->core, now_ns);
}

static void inline_stats(struct tn_executor *ex, struct tn_executor_stats *stats)
{
	tn_core_stats(((struct inline_executor *)ex)->core, stats);
}

static void inline_destroy(struct tn_executor *ex)
{
	struct inline_executor *e = (struct inline_executor *)ex;

	tn_core_destroy(e->core);
	tn_core_intake_fini(&e->intake, e->alloc);
	tn_put(e->alloc, e, sizeof(*e));
}

static const struct tn_executor_ops inline_ops = {
	.size = sizeof(struct tn_executor_ops),
	.abi = TN_EXECUTOR_ABI,
	.name = "inline",
	.room = inline_room,
	.step = inline_step,
	.due = inline_due,
	.stats = inline_stats,
	.destroy = inline_destroy,
};

int tn_executor_inline_create(const struct tn_executor_opts *o, struct tn_executor **out)
{
	struct inline_executor *e;
	struct tn_core_opts co;
	int err;

	if (o->depth == 0)
		return tn_fail(-EINVAL, "executor: depth 0");
	e = tn_get(o->alloc, sizeof(*e));
	if (!e)
		return tn_fail(-ENOMEM, "executor: no memory");
	e->ex.ops = &inline_ops;
	e->alloc = o->alloc;
	co = (struct tn_core_opts){.intake = &e->intake, .io = o->io, .depth = o->depth, .backlog = UINT32_MAX,
				   .alloc = o->alloc, .clock = o->clock, .exec = o->exec,
				   .observe = o->observe, .observe_arg = o->observe_arg};
	err = tn_core_intake_init(&e->intake, o->ring, o->alloc);
	if (!err)
		err = tn_core_create(&co, &e->core);
	for (uint32_t i = 0; i < o->ndevices && !err; i++)
		err = tn_core_device_add(e->core, o->files[i]);
	if (err) {
		inline_destroy(&e->ex);
		return err;
	}
	*out = &e->ex;
	return 0;
}
