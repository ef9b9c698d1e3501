/* SPDX-License-Identifier: Apache-2.0 */
/* Executors beside a producer that writes nonsense: what they refuse, and that nothing but objects is written. Each test runs on all drivers. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "executor_rig.h"

#define ALL RIG_LAYERS

static uint32_t threads; /* of the run */

/* Nothing in an IOCB is trusted: it may come from another side of the shared memory. */
static void nonsense_is_refused_entry_by_entry(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 4096});
	uint32_t id = rig_iocb(r, 0, 7, 0, 0);
	struct tn_ioctx *x = tn_ring_ioctx(r->ring, id);
	struct tn_ring_completion c;

	x[0].place = tn_ioctx_disk(1, 1);
	x[1].length++;
	x[2].entry = RIG_BLOCKS * RIG_LAYERS;
	x[3].entry = UINT32_MAX;
	x[4].place = tn_ioctx_disk(0, (UINT64_C(1) << 56) - 1);
	x[5].place = tn_ioctx_disk(0, UINT64_C(1) << 40); /* past the end of the file */
	rig_issue(r, id);
	c = rig_await(r, id);
	assert_int_equal(c.failures, 6);
	assert_int_equal(c.failed, 0);
	assert_int_equal(c.status, -ENODEV);
	id = rig_iocb(r, 0, 1, 0, 0);
	tn_ring_iocb(r->ring, id)->list = 5;
	rig_issue(r, id);
	assert_int_equal(rig_await(r, id).status, -EINVAL);
	id = rig_iocb(r, 0, 1, 0, 0);
	tn_ring_iocb(r->ring, id)->list = UINT32_MAX;
	rig_issue(r, id);
	assert_int_equal(rig_await(r, id).status, -EINVAL);
	id = rig_iocb(r, 0, 1, 0, 0);
	tn_ring_iocb(r->ring, id)->op = 9;
	rig_issue(r, id);
	assert_int_equal(rig_await(r, id).status, -ENOTSUP);
	id = rig_iocb(r, 0, 1, 0, 0);
	tn_ring_iocb(r->ring, id)->count = 0; /* would never be finished */
	rig_issue(r, id);
	assert_int_equal(rig_await(r, id).status, -EINVAL);
	id = rig_iocb(r, 0, 1, 0, 0);
	tn_ring_iocb(r->ring, id)->count = RIG_BLOCKS * RIG_LAYERS + 1; /* more than an IOCB of this ring has */
	rig_issue(r, id);
	assert_int_equal(rig_await(r, id).status, -EINVAL);
	id = rig_iocb(r, 0, 1, 0, 0);
	tn_ring_iocb(r->ring, id)->after_event = 64; /* of as many */
	rig_issue(r, id);
	assert_int_equal(rig_await(r, id).status, -EINVAL);
	rig_check_guards(r);
	rig_free(r);
}

/* Reads objects of four blocks, or copies them from the slots; what the IOCB ended with. */
static struct tn_ring_completion move(struct rig *r, uint32_t layer, bool copies)
{
	uint32_t id = rig_iocb(r, 0, 4, layer, 0);

	rig_wipe(r);
	if (copies)
		rig_turn_into(r, id, TN_IOCB_COPY, false);
	rig_issue(r, id);
	return rig_await(r, id);
}

