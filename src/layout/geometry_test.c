/* SPDX-License-Identifier: Apache-2.0 */
/* Geometry: sizes of known models, refusal of nonsense, and the serialised form. */
#include <errno.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "lab/models.h"
#include "tn_test.h"
#include "tn_test_geometry.h"

static struct tn_geometry model(const char *name)
{
	struct tn_geometry g;

	assert_int_equal(tn_model_find(name, &g), 0);
	return g;
}

static uint64_t bytes_per_token(const char *name)
{
	struct tn_geometry g = model(name);

	return tn_geometry_block_bytes(&g) / g.pages_per_block / g.page_tokens;
}

static void models_have_the_bytes_per_token_of_the_literature(void **state)
{
	assert_int_equal(bytes_per_token("llama3-8b"), 128 << 10);
	assert_int_equal(bytes_per_token("llama3-70b"), 320 << 10);
	assert_int_equal(bytes_per_token("qwen3-32b"), 256 << 10);
	assert_int_equal(bytes_per_token("glm4-9b"), 40 << 10);
	assert_int_equal(bytes_per_token("deepseek-v3"), 61 * 576 * 2);
}

static void the_worked_sizes_of_long_prompts_come_out(void **state)
{
	struct tn_geometry g = model("llama3-8b");

	/* 128K tokens of Llama-3-8B: 16 GiB */
	assert_int_equal(bytes_per_token("llama3-8b") * (128 << 10), UINT64_C(16) << 30);
	/* pages of 16 tokens, 16 pages per block: 32 objects of 1 MiB */
	g.pages_per_block = 16;
	assert_int_equal(g.layers, 32);
	assert_int_equal(tn_geometry_object_bytes(&g), 1 << 20);
	/* blocks of 16 tokens: a K plane of 32 KiB per layer; 64K tokens: 4,096 blocks, 8,192 planes, 256 MiB per layer */
	g.pages_per_block = 1;
	assert_int_equal(tn_geometry_page_bytes(&g, 0), 32 << 10);
	assert_int_equal((65536 / g.page_tokens) * (uint64_t)tn_geometry_object_bytes(&g), 256 << 20);
	/* Qwen3-32B in blocks of 64 tokens: 128 planes of 128 KiB */
	g = model("qwen3-32b");
	g.pages_per_block = 1;
	g.page_tokens = 64;
	assert_int_equal(g.layers * g.nplanes, 128);
	assert_int_equal(tn_geometry_page_bytes(&g, 1), 128 << 10);
}

static void every_model_is_valid_and_has_default_blocks(void **state)
{
	static const uint32_t pages[] = {4, 4, 4, 16, 15};
	size_t n = 0;

	for (; tn_model_at(n); n++) {
		struct tn_geometry g = model(tn_model_at(n));

		assert_int_equal(tn_geometry_check(&g), 0);
		assert_int_equal(g.pages_per_block, tn_geometry_default_pages(&g));
		assert_int_equal(g.pages_per_block, pages[n]);
		assert_true(tn_geometry_object_bytes(&g) >= TN_OBJECT_BYTES_DEFAULT);
	}
	assert_int_equal(n, 5);
	assert_null(tn_model_at(SIZE_MAX));
}

static void an_unknown_model_is_answered_with_the_known_ones(void **state)
{
	struct tn_geometry g = {.layers = 7};

	assert_int_equal(tn_model_find("llama", &g), -ENOENT);
	assert_non_null(strstr(tn_error_last()->text, "\"llama\""));
	assert_non_null(strstr(tn_error_last()->text, "llama3-8b, llama3-70b, qwen3-32b, glm4-9b, deepseek-v3"));
	assert_int_equal(g.layers, 7);
	assert_int_equal(tn_model_find("", &g), -ENOENT);
}

static void default_blocks_are_the_smallest_of_256_kib(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int i = 0; i < 3000; i++) {
		struct tn_geometry g = tn_test_geometry(&rng);
		uint32_t pages = tn_geometry_default_pages(&g);

		g.pages_per_block = pages;
		assert_int_equal(tn_geometry_check(&g), 0);
		if (pages < TN_BLOCK_PAGES_MAX)
			assert_true(tn_geometry_object_bytes(&g) >= TN_OBJECT_BYTES_DEFAULT);
		if (pages > 1) {
			g.pages_per_block--;
			assert_true(tn_geometry_object_bytes(&g) < TN_OBJECT_BYTES_DEFAULT);
		}
	}
}

