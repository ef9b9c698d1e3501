/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of a heap. What is not a request to the master is done here, on the mapped memory. */
#include <errno.h>
#include <string.h>
#include <tenuto/heap.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/alloc.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "heap/heap_internal.h"

#define SECOND 1000000000ull

void tn_heap_opts_init_sized(struct tn_heap_opts *opts, size_t size)
{
	const struct tn_heap_opts defaults = {.size = sizeof(defaults), .page_bytes = 256u << 10, .water_hi = 95, .water_lo = 85,
					      .reclaim_ns = 10 * SECOND, .timeout_ns = 30 * SECOND};

	tn_abi_init(opts, size, &defaults, sizeof(defaults));
}

/* ---- create, destroy -------------------------------------------------------------------------------------------- */

static int check_ranks(const char *name, uint32_t ranks, uint32_t rank, const struct tn_heap_opts *o)
{
	size_t n = name ? strlen(name) : 0;

	if (n == 0 || n > TN_HEAP_NAME_MAX || strchr(name, '/'))
		return tn_fail(-EINVAL, "name \"%.80s\": 1 to %d characters without '/' are needed", name ? name : "", TN_HEAP_NAME_MAX);
	if (ranks == 0 || ranks > TN_HEAP_RANKS_MAX || rank >= ranks || o->master_rank >= ranks)
		return tn_fail(-EINVAL, "rank %u and master_rank %u of %u ranks: both below the number of ranks, which is 1 to %u", rank,
			       o->master_rank, ranks, TN_HEAP_RANKS_MAX);
	return 0;
}

/* The first master's. The name is taken before anybody can ask for the memory. */
static int lead(struct tn_heap *heap, const struct tn_heap_opts *o)
{
	int rc = tn_heap_opts_check(o);

	if (rc == 0)
		rc = tn_heap_memory_make(heap->ranks, o, &heap->memory);
	if (rc == 0)
		rc = tn_heap_serve(heap, &heap->server);
	if (rc != -EBUSY)
		return rc;
	/* Another rank has taken over after this one had died: it comes back as any other rank. */
	tn_heap_memory_drop(&heap->memory);
	return tn_heap_join(heap);
}

int tn_heap_create(const char *name, uint32_t ranks, uint32_t rank, const struct tn_heap_opts *opts, struct tn_heap **out)
{
	struct tn_heap_opts o;
	struct tn_heap *heap;
	int rc;

	tn_heap_opts_init(&o);
	rc = opts ? tn_abi_in(TN_ABI(tn_heap_opts, timeout_ns), &o, opts) : 0;
	if (rc == 0)
		rc = check_ranks(name, ranks, rank, &o);
	if (rc)
		return rc;
	heap = tn_get(&tn_alloc_system, sizeof(*heap));
	if (!heap)
		return tn_fail(-ENOMEM, "no memory for heap %s", name);
	memcpy(heap->name, name, strlen(name) + 1);
	heap->ranks = ranks;
	heap->rank = rank;
	heap->timeout_ns = o.timeout_ns;
	heap->token = o.token;
	heap->sock = -1;
	heap->process = tn_process_mark();
	pthread_mutex_init(&heap->lock, NULL);
	rc = tn_heap_process_start(getpid(), &heap->start);
	if (rc)
		rc = tn_fail(rc, "/proc/%d/stat: %s", (int)getpid(), strerror(-rc));
	else
		rc = rank == o.master_rank ? lead(heap, &o) : tn_heap_join(heap);
	if (rc)
		tn_heap_destroy(heap);
	else
		*out = heap;
	return rc;
}

void tn_heap_destroy(struct tn_heap *heap)
{
	if (!heap || !tn_process_is(heap->process))
		return; /* of a forked child: nothing here is its own */
	tn_heap_serve_end(heap->server);
	/* The last access of this process: from here on its plans and leases may end. */
	if (heap->memory.dir)
		tn_heap_life_move(&heap->memory, heap->rank, getpid(), TN_HEAP_ALIVE, TN_HEAP_LEFT);
	tn_heap_memory_drop(&heap->memory);
	tn_heap_hang_up(heap);
	pthread_mutex_destroy(&heap->lock);
	tn_put(&tn_alloc_system, heap, sizeof(*heap));
}

