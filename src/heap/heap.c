/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of a heap but for those that write objects (write.c). What is not a request to the master is done here, on the mapped memory. */
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
	if (rc == 0 && o->driver)
		rc = tn_heap_on_device_make(&heap->device, &heap->memory);
	if (rc == 0)
		rc = tn_heap_serve(heap, &heap->server);
	if (rc != -EBUSY)
		return rc;
	/* Another rank has taken over after this one had died: it comes back as any other rank. */
	tn_heap_on_device_drop(&heap->device);
	heap->device.driver = o->driver;
	heap->device.device = o->device;
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
	heap->device.driver = o.driver;
	heap->device.device = o.device;
	pthread_mutex_init(&heap->device.lock, NULL);
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
	tn_heap_on_device_drop(&heap->device);
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
	if (heap->device.driver && !heap->device.allocated)
		return tn_fail(-ENOTSUP, "rank %u cannot take over: the payload lies in memory of a device that ended with the last master", heap->rank);
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

int tn_heap_slot_at_offset(struct tn_heap *heap, uint32_t rank, uint64_t header_off, uint32_t *out)
{
	uint64_t at = header_off - TN_HEAP_CTL_BYTES;

	if (rank >= heap->ranks || header_off < TN_HEAP_CTL_BYTES || at % sizeof(struct tn_heap_slot) ||
	    at / sizeof(struct tn_heap_slot) >= heap->memory.layout.hdr_count)
		return tn_fail(-EINVAL, "rank %u, header_off %llu: no header lies there", rank, (unsigned long long)header_off);
	*out = (uint32_t)(at / sizeof(struct tn_heap_slot));
	return 0;
}

unsigned char *tn_heap_payload(struct tn_heap *heap, uint32_t rank, uint64_t offset, uint64_t bytes)
{
	const struct tn_heap_ctl *layout = &heap->memory.layout;

	if (rank >= heap->ranks || offset < layout->heap_base || offset > layout->heap_limit || bytes > layout->heap_limit - offset)
		return NULL;
	return heap->memory.base[rank] + offset;
}

void tn_heap_count_pages(struct tn_heap *heap, uint64_t pages, uint64_t began_ns)
{
	tn_heap_count(&heap->memory, heap->rank, TN_HEAP_PAGES, pages);
	tn_heap_count(&heap->memory, heap->rank, TN_HEAP_PAGE_TIME, tn_now_ns(&tn_clock_system) - began_ns);
}

void *tn_heap_ptr(struct tn_heap *heap, uint32_t rank, uint64_t offset)
{
	const struct tn_heap_memory *m = &heap->memory;

	if (rank >= heap->ranks || offset >= m->layout.bytes || (offset >= m->layout.heap_base && !((m->rights.read | m->rights.write) >> rank & 1)))
		return NULL;
	if (heap->device.driver && offset >= m->layout.heap_base)
		return heap->device.payload[rank] + (offset - m->layout.heap_base);
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
	if (!tn_heap_payload(heap, meta->owner_rank, meta->payload_off, meta->bytes_total)) {
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
	int rc = tn_heap_slot_at_offset(heap, meta->owner_rank, meta->header_off, &slot);

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

/* Copies bytes of an object; sum: also their checksum. 0, or the device's error. */
static int read_payload(struct tn_heap *heap, const struct tn_heap_meta *meta, void *dst, uint64_t *sum)
{
	const void *bytes = tn_heap_payload(heap, meta->owner_rank, meta->payload_off, meta->bytes_total);
	int rc = 0;

	if (heap->device.driver) {
		rc = tn_heap_on_device_read(&heap->device, meta->owner_rank, meta->payload_off - heap->memory.layout.heap_base, dst, meta->bytes_total);
		if (rc == 0 && sum)
			*sum = tn_checksum(dst, meta->bytes_total);
	} else if (sum) {
		*sum = tn_checksum_copy(dst, bytes, meta->bytes_total, false);
	} else {
		memcpy(dst, bytes, meta->bytes_total);
	}
	return rc;
}

/* Copies an object that is under a lease. 0, -EBADMSG, or the device's error. */
static int copy_out(struct tn_heap *heap, const struct tn_heap_meta *meta, void *dst)
{
	const struct tn_heap_slot *s = tn_heap_slot_at(heap->memory.base[meta->owner_rank], meta->header_off);
	bool has_sum = s->extra.checksum_epoch == meta->epoch;
	uint64_t checksum = 0;
	int rc = read_payload(heap, meta, dst, has_sum ? &checksum : NULL);

	if (rc)
		return rc;
	if (!has_sum) {
		tn_heap_count(&heap->memory, heap->rank, TN_HEAP_UNVERIFIED, 1);
		return 0;
	}
	if (checksum == s->extra.checksum)
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
		tn_heap_count_pages(heap, meta.n_pages, began_ns);
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
