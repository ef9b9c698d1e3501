/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "context.h"
#include "cufile.h"
#include "driver.h"
#include "file.h"

int gds_transfer_check(const void *address, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes)
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

int gds_transfer_ended(const char *call, ssize_t n, int err, uint64_t bytes, uint64_t offset, char *detail, size_t detail_bytes)
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

int gds_transfer(struct tn_device_file *file, void *address, uint64_t bytes, uint64_t offset, int write, char *detail, size_t detail_bytes)
{
	int rc = gds_transfer_check(address, bytes, offset, detail, detail_bytes), err;
	bool entered;
	ssize_t n;

	if (rc || bytes == 0)
		return rc;
	entered = gds_context_enter(address);
	errno = 0;
	if (write)
		n = gds_library()->write(gds_file_handle(file), address, bytes, (off_t)offset, 0);
	else
		n = gds_library()->read(gds_file_handle(file), address, bytes, (off_t)offset, 0);
	err = errno;
	if (entered)
		gds_context_leave();
	return gds_transfer_ended(write ? "cuFileWrite" : "cuFileRead", n, err, bytes, offset, detail, detail_bytes);
}
