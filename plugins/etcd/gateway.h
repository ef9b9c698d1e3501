/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of etcd by the JSON gateway of its version 3: keys with values, and leases.
 *
 * A call is tried again at the next endpoint if one does not answer, until its deadline. All calls wait; any thread may make them.
 */
#ifndef TN_PLUGIN_ETCD_GATEWAY_H
#define TN_PLUGIN_ETCD_GATEWAY_H

#include <stddef.h>
#include <stdint.h>

/** Most bytes of a value. An etcd takes 1.5 MiB unless it is told otherwise. */
#define ETCD_VALUE_MAX ((size_t)8 << 20)
/** No lease. */
#define ETCD_NO_LEASE 0

struct gateway;

/** gateway_create - @endpoints: "http://HOST:PORT", with ";" between several; @ca_file: NULL: the system's. Return: 0 and *out; -EINVAL, -ENOMEM, -EAGAIN with text. */
int gateway_create(const char *endpoints, const char *ca_file, struct gateway **out);
void gateway_destroy(struct gateway *g);

/* 0 and *lease; *lease is not ETCD_NO_LEASE. All of these: -errno with text. */
int gateway_grant(struct gateway *g, uint32_t ttl_s, uint64_t deadline_ns, int64_t *lease);
/* -ENOENT: there is no such lease any more. */
int gateway_keep_alive(struct gateway *g, int64_t lease, uint64_t deadline_ns);
int gateway_revoke(struct gateway *g, int64_t lease, uint64_t deadline_ns);
/* -ENOENT: no such lease. */
int gateway_put(struct gateway *g, const char *key, const void *value, size_t bytes, int64_t lease, uint64_t deadline_ns);
/* How many bytes the value has (more than max: nothing was written); -ENOENT. */
int64_t gateway_get(struct gateway *g, const char *key, void *out, size_t max, uint64_t deadline_ns);
int gateway_delete(struct gateway *g, const char *key, uint64_t deadline_ns);

/* The text of this thread's last failure. */
int etcd_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *etcd_error(void);

#endif
