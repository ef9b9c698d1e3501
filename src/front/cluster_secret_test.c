/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes with one secret give the same blocks the same names. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache_rig.h"
#include "core/core.h"

static const char secret[] = "a secret of this test, of more than 16 bytes\n";

/* A file in the rig's directory; its path is the rig's option. */
static void write_secret(struct rig *r, char path[300], const char *bytes, size_t n, mode_t mode)
{
	int fd;

	snprintf(path, 300, "%s/cluster.secret", r->dir);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, n), n);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
	r->o.cache.cluster_secret_file = path;
}

/* Of a store made for this alone: the id of its space, and the keys of two blocks of tokens. */
static void names_of(uint64_t disk_bytes, const char *bytes, struct tn_key *id, struct tn_key key[2])
{
	uint32_t tokens[RIG_PAGES * 16 * 2];
	char path[300];
	struct rig r;

	for (uint32_t i = 0; i < RIG_PAGES * 16 * 2; i++)
		tokens[i] = i * 7;
	rig_init(&r, disk_bytes, 8u << 20, 64);
	r.o.attached = false;
	if (bytes)
		write_secret(&r, path, bytes, strlen(bytes), 0600);
	rig_must_open(&r);
	*id = r.s->space->id;
	assert_int_equal(tn_keys_from_tokens(r.s->space, tokens, RIG_PAGES * 16 * 2, NULL, 0, key, 2), 2);
	rig_tear_down(&r);
}

static void two_stores_made_independently_find_each_others_keys(void **state)
{
	struct tn_key id[2], key[2][2];

	for (uint32_t i = 0; i < 2; i++)
		names_of(i ? 0 : 32u << 20, secret, &id[i], key[i]); /* one on disk, one in memory alone */
	assert_memory_equal(&id[0], &id[1], sizeof(id[0]));
	assert_memory_equal(key[0], key[1], sizeof(key[0]));
	names_of(32u << 20, "a secret of this test, of more than 16 bytes", &id[1], key[1]); /* a line end behind it is none of the secret */
	assert_memory_equal(key[0], key[1], sizeof(key[0]));
}

static void another_secret_and_none_at_all_are_other_keys(void **state)
{
	struct tn_key id[3], key[3][2];

	names_of(32u << 20, secret, &id[0], key[0]);
	names_of(32u << 20, "another secret of this test", &id[1], key[1]);
	names_of(32u << 20, NULL, &id[2], key[2]);
	for (uint32_t i = 0; i < 3; i++) {
		assert_memory_not_equal(&id[i], &id[(i + 1) % 3], sizeof(id[0]));
		assert_memory_not_equal(&key[i], &key[(i + 1) % 3], sizeof(key[0]));
	}
}

static void a_store_that_is_opened_again_with_its_secret_is_warm(void **state)
{
	char path[300];
	struct rig r;

	rig_init(&r, 32u << 20, 0, 64);
	r.o.attached = false;
	write_secret(&r, path, secret, sizeof(secret) - 1, 0600);
	rig_must_open(&r);
	rig_save(r.s, 1, 4, 0);
	assert_int_equal(rig_close(&r), 0);
	rig_must_open(&r);
	assert_int_equal(rig_match(r.s, 1, 4), 4);
	assert_int_equal(rig_close(&r), 0);
	write_secret(&r, path, "another secret of this test", 27, 0600);
	rig_must_open(&r);
	assert_int_equal(rig_match(r.s, 1, 4), 0);
	rig_tear_down(&r);
}

static void refused(struct rig *r, int status, const char *says)
{
	assert_int_equal(rig_open(r), status);
	assert_non_null(strstr(tn_error_last()->text, says));
}

static void a_file_that_others_can_read_or_that_is_too_short_is_refused(void **state)
{
	static char large[5000];
	char path[300];
	struct rig r;

	memset(large, 'x', sizeof(large));
	rig_init(&r, 0, 8u << 20, 64);
	r.o.attached = false;
	write_secret(&r, path, secret, sizeof(secret) - 1, 0640);
	refused(&r, -EPERM, "chmod 0600");
	write_secret(&r, path, secret, 15, 0600);
	refused(&r, -EINVAL, "has 15 bytes");
	write_secret(&r, path, large, sizeof(large), 0600);
	refused(&r, -EINVAL, "4097 bytes");
	unlink(path);
	refused(&r, -ENOENT, "cluster.secret");
	r.o.cache.cluster_secret_file = r.dir;
	refused(&r, -EPERM, "no file");
	r.o.cache.cluster_secret_file = NULL;
	rig_must_open(&r);
	rig_tear_down(&r);
}

/* The next open would take what a failed one left for a store of its own. */
static void an_open_that_is_refused_leaves_no_store(void **state)
{
	char path[300], store[600];
	struct rig r;

	rig_init(&r, 32u << 20, 8u << 20, 64);
	r.o.attached = false;
	write_secret(&r, path, secret, sizeof(secret) - 1, 0640);
	refused(&r, -EPERM, "chmod 0600");
	snprintf(store, sizeof(store), "%s/default/tenuto.store", r.dir);
	assert_int_equal(access(store, F_OK), -1);
	r.o.cache.cluster_secret_file = NULL;
	r.o.cache.remote = "nobody,bucket=kv-cache";
	refused(&r, -ENOENT, "nobody");
	assert_int_equal(access(store, F_OK), -1);
	r.o.cache.remote = NULL;
	rig_must_open(&r);
	assert_int_equal(access(store, F_OK), 0);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_stores_made_independently_find_each_others_keys),
		cmocka_unit_test(another_secret_and_none_at_all_are_other_keys),
		cmocka_unit_test(a_store_that_is_opened_again_with_its_secret_is_warm),
		cmocka_unit_test(a_file_that_others_can_read_or_that_is_too_short_is_refused),
		cmocka_unit_test(an_open_that_is_refused_leaves_no_store),
	};

	return cmocka_run_group_tests_name("cluster-secret", tests, NULL, NULL);
}
