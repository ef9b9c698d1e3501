/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/search.h"

#include <dlfcn.h>
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

static int add(struct tn_plugin_search *s, const char *directory, size_t bytes)
{
	if (s->n == TN_PLUGIN_DIRECTORIES_MAX || bytes >= sizeof(s->text) - s->used)
		return tn_fail(-E2BIG, "directories of plugins: '%.100s' is one too many: at most %d, of %d bytes in all", directory,
			       TN_PLUGIN_DIRECTORIES_MAX, TN_PLUGIN_TEXT_MAX);
	s->directory[s->n++] = memcpy(s->text + s->used, directory, bytes);
	s->text[s->used + bytes] = '\0';
	s->used += bytes + 1;
	return 0;
}

int tn_plugin_split(struct tn_plugin_search *s, const char *directories, const char *where)
{
	int rc = 0;

	while (rc == 0 && *directories) {
		size_t bytes = strcspn(directories, ":");

		if (bytes && directories[0] != '/')
			return tn_fail(-EINVAL, "%s: '%.*s' is no absolute path: write one that begins with /", where, (int)bytes, directories);
		if (bytes)
			rc = add(s, directories, bytes);
		directories += bytes + (directories[bytes] == ':');
	}
	return rc;
}

#ifdef TN_PLUGIN_BESIDE
/*
 * A wheel may be installed anywhere: its plugins lie beside its libtenuto. The program `tenuto` of a wheel has the library inside it, and finds
 * the package by way of its own directory.
 */
static int add_installed(struct tn_plugin_search *s)
{
	char program[PATH_MAX], pattern[PATH_MAX + 64];
	const char *slash;
	ssize_t bytes;
	Dl_info self;
	glob_t found;
	int rc;

	if (dladdr(&tn_plugin_search, &self) && self.dli_fname && self.dli_fname[0] == '/') {
		slash = strrchr(self.dli_fname, '/');
		if (strncmp(slash, "/libtenuto.", strlen("/libtenuto.")) == 0)
			return add(s, self.dli_fname, (size_t)(slash - self.dli_fname));
	}
	bytes = readlink("/proc/self/exe", program, sizeof(program) - 1); /* the loader says no more of a program than argv[0] */
	if (bytes <= 0)
		return 0;
	program[bytes] = '\0';
	*strrchr(program, '/') = '\0';
	snprintf(pattern, sizeof(pattern), "%s/../lib/python3*/*-packages/tenuto", program);
	rc = glob(pattern, 0, NULL, &found);
	if (rc)
		return 0;
	for (size_t i = 0; i < found.gl_pathc && rc == 0; i++)
		rc = add(s, found.gl_pathv[i], strlen(found.gl_pathv[i]));
	globfree(&found);
	return rc;
}
#else
static int add_installed(struct tn_plugin_search *s)
{
	return add(s, TN_PLUGIN_DIRECTORY, strlen(TN_PLUGIN_DIRECTORY));
}
#endif

int tn_plugin_search(struct tn_plugin_search *s, const char *chosen)
{
	const char *environment = chosen ? NULL : secure_getenv("TENUTO_PLUGIN_PATH");
	int rc = 0;

	s->n = 0;
	s->used = 0;
	s->ignored = !chosen && !environment && getenv("TENUTO_PLUGIN_PATH");
	if (chosen)
		rc = tn_plugin_split(s, chosen, "directories of plugins");
	else if (environment)
		rc = tn_plugin_split(s, environment, "TENUTO_PLUGIN_PATH");
	return rc ? rc : add_installed(s);
}
