/* SPDX-License-Identifier: Apache-2.0 */
/* Runs in child processes with their whole CPU time, and medians with their intervals. */
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOK_MS 200

int bench_wait(pid_t pid, const struct bench_watch *watch, const void *result, int *status, double *cpu)
{
	/* Without a pidfd (before Linux 5.3) poll sleeps until its time-out. */
	struct pollfd end = {.fd = pidfd_open(pid, 0), .events = POLLIN};
	bool killed = false;
	struct rusage u;
	pid_t ended;

	do {
		if (cli_interrupted() && !killed)
			killed = !kill(pid, SIGKILL);
		else if (watch)
			watch->look(watch->arg, result);
		poll(&end, 1, LOOK_MS); /* a signal ends the sleep */
		ended = wait4(pid, status, WNOHANG, &u);
	} while (!ended || (ended < 0 && errno == EINTR));
	if (end.fd >= 0)
		close(end.fd);
	if (killed)
		return cli_error(CLI_ENVIRONMENT, "interrupted");
	if (ended < 0)
		return cli_error(CLI_ENVIRONMENT, "wait: %s", strerror(errno));
	*cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
	return CLI_OK;
}

bool bench_program_exists(const char *name)
{
	const char *path = getenv("PATH");
	char file[4096];

	while (path && *path) {
		int len = (int)strcspn(path, ":");

		snprintf(file, sizeof(file), "%.*s/%s", len, path, name);
		if (!access(file, X_OK))
			return true;
		path += len + (path[len] == ':');
	}
	return false;
}

void bench_die_with_parent(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

int bench_fork(void (*fn)(const void *job, void *result), const void *job, void *result, size_t bytes,
	       const struct bench_watch *watch, double *cpu)
{
	void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status, rc;
	pid_t pid;

	if (shared == MAP_FAILED)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	memcpy(shared, result, bytes);
	fflush(NULL);
	pid = fork();
	if (!pid) {
		bench_die_with_parent();
		fn(job, shared);
		_exit(0);
	}
	rc = pid < 0 ? cli_error(CLI_ENVIRONMENT, "fork: %s", strerror(errno)) : bench_wait(pid, watch, shared, &status, cpu);
	memcpy(result, shared, bytes);
	munmap(shared, bytes);
	if (rc)
		return rc;
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return cli_error(CLI_PROBLEM, "the run died (status %#x)", (unsigned)status);
	return CLI_OK;
}

struct store_call {
	void (*fn)(const struct bench_job *job, struct bench_run *run);
	const struct bench_job *job;
};

static void call_store(const void *arg, void *result)
{
	const struct store_call *c = arg;

	c->fn(c->job, result);
}

int bench_child(void (*fn)(const struct bench_job *job, struct bench_run *run), const struct bench_job *job,
		struct bench_run *run)
{
	struct store_call call = {fn, job};
	double cpu;
	int rc;

	*run = (struct bench_run){0};
	rc = bench_fork(call_store, &call, run, sizeof(*run), NULL, &cpu);
	if (rc)
		return rc;
	run->cpu = cpu;
	if (run->rc)
		return cli_error((enum cli_exit)run->rc, "%s", run->why);
	return CLI_OK;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

void bench_median_interval(const double *v, size_t n, double *low, double *high)
{
	double outside = 0, p = pow(0.5, (double)n); /* P(exactly k of n lie below the median) */
	size_t k = 0;

	/* Leaving out k values at either end loses 2 * P(at most k - 1 lie below). */
	while (k < n / 2) {
		outside += 2 * p;
		if (outside > 0.05)
			break;
		p = p * (double)(n - k) / (double)(k + 1);
		k++;
	}
	k = k ? k - 1 : 0;
	*low = v[k];
	*high = v[n - 1 - k];
}
