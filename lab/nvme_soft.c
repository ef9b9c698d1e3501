/* SPDX-License-Identifier: Apache-2.0 */
/* See nvme_soft.h. Registers, queues, admin commands and faults; what commands do with memory is in nvme_soft_data.c. */
#include "nvme_soft_internal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define FETCH_AT_ONCE 32u

/* ---- small things ---------------------------------------------------------------------------------------- */

const char *tn_soft_finding_name(enum tn_soft_finding finding)
{
	static const char *const names[TN_SOFT_FINDINGS] = {
		[TN_SOFT_BAD_ENABLE] = "enabled with what cannot be",
		[TN_SOFT_BAD_DOORBELL] = "a doorbell's value",
		[TN_SOFT_NO_ENTRY] = "a doorbell before its entry",
		[TN_SOFT_ID_IN_USE] = "an id in use",
		[TN_SOFT_BAD_LIST] = "a list that is not allowed",
		[TN_SOFT_BAD_ADDRESS] = "an address that is not mapped",
		[TN_SOFT_TOO_LONG] = "a transfer beyond a limit",
		[TN_SOFT_LIST_TOUCHED] = "a list that changed under way",
		[TN_SOFT_DATA_TOUCHED] = "data that changed under way",
	};

	return finding < TN_SOFT_FINDINGS ? names[finding] : "unknown";
}

void tn_soft_found(struct tn_soft *s, enum tn_soft_finding finding)
{
	s->stats.findings[finding]++;
}

static uint32_t *reg(struct tn_soft *s, uint64_t offset)
{
	return (uint32_t *)(void *)(s->registers + offset);
}

static uint32_t get32(struct tn_soft *s, uint64_t offset)
{
	return tn_ring_load32(reg(s, offset));
}

static void set32(struct tn_soft *s, uint64_t offset, uint32_t value)
{
	tn_ring_store32(reg(s, offset), value);
}

static uint64_t get64(struct tn_soft *s, uint64_t offset)
{
	return get32(s, offset) | (uint64_t)get32(s, offset + 4) << 32;
}

/* All from there on: threads may write doorbells meanwhile. */
static void set_all(struct tn_soft *s, uint64_t from, uint32_t value)
{
	for (uint64_t at = from; at < s->register_bytes; at += sizeof(value))
		set32(s, at, value);
}

static uint64_t capabilities(const struct tn_soft *s)
{
	return (s->o.entries - 1) | 1ull << 16 | 2ull << 24 | (uint64_t)s->o.stride << 32 | 1ull << 37;
}

/* ---- work: commands under way --------------------------------------------------------------------------------- */

static void forget(struct tn_soft *s, uint32_t at)
{
	s->work[s->active[at]].number = 0;
	s->free_work[s->nfree++] = s->active[at];
	s->active[at] = s->active[--s->nactive];
}

static struct tn_soft_work *under_way(struct tn_soft *s, uint32_t queue, uint32_t id, uint32_t *at)
{
	for (uint32_t i = 0; i < s->nactive; i++) {
		struct tn_soft_work *w = &s->work[s->active[i]];

		if (w->queue == queue && w->c.id == id) {
			*at = i;
			return w;
		}
	}
	return NULL;
}

/* ---- the time of a described drive --------------------------------------------------------------------------------- */

static void start_drive(struct tn_soft *s)
{
	if (s->o.mix)
		tn_drive_init(&s->drive, s->o.mix, s->o.stretch ? s->o.stretch : 1);
}

static void drive_goes_on(struct tn_soft *s)
{
	if (s->o.mix)
		tn_drive_advance(&s->drive, tn_now_ns(s->o.clock ? s->o.clock : &tn_clock_system));
}

