/* SPDX-License-Identifier: Apache-2.0 */
/* NIXL as the yardstick of `tenuto bench xfer`: one transfer per process, in a Python environment that has the module nixl. */
#include "xfer_bench.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE_BYTES 512

/* The last line that it prints: seconds of the transfer, and CPU seconds of the process during it. Lists are prepared before, as ours are. */
static const char script[] =
	"import mmap, os, resource, sys, time\n"
	"from nixl._api import nixl_agent, nixl_agent_config\n"
	"op, path, total, block = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])\n"
	"import ctypes\n"
	"def memory():\n"
	"    m = mmap.mmap(-1, total)\n"
	"    m.madvise(mmap.MADV_HUGEPAGE)\n"
	"    m[:] = bytes(range(256)) * (total // 256)\n"
	"    return m, ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
	"kind = 'POSIX' if path else 'UCX'\n"
	"agent = nixl_agent('bench', nixl_agent_config(backends=[]))\n"
	"agent.create_backend(kind, {'use_uring': 'true'} if path else {})\n"
	"here, at = memory()\n"
	"agent.register_memory([(at, total, 0, 'm')], 'DRAM', backends=[kind])\n"
	"if path:\n"
	"    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)\n"
	"    agent.register_memory([(0, total, fd, 'f')], 'FILE', backends=[kind])\n"
	"    there = agent.get_xfer_descs([(i, block, fd) for i in range(0, total, block)], 'FILE')\n"
	"else:\n"
	"    other, to = memory()\n"
	"    agent.register_memory([(to, total, 0, 'n')], 'DRAM', backends=[kind])\n"
	"    there = agent.get_xfer_descs([(to + i, block, 0) for i in range(0, total, block)], 'DRAM')\n"
	"mine = agent.get_xfer_descs([(at + i, block, 0) for i in range(0, total, block)], 'DRAM')\n"
	"handle = agent.initialize_xfer(op, mine, there, 'bench', backends=[kind])\n"
	"def cpu():\n"
	"    u = resource.getrusage(resource.RUSAGE_SELF)\n"
	"    return u.ru_utime + u.ru_stime\n"
	"begin, used = time.monotonic(), cpu()\n"
	"state = agent.transfer(handle)\n"
	"while state == 'PROC':\n"
	"    time.sleep(0.00005)\n"
	"    state = agent.check_xfer_state(handle)\n"
	"if path and op == 'WRITE':\n"
	"    os.fdatasync(fd)\n"
	"print('\\n%s %.6f %.6f' % (state, time.monotonic() - begin, cpu() - used), flush=True)\n"
	"os._exit(0)\n";

/* Memory of another process, which it forks; CPU seconds of both. The first transfer connects them, and the blocks of a list have no neighbours to merge, as ours. */
static const char peer_script[] =
	"import ctypes, mmap, os, sys, time\n"
	"from multiprocessing import Pipe\n"
	"op, total, block = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])\n"
	"ours, theirs = Pipe()\n"
	"child = os.fork()\n"
	"(theirs if child else ours).close()\n"
	"from nixl._api import nixl_agent, nixl_agent_config\n"
	"agent = nixl_agent('bench' if child else 'target', nixl_agent_config(backends=[]))\n"
	"agent.create_backend('UCX', {})\n"
	"memory = mmap.mmap(-1, total, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
	"memory.madvise(mmap.MADV_HUGEPAGE)\n"
	"memory[:] = bytes(range(256)) * (total // 256)\n"
	"at = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n"
	"agent.register_memory([(at, total, 0, 'm')], 'DRAM', backends=['UCX'])\n"
	"if not child:\n"
	"    theirs.send((agent.get_agent_metadata(), at))\n"
	"    try:\n"
	"        theirs.recv()\n"
	"    except EOFError:\n"
	"        os._exit(0)\n"
	"metadata, to = ours.recv()\n"
	"agent.add_remote_agent(metadata)\n"
	"mine = agent.get_xfer_descs([(at + i, block, 0) for i in range(0, total, block)], 'DRAM')\n"
	"there = agent.get_xfer_descs([(to + i, block, 0) for i in reversed(range(0, total, block))], 'DRAM')\n"
	"handle = agent.initialize_xfer(op, mine, there, 'target', backends=['UCX'])\n"
	"def cpu():\n"
	"    return time.process_time() + time.clock_gettime(((~child) << 3) | 2)\n" /* clock_getcpuclockid */
	"def transfer():\n"
	"    state = agent.transfer(handle)\n"
	"    while state == 'PROC':\n"
	"        time.sleep(0.00005)\n"
	"        state = agent.check_xfer_state(handle)\n"
	"    return state\n"
	"transfer()\n"
	"begin, used = time.monotonic(), cpu()\n"
	"state = transfer()\n"
	"print('\\n%s %.6f %.6f' % (state, time.monotonic() - begin, cpu() - used), flush=True)\n"
	"os._exit(0)\n";

static void exec_script(const char *python, const char *text, const char *op, const char *path, uint64_t total, uint64_t block, int out)
{
	char all[32], each[32];
	const char *const args[] = {python, "-c", text, op, path ? path : "", all, each, NULL};
	union {
		const char *const *in;
		char *const *out;
	} argv = {.in = args};

	snprintf(all, sizeof(all), "%" PRIu64, total);
	snprintf(each, sizeof(each), "%" PRIu64, block);
	bench_die_with_parent();
	if (text == peer_script)
		setenv("UCX_NET_DEVICES", "lo", 0); /* as the backend ucx does */
	dup2(out, 1);
	execvp(python, argv.out);
	_exit(127);
}

/* The last line with figures. */
static bool read_figures(FILE *f, struct bench_run *run)
{
	char line[LINE_BYTES], state[16];
	bool found = false;

	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%15s %lf %lf", state, &run->seconds, &run->phase_cpu) == 3 && !strcmp(state, "DONE"))
			found = true;
	return found && run->seconds > 0;
}

static int run_script(const char *python, const char *text, const char *op, const char *path, uint64_t total, uint64_t block, struct bench_run *run)
{
	int both[2], status, rc;
	bool good;
	pid_t pid;
	FILE *f;

	*run = (struct bench_run){.bytes = total};
	if (pipe(both))
		return cli_error(CLI_ENVIRONMENT, "pipe: %s", strerror(errno));
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		exec_script(python, text, op, path, total, block, both[1]);
	close(both[1]);
	f = fdopen(both[0], "r");
	good = f && read_figures(f, run);
	if (f)
		fclose(f);
	rc = pid < 0 ? cli_error(CLI_ENVIRONMENT, "fork: %s", strerror(errno)) : bench_wait(pid, NULL, NULL, &status, &run->cpu);
	if (rc == CLI_OK && (status || !good))
		rc = cli_error(CLI_ENVIRONMENT, "nixl's run has failed (status %#x): --python %s is to be of an environment with nixl 1.5 (pip install nixl==1.5.1)",
			       (unsigned)status, python);
	return rc;
}

int xfer_nixl_run(const char *python, const char *op, const char *path, uint64_t total, uint64_t block, struct bench_run *run)
{
	return run_script(python, script, op, path, total, block, run);
}

int xfer_nixl_peer_run(const char *python, const char *op, uint64_t total, uint64_t block, struct bench_run *run)
{
	return run_script(python, peer_script, op, NULL, total, block, run);
}
