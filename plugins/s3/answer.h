/* SPDX-License-Identifier: Apache-2.0 */
/* What a store has answered: elements of its XML, and in words why a try has failed and what to do. */
#ifndef TN_PLUGIN_S3_ANSWER_H
#define TN_PLUGIN_S3_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

struct http_request;
struct s3_store;
struct object_transfer;

/* The text of an XML element that has no others inside. Return: whether it is there and fits. */
bool s3_element(const char *xml, const char *name, char *out, size_t bytes);

/*
 * Calls the transfer's failed for a try of one of its requests: with the object, the bucket, the endpoint, what the store or libcurl says, and what to do. Within
 * http_request.failed, whose code and why these are.
 */
void s3_tell(const struct s3_store *store, struct object_transfer *t, const struct http_request *r, int code, const char *why);

#endif
