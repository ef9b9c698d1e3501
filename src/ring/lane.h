/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: what one thread of an executor steps, a state machine over one transport.
 *
 * A *run* is an IOCB that was taken, its IOCTXs sorted by place. A *group* is what is moved together: neighbours on disk up to 1 MiB,
 * or one object that is larger, either straight between the disk and their memory or through a bounce buffer; or some objects that are
 * copied or checked. A *piece* is one transfer of a group, which the transport turns into a request of the I/O contract (requests.c) or
 * into commands of a controller (commands.c); what a device's window (window.h) does not take yet waits in
 * its run, so that what comes later and is wanted sooner need not wait behind it. A *job* is the part of a group's work that needs
 * no device: checksums and copies. A read's job follows its pieces, a write's job fills the bounce buffer before its pieces, or sums the
 * objects beside them. When both have ended each IOCTX has its status, and a run without open IOCTXs is finished.
 *
 * Headers and IOCTXs of IOCBs lie in memory that others write, perhaps while an executor reads it: each is copied once,
 * when the IOCB is taken or sorted, and only the copy is checked and used.
 *
 * One thread makes all calls. Nothing allocates after create but tn_lane_make_bounces.
 */
#ifndef TN_RING_LANE_H
#define TN_RING_LANE_H

#include <pthread.h>

#include "device/copier.h"
#include "device/direct.h"
#include "device/pins.h"
#include "layout/layout.h"
#include "ring/executor.h"
#include "ring/window.h"

#define TN_LANE_MEMBERS_MAX 256u
/*
 * Most groups have few members, and most pieces few pieces of memory. These lie close together: a layer has hundreds of groups, and each page of
 * memory that they are spread over costs a translation.
 */
#define TN_LANE_MEMBERS_FEW 4u
#define TN_LANE_IOVS_FEW 64u
#define TN_LANE_BOUNCES 16u
#define TN_LANE_BOUNCE_BYTES (1u << 20) /* the least of one; what takes the bytes of a request that is bounced, too */
/* Classes never run out: each one from the second on is a power of two. */
#define TN_LANE_BOUNCE_CLASSES 8u
_Static_assert(TN_LANE_BOUNCE_BYTES << (TN_LANE_BOUNCE_CLASSES - 1) == TN_RING_OBJECT_MAX, "the last class takes the largest objects");
/* Most pieces of memory in a request that more than one object went into; the kernel takes no more in one call. */
#define TN_LANE_IOVS_MERGED 1024u
/* Bytes of reads that a lane without helpers checks before it looks for what else has ended, or is to be sent. */
#define TN_LANE_WORK_BYTES (256u << 10)
/* IOCTXs that wait in one of several lanes: with so many it leaves the next IOCB to the others. */
#define TN_LANE_BACKLOG 8u

/*
 * One end of a ring's queues, for the lanes of one executor, which use it one at a time. What a lane does not want to take yet waits here
 * for another one, or for its cancel.
 */
struct tn_lane_intake {
	struct tn_ring *ring;
	struct tn_ring_view view; /* the executor's own */
	pthread_mutex_t lock;
	uint32_t *ids, count; /* under lock; the count is looked at without */
};

struct tn_lane_piece;
struct tn_lane_transport;

/*
 * How pieces get to devices and back: I/O engines (requests.c), queues of NVMe controllers (commands.c). Each lane of an executor has a
 * transport of its own, and makes all calls on the lane's thread but wake. Pieces that go the direct way (direct.c) pass it by.
 */
struct tn_lane_transport_ops {
	/*
	 * Makes the transport of the executor's lane of that number, with all members below but ops. places: as given to tn_executor_create, which
	 * has not returned yet. 0 and *out, or -errno.
	 */
	int (*make)(const struct tn_executor_opts *opts, const void *places, uint32_t number, struct tn_lane_transport **out);
	/* No piece is under way, and no bounce buffer is mapped. */
	void (*unmake)(struct tn_lane_transport *transport);
	/* Takes the first k of n pieces and returns k. Each comes back by tn_lane_piece_over, not from within this call. */
	uint32_t (*send)(struct tn_lane_transport *transport, struct tn_lane_piece *const *piece, uint32_t n);
	/*
	 * Ends the pieces that are over. If none is, waits for one up to wait_ns, or for a wake; may return early. Any poll may consume a wake: the lane
	 * looks at its ring after each. True: something happened.
	 */
	bool (*poll)(struct tn_lane_transport *transport, uint64_t wait_ns);
	/* Whether something ends that wakes nobody. An owner who steps the lane steps it again at once. */
	bool (*busy)(struct tn_lane_transport *transport);
	/* Any thread: lets a poll that waits return, or else the next one that would wait. */
	void (*wake)(struct tn_lane_transport *transport);
	/* Devices are to reach this memory, whole pages, until unmap. 0 or -errno. Called only if the transport maps. */
	int (*map)(struct tn_lane_transport *transport, void *memory, uint64_t bytes);
	/* As it was mapped; nothing happens if it was not. */
	void (*unmap)(struct tn_lane_transport *transport, void *memory, uint64_t bytes);
};

