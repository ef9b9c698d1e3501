/* SPDX-License-Identifier: Apache-2.0 */
/* See controller.h. */
#include "nvme/controller.h"

#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "nvme/identify.h"
#include "nvme/mappings.h"

#define ADMIN_ENTRIES 32u
#define ADMIN_NS 10000000000ull
#define QUEUES_MAX 64u
#define GIVE_UP_NS 60000000000ull  /* of resets that fail, ... */
#define GIVE_UP_TRIES 3u	   /* ... and so many at least */
#define SHUTDOWN_NS 10000000000ull /* a drive says less, if anything (RTD3 entry latency) */

struct pair {
	struct tn_nvme_queue q;
	void *sq, *cq;
	uint64_t sq_bus, cq_bus;
	bool made; /* the controller knows it */
	uint32_t generation; /* in which it was made */
	uint32_t failures;   /* in a row to make it again, of the admin queues: to reset the controller; ... */
	uint64_t failing_ns; /* ... and since when */
};

struct tn_nvme {
	struct tn_nvme_opts o;
	struct tn_nvme_info info;
	uint64_t cap;
	uint32_t npairs; /* with the admin queues, which are the first */
	struct pair *pair;
	const struct tn_p2p *queue_table; /* of the caller's memory for queues; NULL: none was supplied, or not mapped yet */
	unsigned char *identify;
	uint64_t identify_bus;
	struct tn_nvme_mappings mappings;
	pthread_mutex_t lock; /* of admin commands and resets: each pair may have a thread of its own */
	uint32_t generation;  /* shared: rises with each reset */
	bool cut;	      /* shared: it reaches no memory any more */
};

/* ---- registers ------------------------------------------------------------------------------------------ */

static uint32_t *reg(const struct tn_nvme *n, uint64_t offset)
{
	return (uint32_t *)((unsigned char *)n->o.port->registers + offset);
}

static uint32_t get32(const struct tn_nvme *n, uint64_t offset)
{
	return tn_ring_load32(reg(n, offset));
}

/* Registers of 64 bits may be read and written in aligned halves of 32 (PCIe 3.1.2). */
static uint64_t get64(const struct tn_nvme *n, uint64_t offset)
{
	uint64_t low = get32(n, offset);

	return low | (uint64_t)get32(n, offset + 4) << 32;
}

static void set32(const struct tn_nvme *n, uint64_t offset, uint32_t value)
{
	tn_nvme_bell(reg(n, offset), value);
}

static void set64(const struct tn_nvme *n, uint64_t offset, uint64_t value)
{
	set32(n, offset, (uint32_t)value);
	set32(n, offset + 4, (uint32_t)(value >> 32));
}

static int gone(const struct tn_nvme *n)
{
	return tn_fail(-ENODEV, "%s: the controller is gone", n->o.port->name);
}

/*
 * What is not there reads as ones, on most machines; behind some bridges (QEMU's among them) as zeros. A status of zero is a disabled controller's, too,
 * but a version of zero is nobody's (Base 3.1.3.2).
 */
static bool is_gone(const struct tn_nvme *n, uint32_t status)
{
	return status == TN_NVME_GONE || (status == 0 && get32(n, TN_NVME_VS) == 0);
}

/* CSTS.CFS and CSTS.RDY: Base 3.1.3.6. */
int tn_nvme_check(const struct tn_nvme *n)
{
	uint32_t status = get32(n, TN_NVME_CSTS);

	if (is_gone(n, status))
		return gone(n);
	if (__atomic_load_n(&n->cut, __ATOMIC_ACQUIRE))
		return tn_fail(-ENODEV, "%s: given up, because the controller was gone, or no reset brought it back", n->o.port->name);
	if (status & TN_NVME_CSTS_FATAL)
		return tn_fail(-EIO, "%s: the controller has failed (CSTS.CFS)", n->o.port->name);
	return status & TN_NVME_CSTS_READY ? 0 : tn_fail(-EIO, "%s: the controller was reset by somebody else", n->o.port->name);
}

/*
 * Waits until these bits of CSTS have this value. A failed controller may be waited for: a reset clears it (Base 3.7.2). What reads as ones or zeros may be in its
 * reset: it is gone if that lasts.
 */
