/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A write in parts: begins an upload, sends its parts at the same time, completes it. What fails or is stopped is aborted.
 *
 * An abort goes behind the end of the transfer, with memory and a deadline of its own. So a caller who cancels does not wait for the store.
 */
#ifndef TN_PLUGIN_S3_UPLOAD_H
#define TN_PLUGIN_S3_UPLOAD_H

#include <stdint.h>

struct s3_store;
struct object_transfer;
struct s3_upload;

/* All memory that uploads of an object of so many bytes need. 0, -ENOMEM. */
int s3_upload_new(struct s3_store *store, uint64_t bytes, struct s3_upload **out);
void s3_upload_free(struct s3_upload *upload);
/* Sends the transfer's object; calls its done. */
void s3_upload_begin(struct s3_upload *upload, struct object_transfer *t);

#endif
