/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin: a driver of one device, whose memory is this process's own. Built from the installed headers alone, without the library:
 *
 *     cc -shared -fPIC $(pkg-config --cflags tenuto) plugin.c -o libtenuto_example.so
 *     TENUTO_PLUGIN_PATH=$PWD tenuto doctor
 *
 * Copies are over when the call returns, so that an event is reached as soon as it is there.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tenuto/device_memory.h>
#include <tenuto/plugin.h>

static int count_devices(const struct tn_device_driver *driver, char *detail, size_t detail_bytes)
{
	(void)driver, (void)detail, (void)detail_bytes;
	return 1;
}

static int describe(const struct tn_device_driver *driver, uint32_t device, struct tn_device_properties *out)
{
	(void)driver;
	if (device != 0)
		return -ENODEV;
	*out = (struct tn_device_properties){.name = "Example", .bytes = 1ull << 30};
	return 0;
}

static int register_range(const struct tn_device_driver *driver, const struct tn_memory_range *range, char *detail, size_t detail_bytes)
{
	(void)driver;
	if (range->device == 0 && range->address)
		return 0;
	snprintf(detail, detail_bytes, "device %u: there is only device 0", range->device);
	return -EINVAL;
}

static void unregister_range(const struct tn_device_driver *driver, const struct tn_memory_range *range)
{
	(void)driver, (void)range;
}

static int pin(const struct tn_device_driver *driver, void *host, uint64_t bytes)
{
	(void)driver, (void)host, (void)bytes;
	return 0;
}

static void unpin(const struct tn_device_driver *driver, void *host, uint64_t bytes)
{
	(void)driver, (void)host, (void)bytes;
}

/* Nothing is kept of a stream: what is asked of it is done at once. */
static int create_stream(const struct tn_device_driver *driver, uint32_t device, void **stream)
{
	static char any;

	(void)driver;
	if (device != 0)
		return -ENODEV;
	*stream = &any;
	return 0;
}

static void destroy_stream(const struct tn_device_driver *driver, void *stream)
{
	(void)driver, (void)stream;
}

static int copy(const struct tn_device_driver *driver, void *stream, enum tn_device_way way, const struct tn_device_piece *piece, uint32_t n,
		uint64_t *event)
{
	(void)driver, (void)stream;
	for (uint32_t i = 0; i < n; i++) {
		if (way == TN_DEVICE_TO_HOST)
			memcpy(piece[i].other, piece[i].device, piece[i].bytes);
		else
			memcpy(piece[i].device, piece[i].other, piece[i].bytes);
	}
	*event = 0;
	return 0;
}

static int wait_event(const struct tn_device_driver *driver, void *stream, uint64_t event, uint64_t deadline_ns)
{
	(void)driver, (void)stream, (void)event, (void)deadline_ns;
	return 0;
}

static const struct tn_device_driver_ops ops = {
	.size = sizeof(ops),
	.abi = TN_DEVICE_DRIVER_ABI,
	.name = "example",
	.count = count_devices,
	.properties = describe,
	.register_range = register_range,
	.unregister_range = unregister_range,
	.pin = pin,
	.unpin = unpin,
	.stream_create = create_stream,
	.stream_destroy = destroy_stream,
	.copy = copy,
	.wait = wait_event,
};

static const struct tn_device_driver driver = {.ops = &ops};

const struct tn_plugin tn_plugin = {
	.size = sizeof(tn_plugin),
	.abi = TN_PLUGIN_ABI,
	.kind = TN_PLUGIN_DEVICE,
	.name = "example",
	.built_for = TN_PLUGIN_BUILT_FOR,
	.table = &driver,
};