/* A flush queues with the writes: it ends when the writes before it have ended. Nothing else takes time. */
static void enter_drive(struct tn_soft *s, struct tn_soft_work *w)
{
	bool moves = w->c.opcode == TN_NVME_READ || w->c.opcode == TN_NVME_WRITE;

	w->paced = s->o.mix && !w->done && (moves || w->c.opcode == TN_NVME_FLUSH);
	if (!w->paced)
		return;
	drive_goes_on(s);
	tn_drive_enter(&s->drive, &w->job, w->c.opcode != TN_NVME_READ, moves ? ((w->c.dword12 & 0xffff) + 1) * s->o.block_bytes : 0);
}

/* An abort does not take it out. */
static bool in_drive(const struct tn_soft *s, const struct tn_soft_work *w)
{
	return w->paced && (w->job.due_ns == 0 || w->job.due_ns > s->drive.now_ns);
}

/* ---- completions ------------------------------------------------------------------------------------------------------ */

static uint32_t queue_entries(const struct tn_soft *s, uint32_t queue)
{
	return s->sq[queue].entries;
}

/* Free entries of a completion queue: the host's doorbell says what it has taken. */
static bool has_free_entry(struct tn_soft *s, struct tn_soft_cq *cq, uint32_t number)
{
	uint32_t bell = get32(s, tn_nvme_doorbell(s->cap, number, 1)), next = (cq->tail + 1) % cq->entries;

	if (bell >= cq->entries || (bell + cq->entries - cq->head) % cq->entries > (cq->tail + cq->entries - cq->head) % cq->entries)
		tn_soft_found(s, TN_SOFT_BAD_DOORBELL);
	else
		cq->head = bell;
	return next != cq->head;
}

/* Posts a completion; false: the queue is full. The dword with the phase is written last. */
static bool post(struct tn_soft *s, const struct tn_soft_work *w)
{
	struct tn_soft_cq *cq = &s->cq[w->queue];
	uint32_t dword[4] = {w->result, 0, s->sq[w->queue].head | w->queue << 16,
			     w->c.id | (uint32_t)(w->status << 1 | cq->phase) << 16};
	uint32_t *entry;

	if (!has_free_entry(s, cq, w->queue))
		return false;
	entry = tn_soft_at(s, cq->bus + cq->tail * sizeof(struct tn_nvme_completion), sizeof(dword));
	if (entry) {
		for (uint32_t i = 0; i < 3; i++)
			tn_ring_set32(&entry[i], dword[i]);
		tn_ring_store32(&entry[3], dword[3]);
	}
	if (++cq->tail == cq->entries) {
		cq->tail = 0;
		cq->phase ^= 1;
	}
	return true;
}

/* ---- admin commands ------------------------------------------------------------------------------------------------- */

static void put_text(unsigned char *at, uint32_t bytes, const char *text)
{
	memset(at, ' ', bytes);
	memcpy(at, text, strlen(text));
}

static void identify_data(const struct tn_soft *s, uint32_t what, unsigned char *data)
{
	uint32_t word, decoy = 8 | 9u << 16;

	memset(data, 0, TN_NVME_IDENTIFY_BYTES);
	if (what == TN_NVME_IDENTIFY_ACTIVE) {
		data[0] = 1;
	} else if (what == TN_NVME_IDENTIFY_CONTROLLER) {
		put_text(data + TN_NVME_ID_SERIAL, 20, "SOFT0001");
		put_text(data + TN_NVME_ID_MODEL, 40, "Tenuto software controller");
		put_text(data + TN_NVME_ID_FIRMWARE, 8, "1");
		data[TN_NVME_ID_MDTS] = (unsigned char)s->o.mdts;
		data[TN_NVME_ID_NN] = 1;
		data[TN_NVME_ID_ONCS] = s->o.zeroes ? 12 : 4;
		data[TN_NVME_ID_VWC] = s->o.cache;
		data[TN_NVME_ID_SGLS] = (unsigned char)s->o.sgl;
	} else if (what == TN_NVME_IDENTIFY_LIMITS) {
		data[TN_NVME_LIMITS_WZSL] = (unsigned char)s->o.wzsl;
	} else {
		memcpy(data + TN_NVME_NS_SIZE, &s->o.blocks, 8);
		word = s->o.metadata_bytes | (uint32_t)__builtin_ctz(s->o.block_bytes) << 16;
		for (uint32_t i = 0; i <= s->o.formats; i++)
			memcpy(data + TN_NVME_NS_LBAF + 4 * i, i == s->o.lba_format ? &word : &decoy, 4);
		data[TN_NVME_NS_NLBAF] = (unsigned char)s->o.formats;
		data[TN_NVME_NS_FLBAS] = (unsigned char)s->o.flbas;
	}
}

