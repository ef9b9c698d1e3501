/* SPDX-License-Identifier: Apache-2.0 */
/* Where verbs and benchmarks keep what they need for one run: lab/scratch.c with the command line's defaults and messages. */
#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/scratch.h"

static const char *temp_base(const char *base)
{
	if (!base)
		base = getenv("TMPDIR");
	if (!base || !*base)
		base = access("/var/tmp", W_OK) ? "/tmp" : "/var/tmp";
	return base;
}

int cli_temp_dir(const char *base, char *path, size_t path_bytes)
{
	return tn_scratch_make(temp_base(base), path, path_bytes);
}

int cli_scratch_dir(const char *given, const char *base, char *path, size_t path_bytes)
{
	int rc = given ? cli_check_dir("--dir ", given) : CLI_OK;

	path[0] = '\0';
	if (rc)
		return rc;
	if (given)
		base = given;
	rc = cli_temp_dir(base, path, path_bytes);
	if (rc)
		return cli_error(CLI_ENVIRONMENT, "cannot make a directory in %s: %s; --dir names another place", temp_base(base), strerror(-rc));
	return CLI_OK;
}

int cli_remove_tree(const char *path)
{
	sigset_t set, before;
	int rc;

	sigfillset(&set);
	pthread_sigmask(SIG_BLOCK, &set, &before);
	rc = tn_scratch_remove(path);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}
