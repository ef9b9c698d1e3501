/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agents among others that lie, stay silent, or run out of something: metadata that was tampered with, a clock that is set back, hosts that are not found, full tables
 * of descriptors, files and sockets that are swapped.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#include "base/hash.h"
#include "base/proc.h"
#include "tn_test.h"
#include "xfer/backends.h"

#define SECRET "a secret of two agents"
#define FRAME_BYTES 24u
#define RECORD_BYTES 40u

static unsigned char memory[65536];

/* ---- what is wrapped --------------------------------------------------------------------------------------------------- */

static int64_t set_back_s;
static unsigned accepts, no_descriptors;

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __real_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags);
int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
	int rc = __real_clock_gettime(clock, t);

	if (clock == CLOCK_REALTIME)
		t->tv_sec -= set_back_s;
	return rc;
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags)
{
	__atomic_add_fetch(&accepts, 1, __ATOMIC_RELAXED);
	if (__atomic_load_n(&no_descriptors, __ATOMIC_RELAXED)) {
		errno = EMFILE;
		return -1;
	}
	return __real_accept4(fd, address, len, flags);
}

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
	if (!strcmp(host, "slow.example") && !(hints->ai_flags & AI_NUMERICHOST)) {
		usleep(1500000);
		return EAI_AGAIN;
	}
	return __real_getaddrinfo(host, port, hints, found);
}

/* ---- agents ------------------------------------------------------------------------------------------------------------ */

static struct tn_xfer_agent_opts opts_of(const char *name, const char *listen, const char *secret)
{
	static const char *const specs[] = {"memory", "file"};
	struct tn_xfer_agent_opts opts;

	tn_xfer_agent_opts_init(&opts);
	opts.name = name;
	opts.backends = specs;
	opts.nbackends = 2;
	opts.listen = listen;
	opts.secret = secret;
	opts.secret_bytes = secret ? strlen(secret) : 0;
	return opts;
}

static struct tn_xfer_agent *agent_new(const char *name, const char *listen, const char *secret)
{
	struct tn_xfer_agent_opts opts = opts_of(name, listen, secret);
	struct tn_xfer_agent *a;

	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	return a;
}

static void register_memory(struct tn_xfer_agent *a)
{
	struct tn_xfer_section s = {(uintptr_t)memory, sizeof(memory), 0, NULL};

	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
}

static size_t metadata_of(struct tn_xfer_agent *a, unsigned char *out, size_t max)
{
	int64_t n = tn_xfer_metadata(a, TN_XFER_DRAM, NULL, 0, out, max);

	assert_true(n > 0 && n <= (int64_t)max);
	return (size_t)n;
}

/* After somebody has changed metadata: the checksum keeps nobody off. */
static void set_checksum(unsigned char *bytes, size_t n)
{
	uint64_t sum = tn_hash64(bytes + FRAME_BYTES, n - FRAME_BYTES);

	memcpy(bytes + 16, &sum, sizeof(sum));
}

/* A list of 64 bytes at both sides, and what comes of a request. */
static int try_request(struct tn_xfer_agent *a, const char *peer, struct tn_xfer_request **out)
{
	struct tn_xfer_run run = {(uintptr_t)memory, 64, 0, 0, 1};
	struct tn_xfer_list *local, *remote;
	int rc;

	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &local), 0);
	assert_int_equal(tn_xfer_list_create(a, peer, TN_XFER_DRAM, &run, 1, &remote), 0);
	rc = tn_xfer_request_create(a, TN_XFER_WRITE, local, NULL, remote, NULL, 0, NULL, out);
	tn_xfer_list_destroy(local);
	tn_xfer_list_destroy(remote);
	return rc;
}

/* ---- metadata that lies ------------------------------------------------------------------------------------------------ */

