/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_BYTES 512u

static _Thread_local char last_error[ERROR_BYTES];

int s3_fail(int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(last_error, sizeof(last_error), format, args);
	va_end(args);
	return code;
}

const char *s3_error(void)
{
	return last_error;
}

static int number(const struct tn_xfer_param *param, uint64_t most, uint64_t *out)
{
	char *end;
	unsigned long long v;

	errno = 0;
	v = strtoull(param->value, &end, 10);
	if (errno || *end || end == param->value || *param->value == '-' || v > most)
		return s3_fail(-EINVAL, "backend s3: %s=%.40s: a whole number up to %llu is wanted", param->key, param->value, (unsigned long long)most);
	*out = v;
	return 0;
}

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
		rc = number(param, UINT32_MAX, &v);
		if (rc == 0)
			*(*param->key == 'c' ? &o->connections : &o->tries) = (uint32_t)v;
		return rc;
	}
	if (!strcmp(param->key, "multipart_bytes"))
		return number(param, UINT64_MAX, &o->multipart_bytes);
	if (!strcmp(param->key, "if_absent")) {
		rc = number(param, 1, &v);
		if (rc == 0)
			*if_absent = v;
		return rc;
	}
	return s3_fail(-EINVAL, "backend s3: %.40s is no parameter of it: endpoint, region, bucket, access_key, secret_key, session_token, ca_file, connections, tries, "
				"multipart_bytes, if_absent", param->key);
}

int s3_options_read(const struct tn_xfer_param *params, uint32_t n, struct s3_opts *opts, bool *if_absent)
{
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = read_one(&params[i], opts, if_absent);
	return rc;
}
