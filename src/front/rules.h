/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may what: the rules of tn_cache_serve, kept for as long as a session goes by one of them.
 *
 * Any thread, but for tn_rules_create.
 */
#ifndef TN_FRONT_RULES_H
#define TN_FRONT_RULES_H

#include <stdbool.h>
#include <tenuto/session.h>

#include "base/alloc.h"

/* A rule, copied. */
struct tn_rule {
	uint32_t uid;
	char token[TN_SERVE_TOKEN_BYTES]; /* zeros behind it; "": none is asked for */
	char *tenants; /* strings that follow each other; NULL: all */
	uint32_t ntenants;
	bool read_only;
	int32_t max_priority;
	struct tn_quota quota;
	uint64_t max_memory_bytes; /* 0: what the machine has */
};

struct tn_rules;

/* Of opts, which may be NULL: this process's own uid may do everything. 0; -EINVAL, -ENOMEM. One reference is the caller's. */
int tn_rules_create(const struct tn_serve_opts *opts, const struct tn_alloc *alloc, struct tn_rules **out);
struct tn_rules *tn_rules_ref(struct tn_rules *r);
/* NULL is fine. */
void tn_rules_put(struct tn_rules *r);

/* Whether users besides this process's own may attach. */
bool tn_rules_let_others(const struct tn_rules *r);
/* Whether any rule is about the user, whatever the token. */
bool tn_rules_know(const struct tn_rules *r, uint32_t uid);
/* The first that is about the user with this token, of TN_SERVE_TOKEN_BYTES; NULL: there is none. */
const struct tn_rule *tn_rules_find(const struct tn_rules *r, uint32_t uid, const char *token);

/* Whether it is about all tenants: who goes by it may see what the whole cache does. */
static inline bool tn_rule_is_for_all(const struct tn_rule *rule)
{
	return rule->ntenants == 0;
}
bool tn_rule_allows(const struct tn_rule *rule, const char *tenant);
/* The smaller of both by tier, in *quota, which is used if *asked; sets *asked if the rule has a limit. */
void tn_rule_limit(const struct tn_rule *rule, struct tn_quota *quota, bool *asked);

#endif
