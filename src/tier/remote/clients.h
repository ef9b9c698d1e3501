/* SPDX-License-Identifier: Apache-2.0 */
/* Which client a spec names: its first word chooses. */
#ifndef TN_TIER_REMOTE_CLIENTS_H
#define TN_TIER_REMOTE_CLIENTS_H

#include "tier/remote/client.h"

/* 0 and *out, or what the client says. */
int tn_object_client_create(const char *spec, const struct tn_alloc *alloc, struct tn_object_client **out);

#endif