static void a_raw_geometry_has_exactly_the_objects_asked_for(void **state)
{
	struct tn_geometry g;

	assert_int_equal(tn_geometry_raw(8, 16384, &g), 0);
	assert_int_equal(g.layers, 8);
	assert_int_equal(tn_geometry_object_bytes(&g), 16384);
	assert_int_equal(tn_geometry_block_bytes(&g), 8 * 16384);
	assert_int_equal(tn_geometry_raw(TN_LAYERS_MAX, TN_OBJECT_BYTES_MAX, &g), 0);
	assert_int_equal(tn_geometry_block_bytes(&g), UINT64_C(1) << 42);
	assert_int_equal(tn_geometry_raw(1, 1, &g), 0);
}

static void absurd_raw_sizes_are_refused_with_the_value(void **state)
{
	struct tn_geometry g = {.layers = 7};

	assert_int_equal(tn_geometry_raw(0, 4096, &g), -EINVAL);
	assert_int_equal(tn_geometry_raw(8, 0, &g), -EINVAL);
	assert_int_equal(tn_geometry_raw(8, UINT64_C(1) << 63, &g), -EOVERFLOW);
	assert_non_null(strstr(tn_error_last()->text, "9223372036854775808"));
	assert_int_equal(tn_geometry_raw(8, TN_OBJECT_BYTES_MAX + UINT64_C(1), &g), -EOVERFLOW);
	assert_int_equal(tn_geometry_raw(TN_LAYERS_MAX + 1, 4096, &g), -EOVERFLOW);
	assert_int_equal(tn_geometry_raw(UINT32_MAX, UINT64_MAX, &g), -EOVERFLOW);
	assert_int_equal(g.layers, 7);
}

static void nonsense_in_any_field_is_refused(void **state)
{
	static const struct {
		size_t field;
		uint32_t value;
		int rc;
	} cases[] = {
		{offsetof(struct tn_geometry, layers), 0, -EINVAL},
		{offsetof(struct tn_geometry, layers), TN_LAYERS_MAX + 1, -EOVERFLOW},
		{offsetof(struct tn_geometry, page_tokens), 0, -EINVAL},
		{offsetof(struct tn_geometry, page_tokens), UINT32_MAX, -EOVERFLOW},
		{offsetof(struct tn_geometry, pages_per_block), 0, -EINVAL},
		{offsetof(struct tn_geometry, pages_per_block), TN_BLOCK_PAGES_MAX, 0},
		{offsetof(struct tn_geometry, pages_per_block), TN_BLOCK_PAGES_MAX + 1, -EOVERFLOW},
		{offsetof(struct tn_geometry, page_order), 2, -EINVAL},
		{offsetof(struct tn_geometry, nplanes), 0, -EINVAL},
		{offsetof(struct tn_geometry, nplanes), TN_PLANES_MAX + 1, -EINVAL},
		{offsetof(struct tn_geometry, nplanes), UINT32_MAX, -EINVAL},
		{offsetof(struct tn_geometry, planes[1].kind), TN_PLANE_STATE + 1, -EINVAL},
		{offsetof(struct tn_geometry, planes[1].heads), 0, -EINVAL},
		{offsetof(struct tn_geometry, planes[1].heads), UINT32_MAX, -EOVERFLOW},
		{offsetof(struct tn_geometry, planes[1].head_dim), 0, -EINVAL},
		{offsetof(struct tn_geometry, planes[1].head_dim), UINT32_MAX, -EOVERFLOW},
		{offsetof(struct tn_geometry, planes[0].elem_bits), 0, -EINVAL},
		{offsetof(struct tn_geometry, planes[0].elem_bits), 64, -EINVAL},
		{offsetof(struct tn_geometry, planes[0].elem_bits), 12, -EINVAL},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct tn_geometry g = model("llama3-8b");

		memcpy((char *)&g + cases[i].field, &cases[i].value, 4);
		assert_int_equal(tn_geometry_check(&g), cases[i].rc);
	}
}