int tn_heap_token_make(struct tn_heap *heap, uint32_t rank, uint64_t read, uint64_t write, struct tn_heap_token *out)
{
	const struct tn_heap_rights rights = {read, write};
	struct tn_heap_token token;
	int rc = 0;

	if (rank >= heap->ranks || ((read | write) & ~tn_heap_all_rights(heap->ranks).read))
		return tn_fail(-EINVAL, "rank %u, read %#llx, write %#llx: the heap has %u ranks", rank, (unsigned long long)read, (unsigned long long)write,
			       heap->ranks);
	rc = tn_rng_entropy(&token, sizeof(token));
	if (rc)
		return rc;
	pthread_mutex_lock(&heap->lock);
	if (heap->server)
		tn_heap_grant(heap->server, rank, &rights, &token);
	else
		rc = tn_fail(-EPERM, "rank %u is not the master, which makes the tokens", heap->rank);
	pthread_mutex_unlock(&heap->lock);
	if (rc == 0)
		*out = token;
	return rc;
}

int tn_heap_take_over(struct tn_heap *heap)
{
	struct tn_heap_rights all = tn_heap_all_rights(heap->ranks);
	int rc = 0;

	if ((heap->memory.rights.read & heap->memory.rights.write) != all.read)
		return tn_fail(-EACCES, "rank %u does not have all rights, which a master needs", heap->rank);
	pthread_mutex_lock(&heap->lock);
	if (!heap->server)
		rc = tn_heap_serve(heap, &heap->server);
	pthread_mutex_unlock(&heap->lock);
	return rc;
}

/* ---- small things ----------------------------------------------------------------------------------------------- */

int tn_heap_name_of(const void *key, size_t key_bytes, struct tn_heap_name *out)
{
	const struct tn_secret no_secret = {{0, 0}};
	const struct tn_key start = {{0, 0}};
	struct tn_key digest;

	if (!key || key_bytes == 0)
		return tn_fail(-EINVAL, "a key of 0 bytes: at least one is needed");
	digest = tn_hash_chain(&no_secret, &start, key, key_bytes);
	*out = (struct tn_heap_name){tn_hash_xxh64(key, key_bytes), {digest.word[0], digest.word[1]}};
	return 0;
}

/* The slot that a plan or a location names; its number. */
static int slot_of(struct tn_heap *heap, uint32_t rank, uint64_t header_off, uint32_t *out)
{
	uint64_t at = header_off - TN_HEAP_CTL_BYTES;

	if (rank >= heap->ranks || header_off < TN_HEAP_CTL_BYTES || at % sizeof(struct tn_heap_slot) ||
	    at / sizeof(struct tn_heap_slot) >= heap->memory.layout.hdr_count)
		return tn_fail(-EINVAL, "rank %u, header_off %llu: no header lies there", rank, (unsigned long long)header_off);
	*out = (uint32_t)(at / sizeof(struct tn_heap_slot));
	return 0;
}

/* Payload that lies within the heap; else NULL. */
static unsigned char *payload(struct tn_heap *heap, uint32_t rank, uint64_t offset, uint64_t bytes)
{
	const struct tn_heap_ctl *layout = &heap->memory.layout;

	if (rank >= heap->ranks || offset < layout->heap_base || offset > layout->heap_limit || bytes > layout->heap_limit - offset)
		return NULL;
	return heap->memory.base[rank] + offset;
}

void *tn_heap_ptr(struct tn_heap *heap, uint32_t rank, uint64_t offset)
{
	const struct tn_heap_memory *m = &heap->memory;

	if (rank >= heap->ranks || offset >= m->layout.bytes || (offset >= m->layout.heap_base && !((m->rights.read | m->rights.write) >> rank & 1)))
		return NULL;
	return m->base[rank] + offset;
}

uint32_t tn_heap_rank(const struct tn_heap *heap)
{
	return heap->rank;
}

uint32_t tn_heap_ranks(const struct tn_heap *heap)
{
	return heap->ranks;
}

