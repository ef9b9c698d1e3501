/* SPDX-License-Identifier: Apache-2.0 */
/* The backend ucx of the transfer agent: memory to memory of another agent, by UCX, within a machine or between machines. */
#include "ucx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <tenuto/plugin.h>

#define KEEPALIVE "3s"
#define LATENCY_NS 5000u	   /* not measured: it depends on the peer */
#define BYTES_PER_S 5000000000ull

static int open_context(struct ucx *u)
{
	const ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
		.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
		.mt_workers_shared = 1, /* sections are mapped without the lock */
	};
	ucp_config_t *config;
	ucs_status_t status = u->api->ucp_config_read(NULL, NULL, &config);

	if (status != UCS_OK)
		return ucx_fail(-EINVAL, "backend ucx: UCX's settings: %s: look at the UCX_ variables of the environment", ucx_status(status));
	if (!getenv("UCX_KEEPALIVE_INTERVAL"))
		u->api->ucp_config_modify(config, "KEEPALIVE_INTERVAL", KEEPALIVE);
	if (!getenv("UCX_NET_DEVICES")) /* whoever reaches UCX's port reads and writes what is registered: no network unless the user names one */
		u->api->ucp_config_modify(config, "NET_DEVICES", "lo");
	status = u->api->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &u->context);
	u->api->ucp_config_release(config);
	if (status != UCS_OK)
		return ucx_fail(ucx_errno(status), "backend ucx: UCX does not start: %s (UCX_TLS and UCX_NET_DEVICES choose transports)", ucx_status(status));
	return 0;
}

static int take_address(struct ucx *u)
{
	ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};
	ucs_status_t status = u->api->ucp_worker_query(u->worker, &attr);

	if (status != UCS_OK)
		return ucx_fail(ucx_errno(status), "backend ucx: no address: %s", ucx_status(status));
	u->address_bytes = (uint32_t)attr.address_length;
	u->address = malloc(attr.address_length);
	if (u->address)
		memcpy(u->address, attr.address, attr.address_length);
	u->api->ucp_worker_release_address(u->worker, attr.address);
	if (!u->address)
		return ucx_fail(-ENOMEM, "backend ucx: no memory for an address");
	if (attr.address_length + 2 * sizeof(uint32_t) > TN_XFER_IDENTITY_MAX)
		return ucx_fail(-E2BIG, "backend ucx: an address of %zu bytes, of too many network devices: name fewer in UCX_NET_DEVICES",
				attr.address_length);
	return 0;
}

static int open_worker(struct ucx *u)
{
	const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SERIALIZED};
	ucs_status_t status = u->api->ucp_worker_create(u->context, &params, &u->worker);

	if (status != UCS_OK)
		return ucx_fail(ucx_errno(status), "backend ucx: no worker: %s", ucx_status(status));
	status = u->api->ucp_worker_get_efd(u->worker, &u->efd);
	if (status != UCS_OK)
		return ucx_fail(ucx_errno(status), "backend ucx: these transports have no event descriptor: %s: choose others by UCX_TLS", ucx_status(status));
	return take_address(u);
}

static void ucx_destroy(void *backend)
{
	struct ucx *u = backend;

	ucx_thread_stop(u);
	if (u->worker)
		u->api->ucp_worker_destroy(u->worker);
	if (u->context)
		u->api->ucp_cleanup(u->context);
	while (u->peers) {
		struct ucx_peer *p = u->peers;

		u->peers = p->next;
		free(p);
	}
	if (u->wake >= 0)
		close(u->wake);
	pthread_mutex_destroy(&u->lock);
	free(u->address);
	free(u);
}