static uint32_t identify(struct tn_soft *s, struct tn_soft_work *w)
{
	unsigned char data[TN_NVME_IDENTIFY_BYTES];
	uint32_t what = w->c.dword10 & 0xff;

	if (what > TN_NVME_IDENTIFY_ACTIVE && (what != TN_NVME_IDENTIFY_LIMITS || s->o.ignorant))
		return TN_NVME_INVALID_FIELD;
	if (what == TN_NVME_IDENTIFY_NAMESPACE && w->c.namespace_id != 1)
		return TN_NVME_INVALID_NAMESPACE;
	identify_data(s, what, data);
	return tn_soft_to_memory(s, w, data, sizeof(data));
}

/* Entries that the host has not written are known by their bytes. */
static void empty_entry(struct tn_nvme_command *entry)
{
	memset(entry, 0xff, sizeof(*entry));
}

static void empty_queue(struct tn_soft *s, const struct tn_soft_sq *sq)
{
	for (uint32_t i = 0; i < sq->entries && !s->o.trusting; i++) {
		struct tn_nvme_command *entry = tn_soft_at(s, sq->bus + i * sizeof(*entry), sizeof(*entry));

		if (entry)
			empty_entry(entry);
	}
}

static uint32_t create_queue(struct tn_soft *s, const struct tn_nvme_command *c)
{
	uint32_t number = c->dword10 & 0xffff, entries = (c->dword10 >> 16) + 1;
	bool completion = c->opcode == TN_NVME_CREATE_CQ;

	if (number == 0 || number > s->made || (completion ? s->cq[number].entries : s->sq[number].entries))
		return TN_NVME_INVALID_QUEUE;
	if (entries < 2 || entries > s->o.entries)
		return TN_NVME_INVALID_SIZE;
	if (c->data[0] % TN_NVME_PAGE || !(c->dword11 & 1))
		return TN_NVME_INVALID_FIELD;
	if (completion) {
		s->cq[number] = (struct tn_soft_cq){.bus = c->data[0], .entries = entries, .phase = 1};
		set32(s, tn_nvme_doorbell(s->cap, number, 1), 0);
		return 0;
	}
	if (c->dword11 >> 16 != number || !s->cq[number].entries) /* one completion queue each, of the same number */
		return TN_NVME_INVALID_QUEUE;
	s->sq[number] = (struct tn_soft_sq){.bus = c->data[0], .entries = entries};
	empty_queue(s, &s->sq[number]);
	set32(s, tn_nvme_doorbell(s->cap, number, 0), 0);
	return 0;
}

static uint32_t delete_queue(struct tn_soft *s, const struct tn_nvme_command *c)
{
	uint32_t number = c->dword10 & 0xffff;

	if (number == 0 || number > s->o.queues || !(c->opcode == TN_NVME_DELETE_CQ ? s->cq[number].entries : s->sq[number].entries))
		return TN_NVME_INVALID_QUEUE;
	if (c->opcode == TN_NVME_DELETE_CQ) {
		if (s->sq[number].entries)
			return TN_NVME_INVALID_QUEUE;
		s->cq[number].entries = 0;
		return 0;
	}
	s->sq[number].entries = 0;
	for (uint32_t i = s->nactive; i-- > 0;) {
		struct tn_soft_work *w = &s->work[s->active[i]];

		if (w->queue != number)
			continue;
		if (!in_drive(s, w)) {
			forget(s, i);
			continue;
		}
		w->queue = TN_SOFT_NO_QUEUE; /* forgotten when the drive has done with it */
		w->done = true;
	}
	return 0;
}

