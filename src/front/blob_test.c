/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes and their blobs: the catalogue, puts and gets over a cache's tiers, and what is there after it was opened again. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tenuto/blob.h>

#include "cache_rig.h"
#include "ioengine/faulty_rig.h"

#define BLOB 100000u

static struct tn_volume *opened(struct rig *r)
{
	struct tn_volume *v;

	assert_int_equal(tn_volume_open(r->cache, r->dir, "models", &v), 0);
	return v;
}

static void content(unsigned char *out, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		out[i] = (unsigned char)(i * 31 + i / 251 + seed);
}

static int put(struct tn_volume *v, const char *key, size_t bytes, unsigned seed)
{
	static unsigned char data[BLOB + 1];

	content(data, bytes, seed);
	return tn_blob_put(v, key, strlen(key), data, bytes, tn_test_deadline());
}

static void expect(struct tn_volume *v, const char *key, int64_t bytes, unsigned seed)
{
	static unsigned char data[BLOB], want[BLOB];

	memset(data, 0xee, sizeof(data));
	assert_int_equal(tn_blob_get(v, key, strlen(key), data, sizeof(data), tn_test_deadline()), bytes);
	if (bytes > 0) {
		content(want, (size_t)bytes, seed);
		assert_memory_equal(data, want, (size_t)bytes);
	}
}

static void what_was_put_is_got_also_after_the_cache_was_opened_again(void **state)
{
	struct tn_volume *v;
	struct rig r;

	rig_set_up(&r, 32u << 20, 0, 64);
	assert_int_equal(tn_volume_register(r.dir, "models", BLOB), 0);
	v = opened(&r);
	assert_int_equal(put(v, "a", BLOB, 1), 0);
	assert_int_equal(put(v, "b", 1, 2), 0);
	assert_int_equal(put(v, "empty", 0, 0), 0);
	assert_int_equal(put(v, "a", BLOB, 1), 1);
	assert_int_equal(put(v, "large", BLOB + 1, 1), -E2BIG);
	expect(v, "a", BLOB, 1);
	expect(v, "b", 1, 2);
	expect(v, "empty", 0, 0);
	expect(v, "c", -ENOENT, 0);
	assert_int_equal(tn_blob_get(v, "a", 1, NULL, 0, tn_test_deadline()), BLOB);
	tn_volume_close(v);
	assert_int_equal(tn_flush(r.cache, tn_test_deadline()), 0);
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(rig_open(&r), 0);
	v = opened(&r);
	expect(v, "a", BLOB, 1);
	tn_volume_close(v);
	rig_tear_down(&r);
}

static void a_volume_that_was_registered_anew_finds_nothing_of_before(void **state)
{
	struct tn_volume *v;
	struct rig r;

	rig_set_up(&r, 32u << 20, 0, 64);
	assert_int_equal(tn_volume_register(r.dir, "models", BLOB), 0);
	v = opened(&r);
	assert_int_equal(put(v, "a", 10, 1), 0);
	tn_volume_close(v);
	assert_int_equal(tn_volume_remove(r.dir, "models"), 0);
	assert_int_equal(tn_volume_open(r.cache, r.dir, "models", &v), -ENOENT);
	assert_int_equal(tn_volume_register(r.dir, "models", BLOB), 0);
	v = opened(&r);
	expect(v, "a", -ENOENT, 0);
	tn_volume_close(v);
	rig_tear_down(&r);
}

static void a_blob_that_was_evicted_is_not_there(void **state)
{
	struct tn_volume *v;
	struct rig r;
	int64_t got;
	uint32_t gone = 0;

	rig_set_up(&r, 4u << 20, 0, 64);
	assert_int_equal(tn_volume_register(r.dir, "models", BLOB), 0);
	v = opened(&r);
	for (uint32_t i = 0; i < 100; i++) {
		char key[16];

		snprintf(key, sizeof(key), "key %u", i);
		put(v, key, BLOB, i);
	}
	for (uint32_t i = 0; i < 100; i++) {
		char key[16];

		snprintf(key, sizeof(key), "key %u", i);
		got = tn_blob_get(v, key, strlen(key), NULL, 0, tn_test_deadline());
		if (got == BLOB)
			expect(v, key, BLOB, i);
		else
			assert_int_equal(got, -ENOENT);
		gone += got != BLOB;
	}
	assert_in_range(gone, 1, 99);
	tn_volume_close(v);
	rig_tear_down(&r);
}