static int await(struct tn_nvme *n, uint32_t mask, uint32_t value, uint64_t ns, bool failed_is_fine)
{
	uint64_t end = tn_now_ns(n->o.clock) + ns;

	for (;;) {
		bool over = tn_now_ns(n->o.clock) >= end; /* first: this thread may not have run for long, so that the status is read after the end once more */
		uint32_t status = get32(n, TN_NVME_CSTS);
		bool away = is_gone(n, status);

		if (!away && (status & mask) == value)
			return 0;
		if (!away && status & TN_NVME_CSTS_FATAL && !failed_is_fine)
			return tn_nvme_check(n);
		if (over)
			return away ? gone(n) : tn_fail(-ETIMEDOUT, "%s: status %#x did not become %#x (mask %#x) in %llu ms", n->o.port->name, status,
							value, mask, (unsigned long long)(ns / 1000000));
		n->o.port->pause(n->o.port->arg);
	}
}

/* ---- admin commands ---------------------------------------------------------------------------------------- */

/* The controller's answer to the one admin command under way. */
static int await_completion(struct tn_nvme *n, uint32_t id, struct tn_nvme_completion *done)
{
	struct tn_nvme_queue *q = &n->pair[TN_NVME_ADMIN].q;
	uint64_t end = tn_now_ns(n->o.clock) + n->o.admin_ns;
	int rc;

	for (;;) {
		while (tn_nvme_queue_poll(q, done)) {
			tn_nvme_queue_took(q);
			if (done->id == id) /* others are late answers, of commands that were given up, or mistakes of its */
				return 0;
		}
		rc = tn_nvme_check(n);
		if (rc)
			return rc;
		if (tn_now_ns(n->o.clock) >= end)
			return -ETIMEDOUT;
		n->o.port->pause(n->o.port->arg);
	}
}

static int admin(struct tn_nvme *n, const struct tn_nvme_command *command, uint32_t *result)
{
	struct tn_nvme_queue *q = &n->pair[TN_NVME_ADMIN].q;
	struct tn_nvme_command c = *command;
	struct tn_nvme_completion done = {0};
	uint32_t id = tn_nvme_queue_id(q);
	int rc;

	if (id == TN_NVME_NO_ID) /* of those given up */
		return tn_fail(-ETIMEDOUT, "%s: no admin command is answered any more: it has to be reset", n->o.port->name);
	c.id = (uint16_t)id;
	tn_nvme_queue_put(q, &c);
	tn_nvme_queue_ring(q);
	rc = await_completion(n, id, &done);
	if (rc == -ETIMEDOUT) /* its id stays taken until a reset: the answer may come yet */
		return tn_fail(rc, "%s: admin command %#x was not answered in %llu ms", n->o.port->name, c.opcode,
			       (unsigned long long)(n->o.admin_ns / 1000000));
	if (rc)
		return rc;
	tn_nvme_queue_give(q, id);
	if (tn_nvme_status(&done))
		return tn_fail(-EREMOTEIO, "%s: admin command %#x was refused with status %#x", n->o.port->name, c.opcode,
			       tn_nvme_status(&done));
	*result = done.result;
	return 0;
}

int tn_nvme_admin(struct tn_nvme *n, const struct tn_nvme_command *command, uint32_t *result)
{
	int rc;

	pthread_mutex_lock(&n->lock);
	rc = admin(n, command, result);
	pthread_mutex_unlock(&n->lock);
	return rc;
}

/* One Abort at a time, which any controller takes: the limit (ACL) counts from 0 (Base 5.1, 5.17.2.1). */
int tn_nvme_abort(struct tn_nvme *n, uint32_t queue, uint32_t id)
{
	struct tn_nvme_command c = tn_nvme_command_of(TN_NVME_ABORT, 0);
	uint32_t result;
	int rc;

	c.dword10 = (queue + 1) | id << 16;
	rc = tn_nvme_admin(n, &c, &result);
	if (rc)
		return rc;
	return result & 1 ? -EALREADY : 0; /* Base 5.1, dword 0 of the completion, bit 0: it was not aborted */
}

/* ---- identify ------------------------------------------------------------------------------------------------ */

