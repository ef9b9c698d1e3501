/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "io/io.h"
#include "xfer/backends.h"

/* Of a specification, for an error: its parameters may be secrets. */
static int name_bytes(const char *spec)
{
	size_t n = strcspn(spec, ",");

	return n < 40 ? (int)n : 40;
}

int tn_xfer_spec_split(const char *what, const char *text, struct tn_xfer_spec *out)
{
	char *next;

	if (!text || !*text || strlen(text) >= sizeof(out->name))
		return tn_fail(-EINVAL, "%s \"%.*s\": NAME,key=value of 1 to %u bytes is wanted", what, text ? name_bytes(text) : 4,
			       text ? text : "NULL", TN_XFER_SPEC_BYTES - 1);
	snprintf(out->name, sizeof(out->name), "%s", text);
	out->n = 0;
	next = strchr(out->name, ',');
	for (char *at = next; at; at = next) {
		char *equals;

		*at++ = 0;
		next = strchr(at, ',');
		if (next)
			*next = 0;
		equals = strchr(at, '=');
		if (!equals || equals == at)
			return tn_fail(-EINVAL, "%s %s: parameter %u is not key=value (no value may have a comma)", what, out->name, out->n + 1);
		if (out->n == TN_XFER_PARAMS_MAX)
			return tn_fail(-EINVAL, "%s %s: more than %u parameters", what, out->name, TN_XFER_PARAMS_MAX);
		*equals = 0;
		out->param[out->n++] = (struct tn_xfer_param){at, equals + 1};
	}
	return 0;
}

const char *tn_xfer_file_path(const char *meta, unsigned *flags)
{
	static const struct {
		const char *mode;
		unsigned flags;
	} modes[] = {
		{"ro:", TN_IO_READ_ONLY | TN_IO_BUFFERED}, {"rw:", TN_IO_CREATE | TN_IO_BUFFERED}, {"ro,direct:", TN_IO_READ_ONLY}, {"rw,direct:", TN_IO_CREATE},
	};

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		if (!strncmp(meta, modes[i].mode, strlen(modes[i].mode))) {
			*flags = modes[i].flags;
			return meta + strlen(modes[i].mode);
		}
	*flags = TN_IO_CREATE | TN_IO_BUFFERED;
	return meta;
}

int tn_xfer_param_number(const char *backend, const struct tn_xfer_param *param, uint64_t least, uint64_t most, uint64_t *out)
{
	char *end;
	unsigned long long v;

	errno = 0;
	v = strtoull(param->value, &end, 10);
	if (errno || *end || end == param->value || v < least || v > most)
		return tn_fail(-EINVAL, "backend %s: %s=%s: a whole number from %llu to %llu is wanted", backend, param->key, param->value,
			       (unsigned long long)least, (unsigned long long)most);
	*out = v;
	return 0;
}

int tn_xfer_backend_told(const struct tn_xfer_backend_ops *ops, int rc)
{
	return rc && ops->error ? tn_fail(rc, "%s", ops->error()) : rc;
}