uint64_t tn_heap_write_rights(const struct tn_heap *heap)
{
	return heap->memory.rights.write;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* Where the plan's replica i goes. */
static struct tn_heap_copy replica_of(const struct tn_heap_plan *plan, uint32_t i)
{
	return i ? plan->copy[i - 1] : (struct tn_heap_copy){plan->header_off, plan->payload_base, plan->dst_rank, plan->epoch};
}

/* Of a plan whose replicas lie within the heap: their slots. */
static int check_replicas(struct tn_heap *heap, const struct tn_heap_plan *plan, uint32_t slot[TN_HEAP_REPLICAS_MAX])
{
	int rc = 0;

	if (plan->copies >= TN_HEAP_REPLICAS_MAX)
		return tn_fail(-EINVAL, "a plan with %u copies: %u at most", plan->copies, TN_HEAP_REPLICAS_MAX - 1);
	for (uint32_t i = 0; i <= plan->copies && rc == 0; i++) {
		struct tn_heap_copy r = replica_of(plan, i);

		rc = slot_of(heap, r.rank, r.header_off, &slot[i]);
		if (rc == 0 && !(heap->memory.rights.write >> r.rank & 1))
			rc = tn_fail(-EACCES, "rank %u may not write into the heap of rank %u", heap->rank, r.rank);
		if (rc == 0 && !payload(heap, r.rank, r.payload_base, plan->bytes_total))
			rc = tn_fail(-EINVAL, "payload_base %llu: the plan lies outside of the heap", (unsigned long long)r.payload_base);
	}
	return rc;
}

/* Whether the master has planned what it was asked for. The caller writes as many bytes as it wanted. */
static int check_plan(struct tn_heap *heap, const struct tn_heap_want *want, const struct tn_heap_plan *plan, uint32_t slot[TN_HEAP_REPLICAS_MAX])
{
	uint32_t page_bytes = heap->memory.layout.page_bytes;
	bool sound = plan->bytes_total == want->bytes && plan->page_bytes == page_bytes &&
		     plan->n_pages == (want->bytes + page_bytes - 1) / page_bytes && plan->copies == tn_heap_replicas(want->flags) - 1;

	for (uint32_t i = 0; sound && i <= plan->copies; i++)
		sound = replica_of(plan, i).rank == (want->owner + i) % heap->ranks;
	if (!sound)
		return tn_fail(-EINVAL, "the master's plan of %llu bytes in %u pages at rank %u is not what it was asked for: %llu bytes at rank %u",
			       (unsigned long long)plan->bytes_total, plan->n_pages, plan->dst_rank, (unsigned long long)want->bytes, want->owner);
	return check_replicas(heap, plan, slot);
}

/* This rank writes a replica from now on; or no more. False: its part of the plan has ended. */
static bool begin(struct tn_heap *heap, const struct tn_heap_copy *r, uint32_t slot)
{
	return tn_heap_begin(tn_heap_slot_of(&heap->memory, r->rank, slot), r->epoch, heap->rank);
}

static bool finish(struct tn_heap *heap, const struct tn_heap_copy *r, uint32_t slot, uint32_t to)
{
	return tn_heap_finish(tn_heap_slot_of(&heap->memory, r->rank, slot), r->epoch, heap->rank, to);
}

static int begin_all(struct tn_heap *heap, const struct tn_heap_plan *plan, const uint32_t *slot)
{
	for (uint32_t i = 0; i <= plan->copies; i++) {
		struct tn_heap_copy r = replica_of(plan, i);

		if (begin(heap, &r, slot[i]))
			continue;
		while (i--) {
			r = replica_of(plan, i);
			finish(heap, &r, slot[i], TN_HEAP_DEAD);
		}
		return tn_fail(-ESTALE, "the plan had ended when it came: this process was stopped for longer than reclaim_ns; try again");
	}
	return 0;
}

/* tn_heap_open_for_write, with the slots. */
static int open_slots(struct tn_heap *heap, struct tn_heap_want *want, struct tn_heap_plan *plan, uint32_t slot[TN_HEAP_REPLICAS_MAX])
{
	struct tn_heap_ask ask = {.op = TN_HEAP_OPEN};
	struct tn_heap_told told;
	int rc;

	if (want->owner == TN_HEAP_ANY)
		want->owner = (uint32_t)(want->name.hash % heap->ranks);
	ask.want = *want;
	rc = tn_heap_request(heap, &ask, &told);
	if (rc == 0)
		rc = check_plan(heap, want, &told.plan, slot);
	if (rc == 0)
		rc = begin_all(heap, &told.plan, slot);
	if (rc == 0)
		*plan = told.plan;
	return rc;
}

int tn_heap_open_for_write(struct tn_heap *heap, const void *key, size_t key_bytes, uint64_t bytes, uint32_t owner, uint32_t flags,
			   struct tn_heap_plan *plan)
{
	struct tn_heap_want want = {.bytes = bytes, .owner = owner, .flags = flags};
	uint32_t slot[TN_HEAP_REPLICAS_MAX];
	int rc = tn_heap_name_of(key, key_bytes, &want.name);

	return rc ? rc : open_slots(heap, &want, plan, slot);
}

/*
 * A free extent of the owner's heap: its slot, WRITING by this rank, and where it lies; TN_HEAP_NO_SLOT. The master may have resized it just before
 * the claim.
 */
static uint32_t claim_extent(struct tn_heap *heap, uint32_t owner, uint32_t size_class, uint32_t *epoch, uint64_t *base)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(&heap->memory, owner);
	uint32_t slot = tn_heap_claim(tn_heap_slot_of(&heap->memory, owner, 0), heap->memory.layout.hdr_count, &ctl->free_head[size_class],
				      tn_heap_by(TN_HEAP_WRITING, heap->rank), epoch);
	struct tn_heap_slot *s;

	if (slot == TN_HEAP_NO_SLOT)
		return slot;
	s = tn_heap_slot_of(&heap->memory, owner, slot);
	*base = __atomic_load_n(&s->header.payload_base, __ATOMIC_RELAXED);
	if (tn_heap_class_of(s) == size_class && payload(heap, owner, *base, (uint64_t)heap->memory.layout.page_bytes << size_class))
		return slot;
	tn_heap_finish(s, *epoch, heap->rank, TN_HEAP_DEAD);
	return TN_HEAP_NO_SLOT;
}