/* What was lost ends now; what is under way may, or may not. */
static uint32_t abort_command(struct tn_soft *s, const struct tn_nvme_command *c, uint32_t *result)
{
	uint32_t at;
	struct tn_soft_work *w = under_way(s, c->dword10 & 0xffff, c->dword10 >> 16, &at);

	*result = 1;
	if (!w || !s->sq[w->queue].entries || (!w->lost && tn_rng_below(&s->rng, 2)))
		return 0;
	w->lost = false;
	w->done = true;
	w->status = TN_NVME_ABORTED;
	w->due = s->now;
	s->stats.aborts++;
	*result = 0;
	return 0;
}

static uint32_t admin(struct tn_soft *s, struct tn_soft_work *w)
{
	const struct tn_nvme_command *c = &w->c;

	switch (c->opcode) {
	case TN_NVME_IDENTIFY:
		return identify(s, w);
	case TN_NVME_CREATE_CQ:
	case TN_NVME_CREATE_SQ:
		return create_queue(s, c);
	case TN_NVME_DELETE_CQ:
	case TN_NVME_DELETE_SQ:
		return delete_queue(s, c);
	case TN_NVME_ABORT:
		return abort_command(s, c, &w->result);
	case TN_NVME_SET_FEATURES:
		if ((c->dword10 & 0xff) == TN_NVME_FEATURE_QUEUES)
			w->result = (s->granted - 1) | (s->granted - 1) << 16;
		return 0;
	default:
		return TN_NVME_INVALID_OPCODE;
	}
}

/* ---- fetching and completing --------------------------------------------------------------------------------------- */

static bool happens(struct tn_soft *s, const uint32_t *of)
{
	uint32_t chance = __atomic_load_n(of, __ATOMIC_RELAXED);
	bool yes = chance && tn_rng_below(&s->rng, 65536) < chance;

	s->stats.faults += yes;
	return yes;
}

static void accept(struct tn_soft *s, struct tn_soft_work *w)
{
	uint32_t at;

	w->number = ++s->number;
	w->result = w->status = 0;
	w->done = w->lost = w->twice = w->told = w->paced = false;
	w->due = s->now + (s->o.steps ? tn_rng_below(&s->rng, s->o.steps) : 0);
	if (!s->o.trusting && under_way(s, w->queue, w->c.id, &at)) {
		tn_soft_found(s, TN_SOFT_ID_IN_USE);
		w->status = TN_NVME_ID_CONFLICT;
		w->done = true;
	} else if (w->queue != TN_NVME_ADMIN) {
		w->status = tn_soft_look(s, w);
		w->done = w->status != 0;
		if (!w->done && happens(s, &s->chances.error)) {
			w->status = w->c.opcode == TN_NVME_READ ? TN_NVME_READ_FAULT : TN_NVME_WRITE_FAULT;
			w->done = true;
		}
		w->due += happens(s, &s->chances.late) ? s->o.late_steps : 0;
		w->lost = happens(s, &s->chances.lost);
		w->twice = happens(s, &s->chances.twice);
		enter_drive(s, w);
		if (w->c.opcode == TN_NVME_FLUSH)
			tn_soft_cover(s, w->number);
	}
	s->stats.commands++;
}

static void report_command(struct tn_soft *s, uint32_t queue)
{
	if (s->on_command && queue != TN_NVME_ADMIN)
		s->on_command(s->on_command_arg, s);
}