static int identify(struct tn_nvme *n, uint32_t what, uint32_t namespace_id)
{
	struct tn_nvme_command c = tn_nvme_command_of(TN_NVME_IDENTIFY, namespace_id);
	uint32_t result;

	memset(n->identify, 0, TN_NVME_IDENTIFY_BYTES);
	c.data[0] = n->identify_bus;
	c.dword10 = what;
	return admin(n, &c, &result);
}

static int identify_controller(struct tn_nvme *n)
{
	int rc = identify(n, TN_NVME_IDENTIFY_CONTROLLER, 0);

	if (rc)
		return rc;
	tn_nvme_read_controller(n->identify, n->cap, &n->info);
	if (!n->info.zeroes_bytes)
		return 0;
	rc = identify(n, TN_NVME_IDENTIFY_LIMITS, 0); /* of the NVM command set, which has the identifier 0 */
	if (rc == 0)
		tn_nvme_read_limits(n->identify, n->cap, &n->info);
	return rc == -EREMOTEIO ? 0 : rc; /* one that does not know these data has no such limit */
}

static int find_namespace(struct tn_nvme *n)
{
	uint32_t id[2] = {n->o.namespace_id};
	int rc;

	if (id[0] == 0) {
		rc = identify(n, TN_NVME_IDENTIFY_ACTIVE, 0);
		if (rc)
			return rc;
		memcpy(id, n->identify, sizeof(id));
		if (id[0] == 0 || id[1])
			return tn_fail(-EINVAL, "%s: %s: say which one is meant", n->o.port->name,
				       id[0] ? "has several namespaces" : "has no namespace");
	}
	n->info.namespace_id = id[0];
	return identify(n, TN_NVME_IDENTIFY_NAMESPACE, id[0]);
}

