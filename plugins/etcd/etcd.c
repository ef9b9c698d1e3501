/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libtenuto_etcd.so: agents' metadata in etcd, at NAMESPACE/AGENT/LABEL, with one lease per directory.
 *
 * A thread renews the lease each third of its time, so a dead process's entries go when its lease ends. A lease that was lost, because etcd could not be reached for
 * too long, is replaced, and all entries are put again.
 *
 * Locks: `lock` is held during calls that change entries or the lease, up to the caller's deadline. Look-ups take none.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tenuto/plugin.h>
#include <tenuto/xfer_directory.h>

#include "../http/http.h"
#include "gateway.h"

#define KEY_BYTES 512u
#define NAMESPACE_BYTES 200u
#define TTL_S 10u
#define TTL_MAX_S 3600u
#define KEEP_NS UINT64_C(5000000000) /* callers wait for the lock meanwhile */
#define END_NS UINT64_C(2000000000)
#define SECOND_NS UINT64_C(1000000000)

struct entry {
	struct entry *next;
	size_t bytes;
	char key[KEY_BYTES];
	unsigned char value[];
};

struct directory {
	struct gateway *gateway;
	char space[NAMESPACE_BYTES];
	uint32_t ttl_s;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* of CLOCK_MONOTONIC */
	pthread_t thread;
	bool stop;
	int64_t lease;
	struct entry *entries;
};

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
}

static int lock_until(struct directory *d, uint64_t deadline_ns)
{
	struct timespec end = timespec_of(deadline_ns);
	int rc = deadline_ns == UINT64_MAX ? pthread_mutex_lock(&d->lock) : pthread_mutex_clocklock(&d->lock, CLOCK_MONOTONIC, &end);

	return rc ? etcd_fail(-ETIMEDOUT, "etcd: another call on the directory goes on") : 0;
}

static int key_of(const struct directory *d, const char *agent, const char *label, char key[KEY_BYTES])
{
	int n = snprintf(key, KEY_BYTES, "%s/%s/%s", d->space, agent, label);

	return n > 0 && (unsigned)n < KEY_BYTES ? 0 : etcd_fail(-EINVAL, "etcd: %s/%s/%s is too long for a key", d->space, agent, label);
}

/* ---- the lease --------------------------------------------------------------------------------------------------------- */

/* With the lock: a new lease, and all entries under it. */
static int renew(struct directory *d, uint64_t deadline_ns)
{
	int rc = gateway_grant(d->gateway, d->ttl_s, deadline_ns, &d->lease);

	for (const struct entry *e = d->entries; e && rc == 0; e = e->next)
		rc = gateway_put(d->gateway, e->key, e->value, e->bytes, d->lease, deadline_ns);
	if (rc)
		d->lease = ETCD_NO_LEASE; /* what was put goes with it; all is tried again */
	return rc;
}

/* With the lock: without entries there is nothing to keep. */
static void keep(struct directory *d)
{
	uint64_t step = d->ttl_s * SECOND_NS / 3, deadline_ns = http_now_ns() + (step < KEEP_NS ? step : KEEP_NS);
	int rc = -ENOENT;

	if (!d->entries)
		return;
	if (d->lease)
		rc = gateway_keep_alive(d->gateway, d->lease, deadline_ns);
	if (rc == -ENOENT)
		renew(d, deadline_ns);
}

