/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast blocks come from another cache: by its window and by the connection, beside loads from host memory of the own cache and beside a bare TCP connection of two
 * processes. And how long the own loads of the cache that serves take, alone and beside a peer that takes all it can. Sides take turns; medians of rounds are printed.
 *
 * bench-peer [ROUNDS [KIB_PER_BLOCK]]
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <tenuto/peer.h>
#include <tenuto/tenuto.h>
#include <unistd.h>

#include "base/proc.h"
#include "tn_test.h"

#define LAYERS 32u
#define TOTAL (128ull << 20)
#define HOST_BYTES (16ull << 20) /* of caches that ask: a cache has to have some */
#define ROUNDS_MAX 101u
#define LOADS 200u /* of one block, whose times are looked at */

enum side { HOST, WINDOW, CONNECTION, TCP, RATES, ALONE_US = RATES, BESIDE_US, SIDES };
static const char *const names[SIDES] = {"own host memory, GB/s", "peer by its window, GB/s", "peer by the connection, GB/s", "bare TCP, GB/s", "p99 of the peer's own loads alone, us",
					  "p99 of them beside us, us"};

/* A cache of this process, or of the child. */
struct node {
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_memory *memory;
	struct tn_pool *pool;
	unsigned char *at;
	struct tn_key *keys;
	uint32_t *pages;
};

/* CPU seconds per GB of the first sides: of this process, and of the other one. */
static double cpu[RATES][2];

static uint32_t blocks;
static uint64_t block_bytes;
static char home[] = "/dev/shm/tenuto-bench-peer-XXXXXX";
static char secret[64];
static bool elsewhere;

void __real_tn_boot_id(uint64_t id[2]);
void __wrap_tn_boot_id(uint64_t id[2]);
void __wrap_tn_boot_id(uint64_t id[2])
{
	__real_tn_boot_id(id);
	id[1] += elsewhere;
}

static void must(int rc, const char *what)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "%s: %d %s\n", what, rc, tn_error_last()->text);
	exit(1);
}

static void open_node(struct node *n, const char *remote, uint64_t host_bytes)
{
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .alignment = 4096, .npages = blocks};
	uint64_t *base = calloc(LAYERS, sizeof(*base));
	struct tn_memory_range range;
	struct tn_memory_desc desc;
	struct tn_pool_layout layout;
	struct tn_cache_opts o;
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_geometry g;
	void *at;

	tn_cache_opts_init(&o);
	o.host_bytes = host_bytes;
	o.cluster_secret_file = secret;
	o.remote = remote;
	must(tn_cache_open(&o, &n->cache), "open");
	must(tn_geometry_raw(LAYERS, block_bytes / LAYERS, &g), "geometry");
	tn_identity_init(&id);
	id.model = "peer";
	tn_shard_init(&shard);
	must(tn_space_open(n->cache, &id, &shard, &g, NULL, &n->space), "space");
	must(tn_memory_alloc(TOTAL, NULL, &at), "memory");
	n->at = at;
	memset(n->at, 1, TOTAL);
	range = (struct tn_memory_range){.address = at, .bytes = TOTAL};
	tn_memory_desc_init(&desc);
	desc.ranges = &range;
	desc.nranges = 1;
	must(tn_memory_register(n->cache, &desc, &n->memory), "register");
	must(tn_layout_fill(&g, &shape, NULL, base, &layout), "layout");
	must(tn_pool_create(n->memory, &g, &layout, &n->pool), "pool");
	free(base);
	n->keys = calloc(blocks, sizeof(*n->keys));
	n->pages = calloc(blocks, sizeof(*n->pages));
	for (uint32_t i = 0; i < blocks; i++) {
		n->keys[i] = (struct tn_key){{0x1000 + i, 1}};
		n->pages[i] = i;
	}
}

