/* SPDX-License-Identifier: Apache-2.0 */
/* What one cache has computed is found and loaded by another one, which has it for a peer; and what becomes of that when the peer stops, dies or has other bytes. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tenuto/peer.h>
#include <unistd.h>

#include "core/core.h"
#include "front/cache_rig.h"

#define BLOCKS 24u

static const char secret[] = "a secret of this test, of more than 16 bytes\n";

/* A, which serves, and B, which asks A. */
static struct pair {
	struct rig a, b;
	struct tn_peer_server *server;
	char cluster[300], peers[300], remote[700];
} pair;

static void write_file(char path[300], const char *dir, const char *name, const char *bytes)
{
	int fd;

	snprintf(path, 300, "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, strlen(bytes)), strlen(bytes));
	close(fd);
}

static void open_rig(struct rig *r, uint64_t disk_bytes)
{
	rig_init(r, disk_bytes, 16u << 20, 64);
	r->o.attached = false;
	write_file(pair.cluster, r->dir, "cluster.secret", secret);
	r->o.cache.cluster_secret_file = pair.cluster;
}

static int serve(const char *address)
{
	struct tn_peer_serve_opts o;

	tn_peer_serve_opts_init(&o);
	o.address = address;
	o.secret_file = pair.peers;
	return tn_peer_serve(pair.a.cache, &o, &pair.server);
}

/* disk_bytes: of A. */
static void set_up(uint64_t disk_bytes, const char *secret_of_b)
{
	char other[300];

	memset(&pair, 0, sizeof(pair));
	open_rig(&pair.a, disk_bytes);
	rig_must_open(&pair.a);
	write_file(pair.peers, pair.a.dir, "peers.secret", secret);
	assert_int_equal(serve("127.0.0.1:0"), 0);
	open_rig(&pair.b, 0);
	write_file(other, pair.b.dir, "peers.secret", secret_of_b);
	snprintf(pair.remote, sizeof(pair.remote), "peer,host=127.0.0.1,port=%s,secret_file=%s", strrchr(tn_peer_server_address(pair.server), ':') + 1, other);
	pair.b.o.cache.remote = pair.remote;
	rig_must_open(&pair.b);
}

static void tear_down(void)
{
	rig_tear_down(&pair.b);
	tn_peer_server_end(pair.server);
	rig_tear_down(&pair.a);
}

static struct tn_peer_server_stats served(void)
{
	struct tn_peer_server_stats s = {.size = sizeof(s)};

	assert_int_equal(tn_peer_server_stats(pair.server, &s), 0);
	return s;
}

/* What B finds if it waits for its peer. */
static int ask(uint64_t first, uint32_t n, uint64_t ns)
{
	struct tn_match match = {.size = sizeof(match)};
	struct tn_key keys[RIG_AT_ONCE];
	uint64_t query;
	int found = -EAGAIN;

	rig_keys(first, n, keys);
	assert_int_equal(tn_match_begin(&pair.b.s->space, 1, keys, n, rig_now(&pair.b) + ns, 0, &query), 0);
	rig_until(&pair.b, (found = tn_match_poll(pair.b.cache, query, NULL, &match)) != -EAGAIN);
	return found;
}

static void what_one_has_computed_the_other_finds(void **state)
{
	set_up(0, secret);
	rig_save(pair.a.s, 1, BLOCKS, 0);
	assert_int_equal(rig_match(pair.b.s, 1, BLOCKS), 0); /* nobody has asked yet */
	assert_int_equal(ask(1, BLOCKS + 8, RIG_SECOND), BLOCKS);
	assert_int_equal(served().asked_keys, BLOCKS + 8);
	assert_int_equal(served().found_keys, BLOCKS);
	assert_int_equal(rig_load(pair.b.s, 1, BLOCKS), BLOCKS); /* their bytes are checked */
	assert_int_equal(served().blocks, BLOCKS);
	tear_down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_has_computed_the_other_finds),
	};

	return tn_test_ran(cmocka_run_group_tests_name("peer", tests, NULL, NULL));
}
