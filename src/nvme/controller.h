/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A controller, driven from user space: reset, admin queue, identify, I/O queue pairs, shutdown (Base 3.5.1, 3.6.1, 3.7.2; editions: spec.h).
 *
 * The port says how registers, memory and bus addresses are reached: VFIO (vfio.h), or the software controller (lab/nvme_soft.h). Calls wait
 * for the controller, each command for at most opts.admin_ns, and state changes for half a second longer than CAP.TO says; they are for opening, closing
 * and recovery. The queues that they make are driven by whoever has them (queue.h, pair.h).
 *
 * One thread creates, destroys and calls tn_nvme_reset. Each pair of queues may have a thread of its own, which makes the other calls. A reset
 * takes all pairs from the controller; the thread of each finds that out by the generation, and has its own made again.
 */
#ifndef TN_NVME_CONTROLLER_H
#define TN_NVME_CONTROLLER_H

#include <stdbool.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "nvme/p2p.h"
#include "nvme/queue.h"

/**
 * struct tn_nvme_port - the way to a controller
 * @name:      for messages
 * @registers: BAR 0
 * @register_bytes: of it
 * @get, @put: zeroed memory for queues and lists: whole pages, contiguous on the bus; NULL: there is none
 * @map, @unmap: the controller may reach this memory, which is whole pages, from now on or no more; 0 or -errno
 * @translate: where mapped memory lies on the bus
 * @cut:       the controller reaches no memory from now on, whatever it does: 0 or -errno
 * @pause:     called again and again by who waits for the controller
 * @other:     why memory that no CPU maps is not reached without a provider: what tn_nvme_map_other says
 *
 * Any thread makes these calls.
 */
struct tn_nvme_port {
	const char *name;
	void *registers;
	uint64_t register_bytes;
	void *(*get)(void *arg, uint64_t bytes, uint64_t *bus);
	void (*put)(void *arg, void *memory, uint64_t bytes);
	int (*map)(void *arg, void *memory, uint64_t bytes);
	void (*unmap)(void *arg, void *memory, uint64_t bytes);
	tn_p2p_translate translate;
	int (*cut)(void *arg);
	void (*pause)(void *arg);
	const char *other;
	void *arg;
};

/**
 * struct tn_nvme_provider - says where memory lies on a controller's bus that no CPU maps, such as an accelerator's
 * @attach:    the controller behind this port may reach the memory, which is whole pages, from now on: 0 or -errno
 * @detach:    or no more
 * @translate: where attached memory lies on the bus
 *
 * Addresses are the memory's owner's; nothing here reads or writes through them. Any thread makes these calls, under the lock of the controller's
 * memories: they must not map or unmap. The bus addresses must be free: with VFIO they are of the provider's own container, or of a range that
 * the port does not use (it maps from the lowest free address on); nothing here compares them with those of other memories.
 */
struct tn_nvme_provider {
	int (*attach)(void *arg, const struct tn_nvme_port *port, void *memory, uint64_t bytes);
	void (*detach)(void *arg, const struct tn_nvme_port *port, void *memory, uint64_t bytes);
	tn_p2p_translate translate;
	void *arg;
};

/**
 * struct tn_nvme_opts
 * @namespace_id: 0: the only one
 * @queues:       I/O queue pairs that are wanted, 1..64
 * @entries:      of each queue; the controller may allow fewer
 * @admin_ns:     by when an admin command has to end; 0: 10 s
 * @queue_memory: where the I/O queues lie: whole pages that the CPU maps, ordinary ones or hugepages, which another device may drive the queues in; it stays
 *                until destroy, and a fork must not copy it (MADV_DONTFORK, or a shared mapping). NULL: the port's
 * @queue_bytes:  of it, tn_nvme_queue_bytes at least
 */
struct tn_nvme_opts {
	const struct tn_nvme_port *port;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
	uint32_t namespace_id;
	uint32_t queues;
	uint32_t entries;
	uint64_t admin_ns;
	void *queue_memory;
	uint64_t queue_bytes;
};

/**
 * struct tn_nvme_info - what the controller said of itself and of the namespace
 * @transfer_bytes: most of one command
 * @sgl:      pieces may begin and end anywhere (at dwords)
 * @cache:    volatile: durable means flushed
 * @discard:  dataset management is there
 * @zeroes_bytes: most of one write zeroes, which moves no data, so that transfer_bytes is no limit of it; 0: there is no such command
 */
struct tn_nvme_info {
	char model[41], serial[21], firmware[9];
	uint32_t namespace_id;
	uint32_t block_bytes;
	uint64_t blocks;
	uint32_t transfer_bytes;
	uint32_t queues, entries;
	uint32_t zeroes_bytes;
	bool sgl, cache, discard;
};

