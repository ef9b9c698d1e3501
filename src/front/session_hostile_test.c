/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that attaches and then writes whatever it likes into the region, its calls and the socket, while others load and save: the
 * owner neither crashes nor hangs, and others get the right bytes. Most is worth something under ASAN.
 *
 * The process may see one tenant only, so that what it does in good order is no business of the others either.
 *
 * TN_SOAK=1 asks for a hundred million changes.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/rng.h"
#include "session_rig.h"

#define TENANT "evil" /* of the attacker, and its token */
#define WORDS_AT_ONCE 32u
#define SOAK_ATTACKERS 20u /* one after the other, each with a session of its own and as many changes */
#define SOAK_CHANGES 5000000ull
#define SHORT_NS (2 * RIG_SECOND)
#define LEAST_CHANGES 1000000u
#define MESSAGE_EVERY 64u
#define CALL_EVERY 4u

struct attacker {
	struct rig r;
	struct tn_rng rng;
	char path[PATH];
	int sock;    /* of the session */
	int files[4]; /* that are sent along: of memory, of memory that is too small, of no memory, a socket */
	uint64_t generation; /* of the newest command */
	uint64_t words, commands, calls, messages;
};

static uint64_t below(struct attacker *a, uint64_t n)
{
	return tn_rng_below(&a->rng, n);
}

/* Something that is wrong, nearly right, or right. */
static uint64_t odd(struct attacker *a, uint64_t right)
{
	switch (below(a, 48)) {
	case 0:
		return tn_rng_next(&a->rng);
	case 1:
		return right + 1;
	case 2:
		return right - 1;
	case 3:
		return UINT64_C(1) << below(a, 64);
	default:
		return right;
	}
}

static struct tn_region *region(struct attacker *a)
{
	return &a->r.cache->region;
}

static void put(struct attacker *a, void *word, uint64_t value)
{
	__atomic_store_n((uint64_t *)word, value, __ATOMIC_RELAXED);
	a->words++;
}

/* Any word of any table, of the core's part, too; tables that are small as often as large ones. */
static void change_any_word(struct attacker *a)
{
	const struct tn_region *g = region(a);
	uint32_t table = (uint32_t)below(a, TN_REGION_TABLES);
	uint64_t end = table + 1 < TN_REGION_TABLES ? g->at[table + 1] : g->bytes, words = (end - g->at[table]) / 8;
	uint64_t *word;

	if (table == TN_REGION_CALLS || table == TN_REGION_CALL_BYTES) /* those by themselves: rubbish is a turn, too */
		return;
	if ((table == TN_REGION_FRONT || table == TN_REGION_KICKS || table == TN_REGION_SEEN || table == TN_REGION_ASKED) && below(a, 256))
		return; /* seldom: without its bell, and with commands of rubbish alone, the owner would hear nothing of the rest */
	word = (uint64_t *)(void *)(g->base + g->at[table]) + (below(a, 4) ? below(a, words) : below(a, words < 64 ? words : 64));
	put(a, word, odd(a, __atomic_load_n(word, __ATOMIC_RELAXED)));
}

static void change_header(struct attacker *a)
{
	put(a, region(a)->base + below(a, sizeof(struct tn_region_header) / 8) * 8, tn_rng_next(&a->rng));
}

