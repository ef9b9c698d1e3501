/* SPDX-License-Identifier: Apache-2.0 */
/* tn_plugin_list: every plugin that is found, for `tenuto doctor`. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/plugin.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plugin/loader.h"
#include "plugin/search.h"
#include "plugin/trusted.h"

struct list {
	struct tn_plugin_info *info;
	int max, n;
	struct tn_plugin_info beyond; /* what comes after the caller's last entry, and is thrown away */
};

/* The next entry. */
static struct tn_plugin_info *add(struct list *l, const char *name, const char *path)
{
	struct tn_plugin_info *i = l->n < l->max ? &l->info[l->n] : &l->beyond;

	l->n++;
	*i = (struct tn_plugin_info){0};
	snprintf(i->name, sizeof(i->name), "%s", name);
	snprintf(i->path, sizeof(i->path), "%s", path);
	return i;
}

static void set_failed(struct tn_plugin_info *i, int status)
{
	i->status = status;
	snprintf(i->why, sizeof(i->why), "%s", tn_error_last()->text);
}

/* libtenuto_NAME.so; libtenuto.so itself may lie there, too. */
static int is_plugin(const struct dirent *e)
{
	size_t bytes = strlen(e->d_name), around = strlen(TN_PLUGIN_FRONT) + strlen(TN_PLUGIN_BACK);

	return bytes > around && bytes - around < TN_PLUGIN_NAME_MAX && strncmp(e->d_name, TN_PLUGIN_FRONT, strlen(TN_PLUGIN_FRONT)) == 0 &&
	       strcmp(e->d_name + bytes - strlen(TN_PLUGIN_BACK), TN_PLUGIN_BACK) == 0;
}

/* Whether one of the first `n` directories has the file, and so hides it. */
static bool is_hidden(const struct tn_plugin_search *s, size_t n, const char *file, char path[PATH_MAX])
{
	struct stat st;

	for (size_t i = 0; i < n; i++)
		if (snprintf(path, PATH_MAX, "%s/%s", s->directory[i], file) < PATH_MAX && lstat(path, &st) == 0)
			return true;
	return false;
}

static void add_file(struct list *l, const struct tn_plugin_search *s, size_t at, const char *file)
{
	char name[TN_PLUGIN_NAME_MAX], path[PATH_MAX], before[PATH_MAX];
	const struct tn_plugin *plugin;
	struct tn_plugin_info *i;
	const char *real;
	int rc;

	snprintf(name, sizeof(name), "%.*s", (int)(strlen(file) - strlen(TN_PLUGIN_FRONT) - strlen(TN_PLUGIN_BACK)), file + strlen(TN_PLUGIN_FRONT));
	snprintf(path, sizeof(path), "%s/%s", s->directory[at], file);
	i = add(l, name, path);
	if (is_hidden(s, at, file, before)) {
		set_failed(i, tn_fail(-EEXIST, "'%.200s' comes first: remove one of them", before));
		return;
	}
	rc = tn_plugin_open_any(name, &plugin, &real);
	if (rc) {
		set_failed(i, rc);
		return;
	}
	i->kind = plugin->kind;
	snprintf(i->path, sizeof(i->path), "%s", real);
	snprintf(i->built_for, sizeof(i->built_for), "%s", plugin->built_for ? plugin->built_for : "");
}

static void add_directory(struct list *l, const struct tn_plugin_search *s, size_t at)
{
	struct tn_plugin_info *i = add(l, "", s->directory[at]);
	struct dirent **file;
	char real[PATH_MAX];
	int fd = tn_trusted_directory(s->directory[at], real), n;

	if (fd < 0) {
		set_failed(i, fd);
		return;
	}
	close(fd);
	n = scandir(real, &file, is_plugin, alphasort);
	if (n < 0) {
		set_failed(i, tn_fail(-errno, "'%s': %s", real, strerror(errno)));
		return;
	}
	for (int k = 0; k < n; k++) {
		add_file(l, s, at, file[k]->d_name);
		free(file[k]);
	}
	free(file);
}

int tn_plugin_list(struct tn_plugin_info *info, int max)
{
	struct list l = {.info = info, .max = max};
	struct tn_plugin_search *s = tn_get(&tn_alloc_system, sizeof(*s));
	int rc;

	if (!s)
		return tn_fail(-ENOMEM, "directories of plugins: no memory");
	rc = tn_plugin_directories(s);
	for (size_t i = 0; rc == 0 && i < s->n; i++)
		add_directory(&l, s, i);
	tn_put(&tn_alloc_system, s, sizeof(*s));
	return rc ? rc : l.n;
}