/* A fetched entry is emptied: one that is fetched again before the host has written it is known. The host never reads it. */
static bool fetch(struct tn_soft *s, uint32_t queue)
{
	struct tn_soft_sq *sq = &s->sq[queue];
	uint32_t bell = get32(s, tn_nvme_doorbell(s->cap, queue, 0)), n = 0;

	if (bell >= sq->entries) {
		tn_soft_found(s, TN_SOFT_BAD_DOORBELL);
		return false;
	}
	for (; sq->head != bell && s->nfree && n < FETCH_AT_ONCE; n++) {
		struct tn_soft_work *w = &s->work[s->free_work[s->nfree - 1]];
		struct tn_nvme_command *entry = tn_soft_at(s, sq->bus + sq->head * sizeof(*entry), sizeof(*entry));

		sq->head = (sq->head + 1) % sq->entries;
		if (!entry) {
			tn_soft_found(s, TN_SOFT_BAD_ADDRESS);
			continue;
		}
		w->c = *entry;
		w->queue = queue;
		if (!s->o.trusting) {
			if (w->c.opcode == 0xff && w->c.flags == 0xff) {
				tn_soft_found(s, TN_SOFT_NO_ENTRY);
				continue;
			}
			empty_entry(entry);
		}
		accept(s, w);
		s->active[s->nactive++] = s->free_work[--s->nfree];
		report_command(s, queue);
	}
	return n > 0;
}

/* True if the work is over. */
static bool complete(struct tn_soft *s, struct tn_soft_work *w)
{
	if (!w->done) {
		w->status = w->queue == TN_NVME_ADMIN ? admin(s, w) : tn_soft_do(s, w);
		w->done = true;
	}
	if (w->lost || !post(s, w))
		return false;
	w->told = true;
	if (!w->twice)
		return true;
	w->twice = false;
	return false;
}

static bool complete_due(struct tn_soft *s)
{
	bool any = false;

	drive_goes_on(s);
	for (uint32_t i = 0; i < s->nactive;) {
		struct tn_soft_work *w = &s->work[s->active[i]];
		uint32_t was = s->active[i], queue = w->queue;

		if (w->due > s->now || in_drive(s, w) || (w->lost && w->done)) {
			i++;
			continue;
		}
		any = true;
		if (queue == TN_SOFT_NO_QUEUE) {
			forget(s, i);
			continue;
		}
		if (complete(s, w) && i < s->nactive && s->active[i] == was)
			forget(s, i);
		else
			i++;
		report_command(s, queue);
	}
	return any;
}

/* ---- states ------------------------------------------------------------------------------------------------------------ */

static void drop_all(struct tn_soft *s)
{
	while (s->nactive)
		forget(s, 0);
	start_drive(s);
	memset(s->sq, 0, sizeof(s->sq));
	memset(s->cq, 0, sizeof(s->cq));
	set_all(s, TN_NVME_DOORBELLS, 0);
}

static void enabled(struct tn_soft *s, uint32_t cc)
{
	uint32_t aqa = get32(s, TN_NVME_AQA);
	uint64_t sq = get64(s, TN_NVME_ASQ), cq = get64(s, TN_NVME_ACQ);

	drop_all(s);
	if ((cc & 0xff0000) != TN_NVME_CC_ENTRIES || (cc & 0x7f0) || sq % TN_NVME_PAGE || cq % TN_NVME_PAGE || !(aqa & 0xfff) ||
	    !(aqa >> 16 & 0xfff)) {
		tn_soft_found(s, TN_SOFT_BAD_ENABLE);
		set32(s, TN_NVME_CSTS, TN_NVME_CSTS_FATAL);
		return;
	}
	s->sq[0] = (struct tn_soft_sq){.bus = sq, .entries = (aqa & 0xfff) + 1};
	empty_queue(s, &s->sq[0]);
	s->cq[0] = (struct tn_soft_cq){.bus = cq, .entries = (aqa >> 16 & 0xfff) + 1, .phase = 1};
	set32(s, TN_NVME_CSTS, TN_NVME_CSTS_READY);
}

static bool look_at_config(struct tn_soft *s)
{
	uint32_t cc = get32(s, TN_NVME_CC), was = s->cc;

	s->cc = cc;
	if (cc == was)
		return false;
	if (!(cc & TN_NVME_CC_ENABLE)) {
		if (was & TN_NVME_CC_ENABLE) {
			drop_all(s);
			s->stats.resets++;
			set32(s, TN_NVME_CSTS, 0);
		}
	} else if (!(was & TN_NVME_CC_ENABLE)) {
		enabled(s, cc);
	} else if (cc & TN_NVME_CC_SHUTDOWN_MASK) {
		tn_soft_settle(s, 0, UINT64_MAX);
		set32(s, TN_NVME_CSTS, get32(s, TN_NVME_CSTS) | TN_NVME_CSTS_SHUT);
	}
	return true;
}

