/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of tiers that move whole blocks by themselves: as many as may be under way, taken at open. Owner thread only. */
#include <errno.h>

#include "base/error.h"
#include "core/core.h"

#define MOVES 64u
#define WRITES 16u /* of them at most: copies that nobody waits for leave the others to loads */

struct tn_whole {
	const struct tn_alloc *alloc;
	struct tn_list free;
	uint32_t writes;
	struct tn_tier_move move[MOVES];
};

int tn_whole_create(const struct tn_alloc *alloc, struct tn_whole **out)
{
	struct tn_whole *w = tn_get(alloc, sizeof(*w));

	if (!w)
		return tn_fail(-ENOMEM, "no memory for transfers of blocks");
	w->alloc = alloc;
	tn_list_init(&w->free);
	for (uint32_t i = 0; i < MOVES; i++)
		tn_list_push(&w->free, &w->move[i].link);
	*out = w;
	return 0;
}

void tn_whole_destroy(struct tn_whole *w)
{
	if (w)
		tn_put(w->alloc, w, sizeof(*w));
}

struct tn_tier_move *tn_whole_get(struct tn_whole *w, bool write)
{
	struct tn_list *link = write && w->writes == WRITES ? NULL : tn_list_pop(&w->free);

	w->writes += write && link;
	return link ? tn_container_of(link, struct tn_tier_move, link) : NULL;
}

void tn_whole_put(struct tn_whole *w, struct tn_tier_move *move)
{
	w->writes -= move->write;
	tn_list_push(&w->free, &move->link);
}
