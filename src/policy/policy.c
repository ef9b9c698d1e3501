/* SPDX-License-Identifier: Apache-2.0 */
/* The table of policies. */
#include "policy/policy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static const struct tn_policy_ops *const policies[] = {&tn_policy_default, &tn_policy_lru, &tn_policy_fifo,
						       &tn_policy_s3fifo};

#define POLICIES (sizeof(policies) / sizeof(policies[0]))

const struct tn_policy_ops *tn_policy_at(size_t i)
{
	return i < POLICIES ? policies[i] : NULL;
}

int tn_policy_find(const char *name, const struct tn_policy_ops **out)
{
	char known[128] = "";

	for (size_t i = 0; i < POLICIES; i++) {
		size_t n = strlen(known);

		if (!strcmp(name, policies[i]->name)) {
			*out = policies[i];
			return 0;
		}
		snprintf(known + n, sizeof(known) - n, "%s%s", n ? ", " : "", policies[i]->name);
	}
	return tn_fail(-EINVAL, "policy \"%.40s\": unknown, there are %s", name, known);
}
