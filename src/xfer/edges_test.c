/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent refuses, and with which words: options, sections, lists, requests, metadata that is cut or changed. And what a refusal leaves as it was. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#include "base/rng.h"
#include "tn_test.h"

#define KIB 1024u

static unsigned char memory[64 * KIB], other[64 * KIB];

/* Fails unless the call fails with the code, and its text has the words. */
#define refused(call, code, words)                                          \
	do {                                                                \
		assert_int_equal(call, code);                               \
		if (!strstr(tn_error_last()->text, words))                  \
			fail_msg("\"%s\" lacks \"%s\"", tn_error_last()->text, words); \
	} while (0)

static struct tn_xfer_agent *agent_of(const char *name, const char *const *specs, uint32_t n)
{
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;

	tn_xfer_agent_opts_init(&opts);
	opts.name = name;
	opts.backends = specs;
	opts.nbackends = n;
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	return a;
}

static struct tn_xfer_agent *agent_new(const char *name)
{
	return agent_of(name, NULL, 0);
}

static struct tn_xfer_section section(void *at, uint64_t bytes)
{
	return (struct tn_xfer_section){(uintptr_t)at, bytes, 0, NULL};
}

static void options_that_make_no_sense_are_named(void **state)
{
	static const char *const bad[][2] = {{"memory,threads=0", "threads=0"}, {"memory,x=1", "x is no parameter"}, {"memory,threads", "parameter 1 is not key=value"},
					     {"file,engine=fast", "engine=fast"}, {"faulty,over=faulty", "over=faulty"}, {"faulty,drop=101", "drop=101"},
					     {"null,a=b", "none"},		  {"faulty,what=1", "what"}};
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a = NULL;

	tn_xfer_agent_opts_init(&opts);
	refused(tn_xfer_agent_create(&opts, &a), -EINVAL, "name");
	opts.name = "a";
	opts.secret = "short";
	opts.secret_bytes = 5;
	refused(tn_xfer_agent_create(&opts, &a), -EINVAL, "secret_bytes 5");
	opts.secret = NULL;
	opts.secret_bytes = 0;
	opts.listen = "somewhere";
	refused(tn_xfer_agent_create(&opts, &a), -EINVAL, "somewhere");
	opts.listen = "tcp:no-such-host.invalid:1";
	refused(tn_xfer_agent_create(&opts, &a), -EINVAL, "no-such-host.invalid");
	opts.listen = "unix:/no/such/directory/socket";
	refused(tn_xfer_agent_create(&opts, &a), -ENOENT, "/no/such/directory/socket");
	opts.listen = NULL;
	opts.notifications_max = 0;
	refused(tn_xfer_agent_create(&opts, &a), -EINVAL, "notifications_max 0");
	opts.size = 1;
	refused(tn_xfer_agent_create(&opts, &a), -EINVAL, "tn_xfer_agent_opts");
	assert_null(a);
	a = agent_new("a");
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		refused(tn_xfer_backend_add(a, bad[i][0]), -EINVAL, bad[i][1]);
	refused(tn_xfer_backend_add(a, "nowhere"), -ENOENT, "libtenuto_nowhere.so is not in");
	refused(tn_xfer_backend_add(a, "no/where"), -EINVAL, "no/where");
	refused(tn_xfer_backend_add(a, "memory"), -EEXIST, "memory");
	refused(tn_xfer_backend_add(a, ""), -EINVAL, "NAME");
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(NULL), 0);
}

static void two_agents_cannot_have_one_address(void **state)
{
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a, *b;
	char path[64];

	snprintf(path, sizeof(path), "unix:/tmp/tn-xfer-edge-%d", (int)getpid());
	tn_xfer_agent_opts_init(&opts);
	opts.name = "a";
	opts.listen = path;
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	refused(tn_xfer_agent_create(&opts, &b), -EADDRINUSE, path);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(access(path + 5, F_OK), -1);
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void registrations_are_counted_and_may_overlap(void **state)
{
	struct tn_xfer_agent *a = agent_new("a");
	struct tn_xfer_section all = section(memory, sizeof(memory)), part = section(memory + KIB, KIB), twice[2] = {part, part};
	struct tn_xfer_run run = {(uintptr_t)memory + KIB, KIB, 0, 0, 1}, wide = {(uintptr_t)memory, 8 * KIB, 0, 0, 1};
	struct tn_xfer_list *list;

	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &all, 1), 0);
		assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &part, 1), 0);
	}
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, twice, 2, 0), 0);
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, twice, 1, 0), 0);
	refused(tn_xfer_deregister(a, TN_XFER_DRAM, &part, 1, 0), -ENOENT, "not registered");
	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &list), 0);
	tn_xfer_list_destroy(list);
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &part, 1), 0);
	refused(tn_xfer_deregister(a, TN_XFER_DRAM, twice, 2, 0), -ENOENT, "as often");
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, &all, 1, 0), 0);
	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &list), 0);
	tn_xfer_list_destroy(list);
	refused(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &wide, 1, &list), -ENOENT, "run 0");
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