#define TN_NVME_MEMORIES 512u /* that are mapped at once */

struct tn_nvme;

/* Bytes of so many pairs of queues of so many entries each: one pair behind the other, each its submission queue and behind it its completion queue, in whole pages. */
uint64_t tn_nvme_queue_bytes(uint32_t queues, uint32_t entries);
/*
 * Resets the controller, which must be nobody else's, and brings it up. 0 and *out; -EINVAL: options; -ENOTSUP: the controller or the
 * namespace is one that Tenuto does not drive, or the queue memory does not hold each queue in one piece of the bus; -ENODEV: it is gone;
 * -ETIMEDOUT, -EIO: it did not answer, or failed; -ENOMEM; of queue memory also as tn_nvme_map.
 */
int tn_nvme_create(const struct tn_nvme_opts *opts, struct tn_nvme **out);
/* Shuts the controller down in good order, if it can be (Base 3.6.1). Nothing may be under way. NULL-safe. */
void tn_nvme_destroy(struct tn_nvme *n);
const struct tn_nvme_info *tn_nvme_info(const struct tn_nvme *n);
/* Of 0..info.queues - 1. Valid until destroy; empty again after tn_nvme_reset. */
struct tn_nvme_queue *tn_nvme_io_queue(struct tn_nvme *n, uint32_t queue);

/*
 * The controller may reach this memory, which is whole pages, until as many calls of tn_nvme_unmap; *table: where it lies on the bus, the same for
 * all who map it. 0; -EINVAL, -ENOMEM; -EEXIST: mapped with other memory beside it; -EBUSY: held; -ENOSPC: too many memories; what the port says.
 */
int tn_nvme_map(struct tn_nvme *n, void *memory, uint64_t bytes, const struct tn_p2p **table);
/*
 * As tn_nvme_map, for memory that no CPU maps. The provider outlives the mapping; an engine or executor cannot take the memory, because their bounce buffers
 * are copied by the CPU. -ENOTSUP: no provider (NULL), and the port has none of its own: the detail says why; -EEXIST: also mapped by another
 * provider, or as the CPU's memory; what attach and translate say.
 */
int tn_nvme_map_other(struct tn_nvme *n, const struct tn_nvme_provider *provider, void *memory, uint64_t bytes, const struct tn_p2p **table);
/* Of either. Nothing under way names it. */
void tn_nvme_unmap(struct tn_nvme *n, void *memory, uint64_t bytes);
/*
 * Instead of tn_nvme_unmap, where commands that have not ended may name it: it keeps its place on the bus, which no other memory gets, until as many releases.
 * When all its users have unmapped it or hold it, nobody maps it: what lies at its address may be other memory by then.
 */
void tn_nvme_hold(struct tn_nvme *n, void *memory, uint64_t bytes);
void tn_nvme_release(struct tn_nvme *n, void *memory, uint64_t bytes);

/* Does an admin command without data: 0 and *result, or as create; -EREMOTEIO: the controller refused it. */
int tn_nvme_admin(struct tn_nvme *n, const struct tn_nvme_command *command, uint32_t *result);
/* Asks for an early end of a command of an I/O queue (Base 5.1). 0: the controller says it did; -EALREADY: it did not; or as tn_nvme_admin. */
int tn_nvme_abort(struct tn_nvme *n, uint32_t queue, uint32_t id);
/* After it the controller touches no memory of commands that were under way; queues are empty (Base 3.7.2). Nobody else may use them meanwhile. As create. */
int tn_nvme_reset(struct tn_nvme *n);
/* How often it was reset. If it has risen, the controller touches no memory of commands that were under way on any pair. */
uint32_t tn_nvme_generation(const struct tn_nvme *n);
/*
 * Resets it, unless another thread has done so since that generation. It has no I/O queues then. As create. If it is gone, or for a minute no reset has
 * brought it back, with all its pairs, its way to memory is cut, and it counts as gone from then on, for all pairs and whatever it says.
 */
int tn_nvme_restart(struct tn_nvme *n, uint32_t generation);
/* The pair, which the caller drives, is known to the controller and, if it was not, empty; *generation: the present one. As tn_nvme_admin. */
int tn_nvme_renew(struct tn_nvme *n, uint32_t queue, uint32_t *generation);
/* -ENODEV: gone; -EIO: it says that it has failed, or is not enabled; 0. A register is read, which takes a microsecond. */
int tn_nvme_check(const struct tn_nvme *n);

#endif
