/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalogue of volumes: a text file, a line per volume: name, bytes, id in hexadecimal. It is read whole and written whole, to another name first; the directory's
 * lock keeps two who change it apart.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <tenuto/blob.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"

#define FILE_NAME "volumes"
#define NEW_NAME "volumes.new"
#define LINE_BYTES (TN_VOLUME_NAME_MAX + 64u)

struct catalogue {
	int dir; /* of the file */
	uint32_t n;
	struct tn_volume_info volume[TN_VOLUMES_MAX];
};

static int check_name(const char *name)
{
	size_t n = name ? strlen(name) : 0;

	if (n && n <= TN_VOLUME_NAME_MAX && name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")] == 0)
		return 0;
	return tn_fail(-EINVAL, "volume name '%.80s': 1 to %u letters, digits, '.', '_' and '-' are wanted", name ? name : "", TN_VOLUME_NAME_MAX);
}

static int read_line(const char *line, struct tn_volume_info *v)
{
	char hex[33];
	int end = 0;

	memset(v, 0, sizeof(*v));
	if (sscanf(line, "%63s %" SCNu64 " %32[0-9a-f]%n", v->name, &v->blob_bytes, hex, &end) != 3 || line[end] != '\n' || strlen(hex) != 32 || check_name(v->name) || !v->blob_bytes ||
	    v->blob_bytes > TN_BLOB_BYTES_MAX)
		return -EBADMSG;
	for (size_t i = 0; i < sizeof(v->id); i++) {
		const char byte[3] = {hex[2 * i], hex[2 * i + 1], 0};

		v->id[i] = (unsigned char)strtoul(byte, NULL, 16);
	}
	return 0;
}

static int read_lines(struct catalogue *c, FILE *f, const char *dir)
{
	char line[LINE_BYTES];

	while (fgets(line, sizeof(line), f)) {
		if (c->n == TN_VOLUMES_MAX || read_line(line, &c->volume[c->n]))
			return tn_fail(-EBADMSG, "%s/" FILE_NAME ", line %u: no volume, or more than %u: mend or remove it", dir, c->n + 1, TN_VOLUMES_MAX);
		c->n++;
	}
	return ferror(f) ? tn_fail(-EIO, "%s/" FILE_NAME " cannot be read", dir) : 0;
}

static void close_catalogue(struct catalogue *c)
{
	if (!c)
		return;
	if (c->dir >= 0)
		close(c->dir);
	tn_put(&tn_alloc_system, c, sizeof(*c));
}

static int open_catalogue(const char *dir, bool change, struct catalogue **out)
{
	struct catalogue *c = tn_get(&tn_alloc_system, sizeof(*c));
	FILE *f = NULL;
	int fd, rc = 0;

	if (!c)
		return tn_fail(-ENOMEM, "no memory for a catalogue");
	c->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (c->dir < 0 || (change && flock(c->dir, LOCK_EX)))
		rc = tn_fail(-errno, "%s: %s", dir, strerror(errno));
	fd = rc ? -1 : openat(c->dir, FILE_NAME, O_RDONLY | O_CLOEXEC);
	if (rc == 0 && fd < 0 && errno != ENOENT)
		rc = tn_fail(-errno, "%s/" FILE_NAME ": %s", dir, strerror(errno));
	if (fd >= 0) {
		f = fdopen(fd, "r");
		rc = f ? read_lines(c, f, dir) : tn_fail(-ENOMEM, "no memory for a catalogue");
		if (f)
			fclose(f);
		else
			close(fd);
	}
	if (rc)
		close_catalogue(c);
	else
		*out = c;
	return rc;
}

static int write_all(int fd, const char *text, size_t n)
{
	while (n) {
		ssize_t done = write(fd, text, n);

		if (done < 0 && errno != EINTR)
			return -1;
		text += done > 0 ? done : 0;
		n -= done > 0 ? (size_t)done : 0;
	}
	return 0;
}

static int write_line(int fd, const struct tn_volume_info *v)
{
	char line[LINE_BYTES];
	int n = snprintf(line, sizeof(line), "%s %" PRIu64 " ", v->name, v->blob_bytes);

	for (size_t i = 0; i < sizeof(v->id); i++)
		n += snprintf(line + n, sizeof(line) - (size_t)n, "%02x%s", v->id[i], i + 1 < sizeof(v->id) ? "" : "\n");
	return write_all(fd, line, (size_t)n);
}

static int write_catalogue(const struct catalogue *c, const char *dir)
{
	int fd = openat(c->dir, NEW_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), rc = fd < 0 ? -1 : 0;

	for (uint32_t i = 0; i < c->n && rc == 0; i++)
		rc = write_line(fd, &c->volume[i]);
	if (rc || fsync(fd) || renameat(c->dir, NEW_NAME, c->dir, FILE_NAME) || fsync(c->dir))
		rc = tn_fail(-errno, "%s/" FILE_NAME ": %s", dir, strerror(errno));
	if (fd >= 0)
		close(fd);
	return rc;
}

/* Where the name is, or belongs. */
static uint32_t place(const struct catalogue *c, const char *name, bool *there)
{
	uint32_t i = 0;

	while (i < c->n && strcmp(c->volume[i].name, name) < 0)
		i++;
	*there = i < c->n && strcmp(c->volume[i].name, name) == 0;
	return i;
}

int tn_volume_register(const char *dir, const char *name, uint64_t blob_bytes)
{
	struct tn_volume_info v = {.blob_bytes = blob_bytes};
	struct catalogue *c;
	uint32_t at;
	bool there;
	int rc = dir ? check_name(name) : tn_fail(-EINVAL, "tn_volume_register: the directory is missing");

	if (rc == 0 && (!blob_bytes || blob_bytes > TN_BLOB_BYTES_MAX))
		rc = tn_fail(-EINVAL, "blob_bytes %" PRIu64 ": 1 to %" PRIu64 " are wanted", blob_bytes, TN_BLOB_BYTES_MAX);
	rc = rc ? rc : open_catalogue(dir, true, &c);
	if (rc)
		return rc;
	at = place(c, name, &there);
	if (there) {
		rc = tn_fail(-EEXIST, "volume %s is registered in %s", name, dir);
	} else if (c->n == TN_VOLUMES_MAX) {
		rc = tn_fail(-ENOSPC, "%s has %u volumes: remove one", dir, TN_VOLUMES_MAX);
	} else if (getrandom(v.id, sizeof(v.id), 0) != (ssize_t)sizeof(v.id)) {
		rc = tn_fail(-EIO, "no random bytes for a volume");
	} else {
		snprintf(v.name, sizeof(v.name), "%s", name);
		memmove(&c->volume[at + 1], &c->volume[at], (c->n - at) * sizeof(v));
		c->volume[at] = v;
		c->n++;
		rc = write_catalogue(c, dir);
	}
	close_catalogue(c);
	return rc;
}

int tn_volume_remove(const char *dir, const char *name)
{
	struct catalogue *c;
	uint32_t at;
	bool there;
	int rc = dir ? check_name(name) : tn_fail(-EINVAL, "tn_volume_remove: the directory is missing");

	rc = rc ? rc : open_catalogue(dir, true, &c);
	if (rc)
		return rc;
	at = place(c, name, &there);
	if (there) {
		c->n--;
		memmove(&c->volume[at], &c->volume[at + 1], (c->n - at) * sizeof(c->volume[0]));
		rc = write_catalogue(c, dir);
	} else {
		rc = tn_fail(-ENOENT, "volume %s is not registered in %s", name, dir);
	}
	close_catalogue(c);
	return rc;
}

long tn_volume_list(const char *dir, struct tn_volume_info *out, size_t max)
{
	struct catalogue *c;
	long n;
	int rc = dir && (out || !max) ? 0 : tn_fail(-EINVAL, "tn_volume_list: a pointer is missing");

	rc = rc ? rc : open_catalogue(dir, false, &c);
	if (rc)
		return rc;
	n = c->n;
	if (max)
		memcpy(out, c->volume, ((size_t)n < max ? (size_t)n : max) * sizeof(*out));
	close_catalogue(c);
	return n;
}