/* Against a plain list of ranges. */
static void the_section_around_a_range_is_found_among_many(void **state)
{
	enum { N = 300, ROUNDS = 4000 };
	struct tn_xfer_section s[N];
	bool there[N] = {false};
	struct tn_xfer_agent *a = agent_new("a");
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (unsigned i = 0; i < N; i++) {
		uint32_t at = tn_rng_below(&rng, 60000);

		s[i] = section(memory + at, 1 + tn_rng_below(&rng, (uint32_t)sizeof(memory) - at));
		s[i].device = i % 3;
	}
	for (unsigned round = 0; round < ROUNDS; round++) {
		unsigned i = tn_rng_below(&rng, N);
		uint64_t at = tn_rng_below(&rng, 60000), bytes = 1 + tn_rng_below(&rng, 5000), device = tn_rng_below(&rng, 3);
		struct tn_xfer_run run = {(uintptr_t)memory + at, bytes, device, 0, 1};
		struct tn_xfer_list *list = NULL;
		bool covered = false;

		assert_int_equal(there[i] ? tn_xfer_deregister(a, TN_XFER_DRAM, &s[i], 1, 0) : tn_xfer_register(a, TN_XFER_DRAM, &s[i], 1), 0);
		there[i] = !there[i];
		for (unsigned k = 0; k < N; k++)
			covered |= there[k] && s[k].device == device && s[k].address <= run.address && s[k].address + s[k].bytes >= run.address + bytes;
		assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &list), covered ? 0 : -ENOENT);
		tn_xfer_list_destroy(list);
	}
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void sections_that_make_no_sense_are_named(void **state)
{
	struct tn_xfer_agent *a = agent_new("a");
	struct tn_xfer_section none = section(memory, 0), wraps = section(memory, UINT64_MAX), null = section(NULL, 10);
	struct tn_xfer_section file = {0, 0, 7, "/no/such/directory/file"}, fd = {0, 0, 999999, NULL};
	struct tn_xfer_section mixed[2] = {section(memory, 10), none};
	struct tn_xfer_run run = {(uintptr_t)memory, 10, 0, 0, 1};
	struct tn_xfer_list *list;

	refused(tn_xfer_register(a, TN_XFER_DRAM, &none, 1), -EINVAL, "0 bytes");
	refused(tn_xfer_register(a, TN_XFER_DRAM, &wraps, 1), -EINVAL, "no range");
	refused(tn_xfer_register(a, TN_XFER_DRAM, &null, 1), -EINVAL, "no range");
	refused(tn_xfer_register(a, TN_XFER_OBJECT, &file, 1), -ENOTSUP, "segment 3");
	refused(tn_xfer_register(a, (enum tn_xfer_segment)17, &file, 1), -EINVAL, "17");
	refused(tn_xfer_register(a, TN_XFER_FILE, &file, 1), -ENOENT, "/no/such/directory/file");
	refused(tn_xfer_register(a, TN_XFER_FILE, &fd, 1), -EBADF, "999999");
	refused(tn_xfer_register(a, TN_XFER_DRAM, mixed, 2), -EINVAL, "section 1");
	refused(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &list), -ENOENT, "register it");
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void files_that_exist_and_those_that_do_not_are_told_apart(void **state)
{
	struct tn_xfer_agent *a = agent_new("a");
	char path[64];
	struct tn_xfer_section s[3] = {{0, 0, 1, path}, {0, 0, 2, "ro:/no/such/file"}, {0, 0, 0, NULL}};
	struct tn_xfer_found found[3];
	int fd;

	snprintf(path, sizeof(path), "/var/tmp/tn-xfer-query-%d", (int)getpid());
	fd = open(path, O_CREAT | O_RDWR, 0600);
	assert_int_equal(ftruncate(fd, 12345), 0);
	s[2].device = (uint64_t)fd;
	assert_int_equal(tn_xfer_query(a, TN_XFER_FILE, s, 3, found), 0);
	assert_int_equal(found[0].exists, 1);
	assert_int_equal(found[0].bytes, 12345);
	assert_int_equal(found[1].exists, 0);
	assert_int_equal(found[2].bytes, 12345);
	refused(tn_xfer_query(a, TN_XFER_DRAM, s, 1, found), -EINVAL, "0 bytes");
	refused(tn_xfer_query(a, TN_XFER_OBJECT, s, 1, found), -ENOTSUP, "segment 3");
	close(fd);
	unlink(path);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void descriptors_that_cannot_be_written_at_an_offset_are_refused(void **state)
{
	struct tn_xfer_section s = {0, 0, 0, NULL};
	struct tn_xfer_agent *a = agent_new("a");
	char path[64];
	int fd[4];

	snprintf(path, sizeof(path), "/var/tmp/tn-xfer-append-%d", (int)getpid());
	assert_int_equal(pipe(fd), 0);
	fd[2] = open("/dev/null", O_RDWR);
	fd[3] = open(path, O_CREAT | O_RDWR | O_APPEND, 0600);
	for (unsigned i = 0; i < 4; i++) {
		s.device = (uint64_t)fd[i];
		refused(tn_xfer_register(a, TN_XFER_FILE, &s, 1), -EINVAL, i == 3 ? "O_APPEND" : "regular file");
	}
	for (unsigned i = 0; i < 4; i++)
		close(fd[i]);
	unlink(path);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void a_fifo_is_refused_and_holds_nobody_up(void **state)
{
	struct tn_xfer_agent *a = agent_new("a");
	char path[64];
	struct tn_xfer_section s = {0, 0, 5, path};

	snprintf(path, sizeof(path), "ro:/var/tmp/tn-xfer-fifo-%d", (int)getpid());
	assert_int_equal(mkfifo(path + 3, 0600), 0);
	refused(tn_xfer_register(a, TN_XFER_FILE, &s, 1), -EINVAL, "regular file");
	unlink(path + 3);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void a_file_is_one_device(void **state)
{
	struct tn_xfer_agent *a = agent_new("a");
	char path[64], second[64];
	struct tn_xfer_section s[2] = {{0, 0, 5, path}, {0, 0, 5, second}};

	snprintf(path, sizeof(path), "/var/tmp/tn-xfer-one-%d", (int)getpid());
	snprintf(second, sizeof(second), "/var/tmp/tn-xfer-two-%d", (int)getpid());
	assert_int_equal(tn_xfer_register(a, TN_XFER_FILE, &s[0], 1), 0);
	refused(tn_xfer_register(a, TN_XFER_FILE, &s[1], 1), -EINVAL, "device 5");
	unlink(path);
	unlink(second);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void lists_and_requests_that_make_no_sense_are_named(void **state)
{
	struct tn_xfer_agent *a = agent_new("a"), *b = agent_new("b");
	struct tn_xfer_section s[2] = {section(memory, sizeof(memory)), section(other, sizeof(other))};
	struct tn_xfer_run run = {(uintptr_t)memory, KIB, 0, KIB, 8}, wraps = {(uintptr_t)memory, KIB, 0, UINT64_MAX / 4, 8}, many = run, empty = run,
			   small = {(uintptr_t)other, KIB / 2, 0, KIB, 8};
	struct tn_xfer_list *l, *m, *of_b;
	struct tn_xfer_request *q = NULL;
	uint32_t index[2] = {0, 8}, good[2] = {0, 1};
	const char *const unknown[] = {"ucx"}, *const file[] = {"file"};
	struct tn_xfer_request_opts opts;

	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, s, 2), 0);
	assert_int_equal(tn_xfer_register(b, TN_XFER_DRAM, s, 2), 0);
	many.count = TN_XFER_DESCRIPTORS_MAX + 1;
	many.stride = 0;
	empty.count = 0;
	refused(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &wraps, 1, &l), -EINVAL, "run 0");
	refused(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &many, 1, &l), -E2BIG, "run 0");
	refused(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &empty, 1, &l), -EINVAL, "count is 0");
	refused(tn_xfer_list_create(a, "z", TN_XFER_DRAM, &run, 1, &l), -ENOENT, "agent z");
	refused(tn_xfer_list_create(a, NULL, TN_XFER_FILE, &run, 1, &l), -ENOENT, "FILE");
	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &l), 0);
	assert_int_equal(tn_xfer_list_create(a, "a", TN_XFER_DRAM, &small, 1, &m), 0);
	assert_int_equal(tn_xfer_list_create(b, NULL, TN_XFER_DRAM, &run, 1, &of_b), 0);
	refused(tn_xfer_request_create(a, TN_XFER_WRITE, l, NULL, of_b, NULL, 0, NULL, &q), -EINVAL, "another agent");
	refused(tn_xfer_request_create(a, TN_XFER_WRITE, l, NULL, m, NULL, 0, NULL, &q), -EINVAL, "1024 bytes here and 512 there");
	refused(tn_xfer_request_create(a, TN_XFER_WRITE, l, index, l, good, 2, NULL, &q), -EINVAL, "local index 1 is 8");
	refused(tn_xfer_request_create(a, TN_XFER_WRITE, l, good, l, index, 2, NULL, &q), -EINVAL, "remote index 1 is 8");
	refused(tn_xfer_request_create(a, TN_XFER_WRITE, l, good, l, NULL, 2, NULL, &q), -EINVAL, "2 local and 8 remote");
	refused(tn_xfer_request_create(a, TN_XFER_WRITE, l, good, l, good, 0, NULL, &q), -EINVAL, "no descriptors");
	refused(tn_xfer_request_create(a, (enum tn_xfer_op)7, l, NULL, l, NULL, 0, NULL, &q), -EINVAL, "operation 7");
	tn_xfer_request_opts_init(&opts);
	opts.nbackends = 1;
	opts.backends = unknown;
	refused(tn_xfer_request_create(a, TN_XFER_WRITE, l, NULL, l, NULL, 0, &opts, &q), -EINVAL, "ucx");
	opts.backends = file;
	refused(tn_xfer_request_create(a, TN_XFER_WRITE, l, NULL, l, NULL, 0, &opts, &q), -ENOTSUP, "it moves DRAM from and to FILE");
	opts.backends = NULL;
	opts.notification_bytes = TN_XFER_NOTIFICATION_MAX + 1;
	refused(tn_xfer_request_create(a, TN_XFER_WRITE, l, NULL, l, NULL, 0, &opts, &q), -EINVAL, "notification_bytes");
	assert_null(q);
	assert_int_equal(tn_xfer_request_create(a, TN_XFER_WRITE, l, NULL, l, NULL, 0, NULL, &q), 0);
	assert_non_null(strstr(tn_xfer_explain(q), "memory: chosen"));
	assert_non_null(strstr(tn_xfer_explain(q), "file: no"));
	refused(tn_xfer_post(q, TN_FOREVER, memory, 257), -EINVAL, "257 bytes");
	refused(tn_xfer_post(q, TN_FOREVER, NULL, 5), -EINVAL, "5 bytes");
	assert_int_equal(tn_xfer_release(q), 0);
	assert_int_equal(tn_xfer_release(NULL), 0);
	tn_xfer_list_destroy(l);
	tn_xfer_list_destroy(m);
	tn_xfer_list_destroy(of_b);
	tn_xfer_list_destroy(NULL);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

