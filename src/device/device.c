/* SPDX-License-Identifier: Apache-2.0 */
/* See device.h. */
#include "device/device.h"

#include <errno.h>

#include "base/error.h"

#define DETAIL_BYTES 256u

int tn_device_check(const struct tn_device_driver *driver)
{
	const struct tn_device_driver_ops *ops = driver ? driver->ops : NULL;

	if (!ops)
		return tn_fail(-ENOTSUP, "tn_memory_register: device memory without a driver; name one that copies (tenuto/device_memory.h)");
	if (ops->size != sizeof(*ops) || ops->abi != TN_DEVICE_DRIVER_ABI)
		return tn_fail(-EINVAL, "tn_memory_register: a driver of version %u with %zu bytes, not %u with %zu; build it for this library", ops->abi,
			       ops->size, TN_DEVICE_DRIVER_ABI, sizeof(*ops));
	if (!ops->name || !ops->count || !ops->properties || !ops->register_range || !ops->unregister_range || !ops->pin || !ops->unpin ||
	    !ops->stream_create || !ops->stream_destroy || !ops->copy || !ops->wait)
		return tn_fail(-EINVAL, "tn_memory_register: driver %s lacks a function that is always there (tenuto/device_memory.h)",
			       ops->name ? ops->name : "without a name");
	return 0;
}

static int refuse(const struct tn_device_driver *driver, const struct tn_memory_range *range, uint32_t i, int rc, const char *detail)
{
	return tn_fail(rc, "tn_memory_register: driver %s does not take range %u at %p with %llu bytes of device %u: %s (error %d)", driver->ops->name,
		       i, range->address, (unsigned long long)range->bytes, range->device, *detail ? detail : "it does not say why", rc);
}

int tn_device_register(const struct tn_device_driver *driver, const struct tn_memory_range *range, uint32_t n)
{
	char detail[DETAIL_BYTES] = "";
	int rc = 0;

	for (uint32_t i = 0; i < n; i++)
		if (range[i].device != range[0].device)
			return tn_fail(-EINVAL, "tn_memory_register: range %u is of device %u, the first of device %u; register a memory per device",
				       i, range[i].device, range[0].device);
	for (uint32_t i = 0; i < n; i++) {
		rc = driver->ops->register_range(driver, &range[i], detail, sizeof(detail));
		if (rc == 0)
			continue;
		for (uint32_t k = 0; k < i; k++)
			driver->ops->unregister_range(driver, &range[k]);
		return refuse(driver, &range[i], i, rc, detail);
	}
	return 0;
}