/* A command that is nearly right, with keys and pages, for an operation. */
static void write_command(struct attacker *a, uint32_t op)
{
	const struct tn_region *g = region(a);
	struct tn_face_asked *asked = tn_face_asked(g, op);
	struct tn_command *c = &asked->command;
	uint32_t blocks = (uint32_t)odd(a, 1 + below(a, 4));

	for (uint32_t i = 0; i < 4; i++)
		tn_face_keys(g, op)[i] = rig_key(odd(a, 1 + below(a, 64)));
	for (uint32_t i = 0; i < 4 * RIG_PAGES; i++)
		tn_face_pages(g, op)[i] = (uint32_t)odd(a, below(a, RIG_POOL_PAGES));
	for (uint32_t i = 0; i < RIG_LAYERS; i++)
		tn_face_given(g, op)[i] = (struct tn_face_given){odd(a, 0), below(a, 2) ? TN_EVENT_NONE : (uint32_t)odd(a, 0), below(a, 4) > 0};
	asked->cancel = below(a, 3) == 0;
	asked->commit = below(a, 4) > 0;
	c->kind = (uint32_t)odd(a, 1 + below(a, 3));
	c->space = (uint32_t)odd(a, a->r.s->space->index);
	c->pool = (uint32_t)odd(a, a->r.s->pool->number);
	c->blocks = blocks;
	c->first_page = odd(a, 0);
	c->end_page = odd(a, (uint64_t)blocks * RIG_PAGES);
	c->deadline_ns = odd(a, TN_FOREVER);
	c->ttl_ns = odd(a, 0);
	c->input_tokens = odd(a, 100);
	c->start_ns = odd(a, 0);
	c->priority = (int32_t)odd(a, 0);
	c->flags = (uint32_t)odd(a, 0);
	c->generation = below(a, 8) ? ++a->generation : a->generation - 1; /* never far ahead: no life would begin after it */
	a->words += 30;
	a->commands++;
}

/* Rings for an operation as a front does, or leaves the bell's list as it may be. A list that is wrong all the time would hide the commands. */
static void ring(struct attacker *a, uint32_t op)
{
	struct tn_doorbell d = tn_region_kicks(region(a));

	if (below(a, 64)) {
		tn_doorbell_ring(&d, op);
	} else {
		put(a, &d.link[op].next, odd(a, *d.head));
		put(a, d.head, odd(a, *d.head));
	}
	__atomic_add_fetch(&tn_region_front(region(a))->wakes, 1, __ATOMIC_SEQ_CST);
	tn_region_ring(region(a));
}

/* Calls that give back the space or the pool are seldom: nothing could be begun any more. */
static uint32_t some_kind(struct attacker *a)
{
	uint32_t kind = below(a, 8) ? (uint32_t)below(a, 32) : (uint32_t)odd(a, 0);
	bool ends = kind == TN_WIRE_SPACE_CLOSE || kind == TN_WIRE_SPACE_DROP || kind == TN_WIRE_POOL_DESTROY;

	return ends && below(a, 4096) ? TN_WIRE_MATCH : kind;
}

static void call(struct attacker *a)
{
	const struct tn_region *g = region(a);
	uint32_t place = (uint32_t)below(a, g->counts.calls), bytes = 0;
	struct tn_call_asked *asked = tn_call_asked(g, place);
	unsigned char *to = tn_call_asked_bytes(g, place);
	const struct tn_wire_about about = {.number = (uint32_t)odd(a, below(a, 4)), .n = (uint32_t)odd(a, 4), .pin = odd(a, 1),
					    .deadline_ns = odd(a, 0)};
	struct tn_wire_match m = {.nspaces = (uint32_t)odd(a, 1), .n = (uint32_t)odd(a, 8), .flags = (uint32_t)odd(a, TN_MATCH_PIN),
				  .all = (uint32_t)below(a, 2)};

	m.space[0] = (uint32_t)odd(a, a->r.s->space->index);
	if (below(a, 2)) {
		memcpy(to, &m, sizeof(m));
		bytes = sizeof(m) + 8 * sizeof(struct tn_key);
	} else {
		memcpy(to, &about, sizeof(about));
		bytes = sizeof(about);
	}
	for (uint64_t n = below(a, 8); n > 0; n--)
		put(a, to + below(a, 1024) * 8, odd(a, 0));
	asked->kind = some_kind(a);
	asked->bytes = (uint32_t)odd(a, below(a, 4) ? bytes : below(a, g->counts.call_bytes));
	__atomic_add_fetch(&asked->turn, (uint32_t)below(a, 3), __ATOMIC_RELEASE);
	a->words += 8;
	a->calls++;
}

