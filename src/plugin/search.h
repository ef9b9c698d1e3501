/* SPDX-License-Identifier: Apache-2.0 */
/* Where plugins are looked for: tn_plugin_path's directories, or those of TENUTO_PLUGIN_PATH; then where the library was installed. */
#ifndef TN_PLUGIN_SEARCH_H
#define TN_PLUGIN_SEARCH_H

#include <stdbool.h>
#include <stddef.h>

#define TN_PLUGIN_DIRECTORIES_MAX 16
#define TN_PLUGIN_TEXT_MAX 8192 /* bytes of all of them */

/* In the order of the search. */
struct tn_plugin_search {
	const char *directory[TN_PLUGIN_DIRECTORIES_MAX];
	size_t n;
	bool ignored; /* TENUTO_PLUGIN_PATH is set, and does not count: the program has more rights than its user */
	char text[TN_PLUGIN_TEXT_MAX];
	size_t used; /* bytes of text */
};

/*
 * chosen: what tn_plugin_path has set; NULL: nothing. 0; -EINVAL: one is not absolute; -E2BIG: too many, or too long. Those of the environment
 * are read by secure_getenv: in a program that is setuid, setgid or has file capabilities they do not count. Empty ones are left out.
 */
int tn_plugin_search(struct tn_plugin_search *s, const char *chosen);

/* What `directories` says alone: as above. */
int tn_plugin_split(struct tn_plugin_search *s, const char *directories, const char *where);

#endif
