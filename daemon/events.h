/* SPDX-License-Identifier: Apache-2.0 */
/* What tenutod publishes of its cache (setting `events`, docs/events.md), and the metrics of that. */
#ifndef TENUTOD_EVENTS_H
#define TENUTOD_EVENTS_H

#include <stdio.h>

#include <tenuto/cache.h>
#include <tenuto/publish.h>

/* spec: the setting. NULL: it is off, or cannot be published, which the journal says: the cache is served all the same. */
struct tn_publisher *events_start(struct tn_cache *cache, const char *spec);

/* The metrics of a publisher; NULL: none. */
void events_print(struct tn_publisher *publisher, FILE *out);

#endif
