/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins that are refused, one for each reason: meson.build says which value of which is wrong. */
#include <stdlib.h>
#include <unistd.h>

#include <tenuto/device_memory.h>
#include <tenuto/plugin.h>

#ifndef RIG_ABI
#define RIG_ABI TN_PLUGIN_ABI
#endif
#ifndef RIG_KIND
#define RIG_KIND TN_PLUGIN_DEVICE
#endif
#ifndef RIG_BYTES
#define RIG_BYTES sizeof(struct tn_plugin)
#endif

#ifdef RIG_CONSTRUCTOR
/* Ends the process that runs code of a plugin before it is checked. */
static __attribute__((constructor)) void run_early(void)
{
	_exit(99);
}
#endif

#ifdef RIG_UNLINKED
extern const char tn_rig_text_that_nobody_has[];
#endif

#ifndef RIG_NO_SYMBOL
static const struct tn_device_driver_ops ops = {
	.size = sizeof(ops),
#ifdef RIG_CALLS_ABI
	.abi = RIG_CALLS_ABI,
#else
	.abi = TN_DEVICE_DRIVER_ABI,
#endif
	.name = "rig",
};
static const struct tn_device_driver driver __attribute__((unused)) = {.ops = &ops};

const struct tn_plugin tn_plugin = {
	.size = RIG_BYTES,
	.abi = RIG_ABI,
	.kind = RIG_KIND,
	.name = RIG_NAME,
#ifdef RIG_UNLINKED
	.built_for = tn_rig_text_that_nobody_has,
#else
	.built_for = TN_PLUGIN_BUILT_FOR,
#endif
#ifndef RIG_NO_TABLE
	.table = &driver,
#endif
};
#endif
