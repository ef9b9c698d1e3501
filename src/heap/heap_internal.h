/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process's part of a heap, and what the processes say to each other: a request and its answer, by a Unix socket of the heap's name, in a directory
 * of the user alone. Beside it lies a file that the master has locked. So the kernel sees to it that there is one master, and ends the lock when it dies.
 * A forked child gets neither sockets nor lock: with them it would seem that its dead parent lives.
 */
#ifndef TN_HEAP_HEAP_INTERNAL_H
#define TN_HEAP_HEAP_INTERNAL_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include "heap/master.h"
#include "heap/on_device.h"

#define TN_HEAP_WIRE_MAGIC UINT64_C(0x3152575048544e54) /* "TNTHPWR1" */

enum tn_heap_op { TN_HEAP_JOIN = 1, TN_HEAP_OPEN, TN_HEAP_REMOVE, TN_HEAP_EVICT, TN_HEAP_HEAR };

/* For how long a thread looks for what the master is about to do, before it sleeps. */
#define TN_HEAP_SPIN_NS 100000u

struct tn_heap_ask {
	uint64_t magic;
	uint64_t id;	/* of the heap that this process has; of a JOIN 0 */
	uint64_t start; /* of this process: its pid may have been another's when it connected */
	uint32_t op;	/* enum tn_heap_op */
	uint32_t ranks;
	uint32_t rank; /* who asks */
	uint32_t percent;
	struct tn_heap_want want;
	struct tn_heap_token token; /* of a JOIN */
};

/* To a JOIN with the descriptors of the memory (segment.h), as far as the rights go. */
struct tn_heap_told {
	uint64_t magic;
	int32_t status;
	uint32_t count;
	struct tn_heap_rights rights; /* to a JOIN */
	struct tn_heap_plan plan;
	char text[256];
};

/* What is sent of an answer: without the text, if nothing failed. */
static inline size_t tn_heap_told_bytes(const struct tn_heap_told *told)
{
	return told->status ? sizeof(*told) : offsetof(struct tn_heap_told, text);
}

struct tn_heap {
	struct tn_heap_memory memory;
	struct tn_heap_on_device device;
	uint32_t ranks, rank;
	uint64_t timeout_ns;
	struct tn_heap_token token;
	uint64_t process; /* that has it mapped */
	uint64_t start;	  /* of that process, as tn_heap_process_start has it */
	char name[TN_HEAP_NAME_MAX + 1];
	pthread_mutex_t lock; /* of the two below: one request at a time */
	int sock;	      /* to the master; -1 */
	struct tn_fork_fd forked; /* of that */
	struct tn_heap_server *server; /* this process is the master */
};

/* ---- what reading and writing share (heap.c) -------------------------------------------------------------------- */

/* The slot that a plan or a location names; its number. */
int tn_heap_slot_at_offset(struct tn_heap *heap, uint32_t rank, uint64_t header_off, uint32_t *out);
/* Payload that lies within the heap; else NULL. */
unsigned char *tn_heap_payload(struct tn_heap *heap, uint32_t rank, uint64_t offset, uint64_t bytes);
void tn_heap_count_pages(struct tn_heap *heap, uint64_t pages, uint64_t began_ns);

/* ---- both ends (wire.c) ----------------------------------------------------------------------------------------- */

/*
 * The directory of all heaps of this user: $XDG_RUNTIME_DIR/tenuto-heap-UID, or below /tmp. Is made if it is not there. 0 and a descriptor; -EACCES: another
 * user may write there.
 */
int tn_heap_directory_open(int *out);
/* The address of a heap's socket in that directory. It is valid while the descriptor is open. */
socklen_t tn_heap_address(int directory, const char *name, struct sockaddr_un *out);
/* Who is at the other end: 0, -EACCES (another user). */
int tn_heap_peer(int sock, pid_t *pid);
/* When a process was started: with its number that names it. 0, or why it could not be read, which need not mean that it is dead. */
int tn_heap_process_start(pid_t pid, uint64_t *out);

/* ---- the master's seat (seat.c) --------------------------------------------------------------------------------- */

struct tn_heap_seat {
	struct tn_fork_fd forked_sock, forked_lock;
	int directory, lock, sock; /* -1: none */
	bool locked;
};

/* Sets all of *seat, also if it fails: tn_heap_seat_leave must follow. 0, -EBUSY (there is a master), -ETIMEDOUT (somebody has the
 * lock and does not listen), and the errors of files and sockets. */
int tn_heap_seat_take(struct tn_heap_seat *seat, const char *heap, uint64_t timeout_ns);
/* The name is free afterwards. */
void tn_heap_seat_leave(struct tn_heap_seat *seat, const char *heap);

/* ---- serving (server.c) ----------------------------------------------------------------------------------------- */

/* Becomes the master of memory that this process has mapped. 0, -EBUSY (there is one), -ETIMEDOUT, -ENOMEM. */
int tn_heap_serve(struct tn_heap *heap, struct tn_heap_server **out);
/* The socket's name is free afterwards. */
void tn_heap_serve_end(struct tn_heap_server *s);
/* Lets a process join as @rank. */
void tn_heap_grant(struct tn_heap_server *s, uint32_t rank, const struct tn_heap_rights *rights, const struct tn_heap_token *token);
/* A request of this process. */
void tn_heap_answer(struct tn_heap_server *s, const struct tn_heap_ask *ask, struct tn_heap_told *told);

/* ---- asking (ask.c) --------------------------------------------------------------------------------------------- */

/* Joins: the heap's memory. Waits for a master. 0, and the errors of tn_heap_create. */
int tn_heap_join(struct tn_heap *heap);
/* Any thread. The errors of the public calls, and of the answer. */
int tn_heap_request(struct tn_heap *heap, struct tn_heap_ask *ask, struct tn_heap_told *told);
/* Closes the socket to the master, if there is one. */
void tn_heap_hang_up(struct tn_heap *heap);

#endif
