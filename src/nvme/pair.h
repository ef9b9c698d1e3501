/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pair of queues with what is under way on it: who has which id, a page for each command's list, deadlines, aborts and resets.
 *
 * A command that is not answered in time is aborted (Base 5.1); if it has not ended in the same time again, whatever the controller said to that, the controller
 * is reset, and everything that was under way and not answered fails (Base 3.7.2). Until then its id and its list stay taken, and the memory that it names is
 * the controller's: a late answer writes nothing that somebody else has. If not even a reset ends it, commands under way stay so, and the reset is tried
 * again every second, for a minute; then the controller's way to memory is cut, and it is as gone as one that was pulled. A controller that is gone is cut off at
 * once, because it may come back, and everything fails.
 *
 * A pair's thread makes all calls. What a command is for is the user's business, by the index of its id.
 */
#ifndef TN_NVME_PAIR_H
#define TN_NVME_PAIR_H

#include "nvme/controller.h"

#define TN_NVME_PIECES 256u /* of one command: a page of SGL descriptors */

enum tn_nvme_state { TN_NVME_FREE, TN_NVME_SENT, TN_NVME_ABORTING };

/* A command that has an id. */
struct tn_nvme_slot {
	uint64_t since_ns, block;
	uint32_t bytes;
	uint16_t id;
	uint8_t state, op;
};

/* Counters since init. */
struct tn_nvme_pair_stats {
	uint64_t commands;
	uint64_t bells;	  /* doorbells of the submission queue */
	uint64_t late;	  /* commands that were not answered in time */
	uint64_t aborted;
	uint64_t resets;  /* that this pair asked for */
	uint64_t strange; /* completions of no command under way */
};

/**
 * struct tn_nvme_pair_opts
 * @nvme:    outlives the pair
 * @port:    of @nvme
 * @queue:   which pair
 * @command_ns: by when a command has to be answered; 0: 5 s
 * @ended:   called when a command is over, and its memory the user's again. status: 0; above 0 what the controller said; -EIO: there
 *           was a reset, -ENODEV: the controller is gone. Sends nothing.
 */
struct tn_nvme_pair_opts {
	struct tn_nvme *nvme;
	const struct tn_nvme_port *port;
	uint32_t queue;
	uint64_t command_ns;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
	void (*ended)(void *arg, uint32_t index, int status);
	void *arg;
};

struct tn_nvme_pair {
	struct tn_nvme_pair_opts o;
	struct tn_nvme_queue *queue;
	struct tn_nvme_pair_stats stats;
	struct tn_nvme_slot *slot; /* by the id's index */
	uint32_t nslots, ncommands; /* ncommands: under way */
	uint32_t generation;	    /* of the controller, in which the pair was made */
	bool sgl, gone;
	unsigned char *lists; /* a page per slot */
	uint64_t lists_bus, lists_bytes;
	struct tn_nvme_piece scratch[TN_NVME_PIECES];
	uint64_t late_next_ns, reset_next_ns;
};

/* 0, -EINVAL (no such pair), -ENOMEM, or as tn_nvme_renew. */
int tn_nvme_pair_init(struct tn_nvme_pair *p, const struct tn_nvme_pair_opts *opts);
/* Nothing is under way. Fine after an init that failed, and for zeroed memory. */
void tn_nvme_pair_fini(struct tn_nvme_pair *p);

/* An id is free, and the controller in order: the next send does what it is asked to. */
static inline bool tn_nvme_pair_ready(const struct tn_nvme_pair *p)
{
	return p->queue->nfree && !p->reset_next_ns && !p->gone;
}

/* Must be polled, though nothing wakes its user. */
static inline bool tn_nvme_pair_busy(const struct tn_nvme_pair *p)
{
	return p->ncommands || (p->reset_next_ns && !p->gone);
}

/* The list of the command that is sent next lies in the page of the id that is taken next: the top of the stack. It is ready. */
static inline uint64_t tn_nvme_pair_list_at(const struct tn_nvme_pair *p)
{
	return (uint64_t)tn_nvme_queue_index(p->queue, p->queue->free[p->queue->nfree - 1]) * TN_NVME_PAGE;
}

static inline struct tn_nvme_list tn_nvme_pair_list(const struct tn_nvme_pair *p)
{
	uint64_t at = tn_nvme_pair_list_at(p);

	return (struct tn_nvme_list){p->lists + at, p->lists_bus + at, TN_NVME_PAGE};
}

/* Where up to TN_NVME_PIECES pieces of that command are best written, for tn_nvme_pair_pieces: an SGL's are in place then. It is ready. */
static inline struct tn_nvme_piece *tn_nvme_pair_scratch(struct tn_nvme_pair *p)
{
	return p->sgl ? (struct tn_nvme_piece *)(void *)(p->lists + tn_nvme_pair_list_at(p)) : p->scratch;
}

/* The command that is sent next, to be written whole but for its id: it lies in the queue. It is ready. */
static inline struct tn_nvme_command *tn_nvme_pair_command(struct tn_nvme_pair *p)
{
	return tn_nvme_queue_entry(p->queue);
}

/* Names the memory of the command that is sent next, wherever it is built. It is ready. 0, or as tn_nvme_set_sgl and tn_nvme_set_prps. */
int tn_nvme_pair_pieces(struct tn_nvme_pair *p, struct tn_nvme_command *c, const struct tn_nvme_piece *piece, uint32_t n);
/* Sends tn_nvme_pair_command; block and bytes are for messages. The index of its id. */
uint32_t tn_nvme_pair_send(struct tn_nvme_pair *p, uint64_t block, uint32_t bytes, uint64_t now_ns);
/* Looks at completions and at what is late; whether anything ended. Waits for aborts and resets. */
bool tn_nvme_pair_poll(struct tn_nvme_pair *p);
/*
 * Waits until what was sent is over, and sends nothing: for a while as poll does at most, and not for what is under way when the controller
 * could not be reset.
 */
void tn_nvme_pair_drain(struct tn_nvme_pair *p);
/* Tells the controller of what was sent. */
void tn_nvme_pair_ring(struct tn_nvme_pair *p);
/* What a status that ended said means; logged if it is an error. wished: its user had asked for an end. */
int tn_nvme_pair_errno(const struct tn_nvme_pair *p, uint32_t index, int status, bool wished);

#endif
