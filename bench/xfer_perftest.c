/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucx_perftest as the yardstick of `tenuto bench xfer`: puts or gets between two processes of this machine.
 *
 * It is told to do what the backend ucx does: registered memory that UCX did not allocate, endpoints with error handling, and sleep while nothing moves. Gets it
 * polls for, because its server does not end in the other mode: it sleeps as often as there are gets. All bytes of a run are those of one block. UCX's variables
 * are the environment's, for both sides.
 *
 * It moves a number of bytes, however long that takes: over TCP at 5 MB/s now and then, if other processes want the CPUs that it polls on. Callers try few bytes first.
 */
#include "xfer_bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM "ucx_perftest"
#define LINE_BYTES 512
#define START_MS 5000u
#define PATIENCE_S 60u
#define WARM_SHARE 8u /* of the blocks are moved before, too, to warm up */
#define LISTENS 10u /* state of a socket in /proc/net/tcp */

/* What the plugin sets, too; and memory as programs have it, not shared memory of UCX's own. */
static void set_environment(void)
{
	static const char *const settings[][2] = {
		{"UCX_NET_DEVICES", "lo"}, {"UCX_MEM_EVENTS", "n"}, {"UCX_ALLOC_PRIO", "thp,mmap,heap"}, {"UCX_WARN_UNUSED_ENV_VARS", "n"},
	};

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		setenv(settings[i][0], settings[i][1], 0);
}

static pid_t start(const char *const *args, int out)
{
	union {
		const char *const *in;
		char *const *out;
	} argv = {.in = args};
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid)
		return pid;
	bench_die_with_parent();
	alarm(PATIENCE_S); /* it has no deadline of its own */
	set_environment();
	dup2(out, 1);
	execvp(PROGRAM, argv.out);
	_exit(127);
}

/* A port that was free just now; 0: none. */
static unsigned free_port(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(at);
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	unsigned port = 0;

	if (s < 0)
		return 0;
	if (!bind(s, (struct sockaddr *)&at, bytes) && !getsockname(s, (struct sockaddr *)&at, &bytes))
		port = ntohs(at.sin_port);
	close(s);
	return port;
}

/* A connection would be taken for the client. */
static bool listens(unsigned port)
{
	FILE *f = fopen("/proc/net/tcp", "re");
	char line[LINE_BYTES];
	unsigned at, state;
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%*d: %*x:%x %*x:%*x %x", &at, &state) == 2 && at == port && state == LISTENS;
	if (f)
		fclose(f);
	return found;
}

/* The process of the server; -1: it has not started, with a message. */
static pid_t start_server(unsigned port)
{
	char text[16];
	const char *const args[] = {PROGRAM, "-p", text, NULL};
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC), status;
	pid_t pid;

	snprintf(text, sizeof(text), "%u", port);
	pid = start(args, null);
	close(null);
	for (unsigned ms = 0; pid > 0 && ms < START_MS && !listens(port); ms++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			pid = -1;
		usleep(1000);
	}
	if (pid < 0)
		cli_error(CLI_ENVIRONMENT, PROGRAM " does not start as a server");
	return pid;
}

/* The last line of figures, as CSV: the sixth is the mean of all, in MiB/s. */
static double read_rate(FILE *f)
{
	char line[LINE_BYTES];
	double rate = 0, found;

	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%*f,%*f,%*f,%*f,%*f,%lf", &found) == 1)
			rate = found;
	return rate;
}

static int run_client(unsigned port, const char *op, uint64_t block, uint32_t depth, struct bench_run *run)
{
	uint64_t blocks = run->bytes / block, warm_blocks = blocks / WARM_SHARE + 1;
	char at[16], bytes[32], count[32], warm[32], most[32];
	const char *const args[] = {PROGRAM, "127.0.0.1", "-p", at, "-t", strcmp(op, "READ") ? "ucp_put_bw" : "ucp_get", "-s", bytes, "-n", count, "-w", warm,
				    "-O", most, "-E", strcmp(op, "READ") ? "sleep" : "poll", "-M", "serialized", "-e", "-z", "-f", "-v", NULL};
	int both[2], status, rc;
	double rate = 0;
	pid_t pid;
	FILE *f;

	snprintf(at, sizeof(at), "%u", port);
	snprintf(bytes, sizeof(bytes), "%" PRIu64, block);
	snprintf(count, sizeof(count), "%" PRIu64, blocks);
	snprintf(warm, sizeof(warm), "%" PRIu64, warm_blocks);
	snprintf(most, sizeof(most), "%u", depth);
	if (pipe2(both, O_CLOEXEC))
		return cli_error(CLI_ENVIRONMENT, "pipe: %s", strerror(errno));
	pid = start(args, both[1]);
	close(both[1]);
	f = fdopen(both[0], "r");
	if (f) {
		rate = read_rate(f);
		fclose(f);
	}
	rc = pid < 0 ? cli_error(CLI_ENVIRONMENT, "fork: %s", strerror(errno)) : bench_wait(pid, NULL, NULL, &status, &run->cpu);
	if (rc)
		return rc;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		return XFER_PERFTEST_LATE;
	if (status || rate <= 0)
		return cli_error(CLI_ENVIRONMENT, PROGRAM " has failed (status %#x): look at the UCX_ variables of the environment", (unsigned)status);
	run->seconds = (double)run->bytes / (rate * 1048576);
	run->phase_cpu = run->cpu * (double)blocks / (double)(blocks + warm_blocks);
	return CLI_OK;
}

int xfer_perftest_run(const char *op, uint64_t total, uint64_t block, uint32_t depth, struct bench_run *run)
{
	unsigned port = free_port();
	pid_t server;
	int rc;

	*run = (struct bench_run){.bytes = total / block * block};
	server = start_server(port);
	if (server < 0)
		return CLI_ENVIRONMENT;
	rc = run_client(port, op, block, depth, run);
	if (rc)
		kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	return rc;
}
