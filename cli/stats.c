/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"

#include <string.h>

#include <tenuto/cache.h>

#define MOST 256u

int cli_stats(struct tn_cache *cache, struct cli_stats *stats)
{
	uint64_t value[MOST];
	int n = tn_cache_stats(cache, value, MOST);

	memset(stats, 0, sizeof(*stats));
	for (uint32_t i = 0; n > 0 && i < (uint32_t)n && i < MOST; i++) {
#define TAKE(member)                                  \
	if (strcmp(tn_stat_name(i), #member) == 0)    \
		stats->member = value[i];
		CLI_STATS(TAKE)
#undef TAKE
	}
	return n < 0 ? n : 0;
}
