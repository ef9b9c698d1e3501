/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio as the yardstick: the same directory, total and final fsync; request size and queue depth as the job says.
 *
 * fio's own runtime (its I/O with the fsync at the end, without start-up and lay-out) is the time; the CPU is
 * that of the whole process, since fio's report leaves kernel workers out.
 */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void exec_fio(const struct bench_job *job)
{
	char file[4096], out[4096], bs[32], size[32], depth[32];
	const char *const args[] = {
		"fio", "--name=tenuto", file, out, bs, size, depth,
		job->op == BENCH_READ ? "--rw=read" : "--rw=write",
		!strcmp(job->io_engine, "posix") ? "--ioengine=libaio" : "--ioengine=io_uring",
		!strcmp(job->io_engine, "posix") ? "--group_reporting=1" : "--registerfiles=1",
		"--direct=1", "--end_fsync=1", "--thread", "--overwrite=1", "--output-format=json", NULL,
	};
	union {
		const char *const *in;
		char *const *out;
	} argv = {.in = args};
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	snprintf(file, sizeof(file), "--filename=%s/fio.dat", job->dir);
	snprintf(out, sizeof(out), "--output=%s/fio.json", job->dir);
	snprintf(bs, sizeof(bs), "--bs=%" PRIu64, job->fio_bytes);
	snprintf(size, sizeof(size), "--size=%" PRIu64, job->total_bytes);
	snprintf(depth, sizeof(depth), "--iodepth=%u", job->fio_depth);
	/* glibc then asks for transparent hugepages, as our side does for its pages. */
	setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
	dup2(null, 1);
	dup2(null, 2);
	execvp("fio", argv.out);
	_exit(127);
}

static int parse(const struct bench_job *job, struct bench_run *run)
{
	char path[4096];
	json_error_t e;
	json_t *root, *side;
	double ms;

	snprintf(path, sizeof(path), "%s/fio.json", job->dir);
	root = json_load_file(path, 0, &e);
	side = json_object_get(json_array_get(json_object_get(root, "jobs"), 0), job->op == BENCH_READ ? "read" : "write");
	run->bytes = (uint64_t)json_integer_value(json_object_get(side, "io_bytes"));
	ms = json_number_value(json_object_get(side, "runtime"));
	json_decref(root);
	unlink(path);
	if (!run->bytes || !(ms > 0))
		return cli_error(CLI_ENVIRONMENT, "fio's report has no figures");
	run->seconds = ms * 1e-3;
	return CLI_OK;
}

int fio_run(const struct bench_job *job, struct bench_run *run)
{
	int status, rc;
	pid_t pid;

	memset(run, 0, sizeof(*run));
	fflush(NULL);
	pid = fork();
	if (!pid) {
		bench_die_with_parent();
		exec_fio(job);
	}
	rc = pid < 0 ? cli_error(CLI_ENVIRONMENT, "fork: %s", strerror(errno)) : bench_wait(pid, NULL, NULL, &status, &run->cpu);
	if (rc)
		return rc;
	if (status)
		return cli_error(CLI_ENVIRONMENT, "fio failed (status %#x); try it by hand in %s", (unsigned)status,
				 job->dir);
	return parse(job, run);
}
