/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libtenuto_soft.so: the soft device (soft_rig.h) as a plugin, for tests and benchmarks. What tests do with the device beyond a driver's calls they
 * reach by dlsym, in the object that is loaded already: the functions below are those of soft_rig.h, of the device of the process.
 */
#include <tenuto/plugin.h>

#include "device/soft_rig.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void *tn_soft_bytes(const void *address);
EXPORTED void tn_soft_hold(int held);
EXPORTED void tn_soft_fail(uint64_t after, int error); /* copies of loads */
EXPORTED void tn_soft_lose(void);
EXPORTED uint64_t tn_soft_copied(void);

static const struct tn_device_driver driver = {.ops = &tn_soft_device_ops};

EXPORTED const struct tn_plugin tn_plugin = {
	.size = sizeof(tn_plugin),
	.abi = TN_PLUGIN_ABI,
	.kind = TN_PLUGIN_DEVICE,
	.name = "soft",
	.built_for = TN_PLUGIN_BUILT_FOR,
	.table = &driver,
};

void *tn_soft_bytes(const void *address)
{
	return tn_soft_device_bytes(tn_soft_device_of_process(), address);
}

void tn_soft_hold(int held)
{
	tn_soft_device_hold(tn_soft_device_of_process(), held != 0);
}

void tn_soft_fail(uint64_t after, int error)
{
	tn_soft_device_fail(tn_soft_device_of_process(), TN_DEVICE_FROM_HOST, after, error);
}

void tn_soft_lose(void)
{
	tn_soft_device_lose(tn_soft_device_of_process());
}

uint64_t tn_soft_copied(void)
{
	return tn_soft_device_stats(tn_soft_device_of_process()).copied_bytes;
}