static void send_some(struct attacker *a, int sock, const void *message, size_t bytes)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(64 * sizeof(int))];
	} control;
	struct iovec iov = {(void *)(uintptr_t)message, bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	uint32_t n = (uint32_t)below(a, 4);
	int fds[64];

	n = n == 3 ? (uint32_t)below(a, 64) : n;
	for (uint32_t i = 0; i < n; i++)
		fds[i] = a->files[below(a, 4)];
	if (n) {
		memset(&control, 0, sizeof(control));
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(n * sizeof(int));
		control.head = (struct cmsghdr){CMSG_LEN(n * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.head), fds, n * sizeof(int));
	}
	sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	a->messages++;
}

static void send_memory(struct attacker *a)
{
	struct tn_wire_memory w = {.magic = TN_WIRE_MAGIC, .nranges = (uint32_t)odd(a, 1)};
	char answer[4096];

	if (below(a, 8) == 0)
		w.magic = odd(a, w.magic);
	for (uint32_t i = 0; i < 4; i++) {
		w.range[i].offset = odd(a, 0);
		w.range[i].bytes = odd(a, 65536);
	}
	send_some(a, a->sock, &w, below(a, 8) ? sizeof(w) : below(a, sizeof(w)));
	while (recv(a->sock, answer, sizeof(answer), MSG_DONTWAIT) > 0)
		;
}

/* Another connection, which is let in, or not, or says nothing. */
static void connect_again(struct attacker *a)
{
	struct tn_wire_hello h = {.magic = odd(a, TN_WIRE_MAGIC), .page_bytes = (uint32_t)odd(a, 4096),
				  .command_bytes = (uint32_t)odd(a, sizeof(struct tn_command))};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);

	memcpy(address.sun_path, a->path, strlen(a->path) + 1);
	snprintf(h.version, sizeof(h.version), "%s", tn_version());
	snprintf(h.token, sizeof(h.token), "%s", TENANT);
	if (below(a, 4) == 0)
		memset(h.token, (int)below(a, 256), sizeof(h.token));
	if (below(a, 4) == 0)
		memset(h.version, (int)below(a, 256), sizeof(h.version));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && below(a, 8))
		send_some(a, fd, &h, below(a, 8) ? sizeof(h) : below(a, sizeof(h)));
	if (fd >= 0)
		close(fd);
}

static void attack_once(struct attacker *a)
{
	uint32_t op = (uint32_t)below(a, region(a)->counts.ops);

	for (uint64_t n = below(a, WORDS_AT_ONCE); n > 0; n--)
		change_any_word(a);
	if (below(a, 16) == 0)
		change_header(a);
	if (below(a, 2))
		write_command(a, op);
	if (below(a, CALL_EVERY) == 0)
		call(a);
	if (below(a, MESSAGE_EVERY) == 0)
		send_memory(a);
	if (below(a, 16 * MESSAGE_EVERY) == 0)
		connect_again(a);
	ring(a, op);
}

static int open_file(const char *kind)
{
	int fd = strcmp(kind, "disk") ? memfd_create("evil", MFD_CLOEXEC) : open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	if (strcmp(kind, "disk") != 0)
		assert_int_equal(ftruncate(fd, strcmp(kind, "small") ? 1 << 20 : 100), 0);
	return fd;
}

