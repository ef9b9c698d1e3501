/* SPDX-License-Identifier: Apache-2.0 */
#include "base/boot.h"

#include <fcntl.h>
#include <unistd.h>

#define BOOT_ID_FILE "/proc/sys/kernel/random/boot_id"

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void tn_boot_id(uint64_t id[2])
{
	int fd = open(BOOT_ID_FILE, O_RDONLY | O_CLOEXEC);
	uint64_t word[2] = {0, 0};
	unsigned digits = 0;
	char text[64];
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text));

	if (fd >= 0)
		close(fd);
	for (ssize_t i = 0; i < n && digits < 32; i++) {
		if (digit(text[i]) < 0)
			continue;
		word[digits / 16] = word[digits / 16] << 4 | (uint64_t)digit(text[i]);
		digits++;
	}
	id[0] = digits == 32 ? word[0] : 0;
	id[1] = digits == 32 ? word[1] : 0;
}