/* The first member of every transport. */
struct tn_lane_transport {
	const struct tn_lane_transport_ops *ops; /* set by the executor */
	bool maps;     /* has a use for map; ... */
	bool must_map; /* ... and devices reach no memory that is not mapped */
	uint32_t align[TN_RING_DEVICES_MAX]; /* by device: of offsets, lengths and memory */
};

struct tn_lane_opts {
	struct tn_pins *pins; /* or NULL */
	struct tn_direct *direct; /* or NULL: no piece goes the direct way */
	struct tn_lane_intake *intake;
	struct tn_lane_transport *transport;
	uint32_t ndevices; /* that the transport has */
	uint32_t depth;
	uint32_t backlog; /* takes no more IOCBs while so many IOCTXs wait; others may have them */
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	struct tn_exec *exec;
	void (*wake)(void *arg); /* as soon as IOCBs have ended; or NULL */
	void *wake_arg;
	tn_executor_observe observe;
	void *observe_arg;
};

/* The copy of an IOCTX. */
struct tn_lane_sorted {
	uint64_t place;
	uint32_t entry;
	uint16_t index;	    /* in the IOCB */
	bool taken;	    /* in a group, or finished */
	uint8_t alone : 1;  /* not to be merged: a merged request for it failed */
	uint8_t misfit : 1; /* its length was not that of the list's objects */
};

_Static_assert(sizeof(struct tn_lane_sorted) == 16 && TN_IOCB_IOCTXS_MAX <= UINT16_MAX, "four to a cache line");

struct tn_lane_run {
	uint32_t id;
	struct tn_iocb cb; /* as it was when it was taken */
	const struct tn_ring_list *list;
	const struct tn_ring_list *source; /* where checksums belong to, and the bytes of a COPY come from; else the list */
	const struct tn_mapping *memory;	/* the list's, ... */
	const struct tn_mapping *source_memory; /* ... and the source's */
	struct tn_copier *copier; /* of the device that has one of the two; NULL: of none */
	int32_t *statuses;
	uint64_t *sums;
	struct tn_lane_sorted *order; /* cb.count entries */
	uint32_t cursor;	      /* all before are taken */
	uint32_t waiting;	      /* not taken */
	uint32_t open;		      /* without a status */
	uint32_t request_bytes;	      /* most of one request */
	bool used, started;
	bool bounces; /* what is left goes by way of bounce buffers; not in cb, which jobs read */
	int32_t status;
	uint32_t failed, failures;
};

struct tn_lane_member {
	struct tn_lane_run *run;
	uint32_t at; /* in order */
	int32_t status;
};

struct tn_lane;

struct tn_lane_group {
	struct tn_job job;
	struct tn_lane *lane;
	struct tn_lane_group *next;
	struct tn_lane_member *member; /* few or many: TN_LANE_MEMBERS_MAX */
	struct tn_lane_member *many;
	uint32_t members;
	uint8_t op;
	bool working;	/* its job is out, or what a driver moves for it */
	bool worked;	/* a driver moves what the job has found good, or does all that there is to do: a copy within devices, or checksums; not what it is to work on */
	uint64_t place; /* of the first member */
	uint64_t bytes, next_byte;
	uint32_t iovs; /* direct: pieces of memory so far */
	uint32_t ios;
	int status;
	unsigned char *bounce;
	uint32_t bounce_class;
	struct tn_lane_held *held; /* of whose device's share it is; or NULL. The copier may be gone before the group is free */
	struct iovec *scratch;	   /* of the lane's thread; of the job while no request is out */
	struct iovec *job_scratch; /* of the job */
	struct tn_copying copying; /* a driver's, before the job or after it */
	struct tn_device_sum *sums; /* TN_LANE_MEMBERS_MAX: the driver's, of objects on a device */
	struct tn_lane_member few[TN_LANE_MEMBERS_FEW];
};

