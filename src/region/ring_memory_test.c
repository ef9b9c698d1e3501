/* SPDX-License-Identifier: Apache-2.0 */
/* What is believed of a region's head, and that no part of it lies in another. */
#include <errno.h>
#include <string.h>

#include "region/ring_memory.h"
#include "tn_test.h"

static const struct tn_ring_memory_opts opts = {.depth = 8, .ioctxs = 5, .events = 3};

static unsigned char *make(uint64_t *bytes)
{
	unsigned char *memory = NULL;

	*bytes = tn_ring_memory_bytes(&opts);
	assert_int_equal(posix_memalign((void **)&memory, TN_RING_PAGE, *bytes), 0);
	tn_ring_memory_init(memory, &opts);
	return memory;
}

static void bad_options_are_refused(void **state)
{
	static const struct tn_ring_memory_opts bad[] = {{0, 1, 0, 0}, {1, 1, 0, 0}, {6, 1, 0, 0}, {8192, 1, 0, 0}, {8, 0, 0, 0},
						    {8, 2049, 0, 0}, {8, 1, 65537, 0}};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(tn_ring_memory_bytes(&bad[i]), 0);
	assert_int_equal(tn_ring_memory_bytes(&opts) % TN_RING_PAGE, 0);
	assert_true(tn_ring_memory_bytes(&(struct tn_ring_memory_opts){4096, 2048, 65536, 0}) > 4096ull * 2048 * 28);
}

/* Each word is written through the view; all keep their values, and each lies in its writer's part. */
static void parts_do_not_overlap_and_lie_with_their_writer(void **state)
{
	struct tn_ring_view v;
	uint64_t bytes;
	unsigned char *memory = make(&bytes), *device = memory + ((struct tn_ring_shared *)(void *)memory)->executor_at;

	assert_int_equal(tn_ring_memory_view(memory, bytes, &v), 0);
	assert_int_equal((uintptr_t)(device - memory) % TN_RING_PAGE, 0);
	for (uint32_t i = 0; i < opts.depth; i++) {
		v.sq[i] = 0x1000 + i;
		v.cq[i] = 0x2000 + i;
		memset(&v.iocbs[i], 0x30 + (int)i, sizeof(v.iocbs[i]));
		memset(&v.results[i], 0x40 + (int)i, sizeof(v.results[i]));
	}
	memset(v.event_words, 0x51, opts.events * sizeof(uint64_t));
	memset(v.ctxs, 0x52, opts.depth * opts.ioctxs * sizeof(struct tn_ioctx));
	memset(v.status_words, 0x53, opts.depth * opts.ioctxs * sizeof(int32_t));
	memset(v.sum_words, 0x54, opts.depth * opts.ioctxs * sizeof(uint64_t));
	for (uint32_t i = 0; i < opts.depth; i++) {
		assert_int_equal(v.sq[i], 0x1000 + i);
		assert_int_equal(v.cq[i], 0x2000 + i);
		assert_int_equal(v.iocbs[i].count, 0x01010101u * (0x30 + i));
		assert_int_equal(v.results[i].ended, 0x01010101u * (0x40 + i));
	}
	assert_true(v.event_words[2] == 0x5151515151515151ull && v.ctxs[39].length == 0x52525252u);
	assert_true(v.status_words[39] == 0x53535353 && v.sum_words[39] == 0x5454545454545454ull);
	assert_true((unsigned char *)v.issued < device && (unsigned char *)v.collected < device && (unsigned char *)v.sq < device &&
		    (unsigned char *)v.iocbs < device && (unsigned char *)v.event_words < device && (unsigned char *)(v.ctxs + 40) <= device);
	assert_true((unsigned char *)v.taken >= device && (unsigned char *)v.finished >= device && (unsigned char *)v.cq >= device &&
		    (unsigned char *)v.results >= device && (unsigned char *)v.status_words >= device &&
		    (unsigned char *)v.sum_words >= device && (unsigned char *)(v.sum_words + 40) <= memory + bytes);
	assert_true(*v.issued == 0 && *v.collected == 0 && *v.taken == 0 && *v.finished == 0);
	free(memory);
}

/* Whatever byte of the head a stranger changes: it is refused, or is no word that leads anywhere. */
static void a_head_that_was_changed_is_refused(void **state)
{
	struct tn_ring_view v;
	uint64_t bytes;
	unsigned char *memory = make(&bytes);

	assert_int_equal(tn_ring_memory_view(memory, bytes - 1, &v), -EINVAL);
	assert_int_equal(tn_ring_memory_view(memory, sizeof(struct tn_ring_shared) - 1, &v), -EINVAL);
	assert_int_equal(tn_ring_memory_view(memory, bytes + TN_RING_PAGE, &v), 0);
	for (size_t i = 0; i < offsetof(struct tn_ring_shared, issued); i++) {
		for (int bit = 0; bit < 8; bit++) {
			memory[i] ^= (unsigned char)(1 << bit);
			/* A few events more or less may take the same memory. */
			if (tn_ring_memory_view(memory, bytes, &v) == 0)
				assert_true(i / 4 == offsetof(struct tn_ring_shared, events) / 4 &&
					    (void *)(v.event_words + v.events) <= (void *)v.ctxs);
			memory[i] ^= (unsigned char)(1 << bit);
		}
	}
	memory[offsetof(struct tn_ring_shared, issued)] ^= 1;
	assert_int_equal(tn_ring_memory_view(memory, bytes, &v), 0);
	free(memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_options_are_refused),
		cmocka_unit_test(parts_do_not_overlap_and_lie_with_their_writer),
		cmocka_unit_test(a_head_that_was_changed_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
