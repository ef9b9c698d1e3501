/* SPDX-License-Identifier: Apache-2.0 */
/* Identify data, as a controller may write them, and what the driver takes them for. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "nvme/identify.h"
#include "tn_test.h"

#define CAP (1ull << 37 | 1ull << 48) /* MPSMIN 1: limits count pages of 8 KiB */

static unsigned char data[TN_NVME_IDENTIFY_BYTES];

/* An LBA format without metadata. */
static void put_format(uint32_t index, uint32_t metadata, uint32_t shift)
{
	uint32_t word = metadata | shift << 16;

	memcpy(data + TN_NVME_NS_LBAF + 4 * index, &word, sizeof(word));
}

/* All formats are decoys but one. */
static void put_namespace(uint32_t formats, uint32_t flbas, uint32_t real, uint64_t blocks)
{
	memset(data, 0, sizeof(data));
	memcpy(data + TN_NVME_NS_SIZE, &blocks, sizeof(blocks));
	for (uint32_t i = 0; i < 64; i++)
		put_format(i, 8, 9);
	put_format(real, 0, 12);
	data[TN_NVME_NS_NLBAF] = (unsigned char)formats;
	data[TN_NVME_NS_FLBAS] = (unsigned char)flbas;
}

static struct tn_nvme_info controller_of(uint32_t mdts, uint32_t oncs, uint32_t sgls)
{
	struct tn_nvme_info info = {.namespace_id = 1};

	memset(data, 0, sizeof(data));
	data[TN_NVME_ID_MDTS] = (unsigned char)mdts;
	data[TN_NVME_ID_ONCS] = (unsigned char)oncs;
	data[TN_NVME_ID_SGLS] = (unsigned char)sgls;
	tn_nvme_read_controller(data, CAP, &info);
	return info;
}

static void upper_bits_of_flbas_count_only_where_there_are_formats_for_them(void **state)
{
	static const struct {
		uint32_t formats, flbas, real;
	} is[] = {{0, 0x00, 0}, {3, 0x03, 3}, {15, 0x0f, 15}, {16, 0x65, 5}, {17, 0x21, 17}, {63, 0x6f, 63}, {63, 0x45, 37}, {63, 0x15, 5}, {63, 0x85, 5}};

	for (size_t i = 0; i < sizeof(is) / sizeof(is[0]); i++) {
		struct tn_nvme_info info = {.namespace_id = 1};

		put_namespace(is[i].formats, is[i].flbas, is[i].real, 1000);
		if (tn_nvme_read_namespace(data, "drive", &info))
			fail_msg("NLBAF %u, FLBAS %#x: %s", is[i].formats, is[i].flbas, tn_error_last()->text);
		assert_int_equal(info.block_bytes, 4096);
		assert_int_equal(info.blocks, 1000);
	}
}

static void namespaces_that_cannot_be_driven_are_refused_by_name(void **state)
{
	struct tn_nvme_info info = {.namespace_id = 3};

	put_namespace(0, 0, 0, 0);
	assert_int_equal(tn_nvme_read_namespace(data, "drive", &info), -ENODEV);
	put_namespace(0, 0, 0, 1);
	data[TN_NVME_NS_DPS] = 1;
	assert_int_equal(tn_nvme_read_namespace(data, "drive", &info), -ENOTSUP);
	assert_non_null(strstr(tn_error_last()->text, "namespace 3 has 0 bytes of metadata per block and end-to-end protection"));
	put_namespace(0, 0, 0, 1);
	put_format(0, 0, 8);
	assert_int_equal(tn_nvme_read_namespace(data, "drive", &info), -ENOTSUP);
	put_format(0, 0, 13);
	assert_int_equal(tn_nvme_read_namespace(data, "drive", &info), -ENOTSUP);
	put_namespace(0, 0, 0, UINT64_MAX / 4096 + 1);
	assert_int_equal(tn_nvme_read_namespace(data, "drive", &info), -EINVAL);
}

static void sgls_of_a_reserved_kind_are_none(void **state)
{
	assert_false(controller_of(0, 0, 0).sgl);
	assert_true(controller_of(0, 0, 1).sgl);
	assert_true(controller_of(0, 0, 2).sgl);
	assert_false(controller_of(0, 0, 3).sgl);
	assert_true(controller_of(0, 0, 0xf1).sgl); /* the bits above say what else there is */
}

static void a_write_zeroes_has_its_own_limit_and_not_that_of_transfers(void **state)
{
	struct tn_nvme_info info = controller_of(4, 8, 0);

	assert_int_equal(info.transfer_bytes, 8192 << 4);
	assert_int_equal(info.zeroes_bytes, 1u << 30);
	memset(data, 0, sizeof(data));
	tn_nvme_read_limits(data, CAP, &info);
	assert_int_equal(info.zeroes_bytes, 1u << 30);
	data[TN_NVME_LIMITS_WZSL] = 200;
	tn_nvme_read_limits(data, CAP, &info);
	assert_int_equal(info.zeroes_bytes, 1u << 30);
	data[TN_NVME_LIMITS_WZSL] = 3;
	tn_nvme_read_limits(data, CAP, &info);
	assert_int_equal(info.zeroes_bytes, 8192 << 3);
	put_namespace(0, 0, 0, 1000);
	assert_int_equal(tn_nvme_read_namespace(data, "drive", &info), 0);
	assert_int_equal(info.transfer_bytes, 8192 << 4);
	assert_int_equal(info.zeroes_bytes, 8192 << 3);
	info = controller_of(0, 4, 0);
	assert_int_equal(info.zeroes_bytes, 0); /* there is none */
	tn_nvme_read_limits(data, CAP, &info);
	assert_int_equal(info.zeroes_bytes, 0);
	assert_true(info.discard);
}

static void no_command_has_more_blocks_than_its_field_can_say(void **state)
{
	struct tn_nvme_info info = controller_of(0, 8, 0);

	put_namespace(0, 0, 0, 1000);
	put_format(0, 0, 9);
	assert_int_equal(tn_nvme_read_namespace(data, "drive", &info), 0);
	assert_int_equal(info.transfer_bytes, 65536u * 512);
	assert_int_equal(info.zeroes_bytes, 65536u * 512);
}

static void names_are_what_can_be_printed_of_them(void **state)
{
	struct tn_nvme_info info = {0};

	memset(data, ' ', sizeof(data));
	memcpy(data + TN_NVME_ID_MODEL, "A\x01" "B \xff", 5);
	memset(data + TN_NVME_ID_SERIAL, 'x', 20);
	tn_nvme_read_controller(data, CAP, &info);
	assert_string_equal(info.model, "A?B ?");
	assert_string_equal(info.serial, "xxxxxxxxxxxxxxxxxxxx");
	assert_string_equal(info.firmware, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(upper_bits_of_flbas_count_only_where_there_are_formats_for_them),
		cmocka_unit_test(namespaces_that_cannot_be_driven_are_refused_by_name),
		cmocka_unit_test(sgls_of_a_reserved_kind_are_none),
		cmocka_unit_test(a_write_zeroes_has_its_own_limit_and_not_that_of_transfers),
		cmocka_unit_test(no_command_has_more_blocks_than_its_field_can_say),
		cmocka_unit_test(names_are_what_can_be_printed_of_them),
	};

	return cmocka_run_group_tests_name("nvme-identify", tests, NULL, NULL);
}