int tn_heap_reserve(struct tn_heap *heap, const void *key, size_t key_bytes, uint64_t bytes, uint32_t owner, uint32_t flags,
		    struct tn_heap_plan *plan)
{
	uint32_t page_bytes = heap->memory.layout.page_bytes, size_class = tn_heap_class(page_bytes, bytes), slot = TN_HEAP_NO_SLOT, epoch;
	struct tn_heap_found found;
	struct tn_heap_name name;
	struct tn_heap_slot *s;
	uint64_t base;
	int rc = tn_heap_name_of(key, key_bytes, &name);

	if (rc)
		return rc;
	if (owner == TN_HEAP_ANY)
		owner = (uint32_t)(name.hash % heap->ranks);
	if (bytes && owner < heap->ranks && (heap->memory.rights.write >> owner & 1) && size_class < TN_HEAP_CLASSES && !(flags & ~(TN_HEAP_PIN | TN_HEAP_PRIORITY)) &&
	    tn_heap_find_any(&heap->memory, &name, &found))
		slot = claim_extent(heap, owner, size_class, &epoch, &base);
	if (slot == TN_HEAP_NO_SLOT) /* the master has more means, and says what is wrong */
		return tn_heap_open_for_write(heap, key, key_bytes, bytes, owner, flags, plan);
	s = tn_heap_slot_of(&heap->memory, owner, slot);
	tn_heap_describe(s, &name, bytes, page_bytes, flags);
	*plan = (struct tn_heap_plan){.key_hash = name.hash, .dst_rank = owner, .epoch = epoch,
				      .header_off = TN_HEAP_CTL_BYTES + (uint64_t)slot * sizeof(*s), .payload_base = base, .bytes_total = bytes,
				      .page_bytes = page_bytes, .n_pages = (uint32_t)((bytes + page_bytes - 1) / page_bytes), .announces = 1};
	return 0;
}

