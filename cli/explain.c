/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache calls explain on its owner thread, which should not wait for this file. A large buffer makes such waits
 * rare.
 */
#include "explain.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define BUFFER_BYTES (1u << 20)

struct explain {
	const char *name;
	FILE *file;
	unsigned run; /* 0: runs are not told apart */
	char run_name[96];
	char buffer[BUFFER_BYTES];
};

int explain_open(const char *name, struct explain **out)
{
	struct explain *e;

	*out = NULL;
	if (!name)
		return CLI_OK;
	e = malloc(sizeof(*e));
	if (!e)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	e->name = name;
	e->run = 0;
	e->file = fopen(name, "we");
	if (!e->file) {
		int code = errno;

		free(e);
		return cli_error(cli_exit_of(-code), "--explain %s: %s", name, strerror(code));
	}
	setvbuf(e->file, e->buffer, _IOFBF, sizeof(e->buffer));
	*out = e;
	return CLI_OK;
}

void explain_run(struct explain *e, const char *name)
{
	if (!e)
		return;
	e->run++;
	snprintf(e->run_name, sizeof(e->run_name), "%s", name);
}

void explain_decision(void *arg, const struct tn_decision *d)
{
	struct explain *e = arg;

	fputc('{', e->file);
	if (e->run)
		fprintf(e->file, "\"run\": %u, \"arm\": \"%s\", ", e->run, e->run_name);
	fprintf(e->file, "\"time_ns\": %" PRIu64 ", \"load\": %" PRIu64 ", \"layer\": %u, ", d->time_ns, d->load, d->layer);
	if (d->device < TN_DEVICES_MAX)
		fprintf(e->file, "\"device\": %u, ", d->device);
	else
		fputs("\"device\": null, ", e->file);
	if (d->slack_ns != INT64_MAX)
		fprintf(e->file, "\"slack_ns\": %" PRId64 ", ", d->slack_ns);
	else
		fputs("\"slack_ns\": null, ", e->file);
	fprintf(e->file, "\"chosen\": \"%s\", \"bytes\": %" PRIu64 ", \"deferred_bytes\": %" PRIu64 ", \"reason\": \"%s\"}\n",
		tn_chosen_name(d->chosen), d->bytes, d->deferred_bytes, tn_reason_name(d->reason));
}

int explain_close(struct explain *e)
{
	bool bad;

	if (!e)
		return CLI_OK;
	bad = ferror(e->file);
	bad |= fclose(e->file) != 0;
	if (bad)
		cli_error(CLI_ENVIRONMENT, "--explain %s: cannot be written: %s", e->name, strerror(errno));
	free(e);
	return bad ? CLI_ENVIRONMENT : CLI_OK;
}