static void the_catalogue_is_sorted_bounded_and_checked(void **state)
{
	struct tn_volume_info info[4];
	char path[300];
	struct rig r;
	FILE *f;

	rig_set_up(&r, 32u << 20, 0, 64);
	assert_int_equal(tn_volume_list(r.dir, info, 4), 0);
	assert_int_equal(tn_volume_register(r.dir, "b", 5), 0);
	assert_int_equal(tn_volume_register(r.dir, "a", 6), 0);
	assert_int_equal(tn_volume_register(r.dir, "a", 6), -EEXIST);
	assert_int_equal(tn_volume_register(r.dir, "a b", 6), -EINVAL);
	assert_int_equal(tn_volume_register(r.dir, "c", TN_BLOB_BYTES_MAX + 1), -EINVAL);
	assert_int_equal(tn_volume_remove(r.dir, "c"), -ENOENT);
	assert_int_equal(tn_volume_list(r.dir, info, 4), 2);
	assert_string_equal(info[0].name, "a");
	assert_int_equal(info[1].blob_bytes, 5);
	snprintf(path, sizeof(path), "%s/volumes", r.dir);
	f = fopen(path, "a");
	assert_non_null(f);
	fputs("no volume\n", f);
	fclose(f);
	assert_int_equal(tn_volume_list(r.dir, info, 4), -EBADMSG);
	assert_non_null(strstr(tn_error_last()->text, "line 3"));
	assert_int_equal(tn_volume_register(r.dir, "d", 6), -EBADMSG); /* and what is there is not written over */
	rig_tear_down(&r);
}

static uint64_t soon(void)
{
	return tn_test_now() + 50000000;
}

/* A drive that hangs has the volume's page: calls end by their deadlines, and go on when it does. */
static void calls_end_by_their_deadline_while_the_drive_hangs(void **state)
{
	const struct tn_fault hang[] = {{.kind = TN_FAULT_HANG, .op = TN_IO_READ, .count = UINT64_MAX}, {.kind = TN_FAULT_HANG, .op = TN_IO_WRITE, .count = UINT64_MAX}};
	struct tn_volume *v;
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	r.o.faulty = true;
	rig_must_open(&r);
	assert_int_equal(tn_volume_register(r.dir, "models", BLOB), 0);
	v = opened(&r);
	assert_int_equal(put(v, "a", BLOB, 1), 0);
	tn_volume_close(v);
	assert_int_equal(rig_flush(&r), 0);
	rig_reopen(&r);
	v = opened(&r);
	rig_fault(&r, hang, 2);
	assert_int_equal(tn_blob_get(v, "a", 1, NULL, 0, soon()), -ETIMEDOUT);
	assert_int_equal(tn_blob_put(v, "b", 1, "b", 1, soon()), -ETIMEDOUT);
	rig_until(&r, (rig_calm(&r), tn_blob_get(v, "a", 1, NULL, 0, soon()) == BLOB));
	expect(v, "a", BLOB, 1);
	rig_fault(&r, hang, 2);
	assert_int_equal(tn_blob_put(v, "b", 1, "b", 1, soon()), -ETIMEDOUT);
	assert_int_equal(tn_blob_get(v, "a", 1, NULL, 0, soon()), -ETIMEDOUT);
	rig_until(&r, (rig_calm(&r), tn_blob_put(v, "c", 1, "c", 1, soon()) >= 0));
	expect(v, "a", BLOB, 1);
	tn_volume_close(v);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_put_is_got_also_after_the_cache_was_opened_again),
		cmocka_unit_test(a_volume_that_was_registered_anew_finds_nothing_of_before),
		cmocka_unit_test(a_blob_that_was_evicted_is_not_there),
		RIG_FAULTY_TEST(calls_end_by_their_deadline_while_the_drive_hangs),
		cmocka_unit_test(the_catalogue_is_sorted_bounded_and_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
