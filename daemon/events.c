/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"

#include <inttypes.h>
#include <string.h>

#include "journal.h"

struct tn_publisher *events_start(struct tn_cache *cache, const char *spec)
{
	struct tn_publisher *publisher;

	if (strcmp(spec, "off") == 0)
		return NULL;
	if (tn_publish_start(cache, spec, &publisher)) {
		journal_line(TN_LOG_ERROR, "events: %s; nothing is published", tn_error_last()->text);
		return NULL;
	}
	journal_line(TN_LOG_INFO, "block events are published: %s", spec);
	return publisher;
}

static void print_counter(FILE *out, const char *name, const char *help, uint64_t value)
{
	fprintf(out, "# HELP tenutod_events_%s_total %s.\n# TYPE tenutod_events_%s_total counter\ntenutod_events_%s_total %" PRIu64 "\n", name, help,
		name, name, value);
}

void events_print(struct tn_publisher *publisher, FILE *out)
{
	struct tn_publish_stats s = {.size = sizeof(s)};

	if (!publisher || tn_publish_stats(publisher, &s))
		return;
	print_counter(out, "published", "Block events that were published", s.events);
	print_counter(out, "unnamed", "Block events of blocks without an engine's name, which were not published", s.unnamed);
	print_counter(out, "batches", "Batches that were published", s.batches);
	print_counter(out, "bytes", "Bytes of these", s.bytes);
	print_counter(out, "gaps", "Times that events were lost before they were published", s.gaps);
	print_counter(out, "snapshots", "Snapshots that followers asked for", s.snapshots);
	fprintf(out, "# HELP tenutod_events_lag_seconds Age of the last event when it was published.\n# TYPE tenutod_events_lag_seconds gauge\n"
		"tenutod_events_lag_seconds %.6f\n", (double)s.lag_ns / 1e9);
}
