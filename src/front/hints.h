/* SPDX-License-Identifier: Apache-2.0 */
/* Hints (tenuto/hints.h): the queue of a cache's owner, and the thread that follows them. Made by the first hint. */
#ifndef TN_FRONT_HINTS_H
#define TN_FRONT_HINTS_H

#include <stdint.h>

struct tn_cache;
struct tn_space;

/* A hint of a process that has attached. asked: memory of the session. space: NULL: it has no such space open, and the detail is set. */
int tn_served_hint(struct tn_space *space, const unsigned char *asked, uint32_t bytes);
/* Ends the thread, and what it holds. Before the core ends. */
void tn_hints_stop(struct tn_cache *cache);

#endif
