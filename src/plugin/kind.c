/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/kind.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <tenuto/device_file.h>
#include <tenuto/device_memory.h>
#include <tenuto/event_bus.h>
#include <tenuto/xfer_backend.h>
#include <tenuto/xfer_directory.h>

#include "base/error.h"

static int check_device(const struct tn_plugin *plugin, const char *path)
{
	const struct tn_device_driver_ops *ops = ((const struct tn_device_driver *)plugin->table)->ops;

	if (!ops || ops->abi != TN_DEVICE_DRIVER_ABI || ops->size != sizeof(*ops))
		return tn_fail(-EPROTO, "'%s' has device calls of ABI %u, %zu bytes; this library has ABI %u, %zu bytes: take a plugin that was built "
			       "for Tenuto %s", path, ops ? ops->abi : 0, ops ? ops->size : (size_t)0, TN_DEVICE_DRIVER_ABI, sizeof(*ops),
			       tn_version());
	if (!ops->count || !ops->properties || !ops->register_range || !ops->unregister_range || !ops->pin || !ops->unpin || !ops->stream_create ||
	    !ops->stream_destroy || !ops->copy || !ops->wait)
		return tn_fail(-EPROTO, "'%s' lacks a device call that is always there: tenuto/device_memory.h lists them", path);
	return 0;
}

static int check_device_file(const struct tn_plugin *plugin, const char *path)
{
	const struct tn_device_file_ops *ops = plugin->table;

	if (ops->abi != TN_DEVICE_FILE_ABI || ops->size != sizeof(*ops))
		return tn_fail(-EPROTO, "'%s' has file calls of ABI %u, %zu bytes; this library has ABI %u, %zu bytes: take a plugin that was built for "
			       "Tenuto %s", path, ops->abi, ops->size, TN_DEVICE_FILE_ABI, sizeof(*ops), tn_version());
	if (!ops->start || !ops->describe || !ops->add || !ops->remove || !ops->acquire || !ops->release || !ops->cleanup || !ops->read || !ops->write ||
	    !ops->queue_create || !ops->queue_destroy || !ops->submit)
		return tn_fail(-EPROTO, "'%s' lacks a file call that is always there: tenuto/device_file.h lists them", path);
	return 0;
}

static int check_xfer(const struct tn_plugin *plugin, const char *path)
{
	const struct tn_xfer_backend_ops *ops = plugin->table;

	if (ops->abi != TN_XFER_BACKEND_ABI || ops->size != sizeof(*ops))
		return tn_fail(-EPROTO, "'%s' has transfer calls of ABI %u, %zu bytes; this library has ABI %u, %zu bytes: take a plugin that was built for "
			       "Tenuto %s", path, ops->abi, ops->size, TN_XFER_BACKEND_ABI, sizeof(*ops), tn_version());
	if (!ops->create || !ops->destroy || !ops->can || !ops->cost || !ops->post || !ops->error)
		return tn_fail(-EPROTO, "'%s' lacks a transfer call that is always there: tenuto/xfer_backend.h lists them", path);
	if (!ops->name || strcmp(ops->name, plugin->name) != 0 || strlen(ops->name) >= TN_XFER_BACKEND_NAME_BYTES)
		return tn_fail(-EPROTO, "'%s' has a backend '%.48s': it needs the plugin's name, of at most %u bytes", path, ops->name ? ops->name : "",
			       TN_XFER_BACKEND_NAME_BYTES - 1);
	return 0;
}

static int check_directory(const struct tn_plugin *plugin, const char *path)
{
	const struct tn_xfer_directory_ops *ops = plugin->table;

	if (ops->abi != TN_XFER_DIRECTORY_ABI || ops->size != sizeof(*ops))
		return tn_fail(-EPROTO, "'%s' has directory calls of ABI %u, %zu bytes; this library has ABI %u, %zu bytes: take a plugin that was built for "
			       "Tenuto %s", path, ops->abi, ops->size, TN_XFER_DIRECTORY_ABI, sizeof(*ops), tn_version());
	if (!ops->name || !ops->create || !ops->destroy || !ops->put || !ops->get || !ops->remove || !ops->error)
		return tn_fail(-EPROTO, "'%s' lacks a directory call, all of which are always there: tenuto/xfer_directory.h lists them", path);
	return 0;
}

static int check_event_bus(const struct tn_plugin *plugin, const char *path)
{
	const struct tn_event_bus_ops *ops = plugin->table;

	if (ops->abi != TN_EVENT_BUS_ABI || ops->size != sizeof(*ops))
		return tn_fail(-EPROTO, "'%s' has event calls of ABI %u, %zu bytes; this library has ABI %u, %zu bytes: take a plugin that was built for "
			       "Tenuto %s", path, ops->abi, ops->size, TN_EVENT_BUS_ABI, sizeof(*ops), tn_version());
	if (!ops->name || !ops->publisher_create || !ops->publisher_destroy || !ops->publish || !ops->serve || !ops->answer || !ops->follower_create ||
	    !ops->follower_destroy || !ops->ask || !ops->receive || !ops->error)
		return tn_fail(-EPROTO, "'%s' lacks an event call, all of which are always there: tenuto/event_bus.h lists them", path);
	return 0;
}

static const struct {
	const char *name;
	int (*check)(const struct tn_plugin *plugin, const char *path);
} kinds[] = {
	[TN_PLUGIN_DEVICE] = {"device driver", check_device},
	[TN_PLUGIN_XFER] = {"transfer backend", check_xfer},
	[TN_PLUGIN_DEVICE_FILE] = {"file transport", check_device_file},
	[TN_PLUGIN_XFER_DIRECTORY] = {"directory of agents", check_directory},
	[TN_PLUGIN_EVENT_BUS] = {"event bus", check_event_bus},
};

const char *tn_plugin_kind_name(uint32_t kind)
{
	return kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[kind].name : NULL;
}

int tn_plugin_kind_check(const struct tn_plugin *plugin, const char *path)
{
	if (!plugin->table)
		return tn_fail(-EPROTO, "'%s' is a %s without a table: set table in its tn_plugin", path, kinds[plugin->kind].name);
	return kinds[plugin->kind].check(plugin, path);
}