static void save_all(struct node *n)
{
	struct tn_save_result result = {.size = sizeof(result)};
	struct tn_save *save;

	must(tn_save_begin(n->space, n->pool, n->keys, blocks, n->pages, NULL, &save), "save");
	for (uint32_t l = 0; l < LAYERS; l++)
		must(tn_save_layer(save, l, NULL, 0), "layer");
	must(tn_save_commit(save), "commit");
	must(tn_save_end(save, TN_FOREVER, &result), "end");
}

static void load(struct node *n, uint32_t first, uint32_t count)
{
	struct tn_load *load;
	int good;

	must(tn_load_begin(n->space, n->pool, n->keys + first, count, n->pages + first, NULL, &load), "load");
	good = tn_load_wait(load, LAYERS - 1, TN_FOREVER);
	tn_load_end(load, TN_FOREVER, NULL);
	if (good != (int)count)
		must(-1, "not all blocks came");
}

static double gbs(uint64_t from)
{
	return (double)TOTAL / (double)(tn_test_now() - from);
}

static double load_all(struct node *n)
{
	uint64_t from = tn_test_now();

	load(n, 0, blocks);
	return gbs(from);
}

/* Forgets them, and finds them again. */
static double load_from_peer(struct node *n)
{
	struct tn_match match = {.size = sizeof(match)};
	uint64_t query;
	int found;

	must(tn_drop(n->space, n->keys, blocks), "drop");
	must(tn_match_begin(&n->space, 1, n->keys, blocks, tn_test_now() + TN_TEST_SECOND, 0, &query), "match");
	while ((found = tn_match_poll(n->cache, query, NULL, &match)) == -EAGAIN)
		usleep(50);
	if (found != (int)blocks)
		must(-1, "not all blocks were found");
	return load_all(n);
}

/* Of this process. */
static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double p99_us(struct node *n)
{
	double us[LOADS];

	for (uint32_t i = 0; i < LOADS; i++) {
		uint64_t from = tn_test_now();

		load(n, i % blocks, 1);
		us[i] = (double)(tn_test_now() - from) * 1e-3;
	}
	qsort(us, LOADS, sizeof(*us), order);
	return us[LOADS * 99 / 100];
}

/* ---- the child ----------------------------------------------------------------------------------------------------- */

static void send_bytes(int fd, unsigned char *from)
{
	for (uint64_t sent = 0; sent < TOTAL;) {
		ssize_t n = send(fd, from + sent, TOTAL - sent, MSG_NOSIGNAL);

		must(n > 0 ? 0 : -1, "send");
		sent += (uint64_t)n;
	}
}

/* t: all bytes by a bare connection; p: p99 of own loads; c: CPU seconds. */
static void serve_child(int in, int out)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd;
	struct tn_peer_server *server;
	struct tn_peer_serve_opts o;
	socklen_t bytes = sizeof(at);
	struct node n;
	char ports[32], what;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_node(&n, NULL, TOTAL * 2);
	save_all(&n);
	tn_peer_serve_opts_init(&o);
	o.address = "127.0.0.1:0";
	o.secret_file = secret;
	must(tn_peer_serve(n.cache, &o, &server), "serve");
	bind(listener, (struct sockaddr *)&at, sizeof(at));
	listen(listener, 1);
	getsockname(listener, (struct sockaddr *)&at, &bytes);
	snprintf(ports, sizeof(ports), "%s %u", strrchr(tn_peer_server_address(server), ':') + 1, ntohs(at.sin_port));
	must((int)write(out, ports, sizeof(ports)), "write");
	fd = accept(listener, NULL, NULL);
	while (read(in, &what, 1) == 1) {
		double figure = what == 'p' ? p99_us(&n) : cpu_seconds();

		if (what == 't')
			send_bytes(fd, n.at);
		else
			must((int)write(out, &figure, sizeof(figure)), "write");
	}
	_exit(0);
}

/* ---- this process -------------------------------------------------------------------------------------------------- */

struct bench {
	struct node own, window, connection;
	int to, from, tcp;
	unsigned char *bytes;
};