static void metadata_that_the_secret_has_not_signed_is_refused(void **state)
{
	struct tn_xfer_agent *a = agent_new("a", NULL, SECRET), *b = agent_new("b", NULL, SECRET), *open = agent_new("open", NULL, NULL),
			     *other = agent_new("other", NULL, "another secret of agents");
	unsigned char bytes[4096];
	size_t n;

	register_memory(a);
	n = metadata_of(a, bytes, sizeof(bytes));
	for (size_t i = FRAME_BYTES; i < n; i += 7) {
		bytes[i] ^= 1;
		set_checksum(bytes, n);
		assert_int_equal(tn_xfer_load(b, bytes, n, NULL), -EACCES);
		bytes[i] ^= 1;
	}
	set_checksum(bytes, n);
	assert_int_equal(tn_xfer_load(other, bytes, n, NULL), -EACCES);
	assert_int_equal(tn_xfer_load(b, bytes, n, NULL), 0);
	n = metadata_of(open, bytes, sizeof(bytes));
	assert_int_equal(tn_xfer_load(b, bytes, n, NULL), -EACCES);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
	assert_int_equal(tn_xfer_agent_destroy(open), 0);
	assert_int_equal(tn_xfer_agent_destroy(other), 0);
}

/* The identity of the memory backend names another process, and 16 bytes that it has. */
static void name_process(unsigned char *bytes, size_t n, uint32_t pid, const unsigned char *mark)
{
	struct {
		uint64_t namespace;
		uint32_t pid;
	} __attribute__((packed)) key = {.pid = (uint32_t)getpid()};
	uint64_t mark_at = (uintptr_t)mark;
	struct stat st;
	unsigned char *at;

	assert_int_equal(stat("/proc/self/ns/pid", &st), 0);
	key.namespace = st.st_ino;
	at = memmem(bytes, n, &key, sizeof(key));
	assert_non_null(at);
	memcpy(at + 8, &pid, sizeof(pid));
	memcpy(at + 12, &mark_at, sizeof(mark_at));
	memcpy(at + 20, mark, 16);
	set_checksum(bytes, n);
}

static void metadata_does_not_choose_whose_memory_is_used(void **state)
{
	static const unsigned char mark[16] = "sixteen bytes..";
	static const char *const listen[] = {NULL, "tcp::0"};
	unsigned char bytes[4096];
	pid_t victim = fork();

	if (victim == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(0);
	}
	for (unsigned i = 0; i < 2; i++) {
		struct tn_xfer_agent *a = agent_new("a", listen[i], NULL), *b = agent_new("b", NULL, NULL);
		struct tn_xfer_request *q = NULL;
		size_t n;

		register_memory(a);
		register_memory(b);
		n = metadata_of(a, bytes, sizeof(bytes));
		name_process(bytes, n, (uint32_t)victim, mark);
		assert_int_equal(tn_xfer_load(b, bytes, n, NULL), 0);
		assert_int_equal(try_request(b, "a", &q), -ENOTSUP);
		assert_non_null(strstr(tn_error_last()->text, i ? "nothing proves" : "the metadata names process"));
		assert_null(q);
		assert_int_equal(tn_xfer_agent_destroy(a), 0);
		assert_int_equal(tn_xfer_agent_destroy(b), 0);
	}
	kill(victim, SIGKILL);
	waitpid(victim, NULL, 0);
}

/* What this process has dialled: the other end has a name. */
static void break_connections(void)
{
	for (int fd = 3; fd < 256; fd++) {
		struct sockaddr_un name;
		socklen_t n = sizeof(name);

		if (getpeername(fd, (struct sockaddr *)&name, &n) == 0 && name.sun_family == AF_UNIX && n > sizeof(name.sun_family))
			shutdown(fd, SHUT_RDWR);
	}
}

