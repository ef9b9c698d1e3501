/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signature Version 4 of AWS for one request, with its signature in the Authorization field.
 *
 * Pure: no clock, no environment. SHA-256 and HMAC are libcrypto's.
 */
#ifndef TN_PLUGIN_S3_SIGN_H
#define TN_PLUGIN_S3_SIGN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/** Bytes of a hash in hexadecimal digits, with the zero at its end. */
#define S3_HEX_BYTES 65u
/** In the place of a body's hash: the body is not signed. */
#define S3_UNSIGNED_BODY "UNSIGNED-PAYLOAD"
/** Bytes of a time as S3 writes it ("20130524T000000Z"), with the zero. */
#define S3_TIME_BYTES 17u

/** struct s3_credentials - who signs, and for what; @session_token is no part of the signature, but of the fields */
struct s3_credentials {
	char access_key[132];
	char secret_key[132];
	char session_token[2560];
	char region[64];
};

/** struct s3_field - a header field: @name in lower case, @value without blanks at its ends */
struct s3_field {
	const char *name;
	const char *value;
};

/**
 * struct s3_to_sign - a request
 * @method:  "GET"
 * @path:    percent-encoded, begins with a slash
 * @query:   percent-encoded "name=value" with "&" between them, sorted; "": none
 * @fields:  those that are signed, sorted by name; host is one of them
 * @body_hash: in hexadecimal digits, or S3_UNSIGNED_BODY
 * @service: "s3"
 * @time:    S3_TIME_BYTES
 */
struct s3_to_sign {
	const char *method;
	const char *path;
	const char *query;
	const struct s3_field *fields;
	size_t nfields;
	const char *body_hash;
	const char *service;
	const char *time;
};

/**
 * s3_sign - the value of the Authorization field
 * Return: 0; -E2BIG: @out or the request is too long; -ENOTSUP: libcrypto refuses (its policy).
 */
int s3_sign(const struct s3_credentials *who, const struct s3_to_sign *what, char *out, size_t bytes);

/** s3_hash - SHA-256 of @bytes bytes of the buffers behind the first @skip, in hexadecimal digits. Return: 0; -ENOTSUP; -ENOMEM. */
int s3_hash(const struct iovec *iov, uint32_t n, uint64_t skip, uint64_t bytes, char out[S3_HEX_BYTES]);

/** s3_time - seconds since 1970 as S3 writes them */
void s3_time(int64_t seconds, char out[S3_TIME_BYTES]);

/** s3_encode - percent-encodes a key; @keep_slashes: for a path. Return: how many bytes were written, without the zero; -E2BIG. */
int s3_encode(const char *from, int keep_slashes, char *out, size_t bytes);

#endif