static void a_section_that_is_gone_makes_old_lists_stale(void **state)
{
	struct tn_xfer_agent *a = agent_new("a");
	struct tn_xfer_section s = section(memory, sizeof(memory));
	struct tn_xfer_run run = {(uintptr_t)memory, KIB, 0, 0, 1};
	struct tn_xfer_request *q;
	struct tn_xfer_list *l;

	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &l), 0);
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, &s, 1, 0), 0);
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
	refused(tn_xfer_request_create(a, TN_XFER_WRITE, l, NULL, l, NULL, 0, NULL, &q), -ESTALE, "deregistered");
	tn_xfer_list_destroy(l);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void the_callers_order_of_backends_counts(void **state)
{
	static const char *const specs[] = {"null", "memory", "faulty,over=memory"}, *const order[] = {"faulty", "memory"}, *const last[] = {"null"};
	struct tn_xfer_agent *a = agent_of("a", specs, 3);
	struct tn_xfer_section s = section(memory, sizeof(memory));
	struct tn_xfer_run run = {(uintptr_t)memory, KIB, 0, 0, 1};
	struct tn_xfer_status status = {.size = sizeof(status)};
	struct tn_xfer_request_opts opts;
	struct tn_xfer_request *q;
	struct tn_xfer_list *l;

	tn_xfer_request_opts_init(&opts);
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
	assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &l), 0);
	for (unsigned i = 0; i < 2; i++) {
		opts.backends = i ? last : order;
		opts.nbackends = i ? 1 : 2;
		assert_int_equal(tn_xfer_request_create(a, TN_XFER_WRITE, l, NULL, l, NULL, 0, &opts, &q), 0);
		assert_int_equal(tn_xfer_status(q, &status), 0);
		assert_string_equal(status.backend, i ? "null" : "faulty");
		assert_int_equal(tn_xfer_release(q), 0);
	}
	tn_xfer_list_destroy(l);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void many_sections_come_and_go(void **state)
{
	enum { N = 100000 };
	struct tn_xfer_section *s = calloc(N, sizeof(*s));
	char *at = (char *)memory;
	struct tn_xfer_agent *a = agent_new("a"), *b = agent_new("b");
	struct tn_xfer_peer_info info = {.size = sizeof(info)};
	unsigned char *bytes;
	int64_t n;

	for (unsigned i = 0; i < N; i++)
		s[i] = (struct tn_xfer_section){(uintptr_t)at + 3 * (uint64_t)i, 2, i % 7, NULL};
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, s, N), 0);
	n = tn_xfer_metadata(a, TN_XFER_DRAM, NULL, 0, NULL, 0);
	bytes = malloc((size_t)n);
	assert_int_equal(tn_xfer_metadata(a, TN_XFER_DRAM, NULL, 0, bytes, (size_t)n), n);
	assert_int_equal(tn_xfer_load(b, bytes, (size_t)n, NULL), 0);
	assert_int_equal(tn_xfer_connect(b, "a", tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, s, N / 2, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_peer(b, "a", &info), 0);
	assert_int_equal(info.sections, N - N / 2);
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, s + N / 2, N - N / 2, tn_test_deadline()), 0);
	refused(tn_xfer_deregister(a, TN_XFER_DRAM, s, 1, 0), -ENOENT, "section 0");
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
	free(bytes);
	free(s);
}

