/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto`: the table of verbs.
 *
 * The program uses the library through its public headers only, as any other program would.
 */
#include "cli.h"

#include <signal.h>
#include <string.h>

#include <tenuto/error.h>

static const struct cli_command commands[] = {
	{"demo", cmd_demo, "a chat workload with real bytes, killed once in the middle: see it work"},
	{"replay", cmd_replay, "run a request trace against the cache, with real bytes or the index only"},
	{"workload", cmd_workload, "print the demo's chat workload as a trace"},
	{"status", cmd_status, "what a cache that runs does now: hits, bytes, latencies, processes, devices"},
	{"events", cmd_events, "the block events that caches publish: print them, or what the caches hold by them"},
	{"store", cmd_store, "look into the stores on disk: info, verify, check, flush; format a raw NVMe drive"},
	{"profile", cmd_profile, "make a slack table: from an engine's timings, a model of it, or a kernel run here"},
	{"volume", cmd_volume, "volumes of blobs: register one, list them, remove one"},
	{"xfer", cmd_xfer, "transfer agents: what moves bytes here, look at one, put and get by hand"},
	{"bench", cmd_bench, "measure: the store beside fio, look-ups, restoring behind compute"},
	{"doctor", cmd_doctor, "what this machine offers Tenuto, and how to get more"},
	{NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
	cli_hold_streams();
	/* A reader that goes away (`tenuto ... | head`) shows up as an error of the write. */
	signal(SIGPIPE, SIG_IGN);
	if (argc == 2 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version"))) {
		printf("tenuto %s\n", tn_version());
		return cli_finish(CLI_OK);
	}
	return cli_dispatch("tenuto", "Keeps the KV cache of LLM serving in host memory and on disk, and gives it back verified.",
			    commands, argc, argv);
}