struct tn_lane_groups {
	struct tn_lane_group *first, *last;
};

struct tn_lane_piece {
	struct tn_lane_group *group;
	struct tn_lane_piece *next;
	struct iovec *iov; /* few or many: TN_OBJECT_IOVS_MAX */
	struct iovec *few, *many;
	uint32_t iov_count;
	uint32_t number; /* below the lane's depth: each transport has a record per piece */
	uint32_t length;
	uint64_t offset; /* bytes on the device */
};

/* Of a piece that goes the direct way. */
struct tn_lane_transfer {
	struct tn_device_file_transfer o;
	struct tn_lane *lane;
	struct tn_lane_piece *piece;
	struct tn_lane_transfer *next;
};

struct tn_lane_device {
	uint32_t align; /* of offsets, lengths and memory */
	struct tn_window window;
	uint64_t prompt_ns[TN_COPIERS_MAX + 1]; /* by copier's number, and last of host memory: when a request ended that took less than TN_COPIER_STANDS_NS */
	bool open; /* when the next run was chosen: takes one more request */
};

struct tn_lane_bounces {
	struct tn_pin pin;
	void *block;	       /* that was allocated; ... */
	unsigned char *memory; /* ... and its first whole page */
	size_t bytes_each;
	uint32_t free[TN_LANE_BOUNCES], nfree;
};

/* What groups of a device's memory have: no more than the device's share (device/copier.h). pieces: that go the direct way. */
struct tn_lane_held {
	uint32_t groups, pieces, bounces[TN_LANE_BOUNCE_CLASSES];
};

/* Whose turn it is. */
struct tn_lane_turns {
	uint64_t *served; /* by list: when it last had its turn */
	uint64_t turn;
	uint32_t list, left;
	uint32_t passed_over; /* groups that went since one of a lower priority did, which waits; ... */
	bool passes_over;     /* ... and whether the one chosen last is one more */
};

struct tn_lane {
	struct tn_lane_opts o;
	struct tn_lane_device device[TN_RING_DEVICES_MAX];
	struct tn_lane_run *runs;
	uint32_t nruns, used_runs;
	uint32_t ioctxs; /* most of one IOCB */
	uint32_t waiting; /* IOCTXs of all runs that are in no group, ... */
	uint32_t to_copy; /* ... and of them, those that copy or check */
	uint32_t layered;    /* runs of reads of which somebody waits for a part (not TN_IOCB_WHOLE); ... */
	uint64_t layered_ns; /* ... and when there last was one; 0: never */
	struct tn_lane_sorted *sorted, *sort_scratch;
	struct tn_lane_turns turns[2]; /* of runs that move bytes to or from a device, and of those that copy or check */
	struct tn_lane_group *groups, *free_groups;
	uint32_t ngroups, busy_groups;
	uint32_t copying; /* of them, those that copy or check: half of all at most, so that devices do not wait for CPUs; and one if any wants to */
	struct tn_lane_held held[TN_COPIERS_MAX]; /* by number of the copier */
	uint32_t device_pieces, device_bounces[TN_LANE_BOUNCE_CLASSES]; /* of all of them */
	struct tn_lane_groups moving;  /* whose bytes a driver moves */
	struct tn_lane_groups filled;  /* writes whose bounce buffer is filled; their requests are next */
	struct tn_lane_groups landed;  /* reads whose job is done on the spot, once the next requests are submitted; ... */
	struct tn_lane_groups summing; /* ... and writes, once their own are */
	struct tn_lane_member *members;
	struct tn_device_sum *sums;
	struct tn_lane_piece *pieces, *free_pieces;
	struct tn_lane_transfer *transfers; /* by piece; NULL: none goes the direct way */
	struct tn_lane_transfer *ended;	    /* shared: by threads of the plugin's */
	uint32_t direct_most; /* pieces of a device that go the direct way: as many as the plugin's threads have to do */
	struct iovec *iovs, *few_iovs;
	struct tn_lane_piece **queue; /* those that the transport has not taken */
	uint32_t queue_head, queue_count;
	uint32_t inflight;
	struct tn_lane_bounces bounces[TN_LANE_BOUNCE_CLASSES];
	uint32_t nbounces;
	bool starved; /* nothing was free for the next group of a device's: wait for one to end */
	struct tn_executor_stats stats; /* written by the owner, read by anyone */
	uint64_t told; /* IOCBs that had ended when the lane woke its executor's owner last */
};

