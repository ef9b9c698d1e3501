/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/remote/clients.h"

#include <string.h>

/* By the first word of a spec; any other word is a backend of the transfer agent. */
static const struct {
	const char *word;
	int (*create)(const char *spec, const struct tn_alloc *alloc, struct tn_object_client **out);
} clients[] = {{"peer", tn_peer_client_create}, {"", tn_agent_client_create}};

int tn_object_client_create(const char *spec, const struct tn_alloc *alloc, struct tn_object_client **out)
{
	size_t word = strcspn(spec, ","), i = 0;

	while (clients[i].word[0] && !(strlen(clients[i].word) == word && strncmp(clients[i].word, spec, word) == 0))
		i++;
	return clients[i].create(spec, alloc, out);
}
