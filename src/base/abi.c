/* SPDX-License-Identifier: Apache-2.0 */
#include "base/abi.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

#define STRUCT_BYTES_MAX 4096u /* larger than any struct will grow: a size beyond it was never set, and no memory is read by it */

static size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

static size_t size_of(const void *theirs)
{
	size_t size;

	memcpy(&size, theirs, sizeof(size));
	return size;
}

/* Copies the members that both structs have. *theirs keeps its size, and gets zeros beyond ours. */
static void copy_known(void *theirs, size_t theirs_size, const void *ours, size_t size)
{
	size_t both = smaller(theirs_size, size);

	memcpy((char *)theirs + sizeof(size_t), (const char *)ours + sizeof(size_t), both - sizeof(size_t));
	memset((char *)theirs + both, 0, theirs_size - both);
}

void tn_abi_init(void *theirs, size_t theirs_size, const void *defaults, size_t size)
{
	if (theirs_size < sizeof(size_t))
		return;
	memcpy(theirs, &theirs_size, sizeof(theirs_size));
	copy_known(theirs, theirs_size, defaults, size);
}

int tn_abi_check(const struct tn_abi *abi, const void *theirs)
{
	size_t size = size_of(theirs);

	if (size < abi->least || size > STRUCT_BYTES_MAX)
		return tn_fail(-EINVAL, "struct %s of %zu bytes: this library has %zu, and takes %zu to %u; %s", abi->name, size,
			       abi->size, abi->least, STRUCT_BYTES_MAX, abi->hint);
	return 0;
}

int tn_abi_in(const struct tn_abi *abi, void *ours, const void *theirs)
{
	size_t size = size_of(theirs), both = smaller(size, abi->size);
	int rc = tn_abi_check(abi, theirs);

	if (rc)
		return rc;
	for (size_t i = abi->size; i < size; i++)
		if (((const unsigned char *)theirs)[i])
			return tn_fail(-EINVAL, "struct %s of %zu bytes: this library has %zu, and byte %zu, which it does not know, is "
				       "not zero: use a newer library, or leave it out", abi->name, size, abi->size, i);
	memcpy((char *)ours + sizeof(size_t), (const char *)theirs + sizeof(size_t), both - sizeof(size_t));
	return 0;
}

void tn_abi_out(const struct tn_abi *abi, void *theirs, const void *ours)
{
	copy_known(theirs, size_of(theirs), ours, abi->size);
}
