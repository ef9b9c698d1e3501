/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata of agents by a directory: publish, take back, look up. The directory's own work is in a plugin; no lock is held while it waits for its server. */
#include "xfer/directory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tenuto/xfer_directory.h>

#include "base/error.h"
#include "plugin/loader.h"
#include "xfer/agent.h"
#include "xfer/backends.h"

#define FIRST_BYTES 65536u /* of an entry that is looked up; a longer one is asked for again */

static int told(const struct tn_xfer_directory_ops *ops, int rc)
{
	return rc < 0 ? tn_fail(rc, "%s", ops->error()) : rc;
}

int tn_xfer_directory_set(struct tn_xfer_agent *agent, const char *spec)
{
	const struct tn_xfer_directory_ops *ops;
	const struct tn_plugin *plugin = NULL;
	struct tn_xfer_spec parts;
	void *self;
	int rc = agent ? tn_xfer_spec_split("directory", spec, &parts) : tn_fail(-EINVAL, "no agent");

	if (rc == 0)
		rc = tn_plugin_open(TN_PLUGIN_XFER_DIRECTORY, parts.name, &plugin);
	if (rc)
		return rc;
	ops = plugin->table;
	rc = told(ops, ops->create(parts.param, parts.n, &self));
	if (rc)
		return rc;
	pthread_mutex_lock(&agent->lock);
	if (agent->directory) {
		rc = tn_fail(-EEXIST, "directory %s: agent %s has one already", ops->name, agent->name);
	} else {
		agent->directory = ops;
		agent->directory_self = self;
	}
	pthread_mutex_unlock(&agent->lock);
	if (rc)
		ops->destroy(self);
	return rc;
}

void tn_xfer_directory_close(struct tn_xfer_agent *a)
{
	if (a->directory)
		a->directory->destroy(a->directory_self);
	a->directory = NULL;
}

/* The directory of an agent, which stays as long as the agent; NULL with detail. label: "metadata" in the place of NULL. */
static const struct tn_xfer_directory_ops *directory_of(struct tn_xfer_agent *agent, const char **label, int *rc)
{
	const struct tn_xfer_directory_ops *ops;

	if (!*label)
		*label = "metadata";
	if (!agent || !**label || strlen(*label) >= TN_XFER_NAME_BYTES || strchr(*label, '/')) {
		*rc = tn_fail(-EINVAL, "agent %p, label \"%.40s\": an agent, and a label of 1 to %u bytes without a slash are wanted", (void *)agent, *label,
			      TN_XFER_NAME_BYTES - 1);
		return NULL;
	}
	pthread_mutex_lock(&agent->lock);
	ops = agent->directory;
	pthread_mutex_unlock(&agent->lock);
	*rc = ops ? 0 : tn_fail(-ENOENT, "agent %s has no directory: call tn_xfer_directory_set before", agent->name);
	return ops;
}

int tn_xfer_publish(struct tn_xfer_agent *agent, const char *label, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n,
		    uint64_t deadline_ns)
{
	const struct tn_xfer_directory_ops *ops;
	unsigned char *bytes;
	int64_t size, now;
	int rc;

	ops = directory_of(agent, &label, &rc);
	if (!ops)
		return rc;
	size = tn_xfer_metadata(agent, segment, sections, n, NULL, 0);
	/* Sections may be registered meanwhile. */
	for (; size >= 0; size = now) {
		bytes = tn_get(&tn_alloc_system, (size_t)size);
		if (!bytes)
			return tn_fail(-ENOMEM, "no memory for %lld bytes of metadata", (long long)size);
		now = tn_xfer_metadata(agent, segment, sections, n, bytes, (size_t)size);
		if (now >= 0 && now <= size)
			rc = told(ops, ops->put(agent->directory_self, agent->name, label, bytes, (size_t)now, deadline_ns));
		tn_put(&tn_alloc_system, bytes, (size_t)size);
		if (now >= 0 && now <= size)
			return rc;
	}
	return (int)size;
}

int tn_xfer_unpublish(struct tn_xfer_agent *agent, const char *label, uint64_t deadline_ns)
{
	int rc;
	const struct tn_xfer_directory_ops *ops = directory_of(agent, &label, &rc);

	return ops ? told(ops, ops->remove(agent->directory_self, agent->name, label, deadline_ns)) : rc;
}

static int load_as(struct tn_xfer_agent *agent, const char *peer, const void *bytes, size_t n)
{
	struct tn_xfer_metadata m;
	int rc = tn_xfer_agent_unpack(agent, bytes, n, &m);

	if (rc)
		return rc;
	/* Before it is loaded: it would replace what is known of the other agent. */
	if (strcmp(m.head.name, peer))
		rc = tn_fail(-EBADMSG, "the entry of agent %s holds the metadata of agent %s", peer, m.head.name);
	else
		rc = tn_xfer_agent_load(agent, &m);
	tn_xfer_metadata_free(&m);
	return rc;
}

int tn_xfer_lookup(struct tn_xfer_agent *agent, const char *peer, const char *label, uint64_t deadline_ns)
{
	const struct tn_xfer_directory_ops *ops;
	size_t size = FIRST_BYTES;
	int rc;

	if (!peer || !*peer || strlen(peer) >= TN_XFER_NAME_BYTES)
		return tn_fail(-EINVAL, "peer \"%.40s\": a name of 1 to %u bytes is wanted", peer ? peer : "NULL", TN_XFER_NAME_BYTES - 1);
	ops = directory_of(agent, &label, &rc);
	if (!ops)
		return rc;
	for (;;) {
		void *bytes = tn_get(&tn_alloc_system, size);
		int64_t n = bytes ? ops->get(agent->directory_self, peer, label, bytes, size, deadline_ns) : -ENOMEM;

		if (!bytes)
			return tn_fail(-ENOMEM, "no memory for %zu bytes of metadata", size);
		rc = n < 0 ? told(ops, (int)n) : n > TN_XFER_METADATA_MAX ? tn_fail(-EBADMSG, "the entry of agent %s has %lld bytes", peer, (long long)n) : 0;
		if (rc == 0 && (uint64_t)n <= size)
			rc = load_as(agent, peer, bytes, (size_t)n);
		tn_put(&tn_alloc_system, bytes, size);
		if (rc || (uint64_t)n <= size)
			return rc;
		size = (size_t)n;
	}
}
