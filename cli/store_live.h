/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto store` on a store that a process has open: what that process is asked, if it serves the cache, and what is said if it does not. */
#ifndef TENUTO_CLI_STORE_LIVE_H
#define TENUTO_CLI_STORE_LIVE_H

#include <jansson.h>
#include <tenuto/admin.h>
#include <tenuto/cache.h>
#include <tenuto/status.h>

/* What the owner says of its store now. */
struct store_live {
	struct tn_owner_stats owner;
	struct tn_device_stats device[TN_DEVICES_MAX]; /* by number in the store */
	uint32_t devices;
	uint64_t host_blocks, waiting_bytes;
};

/* Attaches to the process that has the store open and serves it: 0 and *cache, or -errno with the library's detail. */
int store_owner(const struct tn_admin_store *store, struct tn_cache **cache);
/* 0, or -errno of the library. */
int store_live_ask(struct tn_cache *cache, struct store_live *live);
/* Lines behind the table of a device, by its number in the store. */
void store_live_print(const struct store_live *live, uint32_t device);
json_t *store_live_json(const struct store_live *live);
/* Whether no directory is among its places: then nothing leads to its owner's socket. */
bool store_is_on_drives(const struct tn_admin_store *store);
/* After -EBUSY: says who has the store and what to do; the exit code. */
int store_is_in_use(const struct tn_admin_store *store);

#endif
