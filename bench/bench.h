/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench`: what its parts share - runs in child processes, and the statistics of pairs.
 *
 * Every measured run is a process of its own. So wait4 accounts for all CPU time that the run caused, threads and
 * io_uring workers included, for the store and for fio alike.
 */
#ifndef TENUTO_BENCH_H
#define TENUTO_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../cli/cli.h"

/* One run. */
struct bench_run {
	uint64_t bytes;
	double seconds;	  /* of the I/O phase alone, with the final sync of writes */
	double phase_cpu; /* CPU seconds of the I/O phase, 0 if not known */
	double cpu;	  /* CPU seconds of the whole process, from wait4 */
	int rc;		  /* exit code */
	char why[512];
};

enum bench_op { BENCH_READ, BENCH_WRITE };

/* A job for both sides. */
struct bench_job {
	const char *dir;
	enum bench_op op;
	uint64_t object_bytes;
	uint32_t objects; /* per block, BENCH_OBJECTS_MAX at most */
	uint64_t total_bytes;
	uint32_t depth;
	uint64_t fio_bytes; /* size of fio's requests */
	uint32_t fio_depth;
	uint64_t seed;	/* differs from run to run */
	bool verify;	/* whether the store makes and compares checksums */
	uint32_t workers; /* threads that make checksums; 0: the default */
	const char *io_engine;
};

#define BENCH_OBJECTS_MAX 256u

/* Called a few times per second with the result that a child shares, as far as it is filled. */
struct bench_watch {
	void (*look)(void *arg, const void *result);
	void *arg;
};

/*
 * Waits for a child of this process. An interrupt kills the child: its files are removed anyway.
 * CLI_OK, or the exit code after a message on stderr; *status and *cpu (seconds) as of wait4.
 * @watch: NULL: none
 */
int bench_wait(pid_t pid, const struct bench_watch *watch, const void *result, int *status, double *cpu);
/* In PATH. */
bool bench_program_exists(const char *name);
/* Call it in a new child: the child then does not outlive its parent. */
void bench_die_with_parent(void);
/*
 * Runs fn in a child with a copy of *result, which comes back as the child left it; *cpu: seconds of the whole process.
 * CLI_OK, or the exit code after a message on stderr.
 */
int bench_fork(void (*fn)(const void *job, void *result), const void *job, void *result, size_t bytes,
	       const struct bench_watch *watch, double *cpu);
/* Runs fn in a child; the result comes back through shared memory. CLI_OK, or the exit code after a message on stderr. */
int bench_child(void (*fn)(const struct bench_job *job, struct bench_run *run), const struct bench_job *job,
		struct bench_run *run);

/* The store's side, in dir/store: fill all slots once; forget everything; save; load what was saved last. */
void store_fill(const struct bench_job *job, struct bench_run *run);
void store_forget(const struct bench_job *job, struct bench_run *run);
void store_transfer(const struct bench_job *job, struct bench_run *run);

/* fio's side, with one file dir/fio.dat. */
int fio_run(const struct bench_job *job, struct bench_run *run);

/* Median; n > 0, v is sorted afterwards. */
double bench_median(double *v, size_t n);
/*
 * Distribution-free interval of the median from order statistics (binomial), the narrowest symmetric one that
 * covers at least 95 %; for fewer than 6 values the whole range. v sorted.
 */
void bench_median_interval(const double *v, size_t n, double *low, double *high);

int cmd_bench_store(int argc, char **argv);
int cmd_bench_match(int argc, char **argv);
int cmd_bench_shares(int argc, char **argv);
int cmd_bench_mix(int argc, char **argv);
int cmd_bench_pipeline(int argc, char **argv);
int cmd_bench_submit(int argc, char **argv);
int cmd_bench_layers(int argc, char **argv);
int cmd_bench_session(int argc, char **argv);
int cmd_bench_device(int argc, char **argv);
int cmd_bench_heap(int argc, char **argv);
int cmd_bench_nvme(int argc, char **argv);
int cmd_bench_xfer(int argc, char **argv);

#endif
