/* SPDX-License-Identifier: Apache-2.0 */
/* The P2P table against a byte-by-byte look-up, and its size for a pool of 60 GB. Nothing at the addresses is touched. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "nvme/p2p.h"
#include "tn_test.h"

#define PAGE 4096u

/* Where each page of a small piece of address space lies; 0: nowhere. */
struct map {
	uintptr_t base;
	uint32_t pages;
	uint64_t bus[256];
	uint64_t most; /* bytes that one call tells about */
};

static int translate(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous)
{
	const struct map *m = arg;
	uint64_t at = address - m->base, first = at / PAGE, n = 1;

	if (first >= m->pages || !m->bus[first])
		return tn_fail(-EFAULT, "not mapped");
	while (first + n < m->pages && m->bus[first + n] == m->bus[first] + n * PAGE)
		n++;
	*bus = m->bus[first] + at % PAGE;
	*contiguous = n * PAGE - at % PAGE;
	if (*contiguous > length)
		*contiguous = length;
	if (*contiguous > m->most)
		*contiguous = m->most;
	return 0;
}

static uint64_t one(const struct map *m, uintptr_t address)
{
	uint64_t at = address - m->base;

	return m->bus[at / PAGE] + at % PAGE;
}

static void every_byte_of_random_mappings_is_found(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int round = 0; round < 300; round++) {
		struct map m = {.base = (uintptr_t)1 << 40, .pages = 4 + tn_rng_below(&rng, 250), .most = 1 + tn_rng_below(&rng, 9 * PAGE)};
		struct tn_p2p_range r[3];
		struct tn_nvme_piece piece[300];
		struct tn_p2p_size size;
		struct tn_p2p *t;
		uint32_t third = m.pages / 3;

		for (uint32_t i = 0; i < m.pages; i++)
			m.bus[i] = i && tn_rng_below(&rng, 3) ? m.bus[i - 1] + PAGE : (1 + tn_rng_below(&rng, 1u << 20)) * (uint64_t)PAGE;
		for (uint32_t i = 0; i < 3; i++) { /* with gaps or without, in any order */
			uint32_t j = (i + (uint32_t)round) % 3;

			r[j] = (struct tn_p2p_range){m.base + i * third * PAGE, third * PAGE - (round % 2 ? 64 : 0)};
		}
		assert_int_equal(tn_p2p_create(r, 3, translate, &m, &tn_alloc_system, &t), 0);
		for (int tries = 0; tries < 200; tries++) {
			uint32_t j = tn_rng_below(&rng, 3);
			uint64_t skip = tn_rng_below(&rng, (uint32_t)r[j].length);
			uint64_t len = 1 + tn_rng_below(&rng, (uint32_t)(r[j].length - skip)), done = 0;
			int n = tn_p2p_find(t, r[j].address + skip, len, piece, 300);

			assert_true(n > 0);
			for (int i = 0; i < n; i++) {
				assert_int_equal(piece[i].bus, one(&m, r[j].address + skip + done));
				assert_int_equal(piece[i].bus + piece[i].length - 1,
						 one(&m, r[j].address + skip + done + piece[i].length - 1));
				if (i > 0) /* merged as far as it goes */
					assert_true(piece[i - 1].bus + piece[i - 1].length != piece[i].bus);
				done += piece[i].length;
			}
			assert_int_equal(done, len);
			if (n > 1)
				assert_int_equal(tn_p2p_find(t, r[j].address + skip, len, piece, (uint32_t)n - 1), -E2BIG);
		}
		assert_int_equal(tn_p2p_find(t, m.base - 1, 1, piece, 300), -EFAULT);
		assert_int_equal(tn_p2p_find(t, m.base + 3 * third * PAGE, 1, piece, 300), -EFAULT);
		if (round % 2)
			assert_int_equal(tn_p2p_find(t, m.base + third * PAGE - 65, 2, piece, 300), -EFAULT);
		tn_p2p_size(t, &size);
		assert_int_equal(size.memory_bytes, r[0].length + r[1].length + r[2].length);
		tn_p2p_destroy(t);
	}
}

