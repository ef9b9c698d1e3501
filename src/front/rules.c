/* SPDX-License-Identifier: Apache-2.0 */
#include "front/rules.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/error.h"

struct tn_rules {
	const struct tn_alloc *alloc;
	uint32_t refs; /* shared */
	uint32_t n;
	struct tn_rule rule[];
};

void tn_serve_opts_init_sized(struct tn_serve_opts *opts, size_t size)
{
	static const struct tn_serve_opts defaults = {.size = sizeof(defaults)};

	tn_abi_init(opts, size, &defaults, sizeof(defaults));
}

static const struct tn_serve_rule rule_defaults = {.size = sizeof(rule_defaults), .max_priority = 127};

void tn_serve_rule_init_sized(struct tn_serve_rule *rule, size_t size)
{
	tn_abi_init(rule, size, &rule_defaults, sizeof(rule_defaults));
}

/* ---- copies -------------------------------------------------------------------------------------------------- */

static size_t tenants_bytes(const char *tenants, uint32_t n)
{
	size_t bytes = 0;

	for (uint32_t i = 0; i < n; i++)
		bytes += strlen(tenants + bytes) + 1;
	return bytes;
}

static int copy_tenants(const struct tn_serve_rule *from, const struct tn_alloc *alloc, uint32_t i, struct tn_rule *to)
{
	size_t bytes = 0;
	char *at;

	for (uint32_t k = 0; k < from->ntenants; k++) {
		if (!from->tenants || !from->tenants[k])
			return tn_fail(-EINVAL, "tn_cache_serve: rule %u has %u tenants, and tenant %u is no text", i, from->ntenants, k);
		bytes += strlen(from->tenants[k]) + 1;
	}
	if (bytes == 0)
		return 0;
	at = to->tenants = tn_get(alloc, bytes);
	if (!at)
		return tn_fail(-ENOMEM, "tn_cache_serve: no memory for the tenants of rule %u", i);
	for (uint32_t k = 0; k < from->ntenants; k++) {
		size_t n = strlen(from->tenants[k]) + 1;

		memcpy(at, from->tenants[k], n);
		at += n;
	}
	to->ntenants = from->ntenants;
	return 0;
}

static int copy(const struct tn_serve_rule *theirs, const struct tn_alloc *alloc, uint32_t i, struct tn_rule *to)
{
	struct tn_serve_rule from = rule_defaults;
	int rc = tn_abi_in(TN_ABI(tn_serve_rule, quota), &from, theirs);

	tn_quota_init(&to->quota);
	if (rc == 0 && from.quota)
		rc = tn_abi_in(TN_ABI(tn_quota, bytes), &to->quota, from.quota);
	if (rc)
		return rc;
	if (from.token && strlen(from.token) >= sizeof(to->token))
		return tn_fail(-EINVAL, "tn_cache_serve: the token of rule %u has %zu bytes, at most %zu", i, strlen(from.token),
			       sizeof(to->token) - 1);
	if (from.uid == TN_ANY_UID && !(from.token && from.token[0]))
		return tn_fail(-EINVAL, "tn_cache_serve: rule %u is for any user without a token: name a uid, or give a token", i);
	if (from.max_priority < -128 || from.max_priority > 127)
		return tn_fail(-EINVAL, "tn_cache_serve: rule %u has max_priority %d outside -128..127", i, from.max_priority);
	to->uid = from.uid;
	memcpy(to->token, from.token ? from.token : "", from.token ? strlen(from.token) : 0);
	to->read_only = from.read_only;
	to->max_priority = from.max_priority;
	to->max_memory_bytes = from.max_memory_bytes;
	return copy_tenants(&from, alloc, i, to);
}

