/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of tn_elf_constant: whatever the bytes, it refuses them with a message that begins with the file, or gives a constant's bytes, and reads none
 * outside the file.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/plugin.h>

#include "plugin/elf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned char front[16];
	int rc = tn_elf_constant(data, size, "f", "tn_plugin", front, sizeof(front));

	assert(rc == 0 || rc == -EPROTO);
	assert(rc == 0 || strncmp(tn_error_last()->text, "'f' ", 4) == 0);
	return 0;
}
