/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of plugins: what each is called, and whether a table is one of its kind. A new kind is a row of the table in kind.c. */
#ifndef TN_PLUGIN_KIND_H
#define TN_PLUGIN_KIND_H

#include <stdint.h>

#include <tenuto/plugin.h>

/* For messages: "device driver". NULL: there is no such kind. */
const char *tn_plugin_kind_name(uint32_t kind);
/* plugin: open; path: its file's. 0; -EPROTO: its table has another ABI, or lacks what is always there. */
int tn_plugin_kind_check(const struct tn_plugin *plugin, const char *path);

#endif
