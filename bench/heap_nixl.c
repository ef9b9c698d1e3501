/* SPDX-License-Identifier: Apache-2.0 */
/* NIXL as a yardstick of `tenuto bench heap`: UCX over shared memory between two processes of a Python environment that has the module nixl. */
#include "heap_bench.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads a number of bytes per line, writes the microseconds of a transfer of so many. The other process owns the memory that is written. */
static const char script[] =
	"import ctypes, mmap, os, sys, time\n"
	"from multiprocessing import Pipe\n"
	"most = int(sys.argv[1])\n"
	"ours, theirs = Pipe()\n"
	"target = os.fork() == 0\n"
	"from nixl._api import nixl_agent, nixl_agent_config\n"
	"pipe = theirs if target else ours\n"
	"(ours if target else theirs).close()\n"
	"agent = nixl_agent('target' if target else 'producer', nixl_agent_config(backends=[]))\n"
	"agent.create_backend('UCX', {'ucx_error_handling_mode': 'none'})\n" /* shared memory does not notice the death of a peer */
	"memory = mmap.mmap(-1, most)\n"
	"memory[:] = bytes(range(256)) * (most // 256)\n"
	"at = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n"
	"agent.register_memory([(at, most, 0, 'm')], 'DRAM')\n"
	"if target:\n"
	"    pipe.send((agent.get_agent_metadata(), at))\n"
	"    try:\n"
	"        pipe.recv()\n"
	"    except EOFError:\n"
	"        os._exit(0)\n"
	"metadata, to = pipe.recv()\n"
	"agent.add_remote_agent(metadata)\n"
	"handles = {}\n"
	"print('READY', flush=True)\n"
	"for line in sys.stdin:\n"
	"    n = int(line)\n"
	"    if n not in handles:\n"
	"        mine, other = (agent.get_xfer_descs([(p, n, 0)], 'DRAM') for p in (at, to))\n"
	"        handles[n] = agent.initialize_xfer('WRITE', mine, other, 'target')\n"
	"    begin = time.perf_counter()\n"
	"    state = agent.transfer(handles[n])\n"
	"    while state == 'PROC':\n"
	"        state = agent.check_xfer_state(handles[n])\n"
	"    print(state, (time.perf_counter() - begin) * 1e6, flush=True)\n"
	"os._exit(0)\n";

static void exec_script(const char *python, uint64_t bytes_most, int in, int out)
{
	char most[32];
	const char *const args[] = {python, "-c", script, most, NULL};
	union {
		const char *const *in;
		char *const *out;
	} argv = {.in = args};

	snprintf(most, sizeof(most), "%" PRIu64, bytes_most);
	bench_die_with_parent();
	setenv("UCX_TLS", "shm,self", 1);
	dup2(in, 0);
	dup2(out, 1);
	execvp(python, argv.out);
	_exit(127);
}

/* Skips what the libraries print. */
static bool read_line(struct heap_nixl *n, const char *word, double *us)
{
	char line[512];
	size_t len = strlen(word);

	while (fgets(line, sizeof(line), n->from))
		if (!strncmp(line, word, len)) {
			*us = strtod(line + len, NULL);
			return true;
		}
	return false;
}

int heap_nixl_start(struct heap_nixl *n, const char *python, uint64_t bytes_most, char *why, size_t why_bytes)
{
	int in[2], out[2];
	double unused;

	if (pipe(in) || pipe(out))
		return -errno;
	fflush(NULL);
	n->pid = fork();
	if (n->pid == 0) {
		close(in[1]);
		close(out[0]);
		exec_script(python, bytes_most, in[0], out[1]);
	}
	close(in[0]);
	close(out[1]);
	n->to = fdopen(in[1], "w");
	n->from = fdopen(out[0], "r");
	if (n->pid > 0 && n->to && n->from && read_line(n, "READY", &unused))
		return 0;
	snprintf(why, why_bytes, "nixl does not run: --python %s is to be of an environment with nixl 1.5 (pip install nixl==1.5.1)", python);
	return -ENOENT;
}

int heap_nixl_move(struct heap_nixl *n, uint64_t bytes, double *us)
{
	if (fprintf(n->to, "%" PRIu64 "\n", bytes) < 0 || fflush(n->to) || !read_line(n, "DONE", us))
		return -EPIPE;
	return 0;
}

void heap_nixl_end(struct heap_nixl *n)
{
	double cpu;
	int status;

	if (n->to)
		fclose(n->to);
	if (n->from)
		fclose(n->from);
	if (n->pid > 0)
		bench_wait(n->pid, NULL, NULL, &status, &cpu);
}
