/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an agent, and its statistics. */
#include "xfer/agent.h"
#include "xfer/directory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/proc.h"
#include "base/rng.h"
#include "base/thread.h"
#include "xfer/exchange.h"

#define SECRET_MIN 16u
#define CONNECT_NS 5000000000ull
#define NOTIFICATIONS_MAX 4096u

static const struct tn_xfer_agent_opts defaults = {
	.size = sizeof(defaults), .connect_ns = CONNECT_NS, .notifications_max = NOTIFICATIONS_MAX, .log_level = TN_LOG_INFO};

void tn_xfer_agent_opts_init_sized(struct tn_xfer_agent_opts *opts, size_t size)
{
	tn_abi_init(opts, size, &defaults, sizeof(defaults));
}

static int check(const struct tn_xfer_agent_opts *o)
{
	size_t n = o->name ? strlen(o->name) : 0;

	if (n == 0 || n >= TN_XFER_NAME_BYTES)
		return tn_fail(-EINVAL, "name \"%.40s\": 1 to %u bytes are wanted, it has %zu", o->name ? o->name : "", TN_XFER_NAME_BYTES - 1, n);
	if (o->secret ? o->secret_bytes < SECRET_MIN || o->secret_bytes > TN_XFER_SECRET_MAX : o->secret_bytes != 0)
		return tn_fail(-EINVAL, "secret_bytes %zu: %u to %u are wanted, 0 without a secret", o->secret_bytes, SECRET_MIN, TN_XFER_SECRET_MAX);
	if (!o->notifications_max || !o->connect_ns)
		return tn_fail(-EINVAL, "notifications_max %u, connect_ns %llu: neither may be 0", o->notifications_max, (unsigned long long)o->connect_ns);
	if (o->nbackends && !o->backends)
		return tn_fail(-EINVAL, "nbackends %u without backends", o->nbackends);
	return 0;
}

static int set_key(struct tn_xfer_agent *a, const struct tn_xfer_agent_opts *o)
{
	int rc = 0;

	a->shared = o->secret != NULL;
	if (a->shared) {
		memcpy(a->key, o->secret, o->secret_bytes);
		a->key_bytes = o->secret_bytes;
	} else {
		a->key_bytes = TN_XFER_KEY_BYTES;
		rc = tn_rng_entropy(a->key, a->key_bytes);
	}
	return rc ? tn_fail(rc, "no random key: %s", strerror(-rc)) : 0;
}

static int start_control(struct tn_xfer_agent *a, const struct tn_xfer_agent_opts *o)
{
	char address[TN_XFER_ADDRESS_BYTES];
	uint64_t number;
	int rc = tn_rng_entropy(&number, sizeof(number));

	if (rc)
		return tn_fail(rc, "no random address: %s", strerror(-rc));
	snprintf(address, sizeof(address), "unix:@tenuto-xfer-%d-%016llx", (int)getpid(), (unsigned long long)number);
	if (!o->listen || strcmp(o->listen, "none"))
		rc = tn_xfer_listen(o->listen ? o->listen : address, tn_now_ns(&tn_clock_system) + o->connect_ns, &a->listener);
	if (rc)
		return rc;
	a->control.lock = &a->lock;
	a->control.ops = &tn_xfer_agent_control_ops;
	a->control.arg = a;
	a->control.log = &a->log;
	a->control.listener = a->listener.sock.fd;
	a->control.linger_ns = a->connect_ns;
	return tn_xfer_control_start(&a->control);
}

static int add_backends(struct tn_xfer_agent *a, const struct tn_xfer_agent_opts *o)
{
	static const char *const usual[] = {"memory", "file"};
	const char *const *specs = o->backends ? o->backends : usual;
	uint32_t n = o->backends ? o->nbackends : 2;
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = tn_xfer_backend_add(a, specs[i]);
	return rc;
}