static double bare_tcp(const struct bench *b)
{
	uint64_t from = tn_test_now();

	must((int)write(b->to, "t", 1), "write");
	for (uint64_t got = 0; got < TOTAL;) {
		ssize_t n = recv(b->tcp, b->bytes + got, TOTAL - got, 0);

		must(n > 0 ? 0 : -1, "recv");
		got += (uint64_t)n;
	}
	return gbs(from);
}

static double ask_child(const struct bench *b, char what)
{
	double figure;

	must((int)write(b->to, &what, 1), "write");
	must((int)read(b->from, &figure, sizeof(figure)), "read");
	return figure;
}

static double measure(struct bench *b, enum side side)
{
	double here = cpu_seconds(), there = ask_child(b, 'c'), rate;

	rate = side == HOST ? load_all(&b->own) : side == WINDOW ? load_from_peer(&b->window) : side == CONNECTION ? load_from_peer(&b->connection) : bare_tcp(b);
	cpu[side][0] += cpu_seconds() - here;
	cpu[side][1] += ask_child(b, 'c') - there;
	return rate;
}

static double owner_p99(struct bench *b, bool beside)
{
	struct pollfd p = {.fd = b->from, .events = POLLIN};
	double us;

	must((int)write(b->to, "p", 1), "write");
	while (beside && poll(&p, 1, 0) == 0)
		load_from_peer(&b->window);
	must((int)read(b->from, &us, sizeof(us)), "read");
	return us;
}

static void start(struct bench *b)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int to[2], from[2];
	unsigned tcp, peer;
	char ports[32], remote[200];

	must(pipe(to) | pipe(from), "pipe");
	if (fork() == 0)
		serve_child(to[0], from[1]);
	b->to = to[1];
	b->from = from[0];
	must((int)read(b->from, ports, sizeof(ports)), "read");
	assert(sscanf(ports, "%u %u", &peer, &tcp) == 2);
	at.sin_port = htons((uint16_t)tcp);
	b->tcp = socket(AF_INET, SOCK_STREAM, 0);
	must(connect(b->tcp, (struct sockaddr *)&at, sizeof(at)), "connect");
	snprintf(remote, sizeof(remote), "peer,host=127.0.0.1,port=%u,secret_file=%s", peer, secret);
	open_node(&b->own, NULL, TOTAL * 2);
	save_all(&b->own);
	open_node(&b->window, remote, HOST_BYTES);
	elsewhere = true;
	open_node(&b->connection, remote, HOST_BYTES);
	elsewhere = false;
	b->bytes = malloc(TOTAL);
}

int main(int argc, char **argv)
{
	uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 9;
	static double figure[SIDES][ROUNDS_MAX];
	struct bench b = {.to = -1};
	int fd;

	rounds = rounds < 1 ? 1 : rounds < ROUNDS_MAX ? rounds : ROUNDS_MAX;
	block_bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 2048) << 10;
	blocks = (uint32_t)(TOTAL / block_bytes);
	assert(mkdtemp(home));
	snprintf(secret, sizeof(secret), "%s/secret", home);
	fd = open(secret, O_WRONLY | O_CREAT, 0600);
	must((int)write(fd, secret, sizeof(secret)), "write");
	close(fd);
	start(&b);
	for (uint32_t i = 0; i < rounds; i++) {
		for (uint32_t s = 0; s < RATES; s++)
			figure[s][i] = measure(&b, s);
		figure[ALONE_US][i] = owner_p99(&b, false);
		figure[BESIDE_US][i] = owner_p99(&b, true);
	}
	for (uint32_t s = 0; s < SIDES; s++) {
		qsort(figure[s], rounds, sizeof(double), order);
		printf("%-40s %8.2f (%.2f to %.2f)", names[s], figure[s][rounds / 2], figure[s][0], figure[s][rounds - 1]);
		if (s < RATES)
			printf(", CPU s/GB %.3f here, %.3f there", cpu[s][0] * 1e9 / (double)TOTAL / rounds, cpu[s][1] * 1e9 / (double)TOTAL / rounds);
		putchar('\n');
	}
	unlink(secret);
	rmdir(home);
	return 0;
}
