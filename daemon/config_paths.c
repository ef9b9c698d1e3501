/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the directories and files that settings name are there and may be used, and the machine has the memory, for --check-config. Nothing is
 * made; stores are looked into as `tenuto store info` does it.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/admin.h>
#include <tenuto/plugin.h>
#include <tenuto/remote.h>

#include "config.h"

#define REMOTES_NS UINT64_C(10000000000) /* all remote stores have answered by then, or do not serve */

/* 0, or -errno; as the daemon's effective user. */
static int use(const char *path, int mode)
{
	struct stat st;

	if (stat(path, &st))
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	return faccessat(AT_FDCWD, path, mode, AT_EACCESS) ? -errno : 0;
}

static int fail(int rc, const char *setting, const char *path, const char *then, char *why)
{
	snprintf(why, CONFIG_WHY, "%s: '%.300s': %s; %s", setting, path, strerror(-rc), then);
	return rc;
}

/* Opens none: whether another process has it shows at the start. */
static int check_drive(const char *dir, char *why)
{
	static struct tn_admin_drive drive[TN_ADMIN_DRIVES_MAX];
	int n = tn_admin_drives(drive, TN_ADMIN_DRIVES_MAX);

	for (int i = 0; i < n && i < TN_ADMIN_DRIVES_MAX; i++) {
		if (strcmp(drive[i].address, dir + strlen("nvme:")))
			continue;
		if (drive[i].usable)
			return 0;
		snprintf(why, CONFIG_WHY, "dirs: '%.60s': %s", dir, drive[i].lacks);
		return -ENODEV;
	}
	snprintf(why, CONFIG_WHY, "dirs: '%.60s': there is no NVMe controller with this address; write one that `tenuto doctor` lists, as nvme:0000:03:00.0",
		 dir);
	return -EINVAL;
}

/* What is made anew is made in the directory; the instance's own directory counts once it is there. */
static int check_dir(const struct config *c, const char *dir, char *why)
{
	int mode = c->read_only ? R_OK | X_OK : R_OK | W_OK | X_OK;
	int rc = use(dir, mode);
	char own[4096];

	if (rc == -ENOENT)
		return fail(rc, "dirs", dir, "make it, or correct the path", why);
	snprintf(own, sizeof(own), "%s/%s", dir, c->instance);
	if (rc == 0 && access(own, F_OK) == 0) {
		dir = own;
		rc = use(own, mode);
	}
	return rc ? fail(rc, "dirs", dir, "it must be a directory that this user may read and write", why) : 0;
}

/* A directory that is another one, too: two stores would be one. */
static int check_twice(const struct config *c, size_t i, char *why)
{
	const char *dir = c->dirs.item[i];
	size_t k = cli_find_same(c->dirs.item, i);

	if (k == i)
		return 0;
	if (strcmp(c->dirs.item[k], dir) == 0)
		return fail(-EINVAL, "dirs", dir, "it is given twice, leave one of them out", why);
	snprintf(why, CONFIG_WHY, "dirs: '%.300s' and '%.300s' are the same directory, given twice: leave one of them out",
		 c->dirs.item[k], dir);
	return -EINVAL;
}

/* The stores that are there already, all devices together, because a store may go on without one. */
static int check_stores(const struct config *c, char *why)
{
	struct tn_admin_device device[TN_DEVICES_MAX];
	const char *dirs[TN_DEVICES_MAX];
	struct tn_admin_store store;
	char path[4096];
	size_t n = 0;
	int rc;

	for (size_t i = 0; i < c->dirs.n && n < TN_DEVICES_MAX; i++) {
		snprintf(path, sizeof(path), "%s/%s/tenuto.store", c->dirs.item[i], c->instance);
		if (!cli_is_drive(c->dirs.item[i]) && access(path, F_OK) == 0)
			dirs[n++] = c->dirs.item[i];
	}
	if (n == 0)
		return 0;
	tn_admin_store_init(&store);
	store.dirs = dirs;
	store.ndirs = n;
	store.instance = c->instance;
	rc = tn_admin_store_info(&store, device);
	if (rc == 0 || rc == -ENOENT) /* no finished store: the start makes it anew */
		return 0;
	snprintf(why, CONFIG_WHY, "dirs: %.700s", tn_error_last()->text);
	return rc;
}

/* As the start does it. */
static int check_secret(const char *setting, const char *path, char *why)
{
	int rc = strcmp(path, "off") ? tn_admin_secret_check(path) : 0;

	if (rc == -ENOENT)
		return fail(rc, setting, path, "make it with `umask 077; openssl rand -hex 32 > FILE`, and copy it to all nodes", why);
	if (rc)
		snprintf(why, CONFIG_WHY, "%s: %.700s", setting, tn_error_last()->text);
	return rc;
}

/* As the start does it. */
static int check_memory(const struct config *c, char *why)
{
	char asked[32], has[32], what[300];
	uint64_t most = tn_admin_memory_limit(what, sizeof(what));

	if (c->host_bytes <= most)
		return 0;
	snprintf(why, CONFIG_WHY, "host_bytes: %s are more than %s of %s; give less", cli_bytes(asked, (double)c->host_bytes), what,
		 cli_bytes(has, (double)most));
	return -EINVAL;
}

