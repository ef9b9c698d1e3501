/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of the backend's spec, and the client as the backend wants it. */
#include <errno.h>
#include <string.h>

#include "client.h"
#include "command.h"

#define TTL_MAX_S UINT32_C(315360000)

static int read_one(const struct tn_xfer_param *param, struct redis_opts *o, bool *if_absent)
{
	const struct {
		const char *key;
		uint32_t *number;
		uint64_t most;
	} numbers[] = {{"port", &o->port, UINT16_MAX}, {"db", &o->db, 1000000}, {"ttl", &o->ttl_s, TTL_MAX_S}, {"connections", &o->connections, 8}, {"tries", &o->tries, 100}};
	uint64_t v = 0;
	int rc;

	if (!strcmp(param->key, "host") || !strcmp(param->key, "user")) {
		*(*param->key == 'h' ? &o->host : &o->user) = param->value;
		return 0;
	}
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!strcmp(numbers[i].key, param->key)) {
			rc = object_number(param, numbers[i].most, &v);
			if (rc == 0)
				*numbers[i].number = (uint32_t)v;
			return rc;
		}
	if (!strcmp(param->key, "if_absent")) {
		rc = object_number(param, 1, &v);
		*if_absent = v;
		return rc;
	}
	return object_fail(-EINVAL, "backend redis: %.40s is no parameter of it: host, port, user, db, ttl, connections, tries, if_absent; the password comes from the "
				    "environment (REDISCLI_AUTH)", param->key);
}

static int create(const struct tn_xfer_param *params, uint32_t n, bool *if_absent, void **client)
{
	struct redis_client *c;
	struct redis_opts opts;
	int rc = 0;

	redis_opts_init(&opts);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = read_one(&params[i], &opts, if_absent);
	rc = rc ? rc : redis_client_create(&opts, &c);
	if (rc == 0)
		*client = c;
	return rc;
}

const struct object_client_ops object_client = {
	.key_max = REDIS_KEY_MAX,
	.create = create,
	.destroy = redis_client_destroy,
	.prepare = redis_prepare,
	.forget = redis_forget_transfer,
	.post = redis_post,
	.poke = redis_poke,
};