static void a_request_does_not_outlive_the_proof_of_its_process(void **state)
{
	static const unsigned char mark[16] = "sixteen bytes..";
	struct tn_xfer_agent *a = agent_new("a", NULL, NULL), *b = agent_new("b", NULL, NULL);
	struct tn_xfer_request *q = NULL;
	unsigned char bytes[4096];
	size_t n;

	register_memory(a);
	register_memory(b);
	n = metadata_of(a, bytes, sizeof(bytes));
	assert_int_equal(tn_xfer_load(b, bytes, n, NULL), 0);
	assert_int_equal(try_request(b, "a", &q), 0);
	assert_int_equal(tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), 0);
	assert_int_equal(tn_xfer_wait(q, tn_test_deadline()), 0);
	break_connections();
	while (tn_xfer_connect(b, "a", tn_test_deadline()) == 0)
		usleep(1000);
	name_process(bytes, n, 1, mark);
	assert_int_equal(tn_xfer_load(b, bytes, n, NULL), 0);
	assert_int_equal(tn_xfer_connect(b, "a", tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), -ECONNRESET);
	assert_non_null(strstr(tn_error_last()->text, "the metadata names process 1"));
	assert_int_equal(tn_xfer_release(q), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void job_ended(struct tn_xfer_job *job)
{
	job->word[3] = 1;
}

/* The belt of the above: the backend takes no address of a peer as one of this process. */
static void a_peer_that_nothing_proves_is_not_this_process(void **state)
{
	const struct tn_xfer_backend_ops *ops = &tn_xfer_memory_ops;
	char here[16] = "here", there[16] = "there", mapped[16] = "mapped";
	struct tn_xfer_piece piece[] = {{.local = (uintptr_t)here, .remote = (uintptr_t)there, .bytes = sizeof(here)},
					{.local = (uintptr_t)here, .remote = (uintptr_t)there, .bytes = sizeof(here), .mapped = (unsigned char *)mapped}};
	struct tn_xfer_job job = {.op = TN_XFER_WRITE, .piece = piece, .npieces = 2, .bytes = 2 * sizeof(here), .ended = job_ended};
	void *self;

	assert_int_equal(ops->create(NULL, 0, &self), 0);
	assert_int_equal(ops->peer_add(self, NULL, 0, &job.peer), 1);
	assert_non_null(job.peer);
	ops->post(self, &job);
	assert_int_equal(job.word[3], 1);
	assert_int_equal(piece[0].status, -ECONNRESET);
	assert_string_equal(there, "there");
	assert_int_equal(piece[1].status, 0);
	assert_string_equal(mapped, "here");
	ops->peer_remove(self, job.peer);
	ops->destroy(self);
}

static void a_secret_proves_the_process_by_tcp(void **state)
{
	struct tn_xfer_agent *a = agent_new("a", "tcp::0", SECRET), *b = agent_new("b", NULL, SECRET);
	struct tn_xfer_request *q = NULL;
	unsigned char bytes[4096];
	size_t n;

	register_memory(a);
	register_memory(b);
	n = metadata_of(a, bytes, sizeof(bytes));
	assert_int_equal(tn_xfer_load(b, bytes, n, NULL), 0);
	assert_int_equal(try_request(b, "a", &q), 0);
	assert_int_equal(tn_xfer_release(q), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void a_clock_that_is_set_back_keeps_no_new_agent_out(void **state)
{
	struct tn_xfer_agent *a, *b = agent_new("b", NULL, NULL);
	unsigned char bytes[3][4096];
	uint64_t boot[2], other[2];
	size_t n[2];

	for (unsigned i = 0; i < 2; i++) {
		set_back_s = i * 3600;
		a = agent_new("a", NULL, NULL);
		n[i] = metadata_of(a, bytes[i], sizeof(bytes[i]));
		assert_int_equal(tn_xfer_agent_destroy(a), 0);
		assert_int_equal(tn_xfer_load(b, bytes[i], n[i], NULL), 0);
	}
	set_back_s = 0;
	assert_int_equal(tn_xfer_load(b, bytes[0], n[0], NULL), -ESTALE);
	/* Of another boot, or another machine, nobody knows whether it is older. */
	tn_boot_id(boot);
	memcpy(bytes[2], bytes[0], n[0]);
	other[0] = boot[0] + 1;
	other[1] = boot[1];
	memcpy(memmem(bytes[2], n[0], boot, sizeof(boot)), other, sizeof(other));
	set_checksum(bytes[2], n[0]);
	assert_int_equal(tn_xfer_load(b, bytes[2], n[0], NULL), 0);
	assert_int_equal(tn_xfer_load(b, bytes[1], n[1], NULL), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

static void sections_in_falling_order_take_no_longer_than_in_rising_order(void **state)
{
	enum { N = TN_TEST_THREAD_SANITIZER ? 16384 : TN_XFER_SECTIONS_MAX };
	struct tn_xfer_section *s = calloc(N, sizeof(*s));
	struct tn_xfer_agent *a = agent_new("a", NULL, NULL), *b = agent_new("b", NULL, NULL);
	struct tn_xfer_peer_info info = {.size = sizeof(info)};
	uint64_t until = tn_test_deadline();
	unsigned char *bytes, *records;
	size_t n;

	for (uint32_t i = 0; i < N; i++)
		s[i] = (struct tn_xfer_section){4096 + 3 * (uint64_t)(N - i), 2, 0, NULL};
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, s, N), 0);
	n = (size_t)tn_xfer_metadata(a, TN_XFER_DRAM, NULL, 0, NULL, 0);
	bytes = malloc(n);
	assert_int_equal(metadata_of(a, bytes, n), n);
	records = bytes + n - sizeof(uint32_t) - (size_t)N * RECORD_BYTES; /* no keys of sections are behind them */
	for (uint32_t i = 0; i < N / 2; i++) {
		unsigned char *first = records + (size_t)i * RECORD_BYTES, *last = records + (size_t)(N - 1 - i) * RECORD_BYTES, record[RECORD_BYTES];

		memcpy(record, first, RECORD_BYTES);
		memcpy(first, last, RECORD_BYTES);
		memcpy(last, record, RECORD_BYTES);
	}
	set_checksum(bytes, n);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(tn_xfer_load(b, bytes, n, NULL), 0);
		assert_int_equal(tn_xfer_peer(b, "a", &info), 0);
		assert_int_equal(info.sections, N);
	}
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &(struct tn_xfer_section){64, 2, 0, NULL}, 1), N == TN_XFER_SECTIONS_MAX ? -ENOSPC : 0);
	assert_true(tn_test_now() < until);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
	free(bytes);
	free(s);
}

