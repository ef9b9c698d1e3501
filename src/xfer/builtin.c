/* SPDX-License-Identifier: Apache-2.0 */
/* The table of backends that are built in, those of plugins, and how a spec names one: "NAME,key=value,...". */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "plugin/loader.h"
#include "xfer/agent.h"
#include "xfer/backends.h"

static const struct tn_xfer_backend_ops *const builtin[] = {&tn_xfer_memory_ops, &tn_xfer_file_ops, &tn_xfer_gds_ops, &tn_xfer_faulty_ops, &tn_xfer_null_ops, NULL};

const char *tn_xfer_backend_name(uint32_t index)
{
	return index < sizeof(builtin) / sizeof(builtin[0]) - 1 ? builtin[index]->name : NULL;
}

static int find(const char *name, const struct tn_xfer_backend_ops **out)
{
	const struct tn_plugin *plugin;
	int rc;

	for (uint32_t i = 0; builtin[i]; i++)
		if (!strcmp(builtin[i]->name, name)) {
			*out = builtin[i];
			return 0;
		}
	rc = tn_plugin_open(TN_PLUGIN_XFER, name, &plugin);
	if (rc)
		return tn_fail_cause(rc, "backend %s: memory, file, gds, faulty and null are built in, others are plugins", name);
	*out = plugin->table;
	return 0;
}

static int add(struct tn_xfer_agent *a, const struct tn_xfer_backend_ops *ops, void *self)
{
	int rc = 0;

	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->nbackends; i++)
		if (!strcmp(a->backend[i].ops->name, ops->name))
			rc = tn_fail(-EEXIST, "backend %s: agent %s has it already", ops->name, a->name);
	if (rc == 0 && a->nbackends == TN_XFER_BACKENDS_MAX)
		rc = tn_fail(-ENOSPC, "backend %s: an agent has at most %u", ops->name, TN_XFER_BACKENDS_MAX);
	if (rc == 0) {
		a->backend[a->nbackends++] = (struct tn_xfer_backend){ops, self};
		a->revision++;
	}
	pthread_mutex_unlock(&a->lock);
	return rc;
}

int tn_xfer_backend_add(struct tn_xfer_agent *agent, const char *spec)
{
	const struct tn_xfer_backend_ops *ops = NULL;
	struct tn_xfer_spec parts;
	void *self;
	int rc = agent ? tn_xfer_spec_split("backend", spec, &parts) : tn_fail(-EINVAL, "no agent");

	if (rc == 0)
		rc = find(parts.name, &ops);
	if (rc)
		return rc;
	rc = tn_xfer_backend_told(ops, ops->create(parts.param, parts.n, &self));
	if (rc)
		return rc;
	rc = add(agent, ops, self);
	if (rc)
		ops->destroy(self);
	return rc;
}

int tn_xfer_backend_get(struct tn_xfer_agent *agent, uint32_t index, struct tn_xfer_backend_info *out)
{
	struct tn_xfer_backend_info info = {.size = sizeof(info)};
	struct tn_xfer_cost cost = {0, 0};
	int rc = agent && out ? tn_abi_check(TN_ABI_RESULT(tn_xfer_backend_info, bytes_per_s), out)
			      : tn_fail(-EINVAL, "agent %p, info %p: both are wanted", (void *)agent, (void *)out);

	if (rc)
		return rc;
	pthread_mutex_lock(&agent->lock);
	if (index < agent->nbackends) {
		const struct tn_xfer_backend *b = &agent->backend[index];

		snprintf(info.name, sizeof(info.name), "%s", b->ops->name);
		info.segments = b->ops->segments;
		b->ops->cost(b->self, false, &cost);
		info.latency_ns = cost.latency_ns;
		info.bytes_per_s = cost.bytes_per_s;
	} else {
		rc = -ENOENT; /* the end of a loop over them: no failure */
	}
	pthread_mutex_unlock(&agent->lock);
	if (rc == 0)
		tn_abi_out(TN_ABI_RESULT(tn_xfer_backend_info, bytes_per_s), out, &info);
	return rc;
}
