/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces of a lane (lane.h) that go the direct way (device/direct.h), and not by the transport. A transfer ends on a thread of the plugin's, which puts it
 * on a list and wakes the transport. The lane takes the list in its next step. What fails comes back as memory that the device cannot reach (-EXDEV),
 * whatever the cause: the lane moves it again by way of a bounce buffer, and what is wrong with the drive or the memory is found there.
 */
#include <errno.h>

#include "base/list.h"
#include "ring/lane.h"

/* A thread of the plugin's. */
static void done(struct tn_device_file_transfer *o)
{
	struct tn_lane_transfer *t = tn_container_of(o, struct tn_lane_transfer, o);
	struct tn_lane *lane = t->lane;

	t->next = __atomic_load_n(&lane->ended, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&lane->ended, &t->next, t, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
	lane->o.transport->ops->wake(lane->o.transport); /* it is there until no thread of the plugin's calls any more */
}

static const struct tn_copier *copier_of(const struct tn_lane_piece *p)
{
	return p->group->member[0].run->memory->copier;
}

void tn_lane_direct_send(struct tn_lane *lane, struct tn_lane_piece *const *piece, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct tn_lane_piece *p = piece[i];
		struct tn_lane_transfer *t = &lane->transfers[p->number];

		t->lane = lane;
		t->piece = p;
		t->o = (struct tn_device_file_transfer){.piece = p->iov, .npieces = p->iov_count, .write = tn_lane_op_of(p) == TN_IO_WRITE,
							.offset = p->offset, .done = done};
		tn_direct_submit(lane->o.direct, tn_copier_number(copier_of(p)), tn_lane_device_of(p), &t->o);
	}
}

bool tn_lane_direct_ended(struct tn_lane *lane)
{
	struct tn_lane_transfer *t = lane->transfers ? __atomic_exchange_n(&lane->ended, NULL, __ATOMIC_ACQUIRE) : NULL;
	bool any = t;

	while (t) {
		struct tn_lane_transfer *next = t->next; /* the lane may send another piece of that number */

		if (t->o.status)
			tn_direct_failed(lane->o.direct, tn_copier_number(copier_of(t->piece)), tn_lane_device_of(t->piece), &t->o);
		tn_lane_piece_over(t->piece, t->o.status ? -EXDEV : 0, t->o.began_ns);
		t = next;
	}
	return any;
}