static int identify_namespace(struct tn_nvme *n)
{
	int rc = find_namespace(n);

	return rc ? rc : tn_nvme_read_namespace(n->identify, n->o.port->name, &n->info);
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

static uint64_t pages(uint64_t bytes)
{
	return (bytes + TN_NVME_PAGE - 1) / TN_NVME_PAGE * TN_NVME_PAGE;
}

static uint64_t sq_bytes(uint32_t entries)
{
	return pages(entries * sizeof(struct tn_nvme_command));
}

static uint64_t cq_bytes(uint32_t entries)
{
	return pages(entries * sizeof(struct tn_nvme_completion));
}

uint64_t tn_nvme_queue_bytes(uint32_t queues, uint32_t entries)
{
	return queues * (sq_bytes(entries) + cq_bytes(entries));
}

/* The pair lies in memory of the caller's. */
static bool is_lent(const struct tn_nvme *n, const struct pair *p)
{
	return n->o.queue_memory && p != &n->pair[TN_NVME_ADMIN];
}

static void put_pair(struct tn_nvme *n, struct pair *p)
{
	const struct tn_nvme_port *port = n->o.port;
	bool lent = is_lent(n, p);

	if (p->cq && !lent)
		port->put(port->arg, p->cq, cq_bytes(p->q.entries));
	if (p->sq && !lent)
		port->put(port->arg, p->sq, sq_bytes(p->q.entries));
	tn_put(n->o.alloc, p->q.free, p->q.entries * sizeof(*p->q.free));
	memset(p, 0, sizeof(*p));
}

/* One queue's part of the caller's memory: in one piece, as the driver makes queues (Base 5.4, 5.5: Physically Contiguous). */
static int locate(struct tn_nvme *n, uint64_t at, uint64_t bytes, void **memory, uint64_t *bus)
{
	unsigned char *queue = (unsigned char *)n->o.queue_memory + at;
	struct tn_nvme_piece piece;
	int rc = tn_p2p_find(n->queue_table, (uintptr_t)queue, bytes, &piece, 1);

	if (rc < 0)
		return tn_fail_cause(rc == -E2BIG ? -ENOTSUP : rc, "%s: the memory for queues is not in one piece on the bus at byte %llu", n->o.port->name,
				     (unsigned long long)at);
	*memory = queue;
	*bus = piece.bus;
	return 0;
}

static int get_queues(struct tn_nvme *n, uint32_t number, uint32_t entries)
{
	const struct tn_nvme_port *port = n->o.port;
	struct pair *p = &n->pair[number];
	uint64_t at = is_lent(n, p) ? tn_nvme_queue_bytes(number - 1, entries) : 0;
	int rc;

	if (is_lent(n, p)) {
		rc = locate(n, at, sq_bytes(entries), &p->sq, &p->sq_bus);
		return rc ? rc : locate(n, at + sq_bytes(entries), cq_bytes(entries), &p->cq, &p->cq_bus);
	}
	p->sq = port->get(port->arg, sq_bytes(entries), &p->sq_bus);
	p->cq = port->get(port->arg, cq_bytes(entries), &p->cq_bus);
	return 0;
}

static int get_pair(struct tn_nvme *n, uint32_t number, uint32_t entries)
{
	const struct tn_nvme_port *port = n->o.port;
	struct pair *p = &n->pair[number];
	int rc;

	p->q.entries = entries;
	rc = get_queues(n, number, entries);
	if (rc)
		return rc;
	p->q.free = tn_get(n->o.alloc, entries * sizeof(*p->q.free));
	if (!p->sq || !p->cq || !p->q.free)
		return tn_fail(-ENOMEM, "%s: no memory for queues of %u entries", port->name, entries);
	p->q.sq = p->sq;
	p->q.cq = p->cq;
	p->q.sq_bell = reg(n, tn_nvme_doorbell(n->cap, number, 0));
	p->q.cq_bell = reg(n, tn_nvme_doorbell(n->cap, number, 1));
	return 0;
}

static void empty_pair(struct pair *p)
{
	memset(p->cq, 0, p->q.entries * sizeof(struct tn_nvme_completion));
	tn_nvme_queue_init(&p->q);
	p->made = false;
}

/* The completion queue first: the submission queue names it (Base 5.4, 5.5). Physically contiguous, no interrupts. */
static int make_pair(struct tn_nvme *n, uint32_t number)
{
	struct pair *p = &n->pair[number];
	struct tn_nvme_command c = tn_nvme_command_of(TN_NVME_CREATE_CQ, 0);
	uint32_t result;
	int rc;

	empty_pair(p);
	c.data[0] = p->cq_bus;
	c.dword10 = number | (p->q.entries - 1) << 16;
	c.dword11 = 1;
	rc = admin(n, &c, &result);
	if (rc)
		return rc;
	c.opcode = TN_NVME_CREATE_SQ;
	c.data[0] = p->sq_bus;
	c.dword11 = 1 | number << 16;
	rc = admin(n, &c, &result);
	p->made = rc == 0;
	p->generation = p->made ? n->generation : p->generation;
	return rc;
}

/* As many as the controller grants, of those that are wanted (Base 5.27.1.5). */
static int ask_for_queues(struct tn_nvme *n, uint32_t wanted, uint32_t *granted)
{
	struct tn_nvme_command c = tn_nvme_command_of(TN_NVME_SET_FEATURES, 0);
	uint32_t result, sq, cq;
	int rc;

	c.dword10 = TN_NVME_FEATURE_QUEUES;
	c.dword11 = (wanted - 1) | (wanted - 1) << 16;
	rc = admin(n, &c, &result);
	if (rc)
		return rc;
	sq = (result & 0xffff) + 1;
	cq = (result >> 16) + 1;
	*granted = sq < cq ? sq : cq;
	if (*granted > wanted)
		*granted = wanted;
	return 0;
}

/* ---- up and down --------------------------------------------------------------------------------------------------- */

/* A Controller Level Reset: afterwards the controller has no queues and touches no memory (Base 3.7.2; CSTS.RDY follows CC.EN: 3.1.3.5, 3.1.3.6). */
static int disable(struct tn_nvme *n)
{
	uint32_t config = get32(n, TN_NVME_CC);
	uint64_t ns = tn_nvme_cap_timeout_ns(n->cap);
	int rc;

	if (tn_nvme_check(n) == -ENODEV)
		return -ENODEV;
	if (config & TN_NVME_CC_ENABLE) {
		rc = await(n, TN_NVME_CSTS_READY, TN_NVME_CSTS_READY, ns, true); /* CC.EN must not be cleared before that (3.1.3.5) */
		if (rc == -ENODEV)
			return rc;
		set32(n, TN_NVME_CC, config & ~TN_NVME_CC_ENABLE);
	}
	return await(n, TN_NVME_CSTS_READY, 0, ns, true);
}

/* The order of Base 3.5.1: admin queues, configuration, CC.EN, CSTS.RDY. */
static int enable(struct tn_nvme *n)
{
	struct pair *admin = &n->pair[TN_NVME_ADMIN];

	empty_pair(admin);
	admin->made = true;
	set32(n, TN_NVME_AQA, (ADMIN_ENTRIES - 1) | (ADMIN_ENTRIES - 1) << 16);
	set64(n, TN_NVME_ASQ, admin->sq_bus);
	set64(n, TN_NVME_ACQ, admin->cq_bus);
	set32(n, TN_NVME_CC, TN_NVME_CC_ENTRIES); /* NVM commands, pages of 4 KiB, round robin */
	set32(n, TN_NVME_CC, TN_NVME_CC_ENTRIES | TN_NVME_CC_ENABLE);
	return await(n, TN_NVME_CSTS_READY, TN_NVME_CSTS_READY, tn_nvme_cap_timeout_ns(n->cap), false);
}

static int read_capabilities(struct tn_nvme *n)
{
	const struct tn_nvme_port *port = n->o.port;

	n->cap = get64(n, TN_NVME_CAP);
	if (n->cap == UINT64_MAX)
		return gone(n);
	if (!tn_nvme_cap_nvm(n->cap))
		return tn_fail(-ENOTSUP, "%s: the controller does not speak the NVM command set", port->name);
	if (tn_nvme_cap_page_shift(n->cap) > 12)
		return tn_fail(-ENOTSUP, "%s: the controller has no memory pages of 4 KiB, only of 2^%u bytes", port->name,
			       tn_nvme_cap_page_shift(n->cap));
	if (tn_nvme_doorbell(n->cap, n->o.queues + 1, 0) > port->register_bytes)
		return tn_fail(-EINVAL, "%s: %llu bytes of registers have no room for the doorbells of %u queues", port->name,
			       (unsigned long long)port->register_bytes, n->o.queues);
	n->info.entries = n->o.entries;
	if (n->info.entries > tn_nvme_cap_entries(n->cap))
		n->info.entries = tn_nvme_cap_entries(n->cap);
	return 0;
}

static int check_opts(const struct tn_nvme_opts *o)
{
	if (o->queues == 0 || o->queues > QUEUES_MAX)
		return tn_fail(-EINVAL, "nvme: %u queues: 1..%u", o->queues, QUEUES_MAX);
	if (o->entries < 2 || o->entries > TN_NVME_ENTRIES_MAX)
		return tn_fail(-EINVAL, "nvme: queues of %u entries: 2..%u", o->entries, TN_NVME_ENTRIES_MAX);
	if (o->queue_memory && o->queue_bytes < tn_nvme_queue_bytes(o->queues, o->entries))
		return tn_fail(-EINVAL, "nvme: %llu bytes for %u pairs of queues of %u entries: %llu", (unsigned long long)o->queue_bytes, o->queues, o->entries,
			       (unsigned long long)tn_nvme_queue_bytes(o->queues, o->entries));
	return 0;
}

static int bring_up(struct tn_nvme *n)
{
	const struct tn_nvme_port *port = n->o.port;
	int rc = read_capabilities(n);

	rc = rc ? rc : disable(n);
	if (rc)
		return rc;
	n->identify = port->get(port->arg, TN_NVME_IDENTIFY_BYTES, &n->identify_bus);
	if (!n->identify)
		return tn_fail(-ENOMEM, "%s: no memory for the identify data", port->name);
	rc = get_pair(n, TN_NVME_ADMIN, ADMIN_ENTRIES);
	rc = rc ? rc : enable(n);
	rc = rc ? rc : identify_controller(n);
	rc = rc ? rc : identify_namespace(n);
	rc = rc ? rc : ask_for_queues(n, n->o.queues, &n->info.queues);
	if (rc == 0 && n->o.queue_memory)
		rc = tn_nvme_map(n, n->o.queue_memory, n->o.queue_bytes, &n->queue_table);
	for (n->npairs = 1; rc == 0 && n->npairs <= n->info.queues; n->npairs++) {
		rc = get_pair(n, n->npairs, n->info.entries);
		rc = rc ? rc : make_pair(n, n->npairs);
	}
	return rc;
}

int tn_nvme_create(const struct tn_nvme_opts *opts, struct tn_nvme **out)
{
	int rc = check_opts(opts);
	struct tn_nvme *n;

	if (rc)
		return rc;
	n = tn_get(opts->alloc, sizeof(*n));
	if (!n)
		return tn_fail(-ENOMEM, "nvme: no memory");
	n->o = *opts;
	n->o.admin_ns = opts->admin_ns ? opts->admin_ns : ADMIN_NS;
	n->npairs = 1;
	n->generation = 1;
	pthread_mutex_init(&n->lock, NULL);
	tn_nvme_mappings_init(&n->mappings, opts->port, opts->alloc);
	n->pair = tn_get(opts->alloc, (opts->queues + 1) * sizeof(*n->pair));
	rc = n->pair ? bring_up(n) : tn_fail(-ENOMEM, "nvme: no memory");
	if (rc) {
		tn_nvme_destroy(n);
		return rc;
	}
	tn_log(opts->log, TN_LOG_INFO, "%s: %s %s, %llu blocks of %u bytes, transfers of %u KiB with %s, %u queues of %u", opts->port->name,
	       n->info.model, n->info.serial, (unsigned long long)n->info.blocks, n->info.block_bytes, n->info.transfer_bytes >> 10,
	       n->info.sgl ? "SGLs" : "PRPs", n->info.queues, n->info.entries);
	*out = n;
	return 0;
}

/*
 * Deletes the queues, each submission queue before its completion queue (Base 5.6), says that the power may go and waits for it (CC.SHN, CSTS.SHST: Base
 * 3.6.1), and takes the controller's access to memory away.
 */
static void shut_down(struct tn_nvme *n)
{
	struct tn_nvme_command c = tn_nvme_command_of(TN_NVME_DELETE_SQ, 0);
	uint32_t result;
	int rc = tn_nvme_check(n);

	for (uint32_t i = 1; i < n->npairs && rc == 0; i++) {
		if (!n->pair[i].made)
			continue;
		c.opcode = TN_NVME_DELETE_SQ;
		c.dword10 = i;
		rc = admin(n, &c, &result);
		c.opcode = TN_NVME_DELETE_CQ;
		rc = rc ? rc : admin(n, &c, &result);
	}
	if (rc == 0) {
		set32(n, TN_NVME_CC, (get32(n, TN_NVME_CC) & ~TN_NVME_CC_SHUTDOWN_MASK) | TN_NVME_CC_SHUTDOWN);
		rc = await(n, TN_NVME_CSTS_SHUT_MASK, TN_NVME_CSTS_SHUT, SHUTDOWN_NS, false);
	}
	if (rc)
		tn_log(n->o.log, TN_LOG_WARN, "not shut down in good order: %s", tn_error_last()->text);
	rc = disable(n);
	if (rc && rc != -ENODEV)
		tn_log(n->o.log, TN_LOG_ERROR, "not disabled: %s", tn_error_last()->text);
}

void tn_nvme_destroy(struct tn_nvme *n)
{
	if (!n)
		return;
	if (n->pair) {
		if (n->pair[TN_NVME_ADMIN].made)
			shut_down(n);
		for (uint32_t i = 0; i <= n->o.queues; i++)
			put_pair(n, &n->pair[i]);
	}
	if (n->queue_table)
		tn_nvme_unmap(n, n->o.queue_memory, n->o.queue_bytes);
	if (n->identify)
		n->o.port->put(n->o.port->arg, n->identify, TN_NVME_IDENTIFY_BYTES);
	tn_put(n->o.alloc, n->pair, (n->o.queues + 1) * sizeof(*n->pair));
	tn_nvme_mappings_fini(&n->mappings);
	pthread_mutex_destroy(&n->lock);
	tn_put(n->o.alloc, n, sizeof(*n));
}

/* Under lock. Afterwards the controller has no I/O queues (Base 3.7.2), and the number of queues is asked for again: all that are in use, or it has not come back. */
static int restart(struct tn_nvme *n)
{
	uint32_t granted = 0;
	int rc = disable(n);

	for (uint32_t i = 1; rc == 0 && i < n->npairs; i++)
		n->pair[i].made = false;
	rc = rc ? rc : enable(n);
	rc = rc ? rc : ask_for_queues(n, n->info.queues, &granted);
	if (rc == 0 && granted < n->info.queues)
		rc = tn_fail(-EIO, "%s: grants %u pairs of queues after a reset, of %u in use", n->o.port->name, granted, n->info.queues);
	if (rc == 0) /* release: whoever sees it knows that the controller touches no memory of commands from before */
		__atomic_store_n(&n->generation, n->generation + 1, __ATOMIC_RELEASE);
	return rc;
}

/*
 * Under lock: how a try to reset it, or to make this pair again, ended, with status or -ENODEV. Who waits for it waits no longer than this says, whatever becomes of
 * other pairs. One that is gone may come back, with its commands: it is cut off at once, for all pairs. If that fails, its configuration answers as little as its
 * registers do: it is not on the bus.
 */
static int tried(struct tn_nvme *n, struct pair *p, int status)
{
	uint64_t now = tn_now_ns(n->o.clock);

	if (status == 0)
		p->failures = 0;
	else if (p->failures++ == 0)
		p->failing_ns = now;
	if (status == 0 || (status != -ENODEV && (p->failures < GIVE_UP_TRIES || now - p->failing_ns < GIVE_UP_NS)))
		return status;
	if (n->o.port->cut(n->o.port->arg) && status != -ENODEV)
		return status;
	__atomic_store_n(&n->cut, true, __ATOMIC_RELEASE);
	return tn_nvme_check(n);
}

uint32_t tn_nvme_generation(const struct tn_nvme *n)
{
	return __atomic_load_n(&n->generation, __ATOMIC_ACQUIRE);
}

int tn_nvme_restart(struct tn_nvme *n, uint32_t generation)
{
	int rc;

	pthread_mutex_lock(&n->lock);
	rc = n->cut ? tn_nvme_check(n) : n->generation == generation ? tried(n, &n->pair[TN_NVME_ADMIN], restart(n)) : 0;
	pthread_mutex_unlock(&n->lock);
	return rc;
}

int tn_nvme_renew(struct tn_nvme *n, uint32_t queue, uint32_t *generation)
{
	struct pair *p = &n->pair[queue + 1];
	int rc;

	pthread_mutex_lock(&n->lock);
	*generation = n->generation;
	rc = n->cut ? tn_nvme_check(n) : p->generation == n->generation ? 0 : make_pair(n, queue + 1);
	if (rc != -ENODEV) /* whether it is gone, the next reset finds out */
		rc = tried(n, p, rc);
	pthread_mutex_unlock(&n->lock);
	return rc;
}

int tn_nvme_reset(struct tn_nvme *n)
{
	int rc;

	pthread_mutex_lock(&n->lock);
	rc = restart(n);
	for (uint32_t i = 1; rc == 0 && i < n->npairs; i++)
		rc = make_pair(n, i);
	pthread_mutex_unlock(&n->lock);
	return rc;
}

const struct tn_nvme_info *tn_nvme_info(const struct tn_nvme *n)
{
	return &n->info;
}

struct tn_nvme_queue *tn_nvme_io_queue(struct tn_nvme *n, uint32_t queue)
{
	return &n->pair[queue + 1].q;
}

/* ---- memories ------------------------------------------------------------------------------------------------------ */

int tn_nvme_map(struct tn_nvme *n, void *memory, uint64_t bytes, const struct tn_p2p **table)
{
	return tn_nvme_mappings_map(&n->mappings, NULL, memory, bytes, table);
}

int tn_nvme_map_other(struct tn_nvme *n, const struct tn_nvme_provider *provider, void *memory, uint64_t bytes, const struct tn_p2p **table)
{
	if (!provider)
		return tn_fail(-ENOTSUP, "%s: %s", n->o.port->name, n->o.port->other);
	return tn_nvme_mappings_map(&n->mappings, provider, memory, bytes, table);
}

void tn_nvme_unmap(struct tn_nvme *n, void *memory, uint64_t bytes)
{
	tn_nvme_mappings_change(&n->mappings, memory, bytes, -1, 0);
}

void tn_nvme_hold(struct tn_nvme *n, void *memory, uint64_t bytes)
{
	tn_nvme_mappings_change(&n->mappings, memory, bytes, -1, 1);
}

void tn_nvme_release(struct tn_nvme *n, void *memory, uint64_t bytes)
{
	tn_nvme_mappings_change(&n->mappings, memory, bytes, 0, -1);
}
