/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test suite of the I/O contract (io/io.h), driven by a table of engines: each rule is a test, and
 * each test runs on each engine and directory. io_test.c has the table of the real engines; a simulated
 * disk and the paced wrapper bring their own.
 *
 * io_contract.c: transfers, completions, waking. io_contract_files.c: files, locks, errors of opening.
 */
#ifndef TN_IOENGINE_IO_CONTRACT_H
#define TN_IOENGINE_IO_CONTRACT_H

#include "base/log.h"
#include "base/rng.h"
#include "io/io.h"
#include "tn_test.h"

#define TN_CONTRACT_THREADS 1u /* wake may come from other threads, and time passes by itself */
#define TN_CONTRACT_FILES 2u   /* files are real ones of this machine; processes can share them */
#define TN_CONTRACT_EXACT 4u   /* submit takes as many requests as the depth allows */

struct tn_contract_engine {
	const char *name;
	int (*create)(uint32_t depth, const struct tn_log *log, struct tn_io **out);
	unsigned has; /* TN_CONTRACT_* */
	/* Loses what was not synced, as a power cut does; the files are closed. NULL: the disk cannot do that. */
	void (*crash)(struct tn_io *io);
};

/* One engine in one directory, and what a test works with. */
struct tn_contract {
	const struct tn_contract_engine *engine;
	const char *dir;
	struct tn_log log;
	struct tn_rng rng;
	struct tn_io *io;
	uint32_t file;
	struct tn_io_stat st;
	char path[256];
	char last_line[256]; /* the last line that was logged */
};

/* Appends the tests of one engine in one directory to tests; the new number of them. */
size_t tn_contract_add(struct CMUnitTest *tests, size_t n, size_t max, const struct tn_contract_engine *engine,
		       const char *dir);
size_t tn_contract_add_files(struct CMUnitTest *tests, size_t n, size_t max, const struct tn_contract_engine *engine,
			     const char *dir);

/* Runs the whole suite of these engines on tmpfs and on disk (TMPDIR, else /var/tmp). Returns what main returns. */
int tn_contract_main(const char *name, const struct tn_contract_engine *engines, size_t count);

/* ---- for the tests ------------------------------------------------------------------------------ */

int tn_contract_setup(void **state);
int tn_contract_teardown(void **state);
size_t tn_contract_append(struct CMUnitTest *tests, size_t n, size_t max, const struct tn_contract_engine *engine,
			  const char *dir, const char *name, CMUnitTestFunction f);

/* Zeroed memory at a page boundary. */
void *tn_contract_memory(size_t bytes);
/* A request over one piece of memory. */
struct tn_io_req tn_contract_req(const struct tn_contract *c, enum tn_io_op op, uint64_t offset, struct iovec *iov,
				 uint32_t iov_count);
/* Submits them all and polls until all are back, each exactly once. */
void tn_contract_run_all(struct tn_contract *c, struct tn_io_req *reqs, unsigned n);
/* One request over one piece: its status. */
int tn_contract_do(struct tn_contract *c, enum tn_io_op op, uint64_t offset, void *mem, size_t bytes);
uint64_t tn_contract_now(void);

#endif