static void sizes_whose_product_wraps_are_refused(void **state)
{
	struct tn_geometry g = model("llama3-8b");
	unsigned char buf[TN_GEOMETRY_BYTES];

	/* 2^32 * 2^32 elements would be 0 in 64 bits */
	g.planes[0].heads = g.planes[0].head_dim = g.page_tokens = UINT32_C(1) << 31;
	assert_int_equal(tn_geometry_check(&g), -EOVERFLOW);
	assert_int_equal(tn_geometry_default_pages(&g), 0);
	assert_int_equal(tn_geometry_store(&g, buf, sizeof(buf)), -EOVERFLOW);
	/* each page fits, the object does not */
	g = model("llama3-8b");
	g.page_tokens = 1 << 18;
	assert_int_equal(tn_geometry_check(&g), -EOVERFLOW);
	/* three elements of four bits are no whole bytes */
	g = model("llama3-8b");
	g.page_tokens = 1;
	g.planes[0] = (struct tn_plane){TN_PLANE_SCALE_K, 1, 3, 4};
	assert_int_equal(tn_geometry_check(&g), -EINVAL);
}

static void a_state_plane_is_not_multiplied_by_tokens(void **state)
{
	struct tn_geometry g = {
		.layers = 1, .page_tokens = 16, .pages_per_block = 2, .nplanes = 1,
		.planes = {{TN_PLANE_STATE, 4, 64, 32}},
	};

	assert_int_equal(tn_geometry_check(&g), 0);
	assert_int_equal(tn_geometry_page_bytes(&g, 0), 4 * 64 * 4);
	assert_int_equal(tn_geometry_object_bytes(&g), 2 * 4 * 64 * 4);
}

static void a_stored_geometry_loads_as_it_was(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int i = 0; i < 3000; i++) {
		struct tn_geometry g = tn_test_geometry(&rng), back;
		unsigned char buf[TN_GEOMETRY_BYTES + 1], again[TN_GEOMETRY_BYTES];

		/* what lies behind the used planes is no part of a geometry */
		struct tn_geometry dirty = g;

		if (g.nplanes < TN_PLANES_MAX)
			dirty.planes[TN_PLANES_MAX - 1].heads = 99;
		buf[TN_GEOMETRY_BYTES] = 0x5a;
		assert_int_equal(tn_geometry_store(&dirty, buf, sizeof(buf)), TN_GEOMETRY_BYTES);
		assert_int_equal(buf[TN_GEOMETRY_BYTES], 0x5a);
		assert_int_equal(tn_geometry_load(buf, sizeof(buf), &back), TN_GEOMETRY_BYTES);
		assert_memory_equal(&g, &back, sizeof(g));
		assert_int_equal(tn_geometry_store(&back, again, sizeof(again)), TN_GEOMETRY_BYTES);
		assert_memory_equal(buf, again, sizeof(again));
	}
}

static void the_stored_form_is_the_documented_one(void **state)
{
	static const unsigned char head[] = {'T', 'N', 'G', 'E', 'O', 'M', 0, 0, 1, 0, 0, 0, 32, 0, 0, 0, 16, 0,
					     0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
					     8, 0, 0, 0, 128, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0};
	struct tn_geometry g = model("llama3-8b");
	unsigned char buf[TN_GEOMETRY_BYTES];

	assert_int_equal(tn_geometry_store(&g, buf, sizeof(buf)), TN_GEOMETRY_BYTES);
	assert_memory_equal(buf, head, sizeof(head));
	/* golden: may not change while the version is 1 */
	assert_int_equal(tn_hash64(buf, sizeof(buf)), UINT64_C(0x753affec01d4a61b));
}

static void a_buffer_too_small_is_refused(void **state)
{
	struct tn_geometry g = model("glm4-9b");
	unsigned char buf[TN_GEOMETRY_BYTES];

	assert_int_equal(tn_geometry_store(&g, buf, sizeof(buf) - 1), -ENOBUFS);
}