/* A list is checked against the memory that it names before anything becomes an address. */
static void lists_name_only_what_their_memory_has(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 400, .flat = true});
	uint64_t good[3], bytes = r->pool_range[0].bytes;

	rig_fill_slots(r);
	memcpy(good, r->flat, sizeof(good));
	for (uint32_t copies = 0; copies < 2; copies++) {
		r->flat[0] = bytes - r->shape.padded_bytes + 1; /* one byte too many, which is padding */
		r->flat[1] = TN_NO_OFFSET;
		r->flat[2] = UINT64_MAX - r->shape.padded_bytes / 2; /* the sum wraps around */
		assert_int_equal(move(r, 0, copies).failures, 3);
		for (uint32_t b = 0; b < 3; b++)
			assert_int_equal(r->status[b * RIG_LAYERS], -EFAULT);
		assert_true(r->status[3 * RIG_LAYERS] == 0 && rig_has(r, 3, 0));
		memcpy(r->flat, good, sizeof(good));
		assert_true(rig_clean(r, 0, 0) && rig_clean(r, 1, 0) && rig_clean(r, 2, 0));
		r->list.memory = RIG_MEMORIES; /* no number of a memory */
		assert_int_equal(move(r, 0, copies).status, -EINVAL);
		r->list.memory = RIG_POOL;
		r->memories[RIG_POOL] = NULL; /* one that this process does not reach */
		assert_int_equal(move(r, 0, copies).status, -EINVAL);
		r->memories[RIG_POOL] = &r->pool_memory;
	}
	r->slot[1] = RIG_BLOCKS * r->shape.slot_bytes;
	assert_int_equal(move(r, 0, true).failures, 1);
	assert_int_equal(r->status[1 * RIG_LAYERS], -EFAULT);
	assert_true(rig_clean(r, 1, 0) && rig_has(r, 2, 0));
	rig_free(r);
}

/* Of a memory with a range that no CPU may touch: objects there fail, and those of other ranges are moved. */
static void memory_without_an_address_is_not_touched(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 4096});

	rig_fill_slots(r);
	r->pool_range[2 * 1].address = NULL; /* a plane of layer 1 */
	for (uint32_t copies = 0; copies < 2; copies++) {
		assert_int_equal(move(r, ALL, copies).failures, 4);
		for (uint32_t b = 0; b < 4; b++)
			for (uint32_t l = 0; l < RIG_LAYERS; l++) {
				assert_int_equal(r->status[b * RIG_LAYERS + l], l == 1 ? -EFAULT : 0);
				assert_true(l == 1 || rig_has(r, b, l));
			}
	}
	rig_free(r);
}

/* A producer that keeps writing to an IOCB after its issue. */
struct hostile {
	struct rig *r;
	struct tn_rng rng;
	uint32_t target; /* shared: id + 1; 0: none */
	uint32_t at_it;	 /* shared: the target that it saw last */
	bool stop;	 /* shared */
};

#define HOSTILE_IOCTXS (6 * RIG_LAYERS)

static void set32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static void spoil(struct hostile *h, uint32_t id)
{
	static const uint32_t counts[] = {HOSTILE_IOCTXS, 1, 0, RIG_BLOCKS * RIG_LAYERS + 1, UINT32_MAX};
	static const uint32_t lists[] = {1, 1, 5, UINT32_MAX}, events[] = {TN_RING_NO_EVENT, 7, 1u << 28};
	struct tn_iocb *cb = tn_ring_iocb(h->r->ring, id);
	struct tn_ioctx *x = tn_ring_ioctx(h->r->ring, id) + tn_rng_below(&h->rng, HOSTILE_IOCTXS);
	uint32_t entry = tn_rng_below(&h->rng, RIG_BLOCKS * RIG_LAYERS), bytes = h->r->shape.object_bytes;
	uint64_t good = tn_ioctx_disk(0, rig_disk(h->r, entry / RIG_LAYERS, entry % RIG_LAYERS));

	switch (tn_rng_below(&h->rng, 8)) {
	case 0:
		set32(&cb->count, counts[tn_rng_below(&h->rng, 5)]);
		return;
	case 1:
		set32(&cb->list, lists[tn_rng_below(&h->rng, 4)]);
		return;
	case 2:
		set32(&cb->after_event, events[tn_rng_below(&h->rng, 3)]);
		return;
	case 3:
		set32(&x->length, tn_rng_below(&h->rng, 2) ? bytes : 64 * bytes);
		return;
	case 4:
		__atomic_store_n(&x->place, tn_rng_below(&h->rng, 2) ? good : tn_rng_next(&h->rng), __ATOMIC_RELAXED);
		return;
	default:
		set32(&x->entry, tn_rng_below(&h->rng, 2) ? entry : (uint32_t)tn_rng_next(&h->rng));
	}
}

