/* SPDX-License-Identifier: Apache-2.0 */
#include "store_live.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <tenuto/session.h>

#include "cli.h"

static const char *const health_name[] = {"healthy", "slow", "read-only", "offline"};

int store_owner(const struct tn_admin_store *store, struct tn_cache **cache)
{
	int rc = -ENOENT;

	for (size_t i = 0; rc && i < store->ndirs; i++)
		rc = tn_cache_attach_store(store->dirs[i], store->instance, NULL, cache);
	return rc;
}

int store_live_ask(struct tn_cache *cache, struct store_live *live)
{
	int rc;

	memset(live, 0, sizeof(*live));
	live->owner.size = sizeof(live->owner);
	rc = tn_cache_owner_stats(cache, &live->owner);
	if (rc == 0)
		rc = tn_cache_stat(cache, "host_blocks", &live->host_blocks);
	if (rc == 0)
		rc = tn_cache_stat(cache, "offload_waiting_bytes", &live->waiting_bytes);
	for (; rc == 0 && live->devices < TN_DEVICES_MAX; live->devices++) {
		live->device[live->devices].size = sizeof(live->device[0]);
		rc = tn_cache_device_stats(cache, live->devices, &live->device[live->devices]);
		if (rc)
			break;
	}
	return rc == -ENOENT ? 0 : rc;
}

static const char *health_of(const struct tn_device_stats *d)
{
	return d->health < sizeof(health_name) / sizeof(health_name[0]) ? health_name[d->health] : "unknown";
}

void store_live_print(const struct store_live *live, uint32_t device)
{
	const struct tn_device_stats *d = &live->device[device];
	char a[32], b[32];

	if (device >= live->devices)
		return;
	printf("now          %s; %s blocks, %s of it used, as process %u says", health_of(d), cli_number(a, d->blocks),
	       cli_bytes(b, (double)d->used_bytes), live->owner.pid);
	printf("; %s wait in host memory\n", cli_bytes(a, (double)live->waiting_bytes));
}

json_t *store_live_json(const struct store_live *live)
{
	json_t *devices = json_array();

	for (uint32_t i = 0; i < live->devices; i++) {
		const struct tn_device_stats *d = &live->device[i];

		json_array_append_new(devices, json_pack("{s:i, s:s, s:I, s:I, s:I}", "device_index", (int)i, "health", health_of(d), "blocks",
							 (json_int_t)d->blocks, "used_bytes", (json_int_t)d->used_bytes, "capacity_bytes",
							 (json_int_t)d->capacity_bytes));
	}
	return json_pack("{s:i, s:i, s:I, s:I, s:o}", "pid", (int)live->owner.pid, "attached", (int)live->owner.sessions, "host_blocks",
			 (json_int_t)live->host_blocks, "waiting_bytes", (json_int_t)live->waiting_bytes, "devices", devices);
}

bool store_is_on_drives(const struct tn_admin_store *store)
{
	for (size_t i = 0; i < store->ndirs; i++)
		if (!cli_is_drive(store->dirs[i]))
			return false;
	return true;
}

int store_is_in_use(const struct tn_admin_store *store)
{
	char why[sizeof(((struct tn_error *)NULL)->text)];
	struct tn_cache *cache;

	snprintf(why, sizeof(why), "%s", tn_error_last()->text); /* of -EBUSY: names the process */
	if (store_is_on_drives(store)) /* only one process reaches a drive, and there is no directory to find its socket by */
		return cli_error(CLI_ENVIRONMENT, "%s", why);
	if (store_owner(store, &cache))
		return cli_error(CLI_ENVIRONMENT, "%s; `tenuto store info` works beside it", why);
	tn_cache_close(cache);
	return cli_error(CLI_ENVIRONMENT, "%s; it serves the store, so that `tenuto store info`, `tenuto store flush` and `tenuto status %s` can ask "
			 "it while it runs", why, store->dirs[0]);
}