static int ucx_create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	struct ucx *u;
	int rc;

	if (n)
		return ucx_fail(-EINVAL, "backend ucx: %.60s is no parameter of it: it has none, UCX reads its own variables (UCX_TLS, ...)", params[0].key);
	u = calloc(1, sizeof(*u));
	if (!u)
		return ucx_fail(-ENOMEM, "backend ucx: no memory");
	pthread_mutex_init(&u->lock, NULL);
	u->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = u->wake < 0 ? ucx_fail(-errno, "backend ucx: eventfd: %s", strerror(errno)) : ucx_api_open(&u->api);
	if (rc == 0)
		rc = open_context(u);
	if (rc == 0)
		rc = open_worker(u);
	if (rc == 0)
		rc = ucx_thread_start(u);
	if (rc) {
		ucx_destroy(u);
		return rc;
	}
	*out = u;
	return 0;
}

static int ucx_section_add(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, void **handle)
{
	struct ucx *u = backend;
	const ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.address = (void *)(uintptr_t)section->address,
		.length = section->bytes,
	};
	struct ucx_section *s = calloc(1, sizeof(*s));
	ucs_status_t status;

	(void)segment;
	if (!s)
		return ucx_fail(-ENOMEM, "no memory");
	status = u->api->ucp_mem_map(u->context, &params, &s->memh);
	if (status != UCS_OK) {
		free(s);
		return ucx_fail(ucx_errno(status), "%llu bytes cannot be registered with UCX: %s", (unsigned long long)section->bytes, ucx_status(status));
	}
	*handle = s;
	return 0;
}

/* Peers have confirmed that they use it no more; those that died have not, and their last bytes may lie in a socket. */
static void ucx_section_remove(void *backend, void *handle)
{
	struct ucx_section *s = handle;
	struct ucx *u = backend;

	ucx_drain(u);
	u->api->ucp_mem_unmap(u->context, s->memh);
	free(s);
}

static size_t ucx_section_key(void *backend, void *handle, unsigned char out[TN_XFER_SECTION_KEY_MAX])
{
	struct ucx_section *s = handle;
	struct ucx *u = backend;
	size_t bytes = 0;
	void *key;

	if (u->api->ucp_rkey_pack(u->context, s->memh, &key, &bytes) != UCS_OK)
		return 0;
	if (bytes <= TN_XFER_SECTION_KEY_MAX)
		memcpy(out, key, bytes);
	u->api->ucp_rkey_buffer_release(key);
	return bytes <= TN_XFER_SECTION_KEY_MAX ? bytes : 0;
}

static int ucx_can(void *backend, enum tn_xfer_op op, enum tn_xfer_segment local, enum tn_xfer_segment remote, bool peer)
{
	(void)backend, (void)op;
	if (local != TN_XFER_DRAM || remote != TN_XFER_DRAM)
		return ucx_fail(-ENOTSUP, "it moves DRAM to DRAM");
	return peer ? 0 : ucx_fail(-ENOTSUP, "it moves bytes between two agents");
}

static void ucx_cost(void *backend, bool peer, struct tn_xfer_cost *out)
{
	(void)backend, (void)peer;
	*out = (struct tn_xfer_cost){LATENCY_NS, BYTES_PER_S};
}

static const struct tn_xfer_backend_ops ops = {
	.size = sizeof(ops),
	.abi = TN_XFER_BACKEND_ABI,
	.segments = 1u << TN_XFER_DRAM,
	.name = "ucx",
	.create = ucx_create,
	.destroy = ucx_destroy,
	.section_add = ucx_section_add,
	.section_remove = ucx_section_remove,
	.section_key = ucx_section_key,
	.identity = ucx_identity,
	.peer_add = ucx_peer_add,
	.peer_remove = ucx_peer_remove,
	.can = ucx_can,
	.cost = ucx_cost,
	.prepare = ucx_prepare,
	.forget = ucx_forget,
	.post = ucx_post,
	.cancel = ucx_cancel,
	.error = ucx_error,
	.why = ucx_why,
};

const struct tn_plugin tn_plugin = {
	.size = sizeof(tn_plugin),
	.abi = TN_PLUGIN_ABI,
	.kind = TN_PLUGIN_XFER,
	.name = "ucx",
	.built_for = TN_PLUGIN_BUILT_FOR,
	.table = &ops,
};
