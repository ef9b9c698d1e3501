/* SPDX-License-Identifier: Apache-2.0 */
/* What one cache has computed is found and loaded by another one, which has it for a peer; and what becomes of that when the peer stops, dies or has other bytes. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tenuto/peer.h>
#include <unistd.h>

#include "base/secret_file.h"
#include "core/core.h"
#include "front/cache_rig.h"
#include "tier/remote/peer_wire.h"
#include "xfer/link.h"

#define BLOCKS 24u

static const char secret[] = "a secret of this test, of more than 16 bytes\n";

#define MANY 200u /* blocks that are more than fit into B's memory: loads come from A again and again */

/* A, which serves, and B, which asks A. */
static struct pair {
	struct rig a, b;
	struct tn_peer_server *server;
	char cluster[300], peers[300], remote[700];
	char log[4096]; /* lines of B, under log_lock */
} pair;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- seams --------------------------------------------------------------------------------------------------------- */

static bool elsewhere;	/* A and B see another boot of the machine each */
static uint32_t flips;	/* so many blocks are damaged when they are sent */

void __real_tn_boot_id(uint64_t id[2]);
void __wrap_tn_boot_id(uint64_t id[2]);
void __wrap_tn_boot_id(uint64_t id[2])
{
	static uint64_t boots;

	__real_tn_boot_id(id);
	if (elsewhere)
		id[1] += __atomic_add_fetch(&boots, 1, __ATOMIC_RELAXED);
}

ssize_t __real_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags)
{
	if (m->msg_iovlen == 4 && m->msg_iov[3].iov_len > 8192 && __atomic_load_n(&flips, __ATOMIC_RELAXED)) {
		((unsigned char *)m->msg_iov[3].iov_base)[m->msg_iov[3].iov_len - 100] ^= 4;
		__atomic_fetch_sub(&flips, 1, __ATOMIC_RELAXED);
	}
	return __real_sendmsg(fd, m, flags);
}

static void on_log(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	struct pair *p = arg;
	size_t n;

	pthread_mutex_lock(&log_lock);
	n = strlen(p->log);
	snprintf(p->log + n, sizeof(p->log) - n, "%s\n", text);
	pthread_mutex_unlock(&log_lock);
}

static bool has_logged(const char *what)
{
	bool has;

	pthread_mutex_lock(&log_lock);
	has = strstr(pair.log, what) != NULL;
	pthread_mutex_unlock(&log_lock);
	return has;
}

/* ---- two caches ---------------------------------------------------------------------------------------------------- */

