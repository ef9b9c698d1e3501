/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slack tables of the spaces that clients open, in files: what an engine has taught is there for its next start, whatever it asks for itself.
 *
 * A file is named by what its space is of (tn_space_at). Calls with the cache touch no file, and calls that touch files need no cache: a directory
 * that hangs stops the thread that is in tables_sync alone. One call at a time.
 */
#ifndef TENUTOD_TABLES_H
#define TENUTOD_TABLES_H

#include <stdbool.h>

#include <tenuto/cache.h>

struct tables;

/* In a directory, which is made when there is something to write. 0, or -ENOMEM. */
int tables_create(const char *dir, struct tables **out);
void tables_free(struct tables *t);

/* Takes what spaces have learned, and gives those that are new and know nothing what was found for them. */
void tables_exchange(struct tables *t, struct tn_cache *cache);

/* Looks for the files of spaces that are new, and writes what is a minute old, or of spaces that are closed. all: everything. */
void tables_sync(struct tables *t, bool all);

#endif