/* As the start does it: each directory has its share. */
static int check_disks(const struct config *c, char *why)
{
	uint64_t each = c->dirs.n ? c->disk_bytes / c->dirs.n : 0;
	char asked[32], has[32];
	struct statvfs fs;

	for (size_t i = 0; i < c->dirs.n; i++) {
		if (cli_is_drive(c->dirs.item[i]) || statvfs(c->dirs.item[i], &fs) || each <= (uint64_t)fs.f_blocks * fs.f_frsize)
			continue;
		snprintf(why, CONFIG_WHY, "disk_bytes: the share of '%.300s' is %s, and its file system has %s in all; give less", c->dirs.item[i],
			 cli_bytes(asked, (double)each), cli_bytes(has, (double)fs.f_blocks * (double)fs.f_frsize));
		return -EINVAL;
	}
	return 0;
}

int config_check_socket(const char *path, char *why)
{
	char dir[CONFIG_SOCKET_BYTES + 1];
	struct stat st;
	int rc;

	if (path[0] != '/')
		return 0; /* auto, off */
	if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
		return fail(-EINVAL, "socket", path, "it is no socket, give another path", why);
	snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(path, '/') - path), path);
	rc = use(dir[0] ? dir : "/", W_OK | X_OK);
	return rc ? fail(rc, "socket", dir, "the socket needs a directory that this user may write", why) : 0;
}

int config_check_slack(const char *path, char *why)
{
	char parent[4096];
	int rc = path[0] == '/' ? use(path, R_OK | W_OK | X_OK) : 0;

	if (rc != -ENOENT)
		return rc ? fail(rc, "slack", path, "it must be a directory that this user may read and write", why) : 0;
	snprintf(parent, sizeof(parent), "%.*s", (int)(strrchr(path, '/') - path), path);
	rc = use(parent[0] ? parent : "/", W_OK | X_OK);
	return rc ? fail(rc, "slack", path, "make it; its parent is no directory in which this user may make it", why) : 0;
}

int config_use_plugins(const char *path, char *why)
{
	int rc = tn_plugin_path(path[0] == '/' ? path : "");

	if (rc)
		snprintf(why, CONFIG_WHY, "plugins: %s", tn_error_last()->text);
	return rc;
}

/* The first remote that does not serve is told. */
static void tell_remote(void *arg, const char *name, int status, const char *text)
{
	char *why = arg;

	if (status && !*why)
		snprintf(why, CONFIG_WHY, "remote: %s: %.650s", name, text);
}

static int check_remotes(const char *remote, char *why)
{
	struct timespec now;
	int rc;

	*why = 0;
	if (strcmp(remote, "off") == 0)
		return 0;
	clock_gettime(CLOCK_MONOTONIC, &now);
	rc = tn_remotes_try(remote, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + REMOTES_NS, tell_remote, why);
	if (rc && !*why)
		snprintf(why, CONFIG_WHY, "remote: %.700s", tn_error_last()->text);
	return rc;
}

int config_check_paths(const struct config *c, const char **setting, char *why)
{
	const struct tn_serve_opts *opts;
	char token[TN_SERVE_TOKEN_BYTES], reason[CONFIG_WHY];
	struct client_rules *rules;
	int rc = 0;

	*setting = "instance";
	if (strchr(c->instance, '/') || c->instance[0] == '\0' || strcmp(c->instance, ".") == 0 || strcmp(c->instance, "..") == 0)
		return fail(-EINVAL, "instance", c->instance, "write a name of one part", why);
	*setting = "dirs";
	for (size_t i = 0; i < c->dirs.n && rc == 0; i++) {
		rc = cli_is_drive(c->dirs.item[i]) ? check_drive(c->dirs.item[i], why) : check_dir(c, c->dirs.item[i], why);
		if (rc == 0)
			rc = check_twice(c, i, why);
	}
	if (rc == 0)
		rc = check_stores(c, why);
	if (rc)
		return rc;
	*setting = "host_bytes";
	rc = check_memory(c, why);
	if (rc)
		return rc;
	*setting = "disk_bytes";
	rc = check_disks(c, why);
	if (rc)
		return rc;
	*setting = "slack";
	rc = config_check_slack(c->slack, why);
	if (rc)
		return rc;
	*setting = "plugins";
	rc = config_use_plugins(c->plugins, why);
	if (rc)
		return rc;
	*setting = "cluster_secret_file";
	rc = check_secret(*setting, c->cluster_secret_file, why);
	if (rc)
		return rc;
	*setting = "hints_token_file";
	if (strcmp(c->hints_token_file, "off") != 0)
		rc = client_read_token(c->hints_token_file, token, reason, sizeof(reason));
	explicit_bzero(token, sizeof(token));
	if (rc) {
		snprintf(why, CONFIG_WHY, "hints_token_file: %.*s", CONFIG_WHY - 20, reason);
		return rc;
	}
	*setting = "serve";
	rc = check_secret(*setting, c->serve.secret_file, why);
	if (rc)
		return rc;
	*setting = "remote";
	rc = check_remotes(c->remote, why);
	if (rc)
		return rc;
	*setting = "socket";
	rc = config_check_socket(c->socket, why);
	if (rc)
		return rc;
	*setting = "clients";
	rc = clients_rules(&c->clients, &rules, &opts, why, CONFIG_WHY); /* reads the tokens */
	if (rc == 0)
		clients_rules_free(rules);
	return rc;
}