static int attack(const char *dir)
{
	const struct tn_attach_opts o = {.size = sizeof(o), .deadline_ns = tn_test_deadline(), .token = TENANT};
	uint64_t until, changes = 0;
	static struct attacker a;

	alarm(tn_test_soak() ? 1200 : 60);
	init_in(dir, &a.r);
	a.r.o.attached = true;
	socket_path(&a.r, a.path);
	assert_int_equal(tn_cache_attach(a.path, &o, &a.r.cache), 0);
	assert_int_equal(rig_space_open(&a.r, &(struct rig_space_opts){.tenant = "evil"}, a.r.s), 0);
	tn_rng_seed(&a.rng, tn_test_seed());
	a.sock = session_socket();
	a.files[0] = open_file("memory");
	a.files[1] = open_file("small");
	a.files[2] = open_file("disk");
	a.files[3] = socket(AF_UNIX, SOCK_DGRAM, 0);
	until = tn_test_now() + SHORT_NS; /* and on a busy machine until it has had its turns */
	while (changes < (tn_test_soak() ? SOAK_CHANGES : LEAST_CHANGES) || (!tn_test_soak() && tn_test_now() < until)) {
		attack_once(&a);
		changes = a.words + a.messages;
		if (changes % 4096 < WORDS_AT_ONCE)
			usleep(100); /* so that the owner meets what is there, and not the last of it */
	}
	printf("# %llu changes: %llu words, %llu commands, %llu calls, %llu messages\n", (unsigned long long)changes, (unsigned long long)a.words,
	       (unsigned long long)a.commands, (unsigned long long)a.calls, (unsigned long long)a.messages);
	fflush(stdout);
	_exit(0); /* nothing of its own can be relied on any more */
}

/* Processes that are attached. */
static uint32_t sessions(struct rig *r)
{
	struct tn_owner_stats s = {.size = sizeof(s)};

	assert_int_equal(tn_cache_owner_stats(r->cache, &s), 0);
	return s.sessions;
}

/* One after the other attacks, while two others save and load. Returns how often they did. */
static uint64_t use_beside_attackers(struct rig *r, struct rig *other, uint64_t *good)
{
	uint64_t rounds = 0, id = 1;

	for (uint32_t i = 0; i < (tn_test_soak() ? SOAK_ATTACKERS : 1); i++) {
		char seed[32];
		int status;
		pid_t pid;

		snprintf(seed, sizeof(seed), "%llu", (unsigned long long)tn_test_seed() + i);
		setenv("TN_SEED", seed, 1);
		pid = start("attack", r);
		for (; waitpid(pid, &status, WNOHANG) == 0; rounds++, id = id % 20 + 1) {
			rig_save(other->s, id * BLOCKS, BLOCKS, 0);
			*good += (uint64_t)rig_load(other->s, id * BLOCKS, BLOCKS); /* checks the bytes of what is good */
			*good += (uint64_t)rig_load(r->s, id * BLOCKS, BLOCKS);
		}
		assert_int_equal(status, 0);
	}
	return rounds;
}

static void others_never_notice_a_process_that_attacks(void **state)
{
	uint64_t rounds, good = 0, begun, until;
	struct rig r, other;

	rig_set_up(&r, 64u << 20, 8u << 20, 64);
	serve_tenant(&r, TENANT);
	attach(r.dir, &other);
	rounds = use_beside_attackers(&r, &other, &good);
	begun = rig_stats(&r).loads + rig_stats(&r).saves - 3 * rounds;
	printf("# %llu rounds, %llu good blocks, %llu hostile operations begun\n", (unsigned long long)rounds, (unsigned long long)good,
	       (unsigned long long)begun);
	assert_true(rounds > 0 && good > 0 && begun > 0);
	assert_int_equal(rig_device(&r, 0).health, TN_HEALTHY);
	assert_int_equal(rig_device(&r, 0).quarantined_slots, 0);
	/* All that they had is given back. */
	until = tn_test_deadline();
	while (sessions(&r) > 1 && tn_test_now() < until)
		usleep(1000);
	assert_int_equal(sessions(&r), 1);
	assert_int_equal(rig_save(other.s, 1000, BLOCKS, 0).failed, 0);
	detach(&other);
	rig_tear_down(&r);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(others_never_notice_a_process_that_attacks),
	};

	if (argc == 3 && strcmp(argv[1], "attack") == 0)
		return attack(argv[2]);
	if (TN_TEST_THREAD_SANITIZER)
		return tn_test_skip_all("the races are the point");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