bool tn_soft_step(struct tn_soft *s)
{
	bool any;

	s->now++;
	if (__atomic_load_n(&s->unplugged, __ATOMIC_ACQUIRE)) {
		set_all(s, 0, UINT32_MAX);
		return false;
	}
	if (__atomic_load_n(&s->hung, __ATOMIC_ACQUIRE) || s->now < s->stalls_until)
		return false;
	any = look_at_config(s);
	if ((get32(s, TN_NVME_CSTS) & (TN_NVME_CSTS_READY | TN_NVME_CSTS_FATAL)) != TN_NVME_CSTS_READY)
		return any;
	if (s->nactive && happens(s, &s->chances.fatal)) {
		set32(s, TN_NVME_CSTS, TN_NVME_CSTS_READY | TN_NVME_CSTS_FATAL);
		return true;
	}
	if (s->nactive && happens(s, &s->chances.stall)) {
		s->stalls_until = s->now + 1 + tn_rng_below(&s->rng, s->o.stall_steps);
		s->stats.stalls++;
		return true;
	}
	for (uint32_t i = 0; i <= s->o.queues; i++)
		any |= queue_entries(s, i) && fetch(s, i);
	return complete_due(s) || any;
}

/* ---- its thread ------------------------------------------------------------------------------------------------------------- */

static void *run(void *arg)
{
	struct tn_soft *s = arg;

	while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE))
		if (!tn_soft_step(s))
			sched_yield();
	return NULL;
}

int tn_soft_start(struct tn_soft *s)
{
	int rc;

	s->stop = false;
	rc = pthread_create(&s->thread, NULL, run, s);
	s->threaded = rc == 0;
	return rc ? tn_fail(-rc, "no thread for the software controller: %s", strerror(rc)) : 0;
}

void tn_soft_stop(struct tn_soft *s)
{
	if (!s->threaded)
		return;
	__atomic_store_n(&s->stop, true, __ATOMIC_RELEASE);
	pthread_join(s->thread, NULL);
	s->threaded = false;
}

static void pause_for_it(void *arg)
{
	struct tn_soft *s = arg;

	if (s->threaded)
		sched_yield();
	else
		tn_soft_step(s);
}

/* ---- made and unmade ----------------------------------------------------------------------------------------------------- */

void tn_soft_opts_init(struct tn_soft_opts *o)
{
	*o = (struct tn_soft_opts){.blocks = 32768, .block_bytes = 512, .entries = 256, .queues = 4, .mdts = 5, .sgl = 1, .cache = true, .seed = 1};
}

static int check_opts(const struct tn_soft_opts *o)
{
	if (o->blocks == 0 || (o->block_bytes != 512 && o->block_bytes != 4096) || o->entries < 2 || o->entries > TN_NVME_ENTRIES_MAX ||
	    o->queues == 0 || o->queues >= TN_SOFT_QUEUES_MAX || o->mdts > 10 || o->wzsl > 16 || o->stride > 4 || o->sgl > 3 || o->formats > 63 ||
	    o->lba_format > o->formats)
		return tn_fail(-EINVAL, "software controller: options out of bounds");
	return 0;
}

