/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libtenuto_gds.so: bytes between files and a GPU's memory by cuFile (GPUDirect Storage). Synchronous calls, whose callers are
 * threads that may wait, and queues (queue.h).
 *
 * No memory is registered with the library (cuFileBufRegister): it takes any device pointer.
 */
#include <tenuto/device_file.h>
#include <tenuto/plugin.h>

#include "cufile.h"
#include "driver.h"
#include "file.h"
#include "queue.h"
#include "transfer.h"

static int describe(struct tn_device_file_properties *out, char *detail, size_t detail_bytes)
{
	const struct cufile *library = gds_library();
	struct cufile_properties p = {0};
	struct cufile_error e;
	int version = 0;

	if (!library)
		return gds_not_started(detail, detail_bytes);
	e = library->driver_properties(&p);
	if (e.error)
		return cufile_fail("cuFileDriverGetProperties", e.error, e.cuda_error, detail, detail_bytes);
	if (library->version && library->version(&version).error)
		version = 0;
	*out = (struct tn_device_file_properties){
		.way = p.module.major_version	? TN_DEVICE_FILE_MODULE :
		       p.feature_flags & CUFILE_FEATURE_P2PDMA ? TN_DEVICE_FILE_P2PDMA :
								 TN_DEVICE_FILE_HOST,
		.version = version > 0 ? (uint32_t)version : 0,
		.module_major = p.module.major_version,
		.module_minor = p.module.minor_version,
	};
	return 0;
}

static int read_file(struct tn_device_file *file, void *address, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes)
{
	return gds_transfer(file, address, bytes, offset, 0, detail, detail_bytes);
}

static int write_file(struct tn_device_file *file, const void *address, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes)
{
	return gds_transfer(file, (void *)(uintptr_t)address, bytes, offset, 1, detail, detail_bytes);
}

static const struct tn_device_file_ops ops = {
	.size = sizeof(ops),
	.abi = TN_DEVICE_FILE_ABI,
	.name = "gds",
	.start = gds_start,
	.describe = describe,
	.add = gds_file_add,
	.remove = gds_file_remove,
	.acquire = gds_file_acquire,
	.release = gds_file_release,
	.cleanup = gds_file_cleanup,
	.read = read_file,
	.write = write_file,
	.queue_create = gds_queue_create,
	.queue_destroy = gds_queue_destroy,
	.submit = gds_queue_submit,
};

const struct tn_plugin tn_plugin = {
	.size = sizeof(tn_plugin),
	.abi = TN_PLUGIN_ABI,
	.kind = TN_PLUGIN_DEVICE_FILE,
	.name = "gds",
	.built_for = TN_PLUGIN_BUILT_FOR,
	.table = &ops,
};
