/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/hmac.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"

#define LIBRARY "libcrypto.so.3"

/* As openssl/hmac.h and openssl/evp.h declare them; the ABI of libcrypto 3. */
typedef unsigned char *hmac_fn(const void *md, const void *key, int key_bytes, const unsigned char *data, size_t bytes, unsigned char *out,
			       unsigned int *out_bytes);
typedef const void *sha256_fn(void);

static hmac_fn *hmac;
static sha256_fn *sha256;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* POSIX: a function's address may be copied from dlsym's data pointer. */
static void find(void *library, const char *name, void *function)
{
	void *at = dlsym(library, name);

	memcpy(function, &at, sizeof(at));
}

static void open_library(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return;
	find(library, "HMAC", &hmac);
	find(library, "EVP_sha256", &sha256);
}

int tn_xfer_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, unsigned char out[TN_XFER_MAC_BYTES])
{
	unsigned int n = 0;

	pthread_once(&once, open_library);
	if (!hmac || !sha256)
		return tn_fail(-ENOTSUP, "%s is missing, with which agents prove who they are: install it (Debian: libssl3)", LIBRARY);
	if (!hmac(sha256(), key, (int)key_bytes, data, bytes, out, &n) || n != TN_XFER_MAC_BYTES)
		return tn_fail(-ENOTSUP, "%s gives no HMAC-SHA256: its policy forbids it", LIBRARY);
	return 0;
}

bool tn_xfer_mac_equal(const unsigned char *a, const unsigned char *b)
{
	unsigned char difference = 0;

	for (unsigned i = 0; i < TN_XFER_MAC_BYTES; i++)
		difference |= (unsigned char)(a[i] ^ b[i]);
	return !difference;
}