static void runs_of_more_descriptors_than_a_list_takes_are_refused(void **state)
{
	struct tn_xfer_run runs[2] = {{0, 1, 0, 1, TN_XFER_DESCRIPTORS_MAX}, {0, 2, 0, 1, 1}};
	enum tn_xfer_segment segment;
	unsigned char bytes[256];
	int64_t n = tn_xfer_runs_pack(TN_XFER_DRAM, runs, 1, bytes, sizeof(bytes));

	assert_int_equal(tn_xfer_runs_unpack(bytes, (size_t)n, &segment, NULL, 0), 1);
	n = tn_xfer_runs_pack(TN_XFER_DRAM, runs, 2, bytes, sizeof(bytes));
	assert_int_equal(tn_xfer_runs_unpack(bytes, (size_t)n, &segment, NULL, 0), -EBADMSG);
	runs[0].count = UINT64_C(1) << 60;
	n = tn_xfer_runs_pack(TN_XFER_DRAM, runs, 1, bytes, sizeof(bytes));
	assert_int_equal(tn_xfer_runs_unpack(bytes, (size_t)n, &segment, NULL, 0), -EBADMSG);
	n = tn_xfer_runs_pack(TN_XFER_DRAM, runs + 1, 1, bytes, sizeof(bytes));
	memset(bytes + n - 8, 0, 8); /* the count */
	set_checksum(bytes, (size_t)n);
	assert_int_equal(tn_xfer_runs_unpack(bytes, (size_t)n, &segment, NULL, 0), -EBADMSG);
}

