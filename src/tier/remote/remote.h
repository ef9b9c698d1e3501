/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote tier: blocks as objects of a store that other nodes use, too (object.h), through a client (client.h). It reads blocks into memory, verified
 * against their own headers, and writes blocks that no node has written yet. It deletes nothing: what leaves the tier is forgotten here alone.
 *
 * A store that fails or is late three times in a row is left alone for some seconds: nothing is found there, nothing is written, and what was to come from
 * there is a miss at once.
 *
 * Owner thread only.
 */
#ifndef TN_TIER_REMOTE_REMOTE_H
#define TN_TIER_REMOTE_REMOTE_H

#include "tier/row.h"

extern const struct tn_tier_maker tn_remote_tier_maker;

struct tn_object_client;

/* With another client than the options', which goes with the tier, also if there is none for an error. prefix: of the objects' names, 1 to 63 bytes. */
int tn_remote_tier_create(const struct tn_tier_env *env, struct tn_object_client *client, const char *prefix, struct tn_tier_base **out);

#endif
