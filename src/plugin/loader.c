/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/device_file.h>
#include <tenuto/device_memory.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plugin/elf.h"
#include "plugin/kind.h"
#include "plugin/search.h"
#include "plugin/trusted.h"

struct opened {
	struct opened *next;
	const struct tn_plugin *plugin;
	char name[TN_PLUGIN_NAME_MAX];
	char path[PATH_MAX]; /* resolved */
};

/* Of the process. lock is held while a plugin is opened, so that each is opened once. */
static struct {
	pthread_mutex_t lock;
	struct opened *first;
	bool has_path;
	char path[TN_PLUGIN_TEXT_MAX];
	struct tn_plugin_search search;
} loader = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool name_fits(const char *name)
{
	size_t bytes = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");

	return bytes && !name[bytes] && bytes < TN_PLUGIN_NAME_MAX;
}

/* ---- one file ------------------------------------------------------------------------------------- */

static int check_abi(const struct tn_plugin *front, const char *path)
{
	if (front->abi != TN_PLUGIN_ABI || front->size != sizeof(*front))
		return tn_fail(-EPROTO, "'%s' is a plugin of ABI %u, %zu bytes; this library takes ABI %u, %zu bytes: build it with the headers of Tenuto %s",
			       path, front->abi, front->size, TN_PLUGIN_ABI, sizeof(*front), tn_version());
	if (!tn_plugin_kind_name(front->kind))
		return tn_fail(-EPROTO, "'%s' is a plugin of kind %u, which this library does not know: build it with the headers of Tenuto %s", path,
			       front->kind, tn_version());
	return 0;
}

/* Before any code of the file runs. */
static int check_file(int fd, const char *path)
{
	struct tn_plugin front = {0};
	struct stat st;
	void *file;
	int rc;

	if (fstat(fd, &st))
		return tn_fail(-errno, "'%s': %s", path, strerror(errno));
	if (st.st_size == 0)
		return tn_fail(-EPROTO, "'%s' is empty: build or copy it again", path);
	file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (file == MAP_FAILED)
		return tn_fail(-errno, "'%s': %s", path, strerror(errno));
	rc = tn_elf_constant(file, (size_t)st.st_size, path, "tn_plugin", &front, offsetof(struct tn_plugin, name));
	munmap(file, (size_t)st.st_size);
	return rc ? rc : check_abi(&front, path);
}

/* A path with a dollar sign would be another one: dlopen puts values in the place of $ORIGIN, $LIB and $PLATFORM. */
static int link_file(const char *path, const struct tn_plugin **out)
{
	void *handle;

	if (strchr(path, '$'))
		return tn_fail(-EINVAL, "'%s': the dynamic linker takes no path with a $ in it: use another directory", path);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!handle)
		return tn_fail(-ELIBACC, "'%s' cannot be linked: %s", path, dlerror());
	*out = dlsym(handle, "tn_plugin");
	return 0;
}

static int open_file(const char *name, const char *path, struct opened *o)
{
	int fd = tn_trusted_file(path, o->path), rc;

	if (fd < 0)
		return fd;
	rc = check_file(fd, o->path);
	close(fd);
	if (rc == 0)
		rc = link_file(o->path, &o->plugin);
	if (rc)
		return rc;
	if (!o->plugin->name || strcmp(o->plugin->name, name) != 0)
		return tn_fail(-EPROTO, "'%s' is plugin '%.48s': name the file " TN_PLUGIN_FRONT "NAME" TN_PLUGIN_BACK " with the plugin's name", path,
			       o->plugin->name ? o->plugin->name : "");
	return tn_plugin_kind_check(o->plugin, path);
}

/* ---- the search ----------------------------------------------------------------------------------- */

/* The caller holds the lock. */
static struct opened *find_opened(const char *name)
{
	struct opened *o = loader.first;

	while (o && strcmp(o->name, name) != 0)
		o = o->next;
	return o;
}

/* Writes the path of the file of the first directory that has it. false, and why: no directory has it. */
static bool find_file(const char *name, char path[PATH_MAX], char *why, size_t why_bytes)
{
	const struct tn_plugin_search *s = &loader.search;
	size_t at = 0;

	why[0] = '\0';
	for (size_t i = 0; i < s->n; i++) {
		struct stat st;
		int n = snprintf(path, PATH_MAX, "%s/" TN_PLUGIN_FRONT "%s" TN_PLUGIN_BACK, s->directory[i], name);

		if (n < PATH_MAX && lstat(path, &st) == 0)
			return true;
		if (n >= PATH_MAX)
			errno = ENAMETOOLONG;
		if (at < why_bytes)
			at += (size_t)snprintf(why + at, why_bytes - at, "%s%s%s%s%s", at ? ", " : "", s->directory[i], errno == ENOENT ? "" : " (",
					       errno == ENOENT ? "" : strerror(errno), errno == ENOENT ? "" : ")");
	}
	return false;
}

