/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/remote/spec.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define PREFIX "tenuto"
#define NAME_BYTES 24u /* of a client's word in a remote's name: a number may follow */

static int wrong(uint32_t i, const struct tn_remote_spec *spec, const char *what)
{
	return tn_fail(-EINVAL, "remote %u (%s): %s", i + 1, spec->store.name, what);
}

/* "500MB", "64GiB" or a plain number; 0: it is none. */
static uint64_t size_of(const char *text, size_t n)
{
	static const struct {
		const char *unit;
		uint64_t bytes;
	} units[] = {{"", 1},		   {"KB", 1000},	     {"MB", 1000000},		{"GB", 1000000000},	  {"TB", 1000000000000},
		     {"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}, {"TiB", 1ull << 40}};
	uint64_t v = 0;
	size_t digits = 0;

	for (; digits < n && text[digits] >= '0' && text[digits] <= '9' && v < 1ull << 40; digits++)
		v = v * 10 + (uint64_t)(text[digits] - '0');
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (digits > 0 && strlen(units[i].unit) == n - digits && strncmp(units[i].unit, text + digits, n - digits) == 0)
			return v < (1ull << 62) / units[i].bytes ? v * units[i].bytes : 0;
	return 0;
}

static const struct {
	const char *key; /* with its = */
	size_t offset;
} sizes[] = {
	{"write_bytes_per_s=", offsetof(struct tn_object_store_opts, write_bytes_per_s)},
	{"write_bytes_per_day=", offsetof(struct tn_object_store_opts, write_bytes_per_day)},
	{"read_bytes_per_s=", offsetof(struct tn_object_store_opts, read_bytes_per_s)},
	{"read_bytes_per_day=", offsetof(struct tn_object_store_opts, read_bytes_per_day)},
};

static bool begins(const char *setting, size_t n, const char *key, size_t *length)
{
	*length = strlen(key);
	return n >= *length && strncmp(setting, key, *length) == 0;
}

/* A setting of the tier's own; false: it is the client's. */
static bool take(struct tn_object_store_opts *o, const char *setting, size_t n, const char **error)
{
	size_t key;

	if (begins(setting, n, "prefix=", &key)) {
		if (n == key || n - key >= TN_PREFIX_BYTES)
			*error = "a prefix has 1 to 63 bytes";
		else
			snprintf(o->prefix, TN_PREFIX_BYTES, "%.*s", (int)(n - key), setting + key);
		return true;
	}
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t bytes;

		if (!begins(setting, n, sizes[i].key, &key))
			continue;
		bytes = size_of(setting + key, n - key);
		memcpy((char *)o + sizes[i].offset, &bytes, sizeof(bytes));
		if (!bytes)
			*error = "a number of bytes is wrong: write one such as 64GiB or 500MB, or leave the setting out for no limit";
		return true;
	}
	return false;
}

/* text: n bytes of one spec. */
static int parse(uint32_t i, const char *text, size_t n, struct tn_remote_spec *spec)
{
	size_t word = strcspn(text, ",;"), at = word;
	const char *error = NULL;

	snprintf(spec->store.name, TN_REMOTE_NAME_BYTES, "%.*s", (int)(word < NAME_BYTES ? word : NAME_BYTES), text);
	snprintf(spec->store.prefix, TN_PREFIX_BYTES, "%s", PREFIX);
	if (word == 0)
		return wrong(i, spec, "no client: write one such as s3,bucket=NAME");
	if (memchr(text, '=', word))
		return wrong(i, spec, "a setting without its client; in YAML write one remote per line, each as - s3,bucket=NAME");
	if (n >= TN_SPEC_BYTES)
		return wrong(i, spec, "its settings are longer than 511 bytes");
	memcpy(spec->client, text, word);
	while (at < n && !error) {
		size_t length = strcspn(text + at + 1, ",;");

		if (!take(&spec->store, text + at + 1, length, &error))
			strncat(spec->client, text + at, length + 1);
		at += length + 1;
	}
	return error ? wrong(i, spec, error) : 0;
}

/* How many of the remotes before number i have the same first word. */
static uint32_t same_before(const struct tn_remote_spec *specs, uint32_t i)
{
	size_t word = strcspn(specs[i].client, ",");
	uint32_t n = 0;

	for (uint32_t k = 0; k < i; k++)
		n += strcspn(specs[k].client, ",") == word && strncmp(specs[k].client, specs[i].client, word) == 0;
	return n;
}

int tn_remote_specs(const char *text, struct tn_remote_spec *out)
{
	for (uint32_t i = 0; i < TN_REMOTES_MAX; i++) {
		size_t n = strcspn(text, ";"), at;
		uint32_t before;
		int rc;

		memset(&out[i], 0, sizeof(out[i]));
		rc = parse(i, text, n, &out[i]);
		if (rc)
			return rc;
		before = same_before(out, i);
		at = strlen(out[i].store.name);
		if (before > 0)
			snprintf(out[i].store.name + at, TN_REMOTE_NAME_BYTES - at, "-%u", before + 1);
		if (!text[n])
			return (int)i + 1;
		text += n + 1;
	}
	return tn_fail(-EINVAL, "more than %u remotes: write at most so many", TN_REMOTES_MAX);
}