static void free_agent(struct tn_xfer_agent *a)
{
	struct tn_list *node;

	tn_xfer_directory_close(a);
	pthread_mutex_lock(&a->lock);
	while (!tn_list_empty(&a->peers))
		tn_xfer_peer_drop(a, tn_container_of(a->peers.next, struct tn_xfer_peer, link));
	pthread_mutex_unlock(&a->lock);
	tn_xfer_control_stop(&a->control);
	tn_xfer_unlisten(&a->listener);
	for (uint32_t i = 0; i < a->table.n; i++) {
		const struct tn_xfer_sec *sec = a->table.entry[i].sec;

		for (uint32_t k = 0; k < a->nbackends; k++)
			if (sec->backends & 1u << k && a->backend[k].ops->section_remove)
				a->backend[k].ops->section_remove(a->backend[k].self, sec->handle[k]);
	}
	tn_xfer_table_clear(&a->table);
	while ((node = tn_list_pop(&a->notifications)) != NULL) {
		struct tn_xfer_notification *note = tn_container_of(node, struct tn_xfer_notification, link);

		tn_put(&tn_alloc_system, note, sizeof(*note) + note->bytes);
	}
	for (uint32_t i = a->nbackends; i--;)
		a->backend[i].ops->destroy(a->backend[i].self);
	if (a->eventfd >= 0)
		close(a->eventfd);
	pthread_cond_destroy(&a->changed);
	pthread_mutex_destroy(&a->lock);
	explicit_bzero(a->key, sizeof(a->key));
	tn_put(&tn_alloc_system, a, sizeof(*a));
}

static struct tn_xfer_agent *agent_new(const struct tn_xfer_agent_opts *o)
{
	struct tn_xfer_agent *a = tn_get(&tn_alloc_system, sizeof(*a));

	if (!a)
		return NULL;
	pthread_mutex_init(&a->lock, NULL);
	tn_cond_init(&a->changed);
	tn_list_init(&a->peers);
	tn_list_init(&a->active);
	tn_list_init(&a->notifications);
	tn_list_init(&a->control.conns);
	a->listener.sock.fd = a->control.wake = -1;
	a->eventfd = -1;
	snprintf(a->name, sizeof(a->name), "%s", o->name);
	a->generation = tn_now_ns(&tn_clock_system); /* the wall clock may be set back */
	tn_boot_id(a->boot);
	a->revision = 1;
	a->connect_ns = o->connect_ns;
	a->notifications_max = o->notifications_max;
	a->log = (struct tn_log){o->log, o->log_arg, o->log_level};
	return a;
}

int tn_xfer_agent_create(const struct tn_xfer_agent_opts *opts, struct tn_xfer_agent **out)
{
	struct tn_xfer_agent_opts o = defaults;
	struct tn_xfer_agent *a;
	int rc = opts && out ? tn_abi_in(TN_ABI(tn_xfer_agent_opts, log_level), &o, opts)
			     : tn_fail(-EINVAL, "opts %p, out %p: both are wanted", (const void *)opts, (void *)out);

	if (rc == 0)
		rc = check(&o);
	if (rc)
		return rc;
	a = agent_new(&o);
	if (!a)
		return tn_fail(-ENOMEM, "no memory for an agent");
	rc = set_key(a, &o);
	if (rc == 0)
		rc = add_backends(a, &o);
	if (rc == 0)
		rc = start_control(a, &o);
	if (rc) {
		free_agent(a);
		return rc;
	}
	*out = a;
	return 0;
}

int tn_xfer_agent_destroy(struct tn_xfer_agent *agent)
{
	uint32_t lists, requests;

	if (!agent)
		return 0;
	pthread_mutex_lock(&agent->lock);
	lists = agent->nlists;
	requests = agent->nrequests;
	pthread_mutex_unlock(&agent->lock);
	if (lists || requests)
		return tn_fail(-EBUSY, "agent %s has %u requests and %u lists: release them first", agent->name, requests, lists);
	free_agent(agent);
	return 0;
}