static int open_first(const char *name, struct opened **out)
{
	char path[PATH_MAX], why[256];
	struct opened *o;
	int rc = tn_plugin_search(&loader.search, loader.has_path ? loader.path : NULL);

	if (rc)
		return rc;
	if (!find_file(name, path, why, sizeof(why)))
		return tn_fail(-ENOENT, "there is no plugin %s: " TN_PLUGIN_FRONT "%s" TN_PLUGIN_BACK " is not in %s; %s", name, name, why[0] ? why : "any directory",
			       loader.has_path	     ? "install it there, or name its directory among them (tenutod: plugins)" :
			       loader.search.ignored ? "TENUTO_PLUGIN_PATH does not count in a program with more rights than its user (setuid, capabilities)" :
						       "install it there, or name its directory in TENUTO_PLUGIN_PATH");
	o = tn_get(&tn_alloc_system, sizeof(*o));
	if (!o)
		return tn_fail(-ENOMEM, "plugin %s: no memory", name);
	rc = open_file(name, path, o);
	if (rc) {
		tn_put(&tn_alloc_system, o, sizeof(*o));
		return rc;
	}
	snprintf(o->name, sizeof(o->name), "%s", name);
	o->next = loader.first;
	loader.first = o;
	*out = o;
	return 0;
}

/* The caller holds the lock. */
static int open_locked(const char *name, struct opened **out)
{
	struct opened *o;

	if (!name_fits(name))
		return tn_fail(-EINVAL, "'%.60s' is no name of a plugin: write at most %d of a to z, 0 to 9 and _", name, TN_PLUGIN_NAME_MAX - 1);
	o = find_opened(name);
	if (!o)
		return open_first(name, out);
	*out = o;
	return 0;
}

int tn_plugin_open_any(const char *name, const struct tn_plugin **out, const char **path)
{
	struct opened *o;
	int rc;

	pthread_mutex_lock(&loader.lock);
	rc = open_locked(name, &o);
	pthread_mutex_unlock(&loader.lock);
	if (rc)
		return rc;
	*out = o->plugin;
	*path = o->path;
	return 0;
}

int tn_plugin_directories(struct tn_plugin_search *s)
{
	int rc;

	pthread_mutex_lock(&loader.lock);
	rc = tn_plugin_search(s, loader.has_path ? loader.path : NULL);
	pthread_mutex_unlock(&loader.lock);
	return rc;
}

int tn_plugin_open(uint32_t kind, const char *name, const struct tn_plugin **out)
{
	const struct tn_plugin *plugin;
	const char *path;
	int rc = tn_plugin_open_any(name, &plugin, &path);

	if (rc)
		return rc;
	if (plugin->kind != kind)
		return tn_fail(-EPROTO, "'%s' is a %s, and a %s is wanted: give the name of one", path, tn_plugin_kind_name(plugin->kind),
			       tn_plugin_kind_name(kind));
	*out = plugin;
	return 0;
}

int tn_device_driver_open(const char *name, const struct tn_device_driver **out)
{
	const struct tn_plugin *plugin = NULL;
	int rc = tn_plugin_open(TN_PLUGIN_DEVICE, name, &plugin);

	if (rc == 0)
		*out = plugin->table;
	return rc;
}

int tn_device_file_open(const char *name, const struct tn_device_file_ops **out)
{
	const struct tn_plugin *plugin = NULL;
	int rc = tn_plugin_open(TN_PLUGIN_DEVICE_FILE, name, &plugin);

	if (rc == 0)
		*out = plugin->table;
	return rc;
}

int tn_plugin_path(const char *directories)
{
	struct tn_plugin_search *s;
	char real[PATH_MAX];
	int rc, fd;

	if (strlen(directories) >= sizeof(loader.path))
		return tn_fail(-E2BIG, "directories of plugins: '%.100s...' has more than %zu bytes: name fewer", directories, sizeof(loader.path) - 1);
	s = tn_get(&tn_alloc_system, sizeof(*s));
	if (!s)
		return tn_fail(-ENOMEM, "directories of plugins: no memory");
	rc = tn_plugin_split(s, directories, "directories of plugins");
	for (size_t i = 0; rc == 0 && i < s->n; i++) {
		fd = tn_trusted_directory(s->directory[i], real);
		rc = fd < 0 ? fd : close(fd);
	}
	tn_put(&tn_alloc_system, s, sizeof(*s));
	if (rc)
		return rc;
	pthread_mutex_lock(&loader.lock);
	snprintf(loader.path, sizeof(loader.path), "%s", directories);
	loader.has_path = true;
	pthread_mutex_unlock(&loader.lock);
	return 0;
}
