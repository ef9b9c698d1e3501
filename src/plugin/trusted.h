/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that nobody but root and this process's effective user can change or replace.
 *
 * Symbolic links are resolved first. Then the resolved path is walked from / on: each directory, and the file, is opened relative to the checked
 * directory before it, without following links, and is checked by its descriptor. Each must belong to root or to the effective user. None may
 * be writable by its group or by others. (An access control list that lets anyone else write shows in the bits of the group.)
 *
 * One exception, because temporary directories lie there: a sticky directory, as /tmp, that others may write may lie above the directory of the
 * file. Only the owner of an entry can rename or remove the entry there, and the next directory's owner is checked. The directory of
 * the file itself may not be such: others could put more files into it.
 *
 * So nobody else can put another file under the resolved path between the check and a later open of that path.
 */
#ifndef TN_PLUGIN_TRUSTED_H
#define TN_PLUGIN_TRUSTED_H

#include <limits.h>

/*
 * real: the resolved path. A descriptor, which is the caller's to close; -EPERM: others may write it or something above it; else -errno of
 * what could not be reached. The detail names the path, and what to do.
 */
int tn_trusted_directory(const char *path, char real[PATH_MAX]);
/* The same of a regular file. The directory in front of the file's name is resolved and checked by itself, too: it may hold a link to the file. */
int tn_trusted_file(const char *path, char real[PATH_MAX]);

#endif