int tn_rules_create(const struct tn_serve_opts *opts, const struct tn_alloc *alloc, struct tn_rules **out)
{
	struct tn_serve_opts o;
	struct tn_rules *r;
	uint32_t n;
	int rc = 0;

	tn_serve_opts_init(&o);
	if (opts)
		rc = tn_abi_in(TN_ABI(tn_serve_opts, nrules), &o, opts);
	if (rc)
		return rc;
	if (o.nrules > TN_SERVE_RULES_MAX || (o.nrules > 0 && !o.rules))
		return tn_fail(-EINVAL, "tn_cache_serve: %u rules; at most %u", o.nrules, TN_SERVE_RULES_MAX);
	n = o.nrules ? o.nrules : 1;
	r = tn_get(alloc, sizeof(*r) + n * sizeof(r->rule[0]));
	if (!r)
		return tn_fail(-ENOMEM, "tn_cache_serve: no memory for %u rules", n);
	r->alloc = alloc;
	r->refs = 1;
	r->n = n;
	if (o.nrules == 0) {
		r->rule[0] = (struct tn_rule){.uid = geteuid(), .max_priority = 127};
		tn_quota_init(&r->rule[0].quota);
	}
	/* The size that each says is that of the caller's array elements. */
	for (uint32_t i = 0; i < o.nrules && rc == 0; i++)
		rc = copy((const struct tn_serve_rule *)(const void *)((const char *)o.rules + i * o.rules->size), alloc, i, &r->rule[i]);
	if (rc) {
		tn_rules_put(r);
		return rc;
	}
	*out = r;
	return 0;
}

struct tn_rules *tn_rules_ref(struct tn_rules *r)
{
	__atomic_add_fetch(&r->refs, 1, __ATOMIC_RELAXED);
	return r;
}

void tn_rules_put(struct tn_rules *r)
{
	if (!r || __atomic_sub_fetch(&r->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	for (uint32_t i = 0; i < r->n; i++)
		tn_put(r->alloc, r->rule[i].tenants, tenants_bytes(r->rule[i].tenants, r->rule[i].ntenants));
	tn_put(r->alloc, r, sizeof(*r) + r->n * sizeof(r->rule[0]));
}

/* ---- questions ------------------------------------------------------------------------------------------------- */

static bool is_about(const struct tn_rule *rule, uint32_t uid)
{
	return rule->uid == uid || rule->uid == TN_ANY_UID;
}

/* Takes as long whatever the bytes are. */
static bool same_token(const char *a, const char *b)
{
	unsigned char differs = 0;

	for (size_t i = 0; i < TN_SERVE_TOKEN_BYTES; i++)
		differs |= (unsigned char)(a[i] ^ b[i]);
	return differs == 0;
}

bool tn_rules_let_others(const struct tn_rules *r)
{
	bool any = false;

	for (uint32_t i = 0; i < r->n; i++)
		any |= r->rule[i].uid != geteuid();
	return any;
}

bool tn_rules_know(const struct tn_rules *r, uint32_t uid)
{
	bool any = false;

	for (uint32_t i = 0; i < r->n; i++)
		any |= is_about(&r->rule[i], uid);
	return any;
}

const struct tn_rule *tn_rules_find(const struct tn_rules *r, uint32_t uid, const char *token)
{
	for (uint32_t i = 0; i < r->n; i++)
		if (is_about(&r->rule[i], uid) && (r->rule[i].token[0] == '\0' || same_token(r->rule[i].token, token)))
			return &r->rule[i];
	return NULL;
}

bool tn_rule_allows(const struct tn_rule *rule, const char *tenant)
{
	const char *at = rule->tenants;

	for (uint32_t i = 0; i < rule->ntenants; at += strlen(at) + 1, i++)
		if (strcmp(at, tenant) == 0)
			return true;
	return rule->ntenants == 0;
}

void tn_rule_limit(const struct tn_rule *rule, struct tn_quota *quota, bool *asked)
{
	for (unsigned t = 0; t < TN_TIERS_MAX; t++) {
		uint64_t most = rule->quota.bytes[t];

		if (!*asked)
			quota->bytes[t] = UINT64_MAX;
		quota->bytes[t] = quota->bytes[t] < most ? quota->bytes[t] : most;
	}
	for (unsigned t = 0; t < TN_TIERS_MAX; t++)
		*asked |= rule->quota.bytes[t] != UINT64_MAX;
}