/* ---- metadata ---------------------------------------------------------------------------------------------------------- */

static size_t metadata_of(const char *name, unsigned char *out, size_t max)
{
	struct tn_xfer_agent *a = agent_new(name);
	struct tn_xfer_section s[2] = {section(memory, sizeof(memory)), section(other, sizeof(other))};
	int64_t n;

	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, s, 2), 0);
	n = tn_xfer_metadata(a, TN_XFER_DRAM, NULL, 0, NULL, 0);
	assert_true(n > 0 && n <= (int64_t)max);
	assert_int_equal(tn_xfer_metadata(a, TN_XFER_DRAM, NULL, 0, out, max), n);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	return (size_t)n;
}

static void metadata_that_is_cut_or_changed_is_refused(void **state)
{
	struct tn_xfer_agent *b = agent_new("b");
	unsigned char bytes[4096];
	size_t n = metadata_of("a", bytes, sizeof(bytes));
	struct tn_xfer_peer_info info = {.size = sizeof(info)};

	for (size_t i = 0; i < n; i++) {
		unsigned char *exact = malloc(i ? i : 1); /* so that a byte read behind the end is seen */

		memcpy(exact, bytes, i);
		assert_int_equal(tn_xfer_load(b, exact, i, NULL), -EBADMSG);
		free(exact);
		bytes[i] ^= 0x40;
		assert_int_equal(tn_xfer_load(b, bytes, n, NULL), i >= 4 && i < 8 ? -EPROTONOSUPPORT : -EBADMSG);
		bytes[i] ^= 0x40;
	}
	assert_int_equal(tn_xfer_peer(b, "a", &info), -ENOENT);
	assert_int_equal(tn_xfer_load(b, bytes, n, NULL), 0);
	assert_int_equal(tn_xfer_load(b, bytes, n, NULL), 0);
	assert_int_equal(tn_xfer_peer(b, "a", &info), 0);
	assert_int_equal(info.sections, 2);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

static void metadata_of_ones_own_name_or_without_a_common_backend_is_refused(void **state)
{
	static const char *const null[] = {"null"};
	struct tn_xfer_agent *a = agent_new("a"), *b = agent_of("b", null, 1);
	unsigned char bytes[4096];
	size_t n = metadata_of("a", bytes, sizeof(bytes));

	refused(tn_xfer_load(a, bytes, n, NULL), -EINVAL, "own name");
	refused(tn_xfer_load(b, bytes, n, NULL), -ENOTSUP, "memory");
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

static void partial_metadata_adds_and_whole_metadata_replaces(void **state)
{
	struct tn_xfer_agent *a = agent_new("a"), *b = agent_new("b");
	struct tn_xfer_section s[2] = {section(memory, sizeof(memory)), section(other, sizeof(other))}, none = section(memory, 5);
	struct tn_xfer_peer_info info = {.size = sizeof(info)};
	unsigned char bytes[3][4096];
	size_t n[3];

	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, s, 2), 0);
	for (unsigned i = 0; i < 3; i++)
		n[i] = (size_t)tn_xfer_metadata(a, TN_XFER_DRAM, s, i, bytes[i], sizeof(bytes[i]));
	refused((int)tn_xfer_metadata(a, TN_XFER_DRAM, &none, 1, NULL, 0), -ENOENT, "section 0");
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(tn_xfer_load(b, bytes[i], n[i], NULL), 0);
		assert_int_equal(tn_xfer_peer(b, "a", &info), 0);
		assert_int_equal(info.sections, i);
	}
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, s, 1, 0), 0);
	n[0] = (size_t)tn_xfer_metadata(a, TN_XFER_DRAM, NULL, 0, bytes[0], sizeof(bytes[0]));
	assert_int_equal(tn_xfer_load(b, bytes[0], n[0], NULL), 0);
	assert_int_equal(tn_xfer_peer(b, "a", &info), 0);
	assert_int_equal(info.sections, 1);
	refused(tn_xfer_load(b, bytes[1], n[1], NULL), -ESTALE, "revision");
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

