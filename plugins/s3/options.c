/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of the backend's spec, and the client as the backend wants it. */
#include "client.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

static int read_one(const struct tn_xfer_param *param, struct s3_opts *o, bool *if_absent)
{
	const struct {
		const char *key;
		const char **text;
	} texts[] = {
		{"endpoint", &o->endpoint},	{"region", &o->region},		      {"bucket", &o->bucket},	{"access_key", &o->access_key},
		{"secret_key", &o->secret_key}, {"session_token", &o->session_token}, {"ca_file", &o->ca_file},
	};
	uint64_t v;
	int rc;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (!strcmp(texts[i].key, param->key)) {
			*texts[i].text = param->value;
			return 0;
		}
	if (!strcmp(param->key, "connections") || !strcmp(param->key, "tries")) {
		rc = object_number(param, UINT32_MAX, &v);
		if (rc == 0)
			*(*param->key == 'c' ? &o->connections : &o->tries) = (uint32_t)v;
		return rc;
	}
	if (!strcmp(param->key, "multipart_bytes"))
		return object_number(param, UINT64_MAX, &o->multipart_bytes);
	if (!strcmp(param->key, "if_absent")) {
		rc = object_number(param, 1, &v);
		if (rc == 0)
			*if_absent = v;
		return rc;
	}
	return object_fail(-EINVAL, "backend s3: %.40s is no parameter of it: endpoint, region, bucket, access_key, secret_key, session_token, ca_file, connections, tries, "
				"multipart_bytes, if_absent", param->key);
}

static int read_options(const struct tn_xfer_param *params, uint32_t n, struct s3_opts *opts, bool *if_absent)
{
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = read_one(&params[i], opts, if_absent);
	return rc;
}

static int create(const struct tn_xfer_param *params, uint32_t n, bool *if_absent, void **client)
{
	char detail[384] = "no memory";
	struct s3_client *c;
	struct s3_opts opts;
	int rc;

	s3_opts_init(&opts);
	rc = read_options(params, n, &opts, if_absent);
	if (rc)
		return rc;
	rc = s3_client_create(&opts, &c, detail, sizeof(detail));
	if (rc)
		return object_fail(rc, "backend s3: %s", detail);
	*client = c;
	return 0;
}

const struct object_client_ops object_client = {
	.key_max = S3_KEY_MAX,
	.create = create,
	.destroy = s3_client_destroy,
	.prepare = s3_prepare,
	.forget = s3_forget,
	.post = s3_post,
	.poke = s3_poke,
};
