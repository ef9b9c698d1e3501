/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libtenuto_gds.so: bytes between files and a GPU's memory by cuFile (GPUDirect Storage). Synchronous calls; their callers are threads that may wait.
 *
 * No memory is registered with the library (cuFileBufRegister): it takes any device pointer.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <tenuto/device_file.h>
#include <tenuto/plugin.h>

#include "context.h"
#include "cufile.h"
#include "driver.h"
#include "file.h"

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

/* Whether the library may be asked: 0, -ENOTSUP, -EINVAL. */
static int check_transfer(const void *address, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes)
{
	if (bytes > INT64_MAX || offset > INT64_MAX - bytes) {
		snprintf(detail, detail_bytes, "%llu bytes at %llu of a file: it cannot be so long", (unsigned long long)bytes, (unsigned long long)offset);
		return -EINVAL;
	}
	if (((uintptr_t)address | bytes | offset) % TN_DEVICE_FILE_ALIGN == 0)
		return 0;
	snprintf(detail, detail_bytes, "%llu bytes at %llu of the file, address %p: only multiples of %u go without host memory",
		 (unsigned long long)bytes, (unsigned long long)offset, address, TN_DEVICE_FILE_ALIGN);
	return -ENOTSUP;
}

/* n: what the library returned; err: errno then. */
static int check_ended(const char *call, ssize_t n, int err, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes)
{
	if (n >= 0 && (uint64_t)n == bytes)
		return 0;
	if (n < -1)
		return cufile_fail(call, n < -INT32_MAX ? 0 : (int)-n, 0, detail, detail_bytes);
	if (n == -1)
		snprintf(detail, detail_bytes, "%s: %llu bytes at %llu: %s", call, (unsigned long long)bytes, (unsigned long long)offset, strerror(err));
	else
		snprintf(detail, detail_bytes, "%s: %zd of %llu bytes at %llu: a short transfer counts as none", call, n, (unsigned long long)bytes,
			 (unsigned long long)offset);
	return n == -1 && err > 0 ? -err : -EIO;
}

/* written: bytes that go to the file; else read: where those of the file go. */
static int transfer(struct tn_device_file *file, void *read, const void *written, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes)
{
	const void *address = read ? read : written;
	int rc = check_transfer(address, bytes, offset, detail, detail_bytes), err;
	bool entered;
	ssize_t n;

	if (rc || bytes == 0)
		return rc;
	entered = gds_context_enter(address);
	errno = 0;
	if (read)
		n = gds_library()->read(gds_file_handle(file), read, bytes, (off_t)offset, 0);
	else
		n = gds_library()->write(gds_file_handle(file), written, bytes, (off_t)offset, 0);
	err = errno;
	if (entered)
		gds_context_leave();
	return check_ended(read ? "cuFileRead" : "cuFileWrite", n, err, bytes, offset, detail, detail_bytes);
}

static int read_file(struct tn_device_file *file, void *address, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes)
{
	return transfer(file, address, NULL, bytes, offset, detail, detail_bytes);
}

static int write_file(struct tn_device_file *file, const void *address, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes)
{
	return transfer(file, NULL, address, bytes, offset, detail, detail_bytes);
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
};

const struct tn_plugin tn_plugin = {
	.size = sizeof(tn_plugin),
	.abi = TN_PLUGIN_ABI,
	.kind = TN_PLUGIN_DEVICE_FILE,
	.name = "gds",
	.built_for = TN_PLUGIN_BUILT_FOR,
	.table = &ops,
};