/* 0, -EINVAL (no ring's memory), -ENOMEM. */
int tn_lane_intake_init(struct tn_lane_intake *in, struct tn_ring *ring, const struct tn_alloc *alloc);
void tn_lane_intake_fini(struct tn_lane_intake *in, const struct tn_alloc *alloc);

/* 0 and *out, or -ENOMEM. */
int tn_lane_create(const struct tn_lane_opts *opts, struct tn_lane **out);
/* Nothing is under way. NULL-safe. */
void tn_lane_destroy(struct tn_lane *lane);
/* For objects of this many bytes on disk; classes stay as long as the lane. 0 or -ENOMEM, or an error of the transport's map. */
int tn_lane_make_bounces(struct tn_lane *lane, uint32_t padded_bytes);
/* Takes, starts, submits; whether anything happened. Completions come through the requests' done. */
bool tn_lane_go(struct tn_lane *lane);
/* When it must go on though nothing wakes it: a run waits for an event, whose word may be written by a device. TN_FOREVER: never. */
uint64_t tn_lane_due(const struct tn_lane *lane, uint64_t now_ns);
/* Adds the lane's; any thread. */
void tn_lane_stats_add(const struct tn_lane *lane, struct tn_executor_stats *stats);

static inline bool tn_lane_copies(uint16_t op)
{
	return op == TN_IOCB_COPY || op == TN_IOCB_CHECK;
}

/* So many more IOCTXs of a run, or fewer, are in no group. */
static inline void tn_lane_wait(struct tn_lane *lane, struct tn_lane_run *run, int32_t n)
{
	run->waiting += (uint32_t)n;
	lane->waiting += (uint32_t)n;
	lane->to_copy += tn_lane_copies(run->cb.op) ? (uint32_t)n : 0;
}

/* Whether a group moves bytes between a file and memory of a device, which no CPU may touch, without a bounce buffer. */
static inline bool tn_lane_on_device(const struct tn_lane_group *g)
{
	return !g->bounce && g->member[0].run->memory->copier && !tn_lane_copies(g->op);
}

/*
 * Whether groups of the copier's device, or of host memory (NULL), may have one more bounce buffer of the class. A share stays with host memory, also when a
 * device comes while those before have what was their share then.
 */
static inline bool tn_lane_may_bounce(const struct tn_lane *lane, const struct tn_copier *copier, uint32_t bounce_class)
{
	uint32_t share = copier ? tn_copier_share(copier, TN_LANE_BOUNCES) : 0;

	return !copier || (lane->held[tn_copier_number(copier)].bounces[bounce_class] < share && lane->device_bounces[bounce_class] < TN_LANE_BOUNCES - share);
}

/* Likewise, one more piece that goes the direct way. */
static inline bool tn_lane_may_send(const struct tn_lane *lane, const struct tn_copier *copier)
{
	uint32_t share = tn_copier_share(copier, lane->o.depth), pieces = lane->held[tn_copier_number(copier)].pieces;

	return pieces < share && pieces < lane->direct_most && lane->device_pieces < lane->o.depth - share;
}

/* What a bounce buffer for objects of this many bytes has at least. */
static inline uint64_t tn_lane_bounce_bytes(uint32_t padded_bytes)
{
	return padded_bytes < TN_LANE_BOUNCE_BYTES ? TN_LANE_BOUNCE_BYTES : padded_bytes;
}

/* A piece's device, and whether it is read or written. */
static inline uint32_t tn_lane_device_of(const struct tn_lane_piece *p)
{
	return tn_ioctx_device(p->group->place);
}

static inline enum tn_io_op tn_lane_op_of(const struct tn_lane_piece *p)
{
	return p->group->op == TN_IOCB_READ ? TN_IO_READ : TN_IO_WRITE;
}

/* ---- for transports ------------------------------------------------------------------------------------------ */

/* 0 and *out; -EINVAL: options; -ENOMEM; or as the transport's make. */
int tn_executor_create(const struct tn_executor_opts *opts, const struct tn_lane_transport_ops *transport, const void *places,
		       struct tn_executor **out);
