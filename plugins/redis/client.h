/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects as values of Redis, Valkey, or a cluster of them: one thread with poll, some connections per server, commands in a pipeline, tries with jitter.
 *
 * Of a cluster it knows what redirects (MOVED) have taught it; a slot of which it knows nothing is asked for at the first server, or at another one if that is gone.
 * What it does not do: it fetches no map of the cluster, reads from no replica, encrypts nothing.
 *
 * Threads: any; `done` comes from the client's thread. A name of a host is resolved in it.
 * Forks: a child closes its copies of the sockets. It makes no call here.
 */
#ifndef TN_PLUGIN_REDIS_CLIENT_H
#define TN_PLUGIN_REDIS_CLIENT_H

#include "../object/object.h"

struct redis_client;

/**
 * struct redis_opts - begin with redis_opts_init
 * @host, @port:  the first server
 * @user:         of ACL; NULL: the default one
 * @password:     NULL: none
 * @db:           0 in a cluster
 * @ttl_s:        of what is written; 0: for ever
 * @connections:  to each server, 1 to 8
 * @tries:        of a command, the first included
 */
struct redis_opts {
	const char *host;
	const char *user;
	const char *password;
	uint32_t port;
	uint32_t db;
	uint32_t ttl_s;
	uint32_t connections;
	uint32_t tries;
};

/** redis_opts_init - defaults, and the password of the environment (REDISCLI_AUTH) */
void redis_opts_init(struct redis_opts *opts);

/** redis_client_create - a client and its thread; connects to nobody. Return: 0 and *out; -EINVAL, -ENOMEM, -EAGAIN by object_fail. */
int redis_client_create(const struct redis_opts *opts, struct redis_client **out);

/* As struct object_client_ops has them. */
void redis_client_destroy(void *client);
int redis_prepare(void *client, struct object_transfer *t);
void redis_forget_transfer(struct object_transfer *t);
void redis_post(struct object_transfer *t);
void redis_poke(void *client);

#endif
