/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto profile --engine hf|vllm MODEL`: the Python package times a model in its engine; this process becomes it. */
#include "profile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* As python3 -m tenuto.profile. One line if the package is missing, which is no mistake of the command line (CLI_ENVIRONMENT). */
static const char launch[] = "import sys\n"
			     "try:\n"
			     "    from tenuto.profile import main\n"
			     "except ImportError as error:\n"
			     "    print(f'tenuto: {sys.executable}: {error}: `pip install` of Tenuto brings the package that times a model', file=sys.stderr)\n"
			     "    sys.exit(3)\n"
			     "main()\n";

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
	} given[] = {{"--engine", e->engine}, {"--name", e->name}, {"--dtype", e->dtype}, {"--inputs", e->inputs}, {"--prefixes", e->prefixes}, {"--repeat", e->repeat}, {"--out", e->out}};
	const char *args[4 + 2 * sizeof(given) / sizeof(given[0]) + 2] = {NULL, "-c", launch};
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
	args[0] = interpreter(path, sizeof(path)); /* by argv[0] Python finds the environment that it is of */
	args[n++] = "--";
	args[n++] = model;
	execvp(args[0], argv.out);
	return cli_error(CLI_ENVIRONMENT, "%s: %s; `pip install` of Tenuto brings the package that times a model", args[0], strerror(errno));
}
