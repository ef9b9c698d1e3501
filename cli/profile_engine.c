/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto profile --engine hf|vllm MODEL`: the Python package times a model in its engine; this process becomes it. */
#include "profile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* Of the environment in which this program is installed, if there is one, else the one of the search path. */
static const char *interpreter(char *path, size_t size)
{
	static const char name[] = "python3";
	ssize_t n = readlink("/proc/self/exe", path, size - sizeof(name));
	char *base;

	if (n <= 0)
		return name;
	path[n] = 0;
	base = strrchr(path, '/');
	if (!base)
		return name;
	memcpy(base + 1, name, sizeof(name));
	return access(path, X_OK) ? name : path;
}

int profile_engine(const char *model, const struct profile_engine *e)
{
	const struct {
		const char *option, *value;
	} given[] = {{"--engine", e->engine}, {"--dtype", e->dtype}, {"--inputs", e->inputs}, {"--prefixes", e->prefixes}, {"--repeat", e->repeat}, {"--out", e->out}};
	const char *args[4 + 2 * sizeof(given) / sizeof(given[0]) + 2] = {"python3", "-m", "tenuto.profile"};
	union {
		const char **in;
		char **out;
	} argv = {.in = args};
	char path[4096];
	size_t n = 3;

	for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
		if (!given[i].value)
			continue;
		args[n++] = given[i].option;
		args[n++] = given[i].value;
	}
	args[n++] = "--";
	args[n++] = model;
	execvp(interpreter(path, sizeof(path)), argv.out);
	return cli_error(CLI_ENVIRONMENT, "python3: %s; `pip install` of Tenuto brings the package that times a model", strerror(errno));
}
