/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a tool that knows a store's directory finds the process that serves it: beside the store's file lies a symbolic link, tenuto.socket, to the
 * socket. The link is no lock and proves nothing: whoever follows it asks the owner which files it has open.
 */
#ifndef TN_FRONT_FIND_H
#define TN_FRONT_FIND_H

#include "core/core.h"

#define TN_FIND_NAME "tenuto.socket"

/* Puts the link into each directory of the cache, in place of an older one; without disks, or read-only, nowhere. A link that cannot be made is logged. */
/* Not of a drive, nor of a device that is absent in this session. */
bool tn_find_has_file(const struct tn_cache *cache, uint32_t device);
void tn_find_me(struct tn_cache *cache, const char *socket);
void tn_find_me_no_more(struct tn_cache *cache);

/* The absolute path of a device's file, cut to the number of bytes. */
void tn_find_store(const struct tn_cache *cache, uint32_t device, char *path, size_t bytes);

#endif