static void ranges_that_overlap_or_have_no_bus_address_are_refused(void **state)
{
	struct map m = {.base = 1u << 20, .pages = 2, .bus = {PAGE, 0}, .most = PAGE};
	struct tn_p2p_range r[2] = {{1u << 20, 2 * PAGE}, {(1u << 20) + PAGE, PAGE}};
	struct tn_p2p *t = NULL;

	assert_int_equal(tn_p2p_create(r, 0, translate, &m, &tn_alloc_system, &t), -EINVAL);
	assert_int_equal(tn_p2p_create(r, 2, translate, &m, &tn_alloc_system, &t), -EINVAL);
	assert_int_equal(tn_p2p_create(r, 1, translate, &m, &tn_alloc_system, &t), -EFAULT);
	assert_non_null(strstr(tn_error_last()->text, "0x101000"));
	r[0].length = 0;
	assert_int_equal(tn_p2p_create(r, 1, translate, &m, &tn_alloc_system, &t), -EINVAL);
	r[0] = (struct tn_p2p_range){UINTPTR_MAX - 10, 12};
	assert_int_equal(tn_p2p_create(r, 1, translate, &m, &tn_alloc_system, &t), -EINVAL);
	m.most = 0; /* a translation that makes no progress */
	r[0] = (struct tn_p2p_range){1u << 20, PAGE};
	assert_int_equal(tn_p2p_create(r, 1, translate, &m, &tn_alloc_system, &t), -EINVAL);
	assert_null(t);
	tn_p2p_destroy(NULL);
}

#define FENCE_BYTES 65536u
#define FENCE 0x5c

/* Memory with a fence behind it, which nobody may have touched when it is given back. */
static void *fenced_get(void *arg, size_t bytes)
{
	unsigned char *p = tn_get(&tn_alloc_system, bytes + FENCE_BYTES);

	assert_non_null(p);
	memset(p + bytes, FENCE, FENCE_BYTES);
	return p;
}

static void fenced_put(void *arg, void *memory, size_t bytes)
{
	const unsigned char *fence = (const unsigned char *)memory + bytes;

	if (!memory)
		return;
	*(bool *)arg &= fence[0] == FENCE && !memcmp(fence, fence + 1, FENCE_BYTES - 1);
	tn_put(&tn_alloc_system, memory, bytes + FENCE_BYTES);
}

/* In one piece when it is asked for the first time, in pages afterwards. */
static int falls_apart(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous)
{
	bool *asked = arg;

	*bus = *asked ? 2 * address : address;
	*contiguous = *asked ? PAGE : length;
	*asked = true;
	return 0;
}

static void a_mapping_that_changes_while_it_is_read_is_refused_and_nothing_overwritten(void **state)
{
	bool whole = true, asked = false;
	const struct tn_alloc fenced = {fenced_get, fenced_put, tn_alloc_system.sparse, &whole};
	const struct tn_p2p_range r[2] = {{1u << 20, 256 * PAGE}, {1u << 30, 256 * PAGE}};
	struct tn_p2p *t = NULL;

	for (size_t n = 1; n <= 2; n++) {
		asked = false;
		assert_int_equal(tn_p2p_create(r, n, falls_apart, &asked, &fenced, &t), -EAGAIN);
		assert_true(whole);
	}
	assert_null(t);
}

/* Every 2 MiB somewhere else: physical memory in huge pages at its worst. */
static int huge_pages(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous)
{
	const uint64_t huge = 2u << 20;
	uint64_t page = address / huge, left = huge - address % huge;

	*bus = (page * 7919 % (1u << 20)) * huge + address % huge;
	*contiguous = left < length ? left : length;
	return 0;
}

