/* SPDX-License-Identifier: Apache-2.0 */
/* All policies; tn_policy_find finds a policy by its name. */
#ifndef TN_POLICY_POLICIES_H
#define TN_POLICY_POLICIES_H

#include "policy/policy.h"

extern const struct tn_policy_ops tn_policy_default, tn_policy_lru, tn_policy_fifo, tn_policy_s3fifo;

#endif
