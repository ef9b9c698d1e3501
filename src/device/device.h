/* SPDX-License-Identifier: Apache-2.0 */
/* What drivers of device memory (tenuto/device_memory.h) are to the rest of the library. Any thread. */
#ifndef TN_DEVICE_DEVICE_H
#define TN_DEVICE_DEVICE_H

#include <tenuto/device_memory.h>

/* 0; -ENOTSUP: there is no driver; -EINVAL: its table is of another version, or not complete. */
int tn_device_check(const struct tn_device_driver *driver);
/* Registers all ranges, or none: 0, or the driver's error. */
int tn_device_register(const struct tn_device_driver *driver, const struct tn_memory_range *range, uint32_t n);

#endif