static void runs_survive_as_bytes(void **state)
{
	struct tn_xfer_run runs[5] = {{1000, 8, 0, 0, 1}, {1016, 8, 0, 0, 1}, {1032, 8, 0, 16, 2}, {900, 8, 0, 0, 1}, {1, 2, 3, 4, 5}}, back[5];
	unsigned char bytes[512];
	enum tn_xfer_segment segment;
	int64_t n = tn_xfer_runs_pack(TN_XFER_VRAM, runs, 5, bytes, sizeof(bytes));

	assert_true(n > 0 && n < (int64_t)sizeof(bytes));
	assert_int_equal(tn_xfer_runs_unpack(bytes, (size_t)n, &segment, back, 5), 3);
	assert_int_equal(segment, TN_XFER_VRAM);
	assert_int_equal(back[0].count, 4);
	assert_int_equal(back[0].stride, 16);
	assert_int_equal(back[1].address, 900);
	assert_memory_equal(&back[2], &runs[4], sizeof(back[2]));
	for (int64_t i = 0; i < n; i++)
		assert_int_equal(tn_xfer_runs_unpack(bytes, (size_t)i, &segment, back, 5), -EBADMSG);
	bytes[n - 1] ^= 1;
	assert_int_equal(tn_xfer_runs_unpack(bytes, (size_t)n, &segment, back, 5), -EBADMSG);
}