static void *hostile_main(void *arg)
{
	struct hostile *h = arg;

	while (!__atomic_load_n(&h->stop, __ATOMIC_ACQUIRE)) {
		uint32_t target = __atomic_load_n(&h->target, __ATOMIC_ACQUIRE);

		__atomic_store_n(&h->at_it, target, __ATOMIC_RELEASE);
		if (target)
			spoil(h, target - 1);
		else
			sched_yield();
	}
	return NULL;
}

static void aim(struct hostile *h, uint32_t target)
{
	__atomic_store_n(&h->target, target, __ATOMIC_RELEASE);
	while (__atomic_load_n(&h->at_it, __ATOMIC_ACQUIRE) != target)
		sched_yield();
}

/* What is checked must be what is used: each round ends, and nothing but objects is written. */
static void an_iocb_that_is_written_to_while_it_is_read_harms_nobody(void **state)
{
	static const struct rig_opts how[] = {{.page_bytes = 4096}, {.page_bytes = 400}};
	uint32_t rounds = tn_test_soak() ? 20000 : 150;

	for (size_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
		struct rig_opts o = how[i];
		struct hostile h = {0};
		pthread_t thread;

		o.threads = threads;
		h.r = rig_make(o);
		tn_rng_seed(&h.rng, tn_test_seed() + i);
		assert_int_equal(pthread_create(&thread, NULL, hostile_main, &h), 0);
		for (uint32_t round = 1; round <= rounds; round++) {
			uint32_t id = rig_iocb(h.r, 0, HOSTILE_IOCTXS / RIG_LAYERS, ALL, TN_IOCB_VERIFY);
			uint64_t deadline = tn_test_deadline();

			/* Every other one is taken at once, so that its header changes meanwhile; the others wait. */
			if (round % 2)
				tn_ring_iocb(h.r->ring, id)->after_event = 7;
			tn_ring_iocb(h.r->ring, id)->after_value = round;
			rig_issue(h.r, id);
			aim(&h, id + 1);
			assert_int_equal(tn_ring_signal(h.r->ring, 7, round), 0);
			while (!rig_finished(h.r, id) && tn_test_now() < deadline)
				rig_step(h.r);
			aim(&h, 0);
			rig_await(h.r, id);
		}
		__atomic_store_n(&h.stop, true, __ATOMIC_RELEASE);
		assert_int_equal(pthread_join(thread, NULL), 0);
		rig_check_guards(h.r);
		rig_free(h.r);
	}
}

static int run_inline(void **state)
{
	threads = 0;
	return 0;
}

static int run_threads(void **state)
{
	threads = 2;
	return 0;
}

static int run_nvme(void **state)
{
	threads = 0;
	rig_drives = RIG_NVME;
	return 0;
}

static int run_nvme_thread(void **state)
{
	threads = 1;
	rig_drives = RIG_NVME_THREAD;
	return 0;
}

#define T(how, f) {#how ": " #f, f, run_##how, NULL, NULL}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(inline, nonsense_is_refused_entry_by_entry),
		T(inline, lists_name_only_what_their_memory_has),
		T(inline, memory_without_an_address_is_not_touched),
		T(inline, an_iocb_that_is_written_to_while_it_is_read_harms_nobody),
		T(threads, nonsense_is_refused_entry_by_entry),
		T(threads, lists_name_only_what_their_memory_has),
		T(threads, memory_without_an_address_is_not_touched),
		T(threads, an_iocb_that_is_written_to_while_it_is_read_harms_nobody),
		T(nvme, nonsense_is_refused_entry_by_entry),
		T(nvme, lists_name_only_what_their_memory_has),
		T(nvme, memory_without_an_address_is_not_touched),
		T(nvme, an_iocb_that_is_written_to_while_it_is_read_harms_nobody),
		T(nvme_thread, nonsense_is_refused_entry_by_entry),
		T(nvme_thread, lists_name_only_what_their_memory_has),
		T(nvme_thread, memory_without_an_address_is_not_touched),
		T(nvme_thread, an_iocb_that_is_written_to_while_it_is_read_harms_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
