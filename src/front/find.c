/* SPDX-License-Identifier: Apache-2.0 */
#include "front/find.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "drives/drives.h"
#include "front/attach.h"

#define PATH_BYTES 1200u
#define STORE_NAME "tenuto.store"

bool tn_find_has_file(const struct tn_cache *cache, uint32_t device)
{
	const char *path = cache->row.drives->ops->drives->path(cache->row.drives, device);

	return path[0] && !tn_drive_is(path);
}

/* Beside a device's file. */
static void link_path(const struct tn_cache *cache, uint32_t device, char path[PATH_BYTES])
{
	const char *store = cache->row.drives->ops->drives->path(cache->row.drives, device), *slash = strrchr(store, '/');

	snprintf(path, PATH_BYTES, "%.*s" TN_FIND_NAME, slash ? (int)(slash - store) + 1 : 0, store);
}

static bool has_links(const struct tn_cache *cache)
{
	return cache->row.drives && !cache->o.read_only;
}

void tn_find_me(struct tn_cache *cache, const char *socket)
{
	char target[PATH_MAX], path[PATH_BYTES];

	if (!has_links(cache) || !realpath(socket, target))
		return;
	for (uint32_t i = 0; i < cache->ndevices; i++) {
		if (!tn_find_has_file(cache, i))
			continue; /* a drive has no directory: the socket's path is what leads to it */
		link_path(cache, i, path);
		unlink(path); /* of an owner that died: this process has the store's lock */
		if (symlink(target, path))
			tn_log(&cache->log, TN_LOG_WARN, "cannot make %s: %s; tools that are given the directory do not find the socket", path,
			       strerror(errno));
	}
}

void tn_find_me_no_more(struct tn_cache *cache)
{
	char path[PATH_BYTES];

	for (uint32_t i = 0; has_links(cache) && i < cache->ndevices; i++) {
		if (!tn_find_has_file(cache, i))
			continue;
		link_path(cache, i, path);
		unlink(path);
	}
}

void tn_find_store(const struct tn_cache *cache, uint32_t device, char *path, size_t bytes)
{
	const char *store = cache->row.drives->ops->drives->path(cache->row.drives, device);
	char whole[PATH_MAX];

	snprintf(path, bytes, "%s", realpath(store, whole) && strlen(whole) < bytes ? whole : store);
}

/* ---- who asks ---------------------------------------------------------------------------------------------- */

int tn_cache_attach_store(const char *dir, const char *instance, const struct tn_attach_opts *opts, struct tn_cache **out)
{
	char store[PATH_BYTES], path[PATH_BYTES], target[PATH_MAX];
	struct tn_cache *cache;
	ssize_t n;
	int rc;

	if (!dir || !instance || !out)
		return tn_fail(-EINVAL, "tn_cache_attach_store: dir, instance or out is missing");
	if ((size_t)snprintf(path, sizeof(path), "%s/%s/" TN_FIND_NAME, dir, instance) >= sizeof(path))
		return tn_fail(-ENAMETOOLONG, "%.60s...: longer than %zu bytes", dir, sizeof(path) - 1);
	snprintf(store, sizeof(store), "%s/%s/" STORE_NAME, dir, instance);
	if (access(store, F_OK))
		return tn_fail(-errno, "%s: %s", store, strerror(errno));
	n = readlink(path, target, sizeof(target) - 1);
	if (n < 0)
		return tn_fail(errno == EINVAL ? -ENOENT : -errno, "%s: nobody serves the store", store);
	target[n] = '\0';
	rc = tn_cache_attach(target, opts, &cache);
	if (rc)
		return rc;
	if (tn_attached_owns(cache, store)) {
		*out = cache;
		return 0;
	}
	tn_attached_stop(cache);
	tn_detach(cache);
	return tn_fail(-ENOENT, "%s: nobody serves the store; at %s a process serves another one", store, target);
}