static void one_range_is_one_section_whatever_its_meta(void **state)
{
	struct tn_xfer_section s[3] = {{(uintptr_t)memory, 4096, 0, "one"}, {(uintptr_t)memory, 4096, 0, "two"}, {(uintptr_t)memory, 4096, 0, NULL}};
	struct tn_xfer_section file[2] = {{0, 0, 0, NULL}, {0, 0, 0, ""}};
	struct tn_xfer_agent *a = agent_new("a", NULL, NULL), *b = agent_new("b", NULL, NULL);
	struct tn_xfer_peer_info info = {.size = sizeof(info)};
	unsigned char bytes[4096];
	uint64_t stat[64] = {0};
	FILE *f = tmpfile();
	uint32_t at = 0;
	size_t n;

	file[0].device = file[1].device = (uint64_t)fileno(f);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s[i], 1), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tn_xfer_register(a, TN_XFER_FILE, &file[i], 1), 0);
	while (strcmp(tn_xfer_stat_name(at), "registered_sections"))
		at++;
	assert_true(tn_xfer_stats(a, stat, 64) > 0);
	assert_int_equal(stat[at], 2);
	n = metadata_of(a, bytes, sizeof(bytes));
	assert_int_equal(tn_xfer_load(b, bytes, n, NULL), 0);
	assert_int_equal(tn_xfer_peer(b, "a", &info), 0);
	assert_int_equal(info.sections, 2);
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, s, 3, 0), 0);
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, s, 1, 0), -ENOENT);
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_FILE, file, 2, 0), 0);
	fclose(f);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

/* ---- connections ------------------------------------------------------------------------------------------------------- */

static int raw_socket(const char *name, bool listens)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));

	memcpy(un.sun_path + 1, name, strlen(name));
	if (listens)
		assert_int_equal(bind(fd, (struct sockaddr *)&un, bytes) || listen(fd, 8), 0);
	else
		assert_int_equal(connect(fd, (struct sockaddr *)&un, bytes), 0);
	return fd;
}

