/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plugins: shared objects that drive what libtenuto does not link, such as a GPU's driver. docs/plugins.md says how to build one.
 *
 * libtenuto_NAME.so exports one symbol, tn_plugin, a constant. It says what the plugin is, and has the table of its kind. The library looks for
 * the file in the directories of TENUTO_PLUGIN_PATH, then where it was installed itself. A plugin is opened at its first use, once per
 * process, and never closed. No code of a plugin runs before its file, its directories and its ABI were checked.
 *
 * A plugin needs these headers alone. It does not link libtenuto: a program may hold the library in another form.
 */
#ifndef TENUTO_PLUGIN_H
#define TENUTO_PLUGIN_H

#include <stddef.h>
#include <stdint.h>
#include <tenuto/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Of struct tn_plugin. A plugin of another number is refused. */
#define TN_PLUGIN_ABI 1u

/** Version of these headers: what a plugin puts into built_for. */
#define TN_PLUGIN_BUILT_FOR "0.2.0"

/** Most bytes of a plugin's name: of a to z, 0 to 9 and _. */
#define TN_PLUGIN_NAME_MAX 48

/** What a plugin is, and so what its table is. */
enum tn_plugin_kind {
	TN_PLUGIN_DEVICE = 1,	   /**< drives devices: struct tn_device_driver (tenuto/device_memory.h) */
	TN_PLUGIN_XFER = 2,	   /**< a backend of the transfer agent: struct tn_xfer_backend_ops (tenuto/xfer_backend.h) */
	TN_PLUGIN_DEVICE_FILE = 3, /**< bytes between files and devices: struct tn_device_file_ops (tenuto/device_file.h) */
	TN_PLUGIN_XFER_DIRECTORY = 4, /**< metadata of agents in one place: struct tn_xfer_directory_ops (tenuto/xfer_directory.h) */
	TN_PLUGIN_EVENT_BUS = 5,   /**< carries block events to other processes: struct tn_event_bus_ops (tenuto/event_bus.h) */
};

/**
 * struct tn_plugin - what a plugin exports as tn_plugin
 * @size:      sizeof(struct tn_plugin)
 * @abi:       TN_PLUGIN_ABI
 * @kind:      enum tn_plugin_kind
 * @name:      NAME of the file's name, libtenuto_NAME.so
 * @built_for: TN_PLUGIN_BUILT_FOR, for messages
 * @table:     of the kind; has a number of its own for its ABI
 *
 * The first three members stay as they are in every ABI: they are read from the file, before any code of it runs.
 */
struct tn_plugin {
	size_t size;
	uint32_t abi;
	uint32_t kind;
	const char *name;
	const char *built_for;
	const void *table;
};

/** The one symbol of a plugin; the library itself has none. */
#if defined(__GNUC__)
extern __attribute__((visibility("default"))) const struct tn_plugin tn_plugin;
#else
extern const struct tn_plugin tn_plugin;
#endif

/**
 * tn_plugin_path - the directories of plugins, in the place of TENUTO_PLUGIN_PATH
 * @directories: absolute paths, with colons between them; "": only where the library was installed
 *
 * For programs that take the directories from their own configuration. Holds for plugins that are opened later. Any thread.
 *
 * Return: 0; -EINVAL: one is not absolute; -EPERM: others than root and this process's user may write into one; -ENOENT, -EACCES, ...: one
 * cannot be reached. After an error nothing has changed.
 */
TN_API int tn_plugin_path(const char *directories);

/**
 * struct tn_plugin_info - a plugin, or a directory that was looked into
 * @name:      of the plugin; "": a directory
 * @path:      the file, or the directory
 * @built_for: version of Tenuto that the plugin was built for; "": not known
 * @why:       of a @status below 0: what is wrong, and what to do
 * @kind:      enum tn_plugin_kind; 0: not known
 * @status:    0: the plugin is open, the directory may hold plugins; else -errno. -EEXIST: a directory before has a plugin of this name
 */
struct tn_plugin_info {
	char name[TN_PLUGIN_NAME_MAX];
	char path[512];
	char built_for[32];
	char why[448];
	uint32_t kind;
	int32_t status;
};

/**
 * tn_plugin_list - opens every plugin that is found, and says what came of it
 * @info: out: up to @max entries: each directory in the order of the search, and behind it what plugins it has
 * @max:  entries of @info
 *
 * Any thread.
 *
 * Return: how many entries there are, may be above @max; -EINVAL: a directory of the search is not absolute.
 */
TN_API int tn_plugin_list(struct tn_plugin_info *info, int max);

#ifdef __cplusplus
}
#endif
#endif
