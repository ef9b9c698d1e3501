/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/hints: what a router expects of blocks (tenuto/hints.h), by the hashes that their engine has for them. */
#ifndef TENUTOD_HINTS_H
#define TENUTOD_HINTS_H

#include <stdbool.h>
#include <stddef.h>

#include <tenuto/cache.h>

/* Most bytes of a request's body. */
#define HINTS_BODY_MAX (256u << 10)

/* Whether an Authorization header, or NULL, has the token, in a time that does not depend on how much of it is right. */
bool hints_allowed(const char *authorization, const char *token);

/* Follows a request's body. Returns the HTTP status; *why: a text for the answer, which is the same whatever blocks are there. */
unsigned hints_take(struct tn_cache *cache, const char *body, size_t bytes, const char **why);

#endif