int tn_soft_create(const struct tn_soft_opts *opts, struct tn_soft **out)
{
	int rc = check_opts(opts);
	struct tn_soft *s;

	if (rc)
		return rc;
	s = calloc(1, sizeof(*s));
	if (!s)
		return tn_fail(-ENOMEM, "software controller: no memory");
	s->o = *opts;
	if (opts->mix) {
		s->mix = *opts->mix;
		s->o.mix = &s->mix;
	}
	start_drive(s);
	s->file = -1;
	s->chances = opts->chances;
	s->granted = s->made = opts->queues;
	s->cap = capabilities(s);
	tn_rng_seed(&s->rng, opts->seed);
	tn_rng_seed(&s->map_rng, opts->seed);
	s->register_bytes = TN_NVME_DOORBELLS + 2ull * TN_SOFT_QUEUES_MAX * tn_nvme_cap_stride(s->cap);
	rc = tn_soft_data_init(s);
	if (rc) {
		tn_soft_destroy(s);
		return rc;
	}
	memcpy(s->registers + TN_NVME_CAP, &s->cap, 8);
	set32(s, TN_NVME_VS, 0x20000);
	for (uint32_t i = 0; i < TN_SOFT_WORK_MAX; i++)
		s->free_work[s->nfree++] = TN_SOFT_WORK_MAX - 1 - i;
	s->port.name = "software controller";
	s->port.registers = s->registers;
	s->port.register_bytes = s->register_bytes;
	s->port.pause = pause_for_it;
	s->port.other = "its bus leads to memory of this process alone: hand over a provider of bus addresses";
	s->port.arg = s;
	*out = s;
	return 0;
}

void tn_soft_destroy(struct tn_soft *s)
{
	if (!s)
		return;
	tn_soft_stop(s);
	tn_soft_data_fini(s);
	free(s);
}

const struct tn_nvme_port *tn_soft_port(struct tn_soft *s)
{
	return &s->port;
}

struct tn_soft_moved tn_soft_moved_by(const struct tn_soft *s, uint32_t queue)
{
	return (struct tn_soft_moved){__atomic_load_n(&s->moved[queue].read, __ATOMIC_RELAXED), __atomic_load_n(&s->moved[queue].written, __ATOMIC_RELAXED)};
}

void tn_soft_fault(struct tn_soft *s, const struct tn_soft_chances *chances)
{
	__atomic_store_n(&s->chances.error, chances->error, __ATOMIC_RELAXED);
	__atomic_store_n(&s->chances.lost, chances->lost, __ATOMIC_RELAXED);
	__atomic_store_n(&s->chances.twice, chances->twice, __ATOMIC_RELAXED);
	__atomic_store_n(&s->chances.fatal, chances->fatal, __ATOMIC_RELAXED);
	__atomic_store_n(&s->chances.late, chances->late, __ATOMIC_RELAXED);
	__atomic_store_n(&s->chances.stall, chances->stall, __ATOMIC_RELAXED);
}

void tn_soft_grant(struct tn_soft *s, uint32_t granted, uint32_t made)
{
	s->granted = granted;
	s->made = made;
}

void tn_soft_hang(struct tn_soft *s)
{
	__atomic_store_n(&s->hung, true, __ATOMIC_RELEASE);
}

void tn_soft_unplug(struct tn_soft *s)
{
	__atomic_store_n(&s->unplugged, true, __ATOMIC_RELEASE);
	if (!s->threaded)
		tn_soft_step(s);
}

void tn_soft_power_cut(struct tn_soft *s)
{
	for (uint32_t i = 0; i < s->nactive; i++)
		if (!s->work[s->active[i]].done && s->work[s->active[i]].queue != TN_NVME_ADMIN && tn_rng_below(&s->rng, 2))
			tn_soft_do(s, &s->work[s->active[i]]);
	drop_all(s);
	tn_soft_lose(s);
	set32(s, TN_NVME_CC, 0);
	set32(s, TN_NVME_CSTS, 0);
	s->cc = 0;
	s->stalls_until = 0;
}

void tn_soft_on_command(struct tn_soft *s, tn_soft_command_fn fn, void *arg)
{
	s->on_command = fn;
	s->on_command_arg = arg;
}

uint64_t tn_soft_steps(const struct tn_soft *s)
{
	return s->now;
}

void tn_soft_stats(const struct tn_soft *s, struct tn_soft_stats *stats)
{
	*stats = s->stats;
}

unsigned char *tn_soft_media(struct tn_soft *s)
{
	return s->media;
}
