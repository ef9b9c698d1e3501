/* SPDX-License-Identifier: Apache-2.0 */
#include "peers.h"

#include <inttypes.h>
#include <string.h>

#include "journal.h"

int peers_start(struct tn_cache *cache, const struct config *c, struct tn_peer_server **out)
{
	struct tn_peer_serve_opts o;
	int rc;

	if (strcmp(c->serve.tcp, "off") == 0)
		return 0;
	tn_peer_serve_opts_init(&o);
	o.address = c->serve.tcp;
	o.secret_file = c->serve.secret_file;
	o.log = journal_of_library;
	o.log_level = TN_LOG_DEBUG; /* the journal chooses */
	rc = tn_peer_serve(cache, &o, out);
	if (rc == 0)
		journal_line(TN_LOG_INFO, "other nodes' caches get blocks at %s", tn_peer_server_address(*out));
	if (rc == 0 && strcmp(c->cluster_secret_file, "off") == 0)
		journal_line(TN_LOG_WARN, "serve: without cluster_secret_file no other node knows this one's blocks by their keys");
	return rc;
}

static void print_counter(FILE *out, const char *name, const char *help, uint64_t value)
{
	fprintf(out, "# HELP tenutod_served_%s_total %s.\n# TYPE tenutod_served_%s_total counter\ntenutod_served_%s_total %" PRIu64 "\n", name, help, name, name,
		value);
}

void peers_print(struct tn_peer_server *server, FILE *out)
{
	struct tn_peer_server_stats s = {.size = sizeof(s)};

	if (!server || tn_peer_server_stats(server, &s))
		return;
	fprintf(out, "# HELP tenutod_served_nodes Other nodes' caches that are connected.\n# TYPE tenutod_served_nodes gauge\ntenutod_served_nodes %" PRIu64 "\n",
		s.peers);
	print_counter(out, "refused", "Connections of other nodes that were refused", s.refused);
	print_counter(out, "asked_keys", "Blocks that other nodes looked up", s.asked_keys);
	print_counter(out, "found_keys", "Blocks that they found", s.found_keys);
	print_counter(out, "blocks", "Blocks that were given to other nodes", s.blocks);
	print_counter(out, "mapped_blocks", "Of these, blocks that a node of this machine copied by itself", s.mapped_blocks);
	print_counter(out, "misses", "Blocks that other nodes wanted and did not get", s.misses);
	print_counter(out, "bytes", "Bytes that were given to other nodes", s.bytes);
}