static void *run(void *arg)
{
	struct directory *d = arg;

	pthread_mutex_lock(&d->lock);
	while (!d->stop) {
		uint64_t step = d->ttl_s * SECOND_NS / 3;
		struct timespec end = timespec_of(http_now_ns() + (d->lease || !d->entries ? step : SECOND_NS));

		if (pthread_cond_timedwait(&d->changed, &d->lock, &end) == ETIMEDOUT && !d->stop)
			keep(d);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* ---- entries ----------------------------------------------------------------------------------------------------------- */

static struct entry *entry_new(const char *key, const void *value, size_t bytes)
{
	struct entry *e = malloc(sizeof(*e) + bytes);

	if (!e) {
		etcd_fail(-ENOMEM, "etcd: no memory for an entry of %zu bytes", bytes);
		return NULL;
	}
	e->bytes = bytes;
	memcpy(e->key, key, KEY_BYTES);
	memcpy(e->value, value, bytes);
	return e;
}

/* With the lock: takes an entry out of the list. */
static void drop(struct directory *d, const char *key)
{
	for (struct entry **at = &d->entries; *at; at = &(*at)->next)
		if (!strcmp((*at)->key, key)) {
			struct entry *gone = *at;

			*at = gone->next;
			free(gone);
			return;
		}
}

/* With the lock. A lease that has ended meanwhile is replaced once. */
static int put_entry(struct directory *d, const struct entry *e, uint64_t deadline_ns)
{
	int rc = d->lease ? 0 : renew(d, deadline_ns);

	if (rc == 0)
		rc = gateway_put(d->gateway, e->key, e->value, e->bytes, d->lease, deadline_ns);
	if (rc != -ENOENT)
		return rc;
	rc = renew(d, deadline_ns);
	return rc ? rc : gateway_put(d->gateway, e->key, e->value, e->bytes, d->lease, deadline_ns);
}

static int put(void *directory, const char *agent, const char *label, const void *value, size_t bytes, uint64_t deadline_ns)
{
	struct directory *d = directory;
	char key[KEY_BYTES] = "";
	struct entry *e;
	int rc = key_of(d, agent, label, key);

	if (rc)
		return rc;
	e = entry_new(key, value, bytes);
	if (!e)
		return -ENOMEM;
	rc = lock_until(d, deadline_ns);
	if (rc) {
		free(e);
		return rc;
	}
	rc = put_entry(d, e, deadline_ns);
	if (rc == 0) {
		drop(d, key);
		e->next = d->entries;
		d->entries = e;
	}
	pthread_mutex_unlock(&d->lock);
	if (rc)
		free(e);
	return rc;
}

static int64_t get(void *directory, const char *agent, const char *label, void *out, size_t max, uint64_t deadline_ns)
{
	struct directory *d = directory;
	char key[KEY_BYTES];
	int rc = key_of(d, agent, label, key);

	return rc ? rc : gateway_get(d->gateway, key, out, max, deadline_ns);
}

static int remove_entry(void *directory, const char *agent, const char *label, uint64_t deadline_ns)
{
	struct directory *d = directory;
	char key[KEY_BYTES];
	int rc = key_of(d, agent, label, key);

	if (rc == 0)
		rc = lock_until(d, deadline_ns);
	if (rc)
		return rc;
	drop(d, key); /* whatever etcd says now, the entry is not put again */
	rc = gateway_delete(d->gateway, key, deadline_ns);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

/* ---- the directory ----------------------------------------------------------------------------------------------------- */

static int read_ttl(const char *text, uint32_t *out)
{
	char *end;
	unsigned long v = strtoul(text, &end, 10);

	if (*end || end == text || v < 2 || v > TTL_MAX_S)
		return etcd_fail(-EINVAL, "directory etcd: ttl_s=%.40s: 2 to %u seconds are wanted", text, TTL_MAX_S);
	*out = (uint32_t)v;
	return 0;
}

static int read_params(const struct tn_xfer_param *params, uint32_t n, struct directory *d, const char **endpoints, const char **ca_file)
{
	const char *space = "/tenuto/agents";
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++) {
		if (!strcmp(params[i].key, "endpoints"))
			*endpoints = params[i].value;
		else if (!strcmp(params[i].key, "namespace"))
			space = params[i].value;
		else if (!strcmp(params[i].key, "ca_file"))
			*ca_file = params[i].value;
		else if (!strcmp(params[i].key, "ttl_s"))
			rc = read_ttl(params[i].value, &d->ttl_s);
		else
			rc = etcd_fail(-EINVAL, "directory etcd: %.40s is no parameter of it: endpoints, namespace, ttl_s, ca_file", params[i].key);
	}
	if (rc == 0 && strlen(space) >= sizeof(d->space))
		rc = etcd_fail(-EINVAL, "directory etcd: a namespace of %zu bytes: at most %zu", strlen(space), sizeof(d->space) - 1);
	if (rc)
		return rc;
	snprintf(d->space, sizeof(d->space), "%s", space);
	for (size_t i = strlen(d->space); i && d->space[i - 1] == '/'; i--)
		d->space[i - 1] = 0;
	return 0;
}

/* Signals are for the program's own threads. */
static int start_thread(struct directory *d)
{
	pthread_condattr_t monotonic;
	sigset_t all, old;
	int rc;

	pthread_mutex_init(&d->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&d->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&d->thread, NULL, run, d);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc ? etcd_fail(-rc, "directory etcd: a thread: %s", strerror(rc)) : 0;
}

static void directory_free(struct directory *d)
{
	while (d->entries) {
		struct entry *e = d->entries;

		d->entries = e->next;
		free(e);
	}
	pthread_cond_destroy(&d->changed);
	pthread_mutex_destroy(&d->lock);
	gateway_destroy(d->gateway);
	free(d);
}

static int create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	const char *endpoints = "http://127.0.0.1:2379", *ca_file = NULL;
	struct directory *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return etcd_fail(-ENOMEM, "directory etcd: no memory");
	d->ttl_s = TTL_S;
	rc = read_params(params, n, d, &endpoints, &ca_file);
	if (rc == 0)
		rc = gateway_create(endpoints, ca_file, &d->gateway);
	if (rc) {
		free(d);
		return rc;
	}
	rc = start_thread(d);
	if (rc) {
		directory_free(d);
		return rc;
	}
	*out = d;
	return 0;
}

static void destroy(void *directory)
{
	struct directory *d = directory;

	pthread_mutex_lock(&d->lock);
	d->stop = true;
	pthread_cond_signal(&d->changed);
	pthread_mutex_unlock(&d->lock);
	pthread_join(d->thread, NULL);
	if (d->lease)
		gateway_revoke(d->gateway, d->lease, http_now_ns() + END_NS); /* else the entries go when it ends */
	directory_free(d);
}

static const struct tn_xfer_directory_ops ops = {
	.size = sizeof(ops),
	.abi = TN_XFER_DIRECTORY_ABI,
	.name = "etcd",
	.create = create,
	.destroy = destroy,
	.put = put,
	.get = get,
	.remove = remove_entry,
	.error = etcd_error,
};

const struct tn_plugin tn_plugin = {
	.size = sizeof(tn_plugin),
	.abi = TN_PLUGIN_ABI,
	.kind = TN_PLUGIN_XFER_DIRECTORY,
	.name = "etcd",
	.built_for = TN_PLUGIN_BUILT_FOR,
	.table = &ops,
};
