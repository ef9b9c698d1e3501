/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libucp.so.0 for tests: what it is told to do wrong, and what it has counted.
 *
 * Workers are of one process, so that sanitizers see both sides: an operation is a copy between two addresses of it. What real UCX would crash on ends the program:
 * calls about a closed endpoint, bytes outside of a registration, memory that is unmapped while an operation uses it.
 */
#ifndef TN_TEST_STUB_UCP_H
#define TN_TEST_STUB_UCP_H

#include <stdbool.h>
#include <stdint.h>
#include <ucp/api/ucp.h>

/* All members are read and written with __atomic_*. */
struct stub_ucp {
	const char *fail;  /* this function fails; "operation", "flush": it ends with an error, and half of its bytes have moved. NULL: none */
	uint32_t fail_skip; /* so many calls of that function succeed before */
	uint32_t late;	    /* calls of progress until an operation ends; 0: it ends at once */
	uint32_t reversed;  /* the operation that was begun last ends first */
	uint32_t stopped;   /* operations end when their endpoint is closed, as with a peer that is stopped */
	uint32_t lost;	    /* puts end at once and move nothing; their flush ends with the endpoint, and says UCS_OK, as UCX does for puts that it has sent as messages */
	uint32_t broken;    /* an endpoint fails when it has begun an operation */
	uint32_t outlive;   /* calls of progress that operations last after their endpoint was closed; 0: they end within the close */
	uint32_t address_bytes; /* of a worker */
	uint32_t minor;	    /* the version is 1.minor */
	int objects;	    /* that have not been given back */
	uint32_t in_flight; /* operations */
	uint32_t closed;    /* endpoints that were closed */
	char devices[32];   /* UCX_NET_DEVICES as it was set; read without a call under way */
};

/* The library exports it under this name. */
extern struct stub_ucp stub_ucp;

#define STUB_GET(member) __atomic_load_n(&(member), __ATOMIC_ACQUIRE)
#define STUB_SET(member, value) __atomic_store_n(&(member), (value), __ATOMIC_RELEASE)
#define STUB_ADD(member, value) __atomic_add_fetch(&(member), (value), __ATOMIC_ACQ_REL)

/* ---- between the parts of the library ---------------------------------------------------------------------------------- */

struct ucp_mem {
	unsigned char *address;
	size_t bytes;
	int users; /* operations in flight */
};

struct stub_operation;

struct ucp_worker {
	int event;
	uint64_t turn; /* calls of progress */
	struct ucp_ep *endpoints;
	struct stub_operation *operations; /* in flight, the first one first */
};

bool stub_fails(const char *function);
/* calloc, and counted; stub_free gives it back. */
void *stub_new(size_t bytes);
void stub_free(void *object);
/* Ends the program. */
__attribute__((noreturn)) void stub_misused(const char *how);
/* Frees the worker's endpoints. */
void stub_worker_end(ucp_worker_h worker);
/* Whether an operation ends in the next calls of progress. */
bool stub_worker_busy(ucp_worker_h worker);
/* One call of progress: how many operations ended. */
unsigned stub_worker_turn(ucp_worker_h worker);

#endif