static void an_agent_without_descriptors_waits_for_some(void **state)
{
	struct tn_xfer_agent *a = agent_new("a", "unix:@tn-xfer-hostile-full", SECRET), *b = agent_new("b", NULL, SECRET);
	unsigned tries;
	int fd;

	__atomic_store_n(&no_descriptors, 1, __ATOMIC_RELAXED);
	fd = raw_socket("tn-xfer-hostile-full", false);
	tries = __atomic_load_n(&accepts, __ATOMIC_RELAXED);
	usleep(300000);
	tries = __atomic_load_n(&accepts, __ATOMIC_RELAXED) - tries;
	__atomic_store_n(&no_descriptors, 0, __ATOMIC_RELAXED);
	assert_in_range(tries, 0, 20);
	assert_int_equal(tn_xfer_fetch(b, "unix:@tn-xfer-hostile-full", tn_test_deadline(), NULL), 0);
	close(fd);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

static void silent_connections_keep_nobody_out(void **state)
{
	struct tn_xfer_agent *a = agent_new("a", "unix:@tn-xfer-hostile-silent", SECRET), *b = agent_new("b", NULL, SECRET);
	int fd[100];

	for (unsigned i = 0; i < 100; i++)
		fd[i] = raw_socket("tn-xfer-hostile-silent", false);
	assert_int_equal(tn_xfer_fetch(b, "unix:@tn-xfer-hostile-silent", tn_test_now() + 3 * TN_TEST_SECOND, NULL), 0);
	for (unsigned i = 0; i < 100; i++)
		close(fd[i]);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

static void *fetch(void *arg)
{
	tn_xfer_fetch(arg, "unix:@tn-xfer-hostile-fork", tn_test_deadline(), NULL);
	return NULL;
}

/* A process that dies in a handshake while a child of it lives on: the other side is to see that. */
static void dying_process(int pipe_out, int pipe_in)
{
	struct tn_xfer_agent *b = agent_new("b", NULL, SECRET);
	pthread_t thread;
	char byte;
	pid_t child;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (pthread_create(&thread, NULL, fetch, b) || read(pipe_in, &byte, 1) != 1)
		_exit(1);
	child = fork();
	if (child == 0) {
		sleep(10);
		_exit(0);
	}
	if (write(pipe_out, &child, sizeof(child)) != sizeof(child))
		_exit(2);
	pause();
}

static void a_child_does_not_keep_a_handshake_open(void **state)
{
	int listener = raw_socket("tn-xfer-hostile-fork", true), to[2], from[2], fd;
	struct pollfd p = {.events = POLLIN};
	char hello[1024];
	pid_t pid, child;

	assert_int_equal(pipe(to) || pipe(from), 0);
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		dying_process(from[1], to[0]);
	fd = accept(listener, NULL, NULL);
	assert_true(recv(fd, hello, sizeof(hello), 0) > 0);
	assert_int_equal(write(to[1], "f", 1), 1);
	assert_int_equal(read(from[0], &child, sizeof(child)), sizeof(child));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	p.fd = fd;
	while ((p.revents & POLLHUP) == 0 && poll(&p, 1, 3000) == 1)
		if (recv(fd, hello, sizeof(hello), MSG_DONTWAIT) == 0)
			break;
	assert_true(p.revents & (POLLIN | POLLHUP));
	kill(child, SIGKILL);
	close(fd);
	close(listener);
	for (unsigned i = 0; i < 2; i++) {
		close(to[i]);
		close(from[i]);
	}
}

static void a_host_that_is_not_found_ends_by_the_deadline(void **state)
{
	struct tn_xfer_agent *b = agent_new("b", NULL, SECRET);
	struct tn_xfer_agent_opts opts = opts_of("c", "tcp:slow.example:0", NULL);
	uint64_t begin = tn_test_now();
	struct tn_xfer_agent *c;

	assert_int_equal(tn_xfer_fetch(b, "tcp:slow.example:1", begin + TN_TEST_SECOND / 10, NULL), -ETIMEDOUT);
	opts.connect_ns = TN_TEST_SECOND / 10;
	assert_int_equal(tn_xfer_agent_create(&opts, &c), -ETIMEDOUT);
	assert_true(tn_test_now() - begin < TN_TEST_SECOND);
	assert_int_equal(tn_xfer_fetch(b, "tcp:slow.example:1", tn_test_deadline(), NULL), -EINVAL);
	assert_int_equal(tn_xfer_fetch(b, "tcp:localhost:1", tn_test_deadline(), NULL), -ECONNREFUSED);
	assert_int_equal(tn_xfer_fetch(b, "tcp:[::1]:1", tn_test_deadline(), NULL) != 0, 1);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

/* ---- notifications that were told as sent ------------------------------------------------------------------------------ */

struct two {
	struct tn_xfer_agent *a, *b; /* b tells a */
};

static void two_new(struct two *t, uint32_t notifications_max)
{
	struct tn_xfer_agent_opts opts = opts_of("a", NULL, NULL);
	unsigned char bytes[4096];

	opts.notifications_max = notifications_max;
	assert_int_equal(tn_xfer_agent_create(&opts, &t->a), 0);
	t->b = agent_new("b", NULL, NULL);
	assert_int_equal(tn_xfer_load(t->b, bytes, metadata_of(t->a, bytes, sizeof(bytes)), NULL), 0);
}

static unsigned take_all(struct tn_xfer_agent *a, unsigned n)
{
	static char bytes[TN_XFER_NOTIFICATION_MAX];
	uint64_t until = tn_test_deadline();
	char sender[TN_XFER_NAME_BYTES];
	unsigned taken = 0;

	while (taken < n && tn_test_now() < until)
		if (tn_xfer_take(a, sender, bytes, sizeof(bytes)) >= 0)
			taken++;
		else
			usleep(100);
	return taken;
}

static void *destroy(void *arg)
{
	return (void *)(intptr_t)tn_xfer_agent_destroy(arg);
}

/* More than the queue takes, and than the kernel does. */
static void what_an_agent_told_before_its_end_arrives(void **state)
{
	pthread_t thread;
	struct two t;
	void *rc;

	two_new(&t, 4);
	for (unsigned i = 0; i < 2000; i++)
		assert_int_equal(tn_xfer_notify(t.b, "a", &i, sizeof(i)), 0);
	assert_int_equal(pthread_create(&thread, NULL, destroy, t.b), 0);
	usleep(20000);
	assert_int_equal(take_all(t.a, 2000), 2000);
	pthread_join(thread, &rc);
	assert_null(rc);
	assert_int_equal(tn_xfer_agent_destroy(t.a), 0);
}

static void what_was_told_before_a_peer_was_forgotten_arrives(void **state)
{
	static char big[TN_XFER_NOTIFICATION_MAX];
	unsigned sent = 0;
	struct two t;

	two_new(&t, 1);
	for (unsigned full = 0; full < 5 && sent < 1000; usleep(1000)) {
		int rc = tn_xfer_notify(t.b, "a", big, sizeof(big));

		assert_true(rc == 0 || rc == -EAGAIN);
		sent += rc == 0;
		full = rc ? full + 1 : 0;
	}
	assert_int_equal(tn_xfer_invalidate(t.b, "a"), 0);
	usleep(20000);
	assert_int_equal(take_all(t.a, sent), sent);
	assert_int_equal(tn_xfer_agent_destroy(t.b), 0);
	assert_int_equal(tn_xfer_agent_destroy(t.a), 0);
}

/* Notifications of one that has ended wait, but its transfers do not. */
static void who_has_ended_holds_no_deregister_up(void **state)
{
	struct tn_xfer_section s = {(uintptr_t)memory, sizeof(memory), 0, NULL};
	struct two t;

	two_new(&t, 1);
	register_memory(t.a);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(tn_xfer_notify(t.b, "a", &i, sizeof(i)), 0);
	assert_int_equal(tn_xfer_agent_destroy(t.b), 0);
	assert_int_equal(tn_xfer_deregister(t.a, TN_XFER_DRAM, &s, 1, tn_test_deadline()), 0);
	assert_int_equal(take_all(t.a, 100), 100);
	assert_int_equal(tn_xfer_agent_destroy(t.a), 0);
}

/* Nobody takes notifications, and agent after agent comes, tells three and ends. */
static void those_that_have_ended_do_not_pile_up(void **state)
{
	enum { AGENTS = 80, KEPT = 64 };
	unsigned char bytes[4096];
	unsigned taken;
	struct two t;

	two_new(&t, 1);
	for (unsigned i = 0; i < AGENTS; i++) {
		for (unsigned k = 0; k < 3; k++)
			assert_int_equal(tn_xfer_notify(t.b, "a", &i, sizeof(i)), 0);
		assert_int_equal(tn_xfer_agent_destroy(t.b), 0);
		t.b = agent_new("b", NULL, NULL);
		assert_int_equal(tn_xfer_load(t.b, bytes, metadata_of(t.a, bytes, sizeof(bytes)), NULL), 0);
	}
	assert_int_equal(tn_xfer_connect(t.b, "a", tn_test_deadline()), 0);
	taken = take_all(t.a, KEPT * 3);
	assert_int_equal(taken, KEPT * 3);
	usleep(20000);
	for (char byte[64], sender[TN_XFER_NAME_BYTES]; tn_xfer_take(t.a, sender, byte, sizeof(byte)) >= 0; usleep(2000))
		taken++;
	assert_in_range(taken, KEPT * 3, AGENTS * 3 - 1);
	assert_int_equal(tn_xfer_agent_destroy(t.b), 0);
	assert_int_equal(tn_xfer_agent_destroy(t.a), 0);
}

/* ---- files of sockets -------------------------------------------------------------------------------------------------- */

static void an_agent_removes_no_other_agents_socket(void **state)
{
	struct tn_xfer_agent *a, *b, *c = agent_new("c", NULL, SECRET);
	char address[64];

	snprintf(address, sizeof(address), "unix:/tmp/tn-xfer-hostile-%d", (int)getpid());
	a = agent_new("a", address, SECRET);
	assert_int_equal(unlink(address + 5), 0);
	b = agent_new("b", address, SECRET);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_fetch(c, address, tn_test_deadline(), NULL), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
	assert_int_equal(access(address + 5, F_OK), -1);
	assert_int_equal(tn_xfer_agent_destroy(c), 0);
}

struct starter {
	pthread_t thread;
	pthread_barrier_t *together;
	const char *address;
	struct tn_xfer_agent *agent;
	int rc;
};

static void *start(void *arg)
{
	struct starter *s = arg;
	struct tn_xfer_agent_opts opts = opts_of("a", s->address, SECRET);

	pthread_barrier_wait(s->together);
	s->rc = tn_xfer_agent_create(&opts, &s->agent);
	return NULL;
}

/* A dead agent has left its socket, and several start at once. */
static void of_agents_that_start_at_once_one_gets_the_socket(void **state)
{
	enum { STARTERS = 4, ROUNDS = 25 };
	struct tn_xfer_agent *c = agent_new("c", NULL, SECRET);
	pthread_barrier_t together;
	char address[64];

	snprintf(address, sizeof(address), "unix:/tmp/tn-xfer-hostile-%d", (int)getpid());
	pthread_barrier_init(&together, NULL, STARTERS);
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct sockaddr_un un = {.sun_family = AF_UNIX};
		struct starter s[STARTERS];
		unsigned good = 0;
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);

		snprintf(un.sun_path, sizeof(un.sun_path), "%s", address + 5);
		assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
		close(fd);
		for (unsigned i = 0; i < STARTERS; i++) {
			s[i] = (struct starter){.together = &together, .address = address};
			assert_int_equal(pthread_create(&s[i].thread, NULL, start, &s[i]), 0);
		}
		for (unsigned i = 0; i < STARTERS; i++) {
			pthread_join(s[i].thread, NULL);
			good += s[i].rc == 0;
			assert_true(s[i].rc == 0 || s[i].rc == -EADDRINUSE);
		}
		assert_int_equal(good, 1);
		assert_int_equal(tn_xfer_fetch(c, address, tn_test_deadline(), NULL), 0);
		for (unsigned i = 0; i < STARTERS; i++)
			assert_int_equal(tn_xfer_agent_destroy(s[i].rc ? NULL : s[i].agent), 0);
	}
	pthread_barrier_destroy(&together);
	assert_int_equal(tn_xfer_agent_destroy(c), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* Those that fork come first: sanitizers take no fork of several threads. */
		cmocka_unit_test(metadata_does_not_choose_whose_memory_is_used),
		cmocka_unit_test(a_child_does_not_keep_a_handshake_open),
		cmocka_unit_test(metadata_that_the_secret_has_not_signed_is_refused),
		cmocka_unit_test(a_request_does_not_outlive_the_proof_of_its_process),
		cmocka_unit_test(a_peer_that_nothing_proves_is_not_this_process),
		cmocka_unit_test(a_secret_proves_the_process_by_tcp),
		cmocka_unit_test(a_clock_that_is_set_back_keeps_no_new_agent_out),
		cmocka_unit_test(sections_in_falling_order_take_no_longer_than_in_rising_order),
		cmocka_unit_test(runs_of_more_descriptors_than_a_list_takes_are_refused),
		cmocka_unit_test(one_range_is_one_section_whatever_its_meta),
		cmocka_unit_test(an_agent_without_descriptors_waits_for_some),
		cmocka_unit_test(silent_connections_keep_nobody_out),
		cmocka_unit_test(a_host_that_is_not_found_ends_by_the_deadline),
		cmocka_unit_test(what_an_agent_told_before_its_end_arrives),
		cmocka_unit_test(what_was_told_before_a_peer_was_forgotten_arrives),
		cmocka_unit_test(who_has_ended_holds_no_deregister_up),
		cmocka_unit_test(those_that_have_ended_do_not_pile_up),
		cmocka_unit_test(an_agent_removes_no_other_agents_socket),
		cmocka_unit_test(of_agents_that_start_at_once_one_gets_the_socket),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