enum { PAGE = 4096, PAGES = 32, HOLE = 5 };

/* Memory with a hole, to and from a file; pages that follow each other on both sides, and in the file alone. */
static void neighbours_of_a_bad_descriptor_are_moved(void **state)
{
	static const char *const specs[] = {"file", "file,engine=posix", "faulty,over=file"};

	for (unsigned turn = 0; turn < 12; turn++) {
		bool scattered = turn & 1, reads = turn & 2;
		unsigned char *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), page[PAGE];
		struct tn_xfer_run here = {(uintptr_t)at, PAGE, 0, PAGE, PAGES}, there = {0, PAGE, 0, PAGE, PAGES};
		struct tn_xfer_section s = {(uintptr_t)at, PAGES * PAGE, 0, NULL}, file = {0, 0, 0, NULL};
		struct tn_xfer_status status = {.size = sizeof(status)};
		struct tn_xfer_result result[PAGES];
		struct tn_xfer_list *local, *remote;
		struct tn_xfer_request *q;
		struct tn_xfer_agent *a = agent_of("a", &specs[turn / 4], 1);
		uint32_t index[PAGES];
		FILE *f = tmpfile();

		file.device = there.device = (uint64_t)fileno(f);
		assert_int_equal(ftruncate(fileno(f), PAGES * PAGE), 0);
		for (uint32_t i = 0; i < PAGES; i++) {
			index[i] = scattered ? (i * 5) % PAGES : i;
			memset(at + i * PAGE, (int)i + 1, PAGE);
			memset(page, 100 + (int)i, PAGE);
			assert_int_equal(!reads || pwrite(fileno(f), page, PAGE, i * PAGE) == PAGE, 1);
		}
		assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &s, 1), 0);
		assert_int_equal(tn_xfer_register(a, TN_XFER_FILE, &file, 1), 0);
		assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &here, 1, &local), 0);
		assert_int_equal(tn_xfer_list_create(a, NULL, TN_XFER_FILE, &there, 1, &remote), 0);
		assert_int_equal(tn_xfer_request_create(a, reads ? TN_XFER_READ : TN_XFER_WRITE, local, index, remote, NULL, PAGES, NULL, &q), 0);
		assert_int_equal(munmap(at + HOLE * PAGE, PAGE), 0);
		for (unsigned again = 0; again < 2; again++) {
			assert_int_equal(tn_xfer_post(q, tn_test_deadline(), NULL, TN_XFER_NO_NOTIFICATION), 0);
			assert_int_equal(tn_test_ended(tn_xfer_wait(q, tn_test_deadline())), -EFAULT);
			assert_int_equal(tn_xfer_post(q, 0, NULL, TN_XFER_NO_NOTIFICATION), -ETIMEDOUT); /* a post that is refused changes nothing */
			assert_int_equal(tn_xfer_results(q, 0, PAGES, result), 0);
			for (uint32_t i = 0; i < PAGES; i++) {
				assert_int_equal(result[i].status, index[i] == HOLE ? -EFAULT : 0);
				assert_int_equal(result[i].bytes, index[i] == HOLE ? 0 : PAGE);
				if (index[i] == HOLE)
					continue;
				assert_int_equal(pread(fileno(f), page, PAGE, i * PAGE), PAGE);
				assert_memory_equal(at + index[i] * PAGE, page, PAGE);
			}
			assert_int_equal(tn_xfer_status(q, &status), 0);
			assert_int_equal(status.bytes, (PAGES - 1) * PAGE);
		}
		assert_int_equal(tn_xfer_release(q), 0);
		tn_xfer_list_destroy(local);
		tn_xfer_list_destroy(remote);
		assert_int_equal(tn_xfer_agent_destroy(a), 0);
		munmap(at, PAGES * PAGE);
		fclose(f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_that_make_no_sense_are_named),
		cmocka_unit_test(two_agents_cannot_have_one_address),
		cmocka_unit_test(registrations_are_counted_and_may_overlap),
		cmocka_unit_test(the_section_around_a_range_is_found_among_many),
		cmocka_unit_test(sections_that_make_no_sense_are_named),
		cmocka_unit_test(files_that_exist_and_those_that_do_not_are_told_apart),
		cmocka_unit_test(descriptors_that_cannot_be_written_at_an_offset_are_refused),
		cmocka_unit_test(a_fifo_is_refused_and_holds_nobody_up),
		cmocka_unit_test(a_file_is_one_device),
		cmocka_unit_test(lists_and_requests_that_make_no_sense_are_named),
		cmocka_unit_test(a_section_that_is_gone_makes_old_lists_stale),
		cmocka_unit_test(the_callers_order_of_backends_counts),
		cmocka_unit_test(metadata_that_is_cut_or_changed_is_refused),
		cmocka_unit_test(metadata_of_ones_own_name_or_without_a_common_backend_is_refused),
		cmocka_unit_test(partial_metadata_adds_and_whole_metadata_replaces),
		cmocka_unit_test(runs_survive_as_bytes),
		cmocka_unit_test(many_sections_come_and_go),
		cmocka_unit_test(neighbours_of_a_bad_descriptor_are_moved),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
