/* SPDX-License-Identifier: Apache-2.0 */
#include "stub_rig.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/error.h>
#include <tenuto/plugin.h>

const char *stub_rig_built(void)
{
	static char built[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", built, sizeof(built) - 1);

	if (n <= 0)
		return NULL;
	built[n] = '\0';
	*strrchr(built, '/') = '\0';
	return built;
}

static int copy_plugin(const char *built, const char *top)
{
	char from[PATH_MAX], to[PATH_MAX], bytes[65536];
	int in, out;
	ssize_t n;

	snprintf(from, sizeof(from), "%.4000s/../../plugins/gds/libtenuto_gds.so", built);
	snprintf(to, sizeof(to), "%.4000s/libtenuto_gds.so", top);
	in = open(from, O_RDONLY | O_CLOEXEC);
	out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	while ((n = read(in, bytes, sizeof(bytes))) > 0)
		if (write(out, bytes, (size_t)n) != n)
			return -1;
	close(in);
	close(out);
	return n == 0 && fchmodat(AT_FDCWD, to, 0644, 0) == 0 ? 0 : -1;
}

struct stub_cufile *stub_rig_up(char **argv, char top[PATH_MAX])
{
	const char *built = stub_rig_built();
	struct stub_cufile *stub;
	void *library;

	if (!getenv("TN_GDS_STUB")) {
		setenv("TN_GDS_STUB", "1", 1);
		setenv("LD_LIBRARY_PATH", built, 1);
		execv("/proc/self/exe", argv);
		return NULL;
	}
	library = dlopen("libcufile.so.0", RTLD_NOW);
	stub = library ? dlsym(library, "stub_cufile") : NULL;
	snprintf(top, PATH_MAX, "/var/tmp/tn-gds-XXXXXX");
	if (!stub || !mkdtemp(top) || chmod(top, 0755) || copy_plugin(built, top) || tn_plugin_path(top)) {
		fprintf(stderr, "%s\n", stub ? tn_error_last()->text : "no stub");
		return NULL;
	}
	return stub;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	return remove(path);
}

void stub_rig_down(const char *top)
{
	nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
