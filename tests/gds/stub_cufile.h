/* SPDX-License-Identifier: Apache-2.0 */
/* A libcufile.so.0 over POSIX for tests: what it is told to do wrong, and what it has counted. */
#ifndef TN_TEST_STUB_CUFILE_H
#define TN_TEST_STUB_CUFILE_H

#include <stdint.h>

enum stub_call {
	STUB_OPEN,
	STUB_PROPERTIES,
	STUB_REGISTER,
	STUB_READ,  /* of each piece, whoever asked for it */
	STUB_WRITE, /* likewise */
	STUB_BATCH_SET_UP,
	STUB_BATCH_SUBMIT,
	STUB_BATCH_STATUS,
	STUB_READ_ASYNC,
	STUB_WRITE_ASYNC,
	STUB_CALLS,
};

/* All members are read and written with __atomic_*. */
struct stub_cufile {
	int fail[STUB_CALLS];  /* the next call fails with this number of cuFile; -n: read and write return -1 with errno n */
	int shorter;	       /* the next transfer moves so many bytes less */
	int hold_open;	       /* cuFileDriverOpen does not return while this is set */
	int hold;	       /* nor does a transfer begin */
	int held;	       /* transfers that wait for that */
	int calls[STUB_CALLS]; /* how often each was called */
	int registered;	       /* handles that are registered now */
	int batches;	       /* that are set up now */
	int module_major;      /* what the properties say */
	unsigned feature_flags;
	void *(*bytes_of)(const void *address); /* where the process reaches the bytes of an address of a device; NULL: as libtenuto_soft.so says */
};

/* The stub exports it under this name. */
extern struct stub_cufile stub_cufile;

#endif
