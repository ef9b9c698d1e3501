/* SPDX-License-Identifier: Apache-2.0 */
#include "address.h"

#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 16

/* getaddrinfo takes numbers beyond 65535, and cuts them off. */
static bool is_port(const char *text)
{
	size_t n = strlen(text);
	unsigned long port = strtoul(text, NULL, 10);

	return n > 0 && n <= 5 && strspn(text, "0123456789") == n && port > 0 && port <= UINT16_MAX;
}

/* 127.0.0.1:9470 or [::1]:9470: 0 and *out (freeaddrinfo), or -EINVAL. */
static int parse_address(const char *text, struct addrinfo **out)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
	const char *colon = strrchr(text, ':'), *end = colon;
	bool brackets = text[0] == '[';
	char host[64];

	if (!colon || !is_port(colon + 1) || (brackets && (colon == text || colon[-1] != ']')))
		return -EINVAL;
	text += brackets;
	end -= brackets;
	if (end <= text || (size_t)(end - text) >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, (size_t)(end - text));
	host[end - text] = 0;
	/* Without brackets, where the address of IPv6 ends and its port begins would be a guess. */
	if (brackets != (strchr(host, ':') != NULL))
		return -EINVAL;
	return getaddrinfo(host, colon + 1, &hints, out) ? -EINVAL : 0;
}

bool address_is_off(const char *address)
{
	return strcmp(address, "off") == 0;
}

int address_check(const char *text)
{
	struct addrinfo *found;
	int rc;

	if (address_is_off(text))
		return 0;
	rc = parse_address(text, &found);
	if (rc == 0)
		freeaddrinfo(found);
	return rc;
}

int address_listen(const char *address)
{
	struct addrinfo *at;
	int fd, one = 1, rc = parse_address(address, &at);

	if (rc)
		return rc;
	fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) || bind(fd, at->ai_addr, at->ai_addrlen) ||
	    listen(fd, BACKLOG))
		rc = -errno;
	freeaddrinfo(at);
	if (rc == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return rc;
}