static void write_file(char path[300], const char *dir, const char *name, const char *bytes)
{
	int fd;

	snprintf(path, 300, "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, strlen(bytes)), strlen(bytes));
	close(fd);
}

static void open_rig(struct rig *r, uint64_t disk_bytes, uint64_t host_bytes)
{
	rig_init(r, disk_bytes, host_bytes, 64);
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

static void open_a(uint64_t disk_bytes, uint64_t host_bytes)
{
	open_rig(&pair.a, disk_bytes, host_bytes);
	rig_must_open(&pair.a);
	write_file(pair.peers, pair.a.dir, "peers.secret", secret);
	assert_int_equal(serve("127.0.0.1:0"), 0);
}

static void open_b(const char *port, const char *secret_of_b)
{
	char other[300];

	open_rig(&pair.b, 0, 2u << 20);
	write_file(other, pair.b.dir, "peers.secret", secret_of_b);
	snprintf(pair.remote, sizeof(pair.remote), "peer,host=127.0.0.1,port=%s,secret_file=%s", port, other);
	pair.b.o.cache.remote = pair.remote;
	pair.b.o.cache.log = on_log;
	pair.b.o.cache.log_arg = &pair;
	pair.b.o.cache.log_level = TN_LOG_INFO;
	rig_must_open(&pair.b);
}

/* disk_bytes: of A. */
static void set_up(uint64_t disk_bytes, const char *secret_of_b)
{
	memset(&pair, 0, sizeof(pair));
	open_a(disk_bytes, 16u << 20);
	open_b(strrchr(tn_peer_server_address(pair.server), ':') + 1, secret_of_b);
}

static void tear_down(void)
{
	rig_tear_down(&pair.b);
	tn_peer_server_end(pair.server);
	rig_tear_down(&pair.a);
	elsewhere = false;
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

/* ---- cases --------------------------------------------------------------------------------------------------------- */

static void all_of_a_are_hits_at_b(void)
{
	set_up(0, secret);
	rig_save(pair.a.s, 1, BLOCKS, 0);
	assert_int_equal(rig_match(pair.b.s, 1, BLOCKS), 0); /* nobody has asked yet */
	assert_int_equal(ask(1, BLOCKS + 8, RIG_SECOND * 5), BLOCKS);
	assert_int_equal(served().asked_keys, BLOCKS + 8);
	assert_int_equal(served().found_keys, BLOCKS);
	assert_int_equal(served().peers, 1);
	assert_int_equal(rig_load(pair.b.s, 1, BLOCKS), BLOCKS); /* their bytes are checked */
	assert_int_equal(served().blocks, BLOCKS);
	assert_int_equal(served().mapped_blocks, elsewhere ? 0 : BLOCKS);
	assert_int_equal(served().misses, 0);
	assert_int_equal(rig_load(pair.b.s, 1, 4), 4);
	tear_down();
}

static void what_one_has_computed_the_other_finds(void **state)
{
	all_of_a_are_hits_at_b();
}

static void nodes_that_share_no_memory_get_the_bytes_by_the_connection(void **state)
{
	elsewhere = true;
	all_of_a_are_hits_at_b();
}

static void blocks_come_from_the_disk_of_the_other_node_as_well(void **state)
{
	char address[64];

	set_up(32u << 20, secret);
	snprintf(address, sizeof(address), "%s", strchr(tn_peer_server_address(pair.server), ':') + 1);
	tn_peer_server_end(pair.server);
	rig_save(pair.a.s, 1, BLOCKS, 0);
	assert_int_equal(rig_close(&pair.a), 0);
	rig_must_open(&pair.a);
	assert_int_equal(serve(address), 0);
	assert_int_equal(ask(1, BLOCKS, RIG_SECOND * 5), BLOCKS);
	assert_int_equal(rig_load(pair.b.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_count_host(pair.a.s, 1, BLOCKS), 0); /* what others want pushes nothing out of A's memory */
	tear_down();
}

static void a_block_that_is_damaged_on_the_way_is_a_miss(void **state)
{
	elsewhere = true;
	set_up(0, secret);
	rig_save(pair.a.s, 1, BLOCKS, 0);
	assert_int_equal(ask(1, BLOCKS, RIG_SECOND * 5), BLOCKS);
	flips = 1;
	assert_in_range(rig_load(pair.b.s, 1, 8), 0, 7);
	assert_int_equal(flips, 0);
	assert_int_equal(ask(1, BLOCKS, RIG_SECOND * 5), BLOCKS); /* and it is there still */
	assert_int_equal(rig_load(pair.b.s, 1, BLOCKS), BLOCKS);
	tear_down();
}

static void who_has_another_secret_is_refused_and_told_so(void **state)
{
	set_up(0, "another secret of this test, also of more than 16 bytes");
	rig_save(pair.a.s, 1, 2, 0);
	assert_int_equal(ask(1, 2, RIG_SECOND * 5), 0);
	rig_until(&pair.b, served().refused > 0);
	rig_until(&pair.b, has_logged("another secret"));
	assert_int_equal(served().asked_keys, 0);
	tear_down();
}

static void refused(const char *remote, int status, const char *says)
{
	pair.b.o.cache.remote = remote;
	assert_int_equal(rig_open(&pair.b), status);
	assert_non_null(strstr(tn_error_last()->text, says));
}

static void a_mistake_in_the_settings_is_told_when_the_cache_is_opened(void **state)
{
	struct tn_peer_serve_opts o;

	set_up(0, secret);
	assert_int_equal(rig_close(&pair.b), 0);
	refused("peer,host=127.0.0.1,port=1", -EINVAL, "secret_file is missing");
	refused("peer,host=127.0.0.1,prot=1", -EINVAL, "there is no prot");
	refused("peer,host=127.0.0.1,port=1,secret_file=/nowhere", -ENOENT, "/nowhere");
	pair.b.o.cache.remote = pair.remote;
	rig_must_open(&pair.b);
	tn_peer_serve_opts_init(&o);
	assert_int_equal(tn_peer_serve(pair.a.cache, &o, &pair.server), -EINVAL);
	o.address = "127.0.0.1:0";
	o.secret_file = "/nowhere";
	assert_int_equal(tn_peer_serve(pair.a.cache, &o, &pair.server), -ENOENT);
	tear_down();
}

static void what_a_peer_is_not_asked_for_is_saved_as_before(void **state)
{
	set_up(0, secret);
	rig_save(pair.b.s, 1, 8, 0);
	assert_int_equal(rig_load(pair.b.s, 1, 8), 8);
	assert_int_equal(rig_flush(&pair.b), 0);
	assert_int_equal(rig_match(pair.a.s, 1, 8), 0); /* nothing is written to a peer */
	tear_down();
}

/* ---- A in a process of its own ------------------------------------------------------------------------------------- */

static struct child {
	pid_t pid;
	int in, out; /* its standard streams */
	char port[16];
} child;

static void start_child(const char *cluster, const char *peers, const char *port)
{
	int to[2], from[2];
	ssize_t n;

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	child.pid = fork();
	assert_true(child.pid >= 0);
	if (child.pid == 0) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		close(to[1]);
		execl("/proc/self/exe", "peer", cluster, peers, port, NULL);
		_exit(1);
	}
	close(to[0]);
	close(from[1]);
	child.in = to[1];
	child.out = from[0];
	n = read(child.out, child.port, sizeof(child.port) - 1);
	assert_true(n > 0);
	child.port[n] = 0;
}

static void end_child(int signal)
{
	int status;

	if (signal)
		kill(child.pid, signal);
	close(child.in);
	close(child.out);
	assert_int_equal(waitpid(child.pid, &status, 0), child.pid);
}

/* Serves blocks 1 to MANY until its input ends. */
static int run_child(char **argv)
{
	char address[64], end;

	open_rig(&pair.a, 0, 32u << 20);
	pair.a.o.cache.cluster_secret_file = argv[1];
	rig_must_open(&pair.a);
	for (uint32_t i = 0; i < MANY; i += 20)
		rig_save(pair.a.s, 1 + i, 20, 0);
	snprintf(pair.peers, sizeof(pair.peers), "%s", argv[2]);
	snprintf(address, sizeof(address), "127.0.0.1:%s", argv[3]);
	assert_int_equal(serve(address), 0);
	printf("%s", strrchr(tn_peer_server_address(pair.server), ':') + 1);
	fflush(stdout);
	assert_int_equal(read(0, &end, 1), 0);
	tn_peer_server_end(pair.server);
	rig_tear_down(&pair.a);
	return 0;
}

static char home[300];

static void set_up_child(void)
{
	char cluster[300], peers[300];

	memset(&pair, 0, sizeof(pair));
	snprintf(home, sizeof(home), "/tmp/tenuto-peer-test-XXXXXX");
	assert_non_null(mkdtemp(home));
	write_file(cluster, home, "cluster", secret);
	write_file(peers, home, "peers", secret);
	start_child(cluster, peers, "0");
	open_b(child.port, secret);
}

static void tear_down_child(void)
{
	char path[400];

	rig_tear_down(&pair.b);
	snprintf(path, sizeof(path), "%s/cluster", home);
	unlink(path);
	snprintf(path, sizeof(path), "%s/peers", home);
	unlink(path);
	rmdir(home);
	elsewhere = false;
}

/* Loads until one is cut short; whatever comes is what it should be. */
static void *kill_soon(void *arg)
{
	usleep(30000);
	kill(child.pid, SIGKILL);
	return NULL;
}

static void a_peer_that_is_killed_costs_what_it_had_and_nothing_else(void)
{
	uint64_t begin;
	pthread_t killer;
	int good = 20;

	set_up_child();
	for (uint32_t i = 0; i < MANY; i += 20)
		assert_int_equal(ask(1 + i, 20, RIG_SECOND * 5), 20);
	assert_int_equal(pthread_create(&killer, NULL, kill_soon, NULL), 0);
	for (uint32_t i = 0; good == 20; i = (i + 20) % MANY)
		good = rig_load(pair.b.s, 1 + i, 20);
	pthread_join(killer, NULL);
	begin = rig_now(&pair.b);
	ask(1, 20, RIG_SECOND);
	assert_true(rig_now(&pair.b) - begin < 3 * RIG_SECOND);
	rig_save(pair.b.s, 1001, 8, 0);
	assert_int_equal(rig_load(pair.b.s, 1001, 8), 8);
	end_child(0);
	tear_down_child();
}

static void killed_while_it_is_copied_from(void **state)
{
	a_peer_that_is_killed_costs_what_it_had_and_nothing_else();
}

static void killed_while_it_sends(void **state)
{
	elsewhere = true;
	a_peer_that_is_killed_costs_what_it_had_and_nothing_else();
}

static void a_peer_that_stands_still_costs_the_deadline_and_is_asked_again(void **state)
{
	uint64_t begin;
	int status;

	set_up_child();
	assert_int_equal(ask(1, 20, RIG_SECOND * 5), 20);
	kill(child.pid, SIGSTOP);
	assert_int_equal(waitpid(child.pid, &status, WUNTRACED), child.pid);
	begin = rig_now(&pair.b);
	assert_int_equal(ask(1, 40, RIG_SECOND / 5), 20); /* what is known */
	assert_in_range(rig_now(&pair.b) - begin, RIG_SECOND / 5, 3 * RIG_SECOND);
	kill(child.pid, SIGCONT);
	rig_until(&pair.b, ask(1, 40, RIG_SECOND) == 40);
	assert_int_equal(rig_load(pair.b.s, 21, 20), 20);
	end_child(0);
	tear_down_child();
}

static void a_peer_that_has_started_again_is_asked_again(void **state)
{
	char cluster[330], peers[330], port[16];

	set_up_child();
	assert_int_equal(ask(1, 20, RIG_SECOND * 5), 20);
	assert_int_equal(rig_load(pair.b.s, 1, 20), 20);
	end_child(SIGKILL);
	snprintf(cluster, sizeof(cluster), "%s/cluster", home);
	snprintf(peers, sizeof(peers), "%s/peers", home);
	memcpy(port, child.port, sizeof(port));
	start_child(cluster, peers, port);
	assert_int_equal(ask(41, 20, RIG_SECOND * 5), 20);
	assert_int_equal(rig_load(pair.b.s, 41, 20), 20);
	end_child(0);
	tear_down_child();
}

/* ---- who is not a peer --------------------------------------------------------------------------------------------- */

static int dial(void)
{
	const char *port = strrchr(tn_peer_server_address(pair.server), ':') + 1;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)strtoul(port, NULL, 10)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

static void strangers_are_kept_out_and_hold_up_nobody(void **state)
{
	static const unsigned char large[8] = {1, 0, 0, 0, 255, 255, 255, 127}; /* a HELLO of 2 GiB */
	int silent[TN_PEERS_MAX + 8];
	unsigned char byte;
	int fd;

	set_up(0, secret);
	rig_save(pair.a.s, 1, BLOCKS, 0);
	fd = dial();
	assert_int_equal(send(fd, large, sizeof(large), MSG_NOSIGNAL), sizeof(large));
	assert_in_range(recv(fd, &byte, 1, 0) + 1, 0, 1); /* it is closed */
	close(fd);
	for (uint32_t i = 0; i < TN_PEERS_MAX + 8; i++)
		silent[i] = dial();
	rig_until(&pair.b, ask(1, BLOCKS, RIG_SECOND) == BLOCKS);
	assert_int_equal(rig_load(pair.b.s, 1, BLOCKS), BLOCKS);
	for (uint32_t i = 0; i < TN_PEERS_MAX + 8; i++)
		close(silent[i]);
	tear_down();
}

/* A connection that has proved the secret, and joined as a peer of another machine. */
static int join_as_peer(void)
{
	const struct tn_peer_join join = {.version = TN_PEER_VERSION};
	struct tn_xfer_shake s = {.name = {"test", ""}, .generation = {1, 0}, .key_bytes = sizeof(struct tn_secret)};
	uint64_t until = rig_deadline(&pair.b);
	struct tn_xfer_message head;
	struct tn_peer_answer a;
	int fd = dial();

	assert_int_equal(tn_secret_read(pair.peers, (struct tn_secret *)(void *)s.key), 0);
	assert_int_equal(tn_xfer_shake_hands(fd, &s, until), 0);
	assert_int_equal(tn_xfer_send_all(fd, TN_PEER_JOIN, &join, sizeof(join), until), 0);
	assert_int_equal(tn_xfer_receive(fd, &head, &a, sizeof(a), until), 0);
	assert_int_equal(a.status, 0);
	return fd;
}

struct question {
	struct tn_peer_ask ask;
	struct tn_key key;
};

static struct question question(uint64_t id, uint32_t slot)
{
	return (struct question){.ask = {.bytes = 1u << 30, .slot = slot, .flags = TN_PEER_BEHIND, .n = 1, .space = pair.a.s->space->id}, .key = rig_key(id)};
}

static void a_peer_that_takes_no_answers_holds_up_no_other(void **state)
{
	struct tn_xfer_message head = {TN_PEER_GET, sizeof(struct question)};
	struct {
		struct tn_xfer_message head;
		struct question q;
	} m;
	uint64_t begin;
	int fd[3];

	_Static_assert(sizeof(m) == sizeof(head) + sizeof(struct question), "a message");
	set_up(0, secret);
	rig_save(pair.a.s, 1, BLOCKS, 0);
	for (uint32_t k = 0; k < 3; k++) { /* 12 loads, if each kept what it may have */
		ssize_t sent = sizeof(m);

		fd[k] = join_as_peer();
		for (uint32_t i = 0; sent == sizeof(m) && i < 20000; i++) {
			m.head = head;
			m.q = question(1 + i % BLOCKS, i % TN_OBJECT_SLOTS);
			sent = send(fd[k], &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT);
		}
	}
	for (uint64_t given = 0; given == 0 || served().blocks > given; usleep(200000)) /* until no socket takes any more */
		given = served().blocks;
	begin = rig_now(&pair.b);
	assert_int_equal(ask(1, BLOCKS, 5 * RIG_SECOND), BLOCKS);
	assert_int_equal(rig_load(pair.b.s, 1, BLOCKS), BLOCKS);
	assert_true(rig_now(&pair.b) - begin < 5 * RIG_SECOND); /* sooner than they are given up */
	for (uint32_t k = 0; k < 3; k++)
		close(fd[k]);
	tear_down();
}

static void what_is_no_question_ends_its_connection_alone(void **state)
{
	struct question q[6];
	unsigned char byte;

	set_up(0, secret);
	rig_save(pair.a.s, 1, BLOCKS, 0);
	for (uint32_t i = 0; i < 6; i++)
		q[i] = question(1, 0);
	q[1].ask.slot = TN_OBJECT_SLOTS;
	q[2].ask.n = 0;
	q[3].ask.n = UINT32_MAX;
	q[4].ask.n = 2;
	for (uint32_t i = 0; i < 6; i++) {
		uint32_t type = i == 0 ? 99 : i == 5 ? TN_PEER_FIND : TN_PEER_GET, bytes = i == 5 ? sizeof(q[i].ask) - 1 : sizeof(q[i]);
		int fd = join_as_peer();

		assert_int_equal(tn_xfer_send_all(fd, type, &q[i], bytes, rig_deadline(&pair.b)), 0);
		assert_in_range(recv(fd, &byte, 1, 0) + 1, 0, 1);
		close(fd);
	}
	assert_int_equal(ask(1, BLOCKS, 5 * RIG_SECOND), BLOCKS);
	tear_down();
}

/* ---- what a hostile reviewer tried --------------------------------------------------------------------------------- */

static void what_has_a_time_to_live_is_not_given_away(void **state)
{
	struct tn_save_opts o;
	struct tn_save *save;

	set_up(0, secret);
	rig_save(pair.a.s, 1, 4, 0);
	tn_save_opts_init(&o);
	o.ttl_ns = 60 * RIG_SECOND;
	save = rig_save_begin(pair.a.s, 5, 4, 0, &o);
	rig_save_give(pair.a.s, save);
	rig_save_end(pair.a.s, save);
	assert_int_equal(rig_match(pair.a.s, 1, 8), 8);
	assert_int_equal(ask(1, 8, 5 * RIG_SECOND), 4);
	tear_down();
}

static void half_a_question_keeps_no_load(void **state)
{
	struct {
		struct tn_xfer_message head;
		struct question q;
	} m[5];
	struct {
		struct tn_xfer_message head;
		struct tn_peer_answer a;
	} r;
	uint64_t begin;
	int fd[3];

	set_up(0, secret);
	rig_save(pair.a.s, 1, BLOCKS, 0);
	for (uint32_t i = 0; i < 5; i++) {
		m[i].head = (struct tn_xfer_message){TN_PEER_GET, sizeof(struct question)};
		m[i].q = question(1 + i, i);
	}
	for (int k = 0; k < 3; k++)
		fd[k] = join_as_peer();
	for (int k = 0; k < 2; k++) /* together they have all of the loads */
		assert_int_equal(send(fd[k], m, 4 * sizeof(m[0]) + 4, MSG_NOSIGNAL), 4 * sizeof(m[0]) + 4);
	usleep(100000);
	begin = rig_now(&pair.b);
	assert_int_equal(send(fd[2], m, sizeof(m[0]), MSG_NOSIGNAL), sizeof(m[0]));
	assert_int_equal(recv(fd[2], &r, sizeof(r), MSG_WAITALL), sizeof(r));
	assert_int_equal(r.a.status, 0);
	assert_in_range(rig_now(&pair.b) - begin, 0, 3 * RIG_SECOND);
	for (int k = 0; k < 3; k++)
		close(fd[k]);
	tear_down();
}

/* A server that finds all, and has the same status for all blocks. */
struct strange {
	struct tn_xfer_listener listener;
	pthread_t thread;
	int status;
};

static void *run_strange(void *arg)
{
	struct tn_xfer_shake shake = {.key_bytes = sizeof(struct tn_secret), .name = {"", "strange"}, .generation = {0, 1}};
	uint64_t until = rig_deadline(&pair.b);
	struct strange *s = arg;
	struct tn_xfer_socket sock;
	struct tn_xfer_message head;
	struct tn_peer_answer a = {0};
	struct {
		struct tn_peer_ask ask;
		struct tn_key keys[TN_OBJECT_NAMES];
	} in;

	assert_int_equal(tn_secret_read(pair.peers, (struct tn_secret *)(void *)shake.key), 0);
	while (tn_xfer_accept(s->listener.sock.fd, &sock))
		usleep(1000);
	assert_int_equal(tn_xfer_shake_answer(sock.fd, &shake, until), 0);
	assert_int_equal(tn_xfer_receive(sock.fd, &head, &in, sizeof(in), until), 0);
	while (tn_xfer_send_all(sock.fd, TN_PEER_ANSWER, &a, sizeof(a), until) == 0 && tn_xfer_receive(sock.fd, &head, &in, sizeof(in), until) == 0) {
		a = (struct tn_peer_answer){.id = in.ask.id, .slot = in.ask.slot};
		if (head.type == TN_PEER_FIND)
			a.found = in.ask.n;
		else
			a.status = s->status;
	}
	tn_xfer_socket_close(&sock);
	return NULL;
}

static void a_status_that_no_peer_has_ends_the_connection(void **state)
{
	struct strange s = {.status = -EINPROGRESS};
	struct tn_load_opts o;
	struct tn_load *load;

	memset(&pair, 0, sizeof(pair));
	open_a(0, 16u << 20); /* for its secret */
	assert_int_equal(tn_xfer_listen("tcp:127.0.0.1:0", rig_deadline(&pair.a), &s.listener), 0);
	open_b(strrchr(s.listener.address, ':') + 1, secret);
	assert_int_equal(pthread_create(&s.thread, NULL, run_strange, &s), 0);
	rig_until(&pair.b, ask(1, 4, RIG_SECOND) == 4);
	tn_load_opts_init(&o);
	o.deadline_ns = rig_now(&pair.b) + 20 * RIG_SECOND;
	load = rig_load_begin(pair.b.s, 1, 4, 0, &o);
	assert_int_equal(tn_load_wait(load, 0, rig_now(&pair.b) + 15 * RIG_SECOND), 0);
	assert_int_equal(tn_load_end(load, rig_now(&pair.b) + 15 * RIG_SECOND, NULL), 0);
	pthread_join(s.thread, NULL);
	tn_xfer_socket_close(&s.listener.sock);
	tear_down();
}

/* A peer that reads slots where they lie, and stands still. */
static int run_client(char **argv)
{
	open_rig(&pair.b, 0, 2u << 20);
	pair.b.o.cache.cluster_secret_file = argv[1];
	snprintf(pair.remote, sizeof(pair.remote), "peer,host=127.0.0.1,port=%s,secret_file=%s", argv[3], argv[2]);
	pair.b.o.cache.remote = pair.remote;
	rig_must_open(&pair.b);
	rig_until(&pair.b, ask(1, 8, RIG_SECOND) == 8);
	if (rig_load(pair.b.s, 1, 8) != 8 || write(STDOUT_FILENO, "x", 1) != 1)
		return 1;
	pause();
	return 0;
}

static void a_peer_that_stands_still_does_not_keep_the_cache_open(void **state)
{
	int from[2], status;
	uint64_t begin;
	pid_t pid;
	char x;

	memset(&pair, 0, sizeof(pair));
	open_a(0, 16u << 20);
	rig_save(pair.a.s, 1, 8, 0);
	assert_int_equal(pipe(from), 0);
	pid = fork();
	if (pid == 0) {
		dup2(from[1], STDOUT_FILENO);
		execl("/proc/self/exe", "peer", pair.cluster, pair.peers, strrchr(tn_peer_server_address(pair.server), ':') + 1, "client", NULL);
		_exit(1);
	}
	close(from[1]);
	assert_int_equal(read(from[0], &x, 1), 1);
	assert_int_equal(served().mapped_blocks, 8);
	kill(pid, SIGSTOP);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	begin = rig_now(&pair.a);
	tn_peer_server_end(pair.server);
	rig_tear_down(&pair.a);
	assert_in_range(rig_now(&pair.a) - begin, 0, 10 * RIG_SECOND);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	close(from[0]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_has_computed_the_other_finds),
		cmocka_unit_test(nodes_that_share_no_memory_get_the_bytes_by_the_connection),
		cmocka_unit_test(blocks_come_from_the_disk_of_the_other_node_as_well),
		cmocka_unit_test(a_block_that_is_damaged_on_the_way_is_a_miss),
		cmocka_unit_test(who_has_another_secret_is_refused_and_told_so),
		cmocka_unit_test(a_mistake_in_the_settings_is_told_when_the_cache_is_opened),
		cmocka_unit_test(what_a_peer_is_not_asked_for_is_saved_as_before),
		cmocka_unit_test(killed_while_it_is_copied_from),
		cmocka_unit_test(killed_while_it_sends),
		cmocka_unit_test(a_peer_that_stands_still_costs_the_deadline_and_is_asked_again),
		cmocka_unit_test(a_peer_that_has_started_again_is_asked_again),
		cmocka_unit_test(strangers_are_kept_out_and_hold_up_nobody),
		cmocka_unit_test(a_peer_that_takes_no_answers_holds_up_no_other),
		cmocka_unit_test(what_is_no_question_ends_its_connection_alone),
		cmocka_unit_test(what_has_a_time_to_live_is_not_given_away),
		cmocka_unit_test(half_a_question_keeps_no_load),
		cmocka_unit_test(a_status_that_no_peer_has_ends_the_connection),
		cmocka_unit_test(a_peer_that_stands_still_does_not_keep_the_cache_open),
	};

	if (argc == 4)
		return run_child(argv);
	if (argc == 5)
		return run_client(argv);
	return tn_test_ran(cmocka_run_group_tests_name("peer", tests, NULL, NULL));
}
