/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto bench`: the table of benchmarks (bench/). */
#include "../bench/bench.h"

static const struct cli_command commands[] = {
	{"store", cmd_bench_store, "saving and loading through the store, beside fio if asked"},
	{"pipeline", cmd_bench_pipeline, "restoring a prompt layer by layer behind compute, strategies side by side"},
	{"mix", cmd_bench_mix, "what a directory's device reads, writes, and does of both together"},
	{"submit", cmd_bench_submit, "what starting a load costs, and handing over each of its layers"},
	{"layers", cmd_bench_layers, "when the first layer of a load is there, on an idle disk"},
	{"match", cmd_bench_match, "look-ups of long prefixes among millions of blocks"},
	{"shares", cmd_bench_shares, "a rank's own share of blocks beside shares for every TP size"},
	{"session", cmd_bench_session, "what it costs to use a cache that another process owns"},
	{"device", cmd_bench_device, "saves and loads of pages in device memory beside those of pages in host memory"},
	{"heap", cmd_bench_heap, "handing objects to another process through the symmetric heap"},
	{"nvme", cmd_bench_nvme, "what driving NVMe from user space costs, on a controller in software"},
	{"xfer", cmd_bench_xfer, "what moving blocks with the transfer agent costs, and how fast it is"},
	{NULL, NULL, NULL},
};

int cmd_bench(int argc, char **argv)
{
	return cli_dispatch("tenuto bench", "Measures this machine with Tenuto.", commands, argc, argv);
}
