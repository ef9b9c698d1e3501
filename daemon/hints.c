/* SPDX-License-Identifier: Apache-2.0 */
#include "hints.h"

#include <errno.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/hints.h>

#define BEARER "Bearer "
#define FORM "write {\"hint\": \"prefetch\", \"hashes\": [\"<hex>\", ...], \"seconds\": 10}; hint: prefetch, pin or demote, which has no seconds\n"

bool hints_allowed(const char *authorization, const char *token)
{
	size_t bytes = strlen(token), given;
	unsigned char wrong = 0;

	if (!authorization || strncmp(authorization, BEARER, strlen(BEARER)) != 0)
		return false;
	authorization += strlen(BEARER);
	given = strlen(authorization);
	for (size_t i = 0; i < bytes; i++)
		wrong |= (unsigned char)(token[i] ^ (i < given ? authorization[i] : 0));
	return wrong == 0 && given == bytes;
}

/* The last 16 digits of a hash in hexadecimal. */
static bool read_hash(const json_t *from, uint64_t *out)
{
	const char *text = json_string_value(from);
	size_t n = text ? strlen(text) : 0;
	char *end;

	if (n == 0 || strspn(text, "0123456789abcdefABCDEF") != n)
		return false;
	*out = strtoull(n > 16 ? text + n - 16 : text, &end, 16);
	return true;
}

static enum tn_hint_kind kind_of(const json_t *from)
{
	static const char *const kind[] = {"prefetch", "pin", "demote"};
	const char *text = json_string_value(from);

	for (int i = 0; text && i < 3; i++)
		if (strcmp(text, kind[i]) == 0)
			return (enum tn_hint_kind)(i + 1);
	return (enum tn_hint_kind)0;
}

/* 0, or -EINVAL. */
static int follow(struct tn_cache *cache, const json_t *root)
{
	const json_t *hashes = json_object_get(root, "hashes"), *seconds = json_object_get(root, "seconds");
	enum tn_hint_kind kind = kind_of(json_object_get(root, "hint"));
	double s = seconds ? json_number_value(seconds) : 0;
	size_t n = json_array_size(hashes);
	uint64_t *hash;
	int rc = 0;

	if (!kind || n == 0 || n > TN_HINT_BLOCKS_MAX || s < 0 || s > 3600)
		return -EINVAL;
	hash = calloc(n, sizeof(*hash));
	if (!hash)
		return -ENOMEM;
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = read_hash(json_array_get(hashes, i), &hash[i]) ? 0 : -EINVAL;
	if (rc == 0)
		rc = tn_hint_named(cache, kind, hash, n, (uint64_t)(s * 1e9));
	free(hash);
	return rc;
}

unsigned hints_take(struct tn_cache *cache, const char *body, size_t bytes, const char **why)
{
	json_t *root = json_loadb(body, bytes, JSON_REJECT_DUPLICATES, NULL);
	int rc = root ? follow(cache, root) : -EINVAL;

	json_decref(root);
	*why = rc == 0 ? "taken\n" : rc == -EINVAL ? FORM : rc == -ENOTSUP ? "nothing is published of this cache: set events\n" : "no memory\n";
	return rc == 0 ? 202 : rc == -EINVAL ? 400 : rc == -ENOTSUP ? 409 : 503;
}