static void every_truncated_or_flipped_form_is_refused(void **state)
{
	struct tn_geometry g = model("llama3-8b"), out = {.layers = 7};
	unsigned char buf[TN_GEOMETRY_BYTES];

	assert_int_equal(tn_geometry_store(&g, buf, sizeof(buf)), TN_GEOMETRY_BYTES);
	for (size_t len = 0; len < sizeof(buf); len++) {
		/* a copy of exactly len bytes, so that a sanitizer sees a byte read too far */
		unsigned char *cut = malloc(len ? len : 1);

		assert_non_null(cut);
		memcpy(cut, buf, len);
		assert_int_equal(tn_geometry_load(cut, len, &out), -EBADMSG);
		free(cut);
	}
	for (size_t bit = 0; bit < 8 * sizeof(buf); bit++) {
		int rc;

		buf[bit / 8] ^= (unsigned char)(1u << bit % 8);
		rc = tn_geometry_load(buf, sizeof(buf), &out);
		assert_int_equal(rc, bit / 8 >= 8 && bit / 8 < 12 ? -EPROTONOSUPPORT : -EBADMSG);
		buf[bit / 8] ^= (unsigned char)(1u << bit % 8);
	}
	assert_int_equal(out.layers, 7);
	assert_int_equal(tn_geometry_load(buf, sizeof(buf), &out), TN_GEOMETRY_BYTES);
}

/* A forged checksum must not help: each field is judged by itself. */
static void a_well_signed_form_with_bad_fields_is_refused(void **state)
{
	struct tn_geometry g = model("llama3-8b"), out;
	unsigned char good[TN_GEOMETRY_BYTES];
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	assert_int_equal(tn_geometry_store(&g, good, sizeof(good)), TN_GEOMETRY_BYTES);
	for (int i = 0; i < 20000; i++) {
		unsigned char buf[TN_GEOMETRY_BYTES], again[TN_GEOMETRY_BYTES];
		uint64_t sum;
		int rc;

		memcpy(buf, good, sizeof(buf));
		for (uint32_t n = 1 + tn_rng_below(&rng, 3); n > 0; n--)
			buf[12 + tn_rng_below(&rng, sizeof(buf) - 20)] ^= (unsigned char)(1u << tn_rng_below(&rng, 8));
		sum = tn_hash64(buf, sizeof(buf) - 8);
		for (int b = 0; b < 8; b++)
			buf[sizeof(buf) - 8 + (size_t)b] = (unsigned char)(sum >> (8 * b));
		rc = tn_geometry_load(buf, sizeof(buf), &out);
		if (rc < 0) {
			assert_true(rc == -EINVAL || rc == -EOVERFLOW);
			continue;
		}
		assert_int_equal(tn_geometry_check(&out), 0);
		assert_int_equal(tn_geometry_store(&out, again, sizeof(again)), TN_GEOMETRY_BYTES);
		assert_memory_equal(buf, again, sizeof(buf));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(models_have_the_bytes_per_token_of_the_literature),
		cmocka_unit_test(the_worked_sizes_of_long_prompts_come_out),
		cmocka_unit_test(every_model_is_valid_and_has_default_blocks),
		cmocka_unit_test(an_unknown_model_is_answered_with_the_known_ones),
		cmocka_unit_test(default_blocks_are_the_smallest_of_256_kib),
		cmocka_unit_test(a_raw_geometry_has_exactly_the_objects_asked_for),
		cmocka_unit_test(absurd_raw_sizes_are_refused_with_the_value),
		cmocka_unit_test(nonsense_in_any_field_is_refused),
		cmocka_unit_test(sizes_whose_product_wraps_are_refused),
		cmocka_unit_test(a_state_plane_is_not_multiplied_by_tokens),
		cmocka_unit_test(a_stored_geometry_loads_as_it_was),
		cmocka_unit_test(the_stored_form_is_the_documented_one),
		cmocka_unit_test(a_buffer_too_small_is_refused),
		cmocka_unit_test(every_truncated_or_flipped_form_is_refused),
		cmocka_unit_test(a_well_signed_form_with_bad_fields_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
