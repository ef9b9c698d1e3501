/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory_limit.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

#define LINE_BYTES (2 * PATH_MAX)

static const struct version {
	const char *file_system, *controller, *limit;
} versions[] = {
	{"cgroup", "memory", "memory.limit_in_bytes"},
	{"cgroup2", "", "memory.max"}, /* in /proc/self/cgroup it is the hierarchy without controllers */
};

/* Whether the word is one of a list that commas divide. */
static bool has_word(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (;;) {
		if (strncmp(list, word, n) == 0 && (list[n] == ',' || list[n] == '\0'))
			return true;
		list = strchr(list, ',');
		if (!list)
			return false;
		list++;
	}
}

/* /proc/self/cgroup: lines of NUMBER:CONTROLLERS:PATH. */
static bool find_path(const char *root, const struct version *v, char path[PATH_MAX])
{
	char line[LINE_BYTES], name[PATH_MAX];
	bool found = false;
	FILE *f;

	snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
	f = fopen(name, "re");
	while (f && !found && fgets(line, sizeof(line), f)) {
		char *controllers = strchr(line, ':'), *end = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!end)
			continue;
		*end = '\0';
		found = has_word(controllers + 1, v->controller);
		snprintf(path, PATH_MAX, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
	}
	if (f)
		fclose(f);
	return found;
}

/* Where the hierarchy is mounted, and which of its directories; /proc/self/mountinfo: proc(5). */
static bool find_mount(const char *root, const struct version *v, char top[PATH_MAX], char mount[PATH_MAX])
{
	char line[LINE_BYTES], name[PATH_MAX], type[16], options[512];
	bool found = false;
	FILE *f;

	_Static_assert(PATH_MAX == 4096, "the widths below");
	snprintf(name, sizeof(name), "%s/proc/self/mountinfo", root);
	f = fopen(name, "re");
	while (f && !found && fgets(line, sizeof(line), f)) {
		const char *rest = strstr(line, " - ");

		found = rest && sscanf(rest, " - %15s %*s %511s", type, options) == 2 && strcmp(type, v->file_system) == 0 &&
			(!*v->controller || has_word(options, v->controller)) && sscanf(line, "%*s %*s %*s %4095s %4095s", top, mount) == 2;
	}
	if (f)
		fclose(f);
	return found;
}

/* Of one cgroup; UINT64_MAX: it has none ("max"), or does not say. */
static uint64_t read_limit(const char *path)
{
	FILE *f = fopen(path, "re");
	uint64_t bytes;

	if (!f)
		return UINT64_MAX;
	if (fscanf(f, "%" SCNu64, &bytes) != 1)
		bytes = UINT64_MAX;
	fclose(f);
	return bytes;
}

/* From the process' own cgroup up to where the hierarchy is mounted. */
static void lower(const char *root, const struct version *v, uint64_t *least, char *what, size_t what_bytes)
{
	char path[PATH_MAX], top[PATH_MAX], mount[PATH_MAX], file[2 * PATH_MAX + 64];
	size_t n;

	if (!find_path(root, v, path) || !find_mount(root, v, top, mount))
		return;
	n = strcmp(top, "/") == 0 ? 0 : strlen(top);
	/* A container may see its own cgroup alone, mounted in the place of all. */
	if (strncmp(path, top, n) != 0 || (path[n] != '/' && path[n] != '\0') || strstr(path, "/.."))
		path[n = 0] = '\0';
	for (char *at = path + strlen(path);; at = strrchr(path + n, '/')) {
		uint64_t bytes;

		if (!at)
			break;
		*at = '\0';
		snprintf(file, sizeof(file), "%s%s%s/%s", root, mount, path + n, v->limit);
		bytes = read_limit(file);
		if (bytes < *least) {
			*least = bytes;
			snprintf(what, what_bytes, "the limit of its cgroup (%s)", file + strlen(root));
		}
	}
}

uint64_t tn_memory_limit(const char *root, char *what, size_t what_bytes)
{
	uint64_t least = UINT64_MAX;
	struct sysinfo i;

	if (sysinfo(&i) == 0)
		least = (uint64_t)i.totalram * i.mem_unit;
	snprintf(what, what_bytes, "the machine's memory");
	for (size_t k = 0; k < sizeof(versions) / sizeof(versions[0]); k++)
		lower(root, &versions[k], &least, what, what_bytes);
	return least;
}
