/* SPDX-License-Identifier: Apache-2.0 */
/* Marks of btrfs and ZFS where they are looked for, and where they mean nothing. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "nvme/resident.h"
#include "tn_test.h"

#define LABEL (256u << 10)
#define ALL (5u * LABEL + 7 * 512) /* no whole number of labels */

static unsigned char *drive;

/* All of it, in parts of so many bytes: what the first part with a mark says. */
static const char *found(uint64_t part)
{
	const char *who = NULL;

	for (uint64_t at = 0; at < ALL && !who; at += part)
		who = tn_resident(drive + at, at, ALL - at < part ? ALL - at : part, ALL);
	return who;
}

static void every_part_says(const char *who)
{
	static const uint64_t parts[] = {512, 1536, 4096, 65536, ALL};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		const char *is = found(parts[i]);

		if (!is != !who || (is && strcmp(is, who)))
			fail_msg("in parts of %llu: %s, not %s", (unsigned long long)parts[i], is ? is : "nothing", who ? who : "nothing");
	}
}

static void put(uint64_t at, const char *mark, bool there)
{
	memset(drive, 0, ALL);
	memcpy(drive + at, mark, 8);
	every_part_says(there ? (mark[0] == '_' ? "btrfs" : "ZFS") : NULL);
}

#define LITTLE "\x0c\xb1\xba\0\0\0\0\0"
#define BIG "\0\0\0\0\0\xba\xb1\x0c"

static void btrfs_is_known_by_its_super_block(void **state)
{
	put(0x10040, "_BHRfS_M", true);
	put(0x10041, "_BHRfS_M", false);
	put(0x10000, "_BHRfS_M", false);
	put(0x10040, "_BHRfS_N", false);
}

static void zfs_is_known_by_an_uberblock_in_any_of_four_labels(void **state)
{
	static const uint64_t labels[] = {0, LABEL, 3 * LABEL, 4 * LABEL};

	for (size_t i = 0; i < 4; i++) {
		put(labels[i] + LABEL / 2, LITTLE, true);
		put(labels[i] + LABEL / 2, BIG, true);
		put(labels[i] + LABEL - 1024, LITTLE, true);
		put(labels[i] + LABEL / 2 + 5 * 1024, BIG, true);
		put(labels[i] + LABEL / 2 + 512, LITTLE, false);
		put(labels[i] + LABEL / 2 - 1024, LITTLE, false);
	}
}

static void bytes_elsewhere_mean_nothing(void **state)
{
	put(2 * LABEL + LABEL / 2, LITTLE, false); /* between the labels */
	put(5 * LABEL, LITTLE, false);		   /* behind the last whole label */
	put(LABEL / 2, "\x0c\xb1\xba\0\0\0\0\x01", false);
	memset(drive, 0, ALL);
	every_part_says(NULL);
	memset(drive, 0xff, ALL);
	every_part_says(NULL);
}

/* A drive too small for four labels has none; and no look goes beyond its bytes. */
static void small_drives_are_looked_at_to_their_end(void **state)
{
	for (uint32_t all = 0; all < 4 * LABEL; all += 512) {
		unsigned char *bytes = malloc(all + 1);

		assert_non_null(bytes);
		memset(bytes, 0, all + 1);
		if (all >= LABEL / 2 + 8)
			memcpy(bytes + LABEL / 2, LITTLE, 8);
		assert_null(tn_resident(bytes, 0, all, all));
		free(bytes);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(btrfs_is_known_by_its_super_block),
		cmocka_unit_test(zfs_is_known_by_an_uberblock_in_any_of_four_labels),
		cmocka_unit_test(bytes_elsewhere_mean_nothing),
		cmocka_unit_test(small_drives_are_looked_at_to_their_end),
	};
	int rc;

	drive = calloc(1, ALL);
	rc = drive ? cmocka_run_group_tests_name("nvme-resident", tests, NULL, NULL) : 1;
	free(drive);
	return rc;
}