static void a_pool_of_60_gb_takes_a_small_table(void **state)
{
	static const struct {
		const char *name;
		tn_p2p_translate translate;
		uint64_t most_bytes;
	} how[] = {{"identity", tn_p2p_identity, 4096}, {"scattered 2 MiB pages", huge_pages, 1u << 20}};
	/* Llama-3-8B: 32 layers, K and V in a region each. */
	struct tn_p2p_range r[64];

	for (uint32_t i = 0; i < 64; i++)
		r[i] = (struct tn_p2p_range){((uintptr_t)1 << 41) + i * ((uintptr_t)1 << 31), 937500000 / 32768 * 32768};
	for (size_t k = 0; k < 2; k++) {
		struct tn_p2p_size size;
		struct tn_p2p *t;

		assert_int_equal(tn_p2p_create(r, 64, how[k].translate, NULL, &tn_alloc_system, &t), 0);
		tn_p2p_size(t, &size);
		printf("# %.1f GB, %s: %llu entries, %llu bytes; as a PRP list %llu bytes\n", (double)size.memory_bytes / 1e9, how[k].name,
		       (unsigned long long)size.entries, (unsigned long long)size.table_bytes, (unsigned long long)size.prp_bytes);
		assert_in_range(size.table_bytes, 64 * 16, how[k].most_bytes);
		assert_true(size.table_bytes * 100 < size.prp_bytes);
		tn_p2p_destroy(t);
	}
}

#define OBJECT_BYTES (100u << 10)

/* Every object somewhere else. */
static int objects_apart(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous)
{
	uint64_t at = address - ((uintptr_t)1 << 41), object = at / OBJECT_BYTES, left = OBJECT_BYTES - at % OBJECT_BYTES;

	*bus = (object * 7919 % (1u << 20)) * 2 * OBJECT_BYTES + at % OBJECT_BYTES;
	*contiguous = left < length ? left : length;
	return 0;
}

/* 16 bytes per region and 8 per 16 regions, against 8 bytes per 4 KiB page. */
static void a_pool_of_60_gb_of_objects_of_100_kib_takes_a_smaller_table_than_prps_however_it_lies(void **state)
{
	static const struct {
		const char *name;
		tn_p2p_translate translate;
		uint64_t factor; /* smaller than PRPs, at least */
	} how[] = {{"contiguous", tn_p2p_identity, 1000000}, {"2 MiB pages apart", huge_pages, 200}, {"objects apart", objects_apart, 12}};
	const uint64_t objects = 60000000000ull / OBJECT_BYTES;
	const struct tn_p2p_range r = {(uintptr_t)1 << 41, objects * OBJECT_BYTES};

	for (size_t k = 0; k < sizeof(how) / sizeof(how[0]); k++) {
		struct tn_p2p_size size;
		struct tn_p2p *t;

		assert_int_equal(tn_p2p_create(&r, 1, how[k].translate, NULL, &tn_alloc_system, &t), 0);
		tn_p2p_size(t, &size);
		printf("# %llu objects of 100 KiB, %s: %llu entries, %llu bytes; as a PRP list %llu bytes\n", (unsigned long long)objects,
		       how[k].name, (unsigned long long)size.entries, (unsigned long long)size.table_bytes,
		       (unsigned long long)size.prp_bytes);
		assert_int_equal(size.memory_bytes, objects * OBJECT_BYTES);
		assert_int_equal(size.prp_bytes, objects * 25 * 8);
		assert_true(size.table_bytes * how[k].factor < size.prp_bytes);
		tn_p2p_destroy(t);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_of_random_mappings_is_found),
		cmocka_unit_test(ranges_that_overlap_or_have_no_bus_address_are_refused),
		cmocka_unit_test(a_mapping_that_changes_while_it_is_read_is_refused_and_nothing_overwritten),
		cmocka_unit_test(a_pool_of_60_gb_takes_a_small_table),
		cmocka_unit_test(a_pool_of_60_gb_of_objects_of_100_kib_takes_a_smaller_table_than_prps_however_it_lies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