/* What is lost of it - the ring is full, the master does not live - the master's sweep finds. */
static void announce(struct tn_heap *heap, const struct tn_heap_plan *plan)
{
	const struct tn_heap_announce a = {.key_hash = plan->key_hash, .owner_rank = plan->dst_rank, .epoch = plan->epoch,
					   .header_off = plan->header_off, .payload_off = plan->payload_base, .n_pages = plan->n_pages,
					   .page_size = plan->page_bytes, .bytes_total = plan->bytes_total};
	const uint64_t one = 1;

	tn_heap_announce(heap->memory.base[plan->dst_rank], &heap->memory.layout, &a);
	while (write(heap->memory.wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static int refused(struct tn_heap *heap, const struct tn_heap_plan *plan)
{
	tn_heap_count(&heap->memory, heap->rank, TN_HEAP_CAS_FAILURES, 1);
	return tn_fail(-ESTALE, "key hash %#llx: the plan has ended: it was not committed within reclaim_ns, or its object is gone already; write the object again",
		       (unsigned long long)plan->key_hash);
}

/* Whether this rank may write the replica still. Of another epoch, if the plan was committed before: then nothing there is this plan's any more. */
static bool is_mine(struct tn_heap *heap, const struct tn_heap_copy *r, uint32_t slot)
{
	uint64_t word = tn_heap_load64(tn_heap_state_word(tn_heap_slot_of(&heap->memory, r->rank, slot)));

	return tn_heap_word_epoch(word) == r->epoch && tn_heap_word_rank(word) == heap->rank;
}

/* The header's second line is the producer's until it has ended: no slot is freed before. */
static bool publish(struct tn_heap *heap, const struct tn_heap_copy *r, uint32_t slot, uint64_t checksum)
{
	struct tn_heap_slot *s = tn_heap_slot_of(&heap->memory, r->rank, slot);

	if (is_mine(heap, r, slot)) {
		s->extra.checksum = checksum;
		s->extra.checksum_epoch = r->epoch;
	}
	return finish(heap, r, slot, TN_HEAP_READY);
}

/*
 * Copies the first replica to the others that this rank writes, and publishes all that are WRITING. Returns how many became READY. The first one comes last: while
 * it is copied it must not be evicted, so it stays this rank's, or the caller holds a lease on it.
 */
static uint32_t publish_all(struct tn_heap *heap, const struct tn_heap_plan *plan, const uint32_t *slot)
{
	const unsigned char *bytes = payload(heap, plan->dst_rank, plan->payload_base, plan->bytes_total);
	uint32_t published = 0;

	for (uint32_t i = plan->copies + 1; i--;) {
		struct tn_heap_copy r = replica_of(plan, i);

		if (!is_mine(heap, &r, slot[i]))
			continue;
		published += publish(heap, &r, slot[i], i ? tn_checksum_copy(payload(heap, r.rank, r.payload_base, plan->bytes_total), bytes, plan->bytes_total, true)
							  : tn_checksum(bytes, plan->bytes_total));
	}
	return published;
}

/* Gives up what this rank still writes of a plan. Returns how many replicas these are. */
static uint32_t end_all(struct tn_heap *heap, const struct tn_heap_plan *plan, const uint32_t *slot)
{
	uint32_t ended = 0;

	for (uint32_t i = 0; i <= plan->copies; i++) {
		struct tn_heap_copy r = replica_of(plan, i);

		ended += finish(heap, &r, slot[i], TN_HEAP_DEAD);
	}
	return ended;
}

int tn_heap_commit(struct tn_heap *heap, const struct tn_heap_plan *plan)
{
	const struct tn_heap_copy source = replica_of(plan, 0);
	uint32_t slot[TN_HEAP_REPLICAS_MAX], *count;
	struct tn_heap_slot *first;
	int rc = check_replicas(heap, plan, slot);
	bool was_ready;

	if (rc)
		return rc;
	first = tn_heap_slot_of(&heap->memory, plan->dst_rank, slot[0]);
	was_ready = tn_heap_load64(tn_heap_state_word(first)) == tn_heap_word(TN_HEAP_READY, plan->epoch); /* a kernel was here */
	if (was_ready && plan->copies == 0)
		return 0;
	count = &tn_heap_leases_of(&heap->memory, plan->dst_rank, slot[0])[heap->rank];
	if (was_ready && tn_heap_lease(first, count, plan->epoch)) {
		publish_all(heap, plan, slot);
		tn_heap_unlease(count);
		return 0;
	}
	/* A kernel's object may have gone since, and its memory be another one's: nothing is left to copy from. */
	if (!is_mine(heap, &source, slot[0])) {
		end_all(heap, plan, slot);
		return refused(heap, plan);
	}
	if (publish_all(heap, plan, slot) == 0)
		return refused(heap, plan);
	if (plan->announces)
		announce(heap, plan);
	return 0;
}

int tn_heap_abandon(struct tn_heap *heap, const struct tn_heap_plan *plan)
{
	uint32_t slot[TN_HEAP_REPLICAS_MAX];
	int rc = check_replicas(heap, plan, slot);

	return rc ? rc : end_all(heap, plan, slot) ? 0 : refused(heap, plan);
}

static void count_pages(struct tn_heap *heap, uint64_t pages, uint64_t began_ns)
{
	tn_heap_count(&heap->memory, heap->rank, TN_HEAP_PAGES, pages);
	tn_heap_count(&heap->memory, heap->rank, TN_HEAP_PAGE_TIME, tn_now_ns(&tn_clock_system) - began_ns);
}

int tn_heap_put(struct tn_heap *heap, const void *key, size_t key_bytes, const void *src, uint64_t bytes, uint32_t owner, uint32_t flags)
{
	struct tn_heap_want want = {.bytes = bytes, .owner = owner, .flags = flags};
	uint32_t slot[TN_HEAP_REPLICAS_MAX], published = 0;
	struct tn_heap_plan plan;
	uint64_t began_ns;
	int rc = tn_heap_name_of(key, key_bytes, &want.name);

	if (rc == 0)
		rc = open_slots(heap, &want, &plan, slot);
	if (rc)
		return rc;
	began_ns = tn_now_ns(&tn_clock_system);
	for (uint32_t i = 0; i <= plan.copies; i++) {
		struct tn_heap_copy r = replica_of(&plan, i);

		published += publish(heap, &r, slot[i], tn_checksum_copy(payload(heap, r.rank, r.payload_base, bytes), src, bytes, true));
	}
	count_pages(heap, (uint64_t)plan.n_pages * (plan.copies + 1), began_ns);
	if (published == 0)
		return refused(heap, &plan);
	tn_heap_count(&heap->memory, heap->rank, TN_HEAP_BYTES_TX, bytes * (plan.copies + 1));
	return 0;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Where the object lies; of a slot that may change meanwhile, unless it is under a lease. */
static struct tn_heap_meta meta_of(const struct tn_heap *heap, const struct tn_heap_found *f)
{
	const struct tn_heap_header *h = &tn_heap_slot_of(&heap->memory, f->rank, f->slot)->header;

	return (struct tn_heap_meta){.key_hash = h->key_hash, .owner_rank = f->rank, .epoch = tn_heap_word_epoch(f->word),
				     .header_off = TN_HEAP_CTL_BYTES + (uint64_t)f->slot * sizeof(struct tn_heap_slot),
				     .payload_off = h->payload_base, .bytes_total = h->bytes_total,
				     .page_bytes = heap->memory.layout.page_bytes, .n_pages = h->n_pages};
}

/* tn_heap_hold of a replica that does not lie at the ranks of @without. *meta is set, too, if the header is damaged (-EBADMSG). */
static int hold_named(struct tn_heap *heap, const struct tn_heap_name *name, uint64_t without, struct tn_heap_meta *meta)
{
	struct tn_heap_found f;
	int rc;

	/* An object that goes between the look and the lease may have come back in another slot. */
	while ((rc = tn_heap_find(&heap->memory, name, heap->rank, without | ~heap->memory.rights.read, &f)) == 0) {
		if (tn_heap_word_state(f.word) != TN_HEAP_READY)
			return -EAGAIN;
		if (tn_heap_lease(tn_heap_slot_of(&heap->memory, f.rank, f.slot), &tn_heap_leases_of(&heap->memory, f.rank, f.slot)[heap->rank],
				  tn_heap_word_epoch(f.word)))
			break;
	}
	if (rc == -ENOENT && tn_heap_find(&heap->memory, name, heap->rank, without | heap->memory.rights.read, &f) == 0)
		return tn_fail(-EACCES, "key hash %#llx: rank %u may not read the heap of rank %u", (unsigned long long)name->hash, heap->rank, f.rank);
	if (rc)
		return rc;
	*meta = meta_of(heap, &f);
	if (!payload(heap, meta->owner_rank, meta->payload_off, meta->bytes_total)) {
		tn_heap_release(heap, meta);
		tn_heap_count(&heap->memory, heap->rank, TN_HEAP_FAILURES, 1);
		return tn_fail(-EBADMSG, "key hash %#llx: its header is damaged: it names bytes outside of the heap", (unsigned long long)meta->key_hash);
	}
	if (heap->memory.order == TN_HEAP_LAST_ACCESS)
		__atomic_store_n(&tn_heap_slot_of(&heap->memory, f.rank, f.slot)->header.last_access, tn_now_ns(&tn_clock_system), __ATOMIC_RELAXED);
	return 0;
}

int tn_heap_hold(struct tn_heap *heap, const void *key, size_t key_bytes, struct tn_heap_meta *meta)
{
	struct tn_heap_meta found;
	struct tn_heap_name name;
	int rc = tn_heap_name_of(key, key_bytes, &name);

	if (rc == 0)
		rc = hold_named(heap, &name, 0, &found);
	if (rc == 0)
		*meta = found;
	return rc;
}

int tn_heap_release(struct tn_heap *heap, const struct tn_heap_meta *meta)
{
	uint32_t slot, *count;
	int rc = slot_of(heap, meta->owner_rank, meta->header_off, &slot);

	if (rc)
		return rc;
	count = &tn_heap_leases_of(&heap->memory, meta->owner_rank, slot)[heap->rank];
	if (tn_heap_load32(count) == 0)
		return tn_fail(-EINVAL, "rank %u, header_off %llu: this rank holds no lease there", meta->owner_rank,
			       (unsigned long long)meta->header_off);
	tn_heap_unlease(count);
	return 0;
}

int tn_heap_get_location(struct tn_heap *heap, const void *key, size_t key_bytes, struct tn_heap_meta *meta)
{
	struct tn_heap_meta found;
	int rc = tn_heap_hold(heap, key, key_bytes, &found);

	if (rc)
		return rc;
	tn_heap_release(heap, &found);
	*meta = found;
	return 0;
}

/* Copies an object that is under a lease. 0, -EBADMSG. */
static int copy_out(struct tn_heap *heap, const struct tn_heap_meta *meta, void *dst)
{
	const struct tn_heap_slot *s = tn_heap_slot_at(heap->memory.base[meta->owner_rank], meta->header_off);
	const void *bytes = tn_heap_ptr(heap, meta->owner_rank, meta->payload_off);

	if (s->extra.checksum_epoch != meta->epoch) {
		memcpy(dst, bytes, meta->bytes_total);
		tn_heap_count(&heap->memory, heap->rank, TN_HEAP_UNVERIFIED, 1);
		return 0;
	}
	if (tn_checksum_copy(dst, bytes, meta->bytes_total, false) == s->extra.checksum)
		return 0;
	tn_heap_count(&heap->memory, heap->rank, TN_HEAP_FAILURES, 1);
	return tn_fail(-EBADMSG, "key hash %#llx at rank %u: its bytes do not have its checksum; remove it", (unsigned long long)meta->key_hash,
		       meta->owner_rank);
}

/* One replica; *rank: where it lies. */
static int get_replica(struct tn_heap *heap, const struct tn_heap_name *name, uint64_t without, void *dst, uint64_t dst_bytes, uint64_t *bytes,
		       uint32_t *rank)
{
	struct tn_heap_meta meta;
	uint64_t began_ns;
	int rc = hold_named(heap, name, without, &meta);

	if (rc == 0 || rc == -EBADMSG)
		*rank = meta.owner_rank;
	if (rc)
		return rc;
	*bytes = meta.bytes_total;
	if (meta.bytes_total > dst_bytes) {
		rc = tn_fail(-ENOBUFS, "the object has %llu bytes, dst has %llu", (unsigned long long)meta.bytes_total, (unsigned long long)dst_bytes);
	} else {
		began_ns = tn_now_ns(&tn_clock_system);
		rc = copy_out(heap, &meta, dst);
		count_pages(heap, meta.n_pages, began_ns);
	}
	tn_heap_release(heap, &meta);
	if (rc == 0)
		tn_heap_count(&heap->memory, heap->rank, TN_HEAP_BYTES_RX, meta.bytes_total);
	return rc;
}

int tn_heap_get(struct tn_heap *heap, const void *key, size_t key_bytes, void *dst, uint64_t dst_bytes, uint64_t *bytes)
{
	struct tn_heap_name name;
	uint64_t damaged = 0;
	uint32_t rank = 0;
	int rc = tn_heap_name_of(key, key_bytes, &name), next;

	if (rc)
		return rc;
	while ((next = get_replica(heap, &name, damaged, dst, dst_bytes, bytes, &rank)) == -EBADMSG && !(damaged >> rank & 1)) {
		damaged |= UINT64_C(1) << rank;
		rc = next;
	}
	return next == -ENOENT && rc ? rc : next; /* there is no other replica than the damaged one */
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

int tn_heap_remove(struct tn_heap *heap, const void *key, size_t key_bytes)
{
	struct tn_heap_ask ask = {.op = TN_HEAP_REMOVE};
	struct tn_heap_told told;
	int rc = tn_heap_name_of(key, key_bytes, &ask.want.name);

	return rc ? rc : tn_heap_request(heap, &ask, &told);
}

int tn_heap_evict_until_below(struct tn_heap *heap, uint32_t percent)
{
	struct tn_heap_ask ask = {.op = TN_HEAP_EVICT, .percent = percent};
	struct tn_heap_told told;
	int rc = tn_heap_request(heap, &ask, &told);

	return rc ? rc : (int)told.count;
}

/* What the headers tell at this moment. */
static void count_slots(struct tn_heap *heap, uint32_t rank, struct tn_heap_stats *st)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(&heap->memory, rank);
	const struct tn_heap_ctl *layout = &heap->memory.layout;
	uint32_t head = tn_heap_head(&heap->memory, rank);

	st->heap_total = layout->heap_limit - layout->heap_base;
	st->ann_ring_depth = tn_heap_load32(&ctl->ann_head) - tn_heap_load32(&ctl->ann_tail);
	for (uint32_t i = 0; i < head; i++) {
		struct tn_heap_slot *s = tn_heap_slot_of(&heap->memory, rank, i);
		uint64_t word = tn_heap_load64(tn_heap_state_word(s));
		uint32_t size_class = tn_heap_class_of(s);

		st->ready_count += tn_heap_word_state(word) == TN_HEAP_READY;
		if (!tn_heap_word_is_free(word) && size_class < TN_HEAP_CLASSES)
			st->heap_used += (uint64_t)layout->page_bytes << size_class;
		for (uint32_t r = 0; r < heap->ranks; r++)
			st->leases += tn_heap_load32(&tn_heap_leases_of(&heap->memory, rank, i)[r]);
	}
}

int tn_heap_stats_get(struct tn_heap *heap, uint32_t rank, struct tn_heap_stats *out)
{
	struct tn_heap_stats st = {.size = sizeof(st)};
	uint64_t n[TN_HEAP_COUNTERS];
	int rc = tn_abi_check(TN_ABI_RESULT(tn_heap_stats, page_time_ns), out);

	if (rc)
		return rc;
	if (rank >= heap->ranks)
		return tn_fail(-EINVAL, "rank %u: the heap has %u ranks", rank, heap->ranks);
	for (uint32_t i = 0; i < TN_HEAP_COUNTERS; i++)
		n[i] = __atomic_load_n(&heap->memory.dir->member[rank].counter[i], __ATOMIC_RELAXED);
	count_slots(heap, rank, &st);
	st.evictions = n[TN_HEAP_EVICTIONS];
	st.reclaims = n[TN_HEAP_RECLAIMS];
	st.oom = n[TN_HEAP_OOM];
	st.bytes_tx = n[TN_HEAP_BYTES_TX];
	st.bytes_rx = n[TN_HEAP_BYTES_RX];
	st.failures = n[TN_HEAP_FAILURES];
	st.timeouts = n[TN_HEAP_TIMEOUTS];
	st.cas_failures = n[TN_HEAP_CAS_FAILURES];
	st.unverified_reads = n[TN_HEAP_UNVERIFIED];
	st.pages = n[TN_HEAP_PAGES];
	st.page_time_ns = n[TN_HEAP_PAGE_TIME];
	tn_abi_out(TN_ABI_RESULT(tn_heap_stats, page_time_ns), out, &st);
	return 0;
}