/* Has each lane do this in turn, on its thread and between two steps, until one fails: 0, or what that returned. The executor's owner. */
int tn_executor_ask(struct tn_executor *ex, int (*call)(struct tn_lane *lane, void *arg), void *arg);

/* ---- between lane.c, direct.c, group.c, run.c and object.c; each calls only those behind it --------------------- */

/* direct.c: takes pieces that tn_lane_on_device is true of. */
void tn_lane_direct_send(struct tn_lane *lane, struct tn_lane_piece *const *piece, uint32_t n);
/* Ends those that are over; whether there were any. */
bool tn_lane_direct_ended(struct tn_lane *lane);

/*
 * group.c: a piece that was sent is over. -EXDEV: the device cannot reach its memory, and nothing of the group's was moved or else all is moved
 * again: by way of a bounce buffer. issue_ns: when it went to the device.
 */
void tn_lane_piece_over(struct tn_lane_piece *p, int status, uint64_t issue_ns);

/* At once: behind the IOCB that ended there may be much to verify. */
static inline void tn_lane_tell_ended(struct tn_lane *lane)
{
	if (lane->stats.iocbs != lane->told && lane->o.wake)
		lane->o.wake(lane->o.wake_arg);
	lane->told = lane->stats.iocbs;
}

static inline void tn_lane_count(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

/* run.c: an IOCTX has its status. With the last one of its run the IOCB is finished. */
void tn_lane_member_done(struct tn_lane *lane, struct tn_lane_run *run, uint32_t at, int32_t status);
/*
 * Takes IOCBs until the lane's backlog is full; whether there were any. A single executor has no bound, so that its
 * backlog never keeps it from an urgent IOCB; of several executors each leaves work for the others.
 */
bool tn_lane_take_iocbs(struct tn_lane *lane);
/* Gives up the runs that were cancelled, and starts those whose event has come; whether there were any. */
bool tn_lane_poll_runs(struct tn_lane *lane);

/* The run whose turn it is, of those that copy or check, or of those whose device's window is open; or NULL. */
struct tn_lane_run *tn_lane_next_run(struct tn_lane *lane, bool copies, uint64_t now_ns);
/* The entry of `run` at this place that is free to be taken, or TN_RING_NO_INDEX; it is often the likely one. */
uint32_t tn_lane_find(const struct tn_lane_run *run, uint32_t likely, uint64_t place);

/* group.c: starts the run's next IOCTX and what lies behind it; false: nothing is free. */
bool tn_lane_group_start(struct tn_lane *lane, struct tn_lane_run *run, uint64_t now_ns);
/* Sends what became ready while nothing was free. */
void tn_lane_groups_send(struct tn_lane *lane, uint64_t now_ns);
/* Looks at what drivers move; whether any of it is over. */
bool tn_lane_groups_move(struct tn_lane *lane);
/* Does jobs that were left until requests are submitted: some of reads, and one of a write; whether there were any. */
bool tn_lane_groups_work(struct tn_lane *lane);

/* object.c: whether the memory of either side of the run is gone. */
bool tn_lane_run_is_lost(const struct tn_lane_run *run);
/* The pieces of memory of an object of the run's list, which was checked (tn_lane_check); how many. */
uint32_t tn_lane_object_iov(const struct tn_lane_run *run, uint32_t entry, struct iovec *iov);
/* Whether the run's entry needs no bounce buffer; and 0, or what is wrong with it. */
bool tn_lane_is_direct(const struct tn_lane *lane, const struct tn_lane_run *run, uint32_t at, struct iovec *scratch);
int tn_lane_check(const struct tn_lane *lane, const struct tn_lane_run *run, uint32_t at);
/* Whether a run that copies or checks does so by way of bounce buffers, because memory of a device is on one of its sides. */
bool tn_lane_copy_bounces(const struct tn_lane_run *run);
/*
 * A driver begins to bring what the group's job works on, from memory of its device (copying), or to do that job: checksums of what no CPU may touch.
 * False: neither is wanted.
 */
bool tn_lane_fetch(struct tn_lane_group *g);
/* Checksums that a driver has computed are there: each member gets its status. */
void tn_lane_compare(struct tn_lane_group *g);
/* The job of a group: each member gets its status, and a driver may begin to move what was found good (copying). Any thread. */
void tn_lane_work(struct tn_job *job);

#endif
