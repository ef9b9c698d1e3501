/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses to listen on: numeric with a port, as 127.0.0.1:9470 or [::1]:9470, or "off". */
#ifndef TENUTOD_ADDRESS_H
#define TENUTOD_ADDRESS_H

#include <stdbool.h>

/* Whether text is one: 0, -EINVAL. */
int address_check(const char *text);
bool address_is_off(const char *address);

/* A socket that listens on an address that is not off: its descriptor, or -errno. */
int address_listen(const char *address);

#endif
