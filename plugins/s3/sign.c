/* SPDX-License-Identifier: Apache-2.0 */
#include "sign.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../http/cursor.h"

#define HASH_BYTES 32u
#define REQUEST_BYTES 32768u
#define NAMES_BYTES 1024u

static void hex(const unsigned char hash[HASH_BYTES], char out[S3_HEX_BYTES])
{
	static const char digits[] = "0123456789abcdef";

	for (unsigned i = 0; i < HASH_BYTES; i++) {
		out[2 * i] = digits[hash[i] >> 4];
		out[2 * i + 1] = digits[hash[i] & 15];
	}
	out[2 * HASH_BYTES] = 0;
}

static int hmac(const void *key, size_t key_bytes, const char *text, unsigned char out[HASH_BYTES])
{
	unsigned n = 0;

	if (!HMAC(EVP_sha256(), key, (int)key_bytes, (const unsigned char *)text, strlen(text), out, &n) || n != HASH_BYTES)
		return -ENOTSUP;
	return 0;
}

int s3_hash(const struct iovec *iov, uint32_t n, uint64_t skip, uint64_t bytes, char out[S3_HEX_BYTES])
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	unsigned char hash[HASH_BYTES];
	struct http_cursor c;
	size_t step;
	char *piece;
	int good;

	if (!context)
		return -ENOMEM;
	good = EVP_DigestInit_ex(context, EVP_sha256(), NULL);
	http_cursor_set(&c, iov, n, skip, bytes);
	while (good && (step = http_cursor_step(&c, SIZE_MAX, &piece)) > 0)
		good = EVP_DigestUpdate(context, piece, step);
	good = good && EVP_DigestFinal_ex(context, hash, NULL);
	EVP_MD_CTX_free(context);
	if (!good)
		return -ENOTSUP;
	hex(hash, out);
	return 0;
}

void s3_time(int64_t seconds, char out[S3_TIME_BYTES])
{
	time_t t = (time_t)seconds;
	struct tm tm;

	gmtime_r(&t, &tm);
	if (!strftime(out, S3_TIME_BYTES, "%Y%m%dT%H%M%SZ", &tm))
		out[0] = 0;
}

int s3_encode(const char *from, int keep_slashes, char *out, size_t bytes)
{
	static const char digits[] = "0123456789ABCDEF";
	size_t n = 0;

	for (; *from; from++) {
		unsigned char c = (unsigned char)*from;
		int plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~' ||
			    (c == '/' && keep_slashes);

		if (n + (plain ? 1 : 3) >= bytes)
			return -E2BIG;
		if (plain) {
			out[n++] = (char)c;
			continue;
		}
		out[n++] = '%';
		out[n++] = digits[c >> 4];
		out[n++] = digits[c & 15];
	}
	if (n >= bytes)
		return -E2BIG;
	out[n] = 0;
	return (int)n;
}

/* Text that grows in a buffer; what does not fit is seen at the end. */
struct text {
	char *at;
	size_t left;
};

static void append(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(struct text *t, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = t->left ? vsnprintf(t->at, t->left, format, args) : -1;
	va_end(args);
	if (n < 0 || (size_t)n >= t->left) {
		t->left = 0;
		return;
	}
	t->at += n;
	t->left -= (size_t)n;
}

/* The key of one day, region and service: four times HMAC. */
static int signing_key(const struct s3_credentials *who, const char *day, const char *service, unsigned char out[HASH_BYTES])
{
	char secret[sizeof(who->secret_key) + 4];
	int rc;

	snprintf(secret, sizeof(secret), "AWS4%s", who->secret_key);
	rc = hmac(secret, strlen(secret), day, out);
	if (rc == 0)
		rc = hmac(out, HASH_BYTES, who->region, out);
	if (rc == 0)
		rc = hmac(out, HASH_BYTES, service, out);
	if (rc == 0)
		rc = hmac(out, HASH_BYTES, "aws4_request", out);
	OPENSSL_cleanse(secret, sizeof(secret));
	return rc;
}

/* The hash of the canonical request, and the names of the fields that are in it. */
static int hash_request(const struct s3_to_sign *what, char names[NAMES_BYTES], char out[S3_HEX_BYTES])
{
	char request[REQUEST_BYTES];
	struct text t = {request, sizeof(request)}, list = {names, NAMES_BYTES};
	struct iovec all = {.iov_base = request};

	append(&t, "%s\n%s\n%s\n", what->method, what->path, what->query);
	for (size_t i = 0; i < what->nfields; i++) {
		append(&t, "%s:%s\n", what->fields[i].name, what->fields[i].value);
		append(&list, "%s%s", i ? ";" : "", what->fields[i].name);
	}
	append(&t, "\n%s\n%s", names, what->body_hash);
	if (!t.left || !list.left)
		return -E2BIG;
	all.iov_len = (size_t)(t.at - request);
	return s3_hash(&all, 1, 0, all.iov_len, out);
}

int s3_sign(const struct s3_credentials *who, const struct s3_to_sign *what, char *out, size_t bytes)
{
	char day[9], names[NAMES_BYTES] = "", hash[S3_HEX_BYTES], scope[192], text[512], signature[S3_HEX_BYTES];
	unsigned char key[HASH_BYTES], mac[HASH_BYTES];
	int n, rc;

	snprintf(day, sizeof(day), "%.8s", what->time);
	rc = hash_request(what, names, hash);
	if (rc == 0)
		rc = signing_key(who, day, what->service, key);
	if (rc)
		return rc;
	snprintf(scope, sizeof(scope), "%s/%s/%s/aws4_request", day, who->region, what->service);
	snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", what->time, scope, hash);
	rc = hmac(key, sizeof(key), text, mac);
	OPENSSL_cleanse(key, sizeof(key));
	if (rc)
		return rc;
	hex(mac, signature);
	n = snprintf(out, bytes, "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s", who->access_key, scope, names, signature);
	return n < 0 || (size_t)n >= bytes ? -E2BIG : 0;
}
