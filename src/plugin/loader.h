/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens plugins (tenuto/plugin.h): from a name to a table.
 *
 * The first directory of the search that has the file decides. If that file may not be opened, the search ends there with an error: another plugin
 * of the same name further on is not what the user put first. A failure is not kept: the next call tries again.
 *
 * dlopen gets the resolved path by name, not the descriptor that was checked (/proc/self/fd/N). Nobody but root and this process's user can put
 * another file there meanwhile (plugin/trusted.h), and both could change this process anyway. A name of /proc/self/fd would be shown by
 * debuggers and profilers, be the $ORIGIN of the plugin's own libraries, and be taken for a plugin that was opened under the same number.
 */
#ifndef TN_PLUGIN_LOADER_H
#define TN_PLUGIN_LOADER_H

#include <stdint.h>

#include <tenuto/plugin.h>

#include "plugin/search.h"

/* A plugin's file is between them named for the plugin. */
#define TN_PLUGIN_FRONT "libtenuto_"
#define TN_PLUGIN_BACK ".so"

/*
 * The plugin of a name, opened at the first call. Any thread: calls come one after the other. 0 and *out; -EINVAL: no such name can be;
 * -ENOENT: there is none; -EPERM: others may write it; -EPROTO: no plugin, another ABI or another kind; -ELIBACC: the dynamic linker cannot
 * open it. The detail names the file, or each directory that was looked into.
 */
int tn_plugin_open(uint32_t kind, const char *name, const struct tn_plugin **out);

/* The same of any kind; *path: of its file, resolved. */
int tn_plugin_open_any(const char *name, const struct tn_plugin **out, const char **path);
/* Where is looked now: 0, or the error of tn_plugin_search. */
int tn_plugin_directories(struct tn_plugin_search *s);

#endif
