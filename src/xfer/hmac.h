/* SPDX-License-Identifier: Apache-2.0 */
/* HMAC-SHA256 (RFC 2104), by OpenSSL's libcrypto, which is opened when it is first wanted: libtenuto does not link it. */
#ifndef TN_XFER_HMAC_H
#define TN_XFER_HMAC_H

#include <stdbool.h>
#include <stddef.h>

#define TN_XFER_MAC_BYTES 32u

/* 0; -ENOTSUP with detail: libcrypto is missing. Any thread. */
int tn_xfer_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, unsigned char out[TN_XFER_MAC_BYTES]);
/* In a time that does not depend on the bytes. */
bool tn_xfer_mac_equal(const unsigned char *a, const unsigned char *b);

#endif
